package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

// wrapper is what the login shell is told to run, always the same but for the mark, $1.
//
// It reads the work itself (shell assignments and `set --`, quoted) from standard input up to a line
// that is the mark, so that arguments and environment stand in no process list and no sudo log, and so
// that the moment before which nothing can have started is known: before the mark was sent. A connection that ends earlier ends the
// script. Then it says on both streams that it is about to become the program (what login scripts
// printed before is thereby told from the program's own output), with its process group, by which the program can be killed; or that there is no
// such program, which a bare exit code 127 would not tell from a program that exits with 127.
const wrapper = `_b_mark=$1 _b_work= _b_go=
while IFS= read -r _b_line; do
if [ "$_b_line" = "$_b_mark" ]; then _b_go=1; break; fi
_b_work="$_b_work$_b_line
"
done
[ -n "$_b_go" ] || exit 125
eval "$_b_work"
_b_prog=
case $1 in
*/*) _b_prog=$1 ;;
*) set -f; _b_ifs=$IFS; IFS=:
for _b_dir in $PATH; do
if [ -n "$_b_dir" ] && [ -f "$_b_dir/$1" ] && [ -x "$_b_dir/$1" ]; then _b_prog=$_b_dir/$1; break; fi
done
IFS=$_b_ifs; set +f ;;
esac
_b_say() { printf '\n%s %s\n' "$_b_mark" "$1" >&2; }
if [ -z "$_b_prog" ] || [ ! -e "$_b_prog" ]; then _b_say 'no 127'; exit 127; fi
if [ -d "$_b_prog" ] || [ ! -x "$_b_prog" ]; then _b_say 'no 126'; exit 126; fi
_b_group=$$
if [ -r /proc/$$/stat ]; then read -r _b_x _b_x _b_x _b_x _b_group _b_x </proc/$$/stat; fi
printf '\n%s\n' "$_b_mark"
_b_say "go $_b_group"
shift
exec "$_b_prog" "$@"
`

// work is what the wrapper reads, without the mark.
func work(c Cmd) string {
	var b strings.Builder
	for _, kv := range c.Env {
		k, v, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&b, "export %s=%s\n", k, Quote(v))
	}
	fmt.Fprintf(&b, "set -- %s\n", QuoteAll(c.Argv))
	return b.String()
}

func (h *sshHost) sudo(command string) string {
	if h.cfg.Sudo && h.cfg.User != "root" {
		return "exec sudo -n -- " + command
	}
	return "exec " + command
}

func (h *sshHost) Run(ctx context.Context, c Cmd) (Result, error) {
	return h.run(ctx, c, c.shown(), MaxOutput)
}

// run is Run with other words for errors and another bound on what is kept.
func (h *sshHost) run(ctx context.Context, c Cmd, shown []string, keep int) (Result, error) {
	notStarted := func(err error) (Result, error) {
		return Result{}, &NotStartedError{Host: h.cfg.Name, Argv: shown, Err: err}
	}
	if err := c.check(); err != nil {
		return notStarted(err)
	}
	mark := "belay-" + rand.Text()
	if err := ctx.Err(); err != nil {
		return notStarted(err)
	}
	select {
	case h.sem <- struct{}{}:
		defer func() { <-h.sem }()
	case <-ctx.Done():
		return notStarted(fmt.Errorf("wait for one of %d sessions: %w", cap(h.sem), ctx.Err()))
	}
	start := time.Now()
	conn, ch, reqs, err := h.exec(ctx, h.sudo("/bin/sh -c "+Quote(wrapper)+" belay "+mark))
	if err != nil {
		return notStarted(err)
	}
	s := newSession(ch, reqs, mark, newOutputs(c, keep))
	defer s.close()
	s.feed(work(c), mark, c.Stdin)

	ended, err := s.wait(ctx)
	if err != nil {
		h.kill(conn, s)
		// What is still to come (a trap's last words) belongs to the output.
		res, _ := s.out.close(start)
		if !s.mayHaveStarted() {
			return notStarted(err)
		}
		return res, &LostError{Host: h.cfg.Name, Argv: shown, Err: err}
	}
	cut := s.drain(ctx, conn)
	res, outErr := s.out.close(start)
	state, code := s.began()
	switch {
	case state == wrapperSaidNo:
		return notStarted(noSuchProgram(code))
	case state == wrapperSilent && s.mayHaveStarted() && !ended.known:
		return res, &LostError{Host: h.cfg.Name, Argv: shown, Err: h.lost(conn)}
	case state == wrapperSilent:
		// Refused by sudo, a forced command, a locked account: whatever ran, it was not the program.
		return notStarted(fmt.Errorf("log in works but no command can be run%s (exit code %d)", noise(s.noise()), ended.code))
	case !ended.known:
		return res, &LostError{Host: h.cfg.Name, Argv: shown, Err: h.lost(conn)}
	case ended.code != 0:
		return res, &ExitError{Host: h.cfg.Name, Argv: shown, Code: ended.code, Stdout: res.Stdout, Stderr: res.Stderr}
	case cut != nil:
		return res, &LostError{Host: h.cfg.Name, Argv: shown, Err: cut}
	case outErr != nil:
		return res, fmt.Errorf("%s: %s: pass on its output: %w", h.cfg.Name, shown[0], outErr)
	}
	return res, nil
}

