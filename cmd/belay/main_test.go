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

	"github.com/belayops/belay/executor"
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
		"stopped run":         {&interruptedError{&executor.StoppedError{Run: "r", Err: context.Canceled}}, exitStopped},
		"unknown step":        {&interruptedError{&executor.UnknownError{Run: "r", Err: context.Canceled}}, exitUnknown},
		"gaps":                {&executor.UnseenError{Gaps: []string{"pods"}}, exitUnknown},
		"no backup":           {&executor.BlockedError{Err: errors.New("x")}, exitBlocked},
		"interrupted, resume": {&interruptedError{&codedError{err: errors.New("x"), code: exitStopped}}, exitStopped},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}

func TestReportSaysWhatToRunNext(t *testing.T) {
	var b bytes.Buffer
	d := newDeps(nil, nil, &b)
	d.root = newRootCmd(d)
	say := func(err error) string {
		b.Reset()
		d.report("belay apply", err)
		return b.String()
	}
	stopped := &codedError{err: errors.New("stopped"), code: exitStopped, next: "belay resume"}
	if got, want := say(stopped), "belay: stopped\nnext:  belay resume\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// The next command works on the cluster that this one worked on.
	d.clusterName, d.inventoryFile = "", "my hosts.yaml"
	d.kubeContext = "prod"
	for next, want := range map[string]string{
		"belay resume":                                   "belay resume --context prod --inventory 'my hosts.yaml'",
		"belay backup create":                            "belay backup create --context prod --inventory 'my hosts.yaml'",
		"belay bundle build 1.37.2":                      "belay bundle build 1.37.2",
		"belay bundle build 1.37.2 && belay resume":      "belay bundle build 1.37.2 && belay resume --context prod --inventory 'my hosts.yaml'",
		"belay check --state s.json":                     "belay check --state s.json",
		"kubectl get pods":                               "kubectl get pods",
		"use a bundle that has an etcd step image first": "use a bundle that has an etcd step image first",
	} {
		if got := say(&silentError{code: exitBlocked, next: next}); got != "next:  "+want+"\n" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestInterrupts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	i := newInterrupts(cancel)
	said := 0
	stop := i.graceful(func() { said++ })
	i.signal()
	if said != 1 {
		t.Errorf("the first signal was told of %d times", said)
	}
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
