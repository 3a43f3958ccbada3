package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/drain"

	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/plan"
)

// cordon takes a node out of scheduling and leaves the run's id on it, in one write, so that nobody else's cordon is ever taken for belay's.
type cordon struct{ *task }

func (h cordon) Probe(ctx context.Context, s plan.Step, _ bool) (Found, error) {
	n, err := h.node(ctx, s.Node)
	if err != nil {
		return Found{}, err
	}
	switch by := n.Annotations[plan.CordonAnnotation]; {
	case n.Spec.Unschedulable && by == h.run:
		return found(Done, "cordoned by this run"), nil
	case n.Spec.Unschedulable:
		return found(Done, "cordoned by somebody else since the plan was made: it stays cordoned"), nil
	}
	return found(NotStarted, "takes pods"), nil
}

func (h cordon) Apply(ctx context.Context, s plan.Step) error {
	return h.patchNode(ctx, s.Node, func(n *corev1.Node) string {
		if n.Spec.Unschedulable {
			return "" // somebody was quicker: it stays theirs
		}
		return fmt.Sprintf(`"annotations":{%q:%q}},"spec":{"unschedulable":true}`, plan.CordonAnnotation, h.run)
	})
}

func (h cordon) Verify(s plan.Step) []condition.Condition {
	return []condition.Condition{h.schedulable(s.Node, false)}
}

