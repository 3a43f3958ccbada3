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
)

// LeaseName is the Lease in kube-system that a run holds: one run at a time per cluster.
const LeaseName = "belay-run"

const (
	leaseNamespace  = "kube-system"
	leaseDuration   = 90 * time.Second
	leaseRenewEvery = 15 * time.Second
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

	mu   sync.Mutex
	held bool
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
	other := have.Annotations[leaseRun] != l.run && have.Spec.HolderIdentity != nil && *have.Spec.HolderIdentity != ""
	if busy := l.busy(have); other && busy != nil {
		return busy
	}
	// An update with the version that was read: of two that see an expired lease, one gets it.
	if _, err := leases.Update(ctx, l.fill(have, other), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("take lease kube-system/%s: %w", LeaseName, err)
	}
	l.set(true)
	return nil
}

func (l *lease) busy(have *coordinationv1.Lease) *BusyError {
	if have.Spec.RenewTime == nil || have.Spec.LeaseDurationSeconds == nil {
		return nil
	}
	until := have.Spec.RenewTime.Add(time.Duration(*have.Spec.LeaseDurationSeconds) * time.Second)
	if !l.now().Before(until) {
		return nil
	}
	b := &BusyError{Holder: fmt.Sprintf("run %s by %s", have.Annotations[leaseRun], have.Annotations[leaseOwner]), Expires: until}
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

// keep renews the lease until ctx ends. The API is away for a while in many upgrades: only the lease in another
// run's hands ends this one, through lost.
func (l *lease) keep(ctx context.Context, lost func(error)) {
	t := time.NewTicker(leaseRenewEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		attempt, cancel := context.WithTimeout(ctx, leaseRenewEvery)
		err := l.acquire(attempt)
		cancel()
		if busy := (*BusyError)(nil); errors.As(err, &busy) {
			l.set(false)
			lost(busy)
			return
		}
	}
}

// release gives the lease back, if it is still this run's.
func (l *lease) release(ctx context.Context) error {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if !held {
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

func (l *lease) set(held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = held
}
