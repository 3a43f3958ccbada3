package apicheck

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
)

func minor(n int) kubeversion.Minor { return kubeversion.Minor{Major: 1, Minor: n} }

// scanText scans one text as stdin, with and without the fast path, which must agree.
func scanText(t *testing.T, from, to int, text string) Report {
	t.Helper()
	o := Options{From: minor(from), To: minor(to), Files: []string{"-"}, Stdin: strings.NewReader(text)}
	r, err := Scan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Stdin, o.FullParse = strings.NewReader(text), true
	full, err := Scan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := asJSON(t, r), asJSON(t, full); a != b {
		t.Errorf("fast path and full parse differ:\nfast %s\nfull %s", a, b)
	}
	return r
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// line words a finding shortly.
func line(f Finding) string {
	repl := "-"
	if f.Replacement != nil {
		repl = f.Replacement.APIVersion + " " + f.Replacement.Kind
	}
	return fmt.Sprintf("%s %s %s %s@%s:%d %s -> %s (%s)", f.Severity, f.Verdict, f.APIVersion, f.Kind, f.Source.Path, f.Source.Line, f.Confidence, repl, f.Rewrite)
}

func itoa(n int) string { return fmt.Sprint(n) }

func lines(r Report) []string {
	var out []string
	for _, f := range r.Findings {
		out = append(out, line(f))
	}
	for _, u := range r.Coverage.Unreadable {
		out = append(out, fmt.Sprintf("unread %s:%d %s", u.What, u.Line, u.Why))
	}
	return out
}

const listOfTwo = `apiVersion: v1
kind: List
items:
- {apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: c}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
`

func nested(levels int, inner string) string {
	s := inner
	for range levels {
		s = `{apiVersion: v1, kind: List, items: [` + s + `]}`
	}
	return s + "\n"
}

func TestManifests(t *testing.T) {
	const cron = `{apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: c}}`
	for _, c := range []struct {
		name     string
		from, to int
		text     string
		want     []string // parts of each line, in order
		verdict  Outcome
	}{
		{"plain, deprecated", 14, 15, "{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {labels: {app: a}}}}}\n",
			[]string{"warning deprecated extensions/v1beta1 Deployment@:1 high -> apps/v1 Deployment (structural)"}, Findings},
		{"plain, removed", 15, 16, "{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {labels: {app: a}}}}}\n",
			[]string{"error removed extensions/v1beta1 Deployment@:1 high -> apps/v1 Deployment (structural)"}, Findings},
		{"list", 24, 25, listOfTwo, []string{"error removed batch/v1beta1 CronJob@items[0]:4 high -> batch/v1 CronJob (bump)"}, Findings},
		{"list, deprecated", 23, 24, listOfTwo, []string{"warning deprecated batch/v1beta1 CronJob@items[0]:4"}, Findings},
		{"list in a list", 24, 25, nested(2, cron), []string{"error removed batch/v1beta1 CronJob@items[0].items[0]:1"}, Findings},
		{"list fifty levels deep", 24, 25, nested(50, cron), []string{"unread stdin:1 lists are nested too deep"}, Unknown},
		{"typed list, items without kind", 24, 25, "{apiVersion: autoscaling/v2beta2, kind: HorizontalPodAutoscalerList, items: [{metadata: {name: h}}]}\n",
			[]string{"warning deprecated autoscaling/v2beta2 HorizontalPodAutoscaler@items[0]:1"}, Findings},
		{"typed list, removed", 25, 26, "{apiVersion: autoscaling/v2beta2, kind: HorizontalPodAutoscalerList, items: [{metadata: {name: h}}]}\n",
			[]string{"error removed autoscaling/v2beta2 HorizontalPodAutoscaler@items[0]:1 high -> autoscaling/v2 HorizontalPodAutoscaler (bump)"}, Findings},
		{"same kind, other group", 36, 37, "apiVersion: networking.example.com/v1beta1\nkind: Ingress\n---\napiVersion: extensions.example.io/v1beta1\nkind: Deployment\n", nil, Clean},
		{"same version, other kind", 35, 36, "apiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR\n",
			[]string{"warning off-by-default networking.k8s.io/v1beta1 ServiceCIDR@:1 high -> networking.k8s.io/v1 ServiceCIDR (bump)"}, Findings},
		{"same version, other kind, removed", 36, 37, "apiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR\n",
			[]string{"error removed networking.k8s.io/v1beta1 ServiceCIDR@:1 high -> networking.k8s.io/v1 ServiceCIDR (bump)"}, Findings},
		{"json, kind first", 25, 26, `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2beta2","metadata":{"name":"h"}}`,
			[]string{"error removed autoscaling/v2beta2 HorizontalPodAutoscaler@:1 high -> autoscaling/v2 HorizontalPodAutoscaler (bump)"}, Findings},
		{"json lines with CRLF", 25, 26, "{\"kind\":\"HorizontalPodAutoscaler\",\"apiVersion\":\"autoscaling/v2beta2\"}\r\n{\"apiVersion\":\"autoscaling/v2beta1\",\"kind\":\"HorizontalPodAutoscaler\"}\r\n",
			// By hop, the earlier first.
			[]string{"autoscaling/v2beta1 HorizontalPodAutoscaler@:2", "autoscaling/v2beta2 HorizontalPodAutoscaler@:1"}, Findings},
		{"json with tabs", 25, 26, "{\n\t\"kind\": \"HorizontalPodAutoscaler\",\n\t\"apiVersion\": \"autoscaling/v2beta2\"\n}\n",
			[]string{"autoscaling/v2beta2 HorizontalPodAutoscaler@:3"}, Findings},
		{"configmap payload", 24, 25, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata:\n  a.yaml: |\n    apiVersion: policy/v1beta1\n    kind: PodDisruptionBudget\n  README: \"use apiVersion: policy/v1beta1 here\"\n",
			[]string{`error removed policy/v1beta1 PodDisruptionBudget@data["a.yaml"]:6 medium -> policy/v1 PodDisruptionBudget (semantic)`}, Findings},
		{"secret payload", 24, 25, "apiVersion: v1\nkind: Secret\ndata:\n  a: YXBpVmVyc2lvbjogcG9saWN5L3YxYmV0YTEKa2luZDogUG9kRGlzcnVwdGlvbkJ1ZGdldAo=\n  b: bm90aGluZw==\n",
			[]string{`policy/v1beta1 PodDisruptionBudget@data["a"]:4 medium`}, Findings},
		{"kubeadm-config, deprecated", 35, 36, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kubeadm-config, namespace: kube-system}\ndata:\n  ClusterConfiguration: |\n    apiVersion: kubeadm.k8s.io/v1beta3\n    kind: ClusterConfiguration\n",
			[]string{`warning deprecated kubeadm.k8s.io/v1beta3 ClusterConfiguration@data["ClusterConfiguration"]:6 high -> kubeadm.k8s.io/v1beta4`}, Findings},
		{"kubeadm-config, removed", 36, 37, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kubeadm-config, namespace: kube-system}\ndata:\n  ClusterConfiguration: |\n    apiVersion: kubeadm.k8s.io/v1beta3\n    kind: ClusterConfiguration\n",
			[]string{`error removed kubeadm.k8s.io/v1beta3 ClusterConfiguration@data["ClusterConfiguration"]:6 high -> kubeadm.k8s.io/v1beta4 `}, Findings},
		{"event semantic", 24, 25, "apiVersion: events.k8s.io/v1beta1\nkind: Event\n---\napiVersion: v1\nkind: Event\n", []string{"error removed events.k8s.io/v1beta1 Event@:1 high -> events.k8s.io/v1 Event (semantic)"}, Findings},
		{"psp", 24, 25, "apiVersion: policy/v1beta1\nkind: PodSecurityPolicy\n", []string{"error removed policy/v1beta1 PodSecurityPolicy@:1 high -> - (none)"}, Findings},
		{"never existed", 36, 37, "apiVersion: apps/v1beta3\nkind: Deployment\n---\napiVersion: apps/v1beta1\nkind: ReplicaSet\n",
			[]string{"warning unknown-builtin apps/v1beta3 Deployment@:1", "warning unknown-builtin apps/v1beta1 ReplicaSet@:4"}, Findings},
		{"virtual", 36, 37, "apiVersion: extensions/v1beta1\nkind: Scale\n", nil, Clean},
		{"endpoints", 32, 33, "apiVersion: v1\nkind: Endpoints\n", []string{"warning deprecated v1 Endpoints@:1 high -> discovery.k8s.io/v1 EndpointSlice (structural)"}, Findings},
		{"beyond the database", 37, 38, "apiVersion: resource.k8s.io/v1beta1\nkind: DeviceClass\n",
			[]string{"warning planned resource.k8s.io/v1beta1 DeviceClass@:1", "unread Kubernetes 1.38:0 planned, not observed"}, Unknown},
		{"values file", 36, 37, "image: nginx\nkind: DaemonSet\n---\napiVersion: v2\nname: chart\n", nil, Clean},
		{"nothing", 36, 37, " \n", []string{"unread stdin:0 nothing came"}, Unknown},
		{"nothing but a comment", 36, 37, "# none\n", nil, Clean},
		{"only markers and comments", 36, 37, "---\n# nothing\n---\n...\n---\n", nil, Clean},
		{"comments, quotes, order", 24, 25, "# head\nmetadata:\n  name: x # name\nkind: 'CronJob' # kind\n\"apiVersion\": \"batch/v1beta1\"\n", []string{"batch/v1beta1 CronJob@:5"}, Findings},
		{"certificate in a value", 24, 25, "apiVersion: v1\nkind: ConfigMap\ndata:\n  ca: |\n    -----BEGIN CERTIFICATE-----\n    abc\n    -----END CERTIFICATE-----\n---\napiVersion: batch/v1beta1\nkind: CronJob\n", []string{"batch/v1beta1 CronJob@:9"}, Findings},
		{"no newline before the marker's end", 24, 25, "apiVersion: batch/v1\nkind: CronJob\n--- # next\napiVersion: batch/v1beta1\nkind: CronJob", []string{"batch/v1beta1 CronJob@:4"}, Findings},
		{"document on the marker's line", 24, 25, "--- {apiVersion: batch/v1beta1, kind: CronJob}\n", []string{"batch/v1beta1 CronJob@:1"}, Findings},
		{"anchors and merges", 24, 25, "x: &base\n  apiVersion: batch/v1beta1\nlist: &l {<<: *b}\n", []string{"unread stdin:"}, Unknown},
		{"merged apiVersion", 24, 25, "apiVersion: v1\nkind: List\nx-base: &base {apiVersion: batch/v1beta1}\nitems:\n- <<: *base\n  kind: CronJob\n", []string{"batch/v1beta1 CronJob@items[0]:3"}, Findings},
		{"aliased kind", 24, 25, "apiVersion: batch/v1beta1\nmetadata: {name: &k CronJob}\nkind: *k\n", []string{"batch/v1beta1 CronJob@:1"}, Findings},
		{"cyclic anchors", 24, 25, "apiVersion: v1\nkind: List\nitems: &i\n- apiVersion: v1\n  kind: List\n  items: *i\n", []string{"unread stdin:"}, Unknown},
		{"cyclic anchors that branch", 24, 25, "&a {apiVersion: v1, kind: List, items: [*a, *a, *a, *a, *a, *a, *a, *a]}\n", []string{"unread stdin:1 lists are nested too deep", "unread stdin:1 more than 200000 objects"}, Unknown},
		{"cyclic anchor of an object", 24, 25, "&a {apiVersion: v1, kind: List, items: [*a]}\n", []string{"unread stdin:"}, Unknown},
		{"broken document, the rest is scanned", 24, 25, "apiVersion: v1\nkind: [Pod\n---\napiVersion: batch/v1beta1\nkind: CronJob\n", []string{"batch/v1beta1 CronJob@:4", "unread stdin:"}, Unknown},
		{"key stands twice", 24, 25, "apiVersion: batch/v1\napiVersion: batch/v1beta1\nkind: CronJob\n", []string{"unread stdin:1 apiVersion or kind stands twice"}, Unknown},
		{"binary", 24, 25, "apiVersion: v1\x00\n", []string{"unread stdin:0 binary"}, Unknown},
		{"utf-16", 24, 25, "\xff\xfea\x00", []string{"unread stdin:0 UTF-16"}, Unknown},
		{"byte order mark", 24, 25, "\xef\xbb\xbfapiVersion: batch/v1beta1\nkind: CronJob\n", []string{"batch/v1beta1 CronJob@:1"}, Findings},
		{"template", 24, 25, "{{- if .Values.old }}\napiVersion: policy/v1beta1\n{{- else }}\napiVersion: policy/v1\n{{- end }}\nkind: PodDisruptionBudget\nmetadata:\n  name: {{ .Release.Name }}\n",
			[]string{"error removed policy/v1beta1 PodDisruptionBudget@:2 low", "unread stdin:1 a template"}, Unknown},
		{"templated version in whole YAML", 24, 25, "apiVersion: \"{{ .v }}\"\nkind: PodDisruptionBudget\n", []string{"unread stdin:1 apiVersion or kind is filled in by a template"}, Unknown},
		{"braces that YAML takes for a mapping", 24, 25, "apiVersion: {{ .Values.api }}\nkind: Ingress\nmetadata:\n  name: {{ .Release.Name }}\n", []string{"unread stdin:1 apiVersion or kind is no plain text"}, Unknown},
		{"braces for the kind", 24, 25, "apiVersion: v1\nkind: {{ .k }}\n", []string{"unread stdin:1 apiVersion or kind is no plain text"}, Unknown},
		{"brackets for the version", 24, 25, "apiVersion: [[ .v ]]\nkind: Ingress\n", []string{"unread stdin:1 apiVersion or kind is no plain text"}, Unknown},
		{"a version in a comment", 24, 25, "apiVersion: #@ version\nkind: Ingress\n", []string{"unread stdin:1 apiVersion or kind is no plain text"}, Unknown},
		{"a kind with a capital", 24, 25, "apiVersion: batch/v1beta1\nKind: CronJob\nmetadata: {name: x}\n", []string{"unread stdin:1 an object with only one of"}, Unknown},
		{"values", 24, 25, "kind: DaemonSet\nimage: {tag: 1.2}\n", nil, Clean},
		{"templated items", 24, 25, "apiVersion: v1\nkind: List\nitems: {{ .items }}\n", []string{"unread stdin:1 items of List is no array"}, Unknown},
		{"no items", 24, 25, "apiVersion: v1\nkind: List\nitems:\n", nil, Clean},
		{"array of objects", 24, 25, "- {apiVersion: batch/v1beta1, kind: CronJob}\n", []string{"batch/v1beta1 CronJob@[0]:1"}, Findings},
		{"item that is no object", 24, 25, "apiVersion: v1\nkind: List\nitems: [a, {kind: Pod}]\n", []string{"unread stdin:3 items[0] is no object", "unread stdin:3 items[1] has no apiVersion"}, Unknown},
		{"CRLF", 24, 25, "apiVersion: v1\r\nkind: Pod\r\n---\r\napiVersion: batch/v1beta1\r\nkind: CronJob\r\n", []string{"batch/v1beta1 CronJob@:4"}, Findings},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := scanText(t, c.from, c.to, c.text)
			got := lines(r)
			if len(got) != len(c.want) {
				t.Fatalf("got %d lines, want %d:\n%s", len(got), len(c.want), strings.Join(got, "\n"))
			}
			for i := range got {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("got  %s\nwant %s", got[i], c.want[i])
				}
			}
			if r.Verdict != c.verdict {
				t.Errorf("verdict %s, want %s", r.Verdict, c.verdict)
			}
		})
	}
}

