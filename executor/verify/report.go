package verify

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
)

// ReportSchema names the format of a Report.
const ReportSchema = "belay.dev/verify/v1"

// Report is what a verification found.
type Report struct {
	Schema string `json:"schema"`
	Target string `json:"target"`
	// Baseline says what workloads were compared with; empty when there was nothing.
	Baseline string  `json:"baseline,omitempty"`
	Checks   []Check `json:"checks"`
}

// Check is one condition and whether it was met in time.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail is what was seen last, when it was not met.
	Detail  string  `json:"detail,omitempty"`
	Seconds float64 `json:"seconds"`
}

// OK says whether every check was met.
func (r *Report) OK() bool {
	for _, c := range r.Checks {
		if !c.OK {
			return false
		}
	}
	return true
}

// Run waits for every condition, a few at a time, each up to timeout, and reports them in the order given.
// The error is the context's.
func Run(ctx context.Context, cs []condition.Condition, timeout time.Duration, sink event.Sink) ([]Check, error) {
	out := make([]Check, len(cs))
	var mu sync.Mutex
	finished := 0
	var g errgroup.Group
	g.SetLimit(4)
	for i, c := range cs {
		g.Go(func() error {
			start := time.Now()
			err := condition.Wait(ctx, c, condition.Options{Timeout: timeout, Attempt: timeout})
			out[i] = Check{Name: c.Name, OK: err == nil, Seconds: time.Since(start).Seconds()}
			e := event.Event{Type: event.StepDone, Run: "verify", Step: c.Name, Msg: c.Name, Total: len(cs), Elapsed: time.Since(start)}
			if err != nil {
				out[i].Detail = last(err)
				e.Type, e.Err = event.StepFailed, out[i].Detail
			}
			mu.Lock()
			defer mu.Unlock()
			finished++
			e.Index = finished
			event.Or(sink).Emit(e)
			return nil
		})
	}
	return out, errors.Join(g.Wait(), ctx.Err())
}

// last is what a wait saw last.
func last(err error) string {
	if late := (*condition.TimeoutError)(nil); errors.As(err, &late) && late.Last != nil {
		return strings.ReplaceAll(late.Last.Error(), "\n", "; ")
	}
	return err.Error()
}
