//go:build e2e

package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/testenv"
)

// These tests bring real clusters up on machines of this computer. They need root and a bundle of testVersion in the
// user's cache (make it with: belay bundle build), and fail without.
const testVersion = "1.36.3"

// childVar makes the test binary a process that brings a cluster up until it is killed.
const childVar = "BELAY_E2E_PROVISION_HOME"

func TestMain(m *testing.M) {
	if home := os.Getenv(childVar); home != "" {
		if _, err := Up(context.Background(), e2eSpec("prov-e2e", 1, 1), Options{Home: home, InstallTools: true}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func e2eSpec(name string, controlPlanes, workers int) *Spec {
	s := &Spec{APIVersion: SpecAPIVersion, Kind: SpecKind, Name: name, KubernetesVersion: testVersion, Machines: &SpecMachines{ControlPlanes: controlPlanes, Workers: workers}}
	s.SetDefaults()
	return s
}

// diskHome is a home on a disk file system; it is checked to be empty of files in the end.
func diskHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("/var/tmp", "belay-provision-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	return home
}

func sinkOf(t *testing.T) event.Sink {
	t.Helper()
	return event.Func(func(e event.Event) {
		if e.Type != event.StepStarted && e.Type != event.StepProgress {
			t.Logf("%s %s: %s (%s) %s", e.Type, e.Subject, e.Msg, e.Elapsed.Round(time.Millisecond), e.Err)
		}
	})
}

// takeDown takes the cluster down in the end, whatever happened, and looks for traces.
func takeDown(t *testing.T, home, name string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := Down(ctx, name, Options{Home: home}); err != nil && !errors.As(err, new(*NotFoundError)) {
			t.Error(err)
		}
		for _, p := range []string{"clusters/" + name, "machines/" + name, "clusters/." + name + ".lock"} {
			if _, err := os.Lstat(filepath.Join(home, p)); err == nil {
				t.Errorf("%s is left", p)
			}
		}
		if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), filepath.Join(home, "machines", name)) {
			t.Errorf("mounts are left (%v)", err)
		}
	})
}

