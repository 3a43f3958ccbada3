package main

import (
	"strings"
	"testing"

	"github.com/belayops/belay/apicheck/lifecycle"
)

func TestCompareVersions(t *testing.T) {
	order := []string{"v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v2beta2", "v2beta1", "v1beta1", "v12alpha1", "v1alpha2", "v1alpha1"}
	for i, a := range order {
		for j, b := range order {
			got := compareVersions(a, b)
			if i < j && got >= 0 || i == j && got != 0 || i > j && got <= 0 {
				t.Errorf("compareVersions(%s, %s) = %d", a, b, got)
			}
		}
	}
}

func TestOverridesFailWhenRedundantOrStale(t *testing.T) {
	kind := func() map[gvk]*lifecycle.Kind {
		k := &lifecycle.Kind{Group: "g", Version: "v1beta1", Kind: "K", Removed: m(25), RemovedBasis: lifecycle.Tag}
		return map[gvk]*lifecycle.Kind{k.GVK(): k}
	}
	for _, c := range []struct {
		name string
		o    kindOverride
		want string // part of the error for people; empty for none
	}{
		{"corrects", kindOverride{Field: "removed", Value: "1.24", Replaces: "1.25", Cite: "x"}, ""},
		{"redundant", kindOverride{Field: "removed", Value: "1.25", Replaces: "1.24", Cite: "x"}, "redundant"},
		{"stale", kindOverride{Field: "removed", Value: "1.23", Replaces: "1.24", Cite: "x"}, "look again"},
		{"no citation", kindOverride{Field: "removed", Value: "1.24", Replaces: "1.25"}, "citation"},
		{"no such field", kindOverride{Field: "colour", Value: "1.24", Cite: "x"}, "no field"},
	} {
		c.o.APIVersion, c.o.Kind = "g/v1beta1", "K"
		ov := overrides{Kinds: []*kindOverride{&c.o}}
		errs := append(ov.apply(kind()), ov.unused()...)
		if c.want == "" && len(errs) > 0 || c.want != "" && (len(errs) == 0 || !strings.Contains(errs[0].Error(), c.want)) {
			t.Errorf("%s: errors %v, want one with %q", c.name, errs, c.want)
		}
	}
	ov := overrides{Rewrites: []*rewriteOverride{{From: "a/v1 A", To: "*", Rewrite: lifecycle.Bump, Cite: "x"}}}
	if _, err := ov.rewrite(lifecycle.ParseGVK("a/v1", "A"), lifecycle.ParseGVK("a/v2", "A"), lifecycle.Bump); err != nil {
		t.Fatal(err)
	}
	if len(ov.unused()) != 1 {
		t.Error("a rewrite that says what the structure says is not reported as redundant")
	}
}
