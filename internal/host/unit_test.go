package host_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/host/hosttest"
)

var upgrade = host.Unit{
	Name: "belay-r1-cp1-upgrade", Argv: []string{"kubeadm", "upgrade", "apply", "v1.37.2", "$HOME"},
	Env: []string{"LC_ALL=C"}, Dir: "/root", Properties: []string{"TimeoutStopSec=5s"},
}

func newUnitFake(t *testing.T, r hosttest.UnitReply) *hosttest.Fake {
	f := hosttest.NewFake(t, "cp1")
	f.OnUnit(hosttest.Prefix("kubeadm", "upgrade"), r)
	return f
}

func TestRunUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newUnitFake(t, hosttest.UnitReply{Output: "one\ntwo\nthree", Polls: 3})
		var lines []string
		s, err := host.RunUnit(t.Context(), f, upgrade, func(l string) { lines = append(lines, l) })
		if err != nil {
			t.Fatal(err)
		}
		if !s.Finished() || s.ExitCode != 0 || s.Result != "success" || s.Digest != upgrade.Digest() || s.Since.IsZero() || !s.Ended.After(s.Since) {
			t.Errorf("got %+v", s)
		}
		if want := []string{"one", "two", "three"}; !slices.Equal(lines, want) {
			t.Errorf("lines %q, want %q", lines, want)
		}
		if argv, ok := f.Started(upgrade.Name); !ok || !slices.Equal(argv, upgrade.Argv) {
			t.Errorf("started %q", argv)
		}
		// Once more: it was done, and is not done again.
		f.OnUnit(hosttest.Prefix("kubeadm"), hosttest.UnitReply{Code: 1})
		if _, err := host.RunUnit(t.Context(), f, upgrade, nil); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func TestRunUnitSaysNo(t *testing.T) {
	f := newUnitFake(t, hosttest.UnitReply{Output: "preflight failed\n", Code: 3})
	s, err := host.RunUnit(t.Context(), f, upgrade, nil)
	e := (*host.ExitError)(nil)
	if !errors.As(err, &e) || e.Code != 3 || s.ExitCode != 3 || e.Host != "cp1" || !slices.Equal(e.Argv, upgrade.Argv) {
		t.Fatalf("got %v, %+v", err, s)
	}
	if !strings.Contains(err.Error(), "preflight failed") {
		t.Errorf("%q does not give the output", err)
	}
	// A later process reads it again.
	out, err := host.UnitOutput(t.Context(), f, upgrade.Name, 7)
	if err != nil || string(out) != "failed\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestStartUnitIsIdempotent(t *testing.T) {
	ctx := t.Context()
	f := newUnitFake(t, hosttest.UnitReply{Polls: -1})
	for range 3 {
		if err := host.StartUnit(ctx, f, upgrade); err != nil {
			t.Fatal(err)
		}
	}
	other := upgrade
	other.Argv = []string{"kubeadm", "upgrade", "apply", "v1.38.0"}
	err := host.StartUnit(ctx, f, other)
	if e := (*host.UnitConflictError)(nil); !errors.As(err, &e) || e.Have != upgrade.Digest() || e.Want != other.Digest() {
		t.Errorf("got %v, want a UnitConflictError", err)
	}
	err = host.ResetUnit(ctx, f, upgrade.Name)
	if e := (*host.UnitActiveError)(nil); !errors.As(err, &e) {
		t.Errorf("got %v, want a UnitActiveError", err)
	}
	if err := host.StopUnit(ctx, f, upgrade.Name); err != nil {
		t.Fatal(err)
	}
	if err := host.ResetUnit(ctx, f, upgrade.Name); err != nil {
		t.Fatal(err)
	}
	if err := host.StartUnit(ctx, f, other); err != nil {
		t.Errorf("after a reset: %v", err)
	}
}

func TestResetUnit(t *testing.T) {
	ctx := t.Context()
	for _, code := range []int{0, 4} {
		f := newUnitFake(t, hosttest.UnitReply{Output: "x", Code: code})
		if err := host.StartUnit(ctx, f, upgrade); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := host.ResetUnit(ctx, f, upgrade.Name); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := host.UnitStatus(ctx, f, upgrade.Name); err != nil || s.Exists {
			t.Errorf("got %+v, %v", s, err)
		}
		if _, err := host.UnitOutput(ctx, f, upgrade.Name, 10); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("output after a reset: %v", err)
		}
	}
}

