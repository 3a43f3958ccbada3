package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

func apiReachable(_ context.Context, in *Input) []Result {
	s := in.State
	switch {
	case s.Version.IsZero():
		return []Result{finding(Fail, "api", "check the kubeconfig's address and credentials: kubectl version", "the API at %s gave no version%s", s.Server, why(in, "version"))}
	case s.Lineage == "":
		return []Result{finding(Unknown, "api", "let the kubeconfig's user get namespace kube-system", "namespace kube-system could not be read, so that the cluster has no identity%s", why(in, "namespace/kube-system"))}
	}
	return []Result{pass("api", "%s at %s", s.Version, s.Server)}
}

func why(in *Input, what string) string {
	if u := in.unread(what); u != nil {
		return ": " + u.Why
	}
	return ""
}

// standsFor is the status that something unread has: most of it unknown, some of it natural.
func standsFor(in *Input, u *cluster.Unread) Status {
	node, item, isHost := strings.Cut(strings.TrimPrefix(u.What, "node/"), "/host/")
	switch {
	case u.Kind == cluster.UnreadNotFound && strings.HasPrefix(u.What, "configmap/kube-system/"),
		u.Kind == cluster.UnreadNotFound && u.What == "etcd" && in.managed():
		return Pass // its own check says what follows
	case (u.What == cluster.ReadHosts || u.What == "etcd") && u.Kind == cluster.UnreadNotAsked && in.managed():
		return Pass
	case isHost && u.Kind == cluster.UnreadNotFound && (item == "kubeadm-version" || item == "runc-version" || item == "containerd-version"):
		// Another runtime, or a kubeadm that the bundle brings.
		return Warn
	case isHost && item == "kubelet-unit", isHost && node == "":
		return Pass
	case strings.HasPrefix(u.What, "etcd/member/"):
		return Pass // etcd-members says it
	}
	return Unknown
}

func coverage(_ context.Context, in *Input) []Result {
	var out []Result
	for i := range in.State.Unread {
		u := &in.State.Unread[i]
		st := standsFor(in, u)
		if st == Pass {
			continue
		}
		out = append(out, finding(st, u.What, coverageRemedy(u), "could not be read (%s): %s", u.Kind, u.Why))
	}
	return passIfClean(out, "cluster", "%s, %s, %s and their machines were read", plural(len(in.State.Nodes), "node"), plural(len(in.State.Pods), "pod"), plural(len(in.State.Workloads), "workload"))
}

func coverageRemedy(u *cluster.Unread) string {
	isHost := strings.HasPrefix(u.What, "node/") || u.What == cluster.ReadHosts
	name, _, _ := strings.Cut(strings.TrimPrefix(u.What, "node/"), "/")
	switch u.Kind {
	case cluster.UnreadForbidden:
		if isHost {
			return "let the SSH user read it, with sudo where the inventory says so"
		}
		resource, _, _ := strings.Cut(u.What, "/")
		return "give the kubeconfig's user the right to read it (docs/rbac-check.yaml has all); then kubectl auth can-i list " + resource + " -A says yes"
	case cluster.UnreadNotAsked:
		return "say how to reach the machines: --inventory FILE"
	case cluster.UnreadUnreachable, cluster.UnreadTimeout, cluster.UnreadLost:
		if u.What == "etcd" {
			return "see what keeps the control plane's machines from answering, then check again"
		}
		if isHost {
			return "log in to " + name + " by hand with the inventory's user and key; then check again"
		}
		return "check again; if it stays so, look at the apiserver's log"
	case cluster.UnreadNotFound:
		return "see why it is missing, then check again"
	}
	return "mend what it says, then check again"
}

// lowest is the oldest apiserver, by static pod where there are any.
func lowest(s *cluster.State) kubeversion.V {
	v := s.Version
	for _, n := range s.Nodes {
		if sp := n.StaticPod("kube-apiserver"); sp != nil && !sp.Version.IsZero() && (v.IsZero() || sp.Version.Less(v)) {
			v = sp.Version
		}
	}
	return v
}

