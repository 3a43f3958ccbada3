package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/host"
)

// apiServer answers lists page by page, as an apiserver does, from objects by path.
type apiServer struct {
	mu      sync.Mutex
	objects map[string]runtime.Object   // GET of one
	lists   map[string][]runtime.Object // by path
	status  map[string]int              // paths that answer an error
	delay   map[string]time.Duration
	expire  map[string]int // how many continue tokens of a path expire
	limits  map[string][]string
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d := a.delay[r.URL.Path]; d > 0 {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(d):
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: string(reason) + " says the test"}) //nolint:gosec // small
	}
	if code := a.status[r.URL.Path]; code != 0 {
		fail(code, map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 401: metav1.StatusReasonUnauthorized, 500: metav1.StatusReasonInternalError}[code])
		return
	}
	if o, ok := a.objects[r.URL.Path]; ok {
		_ = json.NewEncoder(w).Encode(o)
		return
	}
	items, ok := a.lists[r.URL.Path]
	if !ok {
		fail(404, metav1.StatusReasonNotFound)
		return
	}
	q := r.URL.Query()
	a.limits[r.URL.Path] = append(a.limits[r.URL.Path], q.Get("limit"))
	start := 0
	if c := q.Get("continue"); c != "" {
		if a.expire[r.URL.Path] > 0 {
			a.expire[r.URL.Path]--
			fail(410, metav1.StatusReasonExpired)
			return
		}
		_, _ = fmt.Sscan(c, &start)
	}
	limit := len(items)
	if q.Get("limit") != "" {
		_, _ = fmt.Sscan(q.Get("limit"), &limit)
	}
	if limit == 0 {
		limit = len(items)
	}
	end := min(start+limit, len(items))
	page := map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": items[start:end]}
	if end < len(items) {
		page["metadata"] = map[string]any{"resourceVersion": "1", "continue": fmt.Sprint(end)}
	}
	if items[start:end] == nil {
		page["items"] = []any{}
	}
	_ = json.NewEncoder(w).Encode(page)
}

type versionInfo struct {
	runtime.Object `json:"-"`
	GitVersion     string `json:"gitVersion"`
}

const kubeadmV1beta4 = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: prod
kubernetesVersion: v1.36.3
controlPlaneEndpoint: 10.0.0.10:6443
networking: {podSubnet: 10.244.0.0/16, serviceSubnet: 10.96.0.0/12}
apiServer:
  extraArgs:
  - {name: v, value: "4"}
etcd:
  local: {dataDir: /var/lib/etcd, imageTag: 3.6.11-0}
