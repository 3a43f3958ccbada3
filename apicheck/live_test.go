package apicheck

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// fakeAPI is an apiserver that serves lists from memory, in pages, and fails where it is told to.
type fakeAPI struct {
	t       *testing.T
	version string
	// emulated is the minor that it emulates; empty for none.
	emulated string
	// resources by group/version, as discovery has them: "batch/v1" -> "cronjobs CronJob".
	resources map[string][]string
	// objects by "group/resource" ("configmaps" for core), each the JSON of a whole object.
	objects map[string][]string
	// intercept may answer a request itself.
	intercept func(w http.ResponseWriter, r *http.Request) bool
	lists     atomic.Int64
}

func (f *fakeAPI) start() *rest.Config {
	s := httptest.NewServer(f)
	f.t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL, QPS: 1000, Burst: 1000}
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.intercept != nil && f.intercept(w, r) {
		return
	}
	answer := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			f.t.Log(err)
		}
	}
	type m = map[string]any
	p := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.URL.Path == "/version":
		v := m{"gitVersion": f.version}
		if f.emulated != "" {
			v["emulationMajor"], v["emulationMinor"], _ = strings.Cut(f.emulated, ".")
		}
		answer(v)
	case r.URL.Path == "/metrics":
		fmt.Fprint(w, "# HELP x\napiserver_requested_deprecated_apis{group=\"policy\",removed_release=\"1.25\",resource=\"poddisruptionbudgets\",subresource=\"\",version=\"v1beta1\"} 1\n")
	case r.URL.Path == "/api":
		answer(m{"kind": "APIVersions", "versions": []string{"v1"}})
	case r.URL.Path == "/apis":
		groups := map[string][]any{}
		var keys []string
		for gv := range f.resources {
			keys = append(keys, gv)
		}
		slices.Sort(keys)
		for _, gv := range keys {
			if g, v, ok := strings.Cut(gv, "/"); ok {
				groups[g] = append(groups[g], m{"groupVersion": gv, "version": v})
			}
		}
		var list []any
		for g, vs := range groups {
			list = append(list, m{"name": g, "versions": vs, "preferredVersion": vs[0]})
		}
		answer(m{"kind": "APIGroupList", "apiVersion": "v1", "groups": list})
	case len(p) == 2 && p[0] == "api" || len(p) == 3 && p[0] == "apis":
		gv := strings.Join(p[1:], "/")
		var list []any
		for _, res := range f.resources[gv] {
			name, kind, _ := strings.Cut(res, " ")
			list = append(list, m{"name": name, "kind": kind, "namespaced": true, "verbs": []string{"list", "get"}})
		}
		answer(m{"kind": "APIResourceList", "groupVersion": gv, "resources": list})
	default:
		f.lists.Add(1)
		key := p[len(p)-1]
		if p[0] == "apis" {
			key = p[1] + "/" + key
		}
		one := ""
		if len(p) >= 6 && p[0] == "api" && p[2] == "namespaces" {
			key, one = p[4], p[5]
		}
		objects := f.objects[key]
		if one != "" {
			for _, o := range objects {
				if strings.Contains(o, `"name":"`+one+`"`) {
					w.Header().Set("Content-Type", "application/json")
					fmt.Fprint(w, o)
					return
				}
			}
			w.WriteHeader(http.StatusNotFound)
			answer(m{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})
			return
		}
		if sel := r.URL.Query().Get("labelSelector"); sel != "" {
			k, v, _ := strings.Cut(sel, "=")
			k, not := strings.CutSuffix(k, "!")
			objects = slices.DeleteFunc(slices.Clone(objects), func(o string) bool { return strings.Contains(o, fmt.Sprintf("%q:%q", k, v)) == not })
		}
		if k, v, ok := strings.Cut(r.URL.Query().Get("fieldSelector"), "="); ok && !strings.HasSuffix(k, "!") {
			objects = slices.DeleteFunc(slices.Clone(objects), func(o string) bool { return !strings.Contains(o, fmt.Sprintf("%q:%q", k, v)) })
		}
		start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		if limit == 0 || limit > 2 {
			limit = 2
		}
		end := min(start+limit, len(objects))
		meta := m{"resourceVersion": "1"}
		if end < len(objects) {
			meta["continue"] = strconv.Itoa(end)
		}
		items := []json.RawMessage{}
		for _, o := range objects[start:end] {
			items = append(items, json.RawMessage(o))
		}
		list := m{"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}
		if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
			list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
			for i, raw := range items {
				var o m
				if err := json.Unmarshal(raw, &o); err != nil {
					f.t.Error(err)
				}
				b, _ := json.Marshal(m{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]})
				items[i] = b
			}
		}
		answer(list)
	}
}

