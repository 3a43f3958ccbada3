// Package cluster holds what was observed of a Kubernetes cluster at one time,
// as a value that can be written to a file, and what follows from it: skew,
// quorum, the projection that a plan relies on.
//
// It is pure: no I/O, no clock, no client. Package inspect fills a State from
// a live cluster; preflight and plan read it.
package cluster

import (
	"time"

	"github.com/belayops/belay/internal/kubeversion"
)

// StateSchema names the format of a State file.
const StateSchema = "belay.dev/state/v1"

// State is what was observed of one cluster. It never holds Secret data.
type State struct {
	Schema   string    `json:"schema"`
	Observed time.Time `json:"observed"`
	// Tool is the version of belay that observed it.
	Tool string `json:"tool,omitempty"`
	// Name is the cluster's name as kubeadm-config or the kubeconfig has it.
	Name string `json:"name,omitempty"`
	// Lineage is the UID of namespace kube-system: the identity of the cluster.
	Lineage string `json:"lineage"`
	// Server is the URL that the kubeconfig names; Version what answered there.
	Server  string        `json:"server,omitempty"`
	Version kubeversion.V `json:"version"`

	Kubeadm *Kubeadm `json:"kubeadm,omitempty"`
	// KubeletConfig is of ConfigMap kubelet-config: what `kubeadm upgrade node` writes to each node.
	KubeletConfig *KubeletConfig `json:"kubeletConfig,omitempty"`
	// ProxyConfig is of ConfigMap kube-proxy; nil without kubeadm's kube-proxy.
	ProxyConfig *ProxyConfig `json:"proxyConfig,omitempty"`
	Nodes       []Node       `json:"nodes,omitempty"`
	Etcd        Etcd         `json:"etcd"`
	Addons      []Addon      `json:"addons,omitempty"`
	Pods        []Pod        `json:"pods,omitempty"`
	Workloads   []Workload   `json:"workloads,omitempty"`
	PDBs        []PDB        `json:"pdbs,omitempty"`
	Webhooks    []Webhook    `json:"webhooks,omitempty"`

	// Unread says what could not be observed. Whoever judges a State treats each as unknown, never as fine.
	Unread []Unread `json:"unread,omitempty"`
}

// Unread is something that was asked for and could not be read.
type Unread struct {
	// What names it: "pods", "node/w1/host", "etcd/member/cp1".
	What string `json:"what"`
	// Why is the reason, for people.
	Why string `json:"why"`
	// Kind is one of the Unread kinds below.
	Kind string `json:"kind"`
}

// The kinds of Unread.
const (
	// UnreadForbidden: the credentials do not allow it.
	UnreadForbidden = "forbidden"
	// UnreadUnreachable: the work never started, as no connection came about.
	UnreadUnreachable = "unreachable"
	// UnreadTimeout: no answer within the time limit.
	UnreadTimeout = "timeout"
	// UnreadLost: begun, and nobody knows how it ended.
	UnreadLost = "lost"
	// UnreadNotFound: it was looked for and is not there.
	UnreadNotFound = "not-found"
	// UnreadMalformed: it was read and makes no sense.
	UnreadMalformed = "malformed"
	// UnreadNotAsked: nothing was there to ask with, as no access to the machines was configured.
	UnreadNotAsked = "not-asked"
	// UnreadFailed: it was asked for and answered with an error of another kind.
	UnreadFailed = "failed"
)

// Kubeadm is what ConfigMap kube-system/kubeadm-config says.
type Kubeadm struct {
	APIVersion           string            `json:"apiVersion"`
	KubernetesVersion    kubeversion.V     `json:"kubernetesVersion"`
	ClusterName          string            `json:"clusterName,omitempty"`
	ControlPlaneEndpoint string            `json:"controlPlaneEndpoint,omitempty"`
	ImageRepository      string            `json:"imageRepository,omitempty"`
	PodSubnet            string            `json:"podSubnet,omitempty"`
	ServiceSubnet        string            `json:"serviceSubnet,omitempty"`
	EtcdExternal         bool              `json:"etcdExternal,omitempty"`
	EtcdImageTag         string            `json:"etcdImageTag,omitempty"`
	EtcdImageRepository  string            `json:"etcdImageRepository,omitempty"`
	FeatureGates         map[string]bool   `json:"featureGates,omitempty"`
	ExtraArgs            map[string][]Flag `json:"extraArgs,omitempty"`
	// ExtraVolumes are the host paths of extraVolumes, by component as in ExtraArgs.
	ExtraVolumes map[string][]string `json:"extraVolumes,omitempty"`
}

