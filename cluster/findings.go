package cluster

// The ids of what preflight's checks and a plan both find. They name the same thing on the same subject, so that one
// waiver, ID@SUBJECT, is good for both. They are public and never renamed.
const (
	IDCoverage     = "coverage"
	IDTarget       = "version-target"
	IDBundles      = "bundles"
	IDSkew         = "version-skew"
	IDNodesReady   = "nodes-ready"
	IDCordoned     = "nodes-cordoned"
	IDControlPlane = "control-plane-components"
	IDKubeadm      = "kubeadm-config"
	IDQuorum       = "etcd-quorum"
	IDEtcdFloor    = "etcd-floor"
	IDBudgets      = "pdb-blocks-drain"
	IDBarePods     = "pods-without-controller"
	IDLocalData    = "pods-local-data"
)
