package preflight

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/belayops/belay/cluster"
	ct "github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
)

// Every finding that package plan can make has the id of a check, or is one of its own remarks, and is in docs/checks.md: else a
// waiver that is good for one of `belay check` and `belay plan` would mean nothing to the other.
func TestPlanFindingsAreDocumentedByTheIDsOfChecks(t *testing.T) {
	shared := constants(t, "../cluster/findings.go")
	var checks, remarks []string
	for _, c := range Checks() {
		checks = append(checks, c.ID)
	}
	for _, r := range plan.Remarks() {
		remarks = append(remarks, r.ID)
		if slices.Contains(checks, r.ID) {
			t.Errorf("%s is a remark of plans and a check", r.ID)
		}
	}
	for name, id := range shared {
		if !slices.Contains(checks, id) {
			t.Errorf("cluster.%s is %q, and there is no such check", name, id)
		}
	}
	doc, err := os.ReadFile("../docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	files, err := filepath.Glob("../plan/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		// An id that is a parameter (of a local function) is looked at where that is called.
		id := func(e ast.Expr) {
			at := fset.Position(e.Pos())
			switch e := e.(type) {
			case *ast.BasicLit:
				s, _ := strconv.Unquote(e.Value)
				used[s] = true
				if !slices.Contains(remarks, s) {
					t.Errorf("%s: %q is neither a constant of cluster/findings.go nor in plan.Remarks", at, s)
				}
			case *ast.SelectorExpr:
				if shared[e.Sel.Name] == "" {
					t.Errorf("%s: %s is not in cluster/findings.go", at, e.Sel.Name)
				}
				used[shared[e.Sel.Name]] = true
			case *ast.Ident:
				if e.Name == "WaiveBackup" {
					used[plan.WaiveBackup] = true
				} else if e.Name != "id" {
					t.Errorf("%s: id %s cannot be looked up", at, e.Name)
				}
			default:
				t.Errorf("%s: this id cannot be looked up", at)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if typ, ok := n.Type.(*ast.Ident); !ok || typ.Name != "Finding" {
					return true
				}
				for _, el := range n.Elts {
					if kv, ok := el.(*ast.KeyValueExpr); ok && kv.Key.(*ast.Ident).Name == "ID" {
						id(kv.Value)
					}
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && fn.Name == "block" {
					id(n.Args[0])
				}
			}
			return true
		})
	}
	if len(used) < 20 {
		t.Fatalf("only %d ids were found in package plan: the search is broken", len(used))
	}
	for _, r := range remarks {
		if !used[r] {
			t.Errorf("nothing in package plan finds %s", r)
		}
	}
	for id := range used {
		if !strings.Contains(string(doc), "| `"+id+"` |") {
			t.Errorf("docs/checks.md does not have %s", id)
		}
	}
}

