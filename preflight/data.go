package preflight

import (
	"slices"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

// k is the Kubernetes minor 1.n.
func k(n int) kubeversion.Minor { return kubeversion.Minor{Major: 1, Minor: n} }

// etcdOf is the etcd that the newest known kubeadm of a minor deploys by default
// (cmd/kubeadm/app/constants/constants.go of 1.33.13, 1.34.4, 1.35.4, 1.36.3, 1.37.2).
var etcdOf = map[kubeversion.Minor]kubeversion.V{
	k(31): {Major: 3, Minor: 5, Patch: 24},
	k(32): {Major: 3, Minor: 5, Patch: 24},
	k(33): {Major: 3, Minor: 5, Patch: 24},
	k(34): {Major: 3, Minor: 6, Patch: 5},
	k(35): {Major: 3, Minor: 6, Patch: 6},
	k(36): {Major: 3, Minor: 6, Patch: 8},
	k(37): {Major: 3, Minor: 7, Patch: 0},
}

// coreDNSOf is the CoreDNS that the newest known kubeadm of a minor brings; it migrates from no newer one
// (the same constants, and coredns/corefile-migration).
var coreDNSOf = map[kubeversion.Minor]kubeversion.V{
	k(31): {Major: 1, Minor: 11, Patch: 3},
	k(32): {Major: 1, Minor: 11, Patch: 3},
	k(33): {Major: 1, Minor: 12, Patch: 0},
	k(34): {Major: 1, Minor: 12, Patch: 1},
	k(35): {Major: 1, Minor: 13, Patch: 1},
	k(36): {Major: 1, Minor: 14, Patch: 2},
	k(37): {Major: 1, Minor: 14, Patch: 6},
}

// containerdFor are the containerd lines that a minor was tested with and the first patch of each
// (containerd's RELEASES.md at v2.4.2).
var containerdFor = map[kubeversion.Minor][]kubeversion.V{
	k(32): {{Major: 1, Minor: 6, Patch: 36}, {Major: 1, Minor: 7, Patch: 24}, {Major: 2, Minor: 0, Patch: 1}, {Major: 2, Minor: 1}},
	k(33): {{Major: 1, Minor: 6, Patch: 36}, {Major: 1, Minor: 7, Patch: 24}, {Major: 2, Minor: 0, Patch: 4}, {Major: 2, Minor: 1}},
	k(34): {{Major: 1, Minor: 6, Patch: 39}, {Major: 1, Minor: 7, Patch: 28}, {Major: 2, Minor: 0, Patch: 6}, {Major: 2, Minor: 1, Patch: 3}},
	k(35): {{Major: 1, Minor: 7, Patch: 28}, {Major: 2, Minor: 1, Patch: 5}, {Major: 2, Minor: 2}},
	k(36): {{Major: 2, Minor: 2}, {Major: 2, Minor: 3}},
	k(37): {{Major: 2, Minor: 3}, {Major: 2, Minor: 4}},
}

// lifecycleData is the database of API, gate and flag lifecycles; a Result when it cannot be read.
func lifecycleData(subject string) (*lifecycle.DB, *Result) {
	db, err := lifecycle.Default()
	if err != nil {
		return nil, &Result{Subject: subject, Status: Unknown, Message: err.Error(), Remedy: "report this as a bug: the data is part of the program"}
	}
	return db, nil
}

// etcd37Renames maps flags that etcd 3.7 no longer knows to what etcd 3.6 takes already (etcd-io/etcd#19959). Other
// --experimental- flags lose that prefix.
var etcd37Renames = map[string]string{
	"experimental-initial-corrupt-check":             "--feature-gates=InitialCorruptCheck=true",
	"experimental-compact-hash-check-enabled":        "--feature-gates=CompactHashCheck=true",
	"experimental-enable-lease-checkpoint":           "--feature-gates=LeaseCheckpoint=true",
	"experimental-enable-lease-checkpoint-persist":   "--feature-gates=LeaseCheckpointPersist=true",
	"experimental-stop-grpc-service-on-defrag":       "--feature-gates=StopGRPCServiceOnDefrag=true",
	"experimental-txn-mode-write-with-shared-buffer": "--feature-gates=TxnModeWriteWithSharedBuffer=true",
	"discovery":       "--discovery-token and --discovery-endpoints",
	"discovery-proxy": "--discovery-token and --discovery-endpoints",
}

// etcd36Removed are flags that etcd 3.6 no longer knows.
var etcd36Removed = []string{"enable-v2", "experimental-enable-v2v3", "proxy", "proxy-failure-wait", "proxy-refresh-interval", "proxy-dial-timeout", "proxy-write-timeout", "proxy-read-timeout"}

// badTarget is a range of patches, both ends included, that harms clusters which meet a condition.
type badTarget struct {
	id          string
	status      Status
	first, last kubeversion.V
	applies     func(s *cluster.State, from kubeversion.V) bool
	message     string
	fixed       string
	source      string
}

func v1(minor, patch int) kubeversion.V { return kubeversion.V{Major: 1, Minor: minor, Patch: patch} }

func always(*cluster.State, kubeversion.V) bool { return true }

func hasKind(kind string) func(*cluster.State, kubeversion.V) bool {
	return func(s *cluster.State, _ kubeversion.V) bool {
		for _, w := range s.Workloads {
			if w.Kind == kind {
				return true
			}
		}
		return false
	}
}

// badTargets come from the changelogs of each minor.
var badTargets = []badTarget{
	{"statefulset-spurious-rollout", Fail, v1(34, 0), v1(34, 1), func(s *cluster.State, from kubeversion.V) bool {
		return from.Minor == 33 && hasKind("StatefulSet")(s, from)
	}, "every StatefulSet rolls when the controller manager is upgraded", "1.34.2", "kubernetes/kubernetes#135087"},
	{"statefulset-parallel", Fail, v1(35, 0), v1(35, 3), func(s *cluster.State, _ kubeversion.V) bool {
		return slices.ContainsFunc(s.Workloads, func(w cluster.Workload) bool { return w.Parallel })
	}, "rollouts of StatefulSets with podManagementPolicy Parallel stall", "1.35.4", "kubernetes/kubernetes#137926"},
	{"kubeadm-flags-env-empty", Warn, v1(35, 0), v1(35, 0), always, "kubeadm's last phase fails on a node whose kubeadm-flags.env holds no flag, after its control plane moved", "1.35.1", "kubernetes/kubernetes#136131"},
	{"kubelet-memory-leak", Fail, v1(36, 0), v1(36, 2), always, "the kubelet leaks memory with every sync of a pod", "1.36.3", "kubernetes/kubernetes#140066"},
	{"endpoint-controller-panic", Warn, v1(33, 0), v1(33, 12), always, "the controller manager panics on Services from before dual-stack that were never updated", "1.33.13", "kubernetes/kubernetes#139233"},
	{"endpoint-controller-panic", Warn, v1(34, 0), v1(34, 8), always, "the controller manager panics on Services from before dual-stack that were never updated", "1.34.9", "kubernetes/kubernetes#139233"},
	{"endpoint-controller-panic", Warn, v1(35, 0), v1(35, 5), always, "the controller manager panics on Services from before dual-stack that were never updated", "1.35.6", "kubernetes/kubernetes#139233"},
	{"endpoint-controller-panic", Warn, v1(36, 0), v1(36, 1), always, "the controller manager panics on Services from before dual-stack that were never updated", "1.36.2", "kubernetes/kubernetes#139233"},
}
