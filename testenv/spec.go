package testenv

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// The part of the OCI runtime specification that machines use
// (https://github.com/opencontainers/runtime-spec, 1.0).
type ociSpec struct {
	Version  string     `json:"ociVersion"`
	Process  ociProcess `json:"process"`
	Root     ociRoot    `json:"root"`
	Hostname string     `json:"hostname"`
	Mounts   []ociMount `json:"mounts"`
	Linux    ociLinux   `json:"linux"`
}

type ociProcess struct {
	User struct {
		UID int `json:"uid"`
		GID int `json:"gid"`
	} `json:"user"`
	Args            []string            `json:"args"`
	Env             []string            `json:"env"`
	Cwd             string              `json:"cwd"`
	Capabilities    map[string][]string `json:"capabilities"`
	Rlimits         []ociRlimit         `json:"rlimits,omitempty"`
	NoNewPrivileges bool                `json:"noNewPrivileges"`
}

type ociRlimit struct {
	Type string `json:"type"`
	Hard uint64 `json:"hard"`
	Soft uint64 `json:"soft"`
}

type ociRoot struct {
	Path     string `json:"path"`
	Readonly bool   `json:"readonly"`
}

type ociMount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type ociLinux struct {
	Namespaces        []ociNamespace    `json:"namespaces"`
	Devices           []ociDevice       `json:"devices,omitempty"`
	CgroupsPath       string            `json:"cgroupsPath"`
	Resources         ociResources      `json:"resources"`
	RootfsPropagation string            `json:"rootfsPropagation,omitempty"`
	Sysctl            map[string]string `json:"sysctl,omitempty"`
}

type ociNamespace struct {
	Type string `json:"type"`
	Path string `json:"path,omitempty"`
}

type ociDevice struct {
	Path     string `json:"path"`
	Type     string `json:"type"`
	Major    int64  `json:"major"`
	Minor    int64  `json:"minor"`
	FileMode uint32 `json:"fileMode"`
}

type ociResources struct {
	Devices []ociDeviceRule `json:"devices"`
}

type ociDeviceRule struct {
	Allow  bool   `json:"allow"`
	Access string `json:"access"`
}

// optionalDevices are device nodes that machines get when this computer has them: kmsg for the
// kubelet, fuse and loop for storage drivers. Loop devices are shared with the computer.
func optionalDevices() []ociDevice {
	d := []ociDevice{
		{Path: "/dev/kmsg", Type: "c", Major: 1, Minor: 11, FileMode: 0o644},
		{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, FileMode: 0o666},
		{Path: "/dev/loop-control", Type: "c", Major: 10, Minor: 237, FileMode: 0o660},
	}
	for i := range int64(8) {
		d = append(d, ociDevice{Path: fmt.Sprintf("/dev/loop%d", i), Type: "b", Major: 7, Minor: i, FileMode: 0o660})
	}
	return d
}

