package cluster

import "github.com/belayops/belay/internal/kubeversion"

// EtcdFloor is the oldest version that every etcd member must run before the
// first member of the cluster may be taken to the next etcd minor.
type EtcdFloor struct {
	// Etcd is the minor that the rolling upgrade goes to; AtLeast the floor, a version of the minor before it.
	Etcd    kubeversion.Minor `json:"etcd"`
	AtLeast kubeversion.V     `json:"atLeast"`
	// Kubernetes is the minor whose kubeadm deploys Etcd first, so the hop on which the floor counts.
	Kubernetes kubeversion.Minor `json:"kubernetes"`
	// Reason says in one line what goes wrong below the floor; Source where that is documented.
	Reason string `json:"reason"`
	Source string `json:"source"`
}

// EtcdFloors gives the documented floors, oldest first.
func EtcdFloors() []EtcdFloor {
	return []EtcdFloor{
		{
			Etcd:       kubeversion.Minor{Major: 3, Minor: 6},
			AtLeast:    kubeversion.V{Major: 3, Minor: 5, Patch: 26},
			Kubernetes: kubeversion.Minor{Major: 1, Minor: 34},
			Reason:     "older 3.5 patches lose membership writes, so removed members reappear under 3.6",
			Source:     "https://etcd.io/docs/v3.6/upgrades/upgrade_3_6/",
		},
		{
			Etcd:       kubeversion.Minor{Major: 3, Minor: 7},
			AtLeast:    kubeversion.V{Major: 3, Minor: 6, Patch: 11},
			Kubernetes: kubeversion.Minor{Major: 1, Minor: 37},
			Reason:     "older 3.6 patches may not be compatible with a rolling upgrade to 3.7",
			Source:     "https://etcd.io/docs/v3.7/upgrades/upgrade_3_7/",
		},
	}
}

// EtcdFloorFor gives the floor that a rolling upgrade to the etcd minor needs; ok is false when none is documented.
func EtcdFloorFor(etcd kubeversion.Minor) (f EtcdFloor, ok bool) {
	for _, f := range EtcdFloors() {
		if f.Etcd == etcd {
			return f, true
		}
	}
	return EtcdFloor{}, false
}

// Met says whether a member of version v may be taken to f.Etcd. A member
// that is already there, or newer, has nothing left to fulfil.
func (f EtcdFloor) Met(v kubeversion.V) bool { return !v.Less(f.AtLeast) }
