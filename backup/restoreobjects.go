package backup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// ObjectsReportSchema names the format of an ObjectsReport.
const ObjectsReportSchema = "belay.dev/backup-restore-objects/v1"

// FieldManager is who owns what a restore of objects sets.
const FieldManager = "belay-restore"

// OtherCluster is the waiver for restoring objects into another cluster than the backup's.
const OtherCluster = "other-cluster"

// RestoreOptions say which objects to restore, and how.
type RestoreOptions struct {
	// Patterns select: resource[.group]/name, resource[.group]/namespace/name;
	// each element may have * and ? ("deployments.apps/shop/*").
	Patterns   []string
	REST       *rest.Config
	Identities []age.Identity
	// DryRun asks the server what it would do.
	DryRun bool
	// Overwrite changes objects that are there and differ.
	Overwrite bool
	// Accept may hold OtherCluster.
	Accept []string
	// Convert rewrites an object of a version or kind that the live cluster no
	// longer serves; nil means that such objects are not restored.
	Convert Converter
	Sink    event.Sink
}

// Converter rewrites an object (JSON) of a cluster of version from for one of
// version to. The error says why it cannot be done, and what a person could do.
type Converter func(object []byte, from, to kubeversion.V) (Converted, error)

// Converted is a rewritten object, and what a person should know of it.
type Converted struct {
	Object []byte
	Notes  []string
}

// What became of an object.
const (
	ActionCreated     = "created"
	ActionOverwritten = "overwritten"
	// ActionUnchanged: it is there as in the backup.
	ActionUnchanged = "unchanged"
	// ActionDiffers: it is there, differs, and was left alone.
	ActionDiffers = "differs"
	// ActionSkipped: somebody else makes it.
	ActionSkipped = "skipped"
	ActionFailed  = "failed"
)

// ObjectsReport says what became of every selected object.
type ObjectsReport struct {
	Schema  string           `json:"schema"`
	Dir     string           `json:"dir"`
	DryRun  bool             `json:"dryRun"`
	Objects []RestoredObject `json:"objects"`
	// Count holds the number of objects by action.
	Count map[string]int `json:"count"`
	// NotKept names resources that a pattern selects, and of which the backup has
	// objects elsewhere than in its object part, if at all.
	NotKept []string `json:"notKept,omitempty"`
}

// RestoredObject is one object and what became of it.
type RestoredObject struct {
	Resource string `json:"resource"`
	Object   string `json:"object"`
	Action   string `json:"action"`
	// Changes are the fields that differ between the backup and the live object.
	Changes []FieldChange `json:"changes,omitempty"`
	Note    string        `json:"note,omitempty"`
}

// pattern is one selector.
type pattern struct{ resource, namespace, name string }

func parsePattern(s string) (pattern, error) {
	parts := strings.Split(s, "/")
	var p pattern
	switch len(parts) {
	case 2:
		p = pattern{parts[0], "", parts[1]}
	case 3:
		p = pattern{parts[0], parts[1], parts[2]}
	default:
		return p, fmt.Errorf("%q selects no objects: want RESOURCE/NAME or RESOURCE/NAMESPACE/NAME, as in deployments.apps/shop/*", s)
	}
	for _, e := range parts {
		if _, err := path.Match(e, ""); err != nil || e == "" {
			return p, fmt.Errorf("%q selects no objects: %q is no pattern", s, e)
		}
	}
	return p, nil
}

func (p pattern) matchResource(id string) bool { return match(p.resource, id) }

func (p pattern) match(id identity) bool {
	return (p.namespace == "") == (id.Namespace == "") && match(p.namespace, id.Namespace) && match(p.name, id.Name)
}

func match(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return err == nil && ok
}

// madeByOthers are resources that a wildcard does not select: components of
// the cluster write them of themselves.
var madeByOthers = append([]string{
	"nodes", "csinodes.storage.k8s.io", "volumeattachments.storage.k8s.io", "certificatesigningrequests.certificates.k8s.io",
	"ipaddresses.networking.k8s.io", "csistoragecapacities.storage.k8s.io", "controllerrevisions.apps", "storageversions.internal.apiserver.k8s.io",
}, restless...)

