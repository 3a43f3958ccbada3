package executor

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// outageInterval is how often each target is asked: what is shorter is not seen.
const outageInterval = 250 * time.Millisecond

// OutageReport says how long something did not answer during a run.
type OutageReport struct {
	Name     string `json:"name"`
	Polls    int    `json:"polls"`
	Failures int    `json:"failures"`
	// LongestSeconds is the longest time between two answers, TotalSeconds the sum of those with a failure in between.
	LongestSeconds float64 `json:"longestSeconds"`
	TotalSeconds   float64 `json:"totalSeconds"`
	// LastError is what was seen last when it did not answer.
	LastError string `json:"lastError,omitempty"`
}

// Target is something to poll while a run works.
type Target struct {
	Name string
	// Ask gives nil for an answer.
	Ask func(ctx context.Context) error
}

// HTTPTarget polls a URL: any status below 500 is an answer.
func HTTPTarget(name, url string, client *http.Client) Target {
	return Target{Name: name, Ask: func(ctx context.Context) (err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, resp.Body.Close()) }()
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil {
			return err
		}
		if resp.StatusCode >= 500 {
			return errors.New(resp.Status)
		}
		return nil
	}}
}

// watchOutages polls targets until the returned function is called, which gives one report each.
func watchOutages(ctx context.Context, targets []Target) func() []OutageReport {
	ctx, cancel := context.WithCancel(ctx)
	reports := make([]OutageReport, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { reports[i] = poll(ctx, t) })
	}
	return func() []OutageReport {
		cancel()
		wg.Wait()
		return reports
	}
}

func poll(ctx context.Context, t Target) OutageReport {
	r := OutageReport{Name: t.Name}
	tick := time.NewTicker(outageInterval)
	defer tick.Stop()
	var down time.Time // the last answer before it stopped answering
	last := time.Now()
	end := func(now time.Time) {
		if !down.IsZero() {
			gap := now.Sub(down).Seconds()
			r.TotalSeconds += gap
			r.LongestSeconds = max(r.LongestSeconds, gap)
			down = time.Time{}
		}
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := t.Ask(attempt)
		cancel()
		if ctx.Err() != nil {
			end(time.Now())
			return r
		}
		r.Polls++
		if err == nil {
			last = time.Now()
			end(last)
		} else {
			r.Failures++
			r.LastError = err.Error()
			if down.IsZero() {
				down = last
			}
		}
		select {
		case <-ctx.Done():
			end(time.Now())
			return r
		case <-tick.C:
		}
	}
}
