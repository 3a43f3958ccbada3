package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/belayops/belay/cluster"
)

// simulateDrains plays every drain of the plan in order over the state's pods: can each be placed elsewhere by requests,
// taints and node selectors, and do the disruption budgets allow its eviction.
func (b *builder) simulateDrains() {
	sim := newSimulation(b.start)
	seen := map[string]bool{}
	for i := range b.out {
		st := &b.out[i]
		if st.Kind != Drain {
			continue
		}
		// A later round meets the same budgets again; it is told once.
		if !seen[st.Node] {
			seen[st.Node] = true
			for _, f := range sim.drain(st.Node, st.Params.DeleteEmptyDir) {
				b.find(f)
			}
		}
		for _, p := range sim.bare[st.Node] {
			if b.waived[cluster.IDBarePods+"@"+p] {
				st.Params.BarePods = append(st.Params.BarePods, p)
			}
		}
		slices.Sort(st.Params.BarePods)
	}
}

type simulation struct {
	s    *cluster.State
	pods []cluster.Pod // Node is where the simulation has put it; "" is nowhere
	bare map[string][]string
	pdbs map[string][]int // pod -> indexes of budgets
}

func newSimulation(s *cluster.State) *simulation {
	sim := &simulation{s: s, bare: map[string][]string{}, pdbs: map[string][]int{}}
	for _, p := range s.Pods {
		if p.Phase != "Succeeded" && p.Phase != "Failed" && !p.Terminating {
			sim.pods = append(sim.pods, p)
		}
	}
	// Large pods first, as a first fit does best that way; names break ties so that the outcome is the same each time.
	slices.SortFunc(sim.pods, func(x, y cluster.Pod) int {
		return cmp.Or(-cmp.Compare(x.Requests.MemoryBytes, y.Requests.MemoryBytes), -cmp.Compare(x.Requests.MilliCPU, y.Requests.MilliCPU),
			cmp.Compare(podName(x), podName(y)))
	})
	for i, b := range s.PDBs {
		for _, p := range b.Pods {
			sim.pdbs[p] = append(sim.pdbs[p], i)
		}
	}
	return sim
}

func podName(p cluster.Pod) string { return p.Namespace + "/" + p.Name }

// evicted says whether a drain evicts the pod: mirror pods and those of DaemonSets stay.
func evicted(p cluster.Pod) bool { return !p.Mirror && !strings.HasPrefix(p.Owner, "DaemonSet/") }

func (sim *simulation) drain(node string, emptyDirs bool) []Finding {
	var out []Finding
	free := sim.free(node)
	homeless := map[int][]string{} // budget -> pods of it that fit nowhere
	touched := map[int][]string{}
	var nowhere, undecided, data []string
	for i := range sim.pods {
		p := &sim.pods[i]
		if p.Node != node || !evicted(*p) {
			continue
		}
		name := podName(*p)
		if p.Owner == "" {
			sim.bare[node] = append(sim.bare[node], name)
			out = append(out, Finding{ID: cluster.IDBarePods, Subject: name, Severity: Block, Waivable: true,
				Message: fmt.Sprintf("pod %s on node %s has no controller: once drained, nothing makes it again", name, node),
				Remedy:  "give it a controller or delete it; accepting this lets the drain delete it, and no other such pod"})
		}
		if n := len(sim.pdbs[name]); n > 1 && !p.PastBudgets() {
			out = append(out, Finding{ID: cluster.IDBudgets, Subject: "pod/" + name, Severity: Block,
				Message: fmt.Sprintf("pod %s on node %s is selected by %d PodDisruptionBudgets: the API refuses to evict such a pod", name, node, n),
				Remedy:  "let one budget select it"})
		}
		if p.EmptyDir {
			data = append(data, name)
		}
		if p.LocalVolume {
			out = append(out, Finding{ID: cluster.IDLocalData, Subject: name, Severity: Warn,
				Message: fmt.Sprintf("pod %s has a volume that is tied to node %s: drained, it waits until the node is back", name, node)})
		}
		to := ""
		if !p.LocalVolume && p.Owner != "" {
			to = sim.place(*p, free)
		}
		switch {
		case p.Owner == "":
			p.Node = "" // gone for good
		case to == "":
			nowhere = append(nowhere, name)
		case p.Constrained:
			undecided = append(undecided, name)
		}
		for _, b := range sim.pdbs[name] {
			if !sim.s.PDBs[b].Holds(*p) {
				continue
			}
			touched[b] = append(touched[b], name)
			if to == "" {
				homeless[b] = append(homeless[b], name)
			}
		}
		if to != "" {
			p.Node = to
			use(free, to, p.Requests)
		}
	}
	for b := range sim.s.PDBs {
		if f, ok := sim.budget(b, node, touched[b], homeless[b]); ok {
			out = append(out, f)
		}
	}
	// Pods that fit nowhere wait for the node itself, and run there again.
	if len(nowhere) > 0 {
		out = append(out, Finding{ID: "drain-leaves-pending", Subject: node, Severity: Warn,
			Message: fmt.Sprintf("while node %s is drained, no other node has room or a fit for %s: they wait until it is back", node, list(nowhere)),
			Remedy:  "add a node or room, or let them tolerate another node's taints"})
	}
	if len(undecided) > 0 {
		out = append(out, Finding{ID: "drain-undecided", Subject: node, Severity: Info,
			Message: fmt.Sprintf("affinity, topology or volumes limit where %s of node %s may go: the simulation does not decide it", list(undecided), node)})
	}
	if len(data) > 0 {
		f := Finding{ID: "drain-empties-emptydir", Subject: node, Severity: Info,
			Message: fmt.Sprintf("emptyDir volumes of %s on node %s are emptied, as with every eviction", list(data), node)}
		if !emptyDirs {
			f.Severity, f.Waivable = Block, false
			f.Remedy = "plan without --keep-emptydir, or move the data first"
		}
		out = append(out, f)
	}
	return out
}

