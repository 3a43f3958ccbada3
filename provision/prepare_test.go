package provision

import (
	"strings"
	"testing"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/host/hosttest"
)

// TestPrepareTakesNothingOver: what a restore makes ready is written over, so a machine with somebody's
// containerd or etcd is refused before it is marked, and one that an earlier try has marked is not.
func TestPrepareTakesNothingOver(t *testing.T) {
	for name, c := range map[string]struct {
		facts   string
		refused bool
	}{
		"containerd":        {"foreign=/var/lib/containerd\n", true},
		"etcd":              {"foreign=/var/lib/etcd/member\n", true},
		"nothing":           {"", false},
		"of an earlier try": {"owner=shop/1\nforeign=/var/lib/containerd\n", false},
	} {
		h := hosttest.NewFake(t, "n1")
		h.On(hosttest.Prefix("sh", "-c", factsScript), hosttest.Reply{Stdout: ordinaryFacts + c.facts})
		// A bundle for no architecture: the machine is not touched in either case, and everything is told at once.
		_, err := Prepare(t.Context(), h, PrepareOptions{Bundle: &bundle.Bundle{}, Role: RoleControlPlane, Cluster: "shop", Owner: "shop/1"})
		if err == nil || !strings.Contains(err.Error(), "the bundle is for") {
			t.Fatalf("%s: %v", name, err)
		}
		if got := strings.Contains(err.Error(), "what belay did not put there"); got != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, marked := h.File(ownerFile); marked {
			t.Errorf("%s: the machine was marked", name)
		}
	}
}
