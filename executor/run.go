package executor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/journal"
	"github.com/belayops/belay/plan"
)

// The files of a run's directory, DIR/LINEAGE/RUN.
const (
	planFile     = "plan.json"
	journalFile  = "journal.jsonl"
	baselineFile = "baseline.json"
)

// Options say where a run is kept, who runs it, and what is watched meanwhile.
type Options struct {
	// Dir holds the runs of every cluster.
	Dir string
	// Who is the user, as "alice"; Host and PID say where; Tool is belay's version.
	Who, Host, Tool string
	PID             int
	// Stop, once closed, ends the run after the step that is under way.
	Stop <-chan struct{}
	// Targets are polled while the run works.
	Targets []Target
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	// wrapLog lets tests end the process at a record.
	wrapLog func(log) log
}

func (o Options) now() time.Time {
	if o.Now != nil {
		return o.Now()
	}
	return time.Now()
}

func (o Options) owner() string { return fmt.Sprintf("%s@%s, process %d", o.Who, o.Host, o.PID) }

// Run is a run on disk.
type Run struct {
	ID, Dir string
	Plan    *plan.Plan
}

// Apply carries out a plan from its beginning. Errors are *StaleError, *BusyError, *UnfinishedError, *StoppedError
// and *UnknownError where they say more than that something went wrong.
func Apply(ctx context.Context, env Env, p *plan.Plan, o Options) (*Report, error) {
	if err := noUnfinished(o.Dir, p.Lineage); err != nil {
		return nil, err
	}
	id, err := newID(o.now())
	if err != nil {
		return nil, err
	}
	l := newLease(&env, id, o)
	if err := l.acquire(ctx); err != nil {
		return nil, err
	}
	ctx, held := l.hold(ctx)
	started := false
	defer func() {
		if !started {
			held.end()
			giveBack(ctx, env.Sink, l, id)
		}
	}()
	// Another process may have begun a run between the first look and the lease.
	if err := noUnfinished(o.Dir, p.Lineage); err != nil {
		return nil, err
	}
	// What the plan relies on is looked at under the lease, so that no other run changes it in between.
	s, err := env.Observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("observe the cluster: %w", err)
	}
	// What was not read is neither a difference nor a baseline.
	if err := unseen(p, s); err != nil {
		return nil, err
	}
	diff, err := env.otherBundles(p)
	if err != nil {
		return nil, err
	}
	if diff = append(basisDiff(p, s), diff...); len(diff) > 0 {
		return nil, &StaleError{To: p.To, Diff: diff}
	}
	if err := env.reachable(ctx, p); err != nil {
		return nil, err
	}
	// The gates at the beginning are asked here, so that no run is begun that could only stop.
	t := &task{Env: &env, run: id, plan: p, baseline: s, asked: map[string]bool{}}
	for _, step := range p.Steps {
		if step.Kind != plan.BackupGate && step.Kind != plan.PreflightGate {
			break
		}
		if err := t.handlers()[step.Kind].Apply(ctx, step); err != nil {
			manual := (*ManualError)(nil)
			if !errors.As(err, &manual) {
				return nil, err
			}
			return nil, &BlockedError{Err: err, Do: manual.Do[0]}
		}
		t.asked[step.ID] = true
	}
	r := &Run{ID: id, Dir: filepath.Join(o.Dir, p.Lineage, id), Plan: p}
	j, err := r.create(s, o)
	if err != nil {
		return nil, err
	}
	started = true
	return r.work(ctx, t, j, replay(nil), held, o)
}

// unseen refuses an observation with gaps where the plan's basis or the baseline of the run would have holes, unless the plan was made, and accepted,
// with the same gap.
func unseen(p *plan.Plan, s *cluster.State) error {
	var gaps []string
	for _, u := range s.Unread {
		top := u.List()
		judged := slices.Contains(cluster.DrainReads(), top) || top == "configmap" || top == "etcd" && !p.Basis.EtcdExternal
		if judged && !slices.Contains(p.Waivers, cluster.IDCoverage+"@"+u.What) {
			gaps = append(gaps, fmt.Sprintf("%s (%s: %s)", u.What, u.Kind, u.Why))
		}
	}
	if len(gaps) == 0 {
		return nil
	}
	return &UnseenError{Gaps: gaps}
}

