package apicheck

import (
	"fmt"
	"strings"
	"testing"
)

func TestFields(t *testing.T) {
	pod := func(rest string) string { return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n" + rest }
	for _, c := range []struct {
		name     string
		from, to int
		text     string
		want     []string // severity verdict path:line hop, and part of the message
	}{
		{"gitRepo before it is off", 31, 32, pod("spec:\n  volumes:\n  - name: a\n    gitRepo: {repository: r}\n"), []string{"info deprecated spec.volumes[0].gitRepo:8 -|since 1.11"}},
		{"gitRepo off by default", 32, 33, pod("spec:\n  volumes:\n  - name: a\n    gitRepo: {repository: r}\n"), []string{"warning off-by-default spec.volumes[0].gitRepo:8 1.33|from 1.33 on"}},
		{"gitRepo locked off", 33, 37, pod("spec:\n  volumes:\n  - name: a\n    gitRepo: {repository: r}\n"), []string{"error removed spec.volumes[0].gitRepo:8 1.36|pods with it do not start, from 1.36 on"}},
		{"gone before the start", 36, 37, pod("spec: {volumes: [{name: a, cephfs: {}}]}\n"), []string{"warning removed spec.volumes[0].cephfs:5 -|since 1.31 already"}},
		{"in a template", 30, 31, "apiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    spec:\n      volumes:\n      - rbd: {}\n", []string{"error removed spec.template.spec.volumes[0].rbd:7 1.31|apps/v1 Deployment, spec.template"}},
		{"in a cron job in a list", 30, 31, "apiVersion: v1\nkind: List\nitems:\n- apiVersion: batch/v1\n  kind: CronJob\n  spec: {jobTemplate: {spec: {template: {spec: {volumes: [{}, {rbd: {}}]}}}}}\n", []string{"error removed items[0].spec.jobTemplate.spec.template.spec.volumes[1].rbd:6 1.31|no kubelet"}},
		{"a volume of its own", 30, 31, "apiVersion: v1\nkind: PersistentVolume\nspec:\n  rbd: {}\n  persistentVolumeReclaimPolicy: Recycle\n", []string{"error removed spec.rbd:4 1.31|", "info deprecated spec.persistentVolumeReclaimPolicy:5 -|Recycle"}},
		{"another value", 30, 31, "apiVersion: v1\nkind: PersistentVolume\nspec:\n  persistentVolumeReclaimPolicy: Retain\n", nil},
		{"annotations", 26, 27, "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    seccomp.security.alpha.kubernetes.io/pod: runtime/default\n    container.seccomp.security.alpha.kubernetes.io/web: runtime/default\n    container.apparmor.security.beta.kubernetes.io/web: x\n",
			[]string{`warning removed metadata.annotations["seccomp.security.alpha.kubernetes.io/pod"]:5 1.27|without this seccomp profile`, `warning removed metadata.annotations["container.seccomp.security.alpha.kubernetes.io/web"]:6 1.27|`}},
		{"annotations as JSON", 29, 30, `{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"container.apparmor.security.beta.kubernetes.io/web":"x"}}}`, []string{`info deprecated metadata.annotations["container.apparmor.security.beta.kubernetes.io/web"]:1 -|since 1.30`}},
		{"labels of nodes", 36, 37, pod("spec:\n  nodeSelector:\n    node-role.kubernetes.io/master: \"\"\n    beta.kubernetes.io/arch: amd64\n  topologySpreadConstraints:\n  - topologyKey: failure-domain.beta.kubernetes.io/zone\n"),
			[]string{`warning removed spec.nodeSelector["node-role.kubernetes.io/master"]:7 -|find no place`, `info deprecated spec.nodeSelector["beta.kubernetes.io/arch"]:8 -|`, "info deprecated spec.topologySpreadConstraints[0].topologyKey:10 -|topology"}},
		{"affinity", 23, 24, pod("spec:\n  affinity:\n    nodeAffinity:\n      requiredDuringSchedulingIgnoredDuringExecution:\n        nodeSelectorTerms:\n        - matchExpressions:\n          - key: node-role.kubernetes.io/master\n            operator: Exists\n"), []string{"error removed spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key:11 1.24|"}},
		{"services", 35, 36, "apiVersion: v1\nkind: Service\nspec: {externalIPs: [192.0.2.1], loadBalancerIP: 192.0.2.2, trafficDistribution: PreferClose}\n", []string{"info deprecated spec.loadBalancerIP:3", "info deprecated spec.externalIPs:3 -|since 1.36", "info deprecated spec.trafficDistribution:3 -|PreferSameZone"}},
		{"not yet deprecated", 34, 35, "apiVersion: v1\nkind: Service\nspec: {externalIPs: [192.0.2.1]}\n", nil},
		{"merged in", 30, 31, "x: &v {rbd: {}}\napiVersion: v1\nkind: PersistentVolume\nspec:\n  <<: *v\n", []string{"error removed spec.rbd:1 1.31|"}},
		{"of another group", 30, 31, "apiVersion: example.com/v1\nkind: Pod\nspec: {volumes: [{rbd: {}}]}\n", nil},
		{"null", 30, 31, pod("spec: {volumes: [{rbd: null}], nodeSelector: null}\n"), nil},
		{"a name that is no field", 30, 31, pod("metadata2:\n  rbd: {}\n"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := scanText(t, c.from, c.to, c.text) // which holds the fast path against the full parse
			if len(r.Findings) != len(c.want) || len(r.Coverage.Unreadable) > 0 {
				t.Fatalf("%d findings, want %d: %v", len(r.Findings), len(c.want), lines(r))
			}
			got := map[string]Finding{}
			for _, f := range r.Findings {
				hop := "-"
				if f.Hop.Minor > 0 {
					hop = f.Hop.String()
				}
				got[fmt.Sprintf("%s %s %s:%d %s", f.Severity, f.Verdict, f.Source.Path, f.Source.Line, hop)] = f
			}
			for _, w := range c.want {
				head, part, _ := strings.Cut(w, "|")
				found := false
				for k, f := range got {
					if strings.HasPrefix(k, head) && strings.Contains(f.Message, part) && f.Remedy != "" {
						found = true
					}
				}
				if !found {
					t.Errorf("no %q in %v", w, got)
				}
			}
		})
	}
}

// The fast path must stop at every field that ends, however it is written, and nowhere else.
func TestFastPathStopsAtFields(t *testing.T) {
	j := testJudge(t, 36, 37)
	for i := range j.db.Fields {
		f := &j.db.Fields[i]
		last := strings.Replace(f.Path[len(f.Path)-1], "*", "web", 1)
		value := f.Value
		if value == "" {
			value = "x"
		}
		head := "apiVersion: v1\nkind: Pod\n"
		if !f.OfPod() {
			kind, group, _ := strings.Cut(f.In[0], ".")
			if group != "" {
				group += "/"
			}
			head = "apiVersion: " + group + "v1\nkind: " + kind + "\n"
		}
		for _, text := range []string{head + "a:\n  " + last + ": " + value + "\n", head + "a:\n- \"" + last + "\": " + value + "\n", head + "a: {'" + last + "': " + value + "}\n", head + "a: [{b: {" + last + ": " + value + "}}]\n"} {
			if c := j.collector(); c.fast([]byte(text)) {
				t.Errorf("passed over:\n%s", text)
			}
		}
	}
	for _, text := range []string{
		"apiVersion: v1\nkind: Pod\nspec:\n  tolerations:\n  - key: example.com/a\n  topologySpreadConstraints:\n  - topologyKey: topology.kubernetes.io/zone\n",
		"apiVersion: example.com/v1\nkind: Foo\nspec:\n  rbd: {}\n",
		"apiVersion: v1\nkind: Service\nspec:\n  type: LoadBalancer\n",
	} {
		if c := j.collector(); !c.fast([]byte(text)) {
			t.Errorf("not passed over:\n%s", text)
		}
	}
}

func TestDeadAnnotationsOfLiveObjects(t *testing.T) {
	api := &fakeAPI{t: t, version: "v1.36.0", intercept: noMetric, resources: map[string][]string{"v1": {"pods Pod", "persistentvolumes PersistentVolume"}}, objects: map[string][]string{
		"pods":              {`{"metadata":{"name":"p","namespace":"n","annotations":{"seccomp.security.alpha.kubernetes.io/pod":"x","container.apparmor.security.beta.kubernetes.io/c":"y"}}}`},
		"persistentvolumes": {`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"v"},"spec":{"cephfs":{}}}`},
	}}
	r := api.scan(0, 37)
	var got []string
	for _, f := range r.Findings {
		got = append(got, fmt.Sprintf("%s %s %s %s %s", f.Severity, f.Verdict, f.Kind, f.Source.Object, f.Source.Path))
	}
	want := []string{`warning removed PersistentVolume PersistentVolume v spec.cephfs`, `info removed Pod Pod n/p metadata.annotations["seccomp.security.alpha.kubernetes.io/pod"]`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFieldsAreNamedAndSuppressed(t *testing.T) {
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {volumes: [{name: a, gitRepo: {}}], nodeSelector: {beta.kubernetes.io/arch: amd64}}\n"
	scan := func(s ...Suppression) Report {
		t.Helper()
		r, err := Scan(t.Context(), Options{From: minor(35), To: minor(36), Files: []string{"-"}, Stdin: strings.NewReader(text), Suppressions: s})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := scan()
	if len(r.Findings) != 2 || r.Findings[0].API() != "v1 Pod spec.volumes[].gitRepo" || r.Findings[1].Field != "spec.nodeSelector[beta.kubernetes.io/arch]" {
		t.Fatalf("%+v", r.Findings)
	}
	for _, pattern := range []string{"spec.volumes[].gitRepo", "*gitRepo"} {
		s := Suppression{Field: pattern, Reason: "gone next week"}
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
		if r := scan(s); len(r.Findings) != 1 || len(r.Suppressed) != 1 || r.Verdict != Clean {
			t.Errorf("%s: %v, suppressed %v, %s", pattern, lines(r), r.Suppressed, r.Verdict)
		}
	}
}