func noise(b []byte) string {
	if s := lastLines(b, 3); s != "" {
		return ": " + s
	}
	return ""
}

// lost says why a session ended without an exit status.
func (h *sshHost) lost(conn *sshConn) error {
	// The connection's end is noticed by another goroutine than the session's.
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-conn.dead:
		return fmt.Errorf("connection to %s lost: %w", h.cfg.Address, orEOF(conn.err))
	case <-t.C:
		return errors.New("the SSH server ended the session without an exit status")
	}
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// exec opens a session and has command accepted. As nothing has begun when it fails, it tries once more
// over a new connection if the old one turns out to be dead.
func (h *sshHost) exec(ctx context.Context, command string) (*sshConn, ssh.Channel, <-chan *ssh.Request, error) {
	for attempt := 0; ; attempt++ {
		conn, fresh, err := h.connect(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		ch, reqs, err := conn.exec(ctx, command)
		if err == nil {
			return conn, ch, reqs, nil
		}
		refused := (*ssh.OpenChannelError)(nil)
		switch {
		case errors.As(err, &refused):
			return nil, nil, nil, fmt.Errorf("%w (sshd's MaxSessions may be below the %d sessions used here)", err, cap(h.sem))
		case errors.Is(err, errExecRefused), ctx.Err() != nil, fresh, attempt > 0:
			return nil, nil, nil, err
		}
		_ = conn.Close()
		<-conn.dead
	}
}

var errExecRefused = errors.New("the SSH server refuses to run commands for this user")

// exec opens one session on this connection. It returns when ctx ends, whatever the network does.
func (c *sshConn) exec(ctx context.Context, command string) (ssh.Channel, <-chan *ssh.Request, error) {
	type opened struct {
		ch   ssh.Channel
		reqs <-chan *ssh.Request
		err  error
	}
	result := make(chan opened, 1)
	go func() {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err != nil {
			result <- opened{err: err}
			return
		}
		ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{command}))
		if err == nil && !ok {
			err = errExecRefused
		}
		if err != nil {
			_ = ch.Close()
			go ssh.DiscardRequests(reqs)
		}
		result <- opened{ch, reqs, err}
	}()
	select {
	case o := <-result:
		return o.ch, o.reqs, o.err
	case <-ctx.Done():
		go func() {
			// Too late: the wrapper reads an end of file and starts nothing.
			if o := <-result; o.err == nil {
				_ = o.ch.Close()
				ssh.DiscardRequests(o.reqs)
			}
		}()
		return nil, nil, ctx.Err()
	}
}

// session is one program under way.
type session struct {
	ch   ssh.Channel
	out  *outputs
	mark string

	fate   atomic.Int32  // fateOpen, then either of the others for good
	input  chan error    // a Stdin that failed
	exit   chan exited   // the exit status or signal
	over   chan struct{} // closed when no more requests come
	quiet  chan struct{} // closed when both streams have ended
	spoke  chan struct{} // closed when the wrapper has said how it goes on
	stderr *markedWriter
}

type exited struct {
	known bool
	code  int
}