// KubeletConfig is the part of a KubeletConfiguration that an upgrade depends on; nil pointers are not set.
type KubeletConfig struct {
	FailCgroupV1 *bool           `json:"failCgroupV1,omitempty"`
	FailSwapOn   *bool           `json:"failSwapOn,omitempty"`
	CgroupDriver string          `json:"cgroupDriver,omitempty"`
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// EvictionHard are thresholds by signal, as "imagefs.available": "15%" or "1Gi"; nil is the kubelet's own. With a list, a signal that is not in it
	// has none.
	EvictionHard map[string]string `json:"evictionHard,omitempty"`
	// ImageGCHighThresholdPercent is how full the disk is when unused images are deleted; nil is 85.
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`
}

// ProxyConfig is the part of a KubeProxyConfiguration that an upgrade depends on.
type ProxyConfig struct {
	// Mode is iptables, ipvs or nftables; "" is the default, iptables.
	Mode         string          `json:"mode,omitempty"`
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
}

// Flag is one command-line flag of a component.
type Flag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Source is the file, or "running process", where it was found; empty when it does not matter.
	Source string `json:"source,omitempty"`
}

// Node is one node, as the API and, where reachable, its host tell it.
type Node struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
	// ControlPlane says whether it carries the label node-role.kubernetes.io/control-plane.
	ControlPlane  bool              `json:"controlPlane"`
	Ready         bool              `json:"ready"`
	ReadyReason   string            `json:"readyReason,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
	Taints        []Taint           `json:"taints,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"` // only those under belay.dev/
	Zone          string            `json:"zone,omitempty"`
	InternalIP    string            `json:"internalIP,omitempty"`
	Kubelet       kubeversion.V     `json:"kubelet"`
	// KubeProxy is the version of the kube-proxy pod on the node, by its image tag; zero without one.
	KubeProxy        kubeversion.V `json:"kubeProxy,omitzero"`
	ContainerRuntime string        `json:"containerRuntime,omitempty"`
	OSImage          string        `json:"osImage,omitempty"`
	Kernel           string        `json:"kernel,omitempty"`
	Architecture     string        `json:"architecture,omitempty"`
	Allocatable      Resources     `json:"allocatable"`
	// Conditions holds pressure and other conditions that are not as they should be.
	Conditions []NodeCondition `json:"conditions,omitempty"`
	// StaticPods are the control plane's own pods on this node.
	StaticPods []StaticPod `json:"staticPods,omitempty"`
	// Host is what the machine itself said; nil when it was not asked.
	Host *HostFacts `json:"host,omitempty"`
}

// NodeCondition is a node condition with a value that needs attention.
type NodeCondition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Taint is a node's taint.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Resources are amounts that the scheduler counts.
type Resources struct {
	MilliCPU    int64 `json:"milliCPU"`
	MemoryBytes int64 `json:"memoryBytes"`
	Pods        int64 `json:"pods,omitempty"`
}

// StaticPod is a control plane component on one node, by its mirror pod and, where the host was read, its manifest.
type StaticPod struct {
	// Component is kube-apiserver, kube-controller-manager, kube-scheduler or etcd.
	Component string `json:"component"`
	UID       string `json:"uid,omitempty"`
	// ConfigHash is annotation kubernetes.io/config.hash of the mirror pod: what the kubelet runs.
	ConfigHash string `json:"configHash,omitempty"`
	// Image is what the mirror pod runs; ManifestImage what the file on the host says ("" when not read or absent).
	Image         string        `json:"image,omitempty"`
	Version       kubeversion.V `json:"version"` // of the image tag; zero when it is no version
	Ready         bool          `json:"ready"`
	Restarts      int32         `json:"restarts,omitempty"`
	ManifestImage string        `json:"manifestImage,omitempty"`
	Args          []string      `json:"args,omitempty"`
	// HostPaths are the paths of the machine that it mounts.
	HostPaths []string `json:"hostPaths,omitempty"`
	// Resources are what its container asks for and is bounded by, as "requests.cpu=250m" or "limits.memory=1Gi", sorted.
	Resources []string `json:"resources,omitempty"`
}

