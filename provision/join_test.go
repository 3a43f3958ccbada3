package provision

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/host/hosttest"
	"github.com/belayops/belay/internal/kubeadm"
)

// joinWorld is a cluster of one control plane and a worker that is about to join, on fake machines that change as kubeadm would
// change them.
type joinWorld struct {
	t      *testing.T
	u      *up
	cp, w  *hosttest.Fake
	node   *node
	api    *fake.Clientset
	resets int
	// networkResets counts how often the pod network's remains were removed.
	networkResets int
	joins         int
	joinErr       int // exit codes of the joins to come: the first joinErr fail half-way
	// silent kubelets never renew their lease.
	silent bool
	// skew is how far the node's clock is off.
	skew time.Duration
}

func newJoinWorld(t *testing.T) *joinWorld {
	t.Helper()
	d := dirOf(t.TempDir(), "a")
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		t.Fatal(err)
	}
	spec := machinesSpec("a")
	state, err := d.begin(spec, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	state.Endpoint, state.Initialized, state.Joined = "10.0.0.1:6443", true, []string{"a-cp1"}
	w := &joinWorld{t: t, cp: hosttest.NewFake(t, "a-cp1"), w: hosttest.NewFake(t, "a-w1"), api: fake.NewClientset()}
	w.node = &node{name: "a-w1", role: RoleWorker, address: "10.0.0.2", h: w.w}
	w.u = &up{
		spec: spec, dir: d, state: state, sink: event.Discard, now: time.Now, run: "test", res: &Result{},
		nodes: []*node{{name: "a-cp1", role: RoleControlPlane, address: "10.0.0.1", h: w.cp}, w.node},
		api:   &api{cs: w.api},
	}

	w.cp.SetFile(kubeadm.CACertificate, caPEM(t), 0o644)
	w.cp.On(hosttest.Argv(kubeadm.CreateTokenArgv(tokenTTL)...), hosttest.Reply{Stdout: "abcdef.0123456789abcdef\n"})

	w.w.On(hosttest.Prefix("sh", "-c", factsScript), hosttest.Reply{Do: func(context.Context, host.Cmd) (host.Result, error) {
		out := ordinaryFacts
		if _, _, ok := w.w.File(kubeadm.KubeletKubeconfig); ok {
			out += "kubernetes=1\n"
		}
		return host.Result{Stdout: []byte(out)}, nil
	}})
	w.w.On(hosttest.Prefix("rm", "-f", "--"), hosttest.Reply{Do: func(_ context.Context, c host.Cmd) (host.Result, error) {
		w.w.RemoveFile(c.Argv[3])
		return host.Result{}, nil
	}})
	w.w.On(hosttest.Argv("sh", "-c", networkResetScript, "reset", cniConfigFile), hosttest.Reply{Do: func(context.Context, host.Cmd) (host.Result, error) {
		w.networkResets++
		return host.Result{}, nil
	}})
	w.w.OnUnit(hosttest.Prefix(kubeadm.KubeadmPath, "join"), hosttest.UnitReply{Polls: 2, Do: func(context.Context, host.Unit) (string, int) {
		w.joins++
		if _, mode, ok := w.w.File(joinConfigFile); !ok || mode != 0o600 {
			t.Errorf("kubeadm join finds its configuration with mode %v, %v", mode, ok)
		}
		w.w.SetFile(kubeadm.KubeletKubeconfig, []byte("x"), 0o600)
		if w.joinErr > 0 {
			w.joinErr--
			return "[kubelet-start] something went wrong", 1
		}
		w.register(t.Context())
		return "This node has joined the cluster", 0
	}})
	w.w.OnUnit(hosttest.Prefix(kubeadm.KubeadmPath, "reset"), hosttest.UnitReply{Do: func(context.Context, host.Unit) (string, int) {
		w.resets++
		w.w.RemoveFile(kubeadm.KubeletKubeconfig)
		return "", 0
	}})
	return w
}

// register is what a kubelet that lives does.
func (w *joinWorld) register(ctx context.Context) {
	now := metav1.NewMicroTime(time.Now().Add(w.skew))
	_, err := w.api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a-w1"}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Error(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a-w1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
	leases := w.api.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		w.t.Error(err)
	}
	if w.silent {
		return
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(10 * time.Second):
			}
			now := metav1.NewMicroTime(time.Now().Add(w.skew))
			l := lease.DeepCopy()
			l.Spec.RenewTime = &now
			if _, err := leases.Update(ctx, l, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
				return
			}
		}
	}()
}

