package apicheck

import (
	"strings"
	"testing"
)

func TestComponents(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to int
		text     string
		want     []string // severity, field, path and line
	}{
		{"kubelet's gates", 36, 37, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfeatureGates:\n  SidecarContainers: true\n  NodeSwap: false\n  KubeletTracing: true\n",
			[]string{"error SidecarContainers featureGates.SidecarContainers:4", "warning NodeSwap featureGates.NodeSwap:5"}},
		{"before they end", 31, 32, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfeatureGates: {SidecarContainers: true, NodeSwap: false}\n", nil},
		{"kubeadm's mapping", 32, 33, "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\napiServer:\n  extraArgs:\n    cloud-provider: x\n    feature-gates: APIListChunking=true,NodeSwap=false\n",
			[]string{"warning  :1", "error --cloud-provider apiServer.extraArgs.cloud-provider:5", "error APIListChunking apiServer.extraArgs.feature-gates:6"}},
		{"kubeadm's list", 36, 37, "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  kubeletExtraArgs:\n  - name: containerd\n    value: x\n  - {name: node-labels, value: a=b}\n",
			[]string{"error --containerd nodeRegistration.kubeletExtraArgs[0]:5"}},
		{"a static pod", 36, 37, "apiVersion: v1\nkind: Pod\nmetadata: {name: kube-controller-manager}\nspec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --concurrent-service-syncs=1\n    - --feature-gates=RetryGenerateName=true\n    - --v=2\n",
			[]string{"error --concurrent-service-syncs spec.containers[0].command[1]:8", "error RetryGenerateName spec.containers[0].command[2]:9"}},
		{"flags and values as words of their own", 36, 37, "apiVersion: v1\nkind: Pod\nmetadata: {name: kube-controller-manager}\nspec:\n  containers:\n  - command:\n    - kube-controller-manager\n    args:\n    - --concurrent-service-syncs\n    - '1'\n    - --feature-gates\n    - RetryGenerateName=true\n    - -v\n    - '2'\n",
			[]string{"error --concurrent-service-syncs spec.containers[0].args[0]:9", "error RetryGenerateName spec.containers[0].args[2]:11"}},
		{"another program", 36, 37, "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [web, --concurrent-service-syncs=1]\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := scanText(t, c.from, c.to, c.text)
			var got []string
			for _, f := range r.Findings {
				got = append(got, string(f.Severity)+" "+f.Field+" "+f.Source.Path+":"+itoa(f.Source.Line))
			}
			for _, w := range c.want {
				if !strings.Contains(strings.Join(got, "\n")+"\n", w+"\n") {
					t.Errorf("no %q in %q", w, got)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
