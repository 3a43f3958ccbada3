package apicheck

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

const (
	// metadataPage and objectPage are page sizes: of metadata, and of whole objects, which may have 1 MB each.
	metadataPage = 500
	objectPage   = 25
	// resourcesAtOnce bounds the lists under way, and with the page sizes the memory of a scan.
	resourcesAtOnce = 4
)

// liveCluster reads one cluster through its API.
type liveCluster struct {
	version  kubeversion.Minor
	disco    *discovery.DiscoveryClient
	meta     metadata.Interface
	raw      rest.Interface
	patience time.Duration
	outage   outage
}

// connect reaches the cluster and asks for its version: without that nothing can be judged.
func connect(ctx context.Context, o Options) (*liveCluster, error) {
	cfg := rest.CopyConfig(o.RESTConfig)
	if cfg.QPS == 0 {
		cfg.QPS, cfg.Burst = 50, 100
	}
	// Deprecation warnings of the lists say nothing: the apiserver converts.
	cfg.WarningHandler = rest.NoWarnings{}
	l := &liveCluster{patience: cmp.Or(o.Patience, time.Minute)}
	var err error
	if l.disco, err = discovery.NewDiscoveryClientForConfig(cfg); err != nil {
		return nil, fmt.Errorf("scan the cluster: %w", err)
	}
	if l.meta, err = metadata.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("scan the cluster: %w", err)
	}
	l.raw = l.disco.RESTClient()
	err = l.retry(ctx, "the version of "+cfg.Host, func(ctx context.Context) error {
		info, err := l.disco.ServerVersionWithContext(ctx)
		if err != nil {
			return err
		}
		v, err := kubeversion.Parse(info.GitVersion)
		if err != nil {
			return condition.Final(err)
		}
		l.version = v.MinorVersion()
		// What an apiserver serves is what the version it emulates serves.
		if emulated, err := kubeversion.ParseMinor(info.EmulationMajor + "." + info.EmulationMinor); err == nil {
			l.version = emulated
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scan the cluster at %s: %w", cfg.Host, err)
	}
	return l, nil
}

// retry repeats a request until it is answered or will never be. Too many requests, time-outs and broken connections
// pass; a refusal does not, and neither does an apiserver that is gone.
func (l *liveCluster) retry(ctx context.Context, name string, request func(context.Context) error) error {
	var final error // an answer that will not change: nothing was waited for
	interval := min(500*time.Millisecond, l.patience/10)
	err := condition.Wait(ctx, condition.Condition{Name: name, Check: func(attempt context.Context) error {
		if final = l.outage.err(); final != nil {
			return condition.Final(final)
		}
		began := time.Now()
		err := request(attempt)
		switch {
		case err == nil:
			l.outage.answered()
		case apiStatus(err):
			l.outage.answered()
			switch {
			case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err),
				apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err):
			default:
				final = err
				return condition.Final(err)
			}
		case ctx.Err() == nil:
			// The last attempt ends with the wait: it counts as well.
			if final = l.outage.silent(began, err, l.patience-2*interval, func() error { return l.probe(ctx) }); final != nil {
				return condition.Final(final)
			}
		}
		return err
	}}, condition.Options{Timeout: l.outage.patience(l.patience), Interval: interval, Attempt: max(l.patience/2, time.Second)})
	if final != nil {
		return final
	}
	l.outage.done(err != nil && ctx.Err() == nil)
	return err
}

// resource is one kind of object as the cluster serves it.
type resource struct {
	schema.GroupVersionResource
	kind       string
	namespaced bool
	versions   []string // every served version, the preferred first
}

func (r resource) String() string { return r.GroupResource().String() }

