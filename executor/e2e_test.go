//go:build e2e

package executor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/inventory"
)

// TestKilledAndResumedOnARealCluster takes a real cluster of one control plane node and one worker from 1.36.3 to 1.37.2 while
// belay is killed with SIGKILL at five moments and kubeadm is made to fail once. It needs root and both bundles in
// the user's cache (belay bundle build), and fails without.
func TestKilledAndResumedOnARealCluster(t *testing.T) {
	c := newRealCluster(t, "exec-e2e-kill", "1+1")
	cp, worker := c.name+"-cp1", c.name+"-w1"

	c.belay(t, "backup", "create", "--cluster", c.name)
	backups, err := filepath.Glob(filepath.Join(c.home, "backups", "*"))
	if err != nil || len(backups) != 1 {
		t.Fatalf("backups: %v, %v", backups, err)
	}
	c.belay(t, "backup", "verify", backups[0], "--level", "restored")
	planFile := filepath.Join(c.home, "plan.json")
	c.belay(t, "plan", "--to", "1.37.2", "--cluster", c.name, "-o", planFile)
	apply, resume := []string{"apply", planFile, "--cluster", c.name}, []string{"resume", "--cluster", c.name}

	t.Log("kill 1: while etcd is patched")
	c.killDuring(t, "etcd-patch@3.6.16/"+cp, 2*time.Second, apply...)
	// A second apply is refused: that run has not ended.
	if code, out := c.try(t, apply...); code != 1 || !strings.Contains(out, "belay resume") {
		t.Errorf("a second apply: exit code %d\n%s", code, out)
	}

	// What the upgrade will start is safe from the kubelet's image collector until the run ends.
	pins := []string{"/usr/local/bin/ctr", "--namespace", "k8s.io", "images", "list", "--quiet", `labels."belay.dev/run",labels."io.cri-containerd.pinned"==pinned`}
	if out := c.onNode(t, cp, pins...); !strings.Contains(out, "registry.k8s.io/kube-apiserver:v1.37.2") {
		t.Errorf("pinned images:\n%s", out)
	}

	t.Log("kubeadm fails on the first control plane node: nothing after it is begun")
	c.onNode(t, cp, "sh", "-c", "rm -rf /etc/kubernetes/tmp && touch /etc/kubernetes/tmp")
	if code, out := c.try(t, resume...); code != 5 || !strings.Contains(out, "control-plane@1.37.2/"+cp) || !strings.Contains(out, "no later step was begun") {
		t.Fatalf("exit code %d, want 5\n%s", code, out)
	}
	c.kubelets(t, "v1.36.3")
	for _, n := range []string{cp, worker} {
		if v := c.onNode(t, n, "/usr/bin/kubelet", "--version"); v != "Kubernetes v1.36.3" {
			t.Errorf("the kubelet on the disk of %s was touched: %s", n, v)
		}
	}
	c.onNode(t, cp, "rm", "-f", "/etc/kubernetes/tmp")

	t.Log("kill 2: in the control plane's upgrade")
	c.killDuring(t, "control-plane@1.37.2/"+cp, 20*time.Second, resume...)
	t.Log("kill 3: between effect and record")
	c.killAt(t, "cordon@1.37.2/"+worker+":applied", resume...)
	t.Log("kill 4: in a drain")
	c.killDuring(t, "drain@1.37.2/"+worker, time.Second, resume...)
	t.Log("kill 5: after the kubelet's replacement")
	c.killAt(t, "kubelet@1.37.2/"+worker+":applied", resume...)

	c.belay(t, resume...)
	c.kubelets(t, "v1.37.2")
	c.belay(t, "verify", "--cluster", c.name, "--to", "1.37.2")
	run, err := OpenRun(filepath.Join(c.home, "runs"), "")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := run.Status(); err != nil || st.State != "finished" {
		t.Errorf("status %+v, %v", st, err)
	}
	for _, n := range []string{cp, worker} {
		if out := c.onNode(t, n, pins...); out != "" {
			t.Errorf("images of %s are still pinned for the run:\n%s", n, out)
		}
	}
	ctx := t.Context()
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		if n.Spec.Unschedulable || n.Annotations["belay.dev/cordoned-by"] != "" {
			t.Errorf("node %s: unschedulable %v, annotations %v", n.Name, n.Spec.Unschedulable, n.Annotations)
		}
	}
	if l, err := c.client.CoordinationV1().Leases("kube-system").Get(ctx, LeaseName, metav1.GetOptions{}); err == nil {
		t.Errorf("the lease is still held: %v", l.Annotations)
	}
	// The same plan is now stale, and says how.
	if code, out := c.try(t, apply...); code != 4 || !strings.Contains(out, "was v1.36.3, is v1.37.2") {
		t.Errorf("the plan applied again: exit code %d\n%s", code, out)
	}
}

