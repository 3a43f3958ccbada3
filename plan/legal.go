package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

// Components of a kubeadm control plane node beside etcd.
const (
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	etcd              = "etcd"
)

// Advance changes s as a step does when it succeeds.
func Advance(s *cluster.State, st Step) {
	n := s.Node(st.Node)
	switch st.Kind {
	case EtcdPatch:
		setEtcd(s, n, st.Params.EtcdVersion, st.Params.Image)
	case KubeadmApply, KubeadmNode:
		for _, c := range []string{apiServer, controllerManager, scheduler} {
			if sp := n.StaticPod(c); sp != nil {
				sp.Version = st.Params.Version
				sp.Image = withTag(sp.Image, st.Params.Version.String())
			}
		}
		if v := st.Params.EtcdVersion; !v.IsZero() {
			if sp := n.StaticPod(etcd); sp != nil && sp.Version.Less(v) {
				setEtcd(s, n, v, withTag(sp.Image, v.Bare()+"-0"))
			}
		}
		if st.Kind == KubeadmApply && s.Kubeadm != nil {
			s.Kubeadm.KubernetesVersion = st.Params.Version
		}
		// kubeadm's addon phase waits until every apiserver carries the new image.
		if oldestAPIServer(s).Compare(st.Params.Version) >= 0 {
			s.Version = st.Params.Version
			for i := range s.Nodes {
				if p := &s.Nodes[i].KubeProxy; !p.IsZero() && p.Less(st.Params.Version) {
					*p = st.Params.Version
				}
			}
		}
	case Cordon:
		n.Unschedulable = true
	case Uncordon:
		n.Unschedulable = false
	case Kubelet:
		n.Kubelet = st.Params.Version
	case PreflightGate, BackupGate, Stage, ControlPlaneGate, Drain, KubeletConfig, Canary, NodeGate, Verify:
	}
}

func setEtcd(s *cluster.State, n *cluster.Node, v kubeversion.V, image string) {
	if sp := n.StaticPod(etcd); sp != nil {
		sp.Version, sp.Image = v, image
	}
	for i := range s.Etcd.Members {
		if m := &s.Etcd.Members[i]; m.Node == n.Name || m.Name == n.Name {
			m.Version = v
		}
	}
}

func withTag(image, tag string) string {
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image + ":" + tag
}

func oldestAPIServer(s *cluster.State) kubeversion.V {
	var oldest kubeversion.V
	for _, n := range s.ControlPlanes() {
		if sp := n.StaticPod(apiServer); sp != nil && (oldest.IsZero() || sp.Version.Less(oldest)) {
			oldest = sp.Version
		}
	}
	return oldest
}

// Legal holds the version skew policy (cluster.CheckSkew) against a state.
func Legal(s *cluster.State) error {
	var errs []error
	for _, p := range cluster.CheckSkew(s) {
		errs = append(errs, errors.New(p.Message))
	}
	return errors.Join(errs...)
}

// violations gives what breaks the skew policy, by component and node.
func violations(s *cluster.State) map[string][]string {
	out := map[string][]string{}
	for _, p := range cluster.CheckSkew(s) {
		out[p.Subject()] = append(out[p.Subject()], p.Message)
	}
	return out
}

// legalStep says what stands against one step's beginning in s.
func legalStep(s *cluster.State, st Step) []Finding {
	var out []Finding
	control := st.Kind == KubeadmApply || st.Kind == KubeadmNode
	if (st.Kind == EtcdPatch || control) && !s.Etcd.External {
		q := cluster.QuorumAfter(s.Etcd, cluster.EtcdOp{Action: cluster.EtcdRestart, Members: []string{st.Node}})
		if err := q.Err(); err != nil {
			out = append(out, Finding{ID: cluster.IDQuorum, Subject: st.Node, Severity: Block,
				Message: fmt.Sprintf("restarting etcd on node %s is not safe: %v", st.Node, err),
				Remedy:  "bring every etcd member to health first, then plan again"})
		}
		if err := floorMet(s, st.Params.EtcdVersion); control && err != nil {
			out = append(out, Finding{ID: cluster.IDEtcdFloor, Subject: "etcd-" + st.Params.EtcdVersion.MinorVersion().String(), Severity: Block, Waivable: true,
				Message: err.Error(),
				Remedy:  "use a bundle that has an etcd step image (belay bundle build), or take the members to that patch by hand first"})
		}
	}
	if st.Kind == Kubelet {
		if oldest := oldestAPIServer(s); oldest.Less(st.Params.Version) {
			out = append(out, Finding{ID: cluster.IDSkew, Subject: "kubelet/" + st.Node, Severity: Block,
				Message: fmt.Sprintf("kubelet %s on node %s would be newer than kube-apiserver %s", st.Params.Version, st.Node, oldest)})
		}
	}
	return out
}

// floorMet asks whether every member may be followed by the etcd that the step brings; none, if it leaves etcd alone.
func floorMet(s *cluster.State, target kubeversion.V) error {
	if target.IsZero() {
		return nil
	}
	var below []error
	for _, p := range cluster.CheckEtcdFloor(s.Etcd.Members, target) {
		// A member that is newer than what a step brings was patched by somebody: kubeadm leaves it as it is.
		if !p.Advice && !target.Less(p.Member.Version) {
			below = append(below, errors.New(p.Message))
		}
	}
	return errors.Join(below...)
}

// clone copies what Advance changes.
func clone(s *cluster.State) *cluster.State {
	c := *s
	c.Nodes = slices.Clone(s.Nodes)
	for i := range c.Nodes {
		c.Nodes[i].StaticPods = slices.Clone(s.Nodes[i].StaticPods)
	}
	c.Etcd.Members = slices.Clone(s.Etcd.Members)
	if s.Kubeadm != nil {
		k := *s.Kubeadm
		c.Kubeadm = &k
	}
	return &c
}
