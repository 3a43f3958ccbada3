package backup

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// MountsSchema names the format of the mount map.
const MountsSchema = "belay.dev/mounts/v1"

// mountsName is where the mount map lies in a backup.
const mountsName = "volumes/mounts.json"

// Mounts says which claim is which volume, where that is attached, and which
// pods mount it where.
type Mounts struct {
	Schema string  `json:"schema"`
	Claims []Claim `json:"claims"`
	// Unclaimed are the volumes without a claim that exists: released, available, failed.
	Unclaimed []Volume `json:"unclaimed,omitempty"`
}

// Claim is a PersistentVolumeClaim.
type Claim struct {
	Namespace   string   `json:"namespace"`
	Name        string   `json:"name"`
	UID         string   `json:"uid"`
	Phase       string   `json:"phase"`
	Class       string   `json:"class,omitempty"`
	AccessModes []string `json:"accessModes,omitempty"`
	Requested   string   `json:"requested,omitempty"`
	// Volume is nil while the claim is pending, or when its volume is lost.
	Volume *Volume    `json:"volume,omitempty"`
	Pods   []PodMount `json:"pods,omitempty"`
}

// ID gives namespace/name.
func (c *Claim) ID() string { return c.Namespace + "/" + c.Name }

// Volume is a PersistentVolume.
type Volume struct {
	Name          string   `json:"name"`
	UID           string   `json:"uid"`
	Phase         string   `json:"phase"`
	Class         string   `json:"class,omitempty"`
	Driver        string   `json:"driver"`
	Handle        string   `json:"handle"`
	ReclaimPolicy string   `json:"reclaimPolicy"`
	AccessModes   []string `json:"accessModes,omitempty"`
	Capacity      string   `json:"capacity,omitempty"`
	// Claim is the one that it is or was bound to, as namespace/name.
	Claim       string       `json:"claim,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
	claimUID    string
}

// Attachment is a VolumeAttachment.
type Attachment struct {
	Node     string `json:"node"`
	Attached bool   `json:"attached"`
	Error    string `json:"error,omitempty"`
}

// PodMount is a pod that uses a claim.
type PodMount struct {
	Name   string `json:"name"`
	UID    string `json:"uid"`
	Node   string `json:"node,omitempty"`
	Phase  string `json:"phase"`
	Owner  string `json:"owner,omitempty"`
	Mounts []At   `json:"mounts,omitempty"`
}

// At is one place within a container.
type At struct {
	Container string `json:"container"`
	// Path is a directory, or a device when Device is set.
	Path     string `json:"path"`
	SubPath  string `json:"subPath,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	Device   bool   `json:"device,omitempty"`
}

// mountCollector builds the mount map of objects as they pass by.
type mountCollector struct {
	mu          sync.Mutex
	claims      map[string]*Claim
	volumes     map[string]*Volume
	attachments map[string][]Attachment
	pods        map[string][]PodMount // by claim
}

func newMountCollector() *mountCollector {
	return &mountCollector{claims: map[string]*Claim{}, volumes: map[string]*Volume{}, attachments: map[string][]Attachment{}, pods: map[string][]PodMount{}}
}

// reset forgets what was seen of a resource, whose list begins anew.
func (m *mountCollector) reset(r resource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r.id() {
	case "persistentvolumeclaims":
		clear(m.claims)
	case "persistentvolumes":
		clear(m.volumes)
	case "volumeattachments.storage.k8s.io":
		clear(m.attachments)
	case "pods":
		clear(m.pods)
	}
}

