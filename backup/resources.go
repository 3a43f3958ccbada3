package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// resource is one listable resource of the API, at the version that it is read at.
type resource struct {
	group, name, kind string
	// version is the one that is stored where that is known (custom resources:
	// no conversion webhook is asked then), else the preferred one.
	version    string
	versions   []string
	namespaced bool
	// custom says that a CustomResourceDefinition defines it.
	custom bool
}

func (r resource) id() string {
	if r.group == "" {
		return r.name
	}
	return r.name + "." + r.group
}

func (r resource) apiVersion() string {
	return schema.GroupVersion{Group: r.group, Version: r.version}.String()
}

// path is where all objects of the resource, of every namespace, are listed.
func (r resource) path() string {
	if r.group == "" {
		return "/api/" + r.version + "/" + r.name
	}
	return "/apis/" + r.group + "/" + r.version + "/" + r.name
}

// catalogue is what an apiserver serves.
type catalogue struct {
	resources []resource
	// remote are groups that another server answers for (aggregation): their objects are not in this etcd.
	remote map[string]bool
	// failed are group/versions that could not be asked, with the reason.
	failed map[string]string
	// unlistable are resources that store nothing that could be listed.
	unlistable []string
}

// apiClient makes plain requests. Its lists are decoded as a stream.
type apiClient struct {
	http *http.Client
	base *url.URL
	disc discovery.DiscoveryInterface
}

func newAPIClient(cfg *rest.Config) (*apiClient, error) {
	cfg = rest.CopyConfig(cfg)
	// Compressing costs the apiserver more than a local network does.
	cfg.DisableCompression = true
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	disc, err := discovery.NewDiscoveryClientForConfigAndClient(cfg, hc)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	return &apiClient{http: hc, base: base, disc: disc}, nil
}

// catalogue asks for all resources at all versions.
func (c *apiClient) catalogue(ctx context.Context) (*catalogue, error) {
	groups, lists, err := c.disc.ServerGroupsAndResources()
	out := &catalogue{failed: map[string]string{}}
	if partial := (*discovery.ErrGroupDiscoveryFailed)(nil); errors.As(err, &partial) {
		for gv, e := range partial.Groups {
			out.failed[gv.String()] = e.Error()
		}
	} else if err != nil {
		return nil, fmt.Errorf("list the API's resources: %w", err)
	}
	preferred := map[string]string{}
	order := map[string][]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
		for _, v := range g.Versions {
			order[g.Name] = append(order[g.Name], v.Version)
		}
	}
	if out.remote, err = c.remoteGroups(ctx); err != nil {
		return nil, err
	}
	stored, err := c.storedVersions(ctx)
	if err != nil {
		return nil, err
	}
	found := map[schema.GroupResource]*resource{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("list the API's resources: %w", err)
		}
		if out.remote[gv.Group] {
			continue
		}
		for _, a := range l.APIResources {
			if strings.Contains(a.Name, "/") {
				continue
			}
			gr := schema.GroupResource{Group: gv.Group, Resource: a.Name}
			// Component statuses are made up at each request.
			if !slices.Contains([]string(a.Verbs), "list") || gr == (schema.GroupResource{Resource: "componentstatuses"}) {
				out.unlistable = append(out.unlistable, gr.String())
				continue
			}
			r := found[gr]
			if r == nil {
				r = &resource{group: gv.Group, name: a.Name, kind: a.Kind, namespaced: a.Namespaced}
				found[gr] = r
			}
			r.versions = append(r.versions, gv.Version)
		}
	}
	for gr, r := range found {
		slices.SortFunc(r.versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
		s, custom := stored[gr]
		r.custom = custom
		switch {
		case custom && slices.Contains(r.versions, s):
			r.version = s
		case slices.Contains(r.versions, preferred[gr.Group]):
			r.version = preferred[gr.Group]
		default:
			r.version = r.versions[0]
			for _, v := range order[gr.Group] {
				if slices.Contains(r.versions, v) {
					r.version = v
					break
				}
			}
		}
		out.resources = append(out.resources, *r)
	}
	slices.SortFunc(out.resources, func(a, b resource) int { return strings.Compare(a.id(), b.id()) })
	slices.Sort(out.unlistable)
	out.unlistable = slices.Compact(out.unlistable)
	return out, nil
}

