package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// killGrace is what a program gets between SIGTERM and SIGKILL when its context ends.
	killGrace = 2 * time.Second
	// drainGrace is how long output may be silent after a program exited before it counts as cut off: a background
	// child that inherited the streams must not keep Run from returning.
	drainGrace = 3 * time.Second
)

// shown is what of a command may appear in errors.
func (c Cmd) shown() []string {
	if c.Secret && len(c.Argv) > 1 {
		return []string{c.Argv[0], "[hidden]"}
	}
	return c.Argv
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check finds what no machine can run, alike for every kind of Host.
func (c Cmd) check() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return errors.New("no program named")
	}
	for _, a := range c.Argv {
		if strings.ContainsRune(a, 0) {
			return errors.New("an argument holds a NUL byte")
		}
	}
	for _, kv := range c.Env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || !envName.MatchString(k) {
			// The value may be a secret, and without a good name all of it may be one.
			return errors.New("an environment entry is not NAME=value")
		}
		if strings.ContainsRune(v, 0) {
			return fmt.Errorf("environment variable %s holds a NUL byte", k)
		}
	}
	return nil
}

// checkPath asks for absolute paths: a relative one means another file on every kind of host.
func checkPath(op, p string) error {
	if !path.IsAbs(p) || strings.ContainsRune(p, 0) {
		return &fs.PathError{Op: op, Path: p, Err: fmt.Errorf("want an absolute path: %w", fs.ErrInvalid)}
	}
	return nil
}

// tail keeps the last max bytes that were written to it.
type tail struct {
	max int
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if n >= t.max {
		t.buf = append(t.buf[:0], p[n-t.max:]...)
		return n, nil
	}
	// Twice the room, so that moving the rest down is rare.
	if len(t.buf)+n > 2*t.max {
		keep := t.max - n
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-keep:]...)
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

func (t *tail) Bytes() []byte {
	if len(t.buf) > t.max {
		return t.buf[len(t.buf)-t.max:]
	}
	return t.buf
}

// outputs are the two streams of one run: kept and passed on.
type outputs struct {
	mu   sync.Mutex // Stdout and Stderr of a Cmd may be one writer
	err  error      // the first error of the caller's writers
	done bool       // the run has returned: the caller's writers are no longer ours

	stdout, stderr stream

	// busy counts writes under way; moved is when the last one ended, in Unix nanoseconds.
	busy, moved atomic.Int64
}

// ErrOutputIncomplete is in the *LostError of a program that exited with 0 while its output had not come to its end: a
// child of it holds the streams and was silent for some seconds, or the connection broke. What Result holds may be a part.
var ErrOutputIncomplete = errors.New("the program ended but its output did not: there may be more of it")

// watched notes when bytes come, and that w is at work on them.
func (o *outputs) watched(w io.Writer) io.Writer { return watchedOutput{o, w} }

type watchedOutput struct {
	o *outputs
	w io.Writer
}

func (w watchedOutput) Write(p []byte) (int, error) {
	w.o.busy.Add(1)
	defer func() {
		w.o.moved.Store(time.Now().UnixNano())
		w.o.busy.Add(-1)
	}()
	return w.w.Write(p)
}

// drain waits, after the program's end, until both streams have ended or nothing came for drainGrace. The time that the caller's
// writers take does not count.
func (o *outputs) drain(ctx context.Context, ended <-chan struct{}) error {
	last := time.Now()
	t := time.NewTimer(drainGrace)
	defer t.Stop()
	for {
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return errors.Join(ErrOutputIncomplete, ctx.Err())
		case <-t.C:
		}
		if o.busy.Load() > 0 {
			last = time.Now()
		} else if m := time.Unix(0, o.moved.Load()); m.After(last) {
			last = m
		}
		left := drainGrace - time.Since(last)
		if left <= 0 {
			return ErrOutputIncomplete
		}
		t.Reset(left)
	}
}

type stream struct {
	o    *outputs
	kept tail
	next io.Writer
}

func newOutputs(c Cmd, keep int) *outputs {
	o := &outputs{}
	o.stdout = stream{o: o, kept: tail{max: keep}, next: c.Stdout}
	o.stderr = stream{o: o, kept: tail{max: keep}, next: c.Stderr}
	return o
}

// Write never fails: a caller's full disk must not kill the program with SIGPIPE half-way.
// The error is reported at the end.
func (s *stream) Write(p []byte) (int, error) {
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	if s.o.done {
		return len(p), nil
	}
	if s.kept.max > 0 {
		_, _ = s.kept.Write(p)
	}
	if s.next != nil && s.o.err == nil {
		if _, err := s.next.Write(p); err != nil {
			s.o.err = err
		}
	}
	return len(p), nil
}

// close ends the run's use of the caller's writers and returns what was kept.
func (o *outputs) close(start time.Time) (Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	return Result{Stdout: o.stdout.kept.Bytes(), Stderr: o.stderr.kept.Bytes(), Elapsed: time.Since(start)}, o.err
}

// inputError is a Cmd.Stdin that failed while the program read it.
type inputError struct{ err error }

func (e *inputError) Error() string { return fmt.Sprintf("read its input: %v", e.err) }
func (e *inputError) Unwrap() error { return e.err }

// ctxReader ends with the context's error once it is done.
type ctxReader struct {
	ctx context.Context //nolint:containedctx // lives as long as one call
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// exactly passes on r and fails unless it ends after size bytes.
type exactly struct {
	r    io.Reader
	size int64
	n    int64
}

// SizeError is a stream that had another length than was said.
type SizeError struct {
	Want, Got int64 // bytes; Got is Want+1 for any longer stream
}

func (e *SizeError) Error() string {
	if e.Got > e.Want {
		return fmt.Sprintf("the stream is longer than the %d bytes announced", e.Want)
	}
	return fmt.Sprintf("the stream ended after %d of %d bytes", e.Got, e.Want)
}

func (e *exactly) Read(p []byte) (int, error) {
	if int64(len(p)) > e.size-e.n+1 {
		p = p[:e.size-e.n+1]
	}
	n, err := e.r.Read(p)
	e.n += int64(n)
	if e.n > e.size {
		return n - int(e.n-e.size), &SizeError{Want: e.size, Got: e.n}
	}
	if errors.Is(err, io.EOF) && e.n < e.size {
		return n, &SizeError{Want: e.size, Got: e.n}
	}
	return n, err
}
