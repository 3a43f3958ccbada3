package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

// etcdGap says why etcd cannot be judged, or nil.
func (in *Input) etcdGap() []Result {
	if in.State.Etcd.Reached {
		return nil
	}
	if in.managed() {
		return []Result{skipped("etcd", "the control plane is managed: etcd is its provider's")}
	}
	if g := in.gap("etcd", "etcd"); g != nil {
		return []Result{*g}
	}
	return []Result{finding(Unknown, "etcd", "observe again with --inventory, which lists the control plane's machines", "etcd was not asked")}
}

func name(m cluster.EtcdMember) string { return cmp.Or(m.Name, m.Node, m.ID) }

func etcdMembers(_ context.Context, in *Input) []Result {
	if g := in.etcdGap(); g != nil {
		return g
	}
	var out []Result
	seen := make(map[string][]string)
	var ahead uint64
	for _, m := range in.State.Etcd.Members {
		ahead = max(ahead, m.RaftIndex)
	}
	for _, m := range in.State.Etcd.Members {
		switch {
		case len(m.ClientURLs) == 0 && m.Name == "":
			out = append(out, finding(Fail, m.ID, "remove it: etcdctl member remove "+m.ID, "member %s (%s) was added and never started", m.ID, some(m.PeerURLs)))
			continue
		case m.Learner:
			out = append(out, finding(Fail, name(m), "wait until it is promoted; a stale one: etcdctl member remove "+m.ID, "member %s is a learner: it does not vote, and a join was left half-way", name(m)))
		case !m.Healthy:
			out = append(out, finding(Fail, name(m), fmt.Sprintf("on node %s: crictl logs $(crictl ps -a --name etcd -q | head -1)", cmp.Or(m.Node, name(m))), "member %s is not healthy: %s", name(m), cmp.Or(m.Problem, "it does not answer")))
			continue
		}
		seen[m.Version.Bare()] = append(seen[m.Version.Bare()], name(m))
		// Applied entries are compared, not terms: a follower that lags by thousands is catching up.
		if lag := ahead - min(ahead, m.RaftApplied); lag > 5000 {
			out = append(out, finding(Warn, name(m), "wait until it has caught up", "member %s is %d log entries behind", name(m), lag))
		}
	}
	if len(seen) > 1 {
		var parts []string
		for v, who := range seen {
			parts = append(parts, v+" on "+some(who))
		}
		slices.Sort(parts)
		out = append(out, finding(Warn, "versions", "finish the upgrade that was begun", "members run different versions: %s", strings.Join(parts, "; ")))
	}
	if n := len(in.State.Etcd.Members); n%2 == 0 && n > 0 {
		out = append(out, finding(Warn, "count", "add a member or remove one", "%s survive no more failures than %d would", plural(n, "member"), n-1))
	}
	return passIfClean(out, "etcd", "%s healthy, %s", plural(len(in.State.Etcd.Members), "member"), some(keys(seen)))
}

