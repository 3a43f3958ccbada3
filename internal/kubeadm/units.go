package kubeadm

// KubeletUnitPath and KubeletDropInPath are where KubeletUnit and KubeletDropIn go. A distribution's package has its own
// under /usr/lib/systemd/system, which these override.
const (
	KubeletUnitPath   = "/etc/systemd/system/kubelet.service"
	KubeletDropInPath = "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
)

// KubeletUnit is the kubelet's systemd unit as the installation page of kubeadm has it.
func KubeletUnit() []byte {
	return []byte(`[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target containerd.service
After=network-online.target containerd.service

[Service]
ExecStart=` + KubeletPath + `
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`)
}

// KubeletDropIn is the drop-in by which kubeadm configures the kubelet: it writes the two files that
// EnvironmentFile and --config name, at init, join and upgrade.
func KubeletDropIn() []byte {
	return []byte(`[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=` + KubeletKubeconfig + `"
Environment="KUBELET_CONFIG_ARGS=--config=` + KubeletConfig + `"
EnvironmentFile=-` + KubeletFlagsEnv + `
EnvironmentFile=-` + KubeletDefaultsEnv + `
ExecStart=
ExecStart=` + KubeletPath + ` $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`)
}
