//go:build controlplane

package controlplane

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/internal/condition"
	servers "github.com/belayops/belay/internal/controlplane"
)

// binaries finds a bundle's programs; BELAY_BUNDLES overrides where bundles are.
func binaries(t *testing.T, version string) Binaries {
	t.Helper()
	dir := os.Getenv("BELAY_BUNDLES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "belay", "bundles")
	}
	b := BinDir(filepath.Join(dir, version+"-"+runtime.GOARCH, "bin"))
	if _, err := b.BinaryPath("kube-apiserver"); err != nil {
		t.Fatalf("%v: this layer needs the bundle: belay bundle build %s", err, version)
	}
	return b
}

// TestWholeControlPlane lets controllers and scheduler do their work, then runs the same data again.
func TestWholeControlPlane(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	start := time.Now()
	c, err := Start(ctx, Options{Binaries: binaries(t, "1.36.3"), Dir: dir, Controllers: true, Scheduler: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("four servers ready in %s", time.Since(start))
	stopped := false
	defer func() {
		if !stopped {
			_ = c.Stop(ctx) // the test has failed already
		}
	}()
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "x"}
	replicas := int32(2)
	if _, err := client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = condition.Wait(ctx, condition.Condition{Name: "two pods that the scheduler has judged", Check: func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=x"})
		if err != nil {
			return err
		}
		judged := 0
		for _, p := range pods.Items {
			for _, cond := range p.Status.Conditions {
				if cond.Type == corev1.PodScheduled && cond.Reason == corev1.PodReasonUnschedulable {
					judged++
				}
			}
		}
		if judged != 2 {
			return condition.NotYetf("%d pods, %d judged", len(pods.Items), judged)
		}
		return nil
	}}, condition.Options{Timeout: 30 * time.Second, Interval: 200 * time.Millisecond})
	if err != nil {
		t.Error(err)
	}
	stopped = true
	start = time.Now()
	if err := c.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped in %s", time.Since(start))

	again, err := Start(ctx, Options{Binaries: binaries(t, "1.36.3"), EtcdDataDir: filepath.Join(dir, "etcd", "data")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Stop(ctx); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(again.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the temporary directory stays: %v", err)
		}
	}()
	if client, err = kubernetes.NewForConfig(again.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AppsV1().Deployments("default").Get(ctx, "x", metav1.GetOptions{}); err != nil {
		t.Errorf("over the same data: %v", err)
	}
}

func TestEarlyDeathStopsTheOthers(t *testing.T) {
	dir := t.TempDir()
	_, err := Start(t.Context(), Options{Binaries: binaries(t, "1.36.3"), Dir: dir, Controllers: true, ControllerManagerArgs: []string{"--no-such-flag"}})
	exited := (*servers.ExitedError)(nil)
	if !errors.As(err, &exited) || exited.Name != "kube-controller-manager" || !strings.Contains(exited.Tail, "no-such-flag") {
		t.Errorf("err = %v, want the controller manager's *ExitedError that shows the flag", err)
	}
	procs, gerr := filepath.Glob("/proc/[0-9]*/cmdline")
	if gerr != nil {
		t.Fatal(gerr)
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), dir) {
			t.Errorf("still runs: %s", strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
}
