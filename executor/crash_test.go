package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/journal"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
)

// killLog ends the process at the n-th record, before or after it is written.
type killLog struct {
	log
	w     *world
	n     int
	after bool
	count int
	kinds []string
}

func (k *killLog) Append(r journal.Record) error {
	k.count++
	k.kinds = append(k.kinds, string(r.Kind)+" "+r.Step)
	if k.w.dead {
		return errKilled
	}
	if k.count == k.n && !k.after {
		k.w.kill()
		return errKilled
	}
	if err := k.log.Append(r); err != nil {
		return err
	}
	if k.count == k.n {
		k.w.kill()
		return errKilled
	}
	return nil
}

// mortal is the context of a process that may be killed.
func (w *world) mortal(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w.cancel = cancel
	return ctx
}

func options(dir string) Options {
	return Options{Dir: dir, Who: "alice", Host: "bastion", PID: 4711, Tool: "test"}
}

// revive is a new process over the same cluster.
func (w *world) revive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead, w.strike = false, nil
}

// undisturbed gives the end state of a run that nothing disturbs, and how many records and operations it took.
func undisturbed(t *testing.T, cps, workers int) (end string, records []string, ops int) {
	t.Helper()
	w := newWorld(t, cps, workers)
	k := &killLog{w: w}
	o := options(quickDir(t))
	o.wrapLog = func(l log) log { k.log = l; return k }
	r, err := Apply(t.Context(), w.env(), w.plan(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Steps) != len(w.plan(t).Steps) {
		t.Errorf("%d steps in the report, %d in the plan", len(r.Steps), len(w.plan(t).Steps))
	}
	end = w.end(t)
	for _, want := range []string{"kubelet v1.37.2", "etcd:3.7.0-0", "cordoned false, annotations map[]", "0 canaries"} {
		if !strings.Contains(end, want) {
			t.Fatalf("the undisturbed end has no %q:\n%s", want, end)
		}
	}
	if strings.Contains(end, "lease") || strings.Contains(end, "pod-infra") {
		t.Fatalf("the undisturbed end is not clean:\n%s", end)
	}
	return end, k.kinds, w.ops
}

// finish resumes until the run ends, as a person would.
func finish(t *testing.T, w *world, dir string) {
	t.Helper()
	for range 5 {
		run, err := OpenRun(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = run.Resume(t.Context(), w.env(), options(dir))
		if err == nil {
			return
		}
		t.Logf("resume: %v", err)
	}
	t.Fatal("the run does not end")
}

func TestKilledAtEveryRecord(t *testing.T) {
	for _, size := range [][2]int{{1, 1}, {3, 1}} {
		want, records, _ := undisturbed(t, size[0], size[1])
		for n := 1; n <= len(records); n++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d+%d/%s/after=%v", size[0], size[1], records[n-1], after), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, size[0], size[1])
					dir := quickDir(t)
					o := options(dir)
					o.wrapLog = func(l log) log { return &killLog{log: l, w: w, n: n, after: after} }
					if _, err := Apply(w.mortal(t), w.env(), w.plan(t), o); !errors.Is(err, errKilled) {
						t.Fatalf("the process was not killed: %v", err)
					}
					w.revive()
					// The very last record may have been the run's end.
					if run, err := OpenRun(dir, ""); err != nil {
						t.Fatal(err)
					} else if st, err := run.read(); err != nil {
						t.Fatal(err)
					} else if st.ended == "" {
						finish(t, w, dir)
					}
					got := w.end(t)
					if n == len(records) && after {
						// Killed between the run's end and giving the lease back: it runs out by itself.
						got = strings.Replace(got, "the lease is still there\n", "", 1)
					}
					if got != want {
						t.Errorf("the end differs:\n%s\nwant\n%s", got, want)
					}
				})
			}
		}
	}
}

