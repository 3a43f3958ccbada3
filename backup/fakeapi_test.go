package backup

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

// fakeAPI serves a few resources the way an apiserver does: discovery, lists
// in pages that expire, single objects. It is no authority on anything else;
// the controlplane tests use the real one.
type fakeAPI struct {
	*httptest.Server
	mu sync.Mutex
	// objects by collection path ("/api/v1/configmaps") and "namespace/name".
	objects map[string]map[string]map[string]any
	// resources by group/version.
	resources map[string][]metav1.APIResource
	// forbidden collection paths.
	forbidden map[string]bool
	// expire makes that many continue tokens expire.
	expire int
	// lists counts list requests by path.
	lists map[string]int
	// refuse holds status codes that the next requests by path get, cut how many lists end in the middle.
	refuse map[string][]int
	cut    map[string]int
	// onApply is told of every server-side apply: how it is forced, and of what.
	onApply func(force string, o map[string]any)
	// pageSize overrides the limit that was asked for.
	pageSize int
}

const fakeUID = "11111111-2222-3333-4444-555555555555"

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	f := &fakeAPI{objects: map[string]map[string]map[string]any{}, resources: map[string][]metav1.APIResource{}, forbidden: map[string]bool{}, lists: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	f.serve("v1", "namespaces", "Namespace", false)
	f.serve("v1", "configmaps", "ConfigMap", true)
	f.serve("v1", "secrets", "Secret", true)
	f.add("v1", "namespaces", "", "kube-system", map[string]any{"metadata": map[string]any{"uid": fakeUID}})
	f.add("v1", "configmaps", "kube-system", "kubeadm-config", map[string]any{"data": map[string]any{"ClusterConfiguration": "clusterName: demo\n"}})
	f.add("v1", "secrets", "shop", "sh.helm.release.v1.web.v1", map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"owner": "helm"}}, "type": releaseType, "data": map[string]any{"release": "c2VjcmV0LXZhbHVl"},
	})
	return f
}

func (f *fakeAPI) config() *rest.Config { return &rest.Config{Host: f.URL, QPS: -1} }

func collection(gv, resource string) string {
	if !strings.Contains(gv, "/") {
		return "/api/" + gv + "/" + resource
	}
	return "/apis/" + gv + "/" + resource
}

func (f *fakeAPI) serve(gv, resource, kind string, namespaced bool) {
	f.resources[gv] = append(f.resources[gv], metav1.APIResource{Name: resource, Kind: kind, Namespaced: namespaced, Verbs: metav1.Verbs{"list", "get"}})
	if f.objects[collection(gv, resource)] == nil {
		f.objects[collection(gv, resource)] = map[string]map[string]any{}
	}
}

