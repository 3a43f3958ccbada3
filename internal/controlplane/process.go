package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process has after SIGTERM before SIGKILL.
const stopGrace = 15 * time.Second

// ExitedError is a server that ended although nobody stopped it.
type ExitedError struct {
	// Name is the program, Log the file with its whole output.
	Name, Log string
	// State is how it ended, Tail the last lines of its output.
	State string
	Tail  string
}

func (e *ExitedError) Error() string {
	return fmt.Sprintf("%s ended (%s); its last words, from %s:\n%s", e.Name, e.State, e.Log, e.Tail)
}

// process is one running program whose output goes to a file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	// done is closed when the program has ended and was waited for.
	done chan struct{}

	mu       sync.Mutex
	stopping bool
	state    string
}

// startProcess starts a program. Output is appended to logPath (0600).
func startProcess(name, logPath, bin string, args []string) (*process, error) {
	if err := os.MkdirAll(filepath.Dir(logPath), 0o700); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, log: logPath, done: make(chan struct{})}
	p.cmd = exec.Command(bin, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A proxy setting of the user is none of these servers' business.
	p.cmd.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*", "ETCD_UNSUPPORTED_ARCH="+runtime.GOARCH)
	p.cmd.SysProcAttr = sysProcAttr()

	started := make(chan error, 1)
	go func() {
		// The parent-death signal is tied to the thread that forked, so that
		// thread is kept until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer out.Close()
		if err := p.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		err := p.cmd.Wait()
		p.mu.Lock()
		p.state = "exit code 0"
		if err != nil {
			p.state = err.Error()
		}
		p.mu.Unlock()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s from %s: %w", name, bin, err)
	}
	return p, nil
}

// err is nil while the program runs and after it was stopped, else an *ExitedError.
func (p *process) err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return nil
	}
	return &ExitedError{Name: p.name, Log: p.log, State: p.state, Tail: tail(p.log, 20)}
}

// stop asks the program to end, insists after stopGrace or when ctx ends, and waits for it.
func (p *process) stop(ctx context.Context) error {
	p.mu.Lock()
	first := !p.stopping
	early := false
	select {
	case <-p.done:
		early = first
	default:
	}
	if !early {
		p.stopping = true
	}
	p.mu.Unlock()
	if early {
		return p.err()
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	return p.kill()
}

func (p *process) kill() error {
	p.mu.Lock()
	p.stopping = true
	p.mu.Unlock()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// tail gives the last n lines of a file, reading at most 64 KiB of it.
func tail(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > 64<<10 {
		if _, err := f.Seek(-64<<10, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// freePorts gives n different TCP ports of 127.0.0.1 that nobody listens on at this moment.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("choose a port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// taken says whether one of the ports is in use by now.
func taken(ports []int) bool {
	for _, p := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return true
		}
		l.Close()
	}
	return false
}
