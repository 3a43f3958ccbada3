package apicheck

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

// TestComparison holds what the README's comparison says of belay: the result of scanning each file of testdata/compare,
// with the minors of the README's own command.
func TestComparison(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("../examples/compare/run.sh")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`belay api scan --from (\S+) --to (\S+) -f apicheck/testdata/compare/`).FindSubmatch(readme)
	if command == nil {
		t.Fatal("the README does not say how to reproduce its comparison")
	}
	if defaults := `"${FROM:=` + string(command[1]) + `}" "${TO:=` + string(command[2]) + `}"`; !strings.Contains(string(script), defaults) {
		t.Errorf("examples/compare/run.sh scans between other minors than the README says: no %s", defaults)
	}
	var shownFrom, shownTo kubeversion.Minor
	for text, m := range map[string]*kubeversion.Minor{string(command[1]): &shownFrom, string(command[2]): &shownTo} {
		if *m, err = kubeversion.ParseMinor(text); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]struct {
		from    int
		verdict Outcome
		lines   []string // parts
	}{
		"servicecidr":         {36, Findings, []string{"error removed networking.k8s.io/v1beta1 ServiceCIDR@:1 high -> networking.k8s.io/v1 ServiceCIDR (bump)"}},
		"admission-policy":    {33, Findings, []string{"error removed admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicy"}},
		"device-class":        {36, Findings, []string{"warning off-by-default resource.k8s.io/v1beta1 DeviceClass@:2 high -> resource.k8s.io/v1 DeviceClass (bump)"}},
		"autoscaler":          {25, Findings, []string{"error removed autoscaling/v2beta2 HorizontalPodAutoscaler"}},
		"pod-security-policy": {24, Findings, []string{"error removed policy/v1beta1 PodSecurityPolicy@:1 high -> - (none)"}},
		"flow-schema":         {31, Findings, []string{"error removed flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema"}},
		"events":              {24, Findings, []string{"error removed events.k8s.io/v1beta1 Event@:1 high -> events.k8s.io/v1 Event (semantic)"}},
		"list-in-list":        {24, Findings, []string{"error removed batch/v1beta1 CronJob@items[0].items[0]:7"}},
		"never-existed":       {36, Findings, []string{"warning unknown-builtin apps/v1beta1 ReplicaSet@:2"}},
		"certificate":         {24, Findings, []string{"error removed batch/v1beta1 CronJob@:11"}},
		"template":            {24, Unknown, []string{"error removed batch/v1beta1 CronJob@:2 low", "unread"}},
		"role":                {21, Findings, []string{"warning removed extensions/v1beta1 Ingress@rules[0]:7"}},
		"payload":             {24, Findings, []string{`error removed policy/v1beta1 PodDisruptionBudget@data["pdb.yaml"]:7 medium`}},
		"git-repo":            {35, Findings, []string{"error removed v1 Pod@spec.volumes[0].gitRepo:10"}},
		"other-group":         {36, Clean, nil},
	}
	files, err := filepath.Glob("testdata/compare/*.yaml")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d files, %d expectations: %v", len(files), len(want), err)
	}
	for _, name := range files {
		base := strings.TrimSuffix(filepath.Base(name), ".yaml")
		if !strings.Contains(string(readme), "`"+base+"`") {
			t.Errorf("the README's comparison has no row for %s", base)
		}
		if !strings.Contains(string(script), "\n"+base+" ") {
			t.Errorf("examples/compare/run.sh does not run %s", base)
		}
		w := want[base]
		// At the hop itself as well.
		for _, hops := range [][2]kubeversion.Minor{{shownFrom, shownTo}, {minor(w.from), minor(w.from + 1)}} {
			from, to := hops[0], hops[1]
			r, err := Scan(t.Context(), Options{From: from, To: to, Files: []string{name}})
			if err != nil {
				t.Fatal(err)
			}
			got := lines(r)
			if r.Verdict != w.verdict || len(got) != len(w.lines) {
				t.Errorf("%s from %s to %s: %s, %q", base, from, to, r.Verdict, got)
				continue
			}
			for i := range got {
				if !strings.Contains(got[i], w.lines[i]) {
					t.Errorf("%s from %s to %s: got %s, want %s", base, from, to, got[i], w.lines[i])
				}
			}
		}
	}
}
