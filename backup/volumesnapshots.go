package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
)

// BackupLabel is on every VolumeSnapshot that belay makes; its value is the backup's name.
const BackupLabel = "belay.dev/backup"

// snapshotAPI is where the external snapshotter's resources are served.
// Source: https://kubernetes.io/docs/concepts/storage/volume-snapshots/
const snapshotAPI = "/apis/snapshot.storage.k8s.io/v1"

// defaultSnapshotTimeout is how long is waited for storage to take its snapshots.
const defaultSnapshotTimeout = 10 * time.Minute

// VolumeSnapshot is a CSI snapshot of one claim, taken with a backup. The data
// is in the storage system, not in the backup.
type VolumeSnapshot struct {
	// Claim is namespace/name of the claim.
	Claim string `json:"claim"`
	// Namespace, Name and UID are of the VolumeSnapshot object.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Class     string `json:"class,omitempty"`
	// Content is the VolumeSnapshotContent, Driver and Handle what the storage system calls the snapshot.
	Content string `json:"content"`
	Driver  string `json:"driver"`
	Handle  string `json:"handle"`
	// DeletionPolicy says whether the storage system's snapshot goes with the object: Delete or Retain.
	DeletionPolicy string `json:"deletionPolicy,omitempty"`
	RestoreSize    string `json:"restoreSize,omitempty"`
	// TakenAt is when the storage system took it.
	TakenAt string `json:"takenAt,omitempty"`
}

