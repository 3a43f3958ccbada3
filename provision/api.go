package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
)

// How long is waited for what.
const (
	apiWait      = 3 * time.Minute // an apiserver that should come up, also after a restart of its machine
	leftoverWait = 45 * time.Second
	memberWait   = 25 * time.Second // a join whose end nobody saw
	doneWait     = 90 * time.Second // a join that ended well, on a slow machine
	readyWait    = 5 * time.Minute
	proofWait    = 3 * time.Minute
	acceptWait   = 3 * time.Minute // an API that may be away: its balancer looks for who answers, or its etcd for a leader
	pollInterval = 500 * time.Millisecond
)

// api is access to the cluster's API as its administrator.
type api struct {
	cs  kubernetes.Interface
	dyn dynamic.Interface
	cfg *rest.Config

	// renewed holds for each node the time of its lease when it was first looked at, zero when there was none.
	mu      sync.Mutex
	renewed map[string]time.Time
}

// reports says whether a node's kubelet renewed its lease since it was first
// looked at. The time in it is the node's clock's, which may differ from every other.
func (a *api) reports(node string, renewed time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	first, ok := a.renewed[node]
	if !ok {
		if a.renewed == nil {
			a.renewed = map[string]time.Time{}
		}
		a.renewed[node] = renewed
		return false
	}
	return !first.Equal(renewed)
}

func newAPI(kubeconfig []byte) (*api, error) {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.QPS, cfg.Burst = 100, 200
	cfg.Timeout = 20 * time.Second
	cfg.UserAgent = fieldManager
	// What an apiserver warns of is of no use to the reader of a progress display.
	cfg.WarningHandler = rest.NoWarnings{}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &api{cs: cs, dyn: dyn, cfg: cfg}, nil
}

// readyz asks the control plane whether it is ready.
func (a *api) readyz(ctx context.Context) error {
	body, err := a.cs.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		if len(body) > 0 {
			return fmt.Errorf("%w: %s", err, strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "; "))
		}
		return err
	}
	return nil
}

// waitAPI waits for the control plane, and sets u.api and the kubeconfig of the cluster's directory.
func (u *up) waitAPI(ctx context.Context, step string, n *node, timeout time.Duration) error {
	return condition.Wait(ctx, condition.Condition{Name: "the control plane at " + u.state.Endpoint, Check: func(ctx context.Context) error {
		kubeconfig, err := n.h.ReadFile(ctx, kubeadm.AdminKubeconfig)
		if errors.Is(err, fs.ErrNotExist) {
			return condition.NotYetf("%s has no %s", n.name, kubeadm.AdminKubeconfig)
		}
		if err != nil {
			return err
		}
		a, err := newAPI(kubeconfig)
		if err != nil {
			return err
		}
		if err := a.readyz(ctx); err != nil {
			return err
		}
		if old, err := os.ReadFile(u.dir.kubeconfig()); err != nil || !bytes.Equal(old, kubeconfig) {
			if err := atomicfile.WriteFile(u.dir.kubeconfig(), kubeconfig, 0o600); err != nil {
				return condition.Final(err)
			}
		}
		u.api = a
		return nil
	}}, condition.Options{Timeout: timeout, Interval: pollInterval, Attempt: 10 * time.Second, OnChange: u.under(step, n)})
}

// compareVersion looks at what a cluster runs that was brought up before. One that was upgraded since is left as it is (true):
// its nodes must not get older files.
func (u *up) compareVersion(ctx context.Context) (upgraded bool, err error) {
	if err := u.waitAPI(ctx, "check", u.first(), apiWait); err != nil {
		return false, err
	}
	have, err := u.api.clusterVersion(ctx)
	if err != nil {
		return false, err
	}
	nodes, err := u.api.cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	// In the middle of an upgrade kubelets, or the control plane, may be ahead of the record.
	newest := have
	for _, n := range nodes.Items {
		if v, err := kubeversion.Parse(n.Status.NodeInfo.KubeletVersion); err == nil && v.Compare(newest) > 0 {
			newest = v
		}
	}
	want := u.spec.Version()
	switch {
	case newest.Compare(want) > 0:
		u.emit(event.Event{Type: event.Warning, Subject: u.spec.Name, Msg: fmt.Sprintf(
			"the cluster runs %s by now and %s was asked for; its nodes are left as they are (upgrades are the business of plan and apply)", newest, want)})
		u.res.Version = newest
		return true, nil
	case have.Compare(want) < 0:
		return false, &VersionError{Name: u.spec.Name, Want: want, Have: have}
	}
	return false, u.dir.saveSpec(u.spec)
}