// resources asks what the cluster serves. What cannot be asked is unread.
func (l *liveCluster) resources(ctx context.Context, c *collector) ([]resource, error) {
	var lists []*metav1.APIResourceList
	var groups []*metav1.APIGroup
	err := l.retry(ctx, "discovery", func(ctx context.Context) error {
		var err error
		groups, lists, err = l.disco.ServerGroupsAndResourcesWithContext(ctx)
		if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
			for gv, err := range failed {
				c.unread("API "+gv.String(), 0, "discovery: %v", err)
			}
			return nil
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("scan the cluster: what does it serve: %w", err)
	}
	preferred := map[string]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
	}
	byGR := map[schema.GroupResource]*resource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			c.unread("API "+list.GroupVersion, 0, "%v", err)
			continue
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") {
				continue
			}
			gr := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			// Events are noise, and their apiVersion says nothing about their writer.
			if r.Kind == "Event" && (gv.Group == "" || gv.Group == "events.k8s.io") || gr.Resource == "componentstatuses" {
				continue
			}
			if byGR[gr] == nil {
				byGR[gr] = &resource{GroupVersionResource: gv.WithResource(r.Name), kind: r.Kind, namespaced: r.Namespaced}
			}
			byGR[gr].versions = append(byGR[gr].versions, gv.Version)
			if gv.Version == preferred[gv.Group] {
				byGR[gr].Version = gv.Version
			}
		}
	}
	var out []resource
	for _, r := range byGR {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b resource) int { return cmp.Compare(a.String(), b.String()) })
	return out, nil
}

// scan judges everything the cluster keeps into all.
func (l *liveCluster) scan(ctx context.Context, o Options, all *collector) error {
	resources, err := l.resources(ctx, all)
	if err != nil {
		return err
	}
	l.namespacesExist(ctx, o.Namespaces, all)
	var jobs []func(*collector)
	for i, r := range resources {
		jobs = append(jobs, func(c *collector) {
			o.Events.Emit(event.Event{Type: event.StepProgress, Step: "cluster", Subject: r.String(), Msg: "listing", Index: i + 1, Total: len(resources)})
			l.list(ctx, o, c, r)
		})
	}
	for _, r := range l.wholeObjects(resources) {
		jobs = append(jobs, func(c *collector) { l.objects(ctx, o, c, r) })
	}
	jobs = append(jobs, func(c *collector) { l.releases(ctx, o, c) }, func(c *collector) { l.metric(ctx, c) })
	var wg sync.WaitGroup
	queue := make(chan func(*collector))
	parts := make([]*collector, resourcesAtOnce)
	for i := range parts {
		parts[i] = all.collector()
		wg.Go(func() {
			for job := range queue {
				job(parts[i])
			}
		})
	}
	for _, job := range jobs {
		queue <- job
	}
	close(queue)
	wg.Wait()
	for _, c := range parts {
		all.merge(c)
	}
	return ctx.Err()
}