`

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: ""}
}

func staticPod(component, image, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta("kube-system", component+"-"+node)}
	p.Labels = map[string]string{"component": component, "tier": "control-plane"}
	p.Annotations = map[string]string{"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "hash1"}
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: node, Controller: new(true)}}
	p.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: component, Image: image, Command: []string{component, "--a=b"}}}}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	return p
}

func newAPI() *apiServer {
	owner := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
	}
	cp1 := &corev1.Node{ObjectMeta: meta("", "cp1")}
	cp1.UID = "uid-cp1"
	cp1.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "", "topology.kubernetes.io/zone": "a"}
	cp1.Annotations = map[string]string{"belay.dev/cordoned-by": "run1", "other": "x"}
	cp1.Spec.Unschedulable = true
	cp1.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.4.2"}
	cp1.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	cp1.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "pods": resource.MustParse("110")}
	cp1.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "container runtime is down"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasDiskPressure"}, {Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
	}
	w1 := &corev1.Node{ObjectMeta: meta("", "w1")}
	w1.Status.NodeInfo.KubeletVersion = "v1.36.3"

	web := func(i int) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta("shop", fmt.Sprintf("web-%d", i))}
		p.Labels, p.OwnerReferences = map[string]string{"app": "web"}, owner("ReplicaSet", "web-6d4")
		p.Spec = corev1.PodSpec{NodeName: "w1", Containers: []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}}},
			{Name: "b", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("50m")}}},
		}, InitContainers: []corev1.Container{
			{Name: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}},
		}, Volumes: []corev1.Volume{{Name: "t", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}
		p.Status.Phase = corev1.PodRunning
		return p
	}
	local := &corev1.Pod{ObjectMeta: meta("shop", "db-0")}
	local.OwnerReferences = owner("StatefulSet", "db")
	local.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	local.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}}
	proxy := &corev1.Pod{ObjectMeta: meta("kube-system", "kube-proxy-x")}
	proxy.Labels, proxy.OwnerReferences = map[string]string{"k8s-app": "kube-proxy"}, owner("DaemonSet", "kube-proxy")
	proxy.Spec = corev1.PodSpec{NodeName: "w1", Containers: []corev1.Container{{Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:v1.35.4"}}}

	rs := &appsv1.ReplicaSet{ObjectMeta: meta("shop", "web-6d4")}
	rs.OwnerReferences = owner("Deployment", "web")
	dep := &appsv1.Deployment{ObjectMeta: meta("shop", "web"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2}}
	dep.Annotations = map[string]string{"deployment.kubernetes.io/revision": "7"}
	dns := &appsv1.Deployment{ObjectMeta: meta("kube-system", "coredns")}
	dns.Spec.Template.Spec.Containers = []corev1.Container{{Name: "coredns", Image: "coredns:v1.14.2"}}

	pv := &corev1.PersistentVolume{ObjectMeta: meta("", "pv1")}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/disk"}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: meta("shop", "data"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"}}
	one := intstr.FromInt32(1)
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: meta("shop", "web"), Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}, Status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1}}
	pdb.Generation = 2
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: meta("", "policy"), Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "p.example.org", ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "policy", Name: "hook"}},
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"kube-system"}}}},
		Rules:             []admissionv1.RuleWithOperations{{Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
	}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta("policy", "hook-1"), Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"10.1.1.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}, {Addresses: []string{"10.1.1.2"}},
	}}
	crd := &crdObject{Metadata: meta("", "things.example.org")}
	crd.Spec = map[string]any{"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{"clientConfig": map[string]any{"service": map[string]any{"namespace": "gone", "name": "conv"}}}}}

	return &apiServer{
		status: map[string]int{}, delay: map[string]time.Duration{}, expire: map[string]int{}, limits: map[string][]string{},
		objects: map[string]runtime.Object{
			"/version":                       versionInfo{GitVersion: "v1.36.3"},
			"/api/v1/namespaces/kube-system": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "lineage-1", Labels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}}},
			"/api/v1/namespaces/kube-system/configmaps/kubeadm-config": &corev1.ConfigMap{Data: map[string]string{"ClusterConfiguration": kubeadmV1beta4}},
			"/api/v1/namespaces/kube-system/configmaps/kubelet-config": &corev1.ConfigMap{Data: map[string]string{"kubelet": "kind: KubeletConfiguration\nfailCgroupV1: false\nfeatureGates: {A: true}\n"}},
			"/api/v1/namespaces/kube-system/configmaps/kube-proxy":     &corev1.ConfigMap{Data: map[string]string{"config.conf": "kind: KubeProxyConfiguration\nmode: ipvs\n"}},
		},
		lists: map[string][]runtime.Object{
			"/api/v1/nodes": {cp1, w1},
			"/api/v1/pods": {web(1), web(2), web(3), local, proxy, staticPod("kube-apiserver", "registry.k8s.io/kube-apiserver:v1.36.3", "cp1"),
				staticPod("etcd", "registry.k8s.io/etcd:3.6.8-0", "cp1")},
			"/apis/apps/v1/deployments": {dep, dns}, "/apis/apps/v1/daemonsets": {}, "/apis/apps/v1/statefulsets": {}, "/apis/apps/v1/replicasets": {rs},
			"/apis/batch/v1/jobs": {}, "/apis/policy/v1/poddisruptionbudgets": {pdb}, "/api/v1/persistentvolumes": {pv}, "/api/v1/persistentvolumeclaims": {pvc},
			"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {hook}, "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": {},
			"/apis/apiextensions.k8s.io/v1/customresourcedefinitions":    {crd},
			"/apis/discovery.k8s.io/v1/namespaces/policy/endpointslices": {slice}, "/apis/discovery.k8s.io/v1/namespaces/gone/endpointslices": {},
		},
	}
}

type crdObject struct {
	runtime.Object `json:"-"`
	Metadata       metav1.ObjectMeta `json:"metadata"`
	Spec           map[string]any    `json:"spec"`
}

func observe(t *testing.T, a *apiServer, hosts func(context.Context, string) (host.Host, error), o Options) (*cluster.State, error) {
	t.Helper()
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	return Observe(context.Background(), Sources{REST: &rest.Config{Host: srv.URL, QPS: 1000, Burst: 1000}, Host: hosts}, o)
}

func TestObserveReadsTheAPI(t *testing.T) {
	a := newAPI()
	s, err := observe(t, a, nil, Options{PageSize: 2, Tool: "belay test"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Lineage != "lineage-1" || s.Version.String() != "v1.36.3" || s.Name != "prod" || s.Tool != "belay test" {
		t.Errorf("%q %q %q %q", s.Lineage, s.Version, s.Name, s.Tool)
	}
	if k := s.Kubeadm; k == nil || k.EtcdImageTag != "3.6.11-0" || k.APIVersion != "kubeadm.k8s.io/v1beta4" || len(k.ExtraArgs["apiServer"]) != 1 || k.EtcdExternal {
		t.Errorf("kubeadm %+v", s.Kubeadm)
	}
	if s.KubeletConfig == nil || s.KubeletConfig.FailCgroupV1 == nil || *s.KubeletConfig.FailCgroupV1 || !s.KubeletConfig.FeatureGates["A"] || s.ProxyConfig == nil || s.ProxyConfig.Mode != "ipvs" {
		t.Errorf("kubelet %+v, kube-proxy %+v", s.KubeletConfig, s.ProxyConfig)
	}
	cp1 := s.Node("cp1")
	if !cp1.ControlPlane || cp1.Ready || !strings.Contains(cp1.ReadyReason, "container runtime is down") || !cp1.Unschedulable || cp1.Zone != "a" || cp1.InternalIP != "10.0.0.1" ||
		cp1.Annotations["belay.dev/cordoned-by"] != "run1" || len(cp1.Annotations) != 1 || cp1.Allocatable.MilliCPU != 2000 || cp1.Allocatable.Pods != 110 {
		t.Errorf("node %+v", cp1)
	}
	if len(cp1.Conditions) != 1 || cp1.Conditions[0].Type != "DiskPressure" {
		t.Errorf("conditions %+v", cp1.Conditions)
	}
	if sp := cp1.StaticPod("etcd"); sp == nil || sp.Version.String() != "v3.6.8" || sp.ConfigHash != "hash1" || !sp.Ready || len(sp.Args) != 2 {
		t.Errorf("etcd %+v", sp)
	}
	if s.Node("w1").KubeProxy.String() != "v1.35.4" {
		t.Errorf("kube-proxy %s", s.Node("w1").KubeProxy)
	}
	if len(s.Pods) != 7 {
		t.Fatalf("%d pods", len(s.Pods))
	}
	web := s.Pods[slices.IndexFunc(s.Pods, func(p cluster.Pod) bool { return p.Name == "web-1" })]
	if web.Workload != "Deployment/shop/web" || web.Owner != "ReplicaSet/web-6d4" || !web.EmptyDir || web.Requests != (cluster.Resources{MilliCPU: 1000, MemoryBytes: 64 << 20}) {
		t.Errorf("pod %+v", web)
	}
	db := s.Pods[slices.IndexFunc(s.Pods, func(p cluster.Pod) bool { return p.Name == "db-0" })]
	if !db.LocalVolume || db.Waiting != "CrashLoopBackOff" || db.Restarts != 3 || db.Ready {
		t.Errorf("pod %+v", db)
	}
	etcdPod := s.Pods[slices.IndexFunc(s.Pods, func(p cluster.Pod) bool { return p.Name == "etcd-cp1" })]
	if !etcdPod.Mirror || etcdPod.Owner != "" {
		t.Errorf("mirror pod %+v", etcdPod)
	}
	if b := s.PDBs[0]; !slices.Equal(b.Pods, []string{"shop/web-1", "shop/web-2", "shop/web-3"}) || !b.Stale || b.MaxUnavailable != "1" || b.DisruptionsAllowed != 1 {
		t.Errorf("budget %+v", b)
	}
	if len(s.Workloads) != 2 || len(s.Addons) != 1 || s.Addons[0].Image != "coredns:v1.14.2" {
		t.Errorf("workloads %+v addons %+v", s.Workloads, s.Addons)
	}
	if w := s.Workloads[1]; w.ID() != "Deployment/shop/web" || w.Desired != 3 || w.Ready != 2 || w.Revision != "7" {
		t.Errorf("workload %+v", w)
	}
	if len(s.Webhooks) != 2 {
		t.Fatalf("webhooks %+v", s.Webhooks)
	}
	conv, hook := s.Webhooks[0], s.Webhooks[1]
	if conv.Service != "gone/conv" || conv.ReadyEndpoints != 0 || conv.FailurePolicy != "Fail" {
		t.Errorf("conversion %+v", conv)
	}
	if hook.ReadyEndpoints != 1 || !hook.MatchesPods || hook.MatchesNodes || !hook.ExemptsKubeSystem || hook.FailurePolicy != "Fail" || hook.NamespaceSelector != "kubernetes.io/metadata.name notin (kube-system)" || hook.TimeoutSeconds != 10 {
		t.Errorf("webhook %+v", hook)
	}
	if n := len(a.limits["/api/v1/pods"]); n != 4 {
		t.Errorf("7 pods came in %d pages of 2", n)
	}
	kinds := unreadKinds(s)
	if len(kinds) != 2 || kinds["hosts"] != cluster.UnreadNotAsked || kinds["etcd"] != cluster.UnreadNotAsked {
		t.Errorf("unread %v", kinds)
	}
	// What was observed is a state file.
	data, err := cluster.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Decode(data); err != nil {
		t.Error(err)
	}
}

func unreadKinds(s *cluster.State) map[string]string {
	out := map[string]string{}
	for _, u := range s.Unread {
		out[u.What] = u.Kind
	}
	return out
}

func TestObserveStartsAListAgainWhenItsTokenExpires(t *testing.T) {
	for expire, wantRequests := range map[int]int{1: 5, 2: 3} {
		a := newAPI()
		a.expire["/api/v1/pods"] = expire
		s, err := observe(t, a, nil, Options{PageSize: 2})
		if err != nil || len(s.Pods) != 7 || len(unreadKinds(s)) != 2 {
			t.Fatalf("%d pods, %v, %v", len(s.Pods), s.Unread, err)
		}
		if got := a.limits["/api/v1/pods"]; len(got) < wantRequests {
			t.Errorf("%d tokens expired: requests with limits %v", expire, got)
		}
		if len(s.PDBs[0].Pods) != 3 {
			t.Errorf("the budget counts pods twice: %v", s.PDBs[0].Pods)
		}
	}
}

func TestObserveListsWhatItCouldNotRead(t *testing.T) {
	a := newAPI()
	a.status["/api/v1/pods"] = 403
	a.status["/apis/apps/v1/deployments"] = 500
	a.objects["/api/v1/namespaces/kube-system/configmaps/kube-proxy"] = &corev1.ConfigMap{Data: map[string]string{"config.conf": "kind: Pod"}}
	a.status["/api/v1/namespaces/kube-system/configmaps/kubelet-config"] = 403
	a.delay["/apis/policy/v1/poddisruptionbudgets"] = time.Minute
	delete(a.objects, "/api/v1/namespaces/kube-system/configmaps/kubeadm-config")
	delete(a.lists, "/apis/discovery.k8s.io/v1/namespaces/policy/endpointslices")
	s, err := observe(t, a, nil, Options{APITimeout: 2 * time.Second, Parallel: 20})
	if err != nil {
		t.Fatal(err)
	}
	got := unreadKinds(s)
	for what, kind := range map[string]string{
		"pods": cluster.UnreadForbidden, "deployments": cluster.UnreadFailed, "poddisruptionbudgets": cluster.UnreadTimeout,
		"configmap/kube-system/kubelet-config": cluster.UnreadForbidden, "configmap/kube-system/kube-proxy": cluster.UnreadMalformed,
		"configmap/kube-system/kubeadm-config": cluster.UnreadNotFound, "endpointslices/policy/hook": cluster.UnreadNotFound,
	} {
		if got[what] != kind {
			t.Errorf("%s: %q, want %q", what, got[what], kind)
		}
	}
	if s.Pods != nil || s.Kubeadm != nil || s.KubeletConfig != nil || s.ProxyConfig != nil {
		t.Error("something was made up")
	}
	for _, w := range s.Webhooks {
		if w.Service == "policy/hook" && w.ReadyEndpoints != -1 {
			t.Errorf("endpoints of %s: %d, want unknown", w.Service, w.ReadyEndpoints)
		}
	}
	if got["etcd"] != cluster.UnreadForbidden {
		t.Errorf("without pods etcd is %q", got["etcd"])
	}
}

func TestObserveWithoutRightsOrServer(t *testing.T) {
	a := newAPI()
	for p := range a.lists {
		a.status[p] = 403
	}
	for p := range a.objects {
		if p != "/version" {
			a.status[p] = 403
		}
	}
	_, err := observe(t, a, nil, Options{})
	var nothing *NothingReadError
	if !errors.As(err, &nothing) || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("%v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Observe(context.Background(), Sources{REST: &rest.Config{Host: "http://" + addr}}, Options{APITimeout: 2 * time.Second})
	if !errors.As(err, &nothing) || !strings.Contains(err.Error(), addr) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Observe(ctx, Sources{REST: &rest.Config{Host: "http://" + addr}}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestObserveAsksEveryMachine(t *testing.T) {
	script := line("clock-start", "0", "1") + line("cgroup", "0", "cgroup2fs") +
		line("manifest:/etc/kubernetes/manifests/kube-scheduler.yaml", "0", "kind: Pod\nmetadata: {labels: {component: kube-scheduler}}\nspec: {containers: [{name: kube-scheduler, image: 'x:v1.37.2'}]}") +
		line("manifest:/etc/kubernetes/manifests/etcd.yaml", "0", "kind: Pod\nmetadata: {labels: {component: etcd}}\nspec: {containers: [{name: etcd, image: 'etcd:3.7.0-0'}]}") + line("clock-end", "0", "1")
	hosts := func(_ context.Context, node string) (host.Host, error) {
		switch node {
		case "cp1":
			return cannedHost{out: script}, nil
		default:
			return nil, &host.NotStartedError{Host: node, Err: errors.New("connection refused")}
		}
	}
	s, err := observe(t, newAPI(), hosts, Options{})
	if err != nil {
		t.Fatal(err)
	}
	cp1 := s.Node("cp1")
	if cp1.Host == nil || cp1.Host.CgroupVersion != 2 || s.Node("w1").Host != nil {
		t.Errorf("hosts %+v %+v", cp1.Host, s.Node("w1").Host)
	}
	if sp := cp1.StaticPod("etcd"); sp.ManifestImage != "etcd:3.7.0-0" || sp.Version.String() != "v3.6.8" {
		t.Errorf("etcd %+v", sp)
	}
	// A manifest whose pod the API does not show.
	if sp := cp1.StaticPod("kube-scheduler"); sp == nil || sp.Ready || sp.Image != "" || sp.ManifestImage != "x:v1.37.2" {
		t.Errorf("scheduler %+v", sp)
	}
	got := unreadKinds(s)
	if got["node/w1/host"] != cluster.UnreadUnreachable || got["etcd"] != cluster.UnreadNotFound {
		t.Errorf("unread %v", got)
	}
}

// cannedHost prints one thing and has no files.
type cannedHost struct {
	host.Host
	out string
}

func (h cannedHost) Run(context.Context, host.Cmd) (host.Result, error) {
	return host.Result{Stdout: []byte(h.out)}, nil
}

func (cannedHost) ReadFile(_ context.Context, path string) ([]byte, error) {
	return nil, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
}

func TestParseKubeadmV1beta3(t *testing.T) {
	k, err := parseKubeadm("apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nkubernetesVersion: v1.30.1\napiServer:\n  extraArgs:\n    v: \"4\"\n    a: b\netcd:\n  external: {endpoints: [https://e:2379]}\n")
	if err != nil || !k.EtcdExternal || len(k.ExtraArgs["apiServer"]) != 2 || k.ExtraArgs["apiServer"][0].Name != "a" {
		t.Errorf("%+v, %v", k, err)
	}
	for _, bad := range []string{"", "kind: Pod", "kind: ClusterConfiguration\nkubernetesVersion: new", "{", "kind: ClusterConfiguration\nkubernetesVersion: v1.30.1\napiServer: {extraArgs: 3}"} {
		if _, err := parseKubeadm(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestKindOf(t *testing.T) {
	for want, err := range map[string]error{
		cluster.UnreadTimeout:     &host.LostError{Host: "a", Err: context.DeadlineExceeded},
		cluster.UnreadLost:        &host.LostError{Host: "a", Err: errors.New("connection reset")},
		cluster.UnreadUnreachable: fmt.Errorf("x: %w", &host.NotStartedError{Host: "a", Err: errors.New("no route")}),
		cluster.UnreadMalformed:   fmt.Errorf("x: %w", errMalformed),
		cluster.UnreadFailed:      &host.ExitError{Host: "a", Code: 1},
		cluster.UnreadNotFound:    fs.ErrNotExist,
	} {
		if got := kindOf(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	// A key of one's own that cannot be read leaves the machine unread; a program that a machine lacks does not.
	for _, own := range []error{fs.ErrNotExist, fs.ErrPermission} {
		if got := kindOf(&host.NotStartedError{Host: "w1", Err: fmt.Errorf("key file: %w", own)}); got != cluster.UnreadUnreachable {
			t.Errorf("%v: %q", own, got)
		}
	}
	if got := kindOf(&host.NotStartedError{Host: "w1", Argv: []string{"crictl"}, Err: fs.ErrNotExist}); got != cluster.UnreadNotFound {
		t.Errorf("a program that is not there: %q", got)
	}
}
