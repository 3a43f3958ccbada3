package host_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"pgregory.net/rapid"

	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/host/hosttest"
)

func run(t *testing.T, h host.Host, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res, err := h.Run(ctx, host.Cmd{Argv: argv})
	return string(res.Stdout), err
}

// wantNotStarted checks the kind of error and gives its text.
func wantNotStarted(t *testing.T, err error) string {
	t.Helper()
	if e := (*host.NotStartedError)(nil); !errors.As(err, &e) {
		t.Fatalf("got %v, want a NotStartedError", err)
	}
	return err.Error()
}

func wantWords(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not mention %q", text, w)
		}
	}
}

func TestHostKeys(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	other, _ := hosttest.WriteKey(t)
	offered := ssh.FingerprintSHA256(s.HostKey)

	t.Run("known", func(t *testing.T) {
		for _, keys := range [][]ssh.PublicKey{{s.HostKey}, {other, s.HostKey}} {
			file := s.KnownHosts(keys...)
			h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
			if _, err := run(t, h, "true"); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("unknown", func(t *testing.T) {
		for _, file := range []string{s.KnownHosts(), filepath.Join(t.TempDir(), "none")} {
			h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
			_, err := run(t, h, "true")
			wantWords(t, wantNotStarted(t, err), file, offered, "ssh-keyscan", "ssh-keygen -lf", "verifies nothing", s.Addr())
			if e := (*host.HostKeyError)(nil); !errors.As(err, &e) || e.Changed() || e.Fingerprint != offered {
				t.Errorf("got %+v", e)
			}
		}
	})
	t.Run("changed", func(t *testing.T) {
		file := s.KnownHosts(other)
		h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
		_, err := run(t, h, "true")
		wantWords(t, wantNotStarted(t, err), "CHANGED", file+":1", offered, ssh.FingerprintSHA256(other), "ssh-keygen -R")
		if e := (*host.HostKeyError)(nil); !errors.As(err, &e) || !e.Changed() {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("changed to one of another kind", func(t *testing.T) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		old, err := ssh.NewPublicKey(&private.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		file := s.KnownHosts(old)
		for _, change := range []func(*host.SSHConfig){
			func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file },
			func(c *host.SSHConfig) { c.HostKeys = []ssh.PublicKey{old} },
		} {
			h := s.Dial(change)
			_, err := run(t, h, "true")
			wantWords(t, wantNotStarted(t, err), ssh.FingerprintSHA256(old), "ssh-ed25519", "ssh_host_ed25519_key.pub")
			if e := (*host.HostKeyError)(nil); !errors.As(err, &e) || !e.Changed() {
				t.Errorf("got %v, want a HostKeyError with the key on record", err)
			}
			// Asking again is of no use, so nobody waits for it.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			_, err = host.WaitUnit(ctx, h, "u", nil)
			if !errors.As(err, new(*host.HostKeyError)) || ctx.Err() != nil {
				t.Errorf("wait: %v", err)
			}
			cancel()
		}
	})
	t.Run("revoked", func(t *testing.T) {
		file := s.KnownHosts(s.HostKey)
		line := "@revoked * " + string(ssh.MarshalAuthorizedKey(s.HostKey))
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(old, line...), 0o600); err != nil {
			t.Fatal(err)
		}
		h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
		_, err = run(t, h, "true")
		wantWords(t, wantNotStarted(t, err), "revoked", offered)
	})
	t.Run("given, but another", func(t *testing.T) {
		h := s.Dial(func(c *host.SSHConfig) { c.HostKeys = []ssh.PublicKey{other} })
		_, err := run(t, h, "true")
		wantWords(t, wantNotStarted(t, err), offered, ssh.FingerprintSHA256(other))
	})
	t.Run("signed by a known authority", func(t *testing.T) {
		s, authority := hosttest.NewSSHServer(t), hosttest.NewAuthority(t)
		s.UseCertificate(authority)
		for _, tc := range []struct {
			authority ssh.PublicKey
			good      bool
		}{{authority.PublicKey(), true}, {other, false}} {
			file := s.KnownHosts()
			line := "@cert-authority " + knownhosts.Normalize(s.Addr()) + " " + string(ssh.MarshalAuthorizedKey(tc.authority))
			if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
				t.Fatal(err)
			}
			h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
			_, err := run(t, h, "true")
			if tc.good && err != nil {
				t.Error(err)
			}
			if !tc.good {
				wantNotStarted(t, err)
			}
		}
	})
	t.Run("its certificate does not matter where its key is on record", func(t *testing.T) {
		s, authority := hosttest.NewSSHServer(t), hosttest.NewAuthority(t)
		s.UseCertificate(authority)
		file := s.KnownHosts(s.HostKey)
		h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
		if _, err := run(t, h, "true"); err != nil {
			t.Error(err)
		}
	})
	t.Run("the file is read anew", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "known_hosts")
		h := s.Dial(func(c *host.SSHConfig) { c.HostKeys, c.KnownHostsFile = nil, file })
		_, err := run(t, h, "true")
		wantNotStarted(t, err)
		if err := os.Rename(s.KnownHosts(s.HostKey), file); err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, h, "true"); err != nil {
			t.Error(err)
		}
	})
}

