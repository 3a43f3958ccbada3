package testenv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// command is one program of this computer.
type command struct {
	argv  []string
	stdin string
	// lock, if set, is inherited: whoever waits for the lock also waits for the end of this
	// program should our process be killed.
	lock *os.File
	// dieWithParent kills the program when our process ends.
	dieWithParent bool
	// line receives each line of standard error as it comes.
	line func(string)
	// output, if set, receives both streams. For programs that leave children which keep them open.
	output *os.File
}

// commandError is a program of this computer that did not succeed.
type commandError struct {
	argv   []string
	stderr string
	err    error
}

func (e *commandError) Error() string {
	s := fmt.Sprintf("%s: %v", strings.Join(e.argv, " "), e.err)
	if e.stderr != "" {
		s += ": " + e.stderr
	}
	return s
}

func (e *commandError) Unwrap() error { return e.err }

// run runs a program to its end and gives what it printed.
func run(ctx context.Context, c command) (string, error) {
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.WaitDelay = 5 * time.Second
	if c.stdin != "" {
		cmd.Stdin = strings.NewReader(c.stdin)
	}
	var stdout bytes.Buffer
	stderr := &tail{line: c.line}
	if c.output != nil {
		cmd.Stdout, cmd.Stderr = c.output, c.output
	} else {
		cmd.Stdout, cmd.Stderr = &stdout, stderr
	}
	if c.lock != nil {
		cmd.ExtraFiles = []*os.File{c.lock}
	}
	if c.dieWithParent {
		// The kernel sends the signal when the thread that started the child ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		setDieWithParent(cmd)
	}
	err := cmd.Run()
	stderr.flush()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return stdout.String(), &commandError{argv: c.argv, stderr: stderr.text(), err: err}
	}
	return stdout.String(), nil
}

// tail keeps the last lines of a stream and hands each on.
type tail struct {
	mu    sync.Mutex
	part  []byte
	lines []string
	line  func(string)
}

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.part = append(t.part, p...)
	for {
		i := bytes.IndexByte(t.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		t.keep(string(t.part[:i]))
		t.part = t.part[i+1:]
	}
}

func (t *tail) keep(s string) {
	s = strings.TrimRight(s, "\r ")
	if s == "" {
		return
	}
	if t.lines = append(t.lines, s); len(t.lines) > 10 {
		t.lines = t.lines[1:]
	}
	if t.line != nil {
		t.line(s)
	}
}

func (t *tail) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep(string(t.part))
	t.part = nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "; ")
}

// fileTail gives the last n lines of a file, or nothing.
func fileTail(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var lines []string
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if lines = append(lines, sc.Text()); len(lines) > n {
			lines = lines[1:]
		}
	}
	return strings.Join(lines, "\n")
}
