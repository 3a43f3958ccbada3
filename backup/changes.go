package backup

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// FieldChange is one field in which an object of the backup and the live one differ.
type FieldChange struct {
	// Field is its path, as in spec.template.spec.containers[name=web].image.
	Field string `json:"field"`
	// Backup and Live are its values as JSON, cut at 200 bytes; empty where it is
	// not set, and for what a Secret holds.
	Backup string `json:"backup,omitempty"`
	Live   string `json:"live,omitempty"`
}

// maxValue bounds a value that is shown, in bytes.
const maxValue = 200

// changes gives every single field in which two objects differ, apart from
// status and bookkeeping. values says whether they may be shown.
func changes(backup, live []byte, values bool) ([]FieldChange, error) {
	var b, l map[string]any
	if err := json.Unmarshal(backup, &b); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(live, &l); err != nil {
		return nil, err
	}
	for _, o := range []map[string]any{b, l} {
		for _, f := range []string{"apiVersion", "kind", "status"} {
			delete(o, f)
		}
		if meta, ok := o["metadata"].(map[string]any); ok {
			for _, f := range bookkeeping {
				delete(meta, f)
			}
		}
	}
	w := changeWalk{values: values}
	w.object("", b, l)
	return w.out, nil
}

type changeWalk struct {
	values bool
	out    []FieldChange
}

func (w *changeWalk) value(path string, b, l any) {
	// A field that is not set may be written or left out.
	if unset(b) && unset(l) || reflect.DeepEqual(b, l) {
		return
	}
	bo, bIs := b.(map[string]any)
	lo, lIs := l.(map[string]any)
	if bIs && lIs {
		w.object(path, bo, lo)
		return
	}
	ba, bIs := b.([]any)
	la, lIs := l.([]any)
	if bIs && lIs {
		w.list(path, ba, la)
		return
	}
	c := FieldChange{Field: path}
	if w.values {
		c.Backup, c.Live = shown(b), shown(l)
	}
	w.out = append(w.out, c)
}

func unset(v any) bool {
	m, ok := v.(map[string]any)
	return v == nil || ok && len(m) == 0
}

func shown(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(b) > maxValue {
		return strings.ToValidUTF8(string(b[:maxValue]), "") + "..."
	}
	return string(b)
}

func (w *changeWalk) object(path string, b, l map[string]any) {
	names := slices.Collect(maps.Keys(b))
	for n := range l {
		if _, ok := b[n]; !ok {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		w.value(join(path, n), b[n], l[n])
	}
}

// join adds a name to a path; one with dots or slashes, as labels have, is quoted.
func join(path, name string) string {
	if strings.ContainsAny(name, "./[]") {
		return path + "[" + strconv.Quote(name) + "]"
	}
	return strings.TrimPrefix(path+"."+name, ".")
}

// list compares the elements of the same name, where all have one of their own, else those of the same place.
func (w *changeWalk) list(path string, b, l []any) {
	bn, bok := byName(b)
	ln, lok := byName(l)
	if bok && lok {
		names := slices.Collect(maps.Keys(bn))
		for n := range ln {
			if _, ok := bn[n]; !ok {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		before := len(w.out)
		for _, n := range names {
			w.value(path+"[name="+n+"]", bn[n], ln[n])
		}
		if len(w.out) == before { // only their order differs
			w.out = append(w.out, FieldChange{Field: path})
		}
		return
	}
	for i := range max(len(b), len(l)) {
		var x, y any
		if i < len(b) {
			x = b[i]
		}
		if i < len(l) {
			y = l[i]
		}
		w.value(path+"["+strconv.Itoa(i)+"]", x, y)
	}
}

func byName(list []any) (map[string]any, bool) {
	out := map[string]any{}
	for _, e := range list {
		o, ok := e.(map[string]any)
		if !ok {
			return nil, false
		}
		n, ok := o["name"].(string)
		if _, twice := out[n]; !ok || twice {
			return nil, false
		}
		out[n] = e
	}
	return out, true
}
