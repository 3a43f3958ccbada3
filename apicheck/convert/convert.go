package convert

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/schema"
	"github.com/belayops/belay/apicheck/yamltext"
)

const (
	// maxDocument bounds what is parsed into a tree at once.
	maxDocument = 4 << 20
	maxNesting  = 20
)

// Options say which hops the text must survive.
type Options struct {
	DB       *lifecycle.DB
	From, To lifecycle.Minor
	// Accept names what a person has looked at: kinds whose fields stay equal while their meaning changes
	// ("PodDisruptionBudget"), or "*" for all.
	Accept []string
	// OnlyRemoved leaves alone what the target still serves.
	OnlyRemoved bool
	// Drop cuts out documents that have no successor. Without it they stay.
	Drop bool
	// Schema holds what a conversion gives against the fields of the target; nil for the built-in one.
	Schema *schema.Set
	// Record says that the text is a record of what was applied, and will not be applied itself: fields that the target
	// does not know are named in notes, and keep nothing from being converted.
	Record bool
}

// Change is one object that was rewritten.
type Change struct {
	// Line counts from 1, Path leads to the object: items[0].
	Line            int
	Path            string
	Namespace, Name string
	From, To        lifecycle.GVK // To is zero for what was cut out
	Rewrite         lifecycle.Rewrite
	// Notes say what a person should know: defaults that differ, fields that were dropped.
	Notes []string
}

// Kept is one object that ought to change and was left as it is.
type Kept struct {
	Line            int
	Path            string
	Namespace, Name string
	GVK             lifecycle.GVK
	Why             string
	// Acceptable says that Accept would have it rewritten.
	Acceptable bool
}

// Gap is a part of the text that could not be read.
type Gap struct {
	Line int
	Why  string
}

// Result is what became of a text.
type Result struct {
	Text    []byte
	Changes []Change
	Kept    []Kept
	Gaps    []Gap
}

// Text rewrites every document of a YAML or JSON text. With nothing to change it gives the same bytes.
func Text(o Options, text []byte) Result {
	res := Result{Text: text}
	if o.Schema == nil {
		var err error
		if o.Schema, err = schema.Default(); err != nil {
			res.Gaps = append(res.Gaps, Gap{0, err.Error()})
			return res
		}
	}
	if bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text) {
		res.Gaps = append(res.Gaps, Gap{0, "binary, not text"})
		return res
	}
	// A mark of byte order is no part of the first document, whose columns it would move.
	const mark = "\ufeff"
	if rest, marked := bytes.CutPrefix(text, []byte(mark)); marked {
		inner := Text(o, rest)
		if len(inner.Changes) > 0 {
			inner.Text = append([]byte(mark), inner.Text...)
		} else {
			inner.Text = text
		}
		return inner
	}
	var out []byte
	last, changed := 0, false
	yamltext.Split(text, func(p yamltext.Part) bool {
		d := document{opts: o, res: &res, text: p.Text, line: p.Line - 1}
		if edited := d.convert(); edited != nil {
			out = append(append(out, text[last:p.Offset]...), edited...)
			last, changed = p.Offset+len(p.Text), true
		}
		return true
	})
	if changed {
		res.Text = append(out, text[last:]...)
	}
	return res
}

// document is one document under conversion.
type document struct {
	opts  Options
	res   *Result
	text  []byte
	line  int // lines before it
	lines []int
	edits []edit
	// want is the tree that the edits must give.
	want    *yaml.Node
	dropped bool
}

// edit replaces the bytes from start to end.
type edit struct {
	start, end int
	with       string
}

// convert gives the new text, or nil when nothing changed.
func (d *document) convert() []byte {
	if len(bytes.TrimSpace(d.text)) == 0 {
		return nil
	}
	if len(d.text) > maxDocument {
		d.res.Gaps = append(d.res.Gaps, Gap{d.line + 1, fmt.Sprintf("document of %d MB: more than %d MB are not parsed at once", len(d.text)>>20, maxDocument>>20)})
		return nil
	}
	root, err := yamltext.Parse(d.text)
	if err != nil {
		why := "not YAML"
		if bytes.Contains(d.text, []byte("{{")) {
			why = "a template: convert the chart's source by hand"
		}
		d.res.Gaps = append(d.res.Gaps, Gap{d.line + 1, why})
		return nil
	}
	if root == nil {
		return nil
	}
	d.lines = append(d.lines, 0)
	for i, b := range d.text {
		if b == '\n' {
			d.lines = append(d.lines, i+1)
		}
	}
	// A second parse is the tree that converters change, so that both can be compared.
	if d.want, err = yamltext.Parse(d.text); err != nil {
		return nil
	}
	changes := len(d.res.Changes)
	d.walk(root, d.want, "", lifecycle.GVK{}, 0)
	if d.dropped {
		return []byte{}
	}
	if len(d.edits) == 0 {
		return nil
	}
	out, err := d.apply()
	if err == nil {
		err = d.verify(out)
	}
	if err != nil {
		// All or nothing for a document: what the edits give is not what was meant.
		failed := d.res.Changes[changes:]
		for _, c := range failed {
			d.res.Kept = append(d.res.Kept, Kept{Line: c.Line, Path: c.Path, Namespace: c.Namespace, Name: c.Name, GVK: c.From, Why: err.Error()})
		}
		d.res.Changes = d.res.Changes[:changes]
		return nil
	}
	return out
}

