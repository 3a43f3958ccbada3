//go:build e2e

package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/host/hosttest"
	"github.com/belayops/belay/testenv"
)

// far is a machine that reaches this computer at another address than 127.0.0.1.
type far struct {
	host.Host
	here string
}

func (f far) ListenOn() string { return f.here }

// machine gives a real machine with systemd and sshd, and a directory that it shares with this computer.
func machine(t *testing.T) (dial func(t *testing.T) host.Host, m *testenv.Machine) {
	t.Helper()
	shared, err := os.MkdirTemp("/var/lib", "belay-host-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shared) })
	if err := os.Chmod(shared, 0o755); err != nil { //nolint:gosec // shared with a machine
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", shared)
	e, err := testenv.New(testenv.Options{StateDir: filepath.Join(shared, "machines"), RuncPath: runcPath()})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	bind := filepath.Join(shared, "tmp")
	if err := os.Mkdir(bind, 0o755); err != nil { //nolint:gosec // shared with a machine
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", bind)
	t.Cleanup(func() {
		if err := e.Down(context.WithoutCancel(t.Context()), "hosttest"); err != nil {
			t.Error(err)
		}
	})
	machines, err := e.Up(t.Context(), "hosttest", []testenv.MachineSpec{{Name: "m1", Binds: []testenv.Bind{{Source: bind, Target: bind}}}})
	if err != nil {
		t.Fatal(err)
	}
	m = machines[0]
	route, err := net.Dial("udp", net.JoinHostPort(m.Address, "22")) // sends nothing, but chooses the way
	if err != nil {
		t.Fatal(err)
	}
	here, _, err := net.SplitHostPort(route.LocalAddr().String())
	if err = errors.Join(err, route.Close()); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) host.Host {
		h, err := host.DialSSH(t.Context(), host.SSHConfig{
			Name: m.Name, Address: net.JoinHostPort(m.Address, fmt.Sprint(m.Port)), User: m.User,
			KeyFiles: []string{m.KeyFile}, KnownHostsFile: m.KnownHostsFile,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		return far{h, here}
	}, m
}

func runcPath() string {
	if p := os.Getenv("BELAY_TEST_RUNC"); p != "" {
		return p
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	found, err := filepath.Glob(filepath.Join(cache, "belay", "bundles", "*", "bin", "runc"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return slices.Max(found)
}

func TestRealMachine(t *testing.T) {
	dial, m := machine(t)
	t.Run("conformance", func(t *testing.T) { hosttest.Conformance(t, dial) })
	t.Run("units", func(t *testing.T) { realUnits(t, dial, m) })
	t.Run("full disk", func(t *testing.T) {
		h := dial(t)
		ctx := t.Context()
		if _, err := h.Run(ctx, host.Cmd{Argv: []string{"/bin/sh", "-c", "mkdir -p /mnt/small && mount -t tmpfs -o size=1m none /mnt/small"}}); err != nil {
			t.Fatal(err)
		}
		if err := h.WriteFile(ctx, "/mnt/small/f", []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		err := h.WriteFile(ctx, "/mnt/small/f", make([]byte, 2<<20), 0o644)
		if e := (*host.ExitError)(nil); !errors.As(err, &e) {
			t.Errorf("got %v, want an ExitError", err)
		}
		if got, err := h.ReadFile(ctx, "/mnt/small/f"); err != nil || string(got) != "old" {
			t.Errorf("the old file: %q, %v", got, err)
		}
		if out, err := run(t, h, "ls", "-A", "/mnt/small"); err != nil || out != "f\n" {
			t.Errorf("left behind: %q, %v", out, err)
		}
	})
	t.Run("upload speed", func(t *testing.T) {
		h := dial(t)
		data := bytes.Repeat([]byte("0123456789abcdef"), 90<<20/16)
		start := time.Now()
		if err := h.WriteFile(t.Context(), "/var/tmp/large", data, 0o755); err != nil {
			t.Fatal(err)
		}
		d := time.Since(start)
		t.Logf("90 MiB in %s, %.0f MB/s", d.Round(time.Millisecond), float64(len(data))/1e6/d.Seconds())
		if d > 30*time.Second {
			t.Errorf("90 MiB took %s", d)
		}
	})
	t.Run("a restart of the machine", func(t *testing.T) {
		h := dial(t)
		u := host.Unit{Name: "belay-test-reboot", Argv: []string{"sleep", "1000"}}
		if err := host.StartUnit(t.Context(), h, u); err != nil {
			t.Fatal(err)
		}
		if err := m.Stop(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		_, err := run(t, h, "true")
		wantNotStarted(t, err)
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The same Host finds the machine again, and the unit gone.
		_, err = host.WaitUnit(t.Context(), h, u.Name, nil)
		if e := (*host.UnitMissingError)(nil); !errors.As(err, &e) {
			t.Errorf("got %v, want a UnitMissingError", err)
		}
	})
}

func realUnits(t *testing.T, dial func(t *testing.T) host.Host, m *testenv.Machine) {
	h := dial(t)
	ctx := t.Context()
	sh := func(name, script string, args ...string) host.Unit {
		return host.Unit{Name: "belay-test-" + name, Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...)}
	}
	t.Run("passes everything as it is", func(t *testing.T) {
		args := []string{"", "a b", "$HOME", "${HOME}", "$$", "%n %%", `\n`, `'`, `"`, "line\nbreak", "ünï", ";", "{x}", "@", "-"}
		u := sh("args", `for a; do printf '<%s>' "$a"; done; printf '|%s|%s' "$V" "$(pwd)"`, args...)
		u.Env, u.Dir = []string{"V=$HOME %n \"x\" y"}, "/var"
		u.Properties = []string{"TimeoutStopSec=5s"}
		if _, err := host.RunUnit(ctx, h, u, nil); err != nil {
			t.Fatal(err)
		}
		out, err := host.UnitOutput(ctx, h, u.Name, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if want := "<" + strings.Join(args, "><") + ">|$HOME %n \"x\" y|/var"; string(out) != want {
			t.Errorf("got  %q\nwant %q", out, want)
		}
		if err := host.ResetUnit(ctx, h, u.Name); err != nil {
			t.Error(err)
		}
	})
	t.Run("ends", func(t *testing.T) {
		for _, tc := range []struct {
			name, script string
			code         int
			result       string
		}{
			{"good", "echo out; echo err >&2; sleep 2; echo end", 0, "success"},
			{"bad", "echo out; echo err >&2; exit 3", 3, "exit-code"},
			{"killed", "echo out; echo err >&2; kill -KILL $$", 137, "signal"},
		} {
			u := sh(tc.name, tc.script)
			var lines []string
			s, err := host.RunUnit(ctx, h, u, func(l string) { lines = append(lines, l) })
			e := (*host.ExitError)(nil)
			if (tc.code != 0) != errors.As(err, &e) || (e != nil && (e.Code != tc.code || string(e.Stdout) != "out\nerr\n")) {
				t.Errorf("%s: %v", tc.name, err)
			}
			if !s.Finished() || s.ExitCode != tc.code || s.Result != tc.result || s.Digest != u.Digest() {
				t.Errorf("%s: %+v", tc.name, s)
			}
			if d := time.Since(s.Since); d < 0 || d > time.Minute || s.Ended.Before(s.Since) {
				t.Errorf("%s: since %s, ended %s, now %s", tc.name, s.Since, s.Ended, time.Now())
			}
			if len(lines) < 2 || lines[0] != "out" || lines[1] != "err" {
				t.Errorf("%s: lines %q", tc.name, lines)
			}
			// Another process finds it, finished as it was, and does not start it again.
			again, err := host.UnitStatus(ctx, dial(t), u.Name)
			if err != nil || again != s {
				t.Errorf("%s: later %+v, %v", tc.name, again, err)
			}
			if err := host.StartUnit(ctx, h, u); err != nil {
				t.Errorf("%s: again: %v", tc.name, err)
			}
			other := u
			other.Env = []string{"X=1"}
			if err := host.StartUnit(ctx, h, other); !errors.As(err, new(*host.UnitConflictError)) {
				t.Errorf("%s: another: %v", tc.name, err)
			}
			for range 2 {
				if err := host.ResetUnit(ctx, h, u.Name); err != nil {
					t.Errorf("%s: reset: %v", tc.name, err)
				}
			}
			if s, err := host.UnitStatus(ctx, h, u.Name); err != nil || s.Exists {
				t.Errorf("%s: after the reset %+v, %v", tc.name, s, err)
			}
		}
	})
	t.Run("cannot start", func(t *testing.T) {
		for _, u := range []host.Unit{
			{Name: "belay-test-none", Argv: []string{"belay-no-such-program"}},
			{Name: "belay-test-path", Argv: []string{"/belay/no/such/program"}},
			{Name: "belay-test-dir", Argv: []string{"true"}, Dir: "/belay/no/such/directory"},
			{Name: "belay-test-property", Argv: []string{"true"}, Properties: []string{"NoSuchProperty=1"}},
		} {
			err := host.StartUnit(ctx, h, u)
			t.Log(err)
			if e := (*host.NotStartedError)(nil); !errors.As(err, &e) {
				t.Errorf("%s: got %v, want a NotStartedError", u.Name, err)
			}
			if s, err := host.UnitStatus(ctx, h, u.Name); err != nil || s.Exists {
				t.Errorf("%s: %+v, %v", u.Name, s, err)
			}
		}
	})
	t.Run("many start it, once it runs", func(t *testing.T) {
		u := sh("once", "echo run; sleep 1")
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if _, err := host.RunUnit(ctx, h, u, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		out, err := host.UnitOutput(ctx, h, u.Name, 1000)
		if err != nil || string(out) != "run\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("goes on without a connection", func(t *testing.T) {
		u := sh("drop", "for i in 1 2 3 4 5 6; do echo line $i; sleep 1; done")
		if err := host.StartUnit(ctx, h, u); err != nil {
			t.Fatal(err)
		}
		// sshd's processes for this connection are killed while it is waited for, twice.
		killer := dial(t)
		var wg sync.WaitGroup
		drops := 0
		wg.Go(func() {
			for drops < 2 {
				select {
				case <-time.After(1500 * time.Millisecond):
				case <-ctx.Done():
					return
				}
				_, err := killer.Run(ctx, host.Cmd{Argv: []string{"/bin/sh", "-c", "pkill -KILL -f '^sshd: root'"}})
				if e := (*host.LostError)(nil); !errors.As(err, &e) {
					t.Errorf("the killer's own connection: %v", err)
				}
				drops++
			}
		})
		var lines []string
		s, err := host.WaitUnit(ctx, h, u.Name, func(l string) { lines = append(lines, l) })
		wg.Wait()
		if err != nil || s.ExitCode != 0 || strings.Join(lines, ",") != "line 1,line 2,line 3,line 4,line 5,line 6" {
			t.Errorf("got %+v, %q, %v", s, lines, err)
		}
	})
	t.Run("stop and reset", func(t *testing.T) {
		u := sh("stop", "echo begun; sleep 1000 & wait")
		if err := host.StartUnit(ctx, h, u); err != nil {
			t.Fatal(err)
		}
		if err := host.ResetUnit(ctx, h, u.Name); !errors.As(err, new(*host.UnitActiveError)) {
			t.Errorf("reset while it runs: %v", err)
		}
		if err := host.StopUnit(ctx, h, u.Name); err != nil {
			t.Fatal(err)
		}
		if err := host.ResetUnit(ctx, h, u.Name); err != nil {
			t.Fatal(err)
		}
		// The name is free, and the log is the new unit's own.
		u.Argv[2] = "echo second"
		if _, err := host.RunUnit(ctx, h, u, nil); err != nil {
			t.Fatal(err)
		}
		if out, err := host.UnitOutput(ctx, h, u.Name, 100); err != nil || string(out) != "second\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("the output is for root only", func(t *testing.T) {
		out, err := run(t, h, "stat", "-c", "%a", host.UnitDir)
		if err != nil || out != "700\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Log("machine: " + m.Address)
}
