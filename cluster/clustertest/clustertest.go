// Package clustertest builds cluster states for tests: a healthy kubeadm
// cluster by default, and options that break it in one way each. It makes no
// use of package testing, so that examples and tools can have its states too.
package clustertest

import (
	"fmt"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

// Observed is when every built State was observed.
var Observed = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// Option changes a State that is being built.
type Option func(*cluster.State)

// EtcdFor is the etcd that kubeadm of a Kubernetes minor deploys by default (kubeadm's constants, newest patches).
func EtcdFor(v kubeversion.V) kubeversion.V {
	switch {
	case v.Minor >= 37:
		return kubeversion.MustParse("3.7.0")
	case v.Minor == 36:
		return kubeversion.MustParse("3.6.8")
	case v.Minor >= 34:
		return kubeversion.MustParse("3.6.6")
	}
	return kubeversion.MustParse("3.5.24")
}

// New gives a healthy kubeadm cluster of a version with control plane nodes cp1.. and workers w1..,
// cgroup v2, large disks, certificates for another year, and the options applied in order.
// A version that does not parse panics.
func New(version string, controlPlanes, workers int, opts ...Option) *cluster.State {
	v := kubeversion.MustParse(version)
	s := &cluster.State{
		Schema: cluster.StateSchema, Observed: Observed, Name: "kubernetes",
		Lineage: "11111111-2222-3333-4444-555555555555", Server: "https://10.0.0.10:6443", Version: v,
		Kubeadm: &cluster.Kubeadm{
			APIVersion: "kubeadm.k8s.io/v1beta4", KubernetesVersion: v, ClusterName: "kubernetes",
			ControlPlaneEndpoint: "10.0.0.10:6443", ImageRepository: "registry.k8s.io",
			PodSubnet: "10.244.0.0/16", ServiceSubnet: "10.96.0.0/12",
		},
		KubeletConfig: &cluster.KubeletConfig{CgroupDriver: "systemd"},
		ProxyConfig:   &cluster.ProxyConfig{Mode: "iptables"},
		Etcd:          cluster.Etcd{Reached: true, ClusterVersion: fmt.Sprintf("%d.%d.0", EtcdFor(v).Major, EtcdFor(v).Minor), Revision: 4711},
		Addons: []cluster.Addon{
			{Name: "coredns", Kind: "Deployment", Namespace: "kube-system", Image: "registry.k8s.io/coredns/coredns:v1.14.2", Desired: 2, Ready: 2},
			{Name: "kube-proxy", Kind: "DaemonSet", Namespace: "kube-system", Image: "registry.k8s.io/kube-proxy:" + v.String(),
				Desired: int32(controlPlanes + workers), Ready: int32(controlPlanes + workers)}, //nolint:gosec // small
		},
	}
	for i := 1; i <= controlPlanes; i++ {
		s.Nodes = append(s.Nodes, node(v, fmt.Sprintf("cp%d", i), i, true))
		s.Etcd.Members = append(s.Etcd.Members, cluster.EtcdMember{
			ID: fmt.Sprintf("%016x", 0xa0+i), Name: fmt.Sprintf("cp%d", i), Node: fmt.Sprintf("cp%d", i),
			PeerURLs:   []string{fmt.Sprintf("https://10.0.0.%d:2380", i)},
			ClientURLs: []string{fmt.Sprintf("https://10.0.0.%d:2379", i)},
			Leader:     i == 1, Healthy: true, Version: EtcdFor(v), DBSize: 50 << 20, DBSizeInUse: 30 << 20, RaftIndex: 5000, RaftApplied: 5000,
		})
	}
	for i := 1; i <= workers; i++ {
		s.Nodes = append(s.Nodes, node(v, fmt.Sprintf("w%d", i), 100+i, false))
	}
	for _, o := range opts {
		o(s)
	}
	return s
}

func node(v kubeversion.V, name string, i int, controlPlane bool) cluster.Node {
	n := cluster.Node{
		Name: name, UID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i), ControlPlane: controlPlane, Ready: true,
		InternalIP: fmt.Sprintf("10.0.0.%d", i), Zone: fmt.Sprintf("zone-%c", 'a'+(i-1)%3),
		Kubelet: v, KubeProxy: v, ContainerRuntime: "containerd://2.4.2", OSImage: "Debian GNU/Linux 12 (bookworm)",
		Kernel: "6.1.0", Architecture: "amd64",
		Allocatable: cluster.Resources{MilliCPU: 4000, MemoryBytes: 16 << 30, Pods: 110},
		Host: &cluster.HostFacts{
			CgroupVersion: 2, KubeletBinary: v, KubeadmBinary: v, KubeletActive: "active", CgroupDriver: "systemd",
			Containerd: "2.4.2", Runc: "1.5.3",
			Disks: []cluster.Disk{
				{Path: "/", FreeBytes: 40 << 30, TotalBytes: 100 << 30, UsedBytes: -1},
				{Path: "/var/lib/kubelet", FreeBytes: 40 << 30, TotalBytes: 100 << 30, UsedBytes: -1},
				{Path: "/var/lib/containerd", FreeBytes: 40 << 30, TotalBytes: 100 << 30, UsedBytes: -1},
			},
			Certificates: []cluster.Certificate{
				{Path: "/var/lib/kubelet/pki/kubelet-client-current.pem", Subject: "CN=system:node:" + name + ",O=system:nodes", NotAfter: Observed.AddDate(1, 0, 0)},
			},
		},
	}
	if !controlPlane {
		return n
	}
	n.Taints = []cluster.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"}}
	n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	n.Host.Disks = append(n.Host.Disks,
		cluster.Disk{Path: "/var/lib/etcd", FreeBytes: 40 << 30, TotalBytes: 100 << 30, UsedBytes: 200 << 20},
		cluster.Disk{Path: "/etc/kubernetes", FreeBytes: 40 << 30, TotalBytes: 100 << 30, UsedBytes: -1})
	n.Host.Certificates = append(n.Host.Certificates,
		cluster.Certificate{Path: "/etc/kubernetes/pki/apiserver.crt", Subject: "CN=kube-apiserver", NotAfter: Observed.AddDate(1, 0, 0)},
		cluster.Certificate{Path: "/etc/kubernetes/pki/ca.crt", Subject: "CN=kubernetes", CA: true, NotAfter: Observed.AddDate(10, 0, 0)})
	for _, c := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		cv, image := v, "registry.k8s.io/"+c+":"+v.String()
		if c == "etcd" {
			cv = EtcdFor(v)
			image = "registry.k8s.io/etcd:" + cv.Bare() + "-0"
		}
		n.StaticPods = append(n.StaticPods, cluster.StaticPod{
			Component: c, UID: fmt.Sprintf("%s-%d", c, i), ConfigHash: fmt.Sprintf("hash-%s-%s", c, cv),
			Image: image, ManifestImage: image, Version: cv, Ready: true, Args: []string{c},
		})
		n.Host.Manifests = append(n.Host.Manifests, c)
	}
	return n
}

