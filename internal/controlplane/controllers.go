package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/condition"
)

// ControllerOptions say how to run a kube-controller-manager or a kube-scheduler beside a kube-apiserver.
type ControllerOptions struct {
	// Binary is the program.
	Binary string
	// Dir holds the log file and the kubeconfig.
	Dir string
	// API is the server that it works on, as administrator.
	API *APIServer
	// Args are added after belay's own; where a flag comes twice, the last counts.
	Args []string
	// Timeout bounds the start; 0 means one minute.
	Timeout time.Duration
}

// Controller is a running kube-controller-manager or kube-scheduler.
type Controller struct {
	proc *process
	url  string
}

// StartControllerManager starts a kube-controller-manager and returns when it is healthy. One
// that dies on the way is reported with the end of its log, as *ExitedError. Its controllers
// act on what is stored: give it a copy, never the original.
func StartControllerManager(ctx context.Context, o ControllerOptions) (*Controller, error) {
	return startController(ctx, "kube-controller-manager", o, func(c *Controller, p *PKI) []string {
		return []string{
			"--service-account-private-key-file=" + p.Path("sa.key"),
			"--root-ca-file=" + p.Path("ca.crt"),
			"--use-service-account-credentials=false",
			"--allocate-node-cidrs=false",
		}
	})
}

// StartScheduler starts a kube-scheduler, as StartControllerManager does for its program.
func StartScheduler(ctx context.Context, o ControllerOptions) (*Controller, error) {
	return startController(ctx, "kube-scheduler", o, func(*Controller, *PKI) []string { return nil })
}

func startController(ctx context.Context, name string, o ControllerOptions, own func(*Controller, *PKI) []string) (*Controller, error) {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	kubeconfig, err := o.API.Kubeconfig()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	file := filepath.Join(o.Dir, name+".kubeconfig")
	if err := atomicfile.WriteFile(file, kubeconfig, 0o600); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	for try := 1; ; try++ {
		ports, err := freePorts(1)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		c := &Controller{url: fmt.Sprintf("https://127.0.0.1:%d", ports[0])}
		args := []string{
			fmt.Sprintf("--secure-port=%d", ports[0]),
			"--bind-address=127.0.0.1",
			"--kubeconfig=" + file,
			"--leader-elect=false",
			"--profiling=false",
			// Its own health endpoint; the apiserver's certificate names 127.0.0.1 too.
			"--tls-cert-file=" + o.API.pki.Path("apiserver.crt"),
			"--tls-private-key-file=" + o.API.pki.Path("apiserver.key"),
		}
		args = append(append(args, own(c, o.API.pki)...), o.Args...)
		if c.proc, err = startProcess(name, filepath.Join(o.Dir, name+".log"), o.Binary, args); err != nil {
			return nil, err
		}
		if err = c.waitHealthy(ctx, o); err == nil {
			return c, nil
		}
		died := c.proc.err()
		err = errors.Join(err, c.proc.kill())
		if died == nil || try == startTries || !taken(ports) {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
}

func (c *Controller) waitHealthy(ctx context.Context, o ControllerOptions) error {
	conf, err := o.API.pki.clientTLS("admin")
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: conf.RootCAs}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	return condition.Wait(ctx, condition.Condition{Name: c.proc.name + " to be healthy", Check: func(ctx context.Context) error {
		if err := c.proc.err(); err != nil {
			return condition.Final(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/healthz", nil)
		if err != nil {
			return condition.Final(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return condition.NotYetf("/healthz answers %s", resp.Status)
		}
		return nil
	}}, condition.Options{Timeout: o.Timeout, Interval: 100 * time.Millisecond, Attempt: 5 * time.Second})
}

// Done is closed when the process has ended.
func (c *Controller) Done() <-chan struct{} { return c.proc.done }

// Err is an *ExitedError after an end that nobody asked for, else nil.
func (c *Controller) Err() error { return c.proc.err() }

// Log is the file with its output.
func (c *Controller) Log() string { return c.proc.log }

// Stop ends it and waits. A death before Stop is returned.
func (c *Controller) Stop(ctx context.Context) error { return c.proc.stop(ctx) }
