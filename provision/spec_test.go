package provision

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const goodSpec = `apiVersion: belay.dev/v1alpha1
kind: Cluster
name: shop
kubernetesVersion: 1.36.3
controlPlaneEndpoint: api.example.org
ssh: {user: admin, keyFile: ~/.ssh/id}
nodes:
- {name: cp1, role: control-plane, address: 192.168.5.1}
- name: w1
  role: worker
  address: 192.168.5.2
  ssh: {port: 2222}
`

func TestParseSpec(t *testing.T) {
	s, err := ParseSpec([]byte(goodSpec))
	if err != nil {
		t.Fatal(err)
	}
	if s.PodSubnet != DefaultPodSubnet || s.ServiceSubnet != DefaultServiceSubnet || s.KubeProxyMode != DefaultProxyMode {
		t.Errorf("defaults are missing: %+v", s)
	}
	if s.ControlPlaneEndpoint != "api.example.org:6443" {
		t.Errorf("endpoint is %q", s.ControlPlaneEndpoint)
	}
	if s.Nodes[1].SSH.Port != 2222 || s.SSH.User != "admin" {
		t.Errorf("ssh: %+v", s)
	}
	out, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseSpec(out)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, again) || len(s.differences(again)) > 0 {
		t.Errorf("written and read again it differs: %v", s.differences(again))
	}
}

func TestParseSpecRefuses(t *testing.T) {
	machines := "apiVersion: belay.dev/v1alpha1\nkind: Cluster\nname: a\nkubernetesVersion: 1.36.3\nmachines: {controlPlanes: 1, workers: 1}\n"
	for name, c := range map[string]struct{ in, want string }{
		"empty":            {"", "empty"},
		"two documents":    {machines + "---\nkind: X\n", "more than one"},
		"unknown field":    {machines + "podSubnets: 10.0.0.0/8\n", "line 6: field podSubnets not found in a cluster file"},
		"unknown in node":  {strings.Replace(goodSpec, "  role: worker", "  role: worker\n  zone: a", 1), "line 11: field zone not found in a node"},
		"wrong type":       {strings.Replace(machines, "workers: 1", "workers: many", 1), "line 5: cannot unmarshal text `many` into int"},
		"version":          {strings.Replace(machines, "1.36.3", "1.36", 1), "line 4: kubernetesVersion"},
		"old version":      {strings.Replace(machines, "1.36.3", "1.30.1", 1), "older than 1.31"},
		"apiVersion":       {strings.Replace(machines, "v1alpha1", "v9", 1), "line 1: apiVersion"},
		"name":             {strings.Replace(machines, "name: a", "name: A_b", 1), "line 3: name"},
		"no control plane": {strings.Replace(machines, "controlPlanes: 1", "controlPlanes: 0", 1), "line 5: machines: at least one"},
		"both":             {goodSpec + "machines: {controlPlanes: 1, workers: 0}\n", "not both"},
		"duplicate node":   {strings.Replace(goodSpec, "name: w1", "name: cp1", 1), "line 9: nodes[1].name: node cp1 is listed twice"},
		"same address":     {strings.Replace(goodSpec, "5.2", "5.1", 1), "line 11: nodes[1].address"},
		"no address":       {strings.Replace(goodSpec, "192.168.5.2", "w1.example.org", 1), "is not an IP address"},
		"role":             {strings.Replace(goodSpec, "role: worker", "role: etcd", 1), "line 10: nodes[1].role"},
		"no endpoint": {
			strings.Replace(strings.Replace(goodSpec, "role: worker", "role: control-plane", 1), "controlPlaneEndpoint: api.example.org\n", "", 1),
			"controlPlaneEndpoint: is required for 2",
		},
		"overlap":         {machines + "podSubnet: 10.96.0.0/12\n", "overlaps"},
		"family":          {machines + "podSubnet: fd00::/48\n", "different address families"},
		"host bits":       {machines + "podSubnet: 10.244.0.1/16\n", "line 6: podSubnet"},
		"small":           {machines + "podSubnet: 10.244.0.0/28\n", "too small"},
		"node in pods":    {goodSpec + "podSubnet: 192.168.0.0/16\n", "contains the address 192.168.5.1 of node cp1"},
		"proxy mode":      {machines + "kubeProxyMode: userspace\n", "line 6: kubeProxyMode"},
		"component":       {machines + "extraArgs: {kubelet: {v: \"2\"}}\n", "extraArgs.kubelet: no such component"},
		"machines and ep": {machines + "controlPlaneEndpoint: x\n", "is computed"},
		"port":            {machines + "ssh: {port: 70000}\n", "line 6: ssh.port"},
	} {
		_, err := ParseSpec([]byte(c.in))
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %q does not say %q", name, err, c.want)
		}
	}
}

func TestSpecSaysAllThatIsWrong(t *testing.T) {
	_, err := ParseSpec([]byte("apiVersion: x\nkind: y\nname: Z\nkubernetesVersion: v\npodSubnet: p\n"))
	if err == nil {
		t.Fatal("accepted")
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 6 {
		t.Errorf("want 6 errors, each on a line: %q", lines)
	}
}

func TestParseMachines(t *testing.T) {
	m, err := ParseMachines("3+2")
	if err != nil || m != (SpecMachines{ControlPlanes: 3, Workers: 2}) {
		t.Errorf("got %+v, %v", m, err)
	}
	if _, err := ParseMachines("1+0"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "3", "0+1", "1+-1", "a+b", "1+1+1", "9+0"} {
		if m, err := ParseMachines(bad); err == nil {
			t.Errorf("%q: %+v", bad, m)
		}
	}
}

func TestSpecWarnings(t *testing.T) {
	s := &Spec{Machines: &SpecMachines{ControlPlanes: 2}}
	if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0], "2 control plane nodes") {
		t.Errorf("warnings: %v", w)
	}
	s.Machines.ControlPlanes = 3
	if w := s.Warnings(); len(w) != 0 {
		t.Errorf("warnings: %v", w)
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(goodSpec))
	f.Add([]byte("apiVersion: belay.dev/v1alpha1\nkind: Cluster\nname: a\nkubernetesVersion: 1.36.3\nmachines: {controlPlanes: 1, workers: 1}\nextraArgs: {etcd: {v: \"1\"}}\n"))
	f.Add([]byte("nodes: [&a {name: x}, *a]\nname: [\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := ParseSpec(in)
		if err != nil {
			return
		}
		if err := s.Validate(); err != nil {
			t.Fatalf("parsed and not valid: %v", err)
		}
		out, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseSpec(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if d := s.differences(again); len(d) > 0 || s.Name != again.Name {
			t.Fatalf("written and read again it differs in %v\n%s", d, out)
		}
	})
}

func TestResolvePaths(t *testing.T) {
	s := &Spec{BundleRoot: "bundles", SSH: SpecSSH{KeyFile: "~/.ssh/id"}, Nodes: []SpecNode{{SSH: SpecSSH{KeyFile: "/abs", KnownHostsFile: "../known"}}}}
	s.ResolvePaths("/etc/clusters", "/u/ada")
	want := &Spec{BundleRoot: "/etc/clusters/bundles", SSH: SpecSSH{KeyFile: "/u/ada/.ssh/id"}, Nodes: []SpecNode{{SSH: SpecSSH{KeyFile: "/abs", KnownHostsFile: "/etc/known"}}}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, want %+v", s, want)
	}
}

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../examples/cluster/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseSpec(data); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}
