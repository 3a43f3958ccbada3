package executor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/bundle/bundletest"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/payload"
	"github.com/belayops/belay/plan"
)

var (
	v1363 = kubeversion.MustParse("1.36.3")
	v1372 = kubeversion.MustParse("1.37.2")
)

// errKilled stands for the end of the process: nothing after it is written or done.
var errKilled = errors.New("killed")

// world is a cluster that really changes: machines with files, images, units and kubelets over client-go's fake API.
type world struct {
	t        testing.TB
	client   *fake.Clientset
	machines map[string]*machine
	bundle   *bundle.Bundle
	initial  *cluster.State

	mu   sync.Mutex
	ops  int  // operations on machines so far
	dead bool // the process is gone: nothing works any more
	// cancel ends the context of the process.
	cancel context.CancelFunc
	// strike, when set, is asked before and after each operation on a machine.
	strike func(op int, after bool) error
	// apiDown says that the API refuses connections: mirror pods follow later.
	apiDown bool
	// unit is asked what becomes of a unit's work; nil means that it succeeds.
	unit func(node string, argv []string) unitFate
	// refuse is asked whether a disruption budget forbids a pod's eviction.
	refuse func(pod string) error
	// started counts the times that each program was begun in a unit, by node.
	started map[string]int
	pods    int
}

type unitFate int

const (
	unitWorks unitFate = iota
	unitFails
	// unitCut is a machine that restarts while kubeadm has moved the apiserver's manifest away, and the unit is forgotten.
	unitCut
	// unitBreaksEtcd fails with one new manifest in place, and leaves an etcd that does not answer.
	unitBreaksEtcd
	// unitRollsBackOverBrokenEtcd does so with every manifest as it was, as kubeadm's roll-back leaves them.
	unitRollsBackOverBrokenEtcd
)

type machine struct {
	w      *world
	name   string
	files  map[string][]byte
	images map[string]string // digests by reference
	pins   map[string]string // the run that pinned it, by reference
	units  map[string]*unitWork
	// pid and version are the kubelet that runs.
	pid      int
	version  kubeversion.V
	etcdDown bool
}

type unitWork struct {
	argv  []string
	looks int // until it ends
	state UnitState
}