func versionTarget(_ context.Context, in *Input) []Result {
	to := in.Goal.Target
	if to.IsZero() {
		return []Result{skipped("target", "no target was given; with --to V the way there is judged")}
	}
	from := lowest(in.State)
	// A control plane that was left half-way must go forward, not to a version between.
	if parts, newest := cluster.Newer(in.State, to); len(parts) > 0 {
		return []Result{finding(Fail, to.Bare(), "name a target of "+newest.Bare()+" or later", "the target is below what is there already: %s; Kubernetes does not support going back", some(parts))}
	}
	hops, err := kubeversion.Hops(from, to)
	if err != nil {
		return []Result{finding(Fail, to.Bare(), "name a target of "+from.Bare()+" or later", "%v", err)}
	}
	var out []Result
	if to.Pre != "" {
		out = append(out, finding(Warn, to.Bare(), "take a release for a cluster that matters", "%s is a pre-release", to))
	}
	if from.Compare(to) == 0 {
		return append(out, pass(to.Bare(), "every apiserver runs %s already", to))
	}
	way := make([]string, 0, len(hops))
	for i, m := range hops {
		way = append(way, hopName(m, i == len(hops)-1, to))
	}
	return passIfClean(out, to.Bare(), "from %s in %s: %s", from, plural(len(hops), "hop"), strings.Join(way, ", "))
}

// hopName is a minor, or the target itself for the last hop.
func hopName(m kubeversion.Minor, last bool, to kubeversion.V) string {
	if last {
		return to.Bare()
	}
	return m.String()
}

func bundlesAtHand(_ context.Context, in *Input) []Result {
	to := in.Goal.Target
	switch {
	case to.IsZero():
		return []Result{skipped("target", "no target was given")}
	case in.managed():
		return []Result{skipped("target", "the control plane is managed: its provider upgrades it")}
	case in.Goal.Bundles == nil:
		return []Result{skipped("target", "bundles were not looked at")}
	}
	from := lowest(in.State)
	hops, err := kubeversion.Hops(from, to)
	if err != nil || from.Compare(to) == 0 {
		return []Result{skipped("target", "no hop is to be made")}
	}
	var out []Result
	for i, m := range hops {
		last := i == len(hops)-1
		have := slices.ContainsFunc(in.Goal.Bundles, func(v kubeversion.V) bool {
			return last && v.Compare(to) == 0 || !last && v.MinorVersion() == m
		})
		step, at := hopName(m, last, to), cluster.NewestOf(in.State, m)
		switch {
		case !have:
			out = append(out, finding(Fail, step, "belay bundle build "+bundleFor(step), "hop %d of %d goes to %s, and there is no bundle of it (at hand: %s)", i+1, len(hops), step, versions(in.Goal.Bundles)))
		case !last && !slices.ContainsFunc(in.Goal.Bundles, func(v kubeversion.V) bool { return v.MinorVersion() == m && !v.Less(at) }):
			out = append(out, finding(Fail, step, "belay bundle build "+at.Bare(), "hop %d of %d goes to %s, where a part of the control plane or ConfigMap kubeadm-config is at %s already, and every bundle of it is older", i+1, len(hops), step, at))
		}
	}
	return passIfClean(out, to.Bare(), "one for each of %s", plural(len(hops), "hop"))
}

func bundleFor(step string) string {
	if strings.Count(step, ".") == 1 {
		return step + ".x, with x its newest patch"
	}
	return step
}

