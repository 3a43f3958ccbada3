package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// EtcdAction is what is about to be done to members of an etcd cluster.
type EtcdAction string

// The actions that QuorumAfter can judge.
const (
	// EtcdRestart takes members down for a while and brings the same members back: a new image, a reboot.
	EtcdRestart EtcdAction = "restart"
	// EtcdRemove removes members for good.
	EtcdRemove EtcdAction = "remove"
)

// EtcdOp is an action on members, each named by its ID, its name or its node.
// All of them are down at the same time: pass a whole zone's members to ask about that zone.
type EtcdOp struct {
	Action  EtcdAction
	Members []string
}

// Quorum is what an EtcdOp leaves, in the worst case.
type Quorum struct {
	// Voters counts the voting members and Needed the majority that they need, during the action
	// (an EtcdRemove lowers both).
	Voters, Needed int
	// Healthy counts the voters that answer while the action runs.
	Healthy int
	// Outage says that etcd, and with it every write to the API, stops while the action runs, as one or
	// two voters have no member to spare. That is a property of the cluster and no reason to refuse by itself.
	Outage bool
	// Vetoes are the reasons not to begin, each naming a member. Empty: the action may begin.
	Vetoes []string
}

// OK says that nothing stands against the action.
func (q Quorum) OK() bool { return len(q.Vetoes) == 0 }

// Spare is how many further voters may fail during the action before quorum is lost; negative when it is lost already.
func (q Quorum) Spare() int { return q.Healthy - q.Needed }

// Err gives the vetoes as one error, or nil.
func (q Quorum) Err() error {
	if q.OK() {
		return nil
	}
	return fmt.Errorf("etcd: %s", strings.Join(q.Vetoes, "; "))
}

// QuorumAfter projects an action on etcd members. It judges what holds during
// the action, not before it: three members of which one is down have quorum now, and
// none once a second one restarts.
//
// An unhealthy member other than those acted on, a learner, and an alarm veto: kubeadm itself
// asks for no more than a quorum (kubernetes/kubernetes#138538), so that whoever drives it has to.
// A member that is itself unhealthy may be restarted, as that is how it is repaired.
func QuorumAfter(e Etcd, op EtcdOp) Quorum {
	var q Quorum
	veto := func(format string, args ...any) { q.Vetoes = append(q.Vetoes, fmt.Sprintf(format, args...)) }

	if !e.Reached {
		veto("no member was reached, so its quorum is unknown")
		return q
	}
	touched := make(map[int]bool)
	for _, want := range op.Members {
		found := false
		for i, m := range e.Members {
			if m.ID == want || m.Name == want || m.Node == want {
				touched[i], found = true, true
			}
		}
		if !found {
			veto("there is no member %s (members: %s)", want, memberNames(e.Members))
		}
	}
	if len(op.Members) == 0 {
		veto("no member was named")
	}

	before := 0
	for i, m := range e.Members {
		switch {
		case m.Learner:
			if !touched[i] || op.Action != EtcdRemove {
				veto("member %s is a learner: wait until it is promoted, or remove it", memberName(m))
			}
			continue
		case !touched[i] && !m.Healthy:
			veto("member %s is not healthy%s", memberName(m), because(m.Problem))
		}
		before++
		if touched[i] {
			if op.Action != EtcdRemove {
				q.Voters++
			}
			continue
		}
		q.Voters++
		if m.Healthy {
			q.Healthy++
		}
	}
	for _, a := range e.Alarms {
		veto("member %s raised alarm %s", memberByID(e.Members, a.MemberID), a.Alarm)
	}
	q.Needed = q.Voters/2 + 1

	switch op.Action {
	case EtcdRestart:
		// One or two voters have no member to spare: a restart is an outage, and the members come back.
		q.Outage = q.Healthy < q.Needed
		if q.Outage && (before > 2 || len(touched) > 1) {
			veto("%d of %d voters would answer, %d are needed", q.Healthy, q.Voters, q.Needed)
		}
	case EtcdRemove:
		if q.Voters == 0 {
			q.Needed = 1
		}
		if q.Healthy < q.Needed {
			veto("%d healthy voters would stay, %d are needed", q.Healthy, q.Needed)
		}
		// The member change itself is committed by the old membership.
		if healthyNow := countHealthy(e.Members); healthyNow < before/2+1 {
			veto("quorum is lost already: %d of %d voters answer", healthyNow, before)
		}
	default:
		veto("unknown action %q", op.Action)
	}
	return q
}

func countHealthy(ms []EtcdMember) (n int) {
	for _, m := range ms {
		if !m.Learner && m.Healthy {
			n++
		}
	}
	return n
}

func memberName(m EtcdMember) string {
	switch {
	case m.Name != "":
		return m.Name
	case m.Node != "":
		return m.Node
	}
	// A member that was added and never started has no name.
	return m.ID + " (never started)"
}

func memberByID(ms []EtcdMember, id string) string {
	if i := slices.IndexFunc(ms, func(m EtcdMember) bool { return m.ID == id }); i >= 0 {
		return memberName(ms[i])
	}
	return id
}

func memberNames(ms []EtcdMember) string {
	var names []string
	for _, m := range ms {
		names = append(names, memberName(m))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func because(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}