func TestSSHConfig(t *testing.T) {
	t.Parallel()
	_, key := hosttest.WriteKey(t)
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := host.SSHConfig{Name: "n", Address: "127.0.0.1", User: "root", KeyFiles: []string{key}, KnownHostsFile: filepath.Join(dir, "kh")}
	if h, err := host.DialSSH(t.Context(), good); err != nil || h.Name() != "n" {
		t.Errorf("got %v, %v", h, err)
	}
	for name, tc := range map[string]struct {
		change func(c *host.SSHConfig)
		words  string
	}{
		"no address":   {func(c *host.SSHConfig) { c.Address = "" }, "address"},
		"no user":      {func(c *host.SSHConfig) { c.User = "" }, "user"},
		"no keys":      {func(c *host.SSHConfig) { c.KeyFiles = nil }, "log in"},
		"no host keys": {func(c *host.SSHConfig) { c.KnownHostsFile = "" }, "host keys"},
		"missing key":  {func(c *host.SSHConfig) { c.KeyFiles = []string{dir + "/none"} }, dir + "/none"},
		"bad key":      {func(c *host.SSHConfig) { c.KeyFiles = []string{bad} }, bad},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			tc.change(&c)
			_, err := host.DialSSH(t.Context(), c)
			wantWords(t, wantNotStarted(t, err), tc.words)
		})
	}
}

