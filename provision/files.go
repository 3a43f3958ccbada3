package provision

import (
	"fmt"
	"strings"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/payload"
)

const (
	// ownerFile on a host says which cluster made a node of it: NAME/ID.
	ownerFile = "/var/lib/belay/cluster"
	// pendingFile is there from before the first file is put until services and kernel were told of all.
	pendingFile = "/var/lib/belay/services-pending"
	// Configuration of init and join, 0600 and removed after use: join's holds secrets.
	initConfigFile = "/var/lib/belay/kubeadm-init.yaml"
	joinConfigFile = "/var/lib/belay/kubeadm-join.yaml"

	containerdConfig = "/etc/containerd/config.toml"
	containerdUnit   = "/etc/systemd/system/containerd.service"
	sysctlFile       = "/etc/sysctl.d/90-belay-kubernetes.conf"
	modulesFile      = "/etc/modules-load.d/belay-kubernetes.conf"
	cniConfigFile    = "/etc/cni/net.d/10-kuberouter.conflist"
)

// nodeBinaries maps programs of a bundle (below bin/) to their places on a node.
func nodeBinaries(b *bundle.Bundle) map[string]string {
	m := map[string]string{
		"kubeadm":                 kubeadm.KubeadmPath,
		"kubelet":                 kubeadm.KubeletPath,
		"kubectl":                 kubeadm.KubectlPath,
		"containerd":              "/usr/local/bin/containerd",
		"containerd-shim-runc-v2": "/usr/local/bin/containerd-shim-runc-v2",
		"ctr":                     payload.CtrPath,
		"runc":                    "/usr/local/sbin/runc",
	}
	for _, f := range b.Binaries() {
		if name, ok := strings.CutPrefix(f.Path, "bin/cni/"); ok {
			m["cni/"+name] = "/opt/cni/bin/" + name
		}
	}
	return m
}

// nodeFiles is everything that a node gets before kubeadm runs.
func nodeFiles(b *bundle.Bundle, q Quirks) ([]payload.File, error) {
	var files []payload.File
	for name, dst := range nodeBinaries(b) {
		f, err := payload.BundleFile(b, name, dst)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	pause := b.ImagesByRole(bundle.RolePause)
	if len(pause) != 1 {
		return nil, fmt.Errorf("bundle %s has %d pause images, want one", b.Dir(), len(pause))
	}
	text := func(path string, content string) {
		files = append(files, payload.File{Path: path, Mode: 0o644, Content: []byte(content)})
	}
	text(containerdConfig, renderContainerd(pause[0].Ref, q.RestrictOOMScoreAdj))
	text(containerdUnit, containerdUnitText)
	text(kubeadm.KubeletUnitPath, string(kubeadm.KubeletUnit()))
	text(kubeadm.KubeletDropInPath, string(kubeadm.KubeletDropIn()))
	text(modulesFile, "# What pods' networks need, where the kernel has it as modules.\noverlay\nbr_netfilter\n")
	text(sysctlFile, sysctlText)
	return files, nil
}

// The dash lets systemd-sysctl pass over keys that this kernel does not have.
const sysctlText = `# Pods are routed, and bridged traffic is seen by iptables, on every Kubernetes node.
net.ipv4.ip_forward = 1
-net.bridge.bridge-nf-call-iptables = 1
-net.bridge.bridge-nf-call-ip6tables = 1
`

// renderContainerd is containerd's configuration, format 3 (containerd 2.0 and later).
func renderContainerd(pause string, restrictOOM bool) string {
	return fmt.Sprintf(`version = 3

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = %t

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/opt/cni/bin']
  conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '/usr/local/sbin/runc'
  SystemdCgroup = true
`, pause, restrictOOM)
}

// KillMode=process: containers live on while containerd restarts.
const containerdUnitText = `[Unit]
Description=containerd container runtime
Documentation=https://containerd.io
After=network.target local-fs.target dbus.service

[Service]
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
`

// nodeImages are the images that a node needs before it joins.
func nodeImages(b *bundle.Bundle, role string) []bundle.Image {
	var out []bundle.Image
	for _, i := range b.Images() {
		switch i.Role {
		case bundle.RoleKubeProxy, bundle.RolePause, bundle.RoleCNI, bundle.RoleDNS, bundle.RoleSample:
			out = append(out, i)
		case bundle.RoleControlPlane, bundle.RoleEtcd:
			if role == RoleControlPlane {
				out = append(out, i)
			}
		case bundle.RoleEtcdStep:
			// Only an upgrade needs it.
		}
	}
	return out
}