// namespaces gives what to list of a resource: everything, or the namespaces that were asked for.
func namespaces(o Options, namespaced bool) []string {
	if len(o.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	if !namespaced {
		return nil
	}
	return o.Namespaces
}

// namespacesExist finds namespaces that were chosen and are not there: the API answers a list of one with nothing, and not with an error.
func (l *liveCluster) namespacesExist(ctx context.Context, names []string, c *collector) {
	for _, ns := range names {
		err := l.retry(ctx, "namespace "+ns, func(ctx context.Context) error {
			_, err := l.meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Get(ctx, ns, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			c.unread("namespace "+ns, 0, "there is none of that name")
		}
	}
}

// list judges the metadata of every object of a resource, a page at a time.
func (l *liveCluster) list(ctx context.Context, o Options, c *collector, r resource) {
	for _, ns := range namespaces(o, r.namespaced) {
		sub := c.collector()
		limit := pageLimit(firstPage)
		n, err := l.pages(ctx, "objects of "+r.String(), func(ctx context.Context, opts metav1.ListOptions) (string, int, error) {
			opts.Limit = int64(limit)
			page, err := l.meta.Resource(r.GroupVersionResource).Namespace(ns).List(ctx, opts)
			if err != nil {
				return "", 0, err
			}
			for i := range page.Items {
				sub.stored(r, &page.Items[i])
			}
			limit = limit.after(page.Items)
			return page.Continue, len(page.Items), nil
		}, func() { sub = c.collector() })
		c.merge(sub)
		c.listed(r.String(), ns, "stored objects", n, err)
	}
}

// pageLimit is how many objects of a resource are asked for at once. Metadata
// is small as a rule, and may hold 256 KiB of annotations for each object: it
// begins low and goes by what the pages weigh.
type pageLimit int64

const (
	firstPage = 50
	leastPage = 10
	// Below lightPage bytes a page may be larger, above heavyPage the next one is smaller.
	lightPage = 2 << 20
	heavyPage = 8 << 20
)

func (l pageLimit) after(items []metav1.PartialObjectMetadata) pageLimit {
	weight := 0
	for i := range items {
		for k, v := range items[i].Annotations {
			weight += len(k) + len(v)
		}
		for _, m := range items[i].ManagedFields {
			if m.FieldsV1 != nil {
				weight += len(m.FieldsV1.GetRawBytes())
			}
		}
	}
	switch {
	case weight < lightPage:
		return min(2*l, metadataPage)
	case weight > heavyPage:
		return max(l/2, leastPage)
	}
	return l
}

// listed adds what a list gave to the coverage.
func (c *collector) listed(what, namespace, why string, n int, err error) {
	if err == nil {
		c.covered(what, why, n)
		return
	}
	if namespace != "" {
		what += " in namespace " + namespace
	}
	switch {
	case apierrors.IsMethodNotSupported(err):
		c.unread(what, 0, "refuses to be listed, although the API says that it can be: %v", err)
	case apierrors.IsForbidden(err):
		c.unread(what, 0, "forbidden: %v", err)
	case errors.Is(err, context.DeadlineExceeded):
		c.unread(what, 0, "timed out after %d objects: %v", n, err)
	default:
		c.unread(what, 0, "after %d objects: %v", n, err)
	}
}

// pages calls fetch until there is no further page. A list that takes longer than the apiserver keeps its history goes
// on with what is newer, where the server offers that, else starts over, once, after a call of restart.
func (l *liveCluster) pages(ctx context.Context, name string, fetch func(context.Context, metav1.ListOptions) (next string, n int, err error), restart func()) (total int, err error) {
	var opts metav1.ListOptions
	restarted := false
	for {
		var next string
		var n int
		err := l.retry(ctx, name, func(ctx context.Context) error {
			var err error
			next, n, err = fetch(ctx, opts)
			return err
		})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().ListMeta.Continue != "" && status.Status().ListMeta.Continue != opts.Continue {
				opts.Continue = status.Status().ListMeta.Continue
				continue
			}
			if !restarted {
				restarted, total, opts.Continue = true, 0, ""
				restart()
				continue
			}
		}
		if err != nil {
			return total, err
		}
		total += n
		if next == "" {
			return total, nil
		}
		opts.Continue = next
	}
}

// stored judges one live object by its metadata.
func (c *collector) stored(r resource, m *metav1.PartialObjectMetadata) {
	o := r.kind + " " + m.Name
	if m.Namespace != "" {
		o = r.kind + " " + m.Namespace + "/" + m.Name
	}
	src := Source{Type: SourceStored, Object: o}
	c.storedKind(r, m, src)
	newest := c.managed(r, m, src)
	c.lastApplied(r, m, src, newest)
	c.deadAnnotations(r, m, src)
	for i, ref := range m.OwnerReferences {
		g := lifecycle.ParseGVK(ref.APIVersion, ref.Kind)
		if j := c.verdictOf(g, false); j.Verdict == lifecycle.Removed || j.Verdict == lifecycle.PlannedRemoval {
			s := src
			s.Type, s.Path = SourceReference, fmt.Sprintf("metadata.ownerReferences[%d]", i)
			c.found(use{gvk: g, namespace: m.Namespace, name: ref.Name, source: s, confidence: High, cap: Warning, note: "named by " + o + ": garbage collection looks the owner up by this version"}, j)
		}
	}
}

// deadAnnotations judges the annotations of a live object that do nothing any more. What is only deprecated does not count
// here: Kubernetes writes some such annotations itself.
func (c *collector) deadAnnotations(r resource, m *metav1.PartialObjectMetadata, src Source) {
	if len(m.Annotations) == 0 || len(c.db.FieldsOf(r.Group, r.kind)) == 0 || r.GroupResource() == (schema.GroupResource{Resource: "persistentvolumes"}) {
		return // of those the whole object is read
	}
	keys := c.names.watched(c.db)
	annotations := &yaml.Node{Kind: yaml.MappingNode}
	for k, v := range m.Annotations {
		if keys.key([]byte(k)) {
			annotations.Content = append(annotations.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k}, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v})
		}
	}
	if len(annotations.Content) == 0 {
		return
	}
	wrap := func(key string, n *yaml.Node) *yaml.Node {
		return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, n}}
	}
	sub := c.collector()
	sub.fields(origin{source: src, noLines: true, confidence: High}, object{gvk: lifecycle.GVK{Group: r.Group, Version: r.Version, Kind: r.kind}, namespace: m.Namespace, name: m.Name,
		node: wrap("metadata", wrap("annotations", annotations))})
	for _, f := range sub.findings {
		if f.Verdict == lifecycle.Removed {
			c.findings = append(c.findings, f)
		}
	}
}