func (f *fakeAPI) scan(from, to int) Report {
	f.t.Helper()
	o := Options{To: minor(to), RESTConfig: f.start(), Patience: 2 * time.Second}
	if from > 0 {
		o.From = minor(from)
	}
	r, err := Scan(f.t.Context(), o)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// seen words live findings shortly.
func seen(r Report) []string {
	var out []string
	for _, f := range r.Findings {
		out = append(out, fmt.Sprintf("%s %s %s %s %s %s by %q rel %q/%d hook %q", f.Severity, f.Verdict, f.Source.Type, f.APIVersion, f.Kind, f.Name, f.Source.Manager, f.Source.Release, f.Source.Revision, f.Source.Hook))
	}
	for _, u := range r.Coverage.Unreadable {
		out = append(out, "unread "+u.What+": "+u.Why)
	}
	return out
}

func expect(t *testing.T, r Report, verdict Outcome, want ...string) {
	t.Helper()
	got := seen(r)
	if len(got) != len(want) {
		t.Fatalf("got %d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i := range got {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
	if r.Verdict != verdict {
		t.Errorf("verdict %s, want %s", r.Verdict, verdict)
	}
}

// noMetric takes the gauge out of the way.
func noMetric(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path == "/metrics" {
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	return false
}

func TestLastApplied(t *testing.T) {
	annotated := func(text, managed string) string {
		return fmt.Sprintf(`{"metadata":{"name":"h","namespace":"n","annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q},"managedFields":[%s]}}`, text, managed)
	}
	const old = `{"apiVersion":"autoscaling/v2beta2","kind":"HorizontalPodAutoscaler","metadata":{"name":"h"}}`
	for _, c := range []struct {
		name, object string
		verdict      Outcome
		want         []string
	}{
		{"in force", annotated(old, `{"manager":"kubectl-client-side-apply","operation":"Update","apiVersion":"autoscaling/v2beta2","time":"2022-01-01T00:00:00Z"}`), Findings,
			[]string{"error removed last-applied autoscaling/v2beta2", `warning removed managed-fields autoscaling/v2beta2 HorizontalPodAutoscaler h by "kubectl-client-side-apply"`}},
		{"stale", annotated(old, `{"manager":"kubectl","operation":"Update","apiVersion":"autoscaling/v2","time":"2024-01-01T00:00:00Z"}`), Clean,
			[]string{`info removed last-applied autoscaling/v2beta2 HorizontalPodAutoscaler h by "kubectl"`}},
		{"a controller's status is no apply", annotated(old, `{"manager":"kube-controller-manager","operation":"Update","subresource":"status","apiVersion":"autoscaling/v2","time":"2024-01-01T00:00:00Z"}`), Findings,
			[]string{"error removed last-applied"}},
		{"malformed", annotated("{not json", ""), Unknown, []string{"unread last-applied configuration of HorizontalPodAutoscaler n/h"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeAPI{t: t, version: "v1.25.3", resources: map[string][]string{"autoscaling/v2": {"horizontalpodautoscalers HorizontalPodAutoscaler"}}, intercept: noMetric,
				objects: map[string][]string{"autoscaling/horizontalpodautoscalers": {c.object}}}
			expect(t, f.scan(0, 26), c.verdict, c.want...)
		})
	}
}

func TestManagedFields(t *testing.T) {
	object := func(managed string) string {
		return `{"metadata":{"name":"p","namespace":"n","managedFields":[` + managed + `]}}`
	}
	for _, c := range []struct {
		name, managed string
		verdict       Outcome
		want          []string
	}{
		{"applied with the old version", `{"manager":"argocd-controller","operation":"Apply","apiVersion":"policy/v1beta1","time":"2023-05-06T07:08:09Z"}`, Findings,
			[]string{`warning removed managed-fields policy/v1beta1 PodDisruptionBudget p by "argocd-controller"`}},
		{"and with the new one since", `{"manager":"argocd-controller","operation":"Apply","apiVersion":"policy/v1beta1","time":"2023-05-06T07:08:09Z"},{"manager":"argocd-controller","operation":"Apply","apiVersion":"policy/v1","time":"2023-06-06T07:08:09Z"}`, Clean, nil},
		{"by another manager since", `{"manager":"helm","operation":"Update","apiVersion":"policy/v1beta1","time":"2023-05-06T07:08:09Z"},{"manager":"kubectl-edit","operation":"Update","apiVersion":"policy/v1","time":"2023-06-06T07:08:09Z"}`, Findings,
			[]string{`by "helm"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeAPI{t: t, version: "v1.24.0", resources: map[string][]string{"policy/v1": {"poddisruptionbudgets PodDisruptionBudget"}, "policy/v1beta1": {"poddisruptionbudgets PodDisruptionBudget"}}, intercept: noMetric,
				objects: map[string][]string{"policy/poddisruptionbudgets": {object(c.managed)}}}
			r := f.scan(0, 25)
			expect(t, r, c.verdict, c.want...)
			if r.From != minor(24) {
				t.Errorf("from %s, want the cluster's 1.24", r.From)
			}
			if len(r.Findings) > 0 && (r.Findings[0].Source.Time == nil || r.Findings[0].Source.Time.Year() != 2023) {
				t.Errorf("time %v", r.Findings[0].Source.Time)
			}
		})
	}
}

func TestManagersOfCustomResources(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.36.0", intercept: noMetric, resources: map[string][]string{"example.com/v1": {"foos Foo"}}, objects: map[string][]string{"example.com/foos": {
		`{"metadata":{"name":"a","namespace":"n","managedFields":[{"manager":"argocd-controller","operation":"Apply","apiVersion":"example.com/v1alpha1","time":"2023-05-06T07:08:09Z"}]}}`,
		`{"metadata":{"name":"b","namespace":"n","managedFields":[{"manager":"argocd-controller","operation":"Apply","apiVersion":"example.com/v1"}]}}`,
	}}}
	expect(t, f.scan(0, 37), Findings, `warning removed managed-fields example.com/v1alpha1 Foo a by "argocd-controller"`)
}

// What is refused is said once, although it is asked for its metadata and for its contents.
func TestRefusalIsSaidOnce(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.36.0", resources: map[string][]string{"v1": {"configmaps ConfigMap"}}}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/configmaps") && r.URL.Query().Get("labelSelector") == "" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`)
			return true
		}
		return noMetric(w, r)
	}
	expect(t, f.scan(0, 37), Unknown, "unread configmaps: forbidden: no")
}

func TestEmulatedVersion(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.37.2", emulated: "1.36", intercept: noMetric}
	if r := f.scan(0, 37); r.From != minor(36) {
		t.Errorf("from %s, want the emulated 1.36", r.From)
	}
}

func TestStoredObjectsThatTheTargetCannotDecode(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.36.3", intercept: noMetric,
		resources: map[string][]string{"scheduling.k8s.io/v1": {"priorityclasses PriorityClass"}, "scheduling.k8s.io/v1alpha2": {"workloads Workload"}, "networking.k8s.io/v1": {"servicecidrs ServiceCIDR"}, "networking.k8s.io/v1beta1": {"servicecidrs ServiceCIDR"}, "v1": {"endpoints Endpoints"}},
		objects: map[string][]string{"scheduling.k8s.io/workloads": {`{"metadata":{"name":"w","namespace":"n"}}`}, "networking.k8s.io/servicecidrs": {`{"metadata":{"name":"kubernetes"}}`},
			"endpoints": {`{"metadata":{"name":"e","namespace":"n","managedFields":[{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2024-01-01T00:00:00Z"}]}}`}}}
	r := f.scan(0, 37)
	expect(t, r, Findings, "error undecodable stored scheduling.k8s.io/v1alpha2 Workload w")
	if !strings.Contains(r.Findings[0].Remedy, "delete all of them before the hop to 1.37") {
		t.Errorf("remedy %q", r.Findings[0].Remedy)
	}
}

func wrapRelease(t *testing.T, text string, gz bool) string {
	t.Helper()
	data := []byte(text)
	if gz {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		data = b.Bytes()
	}
	return base64.StdEncoding.EncodeToString(data)
}

func helmRecord(kind, name, rel, status string, revision int, data string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"n","labels":{"owner":"helm","name":%q,"status":%q,"version":"%d"}},"type":"helm.sh/release.v1","data":{"release":%q},"kind":%q}`, name, rel, status, revision, data, kind)
}

func TestHelmReleases(t *testing.T) {
	const text = `{"name":"shop","namespace":"n","version":%d,"info":{"status":"deployed"},"manifest":%q,"hooks":[{"name":"migrate","path":"shop/templates/job.yaml","manifest":"apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: c}\n"}]}`
	clean := fmt.Sprintf(text, 1, "apiVersion: batch/v1\nkind: Job\n")
	twice := base64.StdEncoding.EncodeToString([]byte(wrapRelease(t, clean, true)))
	configMap := wrapRelease(t, clean, true)
	bare := base64.StdEncoding.EncodeToString([]byte(wrapRelease(t, clean, false)))
	hook := `error removed helm batch/v1beta1 CronJob c by "" rel "shop"/1 hook "migrate"`
	for _, c := range []struct {
		name    string
		objects map[string][]string
		verdict Outcome
		want    []string
	}{
		{"hook, in a Secret", map[string][]string{"secrets": {helmRecord("Secret", "sh.helm.release.v1.shop.v1", "shop", "deployed", 1, twice)}}, Findings, []string{hook}},
		{"hook, in a ConfigMap", map[string][]string{"configmaps": {helmRecord("ConfigMap", "shop.v1", "shop", "deployed", 1, configMap)}}, Findings, []string{hook}},
		{"not compressed", map[string][]string{"secrets": {helmRecord("Secret", "sh.helm.release.v1.shop.v1", "shop", "deployed", 1, bare)}}, Findings, []string{hook}},
		{"newest and newest deployed of several", map[string][]string{"secrets": {
			helmRecord("Secret", "v1", "shop", "deployed", 1, "!"), helmRecord("Secret", "v2", "shop", "deployed", 2, twice),
			helmRecord("Secret", "v3", "shop", "superseded", 3, "!"), helmRecord("Secret", "v4", "shop", "failed", 4, twice)}}, Findings,
			[]string{`error removed helm batch/v1beta1 CronJob c by "" rel "shop"/2 hook`, `warning removed helm batch/v1beta1 CronJob c by "" rel "shop"/4 hook`}},
		{"a Secret of Helm's type without its label", map[string][]string{"secrets": {strings.Replace(helmRecord("Secret", "sh.helm.release.v1.shop.v1", "shop", "deployed", 1, twice), `"owner":"helm",`, "", 1)}}, Unknown,
			[]string{"unread secrets n/sh.helm.release.v1.shop.v1: of Helm's type, but without its label"}},
		{"a Secret that is no release", map[string][]string{"secrets": {helmRecord("Secret", "v1", "shop", "deployed", 1, "!!!")}}, Unknown, []string{"unread release shop revision 1 in namespace n: neither JSON"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeAPI{t: t, version: "v1.24.0", objects: c.objects, intercept: noMetric, resources: map[string][]string{"v1": {"secrets Secret", "configmaps ConfigMap"}}}
			expect(t, f.scan(0, 25), c.verdict, c.want...)
		})
	}
}

// Which revision Helm starts from decides how much a finding in it matters: helm upgrade from the newest deployed one, helm
// rollback and helm uninstall from the newest.
func TestSeverityOfRevisions(t *testing.T) {
	const clean = "apiVersion: v1\nkind: Pod\n"
	for _, c := range []struct {
		name    string
		records []string
		want    Severity
		says    string
	}{
		{"deployed", []string{releaseRecord(t, "deployed", 1, oldHook, "")}, Error, "the next helm upgrade fails on it"},
		{"failed, nothing deployed", []string{releaseRecord(t, "failed", 1, oldHook, "")}, Error, "the next helm upgrade fails on it"},
		{"failed over a clean one", []string{releaseRecord(t, "deployed", 1, clean, ""), releaseRecord(t, "failed", 2, oldHook, "")}, Warning, "helm upgrade starts from revision 1 instead"},
		{"cut off over a clean one", []string{releaseRecord(t, "deployed", 1, clean, ""), releaseRecord(t, "pending-upgrade", 2, oldHook, "")}, Error, "helm upgrade refuses to run before"},
		{"uninstalling", []string{releaseRecord(t, "uninstalling", 1, oldHook, "")}, Warning, "helm uninstall, run again"},
		{"uninstalled", []string{releaseRecord(t, "uninstalled", 1, oldHook, "")}, Info, "only helm rollback"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeAPI{t: t, version: "v1.24.0", objects: map[string][]string{"secrets": c.records}, intercept: noMetric, resources: map[string][]string{"v1": {"secrets Secret"}}}
			r := f.scan(0, 25)
			if len(r.Findings) != 1 || r.Findings[0].Severity != c.want || !strings.Contains(r.Findings[0].Message, c.says) {
				t.Errorf("want %s, %q: %s", c.want, c.says, asJSON(t, r.Findings))
			}
		})
	}
}

func TestGzipBomb(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	zeros := make([]byte, 1<<20)
	for range maxRelease>>20 + 2 {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := unwrap(b.Bytes()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a bomb of %d bytes: %v", b.Len(), err)
	}
}

func TestClusterThatRefusesAndFails(t *testing.T) {
	crons := func(n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`{"metadata":{"name":"c%d","namespace":"n","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"batch/v1beta1","time":"2023-05-06T07:08:09Z"}]}}`, i))
		}
		return out
	}
	status := func(w http.ResponseWriter, code int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "0")
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"as told"}`, reason, code)
	}
	resources := map[string][]string{"batch/v1": {"cronjobs CronJob"}, "v1": {"pods Pod"}}
	for _, c := range []struct {
		name string
		// fail answers a list of cronjobs at some offset; attempt counts from 1.
		fail    func(w http.ResponseWriter, offset string, attempt int) bool
		want    int // findings
		verdict Outcome
		unread  string
	}{
		{"nothing", func(http.ResponseWriter, string, int) bool { return false }, 5, Findings, ""},
		{"forbidden", func(w http.ResponseWriter, _ string, _ int) bool { status(w, 403, "Forbidden"); return true }, 0, Unknown, "cronjobs.batch: forbidden"},
		{"too many requests, for a while", func(w http.ResponseWriter, _ string, n int) bool {
			if n <= 3 {
				status(w, 429, "TooManyRequests")
			}
			return n <= 3
		}, 5, Findings, ""},
		{"too many requests, for ever", func(w http.ResponseWriter, _ string, _ int) bool { status(w, 429, "TooManyRequests"); return true }, 0, Unknown, "cronjobs.batch: "},
		{"a page that breaks off", func(w http.ResponseWriter, offset string, n int) bool {
			if offset != "2" || n > 2 {
				return false
			}
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"PartialObjectMetadataList",`)
			panic(http.ErrAbortHandler)
		}, 5, Findings, ""},
		{"a page that breaks off for ever", func(w http.ResponseWriter, offset string, _ int) bool {
			if offset != "2" {
				return false
			}
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"PartialObjectMetadataList",`)
			panic(http.ErrAbortHandler)
		}, 2, Unknown, "cronjobs.batch: "}, // what came before it counts
		{"history is gone, go on", func(w http.ResponseWriter, offset string, n int) bool {
			if offset != "2" || n > 2 {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(410)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"metadata":{"continue":"02"}}`)
			return true
		}, 5, Findings, ""},
		{"history is gone, start over", func(w http.ResponseWriter, offset string, n int) bool {
			if offset != "2" || n > 2 {
				return false
			}
			status(w, 410, "Expired")
			return true
		}, 5, Findings, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var attempt atomic.Int64
			f := &fakeAPI{t: t, version: "v1.24.0", resources: resources, objects: map[string][]string{"batch/cronjobs": crons(5)}}
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if noMetric(w, r) {
					return true
				}
				return strings.HasSuffix(r.URL.Path, "/cronjobs") && c.fail(w, r.URL.Query().Get("continue"), int(attempt.Add(1)))
			}
			r := f.scan(0, 25)
			if len(r.Findings) != c.want || r.Verdict != c.verdict {
				t.Errorf("%d findings and verdict %s, want %d and %s: %v", len(r.Findings), r.Verdict, c.want, c.verdict, seen(r))
			}
			if c.unread != "" && (len(r.Coverage.Unreadable) != 1 || !strings.Contains(r.Coverage.Unreadable[0].What+": "+r.Coverage.Unreadable[0].Why, c.unread)) {
				t.Errorf("unread %v, want %q", r.Coverage.Unreadable, c.unread)
			}
		})
	}
}

