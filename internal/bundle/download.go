package bundle

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/belayops/belay/internal/condition"
)

// attempts is how often one download is tried.
const attempts = 5

// statusError is an answer other than the file.
type statusError struct {
	url, status string
	code        int
}

func (e *statusError) Error() string { return e.url + ": " + e.status }

// final says whether asking again is of no use.
func (e *statusError) final() bool {
	return e.code/100 == 4 && e.code != http.StatusTooManyRequests && e.code != http.StatusRequestTimeout
}

// retried calls try until it succeeds, a number of times, with pauses.
func (s *release) retried(ctx context.Context, what string, try func(context.Context) error) error {
	n := 0
	return condition.Wait(ctx, condition.Condition{Name: what, Check: func(ctx context.Context) error {
		n++
		err := try(ctx)
		var status *statusError
		var sum *SumError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &status) && status.final(), errors.As(err, &sum):
			return condition.Final(err)
		case n >= attempts:
			return condition.Final(fmt.Errorf("%w (tried %d times)", err, n))
		}
		return err
	}}, condition.Options{Interval: s.r.retry, Attempt: 30 * time.Minute})
}

func (s *release) get(ctx context.Context, url string, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, condition.Final(err)
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := s.r.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && (from == 0 || resp.StatusCode != http.StatusPartialContent) {
		return nil, errors.Join(&statusError{url, resp.Status, resp.StatusCode}, resp.Body.Close())
	}
	return resp, nil
}

// getSmall gets a file of at most one megabyte.
func (s *release) getSmall(ctx context.Context, url string) (data []byte, err error) {
	err = s.retried(ctx, url, func(ctx context.Context) (err error) {
		resp, err := s.get(ctx, url, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, resp.Body.Close()) }()
		data, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return err
	})
	return data, err
}

// fetch downloads url to dest and checks its sum. What was received before a
// broken connection, or before belay was stopped, is kept and continued.
func (s *release) fetch(ctx context.Context, url, want, dest string, report func(string)) error {
	// Named by the sum, so that a file that changed upstream is not continued.
	part := filepath.Join(filepath.Dir(dest), ".download-"+want)
	err := s.retried(ctx, url, func(ctx context.Context) error { return s.fetchSome(ctx, url, part, report) })
	if err != nil {
		return err
	}
	got, n, err := sumFile(ctx, part)
	if err != nil {
		return err
	}
	if got != want {
		return errors.Join(&SumError{Path: url, Want: "sha256:" + want, Got: describe(got, n)}, os.Remove(part))
	}
	return os.Rename(part, dest)
}

// fetchSome gets what is missing of part.
func (s *release) fetchSome(ctx context.Context, url, part string, report func(string)) (err error) {
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return condition.Final(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return condition.Final(err)
	}
	resp, err := s.get(ctx, url, have)
	if status := (*statusError)(nil); errors.As(err, &status) && status.code == http.StatusRequestedRangeNotSatisfiable {
		// All of it is there, or more: the sum will tell.
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode == http.StatusOK && have > 0 {
		// The server does not continue: begin again.
		if have, err = 0, f.Truncate(0); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			return condition.Final(err)
		}
	}
	total := int64(-1)
	if resp.ContentLength >= 0 {
		total = have + resp.ContentLength
	}
	_, err = io.Copy(&progressWriter{w: f, n: have, total: total, every: s.b.o.heartbeat, last: time.Now(), report: report}, resp.Body)
	return err
}

// progressWriter says now and then how far a download is.
type progressWriter struct {
	w        io.Writer
	n, total int64
	every    time.Duration
	last     time.Time
	report   func(string)
}

func (p *progressWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.n += int64(n)
	if err != nil {
		return n, condition.Final(err) // the disk, not the network
	}
	if now := time.Now(); now.Sub(p.last) >= p.every {
		p.last = now
		of := ""
		if p.total > 0 {
			of = fmt.Sprintf(" of %d", p.total>>20)
		}
		p.report(fmt.Sprintf("%d%s MB received", p.n>>20, of))
	}
	return n, nil
}

// parseSum reads a .sha256 file: the sum alone, or lines of sum and file name.
func parseSum(text, file string) (string, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) > 1 {
			// The name may have a directory before it, and a * that says "binary".
			name := strings.TrimPrefix(fields[1], "*")
			if name = name[strings.LastIndexByte(name, '/')+1:]; name != file {
				continue
			}
		}
		sum := strings.ToLower(fields[0])
		if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 {
			return "", fmt.Errorf("%q is not a SHA-256 sum", fields[0])
		}
		return sum, nil
	}
	return "", fmt.Errorf("it has no sum for %s", file)
}
