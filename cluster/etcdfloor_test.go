package cluster_test

import (
	"strings"
	"testing"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/internal/kubeversion"
)

func TestCheckEtcdFloor(t *testing.T) {
	for _, c := range []struct{ runs, to, want string }{
		{"3.6.8", "3.7.0", "etcd 3.7 asks for 3.6.11 or later first"},
		{"3.6.10", "3.7.0", "3.6.11"},
		{"3.6.11", "3.7.0", ""},
		{"3.6.14", "3.7.1", ""},
		{"3.7.0", "3.7.1", ""},
		{"3.5.25", "3.6.8", "asks for 3.5.26"},
		{"3.5.26", "3.6.8", "3.5.32 or later is better"},
		{"3.5.32", "3.6.8", ""},
		{"3.6.4", "3.6.8", ""},
		{"3.5.32", "3.7.0", "one minor at a time"},
		{"3.7.0", "3.6.11", "newer than 3.6.11"},
		{"3.8.0", "3.9.0", ""},
	} {
		s := clustertest.New("1.36.3", 3, 0, clustertest.Etcd(c.runs))
		got := cluster.CheckEtcdFloor(s.Etcd.Members, kubeversion.MustParse(c.to))
		switch {
		case c.want == "" && len(got) != 0:
			t.Errorf("%s to %s: %+v", c.runs, c.to, got)
		case c.want != "" && (len(got) != 3 || !strings.Contains(got[0].Message, c.want)):
			t.Errorf("%s to %s: %+v; want %q for three members", c.runs, c.to, got, c.want)
		}
	}
	s := clustertest.New("1.36.3", 1, 0, clustertest.Member("cp1", func(m *cluster.EtcdMember) { m.Version = kubeversion.V{} }))
	if got := cluster.CheckEtcdFloor(s.Etcd.Members, kubeversion.MustParse("3.7.0")); len(got) != 1 || !got[0].Unknown {
		t.Errorf("an unknown version: %+v", got)
	}
}

func TestImageVersion(t *testing.T) {
	for ref, want := range map[string]string{
		"registry.k8s.io/etcd:3.6.8-0":                  "v3.6.8",
		"registry.k8s.io/kube-apiserver:v1.36.3":        "v1.36.3",
		"registry.k8s.io/kube-apiserver:v1.38.0-beta.0": "v1.38.0-beta.0",
		"localhost:5000/kube-proxy:v1.36.3@sha256:abc":  "v1.36.3",
		"localhost:5000/kube-proxy":                     "",
		"x/rke2:v1.33.6-rke2r1":                         "v1.33.6-rke2r1",
		"x/kube:v1.33.6_k3s1":                           "v1.33.6+k3s1",
		"x@sha256:0123":                                 "",
		"x:latest":                                      "",
		"":                                              "",
	} {
		if got := cluster.ImageVersion(ref).String(); got != want {
			t.Errorf("%q: %q, want %q", ref, got, want)
		}
	}
}