// clusterVersion is what kubeadm recorded.
func (a *api) clusterVersion(ctx context.Context) (kubeversion.V, error) {
	cm, err := a.cs.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubeadm-config", metav1.GetOptions{})
	if err != nil {
		return kubeversion.V{}, err
	}
	var c struct {
		KubernetesVersion string `json:"kubernetesVersion"`
	}
	if err := yaml.Unmarshal([]byte(cm.Data["ClusterConfiguration"]), &c); err != nil {
		return kubeversion.V{}, fmt.Errorf("ConfigMap kube-system/kubeadm-config: %w", err)
	}
	return kubeversion.Parse(c.KubernetesVersion)
}

func (a *api) node(ctx context.Context, name string) (*corev1.Node, error) {
	return a.cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

func (a *api) deleteNode(ctx context.Context, name string) error {
	err := a.cs.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// member says whether a node's join came to its end, and why not.
func (a *api) member(ctx context.Context, n *node) (ok bool, why string, err error) {
	obj, err := a.node(ctx, n.name)
	if apierrors.IsNotFound(err) {
		return false, "the API does not know the node", nil
	}
	if err != nil {
		return false, "", err
	}
	if _, err := n.h.ReadFile(ctx, kubeadm.KubeletKubeconfig); errors.Is(err, fs.ErrNotExist) {
		return false, "its kubelet has no credentials", nil
	} else if err != nil {
		return false, "", err
	}
	// A kubelet that lost its cluster is known to the API for ever; one that lives renews its lease.
	lease, err := a.cs.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, "", err
	}
	var renewed time.Time
	if err == nil && lease.Spec.RenewTime != nil {
		renewed = lease.Spec.RenewTime.Time
	}
	if !a.reports(n.name, renewed) {
		return false, "its kubelet has not reported since", nil
	}
	if n.role != RoleControlPlane {
		return true, "", nil
	}
	// The label is the last thing that a control plane's join sets before it waits.
	if _, ok := obj.Labels[controlPlaneLabel]; !ok {
		return false, "it is not marked as a control plane node", nil
	}
	for _, component := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		pod, err := a.cs.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, component+"-"+n.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, component + " does not run", nil
		}
		if err != nil {
			return false, "", err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return false, component + " is " + string(pod.Status.Phase), nil
		}
	}
	return true, "", nil
}

// network applies the CNI.
func (u *up) network(ctx context.Context) (string, error) {
	objects, err := renderNetwork(u.b, u.state.Endpoint)
	if err != nil {
		return "", err
	}
	var changed []string
	// A fresh apiserver serves before its own bootstrap objects are all there.
	err = condition.Wait(ctx, condition.Condition{Name: "the pod network's objects to be accepted", Check: func(ctx context.Context) error {
		c, err := applyObjects(ctx, u.api.dyn, objects)
		changed = append(changed, c...)
		return err
	}}, condition.Options{Timeout: acceptWait, Interval: pollInterval, OnChange: u.under("network", nil)})
	if err != nil || len(changed) == 0 {
		return "", err
	}
	return "kube-router applied", nil
}

// finish waits until everything is ready, and proves that it works.
func (u *up) finish(ctx context.Context) error {
	if err := u.step(ctx, "ready", nil, "nodes and addons ready", u.ready); err != nil {
		return err
	}
	if err := u.step(ctx, "proof", nil, "cluster DNS answers on every node", u.proof); err != nil {
		return err
	}
	if u.state.Up {
		return nil
	}
	return u.record(func(p *progress) { p.Up = true })
}

