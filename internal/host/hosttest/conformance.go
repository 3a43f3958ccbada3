package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/belayops/belay/internal/host"
)

// Conformance is what every host.Host does. newHost gives a machine that runs
// real programs (/bin/sh, cat, sleep), and on which the test's temporary
// directories exist or can be made.
func Conformance(t *testing.T, newHost func(t *testing.T) host.Host) {
	t.Run("run", func(t *testing.T) { conformRun(t, newHost(t)) })
	t.Run("errors", func(t *testing.T) { conformErrors(t, newHost(t)) })
	t.Run("context", func(t *testing.T) { conformContext(t, newHost(t)) })
	t.Run("files", func(t *testing.T) { conformFiles(t, newHost(t)) })
	t.Run("upload", func(t *testing.T) { conformUpload(t, newHost(t)) })
	t.Run("dial", func(t *testing.T) { conformDial(t, newHost(t)) })
	t.Run("parallel", func(t *testing.T) { conformParallel(t, newHost(t)) })
}

// sh is a command for the shell.
func sh(script string, args ...string) host.Cmd {
	return host.Cmd{Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...)}
}

func conformRun(t *testing.T, h host.Host) {
	if h.Name() == "" {
		t.Error("the host has no name")
	}
	t.Run("keeps and streams both outputs", func(t *testing.T) {
		var out, errs bytes.Buffer
		c := sh("echo out; echo err >&2")
		c.Stdout, c.Stderr = &out, &errs
		res, err := h.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for got, want := range map[string]string{
			string(res.Stdout): "out\n", string(res.Stderr): "err\n", out.String(): "out\n", errs.String(): "err\n",
		} {
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if res.Elapsed <= 0 {
			t.Error("no elapsed time")
		}
	})
	t.Run("one writer for both outputs", func(t *testing.T) {
		var both bytes.Buffer
		c := sh("for i in 1 2 3 4 5 6 7 8 9; do echo out; echo err >&2; done")
		c.Stdout, c.Stderr = &both, &both
		if _, err := h.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(both.String(), "\n"); n != 18 {
			t.Errorf("%d lines, want 18", n)
		}
	})
	t.Run("streams before the end", func(t *testing.T) {
		r, w := io.Pipe()
		in, feed := io.Pipe()
		c := sh("echo ready; read x; echo got $x")
		c.Stdout, c.Stdin = w, in
		done := make(chan error, 1)
		go func() {
			_, err := h.Run(t.Context(), c)
			done <- errors.Join(err, w.Close())
		}()
		line := make([]byte, 6)
		if _, err := io.ReadFull(r, line); err != nil || string(line) != "ready\n" {
			t.Fatalf("read %q, %v", line, err)
		}
		if _, err := io.WriteString(feed, "word\n"); err != nil {
			t.Fatal(err)
		}
		if err := feed.Close(); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(r)
		if err != nil || string(rest) != "got word\n" {
			t.Errorf("read %q, %v", rest, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("passes arguments as they are", func(t *testing.T) {
		args := []string{"", " ", "a b", "$HOME", "`id`", `'`, `"`, `\`, `\'`, "*", "~", "-n", "--", "!x", "line\nbreak", "tab\t", "ünïcode", "\x01\xff", ";", "&&", "#", "{a,b}", "$'x'"}
		res, err := h.Run(t.Context(), sh(`for a; do printf '<%s>' "$a"; done`, args...))
		if err != nil {
			t.Fatal(err)
		}
		if want := "<" + strings.Join(args, "><") + ">"; string(res.Stdout) != want {
			t.Errorf("got  %q\nwant %q", res.Stdout, want)
		}
	})
	t.Run("passes the environment as it is", func(t *testing.T) {
		c := sh(`printf '%s|%s' "$BELAY_ONE" "$BELAY_TWO"`)
		c.Env = []string{"BELAY_ONE=it's\n$HOME \\", "BELAY_TWO="}
		res, err := h.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if want := "it's\n$HOME \\|"; string(res.Stdout) != want {
			t.Errorf("got %q, want %q", res.Stdout, want)
		}
	})
	t.Run("finds programs in PATH", func(t *testing.T) {
		res, err := h.Run(t.Context(), host.Cmd{Argv: []string{"echo", "hello"}})
		if err != nil || string(res.Stdout) != "hello\n" {
			t.Errorf("got %q, %v", res.Stdout, err)
		}
	})
	t.Run("feeds stdin and its end", func(t *testing.T) {
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB, more than any pipe holds
		c := host.Cmd{Argv: []string{"cat"}, Stdin: iotest.OneByteReader(bytes.NewReader(data[:100]))}
		if res, err := h.Run(t.Context(), c); err != nil || !bytes.Equal(res.Stdout, data[:100]) {
			t.Errorf("short: %d bytes, %v", len(res.Stdout), err)
		}
		c.Stdin = bytes.NewReader(data)
		if res, err := h.Run(t.Context(), c); err != nil || !bytes.Equal(res.Stdout, data) {
			t.Errorf("long: %d bytes, %v", len(res.Stdout), err)
		}
	})
	t.Run("no stdin is an empty one", func(t *testing.T) {
		if res, err := h.Run(t.Context(), host.Cmd{Argv: []string{"cat"}}); err != nil || len(res.Stdout) != 0 {
			t.Errorf("got %q, %v", res.Stdout, err)
		}
	})
	t.Run("a program may leave stdin unread", func(t *testing.T) {
		r, w := io.Pipe() // never written, never closed while the program runs
		defer func() { _ = w.Close() }()
		c := sh("exit 0")
		c.Stdin = r
		if _, err := h.Run(t.Context(), c); err != nil {
			t.Error(err)
		}
		c = sh("exit 0")
		c.Stdin = bytes.NewReader(make([]byte, 8<<20))
		if _, err := h.Run(t.Context(), c); err != nil {
			t.Error(err)
		}
	})
	t.Run("a background child does not hold it", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		res, err := h.Run(ctx, sh("echo told; sleep 25 & exit 0"))
		if e := (*host.LostError)(nil); !errors.As(err, &e) || !errors.Is(err, host.ErrOutputIncomplete) || ctx.Err() != nil {
			t.Errorf("got %v, want a LostError that wraps ErrOutputIncomplete", err)
		}
		if string(res.Stdout) != "told\n" {
			t.Errorf("got %q", res.Stdout)
		}
		// A code says more than that.
		_, err = h.Run(ctx, sh("sleep 25 & exit 3"))
		if e := (*host.ExitError)(nil); !errors.As(err, &e) || e.Code != 3 {
			t.Errorf("got %v, want exit code 3", err)
		}
	})
	t.Run("output that comes after the end is waited for", func(t *testing.T) {
		res, err := h.Run(t.Context(), sh("for i in 1 2 3 4 5; do sleep 1; echo $i; done & exit 0"))
		if err != nil || string(res.Stdout) != "1\n2\n3\n4\n5\n" {
			t.Errorf("got %q, %v", res.Stdout, err)
		}
	})
	t.Run("a slow writer loses nothing", func(t *testing.T) {
		const size = 60000 // below what a pipe holds: the program ends while the writer is at its beginning
		var got int
		c := sh(fmt.Sprintf("head -c %d /dev/zero; sleep 0.5; head -c 1000 /dev/zero", size))
		c.Stdout = writerFunc(func(p []byte) (int, error) {
			if got == 0 {
				<-time.After(5 * time.Second)
			}
			got += len(p)
			return len(p), nil
		})
		res, err := h.Run(t.Context(), c)
		if err != nil || got != size+1000 || len(res.Stdout) != got {
			t.Errorf("got %d bytes, kept %d, want %d: %v", got, len(res.Stdout), size+1000, err)
		}
	})
	t.Run("keeps the last bytes of much output", func(t *testing.T) {
		res, err := h.Run(t.Context(), sh("head -c 17000000 /dev/zero; echo end"))
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Stdout) != host.MaxOutput || !bytes.HasSuffix(res.Stdout, []byte("\x00end\n")) {
			t.Errorf("kept %d bytes", len(res.Stdout))
		}
	})
}

func conformErrors(t *testing.T, h host.Host) {
	for _, code := range []int{1, 2, 126, 127, 255} {
		t.Run(fmt.Sprintf("exit code %d", code), func(t *testing.T) {
			_, err := h.Run(t.Context(), sh(fmt.Sprintf("echo why >&2; echo what; exit %d", code)))
			e := (*host.ExitError)(nil)
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an ExitError", err)
			}
			if e.Code != code || e.Host != h.Name() || string(e.Stderr) != "why\n" || string(e.Stdout) != "what\n" || e.Argv[0] != "/bin/sh" {
				t.Errorf("got %+v", e)
			}
		})
	}
	t.Run("killed by a signal", func(t *testing.T) {
		for name, code := range map[string]int{"KILL": 137, "TERM": 143} {
			_, err := h.Run(t.Context(), sh("kill -s "+name+" $$"))
			if e := (*host.ExitError)(nil); !errors.As(err, &e) || e.Code != code {
				t.Errorf("SIG%s: got %v, want exit code %d", name, err, code)
			}
		}
	})
	t.Run("never started", func(t *testing.T) {
		dir := t.TempDir()
		if err := h.WriteFile(t.Context(), filepath.Join(dir, "data"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			cmd  host.Cmd
			want error
		}{
			{host.Cmd{Argv: []string{"belay-no-such-program"}}, fs.ErrNotExist},
			{host.Cmd{Argv: []string{dir + "/none"}}, fs.ErrNotExist},
			{host.Cmd{Argv: []string{dir + "/data"}}, fs.ErrPermission},
			{host.Cmd{Argv: []string{dir}}, fs.ErrPermission},
			{host.Cmd{}, nil},
			{host.Cmd{Argv: []string{""}}, nil},
			{host.Cmd{Argv: []string{"echo", "a\x00b"}}, nil},
			{host.Cmd{Argv: []string{"echo"}, Env: []string{"no-name"}}, nil},
			{host.Cmd{Argv: []string{"echo"}, Env: []string{"a b=c"}}, nil},
		} {
			_, err := h.Run(t.Context(), tc.cmd)
			e := (*host.NotStartedError)(nil)
			if !errors.As(err, &e) || e.Host != h.Name() {
				t.Errorf("%q: got %v, want a NotStartedError", tc.cmd.Argv, err)
			}
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%q: %v does not wrap %v", tc.cmd.Argv, err, tc.want)
			}
		}
	})
	t.Run("a secret stays out of errors", func(t *testing.T) {
		for _, c := range []host.Cmd{
			{Argv: []string{"/bin/sh", "-c", "exit 3", "hunter2"}, Secret: true},
			{Argv: []string{"belay-no-such-program", "hunter2"}, Secret: true},
			{Argv: []string{"echo"}, Env: []string{"hunter2"}},
		} {
			_, err := h.Run(t.Context(), c)
			if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter2") {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("broken input is not its end", func(t *testing.T) {
		broken := errors.New("broken source")
		c := sh("cat >/dev/null; exit 0")
		c.Stdin = io.MultiReader(strings.NewReader("some"), iotest.ErrReader(broken))
		_, err := h.Run(t.Context(), c)
		if e := (*host.LostError)(nil); !errors.As(err, &e) || !errors.Is(err, broken) {
			t.Errorf("got %v, want a LostError that wraps the reader's error", err)
		}
	})
	t.Run("output that cannot be passed on", func(t *testing.T) {
		full := errors.New("disk full")
		c := sh("echo one; echo two; echo three")
		c.Stdout = writerFunc(func([]byte) (int, error) { return 0, full })
		res, err := h.Run(t.Context(), c)
		if !errors.Is(err, full) || string(res.Stdout) != "one\ntwo\nthree\n" {
			t.Errorf("got %q, %v", res.Stdout, err)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func conformContext(t *testing.T, h host.Host) {
	t.Run("ended before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := h.Run(ctx, sh("exit 0"))
		if e := (*host.NotStartedError)(nil); !errors.As(err, &e) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want a NotStartedError that wraps context.Canceled", err)
		}
	})
	t.Run("kills the program and its children", func(t *testing.T) {
		pids := make(chan string, 2)
		c := sh("sleep 300 & echo $!; echo $$; wait")
		c.Stdout = writerFunc(func(p []byte) (int, error) {
			for _, pid := range strings.Fields(string(p)) {
				pids <- pid
			}
			return len(p), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := h.Run(ctx, c)
			done <- err
		}()
		child, leader := <-pids, <-pids
		cancel()
		err := <-done
		if e := (*host.LostError)(nil); !errors.As(err, &e) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want a LostError that wraps context.Canceled", err)
		}
		gone(t, h, child, leader)
	})
	t.Run("kills what ignores SIGTERM", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		var out bytes.Buffer
		c := sh("trap '' TERM; echo $$; while :; do sleep 1; done")
		c.Stdout = &out
		_, err := h.Run(ctx, c)
		if e := (*host.LostError)(nil); !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a LostError that wraps context.DeadlineExceeded", err)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("took %s", d)
		}
		gone(t, h, strings.TrimSpace(out.String()))
	})
}

// gone checks that processes of the machine are dead.
func gone(t *testing.T, h host.Host, pids ...string) {
	t.Helper()
	for _, pid := range pids {
		// A zombie that waits for its parent is dead too.
		_, err := h.Run(t.Context(), sh(`for i in 1 2 3 4 5 6 7 8 9 10; do
			[ -e "/proc/$1/stat" ] || exit 0
			case $(cat "/proc/$1/stat" 2>/dev/null) in *") Z "*|"") exit 0;; esac
			sleep 0.1; done; exit 1`, pid))
		if err != nil {
			t.Errorf("process %s still runs: %v", pid, err)
		}
	}
}

func conformFiles(t *testing.T, h host.Host) {
	ctx := t.Context()
	dir := t.TempDir()
	t.Run("write, read, replace", func(t *testing.T) {
		p := filepath.Join(dir, "new", "deep er", "it's $x")
		for _, data := range [][]byte{[]byte("one\n"), {}, []byte("\x00\xff no newline"), bytes.Repeat([]byte("x"), 3<<20)} {
			if err := h.WriteFile(ctx, p, data, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := h.ReadFile(ctx, p)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("wrote %d bytes, read %d, %v", len(data), len(got), err)
			}
		}
	})
	t.Run("reads more than MaxOutput", func(t *testing.T) {
		p := filepath.Join(dir, "large")
		data := bytes.Repeat([]byte("0123456789abcdef"), host.MaxOutput/16+1)
		if err := h.WriteFile(ctx, p, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := h.ReadFile(ctx, p); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read %d bytes of %d, %v", len(got), len(data), err)
		}
	})
	t.Run("missing", func(t *testing.T) {
		for _, p := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "no", "such", "dir")} {
			if _, err := h.ReadFile(ctx, p); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), p) {
				t.Errorf("got %v, want an error that names %s and wraps fs.ErrNotExist", err, p)
			}
		}
	})
	t.Run("a directory is no file", func(t *testing.T) {
		if err := h.WriteFile(ctx, filepath.Join(dir, "d", "file"), []byte("keep"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := h.ReadFile(ctx, filepath.Join(dir, "d")); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("read a directory: %v", err)
		}
		if err := h.WriteFile(ctx, filepath.Join(dir, "d"), []byte("x"), 0o644); err == nil {
			t.Error("replaced a directory")
		}
		if _, err := h.ReadFile(ctx, filepath.Join(dir, "d", "file", "below")); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("read below a file: %v", err)
		}
		if err := h.WriteFile(ctx, filepath.Join(dir, "d", "file", "below"), nil, 0o644); err == nil {
			t.Error("wrote below a file")
		}
		if got, err := h.ReadFile(ctx, filepath.Join(dir, "d", "file")); err != nil || string(got) != "keep" {
			t.Errorf("the file beside it: %q, %v", got, err)
		}
	})
	t.Run("relative paths", func(t *testing.T) {
		if _, err := h.ReadFile(ctx, "etc/hostname"); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("read: %v", err)
		}
		if err := h.WriteFile(ctx, "x", nil, 0o644); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("write: %v", err)
		}
	})
}

