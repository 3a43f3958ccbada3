package preflight

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belayops/belay/cluster"
	ct "github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/kubeversion"
)

type change = func(*Input)

// state makes a change of an option on the state.
func state(opts ...ct.Option) change {
	return func(in *Input) {
		for _, o := range opts {
			o(in.State)
		}
	}
}

func to(v string) change {
	return func(in *Input) { in.Goal.Target = kubeversion.MustParse(v) }
}

func host(node string, f func(*cluster.HostFacts)) change {
	return state(ct.Node(node, func(n *cluster.Node) { f(n.Host) }))
}

func pod(node, component string, f func(*cluster.StaticPod)) change {
	return state(ct.Node(node, func(n *cluster.Node) { f(n.StaticPod(component)) }))
}

func managed(in *Input) {
	in.State.Kubeadm, in.State.Etcd = nil, cluster.Etcd{}
	for i := range in.State.Nodes {
		in.State.Nodes[i].StaticPods, in.State.Nodes[i].Host, in.State.Nodes[i].ControlPlane = nil, nil, false
	}
	in.State.Unread = []cluster.Unread{
		{What: "hosts", Kind: cluster.UnreadNotAsked, Why: "no access"}, {What: "etcd", Kind: cluster.UnreadNotFound, Why: "no static pods"},
		{What: "configmap/kube-system/kubeadm-config", Kind: cluster.UnreadNotFound, Why: "not there"},
	}
}

func noHosts(in *Input) {
	for i := range in.State.Nodes {
		in.State.Nodes[i].Host = nil
	}
	in.State.Unread = append(in.State.Unread, cluster.Unread{What: "hosts", Kind: cluster.UnreadNotAsked, Why: "no access"})
}

func bundles(vs ...string) change {
	return func(in *Input) {
		in.Goal.Bundles = []kubeversion.V{}
		for _, v := range vs {
			in.Goal.Bundles = append(in.Goal.Bundles, kubeversion.MustParse(v))
		}
	}
}

func unread(what, kind string) change { return state(ct.Unread(what, kind, "the test says so")) }

func webhookOf(ready int, f ...func(*cluster.Webhook)) change {
	return state(func(s *cluster.State) {
		w := cluster.Webhook{Kind: "ValidatingWebhookConfiguration", Configuration: "policy", Name: "p.example.org", FailurePolicy: "Fail", Service: "policy/hook", ReadyEndpoints: ready, MatchesPods: true}
		for _, g := range f {
			g(&w)
		}
		s.Webhooks = append(s.Webhooks, w)
	})
}

