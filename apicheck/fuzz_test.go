package apicheck

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Readers that take whatever a cluster, a file or a user gives them must not fail on any of it.

func FuzzMetric(f *testing.F) {
	f.Add([]byte("apiserver_requested_deprecated_apis{group=\"policy\",removed_release=\"1.25\",resource=\"poddisruptionbudgets\",subresource=\"\",version=\"v1beta1\"} 1\n"))
	f.Add([]byte("apiserver_requested_deprecated_apis{} 1\napiserver_requested_deprecated_apis{a=,b}"))
	j := testJudge(f, 24, 25)
	f.Fuzz(func(t *testing.T, text []byte) {
		c := j.collector()
		_, _ = c.deprecatedRequests(bytes.NewReader(text))
		for _, found := range c.findings {
			if found.Severity != Info {
				t.Errorf("the gauge alone gives a %s", found.Severity)
			}
		}
	})
}

func FuzzSuppressions(f *testing.F) {
	f.Add([]byte("ignore:\n- kind: CronJob\n  reason: x\n  until: 2027-03-31\n"), "spec.volumes[].gitRepo")
	f.Add([]byte("ignore: [{field: 'a[', reason: y}]"), "[")
	f.Fuzz(func(t *testing.T, text []byte, field string) {
		all, err := ParseSuppressions(text)
		if err != nil {
			return
		}
		for _, s := range all {
			if s.Reason == "" {
				t.Error("one without a reason is taken")
			}
			if s.Until != "" {
				if _, err := time.Parse(time.DateOnly, s.Until); err != nil {
					t.Errorf("until %q", s.Until)
				}
			}
			s.matches(Finding{Kind: "Pod", Field: field})
			if s.matches(Finding{}) && s.Kind != "" && !strings.HasPrefix(s.Kind, "*") && !strings.ContainsAny(s.Kind, "*") {
				t.Errorf("%+v matches a finding that has nothing", s)
			}
		}
	})
}

func FuzzRuntimeConfig(f *testing.F) {
	for _, s := range []string{"api/all=true", "batch/v1=false,api/beta", "v1/pods=true", ",,=", "a/b/c/d=1"} {
		f.Add(s)
	}
	j := testJudge(f, 36, 37)
	f.Fuzz(func(t *testing.T, text string) {
		rc, err := ParseRuntimeConfig(text)
		if err != nil {
			return
		}
		for i := range j.db.Kinds {
			rc.says(&j.db.Kinds[i])
		}
	})
}

// FuzzRelease judges a release of any content: its lines stay out of the findings, and their source is the release.
func FuzzRelease(f *testing.F) {
	f.Add([]byte(`{"name":"r","manifest":"apiVersion: batch/v1beta1\nkind: CronJob\n","hooks":[{"manifest":"{{"}]}`))
	f.Add([]byte(`{"name":"r","manifest":"---\n---\n","hooks":[null]}`))
	j := testJudge(f, 24, 25)
	f.Fuzz(func(t *testing.T, data []byte) {
		rel, err := parseRelease(data)
		if err != nil {
			return
		}
		c := j.collector()
		c.release(pickedRecord{record: record{driver: "secrets", namespace: "n", release: "r", revision: 1}}, rel, "release r")
		for _, found := range c.findings {
			if found.Source.Release != "r" || found.Source.Line != 0 {
				t.Errorf("%+v", found.Source)
			}
		}
	})
}

// FuzzContent judges whole live objects of any content.
func FuzzContent(f *testing.F) {
	for _, s := range []string{`{"metadata":{"name":"a","ownerReferences":[{}]},"rules":[{"apiGroups":["extensions"],"resources":["ingresses"]}]}`, `{"data":{"a":"YXBpVmVyc2lvbjogdjE="}}`, `[]`, `{"spec":{"versions":[1]}}`} {
		f.Add([]byte(s), uint8(0))
	}
	j := testJudge(f, 24, 25)
	kinds := [][3]string{{"", "v1", "Secret"}, {"", "v1", "ConfigMap"}, {"", "v1", "PersistentVolume"}, {"rbac.authorization.k8s.io", "v1", "Role"}, {"apiextensions.k8s.io", "v1", "CustomResourceDefinition"},
		{"admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"}, {"autoscaling", "v2", "HorizontalPodAutoscaler"}, {"kyverno.io", "v1", "ClusterPolicy"}}
	f.Fuzz(func(t *testing.T, data []byte, which uint8) {
		k := kinds[int(which)%len(kinds)]
		r := resource{kind: k[2]}
		r.Group, r.Version = k[0], k[1]
		j.collector().content(r, data)
	})
}

