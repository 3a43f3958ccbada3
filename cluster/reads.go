package cluster

import "strings"

// What Unread.What calls the lists of the API. Package inspect writes these names, and whoever judges a State looks for
// them: a name of its own would let a list that was not read pass for one that is empty.
const (
	ReadNodes        = "nodes"
	ReadPods         = "pods"
	ReadDeployments  = "deployments"
	ReadDaemonSets   = "daemonsets"
	ReadStatefulSets = "statefulsets"
	ReadReplicaSets  = "replicasets"
	ReadJobs         = "jobs"
	ReadBudgets      = "poddisruptionbudgets"
	ReadVolumes      = "persistentvolumes"
	ReadClaims       = "persistentvolumeclaims"
	ReadValidating   = "validatingwebhookconfigurations"
	ReadMutating     = "mutatingwebhookconfigurations"
	ReadDefinitions  = "customresourcedefinitions"
	ReadHosts        = "hosts"
)

// DrainReads are the lists without which nobody can say what a drain does: which pods go, who makes them anew, which
// budgets hold them, and which volumes tie them to their node.
func DrainReads() []string {
	return []string{ReadNodes, ReadPods, ReadDeployments, ReadDaemonSets, ReadStatefulSets, ReadReplicaSets, ReadJobs, ReadBudgets, ReadVolumes, ReadClaims}
}

// HostRead is what Unread.What calls the machine of a node as a whole; items of it follow a slash.
func HostRead(node string) string { return "node/" + node + "/host" }

// List gives the list that a name is of, as "endpointslices" of "endpointslices/ns/name".
func (u Unread) List() string {
	list, _, _ := strings.Cut(u.What, "/")
	return list
}