func (u *up) ready(ctx context.Context) (string, error) {
	waited := false
	report := u.under("ready", nil)
	err := condition.Wait(ctx, condition.All("nodes and addons to be ready",
		condition.Condition{Name: "nodes", Check: u.nodesReady},
		condition.Condition{Name: "addons", Check: u.addonsReady},
	), condition.Options{Timeout: readyWait, Interval: pollInterval, OnChange: func(reason string) {
		waited = true
		report(strings.ReplaceAll(reason, "\n", "; "))
	}})
	if err != nil || !waited {
		return "", err
	}
	return fmt.Sprintf("%d nodes", len(u.nodes)), nil
}

func (u *up) nodesReady(ctx context.Context) error {
	list, err := u.api.cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var not []string
	for _, n := range u.nodes {
		i := slices.IndexFunc(list.Items, func(o corev1.Node) bool { return o.Name == n.name })
		if i < 0 {
			not = append(not, n.name+" is not registered")
			continue
		}
		if ok, why := nodeReady(&list.Items[i]); !ok {
			not = append(not, n.name+": "+why)
		}
	}
	if len(not) > 0 {
		return condition.NotYetf("%s", strings.Join(not, "; "))
	}
	return nil
}

func nodeReady(n *corev1.Node) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			if c.Status == corev1.ConditionTrue {
				return true, ""
			}
			return false, c.Reason + ": " + c.Message
		}
	}
	return false, "its kubelet has not reported yet"
}

// addonsReady asks for CoreDNS, kube-proxy and kube-router: nodes say Ready without any of them.
func (u *up) addonsReady(ctx context.Context) error {
	var not []string
	dns, err := u.api.cs.AppsV1().Deployments(metav1.NamespaceSystem).Get(ctx, "coredns", metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case dns.Status.ObservedGeneration < dns.Generation || dns.Status.AvailableReplicas < *dns.Spec.Replicas:
		not = append(not, fmt.Sprintf("coredns: %d of %d available", dns.Status.AvailableReplicas, *dns.Spec.Replicas))
	}
	for _, name := range []string{"kube-proxy", "kube-router"} {
		ds, err := u.api.cs.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := ds.Status
		if s.ObservedGeneration < ds.Generation || int(s.DesiredNumberScheduled) < len(u.nodes) || s.NumberReady < s.DesiredNumberScheduled || s.UpdatedNumberScheduled < s.DesiredNumberScheduled {
			not = append(not, fmt.Sprintf("%s: %d of %d ready", name, s.NumberReady, max(int(s.DesiredNumberScheduled), len(u.nodes))))
		}
	}
	if len(not) == 0 {
		return nil
	}
	return condition.NotYetf("%s", strings.Join(append(not, u.podTroubles(ctx)...), "; "))
}

// podTroubles says what keeps pods of kube-system from running, as far as it is worth a word.
func (u *up) podTroubles(ctx context.Context) []string {
	pods, err := u.api.cs.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range pods.Items {
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				out = append(out, fmt.Sprintf("pod %s on %s: %s %s", p.Name, p.Spec.NodeName, w.Reason, w.Message))
			} else if t := c.LastTerminationState.Terminated; t != nil && !c.Ready && t.ExitCode != 0 {
				out = append(out, fmt.Sprintf("pod %s on %s: ended with exit code %d", p.Name, p.Spec.NodeName, t.ExitCode))
			}
		}
	}
	if len(out) > 3 {
		out = append(out[:3], fmt.Sprintf("and %d more", len(out)-3))
	}
	return out
}

