package controlplane

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, script string) *process {
	t.Helper()
	p, err := startProcess("demo", filepath.Join(t.TempDir(), "demo.log"), "/bin/sh", []string{"-c", script})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.kill() })
	return p
}

func TestEarlyDeathIsReportedWithTheLogsEnd(t *testing.T) {
	p := start(t, "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done; echo the reason >&2; exit 3")
	<-p.done
	exited := (*ExitedError)(nil)
	if err := p.err(); !errors.As(err, &exited) {
		t.Fatalf("err() = %v, want an *ExitedError", err)
	}
	if !strings.HasSuffix(exited.Tail, "line 39\nthe reason") || strings.Contains(exited.Tail, "line 20\n") {
		t.Errorf("tail is not the last 20 lines:\n%s", exited.Tail)
	}
	if !strings.Contains(exited.State, "3") {
		t.Errorf("state %q does not tell the exit code", exited.State)
	}
	if err := p.stop(t.Context()); !errors.As(err, &exited) {
		t.Errorf("stop() = %v, want the early death", err)
	}
}

func TestStopIsNoDeath(t *testing.T) {
	p := start(t, "exec sleep 60")
	if err := p.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.err(); err != nil {
		t.Errorf("err() after stop = %v", err)
	}
	if err := p.stop(t.Context()); err != nil {
		t.Errorf("second stop = %v", err)
	}
}

func TestStopInsists(t *testing.T) {
	p := start(t, "trap '' TERM; echo ready; while :; do sleep 1; done")
	for { // until the trap is set
		b, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 0 {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.stop(ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
	default:
		t.Error("still running after stop")
	}
}

func TestNoSuchProgram(t *testing.T) {
	_, err := startProcess("demo", filepath.Join(t.TempDir(), "demo.log"), "/nonexistent/demo", nil)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v, want one that wraps fs.ErrNotExist", err)
	}
}

func TestPKIFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	p, err := NewPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 11 {
		t.Errorf("%d files, want 11", len(entries))
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	if _, err := p.clientTLS("admin"); err != nil {
		t.Error(err)
	}
}

func TestPortsDiffer(t *testing.T) {
	ports, err := freePorts(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if seen[p] {
			t.Errorf("port %d twice", p)
		}
		seen[p] = true
	}
}