func TestMetricIsOnlyExtraEvidence(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.24.0", resources: map[string][]string{"v1": {"pods Pod"}}}
	expect(t, f.scan(0, 25), Clean, "info removed metric policy/v1beta1 PodDisruptionBudget")
}

func TestContentsOfLiveObjects(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.36.3", intercept: noMetric,
		resources: map[string][]string{"v1": {"configmaps ConfigMap", "secrets Secret"}, "apiextensions.k8s.io/v1": {"customresourcedefinitions CustomResourceDefinition"}},
		objects: map[string][]string{
			"configmaps": {`{"metadata":{"name":"kubeadm-config","namespace":"kube-system"},"data":{"ClusterConfiguration":"apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\n"}}`},
			"apiextensions.k8s.io/customresourcedefinitions": {`{"metadata":{"name":"foos.example.com"},"spec":{"group":"example.com","names":{"kind":"Foo"},"versions":[{"name":"v1","served":true}]},"status":{"storedVersions":["v1alpha1","v1"]}}`},
			// apiVersion: networking.k8s.io/v1beta1, kind: ServiceCIDR, metadata: {name: s, annotations: {token: hunter2}}
			"secrets": {`{"metadata":{"name":"manifests","namespace":"n"},"type":"Opaque","data":{"a.yaml":"YXBpVmVyc2lvbjogbmV0d29ya2luZy5rOHMuaW8vdjFiZXRhMQpraW5kOiBTZXJ2aWNlQ0lEUgptZXRhZGF0YToge25hbWU6IHMsIGFubm90YXRpb25zOiB7dG9rZW46IGh1bnRlcjJ9fQo="}}`},
		}}
	r := f.scan(0, 37)
	if strings.Contains(asJSON(t, r), "hunter2") {
		t.Error("the report holds what a Secret keeps")
	}
	expect(t, r, Findings, "error removed payload kubeadm.k8s.io/v1beta3 ClusterConfiguration", "error removed payload networking.k8s.io/v1beta1 ServiceCIDR s", "warning deprecated reference example.com/v1alpha1 Foo")
}