// walk finds the objects in two equal trees, of which it changes the second.
func (d *document) walk(n, w *yaml.Node, path string, inherit lifecycle.GVK, nesting int) {
	if n != nil && n.Kind == yaml.AliasNode && path != "" {
		d.gap(n, "%s is an alias: write it out, or convert what it stands for by hand", path)
		return
	}
	if n == nil || n.Kind == yaml.AliasNode || n.Kind != w.Kind {
		return
	}
	if n.Kind == yaml.SequenceNode && path == "" {
		for i := range n.Content {
			d.walk(n.Content[i], w.Content[i], fmt.Sprintf("[%d]", i), lifecycle.GVK{}, nesting+1)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	if nesting > maxNesting {
		d.gap(n, "lists are nested too deep: %d levels", nesting)
		return
	}
	apiVersion, kind := yamltext.Scalar(n, "apiVersion"), yamltext.Scalar(n, "kind")
	inherited := false
	if apiVersion == "" && kind == "" && inherit.Kind != "" {
		apiVersion, kind, inherited = inherit.APIVersion(), inherit.Kind, true
	}
	if own(n, "apiVersion") != nil && own(n, "kind") != nil && (apiVersion == "" || kind == "") || strings.Contains(apiVersion+kind, "{{") || strings.Contains(apiVersion+kind, "${") {
		d.gap(n, "apiVersion or kind is no plain text: if a template fills it in, render it and convert the result")
		return
	}
	if apiVersion == "" || kind == "" {
		return
	}
	g := lifecycle.ParseGVK(apiVersion, kind)
	items := own(n, "items")
	if strings.HasSuffix(kind, "List") && items != nil && items.Kind != yaml.SequenceNode && items.ShortTag() != "!!null" {
		d.gap(items, "items of %s is no array", kind)
		return
	}
	if strings.HasSuffix(kind, "List") && items != nil && items.Kind == yaml.SequenceNode {
		of := lifecycle.GVK{}
		if kind != "List" {
			of = lifecycle.GVK{Group: g.Group, Version: g.Version, Kind: strings.TrimSuffix(kind, "List")}
		}
		wi := own(w, "items")
		typed := false
		for i := range items.Content {
			typed = typed || yamltext.Scalar(items.Content[i], "kind") == ""
			if kind == "List" || yamltext.Scalar(items.Content[i], "kind") != "" {
				d.walk(items.Content[i], wi.Content[i], join(path, fmt.Sprintf("items[%d]", i)), lifecycle.GVK{}, nesting+1)
			}
		}
		if typed && kind != "List" {
			d.typedList(n, w, g, of, path)
		}
		return
	}
	if !inherited {
		d.object(n, w, g, path, nil)
	}
}

// typedList moves a list whose items have no kind of their own, items and all.
func (d *document) typedList(n, w *yaml.Node, g, of lifecycle.GVK, path string) {
	items, wi := own(n, "items"), own(w, "items")
	j := d.judge(of)
	if j == nil {
		return
	}
	if to := j.Replacement; to.Kind != of.Kind {
		d.keep(n, of, path, "a list of another kind takes its place: convert its items one by one", false)
		return
	}
	for i := range items.Content {
		if yamltext.Scalar(items.Content[i], "kind") != "" {
			d.keep(n, of, path, "some items name their kind and some do not", false)
			return
		}
	}
	d.object(n, w, g, path, func() (*lifecycle.Judgement, []*yaml.Node) { return j, wi.Content })
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}

// judge gives the judgement of what must change; nil when nothing must.
func (d *document) judge(g lifecycle.GVK) *lifecycle.Judgement {
	j := d.opts.DB.Judge(g, d.opts.From, d.opts.To, false)
	switch j.Verdict {
	case lifecycle.Removed, lifecycle.PlannedRemoval:
		return &j
	}
	if d.opts.OnlyRemoved {
		return nil
	}
	switch j.Verdict {
	case lifecycle.Deprecated:
		return &j
	case lifecycle.OffByDefault:
		if r, ok := d.opts.DB.Lookup(j.Replacement); ok && r.On(d.opts.To) {
			return &j
		}
	}
	return nil
}

func (d *document) keep(n *yaml.Node, g lifecycle.GVK, path, why string, acceptable bool) {
	meta := yamltext.Field(n, "metadata")
	d.res.Kept = append(d.res.Kept, Kept{Line: d.line + n.Line, Path: path, Namespace: yamltext.Scalar(meta, "namespace"), Name: yamltext.Scalar(meta, "name"), GVK: g, Why: why, Acceptable: acceptable})
}

// gap says that a part could not be read.
func (d *document) gap(n *yaml.Node, format string, args ...any) {
	d.res.Gaps = append(d.res.Gaps, Gap{d.line + n.Line, fmt.Sprintf(format, args...)})
}

// object rewrites one object. of gives judgement and items of a typed list.
func (d *document) object(n, w *yaml.Node, g lifecycle.GVK, path string, of func() (*lifecycle.Judgement, []*yaml.Node)) {
	var j *lifecycle.Judgement
	objects := []*yaml.Node{w}
	from := g
	if of != nil {
		j, objects = of()
		from.Kind = strings.TrimSuffix(g.Kind, "List")
	} else if j = d.judge(g); j == nil {
		return
	}
	to := j.Replacement
	if to.IsZero() {
		switch {
		case j.Verdict == lifecycle.Deprecated:
		case d.opts.Drop && path == "" && of == nil:
			meta := yamltext.Field(n, "metadata")
			d.res.Changes = append(d.res.Changes, Change{Line: d.line + n.Line, Namespace: yamltext.Scalar(meta, "namespace"), Name: yamltext.Scalar(meta, "name"), From: g, Rewrite: lifecycle.None,
				Notes: []string{"cut out: it has no successor"}})
			d.dropped = true
		default:
			d.keep(n, g, path, "it has no successor that "+d.opts.To.String()+" serves", false)
		}
		return
	}
	accepted := slices.Contains(d.opts.Accept, "*") || slices.Contains(d.opts.Accept, from.Kind)
	convert := converterFor(from, to)
	var notes []string
	switch {
	case j.Rewrite == lifecycle.Semantic && !accepted:
		d.keep(n, g, path, "the fields of "+to.APIVersion()+" are the same, their meaning or defaults are not: "+strings.Join(append(notesFor(from, to), "if that is right for it, accept it"), "; "), true)
		return
	case j.Rewrite == lifecycle.Structural && convert == nil:
		d.keep(n, g, path, leftTo(from, to), false)
		return
	case j.Rewrite == lifecycle.Structural && shared(n):
		d.keep(n, g, path, "fields must move, and it holds anchors or aliases: write them out first", false)
		return
	}
	if anchored(n) {
		d.keep(n, g, path, "it is shared through an anchor: the other places would change too", false)
		return
	}
	version := own(n, "apiVersion")
	if version == nil {
		d.keep(n, g, path, "its apiVersion is merged in from elsewhere", false)
		return
	}
	if convert != nil {
		for _, obj := range objects {
			more, err := convert(obj)
			if err != nil {
				d.keep(n, g, path, err.Error(), false)
				// The converter may have changed part of the tree: take the original again.
				restore(w, n)
				return
			}
			for _, m := range more {
				if !slices.Contains(notes, m) {
					notes = append(notes, m)
				}
			}
		}
	}
	notes = append(notes, notesFor(from, to)...)
	more, problem := d.validate(objects, to, j.Rewrite, accepted)
	if problem != nil {
		restore(w, n)
		d.keep(n, g, path, fmt.Sprintf("as %s of %s it would be invalid: %s", to, d.opts.To, problem), problem.Fault != schema.Missing)
		if problem.Line > 0 {
			d.res.Kept[len(d.res.Kept)-1].Line = d.line + problem.Line
		}
		return
	}
	notes = append(notes, more...)
	mark := len(d.edits)
	err := d.scalar(n, w, "apiVersion", to.APIVersion())
	if err == nil && of == nil && to.Kind != g.Kind {
		err = d.scalar(n, w, "kind", to.Kind)
	}
	if err == nil {
		err = d.diff(n, w)
	}
	if err != nil {
		d.edits = d.edits[:mark]
		restore(w, n)
		d.keep(n, g, path, err.Error(), false)
		return
	}
	meta := yamltext.Field(n, "metadata")
	d.res.Changes = append(d.res.Changes, Change{Line: d.line + version.Line, Path: path, Namespace: yamltext.Scalar(meta, "namespace"), Name: yamltext.Scalar(meta, "name"),
		From: g, To: lifecycle.GVK{Group: to.Group, Version: to.Version, Kind: changedKind(g, to, of != nil)}, Rewrite: j.Rewrite, Notes: notes})
}

// validate holds converted objects against the fields of the target. The first problem that keeps them from being converted
// is given back; others become notes. What the cluster wrote into a status whose fields moved is cut out.
func (d *document) validate(objects []*yaml.Node, to lifecycle.GVK, r lifecycle.Rewrite, accepted bool) (notes []string, problem *schema.Problem) {
	for _, obj := range objects {
		problems := d.opts.Schema.Validate(obj, to, d.opts.To)
		ofStatus := func(p schema.Problem) bool {
			return p.Path == "status" || strings.HasPrefix(p.Path, "status.") || strings.HasPrefix(p.Path, "status[")
		}
		if slices.ContainsFunc(problems, func(p schema.Problem) bool { return p.Fault != schema.Missing && ofStatus(p) }) && remove(obj, "status") != nil {
			notes = append(notes, "its status, which the cluster writes, does not fit and is cut out")
			problems = d.opts.Schema.Validate(obj, to, d.opts.To)
		}
		for _, p := range problems {
			switch {
			case p.Fault == schema.Missing && ofStatus(p):
			case d.opts.Record:
				notes = append(notes, p.String())
			case p.Fault == schema.Missing && r != lifecycle.Semantic:
				notes = append(notes, p.String()+": right in a patch, refused in a whole object")
			case p.Fault != schema.Missing && accepted:
				notes = append(notes, p.String())
			default:
				return nil, &p
			}
		}
	}
	return notes, nil
}

func changedKind(g, to lifecycle.GVK, list bool) string {
	if list {
		return g.Kind
	}
	return to.Kind
}

// restore makes w's content a copy of n's again.
func restore(w, n *yaml.Node) { *w = *deepCopy(n) }

func deepCopy(n *yaml.Node) *yaml.Node {
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	for i, e := range n.Content {
		c.Content[i] = deepCopy(e)
	}
	return &c
}

// own gives the value node of a key that stands in the mapping itself, an alias as the alias.
func own(n *yaml.Node, key string) *yaml.Node {
	if i := index(n, key); i >= 0 {
		return n.Content[i+1]
	}
	return nil
}

func index(n *yaml.Node, key string) int {
	if n == nil || n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// anchored says whether an object as a whole can be named from elsewhere.
func anchored(n *yaml.Node) bool { return n.Anchor != "" }

// shared says whether a tree has anchors or aliases anywhere.
func shared(n *yaml.Node) bool {
	if n.Anchor != "" || n.Kind == yaml.AliasNode {
		return true
	}
	return slices.ContainsFunc(n.Content, shared)
}

// apply makes the edits.
func (d *document) apply() ([]byte, error) {
	slices.SortStableFunc(d.edits, func(a, b edit) int { return a.start - b.start })
	var out []byte
	last := 0
	newline := "\n"
	if bytes.Contains(d.text, []byte("\r\n")) {
		newline = "\r\n"
	}
	for _, e := range d.edits {
		if e.start < last || e.end < e.start || e.end > len(d.text) {
			return nil, errors.New("two changes fall on the same text")
		}
		out = append(append(out, d.text[last:e.start]...), strings.ReplaceAll(e.with, "\n", newline)...)
		last = e.end
	}
	return append(out, d.text[last:]...), nil
}

// verify parses the outcome and holds it against the tree that was meant.
func (d *document) verify(out []byte) error {
	got, err := yamltext.Parse(out)
	if err != nil {
		return fmt.Errorf("its layout is too unusual to edit: %w", err)
	}
	if !equal(got, d.want, 0) {
		return errors.New("its layout is too unusual to edit in place")
	}
	return nil
}

// equal compares what two trees mean, with aliases followed. depth is that of the trees within a larger one.
func equal(a, b *yaml.Node, depth int) bool { return same(a, b, depth, map[[2]*yaml.Node]bool{}) }

// same remembers the pairs that it began to compare behind aliases, each of which it compares once: aliases of aliases can
// make few lines endless.
func same(a, b *yaml.Node, depth int, begun map[[2]*yaml.Node]bool) bool {
	aliased := a != nil && a.Kind == yaml.AliasNode || b != nil && b.Kind == yaml.AliasNode
	a, b = yamltext.Resolve(a), yamltext.Resolve(b)
	if a == nil || b == nil || depth > 500 {
		return a == b
	}
	if aliased {
		if begun[[2]*yaml.Node{a, b}] {
			return true
		}
		begun[[2]*yaml.Node{a, b}] = true
	}
	if a.Kind != b.Kind || len(a.Content) != len(b.Content) {
		return false
	}
	if a.Kind == yaml.ScalarNode {
		return a.Value == b.Value && a.ShortTag() == b.ShortTag()
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i], depth+1, begun) {
			return false
		}
	}
	return true
}
