package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// DiffSchema names the format of a Diff.
const DiffSchema = "belay.dev/backup-diff/v1"

// Diff says what appeared, vanished and changed between two looks at a cluster.
type Diff struct {
	Schema string `json:"schema"`
	// From and To are directories of backups, or the URL of the live cluster's API.
	From string `json:"from"`
	To   string `json:"to"`
	// Resources are those with a difference.
	Resources []ResourceDiff `json:"resources,omitempty"`
	// Claims are those that are not mounted as they were.
	Claims []ClaimDiff `json:"claims,omitempty"`
	// NotCompared names the resources that were left out, each with the reason.
	NotCompared []string `json:"notCompared,omitempty"`
	// Compared counts the objects that were looked at on both sides together.
	Compared int `json:"compared"`
}

// Empty says whether no difference was found.
func (d *Diff) Empty() bool { return len(d.Resources) == 0 && len(d.Claims) == 0 }

// ResourceDiff is what differs in one resource.
type ResourceDiff struct {
	Resource string         `json:"resource"`
	Appeared []string       `json:"appeared,omitempty"`
	Vanished []string       `json:"vanished,omitempty"`
	Changed  []ObjectChange `json:"changed,omitempty"`
}

// ObjectChange is one object with what changed in it.
type ObjectChange struct {
	Object string `json:"object"`
	// Recreated says that it is another object of the same name.
	Recreated bool `json:"recreated,omitempty"`
	// Fields are the top-level fields that differ, and of metadata the second level.
	Fields []string `json:"fields,omitempty"`
}

// ClaimDiff is a claim that is not bound, attached or mounted as it was.
type ClaimDiff struct {
	Claim    string   `json:"claim"`
	Problems []string `json:"problems"`
}

// DiffOptions say how to compare.
type DiffOptions struct {
	Identities []age.Identity
	// Status compares status, too; All compares the resources that change all the time.
	Status, All bool
	Sink        event.Sink
}

// restless are resources that change in a cluster at rest.
var restless = []string{"events.events.k8s.io", "events", "leases.coordination.k8s.io", "endpoints", "endpointslices.discovery.k8s.io", "masterleases"}

// source is one side of a comparison.
type source interface {
	name() string
	lineage() string
	// resources gives the version of each that is at hand, and whether it can be read.
	resources() map[string]sourceResource
	// each gives every object of a resource, at the given version where there is a choice.
	each(ctx context.Context, id, version string, fn func([]byte) error) error
	mounts(ctx context.Context) (*Mounts, error)
}

type sourceResource struct {
	version  string
	versions []string
	// unreadable says why its objects cannot be given.
	unreadable string
}

// backupSource reads a backup.
type backupSource struct {
	dir string
	m   *Manifest
	ids []age.Identity
}

func newBackupSource(dir string, ids []age.Identity) (*backupSource, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return nil, err
	}
	return &backupSource{dir, m, ids}, nil
}

func (s *backupSource) name() string    { return s.dir }
func (s *backupSource) lineage() string { return s.m.Lineage }

func (r *ResourcePart) id() string { return resource{group: r.Group, name: r.Resource}.id() }

func (s *backupSource) resources() map[string]sourceResource {
	out := map[string]sourceResource{}
	for i := range s.m.Resources {
		p := &s.m.Resources[i]
		r := sourceResource{version: p.Version, versions: []string{p.Version}}
		if p.File == "" && p.Count > 0 {
			r.unreadable = "its objects are not in the object part of " + s.dir
		}
		out[p.id()] = r
	}
	return out
}

func (s *backupSource) each(ctx context.Context, id, _ string, fn func([]byte) error) error {
	for i := range s.m.Resources {
		p := &s.m.Resources[i]
		if p.id() != id || p.File == "" {
			continue
		}
		f := s.m.File(p.File)
		if f == nil {
			return &DamagedError{s.dir, "the manifest lists no file " + p.File}
		}
		// The digest first: what is decoded is then what was written.
		if err := checkFile(ctx, s.dir, f); err != nil {
			return err
		}
		r, err := s.m.open(s.dir, f, s.ids)
		if err != nil {
			return err
		}
		err = readLines(&ctxReader{ctx, r}, fn)
		return errors.Join(err, r.Close())
	}
	return nil
}

