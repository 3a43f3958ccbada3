package plan_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
)

var v = kubeversion.MustParse

func info(version string) plan.BundleInfo {
	i := plan.BundleInfo{Version: v(version), Digest: "sha256:" + strings.Repeat("a", 64), Official: true,
		Etcd: clustertest.EtcdFor(v(version)), CanaryImage: "registry.k8s.io/pause:3.10.2"}
	switch {
	case v(version).Minor >= 37:
		i.EtcdStep, i.EtcdStepImage = v("3.6.14"), "registry.k8s.io/etcd:3.6.14-0"
	case v(version).Minor >= 34:
		i.EtcdStep, i.EtcdStepImage = v("3.5.32"), "registry.k8s.io/etcd:3.5.32-0"
	}
	return i
}

func infos(versions ...string) []plan.BundleInfo {
	var out []plan.BundleInfo
	for _, s := range versions {
		out = append(out, info(s))
	}
	return out
}

var all = infos("1.32.9", "1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2")

func ids(p *plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.ID)
	}
	return out
}

func mustBuild(t *testing.T, s *cluster.State, to string, p plan.Policy) (*plan.Plan, []plan.Finding) {
	t.Helper()
	pl, fs := plan.Build(*s, plan.Goal{To: v(to), Bundles: all}, p)
	if pl == nil {
		t.Fatalf("no plan: %+v", fs)
	}
	return pl, fs
}

func TestOrderOfOneHop(t *testing.T) {
	p, _ := mustBuild(t, clustertest.New("1.36.3", 1, 1), "1.37.2", plan.Policy{})
	want := []string{
		"backup-gate", "stage@1.37.2", "backup-gate-again", "etcd-patch@3.6.14/cp1", "control-plane@1.37.2/cp1", "control-plane-gate@1.37.2",
		"cordon@1.37.2/cp1", "drain@1.37.2/cp1", "kubelet@1.37.2/cp1", "canary@1.37.2/cp1", "uncordon@1.37.2/cp1", "node-gate@1.37.2/cp1",
		"cordon@1.37.2/w1", "drain@1.37.2/w1", "kubelet-config@1.37.2/w1", "kubelet@1.37.2/w1", "canary@1.37.2/w1", "uncordon@1.37.2/w1", "node-gate@1.37.2/w1",
		"verify",
	}
	if got := ids(p); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	cp := p.Step("control-plane@1.37.2/cp1")
	if cp.Kind != plan.KubeadmApply || cp.Reversible || cp.PointOfNoReturn == "" || cp.Params.EtcdVersion != v("3.7.0") || cp.Params.EtcdFrom != v("3.6.14") {
		t.Errorf("control plane step: %+v", cp)
	}
}

func TestEveryAPIServerBeforeAnyKubelet(t *testing.T) {
	p, _ := mustBuild(t, clustertest.New("1.36.3", 3, 2), "1.37.2", plan.Policy{})
	lastControl, firstKubelet := -1, len(p.Steps)
	applies := 0
	for i, s := range p.Steps {
		switch s.Kind {
		case plan.KubeadmApply:
			applies++
			lastControl = i
		case plan.KubeadmNode:
			lastControl = i
		case plan.Kubelet:
			firstKubelet = min(firstKubelet, i)
		}
	}
	if applies != 1 || lastControl < 0 || lastControl > firstKubelet {
		t.Errorf("%d applies, last control plane step %d, first kubelet %d", applies, lastControl, firstKubelet)
	}
	noReturn := 0
	for _, s := range p.Steps {
		if s.PointOfNoReturn != "" {
			noReturn++
			if s.Node != "cp3" {
				t.Errorf("point of no return at %s, want the last member", s.ID)
			}
		}
	}
	if noReturn != 1 {
		t.Errorf("%d points of no return, want 1", noReturn)
	}
}

func TestFourHopsTwoWorkerRounds(t *testing.T) {
	s := clustertest.New("1.33.13", 1, 2)
	p, _ := mustBuild(t, s, "1.37.2", plan.Policy{})
	var rounds []string
	for _, h := range p.Hops {
		if h.Workers {
			rounds = append(rounds, h.To.Bare())
		}
	}
	if len(p.Hops) != 4 || !slices.Equal(rounds, []string{"1.36.3", "1.37.2"}) {
		t.Errorf("hops %+v, worker rounds %v; want four hops and rounds at 1.36.3 and 1.37.2", p.Hops, rounds)
	}
}

