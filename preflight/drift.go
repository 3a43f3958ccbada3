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
			if lost == nil {
				continue
			}
			status := Fail
			remedy := "put it into " + key + ".extraArgs of ConfigMap kubeadm-config (kubectl -n kube-system edit configmap kubeadm-config), with extraVolumes for its files; or have kubeadm put it in: patchesDir in the inventory"
			switch {
			case in.Goal.Target.IsZero():
				status = Warn
			case in.Goal.PatchesDir != "":
				status, remedy = Warn, "see that a patch in "+in.Goal.PatchesDir+" of node "+n.Name+" puts it in"
			}
			out = append(out, finding(status, n.Name+"/"+sp.Component, remedy,
				"the manifest of %s on node %s has %s, which kubeadm does not write and ConfigMap kubeadm-config does not have: an upgrade writes the manifest anew without it", sp.Component, n.Name, strings.Join(lost, ", ")))
		}
	}
	return passIfClean(out, "control-plane", "every flag is kubeadm's own or in ConfigMap kubeadm-config")
}