func (s *backupSource) mounts(ctx context.Context) (*Mounts, error) {
	for i := range s.m.Files {
		f := &s.m.Files[i]
		if strings.TrimSuffix(f.Path, ageSuffix) != mountsName {
			continue
		}
		if err := checkFile(ctx, s.dir, f); err != nil {
			return nil, err
		}
		r, err := s.m.open(s.dir, f, s.ids)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		var m Mounts
		if err := json.NewDecoder(r).Decode(&m); err != nil {
			return nil, &DamagedError{f.Path, err.Error()}
		}
		return &m, nil
	}
	return nil, nil
}

// liveSource reads a cluster.
type liveSource struct {
	api *apiClient
	cat *catalogue
	uid string
}

func newLiveSource(ctx context.Context, cfg *rest.Config) (*liveSource, error) {
	api, err := newAPIClient(cfg)
	if err != nil {
		return nil, err
	}
	s := &liveSource{api: api}
	if s.cat, err = api.catalogue(ctx); err != nil {
		return nil, err
	}
	raw, err := api.get(ctx, "/api/v1/namespaces/kube-system")
	if err != nil {
		return nil, fmt.Errorf("read the cluster's identity: %w", err)
	}
	id, err := identify(raw)
	s.uid = id.UID
	return s, err
}

// get reads one object.
func (c *apiClient) get(ctx context.Context, path string) (json.RawMessage, error) {
	u := c.base.JoinPath(path)
	return c.do(ctx, "GET", u.String(), "", nil)
}

// version asks the cluster for its version.
func (s *liveSource) version() (kubeversion.V, error) {
	info, err := s.api.disc.ServerVersion()
	if err != nil {
		return kubeversion.V{}, fmt.Errorf("read the cluster's version: %w", err)
	}
	return kubeversion.Parse(info.GitVersion)
}

func (s *liveSource) name() string    { return s.api.base.String() }
func (s *liveSource) lineage() string { return s.uid }

func (s *liveSource) resources() map[string]sourceResource {
	out := map[string]sourceResource{}
	served := map[string]bool{}
	for _, r := range s.cat.resources {
		served[r.id()] = true
	}
	for _, r := range s.cat.resources {
		if alias := aliases[r.id()]; alias == "" || !served[alias] {
			out[r.id()] = sourceResource{version: r.version, versions: r.versions}
		}
	}
	return out
}

func (s *liveSource) each(ctx context.Context, id, version string, fn func([]byte) error) error {
	for _, r := range s.cat.resources {
		if r.id() != id {
			continue
		}
		if slices.Contains(r.versions, version) {
			r.version = version
		}
		_, err := s.api.list(ctx, r.path(), "", func(raw json.RawMessage) error { return fn(raw) })
		return err
	}
	return nil
}

func (s *liveSource) mounts(ctx context.Context) (*Mounts, error) {
	c := newMountCollector()
	for _, r := range s.cat.resources {
		switch r.id() {
		case "persistentvolumeclaims", "persistentvolumes", "volumeattachments.storage.k8s.io", "pods":
			if _, err := s.api.list(ctx, r.path(), "", func(raw json.RawMessage) error { return c.see(r, raw) }); err != nil {
				return nil, err
			}
		}
	}
	return c.result(), nil
}

// DiffBackups compares two backups of one cluster.
func DiffBackups(ctx context.Context, from, to string, o DiffOptions) (*Diff, error) {
	a, err := newBackupSource(from, o.Identities)
	if err != nil {
		return nil, err
	}
	b, err := newBackupSource(to, o.Identities)
	if err != nil {
		return nil, err
	}
	return diff(ctx, a, b, o)
}