// storedKind judges the object itself. That a list goes through a deprecated version proves nothing, because the
// apiserver converts: what counts is whether the target can decode what is stored, and serves any version of it.
func (c *collector) storedKind(r resource, m *metav1.PartialObjectMetadata, src Source) {
	if !c.db.Builtin(r.Group) {
		return
	}
	var worst *lifecycle.Judgement
	for _, v := range r.versions {
		g := lifecycle.GVK{Group: r.Group, Version: v, Kind: r.kind}
		j := c.verdictOf(g, true)
		switch j.Verdict {
		case lifecycle.Undecodable, lifecycle.Removed, lifecycle.PlannedRemoval, lifecycle.OffByDefault:
		default:
			return // lives on in this version
		}
		if worst == nil || rankOf(j.Verdict) > rankOf(worst.Verdict) {
			worst = &j
		}
	}
	// Whether its kind has other versions at the target decides too: they need not be served today.
	if worst == nil {
		return
	}
	if worst.Verdict == lifecycle.Removed || worst.Verdict == lifecycle.PlannedRemoval {
		for _, k := range c.db.Versions(r.Group, r.kind) {
			if k.Served(c.to) {
				return
			}
		}
	}
	u := use{gvk: worst.GVK, namespace: m.Namespace, name: m.Name, source: src, confidence: High, stored: true}
	if worst.Verdict == lifecycle.OffByDefault {
		u.cap = Info
		u.note = "it is switched on here with --runtime-config: keep it so, or the objects are out of reach"
	}
	c.found(u, *worst)
}

// rankOf orders verdicts of several versions of one stored kind: what holds of the object whatever its version counts
// first, then the mildest.
func rankOf(v lifecycle.Verdict) int {
	switch v {
	case lifecycle.Undecodable:
		return 3
	case lifecycle.OffByDefault:
		return 2
	case lifecycle.PlannedRemoval:
		return 1
	}
	return 0
}

// harmless says whether a use that was seen in the past needs no word: nothing ends.
func harmless(j lifecycle.Judgement) bool {
	switch j.Verdict {
	case lifecycle.OK, lifecycle.VirtualKind, lifecycle.Custom:
		return true
	case lifecycle.Deprecated:
		return j.RemovedIn == (kubeversion.Minor{})
	}
	return false
}

// managed judges the versions in which managers wrote the object. Old entries stay for ever, so only the newest of each
// manager, operation and subresource counts. It gives the entry that says in which version the object was applied last.
func (c *collector) managed(r resource, m *metav1.PartialObjectMetadata, src Source) *metav1.ManagedFieldsEntry {
	type key struct {
		manager, subresource string
		op                   metav1.ManagedFieldsOperationType
	}
	var order []key
	newest := map[key]*metav1.ManagedFieldsEntry{}
	var applied *metav1.ManagedFieldsEntry
	for i := range m.ManagedFields {
		e := &m.ManagedFields[i]
		k := key{e.Manager, e.Subresource, e.Operation}
		if newest[k] == nil {
			order = append(order, k)
		}
		if newest[k] == nil || later(e, newest[k]) {
			newest[k] = e
		}
		if e.Subresource == "" && (e.Operation == metav1.ManagedFieldsOperationApply || strings.HasPrefix(e.Manager, "kubectl")) && (applied == nil || later(e, applied)) {
			applied = e
		}
	}
	for _, k := range order {
		e := newest[k]
		g := lifecycle.ParseGVK(e.APIVersion, r.kind)
		if g.Group == r.Group && !c.db.Builtin(r.Group) && !slices.Contains(r.versions, g.Version) {
			c.unservedManager(m, src, g, e)
			continue
		}
		j := c.verdictOf(g, false)
		if harmless(j) {
			continue
		}
		s := src
		s.Type, s.Manager, s.Time = SourceManagedFields, e.Manager, when(e)
		note := fmt.Sprintf("last written in it by %s", e.Manager)
		if s.Time != nil {
			note += " on " + s.Time.UTC().Format(time.RFC3339)
		}
		c.found(use{gvk: g, namespace: m.Namespace, name: m.Name, source: s, confidence: Medium, cap: Warning, note: note}, j)
	}
	return applied
}

