package executor

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/belayops/belay/plan"
)

func TestSalientLinesOfKubeadm(t *testing.T) {
	out := "\x1b[0;37mCGROUPS_PIDS\x1b[0m: \x1b[0;32menabled\x1b[0m\n[preflight] Some fatal errors occurred:\n\t[ERROR CreateJob]: Job did not complete\nTo see the stack trace\nerror: error execution phase preflight\n"
	if got, want := salient(out), "[ERROR CreateJob]: Job did not complete\nerror: error execution phase preflight"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := salient("\x1b[0;32mlast\x1b[0m line"); got != "last line" {
		t.Errorf("without an error line: %q", got)
	}
}

func TestUnknownKindsAreRefused(t *testing.T) {
	w := newWorld(t, 1, 1)
	env := w.env()
	k := &task{Env: &env, run: "r", plan: w.plan(t), baseline: w.initial}
	if err := k.precondition(t.Context(), plan.Precondition{Kind: "moon-is-full"}, ""); err == nil || !strings.Contains(err.Error(), "moon-is-full") {
		t.Errorf("a precondition that nobody knows holds: %v", err)
	}
	l := &loop{task: k, state: map[string]stepState{}, handlers: k.handlers(), report: &Report{}}
	var stopped *StoppedError
	if err := l.step(t.Context(), plan.Step{ID: "x", Kind: "dance"}, 1, 1); !errors.As(err, &stopped) || stopped.Begun {
		t.Errorf("a step that nobody knows: %v", err)
	}
	// Every kind that a plan can hold has a handler.
	for _, s := range k.plan.Steps {
		if _, ok := l.handlers[s.Kind]; !ok {
			t.Errorf("no handler for %s", s.Kind)
		}
	}
}

func TestForeignCordonIsNeitherTakenNorGivenBack(t *testing.T) {
	w := newWorld(t, 1, 1)
	env := w.env()
	k := &task{Env: &env, run: "r", plan: w.plan(t)}
	s := plan.Step{ID: "cordon", Kind: plan.Cordon, Node: "w1"}
	if err := k.patchNode(t.Context(), "w1", func(*corev1.Node) string { return `"annotations":{}},"spec":{"unschedulable":true}` }); err != nil {
		t.Fatal(err)
	}
	if f, err := (cordon{k}).Probe(t.Context(), s, false); err != nil || f.Progress != Done {
		t.Errorf("cordon: %+v, %v", f, err)
	}
	if f, err := (uncordon{k}).Probe(t.Context(), s, false); err != nil || f.Progress != Done {
		t.Errorf("uncordon would take somebody else's cordon away: %+v, %v", f, err)
	}
}
