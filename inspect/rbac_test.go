package inspect

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// The documented roles allow every request that an observation makes, and nothing else.
func TestDocumentedRolesAreWhatIsAsked(t *testing.T) {
	data, err := os.ReadFile("../docs/rbac-check.yaml")
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{} // "verb group/resource[/name]", to: was it asked
	for _, doc := range bytes.Split(data, []byte("\n---\n")) {
		var role rbacv1.ClusterRole // a Role has the same rules
		if err := yaml.UnmarshalStrict(doc, &role); err != nil {
			t.Fatal(err)
		}
		for _, r := range role.Rules {
			for _, res := range r.Resources {
				for _, verb := range r.Verbs {
					for _, name := range append(r.ResourceNames, "")[:max(1, len(r.ResourceNames))] {
						allowed[verb+" "+r.APIGroups[0]+"/"+res+"/"+name] = false
					}
				}
			}
		}
	}
	api := newAPI()
	var mu sync.Mutex
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		if key := request(req.URL.Path); key != "" {
			if _, ok := allowed[key]; !ok || req.Method != http.MethodGet {
				t.Errorf("%s %s (%s) is not in docs/rbac-check.yaml", req.Method, req.URL.Path, key)
			}
			allowed[key] = true
		}
		mu.Unlock()
		api.ServeHTTP(w, req)
	}))
	defer srv.Close()
	if _, err := Observe(t.Context(), Sources{REST: &rest.Config{Host: srv.URL, QPS: 1000, Burst: 1000}}, Options{}); err != nil {
		t.Fatal(err)
	}
	for k, asked := range allowed {
		if !asked {
			t.Errorf("docs/rbac-check.yaml allows %s, which nothing asks for", k)
		}
	}
}

// request names what a path asks for as a role does; "" for /version, which everybody may read.
func request(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	default:
		return ""
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	verb, name := "list", ""
	if len(parts) == 2 {
		verb, name = "get", parts[1]
	}
	return verb + " " + group + "/" + parts[0] + "/" + name
}
