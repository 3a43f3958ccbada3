//go:build e2e

package testenv

import (
	"context"
	"testing"
	"os"
	"time"

	"github.com/belayops/belay/internal/event"
)

func newEnv(t *testing.T, stateDir string) *Env {
	t.Helper()
	start := time.Now()
	e, err := New(Options{StateDir: stateDir, RuncPath: os.Getenv("BELAY_TEST_RUNC"), InstallTools: true, Sink: event.Func(func(ev event.Event) {
		t.Logf("%6.2fs %-14s %-14s %s %s", time.Since(start).Seconds(), ev.Type, ev.Subject, ev.Msg, ev.Err)
	})})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestTrial(t *testing.T) {
	e := newEnv(t, "/var/lib/belay/try")
	t.Logf("%+v\n%+v", e.Facts(), e.Facts().Quirks())
	ms, err := e.Up(context.Background(), "try", []MachineSpec{{Name: "cp1"}, {Name: "w1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		t.Logf("%+v", m)
	}
}
