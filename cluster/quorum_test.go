package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
)

func TestQuorumAfter(t *testing.T) {
	down := func(name string) clustertest.Option {
		return clustertest.Member(name, func(m *cluster.EtcdMember) { m.Healthy, m.Problem = false, "no answer" })
	}
	learner := func(name string) clustertest.Option {
		return clustertest.Member(name, func(m *cluster.EtcdMember) { m.Learner = true })
	}
	restart := func(m ...string) cluster.EtcdOp { return cluster.EtcdOp{Action: cluster.EtcdRestart, Members: m} }
	remove := func(m ...string) cluster.EtcdOp { return cluster.EtcdOp{Action: cluster.EtcdRemove, Members: m} }
	for name, c := range map[string]struct {
		members int
		opts    []clustertest.Option
		op      cluster.EtcdOp
		veto    string // "" allows
		outage  bool
		spare   int
	}{
		"one of three restarts":              {3, nil, restart("cp2"), "", false, 0},
		"one of five restarts":               {5, nil, restart("cp2"), "", false, 1},
		"a member by its ID":                 {3, nil, restart("00000000000000a2"), "", false, 0},
		"the only one restarts":              {1, nil, restart("cp1"), "", true, -1},
		"one of two restarts":                {2, nil, restart("cp1"), "", true, -1},
		"both of two":                        {2, nil, restart("cp1", "cp2"), "0 of 2 voters", true, -2},
		"two of three":                       {3, nil, restart("cp1", "cp2"), "1 of 3 voters", true, -1},
		"another is down":                    {3, []clustertest.Option{down("cp3")}, restart("cp2"), "cp3 is not healthy (no answer)", true, -1},
		"another is down, quorum would hold": {5, []clustertest.Option{down("cp3")}, restart("cp2"), "cp3 is not healthy", false, 0},
		"the one that is down is restarted":  {3, []clustertest.Option{down("cp2")}, restart("cp2"), "", false, 0},
		"a learner stands by":                {3, []clustertest.Option{learner("cp3")}, restart("cp2"), "cp3 is a learner", true, -1},
		"a learner is removed":               {3, []clustertest.Option{learner("cp3")}, remove("cp3"), "", false, 0},
		"one of three is removed":            {3, nil, remove("cp3"), "", false, 0},
		"the only one is removed":            {1, nil, remove("cp1"), "0 healthy voters", false, -1},
		"one of two is removed, other down":  {2, []clustertest.Option{down("cp1")}, remove("cp2"), "quorum is lost already", false, -1},
		"a dead one of three is removed":     {3, []clustertest.Option{down("cp3")}, remove("cp3"), "", false, 0},
		"a member that is not there":         {3, nil, restart("cp9"), "no member cp9 (members: cp1, cp2, cp3)", false, 1},
		"nobody":                             {3, nil, restart(), "no member was named", false, 1},
		"an unknown action":                  {3, nil, cluster.EtcdOp{Action: "explode", Members: []string{"cp1"}}, "unknown action", false, 0},
		"an alarm": {3, []clustertest.Option{func(s *cluster.State) {
			s.Etcd.Alarms = []cluster.EtcdAlarm{{MemberID: "00000000000000a3", Alarm: "NOSPACE"}}
		}}, restart("cp1"), "cp3 raised alarm NOSPACE", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := clustertest.New("1.36.3", c.members, 0, c.opts...)
			q := cluster.QuorumAfter(s.Etcd, c.op)
			if (c.veto == "") != q.OK() || (q.Err() == nil) != q.OK() {
				t.Fatalf("vetoes %q; want %q", q.Vetoes, c.veto)
			}
			if c.veto != "" && !strings.Contains(q.Err().Error(), c.veto) {
				t.Errorf("vetoes %q; want %q", q.Vetoes, c.veto)
			}
			if q.Outage != c.outage || q.Spare() != c.spare {
				t.Errorf("outage %v spare %d (%d of %d, %d needed); want %v, %d", q.Outage, q.Spare(), q.Healthy, q.Voters, q.Needed, c.outage, c.spare)
			}
		})
	}
	if q := cluster.QuorumAfter(cluster.Etcd{}, restart("cp1")); q.OK() {
		t.Error("an etcd that nobody reached was judged")
	}
}

// Whatever the cluster looks like: an action that is allowed on three or more voters leaves a majority
// that answers, and nobody but the members acted on is down.
func TestQuorumAfterNeverAllowsLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "members")
		e := cluster.Etcd{Reached: true}
		for i := range n {
			e.Members = append(e.Members, cluster.EtcdMember{
				ID: fmt.Sprint(i), Name: fmt.Sprintf("m%d", i),
				Healthy: rapid.IntRange(0, 5).Draw(t, "sick") > 0, Learner: rapid.IntRange(0, 7).Draw(t, "learner") == 0,
			})
		}
		op := cluster.EtcdOp{Action: rapid.SampledFrom([]cluster.EtcdAction{cluster.EtcdRestart, cluster.EtcdRemove}).Draw(t, "action")}
		for i := range n {
			if rapid.IntRange(0, 3).Draw(t, "pick") == 0 {
				op.Members = append(op.Members, fmt.Sprint(i))
			}
		}
		if !cluster.QuorumAfter(e, op).OK() {
			return
		}
		voters, left, touched := 0, 0, map[string]bool{}
		for _, id := range op.Members {
			touched[id] = true
		}
		for _, m := range e.Members {
			if !touched[m.ID] && (!m.Healthy || m.Learner) {
				t.Fatalf("allowed %v although %+v", op, m)
			}
			if m.Learner || touched[m.ID] && op.Action == cluster.EtcdRemove {
				continue
			}
			voters++
			if !touched[m.ID] {
				left++
			}
		}
		if voters > 2 && left < voters/2+1 {
			t.Fatalf("allowed %v with %d of %d left", op, left, voters)
		}
		if voters == 0 {
			t.Fatalf("allowed %v, which leaves no voter", op)
		}
	})
}
