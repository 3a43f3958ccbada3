// Package lifecycle holds when each built-in Kubernetes API kind was introduced,
// deprecated, switched off by default and removed, and judges a kind over the hops
// of an upgrade. Its data is generated from Kubernetes' own sources (go generate) and
// kept in git as lifecycle.json; a test holds it against the recorded discovery of every
// minor. It does no I/O and imports nothing of Kubernetes.
package lifecycle

//go:generate go run ../gen -out lifecycle.json -schema ../schema/schema.txt -served testdata/served

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/belayops/belay/internal/kubeversion"
)

// Minor is a Kubernetes minor; the zero Minor means "none" or "not known".
type Minor = kubeversion.Minor

// Schema is the version of the database's format.
const Schema = 1

//go:embed lifecycle.json
var embedded []byte

// DB is the lifecycle database.
type DB struct {
	Schema int `json:"schema"`
	// Date is the release time of the newest module it was made from, so that a
	// regeneration from the same pins gives the same bytes.
	Date time.Time `json:"date"`
	// Oldest and Newest bound the minors whose served kinds were observed in
	// discovery. What lies after Newest is planned, not observed.
	Oldest  Minor    `json:"oldest"`
	Newest  Minor    `json:"newest"`
	Modules []Module `json:"modules"`
	Kinds   []Kind   `json:"kinds"`
	Gates   []Gate   `json:"gates"`
	Flags   []Flag   `json:"flags"`
	Fields  []Field  `json:"fields"`

	byGVK    map[GVK]*Kind
	byGK     map[groupKind][]*Kind
	groups   map[string]bool
	fieldsOf map[groupKind][]*Field
	// byResource is keyed by group and resource.
	byResource map[[2]string][]*Kind
}

// Module is one pinned source module.
type Module struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	// Sum is the module's h1 hash, as in go.sum.
	Sum string `json:"sum"`
}