// otherBundles says which of the plan's bundles are others than those that it was made with.
func (e *Env) otherBundles(p *plan.Plan) (diff []string, err error) {
	for _, ref := range p.Bundles {
		switch b := e.Bundles[ref.Version]; {
		case b == nil:
			return nil, noBundle(ref.Version)
		case !b.Is(ref.Digest):
			diff = append(diff, fmt.Sprintf("bundle %s was %s, is %s", ref.Version.Bare(), cluster.ShortDigest(ref.Digest), cluster.ShortDigest(b.Digest())))
		}
	}
	return diff, nil
}

// reachable asks every machine of the plan for a sign of life, so that an unreachable one is known before anything is begun.
func (e *Env) reachable(ctx context.Context, p *plan.Plan) error {
	errs := make([]error, len(p.Basis.Nodes))
	var g errgroup.Group
	g.SetLimit(stageWidth)
	for i, n := range p.Basis.Nodes {
		g.Go(func() error {
			h, err := e.Machines.Host(ctx, n.Name)
			if err == nil {
				_, err = h.Run(ctx, host.Cmd{Argv: []string{"true"}})
			}
			if err != nil {
				errs[i] = fmt.Errorf("node %s: %w", n.Name, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs, all of them
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("nothing was begun, as not every machine is within reach: %w", err)
	}
	return nil
}

// Resume takes up a run that stopped or whose process was killed.
func (r *Run) Resume(ctx context.Context, env Env, o Options) (*Report, error) {
	if st, err := r.read(); err != nil {
		return nil, err
	} else if st.ended != "" {
		return nil, fmt.Errorf("run %s is %s: there is nothing to resume", r.ID, st.ended)
	}
	baseline, err := r.Baseline()
	if err != nil {
		return nil, err
	}
	// A plan names the builds that it was made with: two builds of one version in one cluster are nobody's intention.
	diff, err := env.otherBundles(r.Plan)
	if err != nil {
		return nil, err
	}
	if len(diff) > 0 {
		return nil, fmt.Errorf("run %s was begun with other bundles: %s; bring them back, or give the run up with belay abort %s and plan anew", r.ID, strings.Join(diff, "; "), r.ID)
	}
	j, st, err := r.open()
	if err != nil {
		return nil, err
	}
	l := newLease(&env, r.ID, o)
	if err := r.retake(ctx, env, l, st); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	ctx, held := l.hold(ctx)
	return r.work(ctx, &task{Env: &env, run: r.ID, plan: r.Plan, baseline: baseline}, j, st, held, o)
}

// sameCluster refuses a cluster that is not the run's.
func (r *Run) sameCluster(ctx context.Context, env Env) error {
	ns, err := env.Client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("namespace kube-system: %w", err)
	}
	if string(ns.UID) != r.Plan.Lineage {
		return condition.Final(fmt.Errorf("run %s is of another cluster: the UID of namespace kube-system is %s there and %s here; name the run's own cluster", r.ID, r.Plan.Lineage, ns.UID))
	}
	return nil
}

// retake takes the lease for a resumed run. A control plane step that was cut off may have left the only apiserver down: then
// the run goes on without, as mending that is its first act, and the lease is taken once the API is back. That it is the run's own cluster is
// then told by the mark that the step left on its machine.
func (r *Run) retake(ctx context.Context, env Env, l *lease, st replayed) error {
	at := slices.IndexFunc(r.Plan.Steps, func(s plan.Step) bool {
		return st.steps[s.ID].begun && !st.steps[s.ID].done && (s.Kind == plan.KubeadmApply || s.Kind == plan.KubeadmNode || s.Kind == plan.EtcdPatch)
	})
	open := at >= 0
	timeout := env.patience()
	if open {
		timeout = min(timeout, 30*time.Second+l.observe)
	}
	err := condition.Wait(ctx, condition.Condition{Name: "the API to give the lease", Check: func(ctx context.Context) error {
		err := r.sameCluster(ctx, env)
		if err == nil {
			err = l.acquire(ctx)
		}
		if busy := (*BusyError)(nil); errors.As(err, &busy) || err != nil && !transient(err) {
			return condition.Final(err)
		}
		return err
	}}, condition.Options{Timeout: timeout, Interval: env.poll(), Attempt: 10*time.Second + l.observe})
	if late := (*condition.TimeoutError)(nil); open && errors.As(err, &late) && ctx.Err() == nil {
		t := &task{Env: &env, run: r.ID, plan: r.Plan}
		if merr := t.marked(ctx, r.Plan.Steps[at].Node); merr != nil {
			return errors.Join(err, merr)
		}
		event.Or(env.Sink).Emit(event.Event{Type: event.Warning, Run: r.ID, Msg: "the API does not answer: the control plane step that was cut off is taken up without the lease"})
		return nil
	}
	return err
}

// work runs the loop under the lease.
func (r *Run) work(ctx context.Context, t *task, j *journal.Journal, st replayed, l *holding, o Options) (*Report, error) {
	start := o.now()
	defer l.end()
	sink := event.Or(t.Sink)
	sink.Emit(event.Event{Type: event.RunStarted, Run: r.ID, Total: len(r.Plan.Steps),
		Msg: fmt.Sprintf("run %s: %s from %s to %s", r.ID, cmp.Or(r.Plan.Cluster, "cluster"), r.Plan.From, r.Plan.To)})
	outages := watchOutages(ctx, o.Targets)
	report := &Report{Schema: ReportSchema, Run: r.ID, From: r.Plan.From.String(), To: r.Plan.To.String()}
	lp := &loop{task: t, log: log(j), state: st.steps, stop: o.Stop, handlers: t.handlers(), report: report, lease: l.lease}
	if o.wrapLog != nil {
		lp.log = o.wrapLog(lp.log)
	}
	err := lp.run(ctx)
	report.Outages = outages()
	report.Seconds = o.now().Sub(start).Seconds()
	if err == nil {
		if uerr := t.unpin(ctx); uerr != nil {
			sink.Emit(event.Event{Type: event.Warning, Run: r.ID, Msg: "images stay pinned in containerd, label belay.dev/run=" + r.ID, Err: uerr.Error()})
		}
		if nerr := note(lp.log, "", journal.Note, endNote{stateFinished}, nil); nerr != nil {
			err = &StoppedError{Run: r.ID, Err: nerr}
		}
	}
	interrupted := ctx.Err() != nil
	l.end()
	err = errors.Join(err, j.Close())
	// After a hard stop a machine may still be at work: the lease then runs out by itself.
	if !interrupted {
		giveBack(ctx, t.Sink, l.lease, r.ID)
	}
	fin := event.Event{Type: event.RunFinished, Run: r.ID, Msg: fmt.Sprintf("run %s: every step is done", r.ID), Elapsed: time.Duration(report.Seconds * float64(time.Second))}
	if err != nil {
		fin.Msg, fin.Err = fmt.Sprintf("run %s ended", r.ID), err.Error()
	}
	sink.Emit(fin)
	return report, err
}

func giveBack(ctx context.Context, sink event.Sink, l *lease, run string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := l.release(ctx); err != nil {
		event.Or(sink).Emit(event.Event{Type: event.Warning, Run: run, Msg: "the lease was not given back and runs out by itself", Err: err.Error()})
	}
}

// create makes the run's directory; the journal is made last, as a directory without one is no run.
func (r *Run) create(baseline *cluster.State, o Options) (*journal.Journal, error) {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the run's directory: %w", err)
	}
	// The names of the directories above must outlive a power cut, too.
	for dir := filepath.Dir(r.Dir); ; dir = filepath.Dir(dir) {
		if err := atomicfile.SyncDir(dir); err != nil {
			return nil, fmt.Errorf("make the run's directory: %w", err)
		}
		if dir == filepath.Clean(o.Dir) || dir == filepath.Dir(dir) {
			break
		}
	}
	b, err := r.Plan.Encode()
	if err != nil {
		return nil, err
	}
	if err := atomicfile.WriteFile(filepath.Join(r.Dir, planFile), b, 0o600); err != nil {
		return nil, err
	}
	if b, err = cluster.Encode(baseline); err != nil {
		return nil, fmt.Errorf("write the baseline: %w", err)
	}
	if err := atomicfile.WriteFile(filepath.Join(r.Dir, baselineFile), b, 0o600); err != nil {
		return nil, err
	}
	return journal.Create(r.journalPath(), journal.Header{Plan: r.Plan.Digest, Run: r.ID, Lineage: r.Plan.Lineage, Tool: o.Tool,
		Owner: journal.Owner{Who: o.Who, Host: o.Host, PID: o.PID}, Time: o.now()})
}

// busyJournal tells a run that another process of this computer carries out.
func busyJournal(run string, err error) error {
	if locked := (*journal.LockedError)(nil); errors.As(err, &locked) {
		return &BusyError{Holder: fmt.Sprintf("run %s by %s", run, locked.Owner)}
	}
	return err
}

// Baseline is the state of the cluster when the run began.
func (r *Run) Baseline() (*cluster.State, error) {
	b, err := os.ReadFile(filepath.Join(r.Dir, baselineFile))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", r.ID, err)
	}
	s, err := cluster.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("run %s: %s: %w", r.ID, baselineFile, err)
	}
	return s, nil
}

