package kubeadm

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/kubeversion"
)

// apiVersion is the configuration format that every supported kubeadm reads: v1beta4 since 1.31, and still the
// default at 1.37.
const apiVersion = "kubeadm.k8s.io/v1beta4"

// Cluster is what kubeadm needs to know of the whole cluster.
type Cluster struct {
	Name    string
	Version kubeversion.V
	// Endpoint is HOST:PORT of the control plane; empty means the first node's own address, which leaves no way
	// to add control plane nodes later.
	Endpoint string
	// PodSubnet and ServiceSubnet are CIDRs; a pair "v4,v6" is passed on as it is.
	PodSubnet, ServiceSubnet string
	// CertSANs are further names and addresses in the apiserver's certificate.
	CertSANs []string
	// FeatureGates are kubeadm's own.
	FeatureGates map[string]bool
	// ExtraArgs are flags of a component: apiServer, controllerManager, scheduler or etcd.
	ExtraArgs map[string]map[string]string

	Kubelet KubeletSettings
	Proxy   ProxySettings
}

// KubeletSettings are the fields of KubeletConfiguration that belay sets; kubeadm fills the others.
type KubeletSettings struct {
	// AllowCgroupV1 writes failCgroupV1: false (the default is true since 1.35, KEP-4569).
	AllowCgroupV1 bool
	// AllowSwap writes failSwapOn: false.
	AllowSwap bool
	// SharedDisk keeps the kubelet from evicting pods and removing images because the disk, which is not the node's
	// own, is full by percent: only when it is nearly full in bytes.
	SharedDisk   bool
	FeatureGates map[string]bool
}

// ProxySettings are the fields of KubeProxyConfiguration that belay sets.
type ProxySettings struct {
	// Mode is iptables, ipvs or nftables; empty is kube-proxy's default.
	Mode string
	// LeaveConntrack keeps kube-proxy from writing kernel-wide conntrack limits, where it may not.
	LeaveConntrack bool
}

// Node is what kubeadm needs to know of the node it runs on.
type Node struct {
	Name string
	// Address is the node's own IP address: the apiserver's and the kubelet's.
	Address string
	// IgnorePreflight names preflight checks whose errors kubeadm turns into warnings.
	IgnorePreflight []string
	// CertificateKey encrypts or decrypts uploaded control plane certificates (64 hexadecimal digits); empty for none.
	CertificateKey string
}

// Join is what a joining node needs beside Node.
type Join struct {
	Node
	// ControlPlane says whether an apiserver and an etcd member are to run there.
	ControlPlane bool
	// Endpoint is HOST:PORT of the control plane; Token and CACertHash prove both ends to each other.
	Endpoint, Token, CACertHash string
}

type document = map[string]any

// RenderInit writes the configuration file of `kubeadm init`: InitConfiguration, ClusterConfiguration,
// KubeletConfiguration and KubeProxyConfiguration. The same input gives the same bytes.
func RenderInit(c Cluster, n Node) ([]byte, error) {
	if err := supported(c.Version); err != nil {
		return nil, err
	}
	if n.Name == "" || n.Address == "" {
		return nil, errors.New("kubeadm init configuration: node name and address are required")
	}
	return render(initConfiguration(n), clusterConfiguration(c), kubeletConfiguration(c.Kubelet), proxyConfiguration(c.Proxy))
}

// RenderJoin writes the configuration file of `kubeadm join`.
func RenderJoin(v kubeversion.V, j Join) ([]byte, error) {
	if err := supported(v); err != nil {
		return nil, err
	}
	for _, f := range []struct{ name, value string }{
		{"node name", j.Name}, {"address", j.Address}, {"endpoint", j.Endpoint}, {"token", j.Token}, {"CA certificate hash", j.CACertHash},
	} {
		if f.value == "" {
			return nil, fmt.Errorf("kubeadm join configuration: %s is required", f.name)
		}
	}
	d := document{
		"apiVersion":       apiVersion,
		"kind":             "JoinConfiguration",
		"nodeRegistration": registration(j.Node),
		"discovery": document{"bootstrapToken": document{
			"apiServerEndpoint": j.Endpoint,
			"token":             j.Token,
			"caCertHashes":      []string{j.CACertHash},
		}},
	}
	if j.ControlPlane {
		if j.CertificateKey == "" {
			return nil, errors.New("kubeadm join configuration: a control plane node needs a certificate key")
		}
		d["controlPlane"] = document{
			"localAPIEndpoint": document{"advertiseAddress": j.Address, "bindPort": 6443},
			"certificateKey":   j.CertificateKey,
		}
	}
	return render(d)
}

