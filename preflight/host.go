package preflight

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

const (
	certFail = 7 * 24 * time.Hour
	certWarn = 30 * 24 * time.Hour
)

func certificates(_ context.Context, in *Input) []Result {
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		var out []Result
		for _, u := range in.State.Unread {
			for _, kind := range []string{"cert:", "kubeconfig:"} {
				if what := "node/" + n.Name + "/host/" + kind; strings.HasPrefix(u.What, what) {
					g := in.gap(n.Name+strings.TrimPrefix(u.What, what), u.What)
					out = append(out, *g)
				}
			}
		}
		if len(h.Certificates) == 0 {
			out = append(out, finding(Unknown, n.Name, "see whether /var/lib/kubelet/pki and /etc/kubernetes/pki can be read there", "no certificate was found on node %s", n.Name))
		}
		var first time.Time
		for _, c := range h.Certificates {
			left := c.NotAfter.Sub(in.Now)
			if first.IsZero() || c.NotAfter.Before(first) {
				first = c.NotAfter
			}
			status, end := Warn, "ends in "+days(left)
			switch {
			case left <= 0:
				status, end = Fail, "ended on "+c.NotAfter.UTC().Format("2006-01-02")
			case left < certFail:
				status = Fail
			case left >= certWarn:
				continue
			}
			remedy := "on " + n.Name + ": kubeadm certs renew all, then restart the static pods; an upgrade renews them as well"
			switch {
			case strings.HasPrefix(c.Path, "/var/lib/kubelet/"):
				remedy = "the kubelet renews it by itself: see why it did not (journalctl -u kubelet; kubectl get csr), then restart it"
			case c.CA:
				remedy = "kubeadm does not renew CAs: follow the guide on manual rotation of CA certificates"
			}
			out = append(out, finding(status, n.Name+c.Path, remedy, "%s (%s) on node %s %s", c.Path, c.Subject, n.Name, end))
		}
		return passIfClean(out, n.Name, "%s, the first ends on %s", plural(len(h.Certificates), "certificate"), first.UTC().Format("2006-01-02"))
	})
}

func days(d time.Duration) string { return plural(int(d/(24*time.Hour)), "day") }

// Room that an upgrade takes: a node's images of two versions side by side, binaries and logs.
const (
	imagesFree   = 3 << 30
	kubeletFree  = 1 << 30
	rootFree     = 1 << 30
	backupFactor = 1.2 // of etcd's data, for the copy that kubeadm makes

	// The kubelet's own thresholds (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds).
	imagefsShare = 15
	nodefsShare  = 10
	imageGCHigh  = 85
)

// evictBelow is how many bytes have to be free before the kubelets evict pods, by the cluster's kubelet configuration; percent is the kubelet's own.
func (in *Input) evictBelow(signal string, percent, total int64) int64 {
	var hard map[string]string
	if kc := in.State.KubeletConfig; kc != nil {
		hard = kc.EvictionHard
	}
	v, ok := hard[signal]
	switch {
	case hard == nil:
		return total / 100 * percent
	case !ok:
		return 0
	}
	if p, ok := strings.CutSuffix(v, "%"); ok {
		f, err := strconv.ParseFloat(p, 64)
		if err != nil {
			return total / 100 * percent
		}
		return int64(f / 100 * float64(total))
	}
	q, err := resource.ParseQuantity(v)
	if err != nil {
		return total / 100 * percent
	}
	return q.Value()
}

// collectBelow is how many bytes have to be free before the kubelets delete unused images.
func (in *Input) collectBelow(total int64) int64 {
	high := int64(imageGCHigh)
	if kc := in.State.KubeletConfig; kc != nil && kc.ImageGCHighThresholdPercent != nil {
		high = int64(*kc.ImageGCHighThresholdPercent)
	}
	return total / 100 * (100 - high)
}