// DiffLive compares a backup with the live cluster.
func DiffLive(ctx context.Context, from string, cfg *rest.Config, o DiffOptions) (*Diff, error) {
	a, err := newBackupSource(from, o.Identities)
	if err != nil {
		return nil, err
	}
	b, err := newLiveSource(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return diff(ctx, a, b, o)
}

func diff(ctx context.Context, a, b source, o DiffOptions) (*Diff, error) {
	if a.lineage() != b.lineage() {
		return nil, &LineageError{What: a.name(), Got: a.lineage(), Want: b.lineage()}
	}
	sink := event.Or(o.Sink)
	d := &Diff{Schema: DiffSchema, From: a.name(), To: b.name()}
	left, right := a.resources(), b.resources()
	ids := sortedKeys(left)
	for id := range right {
		if _, ok := left[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for i, id := range ids {
		if i%20 == 0 {
			sink.Emit(event.Event{Time: time.Now(), Type: event.StepProgress, Run: "diff", Step: "objects", Msg: fmt.Sprintf("compare objects: %d of %d resources", i, len(ids))})
		}
		if !o.All && slices.Contains(restless, id) {
			d.NotCompared = append(d.NotCompared, id+": changes all the time")
			continue
		}
		l, r := left[id], right[id]
		if why := l.unreadable + r.unreadable; why != "" {
			d.NotCompared = append(d.NotCompared, id+": "+why)
			continue
		}
		_, inLeft := left[id]
		_, inRight := right[id]
		content := true
		if inLeft && inRight && l.version != r.version && !slices.Contains(r.versions, l.version) {
			d.NotCompared = append(d.NotCompared, fmt.Sprintf("%s: content, as %s is no longer served; names were compared", id, l.version))
			content = false
		}
		rd, n, err := diffResource(ctx, a, b, id, l.version, content, o.Status)
		d.Compared += n
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			d.NotCompared = append(d.NotCompared, fmt.Sprintf("%s: %v", id, err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("compare %s: %w", id, err)
		}
		if len(rd.Appeared)+len(rd.Vanished)+len(rd.Changed) > 0 {
			d.Resources = append(d.Resources, rd)
		}
	}
	before, err := a.mounts(ctx)
	if err != nil {
		return nil, err
	}
	after, err := b.mounts(ctx)
	if err != nil {
		return nil, err
	}
	if before == nil || after == nil {
		d.NotCompared = append(d.NotCompared, "volumes: a backup holds no mount map")
		return d, nil
	}
	d.Claims = diffMounts(before, after)
	return d, nil
}

// summary is what is kept of an object while the other side is read.
type summary struct {
	uid    string
	fields map[string][8]byte
}

func diffResource(ctx context.Context, a, b source, id, version string, content, status bool) (ResourceDiff, int, error) {
	rd := ResourceDiff{Resource: id}
	n := 0
	old := map[string]summary{}
	err := a.each(ctx, id, version, func(raw []byte) error {
		n++
		key, s, err := summarize(raw, content, status)
		old[key] = s
		return err
	})
	if err != nil {
		return rd, n, err
	}
	err = b.each(ctx, id, version, func(raw []byte) error {
		n++
		key, s, err := summarize(raw, content, status)
		if err != nil {
			return err
		}
		was, ok := old[key]
		if !ok {
			rd.Appeared = append(rd.Appeared, key)
			return nil
		}
		delete(old, key)
		c := ObjectChange{Object: key, Recreated: was.uid != s.uid}
		for f, h := range s.fields {
			if was.fields[f] != h {
				c.Fields = append(c.Fields, f)
			}
		}
		for f := range was.fields {
			if _, ok := s.fields[f]; !ok {
				c.Fields = append(c.Fields, f)
			}
		}
		if c.Recreated || len(c.Fields) > 0 {
			slices.Sort(c.Fields)
			rd.Changed = append(rd.Changed, c)
		}
		return nil
	})
	rd.Vanished = sortedKeys(old)
	slices.Sort(rd.Appeared)
	slices.SortFunc(rd.Changed, func(x, y ObjectChange) int { return strings.Compare(x.Object, y.Object) })
	if len(rd.Vanished) == 0 {
		rd.Vanished = nil
	}
	return rd, n, err
}

// bookkeeping are fields of metadata that change with every write, or never for one UID.
var bookkeeping = []string{"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "name", "namespace", "selfLink"}

// summarize keeps a digest of every field of an object.
func summarize(raw []byte, content, status bool) (string, summary, error) {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(raw, &o); err != nil {
		return "", summary{}, err
	}
	var meta map[string]json.RawMessage
	if err := json.Unmarshal(o["metadata"], &meta); err != nil {
		return "", summary{}, err
	}
	var id identity
	if err := json.Unmarshal(o["metadata"], &id); err != nil {
		return "", summary{}, err
	}
	key := id.Name
	if id.Namespace != "" {
		key = id.Namespace + "/" + id.Name
	}
	s := summary{uid: id.UID}
	if !content {
		return key, s, nil
	}
	s.fields = map[string][8]byte{}
	put := func(name string, v json.RawMessage) error {
		c, err := canonical(v)
		if err != nil {
			return err
		}
		if string(c) == "null" || string(c) == "{}" {
			return nil // a field that is not set may be written or left out
		}
		sum := sha256.Sum256(c)
		s.fields[name] = [8]byte(sum[:8])
		return nil
	}
	for name, v := range o {
		switch name {
		case "apiVersion", "kind", "metadata":
			continue
		case "status":
			if !status {
				continue
			}
		}
		if err := put(name, v); err != nil {
			return "", s, err
		}
	}
	for name, v := range meta {
		if slices.Contains(bookkeeping, name) {
			continue
		}
		if err := put("metadata."+name, v); err != nil {
			return "", s, err
		}
	}
	return key, s, nil
}

// canonical gives a value with sorted names and no white space.
func canonical(raw json.RawMessage) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return json.Marshal(v)
}

// diffMounts tells of every claim that was bound or mounted, and is so no longer.
func diffMounts(before, after *Mounts) []ClaimDiff {
	now := map[string]*Claim{}
	for i := range after.Claims {
		now[after.Claims[i].ID()] = &after.Claims[i]
	}
	var out []ClaimDiff
	for i := range before.Claims {
		was := &before.Claims[i]
		if p := claimProblems(was, now[was.ID()]); len(p) > 0 {
			out = append(out, ClaimDiff{Claim: was.ID(), Problems: p})
		}
	}
	return out
}

func claimProblems(was, is *Claim) []string {
	if is == nil {
		return []string{"the claim is gone"}
	}
	var out []string
	if was.Volume != nil {
		switch {
		case is.Volume == nil:
			return append(out, fmt.Sprintf("it is no longer bound: phase %s", is.Phase))
		case is.Volume.Driver != was.Volume.Driver || is.Volume.Handle != was.Volume.Handle:
			out = append(out, fmt.Sprintf("it is another volume: %s %s, was %s %s", is.Volume.Driver, is.Volume.Handle, was.Volume.Driver, was.Volume.Handle))
		}
	}
	running := func(c *Claim) (out []PodMount) {
		for _, p := range c.Pods {
			if p.Phase == "Running" {
				out = append(out, p)
			}
		}
		return out
	}
	before, now := running(was), running(is)
	if len(before) > 0 && len(now) == 0 {
		names := make([]string, len(before))
		for i, p := range before {
			names[i] = p.Name
		}
		out = append(out, "no running pod mounts it any more; before: "+strings.Join(names, ", "))
	}
	// Only a driver that attaches has attachments; whether it does shows in the state before.
	if was.Volume == nil || is.Volume == nil || len(was.Volume.Attachments) == 0 {
		return out
	}
	for _, p := range now {
		attached := slices.ContainsFunc(is.Volume.Attachments, func(a Attachment) bool { return a.Node == p.Node && a.Attached })
		if !attached {
			out = append(out, fmt.Sprintf("pod %s runs on %s, where the volume is not attached", p.Name, p.Node))
		}
	}
	return out
}