// see takes note of an object that has to do with volumes.
func (m *mountCollector) see(r resource, raw json.RawMessage) error {
	var err error
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r.id() {
	case "persistentvolumeclaims":
		var o corev1.PersistentVolumeClaim
		if err = json.Unmarshal(raw, &o); err == nil {
			m.claim(&o)
		}
	case "persistentvolumes":
		var o corev1.PersistentVolume
		if err = json.Unmarshal(raw, &o); err == nil {
			m.volume(&o)
		}
	case "volumeattachments.storage.k8s.io":
		var o storagev1.VolumeAttachment
		if err = json.Unmarshal(raw, &o); err == nil {
			m.attachment(&o)
		}
	case "pods":
		// Most pods use no claim, and decoding one whole is dear.
		if bytes.Contains(raw, []byte(`"persistentVolumeClaim"`)) || bytes.Contains(raw, []byte(`"ephemeral"`)) {
			var o corev1.Pod
			if err = json.Unmarshal(raw, &o); err == nil {
				m.pod(&o)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("mount map: an object of %s: %w", r.id(), err)
	}
	return nil
}

func (m *mountCollector) claim(o *corev1.PersistentVolumeClaim) {
	c := &Claim{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Phase: string(o.Status.Phase), AccessModes: modes(o.Spec.AccessModes)}
	if o.Spec.StorageClassName != nil {
		c.Class = *o.Spec.StorageClassName
	}
	if q, ok := o.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		c.Requested = q.String()
	}
	if o.Spec.VolumeName != "" {
		c.Volume = &Volume{Name: o.Spec.VolumeName}
	}
	m.claims[c.ID()] = c
}

func (m *mountCollector) volume(o *corev1.PersistentVolume) {
	v := &Volume{
		Name: o.Name, UID: string(o.UID), Phase: string(o.Status.Phase), Class: o.Spec.StorageClassName,
		ReclaimPolicy: string(o.Spec.PersistentVolumeReclaimPolicy), AccessModes: modes(o.Spec.AccessModes),
	}
	v.Driver, v.Handle = volumeSource(&o.Spec.PersistentVolumeSource)
	if q, ok := o.Spec.Capacity[corev1.ResourceStorage]; ok {
		v.Capacity = q.String()
	}
	if r := o.Spec.ClaimRef; r != nil {
		v.Claim, v.claimUID = r.Namespace+"/"+r.Name, string(r.UID)
	}
	m.volumes[v.Name] = v
}

// volumeSource names the driver and what it calls the volume. In-tree kinds have no handle of their own.
func volumeSource(s *corev1.PersistentVolumeSource) (driver, handle string) {
	switch {
	case s.CSI != nil:
		return s.CSI.Driver, s.CSI.VolumeHandle
	case s.Local != nil:
		return "kubernetes.io/local-volume", s.Local.Path
	case s.HostPath != nil:
		return "kubernetes.io/host-path", s.HostPath.Path
	case s.NFS != nil:
		return "kubernetes.io/nfs", s.NFS.Server + ":" + s.NFS.Path
	case s.ISCSI != nil:
		return "kubernetes.io/iscsi", fmt.Sprintf("%s/%s/%d", s.ISCSI.TargetPortal, s.ISCSI.IQN, s.ISCSI.Lun)
	case s.FC != nil:
		return "kubernetes.io/fc", strings.Join(append(s.FC.TargetWWNs, s.FC.WWIDs...), ",")
	}
	return "in-tree", ""
}

func modes(in []corev1.PersistentVolumeAccessMode) []string {
	var out []string
	for _, m := range in {
		out = append(out, string(m))
	}
	return out
}

func (m *mountCollector) attachment(o *storagev1.VolumeAttachment) {
	if o.Spec.Source.PersistentVolumeName == nil {
		return
	}
	a := Attachment{Node: o.Spec.NodeName, Attached: o.Status.Attached}
	if e := o.Status.AttachError; e != nil {
		a.Error = e.Message
	}
	m.attachments[*o.Spec.Source.PersistentVolumeName] = append(m.attachments[*o.Spec.Source.PersistentVolumeName], a)
}

func (m *mountCollector) pod(o *corev1.Pod) {
	for _, v := range o.Spec.Volumes {
		claim := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			claim = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			// Source: https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#persistentvolumeclaim-naming
			claim = o.Name + "-" + v.Name
		default:
			continue
		}
		p := PodMount{Name: o.Name, UID: string(o.UID), Node: o.Spec.NodeName, Phase: string(o.Status.Phase)}
		for _, r := range o.OwnerReferences {
			if r.Controller != nil && *r.Controller {
				p.Owner = r.Kind + "/" + r.Name
			}
		}
		for _, c := range slices.Concat(o.Spec.InitContainers, o.Spec.Containers) {
			for _, vm := range c.VolumeMounts {
				if vm.Name == v.Name {
					p.Mounts = append(p.Mounts, At{Container: c.Name, Path: vm.MountPath, SubPath: cmp.Or(vm.SubPath, vm.SubPathExpr), ReadOnly: vm.ReadOnly})
				}
			}
			for _, d := range c.VolumeDevices {
				if d.Name == v.Name {
					p.Mounts = append(p.Mounts, At{Container: c.Name, Path: d.DevicePath, Device: true})
				}
			}
		}
		id := o.Namespace + "/" + claim
		m.pods[id] = append(m.pods[id], p)
	}
}

// result joins what was seen.
func (m *mountCollector) result() *Mounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &Mounts{Schema: MountsSchema, Claims: []Claim{}}
	for name, as := range m.attachments {
		if v := m.volumes[name]; v != nil {
			slices.SortFunc(as, func(a, b Attachment) int { return cmp.Compare(a.Node, b.Node) })
			v.Attachments = as
		}
	}
	used := map[string]bool{}
	for _, id := range sortedKeys(m.claims) {
		c := *m.claims[id]
		if c.Volume != nil {
			v := m.volumes[c.Volume.Name]
			c.Volume = v
			if v != nil {
				used[v.Name] = true
			}
		}
		c.Pods = m.pods[id]
		slices.SortFunc(c.Pods, func(a, b PodMount) int { return cmp.Compare(a.Name, b.Name) })
		out.Claims = append(out.Claims, c)
	}
	for _, name := range sortedKeys(m.volumes) {
		if !used[name] {
			out.Unclaimed = append(out.Unclaimed, *m.volumes[name])
		}
	}
	return out
}

// mounts writes the mount map.
func (c *creation) mounts(m *mountCollector) error {
	r := m.result()
	b, err := encode(r)
	if err != nil {
		return fmt.Errorf("write the mount map: %w", err)
	}
	if err := c.d.writeFile(mountsName, false, b, "", 0); err != nil {
		return err
	}
	part := Part{Name: "volumes", Status: PartComplete, Detail: fmt.Sprintf("%d claims, %d volumes without one", len(r.Claims), len(r.Unclaimed))}
	// Without any of these lists the map has holes.
	for _, p := range c.m.Parts {
		if p.Name != "objects" {
			continue
		}
		for _, missing := range p.Missing {
			for _, need := range []string{"persistentvolumeclaims:", "persistentvolumes:", "volumeattachments.storage.k8s.io:", "pods:"} {
				if strings.HasPrefix(missing, need) {
					part.Status = PartIncomplete
					part.Missing = append(part.Missing, missing)
				}
			}
		}
	}
	c.add(part)
	return nil
}
