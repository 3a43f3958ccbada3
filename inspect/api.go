package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

const (
	systemNamespace   = "kube-system"
	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	zoneLabel         = "topology.kubernetes.io/zone"
	configHash        = "kubernetes.io/config.hash"
	mirrorAnnotation  = "kubernetes.io/config.mirror"
)

// raw holds what is needed only until the lists are put together.
type raw struct {
	staticPods map[string][]cluster.StaticPod // by node
	kubeProxy  map[string]kubeversion.V       // by node
	owners     map[string]string              // "ReplicaSet/ns/name" to the workload above it
	owned      map[string]bool                // workloads that have an owner that is in the lists
	claims     map[string]string              // "ns/claim" to volume
	localPV    map[string]bool                // volumes that are tied to a node
	podClaims  map[string][]string            // "ns/pod" to claims
	budgets    map[string]labels.Selector     // "ns/budget"
	// systemLabels are the labels of kube-system; nil when they were not read.
	systemLabels map[string]string
}

// api reads everything that the API serves.
func (ob *observer) api(ctx context.Context) error {
	s := ob.state
	r := &raw{
		staticPods: map[string][]cluster.StaticPod{}, kubeProxy: map[string]kubeversion.V{}, owners: map[string]string{},
		owned: map[string]bool{}, claims: map[string]string{}, localPV: map[string]bool{}, podClaims: map[string][]string{}, budgets: map[string]labels.Selector{},
	}
	// One answer first: when there is none, twelve lists that each wait for a timeout tell no more.
	if err := ob.serverVersion(ctx); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("observe the cluster: %w", ctx.Err())
		}
		ob.unread("version", err)
		if k := kindOf(err); k == cluster.UnreadUnreachable || k == cluster.UnreadTimeout {
			return &NothingReadError{Server: s.Server, Err: err}
		}
	}
	c := ob.client
	var replicaSets []cluster.Workload
	var jobs []cluster.Workload
	var others, daemons, sets []cluster.Workload
	var validating, mutating, conversion []cluster.Webhook
	tasks := []struct {
		what string
		run  func(ctx context.Context) error
	}{
		{"namespace/" + systemNamespace, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, ob.o.APITimeout)
			defer cancel()
			ns, err := c.CoreV1().Namespaces().Get(ctx, systemNamespace, metav1.GetOptions{})
			if err == nil {
				s.Lineage, r.systemLabels = string(ns.UID), ns.Labels
			}
			return err
		}},
		{"configmap/" + systemNamespace + "/kubeadm-config", ob.kubeadmConfig},
		{"configmap/" + systemNamespace + "/kubelet-config", func(ctx context.Context) error {
			s.KubeletConfig = new(cluster.KubeletConfig)
			var raw settings
			err := ob.configMap(ctx, "kubelet-config", "kubelet", "KubeletConfiguration", s.KubeletConfig, &raw)
			if err != nil {
				s.KubeletConfig = nil
				return err
			}
			ob.kubeletConfig = raw
			return nil
		}},
		{"configmap/" + systemNamespace + "/kube-proxy", func(ctx context.Context) error {
			s.ProxyConfig = new(cluster.ProxyConfig)
			err := ob.configMap(ctx, "kube-proxy", "config.conf", "KubeProxyConfiguration", s.ProxyConfig)
			if err != nil {
				s.ProxyConfig = nil
			}
			return err
		}},
		{cluster.ReadNodes, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.CoreV1().Nodes().List, func() { s.Nodes = nil }, func(l *corev1.NodeList) {
				for i := range l.Items {
					s.Nodes = append(s.Nodes, node(&l.Items[i]))
				}
			})
		}},
		{cluster.ReadPods, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.CoreV1().Pods("").List, func() { s.Pods = nil; clear(r.staticPods); clear(r.kubeProxy); clear(r.podClaims) }, func(l *corev1.PodList) {
				for i := range l.Items {
					s.Pods = append(s.Pods, r.pod(&l.Items[i]))
				}
			})
		}},
		{cluster.ReadDeployments, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.AppsV1().Deployments("").List, func() { others = nil }, func(l *appsv1.DeploymentList) {
				for i := range l.Items {
					d := &l.Items[i]
					others = append(others, cluster.Workload{Kind: "Deployment", Namespace: d.Namespace, Name: d.Name, UID: string(d.UID), Generation: d.Generation,
						Desired: deref(d.Spec.Replicas, 1), Ready: d.Status.ReadyReplicas, Revision: d.Annotations["deployment.kubernetes.io/revision"]})
					if d.Namespace == systemNamespace && d.Name == "coredns" {
						ob.addon(cluster.Addon{Name: d.Name, Kind: "Deployment", Namespace: d.Namespace, Image: imageOf(d.Spec.Template.Spec, "coredns"), Desired: deref(d.Spec.Replicas, 1), Ready: d.Status.ReadyReplicas})
					}
				}
			})
		}},
		{cluster.ReadDaemonSets, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.AppsV1().DaemonSets("").List, func() { daemons = nil }, func(l *appsv1.DaemonSetList) {
				for i := range l.Items {
					d := &l.Items[i]
					daemons = append(daemons, cluster.Workload{Kind: "DaemonSet", Namespace: d.Namespace, Name: d.Name, UID: string(d.UID), Generation: d.Generation,
						Desired: d.Status.DesiredNumberScheduled, Ready: d.Status.NumberReady, Revision: d.Annotations[appsv1.DeprecatedTemplateGeneration]})
					if d.Namespace == systemNamespace && d.Name == "kube-proxy" {
						ob.addon(cluster.Addon{Name: d.Name, Kind: "DaemonSet", Namespace: d.Namespace, Image: imageOf(d.Spec.Template.Spec, "kube-proxy"), Desired: d.Status.DesiredNumberScheduled, Ready: d.Status.NumberReady})
					}
				}
			})
		}},
		{cluster.ReadStatefulSets, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.AppsV1().StatefulSets("").List, func() { sets = nil }, func(l *appsv1.StatefulSetList) {
				for i := range l.Items {
					d := &l.Items[i]
					sets = append(sets, cluster.Workload{Kind: "StatefulSet", Namespace: d.Namespace, Name: d.Name, UID: string(d.UID), Generation: d.Generation,
						Desired: deref(d.Spec.Replicas, 1), Ready: d.Status.ReadyReplicas, Revision: d.Status.UpdateRevision,
						MaxUnavailable: maxUnavailable(d), Parallel: d.Spec.PodManagementPolicy == appsv1.ParallelPodManagement})
				}
			})
		}},
		{cluster.ReadReplicaSets, func(ctx context.Context) error {
			owners := map[string]string{}
			err := pages(ctx, ob.o, c.AppsV1().ReplicaSets("").List, func() { replicaSets = nil; clear(owners) }, func(l *appsv1.ReplicaSetList) {
				for i := range l.Items {
					d := &l.Items[i]
					if o := metav1.GetControllerOf(d); o != nil {
						owners["ReplicaSet/"+d.Namespace+"/"+d.Name] = o.Kind + "/" + d.Namespace + "/" + o.Name
						continue
					}
					replicaSets = append(replicaSets, cluster.Workload{Kind: "ReplicaSet", Namespace: d.Namespace, Name: d.Name, UID: string(d.UID), Generation: d.Generation,
						Desired: deref(d.Spec.Replicas, 1), Ready: d.Status.ReadyReplicas})
				}
			})
			r.mergeOwners(ob, owners)
			return err
		}},
		{cluster.ReadJobs, func(ctx context.Context) error {
			owners := map[string]string{}
			err := pages(ctx, ob.o, c.BatchV1().Jobs("").List, func() { jobs = nil; clear(owners) }, func(l *batchv1.JobList) {
				for i := range l.Items {
					d := &l.Items[i]
					if o := metav1.GetControllerOf(d); o != nil {
						owners["Job/"+d.Namespace+"/"+d.Name] = o.Kind + "/" + d.Namespace + "/" + o.Name
						continue
					}
					if d.Status.CompletionTime != nil {
						continue // done; nothing of it is left to watch
					}
					jobs = append(jobs, cluster.Workload{Kind: "Job", Namespace: d.Namespace, Name: d.Name, UID: string(d.UID), Generation: d.Generation,
						Desired: deref(d.Spec.Parallelism, 1), Ready: deref(d.Status.Ready, 0)})
				}
			})
			r.mergeOwners(ob, owners)
			return err
		}},
		{cluster.ReadBudgets, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.PolicyV1().PodDisruptionBudgets("").List, func() { s.PDBs = nil; clear(r.budgets) }, func(l *policyv1.PodDisruptionBudgetList) {
				for i := range l.Items {
					b, sel := budget(&l.Items[i])
					s.PDBs = append(s.PDBs, b)
					r.budgets[b.Namespace+"/"+b.Name] = sel
				}
			})
		}},
		{cluster.ReadVolumes, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.CoreV1().PersistentVolumes().List, func() { clear(r.localPV) }, func(l *corev1.PersistentVolumeList) {
				for i := range l.Items {
					v := &l.Items[i]
					if v.Spec.Local != nil || v.Spec.HostPath != nil {
						r.localPV[v.Name] = true
					}
				}
			})
		}},
		{cluster.ReadClaims, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.CoreV1().PersistentVolumeClaims("").List, func() { clear(r.claims) }, func(l *corev1.PersistentVolumeClaimList) {
				for i := range l.Items {
					p := &l.Items[i]
					r.claims[p.Namespace+"/"+p.Name] = p.Spec.VolumeName
				}
			})
		}},
		{cluster.ReadValidating, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.AdmissionregistrationV1().ValidatingWebhookConfigurations().List, func() { validating = nil }, func(l *admissionv1.ValidatingWebhookConfigurationList) {
				for _, cfg := range l.Items {
					for _, w := range cfg.Webhooks {
						validating = append(validating, webhook("ValidatingWebhookConfiguration", cfg.Name, w.Name, w.FailurePolicy, w.ClientConfig, w.TimeoutSeconds, w.Rules, w.NamespaceSelector, w.ObjectSelector, len(w.MatchConditions)))
					}
				}
			})
		}},
		{cluster.ReadMutating, func(ctx context.Context) error {
			return pages(ctx, ob.o, c.AdmissionregistrationV1().MutatingWebhookConfigurations().List, func() { mutating = nil }, func(l *admissionv1.MutatingWebhookConfigurationList) {
				for _, cfg := range l.Items {
					for _, w := range cfg.Webhooks {
						mutating = append(mutating, webhook("MutatingWebhookConfiguration", cfg.Name, w.Name, w.FailurePolicy, w.ClientConfig, w.TimeoutSeconds, w.Rules, w.NamespaceSelector, w.ObjectSelector, len(w.MatchConditions)))
					}
				}
			})
		}},
		{cluster.ReadDefinitions, func(ctx context.Context) (err error) {
			conversion, err = ob.conversionWebhooks(ctx)
			return err
		}},
	}
	var g errgroup.Group
	g.SetLimit(ob.o.Parallel)
	errs := make([]error, len(tasks))
	for i, t := range tasks {
		g.Go(func() error {
			if errs[i] = t.run(ctx); errs[i] == nil {
				ob.o.Sink.Emit(event.Event{Type: event.StepProgress, Step: "api", Subject: t.what, Msg: "read"})
			}
			return nil
		})
	}
	_ = g.Wait() // errs has them
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("observe the cluster: %w", err)
	}
	read := 0
	for i, err := range errs {
		switch {
		case err == nil:
			read++
		case strings.HasPrefix(tasks[i].what, "configmap/") && apierrors.IsNotFound(err):
			ob.add(cluster.Unread{What: tasks[i].what, Kind: cluster.UnreadNotFound, Why: "the cluster was not made by kubeadm, or the ConfigMap was removed"})
		default:
			ob.unread(tasks[i].what, err)
		}
	}
	if read == 0 && !slices.ContainsFunc(errs, apierrors.IsNotFound) {
		return &NothingReadError{Server: s.Server, Err: errs[0]}
	}
	s.Workloads = slices.Concat(others, sets, daemons, replicaSets, jobs)
	s.Webhooks = slices.Concat(validating, mutating, conversion)
	r.finish(ob)
	ob.endpoints(ctx)
	return nil
}