func newWorld(t testing.TB, controlPlanes, workers int) *world {
	t.Helper()
	w := &world{t: t, machines: map[string]*machine{}, started: map[string]int{}, initial: clustertest.New("1.36.3", controlPlanes, workers)}
	w.initial.Workloads = []cluster.Workload{{Kind: "Deployment", Namespace: "shop", Name: "web", Desired: 2, Ready: 2}}
	// NewClientset parses the whole OpenAPI schema each time, for server-side apply, which nothing here uses.
	w.client = fake.NewSimpleClientset()
	w.client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods/eviction", Kind: "Eviction", Group: "policy", Version: "v1", Namespaced: true}}},
		{GroupVersion: "policy/v1", APIResources: []metav1.APIResource{{Name: "poddisruptionbudgets", Kind: "PodDisruptionBudget", Namespaced: true}}},
	}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create := func(err error) { must(err) }
	_, err := w.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: types.UID(w.initial.Lineage)}}, metav1.CreateOptions{})
	create(err)
	_, err = w.client.CoreV1().ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm-config", Namespace: "kube-system"},
		Data: map[string]string{"ClusterConfiguration": "kubernetesVersion: v1.36.3\n"}}, metav1.CreateOptions{})
	create(err)
	two := int32(2)
	_, err = w.client.AppsV1().Deployments("shop").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"},
		Spec: appsv1.DeploymentSpec{Replicas: &two}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2}}, metav1.CreateOptions{})
	create(err)
	for _, n := range w.initial.Nodes {
		m := &machine{w: w, name: n.Name, files: map[string][]byte{}, images: map[string]string{}, pins: map[string]string{}, units: map[string]*unitWork{}, pid: 100, version: v1363}
		w.machines[n.Name] = m
		for _, p := range stagedPrograms() {
			m.files["/usr/bin/"+p] = []byte(p + " v1.36.3")
		}
		m.files[kubeadm.KubeletFlagsEnv] = []byte("KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --pod-infra-container-image=pause:3\"\n")
		nodeLabels := map[string]string{}
		if n.ControlPlane {
			nodeLabels[controlPlaneLabel] = ""
			for _, sp := range n.StaticPods {
				m.files[kubeadm.ManifestPath(sp.Component)] = manifest(sp.Component, sp.Image)
			}
		}
		_, err := w.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID(n.UID), Labels: nodeLabels},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}, metav1.CreateOptions{})
		create(err)
		_, err = w.client.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Namespace: "kube-node-lease"}}, metav1.CreateOptions{})
		create(err)
		if n.ControlPlane {
			m.sync()
		}
	}
	w.client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() == "eviction" {
			e := a.(k8stesting.CreateAction).GetObject().(*policyv1.Eviction)
			if w.refuse != nil {
				if err := w.refuse(e.Name); err != nil {
					return true, nil, err
				}
			}
			// The controller: a pod of the sample that leaves is made again where there is room.
			err := w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
			go w.replace()
			return true, nil, err
		}
		p := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		if _, canary := p.Labels[verify.CanaryLabel]; canary {
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.0.9", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		}
		return false, nil, nil
	})
	// The fake API knows no field selectors, and a drain lists by node.
	w.client.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r := a.(k8stesting.ListAction).GetListRestrictions()
		node, selected := r.Fields.RequiresExactMatch("spec.nodeName")
		if !selected {
			return false, nil, nil
		}
		gv := corev1.SchemeGroupVersion
		obj, err := w.client.Tracker().List(gv.WithResource("pods"), gv.WithKind("Pod"), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		l := obj.(*corev1.PodList)
		l.Items = slices.DeleteFunc(l.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != node || !r.Labels.Matches(labels.Set(p.Labels)) })
		return true, l, nil
	})
	for range two {
		w.replace()
	}
	w.bundle = testBundle(t)
	return w
}

// replace makes one pod of the sample on a node that takes pods.
func (w *world) replace() {
	ctx := context.Background()
	nodes, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	w.mu.Lock()
	w.pods++
	at := w.pods
	name := fmt.Sprintf("web-%d", at)
	w.mu.Unlock()
	yes := true
	for i := range nodes.Items {
		n := nodes.Items[(i+at)%len(nodes.Items)]
		if n.Spec.Unschedulable {
			continue
		}
		_, _ = w.client.CoreV1().Pods("shop").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", Controller: &yes}}},
			Spec:       corev1.PodSpec{NodeName: n.Name}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}, metav1.CreateOptions{})
		return
	}
}

func manifest(component, image string) []byte {
	return []byte(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\nspec:\n  containers:\n  - name: %s\n    image: %s\n", component, component, image))
}

// sync is the kubelet: mirror pods follow the manifests.
func (m *machine) sync() {
	ctx := context.Background()
	pods := m.w.client.CoreV1().Pods("kube-system")
	for _, c := range kubeadm.Components() {
		if m.w.apiDown {
			return
		}
		name := c + "-" + m.name
		b, ok := m.files[kubeadm.ManifestPath(c)]
		if !ok {
			_ = pods.Delete(ctx, name, metav1.DeleteOptions{})
			continue
		}
		image, err := kubeadm.ManifestImage(b)
		if err != nil {
			m.w.t.Errorf("%s: %v", name, err)
			continue
		}
		_ = pods.Delete(ctx, name, metav1.DeleteOptions{})
		_, err = pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}},
			Spec:       corev1.PodSpec{NodeName: m.name, Containers: []corev1.Container{{Name: c, Image: image}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: c, Ready: true}}},
		}, metav1.CreateOptions{})
		if err != nil {
			m.w.t.Errorf("%s: %v", name, err)
		}
	}
}

