package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const good = `schema: belay.dev/inventory/v1
cluster: shop
ssh:
  user: admin
  keyFile: id_ed25519
nodes:
  - name: cp1
    address: 192.0.2.11
  - name: w1
    ssh: {user: root, port: 2222, knownHostsFile: /etc/known}
`

func TestLoadResolvesPathsAndDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	cp := inv.SSHConfig(inv.Nodes[0])
	if cp.Address != "192.0.2.11:22" || cp.User != "admin" || !cp.Sudo || cp.UseAgent || cp.KeyFiles[0] != filepath.Join(filepath.Dir(path), "id_ed25519") {
		t.Errorf("cp1: %+v", cp)
	}
	w := inv.SSHConfig(inv.Nodes[1])
	if w.Address != "w1:2222" || w.User != "root" || w.Sudo || w.KnownHostsFile != "/etc/known" {
		t.Errorf("w1: %+v", w)
	}
	again := filepath.Join(t.TempDir(), "again.yaml")
	if err := inv.Save(again); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(again); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("saved file: %v %v", fi, err)
	}
	if _, err := Load(again); err != nil {
		t.Errorf("what was saved does not load: %v", err)
	}
}

func TestParseErrors(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"empty":         {"", "empty"},
		"unknown field": {good + "colour: red\n", "line 11"},
		"wrong type":    {"schema: belay.dev/inventory/v1\nnodes: 3\n", "line 2"},
		"schema":        {"schema: belay.dev/inventory/v9\nnodes: [{name: a}]\n", "belay.dev/inventory/v9"},
		"patches":       {good + "patchesDir: patches\n", "want an absolute path"},
		"no nodes":      {"schema: belay.dev/inventory/v1\nnodes: []\n", "no nodes"},
		"twice":         {"schema: belay.dev/inventory/v1\nnodes: [{name: a}, {name: a}]\n", "listed twice"},
		"no name":       {"schema: belay.dev/inventory/v1\nnodes: [{address: a}]\n", "no name"},
		"port":          {"schema: belay.dev/inventory/v1\nnodes: [{name: a, ssh: {port: 70000}}]\n", "out of range"},
		"two documents": {good + "---\n" + good, "more than one"},
	} {
		if _, err := Parse([]byte(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want it to say %q", name, err, c.want)
		}
	}
}

func TestUnknownNode(t *testing.T) {
	inv, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	_, err = inv.Open().Host(t.Context(), "w9")
	if unknown := (*UnknownNodeError)(nil); !errors.As(err, &unknown) || unknown.Node != "w9" {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("schema: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		inv, err := Parse(data)
		if err == nil && inv.Validate() != nil {
			t.Fatal("parsed, yet not valid")
		}
	})
}
