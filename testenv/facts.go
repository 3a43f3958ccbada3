package testenv

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// Facts is what this computer offers to machines. It is detected by New.
type Facts struct {
	Kernel string `json:"kernel"`
	// CgroupVersion is 2 for a unified hierarchy at /sys/fs/cgroup, 1 for anything else.
	CgroupVersion int `json:"cgroupVersion"`
	// CapSysResource says whether processes here can have CAP_SYS_RESOURCE.
	CapSysResource bool `json:"capSysResource"`
	// Capabilities is the bounding set of this process.
	Capabilities []string `json:"capabilities"`
	// NofileHard is the hard limit of open files.
	NofileHard uint64 `json:"nofileHard"`
	// Inotify limits per user.
	InotifyMaxInstances int  `json:"inotifyMaxInstances"`
	InotifyMaxWatches   int  `json:"inotifyMaxWatches"`
	IPForward           bool `json:"ipForward"`
	// ConntrackMaxWritable says whether nf_conntrack_max can be set inside a machine's
	// network namespace. Kernels leave it to the computer's own namespace.
	ConntrackMaxWritable bool `json:"conntrackMaxWritable"`
	// KernelConfig says whether a machine can read the kernel's configuration, which
	// kubeadm's SystemVerification asks for.
	KernelConfig bool `json:"kernelConfig"`
	// Swap says whether the computer, and so every machine on it, has swap in use.
	Swap bool `json:"swap"`
	// Devices lists which of the optional device nodes exist.
	Devices []string `json:"devices,omitempty"`
	// ModulesDir and KernelConfigFile are shown to machines read-only when they exist.
	ModulesDir       string `json:"modulesDir,omitempty"`
	KernelConfigFile string `json:"kernelConfigFile,omitempty"`
}

// Quirks is what a cluster on machines of this computer needs and a cluster on
// ordinary nodes does not. The zero value means nothing special.
type Quirks struct {
	// FailCgroupV1False: KubeletConfiguration failCgroupV1: false (kubelet 1.35 and later refuse cgroup v1 otherwise).
	FailCgroupV1False bool `json:"failCgroupV1False,omitempty"`
	// FailSwapOnFalse: KubeletConfiguration failSwapOn: false.
	FailSwapOnFalse bool `json:"failSwapOnFalse,omitempty"`
	// RestrictOOMScoreAdj: containerd's CRI option restrict_oom_score_adj = true.
	RestrictOOMScoreAdj bool `json:"restrictOOMScoreAdj,omitempty"`
	// KubeProxyConntrackZero: KubeProxyConfiguration conntrack maxPerCore 0, tcpEstablishedTimeout and
	// tcpCloseWaitTimeout 0s, so that kube-proxy leaves nf_conntrack_max alone.
	KubeProxyConntrackZero bool `json:"kubeProxyConntrackZero,omitempty"`
	// IgnorePreflight lists kubeadm preflight checks that cannot pass here.
	IgnorePreflight []string `json:"ignorePreflight,omitempty"`
}

// Quirks derives what a cluster on these machines needs.
func (f Facts) Quirks() Quirks {
	q := Quirks{
		FailCgroupV1False:      f.CgroupVersion == 1,
		FailSwapOnFalse:        f.Swap,
		RestrictOOMScoreAdj:    !f.CapSysResource,
		KubeProxyConntrackZero: !f.ConntrackMaxWritable,
	}
	if f.CgroupVersion == 1 || !f.KernelConfig {
		q.IgnorePreflight = append(q.IgnorePreflight, "SystemVerification")
	}
	if f.Swap {
		q.IgnorePreflight = append(q.IgnorePreflight, "Swap")
	}
	return q
}

// capNames are the capabilities by number: include/uapi/linux/capability.h of Linux 6.x.
// What a newer kernel adds is left out, which costs a machine nothing.
func capNames() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
		"CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST",
		"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO",
		"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
		"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
		"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM",
		"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
}

// capsFromStatus reads the bounding set from the text of /proc/PID/status.
func capsFromStatus(status string) []string {
	sc := bufio.NewScanner(strings.NewReader(status))
	for sc.Scan() {
		hex, ok := strings.CutPrefix(sc.Text(), "CapBnd:")
		if !ok {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return nil
		}
		var caps []string
		for i, name := range capNames() {
			if bits&(1<<uint(i)) != 0 {
				caps = append(caps, name)
			}
		}
		return caps
	}
	return nil
}

func readInt(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return n
}
