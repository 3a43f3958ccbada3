package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// stallError is a server that went silent. The connection is given up; another one may do better.
type stallError struct {
	url   string
	after time.Duration
}

func (e *stallError) Error() string { return fmt.Sprintf("%s: nothing came for %s", e.url, e.after) }

// Timeout and Temporary are for who asks again, as the registry client does.
func (e *stallError) Timeout() bool   { return true }
func (e *stallError) Temporary() bool { return true }

// stallTransport ends requests whose answer stops coming: TCP alone waits for a silent server for ever, and a bound on the whole would
// end large files on slow lines.
type stallTransport struct {
	next  http.RoundTripper
	after time.Duration
}

// withStalls gives a client like c that gives up on servers that are silent for that long.
func withStalls(c *http.Client, after time.Duration) *http.Client {
	out := *c
	out.Transport = &stallTransport{next: cmp.Or(c.Transport, http.DefaultTransport), after: after}
	return &out
}

func (t *stallTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stalled := &stallError{url: r.URL.Redacted(), after: t.after}
	timer := time.AfterFunc(t.after, func() { cancel(stalled) })
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		cancel(nil)
		if errors.Is(context.Cause(ctx), stalled) {
			err = stalled
		}
		return nil, err
	}
	resp.Body = &stallBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, stalled: stalled}
	return resp, nil
}

type stallBody struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // lives as long as the request
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	stalled *stallError
}

// Read counts only the time that it waits: what the reader does in between is its own affair.
func (b *stallBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.stalled.after)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(b.ctx), b.stalled) {
		err = b.stalled
	}
	return n, err
}

func (b *stallBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
