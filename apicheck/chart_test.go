package apicheck

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeChart(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func packChart(t testing.TB, dir, to string) {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(dir), p)
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: filepath.ToSlash(rel), Mode: 0o644, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err = tw.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCharts(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "shop")
	writeChart(t, dir, map[string]string{
		"Chart.yaml":                    "apiVersion: v2\nname: shop\nversion: 1.0.0\n",
		"values.yaml":                   "cron: false\nname: c\n",
		"templates/cron.yaml":           "{{- if .Values.cron }}\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata:\n  name: {{ .Values.name }}\n  namespace: {{ .Release.Namespace }}\n{{- end }}\n",
		"templates/pdb.yaml":            "apiVersion: {{ if .Capabilities.APIVersions.Has \"policy/v1\" }}policy/v1{{ else }}policy/v1beta1{{ end }}\nkind: PodDisruptionBudget\n",
		"templates/kube.yaml":           "{{- if semverCompare \"<1.25-0\" .Capabilities.KubeVersion.Version }}\napiVersion: policy/v1beta1\nkind: PodSecurityPolicy\n{{- end }}\n",
		"templates/_help.tpl":           "{{ define \"x\" }}apiVersion: extensions/v1beta1{{ end }}",
		"templates/NOTES.txt":           "apiVersion: extensions/v1beta1\nkind: Ingress\n",
		"crds/foo.yaml":                 "# a CRD\napiVersion: apiextensions.k8s.io/v1beta1\nkind: CustomResourceDefinition\n",
		"charts/sub/Chart.yaml":         "apiVersion: v2\nname: sub\nversion: 1.0.0\n",
		"charts/sub/templates/ing.yaml": "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: i}\n",
	})
	archive := filepath.Join(root, "shop-1.0.0.tgz")
	packChart(t, dir, archive)
	prod := filepath.Join(root, "prod.values")
	if err := os.WriteFile(prod, []byte("cron: true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	scan := func(o Options) []string {
		t.Helper()
		o.From, o.To = minor(24), minor(25)
		r, err := Scan(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range r.Findings {
			out = append(out, f.Kind+" "+f.Namespace+"/"+f.Name+" "+strings.TrimPrefix(f.Source.File, root)+":"+itoa(f.Source.Line)+" "+f.Source.Path)
		}
		for _, u := range r.Coverage.Unreadable {
			out = append(out, "unread "+strings.TrimPrefix(u.What, root)+" "+u.Why)
		}
		return out
	}
	check := func(got []string, want ...string) {
		t.Helper()
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	const ingress, crd = "Ingress /i /shop/charts/sub/templates/ing.yaml:1 ", "CustomResourceDefinition / /shop/crds/foo.yaml:2 "
	check(scan(Options{Files: []string{dir}}), ingress, crd)
	check(scan(Options{Files: []string{dir}, Charts: ChartOptions{ValueFiles: []string{prod}, Set: []string{"name=nightly"}, Namespace: "n"}}),
		"Ingress n/i /shop/charts/sub/templates/ing.yaml:1 ", crd, "CronJob n/nightly /shop/templates/cron.yaml:2 ")
	check(scan(Options{Files: []string{archive}}), "CustomResourceDefinition / /shop-1.0.0.tgz:0 shop/crds/foo.yaml:2", "Ingress /i /shop-1.0.0.tgz:0 shop/charts/sub/templates/ing.yaml:1")
	if got := scan(Options{Files: []string{root}}); len(got) != 4 {
		t.Errorf("a directory with a chart and its archive: %v", got)
	}

	bad := filepath.Join(root, "bad")
	writeChart(t, bad, map[string]string{"Chart.yaml": "apiVersion: v2\nname: bad\nversion: 1.0.0\n", "templates/a.yaml": "{{ fail \"no\" }}"})
	if got := scan(Options{Files: []string{bad}}); len(got) != 1 || !strings.HasPrefix(got[0], "unread /bad chart:") {
		t.Errorf("a chart that fails: %v", got)
	}
	lacking := filepath.Join(root, "lacking")
	writeChart(t, lacking, map[string]string{"Chart.yaml": "apiVersion: v2\nname: lacking\nversion: 1.0.0\ndependencies:\n- {name: gone, version: 1.0.0, repository: https://example.com}\n", "templates/a.yaml": ""})
	if got := scan(Options{Files: []string{lacking}}); len(got) != 1 || !strings.Contains(got[0], "dependencies are not there: gone") {
		t.Errorf("a chart without its dependency: %v", got)
	}
	notChart := filepath.Join(root, "x.tgz")
	if err := os.WriteFile(notChart, []byte("no archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := scan(Options{Files: []string{notChart}}); len(got) != 1 || !strings.HasPrefix(got[0], "unread /x.tgz") {
		t.Errorf("an archive that is none: %v", got)
	}
}

func TestTemplateLines(t *testing.T) {
	template := "{{- range .Values.names }}\n---\napiVersion: {{ $.Values.api }}\nkind: CronJob\nmetadata:\n  name: {{ . }}\n{{- end }}\n---\napiVersion: batch/v1\nkind: Job\n---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n"
	rendered := "\n---\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata:\n  name: a\n---\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata:\n  name: b\n---\napiVersion: batch/v1\nkind: Job\n---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n"
	line := templateLines([]byte(template), []byte(rendered))
	for rendered, want := range map[int]int{3: 3, 13: 9, 16: 12, 17: 13, 0: 0, 99: 0, 6: 6} {
		if got := line(rendered); got != want {
			t.Errorf("line %d comes from %d, want %d", rendered, got, want)
		}
	}
}
