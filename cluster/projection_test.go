package cluster_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/kubeversion"
)

func TestProjectionIgnoresWhatAPlanDoesNotRelyOn(t *testing.T) {
	base := cluster.Project(clustertest.New("1.36.3", 3, 2))
	for name, change := range map[string]clustertest.Option{
		"time":         func(s *cluster.State) { s.Observed = s.Observed.Add(time.Hour) },
		"readiness":    clustertest.NotReady("w1", "KubeletStopped"),
		"pods":         clustertest.Deployment("shop", "web", 3, "w1", "w2"),
		"etcd's sizes": clustertest.Member("cp1", func(m *cluster.EtcdMember) { m.DBSize, m.Leader, m.Healthy = 1, false, false }),
		"a pod's UID":  clustertest.Node("cp1", func(n *cluster.Node) { n.StaticPods[0].UID, n.StaticPods[0].Restarts = "other", 9 }),
		"order": func(s *cluster.State) {
			slices.Reverse(s.Nodes)
			slices.Reverse(s.Etcd.Members)
			slices.Reverse(s.Addons)
		},
		"host facts": clustertest.Node("w1", func(n *cluster.Node) { n.Host = nil }),
		"unread":     clustertest.Unread("pods", cluster.UnreadForbidden, "no"),
	} {
		p := cluster.Project(clustertest.New("1.36.3", 3, 2, change))
		if d := cluster.Diff(base, p); d != nil || p.Digest() != base.Digest() {
			t.Errorf("%s: %q", name, d)
		}
	}
}

func TestDiffNamesEveryChange(t *testing.T) {
	base := cluster.Project(clustertest.New("1.36.3", 3, 2))
	for want, change := range map[string]clustertest.Option{
		"another cluster: UID of namespace kube-system was 11111111-2222-3333-4444-555555555555, is x": func(s *cluster.State) { s.Lineage = "x" },
		"API server version was v1.36.3, is v1.37.2":                                                   func(s *cluster.State) { s.Version = kubeversion.MustParse("1.37.2") },
		"kubernetesVersion in ConfigMap kubeadm-config was v1.36.3, is v1.37.2": func(s *cluster.State) {
			s.Kubeadm.KubernetesVersion = kubeversion.MustParse("1.37.2")
		},
		"apiVersion of ConfigMap kubeadm-config was kubeadm.k8s.io/v1beta4, is unknown": func(s *cluster.State) { s.Kubeadm.APIVersion = "" },
		"node w2 is gone": func(s *cluster.State) { s.Nodes = s.Nodes[:len(s.Nodes)-1] },
		"node w3 is new (worker, kubelet v1.36.3)": func(s *cluster.State) {
			s.Nodes = append(s.Nodes, cluster.Node{Name: "w3", UID: "3", Kubelet: s.Version})
		},
		"node w1 was replaced":                          clustertest.Node("w1", func(n *cluster.Node) { n.UID = "y" }),
		"role of node w1 was worker, is control plane":  clustertest.Node("w1", func(n *cluster.Node) { n.ControlPlane = true }),
		"node w1 was schedulable, is cordoned":          clustertest.Node("w1", func(n *cluster.Node) { n.Unschedulable = true }),
		"kubelet of node w1 was v1.36.3, is v1.37.2":    clustertest.Component("w1", "kubelet", "1.37.2"),
		"kube-proxy of node w1 was v1.36.3, is v1.37.2": clustertest.Component("w1", "kube-proxy", "1.37.2"),
		"kube-scheduler of node cp2 was registry.k8s.io/kube-scheduler:v1.36.3, is registry.k8s.io/kube-scheduler:v1.37.2": clustertest.Component("cp2", "kube-scheduler", "1.37.2"),
		"etcd was stacked, is external":              func(s *cluster.State) { s.Etcd.External = true },
		"etcd member cp3 (00000000000000a3) is gone": func(s *cluster.State) { s.Etcd.Members = s.Etcd.Members[:2] },
		"version of etcd member cp2 was v3.6.8, is v3.6.11": clustertest.Member("cp2", func(m *cluster.EtcdMember) {
			m.Version = kubeversion.MustParse("3.6.11")
		}),
		"role of etcd member cp2 was voter, is learner": clustertest.Member("cp2", func(m *cluster.EtcdMember) { m.Learner = true }),
		"image of addon kube-system/coredns was":        func(s *cluster.State) { s.Addons[0].Image = "x" },
	} {
		p := cluster.Project(clustertest.New("1.36.3", 3, 2, change))
		d := cluster.Diff(base, p)
		if len(d) != 1 || !strings.Contains(d[0], want) {
			t.Errorf("diff %q; want one line with %q", d, want)
		}
		if p.Digest() == base.Digest() {
			t.Errorf("%s: equal digests", want)
		}
		if back := cluster.Diff(p, base); len(back) != 1 {
			t.Errorf("%s: the way back gives %q", want, back)
		}
	}
}

func TestShortDigest(t *testing.T) {
	for in, want := range map[string]string{"sha256:0123456789abcdef": "0123456789ab", "sha256:01": "01", "": ""} {
		if got := cluster.ShortDigest(in); got != want {
			t.Errorf("ShortDigest(%q) = %q", in, got)
		}
	}
}