// TestStruckAtEveryOperation ends the process, or loses the answer, at every single thing that is done on a machine.
func TestStruckAtEveryOperation(t *testing.T) {
	want, _, ops := undisturbed(t, 1, 1)
	for name, hit := range map[string]error{"killed": errKilled, "lost": &host.LostError{Host: "m", Argv: []string{"x"}, Err: errors.New("connection reset")},
		"not started": &host.NotStartedError{Host: "m", Err: errors.New("no route")}} {
		for n := 1; n <= ops; n++ {
			for _, after := range []bool{false, true} {
				if name == "not started" && after {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/after=%v", name, n, after), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, 1, 1)
					dir := quickDir(t)
					w.strike = func(op int, isAfter bool) error {
						if op == n && isAfter == after {
							return hit
						}
						return nil
					}
					o := options(dir)
					o.wrapLog = func(l log) log { return &killLog{log: l, w: w} }
					_, err := Apply(w.mortal(t), w.env(), w.plan(t), o)
					if runs, lerr := listRuns(dir); lerr == nil && len(runs) == 0 {
						if err == nil || !strings.Contains(err.Error(), "nothing was begun") {
							t.Fatalf("no run was begun, and the error does not say so: %v", err)
						}
						w.revive()
						// A killed process left its lease, which runs out by itself.
						o.Now = func() time.Time { return time.Now().Add(2 * leaseDuration) }
						if _, err := Apply(t.Context(), w.env(), w.plan(t), o); err != nil {
							t.Fatal(err)
						}
					} else if err != nil {
						var stopped *StoppedError
						var unknown *UnknownError
						if !errors.As(err, &stopped) && !errors.As(err, &unknown) {
							t.Fatalf("the error says neither stopped nor unknown: %v", err)
						}
						w.revive()
						finish(t, w, dir)
					}
					if got := w.end(t); got != want {
						t.Errorf("the end differs:\n%s\nwant\n%s", got, want)
					}
				})
			}
		}
	}
}

func TestFailedControlPlaneTouchesNoKubelet(t *testing.T) {
	w := newWorld(t, 3, 2)
	fails := true
	w.unit = func(string, []string) unitFate {
		if fails {
			return unitFails
		}
		return unitWorks
	}
	dir := quickDir(t)
	_, err := Apply(t.Context(), w.env(), w.plan(t), options(dir))
	var stopped *StoppedError
	if !errors.As(err, &stopped) || stopped.Step != "control-plane@1.37.2/cp1" || !stopped.Begun {
		t.Fatalf("got %v, want a stop in the first control plane step", err)
	}
	var unit *UnitError
	if !errors.As(err, &unit) || !strings.Contains(err.Error(), "/run/belay/units/belay-") || !strings.HasPrefix(stopped.Next(), "belay resume ") {
		t.Errorf("the error does not say where to look and what to do: %v", err)
	}
	for name, m := range w.machines {
		if m.version != v1363 || string(m.files["/usr/bin/kubelet"]) != "kubelet v1.36.3" {
			t.Errorf("the kubelet of %s was touched", name)
		}
	}
	for k, n := range w.started {
		if k != "cp1 upgrade apply" || n != kubeadmTries {
			t.Errorf("%s was started %d times", k, n)
		}
	}
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := run.Status(); err != nil || st.State != "stopped" || st.Step != stopped.Step || st.Error == "" {
		t.Errorf("status %+v, %v", st, err)
	}
	// A second plan is refused while this run has not ended.
	var unfinished *UnfinishedError
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(dir)); !errors.As(err, &unfinished) || unfinished.Run != run.ID {
		t.Errorf("a new run beside an unfinished one: %v", err)
	}
	fails = false
	finish(t, w, dir)
	if end := w.end(t); strings.Contains(end, "kubelet v1.36.3") {
		t.Errorf("not upgraded:\n%s", end)
	}
}

func TestManifestLostBetweenRenames(t *testing.T) {
	want, _, _ := undisturbed(t, 1, 1)
	w := newWorld(t, 1, 1)
	cut := true
	w.unit = func(node string, _ []string) unitFate {
		if cut && node == "cp1" {
			cut = false
			return unitCut
		}
		return unitWorks
	}
	dir := quickDir(t)
	var stopped *StoppedError
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(dir)); !errors.As(err, &stopped) || stopped.Step != "control-plane@1.37.2/cp1" {
		t.Fatalf("got %v", err)
	}
	finish(t, w, dir)
	if got := w.end(t); got != want {
		t.Errorf("the end differs:\n%s\nwant\n%s", got, want)
	}
}