func diskSpace(_ context.Context, in *Input) []Result {
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		var out []Result
		disk := func(path string) *cluster.Disk {
			for i := range h.Disks {
				if h.Disks[i].Path == path {
					return &h.Disks[i]
				}
			}
			return nil
		}
		for _, u := range in.State.Unread {
			if what := "node/" + n.Name + "/host/"; strings.HasPrefix(u.What, what+"df:") || strings.HasPrefix(u.What, what+"du:") {
				_, path, _ := strings.Cut(u.What, ":")
				out = append(out, *in.gap(n.Name+path, u.What))
			}
		}
		if len(h.Disks) == 0 && len(out) == 0 {
			return []Result{finding(Unknown, n.Name, "run df there by hand", "nothing is known of the disks of node %s", n.Name)}
		}
		need := func(path string, bytes int64, what string) {
			d := disk(path)
			if d == nil || d.FreeBytes >= bytes {
				return
			}
			out = append(out, finding(Fail, n.Name+path, "make room on "+n.Name+": crictl rmi --prune, journalctl --vacuum-size=200M, rm -r /etc/kubernetes/tmp/kubeadm-*",
				"%s on node %s has %s free, %s takes %s", path, n.Name, size(d.FreeBytes), what, size(bytes)))
		}
		need("/", rootFree, "an upgrade")
		need("/var/lib/kubelet", kubeletFree, "an upgrade")
		need("/var/lib/containerd", imagesFree, "a second set of images")
		if e := disk("/var/lib/etcd"); e != nil && n.StaticPod("etcd") != nil && e.UsedBytes >= 0 {
			need("/etc/kubernetes", int64(backupFactor*float64(e.UsedBytes)), "kubeadm's copy of etcd's data")
			need("/var/lib/etcd", e.UsedBytes, "a compaction or a restored snapshot of etcd")
		}
		if len(out) > 0 {
			return out
		}
		// What the upgrade itself brings counts too: images that are staged and not yet in use are the first that
		// the kubelet deletes, and a static pod whose image is gone does not come back without a registry.
		full := func(path string, comes, limit int64, what string) {
			d := disk(path)
			if d == nil || d.TotalBytes <= 0 || d.FreeBytes-comes >= limit {
				return
			}
			out = append(out, finding(Warn, n.Name+path, "make room on "+n.Name, "%s on node %s has %d %% free, %d %% with the images of the upgrade: below %d %% the kubelet %s",
				path, n.Name, percent(d.FreeBytes, d.TotalBytes), max(0, percent(d.FreeBytes-comes, d.TotalBytes)), percent(limit, d.TotalBytes), what))
		}
		images, pods := disk("/var/lib/containerd"), disk("/var/lib/kubelet")
		one := images != nil && pods != nil && images.TotalBytes == pods.TotalBytes && images.FreeBytes == pods.FreeBytes
		if images != nil {
			full(images.Path, imagesFree, max(in.evictBelow("imagefs.available", imagefsShare, images.TotalBytes), in.collectBelow(images.TotalBytes)), "deletes unused images and evicts pods")
		}
		if pods != nil && (!one || len(out) == 0) {
			comes := int64(0)
			if one {
				comes = imagesFree
			}
			full(pods.Path, comes, in.evictBelow("nodefs.available", nodefsShare, pods.TotalBytes), "evicts pods")
		}
		lowest := ""
		for _, d := range h.Disks {
			if lowest == "" || d.FreeBytes < disk(lowest).FreeBytes {
				lowest = d.Path
			}
		}
		return passIfClean(out, n.Name, "%s has the least, %s free", lowest, size(disk(lowest).FreeBytes))
	})
}

func percent(part, whole int64) int { return int(100 * float64(part) / float64(whole)) }

func cgroupVersion(_ context.Context, in *Input) []Result {
	to := in.kubeletTarget().MinorVersion()
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		if g := in.gap(n.Name, "node/"+n.Name+"/host/cgroup"); g != nil {
			return []Result{*g}
		}
		switch {
		case h.CgroupVersion == 2:
			return []Result{pass(n.Name, "cgroup v2")}
		case h.CgroupVersion != 1:
			return []Result{finding(Unknown, n.Name, "on "+n.Name+": stat -fc %T /sys/fs/cgroup", "the cgroup version of node %s could not be told", n.Name)}
		}
		refuses := to.Compare(k(35)) >= 0
		if refuses {
			// Whether the kubelet may start depends on its configuration, which must have been read.
			if g := in.hostGap(n, "kubelet-config"); g != nil {
				return []Result{*g}
			}
		}
		if refuses && (h.FailCgroupV1 == nil || *h.FailCgroupV1) {
			return []Result{finding(Fail, n.Name, "move the node to cgroup v2 (kernel parameter systemd.unified_cgroup_hierarchy=1, reboot); as a stop-gap set failCgroupV1: false in ConfigMap kubelet-config and in /var/lib/kubelet/config.yaml",
				"node %s has cgroup v1, and a kubelet of %s refuses to start there", n.Name, to)}
		}
		if refuses && !in.managed() {
			if r := in.fromConfigMap(n, "failCgroupV1", func(c *cluster.KubeletConfig) *bool { return c.FailCgroupV1 }); r != nil {
				return []Result{*r}
			}
		}
		msg := fmt.Sprintf("node %s has cgroup v1", n.Name)
		if refuses {
			msg += ", and its kubelet is told to accept it (failCgroupV1: false)"
		}
		return []Result{finding(Warn, n.Name, "move the node to cgroup v2; support for v1 ends", "%s", msg)}
	})
}

