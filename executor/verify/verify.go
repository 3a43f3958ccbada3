// Package verify proves that a cluster is where it should be: every node, static
// pod and kubelet at the target, workloads as they were before, endpoints
// answering, and a pod running on every node.
//
// What it gives are conditions, so that a step of a run can wait for them and
// `belay verify` can report them one by one. The measure for workloads is regression against a
// baseline: what was broken before is not held against an upgrade.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/kubeversion"
)

const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// pageSize bounds each list request.
const pageSize = 500

// Ready says whether a node's Ready condition is true.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// NodesAt is met when every node is Ready and its kubelet reports the target, or a later patch of its minor. Only those named count,
// unless none is named.
func NodesAt(c kubernetes.Interface, target kubeversion.V, names ...string) condition.Condition {
	return condition.Condition{Name: "every node to be Ready with kubelet " + target.String(), Check: func(ctx context.Context) error {
		l, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(l.Items) == 0 {
			return condition.NotYetf("there are no nodes")
		}
		var errs []error
		for _, n := range l.Items {
			if len(names) > 0 && !slices.Contains(names, n.Name) {
				continue
			}
			if v, err := kubeversion.Parse(n.Status.NodeInfo.KubeletVersion); err != nil || !reaches(v, target) {
				errs = append(errs, condition.NotYetf("node %s has kubelet %s", n.Name, n.Status.NodeInfo.KubeletVersion))
			}
			if !Ready(&n) {
				errs = append(errs, condition.NotYetf("node %s is not Ready", n.Name))
			}
		}
		return errors.Join(errs...)
	}}
}

// reaches says whether v is the target or a later patch of its minor.
func reaches(v, target kubeversion.V) bool {
	return !v.Less(target) && v.MinorVersion() == target.MinorVersion()
}

// StaticPodsAt is met when the three Kubernetes components on a control plane node ("" for all of them) run the target's image, or a later patch's, and are ready.
func StaticPodsAt(c kubernetes.Interface, node string, target kubeversion.V) condition.Condition {
	where := "node " + node
	if node == "" {
		where = "every control plane node"
	}
	return condition.Condition{Name: fmt.Sprintf("the static pods of %s to run %s", where, target), Check: func(ctx context.Context) error {
		names := []string{node}
		if node == "" {
			l, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: controlPlaneLabel})
			if err != nil {
				return err
			}
			names = nil
			for _, n := range l.Items {
				names = append(names, n.Name)
			}
			if len(names) == 0 {
				return condition.NotYetf("no control plane node was found")
			}
		}
		var errs []error
		for _, n := range names {
			for _, comp := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
				errs = append(errs, staticPodAt(ctx, c, comp+"-"+n, target))
			}
		}
		return errors.Join(errs...)
	}}
}

func staticPodAt(ctx context.Context, c kubernetes.Interface, name string, target kubeversion.V) error {
	p, err := c.CoreV1().Pods("kube-system").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("pod kube-system/%s: %w", name, err)
	}
	if len(p.Spec.Containers) == 0 {
		return condition.NotYetf("pod kube-system/%s has no container", name)
	}
	if v := cluster.ImageVersion(p.Spec.Containers[0].Image); !reaches(v, target) {
		return condition.NotYetf("pod kube-system/%s has image %s", name, p.Spec.Containers[0].Image)
	}
	// The mirror pod is made anew for a new manifest; until the kubelet has started its container there is no status.
	if !podReady(p) || len(p.Status.ContainerStatuses) == 0 {
		return condition.NotYetf("pod kube-system/%s is not ready%s", name, waiting(p))
	}
	return nil
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waiting says why containers do not run.
func waiting(p *corev1.Pod) string {
	var why []string
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			why = append(why, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", s.Name, w.Reason, w.Message), ": "))
		}
		if t := s.State.Terminated; t != nil {
			why = append(why, fmt.Sprintf("%s: ended with code %d (%s)", s.Name, t.ExitCode, t.Reason))
		}
	}
	if len(why) == 0 {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}

// NoRegression is met when nodes and workloads are at least as they were in the baseline.
func NoRegression(c kubernetes.Interface, baseline *cluster.State) condition.Condition {
	return condition.Condition{Name: "nodes and workloads to be as before", Check: func(ctx context.Context) error {
		r, err := Regressions(ctx, c, baseline)
		if err != nil {
			return err
		}
		var errs []error
		for _, s := range r {
			errs = append(errs, condition.NotYetf("%s", s))
		}
		return errors.Join(errs...)
	}}
}

