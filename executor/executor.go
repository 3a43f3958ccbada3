package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/journal"
	"github.com/belayops/belay/plan"
)

// lostTries is how often a step is taken up again, after asking Probe, when the outcome of something it did was lost.
const lostTries = 3

// loop carries out the steps of a plan.
type loop struct {
	*task
	log   log
	state map[string]stepState
	// stop asks for an end after the step that runs.
	stop     <-chan struct{}
	handlers map[plan.Kind]Handler
	report   *Report
	lease    *lease
}

func (l *loop) run(ctx context.Context) error {
	total := len(l.plan.Steps)
	// until says whether the effect of a done step is still needed: the step that ends the need is not done.
	needed := func(s plan.Step) bool {
		switch s.Until {
		case plan.Once:
			return false
		case "":
			return true
		}
		return !l.state[s.Until].done
	}
	for i, s := range l.plan.Steps {
		if l.state[s.ID].done {
			if !needed(s) {
				continue
			}
			holds, err := l.holds(ctx, s)
			if err != nil {
				return err
			}
			if holds {
				continue
			}
		}
		select {
		case <-l.stop:
			return &StoppedError{Run: l.task.run, Step: s.ID, Err: errors.New("a stop was asked for")}
		default:
		}
		if err := ctx.Err(); err != nil {
			return &StoppedError{Run: l.task.run, Step: s.ID, Err: context.Cause(ctx)}
		}
		if err := l.hold(ctx, s); err != nil {
			return err
		}
		if err := l.step(ctx, s, i+1, total); err != nil {
			return err
		}
	}
	return nil
}

// hold sees to it that the run has the lease before a step is begun. A resumed run may have to go on without it with the control plane step that was
// cut off, as the API is down until that step is done; staged files harm nobody either way.
func (l *loop) hold(ctx context.Context, s plan.Step) error {
	if st := l.state[s.ID]; l.lease.isHeld() || st.begun && !st.done || s.Kind == plan.Stage {
		return nil
	}
	err := condition.Wait(ctx, condition.Condition{Name: "the API to give the lease", Check: func(ctx context.Context) error {
		err := l.lease.acquire(ctx)
		if busy := (*BusyError)(nil); errors.As(err, &busy) || err != nil && !transient(err) {
			return condition.Final(err)
		}
		return err
	}}, condition.Options{Timeout: l.patience(), Interval: l.poll(), Attempt: 10*time.Second + l.lease.observe})
	if err != nil {
		return &StoppedError{Run: l.task.run, Step: s.ID, Err: err}
	}
	return nil
}

// holds looks at a step that the journal calls done: the cluster is right.
func (l *loop) holds(ctx context.Context, s plan.Step) (bool, error) {
	h, err := l.handler(s)
	if err != nil {
		return false, err
	}
	f, err := h.Probe(ctx, s, true)
	if err != nil {
		return false, &UnknownError{Run: l.task.run, Step: s.ID, Err: err}
	}
	if f.Progress == Unknown {
		return false, &UnknownError{Run: l.task.run, Step: s.ID, Err: errors.New(f.Detail)}
	}
	if f.Progress == Done {
		return true, nil
	}
	l.emit(s, event.Warning, fmt.Sprintf("step %s was done and its effect is gone (%s): it is done again", s.ID, f.Detail), nil, 0, 0)
	return false, nil
}

func (l *loop) handler(s plan.Step) (Handler, error) {
	h, ok := l.handlers[s.Kind]
	if !ok {
		return nil, &StoppedError{Run: l.task.run, Step: s.ID, Err: fmt.Errorf("this belay does not know steps of kind %q: use the one that made the plan", s.Kind)}
	}
	return h, nil
}