func TestBrokenEtcdAsksForAPerson(t *testing.T) {
	for name, fate := range map[string]unitFate{"for ever": unitBreaksEtcd, "and kubeadm rolled back": unitRollsBackOverBrokenEtcd} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, 1)
			w.unit = func(string, []string) unitFate { return fate }
			dir := quickDir(t)
			env := w.env()
			env.Patience = 100 * time.Millisecond
			var stopped *StoppedError
			if _, err := Apply(t.Context(), env, w.plan(t), options(dir)); !errors.As(err, &stopped) || len(stopped.Do) == 0 || !strings.Contains(err.Error(), "roll-back of etcd restores nothing") {
				t.Errorf("got %v, want what a person can do about etcd", err)
			}
			// Neither at once nor by the command that is named next.
			run, err := OpenRun(dir, "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := run.Resume(t.Context(), env, options(dir)); !errors.As(err, &stopped) || !strings.Contains(err.Error(), "etcd of cp1") {
				t.Errorf("resume: %v", err)
			}
			if n := w.started["cp1 upgrade apply"]; n != 1 {
				t.Errorf("kubeadm was run %d times over an etcd that is down", n)
			}
			// Once the person has mended it, the run goes on.
			w.machines["cp1"].etcdDown, w.unit = false, nil
			finish(t, w, dir)
		})
	}
}

// A step that is half-way on one node says nothing of the others.
func TestPartialStepLooksAtTheOtherMembers(t *testing.T) {
	w := newWorld(t, 3, 1)
	w.unit = func(node string, _ []string) unitFate {
		if node == "cp1" && w.started["cp1 upgrade apply"] == 1 {
			w.machines["cp2"].etcdDown = true
			return unitCut
		}
		return unitWorks
	}
	dir := quickDir(t)
	env := w.env()
	env.Patience = 100 * time.Millisecond
	var stopped *StoppedError
	if _, err := Apply(t.Context(), env, w.plan(t), options(dir)); !errors.As(err, &stopped) {
		t.Fatalf("got %v", err)
	}
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	var pre *PreconditionError
	if _, err := run.Resume(t.Context(), env, options(dir)); !errors.As(err, &pre) || !strings.Contains(err.Error(), "cp2") {
		t.Errorf("resume restarts the etcd of cp1 while that of cp2 is down: %v", err)
	}
	if n := w.started["cp1 upgrade apply"]; n != 1 {
		t.Errorf("kubeadm was run %d times", n)
	}
	// The step that could not go on is the one that status names.
	if st, err := run.Status(); err != nil || st.Step != "control-plane@1.37.2/cp1" || !strings.Contains(st.Error, "cp2") {
		t.Errorf("status %+v, %v", st, err)
	}
	w.machines["cp2"].etcdDown = false
	finish(t, w, dir)
}

func TestStatusNamesTheStepThatCouldNotBegin(t *testing.T) {
	w := newWorld(t, 1, 1)
	dir := quickDir(t)
	o := options(dir)
	o.wrapLog = func(l log) log {
		return appendFunc(func(r journal.Record) error {
			if r.Kind == journal.Outcome && r.Step == "drain@1.37.2/w1" {
				other := &task{Env: new(Env), run: "x"}
				env := w.env()
				other.Env = &env
				if err := other.patchNode(t.Context(), "w1", func(*corev1.Node) string { return `"annotations":{}},"spec":{"unschedulable":null}` }); err != nil {
					t.Error(err)
				}
			}
			return l.Append(r)
		})
	}
	var pre *PreconditionError
	if _, err := Apply(t.Context(), w.env(), w.plan(t), o); !errors.As(err, &pre) {
		t.Fatalf("got %v, want that the node takes pods", err)
	}
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	st, err := run.Status()
	if err != nil || st.Step != pre.Step || !strings.Contains(st.Error, "uncordoned") {
		t.Errorf("status %+v, %v; want step %s", st, err, pre.Step)
	}
	for _, s := range st.Steps {
		if (s.ID == pre.Step) != (s.State == "failed") {
			t.Errorf("step %s is %s", s.ID, s.State)
		}
	}
}