func conformUpload(t *testing.T, h host.Host) {
	ctx := t.Context()
	dir := t.TempDir()
	p := filepath.Join(dir, "file")
	if err := h.Upload(ctx, p, strings.NewReader("old"), 3, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken source")
	for _, tc := range []struct {
		name string
		r    io.Reader
		size int64
		want error
	}{
		{"shorter", strings.NewReader("new!"), 5, nil},
		{"longer", strings.NewReader("new!"), 3, nil},
		{"empty", strings.NewReader(""), 1, nil},
		{"breaks", io.MultiReader(strings.NewReader("ne"), iotest.ErrReader(broken)), 4, broken},
		{"breaks after the last byte", io.MultiReader(strings.NewReader("new!"), iotest.ErrReader(broken)), 4, broken},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := h.Upload(ctx, p, tc.r, tc.size, 0o644)
			size := (*host.SizeError)(nil)
			switch {
			case tc.want != nil && !errors.Is(err, tc.want):
				t.Errorf("got %v, want %v", err, tc.want)
			case tc.want == nil && !errors.As(err, &size):
				t.Errorf("got %v, want a SizeError", err)
			}
			lost := (*host.LostError)(nil)
			if errors.As(err, &lost) {
				t.Errorf("got %v, though the file cannot have been replaced", err)
			}
			if got, err := h.ReadFile(ctx, p); err != nil || string(got) != "old" {
				t.Errorf("the old file: %q, %v", got, err)
			}
		})
	}
	if _, ok := h.(interface{ Files() []string }); ok {
		return // a Fake; what follows looks at a real disk
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	for _, mode := range []fs.FileMode{0o600, 0o755, 0o444, 0o640} {
		if err := h.WriteFile(ctx, p, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(p); err != nil || info.Mode() != mode {
			t.Errorf("mode is %v, want %v (%v)", info.Mode(), mode, err)
		}
	}
	t.Run("replaces a link, not its target", func(t *testing.T) {
		link := filepath.Join(dir, "link")
		if err := os.Symlink(p, link); err != nil {
			t.Fatal(err)
		}
		if err := h.WriteFile(ctx, link, []byte("new"), 0o644); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%v, %v", info, err)
		}
		if got, _ := os.ReadFile(p); string(got) != "x" {
			t.Errorf("the link's target now holds %q", got)
		}
	})
	t.Run("the context's end leaves nothing", func(t *testing.T) {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(ctx)
		r, w := io.Pipe()
		go func() {
			_, _ = w.Write([]byte("some"))
			cancel()
			_ = w.CloseWithError(context.Canceled)
		}()
		if err := h.Upload(ctx, filepath.Join(dir, "f"), r, 100, 0o644); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func conformDial(t *testing.T, h host.Host) {
	listen := "127.0.0.1"
	if far, ok := h.(interface{ ListenOn() string }); ok {
		listen = far.ListenOn() // an address of this computer that another machine reaches
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(listen, "0"))
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	defer func() { _ = ln.Close() }()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	c, err := h.Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() { _, _ = c.Write(data) }()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the echo differs, %v", err)
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read past the deadline: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(got); err == nil {
		t.Error("read after Close")
	}

	// Port 1 is nobody's; a port that was just let go may be another test's by now.
	addr = net.JoinHostPort(listen, "1")
	refused := (*host.NotStartedError)(nil)
	if _, err := h.Dial(t.Context(), "tcp", addr); !errors.As(err, &refused) {
		t.Errorf("dialled nobody: %v", err)
	}
	if _, err := h.Dial(t.Context(), "tcp", "no-port"); !errors.As(err, &refused) {
		t.Errorf("dialled nothing: %v", err)
	}
	// Whatever went wrong above, the host still works.
	if _, err := h.Run(t.Context(), sh("exit 0")); err != nil {
		t.Error(err)
	}
}

func conformParallel(t *testing.T, h host.Host) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			word := fmt.Sprintf("word-%d", i)
			res, err := h.Run(t.Context(), host.Cmd{Argv: []string{"echo", word}})
			if err != nil || string(res.Stdout) != word+"\n" {
				t.Errorf("got %q, %v", res.Stdout, err)
			}
			if err := h.WriteFile(t.Context(), filepath.Join(dir, "same"), bytes.Repeat([]byte(word), 1000), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := h.ReadFile(t.Context(), filepath.Join(dir, "same"))
	if err != nil {
		t.Fatal(err)
	}
	if word := got[:len(got)/1000]; !bytes.Equal(got, bytes.Repeat(word, 1000)) {
		t.Error("two writers were mixed into one file")
	}
}
