package kubeadm

import (
	"fmt"
	"slices"
	"strings"
)

// rendered are the flags that kubeadm itself writes into the manifest of a component, with the value where that is the same
// for every cluster and "" where it is not (cmd/kubeadm/app/phases/controlplane/manifests.go and phases/etcd/local.go of
// 1.31.14 to 1.37.2; etcd's experimental flags are those up to 1.33).
var rendered = map[string]map[string]string{
	"kube-apiserver": {
		"advertise-address": "", "allow-privileged": "true", "authorization-mode": "Node,RBAC", "client-ca-file": "",
		"enable-admission-plugins": "NodeRestriction", "enable-bootstrap-token-auth": "true",
		"etcd-cafile": "", "etcd-certfile": "", "etcd-keyfile": "", "etcd-servers": "",
		"kubelet-client-certificate": "", "kubelet-client-key": "", "kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname",
		"proxy-client-cert-file": "", "proxy-client-key-file": "",
		"requestheader-allowed-names": "front-proxy-client", "requestheader-client-ca-file": "", "requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"requestheader-group-headers": "X-Remote-Group", "requestheader-username-headers": "X-Remote-User",
		"secure-port": "", "service-account-issuer": "", "service-account-key-file": "", "service-account-signing-key-file": "",
		"service-cluster-ip-range": "", "tls-cert-file": "", "tls-private-key-file": "",
	},
	"kube-controller-manager": {
		"allocate-node-cidrs": "true", "authentication-kubeconfig": "", "authorization-kubeconfig": "", "bind-address": "127.0.0.1", "client-ca-file": "",
		"cluster-cidr": "", "cluster-name": "", "cluster-signing-cert-file": "", "cluster-signing-key-file": "", "controllers": "*,bootstrapsigner,tokencleaner",
		"kubeconfig": "", "leader-elect": "true", "requestheader-client-ca-file": "", "root-ca-file": "", "service-account-private-key-file": "",
		"service-cluster-ip-range": "", "use-service-account-credentials": "true",
	},
	"kube-scheduler": {
		"authentication-kubeconfig": "", "authorization-kubeconfig": "", "bind-address": "127.0.0.1", "kubeconfig": "", "leader-elect": "true",
	},
	"etcd": {
		"advertise-client-urls": "", "cert-file": "", "client-cert-auth": "true", "data-dir": "", "feature-gates": "InitialCorruptCheck=true",
		"initial-advertise-peer-urls": "", "initial-cluster": "", "initial-cluster-state": "", "key-file": "", "listen-client-urls": "",
		"listen-metrics-urls": "", "listen-peer-urls": "", "name": "", "peer-cert-file": "", "peer-client-cert-auth": "true", "peer-key-file": "",
		"peer-trusted-ca-file": "", "snapshot-count": "10000", "trusted-ca-file": "", "watch-progress-notify-interval": "5s",
		"experimental-initial-corrupt-check": "true", "experimental-watch-progress-notify-interval": "5s",
	},
}

// LostFlags gives the flags in a component's command line that kubeadm would not write again, sorted: those that are neither its
// own nor in extraArgs of ConfigMap kubeadm-config (name to values, as a flag may be there more than once), and those whose value is
// another than it would write. `kubeadm upgrade` renders every manifest anew and says nothing of what it leaves out.
func LostFlags(component string, args []string, extra map[string][]string) []string {
	own := rendered[component]
	if own == nil {
		return nil
	}
	var lost []string
	for i, a := range args {
		if !strings.HasPrefix(a, "--") {
			continue
		}
		name, value, has := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !has && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value, has = args[i+1], true
		}
		name = strings.ReplaceAll(name, "_", "-")
		fixed, ours := own[name]
		values, configured := extra[name]
		switch {
		case configured:
			// extraArgs replace kubeadm's value, or are put before or after it (mergeMethod).
			if has && !slices.ContainsFunc(values, func(v string) bool { return strings.Contains(value, v) }) {
				lost = append(lost, fmt.Sprintf("--%s=%s (kubeadm-config has %s)", name, value, strings.Join(values, ", ")))
			}
		case !ours:
			lost = append(lost, "--"+name)
		case fixed != "" && has && value != fixed:
			lost = append(lost, fmt.Sprintf("--%s=%s (kubeadm writes %s)", name, value, fixed))
		}
	}
	slices.Sort(lost)
	return slices.Compact(lost)
}

// mounted are the host paths that kubeadm mounts where they exist: certificates of the distribution, and the directory of flexvolumes
// up to 1.36 (cmd/kubeadm/app/phases/controlplane/volumes.go).
var mounted = []string{
	"/etc/ssl/certs", "/etc/pki", "/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
	"/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
}

// LostPaths gives the host paths of a component's volumes that kubeadm would not mount again, sorted: those that are neither in
// extraVolumes of ConfigMap kubeadm-config nor its own. Its own are fixed ones, and what its flags in args name or lie below.
func LostPaths(component string, paths, args, extraVolumes []string) []string {
	own := rendered[component]
	if own == nil {
		return nil
	}
	var lost []string
	for _, p := range paths {
		if slices.Contains(mounted, p) || slices.Contains(extraVolumes, p) {
			continue
		}
		used := slices.ContainsFunc(args, func(a string) bool {
			name, value, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
			_, ours := own[name]
			return ours && (value == p || strings.HasPrefix(value, strings.TrimSuffix(p, "/")+"/"))
		})
		if !used {
			lost = append(lost, p)
		}
	}
	slices.Sort(lost)
	return slices.Compact(lost)
}

// asked are the resources that kubeadm writes into the manifest of a component (ComponentResources in
// cmd/kubeadm/app/phases/controlplane/manifests.go, and phases/etcd/local.go, of 1.31.14 to 1.37.2).
var asked = map[string]map[string]string{
	"kube-apiserver":          {"requests.cpu": "250m"},
	"kube-controller-manager": {"requests.cpu": "200m"},
	"kube-scheduler":          {"requests.cpu": "100m"},
	"etcd":                    {"requests.cpu": "100m", "requests.memory": "100Mi"},
}

// LostResources gives those of a component's resources, each as "requests.cpu=250m", that kubeadm would not write again.
func LostResources(component string, resources []string) []string {
	own := asked[component]
	if own == nil {
		return nil
	}
	var lost []string
	for _, r := range resources {
		name, value, _ := strings.Cut(r, "=")
		switch writes := own[name]; writes {
		case value:
		case "":
			lost = append(lost, r)
		default:
			lost = append(lost, fmt.Sprintf("%s (kubeadm writes %s)", r, writes))
		}
	}
	return lost
}
