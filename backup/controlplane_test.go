//go:build controlplane

package backup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// bundleBin gives the programs of a bundle; BELAY_BUNDLES overrides where bundles are.
func bundleBin(version string) (Binaries, error) {
	dir := os.Getenv("BELAY_BUNDLES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return Binaries{}, err
		}
		dir = filepath.Join(cache, "belay", "bundles")
	}
	b, err := FindBinaries(filepath.Join(dir, version+"-"+runtime.GOARCH, "bin"))
	if err != nil {
		return b, fmt.Errorf("%w; this layer needs it: belay bundle build %s", err, version)
	}
	return b, nil
}

// live is a control plane with a node whose files look like kubeadm's.
type live struct {
	etcd   *controlplane.Etcd
	api    *controlplane.APIServer
	client kubernetes.Interface
	dyn    dynamic.Interface
	host   *rootHost
}

const encryptionConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc:
      keys:
      - {name: key1, secret: c2VjcmV0IGlzIHNlY3VyZSwgb3IgaXMgaXQ/Pz8/Pz8=}
  - identity: {}
`

const apiserverManifest = `apiVersion: v1
kind: Pod
metadata: {name: kube-apiserver, namespace: kube-system}
spec:
  containers:
  - name: kube-apiserver
    image: registry.k8s.io/kube-apiserver:v1.36.3
    command:
    - kube-apiserver
    - --service-cluster-ip-range=10.96.0.0/12
    - --encryption-provider-config=/etc/kubernetes/enc/config.yaml
    volumeMounts:
    - {name: enc, mountPath: /etc/kubernetes/enc, readOnly: true}
  volumes:
  - name: enc
    hostPath: {path: /etc/kubernetes/secret-encryption}
