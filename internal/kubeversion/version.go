// Package kubeversion parses and compares Kubernetes versions and holds the
// version skew policy as one table.
//
// Parsing is hashicorp/go-version's; this package adds what Kubernetes means
// by a minor, and refuses what Kubernetes never releases. It imports nothing
// of Kubernetes.
package kubeversion

import (
	"cmp"
	"fmt"
	"strings"

	goversion "github.com/hashicorp/go-version"
)

// V is a Kubernetes version such as v1.36.3 or v1.38.0-beta.0. The zero V is no version.
type V struct {
	Major, Minor, Patch int
	// Pre is the pre-release without its dash ("beta.0"), Build the build metadata without its plus.
	Pre, Build string
}

// Parse reads "1.36.3" or "v1.36.3", with pre-release and build metadata where present
// (as managed clusters print: v1.29.4-gke.1043002, v1.33.6+k3s1).
func Parse(s string) (V, error) {
	core := strings.TrimPrefix(s, "v")
	numbers := core
	if i := strings.IndexAny(core, "-+"); i >= 0 {
		numbers = core[:i]
	}
	// go-version also takes 1.36 and vv1.36.3, which Kubernetes never prints.
	v, err := goversion.NewSemver(core)
	if err != nil || strings.Count(numbers, ".") != 2 || strings.HasPrefix(core, "v") {
		return V{}, fmt.Errorf("%q is not a Kubernetes version: want MAJOR.MINOR.PATCH, as in 1.37.2", s)
	}
	seg := v.Segments()
	for _, n := range seg {
		if n > 1<<20 {
			return V{}, fmt.Errorf("%q is not a Kubernetes version: number out of range", s)
		}
	}
	return V{Major: seg[0], Minor: seg[1], Patch: seg[2], Pre: v.Prerelease(), Build: v.Metadata()}, nil
}

// MustParse is Parse for constants in tests and tables; it panics on bad input.
func MustParse(s string) V {
	v, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return v
}

// ParseMinor reads a minor, "1.37" or "v1.37"; a full version gives its minor.
func ParseMinor(s string) (Minor, error) {
	if v, err := Parse(s); err == nil {
		return v.MinorVersion(), nil
	}
	if v, err := Parse(s + ".0"); err == nil && v.Pre == "" && v.Build == "" {
		return v.MinorVersion(), nil
	}
	return Minor{}, fmt.Errorf("%q is not a Kubernetes minor: want MAJOR.MINOR, as in 1.37", s)
}

// String gives the form with a leading v, as Kubernetes prints it.
func (v V) String() string {
	if v.IsZero() {
		return ""
	}
	return "v" + v.Bare()
}

// Bare gives the form without the leading v, as flags and directories have it.
func (v V) Bare() string {
	s := fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
	if v.Pre != "" {
		s += "-" + v.Pre
	}
	if v.Build != "" {
		s += "+" + v.Build
	}
	return s
}

// IsZero says whether v is no version.
func (v V) IsZero() bool { return v == V{} }

// MinorVersion gives the minor that v belongs to.
func (v V) MinorVersion() Minor { return Minor{v.Major, v.Minor} }

// Compare orders versions by semantic versioning; build metadata does not count.
func (v V) Compare(w V) int {
	if c := cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor), cmp.Compare(v.Patch, w.Patch)); c != 0 {
		return c
	}
	if v.Pre == w.Pre {
		return 0
	}
	a, errA := goversion.NewSemver(V{Pre: v.Pre}.Bare())
	b, errB := goversion.NewSemver(V{Pre: w.Pre}.Bare())
	if errA != nil || errB != nil {
		return cmp.Compare(v.Pre, w.Pre)
	}
	return a.Compare(b)
}

// Less says whether v comes before w.
func (v V) Less(w V) bool { return v.Compare(w) < 0 }

// MarshalText gives String; the zero V is empty.
func (v V) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText is Parse; empty text is the zero V.
func (v *V) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*v = V{}
		return nil
	}
	p, err := Parse(string(b))
	if err != nil {
		return err
	}
	*v = p
	return nil
}

// Minor is one minor release line, such as 1.37.
type Minor struct{ Major, Minor int }

// String gives "1.37".
func (m Minor) String() string { return fmt.Sprintf("%d.%d", m.Major, m.Minor) }

// Next gives the minor after m.
func (m Minor) Next() Minor { return Minor{m.Major, m.Minor + 1} }

// Compare orders minors.
func (m Minor) Compare(o Minor) int {
	return cmp.Or(cmp.Compare(m.Major, o.Major), cmp.Compare(m.Minor, o.Minor))
}

// Sub gives how many minors m is ahead of o; negative when behind. Minors of
// different majors have no distance: ok is false.
func (m Minor) Sub(o Minor) (n int, ok bool) {
	if m.Major != o.Major {
		return 0, false
	}
	return m.Minor - o.Minor, true
}

// MarshalText gives String.
func (m Minor) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is ParseMinor; empty text is the zero Minor.
func (m *Minor) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = Minor{}
		return nil
	}
	p, err := ParseMinor(string(b))
	if err != nil {
		return err
	}
	*m = p
	return nil
}