// budget says whether a budget would hang the drain of node.
func (sim *simulation) budget(i int, node string, touched, homeless []string) (Finding, bool) {
	if len(touched) == 0 {
		return Finding{}, false
	}
	b := sim.s.PDBs[i]
	f := Finding{ID: cluster.IDBudgets, Subject: b.Namespace + "/" + b.Name, Severity: Block, Waivable: true}
	switch {
	case b.DisruptionsAllowed <= 0:
		f.Message = fmt.Sprintf("PodDisruptionBudget %s/%s allows no disruption now (%d of %d pods healthy, %d wanted): the drain of node %s would hang on %s",
			b.Namespace, b.Name, b.CurrentHealthy, b.ExpectedPods, b.DesiredHealthy, node, list(touched))
		f.Remedy = "raise the replicas or relax the budget; accepting this lets the drain try, and stop at its time limit"
	case len(homeless) > int(b.DisruptionsAllowed):
		f.Message = fmt.Sprintf("PodDisruptionBudget %s/%s allows %d disruptions, and %d of its pods on node %s fit on no other node (%s): the drain would hang",
			b.Namespace, b.Name, b.DisruptionsAllowed, len(homeless), node, list(homeless))
		f.Remedy = "make room elsewhere or relax the budget; accepting this lets the drain try, and stop at its time limit"
	default:
		return Finding{}, false
	}
	return f, true
}

// free gives the room of every node that could take pods while node is drained.
func (sim *simulation) free(node string) map[string]cluster.Resources {
	free := map[string]cluster.Resources{}
	for _, n := range sim.s.Nodes {
		if n.Name != node && n.Ready && !n.Unschedulable {
			free[n.Name] = n.Allocatable
		}
	}
	for _, p := range sim.pods {
		use(free, p.Node, p.Requests)
	}
	return free
}

func use(free map[string]cluster.Resources, node string, r cluster.Resources) {
	f, ok := free[node]
	if !ok {
		return
	}
	f.MilliCPU -= r.MilliCPU
	f.MemoryBytes -= r.MemoryBytes
	f.Pods--
	free[node] = f
}

// place gives the first node that the pod fits on, in the order of names with the most memory free first; "" for none.
func (sim *simulation) place(p cluster.Pod, free map[string]cluster.Resources) string {
	var best string
	for _, n := range sim.s.Nodes {
		f, ok := free[n.Name]
		if !ok || f.MilliCPU < p.Requests.MilliCPU || f.MemoryBytes < p.Requests.MemoryBytes || f.Pods < 1 {
			continue
		}
		if !tolerates(p.Tolerations, n.Taints) || !selects(p.NodeSelector, n.Labels) {
			continue
		}
		if best == "" || free[best].MemoryBytes < f.MemoryBytes {
			best = n.Name
		}
	}
	return best
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func tolerates(ts []cluster.Toleration, taints []cluster.Taint) bool {
	for _, taint := range taints {
		if taint.Effect != "NoSchedule" && taint.Effect != "NoExecute" {
			continue
		}
		if !slices.ContainsFunc(ts, func(t cluster.Toleration) bool {
			switch {
			case t.Effect != "" && t.Effect != taint.Effect:
				return false
			case t.Key == "":
				return t.Operator == "Exists"
			case t.Key != taint.Key:
				return false
			}
			return t.Operator == "Exists" || t.Value == taint.Value
		}) {
			return false
		}
	}
	return true
}

// list names a few and counts the rest.
func list(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