func (w *joinWorld) isMember() bool {
	_, err := w.api.CoreV1().Nodes().Get(w.t.Context(), "a-w1", metav1.GetOptions{})
	state, loadErr := w.u.dir.loadState()
	if loadErr != nil {
		w.t.Fatal(loadErr)
	}
	return err == nil && state.joined("a-w1")
}

func caPEM(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		did, err := w.u.join(t.Context(), w.node)
		if err != nil || did == "" || !w.isMember() || w.joins != 1 || w.resets != 0 {
			t.Fatalf("%q, %v; %d joins, %d resets", did, err, w.joins, w.resets)
		}
		if _, _, ok := w.w.File(joinConfigFile); ok {
			t.Error("the token is left on the machine")
		}
		if did, err = w.u.join(t.Context(), w.node); err != nil || did != "" || w.joins != 1 {
			t.Errorf("the second time: %q, %v; %d joins", did, err, w.joins)
		}
		// What kubeadm is called with holds no secret.
		for _, c := range append(w.cp.Calls(), w.w.Calls()...) {
			if strings.Contains(strings.Join(c.Argv, " "), "0123456789abcdef") {
				t.Errorf("the token is in a process list: %q", c.Argv)
			}
		}
	})
}

func TestJoinThatAnEarlierRunLeftRunningIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.w.SetFile(joinConfigFile, []byte("x"), 0o600)
		// The earlier run started it and was killed.
		if err := host.StartUnit(t.Context(), w.w, host.Unit{Name: w.u.unitName("join"), Argv: kubeadm.JoinArgv(joinConfigFile)}); err != nil {
			t.Fatal(err)
		}
		did, err := w.u.join(t.Context(), w.node)
		if err != nil || !strings.Contains(did, "earlier run") || w.joins != 1 || w.resets != 0 || !w.isMember() {
			t.Errorf("%q, %v; %d joins, %d resets", did, err, w.joins, w.resets)
		}
	})
}

// A join that failed half-way leaves credentials and no member: it is undone and done again.
func TestHalfJoinIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.joinErr = 1
		if _, err := w.u.join(t.Context(), w.node); err == nil || !strings.Contains(err.Error(), "something went wrong") || !strings.Contains(err.Error(), "belay cluster ssh a-w1") {
			t.Fatalf("a failed join: %v", err)
		}
		if w.u.joined("a-w1") {
			t.Error("a failed join counts as one")
		}
		if _, err := w.u.join(t.Context(), w.node); err != nil || w.resets != 1 || w.networkResets != 1 || w.joins != 2 || !w.isMember() {
			t.Errorf("%v; %d joins, %d resets", err, w.joins, w.resets)
		}
	})
}

// The machine was restarted, so its unit is forgotten; the kubelet lives. Nothing is reset.
func TestMemberThatNobodyRecordedIsTakenAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.w.SetFile(kubeadm.KubeletKubeconfig, []byte("x"), 0o600)
		w.register(t.Context())
		did, err := w.u.join(t.Context(), w.node)
		if err != nil || w.joins != 0 || w.resets != 0 || !w.isMember() {
			t.Errorf("%q, %v; %d joins, %d resets", did, err, w.joins, w.resets)
		}
	})
}

// A join that ended well is no proof either: the node may have been deleted since.
func TestDoneJoinOfADeletedNodeIsDoneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.w.SetFile(joinConfigFile, []byte("x"), 0o600)
		if err := host.StartUnit(t.Context(), w.w, host.Unit{Name: w.u.unitName("join"), Argv: kubeadm.JoinArgv(joinConfigFile)}); err != nil {
			t.Fatal(err)
		}
		if err := w.api.CoreV1().Nodes().Delete(t.Context(), "a-w1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := w.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(t.Context(), "a-w1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.u.join(t.Context(), w.node); err != nil || w.resets != 1 || w.joins != 2 || !w.isMember() {
			t.Errorf("%v; %d joins, %d resets", err, w.joins, w.resets)
		}
	})
}

// A kubelet that has just been started is seen by the API some seconds later: it is waited for, not reset.
func TestKubeletThatIsAboutToReportIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.w.SetFile(kubeadm.KubeletKubeconfig, []byte("x"), 0o600)
		ctx := t.Context()
		time.AfterFunc(8*time.Second, func() { w.register(ctx) })
		did, err := w.u.join(ctx, w.node)
		if err != nil || w.joins != 0 || w.resets != 0 || !w.isMember() {
			t.Errorf("%q, %v; %d joins, %d resets", did, err, w.joins, w.resets)
		}
	})
}

