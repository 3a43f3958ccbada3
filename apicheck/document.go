package apicheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/yamltext"
)

const (
	// maxDocument bounds what is parsed into a tree at once: a tree takes some twenty times its text.
	maxDocument = 4 << 20
	// maxNesting bounds Lists within Lists. Real ones have one level.
	maxNesting = 20
	// maxDepth bounds the depth of any tree that is walked.
	maxDepth = 200
	// maxObjects bounds the objects of one document: lists of aliases of lists can be endless.
	maxObjects = 200_000
)

// part is one YAML document of a text.
type part struct {
	text []byte
	line int // of its first line, from 1
}

func split(text []byte, yield func(part) bool) {
	yamltext.Split(text, func(p yamltext.Part) bool { return yield(part{p.Text, p.Line}) })
}

// origin says where a text comes from and how to report what is in it.
type origin struct {
	what   string // for coverage: "deploy/a.yaml", "release shop revision 3"
	source Source // what is in it gets a copy, with line and path
	// lineOffset is added to line numbers; noLines keeps them out.
	lineOffset int
	noLines    bool
	confidence Confidence
	cap        Severity
	note       string
	stored     bool
	// namespace of what names none.
	namespace string
	// payload says that the text was found inside an object: only what surely is an object counts, and nothing
	// else is an error.
	payload bool
	nesting int
}

// text judges every document of a YAML or JSON text.
func (c *collector) text(og origin, text []byte) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
		if bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff}) {
			c.unread(og.what, 0, "UTF-16 text: save it as UTF-8")
			return
		}
		c.unread(og.what, 0, "binary, not text")
		return
	}
	split(text, func(p part) bool {
		if c.fullParse || isKustomization(og.source.File) || !c.fast(p.text) {
			c.part(og, p)
		}
		return true
	})
}

// part judges one document by parsing it.
func (c *collector) part(og origin, p part) {
	c.walked = 0
	trimmed := bytes.TrimSpace(bytes.TrimPrefix(p.text, []byte("---")))
	if len(trimmed) == 0 {
		return
	}
	// JSON is YAML, but tabs and speed make it worth its own way. Templates begin like it as well.
	if trimmed[0] == '{' || trimmed[0] == '[' {
		if c.json(og, p) {
			return
		}
	}
	if len(p.text) > maxDocument {
		c.unread(og.what, og.lineOffset+p.line, "document of %d MB: more than %d MB are not parsed at once", len(p.text)>>20, maxDocument>>20)
		return
	}
	root, err := parseYAML(p.text)
	if err != nil {
		if bytes.Contains(p.text, []byte("{{")) {
			c.template(og, p)
			return
		}
		c.unread(og.what, og.lineOffset+p.line+errorLine(err), "not YAML: %s", yamlMessage(err))
		return
	}
	if root != nil {
		c.walk(og, p.line-1, root, "", lifecycle.GVK{}, 0)
	}
}

func parseYAML(text []byte) (*yaml.Node, error) { return yamltext.Parse(text) }

// errorLine gives how many lines after the first of its text an error of the parser lies.
func errorLine(err error) int {
	var n int
	if _, serr := fmt.Sscanf(err.Error(), "yaml: line %d:", &n); serr == nil && n > 0 {
		return n - 1
	}
	return 0
}

func yamlMessage(err error) string {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(msg, "line ") {
		if _, rest, ok := strings.Cut(msg, ": "); ok {
			msg = rest
		}
	}
	return msg
}

// json judges a text of one or more JSON values; false when it is not JSON.
func (c *collector) json(og origin, p part) bool {
	text := bytes.TrimPrefix(p.text, []byte("---"))
	trial := c.clone()
	lines := &lineCounter{text: text, line: 1}
	decoder := func(from int) *json.Decoder {
		lines.base = from
		return newDecoder(text[from:])
	}
	dec := decoder(0)
	for n := 0; ; n++ {
		start := jsonSpace(text, lines.base+int(dec.InputOffset()))
		if n > 0 && start == len(text) {
			break
		}
		if jsonLonger(text[start:], maxDocument) {
			// A whole cluster's dump: its items one by one.
			end := jsonEnd(text, start)
			if end < 0 || text[start] != '{' || !json.Valid(text[start:end]) {
				return false
			}
			lines.base = 0
			trial.bigJSON(og, p.line-1, lines, start, "", lifecycle.GVK{}, 0)
			dec = decoder(end)
			continue
		}
		node, err := jsonNode(dec, lines, 0, nil)
		if err != nil {
			return false
		}
		trial.walk(og, p.line-1, node, "", lifecycle.GVK{}, 0)
	}
	c.findings, c.unreadable, c.read = trial.findings, trial.unreadable, trial.read
	return true
}

func newDecoder(text []byte) *json.Decoder {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return dec
}

// lineCounter turns rising offsets into line numbers.
type lineCounter struct {
	text   []byte
	offset int
	line   int
	base   int // is added to every offset: a decoder counts from where it began
}

