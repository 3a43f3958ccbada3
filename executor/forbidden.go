package executor

import (
	"net/http"
	"time"
)

// young is how long an apiserver that has just started may answer 403 to those who have rights: it serves before
// its caches of roles and bindings are filled.
const young = 30 * time.Second

// RetryForbidden repeats requests that are answered with 403 for up to half a minute. A run replaces apiservers, and one that has just started
// refuses everybody; a lack of rights is the same after the wait, and is told then.
func RetryForbidden(next http.RoundTripper) http.RoundTripper {
	return &retryForbidden{next: next, limit: young, pause: time.Second}
}

type retryForbidden struct {
	next         http.RoundTripper
	limit, pause time.Duration
}

// RoundTrip implements http.RoundTripper.
func (r *retryForbidden) RoundTrip(req *http.Request) (*http.Response, error) {
	end := time.Now().Add(r.limit)
	for {
		resp, err := r.next.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusForbidden || req.Body != nil && req.GetBody == nil || time.Now().After(end) {
			return resp, err
		}
		timer := time.NewTimer(r.pause)
		select {
		case <-req.Context().Done():
			timer.Stop()
			return resp, nil
		case <-timer.C:
		}
		again := req.Clone(req.Context())
		if req.GetBody != nil {
			if again.Body, err = req.GetBody(); err != nil {
				return resp, nil
			}
		}
		if err := resp.Body.Close(); err != nil {
			return nil, err
		}
		req = again
	}
}