func (w *world) env() Env {
	return Env{
		Client: w.client, Machines: w, Units: w, Bundles: map[kubeversion.V]*bundle.Bundle{v1372: w.bundle},
		Observe:    func(context.Context) (*cluster.State, error) { return w.initial, nil },
		APIServer:  w.apiServer,
		EtcdMember: w.etcdMember,
		Preflight:  func(context.Context, kubeversion.V, []string) ([]string, error) { return nil, nil },
		Backup:     func(context.Context, string, string, time.Duration) (string, error) { return "b1", nil },
		Poll:       time.Millisecond, Patience: 3 * time.Second,
	}
}

func (w *world) Host(_ context.Context, node string) (host.Host, error) {
	m, ok := w.machines[node]
	if !ok {
		return nil, fmt.Errorf("no machine %s", node)
	}
	return m, nil
}

func (w *world) image(node, component string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.machines[node].files[kubeadm.ManifestPath(component)]
	if !ok {
		return "", fmt.Errorf("%s of %s: connection refused", component, node)
	}
	return kubeadm.ManifestImage(b)
}

func (w *world) apiServer(_ context.Context, node string) (kubeversion.V, error) {
	i, err := w.image(node, "kube-apiserver")
	return cluster.ImageVersion(i), err
}

func (w *world) etcdMember(_ context.Context, node string) (kubeversion.V, error) {
	if w.machines[node].etcdDown {
		return kubeversion.V{}, fmt.Errorf("etcd of %s: connection refused", node)
	}
	i, err := w.image(node, "etcd")
	return cluster.ImageVersion(i), err
}

// op runs one operation on a machine; strike may end the process, or lose the answer, on either side of it.
func (w *world) op(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errKilled
	}
	w.ops++
	n := w.ops
	hit := func(after bool) error {
		if w.strike == nil {
			return nil
		}
		err := w.strike(n, after)
		if errors.Is(err, errKilled) {
			w.kill()
		}
		return err
	}
	if err := hit(false); err != nil {
		return err
	}
	err := do()
	if e := hit(true); e != nil {
		return e
	}
	return err
}

// kill ends the process: nothing works any more, and no wait goes on.
func (w *world) kill() {
	w.dead = true
	if w.cancel != nil {
		w.cancel()
	}
}

func (m *machine) Name() string { return m.name }
func (m *machine) Close() error { return nil }
func (m *machine) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("the fake machine dials nobody")
}

func (m *machine) ReadFile(_ context.Context, p string) (out []byte, err error) {
	err = m.w.op(func() error {
		b, ok := m.files[p]
		if !ok {
			return &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		}
		out = bytes.Clone(b)
		return nil
	})
	return out, err
}

func (m *machine) WriteFile(_ context.Context, p string, data []byte, _ fs.FileMode) error {
	return m.w.op(func() error { return m.put(p, data) })
}

func (m *machine) Upload(_ context.Context, p string, r io.Reader, size int64, _ fs.FileMode) error {
	b, err := io.ReadAll(r)
	if err != nil || int64(len(b)) != size {
		return fmt.Errorf("upload %s: %d bytes, %w", p, len(b), err)
	}
	return m.w.op(func() error { return m.put(p, b) })
}

func (m *machine) put(p string, data []byte) error {
	m.files[p] = bytes.Clone(data)
	if strings.HasPrefix(p, kubeadm.ManifestsDir) {
		m.sync()
	}
	return nil
}

func (m *machine) Run(_ context.Context, c host.Cmd) (r host.Result, err error) {
	var in []byte
	if c.Stdin != nil {
		if in, err = io.ReadAll(c.Stdin); err != nil {
			return r, err
		}
	}
	err = m.w.op(func() error {
		out, err := m.run(c.Argv, in)
		r.Stdout = []byte(out)
		return err
	})
	return r, err
}