// proof runs a pod on every node that asks the cluster's DNS: image, sandbox, pod network, Service and CoreDNS in one.
// A cluster that was proved before, and in which nothing was changed, is not asked again.
func (u *up) proof(ctx context.Context) (string, error) {
	if u.state.Up && !u.anyChange.Load() {
		return "", nil
	}
	samples := u.b.ImagesByRole(bundle.RoleSample)
	if len(samples) != 1 {
		return "", fmt.Errorf("bundle %s has %d sample images, want one", u.b.Dir(), len(samples))
	}
	err := u.each(ctx, u.nodes, func(ctx context.Context, n *node) error { return u.proveNode(ctx, n, samples[0].Ref) })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d nodes", len(u.nodes)), nil
}

// lastWarning gives what the node, or the scheduler, last complained of about a pod in kube-system; "" for nothing.
func (a *api) lastWarning(ctx context.Context, pod string) string {
	list, err := a.cs.CoreV1().Events(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.name": pod, "type": corev1.EventTypeWarning}.String(),
	})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return "; " + last.Reason + ": " + last.Message
}

const proofName = "kubernetes.default.svc.cluster.local"

func (u *up) proveNode(ctx context.Context, n *node, image string) (err error) {
	pods := u.api.cs.CoreV1().Pods(metav1.NamespaceSystem)
	name := "belay-proof-" + n.name
	zero := int64(0)
	// A young control plane drops connections while its balancer learns who answers: a delete may be repeated.
	remove := func(ctx context.Context) error {
		return condition.Wait(ctx, condition.Condition{Name: "pod " + name + " to be removed", Check: func(ctx context.Context) error {
			err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
				return condition.Final(err)
			}
			return err
		}}, condition.Options{Timeout: acceptWait, Interval: pollInterval, OnChange: u.under("proof", nil)})
	}
	if err := remove(ctx); err != nil {
		return err
	}
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "belay"}},
		Spec: corev1.PodSpec{
			NodeName: n.name, RestartPolicy: corev1.RestartPolicyOnFailure, AutomountServiceAccountToken: &no,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: &zero,
			Containers: []corev1.Container{{
				Name: "proof", Image: image, ImagePullPolicy: corev1.PullNever, Args: []string{"lookup", proofName},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		},
	}
	err = condition.Wait(ctx, condition.Condition{Name: "pod " + name + " to be accepted", Check: func(ctx context.Context) error {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
			return nil // the one before is gone: this is one whose answer was lost
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsInvalid(err):
			return condition.Final(err)
		}
		return err
	}}, condition.Options{Timeout: acceptWait, Interval: pollInterval, OnChange: u.under("proof", nil)})
	if err != nil {
		return err
	}
	defer func() {
		patience := acceptWait
		if ctx.Err() != nil { // interrupted
			patience = 20 * time.Second
		}
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = errors.Join(err, remove(cleanup))
	}()
	return condition.Wait(ctx, condition.Condition{Name: "a pod on " + n.name + " to find " + proofName, Check: func(ctx context.Context) error {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = pods.Create(ctx, pod, metav1.CreateOptions{})
		}
		if err != nil {
			return err
		}
		switch p.Status.Phase {
		case corev1.PodSucceeded:
			return nil
		case corev1.PodFailed:
			// Evicted, or preempted: it will not come back, and another one tells more.
			why := strings.TrimSpace(p.Status.Reason + ": " + p.Status.Message)
			if err := remove(ctx); err != nil {
				return err
			}
			if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return condition.NotYetf("the pod was put out by the node (%s); trying another", why)
		}
		for _, c := range p.Status.ContainerStatuses {
			for _, s := range []corev1.ContainerState{c.State, c.LastTerminationState} {
				if t := s.Terminated; t != nil && t.ExitCode != 0 {
					return condition.NotYetf("it could not: %s", strings.TrimSpace(t.Message))
				}
				if w := s.Waiting; w != nil && w.Message != "" {
					return condition.NotYetf("%s: %s", w.Reason, w.Message)
				}
			}
		}
		return condition.NotYetf("the pod is %s%s", p.Status.Phase, u.api.lastWarning(ctx, name))
	}}, condition.Options{Timeout: proofWait, Interval: pollInterval, OnChange: u.under("proof", nil)})
}