func TestFindings(t *testing.T) {
	web := func(node string, n int) []cluster.Pod {
		var out []cluster.Pod
		for i := range n {
			out = append(out, cluster.Pod{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Node: node, Phase: "Running", Ready: true,
				Owner: "ReplicaSet/web-6d4", Workload: "Deployment/shop/web"})
		}
		return out
	}
	pdb := func(allowed int32, pods int) cluster.PDB {
		b := cluster.PDB{Namespace: "shop", Name: "web", DisruptionsAllowed: allowed, CurrentHealthy: 3, DesiredHealthy: 3 - allowed, ExpectedPods: 3}
		for i := range pods {
			b.Pods = append(b.Pods, fmt.Sprintf("shop/web-%d", i))
		}
		return b
	}
	floorless := infos("1.36.3", "1.37.2")
	floorless[1].EtcdStep = kubeversion.V{}
	for name, c := range map[string]struct {
		state   *cluster.State
		to      string
		bundles []plan.BundleInfo
		accept  []string
		want    string // waiver name of the finding
		sev     plan.Severity
		plan    bool
	}{
		"target below":   {state: clustertest.New("1.37.2", 1, 1), to: "1.36.3", want: "version-target@1.36.3", sev: plan.Block},
		"missing bundle": {state: clustertest.New("1.35.4", 1, 1), to: "1.37.2", bundles: infos("1.37.2"), want: "bundles@1.36", sev: plan.Block},
		"missing target": {state: clustertest.New("1.36.3", 1, 1), to: "1.37.2", bundles: infos("1.36.3"), want: "bundles@1.37.2", sev: plan.Block},
		"floor":          {state: clustertest.New("1.36.3", 1, 1), to: "1.37.2", bundles: floorless, want: "etcd-floor@etcd-3.7", sev: plan.Block},
		"floor accepted": {state: clustertest.New("1.36.3", 1, 1), to: "1.37.2", bundles: floorless, accept: []string{"etcd-floor@etcd-3.7"}, want: "etcd-floor@etcd-3.7", sev: plan.Block, plan: true},
		"pdb allows none": {state: clustertest.New("1.36.3", 1, 2, func(s *cluster.State) { s.Pods, s.PDBs = web("w1", 3), []cluster.PDB{pdb(0, 3)} }),
			to: "1.37.2", want: "pdb-blocks-drain@shop/web", sev: plan.Block},
		"pdb and nowhere to go": {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Pods, s.PDBs = web("w1", 3), []cluster.PDB{pdb(1, 3)} }),
			to: "1.37.2", want: "pdb-blocks-drain@shop/web", sev: plan.Block},
		"pdb fits": {state: clustertest.New("1.36.3", 1, 2, func(s *cluster.State) { s.Pods, s.PDBs = web("w1", 3), []cluster.PDB{pdb(1, 3)} }),
			to: "1.37.2", want: "single-control-plane@cluster", sev: plan.Info, plan: true},
		"pending": {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Pods = web("w1", 3) }),
			to: "1.37.2", want: "drain-leaves-pending@w1", sev: plan.Warn, plan: true},
		"bare": {state: clustertest.New("1.36.3", 1, 2, func(s *cluster.State) { s.Pods = web("w1", 1); s.Pods[0].Owner = "" }),
			to: "1.37.2", want: "pods-without-controller@shop/web-0", sev: plan.Block},
		"two budgets": {state: clustertest.New("1.36.3", 1, 2, func(s *cluster.State) { s.Pods, s.PDBs = web("w1", 1), []cluster.PDB{pdb(1, 1), pdb(1, 1)} }),
			to: "1.37.2", want: "pdb-blocks-drain@pod/shop/web-0", sev: plan.Block},
		"not ready":   {state: clustertest.New("1.36.3", 1, 2, clustertest.NotReady("w2", "NodeStatusUnknown")), to: "1.37.2", want: "nodes-ready@w2", sev: plan.Block},
		"kubelet new": {state: clustertest.New("1.36.3", 1, 1, clustertest.Component("w1", "kubelet", "1.37.2")), to: "1.37.2", want: "version-skew@kubelet/w1", sev: plan.Block},
		"kubelet new, accepted": {state: clustertest.New("1.36.3", 1, 1, clustertest.Component("w1", "kubelet", "1.37.2")), to: "1.37.2",
			accept: []string{"version-skew@kubelet/w1"}, want: "version-skew@kubelet/w1", sev: plan.Block, plan: true},
		"another violation than the accepted one": {state: clustertest.New("1.36.3", 1, 2, clustertest.Component("w1", "kubelet", "1.37.2"), clustertest.Component("w2", "kubelet", "1.37.2")), to: "1.37.2",
			accept: []string{"version-skew@kubelet/w1"}, want: "version-skew@kubelet/w2", sev: plan.Block},
		"kubelet of a later minor": {state: clustertest.New("1.36.3", 1, 1, clustertest.Component("w1", "kubelet", "1.38.0")), to: "1.37.2",
			accept: []string{"version-skew@kubelet/w1"}, want: "version-target@1.37.2", sev: plan.Block},
		"kubelet of a later patch":     {state: clustertest.New("1.37.1", 1, 1, clustertest.Component("w1", "kubelet", "1.37.3")), to: "1.37.2", want: "kubelet-stays@w1", sev: plan.Info, plan: true},
		"scheduler of a later patch":   {state: clustertest.New("1.37.1", 1, 1, clustertest.Component("cp1", "kube-scheduler", "1.37.3")), to: "1.37.2", want: "version-target@1.37.2", sev: plan.Block},
		"ConfigMap of a later patch":   {state: clustertest.New("1.37.1", 1, 1, func(s *cluster.State) { s.Kubeadm.KubernetesVersion = v("1.37.3") }), to: "1.37.2", want: "version-target@1.37.2", sev: plan.Block},
		"hop below what runs half-way": {state: clustertest.New("1.35.4", 2, 1, clustertest.Component("cp1", "kube-apiserver", "1.36.9")), to: "1.37.2", want: "bundles@1.36", sev: plan.Block},
		"private images":               {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Kubeadm.ImageRepository = "registry.example.org/k8s" }), to: "1.37.2", want: "kubeadm-config@image-repository", sev: plan.Block},
		"private images of etcd":       {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Kubeadm.EtcdImageRepository = "registry.example.org/k8s" }), to: "1.37.2", want: "kubeadm-config@image-repository", sev: plan.Block},
		"private images accepted":      {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Kubeadm.ImageRepository = "registry.example.org/k8s" }), to: "1.37.2", accept: []string{"kubeadm-config@image-repository"}, want: "kubeadm-config@image-repository", sev: plan.Block, plan: true},
		"etcd pinned elsewhere":        {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.16-0" }), to: "1.37.2", want: "kubeadm-config@etcd-image-tag", sev: plan.Block},
		"etcd pinned to 3.5":           {state: clustertest.New("1.35.4", 1, 1, clustertest.Etcd("3.5.24"), func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.5.24-0" }), to: "1.36.3", want: "kubeadm-config@etcd-image-tag", sev: plan.Block},
		"etcd pinned to what runs":     {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.8-0" }), to: "1.37.2", want: "kubeadm-config@etcd-image-tag", sev: plan.Warn, plan: true},
		"broken pods that may go": {state: clustertest.New("1.36.3", 1, 2, func(s *cluster.State) {
			s.Pods, s.PDBs = web("w1", 1), []cluster.PDB{pdb(0, 1)}
			s.Pods[0].Ready, s.PDBs[0].CurrentHealthy, s.PDBs[0].UnhealthyEviction = false, 0, "AlwaysAllow"
		}), to: "1.37.2", want: "single-control-plane@cluster", sev: plan.Info, plan: true},
		"a machine unread": {state: clustertest.New("1.36.3", 1, 1, clustertest.Node("w1", func(n *cluster.Node) { n.Host = nil })), to: "1.37.2", want: "coverage@node/w1/host", sev: plan.Block},
		"no machine asked": {state: clustertest.New("1.36.3", 1, 0, clustertest.Node("cp1", func(n *cluster.Node) { n.Host = nil }), clustertest.Unread("hosts", cluster.UnreadNotAsked, "no")), to: "1.37.2", want: "coverage@hosts", sev: plan.Block},
		"at target":        {state: clustertest.New("1.37.2", 1, 1), to: "1.37.2", want: "already-at-target@1.37.2", sev: plan.Info, plan: true},
		"not kubeadm":      {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Kubeadm = nil }), to: "1.37.2", want: "kubeadm-config@kubeadm-config", sev: plan.Block},
		"unread":           {state: clustertest.New("1.36.3", 1, 1, func(s *cluster.State) { s.Unread = []cluster.Unread{{What: "pods", Why: "no", Kind: "forbidden"}} }), to: "1.37.2", want: "coverage@pods", sev: plan.Block},
		"etcd unhealthy":   {state: clustertest.New("1.36.3", 3, 1, func(s *cluster.State) { s.Etcd.Members[2].Healthy = false }), to: "1.37.2", want: "etcd-quorum@cp1", sev: plan.Block},
		"no backup":        {state: clustertest.New("1.36.3", 1, 1), to: "1.37.2", accept: []string{"no-backup@cluster"}, want: "no-backup@cluster", sev: plan.Warn, plan: true},
		"idle waiver":      {state: clustertest.New("1.36.3", 1, 1), to: "1.37.2", accept: []string{"x@y"}, want: "unused-waiver@x@y", sev: plan.Info, plan: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.bundles
			if b == nil {
				b = all
			}
			p, fs := plan.Build(*c.state, plan.Goal{To: v(c.to), Bundles: b}, plan.Policy{Accept: c.accept})
			i := slices.IndexFunc(fs, func(f plan.Finding) bool { return f.Waiver() == c.want })
			if i < 0 || fs[i].Severity != c.sev {
				t.Fatalf("want %s %s among %+v", c.sev, c.want, fs)
			}
			if (p != nil) != c.plan {
				t.Errorf("plan made: %v, want %v; %+v", p != nil, c.plan, fs)
			}
			if name == "missing bundle" && !strings.Contains(fs[i].Remedy, "belay bundle build 1.36") {
				t.Errorf("remedy %q does not say how to build it", fs[i].Remedy)
			}
		})
	}
}

