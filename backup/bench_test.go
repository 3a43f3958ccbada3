//go:build controlplane

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/event"
)

// The benchmarks measure belay and the tools that people use on the same data
// in the same run:
//
//	go test -tags controlplane -run '^$' -bench . -benchtime 3x ./backup

// benchCluster is an etcd and an apiserver with n ConfigMaps of about size bytes.
func benchCluster(b *testing.B, n, size int) (*controlplane.Etcd, *controlplane.APIServer) {
	b.Helper()
	ctx := b.Context()
	bin, err := bundleBin("1.36.3")
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	pki, err := controlplane.NewPKI(filepath.Join(dir, "pki"))
	if err != nil {
		b.Fatal(err)
	}
	etcd, err := controlplane.StartEtcd(ctx, controlplane.EtcdOptions{Binary: bin.Etcd, Dir: dir, PKI: pki, Args: []string{"--unsafe-no-fsync"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = etcd.Stop(context.Background()) })
	cli, err := connect(EtcdEndpoint{URL: etcd.Endpoint()}, etcd.ClientConfig().TLS)
	if err != nil {
		b.Fatal(err)
	}
	defer cli.Close()
	// Straight into etcd, as JSON, which an apiserver reads as well.
	value := strings.Repeat("x", size)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range n {
		g.Go(func() error {
			name := fmt.Sprintf("thing-%06d", i)
			_, err := cli.Put(gctx, "/registry/configmaps/shop/"+name, fmt.Sprintf(
				`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"shop","uid":"00000000-0000-0000-0000-%012d","creationTimestamp":"2026-01-01T00:00:00Z"},"data":{"k":%q}}`, name, i, value))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	api, err := controlplane.StartAPIServer(ctx, controlplane.APIServerOptions{Binary: bin.APIServer, Dir: filepath.Join(dir, "api"), PKI: pki, Etcd: etcd})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = api.Stop(context.Background()) })
	return etcd, api
}

// BenchmarkSnapshot compares a snapshot with its digest checked against what
// etcdctl snapshot save does (it calls this very function of the client
// library). The two take turns, so that a busy computer hits both.
func BenchmarkSnapshot(b *testing.B) {
	etcd, _ := benchCluster(b, 20000, 10000)
	dir := b.TempDir()
	belay := func(i int) int64 {
		c, err := survey(b.Context(), &EtcdAccess{Endpoints: []EtcdEndpoint{{URL: etcd.Endpoint()}}, TLS: etcd.ClientConfig().TLS})
		if err != nil {
			b.Fatal(err)
		}
		d := &dirWriter{dir: dir}
		w, err := d.create(fmt.Sprintf("belay-%d.db", i), true)
		if err != nil {
			b.Fatal(err)
		}
		w.hash = nil
		t, _, err := c.best().stream(b.Context(), w, func(int64) {})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := t.sum(); err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(w.Close(), c.close()); err != nil {
			b.Fatal(err)
		}
		return t.n
	}
	etcdctl := func(i int) {
		if _, err := snapshot.SaveWithVersion(b.Context(), zap.NewNop(), etcd.ClientConfig(), filepath.Join(dir, fmt.Sprintf("etcdctl-%d.db", i))); err != nil {
			b.Fatal(err)
		}
	}
	etcdctl(-1) // the first one finds cold caches
	var ours, theirs []time.Duration
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		etcdctl(i)
		theirs = append(theirs, time.Since(start))
		start = time.Now()
		b.SetBytes(belay(i))
		ours = append(ours, time.Since(start))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return d[len(d)/2].Seconds()
	}
	b.ReportMetric(median(ours), "belay-s")
	b.ReportMetric(median(theirs), "etcdctl-s")
	b.ReportMetric(median(ours)/median(theirs), "times-etcdctl")
}

// peak gives the highest resident memory of this process since resetPeak, in bytes.
func peak(b *testing.B) float64 {
	b.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				b.Fatal(err)
			}
			return float64(kb) * 1024
		}
	}
	b.Fatal("no VmHWM")
	return 0
}

// resetPeak gives freed memory back and starts the measurement anew.
func resetPeak(b *testing.B) {
	b.Helper()
	runtime.GC()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkObjects compares the object part with kubectl getting every resource.
func BenchmarkObjects(b *testing.B) {
	_, api := benchCluster(b, 50000, 2000)
	bin, err := bundleBin("1.36.3")
	if err != nil {
		b.Fatal(err)
	}
	kubectl := filepath.Join(filepath.Dir(bin.Etcd), "kubectl")
	conf, err := api.Kubeconfig()
	if err != nil {
		b.Fatal(err)
	}
	kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, conf, 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("belay", func(b *testing.B) {
		resetPeak(b)
		for b.Loop() {
			c := &creation{o: Options{REST: api.RESTConfig()}, sink: event.Discard, m: &Manifest{}, d: &dirWriter{dir: b.TempDir()}}
			if err := c.objects(b.Context()); err != nil {
				b.Fatal(err)
			}
			if p := c.m.resource("", "configmaps"); p == nil || p.Count < 50000 {
				b.Fatalf("configmaps: %+v", p)
			}
		}
		b.ReportMetric(peak(b)/1e6, "peak-MB")
	})
	b.Run("kubectl", func(b *testing.B) {
		for b.Loop() {
			start := time.Now()
			out, err := exec.CommandContext(b.Context(), kubectl, "--kubeconfig", kubeconfig, "api-resources", "--verbs=list", "-o", "name").Output()
			if err != nil {
				b.Fatal(err)
			}
			for name := range strings.FieldsSeq(string(out)) {
				f, err := os.Create(filepath.Join(b.TempDir(), name))
				if err != nil {
					b.Fatal(err)
				}
				cmd := exec.CommandContext(b.Context(), kubectl, "--kubeconfig", kubeconfig, "get", name, "-A", "-o", "json")
				var stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = f, &stderr
				if err := cmd.Run(); err != nil {
					b.Fatalf("kubectl get %s: %v: %s", name, err, stderr.String())
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.Logf("%s", time.Since(start))
		}
	})
}
