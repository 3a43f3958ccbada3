package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belayops/belay/internal/host"
)

// Fake is a machine that does what a test wrote down for it. A command that
// was not written down fails the test. Files are kept in memory.
//
//	f := hosttest.NewFake(t, "cp1")
//	f.On(hosttest.Argv("uname", "-r"), hosttest.Reply{Stdout: "6.1.0\n"})
//	f.Once(hosttest.Prefix("kubeadm", "upgrade"), hosttest.Reply{Err: hosttest.ErrLost})
//	f.SetFile("/etc/hostname", []byte("cp1\n"), 0o644)
type Fake struct {
	t    testing.TB
	name string

	mu     sync.Mutex
	rules  []*rule
	calls  []Call
	files  map[string]fakeFile
	dials  map[string]func(ctx context.Context) (net.Conn, error)
	units  map[string]*fakeUnit
	unitFn []unitRule
	now    time.Time
	closed bool
}

// Call is one command that ran (or did not start) on a Fake.
type Call struct {
	Argv  []string
	Env   []string
	Stdin []byte // what was read of it
}

type fakeFile struct {
	data []byte
	mode fs.FileMode
}

type rule struct {
	match Match
	reply Reply
	left  int // -1: any number of times
	min   int // how many uses are asked for at least
	used  int
}

// Match chooses commands.
type Match struct {
	text string
	fn   func(c host.Cmd) bool
}

func (m Match) String() string { return m.text }

// Argv matches exactly these arguments.
func Argv(argv ...string) Match {
	return Match{fmt.Sprintf("%q", argv), func(c host.Cmd) bool { return slices.Equal(c.Argv, argv) }}
}

// Prefix matches commands that begin with these arguments.
func Prefix(argv ...string) Match {
	return Match{fmt.Sprintf("%q...", argv), func(c host.Cmd) bool {
		return len(c.Argv) >= len(argv) && slices.Equal(c.Argv[:len(argv)], argv)
	}}
}

// Where matches what fn says; text names it in failures.
func Where(text string, fn func(c host.Cmd) bool) Match { return Match{text, fn} }

// Reply is what a command does.
type Reply struct {
	Stdout, Stderr string
	// Code other than 0 becomes a *host.ExitError.
	Code int
	// Err, if set, is returned instead, after the output. See ErrLost and ErrNotStarted.
	Err error
	// Do, if set, does the work, and the rest of the reply is not used. Errors other than the three
	// kinds of package host are returned as they are.
	Do func(ctx context.Context, c host.Cmd) (host.Result, error)
}

// ErrLost and ErrNotStarted as Reply.Err become the errors of package host with the machine's name and the command.
// (Wrap them to say why.)
var (
	ErrLost       = errors.New("connection lost")
	ErrNotStarted = errors.New("connection refused")
)

// NewFake gives an empty machine.
func NewFake(t testing.TB, name string) *Fake {
	f := &Fake{
		t: t, name: name,
		files: map[string]fakeFile{},
		dials: map[string]func(context.Context) (net.Conn, error){},
		units: map[string]*fakeUnit{},
		now:   time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	t.Cleanup(f.checkUsed)
	return f
}

var _ host.Host = (*Fake)(nil)

// On answers every command that matches. The rules that were added last are asked first, so a test can refine
// what its setup laid down.
func (f *Fake) On(m Match, r Reply) { f.add(&rule{match: m, reply: r, left: -1}) }

// Once answers one command that matches; that it never came fails the test.
func (f *Fake) Once(m Match, r Reply) { f.add(&rule{match: m, reply: r, left: 1, min: 1}) }

// Times answers n commands that match; fewer fail the test.
func (f *Fake) Times(n int, m Match, r Reply) { f.add(&rule{match: m, reply: r, left: n, min: n}) }

func (f *Fake) add(r *rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
}

// SetFile puts a file onto the machine.
func (f *Fake) SetFile(name string, data []byte, mode fs.FileMode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[name] = fakeFile{bytes.Clone(data), mode}
}

// File gives a file of the machine and its mode; ok is false if there is none.
func (f *Fake) File(name string) (data []byte, mode fs.FileMode, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, ok := f.files[name]
	return bytes.Clone(file.data), file.mode, ok
}

// RemoveFile takes a file away.
func (f *Fake) RemoveFile(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.files, name)
}

// Files lists the machine's files.
func (f *Fake) Files() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.files))
}

// OnDial serves connections to addr; "*" serves every address without a rule of its own.
func (f *Fake) OnDial(addr string, fn func(ctx context.Context) (net.Conn, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials[addr] = fn
}

// Calls lists the commands so far, without those that belong to units.
func (f *Fake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *Fake) checkUsed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.used < r.min {
			f.t.Errorf("%s: expected %s %d times, saw it %d times", f.name, r.match, r.min, r.used)
		}
	}
}

// Name is the machine's name.
func (f *Fake) Name() string { return f.name }

// Close ends the use of the machine.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// Run answers by the rules.
func (f *Fake) Run(ctx context.Context, c host.Cmd) (host.Result, error) {
	shown := c.Argv
	if c.Secret && len(c.Argv) > 1 {
		shown = []string{c.Argv[0], "[hidden]"}
	}
	notStarted := func(err error) (host.Result, error) {
		return host.Result{}, &host.NotStartedError{Host: f.name, Argv: shown, Err: err}
	}
	f.mu.Lock()
	closed := f.closed
	f.mu.Unlock()
	switch {
	case closed:
		return notStarted(errors.New("used after Close"))
	case ctx.Err() != nil:
		return notStarted(ctx.Err())
	case len(c.Argv) == 0:
		return notStarted(errors.New("no program named"))
	}
	r, ok := f.take(c)
	if !ok {
		if reply, ok := f.unitCommand(ctx, c); ok {
			return f.finish(c, shown, reply)
		}
		f.t.Errorf("%s: unexpected command %q", f.name, c.Argv)
		return notStarted(errors.New("the test expects no such command"))
	}
	if r.Do != nil {
		f.record(c, nil)
		return r.Do(ctx, c)
	}
	var in []byte
	if errors.Is(r.Err, ErrNotStarted) {
		f.record(c, nil)
		return notStarted(r.Err)
	}
	if c.Stdin != nil {
		var err error
		if in, err = io.ReadAll(c.Stdin); err != nil {
			f.record(c, in)
			return host.Result{}, &host.LostError{Host: f.name, Argv: shown, Err: fmt.Errorf("read its input: %w", err)}
		}
	}
	f.record(c, in)
	return f.finish(c, shown, r)
}