// unservedManager reports a manager whose entry names a version that the custom resource's definition no longer serves: applying
// the object on the server's side then fails (kubernetes/kubernetes#111937).
func (c *collector) unservedManager(m *metav1.PartialObjectMetadata, src Source, g lifecycle.GVK, e *metav1.ManagedFieldsEntry) {
	src.Type, src.Manager, src.Time = SourceManagedFields, e.Manager, when(e)
	c.findings = append(c.findings, Finding{Verdict: lifecycle.Removed, Severity: Warning, Confidence: High, APIVersion: g.APIVersion(), Kind: g.Kind, Namespace: m.Namespace, Name: m.Name, Source: src,
		Message: fmt.Sprintf("%s: last written in it by %s, and no longer served by its definition: server-side apply of the object fails", g, e.Manager),
		Remedy:  "let the manager apply it in a version that is served, or take its entry out of metadata.managedFields"})
}

func later(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Time != nil && (b.Time == nil || a.Time.After(b.Time.Time))
}

func when(e *metav1.ManagedFieldsEntry) *time.Time {
	if e.Time == nil {
		return nil
	}
	t := e.Time.UTC()
	return &t
}

// lastApplied judges the manifest that kubectl apply left in an annotation. When somebody applied the object in another,
// living version since, the annotation is only stale.
func (c *collector) lastApplied(r resource, m *metav1.PartialObjectMetadata, src Source, applied *metav1.ManagedFieldsEntry) {
	text, ok := m.Annotations["kubectl.kubernetes.io/last-applied-configuration"]
	if !ok || text == "" {
		return
	}
	var head struct{ APIVersion, Kind string }
	if err := json.Unmarshal([]byte(text), &head); err != nil || head.APIVersion == "" || head.Kind == "" {
		if err == nil {
			err = errors.New("no apiVersion and kind")
		}
		c.unread("last-applied configuration of "+src.Object, 0, "%v", err)
		return
	}
	g := lifecycle.ParseGVK(head.APIVersion, head.Kind)
	j := c.verdictOf(g, false)
	if harmless(j) {
		return
	}
	src.Type = SourceLastApplied
	u := use{gvk: g, namespace: m.Namespace, name: m.Name, source: src, confidence: High}
	if applied != nil && applied.APIVersion != head.APIVersion {
		if now := c.verdictOf(lifecycle.ParseGVK(applied.APIVersion, head.Kind), false); now.Verdict == lifecycle.OK || now.Verdict == lifecycle.Deprecated && j.Verdict != lifecycle.Deprecated {
			u.cap, u.source.Manager, u.source.Time = Info, applied.Manager, when(applied)
			u.note = fmt.Sprintf("stale: %s has applied it as %s since", applied.Manager, applied.APIVersion)
		}
	}
	c.found(u, j)
}

