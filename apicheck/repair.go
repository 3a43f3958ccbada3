package apicheck

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/apicheck/convert"
	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/schema"
	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// RepairSchema names the format of a RepairReport.
const RepairSchema = "belay.dev/helm-repair/v1"

// maxRecord is what the apiserver takes for the data of one Secret or ConfigMap.
const maxRecord = 1 << 20

// RepairOptions says which Helm releases to repair.
type RepairOptions struct {
	RESTConfig *rest.Config
	// To is the minor that the releases must be upgradable at. Required.
	To kubeversion.Minor
	// Namespaces and Releases choose; empty for all.
	Namespaces, Releases []string
	// DryRun only says what would be done.
	DryRun bool
	// Drop cuts documents without a successor out of the record. The objects are not touched.
	Drop bool
	// BackupDir is where the records are written before anything changes; required unless DryRun. The files hold what
	// the releases' Secrets hold and can be read by their owner only.
	BackupDir string
	DB        *lifecycle.DB
	Events    event.Sink
	Now       func() time.Time
	Patience  time.Duration
}

// RepairStatus says what became of a release.
type RepairStatus string

// The statuses.
const (
	// ReleaseClean: nothing to repair.
	ReleaseClean RepairStatus = "clean"
	// ReleaseRepaired: a new revision was written, the old one superseded.
	ReleaseRepaired RepairStatus = "repaired"
	// ReleaseWould: it would be repaired, without DryRun.
	ReleaseWould RepairStatus = "would-repair"
	// ReleaseRefused: it cannot be repaired as a whole, so nothing of it was changed.
	ReleaseRefused RepairStatus = "refused"
	// ReleaseUnread: its record could not be read, or the outcome of writing is not known.
	ReleaseUnread RepairStatus = "unknown"
)

// RepairReport is what became of every chosen release.
type RepairReport struct {
	Schema   string            `json:"schema"`
	To       kubeversion.Minor `json:"to"`
	Releases []RepairedRelease `json:"releases"`
	// Unreadable is what could not be listed.
	Unreadable []Unread `json:"unreadable"`
}

// RepairedRelease is what became of one release.
type RepairedRelease struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Status    RepairStatus `json:"status"`
	// Revision is the revision that was read, NewRevision the one that was written.
	Revision    int             `json:"revision"`
	NewRevision int             `json:"newRevision,omitempty"`
	Changes     []ReleaseChange `json:"changes,omitempty"`
	// Why says what stands in the way, Backup where the old records are.
	Why    string `json:"why,omitempty"`
	Backup string `json:"backup,omitempty"`
}

// ReleaseChange is one document of a release that was rewritten.
type ReleaseChange struct {
	Hook    string            `json:"hook,omitempty"`
	From    string            `json:"from"`
	To      string            `json:"to,omitempty"`
	Name    string            `json:"name,omitempty"`
	Rewrite lifecycle.Rewrite `json:"rewrite"`
	Notes   []string          `json:"notes,omitempty"`
}

// RepairHelm rewrites the records of Helm releases that name APIs which the target does not serve, so that the next
// helm upgrade can read them: Helm maps every object of the deployed revision, and fails on the first it cannot. Only
// records change, never the objects: the apiserver has them in the new version already. Each release is repaired as
// a whole or not at all: a backup of its records, then a new revision, then the old one marked as superseded.
func RepairHelm(ctx context.Context, o RepairOptions) (RepairReport, error) {
	rep := RepairReport{Schema: RepairSchema, To: o.To, Releases: []RepairedRelease{}, Unreadable: []Unread{}}
	if o.DB == nil {
		var err error
		if o.DB, err = lifecycle.Default(); err != nil {
			return rep, err
		}
	}
	if o.To == (kubeversion.Minor{}) {
		return rep, errors.New("repair helm releases: no target minor")
	}
	if o.BackupDir == "" && !o.DryRun {
		return rep, errors.New("repair helm releases: no directory for the backup of their records")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Events = event.Or(o.Events)
	l, err := connect(ctx, Options{RESTConfig: o.RESTConfig, Patience: o.Patience})
	if err != nil {
		return rep, err
	}
	from := l.version
	if o.To.Compare(from) < 0 {
		from = o.To
	}
	j := &judge{db: o.DB, from: from, to: o.To, names: &harmlessNames{}}
	c := j.collector()
	l.namespacesExist(ctx, o.Namespaces, c)
	byRelease := l.allRecords(ctx, o.Namespaces, c)
	rep.Unreadable = append(rep.Unreadable, c.unreadable...)
	var keys [][3]string
	for k := range byRelease {
		if len(o.Releases) == 0 || slices.Contains(o.Releases, k[1]) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b [3]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]), cmp.Compare(a[2], b[2]))
	})
	for _, name := range o.Releases {
		if !slices.ContainsFunc(keys, func(k [3]string) bool { return k[1] == name }) {
			rep.Releases = append(rep.Releases, RepairedRelease{Name: name, Status: ReleaseUnread, Why: "there is no such release in the chosen namespaces"})
		}
	}
	for i, k := range keys {
		if ctx.Err() != nil {
			return rep, ctx.Err()
		}
		o.Events.Emit(event.Event{Type: event.StepProgress, Step: "helm", Subject: k[0] + "/" + k[1], Index: i + 1, Total: len(keys), Msg: "reading the release"})
		rep.Releases = append(rep.Releases, l.repair(ctx, o, from, byRelease[k]))
	}
	return rep, nil
}