// fromConfigMap says whether a setting that a node needs to be false outlives an upgrade: kubeadm writes the node's
// configuration anew from ConfigMap kubelet-config. nil: it does.
func (in *Input) fromConfigMap(n *cluster.Node, setting string, get func(*cluster.KubeletConfig) *bool) *Result {
	const what = "configmap/kube-system/kubelet-config"
	if in.State.KubeletConfig == nil {
		if g := in.gap(n.Name, what); g != nil {
			return g
		}
		r := finding(Unknown, n.Name, "kubeadm init phase upload-config kubelet --config FILE", "ConfigMap kubelet-config is missing, from which kubeadm writes the kubelet's configuration of node %s", n.Name)
		return &r
	}
	if v := get(in.State.KubeletConfig); v != nil && !*v {
		return nil
	}
	r := finding(Fail, n.Name, "kubectl -n kube-system edit configmap kubelet-config, and set "+setting+": false there as well",
		"node %s needs %s: false, and has it in /var/lib/kubelet/config.yaml alone: kubeadm upgrade writes that file anew from ConfigMap kubelet-config, and the kubelet would not start again", n.Name, setting)
	return &r
}

func containerdVersion(_ context.Context, in *Input) []Result {
	if g := in.gap("nodes", cluster.ReadNodes); g != nil {
		return []Result{*g}
	}
	to := in.kubeletTarget().MinorVersion()
	lines, known := containerdFor[to]
	var out []Result
	for _, n := range in.State.Nodes {
		name, text, ok := strings.Cut(n.ContainerRuntime, "://")
		switch {
		case !ok:
			out = append(out, finding(Unknown, n.Name, "kubectl get node "+n.Name+" -o wide", "node %s does not say which container runtime it has", n.Name))
			continue
		case name != "containerd":
			out = append(out, skipped(n.Name, "its runtime is %s, of which nothing is recorded", n.ContainerRuntime))
			continue
		}
		v, err := kubeversion.Parse(strings.TrimPrefix(text, "v"))
		if err != nil {
			out = append(out, finding(Unknown, n.Name, "on "+n.Name+": containerd --version", "the version of containerd on node %s makes no sense: %s", n.Name, text))
			continue
		}
		if v.Major < 2 && to.Compare(k(38)) >= 0 {
			// The date moved twice upstream; see kubernetes/kubernetes#136731.
			out = append(out, finding(Fail, n.Name, "upgrade containerd first, with the node drained", "node %s has containerd %s, and a kubelet of %s asks for 2.0 or later", n.Name, v.Bare(), to))
			continue
		}
		if !known {
			out = append(out, skipped(n.Name, "containerd %s; nothing is recorded of what %s was tested with", v.Bare(), to))
			continue
		}
		fits := slices.ContainsFunc(lines, func(l kubeversion.V) bool { return l.MinorVersion() == v.MinorVersion() && !v.Less(l) })
		newest := lines[len(lines)-1]
		switch {
		case fits:
			out = append(out, pass(n.Name, "containerd %s", v.Bare()))
		case newest.MinorVersion().Compare(v.MinorVersion()) < 0:
			out = append(out, pass(n.Name, "containerd %s, newer than what %s was tested with", v.Bare(), to))
		default:
			var want []string
			for _, l := range lines {
				want = append(want, l.Bare()+"+")
			}
			out = append(out, finding(Warn, n.Name, "upgrade containerd first, with the node drained", "node %s has containerd %s; Kubernetes %s was tested with %s", n.Name, v.Bare(), to, strings.Join(want, ", ")))
		}
	}
	return out
}