// An API that does not answer proves nothing about a node: nothing is reset.
func TestSilentAPIIsNoReasonToReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.w.SetFile(kubeadm.KubeletKubeconfig, []byte("x"), 0o600)
		w.api.PrependReactor("get", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("no quorum")
		})
		if _, err := w.u.join(t.Context(), w.node); err == nil || w.resets != 0 || w.joins != 0 {
			t.Errorf("%v; %d joins, %d resets", err, w.joins, w.resets)
		}
	})
}

// A kubelet that stopped reporting is no proof of membership.
func TestSilentKubeletIsNoMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJoinWorld(t)
		w.w.SetFile(kubeadm.KubeletKubeconfig, []byte("x"), 0o600)
		w.silent = true
		w.register(t.Context())
		for range 3 {
			ok, why, err := w.u.api.member(t.Context(), w.node)
			if ok || why == "" || err != nil {
				t.Errorf("member: %v, %q, %v", ok, why, err)
			}
			time.Sleep(time.Minute) // of the bubble's clock
		}
	})
}

// The node's clock is its own: one that is off is no reason to reset a member.
func TestClockThatIsOffIsNoReasonToReset(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			w := newJoinWorld(t)
			w.w.SetFile(kubeadm.KubeletKubeconfig, []byte("x"), 0o600)
			w.skew = skew
			w.register(t.Context())
			if _, err := w.u.join(t.Context(), w.node); err != nil || w.joins != 0 || w.resets != 0 || !w.isMember() {
				t.Errorf("%s off: %v; %d joins, %d resets", skew, err, w.joins, w.resets)
			}
		})
	}
}

// A control plane that runs and is not reached is not known to be half-way: its data stays.
func TestControlPlaneThatRunsIsNotReset(t *testing.T) {
	for name, c := range map[string]struct {
		reply hosttest.Reply
		want  string // of the error; empty: not alive, and that is known
	}{
		"it runs":            {hosttest.Reply{}, "is not reached at 10.0.0.1:6443"},
		"it does not run":    {hosttest.Reply{Code: 1}, ""},
		"there is no pgrep":  {hosttest.Reply{Code: 3}, "cannot be told"},
		"it cannot be asked": {hosttest.Reply{Err: hosttest.ErrLost}, "cannot be told"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newJoinWorld(t)
				w.cp.On(hosttest.Argv("sh", "-c", runningScript), c.reply)
				alive, err := w.u.leftAlive(t.Context(), w.u.first())
				if alive || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, %v, want %q", alive, err, c.want)
				}
			})
		})
	}
}

// A node that was a member once is never reset, whatever it looks like.
func TestMemberIsNeverReset(t *testing.T) {
	w := newJoinWorld(t)
	w.u.state.Joined = append(w.u.state.Joined, "a-w1")
	if _, err := w.u.join(t.Context(), w.node); err == nil || !apierrors.IsNotFound(err) {
		t.Errorf("a member that is gone: %v", err)
	}
	if err := w.u.reset(t.Context(), w.node); err == nil || w.resets != 0 {
		t.Errorf("reset: %v, %d resets", err, w.resets)
	}
	if err := w.u.reset(t.Context(), w.u.nodes[0]); err == nil {
		t.Error("the first control plane node was reset")
	}
}

// Steps that stop because another failed are not failures of their own.
func TestStepEvents(t *testing.T) {
	w := newJoinWorld(t)
	rec := &event.Recorder{}
	w.u.sink = rec
	ctx, cancel := context.WithCancel(t.Context())
	step := func(f func(context.Context) (string, error)) error { return w.u.step(ctx, "s", w.node, "something", f) }
	_ = step(func(context.Context) (string, error) { return "done it", nil })
	_ = step(func(context.Context) (string, error) { return "", nil })
	_ = step(func(context.Context) (string, error) { return "", os.ErrPermission })
	cancel()
	err := step(func(ctx context.Context) (string, error) { return "", ctx.Err() })
	var types []event.Type
	for _, e := range rec.Events() {
		types = append(types, e.Type)
	}
	want := []event.Type{event.StepStarted, event.StepDone, event.StepStarted, event.StepSkipped, event.StepStarted, event.StepFailed, event.StepStarted, event.Note}
	if !slices.Equal(types, want) {
		t.Errorf("events %v, want %v", types, want)
	}
	if err == nil || !strings.Contains(err.Error(), "something on a-w1") {
		t.Errorf("error %v", err)
	}
	if !slices.Equal(w.u.res.Changed, []string{"a-w1 something: done it"}) {
		t.Errorf("changed: %q", w.u.res.Changed)
	}
}