func (r *raw) mergeOwners(ob *observer, owners map[string]string) {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	for k, v := range owners {
		r.owners[k] = v
	}
}

func (ob *observer) addon(a cluster.Addon) {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.state.Addons = append(slices.DeleteFunc(ob.state.Addons, func(b cluster.Addon) bool { return b.Name == a.Name }), a)
}

// finish puts the lists together.
func (r *raw) finish(ob *observer) {
	s := ob.state
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.StaticPods = r.staticPods[n.Name]
		n.KubeProxy = r.kubeProxy[n.Name]
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if above, ok := r.owners[p.Workload]; ok {
			p.Workload = above
		}
		for _, claim := range r.podClaims[p.Namespace+"/"+p.Name] {
			p.Constrained = true // a volume may not be reachable from everywhere
			if r.localPV[r.claims[p.Namespace+"/"+claim]] {
				p.LocalVolume = true
			}
		}
	}
	for i := range s.Webhooks {
		w := &s.Webhooks[i]
		// Labels that were not read may match: then the webhook counts as one that covers kube-system.
		if sel, err := labels.Parse(w.NamespaceSelector); err == nil && r.systemLabels != nil {
			w.ExemptsKubeSystem = !sel.Matches(labels.Set(r.systemLabels))
		}
	}
	byNamespace := map[string][]*cluster.Pod{}
	for i := range s.Pods {
		byNamespace[s.Pods[i].Namespace] = append(byNamespace[s.Pods[i].Namespace], &s.Pods[i])
	}
	for i := range s.PDBs {
		b := &s.PDBs[i]
		sel := r.budgets[b.Namespace+"/"+b.Name]
		if sel == nil {
			continue
		}
		for _, p := range byNamespace[b.Namespace] {
			if p.Phase != string(corev1.PodSucceeded) && p.Phase != string(corev1.PodFailed) && sel.Matches(labels.Set(p.Labels)) {
				b.Pods = append(b.Pods, p.Namespace+"/"+p.Name)
			}
		}
	}
}