// diskDirs are the directories of a machine that need a real disk file system: containerd's
// overlay snapshots do not work on an overlay, and etcd wants honest fsync.
func diskDirs() []string {
	return []string{"/var/lib/containerd", "/var/lib/kubelet", "/var/lib/etcd"}
}

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// machineSpec is the runtime configuration of a machine whose files are under dir.
func machineSpec(f Facts, dir, netns, cgroup, hostname string, binds []Bind) ociSpec {
	s := ociSpec{Version: "1.0.2", Hostname: hostname}
	s.Process.Args = []string{"/sbin/init"}
	// systemd takes "docker" for a container whose manager set up the mounts.
	s.Process.Env = []string{searchPath, "container=docker", "TERM=dumb", "LANG=C.UTF-8"}
	s.Process.Cwd = "/"
	s.Process.Capabilities = map[string][]string{"bounding": f.Capabilities, "effective": f.Capabilities, "permitted": f.Capabilities}
	nofile := min(f.NofileHard, 1<<20)
	s.Process.Rlimits = []ociRlimit{{Type: "RLIMIT_NOFILE", Hard: nofile, Soft: nofile}}
	s.Root = ociRoot{Path: filepath.Join(dir, "root")}
	s.Mounts = []ociMount{
		{"/proc", "proc", "proc", []string{"nosuid", "noexec", "nodev"}},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{"/dev/shm", "tmpfs", "shm", []string{"nosuid", "nodev", "mode=1777"}},
		{"/dev/mqueue", "mqueue", "mqueue", []string{"nosuid", "noexec", "nodev"}},
		{"/sys", "sysfs", "sysfs", []string{"nosuid", "noexec", "nodev", "rw"}},
		cgroupMount(),
		{"/run", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=755"}},
		{"/tmp", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=1777"}},
	}
	for _, d := range diskDirs() {
		// Shared, so that what a pod mounts below /var/lib/kubelet is seen by the machine, as on any node.
		s.Mounts = append(s.Mounts, ociMount{d, "bind", filepath.Join(dir, "disk", filepath.Base(d)), []string{"rbind", "rshared", "rw"}})
	}
	if f.ModulesDir != "" {
		s.Mounts = append(s.Mounts, ociMount{"/lib/modules", "bind", f.ModulesDir, []string{"rbind", "ro"}})
	}
	for _, b := range binds {
		mode := "rw"
		if b.ReadOnly {
			mode = "ro"
		}
		s.Mounts = append(s.Mounts, ociMount{b.Target, "bind", b.Source, []string{"rbind", mode}})
	}
	s.Linux = ociLinux{
		Namespaces:        namespaces(netns),
		CgroupsPath:       "/" + cgroup + "/" + hostname,
		Resources:         ociResources{Devices: []ociDeviceRule{{Allow: true, Access: "rwm"}}},
		RootfsPropagation: "rshared",
		// The machine routes between its pods and the other machines.
		Sysctl: map[string]string{"net.ipv4.ip_forward": "1"},
	}
	for _, d := range optionalDevices() {
		if slices.Contains(f.Devices, d.Path) {
			s.Linux.Devices = append(s.Linux.Devices, d)
		}
	}
	return s
}

// serviceSpec is the runtime configuration of a small service (resolver, load balancer) that
// belongs to a network: the cached root filesystem, read-only, in the network's own namespace.
func serviceSpec(f Facts, rootfs, netns, cgroup, name, conf string, args []string) ociSpec {
	s := ociSpec{Version: "1.0.2", Hostname: strings.TrimPrefix(name, "_")}
	s.Process.Args = args
	s.Process.Env = []string{searchPath, "LANG=C.UTF-8"}
	s.Process.Cwd = "/"
	caps := slices.DeleteFunc([]string{"CAP_NET_BIND_SERVICE", "CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_RAW"},
		func(c string) bool { return !slices.Contains(f.Capabilities, c) })
	s.Process.Capabilities = map[string][]string{"bounding": caps, "effective": caps, "permitted": caps}
	nofile := min(f.NofileHard, 1<<16)
	s.Process.Rlimits = []ociRlimit{{Type: "RLIMIT_NOFILE", Hard: nofile, Soft: nofile}}
	s.Process.NoNewPrivileges = true
	s.Root = ociRoot{Path: rootfs, Readonly: true}
	s.Mounts = []ociMount{
		{"/proc", "proc", "proc", []string{"nosuid", "noexec", "nodev"}},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{"/run", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=755"}},
		{"/tmp", "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=1777"}},
		{serviceConfDir, "bind", conf, []string{"rbind", "ro"}},
	}
	s.Linux = ociLinux{
		Namespaces:  namespaces(netns),
		CgroupsPath: "/" + cgroup + "/" + name,
		Resources:   ociResources{Devices: []ociDeviceRule{{Allow: false, Access: "rwm"}}},
	}
	return s
}

// serviceConfDir exists in the root filesystem as the place where a service's configuration is mounted.
const serviceConfDir = "/belay"

func namespaces(netns string) []ociNamespace {
	return []ociNamespace{{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}, {Type: "cgroup"}, {Type: "network", Path: netns}}
}

// cgroupMount gives systemd a writable view of the machine's own part of the hierarchy; the
// cgroup namespace makes that part its root, so all of it is delegated. The runtime turns the
// type into what the computer has: one cgroup2 mount for version 2, one mount for each
// controller and the named systemd hierarchy for version 1. Source and destination must be
// these, or runc does not hand over the cgroup's files.
func cgroupMount() ociMount {
	return ociMount{"/sys/fs/cgroup", "cgroup", "cgroup", []string{"nosuid", "noexec", "nodev", "relatime", "rw"}}
}