// GVK names a kind. Group is empty for the core group.
type GVK struct {
	Group   string `json:"group,omitempty"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// ParseGVK splits an apiVersion as objects carry it.
func ParseGVK(apiVersion, kind string) GVK {
	if g, v, ok := strings.Cut(apiVersion, "/"); ok {
		return GVK{g, v, kind}
	}
	return GVK{"", apiVersion, kind}
}

// APIVersion gives the form that objects carry: "apps/v1", or "v1" for the core group.
func (g GVK) APIVersion() string {
	if g.Group == "" {
		return g.Version
	}
	return g.Group + "/" + g.Version
}

// IsZero says whether g names nothing.
func (g GVK) IsZero() bool { return g == GVK{} }

// String gives "apps/v1 Deployment".
func (g GVK) String() string { return g.APIVersion() + " " + g.Kind }

type groupKind struct{ group, kind string }

// Class says what objects of a kind are.
type Class string

// The classes.
const (
	// Stored kinds have objects of their own that a manifest can hold.
	Stored Class = "stored"
	// Virtual kinds are requests, answers and subresources: nothing keeps them.
	Virtual Class = "virtual"
	// Payload kinds travel inside webhook calls. Their removal from the API does not mean
	// that the apiserver stopped speaking them, so they are never judged removed.
	Payload Class = "payload"
	// Config kinds are files that a component or tool reads.
	Config Class = "config"
)

// Basis says what a value rests on, best first.
type Basis string

// The bases.
const (
	// Observed: read from the recorded discovery of the minors on both sides.
	Observed Basis = "observed"
	// Tag: only the lifecycle methods of the type say so (minors before Oldest).
	Tag Basis = "tag"
	// Vanished: the type is no longer in the module of that minor.
	Vanished Basis = "vanished"
	// Override: entered by hand, with a citation.
	Override Basis = "override"
	// Planned: a tag later than Newest. Plans for alphas are often withdrawn.
	Planned Basis = "planned"
	// Inferred: the best higher version of the same kind.
	Inferred Basis = "inferred"
	// Rule: the general policy of that time, not looked up for this kind.
	Rule Basis = "rule"
)

// Rewrite says what it takes to move an object to its replacement.
type Rewrite string

// The rewrites.
const (
	// Bump: the apiVersion changes and nothing else.
	Bump Rewrite = "bump"
	// Semantic: the fields are equal but defaults or meanings changed; a person decides.
	Semantic Rewrite = "semantic"
	// Structural: fields move.
	Structural Rewrite = "structural"
	// None: there is no successor.
	None Rewrite = "none"
)

// Kind is the life of one kind in one version of its group.
type Kind struct {
	Group      string `json:"group,omitempty"`
	Version    string `json:"version"`
	Kind       string `json:"kind"`
	Resource   string `json:"resource,omitempty"`
	Namespaced bool   `json:"namespaced,omitempty"`
	Class      Class  `json:"class"`
	// Introduced and Deprecated are the first minors of which that is true; Removed is
	// the first minor that does not serve it.
	Introduced   Minor `json:"introduced,omitzero"`
	Deprecated   Minor `json:"deprecated,omitzero"`
	Removed      Minor `json:"removed,omitzero"`
	RemovedBasis Basis `json:"removedBasis,omitempty"`
	// OnFrom and OnUntil are the half-open range of minors that serve it without
	// --runtime-config; both zero when it never was on. OnUntil zero: to this day.
	OnFrom  Minor `json:"onFrom,omitzero"`
	OnUntil Minor `json:"onUntil,omitzero"`
	OnBasis Basis `json:"onBasis,omitempty"`
	// Undecodable is the first minor whose apiserver cannot decode objects that its
	// predecessor stored in this version: they can then be neither read nor deleted.
	Undecodable Minor `json:"undecodable,omitzero"`
	// Next lists replacements, best first.
	Next []Next `json:"next,omitempty"`
	// Notes are for people.
	Notes []string `json:"notes,omitempty"`
	// Evidence cites the source of overridden values.
	Evidence []string `json:"evidence,omitempty"`
}

// GVK names the kind.
func (k *Kind) GVK() GVK { return GVK{k.Group, k.Version, k.Kind} }

// Next is one possible replacement.
type Next struct {
	GVK
	Basis   Basis   `json:"basis"`
	Rewrite Rewrite `json:"rewrite"`
}

// Gate is a feature gate whose life ends or that can no longer be set freely. Setting a removed
// gate, or a locked one to the other value, is an error while a component parses its flags.
type Gate struct {
	Name string `json:"name"`
	// Locked is the first minor that refuses the value other than LockedTo.
	Locked   Minor `json:"locked,omitzero"`
	LockedTo bool  `json:"lockedTo,omitempty"`
	// Removed is the first minor that does not know the gate.
	Removed Minor `json:"removed,omitzero"`
}

// Flag is a command line flag that a component no longer takes.
type Flag struct {
	Component string `json:"component"`
	Name      string `json:"name"`
	Removed   Minor  `json:"removed"`
	// Remedy says what takes its place, for people.
	Remedy   string `json:"remedy"`
	Evidence string `json:"evidence"`
}

// Field is a field, an annotation or a value of one that ends while its kind lives on.
type Field struct {
	// In names kinds as "Kind" or "Kind.group"; "pod" stands for pods and all that have a template of one.
	In []string `json:"in"`
	// Path leads there by keys, from the object or the template of the pod: "[]" is every element of a list, and a key that
	// ends in a star is all that begin so.
	Path []string `json:"path"`
	// Value is the only value that ends; empty for all.
	Value string `json:"value,omitempty"`
	// Deprecated is when that was announced, where that is known; Off is the first minor that has it off by default, Dead the
	// first in which it does nothing (Effect ignored) or keeps pods from running (Effect breaks).
	Deprecated Minor  `json:"deprecated,omitzero"`
	Off        Minor  `json:"off,omitzero"`
	Dead       Minor  `json:"dead,omitzero"`
	Effect     string `json:"effect,omitempty"`
	// Says and Remedy are for people; Evidence is the source file of Kubernetes that warns of it.
	Says     string `json:"says"`
	Remedy   string `json:"remedy"`
	Evidence string `json:"evidence"`
}

// The effects of a dead field.
const (
	Breaks  = "breaks"
	Ignored = "ignored"
)

// Default gives the database that is built in.
func Default() (*DB, error) { return Parse(embedded) }

// Parse reads a database, as written by the generator.
func Parse(data []byte) (*DB, error) {
	db := &DB{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(db); err != nil {
		return nil, fmt.Errorf("read lifecycle database: %w", err)
	}
	if db.Schema != Schema {
		return nil, fmt.Errorf("read lifecycle database: format %d, this belay reads %d", db.Schema, Schema)
	}
	return db, db.index()
}

func (db *DB) index() error {
	db.byGVK = make(map[GVK]*Kind, len(db.Kinds))
	db.byGK = make(map[groupKind][]*Kind)
	db.groups = make(map[string]bool)
	db.byResource = make(map[[2]string][]*Kind)
	for i := range db.Kinds {
		k := &db.Kinds[i]
		if db.byGVK[k.GVK()] != nil {
			return fmt.Errorf("read lifecycle database: %s appears twice", k.GVK())
		}
		db.byGVK[k.GVK()] = k
		gk := groupKind{k.Group, k.Kind}
		db.byGK[gk] = append(db.byGK[gk], k)
		db.groups[k.Group] = true
		if k.Resource != "" {
			gr := [2]string{k.Group, k.Resource}
			db.byResource[gr] = append(db.byResource[gr], k)
		}
	}
	db.indexFields()
	return nil
}

// Lookup finds a kind. A list kind ("DeploymentList") that is no kind of its own gives its item's.
func (db *DB) Lookup(g GVK) (*Kind, bool) {
	if k := db.byGVK[g]; k != nil {
		return k, true
	}
	if item, ok := strings.CutSuffix(g.Kind, "List"); ok && item != "" {
		g.Kind = item
		k := db.byGVK[g]
		return k, k != nil
	}
	return nil, false
}

// Builtin says whether Kubernetes itself owns the group.
func (db *DB) Builtin(group string) bool { return db.groups[group] }

// Versions gives every version of a kind that the database knows, in its order.
func (db *DB) Versions(group, kind string) []*Kind { return db.byGK[groupKind{group, kind}] }

// Served says whether minor m serves k, enabled or not. It rests on observation for the
// minors from Oldest to Newest, on k's bases otherwise.
func (k *Kind) Served(m Minor) bool {
	return !before(m, k.Introduced) && (k.Removed == Minor{} || before(m, k.Removed))
}

// On says whether minor m serves k without --runtime-config.
func (k *Kind) On(m Minor) bool {
	return k.Served(m) && k.OnFrom != Minor{} && !before(m, k.OnFrom) && (k.OnUntil == Minor{} || before(m, k.OnUntil))
}

func before(a, b Minor) bool { return a.Compare(b) < 0 }
