package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belayops/belay/cluster"
)

// drained says whether a drain evicts the pod.
func drained(p *cluster.Pod) bool {
	return p.Node != "" && !p.Mirror && !p.Terminating && p.Phase != "Succeeded" && p.Phase != "Failed" && !strings.HasPrefix(p.Owner, "DaemonSet/")
}

func budgets(_ context.Context, in *Input) []Result {
	if g := in.gap("budgets", cluster.ReadPods, cluster.ReadBudgets); g != nil {
		return []Result{*g}
	}
	s := in.State
	pods := make(map[string]*cluster.Pod, len(s.Pods))
	for i := range s.Pods {
		pods[s.Pods[i].Namespace+"/"+s.Pods[i].Name] = &s.Pods[i]
	}
	var out []Result
	of := make(map[string][]string) // pod to budgets
	for _, b := range s.PDBs {
		id := b.Namespace + "/" + b.Name
		held := 0
		var nodes, owners []string
		for _, name := range b.Pods {
			p := pods[name]
			if p == nil || !drained(p) {
				continue
			}
			if !p.PastBudgets() {
				of[name] = append(of[name], id)
			}
			// The others may go, whatever the budget allows.
			if !b.Holds(*p) {
				continue
			}
			held++
			nodes = add(nodes, p.Node)
			owners = add(owners, cmp.Or(p.Workload, "no controller"))
		}
		switch {
		case held == 0:
			continue
		case b.Stale:
			out = append(out, finding(Warn, id, "wait a moment and check again", "the status of PodDisruptionBudget %s is behind its specification", id))
			continue
		case b.DisruptionsAllowed > 0:
			continue
		}
		slices.Sort(nodes)
		slices.Sort(owners)
		rule := "minAvailable " + b.MinAvailable
		if b.MaxUnavailable != "" {
			rule = "maxUnavailable " + b.MaxUnavailable
		}
		remedy := "raise the replicas of " + some(owners) + ", or relax the budget"
		if b.CurrentHealthy < b.DesiredHealthy {
			remedy = "get the pods of " + some(owners) + " ready: " + plural(int(b.CurrentHealthy), "healthy pod") + " of " + plural(int(b.DesiredHealthy), "wanted one")
			if b.UnhealthyEviction != "AlwaysAllow" {
				remedy += "; unhealthyPodEvictionPolicy: AlwaysAllow lets broken pods go"
			}
		}
		if by := madeBy(b); by != "" {
			remedy = by
		}
		out = append(out, finding(Fail, id, remedy, "PodDisruptionBudget %s (%s) allows no disruption: draining %s would hang on %s of %s",
			id, rule, nodeList(nodes), plural(held, "pod"), some(owners)))
	}
	for _, name := range sortedKeysOf(of) {
		if ids := of[name]; len(ids) > 1 {
			// The eviction API answers 500, which no drain retries.
			out = append(out, finding(Fail, "pod/"+name, "let one budget select it", "pod %s has %s (%s): the API refuses to evict it", name, plural(len(ids), "PodDisruptionBudget"), some(ids)))
		}
	}
	return passIfClean(out, "budgets", "%s allow a disruption", plural(len(s.PDBs), "PodDisruptionBudget"))
}

// madeBy gives the remedy for a budget that an operator made and would write anew; "" for one that somebody else made.
func madeBy(b cluster.PDB) string {
	kind, name, ok := strings.Cut(b.Owner, "/")
	rook := b.Group == "ceph.rook.io" || strings.HasPrefix(b.Name, "rook-ceph-osd")
	switch {
	case rook && strings.HasPrefix(b.Name, "rook-ceph-osd-"):
		// Rook's budgets by failure domain: there while an OSD is down or data is not clean, and gone by themselves (rook/rook#14730).
		return "Rook holds this failure domain while an OSD elsewhere is down or data is not clean, and takes the budget away by itself: wait for HEALTH_OK (kubectl -n " + b.Namespace + " get cephcluster), between nodes as well"
	case rook:
		return "bring Ceph to HEALTH_OK (kubectl -n " + b.Namespace + " get cephcluster): Rook makes this budget and writes it anew"
	case b.Group == "postgresql.cnpg.io":
		return fmt.Sprintf("CloudNativePG moves the primary of Cluster %s by itself off a cordoned node if there is another instance: then accept this; with one instance, add one (spec.instances) or set spec.enablePDB: false there", name)
	case b.Group == "longhorn.io" || b.Namespace == "longhorn-system":
		return "Longhorn holds the node while the last healthy replica of a volume is there: see kubectl -n " + b.Namespace + " get volumes.longhorn.io, and add or rebuild replicas"
	case ok:
		group := ""
		if b.Group != "" {
			group = "." + b.Group
		}
		return fmt.Sprintf("%s %s made this budget and writes it anew: change it there (kubectl -n %s edit %s%s %s); if its operator moves its pods off a cordoned node by itself, accept this", kind, name, b.Namespace, strings.ToLower(kind), group, name)
	}
	return ""
}

