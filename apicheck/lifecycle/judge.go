package lifecycle

import (
	"fmt"
	"strings"
)

// Verdict says what the hops of an upgrade do to a kind.
type Verdict string

// The verdicts, worst first.
const (
	// Undecodable: objects are stored in a version that a later minor cannot decode. They block
	// lists of their resource and can be neither read nor deleted through the API.
	Undecodable Verdict = "undecodable"
	// Removed: the target does not serve it.
	Removed Verdict = "removed"
	// NotYet: the target does not serve it yet.
	NotYet Verdict = "not-yet"
	// UnknownBuiltin: the group is Kubernetes' own, the kind or version is not known: a typing
	// error, something from before the database, or newer than it.
	UnknownBuiltin Verdict = "unknown-builtin"
	// PlannedRemoval: by its tag the target, which is beyond the database, no longer serves it.
	// Planned, not observed: such plans are often withdrawn.
	PlannedRemoval Verdict = "planned"
	// OffByDefault: the target serves it only when --runtime-config switches it on.
	OffByDefault Verdict = "off-by-default"
	// Deprecated verdicts are of what is served, and announced to end.
	Deprecated Verdict = "deprecated"
	// OK: served, no end announced.
	OK Verdict = "ok"
	// VirtualKind: a request, an answer or a subresource; nothing keeps such objects.
	VirtualKind Verdict = "virtual"
	// Custom: not Kubernetes' own group; its CRD or API server decides.
	Custom Verdict = "custom"
)

// Judgement is what is said about one kind over the hops from one minor to another.
type Judgement struct {
	GVK     GVK
	Verdict Verdict
	// Also holds what is true besides the verdict, milder than it.
	Also []Verdict
	// Hop is the minor at which it breaks.
	Hop          Minor
	DeprecatedIn Minor
	RemovedIn    Minor
	// Basis is what RemovedIn rests on.
	Basis Basis
	// Replacement is served at the target; zero when there is none.
	Replacement GVK
	// ReplacementBasis is tag, inferred or override.
	ReplacementBasis Basis
	Rewrite          Rewrite
	// Steps lead from the kind to its replacement, in order.
	Steps []Step
	Notes []string
}

// Step is one move of the remedy. Its window is [NotBefore, Before): move while a minor of it runs.
type Step struct {
	// To is the version to move to; zero to delete without successor.
	To GVK
	// NotBefore is the first minor that serves To; zero when the current minor does.
	NotBefore Minor
	// Before is the hop by which it must be done; zero for none.
	Before Minor
	// At is set instead when old and new never are served by the same minor: the move falls on
	// the hop itself.
	At Minor
	// Recreate says that stored objects do not survive the hop: back up, delete before it, and
	// create again after it.
	Recreate bool
	// Off says that To must be switched on with --runtime-config.
	Off     bool
	Rewrite Rewrite
}

// Judge says what the hops from..to (each minor after from, up to to) do to objects of kind g. With
// from equal to to it says what holds at that minor. stored says that g was found as an object that
// a cluster at from keeps, as opposed to text that will be applied to it.
func (db *DB) Judge(g GVK, from, to Minor, stored bool) Judgement {
	return db.judge(g, from, to, stored, false)
}

// JudgeRequest says what the hops do to a client that sends requests of kind g. Nothing keeps objects of virtual kinds, and manifests
// of them make no sense, but a client that sends them fails like any other once they are not served.
func (db *DB) JudgeRequest(g GVK, from, to Minor) Judgement {
	return db.judge(g, from, to, false, true)
}