func TestRefusedBeforeItBegins(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, e *Env)
		want   func(error) bool
	}{
		"no backup": {func(_ *world, e *Env) {
			e.Backup = func(context.Context, string, string, time.Duration) (string, error) {
				return "", errors.New("there is none")
			}
		}, func(err error) bool {
			b := (*BlockedError)(nil)
			return errors.As(err, &b) && b.Next() == "belay backup create" && strings.Contains(err.Error(), "there is none")
		}},
		"a finding": {func(_ *world, e *Env) {
			e.Preflight = func(context.Context, kubeversion.V, []string) ([]string, error) {
				return []string{"swap@w1: it is on"}, nil
			}
		}, func(err error) bool {
			b := (*BlockedError)(nil)
			return errors.As(err, &b) && b.Next() == "belay check --to 1.37.2" && strings.Contains(err.Error(), "swap@w1: it is on")
		}},
		"pods not read": {func(w *world, _ *Env) {
			w.initial.Unread = []cluster.Unread{{What: "pods", Kind: cluster.UnreadTimeout, Why: "slow"}}
		}, func(err error) bool {
			u := (*UnseenError)(nil)
			return errors.As(err, &u) && strings.Contains(err.Error(), "pods (timeout: slow)")
		}},
		"etcd not read": {func(w *world, _ *Env) {
			w.initial.Unread = []cluster.Unread{{What: "etcd/member/cp1", Kind: cluster.UnreadTimeout, Why: "slow"}}
			w.initial.Etcd.Members = nil
		}, func(err error) bool { return errors.As(err, new(*UnseenError)) }},
		"no bundle": {func(_ *world, e *Env) { e.Bundles = nil }, func(err error) bool {
			b := (*BlockedError)(nil)
			return errors.As(err, &b) && b.Next() == "belay bundle build 1.37.2"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 1)
			p := w.plan(t)
			env := w.env()
			c.change(w, &env)
			dir := quickDir(t)
			if _, err := Apply(t.Context(), env, p, options(dir)); !c.want(err) {
				t.Errorf("got %v", err)
			}
			if runs, err := listRuns(dir); err != nil || len(runs) != 0 {
				t.Errorf("a refused run left %v, %v", runs, err)
			}
			if strings.Contains(w.end(t), "lease") {
				t.Error("a refused run left the lease")
			}
		})
	}
}

// stoppedRun is a run that stopped at the worker's kubelet configuration, with the worker cordoned.
func stoppedRun(t *testing.T) (*world, *Run, string) {
	t.Helper()
	w := newWorld(t, 1, 1)
	w.unit = func(node string, _ []string) unitFate {
		if node == "w1" {
			return unitFails
		}
		return unitWorks
	}
	dir := quickDir(t)
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(dir)); !errors.As(err, new(*StoppedError)) {
		t.Fatalf("got %v", err)
	}
	w.unit = nil
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	return w, run, dir
}

func TestAnotherClusterIsLeftAlone(t *testing.T) {
	_, run, dir := stoppedRun(t)
	other := newWorld(t, 1, 1)
	ns, err := other.client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.UID = "another"
	if _, err := other.client.CoreV1().Namespaces().Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	before := other.ops
	if _, err := run.Resume(t.Context(), other.env(), options(dir)); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("resume: %v", err)
	}
	if _, err := run.Abort(t.Context(), other.env(), options(dir)); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("abort: %v", err)
	}
	if st, err := run.Status(); err != nil || st.State != "stopped" {
		t.Errorf("status %+v, %v", st, err)
	}
	if other.ops != before {
		t.Errorf("%d operations on the machines of another cluster", other.ops-before)
	}
}