func (m *machine) run(argv []string, in []byte) (string, error) {
	no := func(code int) (string, error) { return "", &host.ExitError{Host: m.name, Argv: argv, Code: code} }
	a := func(i int) string {
		if i < len(argv) {
			return argv[i]
		}
		return ""
	}
	switch {
	case a(0) == "sh" && a(3) == "sums":
		var out strings.Builder
		for _, p := range argv[4:] {
			if b, ok := m.files[p]; ok {
				sum := sha256.Sum256(b)
				fmt.Fprintf(&out, "%s  %s\x00", hex.EncodeToString(sum[:]), p)
			}
		}
		return out.String(), nil
	case a(0) == "sh" && a(3) == "copy":
		return no(9)
	case a(0) == "stat" && a(2) == "%a":
		return "640\n", nil
	case a(0) == "stat" && a(2) == "%Y":
		return "1000\n", nil
	case a(0) == payload.CtrPath && a(4) == "list":
		var refs []string
		for r, digest := range m.images {
			if by := m.pins[r]; a(5) == "" || by != "" && (strings.Contains(a(5), "pinned") || strings.Contains(a(5), by)) {
				refs = append(refs, r+" application/vnd.oci.image.manifest.v1+json "+digest+" 1.0 MiB linux/amd64 -")
			}
		}
		return strings.Join(refs, "\n"), nil
	case a(0) == payload.CtrPath && a(4) == "import":
		ref, digest, err := bundletest.Read(bytes.NewReader(in))
		if err != nil {
			m.w.t.Errorf("import: %v", err)
		}
		m.images[ref] = digest
		return "", nil
	case a(0) == payload.CtrPath && a(4) == "label" && m.images[a(5)] != "":
		if _, run, _ := strings.Cut(a(7), "="); run != "" {
			m.pins[a(5)] = run
		} else {
			delete(m.pins, a(5))
		}
		return "", nil
	case a(0) == "systemctl" && a(1) == "show":
		return fmt.Sprintf("MainPID=%d\nExecStart={ path=/usr/bin/kubelet ; argv[]=/usr/bin/kubelet ; }\n", m.pid), nil
	case a(0) == fmt.Sprintf("/proc/%d/exe", m.pid) && a(1) == "--version":
		return "Kubernetes " + m.version.String() + "\n", nil
	case a(0) == "install":
		m.files[argv[len(argv)-1]] = bytes.Clone(m.files[argv[len(argv)-2]])
		return "", nil
	case a(0) == "true", a(0) == "sync":
		return "", nil
	case a(0) == "mv":
		if b, ok := m.files[a(2)]; ok {
			m.files[a(3)] = b
			delete(m.files, a(2))
			return "", nil
		}
		return no(1)
	case a(0) == "systemctl" && a(1) == "restart":
		return "", m.restartKubelet()
	case a(0) == "find":
		var out strings.Builder
		for p := range m.files {
			if ok, _ := path.Match(a(3), p); ok {
				fmt.Fprintf(&out, "1.0 %s\n", p)
			}
		}
		return out.String(), nil
	}
	m.w.t.Errorf("machine %s: unexpected %q", m.name, argv)
	return no(127)
}

func (m *machine) restartKubelet() error {
	if bytes.Contains(m.files[kubeadm.KubeletFlagsEnv], []byte("pod-infra")) {
		m.w.t.Errorf("%s: the kubelet was restarted with a flag that it does not know", m.name)
	}
	m.pid++
	m.version = kubeversion.MustParse(strings.TrimPrefix(string(m.files["/usr/bin/kubelet"]), "kubelet "))
	// No apiserver may be older: the rule that matters most, seen from the machines.
	for _, o := range m.w.machines {
		if b, ok := o.files[kubeadm.ManifestPath("kube-apiserver")]; ok {
			if i, _ := kubeadm.ManifestImage(b); cluster.ImageVersion(i).Less(m.version) {
				m.w.t.Errorf("kubelet %s of %s runs under the apiserver %s of %s", m.version, m.name, i, o.name)
			}
		}
	}
	ctx := context.Background()
	n, err := m.w.client.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !n.Spec.Unschedulable {
		m.w.t.Errorf("%s: the kubelet was restarted while the node takes pods", m.name)
	}
	n.Status.NodeInfo.KubeletVersion = m.version.String()
	if _, err := m.w.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return err
	}
	now := metav1.NowMicro()
	_, err = m.w.client.CoordinationV1().Leases("kube-node-lease").Update(ctx,
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.name, Namespace: "kube-node-lease"}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}, metav1.UpdateOptions{})
	return err
}

