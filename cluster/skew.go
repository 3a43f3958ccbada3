package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/belayops/belay/internal/kubeversion"
)

// SkewProblem is one component that is too far from one apiserver that it may reach.
type SkewProblem struct {
	Component kubeversion.Component
	// Node is where the component runs.
	Node    string
	Version kubeversion.V
	// APIServer is the version that it is compared with, APIServerNode where that runs
	// ("" when only the address in the kubeconfig is known).
	APIServer     kubeversion.V
	APIServerNode string
	// Unknown says that a version could not be told, so that nothing was proved.
	Unknown bool
	// Message names component, node and rule.
	Message string
}

// Subject names the problem's component and node, as findings do: "kubelet/w1".
func (p SkewProblem) Subject() string { return string(p.Component) + "/" + p.Node }

// CheckSkew holds the version skew policy (https://kubernetes.io/releases/version-skew-policy/) against
// every component and every apiserver: behind a balancer each component may reach each of them. The exception are the
// controller-manager and scheduler of a kubeadm cluster: kubeadm points them at the apiserver of their own node, never
// at the balancer (kubernetes/kubeadm#2271), and without that an HA control plane could not be upgraded node by node at
// all. Problems come sorted by component and node, one for each pair of component and apiserver version.
func CheckSkew(s *State) []SkewProblem {
	var out []SkewProblem
	type at struct {
		v    kubeversion.V
		node string
	}
	var apis []at
	unknown := func(c kubeversion.Component, node, why string) {
		out = append(out, SkewProblem{Component: c, Node: node, Unknown: true,
			Message: fmt.Sprintf("the version of %s on node %s is not known: %s", c, node, why)})
	}
	for _, n := range s.Nodes {
		sp := n.StaticPod(string(kubeversion.APIServer))
		switch {
		case sp == nil:
		case sp.Version.IsZero():
			unknown(kubeversion.APIServer, n.Name, "its image "+sp.Image+" has no version for a tag")
		default:
			apis = append(apis, at{sp.Version, n.Name})
		}
	}
	// A managed control plane, or one without static pods, shows one apiserver: the one that answered.
	if len(apis) == 0 && !s.Version.IsZero() {
		apis = []at{{s.Version, ""}}
	}
	slices.SortFunc(apis, func(a, b at) int { return cmp.Or(a.v.Compare(b.v), cmp.Compare(a.node, b.node)) })

	check := func(c kubeversion.Component, node string, v kubeversion.V) {
		reach := apis
		if c == kubeversion.ControllerManager || c == kubeversion.Scheduler {
			if i := slices.IndexFunc(apis, func(a at) bool { return a.node == node }); i >= 0 && s.Kubeadm != nil {
				reach = apis[i : i+1]
			}
		}
		var last kubeversion.V
		for _, a := range reach {
			if !last.IsZero() && a.v.Compare(last) == 0 {
				continue
			}
			last = a.v
			if err := kubeversion.Skew(c, v, a.v); err != nil {
				where := ""
				if a.node != "" {
					where = " (kube-apiserver of node " + a.node + ")"
				}
				out = append(out, SkewProblem{Component: c, Node: node, Version: v, APIServer: a.v, APIServerNode: a.node,
					Message: fmt.Sprintf("node %s: %v%s", node, err, where)})
			}
		}
	}
	// Among each other: the oldest with the newest says it all.
	if len(apis) > 1 {
		oldest, newest := apis[0], apis[len(apis)-1]
		if err := kubeversion.Skew(kubeversion.APIServer, newest.v, oldest.v); err != nil {
			out = append(out, SkewProblem{Component: kubeversion.APIServer, Node: newest.node, Version: newest.v,
				APIServer: oldest.v, APIServerNode: oldest.node,
				Message: fmt.Sprintf("nodes %s and %s: %v", newest.node, oldest.node, err)})
		}
	}
	for _, n := range s.Nodes {
		for _, c := range []kubeversion.Component{kubeversion.ControllerManager, kubeversion.Scheduler} {
			switch sp := n.StaticPod(string(c)); {
			case sp == nil:
			case sp.Version.IsZero():
				unknown(c, n.Name, "its image "+sp.Image+" has no version for a tag")
			default:
				check(c, n.Name, sp.Version)
			}
		}
		if n.Kubelet.IsZero() {
			unknown(kubeversion.Kubelet, n.Name, "the node does not report one")
		} else {
			check(kubeversion.Kubelet, n.Name, n.Kubelet)
		}
		if n.KubeProxy.IsZero() {
			continue
		}
		check(kubeversion.KubeProxy, n.Name, n.KubeProxy)
		if n.Kubelet.IsZero() {
			continue
		}
		d, ok := n.KubeProxy.MinorVersion().Sub(n.Kubelet.MinorVersion())
		if !ok || d > kubeversion.KubeletProxySkew || -d > kubeversion.KubeletProxySkew {
			out = append(out, SkewProblem{Component: kubeversion.KubeProxy, Node: n.Name, Version: n.KubeProxy,
				Message: fmt.Sprintf("node %s: kube-proxy %s and kubelet %s are more than %d minors apart", n.Name, n.KubeProxy, n.Kubelet, kubeversion.KubeletProxySkew)})
		}
	}
	slices.SortStableFunc(out, func(a, b SkewProblem) int {
		return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Node, b.Node))
	})
	return out
}
