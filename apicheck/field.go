package apicheck

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
)

// fields judges the fields and annotations of an object that end while its kind lives on.
func (c *collector) fields(og origin, o object) {
	for _, f := range c.db.FieldsOf(o.gvk.Group, o.gvk.Kind) {
		v, hop := f.Judge(c.from, c.to)
		if v == lifecycle.OK {
			continue
		}
		path := f.Path
		if f.OfPod() {
			pod, _ := lifecycle.PodPath(o.gvk.Group, o.gvk.Kind)
			path = append(pod[:len(pod):len(pod)], path...)
		}
		follow(o.node, path, "", 0, func(key, value *yaml.Node, at string) {
			if f.Value != "" && (value.Kind != yaml.ScalarNode || value.Value != f.Value) || value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" {
				return
			}
			c.fieldFound(og, o, f, v, hop, key, at)
		})
	}
}

// follow goes down a path of keys and calls found for what it leads to, with the key's node, or the element's in a list.
func follow(n *yaml.Node, path []string, at string, depth int, found func(key, value *yaml.Node, at string)) {
	n = resolve(n)
	if n == nil || len(path) == 0 || depth > maxDepth {
		return
	}
	step, rest := path[0], path[1:]
	next := func(key, value *yaml.Node, at string) {
		if value = resolve(value); value == nil {
			return
		}
		if len(rest) == 0 {
			found(key, value, at)
			return
		}
		follow(value, rest, at, depth+1, found)
	}
	if step == "[]" {
		if n.Kind == yaml.SequenceNode {
			for i, e := range n.Content {
				next(e, e, fmt.Sprintf("%s[%d]", at, i))
			}
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	if prefix, ok := strings.CutSuffix(step, "*"); ok {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if k := n.Content[i].Value; strings.HasPrefix(k, prefix) {
				next(n.Content[i], n.Content[i+1], fieldPath(at, k))
			}
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			next(n.Content[i], n.Content[i+1], fieldPath(at, step))
			return
		}
	}
	if v := field(n, step); v != nil { // merged in from elsewhere
		next(v, v, fieldPath(at, step))
	}
}

// fieldPath adds a key to a path; one with dots or slashes in brackets.
func fieldPath(at, key string) string {
	if strings.ContainsAny(key, "./") {
		return fmt.Sprintf("%s[%q]", at, key)
	}
	return join(at, key)
}

func (c *collector) fieldFound(og origin, o object, f *lifecycle.Field, v verdict, hop kubeversion.Minor, key *yaml.Node, at string) {
	s := Info
	if v != lifecycle.Deprecated && hop != (kubeversion.Minor{}) {
		s = Warning
		if v == lifecycle.Removed && f.Effect == lifecycle.Breaks {
			s = Error
		}
	} else if v == lifecycle.Removed && f.Effect == lifecycle.Breaks {
		s = Warning // the hops change nothing about it
	}
	if og.cap != "" {
		s = lower(s, og.cap)
	}
	src := c.at(og, o, key, join(o.path, at))
	message := fmt.Sprintf("%s, %s: %s", o.gvk, at, f.Says)
	switch {
	case v == lifecycle.Removed && hop != (kubeversion.Minor{}):
		message += fmt.Sprintf(", from %s on", f.Dead)
	case v == lifecycle.Removed:
		message += fmt.Sprintf(", since %s already", f.Dead)
	case v == lifecycle.OffByDefault:
		message += fmt.Sprintf(" (from %s on)", f.Off)
	case f.Deprecated != (kubeversion.Minor{}):
		message += fmt.Sprintf(" (since %s)", f.Deprecated)
	}
	if og.note != "" {
		message += "; " + og.note
	}
	c.findings = append(c.findings, Finding{Verdict: v, Severity: s, Confidence: og.confidence, APIVersion: o.gvk.APIVersion(), Kind: o.gvk.Kind, Field: f.Name(), Namespace: o.namespace, Name: o.name,
		Hop: hop, DeprecatedIn: f.Deprecated, RemovedIn: f.Dead, Source: src, Message: message, Remedy: f.Remedy})
}

// watched is the keys by which a document may have a field that ends: the fast path leaves such documents to the parser.
type watched struct {
	// lengths has, for each first byte, a bit for each length of a key that begins with it; 63 stands for all longer ones.
	lengths  [256]uint64
	keys     map[string]bool
	prefixes [][]byte
	// values are in documents that matter when only one value of a common key ends.
	values [][]byte
}

// commonKeys end in rules about values only, and are too common to give every document that has one to the parser.
var commonKeys = map[string]bool{"key": true, "topologyKey": true}

func watch(db *lifecycle.DB) *watched {
	w := &watched{keys: map[string]bool{}}
	for i := range db.Fields {
		f := &db.Fields[i]
		last := f.Path[len(f.Path)-1]
		if prefix, ok := strings.CutSuffix(last, "*"); ok {
			w.prefixes = append(w.prefixes, []byte(prefix))
			w.lengths[prefix[0]] |= ^uint64(0) << min(len(prefix), 63)
			continue
		}
		if commonKeys[last] {
			if v := []byte(f.Value); f.Value != "" && !containsBytes(w.values, v) {
				w.values = append(w.values, v)
			}
			continue
		}
		w.keys[last] = true
		w.lengths[last[0]] |= 1 << min(len(last), 63)
	}
	return w
}

func containsBytes(all [][]byte, b []byte) bool {
	for _, a := range all {
		if bytes.Equal(a, b) {
			return true
		}
	}
	return false
}

// key says whether a key is watched.
func (w *watched) key(k []byte) bool {
	if w == nil || len(k) == 0 || w.lengths[k[0]]&(1<<min(len(k), 63)) == 0 {
		return false
	}
	if w.keys[string(k)] {
		return true
	}
	for _, p := range w.prefixes {
		if bytes.HasPrefix(k, p) {
			return true
		}
	}
	return false
}

// value says whether a text holds a watched value of a common key.
func (w *watched) value(text []byte) bool {
	for _, v := range w.values {
		if bytes.Contains(text, v) {
			return true
		}
	}
	return false
}
