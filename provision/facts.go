package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
)

// facts is what a host says of itself before anything is done to it.
type facts struct {
	UID     int
	Machine string // of uname -m
	Systemd bool
	// CgroupVersion is 2 for a unified hierarchy, 1 for anything else.
	CgroupVersion int
	// SysResource says whether processes there can have CAP_SYS_RESOURCE.
	SysResource bool
	// ConntrackLocked says that nf_conntrack_max exists and cannot be written.
	ConntrackLocked bool
	// Swaps counts swap areas in use.
	Swaps     int
	IPForward bool
	// BridgeFilter is the value of bridge-nf-call-iptables, "" where br_netfilter is not there.
	BridgeFilter string
	// Overlay and Netfilter say whether the kernel has, or can load, what it takes.
	Overlay bool
	FreeKiB int64 // at /var/lib
	DiskKiB int64 // all of that file system
	// Kubernetes says that /etc/kubernetes holds a kubelet's or an administrator's kubeconfig.
	Kubernetes bool
	// Owner is the content of ownerFile, "" without one.
	Owner string
	// KubeletVersion is what the kubelet's binary says, "" without one.
	KubeletVersion string
	// Kubeadm says that kubeadm is where a bundle's goes.
	Kubeadm bool
	// Foreign are programs, configuration and data in the places where belay puts its own, and that Down empties.
	Foreign []string
	// Missing lists programs that kubeadm and kubelet need and that are not there.
	Missing []string
}

// neededPrograms are the programs that kubelet, kube-proxy's host side and kubeadm call, and the Debian packages that have them.
func neededPrograms() map[string]string {
	return map[string]string{
		"mount": "mount", "iptables": "iptables", "ip": "iproute2", "nsenter": "util-linux", "ethtool": "ethtool",
		"modprobe": "kmod", "sysctl": "procps", "tar": "tar", "sha256sum": "coreutils",
	}
}

// factsScript prints one KEY=VALUE a line. Its arguments are programs to look
// for, "--", and files that are somebody's on a machine without belay's mark.
const factsScript = `
PATH=$PATH:/usr/sbin:/sbin:/usr/local/bin
echo "uid=$(id -u)"
echo "machine=$(uname -m)"
[ -d /run/systemd/system ] && echo systemd=1
echo "cgroup=$(stat -fc %T /sys/fs/cgroup 2>/dev/null)"
echo "capbnd=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/1/status)"
c=/proc/sys/net/netfilter/nf_conntrack_max
[ -e $c ] && [ ! -w $c ] && echo conntracklocked=1
echo "swaps=$(tail -n +2 /proc/swaps 2>/dev/null | wc -l)"
echo "forward=$(cat /proc/sys/net/ipv4/ip_forward)"
echo "bridge=$(cat /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null)"
if grep -qw overlay /proc/filesystems || modprobe -q overlay 2>/dev/null; then echo overlay=1; fi
df -Pk /var/lib | awk 'NR==2 {print "free=" $4; print "disk=" $2}'
for f in /etc/kubernetes/admin.conf /etc/kubernetes/kubelet.conf /etc/kubernetes/bootstrap-kubelet.conf /etc/kubernetes/manifests/kube-apiserver.yaml; do
  [ -e $f ] && echo kubernetes=1
done
[ -e ` + ownerFile + ` ] && echo "owner=$(cat ` + ownerFile + `)"
[ -x /usr/bin/kubelet ] && echo "kubelet=$(/usr/bin/kubelet --version)"
[ -x ` + kubeadm.KubeadmPath + ` ] && echo kubeadm=1
while [ "$1" != -- ]; do command -v "$1" >/dev/null 2>&1 || echo "missing=$1"; shift; done
shift
for p in "$@"; do [ -e "$p" ] && echo "foreign=$p"; done
for p in /usr/lib/systemd/system /lib/systemd/system; do
  [ -e $p/containerd.service ] && echo "foreign=$p/containerd.service"
done
for d in ` + etcdMemberDir + ` ` + containerdDir + ` /var/lib/kubelet /var/lib/cni /etc/systemd/system/kubelet.service.d; do
  [ -d $d ] && [ -n "$(find $d -mindepth 1 -maxdepth 1 ! -name lost+found -print -quit)" ] && echo "foreign=$d"
done
exit 0
`

// Directories with data that Down removes.
const (
	etcdMemberDir = "/var/lib/etcd/member"
	containerdDir = "/var/lib/containerd"
)

