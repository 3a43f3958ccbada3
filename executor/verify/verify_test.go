package verify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/kubeversion"
)

var target = kubeversion.MustParse("1.37.2")

func node(name, kubelet string, ready bool, labels map[string]string) *corev1.Node {
	st := corev1.ConditionFalse
	if ready {
		st = corev1.ConditionTrue
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: kubelet}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: st}}}}
}

func static(component, node, image string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: component + "-" + node, Namespace: "kube-system"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: component, Image: image}}}}
	if ready {
		p.Status = corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, ContainerStatuses: []corev1.ContainerStatus{{Name: component}}}
	}
	return p
}

func deployment(name string, desired, ready int32, generation, observed int64) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", Generation: generation},
		Spec: appsv1.DeploymentSpec{Replicas: &desired}, Status: appsv1.DeploymentStatus{ReadyReplicas: ready, ObservedGeneration: observed}}
}

var cp = map[string]string{controlPlaneLabel: ""}

func statics(image string, ready bool) []runtime.Object {
	var out []runtime.Object
	for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		out = append(out, static(c, "cp1", "registry.k8s.io/"+c+":"+image, ready))
	}
	return out
}

func TestConditions(t *testing.T) {
	baseline := &cluster.State{
		Nodes: []cluster.Node{{Name: "w1", Ready: true}, {Name: "w2", Ready: false}},
		Workloads: []cluster.Workload{
			{Kind: "Deployment", Namespace: "shop", Name: "web", Desired: 3, Ready: 3},
			{Kind: "Deployment", Namespace: "shop", Name: "broken", Desired: 2, Ready: 0},
			{Kind: "Deployment", Namespace: "shop", Name: "gone", Desired: 1, Ready: 1},
			{Kind: "Deployment", Namespace: "shop", Name: "smaller", Desired: 5, Ready: 5},
		},
	}
	for name, c := range map[string]struct {
		objects []runtime.Object
		check   func(*fake.Clientset) condition.Condition
		want    string // part of what is seen; "" for met
	}{
		"nodes at target":   {[]runtime.Object{node("w1", "v1.37.2", true, nil)}, func(c *fake.Clientset) condition.Condition { return NodesAt(c, target) }, ""},
		"old kubelet":       {[]runtime.Object{node("w1", "v1.36.3", true, nil)}, func(c *fake.Clientset) condition.Condition { return NodesAt(c, target) }, "node w1 has kubelet v1.36.3"},
		"kubelet not Ready": {[]runtime.Object{node("w1", "v1.37.2", false, nil)}, func(c *fake.Clientset) condition.Condition { return NodesAt(c, target) }, "node w1 is not Ready"},
		"no nodes":          {nil, func(c *fake.Clientset) condition.Condition { return NodesAt(c, target) }, "there are no nodes"},
		"static pods": {append(statics("v1.37.2", true), node("cp1", "v1.37.2", true, cp)),
			func(c *fake.Clientset) condition.Condition { return StaticPodsAt(c, "", target) }, ""},
		"static pods old": {append(statics("v1.36.3", true), node("cp1", "v1.37.2", true, cp)),
			func(c *fake.Clientset) condition.Condition { return StaticPodsAt(c, "cp1", target) }, "kube-apiserver:v1.36.3"},
		"static pods new and not ready": {statics("v1.37.2", false), func(c *fake.Clientset) condition.Condition { return StaticPodsAt(c, "cp1", target) }, "is not ready"},
		"static pods missing":           {nil, func(c *fake.Clientset) condition.Condition { return StaticPodsAt(c, "cp1", target) }, "kube-apiserver-cp1"},
		"no control plane":              {[]runtime.Object{node("w1", "v1.37.2", true, nil)}, func(c *fake.Clientset) condition.Condition { return StaticPodsAt(c, "", target) }, "no control plane node"},
		"as before": {[]runtime.Object{node("w1", "v1.37.2", true, nil), node("w2", "", false, nil), deployment("web", 3, 3, 1, 1), deployment("broken", 2, 0, 1, 1), deployment("smaller", 2, 2, 1, 1)},
			func(c *fake.Clientset) condition.Condition { return NoRegression(c, baseline) }, ""},
		"pods lost": {[]runtime.Object{node("w1", "v1.37.2", true, nil), node("w2", "", true, nil), deployment("web", 3, 2, 1, 1)},
			func(c *fake.Clientset) condition.Condition { return NoRegression(c, baseline) }, "Deployment/shop/web has 2 of 3 pods ready, and had 3 before"},
		"stale status": {[]runtime.Object{node("w1", "v1.37.2", true, nil), node("w2", "", true, nil), deployment("web", 3, 3, 2, 1)},
			func(c *fake.Clientset) condition.Condition { return NoRegression(c, baseline) }, "Deployment/shop/web has 0 of 3"},
		"node lost": {[]runtime.Object{node("w2", "", true, nil)}, func(c *fake.Clientset) condition.Condition { return NoRegression(c, baseline) }, "node w1 is gone"},
		"node down": {[]runtime.Object{node("w1", "v1.37.2", false, nil), node("w2", "", true, nil)}, func(c *fake.Clientset) condition.Condition { return NoRegression(c, baseline) }, "node w1 is not Ready, and was before"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.check(fake.NewSimpleClientset(c.objects...)).Check(t.Context())
			switch {
			case c.want == "" && err != nil:
				t.Errorf("unmet: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestHTTP(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer s.Close()
	if err := HTTP(s.URL).Check(t.Context()); err != nil {
		t.Error(err)
	}
	status = http.StatusServiceUnavailable
	if err := HTTP(s.URL).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("got %v, want 503", err)
	}
}

func TestCanary(t *testing.T) {
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"ready":      {corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}, ""},
		"no address": {corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}, "has no address"},
		"no image": {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "canary",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}}}}, "ErrImagePull: no such host"},
		"failed": {corev1.PodStatus{Phase: corev1.PodFailed, Message: "evicted"}, "Failed: evicted"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewSimpleClientset()
			client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				p := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
				if p.Spec.NodeName != "w1" || p.Spec.Tolerations[0].Operator != corev1.TolerationOpExists {
					t.Errorf("the pod would not come to a cordoned node: %+v", p.Spec)
				}
				p.Status = c.status
				return false, nil, nil
			})
			err := RunCanary(t.Context(), client, Canary{Node: "w1", Image: "pause", Run: "r", Timeout: 50 * time.Millisecond, Poll: time.Millisecond})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if l, err := client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 0 {
				t.Errorf("%d pods are left, %v", len(l.Items), err)
			}
		})
	}
}

