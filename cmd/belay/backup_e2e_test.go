//go:build e2e

package main

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

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/belayops/belay/internal/condition"
)

// TestRestoreDrill sets a real cluster of three control plane nodes and two
// workers back to a backup, with belay killed in the middle. It needs root and
// the bundle of 1.36.3 in the user's cache (belay bundle build), and fails without.
func TestRestoreDrill(t *testing.T) {
	const name = "backup-e2e"
	ctx := t.Context()
	dir := t.TempDir()
	bin := filepath.Join(dir, "belay")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build belay: %v\n%s", err, out)
	}
	home := filepath.Join(dir, "home")
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		// In front, as what follows "--" is for the node.
		cmd := exec.CommandContext(ctx, bin, append([]string{"--progress", "plain"}, args...)...)
		cmd.Env = append(os.Environ(), "BELAY_HOME="+home)
		return cmd
	}
	belay := func(args ...string) string {
		t.Helper()
		start := time.Now()
		cmd := command(ctx, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("belay %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
		}
		t.Logf("belay %s: %s", strings.Join(args, " "), time.Since(start).Round(time.Second))
		return strings.TrimSpace(string(out))
	}
	t.Cleanup(func() {
		if out, err := command(context.Background(), "cluster", "down", name).CombinedOutput(); err != nil {
			t.Errorf("cluster down: %v\n%s", err, out)
		}
	})
	belay("cluster", "up", "--machines", "3+2", "--name", name)
	cfg, err := clientcmd.BuildConfigFromFlags("", belay("cluster", "kubeconfig", name, "--path"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	configMap := func(n string) {
		t.Helper()
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{})
		must(err)
	}
	configMap("before")
	backupDir := belay("backup", "create", "--cluster", name)
	belay("backup", "verify", backupDir, "--level", "restored")
	configMap("after")

	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(err)
	kubelets := func() map[string]string {
		t.Helper()
		out := map[string]string{}
		for _, n := range nodes.Items {
			out[n.Name] = belay("cluster", "ssh", n.Name, "--", "pgrep", "-x", "kubelet")
		}
		return out
	}
	pids := kubelets()
	restore := []string{"backup", "restore", backupDir, "--etcd", "--cluster", name, "--confirm", name}

	// A name that is mistyped changes nothing.
	exit := (*exec.ExitError)(nil)
	if err := command(ctx, append(restore[:len(restore)-1:len(restore)-1], "backup-e2f")...).Run(); !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
		t.Errorf("with a wrong name: %v, want exit code %d", err, exitUsage)
	}

	// Killed when etcd is stopped everywhere and the data is under way.
	cut := command(ctx, restore...)
	must(cut.Start())
	err = condition.Wait(ctx, condition.Condition{Name: "the restore to send data", Check: func(context.Context) error {
		journals, err := filepath.Glob(filepath.Join(home, "restores", "*.jsonl"))
		if err != nil || len(journals) != 1 {
			return condition.NotYetf("journals: %v %v", journals, err)
		}
		b, err := os.ReadFile(journals[0])
		if err != nil {
			return err
		}
		if !bytes.Contains(b, []byte(`"data/`+name+`-cp2"`)) {
			return condition.NotYetf("not there yet")
		}
		return nil
	}}, condition.Options{Timeout: 5 * time.Minute, Interval: 100 * time.Millisecond})
	must(err)
	must(cut.Process.Signal(syscall.SIGKILL))
	_ = cut.Wait()
	t.Log(belay(restore...))

	_, err = client.CoreV1().ConfigMaps("default").Get(ctx, "after", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("what was written after the backup: %v, want not found", err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "before", metav1.GetOptions{}); err != nil {
		t.Errorf("what was there before the backup: %v", err)
	}
	// Controllers, scheduler and kubelets work again, and no kubelet was restarted for it.
	replicas := int32(4)
	labels := map[string]string{"app": "again"}
	_, err = client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "again"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: "registry.k8s.io/pause:3.10.2"}}},
			},
		},
	}, metav1.CreateOptions{})
	must(err)
	err = condition.Wait(ctx, condition.Condition{Name: "a new Deployment to run", Check: func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments("default").Get(ctx, "again", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ReadyReplicas != replicas {
			return condition.NotYetf("%d of %d replicas are ready", d.Status.ReadyReplicas, replicas)
		}
		return nil
	}}, condition.Options{Timeout: 3 * time.Minute})
	if err != nil {
		t.Error(err)
	}
	for n, pid := range kubelets() {
		if pid != pids[n] {
			t.Errorf("the kubelet of %s was restarted: process %s, was %s", n, pid, pids[n])
		}
	}
}
