package cluster_test

import (
	"strings"
	"testing"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/kubeversion"
)

func TestCheckSkew(t *testing.T) {
	managed := func(s *cluster.State) {
		s.Etcd = cluster.Etcd{}
		for i := range s.Nodes {
			s.Nodes[i].StaticPods = nil
		}
	}
	for name, c := range map[string]struct {
		opts []clustertest.Option
		want []string // one substring for each problem, in order
	}{
		"all the same":        {nil, nil},
		"workers three older": {[]clustertest.Option{clustertest.Component("w1", "kubelet", "1.33.0"), clustertest.Component("w1", "kube-proxy", "1.33.0")}, nil},
		"worker four older":   {[]clustertest.Option{clustertest.Component("w1", "kubelet", "1.32.0")}, []string{"node w1: kube-proxy v1.36.3 and kubelet v1.32.0 are more than 3 minors apart", "node w1: kubelet v1.32.0 is older"}},
		// The case of a plain script whose first control plane failed: new kubelets under old apiservers.
		"kubelet newer than one apiserver of three": {[]clustertest.Option{
			clustertest.Component("cp1", "kube-apiserver", "1.37.2"), clustertest.Component("cp2", "kube-apiserver", "1.37.2"),
			clustertest.Component("w1", "kubelet", "1.37.2"),
		}, []string{"node w1: kubelet v1.37.2 is newer than kube-apiserver v1.36.3 by 1 minor; none allowed (version-skew-policy#kubelet) (kube-apiserver of node cp3)"}},
		"one apiserver ahead":                       {[]clustertest.Option{clustertest.Component("cp1", "kube-apiserver", "1.37.2")}, nil},
		"controller manager with its own apiserver": {[]clustertest.Option{clustertest.Component("cp1", "kube-apiserver", "1.37.2"), clustertest.Component("cp1", "kube-controller-manager", "1.37.2")}, nil},
		"controller manager ahead of its own":       {[]clustertest.Option{clustertest.Component("cp1", "kube-apiserver", "1.37.2"), clustertest.Component("cp2", "kube-controller-manager", "1.37.2")}, []string{"node cp2: kube-controller-manager v1.37.2 is newer than kube-apiserver v1.36.3"}},
		"controller manager behind a balancer": {[]clustertest.Option{clustertest.Component("cp1", "kube-apiserver", "1.37.2"), clustertest.Component("cp1", "kube-controller-manager", "1.37.2"), func(s *cluster.State) { s.Kubeadm = nil }},
			[]string{"node cp1: kube-controller-manager v1.37.2 is newer than kube-apiserver v1.36.3"}},
		"apiservers two apart": {[]clustertest.Option{clustertest.Component("cp1", "kube-apiserver", "1.38.0")}, []string{
			"nodes cp1 and cp2: kube-apiserver v1.38.0 is newer",
			"node cp1: kube-controller-manager v1.36.3 is older than kube-apiserver v1.38.0",
			"node cp1: kube-scheduler",
		}},
		"no version in a tag":      {[]clustertest.Option{clustertest.Node("cp1", func(n *cluster.Node) { n.StaticPod("kube-apiserver").Version = kubeversion.V{} })}, []string{"the version of kube-apiserver on node cp1 is not known"}},
		"kubelet reports nothing":  {[]clustertest.Option{clustertest.Node("w1", func(n *cluster.Node) { n.Kubelet = kubeversion.V{} })}, []string{"the version of kubelet on node w1 is not known"}},
		"managed, fine":            {[]clustertest.Option{managed}, nil},
		"managed, a kubelet newer": {[]clustertest.Option{managed, clustertest.Component("w1", "kubelet", "1.37.0")}, []string{"node w1: kubelet v1.37.0 is newer than kube-apiserver v1.36.3"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := cluster.CheckSkew(clustertest.New("1.36.3", 3, 2, c.opts...))
			if len(got) != len(c.want) {
				t.Fatalf("%d problems, want %d: %+v", len(got), len(c.want), got)
			}
			for i, p := range got {
				if !strings.Contains(p.Message, c.want[i]) {
					t.Errorf("problem %q; want %q", p.Message, c.want[i])
				}
				if p.Unknown != strings.Contains(p.Message, "not known") {
					t.Errorf("unknown = %v: %q", p.Unknown, p.Message)
				}
			}
		})
	}
}