func (f *fakeAPI) add(gv, resource, namespace, name string, o map[string]any) {
	meta, _ := o["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		o["metadata"] = meta
	}
	meta["name"], meta["resourceVersion"] = name, "5"
	if namespace != "" {
		meta["namespace"] = namespace
	}
	if meta["uid"] == nil {
		meta["uid"] = "uid-" + namespace + "-" + name
	}
	f.objects[collection(gv, resource)][namespace+"/"+name] = o
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := r.URL.Path
	switch {
	case p == "/version":
		reply(w, version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"})
		return
	case p == "/api":
		reply(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	case p == "/apis":
		reply(w, f.groups())
		return
	}
	gv := strings.TrimPrefix(strings.TrimPrefix(p, "/apis/"), "/api/")
	if rs, ok := f.resources[gv]; ok {
		reply(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, GroupVersion: gv, APIResources: rs})
		return
	}
	if f.forbidden[p] {
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	if codes := f.refuse[p]; len(codes) > 0 {
		f.refuse[p] = codes[1:]
		fail(w, codes[0], metav1.StatusReasonUnknown)
		return
	}
	if objs, ok := f.objects[p]; ok {
		if f.cut[p] > 0 && r.URL.Query().Get("labelSelector") == "" {
			f.cut[p]--
			w = cutWriter{w}
		}
		f.list(w, r, objs)
		return
	}
	if r.Method == http.MethodPatch {
		f.apply(w, r)
		return
	}
	for c, objs := range f.objects {
		base, resource := c[:strings.LastIndex(c, "/")], c[strings.LastIndex(c, "/")+1:]
		rest, ok := strings.CutPrefix(p, base+"/")
		if !ok {
			continue
		}
		parts := strings.Split(rest, "/")
		key := ""
		switch {
		case len(parts) == 4 && parts[0] == "namespaces" && parts[2] == resource:
			key = parts[1] + "/" + parts[3]
		case len(parts) == 2 && parts[0] == resource:
			key = "/" + parts[1]
		default:
			continue
		}
		if o, ok := objs[key]; ok {
			if r.Method == http.MethodDelete {
				delete(objs, key)
			}
			reply(w, o)
			return
		}
	}
	fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
}

// apply stores what a server-side apply sends, whole.
func (f *fakeAPI) apply(w http.ResponseWriter, r *http.Request) {
	var o map[string]any
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	if f.onApply != nil {
		f.onApply("force="+r.URL.Query().Get("force"), o)
	}
	meta, _ := o["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	namespace, _ := meta["namespace"].(string)
	dir := strings.TrimSuffix(r.URL.Path, "/"+name)
	for gv, rs := range f.resources {
		for _, res := range rs {
			c := collection(gv, res.Name)
			if namespace != "" {
				c = strings.TrimSuffix(c, res.Name) + "namespaces/" + namespace + "/" + res.Name
			}
			if c == dir && o["apiVersion"] == gv && o["kind"] == res.Kind {
				if r.URL.Query().Get("dryRun") == "" {
					f.add(gv, res.Name, namespace, name, o)
				}
				reply(w, o)
				return
			}
		}
	}
	fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
}

func (f *fakeAPI) groups() metav1.APIGroupList {
	out := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList"}}
	byGroup := map[string]*metav1.APIGroup{}
	for _, gv := range slices.Sorted(maps.Keys(f.resources)) {
		group, v, ok := strings.Cut(gv, "/")
		if !ok {
			continue
		}
		g := byGroup[group]
		if g == nil {
			g = &metav1.APIGroup{Name: group}
			byGroup[group] = g
		}
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: v})
		g.PreferredVersion = g.Versions[0]
	}
	for _, name := range slices.Sorted(maps.Keys(byGroup)) {
		out.Groups = append(out.Groups, *byGroup[name])
	}
	return out
}

func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request, objs map[string]map[string]any) {
	f.lists[r.URL.Path]++
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	if f.pageSize > 0 {
		limit = f.pageSize
	}
	start := 0
	if c := q.Get("continue"); c != "" {
		if f.expire > 0 {
			f.expire--
			fail(w, http.StatusGone, metav1.StatusReasonExpired)
			return
		}
		start, _ = strconv.Atoi(c)
	}
	keys := slices.Sorted(maps.Keys(objs))
	var items []map[string]any
	meta := map[string]any{"resourceVersion": "1000"}
	for i := start; i < len(keys); i++ {
		if limit > 0 && len(items) == limit {
			meta["continue"] = strconv.Itoa(i)
			break
		}
		o := objs[keys[i]]
		if q.Get("labelSelector") == "owner=helm" {
			labels, _ := o["metadata"].(map[string]any)["labels"].(map[string]any)
			if labels["owner"] != "helm" {
				continue
			}
		}
		items = append(items, o)
	}
	gv, kind := "", ""
	for candidate, rs := range f.resources {
		for _, res := range rs {
			if collection(candidate, res.Name) == r.URL.Path {
				gv, kind = candidate, res.Kind
			}
		}
	}
	reply(w, map[string]any{"kind": kind + "List", "apiVersion": gv, "metadata": meta, "items": items})
}

// cutWriter drops the connection in the middle of what is written.
type cutWriter struct{ http.ResponseWriter }

func (w cutWriter) Write(p []byte) (int, error) {
	if n, err := w.ResponseWriter.Write(p[:len(p)/2]); err != nil {
		return n, err
	}
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		return 0, err
	}
	panic(http.ErrAbortHandler)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code), Message: fmt.Sprintf("fake: %s", reason)})
}
