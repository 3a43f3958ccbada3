package kubeadm

import (
	"bytes"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// RenderRestore gives the configuration for the phases of `kubeadm init` on a machine that takes the place of a lost control
// plane node: how the machine is registered, and the cluster's own ClusterConfiguration and KubeletConfiguration as they
// were. port is the apiserver's; kubeletArgs are flags (--NAME=VALUE) of the lost node's kubelet that are the cluster's.
func RenderRestore(n Node, port int, kubeletArgs []string, cluster, kubelet []byte) ([]byte, error) {
	d := initConfiguration(n)
	d["localAPIEndpoint"] = document{"advertiseAddress": n.Address, "bindPort": port}
	registration := registration(n)
	args, _ := registration["kubeletExtraArgs"].([]any)
	for _, a := range kubeletArgs {
		if name, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "="); ok {
			args = append(args, document{"name": name, "value": value})
		}
	}
	registration["kubeletExtraArgs"] = args
	d["nodeRegistration"] = registration
	out, err := render(d)
	if err != nil {
		return nil, err
	}
	for what, doc := range map[string][]byte{"ClusterConfiguration": cluster, "KubeletConfiguration": kubelet} {
		var head struct{ Kind string }
		if err := yaml.Unmarshal(doc, &head); err != nil {
			return nil, fmt.Errorf("kubeadm configuration: the cluster's %s: %w", what, err)
		}
		if head.Kind != what {
			return nil, fmt.Errorf("kubeadm configuration: the cluster's %s is of kind %q", what, head.Kind)
		}
	}
	return bytes.Join([][]byte{out, cluster, kubelet}, []byte("\n---\n")), nil
}
