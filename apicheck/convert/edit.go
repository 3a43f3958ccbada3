package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// offset gives the byte of a node's first character. Columns count characters.
func (d *document) offset(n *yaml.Node) (int, error) {
	if n.Line < 1 || n.Line > len(d.lines) {
		return 0, errors.New("its place in the text is not known")
	}
	o := d.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(d.text[o:])
		if size == 0 {
			return 0, errors.New("its place in the text is not known")
		}
		o += size
	}
	return o, nil
}

// scalar sets a scalar of a mapping to a new plain value, in the text and in the tree w. Others that see the old value
// through an anchor keep it.
func (d *document) scalar(n, w *yaml.Node, key, value string) error {
	v := own(n, key)
	if v == nil {
		return fmt.Errorf("%s is not its own", key)
	}
	start, err := d.offset(v)
	if err != nil {
		return err
	}
	end, err := d.scalarEnd(v, start)
	if err != nil {
		return err
	}
	with := value
	body := d.text[start:end]
	if i := bytes.LastIndexAny(body, " "); v.Anchor != "" && i >= 0 {
		body = body[i+1:]
	}
	if len(body) > 0 && (body[0] == '"' || body[0] == '\'') && v.Kind == yaml.ScalarNode {
		with = string(body[0]) + value + string(body[0])
	} else if d.json() {
		with = `"` + value + `"`
	}
	if v.Anchor != "" {
		// The first alias becomes the anchor, with the old value.
		if first := firstAlias(d.want, v.Anchor); first != nil {
			at, err := d.offset(first)
			if err != nil {
				return err
			}
			alias := "*" + v.Anchor
			if !bytes.HasPrefix(d.text[at:], []byte(alias)) {
				return errors.New("its anchor is used in a place that is too unusual to edit")
			}
			d.edits = append(d.edits, edit{at, at + len(alias), string(d.text[start:end])})
			old := *own(w, key)
			*first = old
		}
	}
	d.edits = append(d.edits, edit{start, end, with})
	i := index(w, key)
	w.Content[i+1] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value, Line: v.Line, Column: v.Column}
	// The original takes the value too, so that a comparison of both sees only what else changed.
	n.Content[index(n, key)+1] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value, Line: v.Line, Column: v.Column}
	return nil
}

func firstAlias(n *yaml.Node, anchor string) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Value == anchor {
		return n
	}
	for _, c := range n.Content {
		if f := firstAlias(c, anchor); f != nil {
			return f
		}
	}
	return nil
}

func (d *document) json() bool {
	t := bytes.TrimSpace(bytes.TrimPrefix(d.text, []byte("---")))
	return len(t) > 0 && t[0] == '{' && bytes.Contains(d.text, []byte(`"apiVersion"`))
}

// scalarEnd gives the byte after a simple scalar or alias on one line.
func (d *document) scalarEnd(v *yaml.Node, start int) (int, error) {
	rest := d.text[start:]
	prefix := 0
	if v.Kind == yaml.AliasNode {
		if bytes.HasPrefix(rest, []byte("*"+v.Value)) {
			return start + 1 + len(v.Value), nil
		}
		return 0, errors.New("its apiVersion is written in a way that is too unusual to edit")
	}
	if v.Anchor != "" {
		a := "&" + v.Anchor + " "
		if !bytes.HasPrefix(rest, []byte(a)) {
			return 0, errors.New("its apiVersion is written in a way that is too unusual to edit")
		}
		prefix = len(a)
		for prefix < len(rest) && rest[prefix] == ' ' {
			prefix++
		}
	}
	for _, form := range []string{v.Value, `"` + v.Value + `"`, `'` + v.Value + `'`} {
		if bytes.HasPrefix(rest[prefix:], []byte(form)) {
			return start + prefix + len(form), nil
		}
	}
	return 0, errors.New("its apiVersion is written in a way that is too unusual to edit")
}

// diff turns what a converter changed in w against n into edits: entries of mappings that are new, gone or other.
func (d *document) diff(n, w *yaml.Node) error {
	if equal(n, w, 0) {
		return nil
	}
	flow := n.Style&yaml.FlowStyle != 0 || d.json()
	switch {
	case n.Kind == yaml.MappingNode && w.Kind == yaml.MappingNode && !flow:
		return d.diffMapping(n, w)
	case n.Kind == yaml.SequenceNode && w.Kind == yaml.SequenceNode && len(n.Content) == len(w.Content) && !flow:
		for i := range n.Content {
			if err := d.diff(n.Content[i], w.Content[i]); err != nil {
				return err
			}
		}
		return nil
	case flow && (n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode):
		return d.replaceFlow(n, w)
	}
	return errors.New("its layout is too unusual to edit in place")
}

