package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

const (
	defaultDrainTimeout = 10 * time.Minute
	defaultBackupAge    = 24 * time.Hour
	defaultBackupLevel  = "restored"
)

// CordonAnnotation marks a node that a belay run cordoned; its value is the run's id.
const CordonAnnotation = "belay.dev/cordoned-by"

// Build makes the plan that takes a cluster from state to goal. The plan is nil when a finding blocks it, and
// the findings then say everything that does.
func Build(state cluster.State, goal Goal, policy Policy) (*Plan, []Finding) {
	b := &builder{start: clone(&state), s: clone(&state), goal: goal, policy: policy, waived: map[string]bool{}}
	slices.SortFunc(b.s.Nodes, func(x, y cluster.Node) int { return cmp.Compare(x.Name, y.Name) })
	for _, w := range policy.Accept {
		b.waived[w] = false
	}
	ok := b.checkState()
	var hops []Hop
	if ok {
		hops, ok = b.hops()
	}
	// A plan that changes nothing has nothing to be kept from.
	if !ok || len(hops) > 0 {
		for _, f := range policy.Preflight {
			b.find(f)
		}
	}
	if ok {
		b.steps(hops)
		b.simulateDrains()
	}
	for w, used := range b.waived {
		if !used && ok {
			b.find(Finding{ID: "unused-waiver", Subject: w, Severity: Info, Message: "nothing was found under this name: the waiver has no effect"})
		}
	}
	slices.SortStableFunc(b.findings, func(x, y Finding) int {
		rank := map[Severity]int{Block: 0, Warn: 1, Info: 2}
		return cmp.Or(cmp.Compare(rank[x.Severity], rank[y.Severity]), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Subject, y.Subject))
	})
	if !ok || Blocked(b.findings) {
		return nil, b.findings
	}
	basis := cluster.Project(&state)
	p := &Plan{
		Schema: Schema, Tool: goal.Tool, Lineage: state.Lineage, Cluster: state.Name, From: b.from, To: goal.To,
		Basis: basis, BasisDigest: basis.Digest(), Hops: hops, Bundles: b.bundles, Steps: b.out, Findings: b.findings,
	}
	for w, used := range b.waived {
		if used {
			p.Waivers = append(p.Waivers, w)
		}
	}
	slices.Sort(p.Waivers)
	for i := range p.Steps {
		if p.Steps[i].Kind == PreflightGate {
			p.Steps[i].Params.Accept = p.Waivers
		}
	}
	d, err := p.sum()
	if err != nil {
		return nil, append(b.findings, Finding{ID: "internal", Subject: "plan", Severity: Block, Message: err.Error()})
	}
	p.Digest = d
	return p, b.findings
}

type builder struct {
	// start is the state as observed; s is advanced with every step.
	start, s *cluster.State
	goal     Goal
	policy   Policy
	// waived holds the accepted waivers and whether each met a finding.
	waived   map[string]bool
	findings []Finding
	from     kubeversion.V
	bundles  []BundleRef
	out      []Step
	// broken is what broke the skew policy before the plan began and still does, by component and node; each was accepted.
	broken map[string][]string
	// pinned says that ConfigMap kubeadm-config keeps etcd where it is.
	pinned bool
}

// find records a finding once, and says whether the plan may go on past it.
func (b *builder) find(f Finding) bool {
	if _, accepted := b.waived[f.Waiver()]; accepted && f.Waivable && f.Severity == Block {
		b.waived[f.Waiver()] = true
		f.Waived = true
	}
	for i, have := range b.findings {
		if have.ID != f.ID || have.Subject != f.Subject {
			continue
		}
		// The worse of two says more, and so does one that nobody can go past.
		if f.Severity == Block && (have.Severity != Block || have.Waivable && !f.Waivable) {
			b.findings[i] = f
		}
		return !f.Blocks()
	}
	b.findings = append(b.findings, f)
	return !f.Blocks()
}

// defaultRepository is where kubeadm and the bundles have their images from.
const defaultRepository = "registry.k8s.io"