// patchNode changes a node by what change makes of it: the rest of a merge patch after the resourceVersion, so that the patch holds only for
// the node as change saw it; "" for no change.
func (t *task) patchNode(ctx context.Context, node string, change func(*corev1.Node) string) error {
	return t.mend(ctx, "node "+node+" to be changed", func(ctx context.Context) error {
		n, err := t.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		rest := change(n)
		if rest == "" {
			return nil
		}
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,%s}`, n.ResourceVersion, rest)
		_, err = t.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}

func (t *task) schedulable(node string, want bool) condition.Condition {
	name := "node " + node + " to be cordoned"
	if want {
		name = "node " + node + " to take pods"
	}
	return condition.Condition{Name: name, Check: func(ctx context.Context) error {
		n, err := t.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && n.Spec.Unschedulable == want {
			err = condition.NotYetf("unschedulable is %v", n.Spec.Unschedulable)
		}
		return err
	}}
}

// uncordon gives a node back, if it was this run that took it.
type uncordon struct{ *task }

func (h uncordon) Probe(ctx context.Context, s plan.Step, _ bool) (Found, error) {
	n, err := h.node(ctx, s.Node)
	if err != nil {
		return Found{}, err
	}
	switch by := n.Annotations[plan.CordonAnnotation]; {
	case by == h.run:
		return found(NotStarted, "cordoned by this run"), nil
	case n.Spec.Unschedulable:
		return found(Done, "not cordoned by this run: it stays cordoned"), nil
	}
	return found(Done, "takes pods"), nil
}

func (h uncordon) Apply(ctx context.Context, s plan.Step) error { return h.uncordon(ctx, s.Node) }

func (t *task) uncordon(ctx context.Context, node string) error {
	return t.patchNode(ctx, node, func(n *corev1.Node) string {
		if n.Annotations[plan.CordonAnnotation] != t.run {
			return "" // not, or no longer, this run's
		}
		return fmt.Sprintf(`"annotations":{%q:null}},"spec":{"unschedulable":null}`, plan.CordonAnnotation)
	})
}

func (h uncordon) Verify(plan.Step) []condition.Condition { return nil }

// drainNode evicts a node's pods within their disruption budgets.
type drainNode struct{ *task }

func (h drainNode) helper(ctx context.Context, s plan.Step) *drain.Helper {
	return &drain.Helper{
		Ctx: ctx, Client: h.Client,
		Force: len(s.Params.BarePods) > 0, IgnoreAllDaemonSets: true, DeleteEmptyDirData: s.Params.DeleteEmptyDir,
		GracePeriodSeconds: -1, Timeout: time.Duration(s.Params.TimeoutSeconds) * time.Second,
		// kubectl's command sets these 5 seconds, its library none: a pod that a budget holds would be asked for without a pause.
		EvictErrorRetryDelay: 5 * h.poll(),
		Out:                  io.Discard, ErrOut: io.Discard,
		AdditionalFilters: []drain.PodFilter{func(p corev1.Pod) drain.PodDeleteStatus {
			if _, ours := p.Labels[verify.CanaryLabel]; ours {
				return drain.MakePodDeleteStatusSkip()
			}
			name := p.Namespace + "/" + p.Name
			finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			if len(s.Params.BarePods) > 0 && metav1.GetControllerOf(&p) == nil && !finished && !slices.Contains(s.Params.BarePods, name) {
				// Force is for all or none; what was accepted is these and no others.
				return drain.MakePodDeleteStatusWithError("pods that no controller makes anew, and that the plan does not name: delete them by hand, or plan anew")
			}
			return drain.MakePodDeleteStatusOkay()
		}},
	}
}

// evictable lists the pods that a drain would evict. kubectl's filters give every problem at once.
func (h drainNode) evictable(ctx context.Context, s plan.Step) (*drain.PodDeleteList, error) {
	var list *drain.PodDeleteList
	var refused error
	err := h.mend(ctx, "pods of "+s.Node+" to be listed", func(ctx context.Context) error {
		l, errs := h.helper(ctx, s).GetPodsForDeletion(s.Node)
		if list = l; l != nil {
			refused = errors.Join(errs...) // pods that may not be evicted; the API has answered
			return nil
		}
		return errors.Join(errs...)
	})
	return list, errors.Join(err, refused)
}

func (h drainNode) Probe(ctx context.Context, s plan.Step, _ bool) (Found, error) {
	l, err := h.evictable(ctx, s)
	if l == nil {
		return Found{}, err
	}
	if err == nil && len(l.Pods()) == 0 {
		return found(Done, "no pod is left to evict"), nil
	}
	return found(NotStarted, "%d pods to evict", len(l.Pods())), nil
}

func (h drainNode) Apply(ctx context.Context, s plan.Step) error {
	limit := time.Duration(s.Params.TimeoutSeconds) * time.Second
	deadline := time.Now().Add(limit)
	// kubectl reports pods from several goroutines.
	var gone atomic.Int64
	var said sync.Map
	err := condition.Wait(ctx, condition.Condition{Name: "the pods of " + s.Node + " to leave", Check: func(ctx context.Context) error {
		helper := h.helper(ctx, s)
		list, errs := helper.GetPodsForDeletion(s.Node)
		if err := errors.Join(errs...); err != nil {
			if transient(err) && list == nil {
				return err
			}
			return condition.Final(err)
		}
		pods := list.Pods()
		if len(pods) == 0 {
			return nil
		}
		helper.Timeout = max(time.Until(deadline), time.Second)
		// It is called for every attempt.
		helper.OnPodDeletionOrEvictionStarted = func(p *corev1.Pod, _ bool) {
			if _, again := said.LoadOrStore(p.UID, true); !again {
				h.say(s, "evicting %s/%s", p.Namespace, p.Name)
			}
		}
		helper.OnPodDeletionOrEvictionFinished = func(p *corev1.Pod, _ bool, err error) {
			if err == nil {
				gone.Add(1)
				h.say(s, "%s/%s has left", p.Namespace, p.Name)
			}
		}
		err := helper.DeleteOrEvictPods(pods)
		// kubectl gives its time limit no type, so the clock tells it from an API that went away and may be asked again.
		if err != nil && (!time.Now().Before(deadline.Add(-time.Second)) || !transient(err)) {
			return condition.Final(err)
		}
		if err == nil {
			// The scheduler may have bound a pod here just before the cordon: the list is asked again until it is empty.
			err = condition.NotYetf("the last list of pods has left")
		}
		return err
	}}, condition.Options{Timeout: limit + time.Minute, Attempt: limit + time.Minute, Interval: 2 * h.poll()})
	if err == nil {
		h.say(s, "%d pods have left", gone.Load())
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("drain %s: %w%s", s.Node, err, h.hangs(ctx, s))
}

// hangs says which pods are left and which budgets hold them.
func (h drainNode) hangs(ctx context.Context, s plan.Step) string {
	l, _ := h.evictable(ctx, s)
	if l == nil || len(l.Pods()) == 0 {
		return ""
	}
	byNamespace := map[string][]corev1.Pod{}
	for _, p := range l.Pods() {
		byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p)
	}
	var out []string
	for ns, pods := range byNamespace {
		budgets, err := h.Client.PolicyV1().PodDisruptionBudgets(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, p := range pods {
			var held []string
			for _, b := range budgets.Items {
				sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
				if err == nil && sel.Matches(labels.Set(p.Labels)) && b.Status.DisruptionsAllowed <= 0 {
					held = append(held, fmt.Sprintf("PodDisruptionBudget %s/%s allows no disruption (%d healthy, %d wanted)",
						b.Namespace, b.Name, b.Status.CurrentHealthy, b.Status.DesiredHealthy))
				}
			}
			why := strings.Join(held, ", ")
			if why == "" && p.DeletionTimestamp != nil {
				why = fmt.Sprintf("it has been terminating since %s", p.DeletionTimestamp.UTC().Format(time.RFC3339))
			}
			if why == "" {
				why = "no budget holds it"
			}
			out = append(out, fmt.Sprintf("\n    %s/%s: %s", p.Namespace, p.Name, why))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

func (h drainNode) Verify(s plan.Step) []condition.Condition {
	return []condition.Condition{{Name: "node " + s.Node + " to be drained", Check: func(ctx context.Context) error {
		f, err := h.Probe(ctx, s, true)
		if err == nil && f.Progress != Done {
			err = condition.NotYetf("%s", f.Detail)
		}
		return err
	}}, h.volumesDetached(s)}
}

// detachPatience bounds the wait for volumes to leave a node.
const detachPatience = 2 * time.Minute

// volumesDetached waits until the volumes of the pods that left are off the node, so that they are not caught between two nodes when its
// kubelet stops: a volume that one node alone may have is not attached elsewhere before. It is a courtesy and not a gate: an upgraded kubelet finds
// the mounts of the old one again, so after detachPatience the step goes on and says what stayed.
func (h drainNode) volumesDetached(s plan.Step) condition.Condition {
	var since time.Time
	return condition.Condition{Name: "volumes of pods that left " + s.Node + " to be detached", Check: func(ctx context.Context) error {
		left, err := h.attached(ctx, s.Node)
		if err != nil || len(left) == 0 {
			return err
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < min(detachPatience, h.patience()/2) {
			return condition.NotYetf("attached: %s", strings.Join(left, ", "))
		}
		h.say(s, "going on with volumes still attached after %s: %s; look at their driver's attacher if a pod waits for one of them",
			time.Since(since).Round(time.Second), strings.Join(left, ", "))
		return nil
	}}
}

// attached names the persistent volumes that are attached to a node and that no pod on it uses, with the attachment that says so.
func (t *task) attached(ctx context.Context, node string) ([]string, error) {
	attachments, err := t.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", err)
	}
	on := map[string]string{}
	for _, a := range attachments.Items {
		if pv := a.Spec.Source.PersistentVolumeName; a.Spec.NodeName == node && a.Status.Attached && pv != nil {
			on[*pv] = a.Name
		}
	}
	if len(on) == 0 {
		return nil, nil
	}
	pods, err := t.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	used := map[string]bool{}
	for _, p := range pods.Items {
		if p.Spec.NodeName != node || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, v := range p.Spec.Volumes {
			switch {
			case v.PersistentVolumeClaim != nil:
				used[p.Namespace+"/"+v.PersistentVolumeClaim.ClaimName] = true
			case v.Ephemeral != nil:
				used[p.Namespace+"/"+p.Name+"-"+v.Name] = true // the name that the API gives such a claim
			}
		}
	}
	var left []string
	for pv, attachment := range on {
		v, err := t.Client.CoreV1().PersistentVolumes().Get(ctx, pv, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("persistent volume %s: %w", pv, err)
		}
		claim := ""
		if err == nil && v.Spec.ClaimRef != nil {
			claim = v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
		}
		if used[claim] {
			continue
		}
		left = append(left, strings.TrimSuffix(fmt.Sprintf("%s (%s, claim %s", pv, attachment, claim), ", claim ")+")")
	}
	slices.Sort(left)
	return left, nil
}

// kubeletConfig is `kubeadm upgrade node` on a worker: it writes the kubelet's configuration of the new version.
type kubeletConfig struct{ *task }

func (h kubeletConfig) Probe(ctx context.Context, s plan.Step, _ bool) (Found, error) {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return Found{}, err
	}
	u, err := h.Units.Status(ctx, m, h.unitName(s))
	if err != nil {
		return Found{}, err
	}
	switch u.State {
	case UnitRunning:
		return found(Partial, "kubeadm is at work in unit %s", h.unitName(s)), nil
	case UnitSucceeded:
		return found(Done, "kubeadm has written it"), nil
	case UnitAbsent, UnitFailed:
	}
	// It leaves nothing to tell by; running it again does no harm.
	return found(NotStarted, "kubeadm has not run"), nil
}

func (h kubeletConfig) Apply(ctx context.Context, s plan.Step) error {
	// It may have come to its end since Probe looked.
	f, err := h.Probe(ctx, s, false)
	if err != nil || f.Progress == Done {
		return err
	}
	argv := kubeadm.UpgradeNodeArgv(kubeadm.Staged(s.Params.Version, "kubeadm"), upgradeOptions(s))
	return h.inUnit(ctx, s, argv, f.Progress == Partial)
}

func (h kubeletConfig) Verify(plan.Step) []condition.Condition { return nil }
