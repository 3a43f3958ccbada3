// Package inventory says which machines a cluster's nodes are and how to reach
// them over SSH.
//
// The file format is strict and versioned; `belay cluster up` writes one, and
// for clusters made by others an operator writes it by hand. Hosts opens the
// machines lazily, each once.
package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/host"
)

// Schema names the format of an inventory file.
const Schema = "belay.dev/inventory/v1"

// Inventory lists the machines of one cluster.
type Inventory struct {
	Schema string `yaml:"schema"`
	// Cluster is the cluster's name, for messages.
	Cluster string `yaml:"cluster,omitempty"`
	// SSH holds for every node that does not say otherwise.
	SSH   SSH    `yaml:"ssh,omitempty"`
	Nodes []Node `yaml:"nodes"`
	// IgnorePreflightErrors are kubeadm preflight checks that do not hold for these machines,
	// as in `kubeadm --ignore-preflight-errors`.
	IgnorePreflightErrors []string `yaml:"ignorePreflightErrors,omitempty"`
	// PatchesDir is a directory on every machine with patches that kubeadm puts onto what it writes, as in `kubeadm --patches`.
	PatchesDir string `yaml:"patchesDir,omitempty"`
	// Disposable marks machines made for tests and rehearsals: an unofficial bundle is fit for them.
	Disposable bool `yaml:"disposable,omitempty"`
}

// SSH is how to log in.
type SSH struct {
	// User defaults to root. Another user needs sudo without a password.
	User string `yaml:"user,omitempty"`
	// Port defaults to 22.
	Port int `yaml:"port,omitempty"`
	// KeyFile is a private key; relative paths are relative to the inventory file. Without one the SSH agent is asked.
	KeyFile string `yaml:"keyFile,omitempty"`
	// KnownHostsFile defaults to ~/.ssh/known_hosts. Host keys are always checked.
	KnownHostsFile string `yaml:"knownHostsFile,omitempty"`
}

// Node is one machine.
type Node struct {
	// Name is the node's name in the API.
	Name string `yaml:"name"`
	// Address is where SSH answers; it defaults to Name. "local" is this computer itself.
	Address string `yaml:"address,omitempty"`
	SSH     SSH    `yaml:"ssh,omitempty"`
}

// Local is the address of the computer that belay runs on.
const Local = "local"

// Load reads and checks an inventory file. Errors name the file and line.
func Load(path string) (*Inventory, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	inv, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("inventory %s: %w", path, err)
	}
	dir := filepath.Dir(path)
	inv.SSH.resolve(dir)
	for i := range inv.Nodes {
		inv.Nodes[i].SSH.resolve(dir)
	}
	return inv, nil
}

func (s *SSH) resolve(dir string) {
	for _, p := range []*string{&s.KeyFile, &s.KnownHostsFile} {
		if rest, ok := strings.CutPrefix(*p, "~/"); ok {
			if home, err := os.UserHomeDir(); err == nil {
				*p = filepath.Join(home, rest)
			}
		}
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// Parse reads an inventory. Unknown fields are errors with their line.
func Parse(data []byte) (*Inventory, error) {
	var inv Inventory
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&inv); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the file is empty")
		}
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	return &inv, inv.Validate()
}

// Validate says everything that is wrong.
func (inv *Inventory) Validate() error {
	var errs []error
	if inv.Schema != Schema {
		errs = append(errs, fmt.Errorf("schema is %q; this belay reads %q", inv.Schema, Schema))
	}
	if len(inv.Nodes) == 0 {
		errs = append(errs, errors.New("no nodes"))
	}
	seen := map[string]bool{}
	for i, n := range inv.Nodes {
		switch {
		case n.Name == "":
			errs = append(errs, fmt.Errorf("nodes[%d] has no name", i))
		case seen[n.Name]:
			errs = append(errs, fmt.Errorf("nodes[%d]: node %s is listed twice", i, n.Name))
		}
		seen[n.Name] = true
		if p := n.SSH.Port; p < 0 || p > 65535 {
			errs = append(errs, fmt.Errorf("nodes[%d]: SSH port %d is out of range", i, p))
		}
	}
	if inv.PatchesDir != "" && !path.IsAbs(inv.PatchesDir) {
		errs = append(errs, fmt.Errorf("patchesDir %s: want an absolute path on the machines", inv.PatchesDir))
	}
	if p := inv.SSH.Port; p < 0 || p > 65535 {
		errs = append(errs, fmt.Errorf("ssh: port %d is out of range", p))
	}
	return errors.Join(errs...)
}