// restoreRank orders resources so that what others need comes first, and what
// can stand in the way of others (webhooks, aggregated APIs) last.
func restoreRank(p *ResourcePart, custom bool) int {
	ranks := [][]string{
		{"namespaces"},
		{"customresourcedefinitions.apiextensions.k8s.io"},
		{"storageclasses.storage.k8s.io", "priorityclasses.scheduling.k8s.io", "runtimeclasses.node.k8s.io", "ingressclasses.networking.k8s.io", "csidrivers.storage.k8s.io"},
		{"persistentvolumes", "serviceaccounts", "secrets", "configmaps", "resourcequotas", "limitranges"},
		{"clusterroles.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io"},
		{"clusterrolebindings.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io", "persistentvolumeclaims", "services"},
	}
	for i, r := range ranks {
		if slices.Contains(r, p.id()) {
			return i
		}
	}
	switch p.id() {
	case "validatingwebhookconfigurations.admissionregistration.k8s.io", "mutatingwebhookconfigurations.admissionregistration.k8s.io",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io", "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
		"apiservices.apiregistration.k8s.io":
		return 100
	case "validatingadmissionpolicies.admissionregistration.k8s.io", "mutatingadmissionpolicies.admissionregistration.k8s.io":
		return 99
	}
	if custom {
		return 20
	}
	return 10
}

// restoration is a RestoreObjects under way.
type restoration struct {
	o        RestoreOptions
	src      *backupSource
	live     *liveSource
	patterns []pattern
	r        *ObjectsReport
	// planned are namespaces and custom resources that a dry run only pretends to create.
	planned map[string]bool
}

// RestoreObjects applies selected objects of a backup to a live cluster, in an
// order in which each finds what it needs. An object that is there and differs
// is left alone unless Overwrite is set. What became of each is in the report;
// the error is for a restore that could not be carried out.
func RestoreObjects(ctx context.Context, dir string, o RestoreOptions) (*ObjectsReport, error) {
	x := &restoration{o: o, r: &ObjectsReport{Schema: ObjectsReportSchema, Dir: dir, DryRun: o.DryRun, Objects: []RestoredObject{}, Count: map[string]int{}}, planned: map[string]bool{}}
	if len(o.Patterns) == 0 {
		return nil, errors.New("no objects were selected")
	}
	for _, s := range o.Patterns {
		p, err := parsePattern(s)
		if err != nil {
			return nil, err
		}
		x.patterns = append(x.patterns, p)
	}
	var err error
	if x.src, err = newBackupSource(dir, o.Identities); err != nil {
		return nil, err
	}
	if x.live, err = newLiveSource(ctx, o.REST); err != nil {
		return nil, err
	}
	defer x.live.api.http.CloseIdleConnections()
	if x.src.lineage() != x.live.lineage() && !slices.Contains(o.Accept, OtherCluster) {
		return nil, blockedRestore(Blocker{ID: OtherCluster, Message: (&LineageError{What: dir, Got: x.src.lineage(), Want: x.live.lineage()}).Error(), Remedy: "check the kubeconfig"})
	}
	parts, err := x.selected()
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		event.Or(o.Sink).Emit(event.Event{Time: time.Now(), Type: event.StepStarted, Run: "restore", Step: p.id(), Msg: "restore " + p.id(), Index: i + 1, Total: len(parts)})
		err := x.src.each(ctx, p.id(), "", func(raw []byte) error { return x.object(ctx, p, raw) })
		if err != nil {
			return x.r, fmt.Errorf("restore %s: %w", p.id(), err)
		}
		if p.Resource == "customresourcedefinitions" && !o.DryRun {
			if x.live.cat, err = x.live.api.settledCatalogue(ctx); err != nil {
				return x.r, err
			}
		}
	}
	for _, ob := range x.r.Objects {
		x.r.Count[ob.Action]++
	}
	return x.r, nil
}