// With the API down, only the mark on the machine says that it is the run's.
func TestLeaselessResumeNeedsTheMark(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.unit = func(string, []string) unitFate { w.apiDown = true; return unitCut }
	w.client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) {
		if w.apiDown {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	dir := quickDir(t)
	env := w.env()
	env.Patience = 50 * time.Millisecond
	if _, err := Apply(t.Context(), env, w.plan(t), options(dir)); !errors.As(err, new(*StoppedError)) {
		t.Fatalf("got %v", err)
	}
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	mark := "/var/lib/belay/" + run.ID + "/lineage"
	kept := w.machines["cp1"].files[mark]
	delete(w.machines["cp1"].files, mark)
	before := len(w.started)
	if _, err := run.Resume(t.Context(), env, options(dir)); err == nil || !strings.Contains(err.Error(), "may be another cluster's") {
		t.Errorf("without the mark: %v", err)
	}
	w.machines["cp1"].files[mark] = []byte("other\n")
	if _, err := run.Resume(t.Context(), env, options(dir)); err == nil || !strings.Contains(err.Error(), "is of another cluster") {
		t.Errorf("with another mark: %v", err)
	}
	if len(w.started) != before {
		t.Error("kubeadm was run on a machine that may be another cluster's")
	}
	w.machines["cp1"].files[mark] = kept
	w.unit = nil
	back := w.env()
	back.APIServer = func(ctx context.Context, node string) (kubeversion.V, error) {
		v, err := w.apiServer(ctx, node)
		if w.apiDown && err == nil { // it is back once its manifest is
			w.apiDown = false
			w.machines["cp1"].sync()
		}
		return v, err
	}
	if _, err := run.Resume(t.Context(), back, options(dir)); err != nil {
		t.Errorf("with the mark: %v", err)
	}
}

func TestResumeRefusesOtherBundles(t *testing.T) {
	w, run, dir := stoppedRun(t)
	run.Plan.Bundles[0].Digest = "sha256:" + strings.Repeat("0", 64)
	if _, err := run.Resume(t.Context(), w.env(), options(dir)); err == nil || !strings.Contains(err.Error(), "begun with other bundles") {
		t.Errorf("got %v", err)
	}
}

func TestAbortWithoutANode(t *testing.T) {
	w, run, dir := stoppedRun(t)
	env := w.env()
	gone := errors.New("no route")
	w.strike = func(int, bool) error { return &host.NotStartedError{Host: "w1", Err: gone} }
	if _, err := run.Abort(t.Context(), env, options(dir)); !errors.Is(err, gone) || !strings.Contains(err.Error(), "--lost w1") {
		t.Fatalf("got %v, want how to go on without the machine", err)
	}
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), "w1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	env.Patience = 20 * time.Millisecond
	did, err := run.Abort(t.Context(), env, options(dir), "w1")
	if err != nil || !strings.Contains(strings.Join(did, "; "), "passed over node w1") {
		t.Errorf("did %v, %v", did, err)
	}
	if st, err := run.Status(); err != nil || st.State != string(stateAborted) {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestRunsOnSeveralClusters(t *testing.T) {
	_, run, dir := stoppedRun(t)
	second := filepath.Join(dir, "other-lineage", "20990101-000000-abcdef")
	if err := os.MkdirAll(second, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{planFile, journalFile} {
		b, err := os.ReadFile(filepath.Join(run.Dir, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(second, f), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var which *AmbiguousRunError
	if _, err := OpenRun(dir, ""); !errors.As(err, &which) || len(which.Runs) != 2 {
		t.Errorf("got %v, want to be asked which", err)
	}
	if r, err := OpenRun(dir, run.ID); err != nil || r.ID != run.ID {
		t.Errorf("by its id: %v", err)
	}
}

func TestStalePlan(t *testing.T) {
	w := newWorld(t, 1, 1)
	p := w.plan(t)
	w.initial.Nodes[1].Unschedulable = true
	dir := quickDir(t)
	var stale *StaleError
	if _, err := Apply(t.Context(), w.env(), p, options(dir)); !errors.As(err, &stale) || !strings.Contains(err.Error(), "w1 was schedulable, is cordoned") {
		t.Errorf("got %v, want the difference", err)
	}
	if runs, err := listRuns(dir); err != nil || len(runs) != 0 {
		t.Errorf("a refused plan left %v, %v", runs, err)
	}
	if strings.Contains(w.end(t), "lease") {
		t.Error("a refused plan left the lease")
	}
}

func TestOneRunAtATime(t *testing.T) {
	w := newWorld(t, 1, 1)
	l := &lease{client: w.client, run: "other", owner: "bob@laptop, process 1", now: time.Now, sink: event.Discard}
	if err := l.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(quickDir(t))); !errors.As(err, &busy) || !strings.Contains(err.Error(), "bob@laptop") || busy.Since.IsZero() {
		t.Fatalf("got %v, want who holds the cluster and since when", err)
	}
	// Another run's lease that ran out is taken.
	l.now = func() time.Time { return time.Now().Add(-2 * leaseDuration) }
	if err := l.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(quickDir(t))); err != nil {
		t.Fatal(err)
	}
}

func TestLeaseChangesHands(t *testing.T) {
	w := newWorld(t, 1, 1)
	env := w.env()
	at := time.Now()
	o := options("")
	o.Now = func() time.Time { return at }
	first, second := newLease(&env, "first", o), newLease(&env, "second", o)
	if err := first.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.renew(t.Context()); err != nil {
		t.Error(err)
	}
	var busy *BusyError
	// A clock that is ahead makes a live lease look expired: its holder renews while it is watched.
	second.now = func() time.Time { return at.Add(2 * leaseDuration) }
	second.observe = 200 * time.Millisecond
	second.sink = event.Func(func(event.Event) {
		at = at.Add(time.Second)
		if err := first.renew(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := second.acquire(t.Context()); !errors.As(err, &busy) || !strings.Contains(err.Error(), "run first") {
		t.Fatalf("a clock that is ahead took a live lease: %v", err)
	}
	// A dead holder does not.
	second.observe, second.sink = time.Millisecond, event.Discard
	if err := second.acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The first one learns of it, does not take it back, and does not take it away.
	first.now = func() time.Time { return at.Add(10 * leaseDuration) }
	if err := first.renew(t.Context()); !errors.As(err, &busy) || first.isHeld() {
		t.Errorf("the first holder renews what is another run's: %v", err)
	}
	if err := first.release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := second.renew(t.Context()); err != nil {
		t.Errorf("the second lost its lease: %v", err)
	}
}

func TestStopAfterTheStep(t *testing.T) {
	want, _, _ := undisturbed(t, 1, 1)
	w := newWorld(t, 1, 1)
	dir := quickDir(t)
	o := options(dir)
	stop := make(chan struct{})
	o.Stop = stop
	w.unit = func(string, []string) unitFate {
		close(stop)
		w.unit = nil
		return unitWorks
	}
	var stopped *StoppedError
	if _, err := Apply(t.Context(), w.env(), w.plan(t), o); !errors.As(err, &stopped) || stopped.Begun || stopped.Step != "control-plane-gate@1.37.2" {
		t.Fatalf("got %v, want a stop before the step after kubeadm", err)
	}
	finish(t, w, dir)
	if got := w.end(t); got != want {
		t.Errorf("the end differs:\n%s\nwant\n%s", got, want)
	}
}

func TestCancelStopsAtOnceAndTheUnitGoesOn(t *testing.T) {
	want, _, _ := undisturbed(t, 1, 1)
	w := newWorld(t, 1, 1)
	dir := quickDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.strike = func(int, bool) error {
		if w.started["cp1 upgrade apply"] > 0 {
			cancel()
		}
		return nil
	}
	var stopped *StoppedError
	if _, err := Apply(ctx, w.env(), w.plan(t), options(dir)); !errors.As(err, &stopped) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	w.revive()
	finish(t, w, dir)
	if got := w.end(t); got != want {
		t.Errorf("the end differs:\n%s\nwant\n%s", got, want)
	}
	if n := w.started["cp1 upgrade apply"]; n != 1 {
		t.Errorf("kubeadm was started %d times; the unit that was at work was to be waited for", n)
	}
}

func TestAbortUndoesOnlyItsOwn(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.initial.Nodes[2].Unschedulable = true
	other := &task{Env: new(Env), run: "x"}
	env := w.env()
	other.Env = &env
	if err := other.patchNode(t.Context(), "w2", func(*corev1.Node) string { return `"annotations":{}},"spec":{"unschedulable":true}` }); err != nil {
		t.Fatal(err)
	}
	w.unit = func(node string, _ []string) unitFate {
		if node == "w1" {
			return unitFails
		}
		return unitWorks
	}
	dir := quickDir(t)
	var stopped *StoppedError
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(dir)); !errors.As(err, &stopped) || stopped.Step != "kubelet-config@1.37.2/w1" {
		t.Fatalf("got %v", err)
	}
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	did, err := run.Abort(t.Context(), w.env(), options(dir))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(did, " "), "uncordoned node w1") {
		t.Errorf("did %v", did)
	}
	for name, want := range map[string]bool{"w1": false, "w2": true, "cp1": false} {
		n, err := env.node(t.Context(), name)
		if err != nil || n.Spec.Unschedulable != want || n.Annotations[plan.CordonAnnotation] != "" {
			t.Errorf("node %s: unschedulable %v, %v, %v", name, n.Spec.Unschedulable, n.Annotations, err)
		}
	}
	if _, err := run.Resume(t.Context(), w.env(), options(dir)); err == nil {
		t.Error("an aborted run was resumed")
	}
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(dir)); err != nil && errors.As(err, new(*UnfinishedError)) {
		t.Errorf("an aborted run blocks the next: %v", err)
	}
}

func TestDrainNamesTheBudgetThatHolds(t *testing.T) {
	w := newWorld(t, 1, 1)
	for _, p := range []string{"web-1", "web-2"} {
		pod, err := w.client.CoreV1().Pods("shop").Get(t.Context(), p, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Labels = map[string]string{"app": "web"}
		if _, err := w.client.CoreV1().Pods("shop").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.client.PolicyV1().PodDisruptionBudgets("shop").Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "tight", Namespace: "shop"},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 2, DesiredHealthy: 2}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.refuse = func(string) error { return apierrors.NewTooManyRequests("budget", 1) }
	_, err = Apply(t.Context(), w.env(), w.plan(t), options(quickDir(t)))
	var stopped *StoppedError
	if !errors.As(err, &stopped) || !strings.HasPrefix(stopped.Step, "drain@") || !strings.Contains(err.Error(), "PodDisruptionBudget shop/tight allows no disruption (2 healthy, 2 wanted)") {
		t.Errorf("got %v, want the drain to stop and name the budget", err)
	}
}

// What a step replaces is kept under names that do not meet: there are two files called kubelet beside the program.
func TestKubeletStepKeepsAllThatItReplaces(t *testing.T) {
	w := newWorld(t, 1, 1)
	m := w.machines["w1"]
	was := map[string]string{kubeadm.KubeletFlagsEnv: string(m.files[kubeadm.KubeletFlagsEnv])}
	for _, file := range []string{kubeadm.KubeletDefaultsEnv, kubeadm.KubeletSysconfigEnv} {
		was[file] = "KUBELET_EXTRA_ARGS=\"--v=2 --pod-infra-container-image=" + file + "\"\n"
		m.files[file] = []byte(was[file])
	}
	dir := quickDir(t)
	if _, err := Apply(t.Context(), w.env(), w.plan(t), options(dir)); err != nil {
		t.Fatal(err)
	}
	run, err := OpenRun(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	of := "/var/lib/belay/" + run.ID
	if got := string(m.files[of+"/kubelet"]); got != "kubelet v1.36.3" {
		t.Errorf("kept as the kubelet: %q", got)
	}
	for file, text := range was {
		if got := string(m.files[of+"/files"+file]); got != text {
			t.Errorf("kept of %s: %q, was %q", file, got, text)
		}
	}
}

func TestKubeletStepLooksAtEveryAPIServer(t *testing.T) {
	w := newWorld(t, 3, 1)
	env := w.env()
	ask := env.APIServer
	// Behind the balancer one apiserver turns out old after the gate: somebody put its manifest back.
	gate := false
	env.APIServer = nil
	w.strike = nil
	env.APIServer = func(ctx context.Context, node string) (v kubeversion.V, err error) {
		if v, err = ask(ctx, node); gate && node == "cp2" {
			v = v1363
		}
		return v, err
	}
	dir := quickDir(t)
	o := options(dir)
	o.wrapLog = func(l log) log {
		return appendFunc(func(r journal.Record) error {
			if r.Kind == journal.Outcome && r.Step == "drain@1.37.2/cp1" {
				gate = true
			}
			return l.Append(r)
		})
	}
	_, err := Apply(t.Context(), env, w.plan(t), o)
	var pre *PreconditionError
	if !errors.As(err, &pre) || pre.Step != "kubelet@1.37.2/cp1" || !strings.Contains(err.Error(), "cp2") {
		t.Fatalf("got %v, want the kubelet step to be refused on account of cp2", err)
	}
	if w.machines["cp1"].version != v1363 {
		t.Error("the kubelet was replaced all the same")
	}
}

type appendFunc func(journal.Record) error

func (f appendFunc) Append(r journal.Record) error { return f(r) }
