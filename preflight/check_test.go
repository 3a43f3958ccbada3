package preflight

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

func run(t *testing.T, in Input, o Options) *Report {
	t.Helper()
	r, err := Run(context.Background(), in, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func findings(r *Report) []string {
	var out []string
	for _, x := range r.Results {
		if x.Stands() || x.Status == Warn {
			out = append(out, string(x.Status)+" "+x.ID())
		}
	}
	return out
}

func goal(v string) Goal { return Goal{Target: kubeversion.MustParse(v)} }

// A healthy cluster gives no finding, but for what is a property of the version itself.
func TestHealthyClusterIsClean(t *testing.T) {
	r := run(t, Input{State: clustertest.New("1.36.3", 3, 2)}, Options{})
	if r.Verdict != Clean || findings(r) != nil {
		t.Errorf("%s: %q", r.Verdict, findings(r))
	}
	r = run(t, Input{State: clustertest.New("1.36.3", 3, 2), Goal: goal("1.37.2")}, Options{})
	if want := []string{"fail etcd-floor@etcd-3.7"}; !slices.Equal(findings(r), want) || r.Verdict != Findings {
		t.Errorf("%s: %q, want %q", r.Verdict, findings(r), want)
	}
	g := goal("1.37.2")
	g.EtcdSteps = []kubeversion.V{kubeversion.MustParse("3.6.14")}
	r = run(t, Input{State: clustertest.New("1.36.3", 3, 2), Goal: g}, Options{})
	if want := []string{"warn etcd-floor@etcd-3.7"}; !slices.Equal(findings(r), want) || r.Verdict != Clean {
		t.Errorf("%s: %q, want %q", r.Verdict, findings(r), want)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// Whatever was not read: the verdict is not clean, and a waiver that names it makes it so.
func TestEveryGapStandsInTheWay(t *testing.T) {
	gaps := []string{
		"version", "namespace/kube-system", "configmap/kube-system/kubeadm-config", "configmap/kube-system/kubelet-config", "configmap/kube-system/kube-proxy", "nodes", "pods", "deployments", "daemonsets", "statefulsets", "replicasets", "jobs",
		"poddisruptionbudgets", "persistentvolumes", "persistentvolumeclaims", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "customresourcedefinitions",
		"hosts", "etcd", "endpointslices/policy/hook", "node/w1/host", "node/w1/host/cgroup", "node/w1/host/swaps", "node/w1/host/df:/", "node/cp1/host/du:/var/lib/etcd",
		"node/cp1/host/cert:/etc/kubernetes/pki/ca.crt", "node/w1/host/kubelet-config", "node/w1/host/clock", "node/w1/host/kubelet-version", "something/new",
	}
	kinds := []string{cluster.UnreadForbidden, cluster.UnreadUnreachable, cluster.UnreadTimeout, cluster.UnreadLost, cluster.UnreadMalformed, cluster.UnreadFailed}
	for i, what := range gaps {
		s := clustertest.New("1.36.3", 3, 2, clustertest.Unread(what, kinds[i%len(kinds)], "the test says so"))
		r := run(t, Input{State: s}, Options{})
		if r.Verdict != Undecided {
			t.Errorf("%s: %s, %q", what, r.Verdict, findings(r))
			continue
		}
		for _, x := range r.Standing() {
			if x.Message == "" || x.Status == Unknown && x.Remedy == "" {
				t.Errorf("%s: %+v says too little", what, x)
			}
		}
		if r = run(t, Input{State: s}, Options{Accept: []string{"coverage@" + what}}); r.Verdict != Clean || len(r.UnusedWaivers) != 0 {
			t.Errorf("%s, accepted: %s, %q", what, r.Verdict, findings(r))
		}
	}
}

func check(id string, run func(context.Context, *Input) []Result, needs ...string) Check {
	return Check{ID: id, Title: id, Needs: needs, Waivable: true, Run: run}
}

func always1(st Status) func(context.Context, *Input) []Result {
	return func(context.Context, *Input) []Result {
		return []Result{{Subject: "x", Status: st, Message: "m"}}
	}
}

func TestRunner(t *testing.T) {
	in := Input{State: clustertest.New("1.36.3", 1, 0)}
	checks := []Check{
		check("fails", always1(Fail)),
		check("after", always1(Pass), "fails"),
		check("breaks", func(context.Context, *Input) []Result { panic("ouch") }),
		check("nothing", func(context.Context, *Input) []Result { return nil }),
		check("warns", always1(Warn)),
		check("after-warning", always1(Pass), "warns"),
	}
	get := func(r *Report, id string) Result {
		for _, x := range r.Results {
			if x.Check == id {
				return x
			}
		}
		t.Fatalf("no result of %s", id)
		return Result{}
	}
	var rec event.Recorder
	r, err := RunChecks(context.Background(), checks, in, Options{Sink: &rec})
	if err != nil {
		t.Fatal(err)
	}
	if x := get(r, "after"); x.Status != Blocked || !slices.Equal(x.Because, []string{"fails@x"}) {
		t.Errorf("after: %+v", x)
	}
	if x := get(r, "breaks"); x.Status != Unknown || !strings.Contains(x.Message, "ouch") {
		t.Errorf("breaks: %+v", x)
	}
	if get(r, "nothing").Status != Pass || get(r, "after-warning").Status != Pass {
		t.Error("a check without results, or after a warning, does not pass")
	}
	if r.Verdict != Findings || r.Counts["fail"] != 1 || r.Counts["blocked"] != 1 || r.Counts["unknown"] != 1 || r.Counts["pass"] != 2 || r.Counts["warn"] != 1 {
		t.Errorf("%s %v", r.Verdict, r.Counts)
	}
	if len(rec.Events()) != len(checks) {
		t.Errorf("%d events", len(rec.Events()))
	}
	for i, x := range r.Results {
		if x.Check != checks[i].ID {
			t.Errorf("result %d is of %s: the order is not the registry's", i, x.Check)
		}
	}

	r, err = RunChecks(context.Background(), checks, in, Options{Accept: []string{"fails@x", "breaks@cluster"}})
	if err != nil || r.Verdict != Clean || get(r, "after").Status != Pass || !get(r, "fails").Waived || r.Counts["waived"] != 2 {
		t.Errorf("waived: %v %+v", err, r)
	}
	r, err = RunChecks(context.Background(), checks, in, Options{Accept: []string{"fails@y", "warns@x"}})
	if err != nil || r.Verdict != Findings || !slices.Equal(r.UnusedWaivers, []string{"fails@y", "warns@x"}) {
		t.Errorf("unused: %v %+v", err, r)
	}
	checks[0].Waivable = false
	r, err = RunChecks(context.Background(), checks, in, Options{Accept: []string{"fails@x"}})
	if err != nil || r.Verdict != Findings || !slices.Equal(r.RefusedWaivers, []string{"fails@x"}) {
		t.Errorf("refused: %v %+v", err, r)
	}
	r, err = RunChecks(context.Background(), checks, in, Options{Only: []string{"after"}})
	if err != nil || len(r.Results) != 2 {
		t.Errorf("only: %v %+v", err, r)
	}
	for _, bad := range []Options{{Accept: []string{"fails"}}, {Accept: []string{"@x"}}, {Accept: []string{"fails@"}}, {Only: []string{"nosuch"}}} {
		if _, err := RunChecks(context.Background(), checks, in, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	for _, bad := range [][]Check{
		{check("a", always1(Pass), "b"), check("b", always1(Pass), "a")}, {check("a", always1(Pass)), check("a", always1(Pass))}, {check("a", always1(Pass), "nosuch")},
	} {
		if _, err := RunChecks(context.Background(), bad, in, Options{}); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

// An unknown that blocks others, once accepted, lets what follows from it be skipped and not stand.
func TestUnknownVerdictAndSkippedAfterWaiver(t *testing.T) {
	in := Input{State: clustertest.New("1.36.3", 1, 0)}
	checks := []Check{
		check("gap", always1(Unknown)),
		check("follows", func(context.Context, *Input) []Result {
			return []Result{{Subject: "x", Status: Blocked, Because: []string{"gap@x"}, Message: "m"}}
		}),
	}
	r, err := RunChecks(context.Background(), checks, in, Options{})
	if err != nil || r.Verdict != Undecided || len(r.Standing()) != 2 {
		t.Errorf("%v %+v", err, r)
	}
	r, err = RunChecks(context.Background(), checks, in, Options{Accept: []string{"gap@x"}})
	if err != nil || r.Verdict != Clean || r.Results[1].Status != Skipped {
		t.Errorf("%v %+v", err, r)
	}
}

func TestCheckThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := Input{State: clustertest.New("1.36.3", 1, 0)}
		release := make(chan struct{})
		checks := []Check{check("hangs", func(context.Context, *Input) []Result { <-release; return nil }), check("fine", always1(Pass))}
		r, err := RunChecks(context.Background(), checks, in, Options{Timeout: time.Minute})
		close(release)
		if err != nil || r.Results[0].Status != Unknown || !strings.Contains(r.Results[0].Message, "1m0s") || r.Results[1].Status != Pass {
			t.Errorf("%v %+v", err, r)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Input{State: clustertest.New("1.36.3", 1, 0)}, Options{}); err == nil {
		t.Error("an interrupted run gave a report")
	}
}

func TestRegistryIsWhole(t *testing.T) {
	for _, c := range Checks() {
		if c.ID == "" || c.Title == "" || c.Fails == "" || c.Run == nil {
			t.Errorf("%s: something is missing", c.ID)
		}
	}
	if _, err := choose(Checks(), nil); err != nil {
		t.Error(err)
	}
	// What a waiver can name must be unique.
	s := clustertest.New("1.30.1", 3, 3, func(s *cluster.State) { s.Etcd.Reached = false; s.Unread = nil })
	for _, g := range []Goal{{}, goal("1.37.2"), goal("1.29.0")} {
		r := run(t, Input{State: s, Goal: g}, Options{})
		seen := map[string]bool{}
		for _, x := range r.Results {
			if seen[x.ID()] && x.Stands() {
				t.Errorf("%s comes twice", x.ID())
			}
			seen[x.ID()] = true
			if strings.ContainsAny(x.Message, "\n") || x.Message == "" || x.Subject == "" {
				t.Errorf("%+v", x)
			}
			if (x.Status == Fail || x.Status == Unknown || x.Status == Warn) && x.Remedy == "" {
				t.Errorf("%s has no remedy: %s", x.ID(), x.Message)
			}
		}
	}
}
