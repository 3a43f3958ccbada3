package inspect

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/host"
)

// What tells of operators and of nodes that a webhook depends on is in the state.
func TestObserveReadsOwnersAndPlaces(t *testing.T) {
	a := newAPI()
	pdb := a.lists["/apis/policy/v1/poddisruptionbudgets"][0].(*policyv1.PodDisruptionBudget)
	pdb.OwnerReferences = []metav1.OwnerReference{{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: "db", Controller: new(true)}}
	slice := a.lists["/apis/discovery.k8s.io/v1/namespaces/policy/endpointslices"][0].(*discoveryv1.EndpointSlice)
	slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.1.1.3"}, NodeName: new("w1")}, discoveryv1.Endpoint{Addresses: []string{"10.1.1.4"}, NodeName: new("w1")})
	for _, o := range a.lists["/api/v1/pods"] {
		if p := o.(*corev1.Pod); p.Name == "kube-apiserver-cp1" {
			p.Spec.Volumes = []corev1.Volume{{Name: "audit", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/log/audit"}}}}
			c := &p.Spec.Containers[slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "kube-apiserver" })]
			c.Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}, Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")}}
		}
	}
	hosts := func(_ context.Context, node string) (host.Host, error) {
		return cannedHost{out: line("clock-start", "0", "1") + line("kubelet-config", "0", "kind: KubeletConfiguration\nfailCgroupV1: false\nfeatureGates: {A: true}\nmaxPods: 250\n") + line("clock-end", "0", "1")}, nil
	}
	s, err := observe(t, a, hosts, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if b := s.PDBs[0]; b.Owner != "Cluster/db" || b.Group != "postgresql.cnpg.io" {
		t.Errorf("budget %+v", b)
	}
	i := slices.IndexFunc(s.Webhooks, func(w cluster.Webhook) bool { return w.Service == "policy/hook" })
	if w := s.Webhooks[i]; w.ReadyEndpoints != 3 || !slices.Equal(w.EndpointNodes, []string{"w1"}) {
		t.Errorf("webhook %+v", w)
	}
	if sp := s.Node("cp1").StaticPod("kube-apiserver"); !slices.Equal(sp.HostPaths, []string{"/var/log/audit"}) || !slices.Equal(sp.Resources, []string{"limits.memory=4Gi", "requests.cpu=2"}) {
		t.Errorf("kube-apiserver %+v", sp)
	}
	if got := s.Node("w1").Host.KubeletConfigDrift; !slices.Equal(got, []string{"maxPods"}) {
		t.Errorf("drift %v", got)
	}
}

func TestParseKubeadmExtraVolumes(t *testing.T) {
	k, err := parseKubeadm("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.3\napiServer:\n  extraVolumes: [{name: audit, hostPath: /var/log/audit, mountPath: /a}]\netcd: {local: {imageRepository: example.org, imageTag: 3.6.8-0}}\n")
	if err != nil || !slices.Equal(k.ExtraVolumes["apiServer"], []string{"/var/log/audit"}) || k.EtcdImageRepository != "example.org" || k.EtcdImageTag != "3.6.8-0" {
		t.Errorf("%+v, %v", k, err)
	}
}

func TestKubeletConfigDrift(t *testing.T) {
	const base = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\nfailSwapOn: false\nmaxPods: 110\nauthentication: {anonymous: {enabled: false}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\n"
	for name, c := range map[string]struct {
		node string
		want []string
	}{
		"the same":                      {base, nil},
		"empty values of a newer minor": {base + "syncFrequency: 0s\ncrashLoopBackOff: {}\nimageMinimumGCAge: 0s\ncpuManagerReconcilePeriod: 0s\nlogging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}}\n", nil},
		"what kubeadm sets by node":     {base + "resolvConf: /run/systemd/resolve/resolv.conf\ncontainerRuntimeEndpoint: unix:///x\n", nil},
		"another number":                {"kind: KubeletConfiguration\ncgroupDriver: systemd\nfailSwapOn: false\nmaxPods: 250\nauthentication: {anonymous: {enabled: false}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\n", []string{"maxPods"}},
		"a field more, one less":        {"kind: KubeletConfiguration\ncgroupDriver: systemd\nmaxPods: 110\nevictionHard: {memory.available: 1Gi}\nauthentication: {anonymous: {enabled: false}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\n", []string{"evictionHard", "failSwapOn"}},
		"deep down":                     {"kind: KubeletConfiguration\ncgroupDriver: systemd\nfailSwapOn: false\nmaxPods: 110\nauthentication: {anonymous: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\n", []string{"authentication"}},
	} {
		var a, b settings
		if err := yaml.Unmarshal([]byte(base), &a); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(c.node), &b); err != nil {
			t.Fatal(err)
		}
		if got := a.drift(b); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