// Each check: what it is given and what it must say. One that expects pass, warn, fail, unknown, blocked
// or skipped names subject and a piece of the message; every other finding of the check must be a pass.
func TestEachCheck(t *testing.T) {
	yes, no := true, false
	cases := []struct {
		check, name string
		changes     []change
		want        []string // "status subject: piece of the message or remedy"
	}{
		{"api-reachable", "fine", nil, nil},
		{"api-reachable", "no version", []change{state(func(s *cluster.State) { s.Version = kubeversion.V{} })}, []string{"fail api: gave no version"}},
		{"api-reachable", "no identity", []change{state(func(s *cluster.State) { s.Lineage = "" })}, []string{"unknown api: kube-system could not be read"}},

		{"coverage", "fine", nil, nil},
		{"coverage", "forbidden", []change{unread("pods", cluster.UnreadForbidden)}, []string{"unknown pods: could not be read (forbidden)"}},
		{"coverage", "a machine", []change{unread("node/w1/host", cluster.UnreadUnreachable)}, []string{"unknown node/w1/host: unreachable"}},
		{"coverage", "an optional program", []change{unread("node/w1/host/kubeadm-version", cluster.UnreadNotFound)}, []string{"warn node/w1/host/kubeadm-version: not-found"}},
		{"coverage", "managed", []change{managed}, nil},

		{"version-target", "none", nil, []string{"skipped target: no target"}},
		{"version-target", "next minor", []change{to("1.37.2")}, nil},
		{"version-target", "the same", []change{to("1.36.3")}, nil},
		{"version-target", "below", []change{to("1.35.4")}, []string{"fail 1.35.4: does not support going back"}},
		{"version-target", "below a patch", []change{to("1.36.2")}, []string{"fail 1.36.2: going back"}},
		{"version-target", "between two half-way", []change{to("1.36.4"), state(ct.Component("cp1", "kube-apiserver", "1.37.2"))}, []string{"fail 1.36.4: kube-apiserver of node cp1 (v1.37.2)"}},
		{"version-target", "kubelet of a later minor", []change{to("1.37.2"), state(ct.Component("w1", "kubelet", "1.38.0"))}, []string{"fail 1.37.2: the kubelet of node w1 (v1.38.0)"}},
		{"version-target", "kubelet of a later patch", []change{to("1.36.3"), state(ct.Component("w1", "kubelet", "1.36.9"))}, nil},
		{"version-target", "ConfigMap of a later patch", []change{to("1.36.3"), state(func(s *cluster.State) { s.Kubeadm.KubernetesVersion = kubeversion.MustParse("1.36.9") })}, []string{"fail 1.36.3: ConfigMap kubeadm-config (v1.36.9)"}},
		{"version-target", "another major", []change{to("2.0.0")}, []string{"fail 2.0.0: different major"}},
		{"version-target", "pre-release", []change{to("1.37.0-rc.1")}, []string{"warn 1.37.0-rc.1: pre-release"}},
		{"bundles", "no target", nil, []string{"skipped target: no target"}},
		{"bundles", "nobody looked", []change{to("1.37.2")}, []string{"skipped target: not looked at"}},
		{"bundles", "managed", []change{to("1.37.2"), bundles(), managed}, []string{"skipped target: managed"}},
		{"bundles", "none", []change{to("1.37.2"), bundles()}, []string{"fail 1.37.2: (at hand: none)"}},
		{"bundles", "nowhere to go", []change{to("1.36.3"), bundles()}, []string{"skipped target: no hop"}},
		{"bundles", "there", []change{to("1.37.2"), bundles("1.36.3", "1.37.2")}, nil},
		{"bundles", "another patch", []change{to("1.37.2"), bundles("1.37.1")}, []string{"fail 1.37.2: there is no bundle of it (at hand: 1.37.1)"}},
		{"bundles", "hop between missing", []change{to("1.38.0"), bundles("1.38.0")}, []string{"fail 1.37: hop 1 of 2 goes to 1.37"}},
		{"bundles", "hop between, older than what runs", []change{to("1.38.0"), bundles("1.37.1", "1.38.0"), state(ct.Component("cp1", "kube-apiserver", "1.37.2"))}, []string{"fail 1.37: belay bundle build 1.37.2"}},
		{"bundles", "hop between any patch", []change{to("1.38.0"), bundles("1.37.1", "1.38.0")}, nil},

		{"target-advisories", "none", nil, []string{"skipped target: no target"}},
		{"target-advisories", "fine", []change{to("1.36.3")}, nil},
		{"target-advisories", "leaky kubelet", []change{to("1.36.2"), state(func(s *cluster.State) { s.Version = kubeversion.MustParse("1.35.4") })}, []string{"fail kubelet-memory-leak: #140066"}},
		{"target-advisories", "parallel", []change{to("1.35.3"), state(func(s *cluster.State) { s.Workloads = []cluster.Workload{{Kind: "StatefulSet", Parallel: true}} })}, []string{"fail statefulset-parallel: stall", "warn endpoint-controller-panic: panics"}},
		{"target-advisories", "maxUnavailable", []change{to("1.37.2"), state(func(s *cluster.State) {
			s.Workloads = []cluster.Workload{{Kind: "StatefulSet", Namespace: "a", Name: "b", MaxUnavailable: "2"}}
		})}, []string{"warn StatefulSet/a/b: takes that many pods down at once"}},
		{"target-advisories", "may", []change{to("1.36.1")}, []string{"fail kubelet-memory-leak: leaks", "warn endpoint-controller-panic: panics"}},

		{"version-skew", "fine", nil, nil},
		{"version-skew", "new kubelet", []change{state(ct.Component("w1", "kubelet", "1.37.2"))}, []string{"fail kubelet/w1: newer than kube-apiserver"}},
		{"version-skew", "control plane half-way", []change{state(ct.Component("cp1", "kube-apiserver", "1.37.2"), ct.Component("cp1", "kube-controller-manager", "1.37.2"), ct.Component("cp1", "kube-scheduler", "1.37.2"))}, nil},
		{"version-skew", "tag without version", []change{pod("cp1", "kube-scheduler", func(p *cluster.StaticPod) { p.Version = kubeversion.V{} })}, []string{"unknown kube-scheduler/cp1: not known"}},
		{"version-skew", "pods unread", []change{unread("pods", cluster.UnreadForbidden)}, []string{"blocked cluster: coverage@pods"}},

		{"nodes-ready", "fine", nil, nil},
		{"nodes-ready", "one is not", []change{state(ct.NotReady("w1", "KubeletStopped: gone")), host("w1", func(h *cluster.HostFacts) { h.KubeletActive = "failed" })}, []string{"fail w1: KubeletStopped: gone; systemd says that its kubelet is failed"}},
		{"nodes-ready", "pressure", []change{state(ct.Node("w1", func(n *cluster.Node) {
			n.Conditions = []cluster.NodeCondition{{Type: "DiskPressure", Status: "True", Reason: "KubeletHasDiskPressure"}}
		}))}, []string{"fail w1/DiskPressure: no pod is scheduled there"}},
		{"nodes-ready", "another condition", []change{state(ct.Node("w1", func(n *cluster.Node) {
			n.Conditions = []cluster.NodeCondition{{Type: "KernelDeadlock", Status: "True", Reason: "DockerHung"}, {Type: "DiskPressure", Status: "Unknown"}}
		}))}, []string{"warn w1/KernelDeadlock: KernelDeadlock=True", "warn w1/DiskPressure: DiskPressure=Unknown"}},
		{"nodes-ready", "silent", []change{state(ct.NotReady("w1", "NodeStatusUnknown: silent."), ct.Node("w1", func(n *cluster.Node) {
			n.Conditions = []cluster.NodeCondition{{Type: "DiskPressure", Status: "Unknown"}}
		}))}, []string{"fail w1: silent on w1: systemctl status kubelet"}},
		{"nodes-ready", "none", []change{state(func(s *cluster.State) { s.Nodes = nil })}, []string{"fail nodes: no node"}},
		{"nodes-ready", "unread", []change{unread("nodes", cluster.UnreadTimeout)}, []string{"blocked nodes: coverage@nodes"}},

		{"nodes-cordoned", "fine", nil, nil},
		{"nodes-cordoned", "by somebody", []change{state(ct.Node("w1", func(n *cluster.Node) { n.Unschedulable = true }))}, []string{"warn w1: stays cordoned"}},
		{"nodes-cordoned", "by belay", []change{state(ct.Node("w1", func(n *cluster.Node) {
			n.Unschedulable, n.Annotations = true, map[string]string{"belay.dev/cordoned-by": "run"}
		}))}, []string{"warn w1: belay resume"}},
		{"nodes-cordoned", "all", []change{state(func(s *cluster.State) {
			for i := range s.Nodes {
				s.Nodes[i].Unschedulable = true
			}
		})}, []string{"fail nodes: every node is cordoned"}},
		{"nodes-cordoned", "unread", []change{unread("nodes", cluster.UnreadTimeout)}, []string{"blocked nodes: coverage@nodes"}},

		{"control-plane-components", "fine", nil, nil},
		{"control-plane-components", "managed", []change{managed}, []string{"skipped control-plane: managed"}},
		{"control-plane-components", "not ready", []change{pod("cp2", "kube-scheduler", func(p *cluster.StaticPod) { p.Ready, p.Restarts = false, 7 })}, []string{"fail cp2/kube-scheduler: not ready (7 restarts)"}},
		{"control-plane-components", "another image than the manifest", []change{pod("cp2", "kube-apiserver", func(p *cluster.StaticPod) { p.ManifestImage = "registry.k8s.io/kube-apiserver:v1.37.2" })}, []string{"fail cp2/kube-apiserver: the manifest names registry.k8s.io/kube-apiserver:v1.37.2"}},
		{"control-plane-components", "no manifest", []change{host("cp2", func(h *cluster.HostFacts) {
			h.Manifests = slices.DeleteFunc(h.Manifests, func(s string) bool { return s == "etcd" })
		})}, []string{"fail cp2/etcd: between its two renames"}},
		{"control-plane-components", "no pod", []change{state(ct.Node("cp2", func(n *cluster.Node) {
			n.StaticPods = slices.DeleteFunc(n.StaticPods, func(p cluster.StaticPod) bool { return p.Component == "kube-controller-manager" })
		}))}, []string{"fail cp2/kube-controller-manager: the API shows no pod"}},
		{"control-plane-components", "half-way", []change{state(ct.Component("cp1", "kube-apiserver", "1.37.2"))}, []string{"warn versions: kube-apiserver v1.36.3 on cp2, cp3; kube-apiserver v1.37.2 on cp1"}},
		{"control-plane-components", "unread", []change{unread("pods", cluster.UnreadForbidden)}, []string{"blocked control-plane: coverage@pods"}},
		{"control-plane-components", "no label", []change{state(ct.Node("cp1", func(n *cluster.Node) { n.ControlPlane = false }), ct.Node("cp2", func(n *cluster.Node) { n.ControlPlane = false }), ct.Node("cp3", func(n *cluster.Node) { n.ControlPlane = false }))}, []string{"fail control-plane: no node carries the label"}},

		{"kubeadm-config", "fine", nil, nil},
		{"kubeadm-config", "managed", []change{managed}, []string{"skipped kubeadm-config: not a kubeadm cluster"}},
		{"kubeadm-config", "missing", []change{state(func(s *cluster.State) { s.Kubeadm = nil }), unread("configmap/kube-system/kubeadm-config", cluster.UnreadNotFound)}, []string{"fail kubeadm-config: missing"}},
		{"kubeadm-config", "unread", []change{state(func(s *cluster.State) { s.Kubeadm = nil }), unread("configmap/kube-system/kubeadm-config", cluster.UnreadForbidden)}, []string{"blocked kubeadm-config: coverage@"}},
		{"kubeadm-config", "behind", []change{state(func(s *cluster.State) { s.Kubeadm.KubernetesVersion = kubeversion.MustParse("1.35.4") })}, []string{"fail version: kubeadm would deploy what the ConfigMap says"}},
		{"kubeadm-config", "behind, and the target mends it", []change{to("1.37.2"), state(func(s *cluster.State) { s.Kubeadm.KubernetesVersion = kubeversion.MustParse("1.35.4") })}, []string{"warn version: the way to 1.37.2 mends it"}},
		{"kubeadm-config", "private images", []change{to("1.37.2"), state(func(s *cluster.State) { s.Kubeadm.ImageRepository = "registry.example.org" })}, []string{"fail image-repository: kubeadm would pull from there"}},
		{"kubeadm-config", "private images without a target", []change{state(func(s *cluster.State) { s.Kubeadm.ImageRepository = "registry.example.org" })}, nil},
		{"kubeadm-config", "etcd pinned to what does not run", []change{to("1.37.2"), state(func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.16-0" })}, []string{"fail etcd-image-tag: member cp1 runs 3.6.8"}},
		{"kubeadm-config", "etcd pinned to what runs", []change{to("1.37.2"), state(func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.8-0" })}, []string{"warn etcd-image-tag: leaves etcd there"}},
		{"kubeadm-config", "ahead of one", []change{state(ct.Component("cp3", "kube-apiserver", "1.35.4"))}, []string{"fail version: on cp3: kubeadm upgrade node"}},
		{"kubeadm-config", "v1beta3 and kubeadm 1.37", []change{to("1.37.2"), state(func(s *cluster.State) { s.Kubeadm.APIVersion = "kubeadm.k8s.io/v1beta3" })}, []string{"fail api-version: which kubeadm 1.37 cannot read"}},
		{"kubeadm-config", "v1beta3 and two hops", []change{to("1.37.2"), state(func(s *cluster.State) {
			*s = *ct.New("1.35.4", 1, 0)
			s.Kubeadm.APIVersion = "kubeadm.k8s.io/v1beta3"
		})}, []string{"warn api-version: the next kubeadm upgrade apply rewrites it"}},
		{"kubeadm-config", "etcd pinned", []change{to("1.37.2"), state(func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.5.24-0" })}, []string{"fail etcd-image-tag: flags that 3.5 does not know"}},
		{"kubeadm-config", "etcd pinned to 3.6", []change{state(func(s *cluster.State) { s.Kubeadm.EtcdImageTag = "3.6.11-0" })}, []string{"warn etcd-image-tag: pins etcd to 3.6.11-0"}},

		{"manifest-drift", "fine", []change{to("1.37.2")}, nil},
		{"manifest-drift", "by hand", []change{to("1.37.2"), pod("cp1", "kube-apiserver", func(p *cluster.StaticPod) {
			p.Args = []string{"kube-apiserver", "--secure-port=6443", "--encryption-provider-config=/e", "--audit-log-path=/a"}
		})}, []string{"fail cp1/kube-apiserver: has --audit-log-path, --encryption-provider-config: neither kubeadm nor"}},
		{"manifest-drift", "in extraArgs", []change{to("1.37.2"), pod("cp1", "kube-apiserver", func(p *cluster.StaticPod) { p.Args = []string{"--audit-log-path=/a"} }), state(func(s *cluster.State) {
			s.Kubeadm.ExtraArgs = map[string][]cluster.Flag{"apiServer": {{Name: "audit-log-path", Value: "/a"}}}
		})}, nil},
		{"manifest-drift", "a volume by hand", []change{to("1.37.2"), pod("cp1", "kube-apiserver", func(p *cluster.StaticPod) {
			p.Args, p.HostPaths = []string{"--tls-cert-file=/etc/kubernetes/pki/apiserver.crt"}, []string{"/etc/kubernetes/pki", "/var/log/audit", "/etc/enc"}
		}), state(func(s *cluster.State) { s.Kubeadm.ExtraVolumes = map[string][]string{"apiServer": {"/etc/enc"}} })}, []string{"fail cp1/kube-apiserver: has volume /var/log/audit: neither"}},
		{"manifest-drift", "in extraArgs of another", []change{to("1.37.2"), pod("cp2", "etcd", func(p *cluster.StaticPod) { p.Args = []string{"--quota-backend-bytes=8"} }), state(func(s *cluster.State) {
			s.Kubeadm.ExtraArgs = map[string][]cluster.Flag{"apiServer": {{Name: "quota-backend-bytes", Value: "8"}}}
		})}, []string{"fail cp2/etcd: put it into etcd.extraArgs"}},
		{"manifest-drift", "patched", []change{to("1.37.2"), func(in *Input) { in.Goal.PatchesDir = "/patches" }, pod("cp1", "etcd", func(p *cluster.StaticPod) { p.Args = []string{"--quota-backend-bytes=8"} })}, []string{"warn cp1/etcd: a patch in /patches of node cp1"}},
		{"manifest-drift", "resources by hand", []change{to("1.37.2"), pod("cp1", "kube-apiserver", func(p *cluster.StaticPod) {
			p.Resources = []string{"limits.memory=4Gi", "requests.cpu=2"}
		})}, []string{"warn cp1/kube-apiserver: has limits.memory=4Gi, requests.cpu=2 (kubeadm writes 250m): neither"}},
		{"manifest-drift", "kubeadm's resources", []change{to("1.37.2"), pod("cp1", "etcd", func(p *cluster.StaticPod) {
			p.Resources = []string{"requests.cpu=100m", "requests.memory=100Mi"}
		})}, nil},
		{"manifest-drift", "no target", []change{pod("cp1", "etcd", func(p *cluster.StaticPod) { p.Args = []string{"--quota-backend-bytes=8"} })}, []string{"warn cp1/etcd: writes the manifest anew"}},
		{"manifest-drift", "managed", []change{managed}, []string{"skipped control-plane: does not write"}},
		{"manifest-drift", "unread", []change{unread("configmap/kube-system/kubeadm-config", cluster.UnreadForbidden)}, []string{"blocked control-plane: coverage@configmap/kube-system/kubeadm-config"}},

		{"component-flags", "fine", []change{to("1.37.2")}, nil},
		{"component-flags", "managed", []change{managed}, []string{"skipped control-plane: managed"}},
		{"component-flags", "etcd experimental, mapped", []change{to("1.37.2"), pod("cp1", "etcd", func(p *cluster.StaticPod) { p.Args = []string{"etcd", "--experimental-initial-corrupt-check=true"} })},
			[]string{"fail etcd/experimental-initial-corrupt-check: --feature-gates=InitialCorruptCheck=true"}},
		{"component-flags", "etcd experimental, prefix", []change{to("1.37.2"), state(func(s *cluster.State) {
			s.Kubeadm.ExtraArgs = map[string][]cluster.Flag{"etcd": {{Name: "experimental-max-learners", Value: "2"}}}
		})}, []string{"fail etcd/experimental-max-learners: --max-learners"}},
		{"component-flags", "etcd experimental stays at 3.6", []change{to("1.36.4"), pod("cp1", "etcd", func(p *cluster.StaticPod) { p.Args = []string{"etcd", "--experimental-initial-corrupt-check=true"} })}, nil},
		{"component-flags", "controller manager", []change{to("1.37.2"), pod("cp2", "kube-controller-manager", func(p *cluster.StaticPod) { p.Args = []string{"--concurrent-service-syncs=2"} })}, []string{"fail kube-controller-manager/concurrent-service-syncs: manifest of node cp2"}},
		{"component-flags", "controller manager before", []change{to("1.36.4"), pod("cp2", "kube-controller-manager", func(p *cluster.StaticPod) { p.Args = []string{"--concurrent-service-syncs=2"} })}, nil},
		{"component-flags", "unread", []change{unread("pods", cluster.UnreadForbidden)}, []string{"blocked control-plane: coverage@pods"}},

		{"feature-gates", "fine", []change{to("1.37.2")}, nil},
		{"feature-gates", "removed", []change{to("1.37.2"), pod("cp1", "kube-apiserver", func(p *cluster.StaticPod) { p.Args = []string{"--feature-gates=SidecarContainers=true,Other=true"} })},
			[]string{"fail SidecarContainers: 1.37 no longer knows it"}},
		{"feature-gates", "locked", []change{to("1.36.4"), host("w1", func(h *cluster.HostFacts) {
			h.KubeletFeatureGates = map[string]bool{"NodeSwap": false, "SidecarContainers": true}
		})},
			[]string{"fail NodeSwap: locks it to true"}},
		{"feature-gates", "locked to false", []change{to("1.36.4"), host("w1", func(h *cluster.HostFacts) {
			h.KubeletFlags = []cluster.Flag{{Name: "feature-gates", Value: "GitRepoVolumeDriver=true", Source: "/etc/default/kubelet"}}
		})}, []string{"fail GitRepoVolumeDriver: kubelet flags of node w1 in /etc/default/kubelet"}},
		{"feature-gates", "etcd's own", []change{to("1.37.2"), pod("cp1", "etcd", func(p *cluster.StaticPod) { p.Args = []string{"--feature-gates=SidecarContainers=true"} })}, nil},
		{"feature-gates", "no hosts", []change{to("1.37.2"), noHosts}, []string{"blocked kubelets: coverage@hosts"}},
		{"feature-gates", "kubelet config unread", []change{to("1.37.2"), unread("node/w1/host/kubelet-config", cluster.UnreadFailed)}, []string{"blocked w1: kubelet-config"}},

		{"feature-gates", "kube-proxy's ConfigMap", []change{to("1.37.2"), state(func(s *cluster.State) { s.ProxyConfig.FeatureGates = map[string]bool{"SidecarContainers": true} })}, []string{"fail SidecarContainers: take it out of ConfigMap kube-proxy"}},
		{"feature-gates", "kubelets' ConfigMap", []change{to("1.37.2"), state(func(s *cluster.State) { s.KubeletConfig.FeatureGates = map[string]bool{"SidecarContainers": true} })}, []string{"fail SidecarContainers: take it out of ConfigMap kubelet-config"}},
		{"feature-gates", "ConfigMap unread", []change{to("1.37.2"), unread("configmap/kube-system/kube-proxy", cluster.UnreadForbidden)}, []string{"blocked kube-proxy: coverage@"}},

		{"coredns", "fine", []change{to("1.37.2")}, nil},
		{"coredns", "managed", []change{managed}, []string{"skipped coredns: managed"}},
		{"coredns", "another DNS", []change{state(func(s *cluster.State) { s.Addons = nil })}, []string{"skipped coredns: somebody else's"}},
		{"coredns", "newer", []change{to("1.37.2"), state(func(s *cluster.State) { s.Addons[0].Image = "coredns:v1.15.0" })}, []string{"fail version: newer than the 1.14.6 that kubeadm 1.37 brings"}},
		{"coredns", "newer than a hop between", []change{to("1.37.2"), state(func(s *cluster.State) { *s = *ct.New("1.34.4", 1, 0) })}, []string{"fail version: that kubeadm 1.35 brings"}},
		{"coredns", "no version", []change{to("1.37.2"), state(func(s *cluster.State) { s.Addons[0].Image = "coredns:mine" })}, []string{"unknown version: cannot be told"}},
		{"coredns", "half ready", []change{state(func(s *cluster.State) { s.Addons[0].Ready = 1 })}, []string{"warn ready: 1 of 2"}},
		{"coredns", "unread", []change{unread("deployments", cluster.UnreadForbidden)}, []string{"blocked coredns: coverage@"}},

		{"kube-proxy-mode", "fine", nil, nil},
		{"kube-proxy-mode", "ipvs", []change{state(func(s *cluster.State) { s.ProxyConfig.Mode = "ipvs" })}, []string{"warn kube-proxy: gone in 1.43"}},
		{"kube-proxy-mode", "none", []change{state(func(s *cluster.State) { s.ProxyConfig = nil }), unread("configmap/kube-system/kube-proxy", cluster.UnreadNotFound)}, []string{"skipped kube-proxy: no kube-proxy"}},
		{"kube-proxy-mode", "unread", []change{state(func(s *cluster.State) { s.ProxyConfig = nil }), unread("configmap/kube-system/kube-proxy", cluster.UnreadForbidden)}, []string{"blocked kube-proxy: coverage@"}},

		{"etcd-members", "fine", nil, nil},
		{"etcd-members", "managed", []change{managed}, []string{"skipped etcd: managed"}},
		{"etcd-members", "down", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.Healthy, m.Problem = false, "connection refused" }))}, []string{"fail cp2: connection refused"}},
		{"etcd-members", "learner", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.Learner = true }))}, []string{"fail cp2: learner"}},
		{"etcd-members", "never started", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.Name, m.ClientURLs, m.Healthy = "", nil, false }))}, []string{"fail 00000000000000a2: never started"}},
		{"etcd-members", "mixed", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.Version = kubeversion.MustParse("3.6.11") }))}, []string{"warn versions: 3.6.11 on cp2; 3.6.8 on cp1, cp3"}},
		{"etcd-members", "lag", []change{state(ct.Member("cp1", func(m *cluster.EtcdMember) { m.RaftIndex, m.RaftApplied = 100000, 100000 }))}, []string{"warn cp2: behind", "warn cp3: behind"}},
		{"etcd-members", "two", []change{state(func(s *cluster.State) { *s = *ct.New("1.36.3", 2, 0) })}, []string{"warn count: survive no more failures than 1 would"}},
		{"etcd-members", "unread", []change{state(func(s *cluster.State) { s.Etcd = cluster.Etcd{} }), unread("etcd", cluster.UnreadTimeout)}, []string{"blocked etcd: coverage@etcd"}},
		{"etcd-members", "nobody asked", []change{state(func(s *cluster.State) { s.Etcd = cluster.Etcd{} })}, []string{"unknown etcd: not asked"}},

		{"etcd-quorum", "fine", nil, nil},
		{"etcd-quorum", "single", []change{state(func(s *cluster.State) { *s = *ct.New("1.36.3", 1, 0) })}, []string{"warn etcd: the API does not answer"}},
		{"etcd-quorum", "one down", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.Healthy = false }))}, []string{"fail cp1: cp2 is not healthy", "fail cp3: cp2 is not healthy"}},
		{"etcd-quorum", "unread", []change{state(func(s *cluster.State) { s.Etcd = cluster.Etcd{} }), unread("etcd", cluster.UnreadTimeout)}, []string{"blocked etcd: coverage@etcd"}},

		{"etcd-alarms", "fine", nil, nil},
		{"etcd-alarms", "full", []change{state(func(s *cluster.State) {
			s.Etcd.Alarms = []cluster.EtcdAlarm{{MemberID: "00000000000000a2", Alarm: "NOSPACE"}}
		})}, []string{"fail cp2/NOSPACE: alarm disarm"}},
		{"etcd-alarms", "corrupt", []change{state(func(s *cluster.State) { s.Etcd.Alarms = []cluster.EtcdAlarm{{MemberID: "ff", Alarm: "CORRUPT"}} })}, []string{"fail ff/CORRUPT: do not restart"}},
		{"etcd-alarms", "unread", []change{state(func(s *cluster.State) { s.Etcd = cluster.Etcd{} }), unread("etcd", cluster.UnreadTimeout)}, []string{"blocked etcd: coverage@etcd"}},

		{"etcd-db-size", "fine", nil, nil},
		{"etcd-db-size", "full and fragmented", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.DBSize = 1900 << 20 }))}, []string{"fail cp2: etcdctl defrag"}},
		{"etcd-db-size", "defragmenting is dangerous", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.DBSize, m.Version = 1900<<20, kubeversion.MustParse("3.6.4") }))}, []string{"fail cp2: can corrupt"}},
		{"etcd-db-size", "larger quota", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.DBSize, m.Quota = 1900<<20, 8<<30 }))}, nil},
		{"etcd-db-size", "three quarters", []change{state(ct.Member("cp2", func(m *cluster.EtcdMember) { m.DBSize, m.DBSizeInUse = 1600<<20, 1500<<20 }))}, []string{"warn cp2: find what fills it"}},
		{"etcd-db-size", "unread", []change{state(func(s *cluster.State) { s.Etcd = cluster.Etcd{} }), unread("etcd", cluster.UnreadTimeout)}, []string{"blocked etcd: coverage@etcd"}},

		{"etcd-floor", "no target", nil, []string{"skipped etcd: no target"}},
		{"etcd-floor", "same minor", []change{to("1.36.4")}, nil},
		{"etcd-floor", "below", []change{to("1.37.2")}, []string{"fail etcd-3.7: members cp1 (3.6.8), cp2 (3.6.8), cp3 (3.6.8) are too old"}},
		{"etcd-floor", "above", []change{to("1.37.2"), state(ct.Etcd("3.6.11"))}, nil},
		{"etcd-floor", "a step is at hand", []change{to("1.37.2"), func(in *Input) { in.Goal.EtcdSteps = []kubeversion.V{kubeversion.MustParse("3.6.14")} }}, []string{"warn etcd-3.7: takes every member to 3.6.14 first"}},
		{"etcd-floor", "a step that is too old", []change{to("1.37.2"), func(in *Input) { in.Goal.EtcdSteps = []kubeversion.V{kubeversion.MustParse("3.6.10")} }}, []string{"fail etcd-3.7: "}},
		{"etcd-floor", "the bundle's own", []change{to("1.37.2"), func(in *Input) {
			in.Goal.Etcd = map[kubeversion.Minor]kubeversion.V{k(37): kubeversion.MustParse("3.6.8")}
		}}, nil},
		// What a hop leaves is below the floor of the next one, although the members are not now.
		{"etcd-floor", "two hops", []change{to("1.37.2"), state(func(s *cluster.State) { *s = *ct.New("1.35.4", 1, 0) })}, []string{"fail etcd-3.7: 3.6.8"}},
		{"etcd-floor", "four hops", []change{to("1.37.2"), state(func(s *cluster.State) { *s = *ct.New("1.33.13", 1, 0) })}, []string{"fail etcd-3.6: 3.5.26", "fail etcd-3.7: 3.6.11"}},
		{"etcd-floor", "a minor that nobody knows", []change{to("1.60.0")}, []string{"fail etcd-3.7: ", "unknown hop/1.38: not known"}},
		{"etcd-floor", "external", []change{to("1.37.2"), state(func(s *cluster.State) { s.Etcd.External = true })}, []string{"skipped etcd: external"}},
		{"etcd-floor", "version unknown", []change{to("1.37.2"), state(ct.Etcd("3.6.11"), ct.Member("cp2", func(m *cluster.EtcdMember) { m.Version = kubeversion.V{} }))}, []string{"unknown cp2: not known"}},

		{"certificates-expiry", "fine", nil, nil},
		{"certificates-expiry", "two weeks", []change{host("cp1", func(h *cluster.HostFacts) { h.Certificates[1].NotAfter = ct.Observed.Add(14*24*time.Hour + 1) })}, []string{"warn cp1/etc/kubernetes/pki/apiserver.crt: ends in 14 days"}},
		{"certificates-expiry", "two days", []change{host("cp1", func(h *cluster.HostFacts) { h.Certificates[1].NotAfter = ct.Observed.Add(48 * time.Hour) })}, []string{"fail cp1/etc/kubernetes/pki/apiserver.crt: kubeadm certs renew all"}},
		{"certificates-expiry", "over, the kubelet's", []change{host("w1", func(h *cluster.HostFacts) { h.Certificates[0].NotAfter = ct.Observed.Add(-48 * time.Hour) })}, []string{"fail w1/var/lib/kubelet/pki/kubelet-client-current.pem: ended on 2026-11-28"}},
		{"certificates-expiry", "a CA", []change{host("cp1", func(h *cluster.HostFacts) { h.Certificates[2].NotAfter = ct.Observed.Add(48 * time.Hour) })}, []string{"fail cp1/etc/kubernetes/pki/ca.crt: does not renew CAs"}},
		{"certificates-expiry", "unread", []change{unread("node/cp1/host/cert:/etc/kubernetes/pki/x.crt", cluster.UnreadMalformed)}, []string{"blocked cp1/etc/kubernetes/pki/x.crt: coverage@"}},
		{"certificates-expiry", "none", []change{host("w1", func(h *cluster.HostFacts) { h.Certificates = nil })}, []string{"unknown w1: no certificate was found"}},
		{"certificates-expiry", "no hosts", []change{noHosts}, []string{"blocked machines: coverage@hosts"}},
		{"certificates-expiry", "managed", []change{managed}, []string{"skipped machines: managed"}},
		{"certificates-expiry", "one machine", []change{state(ct.Node("w1", func(n *cluster.Node) { n.Host = nil })), unread("node/w1/host", cluster.UnreadTimeout)}, []string{"blocked w1: coverage@node/w1/host"}},
		{"certificates-expiry", "one machine, without a reason", []change{state(ct.Node("w1", func(n *cluster.Node) { n.Host = nil }))}, []string{"unknown w1: nothing is known of its machine"}},

		{"disk-space", "fine", nil, nil},
		{"disk-space", "kubeadm's copy", []change{host("cp1", func(h *cluster.HostFacts) {
			h.Disks[3].UsedBytes = 2 << 30
			h.Disks[4].FreeBytes = 2 << 30
		})}, []string{"fail cp1/etc/kubernetes: kubeadm's copy of etcd's data takes 2.4 GiB"}},
		{"disk-space", "images", []change{host("w1", func(h *cluster.HostFacts) { h.Disks[2].FreeBytes = 1 << 30 })}, []string{"fail w1/var/lib/containerd: has 1.0 GiB free"}},
		{"disk-space", "less than a tenth", []change{host("w1", func(h *cluster.HostFacts) { h.Disks[1].FreeBytes = 9 << 30 })}, []string{"warn w1/var/lib/kubelet: has 9 % free"}},
		{"disk-space", "one file system is told once", []change{host("w1", func(h *cluster.HostFacts) {
			h.Disks[0].FreeBytes, h.Disks[1].FreeBytes, h.Disks[2].FreeBytes = 9<<30, 9<<30, 9<<30
		})}, []string{"warn w1/var/lib/containerd: has 9 % free"}},
		{"disk-space", "thresholds of the cluster's own", []change{func(in *Input) {
			in.State.KubeletConfig.EvictionHard = map[string]string{"imagefs.available": "1Gi", "nodefs.available": "5%"}
			high := int32(100)
			in.State.KubeletConfig.ImageGCHighThresholdPercent = &high
		}, host("w1", func(h *cluster.HostFacts) { h.Disks[1].FreeBytes, h.Disks[2].FreeBytes = 8<<30, 8<<30 })}, nil},
		{"disk-space", "below one of the cluster's own", []change{func(in *Input) {
			in.State.KubeletConfig.EvictionHard = map[string]string{"nodefs.available": "5%"}
			high := int32(100)
			in.State.KubeletConfig.ImageGCHighThresholdPercent = &high
		}, host("w1", func(h *cluster.HostFacts) { h.Disks[1].FreeBytes, h.Disks[2].FreeBytes = 6<<30, 6<<30 })}, []string{"warn w1/var/lib/kubelet: has 6 % free, 3 % with the images of the upgrade: below 5 %"}},
		{"disk-space", "too little left for staged images", []change{host("w1", func(h *cluster.HostFacts) { h.Disks[2].TotalBytes, h.Disks[2].FreeBytes = 100<<30, 16<<30 })}, []string{"warn w1/var/lib/containerd: has 16 % free, 13 % with the images"}},
		{"disk-space", "unread", []change{unread("node/cp1/host/du:/var/lib/etcd", cluster.UnreadTimeout)}, []string{"blocked cp1/var/lib/etcd: coverage@"}},
		{"disk-space", "nothing known", []change{host("w1", func(h *cluster.HostFacts) { h.Disks = nil })}, []string{"unknown w1: nothing is known of the disks"}},

		{"cgroup-version", "fine", []change{to("1.37.2")}, nil},
		{"cgroup-version", "v1", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion = 1 })}, []string{"fail w1: refuses to start"}},
		{"cgroup-version", "v1, told to fail", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion, h.FailCgroupV1 = 1, &yes })}, []string{"fail w1: failCgroupV1: false"}},
		{"cgroup-version", "v1, told to accept", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion, h.FailCgroupV1 = 1, &no }), state(func(s *cluster.State) { s.KubeletConfig.FailCgroupV1 = &no })}, []string{"warn w1: told to accept it"}},
		{"cgroup-version", "v1, told to accept on the node alone", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion, h.FailCgroupV1 = 1, &no })}, []string{"fail w1: writes that file anew from ConfigMap kubelet-config"}},
		{"cgroup-version", "v1, ConfigMap unread", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion, h.FailCgroupV1 = 1, &no }), state(func(s *cluster.State) { s.KubeletConfig = nil }), unread("configmap/kube-system/kubelet-config", cluster.UnreadForbidden)}, []string{"blocked w1: coverage@"}},
		{"cgroup-version", "v1, ConfigMap missing", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion, h.FailCgroupV1 = 1, &no }), state(func(s *cluster.State) { s.KubeletConfig = nil })}, []string{"unknown w1: ConfigMap kubelet-config is missing"}},
		{"cgroup-version", "v1 below 1.35", []change{to("1.34.9"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion = 1 })}, []string{"warn w1: has cgroup v1"}},
		{"cgroup-version", "untold", []change{host("w1", func(h *cluster.HostFacts) { h.CgroupVersion = 0 })}, []string{"unknown w1: could not be told"}},
		{"cgroup-version", "unread", []change{host("w1", func(h *cluster.HostFacts) { h.CgroupVersion = 0 }), unread("node/w1/host/cgroup", cluster.UnreadFailed)}, []string{"blocked w1: coverage@"}},
		{"cgroup-version", "v1, configuration unread", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) { h.CgroupVersion = 1 }), unread("node/w1/host/kubelet-config", cluster.UnreadFailed)}, []string{"blocked w1: kubelet-config"}},

		{"containerd-version", "fine", []change{to("1.37.2")}, nil},
		{"containerd-version", "old line", []change{to("1.37.2"), state(ct.Node("w1", func(n *cluster.Node) { n.ContainerRuntime = "containerd://2.2.1" }))}, []string{"warn w1: was tested with 2.3.0+, 2.4.0+"}},
		{"containerd-version", "old patch", []change{to("1.35.4"), state(ct.Node("w1", func(n *cluster.Node) { n.ContainerRuntime = "containerd://1.7.20" }))}, []string{"warn w1: 1.7.28+"}},
		{"containerd-version", "1.x at 1.38", []change{to("1.38.0"), state(ct.Node("w1", func(n *cluster.Node) { n.ContainerRuntime = "containerd://1.7.30" }))},
			[]string{"skipped cp1: nothing is recorded", "skipped cp2: nothing", "skipped cp3: nothing", "fail w1: asks for 2.0", "skipped w2: nothing"}},
		{"containerd-version", "another runtime", []change{state(ct.Node("w1", func(n *cluster.Node) { n.ContainerRuntime = "cri-o://1.36.0" }))}, []string{"skipped w1: cri-o"}},
		{"containerd-version", "untold", []change{state(ct.Node("w1", func(n *cluster.Node) { n.ContainerRuntime = "" }))}, []string{"unknown w1: does not say"}},
		{"containerd-version", "senseless", []change{state(ct.Node("w1", func(n *cluster.Node) { n.ContainerRuntime = "containerd://Unknown" }))}, []string{"unknown w1: makes no sense"}},

		{"kubelet-config", "fine", nil, nil},
		{"kubelet-config", "differs", []change{host("w1", func(h *cluster.HostFacts) { h.KubeletConfigDrift = []string{"evictionHard", "maxPods"} })}, []string{"warn w1: in evictionHard, maxPods: kubeadm upgrade writes the file anew"}},
		{"kubelet-config", "ConfigMap unread", []change{state(func(s *cluster.State) { s.KubeletConfig = nil }), unread("configmap/kube-system/kubelet-config", cluster.UnreadForbidden)}, []string{"blocked kubelet-config: coverage@"}},
		{"kubelet-config", "no ConfigMap", []change{state(func(s *cluster.State) { s.KubeletConfig = nil })}, []string{"skipped kubelet-config: there is no ConfigMap"}},
		{"kubelet-config", "file unread", []change{unread("node/w1/host/kubelet-config", cluster.UnreadFailed)}, []string{"blocked w1: coverage@"}},

		{"kubelet-flags", "fine", []change{to("1.37.2")}, nil},
		{"kubelet-flags", "sandbox image", []change{to("1.36.4"), host("w1", func(h *cluster.HostFacts) {
			h.KubeletFlags = []cluster.Flag{{Name: "pod-infra-container-image", Value: "x", Source: "/var/lib/kubelet/kubeadm-flags.env"}}
		})}, []string{"fail w1/pod-infra-container-image: take it out of /var/lib/kubelet/kubeadm-flags.env"}},
		{"kubelet-flags", "sandbox image, which kubeadm 1.35 takes out", []change{to("1.35.4"), host("w1", func(h *cluster.HostFacts) {
			h.KubeletFlags = []cluster.Flag{{Name: "pod-infra-container-image", Value: "x", Source: "/var/lib/kubelet/kubeadm-flags.env"}}
		})}, []string{"warn w1/pod-infra-container-image: kubeadm 1.35 takes it out"}},
		{"kubelet-flags", "cAdvisor", []change{to("1.37.2"), host("w1", func(h *cluster.HostFacts) {
			h.KubeletFlags = []cluster.Flag{{Name: "containerd", Value: "/run/x.sock", Source: "/etc/default/kubelet"}}
		})}, []string{"fail w1/containerd: would not start"}},
		{"kubelet-flags", "cAdvisor before", []change{to("1.36.4"), host("w1", func(h *cluster.HostFacts) {
			h.KubeletFlags = []cluster.Flag{{Name: "containerd", Value: "/run/x.sock", Source: "/etc/default/kubelet"}}
		})}, nil},
		{"kubelet-flags", "no hosts", []change{noHosts}, []string{"blocked machines: coverage@hosts"}},

		{"swap", "fine", nil, nil},
		{"swap", "on", []change{host("w1", func(h *cluster.HostFacts) { h.SwapBytes = 2 << 30 })}, []string{"fail w1: would not start again"}},
		{"swap", "accepted", []change{host("w1", func(h *cluster.HostFacts) { h.SwapBytes, h.FailSwapOn = 2<<30, &no }), state(func(s *cluster.State) { s.KubeletConfig.FailSwapOn = &no })}, nil},
		{"swap", "accepted on the node alone", []change{host("w1", func(h *cluster.HostFacts) { h.SwapBytes, h.FailSwapOn = 2<<30, &no })}, []string{"fail w1: failSwapOn: false there as well"}},
		{"swap", "accepted by flag", []change{host("w1", func(h *cluster.HostFacts) {
			h.SwapBytes, h.KubeletFlags = 2<<30, []cluster.Flag{{Name: "fail-swap-on", Value: "false"}}
		})}, nil},
		{"swap", "unread", []change{unread("node/w1/host/swaps", cluster.UnreadFailed)}, []string{"blocked w1: swaps"}},

		{"package-holds", "none", nil, nil},
		{"package-holds", "held", []change{host("w1", func(h *cluster.HostFacts) { h.HeldPackages = []string{"kubelet"} })}, nil},
		{"package-holds", "not held", []change{host("w1", func(h *cluster.HostFacts) { h.UnheldPackages = []string{"kubelet", "kubeadm"} })}, []string{"warn w1: apt-mark hold kubelet kubeadm"}},
		{"package-holds", "no hosts", []change{noHosts}, []string{"blocked machines: coverage@hosts"}},

		{"clock-skew", "fine", []change{host("w1", func(h *cluster.HostFacts) { h.ClockOffset = -time.Second })}, nil},
		{"clock-skew", "some", []change{host("w1", func(h *cluster.HostFacts) { h.ClockOffset = 5 * time.Second })}, []string{"warn w1: 5s ahead of"}},
		{"clock-skew", "much", []change{host("w1", func(h *cluster.HostFacts) { h.ClockOffset = -time.Hour })}, []string{"fail w1: 1h0m0s behind"}},
		{"clock-skew", "unread", []change{unread("node/w1/host/clock", cluster.UnreadMalformed)}, []string{"blocked w1: clock"}},

		{"kubeadm-residue", "fine", nil, nil},
		{"kubeadm-residue", "some", []change{host("cp1", func(h *cluster.HostFacts) {
			h.KubeadmResidue, h.KubeadmResidueBytes = []string{"/etc/kubernetes/tmp/kubeadm-backup-etcd-1", "/etc/kubernetes/tmp/kubeadm-backup-etcd-2"}, 600<<20
		})}, []string{"warn cp1: 2 leftover directories of kubeadm runs with 600 MiB"}},
		{"kubeadm-residue", "no hosts", []change{noHosts}, []string{"blocked machines: coverage@hosts"}},

		{"pdb-blocks-drain", "fine", []change{state(ct.Deployment("shop", "web", 3, "w1", "w2"), ct.PDB("shop", "web", 1))}, nil},
		{"pdb-blocks-drain", "none allowed", []change{state(ct.Deployment("shop", "web", 2, "w1", "w2"), ct.PDB("shop", "web", 0))}, []string{"fail shop/web: draining nodes w1, w2 would hang on 2 pods of Deployment/shop/web"}},
		{"pdb-blocks-drain", "broken pods", []change{state(ct.Deployment("shop", "web", 2, "w1"), ct.PDB("shop", "web", 0), func(s *cluster.State) {
			s.PDBs[0].CurrentHealthy = 1
			s.Pods[0].Ready = false
		})}, []string{"fail shop/web: 1 healthy pod of 2 wanted ones"}},
		{"pdb-blocks-drain", "broken pods that may go", []change{state(ct.Deployment("shop", "web", 1, "w1"), func(s *cluster.State) { s.Pods[0].Ready = false }, ct.PDB("shop", "web", 0), func(s *cluster.State) {
			s.PDBs[0].UnhealthyEviction = "AlwaysAllow"
		})}, nil},
		{"pdb-blocks-drain", "broken pods beside enough healthy ones", []change{state(ct.Deployment("shop", "web", 2, "w1"), func(s *cluster.State) { s.Pods[0].Ready = false }, ct.PDB("shop", "web", 0), func(s *cluster.State) {
			s.PDBs[0].UnhealthyEviction = "AlwaysAllow"
		})}, []string{"fail shop/web: 1 pod of Deployment/shop/web"}},
		{"pdb-blocks-drain", "pending pods", []change{state(ct.Deployment("shop", "web", 1, "w1"), ct.PDB("shop", "web", 0), func(s *cluster.State) {
			s.Pods[0].Phase, s.Pods[0].Ready = "Pending", false
		})}, nil},
		{"pdb-blocks-drain", "CloudNativePG's", []change{state(ct.Deployment("shop", "db", 1, "w1"), ct.PDB("shop", "db", 0), func(s *cluster.State) {
			s.PDBs[0].Owner, s.PDBs[0].Group = "Cluster/db", "postgresql.cnpg.io"
		})}, []string{"fail shop/db: CloudNativePG moves the primary of Cluster db by itself"}},
		{"pdb-blocks-drain", "Rook's by failure domain", []change{state(ct.Deployment("rook-ceph", "osd", 1, "w1"), ct.PDB("rook-ceph", "osd", 0), func(s *cluster.State) {
			s.PDBs[0].Name = "rook-ceph-osd-host-w1"
		})}, []string{"fail rook-ceph/rook-ceph-osd-host-w1: wait for HEALTH_OK"}},
		{"pdb-blocks-drain", "Rook's own", []change{state(ct.Deployment("rook-ceph", "osd", 1, "w1"), ct.PDB("rook-ceph", "osd", 0), func(s *cluster.State) {
			s.PDBs[0].Name, s.PDBs[0].Owner, s.PDBs[0].Group = "rook-ceph-osd", "CephCluster/ceph", "ceph.rook.io"
		})}, []string{"fail rook-ceph/rook-ceph-osd: bring Ceph to HEALTH_OK"}},
		{"pdb-blocks-drain", "Longhorn's", []change{state(ct.Deployment("longhorn-system", "im", 1, "w1"), ct.PDB("longhorn-system", "im", 0))}, []string{"fail longhorn-system/im: last healthy replica"}},
		{"pdb-blocks-drain", "another operator's", []change{state(ct.Deployment("shop", "mq", 1, "w1"), ct.PDB("shop", "mq", 0), func(s *cluster.State) {
			s.PDBs[0].Owner, s.PDBs[0].Group = "RabbitmqCluster/mq", "rabbitmq.com"
		})}, []string{"fail shop/mq: kubectl -n shop edit rabbitmqcluster.rabbitmq.com mq"}},
		{"pdb-blocks-drain", "no pods", []change{state(ct.PDB("shop", "web", 0))}, nil},
		{"pdb-blocks-drain", "pods not on a node", []change{state(ct.Deployment("shop", "web", 2), ct.PDB("shop", "web", 0))}, nil},
		{"pdb-blocks-drain", "stale", []change{state(ct.Deployment("shop", "web", 2, "w1"), ct.PDB("shop", "web", 1), func(s *cluster.State) { s.PDBs[0].Stale = true })}, []string{"warn shop/web: behind its specification"}},
		{"pdb-blocks-drain", "two over one pod", []change{state(ct.Deployment("shop", "web", 1, "w1"), ct.PDB("shop", "web", 1), ct.PDB("shop", "web", 1), func(s *cluster.State) { s.PDBs[1].Name = "all" })},
			[]string{"fail pod/shop/web-6d4-00000: 2 PodDisruptionBudgets (shop/web, shop/all)"}},
		{"pdb-blocks-drain", "unread", []change{unread("poddisruptionbudgets", cluster.UnreadForbidden)}, []string{"blocked budgets: coverage@"}},

		{"pods-without-controller", "fine", []change{state(ct.Deployment("shop", "web", 1, "w1"))}, nil},
		{"pods-without-controller", "one", []change{state(ct.BarePod("default", "lonely", "w1"))}, []string{"fail default/lonely: accepted, the drain deletes it"}},
		{"pods-without-controller", "done", []change{state(ct.BarePod("default", "lonely", "w1"), func(s *cluster.State) { s.Pods[0].Phase = "Succeeded" })}, nil},
		{"pods-without-controller", "static", []change{state(ct.BarePod("kube-system", "etcd-cp1", "cp1"), func(s *cluster.State) { s.Pods[0].Mirror = true })}, nil},
		{"pods-without-controller", "unread", []change{unread("pods", cluster.UnreadForbidden)}, []string{"blocked pods: coverage@pods"}},

		{"pods-git-repo", "fine", nil, nil},
		{"pods-git-repo", "one", []change{state(ct.Deployment("shop", "web", 1, "w1"), func(s *cluster.State) { s.Pods[0].GitRepo = true })}, []string{"fail shop/web-6d4-00000: Deployment/shop/web"}},
		{"pods-git-repo", "old target", []change{to("1.32.1")}, []string{"skipped pods: up to 1.32"}},
		{"pods-git-repo", "unread", []change{unread("pods", cluster.UnreadForbidden)}, []string{"blocked pods: coverage@pods"}},

		{"pods-local-data", "fine", []change{state(ct.Deployment("shop", "web", 1, "w1"), func(s *cluster.State) { s.Pods[0].EmptyDir = true })}, nil},
		{"pods-local-data", "one", []change{state(ct.Deployment("shop", "db", 1, "w1"), func(s *cluster.State) { s.Pods[0].LocalVolume = true })}, []string{"warn shop/db-6d4-00000: waits until the node is back"}},
		{"pods-local-data", "unread", []change{unread("persistentvolumes", cluster.UnreadForbidden)}, []string{"blocked pods: coverage@persistentvolumes"}},

		{"workloads-ready", "fine", []change{state(ct.Deployment("shop", "web", 1, "w1"))}, nil},
		{"workloads-ready", "one is not", []change{state(ct.Deployment("shop", "web", 3, "w1"), func(s *cluster.State) { s.Workloads[0].Ready = 1 })}, []string{"warn Deployment/shop/web: 1 of 3 pods ready"}},
		{"workloads-ready", "unread", []change{unread("deployments", cluster.UnreadForbidden)}, []string{"blocked workloads: coverage@deployments"}},

		{"webhooks-fail-closed", "fine", []change{webhookOf(2)}, nil},
		{"webhooks-fail-closed", "nobody", []change{webhookOf(0)}, []string{"fail policy/p.example.org: every request for pods fails"}},
		{"webhooks-fail-closed", "nobody, for few", []change{webhookOf(0, func(w *cluster.Webhook) {
			w.NamespaceSelector, w.ObjectSelector, w.MatchConditions = "guarded=yes", "app=x", 1
		})}, []string{"fail policy/p.example.org: every request for pods (in namespaces with guarded=yes, with app=x, that meets 1 match condition) fails"}},
		{"webhooks-fail-closed", "ignores", []change{webhookOf(0, func(w *cluster.Webhook) { w.FailurePolicy = "Ignore" })}, nil},
		{"webhooks-fail-closed", "one", []change{webhookOf(1)}, []string{"warn policy/p.example.org: no pod can be created, kube-system included"}},
		{"webhooks-fail-closed", "all on one node", []change{webhookOf(2, func(w *cluster.Webhook) { w.EndpointNodes = []string{"w1"} })}, []string{"warn policy/p.example.org: all of its 2 ready endpoints are on node w1"}},
		{"webhooks-fail-closed", "on two nodes", []change{webhookOf(2, func(w *cluster.Webhook) { w.EndpointNodes = []string{"w1", "w2"} })}, nil},
		{"webhooks-fail-closed", "other objects", []change{webhookOf(0, func(w *cluster.Webhook) { w.MatchesPods = false })}, []string{"warn policy/p.example.org: every request that it matches fails"}},
		{"webhooks-fail-closed", "conversion", []change{webhookOf(0, func(w *cluster.Webhook) {
			w.Kind, w.Configuration, w.MatchesPods = "CustomResourceDefinition", "things.example.org", false
		})}, []string{"fail things.example.org: garbage collection"}},
		{"webhooks-fail-closed", "endpoints unread", []change{webhookOf(-1), unread("endpointslices/policy/hook", cluster.UnreadForbidden)}, []string{"blocked policy/p.example.org: coverage@"}},
		{"webhooks-fail-closed", "endpoints unknown", []change{webhookOf(-1)}, []string{"unknown policy/p.example.org: not known"}},
		{"webhooks-fail-closed", "unread", []change{unread("customresourcedefinitions", cluster.UnreadForbidden)}, []string{"blocked webhooks: coverage@"}},

		{"api-use", "no scan", nil, []string{"skipped api: no scan"}},
		{"api-use", "fine", []change{func(in *Input) { in.APIUse = &APIUse{} }}, nil},
		{"api-use", "removed, deprecated and unread", []change{func(in *Input) {
			in.APIUse = &APIUse{Findings: []APIFinding{{Subject: "a", Message: "m", Remedy: "r", Removed: true}, {Subject: "b", Message: "m", Remedy: "r"}}, Unread: []cluster.Unread{{What: "c", Kind: "forbidden", Why: "no"}}}
		}}, []string{"fail a: m", "warn b: m", "unknown c: could not be scanned"}},

		{"backup-verified", "none named", nil, []string{"skipped backup: belay backup create"}},
		{"backup-verified", "fine", []change{backupOf(func(*Backup) {})}, nil},
		{"backup-verified", "another cluster", []change{backupOf(func(b *Backup) { b.Lineage = "x" })}, []string{"fail backup: another cluster"}},
		{"backup-verified", "copied only", []change{backupOf(func(b *Backup) { b.Level, b.Enough = "copied", false })}, []string{"fail backup: belay backup verify backups/1 --level restored"}},
		{"backup-verified", "broken", []change{backupOf(func(b *Backup) { b.Problem = "etcd.db: wrong sum" })}, []string{"fail backup: wrong sum"}},
		{"backup-verified", "old", []change{backupOf(func(b *Backup) { b.Taken = ct.Observed.Add(-50 * time.Hour) })}, []string{"warn backup: 2 days old"}},
		{"backup-verified", "no identity", []change{backupOf(func(*Backup) {}), state(func(s *cluster.State) { s.Lineage = "" })}, []string{"unknown backup: identity is not known"}},
	}
	judged := map[string]map[Status]bool{}
	for _, c := range cases {
		t.Run(c.check+"/"+c.name, func(t *testing.T) {
			in := &Input{State: ct.New("1.36.3", 3, 2), Now: ct.Observed}
			for _, f := range c.changes {
				f(in)
			}
			i := slices.IndexFunc(Checks(), func(k Check) bool { return k.ID == c.check })
			if i < 0 {
				t.Fatalf("no check %s", c.check)
			}
			var got []Result
			for _, r := range Checks()[i].Run(context.Background(), in) {
				if judged[c.check] == nil {
					judged[c.check] = map[Status]bool{}
				}
				judged[c.check][r.Status] = true
				if r.Status != Pass {
					got = append(got, r)
				}
				if r.Message == "" || r.Subject == "" || strings.Contains(r.Message+r.Remedy, "\n") || (r.Status == Fail || r.Status == Warn || r.Status == Unknown) && r.Remedy == "" {
					t.Errorf("%+v says too little", r)
				}
				if r.Status == Blocked && len(r.Because) == 0 {
					t.Errorf("%+v is blocked by nothing", r)
				}
			}
			if len(got) != len(c.want) {
				t.Fatalf("%d findings, want %d: %+v", len(got), len(c.want), got)
			}
			for i, w := range c.want {
				head, piece, _ := strings.Cut(w, ": ")
				if string(got[i].Status)+" "+got[i].Subject != head || !strings.Contains(got[i].Message+" "+got[i].Remedy, piece) {
					t.Errorf("got %s %s: %s [%s]\nwant %s", got[i].Status, got[i].Subject, got[i].Message, got[i].Remedy, w)
				}
			}
		})
	}
	for _, c := range Checks() {
		j := judged[c.ID]
		if !j[Pass] || !strings.HasPrefix(c.Fails, "never") && !j[Fail] || c.Warns != "" && !j[Warn] {
			t.Errorf("%s: tests saw %v; want pass, fail and warn as it is documented", c.ID, j)
		}
		if !j[Unknown] && !j[Blocked] && c.ID != "version-target" && c.ID != "target-advisories" && c.ID != "bundles" {
			t.Errorf("%s: no test of what it says when it does not know", c.ID)
		}
	}
}

func backupOf(f func(*Backup)) change {
	return func(in *Input) {
		in.Backup = &Backup{Path: "backups/1", Lineage: in.State.Lineage, Taken: ct.Observed.Add(-time.Hour), Level: "restored", Enough: true}
		f(in.Backup)
	}
}