func kubeletFlags(_ context.Context, in *Input) []Result {
	to := in.kubeletTarget().MinorVersion()
	db, broken := lifecycleData("flags")
	if broken != nil {
		return []Result{*broken}
	}
	// Whatever is gone at the target, since when ever: a flag that is gone today already keeps the kubelet from starting again.
	removed := db.EndingFlags("kubelet", kubeversion.Minor{}, to)
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		var out []Result
		for _, f := range h.KubeletFlags {
			for _, r := range removed {
				if r.Name != f.Name {
					continue
				}
				if r.Name == "pod-infra-container-image" && strings.HasSuffix(f.Source, "/kubeadm-flags.env") && to == k(35) {
					out = append(out, finding(Warn, n.Name+"/"+f.Name, "nothing: kubeadm 1.35 takes it out", "the kubelet of node %s has --%s in %s, which is gone since %s", n.Name, f.Name, f.Source, r.Removed))
					continue
				}
				out = append(out, finding(Fail, n.Name+"/"+f.Name, "on "+n.Name+": take it out of "+f.Source+" ("+r.Remedy+")",
					"the kubelet of node %s has --%s (%s), which is gone since %s: it would not start", n.Name, f.Name, f.Source, r.Removed))
			}
		}
		return passIfClean(out, n.Name, "%s, none of them gone at %s", plural(len(h.KubeletFlags), "flag"), to)
	})
}

func swap(_ context.Context, in *Input) []Result {
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		if g := in.hostGap(n, "swaps"); g != nil {
			return []Result{*g}
		}
		if h.SwapBytes == 0 {
			return []Result{pass(n.Name, "no swap")}
		}
		if g := in.hostGap(n, "kubelet-config"); g != nil {
			return []Result{*g}
		}
		flagOff := slices.ContainsFunc(h.KubeletFlags, func(f cluster.Flag) bool { return f.Name == "fail-swap-on" && f.Value == "false" })
		if !flagOff && h.FailSwapOn != nil && !*h.FailSwapOn && !in.managed() {
			if r := in.fromConfigMap(n, "failSwapOn", func(c *cluster.KubeletConfig) *bool { return c.FailSwapOn }); r != nil {
				return []Result{*r}
			}
		}
		if flagOff || h.FailSwapOn != nil && !*h.FailSwapOn {
			return []Result{pass(n.Name, "%s of swap, and the kubelet accepts it", size(h.SwapBytes))}
		}
		return []Result{finding(Fail, n.Name, "on "+n.Name+": swapoff -a, and take swap out of /etc/fstab", "node %s has %s of swap and its kubelet does not accept swap: it would not start again", n.Name, size(h.SwapBytes))}
	})
}

func packageHolds(_ context.Context, in *Input) []Result {
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		switch {
		case len(h.UnheldPackages) > 0:
			return []Result{finding(Warn, n.Name, "on "+n.Name+": apt-mark hold "+strings.Join(h.UnheldPackages, " ")+" (dnf: versionlock)",
				"packages %s on node %s are not on hold: an unattended update changes them ahead of the plan", some(h.UnheldPackages), n.Name)}
		case len(h.HeldPackages) > 0:
			return []Result{pass(n.Name, "%s on hold", some(h.HeldPackages))}
		}
		return []Result{pass(n.Name, "no packages of Kubernetes")}
	})
}

const (
	clockWarn = 2 * time.Second
	clockFail = time.Minute
)

func clockSkew(_ context.Context, in *Input) []Result {
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		if g := in.hostGap(n, "clock"); g != nil {
			return []Result{*g}
		}
		off := h.ClockOffset.Abs()
		dir := "ahead of"
		if h.ClockOffset < 0 {
			dir = "behind"
		}
		switch {
		case off < clockWarn:
			return []Result{pass(n.Name, "within %s", clockWarn)}
		case off >= clockFail:
			return []Result{finding(Fail, n.Name, "on "+n.Name+": timedatectl; systemctl restart systemd-timesyncd or chronyd", "the clock of node %s is %s %s this computer's: certificates and leases go wrong", n.Name, off.Round(time.Second), dir)}
		}
		return []Result{finding(Warn, n.Name, "on "+n.Name+": timedatectl", "the clock of node %s is %s %s this computer's", n.Name, off.Round(100*time.Millisecond), dir)}
	})
}

func kubeadmResidue(_ context.Context, in *Input) []Result {
	return in.eachHost(func(n *cluster.Node, h *cluster.HostFacts) []Result {
		if len(h.KubeadmResidue) == 0 {
			return []Result{pass(n.Name, "none")}
		}
		return []Result{finding(Warn, n.Name, "once they are not needed, on "+n.Name+": rm -r /etc/kubernetes/tmp/kubeadm-*",
			"node %s has %s of kubeadm runs with %s: %s", n.Name, plural(len(h.KubeadmResidue), "leftover directory"), size(h.KubeadmResidueBytes), some(h.KubeadmResidue))}
	})
}
