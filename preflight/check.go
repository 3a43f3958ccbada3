package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// Status is what a check says of one subject.
type Status string

// The statuses. Fail, Unknown and Blocked stand in the way.
const (
	// Pass: looked at, and fine.
	Pass Status = "pass"
	// Warn: an upgrade may go on, and somebody should know.
	Warn Status = "warn"
	// Fail: an upgrade would break or hang on this.
	Fail Status = "fail"
	// Unknown: what was needed could not be read, or makes no sense.
	Unknown Status = "unknown"
	// Skipped: does not apply here; the message says why.
	Skipped Status = "skipped"
	// Blocked: not looked at, as another finding, named in Because, has to go first.
	Blocked Status = "blocked"
)

// Result is what a check says of one subject.
type Result struct {
	Check   string `json:"check"`
	Subject string `json:"subject"`
	Status  Status `json:"status"`
	// Message is what was seen, Remedy what to do about it.
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	// Waivable says whether a waiver may name this finding.
	Waivable bool `json:"waivable,omitempty"`
	// Waived says that one did: the finding does not count.
	Waived bool `json:"waived,omitempty"`
	// Because names the findings that a Blocked result waits for.
	Because []string `json:"because,omitempty"`
}

// ID is how a waiver names the finding: check@subject.
func (r Result) ID() string { return r.Check + "@" + r.Subject }

// Stands says whether the finding stands in the way of an upgrade.
func (r Result) Stands() bool {
	return !r.Waived && (r.Status == Fail || r.Status == Unknown || r.Status == Blocked)
}

// Check is one question about a cluster.
type Check struct {
	ID    string
	Title string
	// Needs are the checks that must not stand in the way for this one to make sense.
	Needs []string
	// Waivable says whether findings may be waived.
	Waivable bool
	// Fails and Warns say when, for the documentation; Source where the rule comes from.
	Fails, Warns, Source string
	// Run judges. It gives one Result a subject, with Check and Waivable left to the runner; none at all
	// means that there is nothing of the kind, and counts as one pass.
	Run func(ctx context.Context, in *Input) []Result
}

// Goal is where the cluster is to go.
type Goal struct {
	// Target is the wanted version. Zero: the cluster is judged as it is.
	Target kubeversion.V
	// Bundles are the versions at hand; nil means that nobody looked.
	Bundles []kubeversion.V
	// Etcd is the etcd that the bundle of a minor brings. Minors that are not in it count with kubeadm's default.
	Etcd map[kubeversion.Minor]kubeversion.V
	// EtcdSteps are etcd versions that bundles carry beside: a plan takes members to one of them where a floor asks for it.
	EtcdSteps []kubeversion.V
	// PatchesDir is the directory on the machines whose patches kubeadm is told to put onto what it writes; "" for none.
	PatchesDir string
}

// Backup is what is known of the newest backup of the cluster.
type Backup struct {
	Path string
	// Lineage is the cluster it is of.
	Lineage string
	Taken   time.Time
	// Level is how far it was verified, as the backup's manifest says; Want the level that is asked for; Enough whether the one
	// suffices for the other.
	Level, Want string
	Enough      bool
	// Problem is why it does not hold, if it does not.
	Problem string
}

// APIUse is what a scan for deprecated and removed APIs found.
type APIUse struct {
	Findings []APIFinding
	// Unread are the places that could not be scanned.
	Unread []cluster.Unread
}

// APIFinding is one use of an API that the target does not serve, or will not for long.
type APIFinding struct {
	// Subject names object and API: "cronjobs.v1beta1.batch/shop/nightly".
	Subject string
	Message string
	Remedy  string
	// Removed says that the target does not serve it any more; else it is deprecated.
	Removed bool
}

// Input is what checks look at.
type Input struct {
	State *cluster.State
	Goal  Goal
	// Now is compared with certificates and backups. Zero: the time of observation.
	Now time.Time
	// Backup is the newest backup, or nil when none was named.
	Backup *Backup
	// APIUse is a scan's result, or nil when none was made.
	APIUse *APIUse
}

// Options bound a run.
type Options struct {
	// Accept are the waivers, "check@subject".
	Accept []string
	// Only restricts the run to these checks and what they need; empty means all.
	Only []string
	// Timeout bounds one check; 0 means 30 s.
	Timeout time.Duration
	// Parallel is how many checks run at one time; 0 means 8.
	Parallel int
	// Sink receives one event a check; nil discards them.
	Sink event.Sink
}