// selected gives the resources that some pattern selects, in order.
func (x *restoration) selected() ([]*ResourcePart, error) {
	var out []*ResourcePart
	for i := range x.src.m.Resources {
		p := &x.src.m.Resources[i]
		named, wild := false, false
		for _, q := range x.patterns {
			if q.matchResource(p.id()) {
				named = named || q.resource == p.id()
				wild = wild || q.resource != p.id()
			}
		}
		if !named && (!wild || slices.Contains(madeByOthers, p.id())) {
			continue
		}
		if p.File == "" && p.Count > 0 {
			why := fmt.Sprintf("%s: none of the %d that the cluster had is in the object part: Secrets are kept there only in encrypted backups", p.id(), p.Count)
			if x.src.m.Etcd != nil {
				why += "; the etcd snapshot has them (restore --etcd)"
			}
			if named {
				return nil, errors.New(why)
			}
			x.r.NotKept = append(x.r.NotKept, why)
			continue
		}
		out = append(out, p)
	}
	for _, q := range x.patterns {
		if !slices.ContainsFunc(x.src.m.Resources, func(p ResourcePart) bool { return q.matchResource(p.id()) }) {
			return nil, fmt.Errorf("the backup holds no resource %q; names are as in deployments.apps", q.resource)
		}
	}
	custom := func(p *ResourcePart) bool {
		return strings.Contains(p.Group, ".") && !strings.HasSuffix(p.Group, "k8s.io")
	}
	slices.SortStableFunc(out, func(a, b *ResourcePart) int { return cmp.Compare(restoreRank(a, custom(a)), restoreRank(b, custom(b))) })
	return out, nil
}

func (x *restoration) object(ctx context.Context, p *ResourcePart, raw []byte) error {
	id, err := identify(raw)
	if err != nil {
		return err
	}
	byName := false
	selected := false
	for _, q := range x.patterns {
		if q.matchResource(p.id()) && q.match(id) {
			selected = true
			byName = byName || (q.name == id.Name && q.resource == p.id())
		}
	}
	if !selected {
		return nil
	}
	key := id.Name
	if id.Namespace != "" {
		key = id.Namespace + "/" + id.Name
	}
	out := RestoredObject{Resource: p.id(), Object: key}
	x.one(ctx, p, id, raw, byName, &out)
	if err := ctx.Err(); err != nil {
		return err
	}
	x.r.Objects = append(x.r.Objects, out)
	return nil
}

// one restores an object and says in out what became of it.
func (x *restoration) one(ctx context.Context, p *ResourcePart, id identity, raw []byte, byName bool, out *RestoredObject) {
	failed := func(err error) { out.Action, out.Note = ActionFailed, err.Error() }
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		failed(err)
		return
	}
	if why := controlled(p, o); why != "" && !byName {
		out.Action, out.Note = ActionSkipped, why
		return
	}
	r := x.served(p.Group, p.Version, p.Kind)
	if r == nil {
		if x.planned["crd/"+p.id()] {
			out.Action, out.Note = ActionCreated, "not checked by the server, as its CustomResourceDefinition is not there yet"
			return
		}
		var err error
		if r, raw, out.Note, err = x.convert(ctx, p, raw); err != nil {
			failed(err)
			return
		}
		clear(o)
		if err := json.Unmarshal(raw, &o); err != nil {
			failed(err)
			return
		}
	}
	u := r.objectPath(id)
	now, err := x.live.api.get(ctx, u)
	switch {
	case apierrors.IsNotFound(err):
		now = nil
	case err != nil:
		failed(err)
		return
	}
	if now != nil {
		fields, err := differences(raw, now)
		if err != nil {
			failed(err)
			return
		}
		if len(fields) == 0 {
			out.Action = ActionUnchanged
			return
		}
		if out.Changes, err = changes(raw, now, !secretKind(p.Group, p.Resource)); err != nil {
			failed(err)
			return
		}
		if !x.o.Overwrite {
			out.Action, out.Note = ActionDiffers, "the live object was changed after the backup, or made anew; --overwrite sets it back"
			return
		}
	}
	notes, err := x.clean(ctx, p, o, r)
	if err != nil {
		failed(err)
		return
	}
	out.Note = strings.Join(append(notes, nonEmpty(out.Note)...), "; ")
	if now != nil {
		// It is overwritten as it was seen, not as somebody changes it at this moment.
		seen, err := identify(now)
		if err != nil {
			failed(err)
			return
		}
		meta, ok := o["metadata"].(map[string]any)
		if !ok {
			failed(errors.New("it has no metadata"))
			return
		}
		meta["resourceVersion"] = seen.ResourceVersion
	}
	body, err := json.Marshal(o)
	if err != nil {
		failed(err)
		return
	}
	// What is made by somebody else at this moment is not taken from them.
	after, err := x.apply(ctx, u, body, now != nil)
	if x.o.DryRun && apierrors.IsNotFound(err) && x.planned["namespace/"+id.Namespace] {
		out.Action, out.Note = ActionCreated, "not checked by the server, as its namespace is not there yet"
		return
	}
	if apierrors.IsNotFound(err) && id.Namespace != "" {
		err = fmt.Errorf("%w; is namespace %s there? restore namespaces/%s, too", err, id.Namespace, id.Namespace)
	}
	if err != nil {
		failed(err)
		return
	}
	out.Action = ActionCreated
	if now != nil {
		out.Action = ActionOverwritten
		// What others set since stays where the backup does not say otherwise.
		if left, err := differences(raw, after); err == nil && len(left) > 0 {
			out.Note = strings.Join(append(nonEmpty(out.Note), "still differs in "+strings.Join(left, ", ")), "; ")
		}
	}
	switch p.id() {
	case "persistentvolumes":
		x.planned["volume/"+id.Name] = true
	case "namespaces":
		x.planned["namespace/"+id.Name] = true
	case "customresourcedefinitions.apiextensions.k8s.io":
		x.planned["crd/"+id.Name] = true
	}
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// apply is a server-side apply. force takes fields over that others own.
func (x *restoration) apply(ctx context.Context, objectPath string, body []byte, force bool) (json.RawMessage, error) {
	u := x.live.api.base.JoinPath(objectPath)
	q := url.Values{"fieldManager": {FieldManager}, "force": {strconv.FormatBool(force)}}
	if x.o.DryRun {
		q.Set("dryRun", "All")
	}
	u.RawQuery = q.Encode()
	return x.live.api.do(ctx, "PATCH", u.String(), string(types.ApplyYAMLPatchType), body)
}