func (f *Fake) finish(c host.Cmd, shown []string, r Reply) (host.Result, error) {
	res := host.Result{Stdout: []byte(r.Stdout), Stderr: []byte(r.Stderr), Elapsed: time.Millisecond}
	for _, s := range []struct {
		w    io.Writer
		text string
	}{{c.Stdout, r.Stdout}, {c.Stderr, r.Stderr}} {
		if s.w == nil || s.text == "" {
			continue
		}
		if _, err := io.WriteString(s.w, s.text); err != nil {
			return res, fmt.Errorf("%s: %s: pass on its output: %w", f.name, c.Argv[0], err)
		}
	}
	switch {
	case errors.Is(r.Err, ErrNotStarted):
		return host.Result{}, &host.NotStartedError{Host: f.name, Argv: shown, Err: r.Err}
	case errors.Is(r.Err, ErrLost):
		return res, &host.LostError{Host: f.name, Argv: shown, Err: r.Err}
	case r.Err != nil:
		return res, r.Err
	case r.Code != 0:
		return res, &host.ExitError{Host: f.name, Argv: shown, Code: r.Code, Stdout: res.Stdout, Stderr: res.Stderr}
	}
	return res, nil
}

func (f *Fake) record(c host.Cmd, in []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{Argv: slices.Clone(c.Argv), Env: slices.Clone(c.Env), Stdin: in})
}

// take finds the rule for c and counts its use. A Once beats the On rules that came before it and, when it
// is used up, leaves them to answer.
func (f *Fake) take(c host.Cmd) (Reply, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Counted rules are a script and go in the order in which they were written.
	for _, r := range f.rules {
		if r.left > 0 && r.match.fn(c) {
			r.left--
			r.used++
			return r.reply, true
		}
	}
	for _, r := range slices.Backward(f.rules) {
		if r.left < 0 && r.match.fn(c) {
			r.used++
			return r.reply, true
		}
	}
	return Reply{}, false
}

// ReadFile reads a file that was set or written.
func (f *Fake) ReadFile(ctx context.Context, name string) ([]byte, error) {
	if err := f.checkFile(ctx, "read", name); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("%s: %w", f.name, &fs.PathError{Op: "read", Path: name, Err: err})
	}
	if file, ok := f.files[name]; ok {
		return bytes.Clone(file.data), nil
	}
	if f.isDir(name) {
		return fail(syscall.EISDIR)
	}
	if f.belowFile(name) {
		return fail(syscall.ENOTDIR)
	}
	return fail(fs.ErrNotExist)
}

func (f *Fake) isDir(name string) bool {
	for p := range f.files {
		if strings.HasPrefix(p, strings.TrimSuffix(name, "/")+"/") {
			return true
		}
	}
	return false
}

func (f *Fake) belowFile(name string) bool {
	for d := path.Dir(name); d != "/" && d != "."; d = path.Dir(d) {
		if _, ok := f.files[d]; ok {
			return true
		}
	}
	return false
}

// WriteFile keeps a file.
func (f *Fake) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	return f.Upload(ctx, name, bytes.NewReader(data), int64(len(data)), mode)
}

// Upload keeps a file.
func (f *Fake) Upload(ctx context.Context, name string, r io.Reader, size int64, mode fs.FileMode) error {
	if err := f.checkFile(ctx, "write", name); err != nil {
		return err
	}
	data, err := io.ReadAll(r)
	if err == nil && int64(len(data)) != size {
		err = &host.SizeError{Want: size, Got: int64(len(data))}
	}
	if err != nil {
		return fmt.Errorf("%s: write %s: %w", f.name, name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isDir(name) || f.belowFile(name) {
		return fmt.Errorf("%s: %w", f.name, &fs.PathError{Op: "write", Path: name, Err: syscall.EISDIR})
	}
	f.files[name] = fakeFile{data, mode}
	return nil
}

// checkFile lets rules stop file access: they match the command {"read", path} or {"write", path}.
func (f *Fake) checkFile(ctx context.Context, op, name string) error {
	c := host.Cmd{Argv: []string{op, name}}
	if err := ctx.Err(); err != nil {
		return &host.NotStartedError{Host: f.name, Argv: c.Argv, Err: err}
	}
	if !path.IsAbs(name) {
		return fmt.Errorf("%s: %w", f.name, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid})
	}
	if r, ok := f.take(c); ok {
		_, err := f.finish(c, c.Argv, r)
		return err
	}
	return nil
}

// Dial uses the functions given to OnDial.
func (f *Fake) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	f.mu.Lock()
	fn, ok := f.dials[addr]
	if !ok {
		fn, ok = f.dials["*"]
	}
	f.mu.Unlock()
	if !ok {
		f.t.Errorf("%s: unexpected dial of %s", f.name, addr)
		fn = func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
	}
	c, err := fn(ctx)
	if err != nil {
		return nil, &host.NotStartedError{Host: f.name, Argv: []string{"dial " + addr}, Err: err}
	}
	return c, nil
}