// Verdict is what a whole report says.
type Verdict string

// The verdicts.
const (
	// Clean: nothing stands in the way; there may be warnings.
	Clean Verdict = "clean"
	// Findings: at least one failure.
	Findings Verdict = "findings"
	// Undecided: no failure, and something is not known.
	Undecided Verdict = "unknown"
)

// ReportSchema names the format of a Report.
const ReportSchema = "belay.dev/check-report/v1"

// Report is what all checks say.
type Report struct {
	Schema   string        `json:"schema"`
	Cluster  string        `json:"cluster,omitempty"`
	Lineage  string        `json:"lineage"`
	Observed time.Time     `json:"observed"`
	Version  kubeversion.V `json:"version"`
	Target   kubeversion.V `json:"target,omitzero"`
	Verdict  Verdict       `json:"verdict"`
	// Counts are the results by status; waived ones count as "waived".
	Counts  map[string]int `json:"counts"`
	Results []Result       `json:"results"`
	// UnusedWaivers named nothing that was found; RefusedWaivers name findings that cannot be waived.
	UnusedWaivers  []string `json:"unusedWaivers,omitempty"`
	RefusedWaivers []string `json:"refusedWaivers,omitempty"`
}

// Standing gives the findings that stand in the way.
func (r *Report) Standing() []Result {
	var out []Result
	for _, x := range r.Results {
		if x.Stands() {
			out = append(out, x)
		}
	}
	return out
}

// Run runs every check of Checks. It returns an error only for options that make no sense and when ctx ends.
func Run(ctx context.Context, in Input, o Options) (*Report, error) {
	return RunChecks(ctx, Checks(), in, o)
}

// RunChecks is Run for a given set of checks.
func RunChecks(ctx context.Context, checks []Check, in Input, o Options) (*Report, error) {
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	if in.Now.IsZero() {
		in.Now = in.State.Observed
	}
	checks, err := choose(checks, o.Only)
	if err != nil {
		return nil, err
	}
	waivers := make(map[string]bool) // to: was it used
	for _, w := range o.Accept {
		id, subject, ok := strings.Cut(w, "@")
		if !ok || id == "" || subject == "" {
			return nil, fmt.Errorf("waiver %q: want CHECK@SUBJECT, as a finding's first line has it", w)
		}
		waivers[w] = false
	}
	r := &runner{o: o, in: &in, waivers: waivers, results: make(map[string][]Result)}
	if err := r.all(ctx, checks); err != nil {
		return nil, err
	}
	return r.report(checks), nil
}

// choose keeps the checks that were asked for and those that they need, and refuses unknown names and cycles.
func choose(checks []Check, only []string) ([]Check, error) {
	byID := make(map[string]Check)
	for _, c := range checks {
		if _, twice := byID[c.ID]; twice {
			return nil, fmt.Errorf("check %s is there twice", c.ID)
		}
		byID[c.ID] = c
	}
	state := make(map[string]int) // 1: being visited, 2: wanted
	var visit func(id, by string) error
	visit = func(id, by string) error {
		c, ok := byID[id]
		switch {
		case !ok && by == "":
			return fmt.Errorf("there is no check %q; `belay check --list` shows them", id)
		case !ok:
			return fmt.Errorf("check %s needs %s, which is not there", by, id)
		case state[id] == 1:
			return fmt.Errorf("check %s needs itself", id)
		case state[id] == 2:
			return nil
		}
		state[id] = 1
		for _, n := range c.Needs {
			if err := visit(n, id); err != nil {
				return err
			}
		}
		state[id] = 2
		return nil
	}
	if len(only) == 0 {
		for _, c := range checks {
			only = append(only, c.ID)
		}
	}
	for _, id := range only {
		if err := visit(id, ""); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool { return state[c.ID] != 2 }), nil
}

type runner struct {
	o  Options
	in *Input

	mu      sync.Mutex
	results map[string][]Result
	waivers map[string]bool
	done    int
}