// checkState looks at what must hold for any plan.
func (b *builder) checkState() bool {
	s, ok := b.s, true
	block := func(id, subject, remedy, format string, args ...any) {
		ok = b.find(Finding{ID: id, Subject: subject, Severity: Block, Message: fmt.Sprintf(format, args...), Remedy: remedy}) && ok
	}
	if s.Kubeadm == nil {
		block(cluster.IDKubeadm, "kubeadm-config", "upgrade this cluster with the tool that made it; belay check works on it all the same",
			"ConfigMap kube-system/kubeadm-config was not read: belay upgrades clusters that kubeadm made")
	}
	cps := s.ControlPlanes()
	if len(cps) == 0 {
		block(cluster.IDControlPlane, "control-plane", "label the control plane nodes node-role.kubernetes.io/control-plane",
			"no node is a control plane node: a managed control plane is upgraded by its provider")
	}
	for _, n := range cps {
		for _, c := range []string{apiServer, controllerManager, scheduler} {
			switch sp := n.StaticPod(c); {
			case sp == nil:
				block(cluster.IDControlPlane, n.Name+"/"+c, "bring it back (its manifest may lie in /etc/kubernetes/tmp), then plan again",
					"control plane node %s has no %s", n.Name, c)
			case sp.Version.IsZero():
				block(cluster.IDSkew, c+"/"+n.Name, "use images whose tag is the version", "the image %s of %s on node %s does not tell its version", sp.Image, c, n.Name)
			}
		}
	}
	for _, n := range s.Nodes {
		if !n.Ready {
			block(cluster.IDNodesReady, n.Name, "repair the node, or remove it from the cluster (kubectl delete node "+n.Name+")",
				"node %s is not Ready%s", n.Name, parens(n.ReadyReason))
		}
		if n.Kubelet.IsZero() {
			block(cluster.IDSkew, "kubelet/"+n.Name, "see its kubelet's log", "node %s does not report its kubelet's version", n.Name)
		}
		switch by := n.Annotations[CordonAnnotation]; {
		case n.Unschedulable && by != "":
			b.find(Finding{ID: cluster.IDCordoned, Subject: n.Name, Severity: Warn,
				Message: fmt.Sprintf("node %s was cordoned by belay run %s, which did not end: it stays cordoned", n.Name, by),
				Remedy:  "belay resume, or belay abort, which uncordons it"})
		case n.Unschedulable:
			b.find(Finding{ID: cluster.IDCordoned, Subject: n.Name, Severity: Info,
				Message: fmt.Sprintf("node %s is cordoned already: it is upgraded and stays cordoned", n.Name)})
		}
	}
	ok = b.checkReads() && ok
	ok = b.checkImages() && ok
	if !ok {
		return false
	}
	b.from = oldestAPIServer(s)
	if parts, newest := cluster.Newer(s, b.goal.To); len(parts) > 0 {
		block(cluster.IDTarget, b.goal.To.Bare(), "choose "+newest.Bare()+" or newer; the way back is a restored backup",
			"the target %s is older than what is there: %s; Kubernetes does not support going back", b.goal.To, list(parts))
		return false
	}
	// Only what the cluster breaks before the plan begins can be accepted, each part by its own name. No step may break more.
	b.broken = violations(s)
	for _, subject := range slices.Sorted(maps.Keys(b.broken)) {
		ok = b.find(Finding{ID: cluster.IDSkew, Subject: subject, Severity: Block, Waivable: true,
			Message: "the cluster breaks the version skew policy already: " + strings.Join(b.broken[subject], "; "),
			Remedy:  "bring it back within the policy first; if the upgrade itself does that, accept the finding"}) && ok
	}
	if !ok {
		return false
	}
	if !slices.ContainsFunc(s.Nodes, func(n cluster.Node) bool { return !n.Unschedulable }) {
		block(cluster.IDCordoned, "nodes", "kubectl uncordon one node",
			"every node is cordoned: kubeadm's health check starts a pod and would fail")
		return false
	}
	b.remarks(len(cps))
	return true
}

// checkReads finds what a plan relies on and nobody could read.
func (b *builder) checkReads() bool {
	ok := true
	gap := func(subject, remedy, format string, args ...any) {
		ok = b.find(Finding{ID: cluster.IDCoverage, Subject: subject, Severity: Block, Waivable: true,
			Message: fmt.Sprintf(format, args...), Remedy: remedy}) && ok
	}
	unread := map[string]bool{}
	for _, u := range b.s.Unread {
		unread[u.What] = true
		if slices.Contains(cluster.DrainReads(), u.List()) {
			gap(u.What, "use a kubeconfig that may list it", "%s could not be read (%s: %s): what a drain would do is unknown", u.What, u.Kind, u.Why)
		}
	}
	const remedy = "name it in the inventory and pass --inventory FILE; belay state shows what could not be read"
	for _, n := range b.s.Nodes {
		switch {
		case n.Host != nil:
		case unread[cluster.ReadHosts]:
			gap(cluster.ReadHosts, remedy, "the machines of the nodes were not read: belay works on them over SSH")
		default:
			gap(cluster.HostRead(n.Name), remedy, "the machine of node %s was not read: belay works on it over SSH", n.Name)
		}
	}
	return ok
}