func newSession(ch ssh.Channel, reqs <-chan *ssh.Request, mark string, out *outputs) *session {
	s := &session{
		ch: ch, out: out, mark: mark,
		input: make(chan error, 1),
		exit:  make(chan exited, 1),
		over:  make(chan struct{}),
		quiet: make(chan struct{}),
		spoke: make(chan struct{}),
	}
	s.stderr = &markedWriter{mark: mark, next: &out.stderr, found: func() { close(s.spoke) }}
	stdout := &markedWriter{mark: mark, next: &out.stdout}
	var streams sync.WaitGroup
	streams.Go(func() { copyAll(out.watched(stdout), ch) })
	streams.Go(func() { copyAll(out.watched(s.stderr), ch.Stderr()) })
	go func() {
		streams.Wait()
		close(s.quiet)
	}()
	go func() {
		defer close(s.over)
		for r := range reqs {
			if e, ok := exitOf(r); ok {
				select {
				case s.exit <- e:
				default: // only the first counts
				}
			}
			if r.WantReply {
				_ = r.Reply(false, nil)
			}
		}
	}()
	return s
}

// feed sends the work, the mark and then the program's own input.
func (s *session) feed(work, mark string, stdin io.Reader) {
	go func() {
		if _, err := io.WriteString(s.ch, work); err != nil {
			return
		}
		if !s.fate.CompareAndSwap(fateOpen, fateSent) {
			return
		}
		if _, err := io.WriteString(s.ch, mark+"\n"); err != nil {
			return
		}
		if stdin != nil {
			in := &watchedInput{r: stdin, fail: func(err error) { s.input <- err }}
			buf := make([]byte, 256<<10)
			_, _ = io.CopyBuffer(struct{ io.Writer }{s.ch}, in, buf)
			if in.failed() {
				return // without an end of file: the program must not take this for the whole
			}
		}
		_ = s.ch.CloseWrite()
	}()
}

// The fate of a session is decided once: either the mark is sent, and the program may have
// started, or the session is given up before, and it never will.
const (
	fateOpen int32 = iota
	fateSent
	fateGivenUp
)

func (s *session) mayHaveStarted() bool {
	return !s.fate.CompareAndSwap(fateOpen, fateGivenUp) && s.fate.Load() == fateSent
}

// wait returns when the program has ended, or with the reason to give up on it.
func (s *session) wait(ctx context.Context) (exited, error) {
	select {
	case e := <-s.exit:
		return e, nil
	case err := <-s.input:
		return exited{}, &inputError{err}
	case <-ctx.Done():
		return exited{}, ctx.Err()
	case <-s.over:
	}
	select {
	case e := <-s.exit:
		return e, nil
	default:
		return exited{}, nil // no status will come; what was read until now is all there is
	}
}

// drain waits for the end of the output. A connection that breaks ends the streams like the machine does: what is there
// then may be a part.
func (s *session) drain(ctx context.Context, conn *sshConn) error {
	if err := s.out.drain(ctx, s.quiet); err != nil {
		return err
	}
	if conn.broken.Load() || !conn.alive() {
		return fmt.Errorf("%w: the connection was lost", ErrOutputIncomplete)
	}
	return nil
}

type wrapperState int

const (
	wrapperSilent wrapperState = iota
	wrapperSaidNo
	wrapperSaidGo
)

// began tells what the wrapper said: the code for "no", the process group for "go".
func (s *session) began() (wrapperState, int) {
	select {
	case <-s.spoke:
	default:
		return wrapperSilent, 0
	}
	word, number, _ := strings.Cut(s.stderr.rest, " ")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil || n <= 1: // never signal "everything"
		return wrapperSilent, 0
	case word == "no":
		return wrapperSaidNo, n
	case word == "go":
		return wrapperSaidGo, n
	}
	return wrapperSilent, 0
}

// close ends the session and waits, not for long, until the server has done so too: it counts those that are open.
func (s *session) close() {
	_ = s.ch.Close()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-s.over:
	case <-t.C:
	}
}

// noise is what came on stderr before the wrapper spoke. Only for when quiet is closed or spoke is not.
func (s *session) noise() []byte {
	select {
	case <-s.quiet:
		return s.stderr.before
	default:
		return nil
	}
}