// all runs each check once those it needs are done.
func (r *runner) all(ctx context.Context, checks []Check) error {
	finished := make(map[string]chan struct{}, len(checks))
	for _, c := range checks {
		finished[c.ID] = make(chan struct{})
	}
	slots := make(chan struct{}, r.o.Parallel)
	var wg sync.WaitGroup
	for _, c := range checks {
		wg.Go(func() {
			defer close(finished[c.ID])
			for _, n := range c.Needs {
				<-finished[n]
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			r.one(ctx, c, len(checks))
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}

func (r *runner) one(ctx context.Context, c Check, total int) {
	results := r.unmet(c)
	if results == nil {
		results = runBounded(ctx, c, r.in, r.o.Timeout)
	}
	if len(results) == 0 {
		results = []Result{{Subject: "cluster", Status: Pass, Message: "nothing of the kind"}}
	}
	for i := range results {
		results[i].Check = c.ID
		results[i].Waivable = c.Waivable && (results[i].Status == Fail || results[i].Status == Unknown || results[i].Status == Blocked)
	}
	slices.SortStableFunc(results, func(a, b Result) int { return cmp.Compare(a.Subject, b.Subject) })
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range results {
		if _, named := r.waivers[results[i].ID()]; named && results[i].Waivable {
			results[i].Waived, r.waivers[results[i].ID()] = true, true
		}
	}
	r.results[c.ID] = results
	r.done++
	r.o.sink().Emit(event.Event{Type: event.StepDone, Step: c.ID, Subject: c.Title, Msg: string(worst(results)), Index: r.done, Total: total})
}

func (o Options) sink() event.Sink { return event.Or(o.Sink) }

// unmet says which findings keep a check from making sense; nil when none does.
func (r *runner) unmet(c Check) []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	var because []string
	for _, n := range c.Needs {
		for _, x := range r.results[n] {
			if x.Stands() {
				because = append(because, x.ID())
			}
		}
	}
	if because == nil {
		return nil
	}
	return []Result{{Subject: "cluster", Status: Blocked, Because: because, Message: "not looked at: " + strings.Join(because, ", ") + " has to be settled first"}}
}

// runBounded runs a check with a time limit. A check that panics or takes too long says unknown: it must
// neither take the others with it nor pass.
func runBounded(ctx context.Context, c Check, in *Input, limit time.Duration) []Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unknown := func(format string, args ...any) []Result {
		return []Result{{Subject: "cluster", Status: Unknown, Message: fmt.Sprintf(format, args...), Remedy: "report this as a bug, with the state file (belay state -o state.json)"}}
	}
	out := make(chan []Result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				out <- unknown("the check itself broke: %v", p)
			}
		}()
		out <- c.Run(ctx, in)
	}()
	select {
	case rs := <-out:
		return rs
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return unknown("no answer within %s", limit)
		}
		return unknown("interrupted")
	}
}

func (r *runner) report(checks []Check) *Report {
	s := r.in.State
	rep := &Report{Schema: ReportSchema, Cluster: s.Name, Lineage: s.Lineage, Observed: s.Observed, Version: s.Version, Target: r.in.Goal.Target, Counts: make(map[string]int), Verdict: Clean, Results: []Result{}}
	byID := make(map[string]*Result)
	for _, c := range checks {
		rep.Results = append(rep.Results, r.results[c.ID]...)
	}
	for i := range rep.Results {
		byID[rep.Results[i].ID()] = &rep.Results[i]
	}
	for i := range rep.Results {
		x := &rep.Results[i]
		// Somebody accepted that this is not known, so that what follows from it is accepted as well.
		if x.Status == Blocked && len(x.Because) > 0 && !slices.ContainsFunc(x.Because, func(id string) bool { b := byID[id]; return b == nil || b.Stands() }) {
			x.Status, x.Waivable = Skipped, false
			x.Message += " (which was accepted)"
		}
	}
	for _, x := range rep.Results {
		if x.Waived {
			rep.Counts["waived"]++
		} else {
			rep.Counts[string(x.Status)]++
		}
		switch {
		case !x.Stands():
		case x.Status == Fail:
			rep.Verdict = Findings
		case rep.Verdict == Clean:
			rep.Verdict = Undecided
		}
	}
	for w, used := range r.waivers {
		x := byID[w]
		switch {
		case used:
		case x != nil && (x.Status == Fail || x.Status == Unknown || x.Status == Blocked):
			rep.RefusedWaivers = append(rep.RefusedWaivers, w)
		default:
			rep.UnusedWaivers = append(rep.UnusedWaivers, w)
		}
	}
	slices.Sort(rep.UnusedWaivers)
	slices.Sort(rep.RefusedWaivers)
	return rep
}

// order is how bad a status is.
var order = map[Status]int{Skipped: 0, Pass: 1, Warn: 2, Blocked: 3, Unknown: 4, Fail: 5}

func worst(rs []Result) Status {
	w := Skipped
	for _, r := range rs {
		if order[r.Status] > order[w] {
			w = r.Status
		}
	}
	return w
}
