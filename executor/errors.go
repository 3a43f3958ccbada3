package executor

import (
	"fmt"
	"strings"
	"time"

	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// StaleError is a plan whose basis no longer holds.
type StaleError struct {
	// To is where the plan goes; Diff says what changed, a sentence each.
	To   kubeversion.V
	Diff []string
}

func (e *StaleError) Error() string {
	return "the plan no longer fits the cluster:\n  " + strings.Join(e.Diff, "\n  ")
}

// Next is the command to run.
func (e *StaleError) Next() string { return "belay plan --to " + e.To.Bare() + " -o plan.json" }

// StoppedError is a run that ended before its end and can be resumed.
type StoppedError struct {
	Run string
	// Step is empty after the last step.
	Step string
	// Begun says whether the step had begun; without it the cluster is as the step before left it.
	Begun bool
	Err   error
	// Do are commands for a person to run first, if the step cannot mend itself.
	Do []string
}

func (e *StoppedError) Error() string {
	where := "before step " + e.Step
	if e.Begun {
		where = "in step " + e.Step
	}
	s := fmt.Sprintf("stopped %s: %v; no later step was begun", where, e.Err)
	if e.Step == "" {
		s = fmt.Sprintf("stopped after the last step, before the run's end was recorded: %v", e.Err)
	}
	for _, d := range e.Do {
		s += "\n  first: " + d
	}
	return s
}

// Unwrap gives the cause.
func (e *StoppedError) Unwrap() error { return e.Err }

// Next is the command to run.
func (e *StoppedError) Next() string { return "belay resume " + e.Run }

// UnknownError is a step of which nobody can say how far it came.
type UnknownError struct {
	Run, Step string
	Err       error
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("step %s: its outcome is unknown: %v; no later step was begun", e.Step, e.Err)
}

// Unwrap gives the cause.
func (e *UnknownError) Unwrap() error { return e.Err }

// Next is the command to run.
func (e *UnknownError) Next() string { return "belay resume " + e.Run }

// BusyError is a cluster that another run holds.
type BusyError struct {
	Holder  string
	Since   time.Time
	Expires time.Time
}

func (e *BusyError) Error() string {
	s := "another run works on this cluster: " + e.Holder
	if !e.Since.IsZero() {
		s += ", since " + e.Since.UTC().Format(time.RFC3339)
	}
	if !e.Expires.IsZero() {
		s += fmt.Sprintf("; its lease (kube-system/%s) ends %s unless it is renewed", LeaseName, e.Expires.UTC().Format(time.RFC3339))
	}
	return s
}

// Next is the command to run.
func (e *BusyError) Next() string { return "belay status" }

// UnfinishedError is an earlier run on the same cluster that has not ended.
type UnfinishedError struct{ Run, Step string }

func (e *UnfinishedError) Error() string {
	at := ""
	if e.Step != "" {
		at = " at step " + e.Step
	}
	return fmt.Sprintf("run %s stopped%s and has not ended: resume it, or give it up with belay abort %s", e.Run, at, e.Run)
}

// Next is the command to run.
func (e *UnfinishedError) Next() string { return "belay resume " + e.Run }

// PreconditionError is a step that may not begin.
type PreconditionError struct {
	Step, What string
	Err        error
}

func (e *PreconditionError) Error() string { return fmt.Sprintf("%s: %v", e.What, e.Err) }

// Unwrap gives the cause.
func (e *PreconditionError) Unwrap() error { return e.Err }

// UnitError is work in a systemd unit of a machine that ended badly.
type UnitError struct {
	Host, Unit string
	Argv       []string
	Detail     string
	// Output is the end of what it printed.
	Output string
}

func (e *UnitError) Error() string {
	s := fmt.Sprintf("%s: %s: %s (all of its output: %s on the machine)", e.Host, host.QuoteAll(e.Argv), e.Detail, host.UnitLog(e.Unit))
	if e.Output != "" {
		s += ":\n    " + strings.ReplaceAll(strings.TrimSpace(e.Output), "\n", "\n    ")
	}
	return s
}

// ManualError is a state that belay does not mend by itself, with what a person can do.
type ManualError struct {
	Err error
	Do  []string
}

func (e *ManualError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ManualError) Unwrap() error { return e.Err }

// BlockedError is a run that was not begun, because something that it relies on is missing. Nothing was changed.
type BlockedError struct {
	Err error
	// Do is the command that mends it.
	Do string
}

func (e *BlockedError) Error() string { return "the run was not begun: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *BlockedError) Unwrap() error { return e.Err }

// Next is the command to run.
func (e *BlockedError) Next() string { return e.Do }

// UnseenError is an observation with gaps, where a run needs to see.
type UnseenError struct {
	// Gaps say what and why.
	Gaps []string
}

func (e *UnseenError) Error() string {
	return "the run was not begun, as parts of the cluster could not be read, and what is not read is neither a basis nor a baseline:\n  " + strings.Join(e.Gaps, "\n  ")
}

// Next is the command to run.
func (e *UnseenError) Next() string { return "belay state" }

// AmbiguousRunError is a choice between runs that only a person can make.
type AmbiguousRunError struct {
	// Runs have not ended; they are on several clusters.
	Runs []string
}

func (e *AmbiguousRunError) Error() string {
	return "several runs on different clusters have not ended: name one of " + strings.Join(e.Runs, ", ")
}

// Next is the command to run.
func (e *AmbiguousRunError) Next() string { return "belay status " + e.Runs[0] }

// NoRunError is a run that is not in the directory of runs.
type NoRunError struct {
	// ID is empty when any run would have done.
	ID, Dir string
}

func (e *NoRunError) Error() string {
	if e.ID == "" {
		return "there is no run in " + e.Dir
	}
	return fmt.Sprintf("there is no run %s in %s", e.ID, e.Dir)
}

// Next is the command to run.
func (e *NoRunError) Next() string {
	if e.ID == "" {
		return "belay apply plan.json"
	}
	return "belay status"
}