// realCluster is a cluster that the belay program brought up, and that program.
type realCluster struct {
	name, home, bin string
	client          kubernetes.Interface
	hosts           *inventory.Hosts
}

func newRealCluster(t *testing.T, name, machines string) *realCluster {
	t.Helper()
	home, err := os.MkdirTemp("/var/tmp", "belay-executor-")
	if err != nil {
		t.Fatal(err)
	}
	c := &realCluster{name: name, home: home, bin: filepath.Join(t.TempDir(), "belay")}
	build := exec.Command("go", "build", "-tags", "belaykill", "-o", c.bin, "../cmd/belay")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build belay: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if code, out := c.try(t, "cluster", "down", name); code != 0 {
			t.Errorf("cluster down: exit code %d\n%s", code, out)
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	c.belay(t, "cluster", "up", "--machines", machines, "--name", name, "--kubernetes", "1.36.3")
	dir := filepath.Join(home, "clusters", name)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.Load(filepath.Join(dir, "inventory.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.hosts = inv.Open()
	t.Cleanup(func() {
		if err := c.hosts.Close(); err != nil {
			t.Error(err)
		}
	})
	c.sample(t)
	return c
}

// sample deploys what the drains have to move, by the kubectl of the first control plane node.
func (c *realCluster) sample(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile("../examples/demo/sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cp := c.name + "-cp1"
	h, err := c.hosts.Host(t.Context(), cp)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile(t.Context(), "/run/sample.yaml", b, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := []string{"kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"}
	c.onNode(t, cp, append(kubectl, "apply", "-f", "/run/sample.yaml")...)
	c.onNode(t, cp, append(kubectl, "-n", "shop", "rollout", "status", "deployment/web", "--timeout=180s")...)
}

func (c *realCluster) onNode(t *testing.T, node string, argv ...string) string {
	t.Helper()
	h, err := c.hosts.Host(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.Run(t.Context(), host.Cmd{Argv: argv})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(r.Stdout))
}

func (c *realCluster) command(ctx context.Context, out *bytes.Buffer, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.Env = append(os.Environ(), "BELAY_HOME="+c.home)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd
}

// try runs belay and gives its exit code and output.
func (c *realCluster) try(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	// Also for the clean-up, after the test's own context has ended.
	err := c.command(context.WithoutCancel(t.Context()), &out, args...).Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return exit.ExitCode(), out.String()
	}
	return 0, out.String()
}

func (c *realCluster) belay(t *testing.T, args ...string) {
	t.Helper()
	start := time.Now()
	if code, out := c.try(t, args...); code != 0 {
		t.Fatalf("belay %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	t.Logf("belay %s: %s", strings.Join(args, " "), time.Since(start).Round(time.Second))
}

func killedBySignal(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// killAt runs belay, which ends itself with SIGKILL at a point of a step.
func (c *realCluster) killAt(t *testing.T, point string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := c.command(t.Context(), &out, args...)
	cmd.Env = append(cmd.Env, "BELAY_TEST_KILL_AFTER="+point)
	if err := cmd.Run(); !killedBySignal(err) {
		t.Fatalf("belay was not killed at %s: %v\n%s", point, err, out.String())
	}
}

// killDuring runs belay and kills it a while after a step has begun, and before it is done.
func (c *realCluster) killDuring(t *testing.T, step string, after time.Duration, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := c.command(t.Context(), &out, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	state := func() string {
		run, err := OpenRun(filepath.Join(c.home, "runs"), "")
		if err != nil {
			return err.Error()
		}
		st, err := run.read()
		switch {
		case err != nil:
			return err.Error()
		case st.steps[step].done:
			return "done"
		case st.steps[step].begun && st.last == step && st.err == "":
			return "begun"
		}
		return "at " + st.last
	}
	err := condition.Wait(t.Context(), condition.Condition{Name: "step " + step + " to begin", Check: func(context.Context) error {
		select {
		case err := <-done:
			return condition.Final(errors.Join(errors.New("belay ended"), err))
		default:
		}
		if s := state(); s != "begun" {
			return condition.NotYetf("%s", s)
		}
		return nil
	}}, condition.Options{Timeout: 15 * time.Minute, Interval: 50 * time.Millisecond})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	select {
	case <-time.After(after):
	case err := <-done:
		t.Fatalf("belay ended in step %s: %v\n%s", step, err, out.String())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !killedBySignal(err) {
		t.Fatalf("belay was not killed: %v\n%s", err, out.String())
	}
	if s := state(); s != "begun" {
		t.Fatalf("step %s was to be cut off and is %s", step, s)
	}
}

// kubelets asks the API for the version of every kubelet.
func (c *realCluster) kubelets(t *testing.T, want string) {
	t.Helper()
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		if v := n.Status.NodeInfo.KubeletVersion; v != want {
			t.Errorf("kubelet of %s is %s, want %s", n.Name, v, want)
		}
	}
}