// wholeObjects picks the resources whose content names other APIs.
func (l *liveCluster) wholeObjects(all []resource) []resource {
	wanted := map[schema.GroupResource]string{
		{Group: "rbac.authorization.k8s.io", Resource: "roles"}:                              "v1",
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:                       "v1",
		{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}: "v1",
		{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:   "v1",
		{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:     "v1",
		{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}:       "v1",
		{Group: "autoscaling", Resource: "horizontalpodautoscalers"}:                         "v2",
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:               "v1",
		{Group: "", Resource: "configmaps"}:                                                  "v1",
		{Group: "", Resource: "persistentvolumes"}:                                           "v1",
		{Group: "", Resource: "secrets"}:                                                     "v1",
	}
	var out []resource
	for _, r := range all {
		v, ok := wanted[r.GroupResource()]
		if !ok {
			continue
		}
		if slices.Contains(r.versions, v) {
			r.Version = v
		}
		out = append(out, r)
	}
	return out
}

// noPayload leaves out the Secrets that hold no manifest: keys, and Helm's records, which have their own reader.
const noPayload = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token,type!=kubernetes.io/tls,type!=kubernetes.io/dockerconfigjson,type!=bootstrap.kubernetes.io/token"

// objects judges whole objects of a resource for what they name and carry.
func (l *liveCluster) objects(ctx context.Context, o Options, c *collector, r resource) {
	for _, ns := range namespaces(o, r.namespaced) {
		sub := c.collector()
		n, err := l.pages(ctx, r.String(), func(ctx context.Context, opts metav1.ListOptions) (string, int, error) {
			if r.GroupResource() == (schema.GroupResource{Resource: "secrets"}) {
				opts.FieldSelector = noPayload
			}
			body, err := l.get(ctx, r.GroupVersionResource, ns, opts, objectPage)
			if err != nil {
				return "", 0, err
			}
			var page struct {
				Metadata struct{ Continue string }
				Items    []json.RawMessage
			}
			if err := json.Unmarshal(body, &page); err != nil {
				return "", 0, fmt.Errorf("read a page: %w", err)
			}
			for _, item := range page.Items {
				sub.content(r, item)
			}
			return page.Metadata.Continue, len(page.Items), nil
		}, func() { sub = c.collector() })
		c.merge(sub)
		c.listed(r.String(), ns, "contents", n, err)
	}
}

// get asks for one page of whole objects as JSON.
func (l *liveCluster) get(ctx context.Context, gvr schema.GroupVersionResource, ns string, opts metav1.ListOptions, limit int64) ([]byte, error) {
	path := []string{"apis", gvr.Group, gvr.Version}
	if gvr.Group == "" {
		path = []string{"api", gvr.Version}
	}
	if ns != "" {
		path = append(path, "namespaces", ns)
	}
	req := l.raw.Get().AbsPath(append(path, gvr.Resource)...).SetHeader("Accept", "application/json").Param("limit", fmt.Sprint(limit))
	if opts.Continue != "" {
		req = req.Param("continue", opts.Continue)
	}
	if opts.FieldSelector != "" {
		req = req.Param("fieldSelector", opts.FieldSelector)
	}
	if opts.LabelSelector != "" {
		req = req.Param("labelSelector", opts.LabelSelector)
	}
	return answer(req.Do(ctx))
}

// answer gives the body of an answer. The client only knows the number of a refusal; what was said is in the body.
func answer(r rest.Result) ([]byte, error) {
	body, err := r.Raw()
	if err == nil {
		return body, nil
	}
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		return nil, &apierrors.StatusError{ErrStatus: status}
	}
	return nil, err
}

// content judges what one live object names and carries.
func (c *collector) content(r resource, item []byte) {
	node, err := jsonNode(newDecoder(item), &lineCounter{text: item}, 0, nil)
	if err != nil && !errors.Is(err, io.EOF) {
		c.unread(r.String(), 0, "an object that is not JSON: %v", err)
		return
	}
	obj := object{gvk: lifecycle.GVK{Group: r.Group, Version: r.Version, Kind: r.kind}, node: node}
	meta := field(node, "metadata")
	obj.name, obj.namespace = scalar(meta, "name"), scalar(meta, "namespace")
	og := origin{what: obj.String(), source: Source{Type: SourceStored, Object: obj.String()}, noLines: true, confidence: High}
	for i := 0; meta != nil && i+1 < len(meta.Content); i += 2 { // seen with the metadata already
		if meta.Content[i].Value == "ownerReferences" {
			meta.Content[i].Value = ""
		}
	}
	c.references(og, obj)
	c.fields(og, obj)
	c.payloads(og, obj)
}

// metric reads the apiserver's own count of deprecated requests. It is extra evidence: clients that list everything keep
// it at one, and its absence clears nothing, because it only knows what is deprecated in the version that runs.
func (l *liveCluster) metric(ctx context.Context, c *collector) {
	const what = "/metrics of the apiserver"
	// The stream outlives the attempt that opened it, and neither it nor an apiserver that does not answer may hold the scan up.
	whole, cancel := context.WithTimeout(ctx, min(metricTime, 2*l.patience))
	defer cancel()
	var body io.ReadCloser
	err := l.retry(whole, what, func(context.Context) error {
		var err error
		body, err = l.raw.Get().AbsPath("/metrics").SetHeader("Accept", "text/plain").Stream(whole)
		return err
	})
	if err != nil {
		// Extra evidence that is missing takes nothing away.
		why := http.StatusText(statusCode(err))
		if why == "" {
			why = err.Error()
		}
		c.covered(what, "not available as extra evidence: "+why, 0)
		return
	}
	defer body.Close()
	n, err := c.deprecatedRequests(body)
	if err != nil {
		c.covered(what, "broke off as extra evidence", n)
		return
	}
	c.covered(what, "extra evidence", n)
}

// metricTime bounds the reading of the apiserver's metrics, which are no more than a help.
const metricTime = 30 * time.Second

func statusCode(err error) int {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}