// OpenRun finds a run by its id; "" is the newest that has not ended, or else the newest. With runs on several clusters that have not ended, "" gives
// an *AmbiguousRunError.
func OpenRun(dir, id string) (*Run, error) {
	runs, err := listRuns(dir)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(runs, func(a, b *Run) int { return cmp.Compare(b.ID, a.ID) })
	var newest *Run
	var open []*Run
	for _, r := range runs {
		if id != "" && r.ID == id {
			newest = r
			break
		}
		if id == "" {
			if st, err := r.read(); err == nil && st.ended == "" {
				open = append(open, r)
			}
			newest = cmp.Or(newest, r)
		}
	}
	if len(open) > 0 {
		newest = open[0]
		if slices.ContainsFunc(open, func(r *Run) bool { return filepath.Dir(r.Dir) != filepath.Dir(newest.Dir) }) {
			err := &AmbiguousRunError{}
			for _, r := range open {
				err.Runs = append(err.Runs, r.ID)
			}
			return nil, err
		}
	}
	if newest == nil {
		return nil, &NoRunError{ID: id, Dir: dir}
	}
	b, err := os.ReadFile(filepath.Join(newest.Dir, planFile))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", newest.ID, err)
	}
	if newest.Plan, err = plan.Decode(b); err != nil {
		return nil, fmt.Errorf("run %s: %w", newest.ID, err)
	}
	return newest, nil
}