// Start and Status are systemd: a unit ends after a few looks, whoever looks.
func (w *world) Start(_ context.Context, h host.Host, name string, argv []string) error {
	m := h.(*machine)
	return w.op(func() error {
		if u := m.units[name]; u != nil && u.state == UnitRunning {
			w.t.Errorf("unit %s was started while it runs", name)
		}
		w.started[m.name+" "+strings.Join(argv[1:3], " ")]++
		m.units[name] = &unitWork{argv: argv, looks: 3, state: UnitRunning}
		return nil
	})
}

func (w *world) Status(_ context.Context, h host.Host, name string) (out Unit, err error) {
	m := h.(*machine)
	err = w.op(func() error {
		u := m.units[name]
		if u == nil {
			out = Unit{State: UnitAbsent}
			return nil
		}
		if u.state == UnitRunning {
			if u.looks--; u.looks <= 0 {
				u.state = m.kubeadm(u.argv)
				if u.state == UnitAbsent {
					delete(m.units, name)
				}
			}
		}
		out = Unit{State: u.state, Detail: "exit code 1", Output: "[upgrade] line\n"}
		return nil
	})
	return out, err
}

// kubeadm does what kubeadm does.
func (m *machine) kubeadm(argv []string) UnitState {
	fate := unitWorks
	if m.w.unit != nil {
		fate = m.w.unit(m.name, argv)
	}
	if _, staged := m.files[argv[0]]; !staged {
		m.w.t.Errorf("%s: %s is not there", m.name, argv[0])
		return UnitFailed
	}
	_, control := m.files[kubeadm.ManifestPath("kube-scheduler")]
	switch {
	case fate == unitFails:
		return UnitFailed
	case fate == unitBreaksEtcd:
		m.etcdDown = true
		m.files[kubeadm.ManifestPath("etcd")] = manifest("etcd", "registry.k8s.io/etcd:3.7.0-0")
		return UnitFailed
	case fate == unitRollsBackOverBrokenEtcd:
		m.etcdDown = true
		return UnitFailed
	case fate == unitCut:
		p := kubeadm.ManifestPath("kube-apiserver")
		m.files[kubeadm.TmpDir+"/kubeadm-backup-manifests-1/kube-apiserver.yaml"] = m.files[p]
		delete(m.files, p)
		m.sync()
		return UnitAbsent
	case !control:
		m.files[kubeadm.KubeletConfig] = []byte("new")
		return UnitSucceeded
	}
	for ref := range m.images {
		if m.pins[ref] == "" && !strings.Contains(ref, "pause") {
			m.w.t.Errorf("%s: kubeadm was started while the image collector may delete %s", m.name, ref)
		}
	}
	for _, c := range kubeadm.Components() {
		if _, ok := m.files[kubeadm.ManifestPath(c)]; !ok {
			m.w.t.Errorf("%s: kubeadm was started without a manifest of %s", m.name, c)
			return UnitFailed
		}
		tag := "v1.37.2"
		if c == "etcd" {
			tag = "3.7.0-0"
		}
		m.files[kubeadm.ManifestPath(c)] = manifest(c, "registry.k8s.io/"+c+":"+tag)
	}
	m.sync()
	ctx := context.Background()
	if slices.Contains(argv, "apply") {
		_, err := m.w.client.CoreV1().ConfigMaps("kube-system").Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm-config", Namespace: "kube-system"},
			Data: map[string]string{"ClusterConfiguration": "kubernetesVersion: v1.37.2\n"}}, metav1.UpdateOptions{})
		if err != nil {
			m.w.t.Error(err)
		}
	}
	return UnitSucceeded
}

