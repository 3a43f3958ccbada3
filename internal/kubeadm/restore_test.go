package kubeadm

import (
	"bytes"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestRenderRestore(t *testing.T) {
	cluster := []byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: demo\n")
	kubelet := []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false") // no newline at its end
	n := Node{Name: "new1", Address: "10.0.0.9", IgnorePreflight: []string{SystemVerification}}
	out, err := RenderRestore(n, 7443, []string{"--node-labels=rack=7", "nonsense"}, cluster, kubelet)
	if err != nil {
		t.Fatal(err)
	}
	docs := bytes.Split(out, []byte("\n---\n"))
	if len(docs) != 3 || !bytes.Equal(docs[1], cluster) || !bytes.Equal(docs[2], kubelet) {
		t.Fatalf("the cluster's own documents are not passed on:\n%s", out)
	}
	var init struct {
		Kind             string
		LocalAPIEndpoint struct {
			AdvertiseAddress string
			BindPort         int
		}
		NodeRegistration struct {
			Name                  string
			IgnorePreflightErrors []string
			KubeletExtraArgs      []struct{ Name, Value string }
		}
	}
	if err := yaml.Unmarshal(docs[0], &init); err != nil {
		t.Fatal(err)
	}
	r := init.NodeRegistration
	if init.Kind != "InitConfiguration" || init.LocalAPIEndpoint.AdvertiseAddress != "10.0.0.9" || init.LocalAPIEndpoint.BindPort != 7443 || r.Name != "new1" || len(r.IgnorePreflightErrors) != 1 {
		t.Errorf("%s", docs[0])
	}
	if a := r.KubeletExtraArgs; len(a) != 2 || a[0].Name != "node-ip" || a[0].Value != "10.0.0.9" || a[1].Name != "node-labels" || a[1].Value != "rack=7" {
		t.Errorf("kubelet flags: %+v", a)
	}
	for _, bad := range [][]byte{nil, kubelet, []byte("{")} {
		if _, err := RenderRestore(n, 6443, nil, bad, kubelet); err == nil || !strings.Contains(err.Error(), "ClusterConfiguration") {
			t.Errorf("ClusterConfiguration %q: error %v", bad, err)
		}
	}
}
