package executor

import (
	"context"
	"fmt"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
)

// Progress says how far the cluster is with a step.
type Progress int

// The values of Progress. Unknown is an answer too: it stops the run.
const (
	Unknown Progress = iota
	NotStarted
	Partial
	Done
)

func (p Progress) String() string {
	return [...]string{"unknown", "not started", "partial", "done"}[p]
}

// Found is what Probe found, and the words for it.
type Found struct {
	Progress Progress
	Detail   string
}

func found(p Progress, format string, args ...any) Found {
	return Found{p, fmt.Sprintf(format, args...)}
}

// Handler carries out the steps of one kind.
type Handler interface {
	// Probe asks the cluster, not the journal, how far the step is. wasDone says that the journal has its outcome, so that the
	// question is only whether the effect still holds.
	Probe(ctx context.Context, s plan.Step, wasDone bool) (Found, error)
	// Apply brings the effect about. It starts from NotStarted and from Partial, and may be cut off anywhere.
	Apply(ctx context.Context, s plan.Step) error
	// Verify gives the conditions under which the step is done; they prove newness before health.
	Verify(s plan.Step) []condition.Condition
}

// task is what handlers share in one run.
type task struct {
	*Env
	run      string
	plan     *plan.Plan
	baseline *cluster.State
	// asked are the gates that this process has asked just now, before it began the run.
	asked map[string]bool
}

// handlers is the table of step kinds.
func (t *task) handlers() map[plan.Kind]Handler {
	return map[plan.Kind]Handler{
		plan.PreflightGate:    preflightGate{t},
		plan.BackupGate:       backupGate{t},
		plan.Stage:            stage{t},
		plan.EtcdPatch:        etcdPatch{t},
		plan.KubeadmApply:     controlPlane{t},
		plan.KubeadmNode:      controlPlane{t},
		plan.ControlPlaneGate: controlPlaneGate{t},
		plan.Cordon:           cordon{t},
		plan.Uncordon:         uncordon{t},
		plan.Drain:            drainNode{t},
		plan.KubeletConfig:    kubeletConfig{t},
		plan.Kubelet:          kubelet{t},
		plan.Canary:           canary{t},
		plan.NodeGate:         nodeGate{t},
		plan.Verify:           verifyAll{t},
	}
}

func (t *task) say(s plan.Step, format string, args ...any) {
	event.Or(t.Sink).Emit(event.Event{Type: event.StepProgress, Run: t.run, Step: s.ID, Subject: s.Node, Msg: fmt.Sprintf(format, args...)})
}

func (t *task) wait(ctx context.Context, s plan.Step, c condition.Condition, timeout time.Duration) error {
	return condition.Wait(ctx, c, condition.Options{Timeout: timeout, Interval: t.poll(),
		OnChange: func(why string) { t.say(s, "waiting for %s: %s", c.Name, why) }})
}

func noBundle(v kubeversion.V) error {
	return &BlockedError{Err: fmt.Errorf("the bundle of %s is not at hand", v), Do: "belay bundle build " + v.Bare()}
}

func (t *task) bundle(v kubeversion.V) (*bundle.Bundle, error) {
	b := t.Bundles[v]
	if b == nil {
		return nil, noBundle(v)
	}
	return b, nil
}

func (t *task) isControlPlane(node string) bool {
	for _, n := range t.plan.Basis.Nodes {
		if n.Name == node {
			return n.ControlPlane
		}
	}
	return false
}