func TestGates(t *testing.T) {
	found := []plan.Finding{
		{ID: "swap", Subject: "w1", Severity: plan.Block, Waivable: true, Message: "m"},
		{ID: "clock-skew", Subject: "w1", Severity: plan.Block, Message: "m"},
	}
	s := clustertest.New("1.36.3", 1, 1)
	for _, c := range []struct {
		accept []string
		plan   bool
	}{{nil, false}, {[]string{"swap@w1"}, false}, {[]string{"swap@w1", "clock-skew@w1"}, false}} {
		if p, fs := plan.Build(*s, plan.Goal{To: v("1.37.2"), Bundles: all}, plan.Policy{Accept: c.accept, Preflight: found}); (p != nil) != c.plan {
			t.Errorf("with %v: plan %v, %+v", c.accept, p != nil, fs)
		}
	}
	p, _ := mustBuild(t, s, "1.37.2", plan.Policy{Accept: []string{"swap@w1"}, Preflight: found[:1], PreflightGate: true})
	gate := p.Steps[0]
	if gate.Kind != plan.PreflightGate || !slices.Equal(gate.Params.Accept, []string{"swap@w1"}) || gate.Params.Version != v("1.37.2") || !slices.Equal(p.Waivers, gate.Params.Accept) {
		t.Errorf("first step %+v, waivers %v", gate, p.Waivers)
	}
	if p, fs := plan.Build(*clustertest.New("1.37.2", 1, 1), plan.Goal{To: v("1.37.2"), Bundles: all}, plan.Policy{Preflight: found, PreflightGate: true}); p == nil || len(p.Steps) != 1 {
		t.Errorf("a plan that only verifies was kept back: %+v", fs)
	}
	// The backup must be there right up to the first change, and at the level that design and default ask for: whatever step a
	// run stopped at before that, the resumed run asks again, as a done gate whose end has not come or one that is not done yet.
	for name, s := range map[string]*cluster.State{
		"control plane first":        s,
		"kubelets only":              clustertest.New("1.37.2", 1, 1, clustertest.Component("w1", "kubelet", "1.36.3")),
		"kubelets before a long way": clustertest.New("1.36.3", 1, 1, clustertest.Component("w1", "kubelet", "1.33.13"), clustertest.Component("w1", "kube-proxy", "1.33.13")),
	} {
		p, _ := mustBuild(t, s, "1.37.2", plan.Policy{PreflightGate: true})
		for i, st := range p.Steps {
			if st.Kind == plan.PreflightGate || st.Kind == plan.BackupGate || st.Kind == plan.Stage {
				continue
			}
			// Everything before i is done, nothing of i is begun.
			before := p.Steps[:i]
			last := before[len(before)-1]
			if last.Kind != plan.BackupGate || last.Params.BackupLevel != "restored" {
				t.Errorf("%s: the first change, %s, comes after %s", name, st.ID, last.ID)
			}
			for j, g := range before[:len(before)-1] {
				if g.Kind == plan.BackupGate && g.Until != before[len(before)-2].ID {
					t.Errorf("%s: gate %d holds until %s", name, j, g.Until)
				}
			}
			break
		}
	}
}

