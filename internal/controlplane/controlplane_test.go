//go:build controlplane

package controlplane

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// bin gives a program of a bundle; BELAY_BUNDLES overrides where bundles are.
func bin(t *testing.T, version, name string) string {
	t.Helper()
	dir := os.Getenv("BELAY_BUNDLES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "belay", "bundles")
	}
	path := filepath.Join(dir, version+"-"+runtime.GOARCH, "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: this layer needs the bundle: belay bundle build %s", err, version)
	}
	return path
}

func TestRealServers(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	pki, err := NewPKI(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := StartEtcd(ctx, EtcdOptions{Binary: bin(t, "1.36.3", "etcd"), Dir: filepath.Join(dir, "etcd"), PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := etcd.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	api, err := StartAPIServer(ctx, APIServerOptions{Binary: bin(t, "1.36.3", "kube-apiserver"), Dir: filepath.Join(dir, "api"), PKI: pki, Etcd: etcd})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(api.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	v, err := client.Discovery().ServerVersion()
	if err != nil || v.GitVersion != "v1.36.3" {
		t.Errorf("ServerVersion = %v, %v", v, err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{}); err != nil {
		t.Errorf("kube-system: %v", err)
	}
	// Somebody kills it: the death is told, with where to read more.
	if err := syscall.Kill(api.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-api.Done()
	exited := (*ExitedError)(nil)
	if err := api.Err(); !errors.As(err, &exited) || exited.Name != "kube-apiserver" {
		t.Errorf("Err() after SIGKILL = %v", err)
	}
}

func TestBadFlagIsReportedWithTheLog(t *testing.T) {
	dir := t.TempDir()
	pki, err := NewPKI(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = StartEtcd(t.Context(), EtcdOptions{Binary: bin(t, "1.36.3", "etcd"), Dir: dir, PKI: pki, Args: []string{"--no-such-flag"}})
	exited := (*ExitedError)(nil)
	if !errors.As(err, &exited) || !strings.Contains(exited.Tail, "no-such-flag") {
		t.Errorf("err = %v, want an *ExitedError that shows the flag", err)
	}
}