// repair repairs one release, given its records in any order.
func (l *liveCluster) repair(ctx context.Context, o RepairOptions, from kubeversion.Minor, records []record) RepairedRelease {
	picked := pick(records)
	latest, base := picked[0], picked[len(picked)-1]
	r := RepairedRelease{Namespace: base.namespace, Name: base.release, Revision: base.revision, Status: ReleaseClean}
	fail := func(s RepairStatus, format string, args ...any) RepairedRelease {
		r.Status, r.Why = s, fmt.Sprintf(format, args...)
		return r
	}
	obj, payload, err := l.record(ctx, base)
	if err != nil {
		return fail(ReleaseUnread, "read %s: %v", base.name, err)
	}
	asRead := string(obj["metadata"])
	var read struct{ Labels map[string]string }
	if err := json.Unmarshal(obj["metadata"], &read); err != nil {
		return fail(ReleaseUnread, "read %s: its metadata: %v", base.name, err)
	}
	if now := read.Labels["status"]; now != base.status {
		return fail(ReleaseRefused, "revision %d was %s when releases were listed, and is %s now: run it again", base.revision, base.status, now)
	}
	moved, err := moveRelease(o, from, payload)
	if err != nil {
		return fail(ReleaseUnread, "%s: %v", base.name, err)
	}
	r.Changes = moved.changes
	switch {
	case base.status == "uninstalled":
		r.Changes = nil
		if moved.needed() {
			r.Why = fmt.Sprintf("revision %d is uninstalled, and left as it is: helm upgrade does not start from it, only helm rollback would, and fail", base.revision)
		}
		return r
	case len(moved.gaps) > 0:
		r.Changes = nil
		return fail(ReleaseRefused, "%s", strings.Join(moved.gaps, "; "))
	case len(r.Changes) == 0 && latest == base:
		return r
	case len(r.Changes) == 0:
		return l.cleanButNewest(ctx, o, from, r, latest)
	case strings.HasPrefix(latest.status, "pending-"):
		return fail(ReleaseRefused, "revision %d is %s: an operation of Helm is under way, or was cut off; finish it or roll it back first", latest.revision, latest.status)
	}
	if base.status == "superseded" {
		return fail(ReleaseRefused, "no revision is deployed, the newest is superseded: helm rollback %s REVISION -n %s first, and run it again", r.Name, r.Namespace)
	}
	if strings.HasPrefix(base.status, "uninstall") {
		return fail(ReleaseRefused, "revision %d is %s: a new revision would bring the release back", base.revision, base.status)
	}
	r.NewRevision = latest.revision + 1
	payload["manifest"] = marshal(moved.manifest)
	if moved.hooks != nil {
		payload["hooks"] = marshal(moved.hooks)
	}
	fresh, err := l.freshRecord(o, obj, payload, base, r.NewRevision)
	if err != nil {
		return fail(ReleaseRefused, "%v", err)
	}
	if o.DryRun {
		r.Status = ReleaseWould
		return r
	}
	// Every deployed revision is superseded by the new one; interrupted upgrades leave several.
	var old []map[string]json.RawMessage
	var oldRecords []record
	toSupersede := []record{base}
	for _, rec := range records {
		if rec.status == "deployed" && rec != base {
			toSupersede = append(toSupersede, rec)
		}
	}
	for _, rec := range toSupersede {
		o2, p2, err := l.record(ctx, rec)
		if err != nil {
			return fail(ReleaseUnread, "read %s: %v", rec.name, err)
		}
		if rec == base && string(o2["metadata"]) != asRead {
			return fail(ReleaseRefused, "revision %d was changed while it was repaired: run it again", base.revision)
		}
		superseded, err := supersede(o, o2, p2, rec)
		if err != nil {
			return fail(ReleaseRefused, "%v", err)
		}
		old, oldRecords = append(old, superseded), append(oldRecords, rec)
	}
	if r.Backup, err = l.backup(ctx, o, records); err != nil {
		return fail(ReleaseRefused, "backup: %v", err)
	}
	// The name of the new revision is the lock: a Helm that runs at the same time wants the same one.
	path := []string{"api", "v1", "namespaces", base.namespace, base.driver}
	created, err := answer(l.raw.Post().AbsPath(path...).SetHeader("Content-Type", "application/json").Body([]byte(marshal(fresh))).Do(ctx))
	switch {
	case apierrors.IsAlreadyExists(err):
		return fail(ReleaseRefused, "revision %d has come into being meanwhile: run it again", r.NewRevision)
	case err != nil:
		return fail(ReleaseUnread, "write revision %d: %v; look with helm history %s -n %s", r.NewRevision, err, r.Name, r.Namespace)
	}
	if base.status != "deployed" {
		r.Status = ReleaseRepaired // a release that never was deployed: its newest failed revision counts
		return r
	}
	// Begun is finished: an interrupt between the two writes would leave the release in neither state.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for i, body := range old {
		_, err := answer(l.raw.Put().AbsPath(append(path, oldRecords[i].name)...).SetHeader("Content-Type", "application/json").Body([]byte(marshal(body))).Do(ctx))
		if err == nil {
			continue
		}
		if !apierrors.IsConflict(err) && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && i == 0 {
			// An answer that was lost says nothing of what was done. To take the new revision back when the old one is marked
			// already would leave the release without a deployed one.
			now, rerr := l.statusOf(ctx, oldRecords[i])
			switch {
			case rerr != nil:
				return fail(ReleaseUnread, "mark revision %d as superseded: %v; and read it again: %v; revision %d is there and deployed, and Helm takes the newest: look with helm history %s -n %s; the old records are in %s",
					oldRecords[i].revision, err, rerr, r.NewRevision, r.Name, r.Namespace, r.Backup)
			case now == "superseded":
				continue
			}
		}
		if i > 0 {
			// Helm takes the newest deployed revision: the repair holds, the old mark does no harm.
			r.Status, r.Why = ReleaseRepaired, fmt.Sprintf("revision %d could not be marked as superseded: %v", oldRecords[i].revision, err)
			return r
		}
		// Somebody else changed the release since it was read: take the new revision back.
		if undo := l.undo(ctx, path, fresh, created); undo != nil {
			return fail(ReleaseUnread, "mark revision %d as superseded: %v; and take revision %d back: %v; the old records are in %s", oldRecords[i].revision, err, r.NewRevision, undo, r.Backup)
		}
		r.NewRevision, r.Changes = 0, nil
		return fail(ReleaseRefused, "mark revision %d as superseded: %v; nothing was changed, run it again", oldRecords[i].revision, err)
	}
	r.Status = ReleaseRepaired
	return r
}