// replaceFlow writes a flow collection anew, on one line. As much of it as can stay is kept by going down first.
func (d *document) replaceFlow(n, w *yaml.Node) error {
	if n.Kind == w.Kind && len(n.Content) == len(w.Content) {
		same := true
		if n.Kind == yaml.MappingNode {
			for i := 0; i < len(n.Content); i += 2 {
				same = same && n.Content[i].Value == w.Content[i].Value
			}
		}
		deeper := same
		for i := range n.Content {
			if !equal(n.Content[i], w.Content[i], 0) && (n.Content[i].Kind == yaml.ScalarNode || n.Content[i].Kind != w.Content[i].Kind) {
				deeper = false
			}
		}
		if deeper {
			for i := range n.Content {
				if !equal(n.Content[i], w.Content[i], 0) {
					if err := d.replaceFlow(n.Content[i], w.Content[i]); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	start, err := d.offset(n)
	if err != nil {
		return err
	}
	end := flowEnd(d.text, start)
	if end < 0 {
		return errors.New("its layout is too unusual to edit in place")
	}
	text, err := flowText(w, d.json())
	if err != nil {
		return err
	}
	d.edits = append(d.edits, edit{start, end, text})
	return nil
}

// flowEnd gives the byte after the collection that begins at start.
func flowEnd(text []byte, start int) int {
	if start >= len(text) || (text[start] != '{' && text[start] != '[') {
		return -1
	}
	depth := 0
	for i := start; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '#':
			if i > 0 && (text[i-1] == ' ' || text[i-1] == '\n') {
				return -1 // a comment would be lost
			}
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '\'':
			// An apostrophe within a plain scalar is no quote.
			if bytes.IndexByte([]byte(" [{,:\n"), text[i-1]) < 0 {
				continue
			}
			for i++; i < len(text) && text[i] != '\''; i++ {
			}
		}
	}
	return -1
}

// jsonText writes a tree as JSON on one line. YAML's own flow style is no JSON: it has escapes of its own.
func jsonText(b *strings.Builder, n *yaml.Node) error {
	str := func(s string) error {
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			return err
		}
		b.WriteString(strings.TrimSuffix(out.String(), "\n"))
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode, yaml.SequenceNode:
		open, end, step := "[", "]", 1
		if n.Kind == yaml.MappingNode {
			open, end, step = "{", "}", 2
		}
		b.WriteString(open)
		for i := 0; i+step <= len(n.Content); i += step {
			if i > 0 {
				b.WriteString(", ")
			}
			if step == 2 {
				if err := str(n.Content[i].Value); err != nil {
					return err
				}
				b.WriteString(": ")
			}
			if err := jsonText(b, n.Content[i+step-1]); err != nil {
				return err
			}
		}
		b.WriteString(end)
		return nil
	case yaml.ScalarNode:
		switch {
		case n.ShortTag() == "!!null":
			b.WriteString("null")
		case n.ShortTag() != "!!str" && json.Valid([]byte(n.Value)):
			b.WriteString(n.Value)
		default:
			return str(n.Value)
		}
		return nil
	}
	return errors.New("JSON has no anchors and aliases")
}

func flowText(w *yaml.Node, asJSON bool) (string, error) {
	if asJSON {
		var b strings.Builder
		err := jsonText(&b, w)
		return b.String(), err
	}
	c := deepCopy(w)
	var style func(n *yaml.Node)
	style = func(n *yaml.Node) {
		n.HeadComment, n.LineComment, n.FootComment = "", "", ""
		if n.Kind == yaml.ScalarNode {
			if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
				n.Style = yaml.DoubleQuotedStyle
			}
			return
		}
		n.Style = yaml.FlowStyle
		for _, e := range n.Content {
			style(e)
		}
	}
	style(c)
	b, err := yaml.Marshal(c)
	if err != nil {
		return "", err
	}
	s := strings.TrimSuffix(string(b), "\n")
	if strings.Contains(s, "\n") {
		return "", errors.New("its layout is too unusual to edit in place")
	}
	return s, nil
}

// diffMapping edits a block mapping entry by entry.
func (d *document) diffMapping(n, w *yaml.Node) error {
	after := map[int][]*yaml.Node{} // new keys and values, by index of the old key that they follow; -1: before the first
	at := -1
	kept := map[int]bool{}
	for i := 0; i+1 < len(w.Content); i += 2 {
		o := index(n, w.Content[i].Value)
		if o < 0 {
			after[at] = append(after[at], w.Content[i], w.Content[i+1])
			continue
		}
		if o < at {
			return errors.New("its layout is too unusual to edit in place")
		}
		at = o
		kept[o] = true
	}
	// New entries take the place of an old one that goes, so that comments around it stay where they belong.
	instead := map[int][]*yaml.Node{}
	for k, entries := range after {
		next := k + 2
		if k < 0 {
			next = 0
		}
		if next < len(n.Content) && !kept[next] {
			instead[next] = entries
			delete(after, k)
		}
	}
	// The comment above a key that goes stays in the text: whatever moved must not bring it along.
	for o := 0; o+1 < len(n.Content); o += 2 {
		if kept[o] {
			continue
		}
		for _, moved := range []map[int][]*yaml.Node{after, instead} {
			for _, entries := range moved {
				for _, e := range entries {
					dropComment(e, n.Content[o].HeadComment)
				}
			}
		}
	}
	for o := 0; o+1 < len(n.Content); o += 2 {
		start, err := d.offset(n.Content[o])
		if err != nil {
			return err
		}
		col := n.Content[o].Column - 1
		end := d.entryEnd(n, o)
		if o == 0 && len(after[-1]) > 0 {
			text, err := entryText(after[-1], col)
			if err != nil {
				return err
			}
			d.edits = append(d.edits, edit{start, start, text + "\n" + strings.Repeat(" ", col)})
		}
		switch {
		case kept[o]:
			if err := d.diffEntry(n, w, o, start, end, col); err != nil {
				return err
			}
		case len(instead[o]) > 0:
			text, err := entryText(instead[o], col)
			if err != nil {
				return err
			}
			d.edits = append(d.edits, edit{start, end, text})
		default:
			if err := d.drop(n, o, start, end); err != nil {
				return err
			}
		}
		if len(after[o]) > 0 {
			text, err := entryText(after[o], col)
			if err != nil {
				return err
			}
			d.insertAfter(end, col, text)
		}
	}
	return nil
}

