package kubeversion

import "fmt"

// Component is a part of a cluster that the skew policy speaks of.
type Component string

// The components of the skew policy.
const (
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	CloudController   Component = "cloud-controller-manager"
	Kubelet           Component = "kubelet"
	KubeProxy         Component = "kube-proxy"
	Kubectl           Component = "kubectl"
)

// Rule says how far a component may be from each of the apiservers that it may reach.
type Rule struct {
	Component Component
	// Older and Newer are the numbers of minors that it may be behind and ahead.
	Older, Newer int
	// Source is where the rule stands.
	Source string
}

// policy is the version skew policy, https://kubernetes.io/releases/version-skew-policy/.
// Apiservers are compared with each other: the oldest and the newest at most one minor apart.
var policy = map[Component]Rule{
	APIServer:         {APIServer, 1, 1, "version-skew-policy#kube-apiserver"},
	ControllerManager: {ControllerManager, 1, 0, "version-skew-policy#kube-controller-manager-kube-scheduler-and-cloud-controller-manager"},
	Scheduler:         {Scheduler, 1, 0, "version-skew-policy#kube-controller-manager-kube-scheduler-and-cloud-controller-manager"},
	CloudController:   {CloudController, 1, 0, "version-skew-policy#kube-controller-manager-kube-scheduler-and-cloud-controller-manager"},
	Kubelet:           {Kubelet, 3, 0, "version-skew-policy#kubelet"},
	KubeProxy:         {KubeProxy, 3, 0, "version-skew-policy#kube-proxy"},
	Kubectl:           {Kubectl, 1, 1, "version-skew-policy#kubectl"},
}

// KubeletProxySkew is how many minors kubelet and kube-proxy of one node may be apart, either way
// (version-skew-policy#kube-proxy).
const KubeletProxySkew = 3

// RuleFor gives the rule of a component; ok is false for a component that the policy does not name.
func RuleFor(c Component) (r Rule, ok bool) {
	r, ok = policy[c]
	return r, ok
}

// Skew checks a component of version v against one apiserver that it may reach.
// nil means allowed; the error says which rule is broken and how.
func Skew(c Component, v, apiserver V) error {
	r, ok := policy[c]
	if !ok {
		return fmt.Errorf("no skew rule for component %q", c)
	}
	d, ok := v.MinorVersion().Sub(apiserver.MinorVersion())
	if !ok {
		return fmt.Errorf("%s %s and kube-apiserver %s are of different major versions", c, v, apiserver)
	}
	switch {
	case d > r.Newer:
		return fmt.Errorf("%s %s is newer than kube-apiserver %s by %s; %s allowed (%s)", c, v, apiserver, minors(d), atMost(r.Newer), r.Source)
	case -d > r.Older:
		return fmt.Errorf("%s %s is older than kube-apiserver %s by %s; at most %s allowed (%s)", c, v, apiserver, minors(-d), minors(r.Older), r.Source)
	}
	return nil
}

// Hops gives the minors that a control plane passes on its way from one version to another, the last
// being to's own: 1.34 to 1.37 gives 1.35, 1.36, 1.37. Within one minor it gives that minor once.
// A way back, or across majors, is an error: Kubernetes supports neither.
func Hops(from, to V) ([]Minor, error) {
	if to.Compare(from) < 0 {
		return nil, fmt.Errorf("%s is older than %s: Kubernetes does not support going back", to, from)
	}
	n, ok := to.MinorVersion().Sub(from.MinorVersion())
	if !ok {
		return nil, fmt.Errorf("%s and %s are of different major versions", from, to)
	}
	if n == 0 {
		return []Minor{to.MinorVersion()}, nil
	}
	hops := make([]Minor, 0, n)
	for m := from.MinorVersion().Next(); m.Compare(to.MinorVersion()) <= 0; m = m.Next() {
		hops = append(hops, m)
	}
	return hops, nil
}

func minors(n int) string {
	if n == 1 {
		return "1 minor"
	}
	return fmt.Sprintf("%d minors", n)
}

func atMost(n int) string {
	if n == 0 {
		return "none"
	}
	return "at most " + minors(n)
}