func TestSSHLogin(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	_, stranger := hosttest.WriteKey(t)
	t.Run("another key", func(t *testing.T) {
		h := s.Dial(func(c *host.SSHConfig) { c.KeyFiles = []string{stranger} })
		_, err := run(t, h, "true")
		wantWords(t, wantNotStarted(t, err), "log in as tester", stranger)
	})
	t.Run("another user", func(t *testing.T) {
		h := s.Dial(func(c *host.SSHConfig) { c.User = "nobody" })
		_, err := run(t, h, "true")
		wantWords(t, wantNotStarted(t, err), "log in as nobody")
	})
	t.Run("the second key fits", func(t *testing.T) {
		h := s.Dial(func(c *host.SSHConfig) { c.KeyFiles = []string{stranger, s.KeyFile} })
		if _, err := run(t, h, "true"); err != nil {
			t.Error(err)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		h := s.Dial(func(c *host.SSHConfig) { c.Address = "127.0.0.1:1" })
		_, err := run(t, h, "true")
		wantNotStarted(t, err)
	})
	t.Run("a server that says nothing", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		h := s.Dial(func(c *host.SSHConfig) { c.Address, c.ConnectTimeout = ln.Addr().String(), 300*time.Millisecond })
		start := time.Now()
		_, err = run(t, h, "true")
		wantNotStarted(t, err)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 5*time.Second {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
	})
}

func TestSSHAgent(t *testing.T) {
	s := hosttest.NewSSHServer(t)
	sock := filepath.Join(t.TempDir(), "agent")
	serveAgent(t, sock, s.KeyFile)
	t.Setenv("SSH_AUTH_SOCK", sock)
	h := s.Dial(func(c *host.SSHConfig) { c.KeyFiles, c.UseAgent = nil, true })
	if _, err := run(t, h, "true"); err != nil {
		t.Error(err)
	}
	t.Setenv("SSH_AUTH_SOCK", "")
	c := s.Config()
	c.UseAgent = true
	_, err := host.DialSSH(t.Context(), c)
	wantWords(t, wantNotStarted(t, err), "SSH_AUTH_SOCK")
}

// An agent that takes the connection and says nothing keeps nobody past the time for a login.
func TestSSHAgentThatHangs(t *testing.T) {
	s := hosttest.NewSSHServer(t)
	sock := filepath.Join(t.TempDir(), "agent")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	t.Setenv("SSH_AUTH_SOCK", sock)
	for name, tc := range map[string]struct{ timeout, interrupt time.Duration }{
		"timeout":   {300 * time.Millisecond, time.Hour},
		"interrupt": {time.Hour, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			h := s.Dial(func(c *host.SSHConfig) { c.KeyFiles, c.UseAgent, c.ConnectTimeout = nil, true, tc.timeout })
			ctx, cancel := context.WithTimeout(t.Context(), tc.interrupt)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := h.Run(ctx, host.Cmd{Argv: []string{"true"}})
				done <- err
			}()
			select {
			case err := <-done:
				wantNotStarted(t, err)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it still waits for the agent")
			}
		})
	}
}

// A file that came in part must not pass for a whole one, also when the exit status came before its end.
func TestSSHNeverReadsAPart(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]bool{"silent": false, "connection lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := hosttest.NewSSHServer(t)
			dir := t.TempDir()
			for file, text := range map[string]string{
				"cat":  "#!/bin/sh\nprintf half\ntouch " + dir + "/began\n{ sleep 20; printf rest; } &\nexit 0\n",
				"data": "halfrest",
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o755); err != nil { //nolint:gosec // it is a program
					t.Fatal(err)
				}
			}
			s.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
			h := s.Dial()
			if drop {
				go func() {
					for {
						if _, err := os.Stat(filepath.Join(dir, "began")); err == nil || t.Context().Err() != nil {
							break
						}
						time.Sleep(10 * time.Millisecond)
					}
					time.Sleep(time.Second)
					s.DropAll()
				}()
			}
			b, err := h.ReadFile(t.Context(), filepath.Join(dir, "data"))
			if e := (*host.LostError)(nil); !errors.As(err, &e) || b != nil {
				t.Errorf("read %q, %v, want a LostError", b, err)
			}
		})
	}
}

