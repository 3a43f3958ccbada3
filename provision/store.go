package provision

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
)

// stateSchema names the format of a cluster's state file.
const stateSchema = "belay.dev/provision/v1"

// NotFoundError is a cluster that belay did not bring up, or took down.
type NotFoundError struct{ Name string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("there is no cluster %s here", e.Name)
}

// Next is the command that shows which there are.
func (e *NotFoundError) Next() string { return "belay cluster list" }

// BusyError says that another process works on the same cluster.
type BusyError struct{ Name string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another belay is working on cluster %s; wait for it or stop it", e.Name)
}

// clusterDir is where a cluster's files lie.
type clusterDir string

func dirOf(home, name string) clusterDir { return clusterDir(filepath.Join(home, "clusters", name)) }

func (d clusterDir) spec() string       { return filepath.Join(string(d), "cluster.yaml") }
func (d clusterDir) inventory() string  { return filepath.Join(string(d), "inventory.yaml") }
func (d clusterDir) kubeconfig() string { return filepath.Join(string(d), "kubeconfig") }
func (d clusterDir) state() string      { return filepath.Join(string(d), "state.json") }
func (d clusterDir) lockFile() string {
	return filepath.Join(filepath.Dir(string(d)), "."+filepath.Base(string(d))+".lock")
}

// progress is how far a cluster has come. It is a record of what was reached once, not of what holds now: hosts and
// API are always asked.
type progress struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
	// ID tells this cluster from others of the same name: hosts carry it.
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	// Bundle is the digest of the bundle that was used.
	Bundle string `json:"bundle,omitempty"`
	// Endpoint is HOST:PORT of the control plane, once it is known.
	Endpoint string `json:"endpoint,omitempty"`
	// Initialized says that kubeadm init came to its end: nothing is reset from then on.
	Initialized bool `json:"initialized,omitempty"`
	// Joined lists nodes, the first one included, that were Ready members once. They are never reset.
	Joined []string `json:"joined,omitempty"`
	// Up says that the cluster was complete and proved once.
	Up bool `json:"up,omitempty"`
	// Quirks are what each host needs beyond the ordinary.
	Quirks map[string]Quirks `json:"quirks,omitempty"`
}

func (p *progress) joined(node string) bool { return slices.Contains(p.Joined, node) }

// owner is the content of ownerFile on each of the cluster's hosts.
func (p *progress) owner() string { return p.Name + "/" + p.ID }

func (d clusterDir) loadState() (*progress, error) {
	data, err := os.ReadFile(d.state())
	if err != nil {
		return nil, err
	}
	p := &progress{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("read %s: %w", d.state(), err)
	}
	if p.Schema != stateSchema {
		return nil, fmt.Errorf("read %s: schema is %q; this belay reads %q", d.state(), p.Schema, stateSchema)
	}
	return p, nil
}

func (d clusterDir) saveState(p *progress) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(d.state(), append(data, '\n'), 0o600)
}

// begin makes the cluster's directory, or takes up the one that is there.
func (d clusterDir) begin(spec *Spec, now time.Time) (*progress, error) {
	p, err := d.loadState()
	switch {
	case err == nil:
		return p, d.checkSpec(spec, p)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	p = &progress{Schema: stateSchema, Name: spec.Name, ID: hex.EncodeToString(id), Created: now.UTC().Truncate(time.Second), Quirks: map[string]Quirks{}}
	// The state is written last: what has none was never begun.
	if err := d.saveSpec(spec); err != nil {
		return nil, err
	}
	return p, d.saveState(p)
}

func (d clusterDir) saveSpec(spec *Spec) error {
	text, err := spec.Encode()
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(d.spec()); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return atomicfile.WriteFile(d.spec(), text, 0o600)
}

// ChangedSpecError is an `up` that asks for another cluster than the one of that name.
type ChangedSpecError struct {
	Name   string
	Fields []string
}

func (e *ChangedSpecError) Error() string {
	return fmt.Sprintf("cluster %s exists and was brought up with another %v: `up` completes a cluster and does not change it", e.Name, e.Fields)
}

// Next is the command that makes room.
func (e *ChangedSpecError) Next() string { return "belay cluster down " + e.Name }

func (d clusterDir) checkSpec(spec *Spec, p *progress) error {
	old, err := d.loadSpec()
	if err != nil {
		return err
	}
	fields := old.differences(spec)
	if p.Up {
		// The cluster may have been upgraded since, and its file with it: compareVersion asks the cluster itself.
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "kubernetesVersion" })
	}
	if len(fields) > 0 {
		return &ChangedSpecError{Name: p.Name, Fields: fields}
	}
	return nil
}

func (d clusterDir) loadSpec() (*Spec, error) {
	data, err := os.ReadFile(d.spec())
	if err != nil {
		return nil, err
	}
	s, err := ParseSpec(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d.spec(), err)
	}
	return s, nil
}
