package executor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
)

// Machines gives access to the machines of nodes.
type Machines interface {
	Host(ctx context.Context, node string) (host.Host, error)
}

// Unit is what a machine says of a named transient systemd unit.
type Unit struct {
	State UnitState
	// Detail says how it ended, for people; Output is the end of what it printed.
	Detail, Output string
}

// UnitState says where a unit is.
type UnitState string

// The states of a unit.
const (
	UnitAbsent    UnitState = "absent"
	UnitRunning   UnitState = "running"
	UnitSucceeded UnitState = "succeeded"
	UnitFailed    UnitState = "failed"
)

// Units runs work on machines that outlives belay.
type Units interface {
	// Start begins argv in a unit of that name; one that ended before is cleared first.
	Start(ctx context.Context, h host.Host, name string, argv []string) error
	// Status looks at the unit.
	Status(ctx context.Context, h host.Host, name string) (Unit, error)
}

// Env is what a run works with. Fields without a default must be set.
type Env struct {
	Client   kubernetes.Interface
	Machines Machines
	Units    Units
	// Bundles are the bundles of the plan, by version.
	Bundles map[kubeversion.V]*bundle.Bundle
	// Observe reads the whole cluster, for the basis and the baseline.
	Observe func(ctx context.Context) (*cluster.State, error)
	// APIServer asks the apiserver of one node, not the balancer, for its version. DialAPIServer makes one.
	APIServer func(ctx context.Context, node string) (kubeversion.V, error)
	// EtcdMember asks the etcd member of one node for its version, by a read that needs quorum. DialEtcd makes one.
	EtcdMember func(ctx context.Context, node string) (kubeversion.V, error)
	// Preflight runs the checks against a target, and gives those of its findings that stand in the way and are not accepted ("id@subject"),
	// a sentence each.
	Preflight func(ctx context.Context, target kubeversion.V, accept []string) (blocking []string, err error)
	// Backup finds the newest backup of the cluster that reaches a level; the text says which one it is.
	Backup func(ctx context.Context, lineage, level string, maxAge time.Duration) (string, error)
	Sink   event.Sink
	// Poll is the pause between two looks at a condition; 0 means one second.
	Poll time.Duration
	// Patience bounds the waits of Verify; 0 means 10 minutes.
	Patience time.Duration
}

func (e *Env) poll() time.Duration {
	if e.Poll > 0 {
		return e.Poll
	}
	return time.Second
}

func (e *Env) patience() time.Duration {
	if e.Patience > 0 {
		return e.Patience
	}
	return 10 * time.Minute
}

// mend repeats an idempotent call to the API while the API is away, as it is when a single control plane node is upgraded.
func (e *Env) mend(ctx context.Context, what string, call func(ctx context.Context) error) error {
	err := condition.Wait(ctx, condition.Condition{Name: what, Check: func(ctx context.Context) error {
		err := call(ctx)
		if err == nil || transient(err) {
			return err
		}
		return condition.Final(err)
	}}, condition.Options{Timeout: e.patience(), Interval: e.poll(), Attempt: 20 * time.Second})
	if err != nil {
		return err
	}
	return nil
}

// transient says whether an API call may succeed when it is made again.
func transient(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		// No answer at all: refused, reset, timed out, a handshake cut off.
		return !errors.Is(err, context.Canceled)
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsConflict(err) ||
		apierrors.IsUnauthorized(err) // an apiserver that has just started may not have its informers yet
}