// kill ends the program: SIGTERM to its process group, later SIGKILL. It takes at most some seconds.
func (h *sshHost) kill(conn *sshConn, s *session) {
	if !s.mayHaveStarted() || !conn.alive() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killGrace+5*time.Second) //nolint:forbidigo // the caller's context has just ended, that is why
	defer cancel()
	select {
	case <-s.spoke:
	case <-s.over:
		return
	case <-ctx.Done():
		return
	}
	state, group := s.began()
	if state != wrapperSaidGo {
		return
	}
	for _, sig := range []string{"TERM", "KILL"} {
		if ch, reqs, err := conn.exec(ctx, h.sudo(fmt.Sprintf("/bin/sh -c 'kill -s %s -- -%d'", sig, group))); err == nil {
			go copyAll(io.Discard, ch)
			go copyAll(io.Discard, ch.Stderr())
			ssh.DiscardRequests(reqs)
			_ = ch.Close()
		}
		t := time.NewTimer(killGrace)
		select {
		case <-s.exit:
			t.Stop()
			if sig == "TERM" {
				continue // the leader is gone, what it left behind in its group goes too
			}
		case <-s.over:
			t.Stop()
		case <-t.C:
		}
	}
	select {
	case <-s.quiet:
	case <-ctx.Done():
	}
}

// exitOf reads how a program ended from a request of the server (RFC 4254, 6.10).
func exitOf(r *ssh.Request) (exited, bool) {
	switch r.Type {
	case "exit-status":
		var m struct{ Status uint32 }
		if ssh.Unmarshal(r.Payload, &m) == nil {
			return exited{known: true, code: int(m.Status)}, true
		}
	case "exit-signal":
		var m struct {
			Signal    string
			Core      bool
			Text, Tag string
		}
		if ssh.Unmarshal(r.Payload, &m) == nil {
			return exited{known: true, code: 128 + signalNumber(m.Signal)}, true
		}
	}
	return exited{}, false
}

// signalNumber knows the names of RFC 4254 with their numbers on Linux; 0 for others.
func signalNumber(name string) int {
	switch ssh.Signal(strings.TrimSuffix(name, "@openssh.com")) {
	case ssh.SIGABRT:
		return int(syscall.SIGABRT)
	case ssh.SIGALRM:
		return int(syscall.SIGALRM)
	case ssh.SIGFPE:
		return int(syscall.SIGFPE)
	case ssh.SIGHUP:
		return int(syscall.SIGHUP)
	case ssh.SIGILL:
		return int(syscall.SIGILL)
	case ssh.SIGINT:
		return int(syscall.SIGINT)
	case ssh.SIGKILL:
		return int(syscall.SIGKILL)
	case ssh.SIGPIPE:
		return int(syscall.SIGPIPE)
	case ssh.SIGQUIT:
		return int(syscall.SIGQUIT)
	case ssh.SIGSEGV:
		return int(syscall.SIGSEGV)
	case ssh.SIGTERM:
		return int(syscall.SIGTERM)
	case ssh.SIGUSR1:
		return 10
	case ssh.SIGUSR2:
		return 12
	}
	return 0
}

// markedWriter holds back what comes before the line that begins with mark, and passes on what comes after it.
type markedWriter struct {
	mark  string
	next  io.Writer
	found func()

	done   bool
	before []byte
	rest   string // of the mark's line, after the mark and a blank
}

// maxNoise bounds what login scripts may print, in bytes.
const maxNoise = 1 << 20

func (w *markedWriter) Write(p []byte) (int, error) {
	if w.done {
		return w.next.Write(p)
	}
	n := len(p)
	w.before = append(w.before, p...)
	at := bytes.Index(w.before, []byte("\n"+w.mark))
	if at < 0 {
		if len(w.before) > maxNoise {
			w.before = append([]byte(nil), w.before[len(w.before)-maxNoise/2:]...)
		}
		return n, nil
	}
	line := w.before[at+1:]
	end := bytes.IndexByte(line, '\n')
	if end < 0 {
		return n, nil
	}
	w.rest = strings.TrimPrefix(string(line[len(w.mark):end]), " ")
	after := line[end+1:]
	w.before, w.done = w.before[:at], true
	if w.found != nil {
		w.found()
	}
	if len(after) > 0 {
		if _, err := w.next.Write(after); err != nil {
			return n, err
		}
	}
	return n, nil
}

// copyAll copies until either side ends; who calls it learns of the end by other ways.
func copyAll(dst io.Writer, src io.Reader) {
	buf := make([]byte, 64<<10)
	_, _ = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf)
}