// checkImages looks at what ConfigMap kubeadm-config says of images: kubeadm goes by it, and not by what a plan would like.
func (b *builder) checkImages() bool {
	k := b.s.Kubeadm
	if k == nil {
		return true
	}
	ok := true
	for _, repo := range []string{k.ImageRepository, k.EtcdImageRepository} {
		if repo != "" && repo != defaultRepository {
			ok = b.find(Finding{ID: cluster.IDKubeadm, Subject: "image-repository", Severity: Block, Waivable: true,
				Message: fmt.Sprintf("ConfigMap kubeadm-config names the image repository %s, and the bundles' images, which are staged on the nodes, are of %s: kubeadm would pull from %s", repo, defaultRepository, repo),
				Remedy:  "set it to " + defaultRepository + " (kubectl -n kube-system edit configmap kubeadm-config); or accept this if that repository has the target's images and every node may pull them"}) && ok
			break
		}
	}
	if k.EtcdImageTag == "" || b.s.Etcd.External {
		return ok
	}
	// With a pin kubeadm leaves etcd where it is, or takes it to the pin, whose image no bundle has.
	pin := cluster.ImageVersion("etcd:" + k.EtcdImageTag)
	const remedy = "take etcd.local.imageTag out: kubectl -n kube-system edit configmap kubeadm-config"
	for _, m := range b.s.Etcd.Members {
		if pin.IsZero() || m.Version.Compare(pin) != 0 {
			return b.find(Finding{ID: cluster.IDKubeadm, Subject: "etcd-image-tag", Severity: Block, Remedy: remedy,
				Message: fmt.Sprintf("ConfigMap kubeadm-config pins etcd to %s, and member %s runs %s: kubeadm goes by the pin, and no bundle has its image", k.EtcdImageTag, cmp.Or(m.Name, m.Node, m.ID), m.Version.Bare())}) && ok
		}
	}
	if etcd35(pin) && kube136.Compare(b.goal.To.MinorVersion()) <= 0 {
		return b.find(Finding{ID: cluster.IDKubeadm, Subject: "etcd-image-tag", Severity: Block, Remedy: remedy,
			Message: fmt.Sprintf("ConfigMap kubeadm-config pins etcd to %s, and kubeadm from %s on starts etcd with flags that it does not know", k.EtcdImageTag, kube136)}) && ok
	}
	b.pinned = true
	b.find(Finding{ID: cluster.IDKubeadm, Subject: "etcd-image-tag", Severity: Warn, Remedy: remedy + ", once nothing speaks against it",
		Message: fmt.Sprintf("ConfigMap kubeadm-config pins etcd to %s, which is what runs: the upgrade leaves etcd there", k.EtcdImageTag)})
	return ok
}

var kube136 = kubeversion.Minor{Major: 1, Minor: 36}

func etcd35(v kubeversion.V) bool { return v.Major < 3 || v.Major == 3 && v.Minor <= 5 }

func (b *builder) remarks(controlPlanes int) {
	switch {
	case controlPlanes == 1:
		b.find(Finding{ID: "single-control-plane", Subject: "cluster", Severity: Info,
			Message: "there is one control plane node: the API does not answer for a minute or two while its parts are replaced; running pods go on"})
	case controlPlanes == 2:
		b.find(Finding{ID: "etcd-no-spare", Subject: "cluster", Severity: Warn,
			Message: "two etcd members have none to spare: the API does not answer while either restarts"})
	}
	if len(b.s.Workers()) == 1 {
		b.find(Finding{ID: "single-worker", Subject: b.s.Workers()[0].Name, Severity: Info,
			Message: "there is one worker: while it is drained, its pods run only where they tolerate the control plane's taint"})
	}
	for _, n := range b.s.Nodes {
		if b.goal.To.Less(n.Kubelet) {
			b.find(Finding{ID: "kubelet-stays", Subject: n.Name, Severity: Info,
				Message: fmt.Sprintf("node %s has kubelet %s, a newer patch than the target: it stays", n.Name, n.Kubelet)})
		}
	}
	if b.s.Etcd.External {
		b.find(Finding{ID: "external-etcd", Subject: "etcd", Severity: Info,
			Message: "etcd is external: the plan does not touch it; check that its version fits the target"})
	}
}