// step carries out one step: probe, preconditions, intent, apply, verify, outcome.
func (l *loop) step(ctx context.Context, s plan.Step, index, total int) error {
	start := time.Now()
	h, err := l.handler(s)
	if err != nil {
		return err
	}
	l.emit(s, event.StepStarted, s.Describe(), nil, index, total)
	// Every failure is journaled, also one before the step has begun: status names the step at which the run stopped.
	failed := func(begun bool, err error) error {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w; %w", cause, err)
		}
		l.emit(s, event.StepFailed, s.Describe(), err, index, total)
		return l.record(s, l.stopped(s, begun, err), err)
	}
	unknown := func(err error) error {
		l.emit(s, event.StepFailed, s.Describe(), err, index, total)
		return l.record(s, &UnknownError{Run: l.task.run, Step: s.ID, Err: err}, err)
	}

	f, err := h.Probe(ctx, s, false)
	switch {
	case err != nil && l.state[s.ID].begun:
		return unknown(err)
	case err != nil:
		return failed(false, err)
	case f.Progress == Unknown:
		return unknown(errors.New(f.Detail))
	}

	if f.Progress != Done {
		for _, p := range s.Preconditions {
			// A step that is half-way may itself have broken, on its own node, what it asks for; elsewhere it must hold all the same.
			except := ""
			if f.Progress == Partial {
				except = s.Node
			}
			if err := l.precondition(ctx, p, except); err != nil {
				return failed(l.state[s.ID].begun, &PreconditionError{Step: s.ID, What: string(p.Kind), Err: err})
			}
		}
	}
	// The intent is on disk before anything is changed: a step without one was not begun.
	if err := note(l.log, s.ID, journal.Intent, map[string]string{"found": f.Progress.String(), "detail": f.Detail}, nil); err != nil {
		return failed(false, err)
	}
	l.state[s.ID] = stepState{begun: true}
	killPoint(s.ID, "intent")
	if f.Progress != Done {
		if err := l.apply(ctx, h, s); err != nil {
			return failed(true, err)
		}
	}
	killPoint(s.ID, "applied")
	for _, c := range h.Verify(s) {
		if err := l.wait(ctx, s, c, l.patience()); err != nil {
			return failed(true, err)
		}
	}
	elapsed := time.Since(start)
	if err := note(l.log, s.ID, journal.Outcome, map[string]any{"seconds": elapsed.Seconds(), "skipped": f.Progress == Done}, nil); err != nil {
		return failed(true, err)
	}
	killPoint(s.ID, "outcome")
	l.state[s.ID] = stepState{begun: true, done: true}
	l.report.Steps = append(l.report.Steps, StepReport{ID: s.ID, What: s.Describe(), Seconds: elapsed.Seconds(), Skipped: f.Progress == Done})
	typ, msg := event.StepDone, s.Describe()
	if f.Progress == Done {
		typ, msg = event.StepSkipped, s.Describe()+": "+f.Detail
	}
	event.Or(l.Sink).Emit(event.Event{Type: typ, Run: l.task.run, Step: s.ID, Subject: s.Node, Msg: msg, Index: index, Total: total, Elapsed: elapsed})
	return nil
}

// apply lets the handler act. When the outcome of what it did was lost, Probe is asked and the step taken up again.
func (l *loop) apply(ctx context.Context, h Handler, s plan.Step) error {
	for try := 1; ; try++ {
		err := h.Apply(ctx, s)
		lost := (*host.LostError)(nil)
		if err == nil || !errors.As(err, &lost) || ctx.Err() != nil {
			return err
		}
		if try == lostTries {
			return &UnknownError{Run: l.task.run, Step: s.ID, Err: err}
		}
		l.emit(s, event.Warning, "the outcome of a command was lost; looking again", err, 0, 0)
		var f Found
		perr := condition.Wait(ctx, condition.Condition{Name: "the machine to tell how far step " + s.ID + " is", Check: func(ctx context.Context) (err error) {
			f, err = h.Probe(ctx, s, false)
			return err
		}}, condition.Options{Timeout: l.patience(), Interval: l.poll()})
		if perr != nil || f.Progress == Unknown {
			return &UnknownError{Run: l.task.run, Step: s.ID, Err: errors.Join(err, perr)}
		}
		if f.Progress == Done {
			return nil
		}
	}
}

// record writes a failure to the journal; the run ends with result all the same.
func (l *loop) record(s plan.Step, result, cause error) error {
	if err := note(l.log, s.ID, journal.Failed, nil, cause); err != nil {
		return errors.Join(result, err)
	}
	return result
}

func (l *loop) stopped(s plan.Step, begun bool, err error) error {
	if unknown := (*UnknownError)(nil); errors.As(err, &unknown) {
		return unknown
	}
	stop := &StoppedError{Run: l.task.run, Step: s.ID, Begun: begun, Err: err}
	if manual := (*ManualError)(nil); errors.As(err, &manual) {
		stop.Do = manual.Do
	}
	return stop
}

func (l *loop) emit(s plan.Step, t event.Type, msg string, err error, index, total int) {
	e := event.Event{Type: t, Run: l.task.run, Step: s.ID, Subject: s.Node, Msg: msg, Index: index, Total: total}
	if err != nil {
		e.Err = err.Error()
	}
	event.Or(l.Sink).Emit(e)
}

// ReportSchema names the format of a Report.
const ReportSchema = "belay.dev/run-report/v1"

// Report is what a run did.
type Report struct {
	Schema  string         `json:"schema"`
	Run     string         `json:"run"`
	From    string         `json:"from"`
	To      string         `json:"to"`
	Seconds float64        `json:"seconds"`
	Steps   []StepReport   `json:"steps"`
	Outages []OutageReport `json:"outages,omitempty"`
}

// StepReport is one step and its time.
type StepReport struct {
	ID      string  `json:"id"`
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
	Skipped bool    `json:"skipped,omitempty"`
}

// basisDiff compares the cluster with what the plan was made from.
func basisDiff(p *plan.Plan, s *cluster.State) []string {
	return cluster.Diff(p.Basis, cluster.Project(s))
}