func (db *DB) judge(g GVK, from, to Minor, stored, request bool) Judgement {
	j := Judgement{GVK: g, Verdict: OK}
	k, ok := db.Lookup(g)
	if !ok {
		j.Verdict = Custom
		if db.Builtin(g.Group) {
			j.Verdict = UnknownBuiltin
		}
		return j
	}
	j.Notes = k.Notes
	switch {
	case k.Class == Virtual && !request:
		j.Verdict = VirtualKind
		return j
	case k.Class == Payload:
		return j
	}
	var all []Verdict
	if stored {
		for _, v := range db.Versions(k.Group, k.Kind) {
			if v.Undecodable != (Minor{}) && before(from, v.Undecodable) && !before(to, v.Undecodable) {
				all, j.Hop = append(all, Undecodable), v.Undecodable
				break
			}
		}
	}
	switch {
	case before(to, k.Introduced):
		all = append(all, NotYet)
	case k.Removed != (Minor{}) && !before(to, k.Removed):
		v := Removed
		if k.RemovedBasis == Planned {
			v = PlannedRemoval
		}
		all = append(all, v)
		if j.Hop == (Minor{}) {
			j.Hop = k.Removed
		}
	default:
		if k.Class == Stored && !k.On(to) {
			all = append(all, OffByDefault)
			for m := from.Next(); m.Major == to.Major && m.Compare(to) <= 0 && j.Hop == (Minor{}); m = m.Next() {
				if k.On(Minor{Major: m.Major, Minor: m.Minor - 1}) && !k.On(m) {
					j.Hop = m
				}
			}
		}
		if k.Deprecated != (Minor{}) && !before(to, k.Deprecated) && !before(db.Newest, k.Deprecated) {
			all = append(all, Deprecated)
		}
	}
	if len(all) > 0 {
		j.Verdict, j.Also = all[0], all[1:]
	}
	j.DeprecatedIn, j.RemovedIn, j.Basis = k.Deprecated, k.Removed, k.RemovedBasis
	if j.Verdict == NotYet {
		j.Hop = k.Introduced
		return j
	}
	if j.Verdict == OK {
		return j
	}
	j.Rewrite = None
	n := db.best(k, func(c *Kind) bool { return c.Served(to) }, to)
	if k.Class == Config && j.Verdict == Removed {
		// The program that reads a file converts it, and only one from before the hop still reads this version.
		if both := db.best(k, func(c *Kind) bool { return c.Served(prev(k.Removed)) && c.Served(to) }, to); both != nil {
			n = both
		}
	}
	if n != nil {
		j.Replacement, j.ReplacementBasis, j.Rewrite = n.GVK, n.Basis, n.Rewrite
	}
	j.Steps = db.steps(k, j, from, to, stored)
	return j
}

// best picks the best replacement that ok allows, one that is on by default at m before one that is not.
func (db *DB) best(k *Kind, ok func(*Kind) bool, m Minor) *Next {
	var off *Next
	for i := range k.Next {
		c := db.byGVK[k.Next[i].GVK]
		switch {
		case !ok(c):
		case c.On(m) || c.Class == Config:
			return &k.Next[i]
		case off == nil:
			off = &k.Next[i]
		}
	}
	return off
}

func prev(m Minor) Minor { return Minor{Major: m.Major, Minor: m.Minor - 1} }

// steps plans the way from k to the replacement: one move when some minor serves both, else by
// versions in between, else on the hop.
func (db *DB) steps(k *Kind, j Judgement, from, to Minor, stored bool) []Step {
	var steps []Step
	add := func(n *Next, s Step) {
		if n != nil {
			c := db.byGVK[n.GVK]
			s.To, s.Rewrite = n.GVK, n.Rewrite
			if before(from, c.Introduced) && s.At == (Minor{}) {
				s.NotBefore = c.Introduced
			}
			at := from
			if before(at, s.At) {
				at = s.At
			}
			if before(at, s.NotBefore) {
				at = s.NotBefore
			}
			s.Off = c.Class == Stored && !c.On(at)
		} else {
			s.Rewrite = None
		}
		steps = append(steps, s)
	}
	find := func(k *Kind, g GVK) *Next {
		for i := range k.Next {
			if k.Next[i].GVK == g {
				return &k.Next[i]
			}
		}
		return nil
	}
	if j.Verdict == Undecodable {
		s := Step{Recreate: true, Before: j.Hop, At: j.Hop}
		n := db.best(k, func(c *Kind) bool { return c.Served(j.Hop) }, j.Hop)
		if n == nil {
			n = find(k, j.Replacement)
		}
		// An object seen at a newer version than the one it is stored in is created again as it is.
		if n == nil && k.Served(j.Hop) {
			n = &Next{GVK: k.GVK(), Rewrite: Bump}
		}
		add(n, s)
		return steps
	}
	if j.Verdict == OffByDefault && j.Replacement == (GVK{}) {
		return nil
	}
	cur := k
	for range len(db.byGK) { // each round moves to a version that lives longer; the bound is for bad data
		breaks := cur.Removed
		gone := breaks != (Minor{}) && !before(to, breaks)
		if !gone {
			break
		}
		if !before(from, breaks) { // gone already: what replaces it is served today, or comes later
			if n := find(cur, j.Replacement); n != nil {
				add(n, Step{})
				return steps
			}
			add(nil, Step{})
			return steps
		}
		both := func(c *Kind) bool { return c.Served(prev(breaks)) && c.Served(breaks) }
		n := find(cur, j.Replacement)
		switch {
		case n != nil && both(db.byGVK[n.GVK]):
			add(n, Step{Before: breaks})
		case db.best(cur, both, breaks) != nil:
			n = db.best(cur, both, breaks)
			add(n, Step{Before: breaks})
		case n != nil && db.byGVK[n.GVK].Served(breaks):
			add(n, Step{At: breaks})
		default:
			n = db.best(cur, func(c *Kind) bool { return c.Served(breaks) }, breaks)
			if n == nil {
				add(nil, Step{Before: breaks})
				return steps
			}
			add(n, Step{At: breaks})
		}
		cur = db.byGVK[n.GVK]
	}
	if cur.GVK() != j.Replacement {
		if n := find(cur, j.Replacement); n != nil {
			add(n, Step{})
		}
	}
	return steps
}