// hops chooses the versions on the way and which bundles carry them.
func (b *builder) hops() ([]Hop, bool) {
	if b.atGoal() {
		b.find(Finding{ID: "already-at-target", Subject: b.goal.To.Bare(), Severity: Info,
			Message: "every part of the cluster runs the target already: the plan only verifies it"})
		return []Hop{}, true
	}
	minors, err := kubeversion.Hops(b.from, b.goal.To)
	if err != nil {
		return nil, b.find(Finding{ID: cluster.IDTarget, Subject: b.goal.To.Bare(), Severity: Block, Message: err.Error()})
	}
	var versions []kubeversion.V
	ok := true
	for i, m := range minors {
		last := i == len(minors)-1
		v, found := b.choose(m, last)
		step, want := m.String(), m.String()+".PATCH"
		if last {
			step, want = b.goal.To.Bare(), b.goal.To.Bare()
		}
		at := cluster.NewestOf(b.s, m)
		switch {
		case !found:
			ok = false
			b.find(Finding{ID: cluster.IDBundles, Subject: step, Severity: Block,
				Message: fmt.Sprintf("the way from %s to %s needs %s, as a control plane moves one minor at a time (%s), and there is no bundle for %s",
					b.from, b.goal.To, m, strings.Join(minorNames(b.from, minors), " -> "), m),
				Remedy: "belay bundle build " + want})
		case v.Less(at):
			ok = false
			b.find(Finding{ID: cluster.IDBundles, Subject: step, Severity: Block,
				Message: fmt.Sprintf("a part of the control plane, or ConfigMap kubeadm-config, is at %s already, and the newest bundle of %s is %s: kubeadm does not go back", at, m, v),
				Remedy:  "belay bundle build " + at.Bare()})
		}
		versions = append(versions, v)
	}
	if !ok {
		return nil, false
	}
	var hops []Hop
	// Kubelets that the first hop would leave behind by more than the policy allows go first, at the version that runs now.
	if lag := b.behind(versions[0].MinorVersion()); len(lag) > 0 {
		if _, found := b.bundle(b.from); !found {
			b.find(Finding{ID: cluster.IDBundles, Subject: b.from.Bare(), Severity: Block,
				Message: fmt.Sprintf("kubelets of %s must come to %s before the control plane may go on to %s, and there is no bundle for %s",
					strings.Join(lag, ", "), b.from, versions[0], b.from),
				Remedy: "belay bundle build " + b.from.Bare()})
			return nil, false
		}
		hops = append(hops, Hop{From: b.from, To: b.from, Why: "kubelets of " + strings.Join(lag, ", ") + " would be too old for " + versions[0].String()})
	}
	from := b.from
	for _, v := range versions {
		hops = append(hops, Hop{From: from, To: v})
		from = v
	}
	for _, h := range hops {
		info, _ := b.bundle(h.To)
		b.bundles = append(b.bundles, BundleRef{Version: info.Version, Digest: info.Digest, Official: info.Official})
		if !info.Official {
			sev, tail := Warn, "it is fit for tests and rehearsals, not for a cluster that matters"
			if b.goal.Disposable {
				sev, tail = Info, "this cluster is marked disposable"
			}
			b.find(Finding{ID: "bundle-unofficial", Subject: info.Version.Bare(), Severity: sev,
				Message: fmt.Sprintf("the bundle of %s was built here and is not the official release: %s", info.Version.Bare(), tail),
				Remedy:  "belay bundle build --source release " + info.Version.Bare()})
		}
	}
	return hops, true
}

func minorNames(from kubeversion.V, minors []kubeversion.Minor) []string {
	names := []string{from.MinorVersion().String()}
	for _, m := range minors {
		if m != from.MinorVersion() {
			names = append(names, m.String())
		}
	}
	return names
}

func (b *builder) atGoal() bool {
	if b.s.Kubeadm.KubernetesVersion.Compare(b.goal.To) != 0 {
		return false
	}
	for i := range b.s.Nodes {
		n := &b.s.Nodes[i]
		if n.Kubelet.Less(b.goal.To) || n.ControlPlane && needsControlPlane(n, b.goal.To) {
			return false
		}
	}
	return true
}

