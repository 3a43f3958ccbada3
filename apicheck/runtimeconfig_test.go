package apicheck

import (
	"strings"
	"testing"

	"github.com/belayops/belay/apicheck/lifecycle"
)

func TestRuntimeConfig(t *testing.T) {
	const text = "apiVersion: resource.k8s.io/v1beta1\nkind: DeviceClass\n---\napiVersion: batch/v1\nkind: CronJob\n---\napiVersion: scheduling.k8s.io/v1beta1\nkind: Workload\n"
	for _, c := range []struct {
		name, config string
		want         []string
	}{
		{"nothing", "", []string{"off-by-default resource.k8s.io/v1beta1 DeviceClass", "off-by-default scheduling.k8s.io/v1beta1 Workload"}},
		{"a version", "resource.k8s.io/v1beta1=true", []string{"off-by-default scheduling.k8s.io/v1beta1 Workload", "deprecated resource.k8s.io/v1beta1 DeviceClass"}},
		{"a resource", "scheduling.k8s.io/v1beta1/workloads", []string{"off-by-default resource.k8s.io/v1beta1 DeviceClass"}},
		{"all betas", "api/beta=true", []string{"deprecated resource.k8s.io/v1beta1 DeviceClass"}},
		{"all but one", "api/all=true,scheduling.k8s.io/v1beta1=false", []string{"off-by-default scheduling.k8s.io/v1beta1 Workload", "deprecated resource.k8s.io/v1beta1 DeviceClass"}},
		{"one that is on is switched off", "batch/v1=false,api/beta=true", []string{"off-by-default batch/v1 CronJob", "deprecated resource.k8s.io/v1beta1 DeviceClass"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rc, err := ParseRuntimeConfig(c.config)
			if err != nil {
				t.Fatal(err)
			}
			o := Options{From: minor(36), To: minor(37), Files: []string{"-"}, RuntimeConfig: rc}
			for _, full := range []bool{false, true} {
				o.Stdin, o.FullParse = strings.NewReader(text), full
				r, err := Scan(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				got := map[string]bool{}
				for _, f := range r.Findings {
					got[string(f.Verdict)+" "+f.APIVersion+" "+f.Kind] = true
				}
				for _, w := range c.want {
					if !got[w] {
						t.Errorf("no %q in %v", w, got)
					}
				}
				if len(got) != len(c.want) {
					t.Errorf("got %v, want %q", got, c.want)
				}
			}
		})
	}
	for _, bad := range []string{"batch/v1=perhaps"} {
		if _, err := ParseRuntimeConfig(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// What the static pods of the apiservers switch on counts, if all of them do.
func TestRuntimeConfigOfACluster(t *testing.T) {
	pod := func(name, arg string) string {
		return `{"metadata":{"name":"` + name + `","namespace":"kube-system","labels":{"component":"kube-apiserver"}},"spec":{"containers":[{"name":"kube-apiserver","command":["kube-apiserver","--v=2"` + arg + `]}]}}`
	}
	scan := func(pods ...string) Report {
		t.Helper()
		api := &fakeAPI{t: t, version: "v1.36.0", intercept: noMetric, resources: map[string][]string{"v1": {"pods Pod"}}, objects: map[string][]string{"pods": pods}}
		r, err := Scan(t.Context(), Options{To: minor(37), RESTConfig: api.start(), Files: []string{"-"}, Stdin: strings.NewReader("apiVersion: resource.k8s.io/v1beta1\nkind: DeviceClass\n")})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	with := `,"--runtime-config=api/ga=true,resource.k8s.io/v1beta1=true"`
	for name, c := range map[string]struct {
		r    Report
		want lifecycle.Verdict
	}{
		"one that has it":         {scan(pod("a", with)), lifecycle.Deprecated},
		"in two arguments":        {scan(pod("a", `,"--runtime-config","resource.k8s.io/v1beta1=true"`)), lifecycle.Deprecated},
		"one of two":              {scan(pod("a", with), pod("b", "")), lifecycle.OffByDefault},
		"none to see":             {scan(), lifecycle.OffByDefault},
		"one that cannot be read": {scan(pod("a", `,"--runtime-config=x/y=z"`)), lifecycle.OffByDefault},
	} {
		if len(c.r.Findings) != 1 || c.r.Findings[0].Verdict != c.want {
			t.Errorf("%s: %v", name, lines(c.r))
		}
		if unread := len(c.r.Coverage.Unreadable) > 0; unread != (name == "one that cannot be read") {
			t.Errorf("%s: not read %v", name, c.r.Coverage.Unreadable)
		}
	}
}