func TestSSHDrops(t *testing.T) {
	t.Parallel()
	t.Run("while a program runs: its end is unknown", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial()
		dir := t.TempDir()
		var once sync.Once
		_, err := h.Run(t.Context(), host.Cmd{
			Argv:   []string{"/bin/sh", "-c", `echo going; sleep 0.2; echo done >"$1"`, "sh", dir + "/done"},
			Stdout: writer(func(p []byte) { once.Do(s.DropAll) }),
		})
		if e := (*host.LostError)(nil); !errors.As(err, &e) || e.Host != h.Name() {
			t.Fatalf("got %v, want a LostError", err)
		}
		// And that is so: it went on to its end. The host is of use again at once.
		for {
			out, err := run(t, h, "cat", dir+"/done")
			if err == nil && out == "done\n" {
				break
			}
			if e := (*host.ExitError)(nil); err != nil && !errors.As(err, &e) {
				t.Fatal(err)
			}
		}
		if s.Logins() != 2 {
			t.Errorf("%d logins, want 2", s.Logins())
		}
	})
	t.Run("before the command is accepted: not started", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		s.OnExec = func(string) error { s.DropAll(); return nil }
		h := s.Dial()
		_, err := run(t, h, "true")
		wantNotStarted(t, err)
	})
	t.Run("while nobody looks: not noticed", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial()
		for range 5 {
			if _, err := run(t, h, "true"); err != nil {
				t.Fatal(err)
			}
			s.DropAll()
		}
		if s.Logins() != 5 {
			t.Errorf("%d logins, want 5", s.Logins())
		}
	})
	t.Run("one connection for all", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := run(t, h, "true"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if s.Logins() != 1 {
			t.Errorf("%d logins, want 1", s.Logins())
		}
	})
	t.Run("commands refused", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		s.OnExec = func(string) error { return errors.New("no") }
		_, err := run(t, s.Dial(), "true")
		wantNotStarted(t, err)
	})
	t.Run("a silent network is found by keepalives", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial(func(c *host.SSHConfig) { c.KeepAlive = 200 * time.Millisecond })
		var once sync.Once
		start := time.Now()
		_, err := h.Run(t.Context(), host.Cmd{
			Argv:   []string{"/bin/sh", "-c", "echo going; sleep 20"},
			Stdout: writer(func([]byte) { once.Do(s.Freeze) }),
		})
		if e := (*host.LostError)(nil); !errors.As(err, &e) || time.Since(start) > 5*time.Second {
			t.Errorf("got %v after %s, want a LostError", err, time.Since(start))
		}
		s.Thaw()
		if _, err := run(t, h, "true"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a silent network keeps nobody past the context's end", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial()
		if _, err := run(t, h, "true"); err != nil {
			t.Fatal(err)
		}
		s.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := h.Run(ctx, host.Cmd{Argv: []string{"true"}})
		wantNotStarted(t, err)
		if _, err := h.Dial(ctx, "tcp", "127.0.0.1:1"); err == nil {
			t.Error("dialled through a dead network")
		}
	})
	t.Run("during an upload: the old file stays", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial()
		dir := t.TempDir()
		p := filepath.Join(dir, "f")
		if err := h.WriteFile(t.Context(), p, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := h.Upload(t.Context(), p, reader(func(b []byte) (int, error) {
			if n += len(b); n > 4<<20 {
				s.DropAll()
			}
			return len(b), nil
		}), 1<<30, 0o644)
		if e := (*host.LostError)(nil); !errors.As(err, &e) {
			t.Errorf("got %v, want a LostError", err)
		}
		if got, err := h.ReadFile(t.Context(), p); err != nil || string(got) != "old" {
			t.Errorf("the old file: %q, %v", got, err)
		}
		// The script has seen the end of its input and cleans up on its own.
		if _, err := run(t, h, "/bin/sh", "-c", `for i in 1 2 3 4 5 6 7 8 9 10; do [ "$(ls -A "$1")" = f ] && exit 0; sleep 0.1; done; ls -A "$1"; exit 1`, "sh", dir); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	t.Run("after Close", func(t *testing.T) {
		s := hosttest.NewSSHServer(t)
		h := s.Dial()
		if _, err := run(t, h, "true"); err != nil {
			t.Fatal(err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := run(t, h, "true")
		wantNotStarted(t, err)
	})
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

func TestSSHBoundsSessions(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	h := s.Dial(func(c *host.SSHConfig) { c.MaxSessions = 2 })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := run(t, h, "sleep", "0.1"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.Peak() != 2 {
		t.Errorf("%d sessions at one time, want 2", s.Peak())
	}
	// Who waits for a session stops waiting with its context.
	for range 2 {
		wg.Go(func() { _, _ = run(t, h, "sleep", "1") })
	}
	for s.Running() < 2 {
		time.Sleep(5 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"true"}})
	wantNotStarted(t, err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	wg.Wait()
}

// What a login script prints is not the program's output, and a shell that refuses is not the program's failure.
func TestSSHLoginNoise(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	s.Prelude = "echo welcome; echo warning >&2; printf 'no newline'; printf 'no newline' >&2"
	h := s.Dial()
	res, err := h.Run(t.Context(), host.Cmd{Argv: []string{"/bin/sh", "-c", "echo out; echo err >&2; exit 7"}})
	if e := (*host.ExitError)(nil); !errors.As(err, &e) || e.Code != 7 {
		t.Errorf("got %v", err)
	}
	if string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
		t.Errorf("got %q and %q", res.Stdout, res.Stderr)
	}

	s = hosttest.NewSSHServer(t)
	s.Prelude = "echo 'This account is not available.' >&2; exit 1"
	_, err = run(t, s.Dial(), "true")
	wantWords(t, wantNotStarted(t, err), "This account is not available")
}

func TestSSHSudo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sudo := "#!/bin/sh\n[ \"$1 $2\" = '-n --' ] || exit 99\nshift 2\nBY_SUDO=yes exec \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "sudo"), []byte(sudo), 0o755); err != nil {
		t.Fatal(err)
	}
	s := hosttest.NewSSHServer(t)
	s.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	h := s.Dial(func(c *host.SSHConfig) { c.Sudo = true })
	if out, err := run(t, h, "/bin/sh", "-c", "echo $BY_SUDO"); err != nil || out != "yes\n" {
		t.Errorf("got %q, %v", out, err)
	}
	// What runs by sudo is killed by sudo.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pid atomic.Value
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"/bin/sh", "-c", "echo $$; exec sleep 300"}, Stdout: writer(func(p []byte) {
		pid.Store(strings.TrimSpace(string(p)))
		cancel()
	})})
	if e := (*host.LostError)(nil); !errors.As(err, &e) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a LostError", err)
	}
	if _, err := run(t, h, "kill", "-0", fmt.Sprint(pid.Load())); err == nil {
		t.Errorf("process %v still runs", pid.Load())
	}
	// sudo says no: nothing was started.
	refuse := "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "sudo"), []byte(refuse), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = run(t, h, "true")
	wantWords(t, wantNotStarted(t, err), "a password is required")
}