// Regressions says, a sentence each, which nodes and workloads are worse off than in the baseline. Workloads that are
// gone are left out: an upgrade deletes none, so their owner did. So are Jobs, which end by themselves.
func Regressions(ctx context.Context, c kubernetes.Interface, baseline *cluster.State) ([]string, error) {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	live := map[string]*corev1.Node{}
	for i := range nodes.Items {
		live[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var out []string
	for _, b := range baseline.Nodes {
		switch n := live[b.Name]; {
		case n == nil:
			out = append(out, fmt.Sprintf("node %s is gone: if it was removed on purpose, give the run up (belay abort) and plan anew", b.Name))
		case b.Ready && !Ready(n):
			out = append(out, fmt.Sprintf("node %s is not Ready, and was before", b.Name))
		}
	}
	now, err := Workloads(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, b := range baseline.Workloads {
		n, ok := now[b.ID()]
		if !ok {
			continue
		}
		// Fewer are asked for if somebody scaled it down in between.
		if want := min(b.Ready, n.Desired); n.Ready < want {
			out = append(out, fmt.Sprintf("%s has %d of %d pods ready, and had %d before", b.ID(), n.Ready, n.Desired, b.Ready))
		}
	}
	return out, nil
}

// Workloads reads the controllers that keep pods running, by cluster.Workload.ID.
func Workloads(ctx context.Context, c kubernetes.Interface) (map[string]cluster.Workload, error) {
	out := map[string]cluster.Workload{}
	put := func(kind string, m metav1.ObjectMeta, observed int64, desired, ready int32) {
		// A status that is older than the spec says nothing of it.
		if observed < m.Generation {
			ready = 0
		}
		w := cluster.Workload{Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), Generation: m.Generation, Desired: desired, Ready: ready}
		out[w.ID()] = w
	}
	err := errors.Join(
		pages(func(o metav1.ListOptions) (string, error) {
			l, err := c.AppsV1().Deployments("").List(ctx, o)
			if err != nil {
				return "", fmt.Errorf("list deployments: %w", err)
			}
			for _, d := range l.Items {
				put("Deployment", d.ObjectMeta, d.Status.ObservedGeneration, replicas(d.Spec.Replicas), d.Status.ReadyReplicas)
			}
			return l.Continue, nil
		}),
		pages(func(o metav1.ListOptions) (string, error) {
			l, err := c.AppsV1().StatefulSets("").List(ctx, o)
			if err != nil {
				return "", fmt.Errorf("list statefulsets: %w", err)
			}
			for _, d := range l.Items {
				put("StatefulSet", d.ObjectMeta, d.Status.ObservedGeneration, replicas(d.Spec.Replicas), d.Status.ReadyReplicas)
			}
			return l.Continue, nil
		}),
		pages(func(o metav1.ListOptions) (string, error) {
			l, err := c.AppsV1().DaemonSets("").List(ctx, o)
			if err != nil {
				return "", fmt.Errorf("list daemonsets: %w", err)
			}
			for _, d := range l.Items {
				putDaemonSet(put, d)
			}
			return l.Continue, nil
		}),
		pages(func(o metav1.ListOptions) (string, error) {
			l, err := c.AppsV1().ReplicaSets("").List(ctx, o)
			if err != nil {
				return "", fmt.Errorf("list replicasets: %w", err)
			}
			for _, d := range l.Items {
				if metav1.GetControllerOf(&d) == nil { // a Deployment's come and go with it
					put("ReplicaSet", d.ObjectMeta, d.Status.ObservedGeneration, replicas(d.Spec.Replicas), d.Status.ReadyReplicas)
				}
			}
			return l.Continue, nil
		}),
	)
	return out, err
}

func putDaemonSet(put func(kind string, m metav1.ObjectMeta, observed int64, desired, ready int32), d appsv1.DaemonSet) {
	put("DaemonSet", d.ObjectMeta, d.Status.ObservedGeneration, d.Status.DesiredNumberScheduled, d.Status.NumberReady)
}

func pages(list func(metav1.ListOptions) (next string, err error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		next, err := list(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
}

func replicas(r *int32) int32 {
	if r == nil {
		return 1
	}
	return *r
}

// HTTP is met when a GET of url is answered with a status below 400.
func HTTP(url string) condition.Condition {
	return condition.Condition{Name: url + " to answer", Check: func(ctx context.Context) (err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return condition.Final(err)
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, resp.Body.Close()) }()
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil {
			return err
		}
		if resp.StatusCode >= 400 {
			return condition.NotYetf("%s answered %s", url, resp.Status)
		}
		return nil
	}}
}
