package executor

import (
	"net/http"
	"sync/atomic"
	"time"
)

// young is how long an apiserver that has just started may answer 403 to those who have rights: it serves before
// its caches of roles and bindings are filled.
const young = 30 * time.Second

// RetryForbidden wraps a transport so that requests answered with 403 are repeated for up to half a minute. A run replaces apiservers, and
// one that has just started refuses everybody. It does so only for a user whose rights are proved, by an earlier run or by the first
// change that the API takes: until then, a refusal is a lack of rights, and is told at once.
func RetryForbidden(proved bool) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		r := &retryForbidden{next: next, limit: young, pause: time.Second}
		r.proved.Store(proved)
		return r
	}
}

type retryForbidden struct {
	next         http.RoundTripper
	limit, pause time.Duration
	proved       atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (r *retryForbidden) RoundTrip(req *http.Request) (*http.Response, error) {
	end := time.Now().Add(r.limit)
	for {
		resp, err := r.next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusForbidden {
			if req.Method != http.MethodGet && resp.StatusCode < http.StatusMultipleChoices {
				r.proved.Store(true)
			}
			return resp, nil
		}
		if !r.proved.Load() || req.Body != nil && req.GetBody == nil || time.Now().After(end) {
			return resp, nil
		}
		if err := resp.Body.Close(); err != nil {
			return nil, err
		}
		timer := time.NewTimer(r.pause)
		select {
		case <-req.Context().Done():
			timer.Stop()
			// Not the refusal: whether it was one is what the wait was to tell.
			return nil, req.Context().Err()
		case <-timer.C:
		}
		again := req.Clone(req.Context())
		if req.GetBody != nil {
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		req = again
	}
}