func TestUnreachableCluster(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	if _, err := Scan(t.Context(), Options{To: minor(37), RESTConfig: &rest.Config{Host: s.URL}, Patience: time.Second}); err == nil {
		t.Error("no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Scan(ctx, Options{To: minor(37), Files: []string{t.TempDir()}}); err == nil {
		t.Error("no error of a cancelled scan")
	}
}

func TestPagesGoByTheirWeight(t *testing.T) {
	page := func(n, bytes int) []metav1.PartialObjectMetadata {
		out := make([]metav1.PartialObjectMetadata, n)
		for i := range out {
			out[i].Annotations = map[string]string{"a": strings.Repeat("x", bytes)}
		}
		return out
	}
	l := pageLimit(firstPage)
	for range 10 {
		l = l.after(page(int(l), 1000))
	}
	if l != metadataPage {
		t.Errorf("light pages lead to %d objects a page, want %d", l, metadataPage)
	}
	for range 10 {
		l = l.after(page(int(l), 256<<10))
	}
	if at := int64(l) * 256 << 10; at > 2*heavyPage {
		t.Errorf("heavy objects come %d a page, %d MiB", l, at>>20)
	}
	if heaviest := firstPage * 256 << 10; heaviest > 16<<20 {
		t.Errorf("the first page may have %d MiB", heaviest>>20)
	}
}
