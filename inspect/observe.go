package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
)

// Sources are where a State comes from.
type Sources struct {
	// REST reaches the API; required.
	REST *rest.Config
	// Host gives the machine of a node by the node's name. nil: no machine is asked, and neither is
	// etcd, which is reached through the control plane's machines. Observe does not close what it gets.
	Host func(ctx context.Context, node string) (host.Host, error)
}

// Options bound an observation. The zero value is good for most clusters.
type Options struct {
	// Tool is written into the State.
	Tool string
	// PageSize is how many objects one list request asks for; 0 means 500.
	PageSize int64
	// APITimeout bounds each page of a list; 0 means 30 s.
	APITimeout time.Duration
	// HostTimeout bounds what is asked of one machine; 0 means one minute.
	HostTimeout time.Duration
	// EtcdTimeout bounds what is asked of one etcd member; 0 means 10 s.
	EtcdTimeout time.Duration
	// Parallel is how many machines and how many lists are asked at one time; 0 means 8.
	Parallel int
	// Sink receives progress; nil discards it.
	Sink event.Sink
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.PageSize <= 0 {
		o.PageSize = 500
	}
	if o.APITimeout <= 0 {
		o.APITimeout = 30 * time.Second
	}
	if o.HostTimeout <= 0 {
		o.HostTimeout = time.Minute
	}
	if o.EtcdTimeout <= 0 {
		o.EtcdTimeout = 10 * time.Second
	}
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Sink = event.Or(o.Sink)
	return o
}

// NothingReadError says that the API gave nothing at all, so that there is no state.
type NothingReadError struct {
	Server string
	Err    error
}

func (e *NothingReadError) Error() string {
	return fmt.Sprintf("nothing could be read from the API at %s: %v; check the address and the credentials in the kubeconfig", e.Server, e.Err)
}

// Unwrap gives the first reason.
func (e *NothingReadError) Unwrap() error { return e.Err }

// Next is a command that shows the same from another side.
func (e *NothingReadError) Next() string {
	if kindOf(e.Err) == cluster.UnreadForbidden {
		return "kubectl auth whoami"
	}
	return "kubectl cluster-info"
}

// Observe reads the whole state. What could not be read is in its Unread, with a nil error. The error is
// a *NothingReadError when the API gave nothing, and the context's when that ended.
func Observe(ctx context.Context, src Sources, o Options) (*cluster.State, error) {
	o = o.withDefaults()
	cfg := rest.CopyConfig(src.REST)
	// Typed objects as protobuf take a third of JSON's time and memory. What does not speak it answers in JSON.
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	if cfg.QPS < 50 {
		cfg.QPS, cfg.Burst = 50, 100
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	ob := &observer{o: o, client: client, hostOf: src.Host, state: &cluster.State{
		Schema: cluster.StateSchema, Observed: o.Now().UTC(), Tool: o.Tool, Server: cfg.Host,
	}}
	if err := ob.api(ctx); err != nil {
		return nil, err
	}
	machines := ob.hosts(ctx)
	ob.etcd(ctx, machines)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("observe the cluster: %w", err)
	}
	ob.state.Sort()
	return ob.state, nil
}

// observer gathers a state. Lists run in parallel: mu guards state.Unread, and each list writes fields of its own.
type observer struct {
	o      Options
	client kubernetes.Interface
	hostOf func(ctx context.Context, node string) (host.Host, error)

	mu    sync.Mutex
	state *cluster.State
	// kubeletConfig is the whole of ConfigMap kubelet-config; nil when it was not read.
	kubeletConfig settings
}

func (ob *observer) unread(what string, err error) {
	ob.add(cluster.Unread{What: what, Kind: kindOf(err), Why: oneLine(err.Error())})
}

func (ob *observer) add(u ...cluster.Unread) {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	ob.state.Unread = append(ob.state.Unread, u...)
}