func (l *lineCounter) at(offset int64) int {
	if o := l.base + int(offset); o > l.offset {
		l.line += bytes.Count(l.text[l.offset:o], []byte("\n"))
		l.offset = o
	}
	return l.line
}

// jsonNode reads one JSON value as a YAML tree, of no more nodes than are left; nil for any number.
func jsonNode(dec *json.Decoder, lines *lineCounter, depth int, left *int) (*yaml.Node, error) {
	if depth > 10*maxDepth {
		return nil, fmt.Errorf("deeper than %d", 10*maxDepth)
	}
	if left != nil {
		if *left--; *left < 0 {
			return nil, errManyNodes
		}
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Line: lines.at(dec.InputOffset())}
	switch t := tok.(type) {
	case json.Delim:
		n.Kind = yaml.MappingNode
		if t == '[' {
			n.Kind = yaml.SequenceNode
		}
		for dec.More() {
			child, err := jsonNode(dec, lines, depth+1, left)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		if _, err := dec.Token(); err != nil {
			return nil, err
		}
	case string:
		n.Kind, n.Tag, n.Value, n.Style = yaml.ScalarNode, "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!int", t.String()
	case bool:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!bool", fmt.Sprint(t)
	default:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, "!!null", "null"
	}
	return n, nil
}

func resolve(n *yaml.Node) *yaml.Node            { return yamltext.Resolve(n) }
func field(n *yaml.Node, key string) *yaml.Node  { return yamltext.Field(n, key) }
func scalar(n *yaml.Node, key string) string     { return yamltext.Scalar(n, key) }
func list(n *yaml.Node, key string) []*yaml.Node { return yamltext.List(n, key) }

// scalars gives the scalars of a key's sequence.
func scalars(n *yaml.Node, key string) []string {
	var out []string
	for _, e := range list(n, key) {
		if e = resolve(e); e != nil && e.Kind == yaml.ScalarNode {
			out = append(out, e.Value)
		}
	}
	return out
}

// twice says whether a key stands twice in a mapping.
func twice(n *yaml.Node, key string) bool {
	seen := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			seen++
		}
	}
	return seen > 1
}

// unnameable says why a mapping that looks like an object has no readable name of an API; "" for one that is no object, such as a file of values.
// A template's braces are a mapping to YAML, and ytt's comment leaves nothing.
func unnameable(n *yaml.Node) string {
	version, kind, meta := field(n, "apiVersion"), field(n, "kind"), field(n, "metadata")
	switch {
	case version != nil && kind != nil:
		return "apiVersion or kind is no plain text: if a template fills it in, render it and scan the result"
	case (version != nil || kind != nil) && meta != nil && meta.Kind == yaml.MappingNode:
		return "an object with only one of apiVersion and kind (names of fields are case-sensitive)"
	}
	return ""
}

