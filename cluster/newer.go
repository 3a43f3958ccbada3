package cluster

import (
	"fmt"

	"github.com/belayops/belay/internal/kubeversion"
)

// Newer names every part of a cluster that an upgrade to v would have to take back, and gives the newest of their
// versions: the control plane's own pods, what ConfigMap kubeadm-config says, and kubelets of a later minor. A kubelet
// of v's minor with a newer patch is none: it is left as it is.
func Newer(s *State, v kubeversion.V) (parts []string, newest kubeversion.V) {
	add := func(what string, at kubeversion.V) {
		parts = append(parts, fmt.Sprintf("%s (%s)", what, at))
		if newest.Less(at) {
			newest = at
		}
	}
	if s.Kubeadm != nil && v.Less(s.Kubeadm.KubernetesVersion) {
		add("ConfigMap kubeadm-config", s.Kubeadm.KubernetesVersion)
	}
	for _, n := range s.Nodes {
		for _, sp := range n.StaticPods {
			if sp.Component != "etcd" && v.Less(sp.Version) {
				add(sp.Component+" of node "+n.Name, sp.Version)
			}
		}
		if v.MinorVersion().Compare(n.Kubelet.MinorVersion()) < 0 {
			add("the kubelet of node "+n.Name, n.Kubelet)
		}
	}
	return parts, newest
}

// NewestOf gives the newest version of one minor that runs in the control plane or that ConfigMap kubeadm-config names;
// zero when there is none. A hop to that minor cannot stop below it.
func NewestOf(s *State, m kubeversion.Minor) kubeversion.V {
	var newest kubeversion.V
	see := func(v kubeversion.V) {
		if v.MinorVersion() == m && newest.Less(v) {
			newest = v
		}
	}
	if s.Kubeadm != nil {
		see(s.Kubeadm.KubernetesVersion)
	}
	for _, n := range s.Nodes {
		for _, sp := range n.StaticPods {
			if sp.Component != "etcd" {
				see(sp.Version)
			}
		}
	}
	return newest
}