// movedRelease is the content of a revision as it would be repaired.
type movedRelease struct {
	manifest string
	hooks    []map[string]json.RawMessage
	changes  []ReleaseChange
	gaps     []string // what stands in the way
}

// needed says whether the target cannot map what the revision holds.
func (m movedRelease) needed() bool { return len(m.changes)+len(m.gaps) > 0 }

// moveRelease moves the manifest and the hooks of a revision to what the target serves. The payload stays as it is.
func moveRelease(o RepairOptions, from kubeversion.Minor, payload map[string]json.RawMessage) (m movedRelease, err error) {
	fields, err := schema.Default()
	if err != nil {
		return m, err
	}
	rewrite := func(text, hook string) string {
		res := convert.Text(convert.Options{DB: o.DB, From: from, To: o.To, Accept: []string{"*"}, OnlyRemoved: true, Drop: o.Drop, Schema: fields, Record: true}, []byte(text))
		for _, ch := range res.Changes {
			to := ""
			if !ch.To.IsZero() {
				to = ch.To.String()
			}
			m.changes = append(m.changes, ReleaseChange{Hook: hook, From: ch.From.String(), To: to, Name: ch.Name, Rewrite: ch.Rewrite, Notes: ch.Notes})
		}
		for _, k := range res.Kept {
			m.gaps = append(m.gaps, fmt.Sprintf("%s %s: %s", k.GVK, k.Name, k.Why))
		}
		for _, g := range res.Gaps {
			m.gaps = append(m.gaps, fmt.Sprintf("line %d: %s", g.Line, g.Why))
		}
		return string(res.Text)
	}
	manifest, err := stringField(payload, "manifest")
	if err != nil {
		return m, err
	}
	m.manifest = rewrite(manifest, "")
	if raw, ok := payload["hooks"]; ok {
		if err := json.Unmarshal(raw, &m.hooks); err != nil {
			return m, fmt.Errorf("hooks: %w", err)
		}
	}
	for i, h := range m.hooks {
		text, err := stringField(h, "manifest")
		if err != nil {
			return m, fmt.Errorf("hook %d: %w", i, err)
		}
		name, _ := stringField(h, "name")
		if changed := rewrite(text, cmp.Or(name, fmt.Sprintf("hooks[%d]", i))); changed != text {
			h["manifest"] = marshal(changed)
		}
	}
	return m, nil
}

