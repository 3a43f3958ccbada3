package apicheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// maxNodes bounds the tree of one item of a large JSON document: a node takes 160 bytes, however short its text is.
const maxNodes = 250_000

// errManyNodes says that a tree would have more nodes than were allowed.
var errManyNodes = errors.New("too many values")

// jsonLonger says whether the JSON value that text begins with takes more than limit bytes.
func jsonLonger(text []byte, limit int) bool {
	if len(text) <= limit {
		return false
	}
	start := jsonSpace(text, 0)
	return start > limit || jsonEnd(text[:limit], start) < 0
}

// jsonSpace gives the first place from i on that is not white space.
func jsonSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t') {
		i++
	}
	return i
}

// jsonStringEnd gives the place behind the string whose quote is at i; -1 when the text ends before.
func jsonStringEnd(text []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		slashes := 0
		for text[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
}

// jsonEnd gives the place behind the value that begins at start; -1 when the text ends before. It knows brackets and strings
// only, and makes nothing: whether the text is JSON at all is for others to say.
func jsonEnd(text []byte, start int) int {
	depth := 0
	for i := start; i < len(text); {
		switch text[i] {
		case '"':
			if i = jsonStringEnd(text, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
		case '{', '[':
			depth++
			i++
		case '}', ']':
			if depth == 0 {
				return i
			}
			i++
			if depth--; depth == 0 {
				return i
			}
		case ',', ':', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return i
			}
			i++
		default:
			i++
		}
	}
	if depth > 0 {
		return -1
	}
	return len(text)
}

// jsonMembers calls yield for every member of the valid object that begins at start, with the place of its value.
func jsonMembers(text []byte, start int, yield func(key string, from, to int)) {
	i := jsonSpace(text, start+1)
	for text[i] != '}' {
		end := jsonStringEnd(text, i)
		key := jsonName(text[i:end])
		i = jsonSpace(text, jsonSpace(text, end)+1)
		to := jsonEnd(text, i)
		yield(key, i, to)
		if i = jsonSpace(text, to); text[i] == ',' {
			i = jsonSpace(text, i+1)
		}
	}
}

// jsonElements calls yield for every element of the valid array that begins at start, with its place.
func jsonElements(text []byte, start int, yield func(from, to int)) {
	i := jsonSpace(text, start+1)
	for text[i] != ']' {
		to := jsonEnd(text, i)
		yield(i, to)
		if i = jsonSpace(text, to); text[i] == ',' {
			i = jsonSpace(text, i+1)
		}
	}
}

// jsonName gives a string by its text; "" for what is none, or too long for a name.
func jsonName(text []byte) (s string) {
	if len(text) > 1<<10 || len(text) == 0 || text[0] != '"' || json.Unmarshal(text, &s) != nil {
		return ""
	}
	return s
}

// bigJSON judges the valid JSON object that begins at start and is too large for a tree: of a list its items one by one, of
// anything else the name of its API. It makes no more of the text than a tree of one item at a time; what is too large for that
// too is unread. line is that before the text's first.
func (c *collector) bigJSON(og origin, line int, lines *lineCounter, start int, path string, inherit lifecycle.GVK, nesting int) {
	text := lines.text
	var apiVersion, kind string
	var meta struct{ Name, Namespace string }
	named, items, place := 0, -1, start
	jsonMembers(text, start, func(key string, from, to int) {
		switch key {
		case "apiVersion":
			apiVersion, place = jsonName(text[from:to]), from
			named++
		case "kind":
			kind = jsonName(text[from:to])
			named++
		case "metadata":
			if to-from < maxDocument {
				_ = json.Unmarshal(text[from:to], &meta) // a name that is none is no name
			}
		case "items":
			items = from
		}
	})
	if apiVersion == "" && kind == "" {
		apiVersion, kind = inherit.APIVersion(), inherit.Kind
	}
	unread := func(at int, format string, args ...any) {
		what := strings.TrimPrefix(path+": ", ": ")
		c.unread(og.what, og.lineOffset+line+lines.at(int64(at)), "%s%s", what, fmt.Sprintf(format, args...))
	}
	switch {
	case named > 2:
		unread(start, "apiVersion or kind stands twice in one object")
		return
	case apiVersion == "" || kind == "":
		if path != "" {
			unread(start, "more than %d MB without apiVersion and kind", maxDocument>>20)
		}
		return
	case nesting > maxNesting:
		unread(start, "lists are nested too deep: %d levels", nesting)
		return
	}
	g := lifecycle.ParseGVK(apiVersion, kind)
	item, isList := strings.CutSuffix(kind, "List")
	if !isList || items < 0 || text[items] != '[' {
		src := og.source
		src.Path = join(src.Path, path)
		if at := lines.at(int64(place)); !og.noLines {
			src.Line = og.lineOffset + line + at
		}
		c.use(use{gvk: g, namespace: meta.Namespace, name: meta.Name, source: src, confidence: og.confidence, stored: og.stored, cap: og.cap, note: og.note})
		unread(place, "%s of more than %d MB: not parsed, only the name of its API was judged", g, maxDocument>>20)
		return
	}
	of := lifecycle.GVK{}
	if item != "" {
		of = lifecycle.GVK{Group: g.Group, Version: g.Version, Kind: item}
	}
	n := -1
	jsonElements(text, items, func(from, to int) {
		n++
		at := join(path, fmt.Sprintf("items[%d]", n))
		if to-from > maxDocument && text[from] == '{' {
			c.bigJSON(og, line, lines, from, at, of, nesting+1)
			return
		}
		left := maxNodes
		lines.base = from
		node, err := jsonNode(newDecoder(text[from:to]), lines, 2, &left)
		lines.base = 0
		if err != nil {
			c.unread(og.what, og.lineOffset+line+lines.at(int64(from)), "%s: %d kB of JSON: %v: not parsed", at, (to-from)>>10, err)
			return
		}
		c.walked = 0 // JSON has no aliases
		c.walk(og, line, node, at, of, nesting+1)
	})
}
