package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/internal/event"
)

// LeaseName is the Lease in kube-system that a run holds: one run at a time per cluster.
const LeaseName = "belay-run"

const (
	leaseNamespace = "kube-system"
	// leaseDuration is longer than the API of a single control plane node is away while it is upgraded. Whoever resumes the same run need not wait for
	// its end, and on the computer where a run stopped, a new one is refused anyway.
	leaseDuration   = 10 * time.Minute
	leaseRenewEvery = 15 * time.Second
	// leaseObserve is how long an expired lease is watched before it is taken: the clocks of two computers differ, and a
	// live holder renews within that time.
	leaseObserve = 2*leaseRenewEvery + 5*time.Second
	// leaseRun and leaseOwner are annotations: the run's id and who started it where.
	leaseRun   = "belay.dev/run"
	leaseOwner = "belay.dev/owner"
)

// lease is the lock of one run.
type lease struct {
	client kubernetes.Interface
	run    string
	owner  string // user@host, process
	now    func() time.Time
	// observe is how long an expired lease of another run is watched.
	observe time.Duration
	sink    event.Sink

	mu   sync.Mutex
	held bool
}

func newLease(env *Env, run string, o Options) *lease {
	// In tests a poll is a millisecond, and this scales with it.
	observe := min(leaseObserve, time.Duration(leaseObserve/time.Second)*env.poll())
	return &lease{client: env.Client, run: run, owner: o.owner(), now: o.now, observe: observe, sink: event.Or(env.Sink)}
}

// acquire takes the lease: a free one, an expired one, or the one of the same run, whose process is gone.
func (l *lease) acquire(ctx context.Context) error {
	leases := l.client.CoordinationV1().Leases(leaseNamespace)
	have, err := leases.Get(ctx, LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, l.fill(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: LeaseName, Namespace: leaseNamespace}}, true), metav1.CreateOptions{})
		if err == nil {
			l.set(true)
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("take lease kube-system/%s: %w", LeaseName, err)
		}
		have, err = leases.Get(ctx, LeaseName, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("read lease kube-system/%s: %w", LeaseName, err)
	}
	other := l.others(have)
	if other {
		if busy := l.busy(have); busy != nil {
			return busy
		}
		if have, err = l.watch(ctx, have); err != nil {
			return err
		}
	}
	// An update with the version that was read: of two that see an expired lease, one gets it.
	if _, err := leases.Update(ctx, l.fill(have, other), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("take lease kube-system/%s: %w", LeaseName, err)
	}
	l.set(true)
	return nil
}

func (l *lease) others(have *coordinationv1.Lease) bool {
	return have.Annotations[leaseRun] != l.run && have.Spec.HolderIdentity != nil && *have.Spec.HolderIdentity != ""
}

// watch makes sure that nobody renews a lease that has run out by this computer's clock.
func (l *lease) watch(ctx context.Context, have *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	l.sink.Emit(event.Event{Type: event.Warning, Run: l.run, Msg: fmt.Sprintf("the lease of run %s by %s has run out; watching for %s whether it is renewed",
		have.Annotations[leaseRun], have.Annotations[leaseOwner], l.observe)})
	timer := time.NewTimer(l.observe)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-timer.C:
	}
	now, err := l.client.CoordinationV1().Leases(leaseNamespace).Get(ctx, LeaseName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read lease kube-system/%s: %w", LeaseName, err)
	}
	if now.ResourceVersion != have.ResourceVersion || !now.Spec.RenewTime.Equal(have.Spec.RenewTime) {
		return nil, &BusyError{Holder: holderOf(now)}
	}
	return now, nil
}

func holderOf(have *coordinationv1.Lease) string {
	return fmt.Sprintf("run %s by %s", have.Annotations[leaseRun], have.Annotations[leaseOwner])
}

func (l *lease) busy(have *coordinationv1.Lease) *BusyError {
	if have.Spec.RenewTime == nil || have.Spec.LeaseDurationSeconds == nil {
		return nil
	}
	until := have.Spec.RenewTime.Add(time.Duration(*have.Spec.LeaseDurationSeconds) * time.Second)
	if !l.now().Before(until) {
		return nil
	}
	b := &BusyError{Holder: holderOf(have), Expires: until}
	if have.Spec.AcquireTime != nil {
		b.Since = have.Spec.AcquireTime.Time
	}
	return b
}

func (l *lease) fill(have *coordinationv1.Lease, fresh bool) *coordinationv1.Lease {
	n := have.DeepCopy()
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[leaseRun], n.Annotations[leaseOwner] = l.run, l.owner
	holder, seconds, now := l.run, int32(leaseDuration/time.Second), metav1.NewMicroTime(l.now())
	n.Spec.HolderIdentity, n.Spec.LeaseDurationSeconds, n.Spec.RenewTime = &holder, &seconds, &now
	if fresh || n.Spec.AcquireTime == nil {
		n.Spec.AcquireTime = &now
	}
	return n
}

// holding is a lease that is renewed in the background.
type holding struct {
	*lease
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// hold renews the lease until end. The context that it gives ends, with a *BusyError as its cause, once another run has it. The API is
// away for a while in many upgrades, which ends nothing.
func (l *lease) hold(ctx context.Context) (context.Context, *holding) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &holding{lease: l, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		t := time.NewTicker(leaseRenewEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			attempt, stop := context.WithTimeout(ctx, leaseRenewEvery)
			err := l.renew(attempt)
			stop()
			if busy := (*BusyError)(nil); errors.As(err, &busy) {
				cancel(busy)
				return
			}
		}
	}()
	return ctx, h
}

// end stops the renewals; the lease stays taken.
func (h *holding) end() {
	h.cancel(nil)
	<-h.done
}

// renew keeps a lease that is held. Another run's name on it means that it was lost, also when that one has run out meanwhile.
func (l *lease) renew(ctx context.Context) error {
	if !l.isHeld() {
		return nil
	}
	leases := l.client.CoordinationV1().Leases(leaseNamespace)
	have, err := leases.Get(ctx, LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return l.acquire(ctx) // somebody deleted it
	}
	if err != nil {
		return fmt.Errorf("read lease kube-system/%s: %w", LeaseName, err)
	}
	if l.others(have) {
		l.set(false)
		return &BusyError{Holder: holderOf(have)}
	}
	if _, err := leases.Update(ctx, l.fill(have, false), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("renew lease kube-system/%s: %w", LeaseName, err)
	}
	return nil
}

// release gives the lease back, if it is still this run's.
func (l *lease) release(ctx context.Context) error {
	if !l.isHeld() {
		return nil
	}
	leases := l.client.CoordinationV1().Leases(leaseNamespace)
	have, err := leases.Get(ctx, LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil && have.Annotations[leaseRun] == l.run {
		err = leases.Delete(ctx, LeaseName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("give back lease kube-system/%s: %w", LeaseName, err)
	}
	l.set(false)
	return nil
}

func (l *lease) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

func (l *lease) set(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = held
}
