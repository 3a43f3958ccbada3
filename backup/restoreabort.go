package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/journal"
)

// abortStep is the journal's mark of a restore that is being given up: from
// there on it cannot be gone on with.
const abortStep = "abort"

// AbortEtcdRestore gives up a restore in place that was begun and is
// unfinished: every member gets the data back that it had before, and the
// control plane is started again. What the restore made stays aside, under the
// names in the report. The journal is kept beside its place, as JOURNAL.RUN.
//
// It looks at what is there and can be repeated after an interruption.
func AbortEtcdRestore(ctx context.Context, o EtcdRestoreOptions) (r *EtcdRestoreReport, err error) {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	x := newEtcdRestore(o)
	j, records, err := journal.Open(o.Journal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no restore to give up: no journal %s", o.Journal)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	x.j, x.run = j, j.Header().Run
	x.r.Run = x.run
	for _, rec := range records {
		if rec.Kind != journal.Outcome {
			continue
		}
		switch rec.Step {
		case "verify":
			return nil, fmt.Errorf("restore %s is finished; what there was before is on the nodes, in before-%s within etcd's data directory", x.run, x.run)
		case "look":
			if err := json.Unmarshal(rec.Data, &x.targets); err != nil {
				return nil, fmt.Errorf("journal %s: %w", o.Journal, err)
			}
		}
	}
	for _, t := range x.targets {
		if t.Address != "" {
			return nil, fmt.Errorf("restore %s makes nodes of new machines; to give it up, run on each of them: kubeadm reset", x.run)
		}
		if x.hosts[t.Node] == nil {
			return nil, fmt.Errorf("the restore was begun on node %s, which was not given now", t.Node)
		}
		x.r.Members = append(x.r.Members, t.Member)
	}
	if err := j.Append(journal.Record{Step: abortStep, Kind: journal.Intent}); err != nil {
		return nil, err
	}
	if err := x.setBack(ctx); err != nil {
		return x.r, &UnfinishedError{Journal: o.Journal, Err: err}
	}
	if err := j.Append(journal.Record{Step: abortStep, Kind: journal.Outcome}); err != nil {
		return x.r, err
	}
	return x.r, os.Rename(o.Journal, o.Journal+"."+x.run)
}

// setBack carries an abort out.
func (x *etcdRestore) setBack(ctx context.Context) error {
	swapped := make([]bool, len(x.targets))
	for i, t := range x.targets {
		var err error
		if swapped[i], err = exists(ctx, x.hosts[t.Node], x.keptDir(t)+"/member"); err != nil {
			return err
		}
	}
	type step struct {
		msg string
		run func(context.Context, target, host.Host) error
	}
	var steps []step
	if slices.Contains(swapped, true) {
		for _, c := range controlPlaneComponents {
			steps = append(steps, step{"stop " + c, func(ctx context.Context, t target, h host.Host) error { return x.stop(ctx, t, h, c) }})
		}
		steps = append(steps, step{"move the data back that was there before", x.swapBack})
	}
	for _, c := range slices.Backward(controlPlaneComponents) {
		steps = append(steps, step{"start " + c, func(ctx context.Context, _ target, h host.Host) error { return x.start(ctx, h, c) }})
	}
	steps = append(steps,
		step{"wait until every kube-apiserver is ready", x.apiReady},
		step{"remove what the restore had prepared", func(ctx context.Context, t target, h host.Host) error {
			if err := run(ctx, h, "rm", "-rf", x.stagedDir(t)); err != nil {
				return err
			}
			return run(ctx, h, "rm", "-rf", x.parked())
		}})
	for i, s := range steps {
		e := event.Event{Time: time.Now(), Type: event.StepStarted, Run: x.run, Step: abortStep, Msg: s.msg, Index: i + 1, Total: len(steps)}
		x.sink.Emit(e)
		err := x.onEach(ctx, s.run)
		e.Elapsed, e.Time, e.Type = time.Since(e.Time), time.Now(), event.StepDone
		if err != nil {
			e.Type, e.Err = event.StepFailed, err.Error()
		}
		x.sink.Emit(e)
		if err != nil {
			return fmt.Errorf("%s: %w", s.msg, err)
		}
	}
	for _, t := range x.targets {
		there, err := exists(ctx, x.hosts[t.Node], x.givenUpDir(t))
		if err != nil {
			return err
		}
		if there {
			x.r.Kept = append(x.r.Kept, t.Node+":"+x.givenUpDir(t))
		}
	}
	return nil
}

// givenUpDir is where the data of a restore lies that was given up.
func (x *etcdRestore) givenUpDir(t target) string { return t.DataDir + "/given-up-" + x.run }

// swapBack undoes swap. Only the old data tells that anything was swapped:
// without it, what is in place is left alone.
func (x *etcdRestore) swapBack(ctx context.Context, t target, h host.Host) error {
	live, kept, aside := t.DataDir+"/member", x.keptDir(t), x.givenUpDir(t)
	old, err := exists(ctx, h, kept+"/member")
	if err != nil || !old {
		return err
	}
	there, err := exists(ctx, h, live)
	if err != nil {
		return err
	}
	if there {
		if err := run(ctx, h, "mkdir", "-p", "-m", "0700", aside); err != nil {
			return err
		}
		if err := run(ctx, h, "mv", "-T", live, aside+"/member"); err != nil {
			return err
		}
	}
	if err := run(ctx, h, "mv", "-T", kept+"/member", live); err != nil {
		return err
	}
	if err := run(ctx, h, "rmdir", kept); err != nil {
		return err
	}
	return run(ctx, h, "sync")
}

// beingGivenUp says whether a restore can only be given up any more.
func beingGivenUp(records []journal.Record) bool {
	return slices.ContainsFunc(records, func(r journal.Record) bool { return r.Step == abortStep })
}
