// Package yamltext cuts YAML texts into documents, parses one at a time, and finds fields in
// the trees, with aliases and merges followed. It never fails on odd input by other than an
// error, and bounds what it follows. The scanner and the converter of manifests share it.
package yamltext

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Part is one YAML document of a text.
type Part struct {
	Text []byte
	// Line is that of its first line, from 1; Offset its first byte.
	Line, Offset int
}

// Split cuts a text at its document markers. YAML forbids a line that begins with "---" or "..."
// and white space inside any scalar, so such a line is a marker wherever it stands.
func Split(text []byte, yield func(Part) bool) {
	line, start, startLine := 1, 0, 1
	for pos := 0; pos < len(text); {
		end := bytes.IndexByte(text[pos:], '\n')
		if end < 0 {
			end = len(text)
		} else {
			end += pos
		}
		if marker(text[pos:end]) {
			if pos > start && !yield(Part{text[start:pos], startLine, start}) {
				return
			}
			start, startLine = pos, line
			if text[pos] == '.' { // an end belongs to no document
				start, startLine = min(end+1, len(text)), line+1
			}
		}
		pos = end + 1
		line++
	}
	if start < len(text) {
		yield(Part{text[start:], startLine, start})
	}
}

func marker(line []byte) bool {
	if len(line) < 3 || (line[0] != '-' && line[0] != '.') || line[1] != line[0] || line[2] != line[0] {
		return false
	}
	return len(line) == 3 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r'
}

// Parse parses one document; nil for an empty one.
func Parse(text []byte) (root *yaml.Node, err error) {
	// The parser is known to have panicked on odd input.
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, fmt.Errorf("the parser gave up: %v", r)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("content after the end of the document")
		}
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// Resolve follows aliases. A cycle ends in nil.
func Resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.AliasNode; i++ {
		if i > 10 {
			return nil
		}
		n = n.Alias
	}
	return n
}

// Field finds a key of a mapping, also in what is merged into it.
func Field(n *yaml.Node, key string) *yaml.Node {
	looked := 0
	return fieldDepth(n, key, 0, &looked)
}

// fieldDepth looks into no more than a thousand mappings: merges of merges can be endless.
func fieldDepth(n *yaml.Node, key string, depth int, looked *int) *yaml.Node {
	n = Resolve(n)
	if *looked++; n == nil || n.Kind != yaml.MappingNode || depth > 10 || *looked > 1000 {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i].Kind == yaml.ScalarNode {
			return Resolve(n.Content[i+1])
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			continue
		}
		merged := Resolve(n.Content[i+1])
		if merged == nil {
			continue
		}
		from := []*yaml.Node{merged}
		if merged.Kind == yaml.SequenceNode {
			from = merged.Content
		}
		for _, m := range from {
			if v := fieldDepth(m, key, depth+1, looked); v != nil {
				return v
			}
		}
	}
	return nil
}

// Scalar gives a key's plain value; empty when it is none.
func Scalar(n *yaml.Node, key string) string {
	v := Field(n, key)
	if v == nil || v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
		return ""
	}
	return v.Value
}

// List gives the elements of a key's sequence.
func List(n *yaml.Node, key string) []*yaml.Node {
	v := Field(n, key)
	if v == nil || v.Kind != yaml.SequenceNode {
		return nil
	}
	return v.Content
}
