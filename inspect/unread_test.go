package inspect

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
	"github.com/belayops/belay/preflight"
)

// Whatever list a user may not read, a plan and the checks must stop at it: a name that only one side knows would let
// the gap pass for an empty list.
func TestEveryRefusedListStopsPlanAndCheck(t *testing.T) {
	paths := map[string]bool{}
	for path := range newAPI().lists {
		if !strings.Contains(path, "/namespaces/") { // endpoint slices, which are no list of their own
			paths[path] = true
		}
	}
	refused := map[string]bool{}
	for path := range paths {
		t.Run(path[strings.LastIndexByte(path, '/')+1:], func(t *testing.T) {
			api := newAPI()
			api.status = map[string]int{path: http.StatusForbidden}
			srv := httptest.NewServer(api)
			defer srv.Close()
			s, err := Observe(t.Context(), Sources{REST: &rest.Config{Host: srv.URL, QPS: 1000, Burst: 1000}}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(s.Unread, func(u cluster.Unread) bool { return u.Kind == cluster.UnreadForbidden && u.What != "etcd" })
			if i < 0 {
				t.Fatalf("the refusal is not in the state: %+v", s.Unread)
			}
			what := s.Unread[i].What
			refused[what] = true
			rep, err := preflight.Run(context.Background(), preflight.Input{State: s}, preflight.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(rep.Standing(), func(r preflight.Result) bool { return r.ID() == cluster.IDCoverage+"@"+what }) {
				t.Errorf("belay check says nothing of %s", what)
			}
			blocked := slices.ContainsFunc(rep.Results, func(r preflight.Result) bool {
				return r.Status == preflight.Blocked && slices.Contains(r.Because, cluster.IDCoverage+"@"+what)
			})
			if !blocked && what != cluster.ReadReplicaSets && what != cluster.ReadJobs {
				t.Errorf("no check waits for %s", what)
			}
			if !slices.Contains(cluster.DrainReads(), what) {
				return
			}
			p, fs := plan.Build(*s, plan.Goal{To: kubeversion.MustParse("1.37.2")}, plan.Policy{})
			if p != nil || !slices.ContainsFunc(fs, func(f plan.Finding) bool { return f.Blocks() && f.Waiver() == cluster.IDCoverage+"@"+what }) {
				t.Errorf("a plan does not stop at %s: %+v", what, fs)
			}
		})
	}
	for _, what := range cluster.DrainReads() {
		if !refused[what] {
			t.Errorf("no list that is read is called %s", what)
		}
	}
}