// HostFacts is what a machine says of itself.
type HostFacts struct {
	// CgroupVersion is 1 or 2; 0 when it could not be told.
	CgroupVersion int `json:"cgroupVersion"`
	// FailCgroupV1 is the kubelet's setting; nil when its configuration does not set it.
	FailCgroupV1 *bool `json:"failCgroupV1,omitempty"`
	// KubeletBinary and KubeadmBinary are the versions of the binaries on disk.
	KubeletBinary kubeversion.V `json:"kubeletBinary"`
	KubeadmBinary kubeversion.V `json:"kubeadmBinary"`
	// KubeletActive is what systemd says of the kubelet's unit: active, inactive, failed, activating.
	KubeletActive string `json:"kubeletActive,omitempty"`
	// KubeletFeatureGates, CgroupDriver and FailSwapOn are of the kubelet's configuration file.
	KubeletFeatureGates map[string]bool `json:"kubeletFeatureGates,omitempty"`
	CgroupDriver        string          `json:"cgroupDriver,omitempty"`
	FailSwapOn          *bool           `json:"failSwapOn,omitempty"`
	// KubeletConfigDrift names the settings of the kubelet's configuration file that are not as ConfigMap kubelet-config has them,
	// but for those that kubeadm itself sets by node.
	KubeletConfigDrift []string `json:"kubeletConfigDrift,omitempty"`
	// KubeletFlags is KUBELET_KUBEADM_ARGS and KUBELET_EXTRA_ARGS.
	KubeletFlags []Flag `json:"kubeletFlags,omitempty"`
	Containerd   string `json:"containerd,omitempty"`
	Runc         string `json:"runc,omitempty"`
	// SwapBytes is the total of active swap.
	SwapBytes int64 `json:"swapBytes"`
	// Disks are the file systems that an upgrade writes to.
	Disks []Disk `json:"disks,omitempty"`
	// Certificates are those under /etc/kubernetes, of control plane nodes, and the kubelet's own.
	Certificates []Certificate `json:"certificates,omitempty"`
	// HeldPackages are Kubernetes packages of the distribution that are installed and on hold;
	// UnheldPackages those that an unattended update could change.
	HeldPackages   []string `json:"heldPackages,omitempty"`
	UnheldPackages []string `json:"unheldPackages,omitempty"`
	// Clock is the machine's clock minus the observer's.
	ClockOffset time.Duration `json:"clockOffset"`
	// Manifests are the components that have a static pod manifest on the machine.
	Manifests []string `json:"manifests,omitempty"`
	// KubeadmResidue lists /etc/kubernetes/tmp/kubeadm-* directories (each holds a copy of etcd's data).
	KubeadmResidue []string `json:"kubeadmResidue,omitempty"`
	// KubeadmResidueBytes is what they take together.
	KubeadmResidueBytes int64 `json:"kubeadmResidueBytes,omitempty"`
}

// Disk is the free space at a path.
type Disk struct {
	Path       string `json:"path"`
	FreeBytes  int64  `json:"freeBytes"`
	TotalBytes int64  `json:"totalBytes"`
	// UsedBytes is what lies under Path itself, where it was measured (etcd's data directory); -1 otherwise.
	UsedBytes int64 `json:"usedBytes"`
}

// Certificate is one X.509 certificate's name and end.
type Certificate struct {
	Path     string    `json:"path"`
	Subject  string    `json:"subject"`
	CA       bool      `json:"ca,omitempty"`
	NotAfter time.Time `json:"notAfter"`
}

// Etcd is the etcd cluster behind the apiservers.
type Etcd struct {
	// Reached says whether any member answered. False on managed control planes, where Unread says so.
	Reached bool `json:"reached"`
	// External says that etcd is not run by kubeadm's static pods.
	External bool `json:"external,omitempty"`
	// ClusterVersion is what the members agreed on, from GET /version (etcdcluster): "3.6.0".
	ClusterVersion string       `json:"clusterVersion,omitempty"`
	Members        []EtcdMember `json:"members,omitempty"`
	Alarms         []EtcdAlarm  `json:"alarms,omitempty"`
	Revision       int64        `json:"revision,omitempty"`
}