// NewestRun is the newest run on a cluster; nil when there is none.
func NewestRun(dir, lineage string) (*Run, error) {
	runs, err := listRuns(dir)
	if err != nil {
		return nil, err
	}
	var newest *Run
	for _, r := range runs {
		if filepath.Base(filepath.Dir(r.Dir)) == lineage && (newest == nil || newest.ID < r.ID) {
			newest = r
		}
	}
	return newest, nil
}

func listRuns(dir string) ([]*Run, error) {
	journals, err := filepath.Glob(filepath.Join(dir, "*", "*", journalFile))
	if err != nil {
		return nil, err
	}
	var runs []*Run
	for _, j := range journals {
		d := filepath.Dir(j)
		runs = append(runs, &Run{ID: filepath.Base(d), Dir: d})
	}
	return runs, nil
}

// noUnfinished refuses a new run while an earlier one on the same cluster has not ended.
func noUnfinished(dir, lineage string) error {
	runs, err := listRuns(dir)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if filepath.Base(filepath.Dir(r.Dir)) != lineage {
			continue
		}
		st, err := r.read()
		if err != nil {
			return fmt.Errorf("run %s: %w", r.ID, err)
		}
		if st.ended != "" {
			continue
		}
		if owner, locked, err := journal.Locked(r.journalPath()); err != nil {
			return err
		} else if locked {
			return busyJournal(r.ID, &journal.LockedError{Path: r.journalPath(), Owner: owner})
		}
		return &UnfinishedError{Run: r.ID, Step: st.last}
	}
	return nil
}

func newID(now time.Time) (string, error) {
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return now.UTC().Format("20060102-150405-") + hex.EncodeToString(b[:]), nil
}

// StatusSchema names the format of a Status.
const StatusSchema = "belay.dev/run-status/v1"

// Status is what a run's journal says.
type Status struct {
	Schema  string `json:"schema"`
	Run     string `json:"run"`
	Dir     string `json:"dir"`
	Lineage string `json:"lineage"`
	Cluster string `json:"cluster,omitempty"`
	From    string `json:"from"`
	To      string `json:"to"`
	// State is running, stopped, finished or aborted.
	State string `json:"state"`
	// Step is the one that is under way, or at which the run stopped.
	Step  string       `json:"step,omitempty"`
	Error string       `json:"error,omitempty"`
	Steps []StepStatus `json:"steps"`
}

// StepStatus is one step of a Status: waiting, begun, failed or done.
type StepStatus struct {
	ID    string `json:"id"`
	What  string `json:"what"`
	State string `json:"state"`
}