// objectPath is where one object of the resource is served.
func (r resource) objectPath(id identity) string {
	base, name := path.Split(r.path())
	if id.Namespace != "" {
		base += "namespaces/" + id.Namespace + "/"
	}
	return base + name + "/" + id.Name
}

// served gives the live cluster's resource of that kind at that version, nil when there is none.
func (x *restoration) served(group, version, kind string) *resource {
	for i := range x.live.cat.resources {
		r := x.live.cat.resources[i]
		if r.group == group && r.kind == kind && slices.Contains(r.versions, version) {
			r.version = version
			return &r
		}
	}
	return nil
}

// convert rewrites an object that the live cluster does not serve as the backup has it.
func (x *restoration) convert(ctx context.Context, p *ResourcePart, raw []byte) (*resource, []byte, string, error) {
	gv := schema.GroupVersion{Group: p.Group, Version: p.Version}.String()
	for i := range x.live.cat.resources {
		r := x.live.cat.resources[i]
		if r.group == p.Group && r.kind == p.Kind && r.custom {
			return x.convertCustom(ctx, p, r, raw)
		}
	}
	if strings.Contains(p.Group, ".") && !strings.HasSuffix(p.Group, ".k8s.io") {
		return nil, nil, "", errors.New("the cluster does not serve this resource; restore its CustomResourceDefinition first")
	}
	if x.o.Convert == nil {
		return nil, nil, "", fmt.Errorf("the cluster does not serve %s %s; write the object out and rewrite it with belay api convert", gv, p.Kind)
	}
	to, err := x.live.version()
	if err != nil {
		return nil, nil, "", err
	}
	c, err := x.o.Convert(raw, x.src.m.Version, to)
	if err != nil {
		return nil, nil, "", fmt.Errorf("the cluster does not serve %s %s: %w", gv, p.Kind, err)
	}
	var head struct{ APIVersion, Kind string }
	if err := json.Unmarshal(c.Object, &head); err != nil {
		return nil, nil, "", fmt.Errorf("after its conversion: %w", err)
	}
	now, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		return nil, nil, "", fmt.Errorf("after its conversion: %w", err)
	}
	r := x.served(now.Group, now.Version, head.Kind)
	if r == nil {
		return nil, nil, "", fmt.Errorf("the cluster serves neither %s %s nor %s %s, which replaces it", gv, p.Kind, head.APIVersion, head.Kind)
	}
	note := fmt.Sprintf("converted from %s to %s", gv, head.APIVersion)
	return r, c.Object, strings.Join(append([]string{note}, c.Notes...), "; "), nil
}