func nodeList(nodes []string) string {
	if len(nodes) == 1 {
		return "node " + nodes[0]
	}
	return "nodes " + some(nodes)
}

func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func sortedKeysOf(m map[string][]string) []string { return keys(m) }

func barePods(_ context.Context, in *Input) []Result {
	if g := in.gap("pods", cluster.ReadPods); g != nil {
		return []Result{*g}
	}
	var out []Result
	n := 0
	for i := range in.State.Pods {
		p := &in.State.Pods[i]
		if !drained(p) {
			continue
		}
		n++
		if p.Owner == "" {
			id := p.Namespace + "/" + p.Name
			out = append(out, finding(Fail, id, "give it a controller (a Deployment, for instance), or delete it; accepted, the drain deletes it",
				"pod %s on node %s has no controller: a drain deletes it and nothing makes it anew", id, p.Node))
		}
	}
	return passIfClean(out, "pods", "%s that a drain would evict have one", plural(n, "pod"))
}

func gitRepo(_ context.Context, in *Input) []Result {
	if g := in.gap("pods", cluster.ReadPods); g != nil {
		return []Result{*g}
	}
	to := in.kubeletTarget().MinorVersion()
	if to.Compare(k(33)) < 0 {
		return []Result{skipped("pods", "gitRepo volumes work up to 1.32")}
	}
	var out []Result
	for _, p := range in.State.Pods {
		if p.GitRepo {
			id := p.Namespace + "/" + p.Name
			out = append(out, finding(Fail, id, "clone in an init container into an emptyDir", "pod %s (%s) has a gitRepo volume, which kubelets of %s refuse", id, cmp.Or(p.Workload, "no controller"), to))
		}
	}
	return passIfClean(out, "pods", "none")
}

func localData(_ context.Context, in *Input) []Result {
	if g := in.gap("pods", cluster.ReadPods, cluster.ReadVolumes, cluster.ReadClaims); g != nil {
		return []Result{*g}
	}
	var out []Result
	scratch := 0
	for i := range in.State.Pods {
		p := &in.State.Pods[i]
		if !drained(p) {
			continue
		}
		if p.EmptyDir {
			scratch++
		}
		if p.LocalVolume {
			id := p.Namespace + "/" + p.Name
			out = append(out, finding(Warn, id, "nothing, if it may be away for the time of the upgrade of its node", "pod %s has a volume on node %s: drained, it waits until the node is back", id, p.Node))
		}
	}
	return passIfClean(out, "pods", "none; %s have an emptyDir, whose content a drain discards", plural(scratch, "pod"))
}

func workloadsReady(_ context.Context, in *Input) []Result {
	if g := in.gap("workloads", cluster.ReadDeployments, cluster.ReadStatefulSets, cluster.ReadDaemonSets); g != nil {
		return []Result{*g}
	}
	var out []Result
	for _, w := range in.State.Workloads {
		if w.Kind != "Job" && w.Ready < w.Desired {
			out = append(out, finding(Warn, w.ID(), "see: kubectl -n "+w.Namespace+" get pods; it is part of the baseline, and does not stop the upgrade", "%s has %d of %d pods ready", w.ID(), w.Ready, w.Desired))
		}
	}
	return passIfClean(out, "workloads", "all %d", len(in.State.Workloads))
}