func TestFilesOfEveryKind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a/b/old.yaml", "apiVersion: batch/v1beta1\nkind: CronJob\n")
	write("a/new.yml", "apiVersion: batch/v1\nkind: CronJob\n")
	write("README.md", "apiVersion: batch/v1beta1\nkind: CronJob\n")
	write(".git/x.yaml", "apiVersion: batch/v1beta1\nkind: CronJob\n")
	if err := os.Symlink(filepath.Join(dir, "gone"), filepath.Join(dir, "a", "link.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "a"), filepath.Join(dir, "dirlink")); err != nil {
		t.Fatal(err)
	}
	if err := mkfifo(filepath.Join(dir, "a", "pipe.yaml")); err != nil {
		t.Fatal(err)
	}
	r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), Files: []string{dir, filepath.Join(dir, "missing.yaml")}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 || r.Findings[0].Source.File != filepath.Join(dir, "a/b/old.yaml") {
		t.Errorf("findings %v", lines(r))
	}
	why := map[string]string{}
	for _, u := range r.Coverage.Unreadable {
		rel, err := filepath.Rel(dir, u.What)
		if err != nil {
			t.Fatal(err)
		}
		why[rel] = u.Why
	}
	for name, want := range map[string]string{"a/link.yaml": "no such file", "dirlink": "not followed", "a/pipe.yaml": "not a regular file", "missing.yaml": "no such file"} {
		if !strings.Contains(why[name], want) {
			t.Errorf("%s: %q, want %q in it", name, why[name], want)
		}
	}
	if len(why) != 4 || r.Verdict != Unknown {
		t.Errorf("verdict %s, unread %v", r.Verdict, why)
	}
	if len(r.Coverage.Read) != 1 || r.Coverage.Read[0].Count != 2 {
		t.Errorf("read %v, want 2 files", r.Coverage.Read)
	}
}