// kindOf sorts an error into the kinds of cluster.Unread.
func kindOf(err error) string {
	var lost *host.LostError
	var never *host.NotStartedError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errMalformed):
		return cluster.UnreadMalformed
	case errors.As(err, &never) && len(never.Argv) == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		// Without a program that was to run there, the machine itself was not
		// reached. A key file of one's own that is not there is nothing of the cluster's.
		return cluster.UnreadUnreachable
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), errors.Is(err, fs.ErrPermission):
		return cluster.UnreadForbidden
	case apierrors.IsNotFound(err), errors.Is(err, fs.ErrNotExist):
		return cluster.UnreadNotFound
	case errors.As(err, &lost) && ctxDeadline(err), errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return cluster.UnreadTimeout
	case errors.As(err, &lost):
		return cluster.UnreadLost
	case errors.As(err, &timeout) && timeout.Timeout():
		return cluster.UnreadTimeout
	case errors.As(err, &never), errors.Is(err, errNoAnswer):
		return cluster.UnreadUnreachable
	}
	var op *net.OpError
	var dns *net.DNSError
	if errors.As(err, &op) || errors.As(err, &dns) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) {
		return cluster.UnreadUnreachable
	}
	return cluster.UnreadFailed
}

func ctxDeadline(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// hosts asks every node's machine, several at a time, and puts what they say into the nodes.
// It gives the machines that answered, by node.
func (ob *observer) hosts(ctx context.Context) map[string]host.Host {
	reached := make(map[string]host.Host)
	if ob.hostOf == nil {
		if len(ob.state.Nodes) > 0 {
			ob.add(cluster.Unread{What: cluster.ReadHosts, Kind: cluster.UnreadNotAsked, Why: "no access to the machines was configured"})
		}
		return reached
	}
	var mu sync.Mutex
	var done int
	var g errgroup.Group
	g.SetLimit(ob.o.Parallel)
	for i := range ob.state.Nodes {
		n := &ob.state.Nodes[i]
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, ob.o.HostTimeout)
			defer cancel()
			h, err := ob.hostOf(ctx, n.Name)
			var m machine
			if err == nil {
				m, err = readHost(ctx, h, n.Name, "", ob.o.Now)
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			if err != nil {
				ob.unread(cluster.HostRead(n.Name), err)
				ob.o.Sink.Emit(event.Event{Type: event.Warning, Subject: "node " + n.Name, Msg: "its machine could not be asked", Err: oneLine(err.Error())})
				return nil
			}
			reached[n.Name] = h
			ob.merge(n, m)
			ob.o.Sink.Emit(event.Event{Type: event.StepProgress, Step: "hosts", Subject: "node " + n.Name, Msg: "asked its machine", Index: done, Total: len(ob.state.Nodes)})
			return nil
		})
	}
	_ = g.Wait() // every error is an Unread
	return reached
}

// merge puts what a machine said into its node. A component that has a manifest and no mirror pod is there as well.
func (ob *observer) merge(n *cluster.Node, m machine) {
	n.Host = &m.facts
	if m.kubeletConfig != nil && ob.kubeletConfig != nil {
		n.Host.KubeletConfigDrift = ob.kubeletConfig.drift(m.kubeletConfig)
	}
	ob.add(m.unread...)
	for _, c := range m.facts.Manifests {
		sp := n.StaticPod(c)
		if sp == nil {
			if !slices.Contains(components, c) {
				continue
			}
			n.StaticPods = append(n.StaticPods, cluster.StaticPod{Component: c})
			sp = &n.StaticPods[len(n.StaticPods)-1]
		}
		sp.ManifestImage = m.images[c]
		if len(sp.Args) == 0 {
			sp.Args = m.args[c]
		}
	}
}

// components are the static pods that a State keeps.
var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// argOf gives the value of --name=value; the last one wins, as with pflag.
func argOf(args []string, name string) string {
	v := ""
	for _, a := range args {
		if s, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			v = s
		}
	}
	return v
}
