package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
)

// NewLocal is this computer. name is how it is called in errors and plans.
func NewLocal(name string) Host { return &local{name: name} }

type local struct{ name string }

var _ Host = (*local)(nil)

func (l *local) Name() string { return l.name }

func (l *local) Close() error { return nil }

// Run starts the program in a process group of its own. When the context ends
// the group gets SIGTERM and, two seconds later, SIGKILL.
func (l *local) Run(ctx context.Context, c Cmd) (Result, error) {
	notStarted := func(err error) (Result, error) {
		return Result{}, &NotStartedError{Host: l.name, Argv: c.shown(), Err: err}
	}
	if err := c.check(); err != nil {
		return notStarted(err)
	}
	if err := ctx.Err(); err != nil {
		return notStarted(err)
	}
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	cmd := exec.CommandContext(run, c.Argv[0], c.Argv[1:]...) //nolint:gosec // running what it is told is what a host is for
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if len(c.Env) > 0 {
		cmd.Env = append(os.Environ(), c.Env...)
	}
	out := newOutputs(c, MaxOutput)
	var input *watchedInput
	var feed io.WriteCloser
	if c.Stdin != nil {
		input = &watchedInput{r: c.Stdin, fail: func(err error) { cancel(&inputError{err}) }}
		var err error
		if feed, err = cmd.StdinPipe(); err != nil {
			return notStarted(err)
		}
	}
	var kill *time.Timer
	cmd.Cancel = func() error {
		pgid := cmd.Process.Pid
		kill = time.AfterFunc(killGrace, func() { _ = syscall.Kill(-pgid, syscall.SIGKILL) })
		err := syscall.Kill(-pgid, syscall.SIGTERM)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = killGrace + time.Second

	// Pipes of its own: what exec copies itself it drops after a fixed time.
	streams, err := newPipes(cmd)
	if err != nil {
		return notStarted(err)
	}
	start := time.Now()
	err = cmd.Start()
	streams.started()
	if err != nil {
		streams.stop()
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
			err = noSuchProgram(127)
		case errors.Is(err, fs.ErrPermission):
			err = noSuchProgram(126)
		}
		return notStarted(err)
	}
	if input != nil {
		// Not by exec's own copying: that would wait for a source that never ends after the program has.
		go func() {
			copyAll(feed, input)
			// A source that breaks must not look to the program like its end.
			if !input.failed() {
				_ = feed.Close()
			}
		}()
	}
	ended := streams.copy(out)
	err = cmd.Wait()
	if kill != nil && kill.Stop() {
		// The leader is gone, what it left behind in its group goes too.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	rest := ctx
	if ctx.Err() != nil || run.Err() != nil {
		// What was killed may have had last words.
		var stop context.CancelFunc
		rest, stop = context.WithTimeout(context.WithoutCancel(ctx), drainGrace)
		defer stop()
	}
	cut := out.drain(rest, ended)
	streams.stop()
	res, outErr := out.close(start)
	state := cmd.ProcessState
	if run.Err() != nil && (err != nil || input.failed()) {
		return res, &LostError{Host: l.name, Argv: c.shown(), Err: context.Cause(run)}
	}
	switch {
	case state == nil:
		return res, &LostError{Host: l.name, Argv: c.shown(), Err: err}
	case !state.Success():
		return res, &ExitError{Host: l.name, Argv: c.shown(), Code: exitCode(state), Stdout: res.Stdout, Stderr: res.Stderr}
	case cut != nil:
		return res, &LostError{Host: l.name, Argv: c.shown(), Err: cut}
	case outErr != nil:
		return res, fmt.Errorf("%s: %s: pass on its output: %w", l.name, c.Argv[0], outErr)
	}
	return res, nil
}

// pipes are the two output streams of a program.
type pipes struct{ outR, outW, errR, errW *os.File }

func newPipes(cmd *exec.Cmd) (*pipes, error) {
	var p pipes
	var err error
	if p.outR, p.outW, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.errR, p.errW, err = os.Pipe(); err != nil {
		return nil, errors.Join(err, p.outR.Close(), p.outW.Close())
	}
	cmd.Stdout, cmd.Stderr = p.outW, p.errW
	return &p, nil
}

// started gives up the ends that are the program's.
func (p *pipes) started() {
	_ = p.outW.Close()
	_ = p.errW.Close()
}

// stop ends the copying.
func (p *pipes) stop() {
	_ = p.outR.Close()
	_ = p.errR.Close()
}

// copy passes on both streams; the channel is closed when both have ended.
func (p *pipes) copy(out *outputs) <-chan struct{} {
	ended := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() { copyAll(out.watched(&out.stdout), p.outR) })
	both.Go(func() { copyAll(out.watched(&out.stderr), p.errR) })
	go func() {
		both.Wait()
		close(ended)
	}()
	return ended
}

// noSuchProgram is the reason of a NotStartedError for the exit codes that shells
// give to a missing (127) and a non-executable (126) program.
func noSuchProgram(code int) error {
	if code == 126 {
		return fmt.Errorf("the program is not executable there: %w", fs.ErrPermission)
	}
	return fmt.Errorf("there is no such program there: %w", fs.ErrNotExist)
}

func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// watchedInput reports a read error other than EOF, once.
type watchedInput struct {
	r    io.Reader
	fail func(error)
	bad  atomic.Bool
}

func (w *watchedInput) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		w.bad.Store(true)
		w.fail(err)
	}
	return n, err
}

func (w *watchedInput) failed() bool { return w != nil && w.bad.Load() }

func (l *local) ReadFile(ctx context.Context, path string) ([]byte, error) {
	if err := checkPath("read", path); err != nil {
		return nil, fmt.Errorf("%s: %w", l.name, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.name, err)
	}
	b, err := io.ReadAll(ctxReader{ctx, f})
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: read %s: %w", l.name, path, err)
	}
	return b, nil
}

func (l *local) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return l.Upload(ctx, path, bytes.NewReader(data), int64(len(data)), mode)
}

func (l *local) Upload(ctx context.Context, path string, r io.Reader, size int64, mode fs.FileMode) error {
	if err := l.upload(ctx, path, r, size, mode); err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	return nil
}

func (l *local) upload(ctx context.Context, path string, r io.Reader, size int64, mode fs.FileMode) (err error) {
	if err := checkPath("write", path); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := atomicfile.Create(path, mode.Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, &exactly{r: ctxReader{ctx, r}, size: size}); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.Abort())
	}
	return f.Commit()
}

func (l *local) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, &NotStartedError{Host: l.name, Argv: []string{"dial " + addr}, Err: err}
	}
	return c, nil
}