// Node applies f to the node of that name; a name that is not there panics.
func Node(name string, f func(*cluster.Node)) Option {
	return func(s *cluster.State) {
		n := s.Node(name)
		if n == nil {
			panic("clustertest: no node " + name)
		}
		f(n)
	}
}

// NotReady makes a node not ready.
func NotReady(name, reason string) Option {
	return Node(name, func(n *cluster.Node) { n.Ready, n.ReadyReason = false, reason })
}

// Component gives a component of a control plane node another version; kubelet and kube-proxy are components too.
func Component(nodeName, component, version string) Option {
	v := kubeversion.MustParse(version)
	return Node(nodeName, func(n *cluster.Node) {
		switch component {
		case "kubelet":
			n.Kubelet = v
		case "kube-proxy":
			n.KubeProxy = v
		default:
			sp := n.StaticPod(component)
			sp.Version, sp.Image = v, "registry.k8s.io/"+component+":"+v.String()
			sp.ManifestImage = sp.Image
		}
	})
}

// Member applies f to an etcd member by name; a name that is not there panics.
func Member(name string, f func(*cluster.EtcdMember)) Option {
	return func(s *cluster.State) {
		for i := range s.Etcd.Members {
			if s.Etcd.Members[i].Name == name {
				f(&s.Etcd.Members[i])
				return
			}
		}
		panic("clustertest: no etcd member " + name)
	}
}

// Etcd gives every member a version.
func Etcd(version string) Option {
	v := kubeversion.MustParse(version)
	return func(s *cluster.State) {
		for i := range s.Etcd.Members {
			s.Etcd.Members[i].Version = v
		}
		for i := range s.Nodes {
			if sp := s.Nodes[i].StaticPod("etcd"); sp != nil {
				sp.Version, sp.Image, sp.ManifestImage = v, "registry.k8s.io/etcd:"+v.Bare()+"-0", "registry.k8s.io/etcd:"+v.Bare()+"-0"
			}
		}
	}
}

// Deployment adds a Deployment with its ready pods, spread over the named nodes in turn, all with label app=name.
func Deployment(namespace, name string, replicas int, nodes ...string) Option {
	return func(s *cluster.State) {
		s.Workloads = append(s.Workloads, cluster.Workload{Kind: "Deployment", Namespace: namespace, Name: name,
			UID: "deploy-" + namespace + "-" + name, Generation: 1, Desired: int32(replicas), Ready: int32(replicas), Revision: "1"}) //nolint:gosec // small
		for i := range replicas {
			pod := cluster.Pod{Namespace: namespace, Name: fmt.Sprintf("%s-6d4-%05d", name, i), UID: fmt.Sprintf("pod-%s-%s-%d", namespace, name, i),
				Phase: "Running", Ready: true, Owner: "ReplicaSet/" + name + "-6d4", Workload: "Deployment/" + namespace + "/" + name,
				Labels: map[string]string{"app": name}, Requests: cluster.Resources{MilliCPU: 100, MemoryBytes: 64 << 20}, GraceSecs: 30}
			if len(nodes) > 0 {
				pod.Node = nodes[i%len(nodes)]
			}
			s.Pods = append(s.Pods, pod)
		}
	}
}

// BarePod adds a pod without a controller.
func BarePod(namespace, name, nodeName string) Option {
	return func(s *cluster.State) {
		s.Pods = append(s.Pods, cluster.Pod{Namespace: namespace, Name: name, UID: "pod-" + namespace + "-" + name, Node: nodeName, Phase: "Running", Ready: true})
	}
}

// PDB adds a budget over every pod of the state with label app=name, allowing that many disruptions.
func PDB(namespace, name string, allowed int32) Option {
	return func(s *cluster.State) {
		b := cluster.PDB{Namespace: namespace, Name: name, DisruptionsAllowed: allowed}
		for _, p := range s.Pods {
			if p.Namespace == namespace && p.Labels["app"] == name {
				b.Pods = append(b.Pods, namespace+"/"+p.Name)
				b.ExpectedPods++
				if p.Ready {
					b.CurrentHealthy++
				}
			}
		}
		b.DesiredHealthy = b.CurrentHealthy - allowed
		b.MinAvailable = fmt.Sprint(b.DesiredHealthy)
		s.PDBs = append(s.PDBs, b)
	}
}

// Unread adds something that could not be read.
func Unread(what, kind, why string) Option {
	return func(s *cluster.State) {
		s.Unread = append(s.Unread, cluster.Unread{What: what, Kind: kind, Why: why})
	}
}
