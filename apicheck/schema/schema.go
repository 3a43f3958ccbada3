// Package schema knows the fields of the built-in kinds that take the place of others, minor by
// minor, and holds YAML trees against them as strictly as the apiserver's strict field validation
// does. Its data is generated from the recorded OpenAPI of Kubernetes' own minors (apicheck/gen),
// so that what a conversion gives is validated without a server.
package schema

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/yamltext"
)

//go:embed schema.txt
var embedded []byte

const (
	// maxDepth bounds how deep a tree is followed, maxProblems how many of its problems are named, and maxValues how many
	// values are looked at: aliases can make few lines endless.
	maxDepth    = 200
	maxProblems = 20
	maxValues   = 1 << 20
)

// Set is the fields of many kinds.
type Set struct {
	kinds map[lifecycle.GVK]string
	types map[string]map[string]field
}

type field struct {
	typ      string
	required bool
	// first and last are the minors (of 1.x) that have it; 0 for no bound.
	first, last int
}

// Default gives the fields that are built in.
func Default() (*Set, error) { return Parse(embedded) }

// Parse reads what the generator writes.
func Parse(data []byte) (*Set, error) {
	s := &Set{kinds: map[lifecycle.GVK]string{}, types: map[string]map[string]field{}}
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, 1<<20)
	for line := 1; sc.Scan(); line++ {
		words := strings.Fields(sc.Text())
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "kind" && len(words) == 4:
			s.kinds[lifecycle.ParseGVK(words[1], words[2])] = words[3]
		case words[0] == "type" && len(words) >= 2:
			t := make(map[string]field, len(words)-2)
			for _, w := range words[2:] {
				if err := addField(t, w); err != nil {
					return nil, fmt.Errorf("read the fields of kinds: line %d: %w", line, err)
				}
			}
			s.types[words[1]] = t
		default:
			return nil, fmt.Errorf("read the fields of kinds: line %d: neither a kind nor a type", line)
		}
	}
	return s, sc.Err()
}

// addField reads [!]NAME[@FIRST][~LAST]=TYPE.
func addField(t map[string]field, word string) error {
	var f field
	word, f.required = strings.CutPrefix(word, "!")
	name, typ, ok := strings.Cut(word, "=")
	if !ok {
		return fmt.Errorf("%q has no type", word)
	}
	f.typ = typ
	for _, bound := range []struct {
		mark string
		to   *int
	}{{"~", &f.last}, {"@", &f.first}} {
		var n string
		if name, n, ok = strings.Cut(name, bound.mark); !ok {
			continue
		}
		var err error
		if *bound.to, err = strconv.Atoi(n); err != nil {
			return fmt.Errorf("%q: %w", word, err)
		}
	}
	t[name] = f
	return nil
}

// Has says whether the fields of a kind are known.
func (s *Set) Has(g lifecycle.GVK) bool { return s.kinds[g] != "" }

// Fault says what is wrong with a field.
type Fault int

// The faults.
const (
	// Unknown: the kind has no such field there.
	Unknown Fault = iota
	// Mistyped: the value is of another type.
	Mistyped
	// Missing: a required field is not there.
	Missing
)

// Problem is one field that the apiserver refuses with strict validation.
type Problem struct {
	Fault Fault
	// Path leads to the field: spec.rules[0].http.
	Path string
	// Line is the tree's own line number of the nearest node that has one.
	Line int
	// Detail says more: "want int, have !!str".
	Detail string
}

// String words a problem.
func (p Problem) String() string {
	switch p.Fault {
	case Missing:
		return p.Path + " is required and missing"
	case Mistyped:
		return p.Path + ": " + p.Detail
	}
	return p.Path + " is no field of it"
}

// Validate holds an object's tree against the fields that a kind has at a minor. A kind whose fields are not known has no
// problems: ask Has first.
func (s *Set) Validate(obj *yaml.Node, g lifecycle.GVK, at lifecycle.Minor) []Problem {
	name := s.kinds[g]
	if name == "" {
		return nil
	}
	v := validation{set: s, at: at.Minor}
	v.value(obj, name, "", obj.Line, 0)
	return v.problems
}

type validation struct {
	set      *Set
	at       int
	problems []Problem
	values   int
	ended    bool
}

func (v *validation) add(f Fault, path string, line int, format string, args ...any) {
	if len(v.problems) < maxProblems {
		v.problems = append(v.problems, Problem{f, path, line, fmt.Sprintf(format, args...)})
	}
}

