package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/internal/host"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestExitCode(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"nothing":             {nil, exitOK},
		"plain":               {errors.New("x"), exitError},
		"usage":               {fmt.Errorf("a: %w", usagef("b")), exitUsage},
		"coded":               {errors.Join(errors.New("x"), &codedError{err: errors.New("y"), code: exitStale}), exitStale},
		"cancelled":           {fmt.Errorf("x: %w", context.Canceled), exitInterrupted},
		"lost":                {fmt.Errorf("drain w1: %w", &host.LostError{Host: "w1", Err: errors.New("eof")}), exitUnknown},
		"interrupted":         {&interruptedError{errors.New("x")}, exitInterrupted},
		"interrupted, resume": {&interruptedError{&codedError{err: errors.New("x"), code: exitStopped}}, exitStopped},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}

func TestReportSaysWhatToRunNext(t *testing.T) {
	var b bytes.Buffer
	if code := report(&b, "belay apply", &codedError{err: errors.New("stopped"), code: exitStopped, next: "belay resume"}); code != exitStopped {
		t.Errorf("code %d", code)
	}
	if want := "belay: stopped\nnext:  belay resume\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestInterrupts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	i := newInterrupts(cancel)
	stop := i.graceful()
	i.signal()
	select {
	case <-stop:
	default:
		t.Fatal("the first signal did not ask for a stop")
	}
	if ctx.Err() != nil || i.cancelled() {
		t.Fatal("the first signal cancelled")
	}
	i.signal()
	if ctx.Err() == nil || !i.cancelled() {
		t.Fatal("the second signal did not cancel")
	}
}

// Every command that does something has a short text and, if it takes flags of its own, an example.
func TestEveryCommandHelps(t *testing.T) {
	root := newRootCmd(newDeps(nil, nil, nil))
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short text", c.CommandPath())
		}
		if c.Runnable() && !c.HasSubCommands() && c.HasLocalFlags() && c.Example == "" && !strings.HasPrefix(c.CommandPath(), "belay completion") {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}
