package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// overrides is overrides.yaml.
type overrides struct {
	Kinds    []*kindOverride    `yaml:"kinds"`
	Rewrites []*rewriteOverride `yaml:"rewrites"`
	Extra    []extraKind        `yaml:"extra"`
	Configs  []configSource     `yaml:"configs"`
	Gates    []gateOverride     `yaml:"gates"`
	Flags    []lifecycle.Flag   `yaml:"flags"`
	Fields   []fieldSource      `yaml:"fields"`
}

// fieldSource is a field or annotation that ends, ported by hand from code that warns of it. Text is part of that code (or of a
// comment), by which the generation notices that it has moved.
type fieldSource struct {
	In         string `yaml:"in"`   // kinds as Kind.group, "pod" for pods and all that have a template of one
	Path       string `yaml:"path"` // keys by spaces; [] for every element, a star ends a key that begins so
	Value      string `yaml:"value"`
	Deprecated minor  `yaml:"deprecated"`
	Off        minor  `yaml:"off"`
	Dead       minor  `yaml:"dead"`
	Effect     string `yaml:"effect"`
	Says       string `yaml:"says"`
	Remedy     string `yaml:"remedy"`
	File       string `yaml:"file"` // of the newest k8s.io/kubernetes, or of k8s.io/api after "api:"
	Text       string `yaml:"text"`
}

// fields checks the entries of fields against the newest sources.
func (ov *overrides) fields(mods []module) ([]lifecycle.Field, error) {
	newest := map[string]module{}
	for _, mod := range mods {
		newest[mod.path] = mod // in order of minors
	}
	var out []lifecycle.Field
	var errs []error
	for _, f := range ov.Fields {
		root := newest["k8s.io/kubernetes"].dir
		rel, isAPI := strings.CutPrefix(f.File, "api:")
		if isAPI {
			root = newest["k8s.io/api"].dir
		}
		switch data, err := os.ReadFile(filepath.Join(root, rel)); {
		case err != nil:
			errs = append(errs, fmt.Errorf("overrides.yaml: field %s: %w", f.Path, err))
		case !bytes.Contains(data, []byte(f.Text)):
			errs = append(errs, fmt.Errorf("overrides.yaml: field %s: %s no longer has %q: look again", f.Path, f.File, f.Text))
		}
		if f.Says == "" || f.Remedy == "" || f.Text == "" || (f.Dead != minor{}) != (f.Effect == lifecycle.Breaks || f.Effect == lifecycle.Ignored) {
			errs = append(errs, fmt.Errorf("overrides.yaml: field %s lacks what it says, a remedy, a text or an effect", f.Path))
		}
		out = append(out, lifecycle.Field{In: strings.Fields(f.In), Path: strings.Fields(f.Path), Value: f.Value, Deprecated: f.Deprecated, Off: f.Off, Dead: f.Dead,
			Effect: f.Effect, Says: f.Says, Remedy: f.Remedy, Evidence: f.File})
	}
	return out, errors.Join(errs...)
}

// kindOverride corrects one field of one kind.
type kindOverride struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// Field is introduced, deprecated, removed, class, replacement or note.
	Field string `yaml:"field"`
	Value string `yaml:"value"`
	// Replaces is what the sources say; empty for nothing.
	Replaces string `yaml:"replaces"`
	Cite     string `yaml:"cite"`

	used bool
}

func (o *kindOverride) gvk() gvk { return lifecycle.ParseGVK(o.APIVersion, o.Kind) }

// rewriteOverride says what a move takes when structure alone does not tell.
type rewriteOverride struct {
	From    string            `yaml:"from"` // "apiVersion Kind"
	To      string            `yaml:"to"`   // the same, or "*" for every replacement
	Rewrite lifecycle.Rewrite `yaml:"rewrite"`
	Cite    string            `yaml:"cite"`

	used, changed bool
}

type extraKind struct {
	APIVersion string          `yaml:"apiVersion"`
	Kind       string          `yaml:"kind"`
	Class      lifecycle.Class `yaml:"class"`
	Removed    minor           `yaml:"removed"`
	Cite       string          `yaml:"cite"`
}

type configSource struct {
	Group  string `yaml:"group"`
	Module string `yaml:"module"`
	Dir    string `yaml:"dir"`
	// Kinds are given by version where the directory does not register them itself.
	Kinds map[string][]string `yaml:"kinds"`
}

type gateOverride struct {
	Identifier string `yaml:"identifier"`
	Name       string `yaml:"name"`
	Cite       string `yaml:"cite"`
}

