package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
)

// schemaPrefix is what every version of the state format has in common.
const schemaPrefix = "belay.dev/state/v"

// ErrNotState marks input that is no state file at all.
var ErrNotState = errors.New("not a belay state file")

// ErrNewerSchema marks a state file of a format that this belay does not know yet.
var ErrNewerSchema = errors.New("state file of a newer format")

// Sort brings the lists of s into one order, so that states of the same cluster
// encode to the same bytes whichever way they were collected.
func (s *State) Sort() {
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range s.Nodes {
		n := &s.Nodes[i]
		slices.SortFunc(n.StaticPods, func(a, b StaticPod) int { return cmp.Compare(a.Component, b.Component) })
		slices.SortFunc(n.Conditions, func(a, b NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
	}
	slices.SortFunc(s.Etcd.Members, func(a, b EtcdMember) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Etcd.Alarms, func(a, b EtcdAlarm) int {
		return cmp.Or(cmp.Compare(a.MemberID, b.MemberID), cmp.Compare(a.Alarm, b.Alarm))
	})
	slices.SortFunc(s.Addons, func(a, b Addon) int { return cmp.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	slices.SortFunc(s.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	slices.SortFunc(s.Workloads, func(a, b Workload) int { return cmp.Compare(a.ID(), b.ID()) })
	slices.SortFunc(s.PDBs, func(a, b PDB) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range s.PDBs {
		slices.Sort(s.PDBs[i].Pods)
	}
	slices.SortFunc(s.Webhooks, func(a, b Webhook) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Configuration, b.Configuration), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Unread, func(a, b Unread) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why)) })
}

// Encode gives the state file of s: indented JSON in a fixed order, with a final newline. It sorts s, and
// sets its schema and its time to UTC.
func Encode(s *State) ([]byte, error) {
	s.Schema = StateSchema
	s.Observed = s.Observed.UTC()
	s.Sort()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return b.Bytes(), nil
}

// Decode reads a state file. It is strict: unknown and repeated fields, a newer format (ErrNewerSchema),
// something else than a state file (ErrNotState), and a state that contradicts itself are errors that name the place.
func Decode(data []byte) (*State, error) {
	var head struct {
		Schema string `json:"schema"`
		Tool   string `json:"tool"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotState, at(data, err))
	}
	switch n, isState := strings.CutPrefix(head.Schema, schemaPrefix); {
	case head.Schema == StateSchema:
	case head.Schema == "":
		return nil, fmt.Errorf("%w: it has no field \"schema\" (a state file has %q); make one with: belay state -o state.json", ErrNotState, StateSchema)
	case isState && isNumber(n):
		return nil, fmt.Errorf("%w: it is %s and this belay reads %s; use the belay that wrote it%s, or observe again", ErrNewerSchema, head.Schema, StateSchema, by(head.Tool))
	default:
		return nil, fmt.Errorf("%w: its schema is %q, want %q", ErrNotState, head.Schema, StateSchema)
	}
	s := new(State)
	strict, err := kjson.UnmarshalStrict(data, s)
	if err != nil {
		return nil, fmt.Errorf("state file: %w", at(data, err))
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("state file: %w", errors.Join(strict...))
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	return s, nil
}

// validate refuses what Observe never writes and what would mislead whoever looks things up by name.
func (s *State) validate() error {
	var errs []error
	unique := func(what string, n int, name func(int) string) {
		seen := make(map[string]bool, n)
		for i := range n {
			switch k := name(i); {
			case k == "":
				errs = append(errs, fmt.Errorf("%s %d has no name", what, i))
			case seen[k]:
				errs = append(errs, fmt.Errorf("%s %s is listed twice", what, k))
			default:
				seen[k] = true
			}
		}
	}
	unique("node", len(s.Nodes), func(i int) string { return s.Nodes[i].Name })
	unique("etcd member", len(s.Etcd.Members), func(i int) string { return s.Etcd.Members[i].ID })
	unique("pod", len(s.Pods), func(i int) string { return joined(s.Pods[i].Namespace, s.Pods[i].Name) })
	unique("PodDisruptionBudget", len(s.PDBs), func(i int) string { return joined(s.PDBs[i].Namespace, s.PDBs[i].Name) })
	for _, n := range s.Nodes {
		unique("static pod of node "+n.Name, len(n.StaticPods), func(i int) string { return n.StaticPods[i].Component })
	}
	for i, u := range s.Unread {
		if u.What == "" || u.Kind == "" {
			errs = append(errs, fmt.Errorf("unread %d does not say what and of which kind", i))
		}
	}
	return errors.Join(errs...)
}

func joined(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// at adds line and column to a syntax error.
func at(data []byte, err error) error {
	isSyntax, offset := kjson.SyntaxErrorOffset(err)
	if !isSyntax || offset < 0 || offset > int64(len(data)) {
		return err
	}
	before := data[:offset]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n') - 1
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

func by(tool string) string {
	if tool == "" {
		return ""
	}
	return " (" + tool + ")"
}