func needsControlPlane(n *cluster.Node, v kubeversion.V) bool {
	for _, c := range []string{apiServer, controllerManager, scheduler} {
		if sp := n.StaticPod(c); sp == nil || sp.Version.Less(v) {
			return true
		}
	}
	return false
}

func (b *builder) bundle(v kubeversion.V) (BundleInfo, bool) {
	for _, i := range b.goal.Bundles {
		if i.Version == v {
			return i, true
		}
	}
	return BundleInfo{}, false
}

// choose gives the version for a minor: the target itself on the last hop, else the newest bundle of that minor.
func (b *builder) choose(m kubeversion.Minor, last bool) (kubeversion.V, bool) {
	if last {
		_, ok := b.bundle(b.goal.To)
		return b.goal.To, ok
	}
	var best kubeversion.V
	for _, i := range b.goal.Bundles {
		if i.Version.MinorVersion() == m && i.Version.Pre == "" && best.Less(i.Version) {
			best = i.Version
		}
	}
	return best, !best.IsZero()
}

// behind gives the nodes whose kubelet would be too old for an apiserver of minor m.
func (b *builder) behind(m kubeversion.Minor) []string {
	var names []string
	for _, n := range b.s.Nodes {
		if tooOld(n.Kubelet, m) {
			names = append(names, n.Name)
		}
	}
	return names
}

func tooOld(kubelet kubeversion.V, apiserver kubeversion.Minor) bool {
	r, _ := kubeversion.RuleFor(kubeversion.Kubelet)
	d, ok := apiserver.Sub(kubelet.MinorVersion())
	return !ok || d > r.Older
}

// steps lays out every hop in order, advancing the state and holding each prefix against the rules.
func (b *builder) steps(hops []Hop) {
	if len(hops) > 0 {
		if b.policy.PreflightGate {
			b.add(Step{ID: "preflight-gate", Kind: PreflightGate, Until: Once, Reversible: true, Params: Params{Version: b.goal.To}})
		}
		if !b.noBackup() {
			age := b.policy.BackupMaxAge
			if age <= 0 {
				age = defaultBackupAge
			}
			b.add(Step{ID: "backup-gate", Kind: BackupGate, Until: Once, Reversible: true,
				Params: Params{BackupLevel: cmp.Or(b.policy.BackupLevel, defaultBackupLevel), BackupMaxAgeSeconds: int(age.Seconds())}})
		}
	}
	for i := range hops {
		h := &hops[i]
		var next *kubeversion.V
		if i+1 < len(hops) {
			next = &hops[i+1].To
		}
		b.hop(i, h, next)
	}
	last := max(0, len(hops)-1)
	b.add(Step{ID: "verify", Kind: Verify, Hop: last, Until: Once, Reversible: true,
		Params: Params{Version: b.goal.To, CanaryImage: b.canaryImage(b.goal.To)}})
	b.askAgain()
}

// askAgain puts a second backup gate right before the first step that changes what runs, where others come between: staging takes
// minutes, and a run that stopped there may be resumed days later.
func (b *builder) askAgain() {
	gate := slices.IndexFunc(b.out, func(s Step) bool { return s.Kind == BackupGate })
	first := slices.IndexFunc(b.out, changes)
	if gate < 0 || first <= gate+1 {
		return
	}
	again := b.out[gate]
	again.ID += "-again"
	b.out[gate].Until = b.out[first-1].ID
	b.out = slices.Insert(b.out, first, again)
}

// changes says whether a step changes what runs: staged files and gates do not.
func changes(s Step) bool {
	switch s.Kind {
	case EtcdPatch, KubeadmApply, KubeadmNode, Cordon, Drain, KubeletConfig, Kubelet:
		return true
	case PreflightGate, BackupGate, Stage, ControlPlaneGate, Uncordon, Canary, NodeGate, Verify:
	}
	return false
}

// noBackup says whether the backup gate was waived.
func (b *builder) noBackup() bool {
	w := WaiveBackup + "@cluster"
	if _, ok := b.waived[w]; !ok {
		return false
	}
	b.waived[w] = true
	b.find(Finding{ID: WaiveBackup, Subject: "cluster", Severity: Warn, Waivable: true, Waived: true,
		Message: "the plan has no backup gate, as " + w + " was accepted: there may be no way back"})
	return true
}