// walk judges the object in a tree, or the objects of a list. line is added to the tree's lines.
func (c *collector) walk(og origin, line int, n *yaml.Node, path string, inherit lifecycle.GVK, nesting int) {
	n = resolve(n)
	if n == nil {
		return
	}
	at := og.lineOffset + line + n.Line
	if c.walked++; c.walked > maxObjects {
		if c.walked == maxObjects+1 {
			c.unread(og.what, at, "more than %d objects in one document", maxObjects)
		}
		return
	}
	if n.Kind == yaml.SequenceNode && path == "" {
		// A bare array of objects, as kubectl's jsonpath and some tools write it.
		for i, e := range n.Content {
			c.walk(og, line, e, fmt.Sprintf("[%d]", i), lifecycle.GVK{}, nesting+1)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		if strings.HasPrefix(path, "items[") {
			c.unread(og.what, at, "%s is no object", path)
		}
		return
	}
	apiVersion, kind := scalar(n, "apiVersion"), scalar(n, "kind")
	if apiVersion == "" && kind == "" {
		apiVersion, kind = inherit.APIVersion(), inherit.Kind
	} else if apiVersion == "" && inherit.Kind == kind {
		apiVersion = inherit.APIVersion()
	}
	if apiVersion == "" && kind == "" && path == "" && !og.payload && isKustomization(og.source.File) {
		apiVersion, kind = "kustomize.config.k8s.io/v1beta1", "Kustomization"
	}
	if twice(n, "apiVersion") || twice(n, "kind") {
		c.unread(og.what, at, "apiVersion or kind stands twice in one object")
		return
	}
	if apiVersion == "" || kind == "" {
		if why := unnameable(n); why != "" {
			c.unread(og.what, at, "%s", why)
			return
		}
		if strings.HasPrefix(path, "items[") {
			c.unread(og.what, at, "%s has no apiVersion and kind", path)
		}
		return
	}
	if strings.Contains(apiVersion+kind, "{{") || strings.Contains(apiVersion+kind, "${") {
		c.unread(og.what, at, "apiVersion or kind is filled in by a template: render it and scan the result")
		return
	}
	if strings.ContainsAny(apiVersion+kind, " \t\n") {
		c.unread(og.what, at, "apiVersion %q kind %q: not the name of an API", short(apiVersion), short(kind))
		return
	}
	g := lifecycle.ParseGVK(apiVersion, kind)
	if item, ok := strings.CutSuffix(kind, "List"); ok && item != "" || kind == "List" {
		items := resolve(field(n, "items"))
		if items != nil && items.Kind != yaml.SequenceNode && (items.Kind != yaml.ScalarNode || items.Tag != "!!null" || items.LineComment+items.HeadComment+items.FootComment != "") {
			c.unread(og.what, at, "items of %s is no array: if a template fills it in, render it and scan the result", kind)
			return
		}
		if items != nil && items.Kind == yaml.SequenceNode {
			if nesting >= maxNesting {
				c.unread(og.what, at, "lists are nested too deep: %d levels", nesting)
				return
			}
			of := lifecycle.GVK{}
			if kind != "List" {
				of = lifecycle.GVK{Group: g.Group, Version: g.Version, Kind: item}
			}
			for i, e := range items.Content {
				c.walk(og, line, e, join(path, fmt.Sprintf("items[%d]", i)), of, nesting+1)
			}
			return
		}
	}
	if kind == "List" && g.Group == "" {
		return // an empty list
	}
	o := object{gvk: g, node: n, path: path, line: line}
	meta := field(n, "metadata")
	o.name, o.namespace = scalar(meta, "name"), scalar(meta, "namespace")
	if o.name == "" {
		o.name = scalar(meta, "generateName")
	}
	if o.namespace == "" {
		if k, ok := c.db.Lookup(g); !ok || k.Namespaced || k.Resource == "" {
			o.namespace = og.namespace
		}
	}
	src := c.at(og, o, n, path)
	c.use(use{gvk: g, namespace: o.namespace, name: o.name, source: src, confidence: og.confidence, stored: og.stored, cap: og.cap, note: og.note})
	c.references(og, o)
	c.fields(og, o)
	c.component(og, o)
	if og.nesting == 0 {
		c.payloads(og, o)
	}
}

// at gives the source of a node within an object. For an object it points at its apiVersion.
func (c *collector) at(og origin, o object, n *yaml.Node, path string) Source {
	src := og.source
	src.Path = join(src.Path, path)
	if og.noLines {
		return src
	}
	l := n.Line
	if n == o.node {
		if v := field(n, "apiVersion"); v != nil {
			l = v.Line
		}
	}
	src.Line = og.lineOffset + o.line + l
	return src
}

// object is one object in a tree.
type object struct {
	gvk             lifecycle.GVK
	namespace, name string
	node            *yaml.Node
	path            string
	line            int
}

func (o object) String() string {
	if o.namespace != "" {
		return o.gvk.Kind + " " + o.namespace + "/" + o.name
	}
	return o.gvk.Kind + " " + o.name
}

func join(a, b string) string {
	if a == "" || b == "" || strings.HasPrefix(b, "[") {
		return a + b
	}
	return a + "." + b
}

func short(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

// template judges a text that only becomes YAML when a template engine ran: every apiVersion it may
// have with every kind near it. That is never the whole truth, so the text stays unread too.
func (c *collector) template(og origin, p part) {
	type pair struct {
		gvk  lifecycle.GVK
		line int
	}
	var versions []pair // seen since the last kind
	var kind string     // waiting for versions after it
	var pairs []pair
	line := p.line - 1
	for text := range bytes.Lines(p.text) {
		line++
		s := strings.TrimSpace(string(text))
		s = strings.TrimPrefix(s, "- ")
		if v, ok := strings.CutPrefix(s, "apiVersion:"); ok {
			v = plain(v)
			if v == "" || strings.Contains(v, "{{") {
				continue
			}
			g := lifecycle.ParseGVK(v, kind)
			versions = append(versions, pair{g, line})
			if kind != "" {
				pairs = append(pairs, versions[len(versions)-1])
			}
			continue
		}
		if k, ok := strings.CutPrefix(s, "kind:"); ok {
			k = plain(k)
			if k == "" || strings.Contains(k, "{{") {
				continue
			}
			open := versions[:0:0]
			for _, v := range versions {
				if v.gvk.Kind == "" {
					v.gvk.Kind = k
					open = append(open, v)
				}
			}
			pairs = append(pairs, open...)
			versions, kind = nil, ""
			if len(open) == 0 {
				kind = k
			}
		}
	}
	for _, v := range pairs {
		src := og.source
		if !og.noLines {
			src.Line = og.lineOffset + v.line
		}
		c.use(use{gvk: v.gvk, source: src, confidence: Low, cap: og.cap, note: "read line by line from a template; it may be a branch that is not taken"})
	}
	if !og.payload {
		c.unread(og.what, og.lineOffset+p.line, "a template, read line by line only: render it, or give the chart's directory")
	}
}

// plain strips comment and quotes off a simple scalar.
func plain(s string) string {
	if i := strings.Index(s, " #"); i >= 0 {
		s = s[:i]
	}
	return strings.Trim(strings.TrimSpace(s), `"'`)
}