func gatherFacts(ctx context.Context, h host.Host) (facts, error) {
	argv := []string{"sh", "-c", factsScript, "facts"}
	for p := range neededPrograms() {
		argv = append(argv, p)
	}
	argv = append(append(argv, "--"), madeFiles()...)
	res, err := h.Run(ctx, host.Cmd{Argv: argv})
	if err != nil {
		return facts{}, fmt.Errorf("look at the machine: %w", err)
	}
	f, err := parseFacts(string(res.Stdout))
	if err != nil {
		return facts{}, fmt.Errorf("%s: look at the machine: %w", h.Name(), err)
	}
	return f, nil
}

const capSysResource = 24 // include/uapi/linux/capability.h

func parseFacts(out string) (facts, error) {
	f := facts{UID: -1, CgroupVersion: 1}
	var errs []error
	number := func(key, v string) int64 {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q", key, v))
		}
		return n
	}
	for line := range strings.Lines(out) {
		key, v, _ := strings.Cut(strings.TrimRight(line, "\n"), "=")
		switch key {
		case "uid":
			f.UID = int(number(key, v))
		case "machine":
			f.Machine = v
		case "systemd":
			f.Systemd = true
		case "cgroup":
			if v == "cgroup2fs" {
				f.CgroupVersion = 2
			}
		case "capbnd":
			n, err := strconv.ParseUint(v, 16, 64)
			if err != nil {
				errs = append(errs, fmt.Errorf("capability set is %q", v))
			}
			f.SysResource = n&(1<<capSysResource) != 0
		case "conntracklocked":
			f.ConntrackLocked = true
		case "swaps":
			f.Swaps = int(number(key, v))
		case "forward":
			f.IPForward = v == "1"
		case "bridge":
			f.BridgeFilter = v
		case "overlay":
			f.Overlay = true
		case "free":
			f.FreeKiB = number(key, v)
		case "disk":
			f.DiskKiB = number(key, v)
		case "kubernetes":
			f.Kubernetes = true
		case "owner":
			f.Owner = v
		case "kubelet":
			f.KubeletVersion = strings.TrimPrefix(v, "Kubernetes ")
		case "kubeadm":
			f.Kubeadm = true
		case "foreign":
			f.Foreign = append(f.Foreign, v)
		case "missing":
			f.Missing = append(f.Missing, v)
		}
	}
	if f.UID < 0 || f.Machine == "" {
		errs = append(errs, errors.New("its answer is not complete"))
	}
	return f, errors.Join(errs...)
}

// goArch gives Go's name of an architecture that uname -m names.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// Quirks are settings that some hosts need and ordinary ones do not. The zero value means nothing special.
type Quirks struct {
	// AllowCgroupV1: KubeletConfiguration failCgroupV1: false.
	AllowCgroupV1 bool `json:"allowCgroupV1,omitempty"`
	// AllowSwap: KubeletConfiguration failSwapOn: false.
	AllowSwap bool `json:"allowSwap,omitempty"`
	// RestrictOOMScoreAdj: containerd may not lower a process's oom_score_adj there.
	RestrictOOMScoreAdj bool `json:"restrictOOMScoreAdj,omitempty"`
	// LeaveConntrack: kube-proxy may not write the kernel's conntrack limits there.
	LeaveConntrack bool `json:"leaveConntrack,omitempty"`
	// SharedDisk: the machine's disk is one with others, so that its fill level says nothing about the machine.
	SharedDisk bool `json:"sharedDisk,omitempty"`
	// IgnorePreflight are kubeadm's preflight checks that cannot pass there.
	IgnorePreflight []string `json:"ignorePreflight,omitempty"`
}

func (q Quirks) words() string {
	var w []string
	add := func(on bool, s string) {
		if on {
			w = append(w, s)
		}
	}
	add(q.AllowCgroupV1, "kubelet allowed on cgroup v1")
	add(q.AllowSwap, "kubelet allowed with swap")
	add(q.RestrictOOMScoreAdj, "containerd leaves oom_score_adj")
	add(q.LeaveConntrack, "kube-proxy leaves conntrack limits")
	add(q.SharedDisk, "kubelet leaves a shared disk's fill level")
	if len(q.IgnorePreflight) > 0 {
		w = append(w, "kubeadm ignores "+strings.Join(q.IgnorePreflight, ", "))
	}
	return strings.Join(w, "; ")
}

// HostProblem is something about a host that must be mended before it can be a node.
type HostProblem struct {
	Host   string
	Msg    string
	Remedy string
}

func (e *HostProblem) Error() string { return fmt.Sprintf("%s: %s; %s", e.Host, e.Msg, e.Remedy) }

// Least free space below /var/lib, in KiB: images and etcd's data of a node take about 2 GiB.
const minFreeKiB = 3 << 20

