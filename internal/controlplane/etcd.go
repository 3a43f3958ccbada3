package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/belayops/belay/internal/condition"
)

// EtcdOptions say how to run an etcd.
type EtcdOptions struct {
	// Binary is the etcd program.
	Binary string
	// Dir holds the log file (etcd.log), and the data unless DataDir is set.
	Dir string
	// DataDir is an existing data directory, such as a restored one; empty means Dir/data.
	// A restored one must have been restored for the member "belay" with the peer URL DefaultPeerURL.
	DataDir string
	// PKI signs its certificates; required.
	PKI *PKI
	// Args are added after belay's own.
	Args []string
	// Timeout bounds the start; 0 means one minute.
	Timeout time.Duration
}

// MemberName and DefaultPeerURL are what a data directory must be restored
// with so that StartEtcd can run it. Nothing listens on that URL: a single
// member talks to no peer, and its listener gets a port of its own.
const (
	MemberName     = "belay"
	DefaultPeerURL = "http://127.0.0.1:2380"
)

// Etcd is a running single-member etcd.
type Etcd struct {
	proc     *process
	pki      *PKI
	tls      *tls.Config
	endpoint string
	dataDir  string
}

// startTries is how often a server is started anew when a port was taken between choosing and binding.
const startTries = 4

// StartEtcd starts an etcd and returns when it answers. An etcd that dies on
// the way is reported with the end of its log, as *ExitedError.
func StartEtcd(ctx context.Context, o EtcdOptions) (*Etcd, error) {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.DataDir == "" {
		o.DataDir = filepath.Join(o.Dir, "data")
	}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	tlsConf, err := o.PKI.clientTLS("etcd-client")
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	for try := 1; ; try++ {
		ports, err := freePorts(2)
		if err != nil {
			return nil, fmt.Errorf("start etcd: %w", err)
		}
		e := &Etcd{pki: o.PKI, tls: tlsConf, endpoint: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), dataDir: o.DataDir}
		args := append([]string{
			"--name=" + MemberName,
			"--data-dir=" + o.DataDir,
			"--listen-client-urls=" + e.endpoint,
			"--advertise-client-urls=" + e.endpoint,
			fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", ports[1]),
			"--initial-advertise-peer-urls=" + DefaultPeerURL,
			"--initial-cluster=" + MemberName + "=" + DefaultPeerURL,
			"--initial-cluster-state=new",
			"--client-cert-auth=true",
			"--trusted-ca-file=" + o.PKI.Path("ca.crt"),
			"--cert-file=" + o.PKI.Path("etcd.crt"),
			"--key-file=" + o.PKI.Path("etcd.key"),
			"--log-outputs=stderr",
		}, o.Args...)
		if e.proc, err = startProcess("etcd", filepath.Join(o.Dir, "etcd.log"), o.Binary, args); err != nil {
			return nil, err
		}
		err = e.waitReady(ctx, o.Timeout)
		if err == nil {
			return e, nil
		}
		died := e.proc.err()
		err = errors.Join(err, e.proc.kill())
		if died == nil || try == startTries || !taken(ports) {
			return nil, fmt.Errorf("start etcd: %w", err)
		}
	}
}

func (e *Etcd) waitReady(ctx context.Context, timeout time.Duration) error {
	cfg := e.ClientConfig()
	// The default first pause of a second is longer than the whole start.
	cfg.DialOptions = []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.2, MaxDelay: time.Second},
		MinConnectTimeout: time.Second,
	})}
	cli, err := clientv3.New(cfg)
	if err != nil {
		return err
	}
	defer cli.Close()
	return condition.Wait(ctx, condition.Condition{Name: "etcd to answer a linearizable read", Check: func(ctx context.Context) error {
		if err := e.proc.err(); err != nil {
			return condition.Final(err)
		}
		_, err := cli.Get(ctx, "belay-health", clientv3.WithCountOnly())
		return err
	}}, condition.Options{Timeout: timeout, Interval: 50 * time.Millisecond, Attempt: time.Second})
}

// Endpoint is its client URL, https on 127.0.0.1.
func (e *Etcd) Endpoint() string { return e.endpoint }

// DataDir is where its data is.
func (e *Etcd) DataDir() string { return e.dataDir }

// ClientConfig gives what a client needs to reach it.
func (e *Etcd) ClientConfig() clientv3.Config {
	return clientv3.Config{
		Endpoints: []string{e.endpoint}, TLS: e.tls.Clone(), DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		MaxCallRecvMsgSize: 64 << 20,
	}
}

// Done is closed when the process has ended.
func (e *Etcd) Done() <-chan struct{} { return e.proc.done }

// Err is an *ExitedError after an end that nobody asked for, else nil.
func (e *Etcd) Err() error { return e.proc.err() }

// Log is the file with its output.
func (e *Etcd) Log() string { return e.proc.log }

// PID is the process id, for tests that kill it.
func (e *Etcd) PID() int { return e.proc.cmd.Process.Pid }

// Stop ends it and waits; the data directory stays. A death before Stop is returned.
func (e *Etcd) Stop(ctx context.Context) error { return e.proc.stop(ctx) }