// One accepted pod opens its node's drain for that pod alone.
func TestBarePodsByName(t *testing.T) {
	s := clustertest.New("1.36.3", 1, 2, clustertest.BarePod("a", "one", "w1"), clustertest.BarePod("a", "two", "w1"), clustertest.BarePod("b", "three", "w2"))
	if p, _ := plan.Build(*s, plan.Goal{To: v("1.37.2"), Bundles: all}, plan.Policy{Accept: []string{"pods-without-controller@a/one"}}); p != nil {
		t.Fatal("a plan was made although two bare pods were not accepted")
	}
	p, _ := mustBuild(t, s, "1.37.2", plan.Policy{Accept: []string{"pods-without-controller@a/two", "pods-without-controller@a/one", "pods-without-controller@b/three"}})
	for id, want := range map[string][]string{"drain@1.37.2/w1": {"a/one", "a/two"}, "drain@1.37.2/w2": {"b/three"}, "drain@1.37.2/cp1": nil} {
		if got := p.Step(id).Params.BarePods; !slices.Equal(got, want) {
			t.Errorf("%s deletes %v, want %v", id, got, want)
		}
	}
}

// With etcd pinned to what runs, no step may expect another etcd: it would never come.
func TestPinnedEtcdStays(t *testing.T) {
	p, _ := mustBuild(t, clustertest.New("1.36.3", 3, 1, func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.8-0" }), "1.37.2", plan.Policy{})
	for _, st := range p.Steps {
		if !st.Params.EtcdVersion.IsZero() || st.Kind == plan.EtcdPatch || st.PointOfNoReturn != "" {
			t.Errorf("step %s moves etcd: %+v", st.ID, st.Params)
		}
	}
}

func TestPatchesGoWhereManifestsAreWritten(t *testing.T) {
	p, fs := plan.Build(*clustertest.New("1.36.3", 2, 1), plan.Goal{To: v("1.37.2"), Bundles: all, PatchesDir: "/etc/kubernetes/patches"}, plan.Policy{})
	if p == nil {
		t.Fatal(fs)
	}
	for _, st := range p.Steps {
		writes := st.Kind == plan.KubeadmApply || st.Kind == plan.KubeadmNode || st.Kind == plan.KubeletConfig
		if (st.Params.PatchesDir != "") != writes {
			t.Errorf("step %s has patches %q", st.ID, st.Params.PatchesDir)
		}
	}
}

func TestCordonedNodesStayCordoned(t *testing.T) {
	p, _ := mustBuild(t, clustertest.New("1.36.3", 1, 2, clustertest.Node("w2", func(n *cluster.Node) { n.Unschedulable = true })), "1.37.2", plan.Policy{})
	for _, s := range p.Steps {
		if s.Node == "w2" && (s.Kind == plan.Cordon || s.Kind == plan.Uncordon) {
			t.Errorf("step %s on a node that was cordoned before", s.ID)
		}
	}
	if p.Step("kubelet@1.37.2/w2") == nil {
		t.Error("the cordoned node is not upgraded")
	}
}

func TestResumeByHand(t *testing.T) {
	// A control plane that somebody took half-way: the first node is there, the ConfigMap is not.
	s := clustertest.New("1.36.3", 3, 1)
	for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		clustertest.Component("cp1", c, "1.37.2")(s)
	}
	p, _ := mustBuild(t, s, "1.37.2", plan.Policy{})
	var control []string
	for _, st := range p.Steps {
		if st.Kind == plan.KubeadmApply || st.Kind == plan.KubeadmNode {
			control = append(control, string(st.Kind)+"/"+st.Node)
		}
	}
	if want := []string{"kubeadm-apply/cp2", "kubeadm-node/cp3"}; !slices.Equal(control, want) {
		t.Errorf("got %v, want %v", control, want)
	}
}

func TestFile(t *testing.T) {
	p, _ := mustBuild(t, clustertest.New("1.36.3", 3, 2), "1.37.2", plan.Policy{})
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	q, err := plan.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if b2, err := q.Encode(); err != nil || !bytes.Equal(b, b2) {
		t.Errorf("decode and encode changes the plan: %v", err)
	}
	if tampered := (*plan.TamperedError)(nil); !errors.As(decodeErr(bytes.Replace(b, []byte(`"node": "w2"`), []byte(`"node": "w1"`), 1)), &tampered) {
		t.Error("a changed plan was read")
	}
	if newer := (*plan.FormatError)(nil); !errors.As(decodeErr(bytes.Replace(b, []byte("plan/v2"), []byte("plan/v3"), 1)), &newer) {
		t.Error("a newer format was read")
	}
	if older := (*plan.FormatError)(nil); !errors.As(decodeErr(bytes.Replace(b, []byte("plan/v2"), []byte("plan/v1"), 1)), &older) {
		t.Error("an older format was read")
	}
	for name, bad := range map[string][]byte{
		"unknown field": bytes.Replace(b, []byte(`"schema"`), []byte(`"extra": 1, "schema"`), 1),
		"trailing data": append(bytes.Clone(b), '{'),
		"empty":         nil,
		"other schema":  []byte(`{"schema":"belay.dev/state/v1"}`),
		"cut":           b[:len(b)/2],
	} {
		if decodeErr(bad) == nil {
			t.Errorf("%s: read without an error", name)
		}
	}
}

func decodeErr(b []byte) error {
	_, err := plan.Decode(b)
	return err
}

func FuzzDecode(f *testing.F) {
	p, _ := plan.Build(*clustertest.New("1.36.3", 1, 1), plan.Goal{To: v("1.37.2"), Bundles: all}, plan.Policy{})
	b, err := p.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":"belay.dev/plan/v2"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := plan.Decode(data)
		if err != nil {
			return
		}
		// What is read can be written, and is then read again as the same.
		b, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		q, err := plan.Decode(b)
		if err != nil || q.Digest != p.Digest {
			t.Fatalf("%v: %s != %s", err, q.Digest, p.Digest)
		}
	})
}