func versions(vs []kubeversion.V) string {
	var out []string
	for _, v := range vs {
		out = append(out, v.Bare())
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}

func targetAdvisories(_ context.Context, in *Input) []Result {
	to := in.Goal.Target
	if to.IsZero() {
		return []Result{skipped("target", "no target was given")}
	}
	if g := in.gap("target", cluster.ReadStatefulSets); g != nil {
		return []Result{*g}
	}
	var out []Result
	for _, b := range badTargets {
		if to.MinorVersion() != b.first.MinorVersion() || to.Less(b.first) || b.last.Less(to) || !b.applies(in.State, lowest(in.State)) {
			continue
		}
		out = append(out, finding(b.status, b.id, "take "+b.fixed+" or later", "in %s %s (%s)", to, b.message, b.source))
	}
	// kubernetes/kubernetes#139466: ignored before, the field counts from 1.37 on.
	if from := lowest(in.State).MinorVersion(); from.Compare(k(37)) < 0 && to.MinorVersion().Compare(k(37)) >= 0 {
		for _, w := range in.State.Workloads {
			if w.MaxUnavailable != "" {
				out = append(out, finding(Warn, w.ID(), "take updateStrategy.rollingUpdate.maxUnavailable out, or mean it", "%s has maxUnavailable %s, which was ignored so far: from 1.37 on a rollout takes that many pods down at once (kubernetes/kubernetes#139466)", w.ID(), w.MaxUnavailable))
			}
		}
	}
	return passIfClean(out, to.Bare(), "none known for %s", to)
}

func coreDNS(_ context.Context, in *Input) []Result {
	if in.managed() {
		return []Result{skipped("coredns", "the control plane is managed")}
	}
	if g := in.gap("coredns", cluster.ReadDeployments); g != nil {
		return []Result{*g}
	}
	i := slices.IndexFunc(in.State.Addons, func(a cluster.Addon) bool { return a.Name == "coredns" })
	if i < 0 {
		return []Result{skipped("coredns", "there is no Deployment kube-system/coredns: cluster DNS is somebody else's")}
	}
	a := in.State.Addons[i]
	var out []Result
	if a.Ready < a.Desired {
		out = append(out, finding(Warn, "ready", "kubectl -n kube-system describe pods -l k8s-app=kube-dns", "CoreDNS has %d of %d pods ready", a.Ready, a.Desired))
	}
	to := in.Goal.Target
	if to.IsZero() {
		return passIfClean(out, "coredns", "%s", a.Image)
	}
	v := cluster.ImageVersion(a.Image)
	if v.IsZero() {
		return append(out, finding(Unknown, "version", "use an image with a version for a tag, or upgrade CoreDNS apart from kubeadm (--ignore-preflight-errors=CoreDNSUnsupportedPlugins,CoreDNSMigration)",
			"the version of CoreDNS cannot be told from its image %s, and kubeadm does not go on with one that it does not know", a.Image))
	}
	hops, err := kubeversion.Hops(lowest(in.State), to)
	if err != nil {
		return append(out, skipped("version", "%v", err))
	}
	for _, hop := range hops {
		if newest, known := coreDNSOf[hop]; known && newest.Less(v) {
			return append(out, finding(Fail, "version", "bring CoreDNS to "+newest.Bare()+" or older, or upgrade it apart from kubeadm (--ignore-preflight-errors=CoreDNSUnsupportedPlugins,CoreDNSMigration)",
				"CoreDNS is %s, newer than the %s that kubeadm %s brings: its preflight fails, as it cannot migrate the Corefile", v.Bare(), newest.Bare(), hop))
		}
	}
	return passIfClean(out, "coredns", "%s", v.Bare())
}

func proxyMode(_ context.Context, in *Input) []Result {
	pc := in.State.ProxyConfig
	if pc == nil {
		if g := in.gap("kube-proxy", "configmap/kube-system/kube-proxy"); g != nil {
			return []Result{*g}
		}
		return []Result{skipped("kube-proxy", "there is no kube-proxy of kubeadm's")}
	}
	if pc.Mode == "ipvs" && in.kubeletTarget().MinorVersion().Compare(k(35)) >= 0 {
		return []Result{finding(Warn, "kube-proxy", "go to nftables (kernel 5.13 or later) in good time", "kube-proxy is in mode ipvs, which is deprecated since 1.35, off by default from 1.40 and gone in 1.43 (KEP-5495)")}
	}
	return []Result{pass("kube-proxy", "mode %s", cmp.Or(pc.Mode, "iptables"))}
}

func versionSkew(_ context.Context, in *Input) []Result {
	if g := in.gap("cluster", cluster.ReadNodes, cluster.ReadPods); g != nil {
		return []Result{*g}
	}
	var out []Result
	at := make(map[string]int)
	for _, p := range cluster.CheckSkew(in.State) {
		subject := string(p.Component) + "/" + p.Node
		if i, seen := at[subject]; seen {
			// Against several apiservers: the first says what to do, the others belong to it.
			out[i].Message += "; " + p.Message
			continue
		}
		at[subject] = len(out)
		if p.Unknown {
			out = append(out, finding(Unknown, subject, "see which version runs there: kubectl get pods -n kube-system -o wide", "%s", p.Message))
			continue
		}
		out = append(out, finding(Fail, subject, "bring the older side within the policy before anything else moves", "%s", p.Message))
	}
	return passIfClean(out, "cluster", "every component of %s is within the policy", plural(len(in.State.Nodes), "node"))
}

func nodesReady(_ context.Context, in *Input) []Result {
	if g := in.gap("nodes", cluster.ReadNodes); g != nil {
		return []Result{*g}
	}
	if len(in.State.Nodes) == 0 {
		return []Result{finding(Fail, "nodes", "see: kubectl get nodes", "the cluster has no node")}
	}
	var out []Result
	for _, n := range in.State.Nodes {
		if !n.Ready {
			msg := "node " + n.Name + " is not Ready"
			if n.ReadyReason != "" {
				msg += ": " + strings.TrimSuffix(n.ReadyReason, ".")
			}
			remedy := "on " + n.Name + ": systemctl status kubelet; journalctl -u kubelet -n 50"
			if n.Host != nil && n.Host.KubeletActive != "" && n.Host.KubeletActive != "active" {
				msg += "; systemd says that its kubelet is " + n.Host.KubeletActive
				remedy = "on " + n.Name + ": journalctl -u kubelet -n 50 says why; systemctl start kubelet"
			}
			out = append(out, finding(Fail, n.Name, remedy, "%s", msg))
		}
		for _, c := range n.Conditions {
			// When the kubelet is silent every condition is unknown, which says nothing more.
			if !n.Ready && c.Status == "Unknown" {
				continue
			}
			// Kubernetes taints nodes by these, so that evicted pods have no place there (node.kubernetes.io/disk-pressure...).
			taints := map[string]string{
				"DiskPressure":       "make room: crictl rmi --prune, journalctl --vacuum-size=200M",
				"MemoryPressure":     "see what takes it: kubectl top pods -A --sort-by=memory",
				"PIDPressure":        "see what makes so many processes",
				"NetworkUnavailable": "see the pods of the network plugin there",
			}
			if remedy, ok := taints[c.Type]; ok && c.Status == "True" {
				out = append(out, finding(Fail, n.Name+"/"+c.Type, "on "+n.Name+": "+remedy, "node %s has %s (%s): no pod is scheduled there", n.Name, c.Type, c.Reason))
				continue
			}
			out = append(out, finding(Warn, n.Name+"/"+c.Type, "see: kubectl describe node "+n.Name, "node %s has condition %s=%s (%s)", n.Name, c.Type, c.Status, c.Reason))
		}
	}
	return passIfClean(out, "nodes", "all %d are Ready", len(in.State.Nodes))
}

func nodesCordoned(_ context.Context, in *Input) []Result {
	if g := in.gap("nodes", cluster.ReadNodes); g != nil {
		return []Result{*g}
	}
	var out []Result
	if len(in.State.Nodes) > 0 && !slices.ContainsFunc(in.State.Nodes, func(n cluster.Node) bool { return !n.Unschedulable }) {
		return []Result{finding(Fail, "nodes", "kubectl uncordon NODE", "every node is cordoned: evicted pods, and the Job by which kubeadm proves the cluster's health, have no place to run")}
	}
	for _, n := range in.State.Nodes {
		if !n.Unschedulable {
			continue
		}
		if len(n.Annotations) > 0 {
			out = append(out, finding(Warn, n.Name, "belay resume, or belay abort", "node %s is cordoned, and carries marks of a run of belay", n.Name))
			continue
		}
		out = append(out, finding(Warn, n.Name, "kubectl uncordon "+n.Name+", if it is not meant to be", "node %s is cordoned; it is upgraded and stays cordoned, and takes no pods of drained nodes", n.Name))
	}
	return passIfClean(out, "nodes", "none of %d is cordoned", len(in.State.Nodes))
}

func controlPlaneComponents(_ context.Context, in *Input) []Result {
	if g := in.gap("control-plane", cluster.ReadNodes, cluster.ReadPods); g != nil {
		return []Result{*g}
	}
	if in.managed() {
		return []Result{skipped("control-plane", "no static pods: the control plane is managed, or of another kind")}
	}
	var out []Result
	versions := make(map[string][]string) // component/version to nodes
	cps := in.State.ControlPlanes()
	if len(cps) == 0 {
		return []Result{finding(Fail, "control-plane", "label them: kubectl label node NAME node-role.kubernetes.io/control-plane=", "no node carries the label node-role.kubernetes.io/control-plane")}
	}
	for _, n := range cps {
		want := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
		if !in.State.Etcd.External {
			want = append(want, "etcd")
		}
		for _, c := range want {
			subject := n.Name + "/" + c
			sp := n.StaticPod(c)
			noManifest := n.Host != nil && !slices.Contains(n.Host.Manifests, c)
			switch {
			case noManifest:
				out = append(out, finding(Fail, subject, "on "+n.Name+": find the manifest under /etc/kubernetes/tmp/kubeadm-backup-manifests-* and move it back",
					"/etc/kubernetes/manifests has no manifest of %s: an upgrade that was killed between its two renames leaves it like that", c))
				continue
			case sp == nil || sp.Image == "":
				out = append(out, finding(Fail, subject, "on "+n.Name+": crictl ps -a; journalctl -u kubelet -n 50", "the API shows no pod of %s", c))
				continue
			case !sp.Ready:
				out = append(out, finding(Fail, subject, fmt.Sprintf("kubectl -n kube-system describe pod %s-%s; its log says more", c, n.Name), "%s is not ready (%s)", c, plural(int(sp.Restarts), "restart")))
			case sp.ManifestImage != "" && sp.ManifestImage != sp.Image:
				out = append(out, finding(Fail, subject, "on "+n.Name+": journalctl -u kubelet -n 50 says why the kubelet does not run the manifest", "the manifest names %s, and %s runs", sp.ManifestImage, sp.Image))
			}
			if c != "etcd" {
				versions[c+" "+sp.Version.String()] = append(versions[c+" "+sp.Version.String()], n.Name)
			}
		}
	}
	if len(versions) > 3 {
		var parts []string
		for v, nodes := range versions {
			parts = append(parts, v+" on "+some(nodes))
		}
		slices.Sort(parts)
		out = append(out, finding(Warn, "versions", "finish the upgrade that was begun: belay resume, or belay plan --to the newer version", "control plane components run different versions: %s", strings.Join(parts, "; ")))
	}
	return passIfClean(out, "control-plane", "%s of %s run and agree with their manifests", plural(len(versions), "component"), plural(len(cps), "node"))
}

func kubeadmConfig(_ context.Context, in *Input) []Result {
	const what = "configmap/kube-system/kubeadm-config"
	kc := in.State.Kubeadm
	if kc == nil {
		if g := in.gap("kubeadm-config", what); g != nil {
			return []Result{*g}
		}
		if in.managed() {
			return []Result{skipped("kubeadm-config", "there is none, and no static pods: not a kubeadm cluster")}
		}
		return []Result{finding(Fail, "kubeadm-config", "restore it: kubeadm config print init-defaults shows the form; kubeadm init phase upload-config kubeadm --config FILE", "ConfigMap kube-system/kubeadm-config is missing; kubeadm cannot upgrade without it")}
	}
	var out []Result
	for _, n := range in.State.Nodes {
		sp := n.StaticPod("kube-apiserver")
		if sp == nil || sp.Version.IsZero() || sp.Version.Compare(kc.KubernetesVersion) == 0 {
			continue
		}
		remedy := "finish the upgrade that was begun: belay resume, or on the first control plane node: kubeadm upgrade apply " + sp.Version.String()
		if sp.Version.Less(kc.KubernetesVersion) {
			remedy = "on " + n.Name + ": kubeadm upgrade node, or belay resume"
		}
		status := Fail
		if to := in.Goal.Target; !to.IsZero() && !to.Less(sp.Version) && !to.Less(kc.KubernetesVersion) {
			status, remedy = Warn, "nothing: the way to "+to.Bare()+" mends it"
		}
		out = append(out, finding(status, "version", remedy,
			"the ConfigMap says %s and kube-apiserver of node %s runs %s: kubeadm would deploy what the ConfigMap says", kc.KubernetesVersion, n.Name, sp.Version))
		break
	}
	if kc.APIVersion == "kubeadm.k8s.io/v1beta3" {
		from, to := lowest(in.State), in.Goal.Target
		first := from.MinorVersion()
		if !to.IsZero() && first.Compare(to.MinorVersion()) < 0 {
			first = first.Next()
		}
		if first.Compare(k(37)) >= 0 {
			out = append(out, finding(Fail, "api-version", "with kubeadm "+from.MinorVersion().String()+": kubeadm upgrade apply "+from.String()+" rewrites it as v1beta4",
				"it is kubeadm.k8s.io/v1beta3, which kubeadm %s cannot read", first))
		} else {
			out = append(out, finding(Warn, "api-version", "nothing to do: the next kubeadm upgrade apply rewrites it as v1beta4", "it is kubeadm.k8s.io/v1beta3, which kubeadm reads up to 1.36"))
		}
	}
	out = append(out, pinnedEtcd(in, kc)...)
	for _, repo := range []string{kc.ImageRepository, kc.EtcdImageRepository} {
		if repo != "" && repo != "registry.k8s.io" && !in.Goal.Target.IsZero() {
			out = append(out, finding(Fail, "image-repository", "set it to registry.k8s.io (kubectl -n kube-system edit configmap kubeadm-config); or accept this if that repository has the target's images and every node may pull them",
				"it names the image repository %s, and the bundles' images, which are staged on the nodes, are of registry.k8s.io: kubeadm would pull from there", repo))
			break
		}
	}
	return passIfClean(out, "kubeadm-config", "%s, %s", kc.APIVersion, kc.KubernetesVersion)
}

// pinnedEtcd judges etcd.local.imageTag: kubeadm goes by it, and neither by the bundle nor by a plan.
func pinnedEtcd(in *Input, kc *cluster.Kubeadm) []Result {
	const subject, remedy = "etcd-image-tag", "take the pin out: kubectl -n kube-system edit configmap kubeadm-config"
	if kc.EtcdImageTag == "" || in.State.Etcd.External {
		return nil
	}
	pin := cluster.ImageVersion("etcd:" + kc.EtcdImageTag)
	if pin.Major == 3 && pin.Minor <= 5 && in.kubeletTarget().MinorVersion().Compare(k(36)) >= 0 {
		return []Result{finding(Fail, subject, remedy+", once the members run 3.5.26 or later",
			"it pins etcd to %s, and kubeadm from 1.36 on starts etcd with flags that 3.5 does not know", kc.EtcdImageTag)}
	}
	if !in.Goal.Target.IsZero() {
		for _, m := range in.State.Etcd.Members {
			if m.Version.Compare(pin) != 0 {
				return []Result{finding(Fail, subject, remedy, "it pins etcd to %s, and member %s runs %s: kubeadm goes by the pin, and no bundle has its image", kc.EtcdImageTag, name(m), m.Version.Bare())}
			}
		}
	}
	return []Result{finding(Warn, subject, remedy+", when it is no longer needed", "it pins etcd to %s, so that an upgrade leaves etcd there", kc.EtcdImageTag)}
}

func componentFlags(_ context.Context, in *Input) []Result {
	if g := in.gap("control-plane", cluster.ReadNodes, cluster.ReadPods); g != nil {
		return []Result{*g}
	}
	if in.managed() {
		return []Result{skipped("control-plane", "the control plane is managed")}
	}
	to := in.kubeletTarget().MinorVersion()
	db, broken := lifecycleData("flags")
	if broken != nil {
		return []Result{*broken}
	}
	etcdTo := in.etcdAt(to)
	var out []Result
	seen := make(map[string]bool)
	add := func(component, where, flag, since, remedy string) {
		subject := component + "/" + flag
		if seen[subject] {
			return
		}
		seen[subject] = true
		out = append(out, finding(Fail, subject, remedy, "%s has --%s (%s), which is gone since %s: it would not start", component, flag, where, since))
	}
	judge := func(component, where string, names []string) {
		for _, name := range names {
			for _, f := range db.EndingFlags(component, kubeversion.Minor{}, to) {
				if f.Name == name {
					add(component, where, name, f.Removed.String(), "take it out of "+where+"; "+f.Remedy)
				}
			}
			if component != "etcd" || etcdTo.IsZero() {
				continue
			}
			at := etcdTo.MinorVersion()
			if at.Compare(kubeversion.Minor{Major: 3, Minor: 6}) >= 0 && slices.Contains(etcd36Removed, name) {
				add(component, where, name, "etcd 3.6", "take it out of "+where)
			}
			if at.Compare(kubeversion.Minor{Major: 3, Minor: 7}) >= 0 {
				with, renamed := etcd37Renames[name]
				plain, experimental := strings.CutPrefix(name, "experimental-")
				if experimental && !renamed {
					with = "--" + plain
				}
				if experimental || renamed {
					add(component, where, name, "etcd 3.7", "while etcd is 3.6, which knows both, write in "+where+": "+with)
				}
			}
		}
	}
	for _, n := range in.State.ControlPlanes() {
		for _, sp := range n.StaticPods {
			judge(sp.Component, "manifest of node "+n.Name, flagNames(sp.Args))
		}
	}
	if in.State.Kubeadm != nil {
		for key, component := range map[string]string{"apiServer": "kube-apiserver", "controllerManager": "kube-controller-manager", "etcd": "etcd"} {
			var names []string
			for _, f := range in.State.Kubeadm.ExtraArgs[key] {
				names = append(names, f.Name)
			}
			judge(component, "extraArgs of ConfigMap kubeadm-config", names)
		}
	}
	return passIfClean(out, "control-plane", "no flag of its components is gone at %s", to)
}

func flagNames(args []string) []string {
	var out []string
	for _, a := range args {
		if !strings.HasPrefix(a, "--") {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		out = append(out, strings.ReplaceAll(name, "_", "-"))
	}
	return out
}

func featureGates(_ context.Context, in *Input) []Result {
	if g := in.gap("gates", cluster.ReadNodes, cluster.ReadPods); g != nil {
		return []Result{*g}
	}
	to := in.kubeletTarget().MinorVersion()
	if to.Compare(k(33)) < 0 {
		return []Result{skipped("gates", "nothing is recorded of gates before 1.33")}
	}
	db, broken := lifecycleData("gates")
	if broken != nil {
		return []Result{*broken}
	}
	removed, locked := gatesAt(db, to)
	var out []Result
	at := make(map[string]int)
	judge := func(where string, gates map[string]string) {
		for _, g := range sortedKeys(gates) {
			var r Result
			lock, isLocked := locked[g]
			switch since, gone := removed[g]; {
			case gone:
				r = finding(Fail, g, "take it out of "+where+" while the cluster still runs a version that knows it",
					"feature gate %s=%s is set (%s), and %s no longer knows it: what names it would not start", g, gates[g], where, since)
			case isLocked && !strings.EqualFold(gates[g], lock):
				r = finding(Fail, g, "take it out of "+where, "feature gate %s=%s is set (%s), and %s locks it to %s: what sets it so would not start", g, gates[g], where, to, lock)
			default:
				continue
			}
			if i, seen := at[g]; seen {
				if !strings.Contains(out[i].Message, where) {
					out[i].Message += "; also " + where
				}
				continue
			}
			at[g] = len(out)
			out = append(out, r)
		}
	}
	bools := func(m map[string]bool) map[string]string {
		s := make(map[string]string)
		for g, v := range m {
			s[g] = fmt.Sprint(v)
		}
		return s
	}
	for _, n := range in.State.Nodes {
		for _, sp := range n.StaticPods {
			// etcd's gates are its own.
			if sp.Component != "etcd" {
				judge("manifest of "+sp.Component+" on node "+n.Name, argGates(sp.Args))
			}
		}
		if n.Host == nil {
			continue
		}
		judge("kubelet configuration of node "+n.Name, bools(n.Host.KubeletFeatureGates))
		for _, f := range n.Host.KubeletFlags {
			if f.Name == "feature-gates" {
				judge("kubelet flags of node "+n.Name+" in "+f.Source, parseGates(f.Value))
			}
		}
	}
	if in.State.Kubeadm != nil {
		for _, key := range []string{"apiServer", "controllerManager", "scheduler"} {
			for _, f := range in.State.Kubeadm.ExtraArgs[key] {
				if f.Name == "feature-gates" {
					judge("extraArgs of "+key+" in ConfigMap kubeadm-config", parseGates(f.Value))
				}
			}
		}
	}
	if in.State.KubeletConfig != nil {
		judge("ConfigMap kubelet-config", bools(in.State.KubeletConfig.FeatureGates))
	}
	if in.State.ProxyConfig != nil {
		judge("ConfigMap kube-proxy", bools(in.State.ProxyConfig.FeatureGates))
	}
	for _, cm := range []string{"kubelet-config", "kube-proxy"} {
		if g := in.gap(cm, "configmap/kube-system/"+cm); g != nil {
			out = append(out, *g)
		}
	}
	if in.unread(cluster.ReadHosts) != nil && !in.managed() {
		out = append(out, *in.gap("kubelets", cluster.ReadHosts))
	}
	for _, n := range in.State.Nodes {
		if g := in.gap(n.Name, "node/"+n.Name+"/host", "node/"+n.Name+"/host/kubelet-config"); g != nil {
			out = append(out, *g)
		}
	}
	return passIfClean(out, "gates", "no gate that is named is gone or locked otherwise at %s", to)
}

// gatesAt gives the gates that are gone at a minor with the minor that dropped them, and the locked ones with their value.
func gatesAt(db *lifecycle.DB, to kubeversion.Minor) (removed, locked map[string]string) {
	removed, locked = make(map[string]string), make(map[string]string)
	for _, g := range db.EndingGates(kubeversion.Minor{}, to) {
		if g.Removed != (kubeversion.Minor{}) && g.Removed.Compare(to) <= 0 {
			removed[g.Name] = g.Removed.String()
		}
		if g.Locked != (kubeversion.Minor{}) && g.Locked.Compare(to) <= 0 {
			locked[g.Name] = strconv.FormatBool(g.LockedTo)
		}
	}
	return removed, locked
}

func argGates(args []string) map[string]string {
	out := make(map[string]string)
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--feature-gates="); ok {
			for g, val := range parseGates(v) {
				out[g] = val
			}
		}
	}
	return out
}

func parseGates(s string) map[string]string {
	out := make(map[string]string)
	for part := range strings.SplitSeq(s, ",") {
		if name, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok && name != "" {
			out[name] = strings.TrimSpace(value)
		}
	}
	return out
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
