// Package condition waits until something observed becomes true.
//
// It is the only place in the project that polls: everything else describes
// what it waits for as a Condition, and a wait that runs out of time says what
// it saw last, never just "timed out".
package condition

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNotYet marks a check that ran and saw the condition unmet. Wrap it with
// what was seen: fmt.Errorf("%w: node w1 is NotReady", condition.ErrNotYet).
var ErrNotYet = errors.New("not yet")

// NotYetf returns an error that wraps ErrNotYet and says what was seen.
func NotYetf(format string, args ...any) error {
	return &notYet{msg: fmt.Sprintf(format, args...)}
}

type notYet struct{ msg string }

func (e *notYet) Error() string { return e.msg }
func (e *notYet) Unwrap() error { return ErrNotYet }

// Final wraps an error that no amount of waiting will mend: Wait returns at once.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}

type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// Condition is something to wait for.
type Condition struct {
	// Name says what is waited for, as in "node w1 to be Ready".
	Name string
	// Check looks once. nil: met. Any error: unmet, look again later, unless it is Final.
	// The context carries the time limit of one attempt.
	Check func(ctx context.Context) error
}

// Options bound a Wait.
type Options struct {
	// Timeout bounds the whole wait; 0 leaves it to the context.
	Timeout time.Duration
	// Interval is the pause between attempts; 0 means one second.
	Interval time.Duration
	// Attempt bounds one Check; 0 means 30 seconds. It is independent of Interval.
	Attempt time.Duration
	// Stable is how many successive successes are asked for; 0 means one.
	Stable int
	// OnChange, if set, is called whenever the last reason changes.
	OnChange func(reason string)
}

// TimeoutError says what was waited for, for how long, and what was seen last.
type TimeoutError struct {
	Name    string
	Elapsed time.Duration
	Last    error
	Cause   error
}

func (e *TimeoutError) Error() string {
	last := "nothing was seen"
	if e.Last != nil {
		last = e.Last.Error()
	}
	verb := "waited"
	if errors.Is(e.Cause, context.Canceled) {
		verb = "interrupted after waiting"
	}
	return fmt.Sprintf("%s %s for %s; last seen: %s", verb, e.Elapsed.Round(time.Second), e.Name, last)
}

// Unwrap gives the context's error and the last reason.
func (e *TimeoutError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Cause, e.Last} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Wait polls c until it is met, a Final error comes, or time runs out. The
// error is then a *TimeoutError that carries the last reason.
func Wait(ctx context.Context, c Condition, o Options) error {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.Attempt <= 0 {
		o.Attempt = 30 * time.Second
	}
	if o.Stable <= 0 {
		o.Stable = 1
	}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	start := time.Now()
	var last error
	var reason string
	timer := time.NewTimer(0)
	defer timer.Stop()
	met := 0
	for {
		select {
		case <-ctx.Done():
			return &TimeoutError{Name: c.Name, Elapsed: time.Since(start), Last: last, Cause: ctx.Err()}
		case <-timer.C:
		}
		attempt, cancel := context.WithTimeout(ctx, o.Attempt)
		err := c.Check(attempt)
		cancel()
		if err == nil {
			if met++; met >= o.Stable {
				return nil
			}
			timer.Reset(o.Interval)
			continue
		}
		met = 0
		if final := (*finalError)(nil); errors.As(err, &final) {
			return fmt.Errorf("wait for %s: %w", c.Name, final.err)
		}
		// A check that was cut short by the end of the wait says less than the one before it.
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if r := err.Error(); o.OnChange != nil && r != reason {
			reason = r
			o.OnChange(r)
		}
		timer.Reset(o.Interval)
	}
}

// All is met when every condition is; it reports each unmet one.
func All(name string, cs ...Condition) Condition {
	return Condition{Name: name, Check: func(ctx context.Context) error {
		var errs []error
		for _, c := range cs {
			if err := c.Check(ctx); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", c.Name, err))
			}
		}
		return errors.Join(errs...)
	}}
}