// legalState draws a cluster that obeys the skew policy and that an upgrade may find: kubelets behind, a control plane half-way.
func legalState(t *rapid.T) *cluster.State {
	minors := []string{"1.32.9", "1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2"}
	at := rapid.IntRange(0, len(minors)-1).Draw(t, "minor")
	cps := rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(t, "controlPlanes")
	s := clustertest.New(minors[at], cps, rapid.IntRange(0, 4).Draw(t, "workers"))
	// Some control plane nodes may be one minor back: somebody began the last upgrade and did not end it.
	lagging := 0
	if at > 0 && cps > 1 && rapid.Bool().Draw(t, "halfway") {
		lagging = rapid.IntRange(1, cps-1).Draw(t, "lagging")
		for i := range lagging {
			name := fmt.Sprintf("cp%d", cps-i)
			for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
				clustertest.Component(name, c, minors[at-1])(s)
			}
		}
	}
	top := at
	if lagging > 0 {
		top = at - 1
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		k := rapid.IntRange(max(0, at-3), top).Draw(t, "kubelet")
		n.Kubelet = v(minors[k])
		n.KubeProxy = v(minors[top])
		if d := top - k; d > 3 {
			n.KubeProxy = n.Kubelet
		}
		if rapid.IntRange(0, 9).Draw(t, "cordon") == 0 && i > 0 {
			n.Unschedulable = true
		}
	}
	return s
}

func TestEveryPrefixIsLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := legalState(t)
		if err := plan.Legal(s); err != nil {
			t.Fatalf("the generator made an illegal state: %v", err)
		}
		oldest := s.Version
		to := rapid.SampledFrom([]string{"1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2"}).Filter(func(x string) bool { return !v(x).Less(oldest) }).Draw(t, "to")
		p, fs := plan.Build(*s, plan.Goal{To: v(to), Bundles: all}, plan.Policy{})
		if p == nil {
			t.Fatalf("no plan to %s: %+v", to, fs)
		}
		again, _ := plan.Build(*s, plan.Goal{To: v(to), Bundles: all}, plan.Policy{})
		a, _ := p.Encode()
		b, _ := again.Encode()
		if !bytes.Equal(a, b) {
			t.Fatal("the same input gave other bytes")
		}
		if _, err := plan.Decode(a); err != nil {
			t.Fatal(err)
		}
		drains := map[string]int{}
		before := map[string]kubeversion.V{}
		for _, n := range s.Nodes {
			before[n.Name] = n.Kubelet
		}
		for _, st := range p.Steps {
			switch st.Kind {
			case plan.Kubelet:
				for _, n := range s.ControlPlanes() {
					if api := n.StaticPod("kube-apiserver"); api.Version.Less(st.Params.Version) {
						t.Fatalf("%s begins while the apiserver of %s runs %s", st.ID, n.Name, api.Version)
					}
				}
			case plan.Drain:
				drains[st.Node]++
			case plan.KubeadmApply, plan.KubeadmNode, plan.EtcdPatch:
				if q := cluster.QuorumAfter(s.Etcd, cluster.EtcdOp{Action: cluster.EtcdRestart, Members: []string{st.Node}}); !q.OK() {
					t.Fatalf("%s: %v", st.ID, q.Err())
				}
				if st.Kind != plan.EtcdPatch {
					for _, pr := range cluster.CheckEtcdFloor(s.Etcd.Members, orMember(st.Params.EtcdVersion, s)) {
						if !pr.Advice && st.Params.EtcdVersion.Minor > pr.Member.Version.Minor {
							t.Fatalf("%s: %s", st.ID, pr.Message)
						}
					}
				}
			}
			plan.Advance(s, st)
			if err := plan.Legal(s); err != nil {
				t.Fatalf("after %s: %v", st.ID, err)
			}
		}
		for _, n := range s.Nodes {
			if n.Kubelet != v(to) {
				t.Fatalf("node %s ends with kubelet %s", n.Name, n.Kubelet)
			}
			for _, sp := range n.StaticPods {
				if sp.Component != "etcd" && sp.Version != v(to) {
					t.Fatalf("%s of %s ends at %s", sp.Component, n.Name, sp.Version)
				}
			}
			if n.Unschedulable != (p.Basis.Nodes[slices.IndexFunc(p.Basis.Nodes, func(b cluster.ProjectedNode) bool { return b.Name == n.Name })].Unschedulable) {
				t.Fatalf("node %s: cordon is not as before", n.Name)
			}
			if !n.ControlPlane {
				if want := fewestRounds(before[n.Name], p.From, v(to)); drains[n.Name] != want {
					t.Fatalf("worker %s (kubelet %s) is drained %d times on the way from %s to %s; %d would do", n.Name, before[n.Name], drains[n.Name], p.From, to, want)
				}
			}
		}
	})
}