// cleanButNewest answers for a release whose deployed revision is clean: helm upgrade starts from that, so nothing is to be
// repaired. What its newest revision holds is told all the same, because helm rollback and helm uninstall start from that one,
// and an operation that was cut off lets no helm upgrade run before them.
func (l *liveCluster) cleanButNewest(ctx context.Context, o RepairOptions, from kubeversion.Minor, r RepairedRelease, latest record) RepairedRelease {
	_, payload, err := l.record(ctx, latest)
	if err != nil {
		r.Status, r.Why = ReleaseUnread, fmt.Sprintf("read %s: %v", latest.name, err)
		return r
	}
	moved, err := moveRelease(o, from, payload)
	switch {
	case err != nil:
		r.Status, r.Why = ReleaseUnread, fmt.Sprintf("%s: %v", latest.name, err)
	case !moved.needed():
	case strings.HasPrefix(latest.status, "pending-"):
		r.Status = ReleaseRefused
		r.Why = fmt.Sprintf("revision %d is %s and names APIs that are gone: helm upgrade refuses to run before helm rollback or helm uninstall, and these fail on it; roll it back while its APIs are served, or delete %s %s",
			latest.revision, latest.status, strings.TrimSuffix(latest.driver, "s"), latest.name)
	default:
		r.Why = fmt.Sprintf("helm upgrade starts from revision %d, which is clean; revision %d, %s, names APIs that are gone: until a helm upgrade has succeeded, helm rollback and helm uninstall fail on it",
			r.Revision, latest.revision, latest.status)
	}
	return r
}

// allRecords lists the records of every release by namespace, name and driver.
func (l *liveCluster) allRecords(ctx context.Context, namespaces []string, c *collector) map[[3]string][]record {
	byRelease := map[[3]string][]record{}
	l.eachRecord(ctx, Options{Namespaces: namespaces}, c, func(r record) {
		k := [3]string{r.namespace, r.release, r.driver}
		byRelease[k] = append(byRelease[k], r)
	})
	return byRelease
}

// record reads one record: the object as it is, and the release in it.
func (l *liveCluster) record(ctx context.Context, rec record) (obj, payload map[string]json.RawMessage, err error) {
	body, err := l.fetchRaw(ctx, rec)
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(body, &obj); err != nil {
		return nil, nil, err
	}
	var data map[string]string
	if err := json.Unmarshal(obj["data"], &data); err != nil {
		return nil, nil, fmt.Errorf("its data: %w", err)
	}
	text, err := unwrap([]byte(data["release"]))
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(text, &payload); err != nil {
		return nil, nil, fmt.Errorf("not the JSON of a release: %w", err)
	}
	return obj, payload, nil
}

func stringField(m map[string]json.RawMessage, key string) (string, error) {
	var s string
	if raw, ok := m[key]; ok {
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
	}
	return s, nil
}

// marshal is json.Marshal for what always can be.
func marshal(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return json.RawMessage("null")
	}
	return json.RawMessage(bytes.TrimSpace(b.Bytes()))
}

// wrap encodes a release as Helm's drivers do.
func wrap(driver string, payload map[string]json.RawMessage) (json.RawMessage, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(marshal(payload)); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	text := base64.StdEncoding.EncodeToString(b.Bytes())
	if len(text) >= maxRecord {
		return nil, fmt.Errorf("the record would have %d kB, more than the apiserver takes", len(text)>>10)
	}
	if driver == "secrets" {
		text = base64.StdEncoding.EncodeToString([]byte(text))
	}
	return marshal(map[string]string{"release": text}), nil
}

// describe sets the state of a release within its record and on its labels.
func describe(payload map[string]json.RawMessage, set map[string]any) error {
	info := map[string]json.RawMessage{}
	if raw, ok := payload["info"]; ok {
		if err := json.Unmarshal(raw, &info); err != nil {
			return fmt.Errorf("its info: %w", err)
		}
	}
	for k, v := range set {
		info[k] = marshal(v)
	}
	payload["info"] = marshal(info)
	return nil
}