// Save writes the inventory to path, readable by its owner alone.
func (inv *Inventory) Save(path string) error {
	if err := inv.Validate(); err != nil {
		return fmt.Errorf("inventory %s: %w", path, err)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(inv), enc.Close()); err != nil {
		return fmt.Errorf("inventory %s: %w", path, err)
	}
	return atomicfile.WriteFile(path, b.Bytes(), 0o600)
}

// Names gives the nodes' names in the file's order.
func (inv *Inventory) Names() []string {
	names := make([]string, len(inv.Nodes))
	for i, n := range inv.Nodes {
		names[i] = n.Name
	}
	return names
}

// UnknownNodeError is a node of the cluster that the inventory does not list.
type UnknownNodeError struct{ Node string }

func (e *UnknownNodeError) Error() string {
	return fmt.Sprintf("node %s is not in the inventory: add it there, with its address", e.Node)
}

// Hosts opens the machines of an inventory, each at most once. It is safe for concurrent use.
type Hosts struct {
	inv *Inventory
	mu  sync.Mutex
	// open holds one slot a node; a slot's mutex serialises its first connection.
	open map[string]*slot
}

type slot struct {
	mu sync.Mutex
	h  host.Host
}

// Open prepares access; nothing is connected yet.
func (inv *Inventory) Open() *Hosts {
	return &Hosts{inv: inv, open: map[string]*slot{}}
}

// Inventory gives what Hosts was opened from.
func (hs *Hosts) Inventory() *Inventory { return hs.inv }

// Names gives the nodes' names.
func (hs *Hosts) Names() []string { return hs.inv.Names() }

// Host connects to a node's machine, or gives the connection made before.
func (hs *Hosts) Host(ctx context.Context, name string) (host.Host, error) {
	var node *Node
	for i := range hs.inv.Nodes {
		if hs.inv.Nodes[i].Name == name {
			node = &hs.inv.Nodes[i]
		}
	}
	if node == nil {
		return nil, &UnknownNodeError{Node: name}
	}
	hs.mu.Lock()
	s := hs.open[name]
	if s == nil {
		s = &slot{}
		hs.open[name] = s
	}
	hs.mu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.h != nil {
		return s.h, nil
	}
	h, err := hs.inv.dial(ctx, *node)
	if err != nil {
		return nil, err
	}
	s.h = h
	return h, nil
}

func (inv *Inventory) dial(ctx context.Context, n Node) (host.Host, error) {
	if n.Address == Local {
		return host.NewLocal(n.Name), nil
	}
	return host.DialSSH(ctx, inv.SSHConfig(n))
}

// SSHConfig merges what the node and the inventory say into one configuration.
func (inv *Inventory) SSHConfig(n Node) host.SSHConfig {
	pick := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	port := n.SSH.Port
	if port == 0 {
		port = inv.SSH.Port
	}
	if port == 0 {
		port = 22
	}
	cfg := host.SSHConfig{
		Name:           n.Name,
		Address:        net.JoinHostPort(pick(n.Address, n.Name), strconv.Itoa(port)),
		User:           pick(n.SSH.User, inv.SSH.User, "root"),
		KnownHostsFile: pick(n.SSH.KnownHostsFile, inv.SSH.KnownHostsFile),
	}
	if key := pick(n.SSH.KeyFile, inv.SSH.KeyFile); key != "" {
		cfg.KeyFiles = []string{key}
	} else {
		cfg.UseAgent = true
	}
	if cfg.KnownHostsFile == "" {
		if home, err := os.UserHomeDir(); err == nil {
			cfg.KnownHostsFile = filepath.Join(home, ".ssh", "known_hosts")
		}
	}
	cfg.Sudo = cfg.User != "root"
	return cfg
}

// Close drops every connection.
func (hs *Hosts) Close() error {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	var errs []error
	for _, s := range hs.open {
		s.mu.Lock()
		if s.h != nil {
			errs = append(errs, s.h.Close())
			s.h = nil
		}
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}
