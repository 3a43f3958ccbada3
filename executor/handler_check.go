package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/plan"
)

// preflightGate runs the checks of `belay check` once more, with what the plan has accepted.
type preflightGate struct{ *task }

func (h preflightGate) Probe(context.Context, plan.Step, bool) (Found, error) {
	return found(NotStarted, "it is asked each time"), nil
}

func (h preflightGate) Apply(ctx context.Context, s plan.Step) error {
	if h.asked[s.ID] {
		return nil
	}
	if h.Preflight == nil {
		return errors.New("no checks are known to this belay")
	}
	blocking, err := h.Preflight(ctx, s.Params.Version, s.Params.Accept)
	if err != nil {
		return fmt.Errorf("run the checks: %w", err)
	}
	if len(blocking) > 0 {
		return &ManualError{Err: fmt.Errorf("%d findings stand in the way:\n  %s", len(blocking), strings.Join(blocking, "\n  ")),
			Do: []string{"belay check --to " + h.plan.To.Bare()}}
	}
	return nil
}

func (h preflightGate) Verify(plan.Step) []condition.Condition { return nil }

// backupGate asks for a verified backup of this cluster.
type backupGate struct{ *task }

func (h backupGate) Probe(context.Context, plan.Step, bool) (Found, error) {
	return found(NotStarted, "it is asked each time"), nil
}

func (h backupGate) Apply(ctx context.Context, s plan.Step) error {
	if h.asked[s.ID] {
		return nil
	}
	if h.Backup == nil {
		return errors.New("no place to look for backups is known")
	}
	which, err := h.Backup(ctx, h.plan.Lineage, s.Params.BackupLevel, time.Duration(s.Params.BackupMaxAgeSeconds)*time.Second)
	if err != nil {
		do := "belay backup create"
		if n := (interface{ Next() string })(nil); errors.As(err, &n) && n.Next() != "" {
			do = n.Next()
		}
		return &ManualError{Err: fmt.Errorf("nothing is changed before there is a backup: %w", err), Do: []string{do}}
	}
	h.say(s, "backup %s", which)
	return nil
}

func (h backupGate) Verify(plan.Step) []condition.Condition { return nil }

// controlPlaneGate asks every apiserver for the new version before any kubelet is touched.
type controlPlaneGate struct{ *task }

func (h controlPlaneGate) Probe(context.Context, plan.Step, bool) (Found, error) {
	return found(NotStarted, "it is asked each time"), nil
}

func (h controlPlaneGate) Apply(context.Context, plan.Step) error { return nil }

func (h controlPlaneGate) Verify(s plan.Step) []condition.Condition {
	return []condition.Condition{
		{Name: "every apiserver to answer with " + s.Params.Version.String(), Check: func(ctx context.Context) error {
			return h.apiServersAtLeast(ctx, s.Params.Version)
		}},
		verify.StaticPodsAt(h.Client, "", s.Params.Version),
	}
}

// canary proves the way from the API to a running container on the node.
type canary struct{ *task }

func (h canary) Probe(context.Context, plan.Step, bool) (Found, error) {
	return found(NotStarted, "a canary is sent each time"), nil
}

func (h canary) Apply(ctx context.Context, s plan.Step) error {
	return h.send(ctx, s, s.Node)
}

// send sends a canary to a node. Which Services it has to reach is asked each time: an upgrade moves what is behind them.
func (t *task) send(ctx context.Context, s plan.Step, node string) error {
	c := verify.Canary{Node: node, Image: s.Params.CanaryImage, Run: t.run, Poll: t.poll(), Timeout: t.patience()}
	err := t.mend(ctx, "Services of the API and of DNS to be read", func(ctx context.Context) (err error) {
		c.Reach, err = verify.Routes(ctx, t.Client)
		return err
	})
	if err != nil {
		return err
	}
	t.say(s, "%s", c.Proves())
	return verify.RunCanary(ctx, t.Client, c)
}

func (h canary) Verify(plan.Step) []condition.Condition { return nil }

// nodeGate compares nodes and workloads with the baseline before the next node's turn.
type nodeGate struct{ *task }

func (h nodeGate) Probe(context.Context, plan.Step, bool) (Found, error) {
	return found(NotStarted, "it is asked each time"), nil
}

func (h nodeGate) Apply(context.Context, plan.Step) error { return nil }

func (h nodeGate) Verify(plan.Step) []condition.Condition {
	return []condition.Condition{verify.NoRegression(h.Client, h.baseline)}
}

// nodeNames are the nodes of the plan. One that joined since is not the run's.
func (t *task) nodeNames() []string {
	var names []string
	for _, n := range t.plan.Basis.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// verifyAll proves the whole cluster at the target.
type verifyAll struct{ *task }

func (h verifyAll) Probe(context.Context, plan.Step, bool) (Found, error) {
	return found(NotStarted, "it is asked each time"), nil
}

func (h verifyAll) Apply(ctx context.Context, s plan.Step) error {
	if s.Params.CanaryImage == "" {
		return nil
	}
	for _, n := range h.plan.Basis.Nodes {
		if err := h.send(ctx, s, n.Name); err != nil {
			return err
		}
	}
	return nil
}

func (h verifyAll) Verify(s plan.Step) []condition.Condition {
	return []condition.Condition{
		{Name: "every apiserver to answer with " + s.Params.Version.String(), Check: func(ctx context.Context) error {
			return h.apiServersAtLeast(ctx, s.Params.Version)
		}},
		verify.NodesAt(h.Client, s.Params.Version, h.nodeNames()...),
		verify.StaticPodsAt(h.Client, "", s.Params.Version),
		verify.NoRegression(h.Client, h.baseline),
	}
}