`

func startLive(t *testing.T, version string) *live {
	t.Helper()
	ctx := t.Context()
	bin, err := bundleBin(version)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pki, err := controlplane.NewPKI(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	l := &live{}
	if l.etcd, err = controlplane.StartEtcd(ctx, controlplane.EtcdOptions{Binary: bin.Etcd, Dir: filepath.Join(dir, "etcd"), PKI: pki}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.etcd.Stop(context.Background()) })
	if l.api, err = controlplane.StartAPIServer(ctx, controlplane.APIServerOptions{
		Binary: bin.APIServer, Dir: filepath.Join(dir, "api"), PKI: pki, Etcd: l.etcd, EncryptionConfig: []byte(encryptionConfig),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.api.Stop(context.Background()) })
	if l.client, err = kubernetes.NewForConfig(l.api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if l.dyn, err = dynamic.NewForConfig(l.api.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	l.host = newRootHost(t, "cp1", strings.TrimPrefix(l.etcd.Endpoint(), "https://"))
	for from, to := range map[string]string{
		"ca.crt": "/etc/kubernetes/pki/etcd/ca.crt", "etcd-client.crt": "/etc/kubernetes/pki/etcd/healthcheck-client.crt", "etcd-client.key": "/etc/kubernetes/pki/etcd/healthcheck-client.key",
	} {
		b, err := os.ReadFile(pki.Path(from))
		if err != nil {
			t.Fatal(err)
		}
		l.host.put(t, to, string(b), 0o600)
	}
	l.host.put(t, "/etc/kubernetes/manifests/kube-apiserver.yaml", apiserverManifest, 0o600)
	l.host.put(t, "/etc/kubernetes/secret-encryption/config.yaml", encryptionConfig, 0o600)
	l.host.put(t, "/etc/kubernetes/tmp/kubeadm-backup-etcd/member/snap/db", "must not be copied", 0o600)
	l.host.put(t, "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\n", 0o644)
	l.host.put(t, "/etc/containerd/config.toml", "version = 3\n", 0o644)
	return l
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// populate makes objects of several kinds, custom ones with two versions among them.
func (l *live) populate(t *testing.T, n int) {
	t.Helper()
	ctx := t.Context()
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{
				map[string]any{"name": "v1", "served": true, "storage": false, "schema": openSchema},
				map[string]any{"name": "v1beta1", "served": true, "storage": true, "schema": openSchema},
			},
		},
	}}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := l.dyn.Resource(crds).Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeadm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm-config"}, Data: map[string]string{"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: shop cluster\n"}}
	if _, err := l.client.CoreV1().ConfigMaps("kube-system").Create(ctx, kubeadm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		name := fmt.Sprintf("thing-%05d", i)
		if _, err := l.client.CoreV1().ConfigMaps("shop").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%10 != 0 {
			continue
		}
		if _, err := l.client.CoreV1().Secrets("shop").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		l.createWidget(t, name)
	}
	release := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "sh.helm.release.v1.web.v1", Labels: map[string]string{"owner": "helm", "name": "web"}},
		Type:       releaseType, StringData: map[string]string{"release": "H4sI"},
	}
	if _, err := l.client.CoreV1().Secrets("shop").Create(ctx, release, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createWidget retries while the custom resource is not served yet.
func (l *live) createWidget(t *testing.T, name string) {
	t.Helper()
	w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": int64(3)}}}
	err := condition.Wait(t.Context(), condition.Condition{Name: "widgets to be served", Check: func(ctx context.Context) error {
		_, err := l.dyn.Resource(widgets).Namespace("shop").Create(ctx, w, metav1.CreateOptions{})
		return err
	}}, condition.Options{Timeout: time.Minute, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
}

var openSchema = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}

func TestBackupIsRestoredAndEveryObjectListed(t *testing.T) {
	for _, version := range []string{"1.36.3", "1.37.2"} {
		t.Run(version, func(t *testing.T) {
			l := startLive(t, version)
			l.populate(t, 1200)
			b, err := Create(t.Context(), Options{Dir: t.TempDir(), REST: l.api.RESTConfig(), Hosts: []host.Host{l.host}, Tool: "test"})
			if err != nil {
				t.Fatal(err)
			}
			if b.Manifest.Level != Opened || !b.Manifest.Complete() {
				t.Errorf("level %s, parts %+v", b.Manifest.Level, b.Manifest.Parts)
			}
			if !strings.HasPrefix(filepath.Base(b.Dir), "shop-cluster-") {
				t.Errorf("directory %s is not named by the cluster", b.Dir)
			}
			for _, p := range b.Manifest.Files {
				if strings.Contains(p.Path, "/tmp/") {
					t.Errorf("%s is in the backup", p.Path)
				}
			}
			if b.Manifest.sourceFile("cp1", "/etc/kubernetes/secret-encryption/config.yaml") == nil {
				t.Error("the encryption configuration is not in the backup")
			}
			r, err := Verify(t.Context(), b.Dir, VerifyOptions{Level: Restored, Binaries: func(v kubeversion.V) (Binaries, error) { return bundleBin(v.Bare()) }})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() {
				t.Fatalf("problems: %+v", r.Problems)
			}
			if r.Restore.Resources["configmaps"] < 1200 || r.Restore.Resources["widgets.example.com"] != 120 || r.Restore.Resources["secrets"] != 121 || !r.Restore.Encryption {
				t.Errorf("restored: %+v", r.Restore)
			}
			if got := r.Restore.Compared; got < 50 || got != len(b.Manifest.Resources) {
				t.Errorf("%d of %d resources were compared with the object part", got, len(b.Manifest.Resources))
			}
			if p := b.Manifest.resource("example.com", "widgets"); p == nil || p.Version != "v1beta1" || p.Count != 120 {
				t.Errorf("widgets are not read at their stored version: %+v", p)
			}
			if p := b.Manifest.resource("", "secrets"); p == nil || p.Count != 121 || p.File != "" {
				t.Errorf("secrets in the clear: %+v", p)
			}
			if len(r.Restore.Unserved) != 0 {
				t.Errorf("prefixes that nothing lists: %v", r.Restore.Unserved)
			}
			t.Logf("files %d, %d bytes, took %v, started in %v, listed %d objects in %v", r.Files, r.Bytes, r.Took, r.Restore.StartedIn, r.Restore.Objects, r.Restore.ListedIn)
			e, err := LatestVerified(t.Context(), filepath.Dir(b.Dir), b.Manifest.Lineage, Restored)
			if err != nil || e.Dir != b.Dir {
				t.Errorf("LatestVerified = %+v, %v", e, err)
			}
		})
	}
}

func TestDiffAndRestoreObjects(t *testing.T) {
	l := startLive(t, "1.36.3")
	l.populate(t, 20)
	ctx := t.Context()
	recipients, names, err := Recipients(nil, "horse")
	if err != nil {
		t.Fatal(err)
	}
	recipients[0].(*age.ScryptRecipient).SetWorkFactor(10)
	ids, err := Identities(nil, "horse")
	if err != nil {
		t.Fatal(err)
	}
	cms := l.client.CoreV1().ConfigMaps("shop")
	owned, err := cms.Get(ctx, "thing-00001", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "child", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owned.Name, UID: owned.UID}}}}
	if _, err := cms.Create(ctx, child, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err := Create(ctx, Options{Dir: t.TempDir(), REST: l.api.RESTConfig(), Hosts: []host.Host{l.host}, Recipients: recipients, RecipientNames: names})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Verify(ctx, b.Dir, VerifyOptions{Level: Restored, Identities: ids, Binaries: func(v kubeversion.V) (Binaries, error) { return bundleBin(v.Bare()) }})
	if err != nil || !r.OK() || !r.Restore.Encryption {
		t.Fatalf("encrypted backup: %+v, %v", r, err)
	}
	diffNow := func() *Diff {
		t.Helper()
		d, err := DiffLive(ctx, b.Dir, l.api.RESTConfig(), DiffOptions{Identities: ids})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := diffNow(); !d.Empty() {
		t.Errorf("a cluster at rest differs: %+v", d)
	}
	// Vanish, change, appear.
	del := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	del(cms.Delete(ctx, "thing-00001", metav1.DeleteOptions{}))
	del(cms.Delete(ctx, "child", metav1.DeleteOptions{}))
	del(l.client.CoreV1().Secrets("shop").Delete(ctx, "thing-00000", metav1.DeleteOptions{}))
	del(l.dyn.Resource(widgets).Namespace("shop").Delete(ctx, "thing-00010", metav1.DeleteOptions{}))
	changed, err := cms.Get(ctx, "thing-00002", metav1.GetOptions{})
	del(err)
	changed.Data["k"] = "changed"
	_, err = cms.Update(ctx, changed, metav1.UpdateOptions{})
	del(err)
	_, err = cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	del(err)
	want := map[string]ResourceDiff{
		"configmaps":          {Appeared: []string{"shop/new"}, Vanished: []string{"shop/child", "shop/thing-00001"}, Changed: []ObjectChange{{Object: "shop/thing-00002", Fields: []string{"data"}}}},
		"secrets":             {Vanished: []string{"shop/thing-00000"}},
		"widgets.example.com": {Vanished: []string{"shop/thing-00010"}},
	}
	d := diffNow()
	for _, rd := range d.Resources {
		w := want[rd.Resource]
		w.Resource = rd.Resource
		if !reflect.DeepEqual(rd, w) {
			t.Errorf("difference %+v, want %+v", rd, w)
		}
	}
	if len(d.Resources) != len(want) {
		t.Errorf("differences in %d resources, want %d", len(d.Resources), len(want))
	}

	restore := func(o RestoreOptions) map[string]RestoredObject {
		t.Helper()
		o.REST, o.Identities = l.api.RESTConfig(), ids
		r, err := RestoreObjects(ctx, b.Dir, o)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]RestoredObject{}
		for _, ob := range r.Objects {
			out[ob.Resource+"/"+ob.Object] = ob
		}
		return out
	}
	actions := func(got map[string]RestoredObject, want map[string]string) {
		t.Helper()
		for k, a := range want {
			if got[k].Action != a {
				t.Errorf("%s: %+v, want %s", k, got[k], a)
			}
		}
	}
	plan := map[string]string{
		"configmaps/shop/thing-00001": ActionCreated, "configmaps/shop/child": ActionCreated, "configmaps/shop/thing-00002": ActionDiffers, "configmaps/shop/thing-00003": ActionUnchanged,
		"secrets/shop/thing-00000": ActionCreated, "widgets.example.com/shop/thing-00010": ActionCreated, "configmaps/shop/kube-root-ca.crt": "",
	}
	actions(restore(RestoreOptions{Patterns: []string{"*/shop/*"}, DryRun: true}), plan)
	if d := diffNow(); len(d.Resources) != 3 {
		t.Errorf("the dry run changed something: %+v", d)
	}
	got := restore(RestoreOptions{Patterns: []string{"*/shop/*"}})
	actions(got, plan)
	again, err := cms.Get(ctx, "child", metav1.GetOptions{})
	del(err)
	parent, err := cms.Get(ctx, "thing-00001", metav1.GetOptions{})
	del(err)
	// "child" sorts before its owner: it comes back without a reference that would get it collected.
	for _, ref := range again.OwnerReferences {
		if ref.UID != parent.UID {
			t.Errorf("child has owner %+v, which is dead", ref)
		}
	}
	s, err := l.client.CoreV1().Secrets("shop").Get(ctx, "thing-00000", metav1.GetOptions{})
	if err != nil || string(s.Data["password"]) != "hunter2" {
		t.Errorf("secret: %v", err)
	}
	got = restore(RestoreOptions{Patterns: []string{"configmaps/shop/thing-00002"}, Overwrite: true})
	actions(got, map[string]string{"configmaps/shop/thing-00002": ActionOverwritten})
	back, err := cms.Get(ctx, "thing-00002", metav1.GetOptions{})
	if err != nil || back.Data["k"] != "thing-00002" {
		t.Errorf("overwritten: %v, %v", back.Data, err)
	}
	// A whole namespace with its custom resource's definition comes back.
	del(l.dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}))
	del(condition.Wait(ctx, condition.Condition{Name: "widgets to be served no more", Check: func(ctx context.Context) error {
		if _, err := l.dyn.Resource(widgets).Namespace("shop").List(ctx, metav1.ListOptions{}); err == nil {
			return condition.NotYetf("they are")
		}
		return nil
	}}, condition.Options{Timeout: time.Minute, Interval: 100 * time.Millisecond}))
	got = restore(RestoreOptions{Patterns: []string{"widgets.example.com/shop/*", "customresourcedefinitions.apiextensions.k8s.io/*"}})
	actions(got, map[string]string{"customresourcedefinitions.apiextensions.k8s.io/widgets.example.com": ActionCreated, "widgets.example.com/shop/thing-00000": ActionCreated})
}
