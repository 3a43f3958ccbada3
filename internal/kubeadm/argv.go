package kubeadm

import "strings"

// Where the distribution's packages and belay put things on a node. The kubeadm documentation's
// installation page and the project's deb packages use the same paths.
const (
	KubeadmPath = "/usr/bin/kubeadm"
	KubeletPath = "/usr/bin/kubelet"
	KubectlPath = "/usr/bin/kubectl"

	// CRISocket is containerd's default socket.
	CRISocket = "unix:///run/containerd/containerd.sock"

	AdminKubeconfig    = "/etc/kubernetes/admin.conf"
	KubeletKubeconfig  = "/etc/kubernetes/kubelet.conf"
	ManifestsDir       = "/etc/kubernetes/manifests"
	PKIDir             = "/etc/kubernetes/pki"
	CACertificate      = "/etc/kubernetes/pki/ca.crt"
	KubeletConfig      = "/var/lib/kubelet/config.yaml"
	KubeletFlagsEnv    = "/var/lib/kubelet/kubeadm-flags.env"
	KubeletDefaultsEnv = "/etc/default/kubelet"
	// KubeletSysconfigEnv is where the packages for RPM-based systems have KubeletDefaultsEnv.
	KubeletSysconfigEnv = "/etc/sysconfig/kubelet"
	// DefaultAPIServerPort is bindPort unless the configuration says otherwise.
	DefaultAPIServerPort = "6443"
)

// KubeletEnvFiles are the files with flags that the kubelet's unit reads.
func KubeletEnvFiles() []string {
	return []string{KubeletFlagsEnv, KubeletDefaultsEnv, KubeletSysconfigEnv}
}

// SystemVerification is the preflight check that refuses cgroup v1 (and kernels without known configuration).
const SystemVerification = "SystemVerification"

// InitArgv is `kubeadm init` with a configuration file that RenderInit wrote. skip names phases to leave out.
func InitArgv(config string, skip ...string) []string {
	argv := []string{KubeadmPath, "init", "--config", config, "--skip-token-print"}
	if len(skip) > 0 {
		argv = append(argv, "--skip-phases", strings.Join(skip, ","))
	}
	return argv
}

// InitPhaseArgv is one phase of `kubeadm init`, as in InitPhaseArgv(config, "addon", "all").
func InitPhaseArgv(config string, phase ...string) []string {
	argv := append([]string{KubeadmPath, "init", "phase"}, phase...)
	return append(argv, "--config", config)
}

// LateInitPhases are the phases of init that follow a healthy control plane, in their order. Each may be run
// again without harm, which is how an init that was cut short is completed.
func LateInitPhases() [][]string {
	return [][]string{
		{"upload-config", "all"},
		{"mark-control-plane"},
		{"bootstrap-token"},
		{"kubelet-finalize", "all"},
		{"addon", "all"},
	}
}

// UploadCertsArgv uploads the control plane certificates, encrypted with the certificateKey of the configuration
// file, for further control plane nodes. kubeadm deletes them after two hours.
func UploadCertsArgv(config string) []string {
	return []string{KubeadmPath, "init", "phase", "upload-certs", "--upload-certs", "--skip-certificate-key-print", "--config", config}
}

// JoinArgv is `kubeadm join` with a configuration file that RenderJoin wrote.
func JoinArgv(config string) []string {
	return []string{KubeadmPath, "join", "--config", config}
}

// CreateTokenArgv makes a bootstrap token that lives for ttl ("1h"); ParseToken reads it from the output, so that it is in no
// process list.
func CreateTokenArgv(ttl string) []string {
	return []string{KubeadmPath, "token", "create", "--ttl", ttl, "--kubeconfig", AdminKubeconfig}
}

// ResetArgv is `kubeadm reset`: it undoes init or join on one node, including its etcd membership where reachable.
func ResetArgv(ignore []string) []string {
	argv := []string{KubeadmPath, "reset", "--force", "--cri-socket", CRISocket}
	if len(ignore) > 0 {
		argv = append(argv, "--ignore-preflight-errors", strings.Join(ignore, ","))
	}
	return argv
}

// VersionArgv prints kubeadm's own version in a form that ParseVersion reads.
func VersionArgv() []string { return []string{KubeadmPath, "version", "-o", "short"} }

// ImagesListArgv prints the images that a version wants in a form that ParseImages reads. It asks no network.
func ImagesListArgv(kubeadm, version string) []string {
	return []string{kubeadm, "config", "images", "list", "--kubernetes-version", version}
}