// Neither arguments nor environment may be in the process list of the machine, where every user reads them.
func TestSSHKeepsWorkOutOfTheCommand(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	var leaks atomic.Int32
	s.OnExec = func(command string) error {
		if strings.Contains(command, "hunter2") {
			leaks.Add(1)
		}
		return nil
	}
	h := s.Dial()
	_, err := h.Run(t.Context(), host.Cmd{Argv: []string{"true", "hunter2"}, Env: []string{"PASSWORD=hunter2"}})
	if err != nil || leaks.Load() != 0 {
		t.Errorf("%d leaks, %v", leaks.Load(), err)
	}
}

// A full disk on the machine leaves the old file. The limit on the size of files stands for it: the write fails in the same place.
func TestSSHUploadToAFullDisk(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	s.Prelude = "trap '' XFSZ; ulimit -f 100"
	h := s.Dial()
	dir := t.TempDir()
	p := filepath.Join(dir, "f")
	if err := h.WriteFile(t.Context(), p, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := h.WriteFile(t.Context(), p, make([]byte, 4<<20), 0o644)
	if e := (*host.ExitError)(nil); !errors.As(err, &e) {
		t.Errorf("got %v, want an ExitError", err)
	}
	wantWords(t, err.Error(), "write "+p)
	if got, err := h.ReadFile(t.Context(), p); err != nil || string(got) != "old" {
		t.Errorf("the old file: %q, %v", got, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// The script itself counts too: bytes that the network swallowed are not the client's to see.
func TestWriteScriptChecksTheSize(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	var h host.Host
	p := filepath.Join(t.TempDir(), "f")
	// A connection cut exactly at the end of the data looks like the end of the stream to the script.
	h = s.Dial()
	if err := h.WriteFile(t.Context(), p, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { _, _ = w.Write([]byte("ne")); s.DropAll(); _, _ = w.Write([]byte("w")); _ = w.Close() }()
	if err := h.Upload(t.Context(), p, r, 3, 0o644); err == nil {
		t.Error("an upload over a cut connection went well")
	}
	if got, err := h.ReadFile(t.Context(), p); err != nil || string(got) != "old" {
		t.Errorf("the old file: %q, %v", got, err)
	}
}

func TestSSHFilePermissions(t *testing.T) {
	t.Parallel()
	s := hosttest.NewSSHServer(t)
	h := s.Dial()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(dir, "closed", "f")
	if err := h.WriteFile(t.Context(), p, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(p), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Dir(p), 0o755) }) //nolint:gosec // a directory of the test
	_, err := h.ReadFile(t.Context(), p)
	if os.Getuid() == 0 {
		if err != nil {
			t.Errorf("root reads everything, got %v", err)
		}
		return
	}
	// Not readable is not the same as not there.
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrPermission", err)
	}
}

func TestQuoteAgainstARealShell(t *testing.T) {
	t.Parallel()
	shells := []string{"/bin/sh"}
	if bash, err := exec.LookPath("bash"); err == nil {
		shells = append(shells, bash)
	}
	rapid.Check(t, func(rt *rapid.T) {
		argv := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
			return strings.ReplaceAll(string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(rt, "bytes")), "\x00", "'")
		}), 1, 5).Draw(rt, "argv")
		for _, shell := range shells {
			out, err := exec.Command(shell, "-c", `printf '%s\0' `+host.QuoteAll(argv)).Output() //nolint:gosec,noctx // that is the test
			if err != nil {
				rt.Fatal(err)
			}
			if want := strings.Join(argv, "\x00") + "\x00"; string(out) != want {
				rt.Fatalf("%s: got %q, want %q", shell, out, want)
			}
		}
	})
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "'", `\'`, "a b", "$(id)", "\n", "''''", "\xff\xfe", "-n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ReplaceAll(s, "\x00", "")
		out, err := exec.Command("/bin/sh", "-c", "printf %s "+host.Quote(s)).Output() //nolint:gosec,noctx // that is the test
		if err != nil || string(out) != s {
			t.Errorf("%q came out as %q, %v", s, out, err)
		}
	})
}