// check says everything that keeps the host from becoming a node of cluster id.
func (f facts) check(name, cluster, id, arch string) error {
	var errs []error
	fail := func(remedy, format string, args ...any) {
		errs = append(errs, &HostProblem{Host: name, Msg: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if f.UID != 0 {
		fail("log in as root, or as a user who may run sudo without a password; where the machine is this computer, run belay as root", "programs run there as user %d", f.UID)
	}
	if !f.Systemd {
		fail("use a distribution that systemd runs", "systemd does not run it")
	}
	if got := goArch(f.Machine); got != arch {
		fail("give a bundle for "+got, "is %s and the bundle is for %s", got, arch)
	}
	if !f.Overlay {
		fail("use a kernel with overlayfs", "the kernel has no overlay file system")
	}
	if f.FreeKiB < minFreeKiB {
		fail("free some space there", "%d MiB free at /var/lib, and %d MiB are needed", f.FreeKiB>>10, minFreeKiB>>10)
	}
	var packages []string
	for _, p := range f.Missing {
		packages = append(packages, neededPrograms()[p])
	}
	if len(packages) > 0 {
		fail("install there: "+strings.Join(packages, " "), "programs are missing: %s", strings.Join(f.Missing, ", "))
	}
	switch {
	case f.Owner != "" && f.Owner != id:
		fail("take that cluster down first, or choose another machine", "is a node of another cluster (%s) that belay brought up", f.Owner)
	case f.Owner == "" && f.Kubernetes:
		fail("if nothing on it is needed any more, run there: kubeadm reset", "has a Kubernetes node on it that belay did not bring up as part of cluster %s", cluster)
	}
	return errors.Join(errs...)
}

// evictionPercent is how much of the disk with images has to be free before a kubelet takes its node for full (evictionHard, imagefs.available<15%:
// https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds).
const evictionPercent = 15

// allowed are what must be somebody's decision, and was decided in the cluster file.
type allowed struct{ cgroupV1, sharedDisk, takeOver bool }

// quirks says what the host needs beyond the ordinary, and refuses what must be somebody's decision.
// machine marks a machine that belay made on this computer; given is what its maker knows of it.
func (f facts) quirks(name string, machine bool, allow allowed, given Quirks) (Quirks, error) {
	q := given
	q.RestrictOOMScoreAdj = q.RestrictOOMScoreAdj || !f.SysResource
	q.LeaveConntrack = q.LeaveConntrack || f.ConntrackLocked
	if machine {
		return q, nil
	}
	var errs []error
	if f.Owner == "" {
		errs = append(errs, f.foreign(name, allow.takeOver))
	}
	if f.CgroupVersion == 1 {
		if !allow.cgroupV1 {
			errs = append(errs, &HostProblem{name, "runs cgroup v1, which kubelets from 1.35 on refuse",
				"boot it with systemd.unified_cgroup_hierarchy=1, or say allowCgroupV1: true in the cluster file"})
		}
		q.AllowCgroupV1 = true
		q.IgnorePreflight = append(q.IgnorePreflight, "SystemVerification")
	}
	switch {
	case allow.sharedDisk:
		q.SharedDisk = true
	case f.Owner == "" && f.FreeKiB*100 < f.DiskKiB*evictionPercent:
		errs = append(errs, &HostProblem{name, fmt.Sprintf("has %d%% of its disk free at /var/lib, and below %d%% a kubelet takes no pods", f.FreeKiB*100/f.DiskKiB, evictionPercent),
			"free some space there; or, if the disk is one with others, so that its fill level says nothing about the machine, say sharedDisk: true in the cluster file"})
	}
	if f.Swaps > 0 {
		errs = append(errs, &HostProblem{name, fmt.Sprintf("has %d swap areas in use, which the kubelet refuses", f.Swaps), "run there: swapoff -a, and take swap out of /etc/fstab"})
	}
	return q, errors.Join(errs...)
}

// foreign refuses a host with what somebody else put into belay's places: it
// would be overwritten, and removed when the cluster is taken down. etcd's data is never taken over.
func (f facts) foreign(name string, takeOver bool) error {
	var errs []error
	if slices.Contains(f.Foreign, etcdMemberDir) {
		errs = append(errs, &HostProblem{name, "has the data of an etcd in " + etcdMemberDir, "move it away, or choose another machine"})
	}
	others := slices.DeleteFunc(slices.Clone(f.Foreign), func(p string) bool { return p == etcdMemberDir })
	if len(others) > 0 && !takeOver {
		errs = append(errs, &HostProblem{name, "has in belay's places what belay did not put there: " + strings.Join(others, ", "),
			"remove it; or, if nothing of it is needed any more, say takeOver: true in the cluster file: it is overwritten, and removed when the cluster is taken down"})
	}
	return errors.Join(errs...)
}
