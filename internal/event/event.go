// Package event carries what happens during long work to whoever shows it.
//
// Domain packages emit typed events into one Sink; only the command line knows
// words, colours and terminals. Events may be lost and nothing resumes from
// them: the journal is what counts.
package event

import (
	"sync"
	"time"
)

// Type says what kind of event it is.
type Type string

// The event types.
const (
	// RunStarted opens a run (an apply, a cluster up, a bundle build); Total is the number of steps.
	RunStarted Type = "run.started"
	// RunFinished closes it; Err is nil for success.
	RunFinished Type = "run.finished"
	// StepStarted, StepProgress, StepDone and StepFailed follow one step of a run.
	StepStarted  Type = "step.started"
	StepProgress Type = "step.progress"
	StepDone     Type = "step.done"
	StepFailed   Type = "step.failed"
	// StepSkipped is a step that had nothing to do; Msg says why.
	StepSkipped Type = "step.skipped"
	// Note is a remark for the reader; Warning one that needs attention.
	Note    Type = "note"
	Warning Type = "warning"
)

// Event is one thing that happened.
type Event struct {
	Time time.Time `json:"time"`
	Type Type      `json:"type"`
	// Run names the run, Step the step within it (stable identifiers).
	Run  string `json:"run,omitempty"`
	Step string `json:"step,omitempty"`
	// Subject is what the event is about: a node, a binary, an object.
	Subject string `json:"subject,omitempty"`
	// Msg is one line for people, without a trailing period.
	Msg string `json:"msg,omitempty"`
	// Index (from 1) and Total place a step within its run; 0 when unknown.
	Index int `json:"index,omitempty"`
	Total int `json:"total,omitempty"`
	// Elapsed is how long the step or run took so far.
	Elapsed time.Duration `json:"elapsed,omitempty"`
	// Err is the error's text for failed steps and runs.
	Err string `json:"error,omitempty"`
}

// Sink receives events. Emit must be safe for concurrent use and must not block for long.
type Sink interface{ Emit(Event) }

// Func makes a Sink of a function. The function must be safe for concurrent use.
type Func func(Event)

// Emit calls f, stamping the time if the event has none.
func (f Func) Emit(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	f(e)
}

// Discard drops every event.
var Discard Sink = Func(func(Event) {})

// Or returns s, or Discard when s is nil.
func Or(s Sink) Sink {
	if s == nil {
		return Discard
	}
	return s
}

// Tee sends every event to each sink in order.
func Tee(sinks ...Sink) Sink {
	return Func(func(e Event) {
		for _, s := range sinks {
			s.Emit(e)
		}
	})
}

// Recorder keeps every event, for tests and reports.
type Recorder struct {
	mu     sync.Mutex
	events []Event
}

// Emit keeps e.
func (r *Recorder) Emit(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events returns a copy of what was recorded.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...)
}