// Whatever bytes arguments and environment hold, the program on the other side gets them.
func TestSSHPassesAnything(t *testing.T) {
	t.Parallel()
	h := hosttest.NewSSHServer(t).Dial()
	word := rapid.Custom(func(rt *rapid.T) string {
		return strings.ReplaceAll(string(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(rt, "bytes")), "\x00", "\n")
	})
	rapid.Check(t, func(rt *rapid.T) {
		args := rapid.SliceOfN(word, 0, 4).Draw(rt, "args")
		value := word.Draw(rt, "value")
		res, err := h.Run(context.Background(), host.Cmd{
			Argv: append([]string{"/bin/sh", "-c", `printf '%s\0' "$V" "$@"`, "sh"}, args...),
			Env:  []string{"V=" + value},
		})
		want := strings.Join(append([]string{value}, args...), "\x00") + "\x00"
		if len(args) == 0 {
			want = value + "\x00"
		}
		if err != nil || string(res.Stdout) != want {
			rt.Fatalf("got %q, %v; want %q", res.Stdout, err, want)
		}
	})
}

func BenchmarkSSHUpload(b *testing.B) {
	h := hosttest.NewSSHServer(b).Dial()
	data := bytes.Repeat([]byte("0123456789abcdef"), 90<<20/16)
	p := filepath.Join(b.TempDir(), "f")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := h.WriteFile(b.Context(), p, data, 0o755); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSSHRun(b *testing.B) {
	h := hosttest.NewSSHServer(b).Dial()
	for b.Loop() {
		if _, err := h.Run(b.Context(), host.Cmd{Argv: []string{"true"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleQuoteAll() {
	fmt.Println(host.QuoteAll([]string{"echo", "it's"}))
	// Output: echo 'it'\''s'
}