func keys(m map[string][]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func etcdQuorum(_ context.Context, in *Input) []Result {
	if g := in.etcdGap(); g != nil {
		return g
	}
	var out []Result
	outage := false
	for _, m := range in.State.Etcd.Members {
		if m.Learner {
			continue
		}
		q := cluster.QuorumAfter(in.State.Etcd, cluster.EtcdOp{Action: cluster.EtcdRestart, Members: []string{m.ID}})
		if !q.OK() {
			out = append(out, finding(Fail, name(m), "repair the members that are named first", "member %s may not be restarted: %s", name(m), strings.Join(q.Vetoes, "; ")))
		}
		outage = outage || q.Outage
	}
	if len(out) > 0 {
		return out
	}
	if n := len(in.State.Etcd.Members); outage {
		return []Result{finding(Warn, "etcd", "plan for it, or go to three control plane nodes first", "%s: while one restarts, the API does not answer", plural(n, "voter"))}
	}
	return []Result{pass("etcd", "any one of %s may restart", plural(len(in.State.Etcd.Members), "member"))}
}

func etcdAlarms(_ context.Context, in *Input) []Result {
	if g := in.etcdGap(); g != nil {
		return g
	}
	var out []Result
	for _, a := range in.State.Etcd.Alarms {
		who := a.MemberID
		for _, m := range in.State.Etcd.Members {
			if m.ID == a.MemberID {
				who = name(m)
			}
		}
		remedy := "compact, defragment the followers and then the leader, then: etcdctl alarm disarm"
		if a.Alarm == "CORRUPT" {
			remedy = "do not restart anything; replace the member from its healthy peers, see etcd's guide on data corruption"
		}
		out = append(out, finding(Fail, who+"/"+a.Alarm, remedy, "member %s raised alarm %s", who, a.Alarm))
	}
	return passIfClean(out, "etcd", "none")
}

// Shares of the quota. etcd refuses every write at 100 %, and kubeadm writes a lot.
const (
	etcdQuotaFail    = 0.90
	etcdQuotaWarn    = 0.70
	etcdDefaultQuota = 2 << 30
)

func etcdSize(_ context.Context, in *Input) []Result {
	if g := in.etcdGap(); g != nil {
		return g
	}
	var out []Result
	var largest, quota int64
	for _, m := range in.State.Etcd.Members {
		q := cmp.Or(m.Quota, etcdDefaultQuota)
		if m.DBSize > largest {
			largest, quota = m.DBSize, q
		}
		share := float64(m.DBSize) / float64(q)
		status := Pass
		switch {
		case share > etcdQuotaFail:
			status = Fail
		case share > etcdQuotaWarn:
			status = Warn
		default:
			continue
		}
		remedy := "find what fills it (etcdctl get / --prefix --keys-only), or raise --quota-backend-bytes"
		if m.DBSizeInUse < m.DBSize/2 {
			remedy = "defragment: etcdctl defrag, one member at a time, the leader last"
			// etcd's changelogs of 3.5.23 and 3.6.5.
			if v := m.Version; v.Major == 3 && (v.Minor == 5 && v.Patch <= 22 || v.Minor == 6 && v.Patch <= 4) {
				remedy = "bring etcd to 3.5.23 or 3.6.5 first, as defragmenting " + v.Bare() + " can corrupt it; then etcdctl defrag, the leader last"
			}
		}
		out = append(out, finding(status, name(m), remedy, "the database of member %s has %s (%s in use), %d %% of its quota of %s", name(m), size(m.DBSize), size(m.DBSizeInUse), int(share*100), size(q)))
	}
	return passIfClean(out, "etcd", "at most %s of %s", size(largest), size(cmp.Or(quota, etcdDefaultQuota)))
}

// etcdAt is the etcd that a minor brings: the bundle's, else kubeadm's default, else zero.
func (in *Input) etcdAt(m kubeversion.Minor) kubeversion.V {
	if v, ok := in.Goal.Etcd[m]; ok {
		return v
	}
	return etcdOf[m]
}

func etcdFloor(_ context.Context, in *Input) []Result {
	to := in.Goal.Target
	if to.IsZero() {
		return []Result{skipped("etcd", "no target was given")}
	}
	if g := in.etcdGap(); g != nil {
		return g
	}
	if in.State.Etcd.External {
		return []Result{skipped("etcd", "etcd is external: kubeadm does not upgrade it")}
	}
	hops, err := kubeversion.Hops(lowest(in.State), to)
	if err != nil {
		return []Result{skipped("etcd", "%v", err)}
	}
	var out []Result
	members := slices.Clone(in.State.Etcd.Members)
	for _, hop := range hops {
		next := in.etcdAt(hop)
		if next.IsZero() {
			out = append(out, finding(Unknown, "hop/"+hop.String(), "say which etcd it brings, with its bundle", "which etcd Kubernetes %s brings is not known", hop))
			break
		}
		var low []string
		var why string
		for _, p := range cluster.CheckEtcdFloor(members, next) {
			switch {
			case p.Unknown:
				out = append(out, finding(Unknown, name(p.Member), "see etcd-members", "%s", p.Message))
			case p.Advice:
				out = append(out, finding(Warn, name(p.Member), "bring it there first", "%s", p.Message))
			default:
				low = append(low, name(p.Member)+" ("+p.Member.Version.Bare()+")")
				why = p.Message
			}
		}
		slices.Sort(low)
		if low != nil {
			out = append(out, in.floorFinding(hop, next, members, low, why))
		}
		// What the next hop starts from.
		for i := range members {
			if members[i].Version.Less(next) {
				members[i].Version = next
			}
		}
	}
	return passIfClean(out, "etcd", "%s on the way to %s ask for nothing else", plural(len(hops), "hop"), to)
}

// floorFinding says once what holds for several members.
func (in *Input) floorFinding(hop kubeversion.Minor, next kubeversion.V, members []cluster.EtcdMember, low []string, why string) Result {
	subject := "etcd-" + next.MinorVersion().String()
	floor, documented := cluster.EtcdFloorFor(next.MinorVersion())
	oneBehind := !slices.ContainsFunc(members, func(m cluster.EtcdMember) bool {
		n, ok := next.MinorVersion().Sub(m.Version.MinorVersion())
		return !ok || n > 1 || n < 0
	})
	if !documented || !oneBehind {
		return finding(Fail, subject, "see the guide of that etcd version", "Kubernetes %s brings etcd %s, where %s cannot go: %s", hop, next.Bare(), some(low), why)
	}
	msg := fmt.Sprintf("Kubernetes %s brings etcd %s, before which every member has to run %s or later; %s", hop, next.Bare(), floor.Least.Bare(), tooOld(low))
	for _, v := range in.Goal.EtcdSteps {
		if n, ok := next.MinorVersion().Sub(v.MinorVersion()); ok && n == 1 && !v.Less(floor.Least) {
			return finding(Warn, subject, "nothing: the plan does it", "%s. belay plan takes every member to %s first", msg, v.Bare())
		}
	}
	return finding(Fail, subject, "take a bundle that carries an etcd of "+floor.Least.Bare()+" or later, and belay plan does it; or set etcd.local.imageTag in ConfigMap kubeadm-config to such an image, "+
		"then kubeadm upgrade apply at the present version and kubeadm upgrade node on each further control plane node", "%s: %s (%s)", msg, floor.Why, floor.Source)
}

func tooOld(who []string) string {
	if len(who) == 1 {
		return "member " + who[0] + " is too old"
	}
	return "members " + some(who) + " are too old"
}