// What stops a plan is what the checks stop at, on the same subject.
func TestPlanAndCheckNameTheSameSubjects(t *testing.T) {
	for name, c := range map[string]struct {
		change change
		to     string
		want   string
	}{
		"unready node": {state(ct.NotReady("w1", "gone")), "1.37.2", "nodes-ready@w1"},
		"all cordoned": {state(func(s *cluster.State) {
			for i := range s.Nodes {
				s.Nodes[i].Unschedulable = true
			}
		}), "1.37.2", "nodes-cordoned@nodes"},
		"bare pod":             {state(ct.BarePod("a", "b", "w1")), "1.37.2", "pods-without-controller@a/b"},
		"budget":               {state(ct.Deployment("shop", "web", 2, "w1"), ct.PDB("shop", "web", 0)), "1.37.2", "pdb-blocks-drain@shop/web"},
		"two budgets":          {state(ct.Deployment("shop", "web", 1, "w1"), ct.PDB("shop", "web", 1), ct.PDB("shop", "web", 1), func(s *cluster.State) { s.PDBs[1].Name = "all" }), "1.37.2", "pdb-blocks-drain@pod/shop/web-6d4-00000"},
		"kubelet":              {state(ct.Component("w1", "kubelet", "1.37.2")), "1.37.2", "version-skew@kubelet/w1"},
		"unknown version":      {pod("cp1", "kube-scheduler", func(p *cluster.StaticPod) { p.Version = kubeversion.V{} }), "1.37.2", "version-skew@kube-scheduler/cp1"},
		"list unread":          {unread("poddisruptionbudgets", cluster.UnreadForbidden), "1.37.2", "coverage@poddisruptionbudgets"},
		"machines unread":      {noHosts, "1.37.2", "coverage@hosts"},
		"machine unread":       {func(in *Input) { in.State.Node("w1").Host = nil; unread("node/w1/host", cluster.UnreadLost)(in) }, "1.37.2", "coverage@node/w1/host"},
		"target below":         {func(*Input) {}, "1.36.2", "version-target@1.36.2"},
		"no bundle":            {func(*Input) {}, "1.37.1", "bundles@1.37.1"},
		"no bundle on the way": {state(func(s *cluster.State) { *s = *ct.New("1.35.4", 1, 1) }), "1.37.2", "bundles@1.36"},
		"no static pod": {state(ct.Node("cp2", func(n *cluster.Node) {
			n.StaticPods = slices.DeleteFunc(n.StaticPods, func(p cluster.StaticPod) bool { return p.Component == "kube-scheduler" })
		})), "1.37.2", "control-plane-components@cp2/kube-scheduler"},
		"no control plane": {state(func(s *cluster.State) {
			for i := range s.Nodes {
				s.Nodes[i].ControlPlane = false
			}
		}), "1.37.2", "control-plane-components@control-plane"},
		"no ConfigMap":     {state(func(s *cluster.State) { s.Kubeadm = nil }), "1.37.2", "kubeadm-config@kubeadm-config"},
		"pinned etcd":      {state(func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.16-0" }), "1.37.2", "kubeadm-config@etcd-image-tag"},
		"private images":   {state(func(s *cluster.State) { s.Kubeadm.ImageRepository = "example.org" }), "1.37.2", "kubeadm-config@image-repository"},
		"etcd member down": {state(ct.Member("cp1", func(m *cluster.EtcdMember) { m.Healthy = false })), "1.37.2", "etcd-quorum@cp2"},
		"etcd floor":       {func(*Input) {}, "1.37.2", "etcd-floor@etcd-3.7"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{State: ct.New("1.36.3", 3, 2), Now: ct.Observed}
			to(c.to)(&in)
			bundles("1.37.2")(&in)
			c.change(&in)
			rep, err := Run(t.Context(), in, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(rep.Standing(), func(r Result) bool { return r.ID() == c.want }) {
				t.Errorf("check does not stop at %s: %+v", c.want, rep.Standing())
			}
			info := plan.BundleInfo{Version: kubeversion.MustParse("1.37.2"), Etcd: kubeversion.MustParse("3.7.0")}
			p, fs := plan.Build(*in.State, plan.Goal{To: in.Goal.Target, Bundles: []plan.BundleInfo{info}}, plan.Policy{})
			if p != nil || !slices.ContainsFunc(fs, func(f plan.Finding) bool { return f.Blocks() && f.Waiver() == c.want }) {
				t.Errorf("plan does not stop at %s: %+v", c.want, fs)
			}
		})
	}
}

// A plan is also how a control plane that was left half-way goes on: no check may keep the plan from mending what it mends.
func TestAControlPlaneLeftHalfWayMayGoOn(t *testing.T) {
	up := func(node string) change {
		return state(ct.Component(node, "kube-apiserver", "1.37.2"), ct.Component(node, "kube-controller-manager", "1.37.2"), ct.Component(node, "kube-scheduler", "1.37.2"),
			ct.Member(node, func(m *cluster.EtcdMember) { m.Version = kubeversion.MustParse("3.7.0") }), ct.Component(node, "etcd", "3.7.0"))
	}
	config := state(func(s *cluster.State) { s.Kubeadm.KubernetesVersion = kubeversion.MustParse("1.37.2") })
	for name, changes := range map[string][]change{
		"first node, ConfigMap old": {up("cp1")},
		"first node":                {up("cp1"), config},
		"two nodes":                 {up("cp1"), up("cp2"), config},
		"all, kubelets old":         {up("cp1"), up("cp2"), up("cp3"), config},
		"one kubelet new":           {up("cp1"), up("cp2"), up("cp3"), config, state(ct.Component("w1", "kubelet", "1.37.2"), ct.Node("w2", func(n *cluster.Node) { n.Unschedulable = true }))},
	} {
		in := Input{State: ct.New("1.36.3", 3, 2, ct.Etcd("3.6.14")), Now: ct.Observed}
		to("1.37.2")(&in)
		bundles("1.37.2")(&in)
		for _, c := range changes {
			c(&in)
		}
		rep, err := Run(t.Context(), in, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if standing := rep.Standing(); len(standing) > 0 {
			t.Errorf("%s: %+v", name, standing)
		}
		info := plan.BundleInfo{Version: kubeversion.MustParse("1.37.2"), Etcd: kubeversion.MustParse("3.7.0")}
		if p, fs := plan.Build(*in.State, plan.Goal{To: in.Goal.Target, Bundles: []plan.BundleInfo{info}}, plan.Policy{}); p == nil {
			t.Errorf("%s: no plan: %+v", name, fs)
		}
	}
}

// constants gives the string constants of a file by name.
func constants(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, n := range v.Names {
				out[n.Name], _ = strconv.Unquote(v.Values[i].(*ast.BasicLit).Value)
			}
		}
	}
	return out
}