func webhooks(_ context.Context, in *Input) []Result {
	if g := in.gap("webhooks", cluster.ReadValidating, cluster.ReadMutating, cluster.ReadDefinitions); g != nil {
		return []Result{*g}
	}
	var out []Result
	for _, w := range in.State.Webhooks {
		if w.FailurePolicy != "Fail" || w.Service == "" {
			continue
		}
		subject := w.Configuration + "/" + w.Name
		if w.Kind == "CustomResourceDefinition" {
			subject = w.Configuration
		}
		if g := in.gap(subject, "endpointslices/"+w.Service); g != nil {
			out = append(out, *g)
			continue
		}
		conversion := w.Kind == "CustomResourceDefinition"
		vital := conversion || w.MatchesPods || w.MatchesNodes || w.MatchesLeases
		var about []string
		for what, m := range map[string]bool{"pods": w.MatchesPods, "nodes": w.MatchesNodes, "leases": w.MatchesLeases} {
			if m {
				about = append(about, what)
			}
		}
		slices.Sort(about)
		what := "every request for " + strings.Join(about, ", ")
		switch {
		case conversion:
			what = "every request for these objects, and with it garbage collection and the deletion of namespaces,"
		case len(about) == 0:
			what = "every request that it matches"
		}
		var narrow []string
		if w.NamespaceSelector != "" {
			narrow = append(narrow, "in namespaces with "+w.NamespaceSelector)
		}
		if w.ObjectSelector != "" {
			narrow = append(narrow, "with "+w.ObjectSelector)
		}
		if w.MatchConditions > 0 {
			narrow = append(narrow, "that meets "+plural(w.MatchConditions, "match condition"))
		}
		if len(narrow) > 0 {
			what += " (" + strings.Join(narrow, ", ") + ")"
		}
		remedy := "bring the pods behind Service " + w.Service + " back, or delete " + w.Kind + " " + w.Configuration
		switch {
		case w.ReadyEndpoints < 0:
			out = append(out, finding(Unknown, subject, "kubectl get endpointslices -A", "whether anything answers behind Service %s is not known", w.Service))
		case w.ReadyEndpoints == 0 && vital:
			out = append(out, finding(Fail, subject, remedy, "webhook %s (%s) fails closed and nothing is ready behind Service %s: %s fails", w.Name, w.Kind, w.Service, what))
		case w.ReadyEndpoints == 0:
			out = append(out, finding(Warn, subject, remedy, "webhook %s (%s) fails closed and nothing is ready behind Service %s: %s fails", w.Name, w.Kind, w.Service, what))
		case w.ReadyEndpoints == 1 && w.MatchesPods && !conversion:
			hint := ""
			if !w.ExemptsKubeSystem {
				hint = ", kube-system included"
			}
			out = append(out, finding(Warn, subject, "run two or more replicas on different nodes, with a PodDisruptionBudget", "webhook %s (%s) fails closed and has one ready endpoint: while its node is drained no pod can be created%s", w.Name, w.Kind, hint))
		case vital && len(w.EndpointNodes) == 1:
			out = append(out, finding(Warn, subject, "spread its replicas over nodes (topologySpreadConstraints), with a PodDisruptionBudget", "webhook %s (%s) fails closed and all of its %d ready endpoints are on node %s: while that is drained, %s fails", w.Name, w.Kind, w.ReadyEndpoints, w.EndpointNodes[0], what))
		}
	}
	return passIfClean(out, "webhooks", "%s looked at", plural(len(in.State.Webhooks), "webhook"))
}

func apiUse(_ context.Context, in *Input) []Result {
	if in.APIUse == nil {
		return []Result{skipped("api", "no scan for removed APIs was made")}
	}
	var out []Result
	for _, f := range in.APIUse.Findings {
		status := Warn
		if f.Removed {
			status = Fail
		}
		out = append(out, finding(status, f.Subject, f.Remedy, "%s", f.Message))
	}
	for _, u := range in.APIUse.Unread {
		out = append(out, finding(Unknown, u.What, "see the reason, then scan again", "could not be scanned (%s): %s", u.Kind, u.Why))
	}
	return passIfClean(out, "api", "nothing was found")
}

func backupVerified(_ context.Context, in *Input) []Result {
	b := in.Backup
	if b == nil {
		return []Result{skipped("backup", "no backup was named; belay apply asks for one (belay backup create)")}
	}
	const remedy = "belay backup create, then belay backup verify"
	switch {
	case b.Problem != "":
		return []Result{finding(Fail, "backup", remedy, "backup %s does not hold: %s", b.Path, b.Problem)}
	case in.State.Lineage == "":
		return []Result{finding(Unknown, "backup", "see api-reachable", "the cluster's identity is not known, so that backup %s cannot be matched with it", b.Path)}
	case b.Lineage != in.State.Lineage:
		return []Result{finding(Fail, "backup", remedy, "backup %s is of another cluster (%s, not %s)", b.Path, b.Lineage, in.State.Lineage)}
	case !b.Enough:
		return []Result{finding(Fail, "backup", "belay backup verify "+b.Path+" --level "+cmp.Or(b.Want, "restored"), "backup %s is %s, and no more was proved of it", b.Path, b.Level)}
	}
	age := in.Now.Sub(b.Taken)
	if age > 24*time.Hour {
		return []Result{finding(Warn, "backup", remedy, "backup %s is %s old", b.Path, days(age))}
	}
	return []Result{pass("backup", "%s, %s, taken at %s", b.Path, b.Level, b.Taken.UTC().Format("2006-01-02 15:04 MST"))}
}
