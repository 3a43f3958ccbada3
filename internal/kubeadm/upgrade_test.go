package kubeadm

import (
	"slices"
	"strings"
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

const etcdManifest = `apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubeadm.kubernetes.io/etcd.advertise-client-urls: https://10.0.0.1:2379
  labels: {component: etcd}
  name: etcd
spec:
  containers:
  - command:
    - etcd
    - --name=cp1 # image: not this one
    image: registry.k8s.io/etcd:3.6.8-0
    imagePullPolicy: IfNotPresent
    name: etcd
status: {}
`

func TestSetManifestImage(t *testing.T) {
	out, err := SetManifestImage([]byte(etcdManifest), "registry.k8s.io/etcd:3.6.14-0")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(etcdManifest, "3.6.8-0", "3.6.14-0", 1); string(out) != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	for name, bad := range map[string]string{
		"no image":       strings.Replace(etcdManifest, "image: registry", "picture: registry", 1),
		"two containers": strings.Replace(etcdManifest, "status:", "  - name: b\n    image: c:1\nstatus:", 1),
		"not yaml":       "a: [",
	} {
		if _, err := SetManifestImage([]byte(bad), "x:1"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestStripFlags(t *testing.T) {
	gone := GoneKubeletFlags(kubeversion.MustParse("1.36.3"))
	for in, want := range map[string]string{
		"KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --pod-infra-container-image=registry.k8s.io/pause:3.10\"\n": "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1\"\n",
		"KUBELET_KUBEADM_ARGS=\"--pod-infra-container-image pause:3 --v=2\"":                                   "KUBELET_KUBEADM_ARGS=\"--v=2\"",
		"KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1\"\n":                                                        "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1\"\n",
		"# --pod-infra-container-image=x=1\n":                                                                  "# --pod-infra-container-image=x=1\n",
		"":                                                                                                     "",
	} {
		got, changed := StripFlags([]byte(in), gone)
		if string(got) != want || changed != (in != want) {
			t.Errorf("%q: got %q (%v), want %q", in, got, changed, want)
		}
	}
	if GoneKubeletFlags(kubeversion.MustParse("1.34.4")) != nil {
		t.Error("1.34 still knows the flag")
	}
}

func TestUpgradeArgv(t *testing.T) {
	got := UpgradeApplyArgv(Staged(kubeversion.MustParse("1.37.2"), "kubeadm"), kubeversion.MustParse("1.37.2"), UpgradeOptions{Ignore: []string{"SystemVerification", "Swap"}, Patches: "/etc/kubernetes/patches"})
	want := []string{"/opt/belay/1.37.2/kubeadm", "upgrade", "apply", "v1.37.2", "--yes", "--etcd-upgrade=true", "--ignore-preflight-errors=SystemVerification,Swap", "--patches=/etc/kubernetes/patches"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := UpgradeNodeArgv("kubeadm", UpgradeOptions{}); slices.ContainsFunc(got, func(a string) bool { return strings.HasPrefix(a, "--ignore") }) {
		t.Errorf("got %v", got)
	}
}

func FuzzStripFlags(f *testing.F) {
	f.Add("KUBELET_KUBEADM_ARGS=\"--a=b --pod-infra-container-image=x\"\n")
	f.Add("A='--x'\r\nB=")
	f.Fuzz(func(t *testing.T, s string) {
		flags := []string{"--pod-infra-container-image"}
		once, changed := StripFlags([]byte(s), flags)
		if !changed && string(once) != s {
			t.Fatalf("unchanged, and yet %q became %q", s, once)
		}
		if twice, again := StripFlags(once, flags); again && string(twice) == string(once) {
			t.Fatalf("%q: changed without a change", once)
		}
	})
}
