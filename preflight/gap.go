package preflight

import (
	"fmt"
	"strings"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

// coverageID is the check that reports what could not be read. What follows from a gap is blocked by its finding.
const coverageID = cluster.IDCoverage

func pass(subject, format string, args ...any) Result {
	return Result{Subject: subject, Status: Pass, Message: fmt.Sprintf(format, args...)}
}

func skipped(subject, format string, args ...any) Result {
	return Result{Subject: subject, Status: Skipped, Message: fmt.Sprintf(format, args...)}
}

func finding(status Status, subject, remedy, format string, args ...any) Result {
	return Result{Subject: subject, Status: status, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

// unread finds a gap by its exact name.
func (in *Input) unread(what string) *cluster.Unread {
	for i := range in.State.Unread {
		if in.State.Unread[i].What == what {
			return &in.State.Unread[i]
		}
	}
	return nil
}

// gap says that a subject could not be judged, as what it needs was not read; nil when all of it was.
func (in *Input) gap(subject string, whats ...string) *Result {
	var because []string
	for _, w := range whats {
		if u := in.unread(w); u != nil && standsFor(in, u) != Pass {
			because = append(because, coverageID+"@"+w)
		}
	}
	if because == nil {
		return nil
	}
	return &Result{Subject: subject, Status: Blocked, Because: because, Message: "not judged, as it could not be read: " + strings.Join(because, ", ")}
}

// managed says that the control plane is not one of kubeadm's static pods, so that checks of those do not apply.
func (in *Input) managed() bool {
	if in.State.Kubeadm != nil || in.unread(cluster.ReadPods) != nil || in.unread(cluster.ReadNodes) != nil {
		return false
	}
	for _, n := range in.State.Nodes {
		if len(n.StaticPods) > 0 {
			return false
		}
	}
	return true
}

// eachHost judges every node by what its machine said. Nodes whose machine was not read are blocked by that.
func (in *Input) eachHost(judge func(n *cluster.Node, h *cluster.HostFacts) []Result) []Result {
	if g := in.gap("nodes", cluster.ReadNodes); g != nil {
		return []Result{*g}
	}
	if in.unread(cluster.ReadHosts) != nil {
		if in.managed() {
			return []Result{skipped("machines", "no access to the machines was configured, and the control plane is managed")}
		}
		return []Result{*in.gap("machines", cluster.ReadHosts)}
	}
	var out []Result
	for i := range in.State.Nodes {
		n := &in.State.Nodes[i]
		if n.Host == nil {
			if g := in.gap(n.Name, cluster.HostRead(n.Name)); g != nil {
				out = append(out, *g)
			} else {
				out = append(out, finding(Unknown, n.Name, "observe again with --inventory, which lists every machine", "nothing is known of its machine"))
			}
			continue
		}
		out = append(out, judge(n, n.Host)...)
	}
	return out
}

// hostGap is gap for one thing that a machine was asked for.
func (in *Input) hostGap(n *cluster.Node, what string) *Result {
	return in.gap(n.Name, "node/"+n.Name+"/host/"+what)
}

// kubeletTarget is the version that kubelets are to run: the goal's, or the cluster's own without one.
func (in *Input) kubeletTarget() kubeversion.V {
	if !in.Goal.Target.IsZero() {
		return in.Goal.Target
	}
	return in.State.Version
}

// passIfClean gives one pass when nothing was found.
func passIfClean(out []Result, subject, format string, args ...any) []Result {
	if len(out) == 0 {
		return []Result{pass(subject, format, args...)}
	}
	return out
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if strings.HasSuffix(one, "y") && !strings.HasSuffix(one, "ay") {
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(one, "y"))
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// some joins the first few of a list.
func some(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:most], ", ") + fmt.Sprintf(" and %d more", len(list)-most)
}

// size prints bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