// remoteGroups gives the groups that aggregated servers answer for.
func (c *apiClient) remoteGroups(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	_, err := c.list(ctx, "/apis/apiregistration.k8s.io/v1/apiservices", "", func(raw json.RawMessage) error {
		var a struct {
			Spec struct {
				Group   string    `json:"group"`
				Service *struct{} `json:"service"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(raw, &a); err != nil {
			return err
		}
		if a.Spec.Service != nil {
			out[a.Spec.Group] = true
		}
		return nil
	})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return out, nil
	}
	return out, err
}

// storedVersions gives the storage version of every custom resource.
func (c *apiClient) storedVersions(ctx context.Context) (map[schema.GroupResource]string, error) {
	out := map[schema.GroupResource]string{}
	_, err := c.list(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", func(raw json.RawMessage) error {
		var crd struct {
			Spec struct {
				Group string `json:"group"`
				Names struct {
					Plural string `json:"plural"`
				} `json:"names"`
				Versions []struct {
					Name    string `json:"name"`
					Storage bool   `json:"storage"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(raw, &crd); err != nil {
			return err
		}
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				out[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = v.Name
			}
		}
		return nil
	})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return out, nil
	}
	return out, err
}

// listPage is how many objects one request asks for. They are decoded one by
// one as they arrive, so it bounds the server's memory, not ours.
const listPage = 500

// list gives every object of a collection in pages that all show one
// resourceVersion: the exact one when rv is not empty, else the newest, which
// is returned. What each gets is overwritten afterwards. An expired continue token gives an error that
// apierrors.IsResourceExpired knows; each has then seen some objects.
func (c *apiClient) list(ctx context.Context, path, rv string, each func(json.RawMessage) error) (string, error) {
	got := rv
	query := url.Values{"limit": {strconv.Itoa(listPage)}}
	if rv != "" {
		query.Set("resourceVersion", rv)
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	for {
		meta, err := c.page(ctx, path, query, each)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", path, err)
		}
		got = meta.ResourceVersion
		if meta.Continue == "" {
			return got, nil
		}
		query = url.Values{"limit": {strconv.Itoa(listPage)}, "continue": {meta.Continue}}
	}
}

// How often a request that an overloaded or restarting server refuses is made
// again, and how long is waited at the most in between.
const (
	maxAttempts  = 6
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 15 * time.Second
)

// CutError is a list whose response ended in the middle: each has seen some of
// its objects already.
type CutError struct{ Err error }

func (e *CutError) Error() string { return "the response ended in the middle: " + e.Err.Error() }

// Unwrap gives the reason.
func (e *CutError) Unwrap() error { return e.Err }

// page reads one response, and asks again for one that was refused for now.
func (c *apiClient) page(ctx context.Context, path string, query url.Values, each func(json.RawMessage) error) (meta metav1.ListMeta, err error) {
	err = patiently(ctx, func() (after time.Duration, err error) {
		meta, after, err = c.pageOnce(ctx, path, query, each)
		return after, err
	})
	return meta, err
}

// patiently makes a request, and makes it again while the server refuses it for
// now. after is how long the server asks to wait before that.
func patiently(ctx context.Context, request func() (after time.Duration, err error)) error {
	backoff := firstBackoff
	for attempt := 1; ; attempt++ {
		after, err := request()
		if err == nil || attempt == maxAttempts || !passing(err) {
			return err
		}
		t := time.NewTimer(min(max(after, backoff), maxBackoff))
		select {
		case <-ctx.Done():
			t.Stop()
			return errors.Join(err, ctx.Err())
		case <-t.C:
		}
		backoff *= 2
	}
}

