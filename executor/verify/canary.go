package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/internal/condition"
)

// Canary is one pod that is sent to one node.
type Canary struct {
	Node  string
	Image string
	// Run marks the pod, so that leftovers are found.
	Run string
	// Reach are the Services to which the node's kubelet must get a connection before the pod counts as ready.
	Reach []Route
	// Timeout bounds the wait for it; 0 means 3 minutes. Poll is the pause between looks; 0 means a second.
	Timeout, Poll time.Duration
}

// Route is the way from a node to a Service by its cluster address.
type Route struct {
	// Name is short and a DNS label.
	Name string
	// Service is the Service's namespace and name.
	Service string
	// Address is the cluster IP, and Port a TCP port of the Service.
	Address string
	Port    int32
}

func (r Route) String() string {
	return fmt.Sprintf("Service %s (%s)", r.Service, net.JoinHostPort(r.Address, strconv.Itoa(int(r.Port))))
}

const (
	canaryNamespace = "kube-system"
	// CanaryLabel marks canary pods; its value is the node.
	CanaryLabel = "belay.dev/canary"
)

// Routes gives the Services that every node of a working cluster reaches: that of the API, and that of the cluster's DNS where
// kubeadm's name for it (kube-system/kube-dns) exists, answers over TCP and has a ready endpoint. Without an endpoint, the
// connection would say nothing of the node.
func Routes(ctx context.Context, c kubernetes.Interface) ([]Route, error) {
	var out []Route
	for _, want := range []struct {
		name, namespace, service string
		port                     int32
	}{{"api", metav1.NamespaceDefault, "kubernetes", 443}, {"dns", metav1.NamespaceSystem, "kube-dns", 53}} {
		s, err := c.CoreV1().Services(want.namespace).Get(ctx, want.service, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("service %s/%s: %w", want.namespace, want.service, err)
		}
		served := slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Port == want.port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		})
		if !served || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		slicesOf, err := c.DiscoveryV1().EndpointSlices(want.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + want.service})
		if err != nil {
			return nil, fmt.Errorf("endpoints of service %s/%s: %w", want.namespace, want.service, err)
		}
		if slices.ContainsFunc(slicesOf.Items, hasReady) {
			out = append(out, Route{Name: want.name, Service: want.namespace + "/" + want.service, Address: s.Spec.ClusterIP, Port: want.port})
		}
	}
	return out, nil
}

// hasReady follows the API's rule that a condition that is not given counts as true.
func hasReady(s discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready })
}

// Proves says what the canary shows when it is ready.
func (k Canary) Proves() string {
	out := "a canary pod to run on " + k.Node
	if len(k.Reach) > 0 {
		var to []string
		for _, r := range k.Reach {
			to = append(to, r.Service)
		}
		out += ", and Services " + strings.Join(to, ", ") + " to be reached from there"
	}
	return out
}

// name differs by run: a verification and a run at the same time do not take each other's pod away.
func (k Canary) name() string {
	sum := sha256.Sum256([]byte(k.Run))
	return "belay-canary-" + hex.EncodeToString(sum[:3]) + "-" + k.Node
}

// RunCanary sends the pod past the scheduler, as the node may be cordoned, waits until it is Ready with an address, and deletes it.
func RunCanary(ctx context.Context, c kubernetes.Interface, k Canary) (err error) {
	pods := c.CoreV1().Pods(canaryNamespace)
	k.Timeout, k.Poll = cmp.Or(k.Timeout, 3*time.Minute), cmp.Or(k.Poll, time.Second)
	o := condition.Options{Timeout: k.Timeout, Interval: k.Poll}
	if err := RemoveCanary(ctx, c, k, o); err != nil {
		return err
	}
	err = condition.Wait(ctx, condition.Condition{Name: "the canary pod to be accepted by the API", Check: func(ctx context.Context) error {
		_, err := pods.Create(ctx, k.pod(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			return condition.Final(err)
		}
		return err
	}}, o)
	if err != nil {
		return fmt.Errorf("canary on %s: %w", k.Node, err)
	}
	defer func() {
		// A failed canary is deleted as well: its story is in the error. Whoever interrupts does not want to wait long.
		patience := k.Timeout
		if ctx.Err() != nil {
			patience = 30 * time.Second
		}
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = errors.Join(err, RemoveCanary(cleanup, c, k, condition.Options{Interval: k.Poll}))
	}()
	err = condition.Wait(ctx, condition.Condition{Name: "the canary pod on " + k.Node + " to be ready", Check: func(ctx context.Context) error {
		p, err := pods.Get(ctx, k.name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		switch {
		case p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded:
			return condition.Final(fmt.Errorf("pod %s/%s is %s: %s%s", canaryNamespace, p.Name, p.Status.Phase, p.Status.Message, waiting(p)))
		case !podReady(p):
			return condition.NotYetf("pod %s/%s is %s%s%s", canaryNamespace, p.Name, p.Status.Phase, waiting(p), k.unreached(p))
		case p.Status.PodIP == "":
			return condition.NotYetf("pod %s/%s has no address", canaryNamespace, p.Name)
		}
		return nil
	}}, o)
	if err != nil {
		return fmt.Errorf("canary on %s: %w", k.Node, err)
	}
	return nil
}

// unreached says to which Services the kubelet got no connection, of those whose container runs.
func (k Canary) unreached(p *corev1.Pod) string {
	var out strings.Builder
	for _, s := range p.Status.ContainerStatuses {
		for _, r := range k.Reach {
			if s.Name == r.Name && s.State.Running != nil && !s.Ready {
				fmt.Fprintf(&out, "; node %s gets no connection to %s: look at kube-proxy and the network plugin of that node, and at the Service's endpoints", k.Node, r)
			}
		}
	}
	return out.String()
}

// RemoveCanary deletes the canary pod of a node and a run and waits until it is gone.
func RemoveCanary(ctx context.Context, c kubernetes.Interface, k Canary, o condition.Options) error {
	pods := c.CoreV1().Pods(canaryNamespace)
	name := k.name()
	now := int64(0)
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	err := condition.Wait(ctx, condition.Condition{Name: "canary pod " + name + " to be gone", Check: func(ctx context.Context) error {
		err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case apierrors.IsForbidden(err):
			return condition.Final(err)
		case err != nil:
			return err
		}
		return condition.NotYetf("it was deleted just now")
	}}, o)
	if err != nil {
		return fmt.Errorf("remove canary of %s: %w", k.Node, err)
	}
	return nil
}

func (k Canary) pod() *corev1.Pod {
	yes, no, nobody := true, false, int64(65534)
	container := func(name string, ready *corev1.Probe) corev1.Container {
		return corev1.Container{
			Name: name, Image: k.Image, ImagePullPolicy: corev1.PullIfNotPresent, ReadinessProbe: ready,
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}
	}
	// The image need not be able to connect anywhere: a probe that names a host is made by the kubelet from the node's own
	// network, and so goes through what routes Services there. A container each, so that its status tells which way is shut.
	var containers []corev1.Container
	for _, r := range k.Reach {
		containers = append(containers, container(r.Name, &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: r.Address, Port: intstr.FromInt32(r.Port)}},
			PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 1,
		}))
	}
	if len(containers) == 0 {
		containers = append(containers, container("canary", nil))
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: k.name(), Namespace: canaryNamespace,
			Labels:      map[string]string{CanaryLabel: k.Node},
			Annotations: map[string]string{"belay.dev/run": k.Run},
		},
		Spec: corev1.PodSpec{
			NodeName:                     k.Node,
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no,
			EnableServiceLinks:           &no,
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &nobody,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: containers,
		},
	}
}