// Remedy words the steps, in one sentence each; empty when nothing is to be done.
func (j Judgement) Remedy() string {
	switch j.Verdict {
	case OK, VirtualKind, Custom:
		return ""
	case NotYet:
		return fmt.Sprintf("apply it from %s on", j.Hop)
	case UnknownBuiltin:
		return "check the spelling of apiVersion and kind; if they are right, this belay is too old or the version is older than its database"
	case OffByDefault:
		if len(j.Steps) == 0 {
			return "switch it on with the apiserver's --runtime-config, or leave it out"
		}
	}
	if len(j.Steps) == 0 && len(j.Notes) == 0 {
		if j.RemovedIn == (Minor{}) {
			return "no end is set and nothing replaces it one for one: rely on it no longer"
		}
		return fmt.Sprintf("nothing that replaces it is served yet; its end is planned for %s", j.RemovedIn)
	}
	var parts []string
	for _, s := range j.Steps {
		parts = append(parts, s.String())
	}
	return strings.Join(append(parts, j.Notes...), "; ")
}

// String words one step.
func (s Step) String() string {
	var b strings.Builder
	switch {
	case s.Recreate && s.To == (GVK{}):
		return fmt.Sprintf("back up and delete all of them before the hop to %s: afterwards they can be neither read nor deleted", s.Before)
	case s.Recreate:
		fmt.Fprintf(&b, "back up and delete all of them before the hop to %s (afterwards they can be neither read nor deleted), create them again as %s after it", s.Before, s.To)
	case s.To == (GVK{}) && s.Before == (Minor{}):
		return "remove it: it has no successor"
	case s.To == (GVK{}):
		return fmt.Sprintf("remove it before the hop to %s: it has no successor", s.Before)
	case s.At != (Minor{}):
		fmt.Fprintf(&b, "with the hop to %s, move to %s", s.At, s.To)
	case s.NotBefore != (Minor{}) && s.Before != (Minor{}):
		fmt.Fprintf(&b, "from %s on and before the hop to %s, move to %s", s.NotBefore, s.Before, s.To)
	case s.Before != (Minor{}):
		fmt.Fprintf(&b, "before the hop to %s, move to %s", s.Before, s.To)
	case s.NotBefore != (Minor{}):
		fmt.Fprintf(&b, "from %s on, move to %s", s.NotBefore, s.To)
	default:
		fmt.Fprintf(&b, "move to %s", s.To)
	}
	switch s.Rewrite {
	case Structural:
		b.WriteString(" (fields move)")
	case Semantic:
		b.WriteString(" (same fields, other meaning or defaults: review)")
	}
	if s.Off {
		b.WriteString(" (off by default: needs --runtime-config)")
	}
	return b.String()
}