func (b *builder) canaryImage(v kubeversion.V) string {
	if i, ok := b.bundle(v); ok {
		return i.CanaryImage
	}
	return ""
}

func (b *builder) hop(i int, h *Hop, next *kubeversion.V) {
	v := h.To
	info, _ := b.bundle(v)
	var control, kubelets []string
	for _, n := range b.s.Nodes {
		if n.ControlPlane && needsControlPlane(&n, v) {
			control = append(control, n.Name)
		}
	}
	// The ConfigMap is what the other nodes' `kubeadm upgrade node` goes by: an old one is healed first.
	first := ""
	if b.s.Kubeadm.KubernetesVersion.Less(v) {
		if len(control) == 0 {
			control = append(control, b.s.ControlPlanes()[0].Name)
		}
		first = control[0]
	}
	for _, cp := range []bool{true, false} {
		for _, n := range b.s.Nodes {
			if n.ControlPlane != cp || !n.Kubelet.Less(v) {
				continue // also one with a newer patch: it stays
			}
			if cp || next == nil || tooOld(n.Kubelet, next.MinorVersion()) {
				kubelets = append(kubelets, n.Name)
				if !cp {
					h.Workers = true
				}
			}
		}
	}
	if h.Why == "" && h.Workers && next != nil {
		h.Why = "workers come along, as the next hop would leave their kubelets too far behind"
	}
	id := func(what, node string) string {
		if node == "" {
			return what + "@" + v.Bare()
		}
		return what + "@" + v.Bare() + "/" + node
	}
	add := func(s Step) { s.Hop = i; b.add(s) }

	stage := slices.Concat(control, kubelets)
	slices.Sort(stage)
	stage = slices.Compact(stage)
	if len(stage) > 0 {
		until := id("control-plane-gate", "")
		if len(kubelets) > 0 {
			until = id("kubelet", kubelets[len(kubelets)-1])
		}
		add(Step{ID: id("stage", ""), Kind: Stage, Params: Params{Version: v, Nodes: stage}, Until: until, Reversible: true})
	}
	if len(control) > 0 && !b.s.Etcd.External && !b.pinned {
		b.etcdPatch(add, info)
	}
	for _, name := range control {
		kind, what := KubeadmNode, "control-plane"
		pre := []Precondition{{Kind: APIServersWithinOneMinor, Version: v}, {Kind: NodeReady, Node: name}}
		if name == first {
			kind = KubeadmApply
		} else {
			pre = append(pre, Precondition{Kind: KubeadmConfigIs, Version: v})
		}
		p := Params{Version: v, IgnorePreflightErrors: b.goal.IgnorePreflightErrors, PatchesDir: b.goal.PatchesDir}
		if !b.s.Etcd.External {
			pre = append(pre, Precondition{Kind: EtcdHealthy})
			if from := b.etcdVersion(name); !b.pinned && from.Less(info.Etcd) {
				p.EtcdFrom, p.EtcdVersion = from, info.Etcd
				// Live and on every member: a floor that was met when the plan was made must still be.
				if f, ok := cluster.EtcdFloorFor(info.Etcd.MinorVersion()); ok && !from.Less(f.Least) {
					pre = append(pre, Precondition{Kind: EtcdAtLeast, Version: f.Least})
				}
			}
		}
		st := Step{ID: id(what, name), Kind: kind, Node: name, Params: p, Preconditions: pre, Until: id("control-plane-gate", "")}
		if name == control[len(control)-1] && p.EtcdFrom.MinorVersion() != p.EtcdVersion.MinorVersion() {
			st.PointOfNoReturn = fmt.Sprintf("when the last member runs etcd %s, older ones can no longer read the data: the way back is the backup", p.EtcdVersion.MinorVersion())
		}
		add(st)
	}
	if len(control) > 0 {
		add(Step{ID: id("control-plane-gate", ""), Kind: ControlPlaneGate, Params: Params{Version: v}, Until: Once, Reversible: true})
	}
	for _, name := range kubelets {
		b.node(add, id, name, info)
	}
}

func (b *builder) etcdVersion(node string) kubeversion.V {
	for _, m := range b.s.Etcd.Members {
		if m.Node == node || m.Name == node {
			return m.Version
		}
	}
	if n := b.s.Node(node); n != nil {
		if sp := n.StaticPod(etcd); sp != nil {
			return sp.Version
		}
	}
	return kubeversion.V{}
}