// convertCustom rewrites a custom object. Without a conversion webhook an
// apiserver changes nothing but the version, and so does this; a webhook
// converts for an apiserver only.
func (x *restoration) convertCustom(ctx context.Context, p *ResourcePart, r resource, raw []byte) (*resource, []byte, string, error) {
	name := p.Resource + "." + p.Group
	crd, err := x.live.api.get(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name)
	if err != nil {
		return nil, nil, "", fmt.Errorf("read CustomResourceDefinition %s: %w", name, err)
	}
	var def struct {
		Spec struct {
			Conversion struct {
				Strategy string `json:"strategy"`
			} `json:"conversion"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(crd, &def); err != nil {
		return nil, nil, "", fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
	}
	if s := def.Spec.Conversion.Strategy; s != "" && s != "None" {
		return nil, nil, "", fmt.Errorf("the cluster serves %s only as %s, and a webhook of its CustomResourceDefinition converts it from %s: have that version served again (served: true) while objects are restored",
			name, strings.Join(r.versions, ", "), p.Version)
	}
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, nil, "", err
	}
	o["apiVersion"] = r.apiVersion()
	out, err := json.Marshal(o)
	return &r, out, fmt.Sprintf("taken as %s, as its CustomResourceDefinition converts nothing; it was stored as %s", r.version, p.Version), err
}

// controlled says who makes an object, "" when it stands for itself.
func controlled(p *ResourcePart, o map[string]any) string {
	meta, _ := o["metadata"].(map[string]any)
	refs, _ := meta["ownerReferences"].([]any)
	for _, r := range refs {
		if ref, ok := r.(map[string]any); ok && ref["controller"] == true {
			return fmt.Sprintf("%v %v makes it", ref["kind"], ref["name"])
		}
	}
	annotations, _ := meta["annotations"].(map[string]any)
	if _, ok := annotations["kubernetes.io/config.mirror"]; ok {
		return "the kubelet makes it of a static pod"
	}
	if p.id() == "secrets" && o["type"] == "kubernetes.io/service-account-token" {
		return "its service account's controller makes it"
	}
	if p.id() == "configmaps" && meta["name"] == "kube-root-ca.crt" || p.id() == "serviceaccounts" && meta["name"] == "default" {
		return "its namespace's controller makes it"
	}
	return ""
}

// clean takes out what only the server may set, and what points at objects
// that are no more: an owner reference to a dead UID would have the garbage
// collector delete the object.
func (x *restoration) clean(ctx context.Context, p *ResourcePart, o map[string]any, r *resource) (notes []string, err error) {
	delete(o, "status")
	o["apiVersion"] = schema.GroupVersion{Group: r.group, Version: r.version}.String()
	meta, ok := o["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no metadata")
	}
	for _, f := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"} {
		delete(meta, f)
	}
	if refs, ok := meta["ownerReferences"].([]any); ok {
		kept := []any{}
		for _, e := range refs {
			ref, ok := e.(map[string]any)
			if !ok {
				continue
			}
			uid, err := x.liveOwner(ctx, ref, fmt.Sprint(meta["namespace"]))
			if err != nil {
				return nil, err
			}
			if uid == "" {
				notes = append(notes, fmt.Sprintf("without its owner %v %v, which is not there", ref["kind"], ref["name"]))
				continue
			}
			ref["uid"] = uid
			kept = append(kept, ref)
		}
		meta["ownerReferences"] = kept
		if len(kept) == 0 {
			delete(meta, "ownerReferences")
		}
	}
	spec, _ := o["spec"].(map[string]any)
	switch p.id() {
	case "persistentvolumes":
		if claim, ok := spec["claimRef"].(map[string]any); ok {
			// Without a UID it is kept for a claim of that name, whichever is made.
			delete(claim, "uid")
			delete(claim, "resourceVersion")
		}
	case "persistentvolumeclaims":
		note, err := x.unbind(ctx, meta, spec)
		if err != nil {
			return nil, err
		}
		notes = append(notes, nonEmpty(note)...)
	case "jobs.batch":
		if spec["manualSelector"] != true {
			delete(spec, "selector")
			template, _ := spec["template"].(map[string]any)
			tmeta, _ := template["metadata"].(map[string]any)
			if labels, ok := tmeta["labels"].(map[string]any); ok {
				maps.DeleteFunc(labels, func(k string, _ any) bool { return strings.HasSuffix(k, "controller-uid") })
			}
		}
	case "pods":
		delete(spec, "nodeName")
	}
	return notes, nil
}

// boundAnnotations are what the volume controller and the scheduler write onto a
// claim. One that says that it is bound already, to a volume that does not know
// it, is Lost at once.
// Source: k8s.io/kubernetes/pkg/controller/volume/persistentvolume (syncBoundClaim).
var boundAnnotations = []string{
	"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node",
	"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner",
}

// unbind lets a claim be bound anew: to its own volume where that is there and
// free for it, or may be freed by a person as it holds the data; else to another.
func (x *restoration) unbind(ctx context.Context, meta, spec map[string]any) (note string, err error) {
	if annotations, ok := meta["annotations"].(map[string]any); ok {
		for _, a := range boundAnnotations {
			delete(annotations, a)
		}
	}
	volume, _ := spec["volumeName"].(string)
	if volume == "" {
		return "", nil
	}
	raw, err := x.live.api.get(ctx, "/api/v1/persistentvolumes/"+volume)
	switch {
	case apierrors.IsNotFound(err) && x.planned["volume/"+volume]:
		return "", nil
	case apierrors.IsNotFound(err):
		delete(spec, "volumeName")
		return "volume " + volume + ", which held its data, is not there: it gets another, empty one", nil
	case err != nil:
		return "", fmt.Errorf("read its volume %s: %w", volume, err)
	}
	var pv struct {
		Spec struct {
			ClaimRef *struct{ Namespace, Name, UID string } `json:"claimRef"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &pv); err != nil {
		return "", fmt.Errorf("its volume %s: %w", volume, err)
	}
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil || ref.Namespace == meta["namespace"] && ref.Name == meta["name"] && ref.UID == "":
		return "", nil
	case ref.Namespace == meta["namespace"] && ref.Name == meta["name"]:
		return fmt.Sprintf("volume %s with its data still names the claim that was deleted: the new one waits until that is taken out: kubectl patch pv %s --type json -p '[{\"op\":\"remove\",\"path\":\"/spec/claimRef/uid\"}]'", volume, volume), nil
	}
	delete(spec, "volumeName")
	return fmt.Sprintf("volume %s belongs to claim %s/%s now: it gets another, empty one", volume, ref.Namespace, ref.Name), nil
}

// liveOwner gives the UID of a live object that an owner reference names, "" when there is none.
func (x *restoration) liveOwner(ctx context.Context, ref map[string]any, namespace string) (string, error) {
	gv, err := schema.ParseGroupVersion(fmt.Sprint(ref["apiVersion"]))
	if err != nil {
		return "", err
	}
	for _, r := range x.live.cat.resources {
		if r.group != gv.Group || r.kind != ref["kind"] {
			continue
		}
		id := identity{Name: fmt.Sprint(ref["name"])}
		if r.namespaced {
			id.Namespace = namespace
		}
		raw, err := x.live.api.get(ctx, r.objectPath(id))
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		owner, err := identify(raw)
		return owner.UID, err
	}
	return "", nil
}

// differences names the fields in which two objects differ, apart from status and bookkeeping.
func differences(a, b []byte) ([]string, error) {
	_, x, err := summarize(a, true, false)
	if err != nil {
		return nil, err
	}
	_, y, err := summarize(b, true, false)
	if err != nil {
		return nil, err
	}
	var out []string
	for f, h := range x.fields {
		if y.fields[f] != h {
			out = append(out, f)
		}
	}
	for f := range y.fields {
		if _, ok := x.fields[f]; !ok {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out, nil
}