func (ob *observer) serverVersion(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ob.o.APITimeout)
	defer cancel()
	body, err := ob.client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return err
	}
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		return fmt.Errorf("%w: /version: %w", errMalformed, err)
	}
	v, err := kubeversion.Parse(info.GitVersion)
	if err != nil {
		return fmt.Errorf("%w: /version: %w", errMalformed, err)
	}
	ob.state.Version = v
	return nil
}

// pages lists page by page and hands each page on before the next one is asked for, so that memory holds one.
// When a continue token expires, reset is called and the list begins again, the second time in one piece.
func pages[L interface {
	runtime.Object
	metav1.ListInterface
}](ctx context.Context, o Options, list func(context.Context, metav1.ListOptions) (L, error), reset func(), each func(L)) error {
	opts := metav1.ListOptions{Limit: o.PageSize}
	for tries := 0; ; {
		page, err := func() (L, error) {
			ctx, cancel := context.WithTimeout(ctx, o.APITimeout)
			defer cancel()
			return list(ctx, opts)
		}()
		if apierrors.IsResourceExpired(err) && opts.Continue != "" && tries < 2 {
			if tries++; tries == 2 {
				opts.Limit = 0
			}
			opts.Continue = ""
			reset()
			continue
		}
		if err != nil {
			// Half a list is worse than none: whoever reads it would miss the rest in silence.
			reset()
			return err
		}
		each(page)
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

func node(n *corev1.Node) cluster.Node {
	out := cluster.Node{
		Name: n.Name, UID: string(n.UID), Unschedulable: n.Spec.Unschedulable, Labels: n.Labels, Zone: n.Labels[zoneLabel],
		ContainerRuntime: n.Status.NodeInfo.ContainerRuntimeVersion, OSImage: n.Status.NodeInfo.OSImage,
		Kernel: n.Status.NodeInfo.KernelVersion, Architecture: n.Status.NodeInfo.Architecture,
		Allocatable: cluster.Resources{
			MilliCPU: n.Status.Allocatable.Cpu().MilliValue(), MemoryBytes: n.Status.Allocatable.Memory().Value(), Pods: n.Status.Allocatable.Pods().Value(),
		},
	}
	_, out.ControlPlane = n.Labels[controlPlaneLabel]
	if v, err := kubeversion.Parse(n.Status.NodeInfo.KubeletVersion); err == nil {
		out.Kubelet = v
	}
	for k, v := range n.Annotations {
		if strings.HasPrefix(k, "belay.dev/") {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[k] = v
		}
	}
	for _, t := range n.Spec.Taints {
		out.Taints = append(out.Taints, cluster.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && out.InternalIP == "" {
			out.InternalIP = a.Address
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready, out.ReadyReason = c.Status == corev1.ConditionTrue, ""
			if !out.Ready {
				out.ReadyReason = strings.TrimSpace(c.Reason + ": " + oneLine(c.Message))
			}
			continue
		}
		// Every other condition that Kubernetes sets is a complaint when it is not False.
		if c.Status != corev1.ConditionFalse {
			out.Conditions = append(out.Conditions, cluster.NodeCondition{Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: oneLine(c.Message)})
		}
	}
	return out
}

func (r *raw) pod(p *corev1.Pod) cluster.Pod {
	out := cluster.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Phase: string(p.Status.Phase), Ready: podReady(p),
		Labels: p.Labels, Terminating: p.DeletionTimestamp != nil, NodeSelector: p.Spec.NodeSelector, GraceSecs: deref(p.Spec.TerminationGracePeriodSeconds, 30),
	}
	_, out.Mirror = p.Annotations[mirrorAnnotation]
	if o := metav1.GetControllerOf(p); o != nil && o.Kind != "Node" {
		out.Owner = o.Kind + "/" + o.Name
		out.Workload = o.Kind + "/" + p.Namespace + "/" + o.Name
	}
	for _, t := range p.Spec.Tolerations {
		out.Tolerations = append(out.Tolerations, cluster.Toleration{Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect)})
	}
	out.Constrained = p.Spec.Affinity != nil || len(p.Spec.TopologySpreadConstraints) > 0
	out.Requests = requests(&p.Spec)
	for _, v := range p.Spec.Volumes {
		switch {
		case v.EmptyDir != nil:
			out.EmptyDir = true
		case v.GitRepo != nil:
			out.GitRepo = true
		case v.PersistentVolumeClaim != nil:
			r.podClaims[p.Namespace+"/"+p.Name] = append(r.podClaims[p.Namespace+"/"+p.Name], v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			r.podClaims[p.Namespace+"/"+p.Name] = append(r.podClaims[p.Namespace+"/"+p.Name], p.Name+"-"+v.Name)
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		out.Restarts += c.RestartCount
		if c.State.Waiting != nil && out.Waiting == "" {
			out.Waiting = c.State.Waiting.Reason
		}
	}
	if p.Namespace == systemNamespace {
		component := p.Labels["component"]
		switch {
		case out.Mirror && slices.Contains(components, component):
			sp := cluster.StaticPod{Component: component, UID: string(p.UID), ConfigHash: p.Annotations[configHash], Image: imageOf(p.Spec, component),
				Ready: out.Ready && !out.Terminating, Restarts: out.Restarts, Args: argsOf(p.Spec, component), HostPaths: hostPathsOf(p.Spec), Resources: resourcesOf(p.Spec, component)}
			sp.Version = cluster.ImageVersion(sp.Image)
			r.staticPods[p.Spec.NodeName] = append(r.staticPods[p.Spec.NodeName], sp)
		case p.Labels["k8s-app"] == "kube-proxy" && p.Spec.NodeName != "":
			// While a DaemonSet replaces its pod there may be two: the one that stays counts.
			if _, have := r.kubeProxy[p.Spec.NodeName]; !have || !out.Terminating {
				r.kubeProxy[p.Spec.NodeName] = cluster.ImageVersion(imageOf(p.Spec, "kube-proxy"))
			}
		}
	}
	return out
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// requests is what the scheduler counts: the sum of containers and sidecars, or the largest
// init container on top of the sidecars before it, plus the overhead.
func requests(spec *corev1.PodSpec) cluster.Resources {
	var sum, sidecars, peak cluster.Resources
	for _, c := range spec.InitContainers {
		r := resources(c.Resources.Requests)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars = plus(sidecars, r)
			r = cluster.Resources{}
		}
		peak = most(peak, plus(sidecars, r))
	}
	for _, c := range spec.Containers {
		sum = plus(sum, resources(c.Resources.Requests))
	}
	return plus(most(plus(sum, sidecars), peak), resources(spec.Overhead))
}

func resources(l corev1.ResourceList) cluster.Resources {
	return cluster.Resources{MilliCPU: l.Cpu().MilliValue(), MemoryBytes: l.Memory().Value()}
}

func plus(a, b cluster.Resources) cluster.Resources {
	return cluster.Resources{MilliCPU: a.MilliCPU + b.MilliCPU, MemoryBytes: a.MemoryBytes + b.MemoryBytes}
}

func most(a, b cluster.Resources) cluster.Resources {
	return cluster.Resources{MilliCPU: max(a.MilliCPU, b.MilliCPU), MemoryBytes: max(a.MemoryBytes, b.MemoryBytes)}
}

func budget(p *policyv1.PodDisruptionBudget) (cluster.PDB, labels.Selector) {
	b := cluster.PDB{
		Namespace: p.Namespace, Name: p.Name, DisruptionsAllowed: p.Status.DisruptionsAllowed, CurrentHealthy: p.Status.CurrentHealthy,
		DesiredHealthy: p.Status.DesiredHealthy, ExpectedPods: p.Status.ExpectedPods, Stale: p.Status.ObservedGeneration < p.Generation,
	}
	if o := metav1.GetControllerOf(p); o != nil {
		b.Owner = o.Kind + "/" + o.Name
		b.Group, _, _ = strings.Cut(o.APIVersion, "/")
	}
	if p.Spec.MinAvailable != nil {
		b.MinAvailable = p.Spec.MinAvailable.String()
	}
	if p.Spec.MaxUnavailable != nil {
		b.MaxUnavailable = p.Spec.MaxUnavailable.String()
	}
	if p.Spec.UnhealthyPodEvictionPolicy != nil {
		b.UnhealthyEviction = string(*p.Spec.UnhealthyPodEvictionPolicy)
	}
	// A nil selector selects nothing, an empty one everything (policy/v1).
	sel, err := metav1.LabelSelectorAsSelector(p.Spec.Selector)
	if err != nil {
		return b, nil
	}
	return b, sel
}

func webhook(kind, configuration, name string, policy *admissionv1.FailurePolicyType, cc admissionv1.WebhookClientConfig, timeout *int32,
	rules []admissionv1.RuleWithOperations, namespaces, objects *metav1.LabelSelector, conditions int,
) cluster.Webhook {
	w := cluster.Webhook{Kind: kind, Configuration: configuration, Name: name, FailurePolicy: string(deref(policy, admissionv1.Fail)), ReadyEndpoints: -1, TimeoutSeconds: deref(timeout, 10)}
	if cc.Service != nil {
		w.Service = cc.Service.Namespace + "/" + cc.Service.Name
	} else if cc.URL != nil {
		w.URL = *cc.URL
	}
	for _, r := range rules {
		w.MatchesPods = w.MatchesPods || matches(r, "", "pods")
		w.MatchesNodes = w.MatchesNodes || matches(r, "", "nodes")
		w.MatchesLeases = w.MatchesLeases || matches(r, "coordination.k8s.io", "leases")
	}
	w.NamespaceSelector, w.ObjectSelector, w.MatchConditions = selectorText(namespaces), selectorText(objects), conditions
	return w
}

// selectorText gives a selector as kubectl takes it, "" for one that selects everything.
func selectorText(s *metav1.LabelSelector) string {
	if s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return ""
	}
	return metav1.FormatLabelSelector(s)
}

func matches(r admissionv1.RuleWithOperations, group, resource string) bool {
	groups := slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, group)
	resources := slices.ContainsFunc(r.Resources, func(s string) bool {
		return s == "*" || s == "*/*" || s == resource || s == resource+"/*" || resource == "pods" && (s == "pods/eviction" || s == "*/eviction")
	})
	return groups && resources
}

// conversionWebhooks reads the definitions that convert by webhook. Definitions hold large schemas, so
// only the fields that matter are decoded.
func (ob *observer) conversionWebhooks(ctx context.Context) ([]cluster.Webhook, error) {
	type crd struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Conversion *struct {
				Strategy string `json:"strategy"`
				Webhook  *struct {
					ClientConfig *struct {
						URL     *string `json:"url"`
						Service *struct {
							Namespace string `json:"namespace"`
							Name      string `json:"name"`
						} `json:"service"`
					} `json:"clientConfig"`
				} `json:"webhook"`
			} `json:"conversion"`
		} `json:"spec"`
	}
	var out []cluster.Webhook
	token := ""
	for restarted := false; ; {
		body, err := func() ([]byte, error) {
			ctx, cancel := context.WithTimeout(ctx, ob.o.APITimeout)
			defer cancel()
			req := ob.client.Discovery().RESTClient().Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
				SetHeader("Accept", "application/json").Param("limit", "50")
			if token != "" {
				req = req.Param("continue", token)
			}
			// Not DoRaw: that drops the server's reason for a refusal.
			return req.Do(ctx).Raw()
		}()
		if apierrors.IsResourceExpired(err) && token != "" && !restarted {
			out, token, restarted = nil, "", true
			continue
		}
		if err != nil {
			return nil, err
		}
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []crd `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		for _, c := range page.Items {
			cv := c.Spec.Conversion
			if cv == nil || cv.Strategy != "Webhook" {
				continue
			}
			// A conversion that fails fails the request: there is no policy to ignore it.
			w := cluster.Webhook{Kind: "CustomResourceDefinition", Configuration: c.Metadata.Name, Name: c.Metadata.Name, FailurePolicy: "Fail", ReadyEndpoints: -1}
			if cv.Webhook != nil && cv.Webhook.ClientConfig != nil {
				if sv := cv.Webhook.ClientConfig.Service; sv != nil {
					w.Service = sv.Namespace + "/" + sv.Name
				}
				w.URL = deref(cv.Webhook.ClientConfig.URL, "")
			}
			out = append(out, w)
		}
		if token = page.Metadata.Continue; token == "" {
			return out, nil
		}
	}
}

// endpoints counts who answers behind each webhook's Service.
func (ob *observer) endpoints(ctx context.Context) {
	ready := map[string]int{}
	nodes := map[string][]string{}
	for i := range ob.state.Webhooks {
		w := &ob.state.Webhooks[i]
		if w.Service == "" {
			continue
		}
		n, done := ready[w.Service]
		if !done {
			namespace, name, _ := strings.Cut(w.Service, "/")
			opts := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name}
			n = 0
			var on []string
			err := pages(ctx, ob.o, func(ctx context.Context, o metav1.ListOptions) (*discoveryv1.EndpointSliceList, error) {
				o.LabelSelector = opts.LabelSelector
				return ob.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, o)
			}, func() { n, on = 0, nil }, func(l *discoveryv1.EndpointSliceList) {
				for _, s := range l.Items {
					for _, e := range s.Endpoints {
						if deref(e.Conditions.Ready, true) {
							n += len(e.Addresses)
							if node := deref(e.NodeName, ""); node != "" && !slices.Contains(on, node) {
								on = append(on, node)
							}
						}
					}
				}
			})
			if err != nil {
				ob.unread("endpointslices/"+w.Service, err)
				n = -1
			}
			slices.Sort(on)
			ready[w.Service], nodes[w.Service] = n, on
		}
		w.ReadyEndpoints, w.EndpointNodes = n, nodes[w.Service]
	}
}

// configMap reads one key of a ConfigMap of kubeadm as YAML, into each of the values.
func (ob *observer) configMap(ctx context.Context, name, key, kind string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, ob.o.APITimeout)
	defer cancel()
	cm, err := ob.client.CoreV1().ConfigMaps(systemNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var head struct {
		Kind string `json:"kind"`
	}
	text := []byte(cm.Data[key])
	if err := yaml.Unmarshal(text, &head); err != nil || head.Kind != kind {
		return fmt.Errorf("%w: key %s of ConfigMap %s holds no %s", errMalformed, key, name, kind)
	}
	for _, v := range into {
		if err := yaml.Unmarshal(text, v); err != nil {
			return fmt.Errorf("%w: key %s of ConfigMap %s: %w", errMalformed, key, name, err)
		}
	}
	return nil
}

func maxUnavailable(s *appsv1.StatefulSet) string {
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		return r.MaxUnavailable.String()
	}
	return ""
}

func (ob *observer) kubeadmConfig(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ob.o.APITimeout)
	defer cancel()
	cm, err := ob.client.CoreV1().ConfigMaps(systemNamespace).Get(ctx, "kubeadm-config", metav1.GetOptions{})
	if err != nil {
		return err
	}
	k, err := parseKubeadm(cm.Data["ClusterConfiguration"])
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	ob.state.Kubeadm, ob.state.Name, ob.state.Etcd.External = k, k.ClusterName, k.EtcdExternal
	return nil
}

// parseKubeadm reads a ClusterConfiguration of v1beta3 (extraArgs is a map) or v1beta4 (a list).
func parseKubeadm(text string) (*cluster.Kubeadm, error) {
	type component struct {
		ExtraArgs    extraArgs `json:"extraArgs"`
		ExtraVolumes []struct {
			HostPath string `json:"hostPath"`
		} `json:"extraVolumes"`
	}
	var c struct {
		APIVersion           string          `json:"apiVersion"`
		Kind                 string          `json:"kind"`
		KubernetesVersion    string          `json:"kubernetesVersion"`
		ClusterName          string          `json:"clusterName"`
		ControlPlaneEndpoint string          `json:"controlPlaneEndpoint"`
		ImageRepository      string          `json:"imageRepository"`
		FeatureGates         map[string]bool `json:"featureGates"`
		Networking           struct {
			PodSubnet     string `json:"podSubnet"`
			ServiceSubnet string `json:"serviceSubnet"`
		} `json:"networking"`
		APIServer         component `json:"apiServer"`
		ControllerManager component `json:"controllerManager"`
		Scheduler         component `json:"scheduler"`
		Etcd              struct {
			Local *struct {
				ImageTag  string    `json:"imageTag"`
				ImageRepo string    `json:"imageRepository"`
				ExtraArgs extraArgs `json:"extraArgs"`
			} `json:"local"`
			External *struct{} `json:"external"`
		} `json:"etcd"`
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("ClusterConfiguration: %w", err)
	}
	if c.Kind != "ClusterConfiguration" {
		return nil, fmt.Errorf("ConfigMap kubeadm-config holds kind %q, not ClusterConfiguration", c.Kind)
	}
	v, err := kubeversion.Parse(c.KubernetesVersion)
	if err != nil {
		return nil, fmt.Errorf("ClusterConfiguration: kubernetesVersion: %w", err)
	}
	k := &cluster.Kubeadm{
		APIVersion: c.APIVersion, KubernetesVersion: v, ClusterName: c.ClusterName, ControlPlaneEndpoint: c.ControlPlaneEndpoint,
		ImageRepository: c.ImageRepository, PodSubnet: c.Networking.PodSubnet, ServiceSubnet: c.Networking.ServiceSubnet,
		EtcdExternal: c.Etcd.External != nil, FeatureGates: c.FeatureGates,
	}
	for name, c := range map[string]component{"apiServer": c.APIServer, "controllerManager": c.ControllerManager, "scheduler": c.Scheduler} {
		for _, v := range c.ExtraVolumes {
			if k.ExtraVolumes == nil {
				k.ExtraVolumes = map[string][]string{}
			}
			k.ExtraVolumes[name] = append(k.ExtraVolumes[name], v.HostPath)
		}
	}
	args := map[string][]cluster.Flag{"apiServer": c.APIServer.ExtraArgs, "controllerManager": c.ControllerManager.ExtraArgs, "scheduler": c.Scheduler.ExtraArgs}
	if c.Etcd.Local != nil {
		k.EtcdImageTag, k.EtcdImageRepository = c.Etcd.Local.ImageTag, c.Etcd.Local.ImageRepo
		args["etcd"] = c.Etcd.Local.ExtraArgs
	}
	for name, flags := range args {
		if len(flags) == 0 {
			continue
		}
		if k.ExtraArgs == nil {
			k.ExtraArgs = map[string][]cluster.Flag{}
		}
		k.ExtraArgs[name] = flags
	}
	return k, nil
}

// extraArgs is a map in v1beta3 and a list of name and value in v1beta4.
type extraArgs []cluster.Flag

// UnmarshalJSON takes either form.
func (e *extraArgs) UnmarshalJSON(b []byte) error {
	var list []cluster.Flag
	if json.Unmarshal(b, &list) == nil {
		*e = list
		return nil
	}
	var m map[string]string
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("extraArgs: %w", err)
	}
	for k, v := range m {
		list = append(list, cluster.Flag{Name: k, Value: v})
	}
	slices.SortFunc(list, func(a, b cluster.Flag) int { return strings.Compare(a.Name, b.Name) })
	*e = list
	return nil
}

func imageOf(spec corev1.PodSpec, container string) string {
	if len(spec.Containers) == 0 {
		return ""
	}
	if i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == container }); i >= 0 {
		return spec.Containers[i].Image
	}
	return spec.Containers[0].Image
}

func hostPathsOf(spec corev1.PodSpec) []string {
	var out []string
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			out = append(out, v.HostPath.Path)
		}
	}
	slices.Sort(out)
	return out
}

// resourcesOf gives what a container of a pod asks for and is bounded by, as cluster.StaticPod.Resources has it.
func resourcesOf(spec corev1.PodSpec, container string) []string {
	var out []string
	for _, c := range spec.Containers {
		if c.Name != container {
			continue
		}
		for kind, list := range map[string]corev1.ResourceList{"requests": c.Resources.Requests, "limits": c.Resources.Limits} {
			for name, q := range list {
				out = append(out, fmt.Sprintf("%s.%s=%s", kind, name, q.String()))
			}
		}
	}
	slices.Sort(out)
	return out
}

func argsOf(spec corev1.PodSpec, container string) []string {
	if i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == container }); i >= 0 {
		return slices.Concat(spec.Containers[i].Command, spec.Containers[i].Args)
	}
	return nil
}

func deref[T any](p *T, or T) T {
	if p == nil {
		return or
	}
	return *p
}
