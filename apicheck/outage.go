package apicheck

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// outage notices that the apiserver is gone, so that the readers do not wait for it each on their own: a scan has hundreds of
// requests, and each is repeated for a minute.
type outage struct {
	mu sync.Mutex
	// since is when the first of the requests began that nothing has answered, zero after an answer; gone says that it was too
	// long ago. Nothing is asked then any more.
	since time.Time
	gone  error
	// failures counts requests that were answered with errors until their patience was over, since the last that succeeded.
	failures int
}

// err gives why nothing is to be asked any more.
func (o *outage) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

// answered takes note of any answer, a refusal too.
func (o *outage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Time{}
}

// silent takes note of a request that was not answered. When nothing was for as long as patience says, probe asks for anything
// at all, once: a list may be too long for every attempt while the apiserver is well.
func (o *outage) silent(began time.Time, err error, patience time.Duration, probe func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone != nil {
		return o.gone
	}
	if o.since.IsZero() {
		o.since = began
	}
	silence := time.Since(o.since)
	if silence < patience {
		return nil
	}
	if perr := probe(); perr == nil || apiStatus(perr) {
		o.since = time.Time{}
		return nil
	}
	o.gone = fmt.Errorf("the apiserver has not answered for %s, and is not asked any more: %s", silence.Round(time.Second), err.Error())
	return o.gone
}

// done takes note of how a request ended that was repeated.
func (o *outage) done(exhausted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if exhausted {
		o.failures++
	} else {
		o.failures = 0
	}
}

// patience gives how long a request is repeated: much shorter when as many as run at once have been repeated in vain.
func (o *outage) patience(whole time.Duration) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures >= resourcesAtOnce {
		return min(whole, max(whole/30, time.Second))
	}
	return whole
}

// apiStatus says whether an error is an answer of an apiserver.
func apiStatus(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}

// probe asks for the version, which every apiserver tells at once.
func (l *liveCluster) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(5*time.Second, max(l.patience/2, time.Second)))
	defer cancel()
	return l.raw.Get().AbsPath("/version").Do(ctx).Error()
}
