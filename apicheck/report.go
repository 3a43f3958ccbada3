package apicheck

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
)

// Schema names the format of a Report.
const Schema = "belay.dev/api-scan/v1"

// Outcome is what a whole scan says.
type Outcome string

// The outcomes.
const (
	// Clean: everything was read, and nothing of severity warning or error was found.
	Clean Outcome = "clean"
	// Findings: everything was read, and something was found.
	Findings Outcome = "findings"
	// Unknown: something could not be read, whatever else was found.
	Unknown Outcome = "unknown"
)

// Severity says how much a finding matters.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Confidence says how sure the scanner is that it read what is meant.
type Confidence string

// The confidences.
const (
	High   Confidence = "high"
	Medium Confidence = "medium"
	Low    Confidence = "low"
)

// Report is what a scan found, and what it could not read. It marshals to the documented JSON.
type Report struct {
	Schema   string            `json:"schema"`
	From     kubeversion.Minor `json:"from"`
	To       kubeversion.Minor `json:"to"`
	Database Database          `json:"database"`
	Verdict  Outcome           `json:"verdict"`
	Coverage Coverage          `json:"coverage"`
	Findings []Finding         `json:"findings"`
	// Suppressed are findings that a suppression took out, each with its reason.
	Suppressed []Suppressed `json:"suppressed,omitempty"`
}

// Database says which data the verdicts rest on.
type Database struct {
	Date time.Time `json:"date"`
	// Newest is the newest minor whose served kinds were observed; anything later is planned.
	Newest kubeversion.Minor `json:"newest"`
}

// Coverage says what was read and what was not.
type Coverage struct {
	Read       []Covered `json:"read"`
	Unreadable []Unread  `json:"unreadable"`
}

// Covered is a number of things that were read.
type Covered struct {
	What  string `json:"what"`
	Why   string `json:"why"`
	Count int    `json:"count"`
}

// Unread is one thing that could not be read.
type Unread struct {
	What string `json:"what"`
	// Line is where in a file, from 1; 0 when it is not about a line.
	Line int    `json:"line,omitempty"`
	Why  string `json:"why"`
}

// Where is the thing, with its line where there is one: deploy/a.yaml:9.
func (u Unread) Where() string {
	if u.Line > 0 {
		return fmt.Sprintf("%s:%d", u.What, u.Line)
	}
	return u.What
}

// Finding is one use of an API that the upgrade touches.
type Finding struct {
	Verdict lifecycle.Verdict `json:"verdict"`
	// Also holds milder verdicts that hold too ("deprecated" of something that is off by default).
	Also       []lifecycle.Verdict `json:"also,omitempty"`
	Severity   Severity            `json:"severity"`
	Confidence Confidence          `json:"confidence"`
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	// Field is set when not the kind ends but a field of it: spec.volumes[].gitRepo.
	Field     string `json:"field,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Hop is the minor at which it breaks.
	Hop          kubeversion.Minor `json:"hop,omitzero"`
	DeprecatedIn kubeversion.Minor `json:"deprecatedIn,omitzero"`
	RemovedIn    kubeversion.Minor `json:"removedIn,omitzero"`
	Replacement  *Replacement      `json:"replacement,omitempty"`
	Rewrite      lifecycle.Rewrite `json:"rewrite,omitempty"`
	Source       Source            `json:"source"`
	Message      string            `json:"message"`
	Remedy       string            `json:"remedy"`
}

// API names what the finding is about: "batch/v1beta1 CronJob", or "v1 Pod spec.volumes[].gitRepo".
func (f Finding) API() string {
	s := f.APIVersion + " " + f.Kind
	if f.Field != "" {
		s += " " + f.Field
	}
	return s
}

// Replacement is what takes the place of a kind.
type Replacement struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// SourceType says where a use was seen.
type SourceType string

// The source types.
const (
	SourceFile          SourceType = "file"
	SourceStored        SourceType = "stored"
	SourceLastApplied   SourceType = "last-applied"
	SourceManagedFields SourceType = "managed-fields"
	SourceHelm          SourceType = "helm"
	SourceAudit         SourceType = "audit"
	SourceMetric        SourceType = "metric"
	SourcePayload       SourceType = "payload"
	SourceReference     SourceType = "reference"
)

// Source is where a use was seen.
type Source struct {
	Type SourceType `json:"type"`
	File string     `json:"file,omitempty"`
	// Line counts from 1.
	Line int `json:"line,omitempty"`
	// Path leads into the document: items[0].items[2], data["a.yaml"].
	Path string `json:"path,omitempty"`
	// Object is the live object that holds it: Kind namespace/name.
	Object   string     `json:"object,omitempty"`
	Release  string     `json:"release,omitempty"`
	Revision int        `json:"revision,omitempty"`
	Hook     string     `json:"hook,omitempty"`
	Manager  string     `json:"manager,omitempty"`
	Time     *time.Time `json:"time,omitempty"`
	User     string     `json:"user,omitempty"`
	Agent    string     `json:"agent,omitempty"`
	// Requests is how many audited requests this stands for.
	Requests int `json:"requests,omitempty"`
}

// decide gives the outcome of what was collected.
func (r *Report) decide() {
	r.Verdict = Clean
	for _, f := range r.Findings {
		if f.Severity != Info {
			r.Verdict = Findings
			break
		}
	}
	if len(r.Coverage.Unreadable) > 0 {
		r.Verdict = Unknown
	}
}

// sort puts everything into an order that does not depend on how the scan ran.
func (r *Report) sort() {
	rank := map[Severity]int{Error: 0, Warning: 1, Info: 2}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), a.Hop.Compare(b.Hop),
			cmp.Compare(a.Source.File, b.Source.File), cmp.Compare(a.Source.Line, b.Source.Line),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Source.Type, b.Source.Type),
			cmp.Compare(a.Source.Object, b.Source.Object), cmp.Compare(a.Source.Release, b.Source.Release),
			cmp.Compare(a.Source.Revision, b.Source.Revision), cmp.Compare(a.Source.Hook, b.Source.Hook),
			cmp.Compare(a.Source.Path, b.Source.Path), cmp.Compare(a.Source.Manager, b.Source.Manager), cmp.Compare(a.Message, b.Message))
	})
	slices.SortStableFunc(r.Coverage.Unreadable, func(a, b Unread) int {
		return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Why, b.Why))
	})
	slices.SortStableFunc(r.Coverage.Read, func(a, b Covered) int {
		return cmp.Or(cmp.Compare(a.Why, b.Why), cmp.Compare(a.What, b.What))
	})
}