// node reads one node.
func (e *Env) node(ctx context.Context, name string) (*corev1.Node, error) {
	var n *corev1.Node
	err := e.mend(ctx, "node "+name+" to be read", func(ctx context.Context) (err error) {
		n, err = e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return n, err
}

const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// controlPlanes gives the names of the control plane nodes, sorted.
func (e *Env) controlPlanes(ctx context.Context) ([]string, error) {
	var names []string
	err := e.mend(ctx, "control plane nodes to be listed", func(ctx context.Context) error {
		names = nil
		l, err := e.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: controlPlaneLabel})
		if err != nil {
			return err
		}
		for _, n := range l.Items {
			names = append(names, n.Name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// DialAPIServer gives Env.APIServer: it asks the apiserver on a node's machine for its version,
// over a connection from that machine to itself, so that no balancer chooses another one.
func DialAPIServer(cfg *rest.Config, m Machines) func(ctx context.Context, node string) (kubeversion.V, error) {
	return func(ctx context.Context, node string) (kubeversion.V, error) {
		h, err := m.Host(ctx, node)
		if err != nil {
			return kubeversion.V{}, err
		}
		port, err := securePort(ctx, h)
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("apiserver of %s: %w", node, err)
		}
		c := rest.CopyConfig(cfg)
		c.Host = "https://127.0.0.1:" + port
		// kubeadm puts this name into every apiserver's certificate.
		c.TLSClientConfig.ServerName = "kubernetes"
		c.WrapTransport = nil // a refusal is an answer here
		tlsConfig, err := rest.TLSConfigFor(c)
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("apiserver of %s: %w", node, err)
		}
		// A transport of its own, as client-go keeps every one that it makes.
		rt, err := rest.HTTPWrappersForConfig(c, &http.Transport{DisableKeepAlives: true, TLSClientConfig: tlsConfig,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) { return h.Dial(ctx, network, addr) }})
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("apiserver of %s: %w", node, err)
		}
		client := &http.Client{Transport: rt, Timeout: 15 * time.Second}
		var out struct {
			GitVersion string `json:"gitVersion"`
		}
		if err := getJSON(ctx, client, c.Host+"/version", &out); err != nil {
			return kubeversion.V{}, fmt.Errorf("apiserver of %s: %w", node, err)
		}
		v, err := kubeversion.Parse(out.GitVersion)
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("apiserver of %s: %w", node, err)
		}
		return v, nil
	}
}

// securePort is the port of the apiserver of a machine, by its manifest; without one, kubeadm's own choice.
func securePort(ctx context.Context, h host.Host) (string, error) {
	b, err := h.ReadFile(ctx, kubeadm.ManifestPath("kube-apiserver"))
	if errors.Is(err, fs.ErrNotExist) {
		return kubeadm.DefaultAPIServerPort, nil
	}
	if err != nil {
		return "", err
	}
	port, err := kubeadm.ManifestFlag(b, "secure-port")
	if err != nil {
		return "", fmt.Errorf("%s: %w", kubeadm.ManifestPath("kube-apiserver"), err)
	}
	return cmp.Or(port, kubeadm.DefaultAPIServerPort), nil
}

// DialEtcd gives Env.EtcdMember: over a connection from a node's machine to itself, with the health check
// certificate that kubeadm keeps there. /health makes the member do a linearizable read, which
// needs a leader and a quorum.
func DialEtcd(m Machines) func(ctx context.Context, node string) (kubeversion.V, error) {
	return func(ctx context.Context, node string) (kubeversion.V, error) {
		h, err := m.Host(ctx, node)
		if err != nil {
			return kubeversion.V{}, err
		}
		read := func(name string) []byte {
			if err != nil {
				return nil
			}
			var b []byte
			b, err = h.ReadFile(ctx, "/etc/kubernetes/pki/etcd/"+name)
			return b
		}
		ca, crt, key := read("ca.crt"), read("healthcheck-client.crt"), read("healthcheck-client.key")
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("etcd of %s: %w", node, err)
		}
		pair, err := tls.X509KeyPair(crt, key)
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("etcd of %s: healthcheck-client.crt: %w", node, err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(ca) {
			return kubeversion.V{}, fmt.Errorf("etcd of %s: ca.crt holds no certificate", node)
		}
		tr := &http.Transport{
			DialContext:     func(ctx context.Context, network, addr string) (net.Conn, error) { return h.Dial(ctx, network, addr) },
			TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: "localhost", MinVersion: tls.VersionTLS12},
		}
		client := &http.Client{Transport: tr, Timeout: 15 * time.Second}
		defer client.CloseIdleConnections()
		var health struct {
			Health string `json:"health"`
			Reason string `json:"reason"`
		}
		if err := getJSON(ctx, client, "https://127.0.0.1:2379/health", &health); err != nil {
			return kubeversion.V{}, fmt.Errorf("etcd of %s: %w", node, err)
		}
		if health.Health != "true" {
			return kubeversion.V{}, fmt.Errorf("etcd of %s is not healthy: %s", node, health.Reason)
		}
		var version struct {
			Server string `json:"etcdserver"`
		}
		if err := getJSON(ctx, client, "https://127.0.0.1:2379/version", &version); err != nil {
			return kubeversion.V{}, fmt.Errorf("etcd of %s: %w", node, err)
		}
		v, err := kubeversion.Parse(version.Server)
		if err != nil {
			return kubeversion.V{}, fmt.Errorf("etcd of %s: %w", node, err)
		}
		return v, nil
	}
}

func getJSON(ctx context.Context, c *http.Client, url string, into any) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		return fmt.Errorf("%s: %s", req.URL.Path, resp.Status)
	}
	return json.Unmarshal(b, into)
}