// FuzzAuditLog reads a whole log of any content.
func FuzzAuditLog(f *testing.F) {
	f.Add([]byte("{\"apiVersion\":\"audit.k8s.io/v1\",\"verb\":\"get\",\"user\":{\"username\":\"u\"},\"objectRef\":{\"resource\":\"cronjobs\",\"apiGroup\":\"batch\",\"apiVersion\":\"v1beta1\"}}\n{\n\n"))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	j := testJudge(f, 24, 25)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		name := t.TempDir() + "/audit.log"
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := j.collector().auditLog(t.Context(), Options{}, name); err != nil {
			t.Error(err)
		}
	})
}

func FuzzTemplateLines(f *testing.F) {
	f.Add([]byte("a: {{ .x }}\n"), []byte("a: 1\n"), 1)
	f.Fuzz(func(t *testing.T, template, rendered []byte, n int) {
		if len(template)+len(rendered) > 1<<12 {
			return
		}
		if l := templateLines(template, rendered)(n); l < 0 || l > bytes.Count(template, []byte("\n"))+1 {
			t.Errorf("line %d", l)
		}
	})
}

// FuzzMetadata judges the metadata of a live object of any content: managed
// fields, the last-applied annotation, owners. What cannot be read is named, and
// nobody is accused of a version that nothing names.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","namespace":"n","managedFields":[{"manager":"helm","operation":"Update","apiVersion":"batch/v1beta1","time":"2026-01-02T03:04:05Z","fieldsV1":{"f:spec":{}}},{"manager":"helm","operation":"Update","apiVersion":"batch/v1"}]}}`))
	f.Add([]byte(`{"metadata":{"name":"a","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"batch/v1beta1\",\"kind\":\"CronJob\"}"}}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{"},"ownerReferences":[{"apiVersion":"a/b/c","kind":"K","name":"x","uid":"u"}],"managedFields":[{},{"apiVersion":"/"}]}}`))
	j := testJudge(f, 24, 25)
	r := resource{GroupVersionResource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}, kind: "CronJob", namespaced: true, versions: []string{"v1", "v1beta1"}}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m metav1.PartialObjectMetadata
		if json.Unmarshal(data, &m) != nil {
			return
		}
		c := j.collector()
		c.stored(r, &m)
		text := m.Annotations["kubectl.kubernetes.io/last-applied-configuration"]
		for _, found := range c.findings {
			if _, version, _ := strings.Cut(found.APIVersion, "/"); version != "" && !strings.Contains(string(data), version) && !strings.Contains(text, version) && found.Source.Type != SourceStored {
				t.Errorf("%s, which nothing names: %+v", found.APIVersion, found)
			}
		}
		if text != "" && !json.Valid([]byte(text)) && len(c.unreadable) == 0 {
			t.Errorf("annotation %q is passed over", text)
		}
	})
}

// FuzzChartArchive renders an archive of any bytes: it is read, or named as unread, and never both left out and clean.
func FuzzChartArchive(f *testing.F) {
	dir := f.TempDir()
	for i, files := range []map[string]string{
		{"Chart.yaml": "apiVersion: v2\nname: c\nversion: 1.0.0\n", "templates/a.yaml": "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: a}\n"},
		{"Chart.yaml": "apiVersion: v2\nname: c\nversion: 1.0.0\n", "templates/a.yaml": "{{ .Values.x.y.z }}"},
		{"Chart.yaml": "name: [", "values.yaml": "{"},
	} {
		src, to := filepath.Join(dir, strconv.Itoa(i), "c"), filepath.Join(dir, strconv.Itoa(i)+".tgz")
		writeChart(f, src, files)
		packChart(f, src, to)
		b, err := os.ReadFile(to)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte("no archive"))
	j := testJudge(f, 24, 25)
	file := filepath.Join(dir, "fuzzed.tgz")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c := j.collector()
		c.chart(t.Context(), Options{To: minor(25)}, file)
		if len(c.unreadable) == 0 && len(c.read) == 0 {
			t.Error("neither read nor named")
		}
	})
}
