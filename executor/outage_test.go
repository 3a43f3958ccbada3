package executor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOutagesAreMeasuredFromAnswerToAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		down := func(at time.Duration) bool {
			return at >= 2*time.Second && at < 5*time.Second || at >= 8*time.Second && at < 9*time.Second
		}
		stop := watchOutages(t.Context(), []Target{
			{Name: "flaky", Ask: func(context.Context) error {
				if down(time.Since(start)) {
					return errors.New("refused")
				}
				return nil
			}},
			{Name: "steady", Ask: func(context.Context) error { return nil }},
			{Name: "hangs", Ask: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		})
		time.Sleep(12*time.Second + 100*time.Millisecond) // the bubble's clock
		r := stop()
		flaky, steady, hangs := r[0], r[1], r[2]
		// The longest gap is three seconds, and one interval on the side where nobody asked.
		if flaky.LongestSeconds < 3 || flaky.LongestSeconds > 3.5 || flaky.TotalSeconds < 4 || flaky.TotalSeconds > 5 || flaky.Failures != 16 || flaky.LastError != "refused" {
			t.Errorf("flaky: %+v", flaky)
		}
		if steady.Failures != 0 || steady.TotalSeconds != 0 || steady.Polls < 48 {
			t.Errorf("steady: %+v", steady)
		}
		// An outage that has not ended is counted to the end.
		if hangs.Polls == 0 || hangs.Failures != hangs.Polls || hangs.LongestSeconds < 12 {
			t.Errorf("hangs: %+v", hangs)
		}
	})
}
