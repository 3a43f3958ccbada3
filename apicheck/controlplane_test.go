//go:build controlplane

// The layer "controlplane" runs real servers of two minors from their bundles.

package apicheck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/apicheck"
	"github.com/belayops/belay/apicheck/convert"
	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/testenv/controlplane"
)

func minor(n int) lifecycle.Minor { return lifecycle.Minor{Major: 1, Minor: n} }

func startControlPlane(t testing.TB, version, dir, data string, args ...string) *controlplane.ControlPlane {
	t.Helper()
	bundles := os.Getenv("BELAY_BUNDLES")
	if bundles == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		bundles = filepath.Join(cache, "belay", "bundles")
	}
	bin := controlplane.BinDir(filepath.Join(bundles, version+"-"+runtime.GOARCH, "bin"))
	if _, err := bin.BinaryPath("kube-apiserver"); err != nil {
		t.Fatalf("%v: this layer needs the bundle: belay bundle build %s", err, version)
	}
	c, err := controlplane.Start(t.Context(), controlplane.Options{Binaries: bin, Dir: dir, EtcdDataDir: data, APIServerArgs: args, Timeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shopChart is a chart with one object of an API that 1.37 no longer serves, or of the one that takes its place.
func shopChart(t *testing.T, version, apiVersion string) *chart.Chart {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "shop")
	for name, text := range map[string]string{
		"Chart.yaml":         "apiVersion: v2\nname: shop\nversion: " + version + "\n",
		"templates/cm.yaml":  "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: shop\ndata:\n  version: \"" + version + "\"\n",
		"templates/net.yaml": "apiVersion: " + apiVersion + "\nkind: ServiceCIDR\nmetadata:\n  name: shop\nspec:\n  cidrs:\n  - 10.99.0.0/24\n",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func helmConfig(t *testing.T, kubeconfig string) *action.Configuration {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig = &kubeconfig
	cfg := new(action.Configuration)
	if err := cfg.Init(flags, "default", "secrets"); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func upgrade(t *testing.T, kubeconfig string, c *chart.Chart) error {
	t.Helper()
	up := action.NewUpgrade(helmConfig(t, kubeconfig))
	up.Namespace, up.WaitStrategy, up.ServerSideApply, up.Timeout = "default", kube.HookOnlyStrategy, "auto", time.Minute
	_, err := up.Run("shop", c, nil)
	return err
}

func has(r apicheck.Report, verdict lifecycle.Verdict, source apicheck.SourceType, kind string) *apicheck.Finding {
	for i, f := range r.Findings {
		if f.Verdict == verdict && f.Source.Type == source && f.Kind == kind {
			return &r.Findings[i]
		}
	}
	return nil
}

func scanLive(t testing.TB, cfg *rest.Config, to int) apicheck.Report {
	t.Helper()
	r, err := apicheck.Scan(t.Context(), apicheck.Options{To: minor(to), RESTConfig: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		t.Logf("%s %s %s %s %s: %s", f.Severity, f.Verdict, f.APIVersion, f.Kind, f.Name, f.Source)
	}
	for _, u := range r.Coverage.Unreadable {
		t.Errorf("not read: %s: %s", u.What, u.Why)
	}
	return r
}

// TestHopOfARealControlPlane scans 1.36, goes to 1.37 over the same data, and repairs what Helm then fails on.
func TestHopOfARealControlPlane(t *testing.T) {
	dir := t.TempDir()
	old := startControlPlane(t, "1.36.3", filepath.Join(dir, "old"), filepath.Join(dir, "data"), "--runtime-config=networking.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha2=true", "--feature-gates=GenericWorkload=true")
	stop := func(c *controlplane.ControlPlane) {
		if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err)
		}
	}
	running := old
	defer func() { stop(running) }()
	install := action.NewInstall(helmConfig(t, old.KubeconfigFile))
	install.ReleaseName, install.Namespace, install.WaitStrategy, install.ServerSideApply, install.Timeout = "shop", "default", kube.HookOnlyStrategy, true, time.Minute
	if _, err := install.Run(shopChart(t, "1.0.0", "networking.k8s.io/v1beta1"), nil); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(old.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	workload := `{"apiVersion":"scheduling.k8s.io/v1alpha2","kind":"Workload","metadata":{"name":"w1"},"spec":{"podGroupTemplates":[{"name":"group1","schedulingPolicy":{"basic":{}}}]}}`
	if err := client.RESTClient().Post().AbsPath("/apis/scheduling.k8s.io/v1alpha2/namespaces/default/workloads").SetHeader("Content-Type", "application/json").Body([]byte(workload)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	r := scanLive(t, old.RESTConfig(), 37)
	if r.Verdict != apicheck.Findings || r.From != minor(36) {
		t.Errorf("verdict %s from %s", r.Verdict, r.From)
	}
	if f := has(r, lifecycle.Removed, apicheck.SourceHelm, "ServiceCIDR"); f == nil || f.Severity != apicheck.Error || f.Source.Release != "shop" {
		t.Errorf("the release's ServiceCIDR is not found: %+v", f)
	}
	if f := has(r, lifecycle.Removed, apicheck.SourceManagedFields, "ServiceCIDR"); f == nil {
		t.Error("the manager that applied the ServiceCIDR in its old version is not found")
	}
	if f := has(r, lifecycle.Undecodable, apicheck.SourceStored, "Workload"); f == nil || f.Name != "w1" {
		t.Errorf("the stored Workload is not found: %+v", f)
	}
	if has(r, lifecycle.Removed, apicheck.SourceStored, "ServiceCIDR") != nil {
		t.Error("a stored ServiceCIDR, which lives on as v1, is reported")
	}

	// What convert makes of a manifest passes the apiserver's strict validation.
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	manifest := []byte("# extra\napiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR\nmetadata:\n  name: extra\nspec:\n  cidrs: [10.98.0.0/24] # more\n")
	res := convert.Text(convert.Options{DB: db, From: minor(36), To: minor(37)}, manifest)
	if len(res.Changes) != 1 {
		t.Fatalf("conversion %+v", res)
	}
	if err := client.RESTClient().Post().AbsPath("/apis/networking.k8s.io/v1/servicecidrs").Param("dryRun", "All").Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/yaml").Body(res.Text).Do(t.Context()).Error(); err != nil {
		t.Errorf("the converted manifest is refused: %v", err)
	}

	stop(old)
	young := startControlPlane(t, "1.37.2", filepath.Join(dir, "new"), filepath.Join(dir, "data"))
	running = young
	r = scanLive(t, young.RESTConfig(), 37)
	if has(r, lifecycle.Removed, apicheck.SourceHelm, "ServiceCIDR") == nil {
		t.Error("after the hop the release's ServiceCIDR is not found")
	}
	next := shopChart(t, "2.0.0", "networking.k8s.io/v1")
	if err := upgrade(t, young.KubeconfigFile, next); err == nil {
		t.Fatal("helm upgrade works without a repair: this test proves nothing")
	} else {
		t.Logf("before the repair helm upgrade says: %v", err)
	}
	o := apicheck.RepairOptions{RESTConfig: young.RESTConfig(), To: minor(37), DryRun: true}
	rep, err := apicheck.RepairHelm(t.Context(), o)
	if err != nil || len(rep.Releases) != 1 || rep.Releases[0].Status != apicheck.ReleaseWould {
		t.Fatalf("dry run: %+v, %v", rep, err)
	}
	o.DryRun, o.BackupDir = false, filepath.Join(dir, "records")
	if rep, err = apicheck.RepairHelm(t.Context(), o); err != nil || rep.Releases[0].Status != apicheck.ReleaseRepaired {
		t.Fatalf("repair: %+v, %v", rep, err)
	}
	if err := upgrade(t, young.KubeconfigFile, next); err != nil {
		t.Fatalf("after the repair helm upgrade says: %v", err)
	}
	if client, err = kubernetes.NewForConfig(young.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "shop", metav1.GetOptions{}); err != nil {
		t.Errorf("the object itself: %v", err)
	}
	cm, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil || cm.Data["version"] != "2.0.0" {
		t.Errorf("the upgrade's own change: %v, %v", cm.Data, err)
	}
	r = scanLive(t, young.RESTConfig(), 37)
	if has(r, lifecycle.Removed, apicheck.SourceReference, "Ingress") != nil {
		t.Error("the roles that Kubernetes writes itself are reported")
	}
	// The first revision is still there for a rollback, and that is told.
	told := 0
	for _, f := range r.Findings {
		if f.Source.Type != apicheck.SourceHelm || f.Kind != "ServiceCIDR" {
			continue
		}
		told++
		if f.Severity != apicheck.Info || f.Source.Revision != 1 || !strings.Contains(f.Message, "helm rollback") {
			t.Errorf("after repair and upgrade the release still is reported: %+v", f)
		}
	}
	if told == 0 {
		t.Error("that a rollback to the first revision fails is not told")
	}
}

// TestRepairOfARecordOfHelm3 takes a record that Helm 3's library wrote: helm upgrade fails on it, and works after the repair.
func TestRepairOfARecordOfHelm3(t *testing.T) {
	record, err := os.ReadFile("testdata/helm3-record.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := startControlPlane(t, "1.37.2", filepath.Join(dir, "cp"), "")
	defer func() {
		if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Log(err)
		}
	}()
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	const owned = `"metadata":{"name":"shop","labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"default"}}`
	for path, body := range map[string]string{
		"/apis/networking.k8s.io/v1/servicecidrs": `{"apiVersion":"networking.k8s.io/v1","kind":"ServiceCIDR",` + owned + `,"spec":{"cidrs":["10.99.0.0/24"]}}`,
		"/api/v1/namespaces/default/configmaps":   `{"apiVersion":"v1","kind":"ConfigMap",` + owned + `,"data":{"version":"1.0.0"}}`,
		"/api/v1/namespaces/default/secrets":      string(record),
	} {
		if err := client.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error(); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	next := shopChart(t, "2.0.0", "networking.k8s.io/v1")
	if err := upgrade(t, c.KubeconfigFile, next); err == nil {
		t.Fatal("helm upgrade works without a repair: this test proves nothing")
	} else {
		t.Logf("before the repair helm upgrade says: %v", err)
	}
	rep, err := apicheck.RepairHelm(t.Context(), apicheck.RepairOptions{RESTConfig: c.RESTConfig(), To: minor(37), BackupDir: filepath.Join(dir, "records")})
	if err != nil || len(rep.Releases) != 1 || rep.Releases[0].Status != apicheck.ReleaseRepaired {
		t.Fatalf("repair: %+v, %v", rep, err)
	}
	if err := upgrade(t, c.KubeconfigFile, next); err != nil {
		t.Fatalf("after the repair helm upgrade says: %v", err)
	}
	cm, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil || cm.Data["version"] != "2.0.0" {
		t.Errorf("the upgrade's own change: %v, %v", cm.Data, err)
	}
}

// TestConvertedObjectsAreTaken has real apiservers of two minors take what convert makes of whole objects, with strict field
// validation and as a dry run, for every kind that the minor serves.
func TestConvertedObjectsAreTaken(t *testing.T) {
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("convert/testdata/whole/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, version := range []string{"1.36.3", "1.37.2"} {
		t.Run(version, func(t *testing.T) {
			v, err := kubeversion.Parse(version)
			if err != nil {
				t.Fatal(err)
			}
			c := startControlPlane(t, version, t.TempDir(), "", "--runtime-config=api/all=true", "--feature-gates=AllAlpha=true,AllBeta=true")
			defer func() {
				if err := c.Stop(context.WithoutCancel(t.Context())); err != nil {
					t.Log(err)
				}
			}()
			client, err := kubernetes.NewForConfig(c.RESTConfig())
			if err != nil {
				t.Fatal(err)
			}
			taken := 0
			for _, name := range files {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				res := convert.Text(convert.Options{DB: db, From: minor(14), To: v.MinorVersion(), Accept: []string{"*"}}, text)
				if len(res.Changes) != 1 {
					t.Logf("%s: nothing to convert at %s", name, v.MinorVersion())
					continue
				}
				to := res.Changes[0].To
				k, ok := db.Lookup(to)
				if !ok || !k.Served(v.MinorVersion()) {
					t.Errorf("%s: %s does not serve %s", name, version, to)
					continue
				}
				path := "/apis/" + to.APIVersion()
				if k.Namespaced {
					path += "/namespaces/default"
				}
				err = client.RESTClient().Post().AbsPath(path+"/"+k.Resource).Param("dryRun", "All").Param("fieldValidation", "Strict").
					SetHeader("Content-Type", "application/yaml").Body(res.Text).Do(t.Context()).Error()
				if err != nil {
					t.Errorf("%s: %s is refused: %v\n%s", name, to, err, res.Text)
					continue
				}
				taken++
			}
			t.Logf("%d converted objects are taken", taken)
			if taken < 50 {
				t.Errorf("only %d converted objects were taken", taken)
			}
		})
	}
}

// fill creates objects through the API: many ConfigMaps with metadata of the usual size, and Helm releases.
func fill(t testing.TB, cfg *rest.Config, objects, releases int) {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = -1, 0
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range 16 {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= objects+releases {
					return
				}
				path, body := "/api/v1/namespaces/default/configmaps", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o%06d","labels":{"app.kubernetes.io/name":"filler","part":"p%d"},"annotations":{"example.com/note":%q}},"data":{"a":"b"}}`, i, i%10, strings.Repeat("n", 200))
				if i >= objects {
					path = "/api/v1/namespaces/default/secrets"
					body = fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","type":"helm.sh/release.v1","metadata":{"name":"sh.helm.release.v1.r%d.v1","labels":{"owner":"helm","name":"r%d","status":"deployed","version":"1"}},"data":{"release":%s}}`, i, i, releaseData(i))
				}
				if err := client.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error(); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
}

// releaseData gives a release's data field as JSON; one in ten holds an API that is gone.
func releaseData(i int) string {
	manifest := strings.Repeat("---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndata:\n  a: b\n", 100)
	if i%10 == 0 {
		manifest += "---\napiVersion: networking.k8s.io/v1beta1\nkind: ServiceCIDR\nmetadata:\n  name: y\n"
	}
	text, err := json.Marshal(map[string]any{"name": fmt.Sprintf("r%d", i), "namespace": "default", "version": 1, "info": map[string]any{"status": "deployed"}, "manifest": manifest})
	if err != nil {
		return `""`
	}
	// Secrets hold bytes, which JSON has in base64; so does encoding/json.
	data, err := json.Marshal(text)
	if err != nil {
		return `""`
	}
	return string(bytes.TrimSpace(data))
}

// BenchmarkCluster scans a control plane of 50,000 objects and 300 releases (BELAY_OBJECTS changes the first), and
// reports objects a second and the peak of the heap.
func BenchmarkCluster(b *testing.B) {
	objects := 50000
	if s := os.Getenv("BELAY_OBJECTS"); s != "" {
		if _, err := fmt.Sscan(s, &objects); err != nil {
			b.Fatal(err)
		}
	}
	c := startControlPlane(b, "1.36.3", b.TempDir(), "")
	defer func() {
		if err := c.Stop(context.WithoutCancel(b.Context())); err != nil {
			b.Log(err)
		}
	}()
	start := time.Now()
	fill(b, c.RESTConfig(), objects, 300)
	b.Logf("%d objects and 300 releases created in %s", objects, time.Since(start).Round(time.Second))
	debug.FreeOSMemory()
	var peak atomic.Uint64
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				if used := m.Sys - m.HeapReleased; used > peak.Load() {
					peak.Store(used)
				}
			}
		}
	}()
	b.ResetTimer()
	for b.Loop() {
		cfg := c.RESTConfig()
		cfg.QPS, cfg.Burst = 200, 400
		r, err := apicheck.Scan(b.Context(), apicheck.Options{To: minor(37), RESTConfig: cfg})
		if err != nil {
			b.Fatal(err)
		}
		helm := 0
		for _, f := range r.Findings {
			if f.Source.Type == apicheck.SourceHelm {
				helm++
			}
		}
		if helm != 30 || len(r.Coverage.Unreadable) > 0 {
			b.Fatalf("%d findings in releases, want 30; not read %v", helm, r.Coverage.Unreadable)
		}
	}
	b.StopTimer()
	close(done)
	b.ReportMetric(float64(objects+300)*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
	b.ReportMetric(float64(peak.Load())/1e6, "peak-MB")
}