// end is what must be the same however the run went.
func (w *world) end(t testing.TB) string {
	t.Helper()
	var out strings.Builder
	names := slices.Collect(func(yield func(string) bool) {
		for n := range w.machines {
			if !yield(n) {
				return
			}
		}
	})
	slices.Sort(names)
	for _, name := range names {
		m := w.machines[name]
		fmt.Fprintf(&out, "%s kubelet %s", name, m.version)
		for _, p := range stagedPrograms() {
			fmt.Fprintf(&out, ", %s", m.files["/usr/bin/"+p])
		}
		for _, c := range kubeadm.Components() {
			if b, ok := m.files[kubeadm.ManifestPath(c)]; ok {
				i, _ := kubeadm.ManifestImage(b)
				fmt.Fprintf(&out, ", %s", i)
			}
		}
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, ", API says %s, cordoned %v, annotations %v, config %q, flags %q\n", n.Status.NodeInfo.KubeletVersion, n.Spec.Unschedulable, n.Annotations,
			m.files[kubeadm.KubeletConfig], m.files[kubeadm.KubeletFlagsEnv])
		fmt.Fprintf(&out, "%s has %d images, pinned %v\n", name, len(m.images), m.pins)
	}
	cm, err := w.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubeadm-config", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "config %q\n", cm.Data["ClusterConfiguration"])
	if _, err := w.client.CoordinationV1().Leases("kube-system").Get(t.Context(), LeaseName, metav1.GetOptions{}); err == nil {
		out.WriteString("the lease is still there\n")
	}
	pods, err := w.client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: verify.CanaryLabel})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%d canaries\n", len(pods.Items))
	return out.String()
}

func (w *world) plan(t testing.TB) *plan.Plan {
	t.Helper()
	p, fs := plan.Build(*w.initial, plan.Goal{To: v1372, Bundles: []plan.BundleInfo{{
		Version: v1372, Digest: w.bundle.Digest(), Official: true, Etcd: kubeversion.MustParse("3.7.0"),
		EtcdStep: kubeversion.MustParse("3.6.16"), EtcdStepImage: "registry.k8s.io/etcd:3.6.16-0", CanaryImage: "registry.k8s.io/pause:3.10.2",
	}}}, plan.Policy{DrainTimeout: 3 * time.Second, PreflightGate: true})
	if p == nil {
		t.Fatalf("no plan: %+v", fs)
	}
	return p
}

// quickDir is a directory in memory, where there is one: the journals of a thousand runs flush every record.
func quickDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "belay-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// testBundle is a bundle of files of a few bytes.
func testBundle(t testing.TB) *bundle.Bundle {
	t.Helper()
	dir := filepath.Join(quickDir(t), "1.37.2-amd64")
	m := bundle.Manifest{Schema: bundle.ManifestSchema, Kubernetes: v1372, Arch: "amd64", Source: bundle.SourceGoMod,
		Components: []bundle.Component{{Name: "etcd", Version: "v3.7.0"}}}
	add := func(f bundle.File, content string, mode fs.FileMode) {
		p := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(content))
		f.SHA256, f.Size, f.Version, f.From = hex.EncodeToString(sum[:]), int64(len(content)), "v1", "test"
		m.Files = append(m.Files, f)
	}
	for _, p := range stagedPrograms() {
		add(bundle.File{Path: "bin/" + p, Kind: bundle.KindBinary, Component: p}, p+" v1.37.2", 0o755)
	}
	for ref, role := range map[string]string{
		"registry.k8s.io/kube-apiserver:v1.37.2": bundle.RoleControlPlane, "registry.k8s.io/etcd:3.7.0-0": bundle.RoleEtcd,
		"registry.k8s.io/etcd:3.6.16-0": bundle.RoleEtcdStep, "registry.k8s.io/pause:3.10.2": bundle.RolePause,
		"registry.k8s.io/kube-proxy:v1.37.2": bundle.RoleKubeProxy,
	} {
		add(bundle.File{Path: "images/" + strings.NewReplacer("/", "_", ":", "_").Replace(ref) + ".tar", Kind: bundle.KindImage, Component: "x", Ref: ref, Role: role}, string(bundletest.Archive(ref, "")), 0o644)
	}
	slices.SortFunc(m.Files, func(a, b bundle.File) int { return strings.Compare(a.Path, b.Path) })
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