// Status reads how far the run is.
func (r *Run) Status() (*Status, error) {
	st, err := r.read()
	if err != nil {
		return nil, err
	}
	out := &Status{Schema: StatusSchema, Run: r.ID, Dir: r.Dir, Lineage: r.Plan.Lineage, Cluster: r.Plan.Cluster,
		From: r.Plan.From.String(), To: r.Plan.To.String(), Step: st.last, Error: st.err}
	_, locked, err := journal.Locked(r.journalPath())
	if err != nil {
		return nil, err
	}
	switch {
	case st.ended != "":
		out.State, out.Step = string(st.ended), ""
	case locked:
		out.State = "running"
	default:
		out.State = "stopped"
	}
	for _, s := range r.Plan.Steps {
		state := "waiting"
		switch {
		case st.steps[s.ID].done:
			state = "done"
		case s.ID == st.last && st.err != "":
			state = "failed"
		case st.steps[s.ID].begun:
			state = "begun"
		}
		out.Steps = append(out.Steps, StepStatus{ID: s.ID, What: s.Describe(), State: state})
	}
	return out, nil
}

// Abort gives a run up: it uncordons what the run cordoned, removes its canary pods, and marks it as ended. It takes no version back.
// The sentences say what was done. Nodes that are gone from the cluster are passed over; lost names nodes whose machines
// cannot be reached and will not come back, on which nobody can look whether work goes on.
func (r *Run) Abort(ctx context.Context, env Env, o Options, lost ...string) (did []string, err error) {
	if st, err := r.read(); err != nil {
		return nil, err
	} else if st.ended != "" {
		return nil, fmt.Errorf("run %s is %s already", r.ID, st.ended)
	}
	if err := r.sameCluster(ctx, env); err != nil {
		return nil, err
	}
	j, st, err := r.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	t := &task{Env: &env, run: r.ID, plan: r.Plan}
	for _, s := range r.Plan.Steps {
		if !st.steps[s.ID].begun || st.steps[s.ID].done || s.Kind != plan.KubeadmApply && s.Kind != plan.KubeadmNode && s.Kind != plan.KubeletConfig {
			continue
		}
		if slices.Contains(lost, s.Node) {
			did = append(did, fmt.Sprintf("did not look whether kubeadm is at work on %s", s.Node))
			continue
		}
		if err := t.idle(ctx, s); err != nil {
			return nil, err
		}
	}
	l := newLease(&env, r.ID, o)
	if err := l.acquire(ctx); err != nil {
		return nil, err
	}
	ctx, held := l.hold(ctx)
	defer func() {
		held.end()
		giveBack(ctx, env.Sink, l, r.ID)
	}()
	for _, b := range r.Plan.Basis.Nodes {
		n, err := env.Client.CoreV1().Nodes().Get(ctx, b.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			did = append(did, fmt.Sprintf("passed over node %s, which is gone from the cluster", b.Name))
			continue
		}
		if err != nil {
			return did, fmt.Errorf("node %s: %w", b.Name, err)
		}
		if n.Annotations[plan.CordonAnnotation] == r.ID {
			if err := t.uncordon(ctx, b.Name); err != nil {
				return did, err
			}
			did = append(did, fmt.Sprintf("uncordoned node %s", b.Name))
		}
		if err := verify.RemoveCanary(ctx, env.Client, verify.Canary{Node: b.Name, Run: r.ID}, condition.Options{Interval: env.poll()}); err != nil {
			return did, err
		}
	}
	// A machine may be the very reason for giving up: its images stay pinned then, which the sentence says.
	if err := t.unpin(ctx); err != nil {
		did = append(did, fmt.Sprintf("left images pinned in containerd, label belay.dev/run=%s: %v", r.ID, err))
	}
	return append(did, "ended run "+r.ID), note(j, "", journal.Note, endNote{stateAborted}, nil)
}

// idle is an error while kubeadm is at work in a step's unit, or when nobody can tell.
func (t *task) idle(ctx context.Context, s plan.Step) error {
	h, err := t.Machines.Host(ctx, s.Node)
	var u Unit
	if err == nil {
		u, err = t.Units.Status(ctx, h, t.unitName(s))
	}
	if err != nil {
		return fmt.Errorf("node %s: whether kubeadm is at work there is not known: %w; if its machine will not come back: belay abort %s --lost %s", s.Node, err, t.run, s.Node)
	}
	if u.State == UnitRunning {
		return fmt.Errorf("kubeadm is at work on %s in unit %s: wait for its end, or resume the run", s.Node, t.unitName(s))
	}
	return nil
}
