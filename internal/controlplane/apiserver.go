package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/condition"
)

// APIServerOptions say how to run a kube-apiserver over an etcd.
type APIServerOptions struct {
	// Binary is the kube-apiserver program.
	Binary string
	// Dir holds the log file (kube-apiserver.log).
	Dir string
	// PKI signs its certificates; required, the one that the etcd has.
	PKI *PKI
	// Etcd is what it stores in.
	Etcd *Etcd
	// EncryptionConfig is the content of an EncryptionConfiguration file; empty means no encryption at rest.
	EncryptionConfig []byte
	// ServiceCIDR defaults to 10.96.0.0/12.
	ServiceCIDR string
	// Args are added after belay's own; where a flag comes twice, kube-apiserver takes the last.
	Args []string
	// Timeout bounds the start; 0 means two minutes.
	Timeout time.Duration
}

// APIServer is a running kube-apiserver.
type APIServer struct {
	proc *process
	pki  *PKI
	url  string
}

// StartAPIServer starts a kube-apiserver and returns when /readyz says ok. One
// that dies on the way is reported with the end of its log, as *ExitedError.
//
// It never compacts the etcd, registers no endpoint of itself, and calls no
// node. Admission and aggregation are those of the version's defaults.
func StartAPIServer(ctx context.Context, o APIServerOptions) (*APIServer, error) {
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Minute
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = "10.96.0.0/12"
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("start kube-apiserver: %w", err)
	}
	common := []string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--etcd-servers=" + o.Etcd.Endpoint(),
		"--etcd-cafile=" + o.PKI.Path("ca.crt"),
		"--etcd-certfile=" + o.PKI.Path("etcd-client.crt"),
		"--etcd-keyfile=" + o.PKI.Path("etcd-client.key"),
		"--etcd-compaction-interval=0",
		"--tls-cert-file=" + o.PKI.Path("apiserver.crt"),
		"--tls-private-key-file=" + o.PKI.Path("apiserver.key"),
		"--client-ca-file=" + o.PKI.Path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + o.PKI.Path("sa.pub"),
		"--service-account-signing-key-file=" + o.PKI.Path("sa.key"),
		"--service-cluster-ip-range=" + o.ServiceCIDR,
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--anonymous-auth=false",
		"--profiling=false",
	}
	if len(o.EncryptionConfig) > 0 {
		file := filepath.Join(o.Dir, "encryption-config.yaml")
		if err := atomicfile.WriteFile(file, o.EncryptionConfig, 0o600); err != nil {
			return nil, fmt.Errorf("start kube-apiserver: %w", err)
		}
		common = append(common, "--encryption-provider-config="+file)
	}
	for try := 1; ; try++ {
		ports, err := freePorts(1)
		if err != nil {
			return nil, fmt.Errorf("start kube-apiserver: %w", err)
		}
		a := &APIServer{pki: o.PKI, url: fmt.Sprintf("https://127.0.0.1:%d", ports[0])}
		args := append(append([]string{fmt.Sprintf("--secure-port=%d", ports[0])}, common...), o.Args...)
		if a.proc, err = startProcess("kube-apiserver", filepath.Join(o.Dir, "kube-apiserver.log"), o.Binary, args); err != nil {
			return nil, err
		}
		err = a.waitReady(ctx, o.Timeout)
		if err == nil {
			return a, nil
		}
		died := a.proc.err()
		err = errors.Join(err, a.proc.kill())
		if died == nil || try == startTries || !taken(ports) {
			return nil, fmt.Errorf("start kube-apiserver: %w", err)
		}
	}
}

func (a *APIServer) waitReady(ctx context.Context, timeout time.Duration) error {
	client, err := rest.HTTPClientFor(a.RESTConfig())
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return condition.Wait(ctx, condition.Condition{Name: "kube-apiserver to be ready", Check: func(ctx context.Context) error {
		if err := a.proc.err(); err != nil {
			return condition.Final(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/readyz", nil)
		if err != nil {
			return condition.Final(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return condition.NotYetf("/readyz answers %s", resp.Status)
		}
		return nil
	}}, condition.Options{Timeout: timeout, Interval: 100 * time.Millisecond, Attempt: 5 * time.Second})
}

// URL is where it serves, https on 127.0.0.1.
func (a *APIServer) URL() string { return a.url }

// RESTConfig gives an administrator's access (group system:masters), without client-side rate limit.
func (a *APIServer) RESTConfig() *rest.Config {
	return &rest.Config{
		Host: a.url, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: a.pki.Path("ca.crt"), CertFile: a.pki.Path("admin.crt"), KeyFile: a.pki.Path("admin.key"),
		},
	}
}

// Kubeconfig gives the same access as a kubeconfig file that names the certificate files of the PKI.
func (a *APIServer) Kubeconfig() ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters["belay"] = &clientcmdapi.Cluster{Server: a.url, CertificateAuthority: a.pki.Path("ca.crt")}
	c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificate: a.pki.Path("admin.crt"), ClientKey: a.pki.Path("admin.key")}
	c.Contexts["belay"] = &clientcmdapi.Context{Cluster: "belay", AuthInfo: "admin"}
	c.CurrentContext = "belay"
	return clientcmd.Write(*c)
}

// Done is closed when the process has ended.
func (a *APIServer) Done() <-chan struct{} { return a.proc.done }

// Err is an *ExitedError after an end that nobody asked for, else nil.
func (a *APIServer) Err() error { return a.proc.err() }

// Log is the file with its output.
func (a *APIServer) Log() string { return a.proc.log }

// PID is the process id, for tests that kill it.
func (a *APIServer) PID() int { return a.proc.cmd.Process.Pid }

// Stop ends it and waits. A death before Stop is returned.
func (a *APIServer) Stop(ctx context.Context) error { return a.proc.stop(ctx) }