func TestLargeDocuments(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"apiVersion":"v1","items":[`)
	for i := range 30000 {
		if i > 0 {
			b.WriteByte(',')
		}
		api := "v1"
		if i == 29999 {
			api = "batch/v1beta1"
		}
		fmt.Fprintf(&b, "\n{\"apiVersion\":%q,\"kind\":\"CronJob\",\"metadata\":{\"name\":\"c%d\",\"annotations\":{\"x\":%q}}}", api, i, strings.Repeat("y", 200))
	}
	b.WriteString(`],"kind":"List"}`)
	r := scanText(t, 24, 25, b.String())
	found := false
	for _, f := range r.Findings {
		found = found || f.APIVersion == "batch/v1beta1" && f.Source.Path == "items[29999]" && f.Source.Line == 30001
	}
	if !found || len(r.Coverage.Unreadable) > 0 {
		t.Errorf("the last item of a large JSON list was not found, or something unread: %d findings, %v", len(r.Findings), r.Coverage.Unreadable)
	}
	r = scanText(t, 24, 25, "apiVersion: [\n"+strings.Repeat("- \"&x\"\n", maxDocument/4)+"---\napiVersion: batch/v1beta1\nkind: CronJob\n")
	if len(r.Findings) != 1 || len(r.Coverage.Unreadable) != 1 || r.Verdict != Unknown {
		t.Errorf("a document that is too large: %v", lines(r))
	}
}

func TestSuppressions(t *testing.T) {
	const text = "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: nightly, namespace: shop}\n"
	scan := func(now string, s ...Suppression) Report {
		t.Helper()
		r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), Files: []string{"-"}, Stdin: strings.NewReader(text), Suppressions: s,
			Now: func() time.Time { at, _ := time.Parse(time.DateOnly, now); return at }})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	s := Suppression{Kind: "Cron*", Namespace: "shop", Reason: "moved by the nightly job", Until: "2027-03-31"}
	if r := scan("2027-03-31", s); r.Verdict != Clean || len(r.Suppressed) != 1 || r.Suppressed[0].Reason != s.Reason {
		t.Errorf("on its last day: %s %v", r.Verdict, r.Suppressed)
	}
	if r := scan("2027-04-01", s); r.Verdict != Findings || len(r.Suppressed) != 0 {
		t.Errorf("after its last day: %s %v", r.Verdict, r.Suppressed)
	}
	s.Name = "other"
	if r := scan("2027-01-01", s); r.Verdict != Findings {
		t.Errorf("of another name: %s", r.Verdict)
	}
	for text, want := range map[string]string{
		"ignore: [{kind: Pod}]":                                 "reason",
		"ignore: [{reason: x}]":                                 "every finding",
		"ignore: [{kind: Pod, reason: x, until: soon}]":         "2027-03-31",
		"ignore: [{kind: Pod, reason: x, untill: 2027-01-01}]":  "untill",
		"ignore: [{kind: '[', reason: x}]":                      "pattern",
		"ignore: [{kind: Pod, reason: x, until: 2027-01-01}]\n": "",
	} {
		_, err := ParseSuppressions([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}

func TestReportShape(t *testing.T) {
	r := scanText(t, 24, 25, "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: a, namespace: b}\n")
	var m map[string]any
	if err := json.Unmarshal([]byte(asJSON(t, r)), &m); err != nil {
		t.Fatal(err)
	}
	if m["schema"] != "belay.dev/api-scan/v1" || m["from"] != "1.24" || m["to"] != "1.25" || m["verdict"] != "findings" {
		t.Errorf("head of the report: %v %v %v %v", m["schema"], m["from"], m["to"], m["verdict"])
	}
	if db := m["database"].(map[string]any); db["newest"] != "1.37" || db["date"] == nil {
		t.Errorf("database %v", db)
	}
	f := m["findings"].([]any)[0].(map[string]any)
	for key, want := range map[string]any{"verdict": "removed", "severity": "error", "confidence": "high", "apiVersion": "batch/v1beta1", "kind": "CronJob", "namespace": "b", "name": "a",
		"hop": "1.25", "deprecatedIn": "1.21", "removedIn": "1.25", "rewrite": "bump"} {
		if f[key] != want {
			t.Errorf("%s is %v, want %v", key, f[key], want)
		}
	}
	if src := f["source"].(map[string]any); src["type"] != "file" || src["file"] != "stdin" || src["line"] != 1.0 {
		t.Errorf("source %v", src)
	}
}

func TestScanRefuses(t *testing.T) {
	if _, err := Scan(t.Context(), Options{}); err == nil {
		t.Error("no target is accepted")
	}
	if _, err := Scan(t.Context(), Options{From: minor(37), To: minor(36)}); err == nil {
		t.Error("a downgrade is accepted")
	}
	var _ lifecycle.Verdict
}

// A source that gave nothing is not clean: its name may be mistyped, and its manifests called otherwise.
func TestSourcesWithoutManifests(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	scan := func() Report {
		t.Helper()
		r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), Files: []string{dir}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := scan(); r.Verdict != Unknown || !strings.Contains(lines(r)[0], "holds no manifest") {
		t.Errorf("an empty directory: %s %v", r.Verdict, lines(r))
	}
	write("cronjob.yaml.j2", "apiVersion: batch/v1beta1\nkind: CronJob\n")
	if r := scan(); r.Verdict != Unknown || !strings.Contains(lines(r)[0], "cronjob.yaml.j2") || !strings.Contains(lines(r)[0], "a template") {
		t.Errorf("a template: %s %v", r.Verdict, lines(r))
	}
	write("notes.txt", "apiVersion")
	write("Kustomization", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\npatches: [{target: {group: batch, version: v1beta1, kind: CronJob}, path: p.yaml}]\n")
	if r := scan(); !slices.ContainsFunc(lines(r), func(l string) bool { return strings.Contains(l, "CronJob") }) {
		t.Errorf("a Kustomization without an extension: %v", lines(r))
	}
	for _, o := range []Options{
		{From: minor(24), To: minor(25), Files: []string{"-"}, AuditLogs: []string{"-"}, Stdin: strings.NewReader("")},
		{From: minor(24), To: kubeversion.Minor{Major: 13, Minor: 7}},
	} {
		if _, err := Scan(t.Context(), o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	log := filepath.Join(dir, "audit.log")
	write("audit.log", "")
	r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), AuditLogs: []string{log}})
	if err != nil || r.Verdict != Unknown {
		t.Errorf("an empty audit log: %s, %v", r.Verdict, err)
	}
}

// Many small values that are large together are read one by one.
func TestLongJSONLines(t *testing.T) {
	var b strings.Builder
	b.WriteString("{\"apiVersion\":\"batch/v1beta1\",\"kind\":\"CronJob\",\"metadata\":{\"name\":\"a]}\\\"\"}}\n")
	for i := 0; b.Len() < maxDocument*2; i++ {
		fmt.Fprintf(&b, "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"c%d\"},\"data\":{\"k\":%q}}\n", i, strings.Repeat("x", 1000))
	}
	r := scanText(t, 24, 25, b.String())
	if got := lines(r); len(got) != 1 || !strings.Contains(got[0], "batch/v1beta1 CronJob") || r.Verdict != Findings {
		t.Errorf("%s: %d lines, the first %.200s", r.Verdict, len(got), got)
	}
}