func TestCanaryReachesServices(t *testing.T) {
	service := func(namespace, name, ip string, port int32, p corev1.Protocol) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: port, Protocol: p}}}}
	}
	endpoints := func(namespace, of string, ready *bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: of + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: of}},
			Endpoints: []discoveryv1.Endpoint{{Conditions: discoveryv1.EndpointConditions{Ready: ready}}}}
	}
	no := false
	api, apiUp := service("default", "kubernetes", "10.96.0.1", 443, corev1.ProtocolTCP), endpoints("default", "kubernetes", nil)
	for name, c := range map[string]struct {
		objects []runtime.Object
		want    string
	}{
		"none":              {nil, "[]"},
		"both":              {[]runtime.Object{api, apiUp, service("kube-system", "kube-dns", "fd00::a", 53, ""), endpoints("kube-system", "kube-dns", nil)}, "[Service default/kubernetes (10.96.0.1:443) Service kube-system/kube-dns ([fd00::a]:53)]"},
		"UDP alone":         {[]runtime.Object{api, apiUp, service("kube-system", "kube-dns", "10.96.0.10", 53, corev1.ProtocolUDP), endpoints("kube-system", "kube-dns", nil)}, "[Service default/kubernetes (10.96.0.1:443)]"},
		"no address":        {[]runtime.Object{api, apiUp, service("kube-system", "kube-dns", "None", 53, ""), endpoints("kube-system", "kube-dns", nil)}, "[Service default/kubernetes (10.96.0.1:443)]"},
		"nothing is ready":  {[]runtime.Object{api, apiUp, service("kube-system", "kube-dns", "10.96.0.10", 53, ""), endpoints("kube-system", "kube-dns", &no)}, "[Service default/kubernetes (10.96.0.1:443)]"},
		"other's endpoints": {[]runtime.Object{api, endpoints("default", "web", nil)}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Routes(t.Context(), fake.NewSimpleClientset(c.objects...))
			if err != nil || fmt.Sprint(got) != c.want {
				t.Errorf("got %v, %v, want %s", got, err, c.want)
			}
		})
	}

	routes := []Route{{Name: "api", Service: "default/kubernetes", Address: "10.96.0.1", Port: 443}, {Name: "dns", Service: "kube-system/kube-dns", Address: "10.96.0.10", Port: 53}}
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		p := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		for i, r := range routes {
			probe := p.Spec.Containers[i].ReadinessProbe
			if probe == nil || probe.TCPSocket == nil || probe.TCPSocket.Host != r.Address || probe.TCPSocket.Port.IntVal != r.Port {
				t.Errorf("container %d has probe %+v, want one to %v", i, probe, r)
			}
			// The second is never ready.
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: p.Spec.Containers[i].Name, Ready: i == 0,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
		}
		p.Status.Phase = corev1.PodRunning
		return false, nil, nil
	})
	err := RunCanary(t.Context(), client, Canary{Node: "w1", Image: "pause", Run: "r", Reach: routes, Timeout: 50 * time.Millisecond, Poll: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "node w1 gets no connection to Service kube-system/kube-dns (10.96.0.10:53)") || strings.Contains(err.Error(), "default/kubernetes") {
		t.Errorf("got %v, want the one Service that was not reached", err)
	}
}

func TestRunReportsEachInItsPlace(t *testing.T) {
	met := condition.Condition{Name: "met", Check: func(context.Context) error { return nil }}
	unmet := condition.Condition{Name: "unmet", Check: func(context.Context) error { return errors.New("seen\nthis") }}
	checks, err := Run(t.Context(), []condition.Condition{unmet, met}, 20*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := Report{Checks: checks}
	if r.OK() || checks[0].Detail != "seen; this" || checks[0].OK || !checks[1].OK || checks[1].Detail != "" {
		t.Errorf("got %+v", checks)
	}
}