// etcdPatch plans the step that the floor of the hop's etcd asks for, one member at a time.
func (b *builder) etcdPatch(add func(Step), info BundleInfo) {
	f, ok := cluster.EtcdFloorFor(info.Etcd.MinorVersion())
	if !ok || info.EtcdStep.Less(f.Least) {
		return
	}
	for _, n := range b.s.ControlPlanes() {
		from := b.etcdVersion(n.Name)
		// A patch step stays within its minor: another one has a floor of its own.
		if from.IsZero() || !from.Less(f.Least) || from.MinorVersion() != info.EtcdStep.MinorVersion() {
			continue
		}
		add(Step{ID: "etcd-patch@" + info.EtcdStep.Bare() + "/" + n.Name, Kind: EtcdPatch, Node: n.Name, Until: Once, Reversible: true,
			Params:        Params{Version: info.Version, Image: info.EtcdStepImage, EtcdFrom: from, EtcdVersion: info.EtcdStep},
			Preconditions: []Precondition{{Kind: NodeReady, Node: n.Name}, {Kind: EtcdHealthy}}})
	}
}

// node plans one node's kubelet: cordon, drain, replace, canary, uncordon, gate.
func (b *builder) node(add func(Step), id func(what, node string) string, name string, info BundleInfo) {
	n := b.s.Node(name)
	v := info.Version
	timeout := b.policy.DrainTimeout
	if timeout <= 0 {
		timeout = defaultDrainTimeout
	}
	own := !n.Unschedulable
	if own {
		add(Step{ID: id("cordon", name), Kind: Cordon, Node: name, Until: id("uncordon", name), Reversible: true})
	}
	canary := id("canary", name)
	add(Step{ID: id("drain", name), Kind: Drain, Node: name, Until: canary, Reversible: true,
		Params:        Params{TimeoutSeconds: int(timeout.Seconds()), DeleteEmptyDir: !b.policy.KeepEmptyDir},
		Preconditions: []Precondition{{Kind: NodeCordoned, Node: name}}})
	if !n.ControlPlane {
		add(Step{ID: id("kubelet-config", name), Kind: KubeletConfig, Node: name, Until: Once,
			Params: Params{Version: v, IgnorePreflightErrors: b.goal.IgnorePreflightErrors, PatchesDir: b.goal.PatchesDir},
			Preconditions: []Precondition{
				{Kind: APIServersAtLeast, Version: v}, {Kind: KubeadmConfigIs, Version: v}, {Kind: NodeCordoned, Node: name}}})
	}
	if have, want := n.ContainerRuntime, info.Components["containerd"]; want != "" && have != "" && have != "containerd://"+strings.TrimPrefix(want, "v") {
		b.find(Finding{ID: "runtime-stays", Subject: name, Severity: Info,
			Message: fmt.Sprintf("node %s runs %s, the bundle of %s has containerd %s: the plan leaves the container runtime as it is", name, have, v.Bare(), want)})
	}
	add(Step{ID: id("kubelet", name), Kind: Kubelet, Node: name, Params: Params{Version: v}, Until: id("node-gate", name), Reversible: true,
		Preconditions: []Precondition{{Kind: APIServersAtLeast, Version: v}, {Kind: NodeCordoned, Node: name}}})
	add(Step{ID: canary, Kind: Canary, Node: name, Params: Params{Version: v, CanaryImage: info.CanaryImage}, Until: Once, Reversible: true})
	if own {
		add(Step{ID: id("uncordon", name), Kind: Uncordon, Node: name, Until: Once, Reversible: true})
	}
	add(Step{ID: id("node-gate", name), Kind: NodeGate, Node: name, Params: Params{Version: v}, Until: Once, Reversible: true})
}

// add appends a step, if the cluster may take it now, and advances the state.
func (b *builder) add(st Step) {
	for _, f := range legalStep(b.s, st) {
		b.find(f)
	}
	Advance(b.s, st)
	now := violations(b.s)
	for _, subject := range slices.Sorted(maps.Keys(now)) {
		if b.broken[subject] == nil {
			b.find(Finding{ID: cluster.IDSkew, Subject: subject, Severity: Block,
				Message: fmt.Sprintf("after step %s the cluster would break the version skew policy: %s", st.ID, strings.Join(now[subject], "; "))})
		}
	}
	// What a step has mended, no later one may break again.
	maps.DeleteFunc(b.broken, func(subject string, _ []string) bool { return now[subject] == nil })
	b.out = append(b.out, st)
}

func parens(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}
