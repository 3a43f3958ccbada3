package kubeadm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// commandOf reads the command line of a manifest.
func commandOf(t *testing.T, file string) (component string, args, paths []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pod struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Containers []struct {
				Command []string `json:"command"`
			} `json:"containers"`
			Volumes []struct {
				HostPath struct {
					Path string `json:"path"`
				} `json:"hostPath"`
			} `json:"volumes"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(b, &pod); err != nil {
		t.Fatal(err)
	}
	for _, v := range pod.Spec.Volumes {
		paths = append(paths, v.HostPath.Path)
	}
	return pod.Metadata.Labels["component"], pod.Spec.Containers[0].Command, paths
}

// The manifests are what `kubeadm init phase control-plane all` and `etcd local` of these versions wrote.
func TestWhatKubeadmWritesIsNotLost(t *testing.T) {
	files, err := filepath.Glob("testdata/manifests-*/*.yaml")
	if err != nil || len(files) != 8 {
		t.Fatalf("%d manifests, %v", len(files), err)
	}
	for _, f := range files {
		component, args, paths := commandOf(t, f)
		if len(args) < 5 || len(paths) == 0 {
			t.Fatalf("%s: command %v", f, args)
		}
		if lost := LostFlags(component, args, nil); lost != nil {
			t.Errorf("%s: %v", f, lost)
		}
		if lost := LostPaths(component, paths, args, nil); lost != nil {
			t.Errorf("%s: %v", f, lost)
		}
		if lost := LostPaths(component, append(paths, "/var/log/audit", "/etc/kubernetes/enc"), append(args, "--audit-log-path=/var/log/audit/a.log"), []string{"/etc/kubernetes/enc"}); !slices.Equal(lost, []string{"/var/log/audit"}) {
			t.Errorf("%s with a volume by hand: %v", f, lost)
		}
		// Anything else that is put in by hand is.
		if lost := LostFlags(component, append(args, "--profiling=false"), nil); !slices.Equal(lost, []string{"--profiling"}) {
			t.Errorf("%s with a flag by hand: %v", f, lost)
		}
	}
}

func TestLostFlags(t *testing.T) {
	for name, c := range map[string]struct {
		component string
		args      []string
		extra     map[string][]string
		want      []string
	}{
		"encryption and audit by hand": {"kube-apiserver", []string{"kube-apiserver", "--encryption-provider-config=/etc/kubernetes/enc.yaml", "--audit-log-path", "/var/log/audit.log", "--secure-port=6443"}, nil,
			[]string{"--audit-log-path", "--encryption-provider-config"}},
		"the same in extraArgs": {"kube-apiserver", []string{"--encryption-provider-config=/etc/kubernetes/enc.yaml", "--audit-log-path=/a"},
			map[string][]string{"encryption-provider-config": {"/etc/kubernetes/enc.yaml"}, "audit-log-path": {"/a"}}, nil},
		"another value than extraArgs":      {"kube-apiserver", []string{"--v=8"}, map[string][]string{"v": {"2"}}, []string{"--v=8 (kubeadm-config has 2)"}},
		"one of several in extraArgs":       {"kube-apiserver", []string{"--tls-sni-cert-key=a", "--tls-sni-cert-key=b"}, map[string][]string{"tls-sni-cert-key": {"a", "b"}}, nil},
		"a value put after kubeadm's":       {"kube-apiserver", []string{"--enable-admission-plugins=NodeRestriction,AlwaysPullImages"}, map[string][]string{"enable-admission-plugins": {",AlwaysPullImages"}}, nil},
		"a fixed value changed by hand":     {"kube-controller-manager", []string{"--bind-address=0.0.0.0", "--cluster-cidr=10.1.0.0/16"}, nil, []string{"--bind-address=0.0.0.0 (kubeadm writes 127.0.0.1)"}},
		"value as an argument of its own":   {"kube-scheduler", []string{"--leader-elect", "false"}, nil, []string{"--leader-elect=false (kubeadm writes true)"}},
		"a switch without a value":          {"kube-scheduler", []string{"--leader-elect", "--v=2"}, nil, []string{"--v"}},
		"underscores":                       {"kube-scheduler", []string{"--leader_elect=true", "--log_dir=/x"}, nil, []string{"--log-dir"}},
		"etcd, up to 1.33":                  {"etcd", []string{"--experimental-initial-corrupt-check=true"}, nil, nil},
		"etcd, quota by hand":               {"etcd", []string{"--quota-backend-bytes=8589934592"}, nil, []string{"--quota-backend-bytes"}},
		"named twice":                       {"etcd", []string{"--x=1", "--x=2"}, nil, []string{"--x"}},
		"a component that is not kubeadm's": {"kube-vip", []string{"--x"}, nil, nil},
	} {
		if got := LostFlags(c.component, c.args, c.extra); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzLostFlags(f *testing.F) {
	f.Add("kube-apiserver", "--secure-port=6443", "--audit-log-path", "audit-log-path", "/a")
	f.Add("etcd", "--", "-x", "", "")
	f.Fuzz(func(t *testing.T, component, a, b, name, value string) {
		for _, args := range [][]string{{a, b}, {b, a}} {
			lost := LostFlags(component, args, map[string][]string{name: {value}})
			if !slices.IsSorted(lost) || len(lost) > len(args) {
				t.Fatalf("%q of %q", lost, args)
			}
		}
		// What is in extraArgs as it is in the manifest is never lost.
		if name != "" && !strings.ContainsAny(name, "=_-") {
			if lost := LostFlags(component, []string{"--" + name + "=" + value}, map[string][]string{name: {value}}); lost != nil {
				t.Fatalf("--%s=%s: %q", name, value, lost)
			}
		}
	})
}
