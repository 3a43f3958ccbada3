package cluster_test

import (
	"testing"

	"github.com/belayops/belay/cluster"
)

// The table of pkg/registry/core/pod/storage/eviction.go at v1.37.2: for which pods it looks at the budget at all.
func TestBudgetHolds(t *testing.T) {
	healthy := cluster.PDB{CurrentHealthy: 2, DesiredHealthy: 2}
	short := cluster.PDB{CurrentHealthy: 1, DesiredHealthy: 2}
	none := cluster.PDB{}
	always := func(b cluster.PDB) cluster.PDB { b.UnhealthyEviction = "AlwaysAllow"; return b }
	ready, broken := cluster.Pod{Phase: "Running", Ready: true}, cluster.Pod{Phase: "Running"}
	for name, c := range map[string]struct {
		b    cluster.PDB
		p    cluster.Pod
		want bool
	}{
		"ready":                             {healthy, ready, true},
		"ready, AlwaysAllow":                {always(healthy), ready, true},
		"broken, the others are enough":     {healthy, broken, false},
		"broken, too few others":            {short, broken, true},
		"broken, nothing is wanted":         {none, broken, true},
		"broken, too few, AlwaysAllow":      {always(short), broken, false},
		"pending":                           {short, cluster.Pod{Phase: "Pending"}, false},
		"succeeded":                         {short, cluster.Pod{Phase: "Succeeded"}, false},
		"failed":                            {short, cluster.Pod{Phase: "Failed"}, false},
		"terminating, though it is ready":   {short, cluster.Pod{Phase: "Running", Ready: true, Terminating: true}, false},
		"unknown phase, ready before that":  {short, cluster.Pod{Phase: "Unknown", Ready: true}, true},
		"unknown phase, not ready, healthy": {healthy, cluster.Pod{Phase: "Unknown"}, false},
	} {
		if got := c.b.Holds(c.p); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