// asked is patiently for a request through client-go, which heeds the server's own wish.
func asked[T any](ctx context.Context, request func() (T, error)) (out T, err error) {
	err = patiently(ctx, func() (time.Duration, error) {
		out, err = request()
		return 0, err
	})
	return out, err
}

// passing says of a refused request whether it may be taken a moment later.
func passing(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return slices.Contains([]int32{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, status.Status().Code)
	}
	// No answer at all: refused, reset, closed while it was idle.
	return errors.As(err, new(*url.Error)) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// pageOnce makes one request. after is how long the server asks to wait before another.
func (c *apiClient) pageOnce(ctx context.Context, path string, query url.Values, each func(json.RawMessage) error) (meta metav1.ListMeta, after time.Duration, err error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return meta, 0, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return meta, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			after = time.Duration(s) * time.Second
		}
		return meta, after, statusError(resp)
	}
	if err := decodeList(resp.Body, &meta, each); err != nil {
		if errors.As(err, new(*localError)) {
			return meta, 0, err
		}
		return meta, 0, &CutError{err}
	}
	return meta, 0, nil
}

// do makes one request with a body and gives the answer's.
func (c *apiClient) do(ctx context.Context, method, u, contentType string, body []byte) (json.RawMessage, error) {
	req, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, statusError(resp)
	}
	return io.ReadAll(io.LimitReader(resp.Body, 64<<20))
}

// statusError makes the API's error of a response.
func statusError(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	var s metav1.Status
	if err := json.Unmarshal(b, &s); err == nil && s.Kind == "Status" {
		return &apierrors.StatusError{ErrStatus: s}
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, http.MethodGet, schema.GroupResource{}, "", strings.TrimSpace(string(b)), 0, true)
}

// decodeList reads a list object, holding no more than one of its items.
func decodeList(r io.Reader, meta *metav1.ListMeta, each func(json.RawMessage) error) error {
	d := json.NewDecoder(r)
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch key {
		case "metadata":
			if err := d.Decode(meta); err != nil {
				return err
			}
		case "items":
			if err := decodeItems(d, each); err != nil {
				return err
			}
		default:
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return err
			}
		}
	}
	return expect(d, json.Delim('}'))
}

func decodeItems(d *json.Decoder, each func(json.RawMessage) error) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t == nil { // null: an empty list
		return nil
	}
	if t != json.Delim('[') {
		return fmt.Errorf("items is %v, not a list", t)
	}
	var raw json.RawMessage
	for d.More() {
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if err := each(raw); err != nil {
			return err
		}
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if t != want {
		return fmt.Errorf("%v where %v was expected", t, want)
	}
	return nil
}

// storedAt are built-in resources whose keys do not lie under their own name.
// Source: the storage prefixes of k8s.io/kubernetes/pkg/kubeapiserver/default_storage_factory_builder.go
// (SpecialDefaultResourcePrefixes), and of the two API servers within the apiserver.
var storedAt = map[string]string{
	"nodes":                       "minions",
	"services":                    "services/specs",
	"endpoints":                   "services/endpoints",
	"replicationcontrollers":      "controllers",
	"ingresses.networking.k8s.io": "ingress",
	"customresourcedefinitions.apiextensions.k8s.io": "apiextensions.k8s.io/customresourcedefinitions",
	"apiservices.apiregistration.k8s.io":             "apiregistration.k8s.io/apiservices",
}

// storagePrefix gives the prefix that Prefix counts the resource's keys under. root is "/registry".
func (r resource) storagePrefix(root string) string {
	if r.custom {
		return root + "/" + r.group + "/" + r.name + "/"
	}
	if p, ok := storedAt[r.id()]; ok {
		return root + "/" + p + "/"
	}
	return root + "/" + r.name + "/"
}

// notObjects are prefixes of an apiserver's own bookkeeping.
var notObjects = []string{"masterleases", "peerserverleases", "ranges"}
