package preflight

import (
	"context"
	"strings"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeadm"
)

// extraArgsOf gives the key of a component in a ClusterConfiguration.
func extraArgsOf(component string) string {
	return map[string]string{"kube-apiserver": "apiServer", "kube-controller-manager": "controllerManager", "kube-scheduler": "scheduler", "etcd": "etcd"}[component]
}

// manifestDrift finds what an upgrade would lose without a word: what somebody put into a static pod manifest by hand, or by
// kubeadm --patches.
func manifestDrift(_ context.Context, in *Input) []Result {
	if g := in.gap("control-plane", cluster.ReadNodes, cluster.ReadPods, "configmap/kube-system/kubeadm-config"); g != nil {
		return []Result{*g}
	}
	kc := in.State.Kubeadm
	if kc == nil {
		return []Result{skipped("control-plane", "kubeadm does not write the manifests of this cluster")}
	}
	var out []Result
	for _, n := range in.State.ControlPlanes() {
		for _, sp := range n.StaticPods {
			extra := make(map[string][]string)
			key := extraArgsOf(sp.Component)
			for _, f := range kc.ExtraArgs[key] {
				extra[f.Name] = append(extra[f.Name], f.Value)
			}
			lost := kubeadm.LostFlags(sp.Component, sp.Args, extra)
			for _, p := range kubeadm.LostPaths(sp.Component, sp.HostPaths, sp.Args, kc.ExtraVolumes[key]) {
				lost = append(lost, "volume "+p)
			}
			// The component still does what it did without these.
			status := Warn
			if len(lost) > 0 {
				status = Fail
			}
			lost = append(lost, kubeadm.LostResources(sp.Component, sp.Resources)...)
			if len(lost) == 0 {
				continue
			}
			remedy := "put it into " + key + ".extraArgs of ConfigMap kubeadm-config (kubectl -n kube-system edit configmap kubeadm-config), with extraVolumes for its files; or have kubeadm put it in: patchesDir in the inventory"
			if status == Warn {
				remedy = "put it into a kubeadm patch on that node, and name its directory in the inventory: patchesDir"
			}
			switch {
			case in.Goal.Target.IsZero():
				status = Warn
			case in.Goal.PatchesDir != "":
				status, remedy = Warn, "see that a patch in "+in.Goal.PatchesDir+" of node "+n.Name+" puts it in"
			}
			out = append(out, finding(status, n.Name+"/"+sp.Component, remedy,
				"the manifest of %s on node %s has %s: neither kubeadm nor ConfigMap kubeadm-config brings that, and an upgrade writes the manifest anew without it", sp.Component, n.Name, strings.Join(lost, ", ")))
		}
	}
	return passIfClean(out, "control-plane", "every flag is kubeadm's own or in ConfigMap kubeadm-config")
}

// kubeletConfigDrift names settings of nodes that kubeadm overwrites. Those without which a kubelet would not start have checks of their own.
func kubeletConfigDrift(_ context.Context, in *Input) []Result {
	const what = "configmap/kube-system/kubelet-config"
	if in.State.KubeletConfig == nil {
		if g := in.gap("kubelet-config", what); g != nil {
			return []Result{*g}
		}
		return []Result{skipped("kubelet-config", "there is no ConfigMap kubelet-config: kubeadm does not configure these kubelets")}
	}
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		if g := in.hostGap(n, "kubelet-config"); g != nil {
			return []Result{*g}
		}
		if len(h.KubeletConfigDrift) == 0 {
			return []Result{pass(n.Name, "as the ConfigMap says")}
		}
		return []Result{finding(Warn, n.Name, "put what is to stay into the ConfigMap (kubectl -n kube-system edit configmap kubelet-config), or have kubeadm put it in: patchesDir in the inventory",
			"on node %s /var/lib/kubelet/config.yaml differs from ConfigMap kubelet-config in %s: kubeadm upgrade writes the file anew from the ConfigMap", n.Name, some(h.KubeletConfigDrift))}
	})
}