func TestUnitSurvivesDrops(t *testing.T) {
	show := hosttest.Prefix("systemctl", "show")
	t.Run("while it is waited for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newUnitFake(t, hosttest.UnitReply{Output: "done\n", Polls: 2})
			if err := host.StartUnit(t.Context(), f, upgrade); err != nil {
				t.Fatal(err)
			}
			f.Once(show, hosttest.Reply{Err: hosttest.ErrLost})
			f.Times(3, show, hosttest.Reply{Err: hosttest.ErrNotStarted})
			f.Once(show, hosttest.Reply{Code: 1, Stderr: "Failed to connect to bus\n"})
			f.Once(hosttest.Where("output", func(c host.Cmd) bool { return len(c.Argv) > 3 && c.Argv[3] == "belay-unit-output" }), hosttest.Reply{Err: hosttest.ErrLost})
			var lines []string
			s, err := host.WaitUnit(t.Context(), f, upgrade.Name, func(l string) { lines = append(lines, l) })
			if err != nil || !s.Finished() || !slices.Equal(lines, []string{"done"}) {
				t.Errorf("got %+v, %q, %v", s, lines, err)
			}
		})
	})
	t.Run("the answer to the start is lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newUnitFake(t, hosttest.UnitReply{LoseStart: true})
			if _, err := host.RunUnit(t.Context(), f, upgrade, nil); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("the start itself is lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newUnitFake(t, hosttest.UnitReply{})
			f.Once(hosttest.Where("start", func(c host.Cmd) bool { return len(c.Argv) > 3 && c.Argv[3] == "belay-unit-start" }), hosttest.Reply{Err: hosttest.ErrLost})
			f.Once(show, hosttest.Reply{Stdout: "LoadState=not-found\nActiveState=inactive\n"})
			f.Once(show, hosttest.Reply{Err: hosttest.ErrNotStarted})
			if _, err := host.RunUnit(t.Context(), f, upgrade, nil); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("the context ends it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newUnitFake(t, hosttest.UnitReply{Polls: -1})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := host.RunUnit(ctx, f, upgrade, nil)
			if e := (*condition.TimeoutError)(nil); !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if _, ok := f.Started(upgrade.Name); !ok {
				t.Error("the unit did not go on")
			}
		})
	})
	t.Run("the machine was restarted", func(t *testing.T) {
		f := newUnitFake(t, hosttest.UnitReply{Polls: -1})
		if err := host.StartUnit(t.Context(), f, upgrade); err != nil {
			t.Fatal(err)
		}
		f.Reboot()
		_, err := host.WaitUnit(t.Context(), f, upgrade.Name, nil)
		if e := (*host.UnitMissingError)(nil); !errors.As(err, &e) {
			t.Errorf("got %v, want a UnitMissingError", err)
		}
	})
	t.Run("a wrong host key is not waited for", func(t *testing.T) {
		f := newUnitFake(t, hosttest.UnitReply{})
		f.Once(show, hosttest.Reply{Err: &host.NotStartedError{Host: "cp1", Err: &host.HostKeyError{Address: "a:22"}}})
		_, err := host.WaitUnit(t.Context(), f, upgrade.Name, nil)
		if e := (*host.HostKeyError)(nil); !errors.As(err, &e) {
			t.Errorf("got %v", err)
		}
	})
}

func TestStartUnitFailures(t *testing.T) {
	start := hosttest.Where("start", func(c host.Cmd) bool { return len(c.Argv) > 3 && c.Argv[3] == "belay-unit-start" })
	t.Run("systemd refuses", func(t *testing.T) {
		f := newUnitFake(t, hosttest.UnitReply{})
		f.Once(start, hosttest.Reply{Code: 1, Stderr: "Failed to find executable kubeadm: No such file or directory\n"})
		text := wantNotStarted(t, host.StartUnit(t.Context(), f, upgrade))
		wantWords(t, text, "Failed to find executable", "kubeadm")
	})
	t.Run("systemd cannot set it up", func(t *testing.T) {
		// The unit exists then, failed, and must not pass for one that was run.
		f := newUnitFake(t, hosttest.UnitReply{Code: 203})
		f.Once(start, hosttest.Reply{Do: func(ctx context.Context, c host.Cmd) (host.Result, error) {
			if _, err := f.Run(ctx, c); err != nil { // the rule is used up, so this starts the unit
				return host.Result{}, err
			}
			return host.Result{}, &host.ExitError{Host: "cp1", Argv: c.Argv, Code: 1, Stderr: []byte("Job failed\n")}
		}})
		wantNotStarted(t, host.StartUnit(t.Context(), f, upgrade))
		if _, ok := f.Started(upgrade.Name); ok {
			t.Error("the failed unit is still there")
		}
	})
	for name, u := range map[string]host.Unit{
		"no name":      {Argv: []string{"true"}},
		"a path":       {Name: "../x", Argv: []string{"true"}},
		"an option":    {Name: "-x", Argv: []string{"true"}},
		"a suffix":     {Name: "x.service", Argv: []string{"true"}},
		"no program":   {Name: "x"},
		"$ in program": {Name: "x", Argv: []string{"/a$b"}},
		"bad env":      {Name: "x", Argv: []string{"true"}, Env: []string{"=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantNotStarted(t, host.StartUnit(t.Context(), hosttest.NewFake(t, "cp1"), u))
		})
	}
}

func TestUnitDigest(t *testing.T) {
	base := upgrade.Digest()
	for name, change := range map[string]func(u *host.Unit){
		"argv":  func(u *host.Unit) { u.Argv = []string{"kubeadm"} },
		"split": func(u *host.Unit) { u.Argv = []string{"kubeadm upgrade", "apply", "v1.37.2", "$HOME"} },
		"env":   func(u *host.Unit) { u.Env = nil },
		"dir":   func(u *host.Unit) { u.Dir = "" },
		"props": func(u *host.Unit) { u.Properties = nil },
	} {
		u := upgrade
		change(&u)
		if u.Digest() == base {
			t.Errorf("%s: the digest is the same", name)
		}
	}
	u := upgrade
	u.Name = "another"
	if u.Digest() != base {
		t.Error("the name changes the digest")
	}
}