// full says once that no more is looked at.
func (v *validation) full(path string, line int) {
	if !v.ended {
		v.ended = true
		v.add(Mistyped, path, line, "more than %d values, aliases followed", maxValues)
	}
}

// value judges one value of a type. Line is that of what holds it, for nodes that were made and have none.
func (v *validation) value(n *yaml.Node, typ, path string, line, depth int) {
	if n = yamltext.Resolve(n); n == nil || depth > maxDepth || len(v.problems) >= maxProblems {
		return
	}
	if n.Line > 0 {
		line = n.Line
	}
	if v.values++; v.values > maxValues {
		v.full(path, line)
		return
	}
	if typ == "any" || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	mistyped := func(want string) { v.add(Mistyped, path, line, "want %s, have %s", want, have(n)) }
	if element, ok := strings.CutPrefix(typ, "[]"); ok {
		if n.Kind != yaml.SequenceNode {
			mistyped("a list")
			return
		}
		for i, e := range n.Content {
			v.value(e, element, fmt.Sprintf("%s[%d]", path, i), line, depth+1)
		}
		return
	}
	if element, ok := strings.CutPrefix(typ, "map:"); ok {
		if n.Kind != yaml.MappingNode {
			mistyped("a mapping")
			return
		}
		v.entries(n, depth, func(key, val *yaml.Node) { v.value(val, element, join(path, key.Value), line, depth+1) })
		return
	}
	if fields, ok := v.set.types[typ]; ok {
		if n.Kind != yaml.MappingNode {
			mistyped("a mapping")
			return
		}
		v.fields(n, fields, path, line, depth)
		return
	}
	if n.Kind != yaml.ScalarNode || !slices.Contains(scalars[typ], n.ShortTag()) && !looseBool(n, typ) {
		mistyped(words[typ])
	}
}

// looseBool takes the words that YAML 1.1, which the apiserver's parser speaks, reads as booleans.
func looseBool(n *yaml.Node, typ string) bool {
	if typ != "bool" || n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		return false
	}
	return slices.Contains([]string{"yes", "no", "on", "off", "y", "n"}, strings.ToLower(n.Value))
}

// entries calls yield for every entry of a mapping, what is merged into it included.
func (v *validation) entries(n *yaml.Node, depth int, yield func(key, val *yaml.Node)) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if v.values++; v.values > maxValues { // merges of merges can be endless too
			return
		}
		key, val := n.Content[i], n.Content[i+1]
		if key.Tag != "!!merge" {
			yield(key, val)
			continue
		}
		from := []*yaml.Node{val}
		if val.Kind == yaml.SequenceNode {
			from = val.Content
		}
		for _, m := range from {
			if m = yamltext.Resolve(m); m != nil && m.Kind == yaml.MappingNode && depth < maxDepth {
				v.entries(m, depth+1, yield)
			}
		}
	}
}

func (v *validation) fields(n *yaml.Node, fields map[string]field, path string, line, depth int) {
	seen := map[string]bool{}
	v.entries(n, depth, func(key, val *yaml.Node) {
		l := line
		if key.Line > 0 {
			l = key.Line
		}
		f, ok := fields[key.Value]
		if !ok || f.first > v.at || f.last != 0 && f.last < v.at {
			v.add(Unknown, join(path, key.Value), l, "")
			return
		}
		seen[key.Value] = true
		v.value(val, f.typ, join(path, key.Value), l, depth+1)
	})
	if v.values > maxValues {
		v.full(path, line)
		return
	}
	var missing []string
	for name, f := range fields {
		if f.required && !seen[name] && f.first <= v.at && (f.last == 0 || f.last >= v.at) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	for _, name := range missing {
		v.add(Missing, join(path, name), line, "")
	}
}

// scalars are the YAML tags that a scalar type takes. A date without quotes is text to the apiserver's parser.
var scalars = map[string][]string{
	"str":      {"!!str", "!!timestamp"},
	"int":      {"!!int"},
	"num":      {"!!int", "!!float"},
	"bool":     {"!!bool"},
	"quantity": {"!!str", "!!int", "!!float"},
	"intstr":   {"!!str", "!!int"},
}

var words = map[string]string{"str": "text", "int": "a whole number", "num": "a number", "bool": "true or false", "quantity": "a quantity", "intstr": "a whole number or text"}

// have words what stands there.
func have(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return n.Value
	}
	return "text" // which may be long, or secret
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