func dropComment(n *yaml.Node, comment string) {
	if comment != "" && n.HeadComment == comment {
		n.HeadComment = ""
	}
	for _, c := range n.Content {
		dropComment(c, comment)
	}
}

// insertAfter puts text behind an entry that ends at end.
func (d *document) insertAfter(end, col int, text string) {
	d.edits = append(d.edits, edit{end, end, "\n" + strings.Repeat(" ", col) + text})
}

// diffEntry changes the value of an entry that stays.
func (d *document) diffEntry(n, w *yaml.Node, o, start, end, col int) error {
	ov, wv := n.Content[o+1], own(w, n.Content[o].Value)
	if equal(ov, wv, 0) {
		return nil
	}
	mark := len(d.edits)
	if ov.Kind == wv.Kind && ov.Kind != yaml.ScalarNode {
		if err := d.diff(ov, wv); err == nil {
			return nil
		}
		d.edits = d.edits[:mark]
	}
	text, err := entryText([]*yaml.Node{n.Content[o], wv}, col)
	if err != nil {
		return err
	}
	d.edits = append(d.edits, edit{start, end, text})
	return nil
}

// drop takes out an entry, with its line.
func (d *document) drop(n *yaml.Node, o, start, end int) error {
	lineStart := d.lines[n.Content[o].Line-1]
	if len(bytes.TrimSpace(d.text[lineStart:start])) == 0 {
		if end < len(d.text) { // the line break goes too
			end++
			if d.text[end-1] == '\r' {
				end++
			}
		}
		d.edits = append(d.edits, edit{lineStart, min(end, len(d.text)), ""})
		return nil
	}
	// It shares its line with a dash: the next entry moves up.
	if o+2 >= len(n.Content) {
		return errors.New("nothing would be left of a list's element")
	}
	next, err := d.offset(n.Content[o+2])
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(d.text[end:next])) > 0 {
		return errors.New("a comment stands where text must move")
	}
	d.edits = append(d.edits, edit{start, next, ""})
	return nil
}

// entryEnd gives the byte after the last line of an entry of a block mapping, without its line break.
func (d *document) entryEnd(n *yaml.Node, o int) int {
	key := n.Content[o]
	col := key.Column - 1
	last := key.Line // number of the last line that belongs to it
	indentless := n.Content[o+1].Kind == yaml.SequenceNode
	for l := key.Line + 1; l <= len(d.lines); l++ {
		text := d.lineText(l)
		trimmed := bytes.TrimLeft(text, " ")
		indent := len(text) - len(trimmed)
		if len(bytes.TrimSpace(trimmed)) == 0 {
			continue
		}
		if indent > col || indentless && indent == col && trimmed[0] == '-' {
			last = l
			continue
		}
		if trimmed[0] == '#' && indent <= col {
			// A comment of whatever comes next, unless the entry goes on behind it.
			continue
		}
		break
	}
	return d.lines[last-1] + len(d.lineText(last))
}

// lineText gives a line without its break.
func (d *document) lineText(l int) []byte {
	start := d.lines[l-1]
	end := len(d.text)
	if l < len(d.lines) {
		end = d.lines[l] - 1
	}
	return bytes.TrimSuffix(d.text[start:end], []byte("\r"))
}

// entryText writes entries of a block mapping whose keys stand in column col; the first line without its indent.
func entryText(entries []*yaml.Node, col int) (string, error) {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for i, e := range entries {
		c := deepCopy(e)
		if i%2 == 0 {
			// What stands above or below a key stays in the text around it.
			c.HeadComment, c.FootComment = "", ""
		}
		m.Content = append(m.Content, c)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(m); err != nil {
		return "", err
	}
	if err := enc.Close(); err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i := 1; i < len(lines); i++ {
		if lines[i] != "" {
			lines[i] = strings.Repeat(" ", col) + lines[i]
		}
	}
	return strings.Join(lines, "\n"), nil
}