// snapshotObject is what is read of a VolumeSnapshot.
type snapshotObject struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Class string `json:"volumeSnapshotClassName"`
	} `json:"spec"`
	Status *struct {
		Content      string `json:"boundVolumeSnapshotContentName"`
		ReadyToUse   bool   `json:"readyToUse"`
		RestoreSize  string `json:"restoreSize"`
		CreationTime string `json:"creationTime"`
		Error        *struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"status"`
}

// parseClaims reads namespace/name of claims.
func parseClaims(in []string) ([]types.NamespacedName, error) {
	var out []types.NamespacedName
	for _, s := range in {
		ns, name, ok := strings.Cut(s, "/")
		if !ok || ns == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("claim %q: want NAMESPACE/NAME, as in shop/data", s)
		}
		if c := (types.NamespacedName{Namespace: ns, Name: name}); !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out, nil
}

// labelValue cuts a backup's name to what a label may hold.
func labelValue(name string) string { return strings.TrimRight(name[:min(len(name), 63)], "._-") }

func snapshotPath(namespace, name string) string {
	return strings.TrimSuffix(snapshotAPI+"/namespaces/"+namespace+"/volumesnapshots/"+name, "/")
}

// volumeSnapshots takes a CSI snapshot of each chosen claim and waits until it
// is ready. It comes before etcd's, so that the snapshot of etcd holds these objects.
func (c *creation) volumeSnapshots(ctx context.Context) error {
	api, err := newAPIClient(c.o.REST)
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	if _, err := api.get(ctx, snapshotAPI); apierrors.IsNotFound(err) {
		return errors.New("the cluster serves no VolumeSnapshots: install the external snapshotter and its CustomResourceDefinitions, or leave --snapshot-claims out")
	} else if err != nil {
		return fmt.Errorf("ask for VolumeSnapshots: %w", err)
	}
	// All are looked at before any is taken.
	for _, claim := range c.claims {
		pvc, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("claim %s: %w", claim, err)
		}
		if pvc.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("claim %s is %s: only a bound claim has a volume to take a snapshot of", claim, pvc.Status.Phase)
		}
	}
	part := Part{Name: "snapshots", Status: PartComplete}
	for _, claim := range c.claims {
		s, err := c.takeSnapshot(ctx, api, claim)
		if err != nil {
			return err
		}
		// Noted before it is waited for: what was made is removed if the backup fails.
		c.m.VolumeSnapshots = append(c.m.VolumeSnapshots, s)
	}
	timeout := c.o.SnapshotTimeout
	if timeout <= 0 {
		timeout = defaultSnapshotTimeout
	}
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var ready []VolumeSnapshot
	for _, s := range c.m.VolumeSnapshots {
		err := c.awaitSnapshot(deadline, api, &s, timeout)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			part.Status = PartIncomplete
			part.Missing = append(part.Missing, fmt.Sprintf("claim %s: %v", s.Claim, err))
			if err := api.deleteSnapshot(ctx, s); err != nil {
				return err
			}
			continue
		}
		ready = append(ready, s)
	}
	c.m.VolumeSnapshots = ready
	part.Detail = fmt.Sprintf("%d of %d claims have a CSI snapshot that is ready", len(ready), len(c.claims))
	c.add(part)
	return nil
}

func (c *creation) takeSnapshot(ctx context.Context, api *apiClient, claim types.NamespacedName) (VolumeSnapshot, error) {
	spec := map[string]any{"source": map[string]any{"persistentVolumeClaimName": claim.Name}}
	if c.o.SnapshotClass != "" {
		spec["volumeSnapshotClassName"] = c.o.SnapshotClass
	}
	name := claim.Name[:min(len(claim.Name), 200)] + "-" + strings.ToLower(c.m.Started.Format(timeFormat))
	body, err := json.Marshal(map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"name": name, "namespace": claim.Namespace, "labels": map[string]any{BackupLabel: labelValue(c.name)}},
		"spec":     spec,
	})
	if err != nil {
		return VolumeSnapshot{}, err
	}
	raw, err := api.do(ctx, "POST", api.base.JoinPath(snapshotPath(claim.Namespace, "")).String(), "application/json", body)
	if err != nil {
		return VolumeSnapshot{}, fmt.Errorf("take a snapshot of claim %s: %w", claim, err)
	}
	var o snapshotObject
	if err := json.Unmarshal(raw, &o); err != nil {
		return VolumeSnapshot{}, fmt.Errorf("VolumeSnapshot %s/%s: %w", claim.Namespace, name, err)
	}
	return VolumeSnapshot{Claim: claim.String(), Namespace: claim.Namespace, Name: o.Metadata.Name, UID: string(o.Metadata.UID), Class: o.Spec.Class}, nil
}

// awaitSnapshot waits until a snapshot is ready to be restored from, and notes what it is.
func (c *creation) awaitSnapshot(ctx context.Context, api *apiClient, s *VolumeSnapshot, timeout time.Duration) error {
	var o snapshotObject
	err := condition.Wait(ctx, condition.Condition{Name: fmt.Sprintf("VolumeSnapshot %s/%s to be ready", s.Namespace, s.Name), Check: func(ctx context.Context) error {
		raw, err := api.get(ctx, snapshotPath(s.Namespace, s.Name))
		if apierrors.IsNotFound(err) {
			return condition.Final(errors.New("somebody removed it"))
		}
		if err != nil {
			return err
		}
		o = snapshotObject{}
		if err := json.Unmarshal(raw, &o); err != nil {
			return condition.Final(err)
		}
		switch {
		case string(o.Metadata.UID) != s.UID:
			return condition.Final(errors.New("somebody made another one of that name"))
		case o.Status == nil:
			return condition.NotYetf("the snapshot controller has not seen it; does one run?")
		case o.Status.ReadyToUse && o.Status.Content != "":
			return nil
		case o.Status.Error != nil:
			// The driver tries again: only the time-out makes it a failure.
			return condition.NotYetf("%s", o.Status.Error.Message)
		}
		return condition.NotYetf("the storage system is at it")
	}}, condition.Options{Timeout: timeout, Interval: time.Second, OnChange: func(why string) {
		c.sink.Emit(event.Event{Time: time.Now(), Type: event.StepProgress, Run: "backup", Step: "snapshots", Subject: s.Claim, Msg: "waiting for the snapshot of " + s.Claim + ": " + why})
	}})
	if err != nil {
		return err
	}
	s.Class, s.Content, s.RestoreSize, s.TakenAt = o.Spec.Class, o.Status.Content, o.Status.RestoreSize, o.Status.CreationTime
	raw, err := api.get(ctx, snapshotAPI+"/volumesnapshotcontents/"+s.Content)
	if err != nil {
		return fmt.Errorf("VolumeSnapshotContent %s: %w", s.Content, err)
	}
	var content struct {
		Spec struct {
			Driver         string `json:"driver"`
			DeletionPolicy string `json:"deletionPolicy"`
		} `json:"spec"`
		Status struct {
			Handle string `json:"snapshotHandle"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &content); err != nil {
		return fmt.Errorf("VolumeSnapshotContent %s: %w", s.Content, err)
	}
	s.Driver, s.DeletionPolicy, s.Handle = content.Spec.Driver, content.Spec.DeletionPolicy, content.Status.Handle
	return nil
}

// deleteSnapshot removes the very object, and none of its name that somebody else made.
func (c *apiClient) deleteSnapshot(ctx context.Context, s VolumeSnapshot) error {
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: &metav1.Preconditions{UID: (*types.UID)(&s.UID)},
	})
	if err != nil {
		return err
	}
	_, err = c.do(ctx, "DELETE", c.base.JoinPath(snapshotPath(s.Namespace, s.Name)).String(), "application/json", body)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove VolumeSnapshot %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// DeleteVolumeSnapshots removes the snapshots of a backup that is about to be
// removed. Those that are gone already are no error.
func DeleteVolumeSnapshots(ctx context.Context, cfg *rest.Config, snapshots []VolumeSnapshot) error {
	api, err := newAPIClient(cfg)
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	var errs []error
	for _, s := range snapshots {
		errs = append(errs, api.deleteSnapshot(ctx, s))
	}
	return errors.Join(errs...)
}

// undoSnapshots removes what was made for a backup that came to nothing.
func (c *creation) undoSnapshots(ctx context.Context) error {
	if len(c.m.VolumeSnapshots) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return DeleteVolumeSnapshots(ctx, c.o.REST, c.m.VolumeSnapshots)
}
