//go:build controlplane

package backup

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/belayops/belay/internal/condition"
)

var (
	snapshotsGVR = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}
	contentsGVR  = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"}
)

// installSnapshotter installs the resources of the external snapshotter, and a
// controller that marks snapshots ready as the real one does: first an error that
// passes, then the content, then ready. Snapshots of claims named "stuck" never are.
func (l *live) installSnapshotter(t *testing.T) {
	t.Helper()
	for _, r := range []struct{ plural, kind, scope string }{{"volumesnapshots", "VolumeSnapshot", "Namespaced"}, {"volumesnapshotcontents", "VolumeSnapshotContent", "Cluster"}} {
		crd := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": r.plural + ".snapshot.storage.k8s.io", "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, for tests"}},
			"spec": map[string]any{
				"group": "snapshot.storage.k8s.io", "scope": r.scope,
				"names":    map[string]any{"plural": r.plural, "singular": strings.ToLower(r.kind), "kind": r.kind, "listKind": r.kind + "List"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": openSchema, "subresources": map[string]any{"status": map[string]any{}}}},
			},
		}}
		crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		if _, err := l.dyn.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	err := condition.Wait(t.Context(), condition.Condition{Name: "snapshots to be served", Check: func(ctx context.Context) error {
		_, err := l.dyn.Resource(snapshotsGVR).List(ctx, metav1.ListOptions{})
		_, err2 := l.dyn.Resource(contentsGVR).List(ctx, metav1.ListOptions{})
		return errors.Join(err, err2)
	}}, condition.Options{Timeout: time.Minute, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := l.reconcileSnapshots(ctx); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				t.Errorf("snapshot controller: %v", err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func (l *live) reconcileSnapshots(ctx context.Context) error {
	list, err := l.dyn.Resource(snapshotsGVR).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		s := &list.Items[i]
		claim, _, _ := unstructured.NestedString(s.Object, "spec", "source", "persistentVolumeClaimName")
		status, _, _ := unstructured.NestedMap(s.Object, "status")
		ready, _, _ := unstructured.NestedBool(s.Object, "status", "readyToUse")
		if ready {
			continue
		}
		content := "snapcontent-" + string(s.GetUID())
		switch {
		case status == nil || claim == "stuck":
			status = map[string]any{"readyToUse": false, "error": map[string]any{"message": "rpc error: the volume is busy"}}
		default:
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": map[string]any{"name": content},
				"spec": map[string]any{"driver": "disk.example.com", "deletionPolicy": "Delete"},
			}}
			made, err := l.dyn.Resource(contentsGVR).Create(ctx, o, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				made, err = l.dyn.Resource(contentsGVR).Get(ctx, content, metav1.GetOptions{})
			}
			if err != nil {
				return err
			}
			made.Object["status"] = map[string]any{"snapshotHandle": "disk-snap-" + claim, "readyToUse": true}
			if _, err := l.dyn.Resource(contentsGVR).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
				return err
			}
			status = map[string]any{"readyToUse": true, "boundVolumeSnapshotContentName": content, "restoreSize": "1Gi", "creationTime": "2026-12-01T00:00:00Z"}
		}
		s.Object["status"] = status
		if _, err := l.dyn.Resource(snapshotsGVR).Namespace(s.GetNamespace()).UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (l *live) claim(t *testing.T, name string, phase corev1.PersistentVolumeClaimPhase) {
	t.Helper()
	claims := l.client.CoreV1().PersistentVolumeClaims("shop")
	c, err := claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: apiresource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = phase
	if _, err := claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// snapshots names the VolumeSnapshots that are there.
func (l *live) snapshots(t *testing.T) []string {
	t.Helper()
	list, err := l.dyn.Resource(snapshotsGVR).List(t.Context(), metav1.ListOptions{LabelSelector: BackupLabel})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range list.Items {
		out = append(out, s.GetLabels()[BackupLabel]+": "+s.GetNamespace()+"/"+strings.Split(s.GetName(), "-")[0])
	}
	slices.Sort(out)
	return out
}

func TestVolumeSnapshots(t *testing.T) {
	l := startLive(t, "1.36.3")
	l.populate(t, 1)
	dir := t.TempDir()
	recipients, names, err := Recipients(nil, "correct horse") // without etcd, nothing else would hold the Secrets
	if err != nil {
		t.Fatal(err)
	}
	take := func(name string, claims ...string) (*Backup, error) {
		o := Options{Dir: dir, Name: name, REST: l.api.RESTConfig(), SnapshotClaims: claims, SnapshotTimeout: 5 * time.Second, Recipients: recipients, RecipientNames: names}
		return Create(t.Context(), o)
	}
	l.claim(t, "data", corev1.ClaimBound)
	l.claim(t, "orders", corev1.ClaimBound)
	l.claim(t, "stuck", corev1.ClaimBound)
	l.claim(t, "waiting", corev1.ClaimPending)
	if _, err := take("none", "shop/data"); err == nil || !strings.Contains(err.Error(), "external snapshotter") {
		t.Errorf("without a snapshotter: %v", err)
	}
	l.installSnapshotter(t)
	for claim, want := range map[string]string{"shop": "NAMESPACE/NAME", "shop/missing": "not found", "shop/waiting": "Pending"} {
		if _, err := take("bad", "shop/data", claim); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("claim %s: %v, want %q", claim, err, want)
		}
	}
	if got := l.snapshots(t); len(got) > 0 {
		t.Errorf("refused backups left snapshots: %v", got)
	}

	b, err := take("first", "shop/data", "shop/orders", "shop/data")
	if err != nil {
		t.Fatal(err)
	}
	if !b.Manifest.Complete() || len(b.Manifest.VolumeSnapshots) != 2 {
		t.Fatalf("parts %+v, snapshots %+v", b.Manifest.Parts, b.Manifest.VolumeSnapshots)
	}
	s := b.Manifest.VolumeSnapshots[0]
	if s.Claim != "shop/data" || s.Handle != "disk-snap-data" || s.Driver != "disk.example.com" || s.RestoreSize != "1Gi" || s.DeletionPolicy != "Delete" || s.Content == "" {
		t.Errorf("snapshot: %+v", s)
	}
	// The object part holds the snapshots as they were when they were ready.
	if p := b.Manifest.resource("snapshot.storage.k8s.io", "volumesnapshots"); p == nil || p.Count != 2 {
		t.Errorf("snapshots in the object part: %+v", p)
	}

	// One that never gets ready makes the backup incomplete and is not left behind.
	b, err = take("second", "shop/data", "shop/stuck")
	if err != nil {
		t.Fatal(err)
	}
	part := b.Manifest.Part("snapshots")
	if b.Manifest.Complete() || part == nil || len(part.Missing) != 1 || !strings.Contains(part.Missing[0], "shop/stuck") || !strings.Contains(part.Missing[0], "the volume is busy") {
		t.Errorf("part %+v", part)
	}
	if got, want := l.snapshots(t), []string{"first: shop/data", "first: shop/orders", "second: shop/data"}; !slices.Equal(got, want) {
		t.Errorf("snapshots are %v, want %v", got, want)
	}

	// Retention takes the snapshots along, and only the very ones.
	b, err = take("third", "shop/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prune(t.Context(), dir, b.Manifest.Lineage, 1, nil); err == nil {
		t.Error("a backup with snapshots was removed without them")
	}
	pruned, err := Prune(t.Context(), dir, b.Manifest.Lineage, 1, func(ctx context.Context, s []VolumeSnapshot) error {
		return DeleteVolumeSnapshots(ctx, l.api.RESTConfig(), s)
	})
	if err != nil || fmt.Sprint(pruned.Removed) != fmt.Sprint([]string{filepath.Join(dir, "second"), filepath.Join(dir, "first")}) {
		t.Errorf("removed %+v, %v", pruned, err)
	}
	if got, want := l.snapshots(t), []string{"third: shop/data"}; !slices.Equal(got, want) {
		t.Errorf("snapshots are %v, want %v", got, want)
	}
	other := b.Manifest.VolumeSnapshots[0]
	other.UID = "00000000-0000-0000-0000-000000000000"
	if err := DeleteVolumeSnapshots(t.Context(), l.api.RESTConfig(), []VolumeSnapshot{other}); err != nil || len(l.snapshots(t)) != 1 {
		t.Errorf("another snapshot of that name was removed: %v, %v", err, l.snapshots(t))
	}
}
