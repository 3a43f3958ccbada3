package apicheck

import (
	"fmt"
	"maps"
	"strings"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
)

type verdict = lifecycle.Verdict

// judge holds what every reader needs to turn a use into a finding. It is safe for concurrent use.
type judge struct {
	db        *lifecycle.DB
	from, to  kubeversion.Minor
	fullParse bool
	names     *harmlessNames
	// runtime is what each apiserver switches on or off; empty when that is not known.
	runtime []RuntimeConfig
}

// collector gathers what one reader found. Readers that run side by side have one each.
type collector struct {
	*judge
	findings   []Finding
	unreadable []Unread
	read       map[[2]string]int // what, why -> count
	walked     int               // objects of the document under way
}

func (j *judge) collector() *collector { return &collector{judge: j, read: map[[2]string]int{}} }

func (c *collector) merge(o *collector) {
	c.findings = append(c.findings, o.findings...)
	c.unreadable = append(c.unreadable, o.unreadable...)
	for k, n := range o.read {
		c.read[k] += n
	}
}

func (c *collector) covered(what, why string, n int) { c.read[[2]string{what, why}] += n }

func (c *collector) unread(what string, line int, format string, args ...any) {
	c.unreadable = append(c.unreadable, Unread{What: what, Line: line, Why: fmt.Sprintf(format, args...)})
}

// clone copies what may be rolled back.
func (c *collector) clone() *collector {
	return &collector{judge: c.judge, findings: c.findings[:len(c.findings):len(c.findings)], unreadable: c.unreadable[:len(c.unreadable):len(c.unreadable)], read: maps.Clone(c.read)}
}

// use is one use of an API that a reader saw.
type use struct {
	gvk             lifecycle.GVK
	namespace, name string
	source          Source
	confidence      Confidence
	// stored says that a cluster keeps an object of the kind.
	stored bool
	// cap is the highest severity that the source can prove; empty for no limit.
	cap Severity
	// note is added to the message.
	note string
}

// use judges one use and keeps a finding when there is something to say.
func (c *collector) use(u use) {
	j := c.verdictOf(u.gvk, u.stored)
	switch j.Verdict {
	case lifecycle.OK, lifecycle.VirtualKind, lifecycle.Custom:
		return
	}
	c.found(u, j)
}

func (c *collector) found(u use, j lifecycle.Judgement) {
	f := Finding{
		Verdict: j.Verdict, Also: j.Also, Severity: severity(j.Verdict), Confidence: u.confidence,
		APIVersion: u.gvk.APIVersion(), Kind: u.gvk.Kind, Namespace: u.namespace, Name: u.name,
		Hop: j.Hop, DeprecatedIn: j.DeprecatedIn, RemovedIn: j.RemovedIn, Rewrite: j.Rewrite,
		Source: u.source, Message: c.message(u.gvk, j), Remedy: j.Remedy(),
	}
	if !j.Replacement.IsZero() {
		f.Replacement = &Replacement{j.Replacement.APIVersion(), j.Replacement.Kind}
	}
	if u.cap != "" {
		f.Severity = lower(f.Severity, u.cap)
	}
	if u.note != "" {
		f.Message += "; " + u.note
	}
	c.findings = append(c.findings, f)
}

func severity(v lifecycle.Verdict) Severity {
	switch v {
	case lifecycle.Undecodable, lifecycle.Removed, lifecycle.NotYet:
		return Error
	}
	return Warning
}

func lower(a, b Severity) Severity {
	rank := map[Severity]int{Error: 0, Warning: 1, Info: 2}
	if rank[a] < rank[b] {
		return b
	}
	return a
}

// message says in one sentence what is wrong.
func (c *collector) message(g lifecycle.GVK, j lifecycle.Judgement) string {
	var parts []string
	for _, v := range append([]lifecycle.Verdict{j.Verdict}, j.Also...) {
		switch v {
		case lifecycle.Undecodable:
			parts = append(parts, fmt.Sprintf("stored objects cannot be decoded by %s", j.Hop))
		case lifecycle.Removed:
			s := fmt.Sprintf("no longer served from %s on", j.RemovedIn)
			switch j.Basis {
			case lifecycle.Tag, lifecycle.Vanished:
				s += " (from the type's source, not observed)"
			case lifecycle.Override:
				s += " (from the release notes)"
			}
			if c.from.Compare(j.RemovedIn) >= 0 {
				s += fmt.Sprintf(", so %s does not serve it either", c.from)
			}
			parts = append(parts, s)
		case lifecycle.PlannedRemoval:
			parts = append(parts, fmt.Sprintf("planned to be gone in %s; planned, not observed: the database ends at %s", j.RemovedIn, c.db.Newest))
		case lifecycle.NotYet:
			parts = append(parts, fmt.Sprintf("first served by %s", j.Hop))
		case lifecycle.OffByDefault:
			parts = append(parts, fmt.Sprintf("off by default in %s", c.to))
		case lifecycle.Deprecated:
			s := fmt.Sprintf("deprecated since %s", j.DeprecatedIn)
			if j.RemovedIn != (kubeversion.Minor{}) && c.to.Compare(j.RemovedIn) < 0 {
				s += fmt.Sprintf(", planned to be gone in %s", j.RemovedIn)
				if j.Basis != lifecycle.Planned {
					s = fmt.Sprintf("deprecated since %s, gone in %s", j.DeprecatedIn, j.RemovedIn)
				}
			}
			parts = append(parts, s)
		case lifecycle.UnknownBuiltin:
			parts = append(parts, "the group is Kubernetes' own, but no release known to the database serves this version and kind")
		}
	}
	return g.String() + ": " + strings.Join(parts, "; ")
}