func supported(v kubeversion.V) error {
	oldest := kubeversion.Minor{Major: 1, Minor: 31}
	if d, ok := v.MinorVersion().Sub(oldest); !ok || d < 0 {
		return fmt.Errorf("kubeadm configuration for %s: versions before %s are not supported", v, oldest)
	}
	return nil
}

func initConfiguration(n Node) document {
	d := document{
		"apiVersion":       apiVersion,
		"kind":             "InitConfiguration",
		"nodeRegistration": registration(n),
		"localAPIEndpoint": document{"advertiseAddress": n.Address, "bindPort": 6443},
	}
	if n.CertificateKey != "" {
		d["certificateKey"] = n.CertificateKey
	}
	return d
}

func registration(n Node) document {
	d := document{
		"name":            n.Name,
		"criSocket":       CRISocket,
		"imagePullPolicy": "IfNotPresent",
		// Without it a kubelet with several addresses picks the one of the default route.
		"kubeletExtraArgs": []any{document{"name": "node-ip", "value": n.Address}},
	}
	if len(n.IgnorePreflight) > 0 {
		d["ignorePreflightErrors"] = n.IgnorePreflight
	}
	return d
}

func clusterConfiguration(c Cluster) document {
	networking := document{}
	if c.PodSubnet != "" {
		networking["podSubnet"] = c.PodSubnet
	}
	if c.ServiceSubnet != "" {
		networking["serviceSubnet"] = c.ServiceSubnet
	}
	d := document{
		"apiVersion":        apiVersion,
		"kind":              "ClusterConfiguration",
		"kubernetesVersion": c.Version.String(),
		"networking":        networking,
	}
	if c.Name != "" {
		d["clusterName"] = c.Name
	}
	if c.Endpoint != "" {
		d["controlPlaneEndpoint"] = c.Endpoint
	}
	if len(c.FeatureGates) > 0 {
		d["featureGates"] = c.FeatureGates
	}
	api := document{}
	if len(c.CertSANs) > 0 {
		api["certSANs"] = c.CertSANs
	}
	if a := args(c.ExtraArgs["apiServer"]); a != nil {
		api["extraArgs"] = a
	}
	if len(api) > 0 {
		d["apiServer"] = api
	}
	for _, name := range []string{"controllerManager", "scheduler"} {
		if a := args(c.ExtraArgs[name]); a != nil {
			d[name] = document{"extraArgs": a}
		}
	}
	if a := args(c.ExtraArgs["etcd"]); a != nil {
		d["etcd"] = document{"local": document{"dataDir": "/var/lib/etcd", "extraArgs": a}}
	}
	return d
}

// args orders flags by name, as v1beta4 has a list where flags may repeat.
func args(m map[string]string) []any {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []any
	for _, name := range names {
		out = append(out, document{"name": name, "value": m[name]})
	}
	return out
}

func kubeletConfiguration(k KubeletSettings) document {
	d := document{
		"apiVersion":   "kubelet.config.k8s.io/v1beta1",
		"kind":         "KubeletConfiguration",
		"cgroupDriver": "systemd",
	}
	if k.AllowCgroupV1 {
		d["failCgroupV1"] = false
	}
	if k.AllowSwap {
		d["failSwapOn"] = false
	}
	if k.SharedDisk {
		d["evictionHard"] = document{"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi", "nodefs.inodesFree": "1%"}
		d["imageGCHighThresholdPercent"] = 100
		d["imageGCLowThresholdPercent"] = 99
	}
	if len(k.FeatureGates) > 0 {
		d["featureGates"] = k.FeatureGates
	}
	return d
}

func proxyConfiguration(p ProxySettings) document {
	d := document{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
		"kind":       "KubeProxyConfiguration",
	}
	if p.Mode != "" {
		d["mode"] = p.Mode
	}
	if p.LeaveConntrack {
		// Zero means "leave as it is" for each of these; kube-proxy exits when it may not write one of them.
		d["conntrack"] = document{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
	}
	return d
}

func render(docs ...document) ([]byte, error) {
	var b bytes.Buffer
	for i, d := range docs {
		if i > 0 {
			b.WriteString("---\n")
		}
		out, err := yaml.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("kubeadm configuration: %w", err)
		}
		b.Write(out)
	}
	return b.Bytes(), nil
}

// NewCertificateKey makes a key for uploaded certificates: 32 random bytes in hexadecimal.
func NewCertificateKey() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
	return hex.EncodeToString(raw[:])
}