// EtcdMember is one member and what it said of itself.
type EtcdMember struct {
	ID         string   `json:"id"` // hexadecimal
	Name       string   `json:"name"`
	Node       string   `json:"node,omitempty"`
	PeerURLs   []string `json:"peerURLs,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
	Learner    bool     `json:"learner,omitempty"`
	Leader     bool     `json:"leader,omitempty"`
	// Healthy says that it answered a status request and has a leader; Problem why not.
	Healthy bool          `json:"healthy"`
	Problem string        `json:"problem,omitempty"`
	Version kubeversion.V `json:"version"` // of etcd itself, 3.6.8
	// Sizes in bytes; Quota is 0 when the default of 2 GiB is in force.
	DBSize      int64  `json:"dbSize,omitempty"`
	DBSizeInUse int64  `json:"dbSizeInUse,omitempty"`
	Quota       int64  `json:"quota,omitempty"`
	RaftIndex   uint64 `json:"raftIndex,omitempty"`
	RaftApplied uint64 `json:"raftApplied,omitempty"`
}

// EtcdAlarm is an alarm that a member raised.
type EtcdAlarm struct {
	MemberID string `json:"memberID"`
	Alarm    string `json:"alarm"` // NOSPACE or CORRUPT
}

// Addon is a part that kubeadm upgrades with the control plane: coredns, kube-proxy.
type Addon struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"` // Deployment or DaemonSet
	Namespace string `json:"namespace"`
	Image     string `json:"image"`
	Desired   int32  `json:"desired"`
	Ready     int32  `json:"ready"`
}