// use uses the cluster as its user would: pods on every node, a Service over nodes.
func use(t *testing.T, home, name string, nodes int) {
	t.Helper()
	path, err := Kubeconfig(home, name)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info.Mode(), err)
	}
	kubeconfig, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	list, err := a.cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != nodes {
		t.Errorf("%d nodes, want %d", len(list.Items), nodes)
	}
	for i := range list.Items {
		n := &list.Items[i]
		if ok, why := nodeReady(n); !ok {
			t.Errorf("%s: %s", n.Name, why)
		}
		if v := n.Status.NodeInfo.KubeletVersion; v != "v"+testVersion {
			t.Errorf("%s: kubelet %s", n.Name, v)
		}
	}
	const image = "docker.io/belayops/sample:1.1"
	pods := a.cs.CoreV1().Pods(metav1.NamespaceDefault)
	pod := func(name, node string, restart corev1.RestartPolicy, args ...string) {
		t.Helper()
		zero := int64(0)
		_, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{
				NodeName: node, RestartPolicy: restart, TerminationGracePeriodSeconds: &zero, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{Name: "c", Image: image, Args: args}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	wait := func(name string, phase corev1.PodPhase) {
		t.Helper()
		err := condition.Wait(ctx, condition.Condition{Name: "pod " + name, Check: func(ctx context.Context) error {
			p, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if p.Status.Phase != phase {
				return condition.NotYetf("%s: %v", p.Status.Phase, p.Status.ContainerStatuses)
			}
			return nil
		}}, condition.Options{Timeout: time.Minute})
		if err != nil {
			t.Error(err)
		}
	}
	first, last := list.Items[0].Name, list.Items[len(list.Items)-1].Name
	pod("server", first, corev1.RestartPolicyAlways)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}
	if _, err := a.cs.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("server", corev1.PodRunning)
	// From another node, by name, through the Service.
	pod("client", last, corev1.RestartPolicyOnFailure, "get", "http://web.default.svc.cluster.local/")
	wait("client", corev1.PodSucceeded)
	log, err := pods.GetLogs("client", &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil || !strings.Contains(string(log), "server sample") {
		t.Errorf("the client saw %q, %v", log, err)
	}
}

func TestUpTwiceAndDown(t *testing.T) {
	home := diskHome(t)
	takeDown(t, home, "prov-e2e")
	o := Options{Home: home, InstallTools: true, Sink: sinkOf(t)}
	res, err := Up(t.Context(), e2eSpec("prov-e2e", 1, 1), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %s", res.Elapsed)
	if len(res.Changed) == 0 || len(res.Nodes) != 2 {
		t.Errorf("result: %+v", res)
	}
	use(t, home, "prov-e2e", 2)

	before := snapshot(t, home)
	again, err := Up(t.Context(), e2eSpec("prov-e2e", 1, 1), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Changed) > 0 {
		t.Errorf("the second time changed: %v", again.Changed)
	}
	if after := snapshot(t, home); after != before {
		t.Errorf("the second time changed objects:\n%s\nbefore:\n%s", after, before)
	}
	list, err := List(t.Context(), o)
	if err != nil || len(list) != 1 || list[0].Status != StatusUp || list[0].Version != testVersion {
		t.Errorf("list: %+v, %v", list, err)
	}
	other := e2eSpec("prov-e2e", 1, 2)
	if _, err := Up(t.Context(), other, o); !errors.As(err, new(*ChangedSpecError)) {
		t.Errorf("another shape under the same name: %v", err)
	}

	// A reboot of everything: the cluster comes back by itself, and Up starts what was stopped.
	env, err := machineEnv(o, "", event.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Stop(t.Context(), "prov-e2e", "prov-e2e-w1", true); err != nil {
		t.Fatal(err)
	}
	back, err := Up(t.Context(), e2eSpec("prov-e2e", 1, 1), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(back.Changed) == 0 {
		t.Error("a stopped machine was not noticed")
	}

	if err := Down(t.Context(), "prov-e2e", o); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), "prov-e2e", o); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("down of nothing: %v", err)
	}
}

// snapshot is what Up manages in the API, with resource versions.
func snapshot(t *testing.T, home string) string {
	t.Helper()
	kubeconfig, err := os.ReadFile(dirOf(home, "prov-e2e").kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	cms, err := a.cs.CoreV1().ConfigMaps(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range cms.Items {
		fmt.Fprintln(&b, "ConfigMap", o.Name, o.ResourceVersion)
	}
	sets, err := a.cs.AppsV1().DaemonSets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range sets.Items {
		fmt.Fprintln(&b, "DaemonSet", o.Name, o.Generation)
	}
	return b.String()
}

// Killed at any moment, Up is run again and completes; what it found half-made is completed or made anew.
func TestKilledUpCompletes(t *testing.T) {
	home := diskHome(t)
	for _, until := range []string{"images", "init", "join"} {
		t.Run(until, func(t *testing.T) {
			takeDown(t, home, "prov-e2e")
			killDuring(t, home, until)
			res, err := Up(t.Context(), e2eSpec("prov-e2e", 1, 1), Options{Home: home, Sink: sinkOf(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("completed after %s", res.Elapsed)
			use(t, home, "prov-e2e", 2)
		})
	}
}

// killDuring starts a child that brings the cluster up, and kills it some time into a step.
func killDuring(t *testing.T, home, step string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), exe)
	child.Env = append(os.Environ(), childVar+"="+home)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	d := dirOf(home, "prov-e2e")
	reached := func(ctx context.Context) error {
		select {
		case err := <-ended:
			return condition.Final(fmt.Errorf("the child ended by itself: %v", err))
		default:
		}
		state, err := d.loadState()
		if err != nil {
			return err
		}
		inv, err := Inventory(home, "prov-e2e")
		if err != nil {
			return err
		}
		hosts := inv.Open()
		defer func() { _ = hosts.Close() }()
		node, file := "prov-e2e-cp1", ""
		switch step {
		case "images":
			file = "/usr/local/bin/ctr"
		case "init":
			file = "/etc/kubernetes/admin.conf"
		case "join":
			node, file = "prov-e2e-w1", "/etc/kubernetes/bootstrap-kubelet.conf"
			if state.Initialized {
				file = "/var/lib/belay/kubeadm-join.yaml"
			}
		}
		h, err := hosts.Host(ctx, node)
		if err != nil {
			return err
		}
		_, err = h.Run(ctx, host.Cmd{Argv: []string{"test", "-e", file}})
		return err
	}
	if err := condition.Wait(t.Context(), condition.Condition{Name: "step " + step, Check: reached}, condition.Options{Timeout: 3 * time.Minute, Interval: 100 * time.Millisecond}); err != nil {
		_ = child.Process.Kill()
		t.Fatal(err)
	}
	if err := child.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// Hosts that exist are reached over SSH alone: files and images are sent.
func TestOwnHosts(t *testing.T) {
	home := diskHome(t)
	takeDown(t, home, "prov-own")
	ctx := t.Context()
	spec := e2eSpec("prov-own", 1, 0)
	env, err := testenv.New(testenv.Options{StateDir: filepath.Join(home, "own"), RuncPath: runcFor(Options{}, spec), InstallTools: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := env.Down(ctx, "own"); err != nil {
			t.Error(err)
		}
	})
	machines, err := env.Up(ctx, "own", []testenv.MachineSpec{{Name: "alpha"}, {Name: "beta"}})
	if err != nil {
		t.Fatal(err)
	}
	spec.Machines = nil
	spec.SSH = SpecSSH{User: machines[0].User, KeyFile: machines[0].KeyFile, KnownHostsFile: machines[0].KnownHostsFile}
	spec.Nodes = []SpecNode{
		{Name: "beta", Role: RoleWorker, Address: machines[1].Address},
		{Name: "alpha", Role: RoleControlPlane, Address: machines[0].Address},
	}
	spec.SharedDisk = true // theirs is this computer's
	o := Options{Home: home, Sink: sinkOf(t)}
	if env.Facts().CgroupVersion == 1 {
		// On a user's own hosts this is never assumed.
		if _, err := Up(ctx, spec, o); !errors.As(err, new(*HostProblem)) {
			t.Fatalf("cgroup v1 was accepted: %v", err)
		}
		spec.AllowCgroupV1 = true
		if err := Down(ctx, "prov-own", o); err != nil {
			t.Fatal(err)
		}
	}
	res, err := Up(ctx, spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %s", res.Elapsed)
	use(t, home, "prov-own", 2)

	// The same hosts are refused to another cluster.
	second := *spec
	second.Name = "prov-own2"
	takeDown(t, home, second.Name)
	if _, err := Up(ctx, &second, o); !errors.As(err, new(*HostProblem)) {
		t.Errorf("another cluster took the hosts: %v", err)
	}

	inv, err := Inventory(home, "prov-own")
	if err != nil {
		t.Fatal(err)
	}
	if err := Down(ctx, "prov-own", o); err != nil {
		t.Fatal(err)
	}
	hosts := inv.Open()
	defer func() { _ = hosts.Close() }()
	for _, name := range inv.Names() {
		h, err := hosts.Host(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		res, err := h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", "ls -d /etc/kubernetes /usr/bin/kubelet /usr/local/bin/ctr /var/lib/belay/cluster 2>/dev/null; pgrep -l 'kubelet|containerd|etcd|kube-' ; true"}})
		if err != nil || len(res.Stdout) > 0 {
			t.Errorf("%s is not clean: %s, %v", name, res.Stdout, err)
		}
	}
}

// Three control planes behind the balancer: losing one of them is no loss.
func TestHighlyAvailable(t *testing.T) {
	home := diskHome(t)
	takeDown(t, home, "prov-ha")
	o := Options{Home: home, Sink: sinkOf(t)}
	spec := e2eSpec("prov-ha", 3, 1)
	res, err := Up(t.Context(), spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %s", res.Elapsed)
	use(t, home, "prov-ha", 4)
	env, err := machineEnv(o, "", event.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.Stop(t.Context(), "prov-ha", "prov-ha-cp1", true); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(dirOf(home, "prov-ha").kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	err = condition.Wait(t.Context(), condition.Condition{Name: "the API without its first node", Check: func(ctx context.Context) error {
		_, err := a.cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	}}, condition.Options{Timeout: 30 * time.Second, Stable: 5})
	if err != nil {
		t.Error(err)
	}
}
