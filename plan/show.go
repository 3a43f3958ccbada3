package plan

import (
	"fmt"
	"strings"
)

// Describe says in one line what a step does, for people.
func (s Step) Describe() string {
	p := s.Params
	switch s.Kind {
	case PreflightGate:
		if n := len(p.Accept); n > 0 {
			return fmt.Sprintf("run the checks for %s once more (%d accepted)", p.Version, n)
		}
		return fmt.Sprintf("run the checks for %s once more", p.Version)
	case BackupGate:
		if strings.HasSuffix(s.ID, "-again") {
			return "ask for that backup once more, before the first change"
		}
		return fmt.Sprintf("ask for a backup of level %q, at most %s old", p.BackupLevel, hours(p.BackupMaxAgeSeconds))
	case Stage:
		return fmt.Sprintf("stage %s on %s", p.Version, strings.Join(p.Nodes, ", "))
	case EtcdPatch:
		return fmt.Sprintf("take etcd on %s from %s to %s", s.Node, p.EtcdFrom.Bare(), p.EtcdVersion.Bare())
	case KubeadmApply, KubeadmNode:
		verb := "upgrade apply"
		if s.Kind == KubeadmNode {
			verb = "upgrade node"
		}
		etcdPart := ""
		if !p.EtcdVersion.IsZero() {
			etcdPart = fmt.Sprintf(" (etcd %s -> %s)", p.EtcdFrom.Bare(), p.EtcdVersion.Bare())
		}
		return fmt.Sprintf("kubeadm %s %s on %s%s", verb, p.Version, s.Node, etcdPart)
	case ControlPlaneGate:
		return fmt.Sprintf("every apiserver answers %s", p.Version)
	case Cordon:
		return "cordon " + s.Node
	case Uncordon:
		return "uncordon " + s.Node
	case Drain:
		return fmt.Sprintf("drain %s", s.Node)
	case KubeletConfig:
		return fmt.Sprintf("kubeadm upgrade node on %s (kubelet configuration)", s.Node)
	case Kubelet:
		return fmt.Sprintf("kubelet %s on %s", p.Version, s.Node)
	case Canary:
		return "canary pod on " + s.Node
	case NodeGate:
		return fmt.Sprintf("nodes and workloads as before, after %s", s.Node)
	case Verify:
		return fmt.Sprintf("verify the cluster at %s", p.Version)
	}
	return string(s.Kind)
}

func hours(seconds int) string {
	if seconds%3600 == 0 {
		return fmt.Sprintf("%dh", seconds/3600)
	}
	return fmt.Sprintf("%dm", seconds/60)
}