// Pod is a pod as far as a drain and the baseline need it.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Node      string `json:"node,omitempty"`
	Phase     string `json:"phase"`
	Ready     bool   `json:"ready"`
	// Owner is the controller, "ReplicaSet/web-6d4", empty for a pod without one.
	Owner string `json:"owner,omitempty"`
	// Workload is the topmost controller, "Deployment/shop/web", empty for a pod without one.
	Workload    string            `json:"workload,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Mirror      bool              `json:"mirror,omitempty"`
	Terminating bool              `json:"terminating,omitempty"`
	Requests    Resources         `json:"requests"`
	EmptyDir    bool              `json:"emptyDir,omitempty"`
	// GitRepo says that it has a volume of the removed kind gitRepo.
	GitRepo bool `json:"gitRepo,omitempty"`
	// LocalVolume says that a volume of the pod is tied to its node (local, hostPath PV).
	LocalVolume  bool              `json:"localVolume,omitempty"`
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	Tolerations  []Toleration      `json:"tolerations,omitempty"`
	// Constrained says that affinity, anti-affinity, topology spread or claims limit where it may go,
	// in ways that a simulation over this State does not decide.
	Constrained bool  `json:"constrained,omitempty"`
	GraceSecs   int64 `json:"graceSeconds,omitempty"`
	Restarts    int32 `json:"restarts,omitempty"`
	// Waiting is the reason of a container that does not run, as in CrashLoopBackOff.
	Waiting string `json:"waiting,omitempty"`
}

// Toleration is a pod's toleration.
type Toleration struct {
	Key      string `json:"key,omitempty"`
	Operator string `json:"operator,omitempty"`
	Value    string `json:"value,omitempty"`
	Effect   string `json:"effect,omitempty"`
}

// Workload is a controller of pods and how many of them it wants and has.
type Workload struct {
	Kind       string `json:"kind"` // Deployment, StatefulSet, DaemonSet, Job, ReplicaSet (without owner)
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	Desired    int32  `json:"desired"`
	Ready      int32  `json:"ready"`
	// Revision is the current pod template's hash or revision: a change without a new generation is a rollout nobody asked for.
	Revision string `json:"revision,omitempty"`
	// MaxUnavailable is a StatefulSet's rolling update's, "" when not set; Parallel its pod management policy.
	MaxUnavailable string `json:"maxUnavailable,omitempty"`
	Parallel       bool   `json:"parallel,omitempty"`
}

// ID names the workload as findings and waivers do: Kind/namespace/name.
func (w Workload) ID() string { return w.Kind + "/" + w.Namespace + "/" + w.Name }

// PDB is a PodDisruptionBudget with its status.
type PDB struct {
	Namespace          string `json:"namespace"`
	Name               string `json:"name"`
	MinAvailable       string `json:"minAvailable,omitempty"`
	MaxUnavailable     string `json:"maxUnavailable,omitempty"`
	UnhealthyEviction  string `json:"unhealthyPodEvictionPolicy,omitempty"`
	DisruptionsAllowed int32  `json:"disruptionsAllowed"`
	CurrentHealthy     int32  `json:"currentHealthy"`
	DesiredHealthy     int32  `json:"desiredHealthy"`
	ExpectedPods       int32  `json:"expectedPods"`
	// Owner is the object that made it, "Cluster/db" with its group in Group; "" when nobody is named.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	// Pods are the pods it selects, "namespace/name", as its selector matches now.
	Pods []string `json:"pods,omitempty"`
	// Stale says that status.observedGeneration is behind.
	Stale bool `json:"stale,omitempty"`
}

// Holds says whether the API asks the budget before it evicts the pod, which the budget selects: not for one that does not run, and not
// for one that is not ready where the policy lets it go (pkg/registry/core/pod/storage/eviction.go, KEP-3017).
func (b PDB) Holds(p Pod) bool {
	switch {
	case p.PastBudgets():
		return false
	case p.Ready:
		return true
	case b.UnhealthyEviction == "AlwaysAllow":
		return false
	}
	// Without a policy, and with IfHealthyBudget: as long as the application itself has what it wants.
	return b.CurrentHealthy < b.DesiredHealthy || b.DesiredHealthy <= 0
}

// PastBudgets says that the API evicts the pod without asking any budget.
func (p Pod) PastBudgets() bool {
	return p.Terminating || p.Phase == "Succeeded" || p.Phase == "Failed" || p.Phase == "Pending"
}

// Webhook is one admission webhook and whether somebody answers for it.
type Webhook struct {
	// Kind is ValidatingWebhookConfiguration or MutatingWebhookConfiguration; CRD conversion is CustomResourceDefinition.
	Kind          string `json:"kind"`
	Configuration string `json:"configuration"`
	Name          string `json:"name"`
	// FailurePolicy is Fail or Ignore.
	FailurePolicy string `json:"failurePolicy"`
	// Service is "namespace/name" when the webhook is reached through one, else URL is set.
	Service string `json:"service,omitempty"`
	URL     string `json:"url,omitempty"`
	// ReadyEndpoints counts the ready addresses behind Service; -1 when unknown.
	ReadyEndpoints int `json:"readyEndpoints"`
	// EndpointNodes are the nodes of the ready addresses, as far as they are told.
	EndpointNodes  []string `json:"endpointNodes,omitempty"`
	TimeoutSeconds int32    `json:"timeoutSeconds,omitempty"`
	// MatchesPods, MatchesNodes and MatchesLeases say whether it can stand in the way of an upgrade.
	MatchesPods   bool `json:"matchesPods,omitempty"`
	MatchesNodes  bool `json:"matchesNodes,omitempty"`
	MatchesLeases bool `json:"matchesLeases,omitempty"`
	// NamespaceSelector and ObjectSelector narrow what it matches, as kubectl prints selectors; "" matches
	// everything. MatchConditions counts its CEL conditions, which narrow it in ways that are not looked at.
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	ObjectSelector    string `json:"objectSelector,omitempty"`
	MatchConditions   int    `json:"matchConditions,omitempty"`
	// ExemptsKubeSystem says that its namespaceSelector leaves kube-system out.
	ExemptsKubeSystem bool `json:"exemptsKubeSystem,omitempty"`
}

// Node gives the node of that name, or nil.
func (s *State) Node(name string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// ControlPlanes gives the control plane nodes, in the order of Nodes.
func (s *State) ControlPlanes() []*Node { return s.nodes(true) }

// Workers gives the other nodes, in the order of Nodes.
func (s *State) Workers() []*Node { return s.nodes(false) }

func (s *State) nodes(controlPlane bool) []*Node {
	var out []*Node
	for i := range s.Nodes {
		if s.Nodes[i].ControlPlane == controlPlane {
			out = append(out, &s.Nodes[i])
		}
	}
	return out
}

// StaticPod gives a node's static pod of a component, or nil.
func (n *Node) StaticPod(component string) *StaticPod {
	for i := range n.StaticPods {
		if n.StaticPods[i].Component == component {
			return &n.StaticPods[i]
		}
	}
	return nil
}