func orMember(e kubeversion.V, s *cluster.State) kubeversion.V {
	if e.IsZero() {
		return s.Etcd.Members[0].Version
	}
	return e
}

// fewestRounds tries every set of hops at which a worker could be taken along and gives the size of the smallest legal one.
func fewestRounds(kubelet, from, to kubeversion.V) int {
	stops := []int{from.Minor}
	for m := from.Minor + 1; m <= to.Minor; m++ {
		stops = append(stops, m)
	}
	if kubelet == to {
		return 0
	}
	best := len(stops) + 1
	for set := range 1 << len(stops) {
		k, n, ok := kubelet.Minor, 0, true
		for i, api := range stops {
			if api-k > 3 {
				ok = false
			}
			if set&(1<<i) != 0 {
				k = api
				n++
			}
		}
		if ok && k == to.Minor {
			best = min(best, n)
		}
	}
	return best
}

func ExampleBuild() {
	s := clustertest.New("1.33.13", 1, 1)
	p, _ := plan.Build(*s, plan.Goal{To: v("1.37.2"), Bundles: all}, plan.Policy{})
	for _, h := range p.Hops {
		fmt.Println(h.From, "->", h.To, "workers:", h.Workers)
	}
	// Output:
	// v1.33.13 -> v1.34.4 workers: false
	// v1.34.4 -> v1.35.4 workers: false
	// v1.35.4 -> v1.36.3 workers: true
	// v1.36.3 -> v1.37.2 workers: true
}