// apply puts the kind overrides in place, but for replacements, which come later.
func (ov *overrides) apply(kinds map[gvk]*lifecycle.Kind) []error {
	var errs []error
	for _, o := range ov.Kinds {
		k := kinds[o.gvk()]
		if k == nil {
			errs = append(errs, fmt.Errorf("overrides.yaml: no source has %s", o.gvk()))
			o.used = true
			continue
		}
		if o.Cite == "" {
			errs = append(errs, fmt.Errorf("overrides.yaml: %s of %s has no citation", o.Field, o.gvk()))
		}
		setMinor := func(field *minor) {
			o.used = true
			var v minor
			if err := v.UnmarshalText([]byte(o.Value)); err != nil {
				errs = append(errs, fmt.Errorf("overrides.yaml: %s: %w", o.gvk(), err))
				return
			}
			errs = append(errs, o.stale(minorString(*field), v.String())...)
			*field = v
			k.Evidence = append(k.Evidence, o.Field+": "+o.Cite)
		}
		switch o.Field {
		case "introduced":
			setMinor(&k.Introduced)
		case "deprecated":
			setMinor(&k.Deprecated)
		case "removed":
			setMinor(&k.Removed)
			k.RemovedBasis = lifecycle.Override
			if k.Deprecated.Compare(k.Removed) > 0 {
				k.Deprecated = k.Removed
			}
		case "class":
			o.used = true
			errs = append(errs, o.stale(string(k.Class), o.Value)...)
			k.Class = lifecycle.Class(o.Value)
			if k.Class == lifecycle.Payload {
				k.Removed, k.RemovedBasis = minor{}, ""
			}
			k.Evidence = append(k.Evidence, "class: "+o.Cite)
		case "note":
			o.used = true
			k.Notes = append(k.Notes, o.Value)
			k.Evidence = append(k.Evidence, "note: "+o.Cite)
		case "replacement":
			k.Evidence = append(k.Evidence, "replacement: "+o.Cite)
		default:
			errs = append(errs, fmt.Errorf("overrides.yaml: %s: no field %q", o.gvk(), o.Field))
		}
	}
	return errs
}

func minorString(v minor) string {
	if v == (minor{}) {
		return ""
	}
	return v.String()
}

// stale complains when the source says by itself what the override says, or something new.
func (o *kindOverride) stale(derived, value string) []error {
	switch {
	case derived == value:
		return []error{fmt.Errorf("overrides.yaml: %s of %s is redundant: the sources say %s too", o.Field, o.gvk(), value)}
	case derived != o.Replaces:
		return []error{fmt.Errorf("overrides.yaml: %s of %s corrects %q, but the sources now say %q: look again", o.Field, o.gvk(), o.Replaces, derived)}
	}
	return nil
}

// replacement gives the replacement that was entered by hand; an empty GVK for "none".
func (ov *overrides) replacement(g gvk) (gvk, bool) {
	for _, o := range ov.Kinds {
		if o.Field == "replacement" && o.gvk() == g {
			o.used = true
			if o.Value == "none" {
				return gvk{}, true
			}
			apiVersion, kind, _ := strings.Cut(o.Value, " ")
			return lifecycle.ParseGVK(apiVersion, kind), true
		}
	}
	return gvk{}, false
}

func (ov *overrides) noSuccessor(g gvk) bool {
	to, ok := ov.replacement(g)
	return ok && to.Kind == ""
}

func (ov *overrides) rewrite(from, to gvk, derived lifecycle.Rewrite) (lifecycle.Rewrite, error) {
	for _, o := range ov.Rewrites {
		if o.From != from.String() || o.To != "*" && o.To != to.String() {
			continue
		}
		o.used = true
		if o.Cite == "" {
			return derived, fmt.Errorf("overrides.yaml: rewrite %s to %s has no citation", o.From, o.To)
		}
		o.changed = o.changed || o.Rewrite != derived
		return o.Rewrite, nil
	}
	return derived, nil
}

// unused finds entries that nothing asked for, or that change nothing.
func (ov *overrides) unused() []error {
	var errs []error
	for _, o := range ov.Kinds {
		if !o.used {
			errs = append(errs, fmt.Errorf("overrides.yaml: %s of %s is redundant: nothing asks for it", o.Field, o.gvk()))
		}
	}
	for _, o := range ov.Rewrites {
		if !o.used || !o.changed {
			errs = append(errs, fmt.Errorf("overrides.yaml: rewrite %s to %s is redundant (used %v, changes the derived value %v)", o.From, o.To, o.used, o.changed))
		}
	}
	return errs
}