// freshRecord makes the object of the new revision from the old one's.
func (l *liveCluster) freshRecord(o RepairOptions, obj, payload map[string]json.RawMessage, base record, revision int) (map[string]json.RawMessage, error) {
	payload["version"] = marshal(revision)
	status := base.status
	if err := describe(payload, map[string]any{"status": status, "last_deployed": o.Now().UTC().Format(time.RFC3339Nano),
		"description": fmt.Sprintf("API versions moved for Kubernetes %s by belay, from revision %d", o.To, base.revision)}); err != nil {
		return nil, err
	}
	var meta struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	if err := json.Unmarshal(obj["metadata"], &meta); err != nil {
		return nil, err
	}
	meta.Labels["version"], meta.Labels["status"] = strconv.Itoa(revision), status
	meta.Labels["createdAt"] = strconv.FormatInt(o.Now().Unix(), 10)
	delete(meta.Labels, "modifiedAt")
	name, ok := strings.CutSuffix(base.name, ".v"+strconv.Itoa(base.revision))
	if !ok {
		return nil, fmt.Errorf("the record %s is not named as Helm names them", base.name)
	}
	data, err := wrap(base.driver, payload)
	if err != nil {
		return nil, err
	}
	fresh := map[string]json.RawMessage{"apiVersion": marshal("v1"), "kind": obj["kind"], "data": data,
		"metadata": marshal(map[string]any{"name": name + ".v" + strconv.Itoa(revision), "namespace": base.namespace, "labels": meta.Labels, "annotations": meta.Annotations})}
	if t, ok := obj["type"]; ok {
		fresh["type"] = t
	}
	return fresh, nil
}

// supersede gives a record marked as superseded, to be written under the resourceVersion that was read.
func supersede(o RepairOptions, obj, payload map[string]json.RawMessage, rec record) (map[string]json.RawMessage, error) {
	if err := describe(payload, map[string]any{"status": "superseded"}); err != nil {
		return nil, err
	}
	data, err := wrap(rec.driver, payload)
	if err != nil {
		return nil, err
	}
	var meta map[string]json.RawMessage
	if err := json.Unmarshal(obj["metadata"], &meta); err != nil {
		return nil, err
	}
	var labels map[string]string
	if err := json.Unmarshal(meta["labels"], &labels); err != nil {
		return nil, err
	}
	labels["status"], labels["modifiedAt"] = "superseded", strconv.FormatInt(o.Now().Unix(), 10)
	meta["labels"] = marshal(labels)
	delete(meta, "managedFields")
	out := map[string]json.RawMessage{}
	for k, v := range obj {
		out[k] = v
	}
	out["metadata"], out["data"] = marshal(meta), data
	return out, nil
}

// backup writes every record of a release to one file, as a List that kubectl takes.
func (l *liveCluster) backup(ctx context.Context, o RepairOptions, records []record) (string, error) {
	var items []json.RawMessage
	for _, rec := range records {
		body, err := l.fetchRaw(ctx, rec)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("read %s: %w", rec.name, err)
		}
		items = append(items, body)
	}
	if err := os.MkdirAll(o.BackupDir, 0o700); err != nil {
		return "", err
	}
	r := records[0]
	name := filepath.Join(o.BackupDir, fmt.Sprintf("helm-%s-%s-%s-%s.json", r.namespace, r.release, r.driver, o.Now().UTC().Format("20060102T150405.000Z")))
	return name, atomicfile.WriteFile(name, marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}), 0o600)
}

// statusOf reads a record's status anew, from its label.
func (l *liveCluster) statusOf(ctx context.Context, rec record) (string, error) {
	body, err := l.fetchRaw(ctx, rec)
	if err != nil {
		return "", err
	}
	var obj struct {
		Metadata struct{ Labels map[string]string }
	}
	if err := json.Unmarshal(body, &obj); err != nil {
		return "", err
	}
	return obj.Metadata.Labels["status"], nil
}

// undo deletes the revision that was just created, unless somebody changed it since.
func (l *liveCluster) undo(ctx context.Context, path []string, fresh map[string]json.RawMessage, created []byte) error {
	var meta struct {
		Metadata struct{ Name, UID, ResourceVersion string }
	}
	if err := json.Unmarshal(created, &meta); err != nil {
		return err
	}
	opts := marshal(map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": meta.Metadata.UID, "resourceVersion": meta.Metadata.ResourceVersion}})
	return l.raw.Delete().AbsPath(append(path, meta.Metadata.Name)...).SetHeader("Content-Type", "application/json").Body([]byte(opts)).Do(context.WithoutCancel(ctx)).Error()
}
