// Package controlplane gives tests and rehearsals a whole Kubernetes control
// plane from a bundle's binaries in one call: etcd, kube-apiserver and, if
// wanted, controller-manager and scheduler, as plain processes without root.
// The single servers, and what each guarantees, are in internal/controlplane.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/controlplane"
)

// Binaries finds a program by its name, as *bundle.Bundle does.
type Binaries interface {
	BinaryPath(name string) (string, error)
}

// BinDir finds programs in a directory.
type BinDir string

// BinaryPath gives the path of a program in the directory; a missing one is an error.
func (d BinDir) BinaryPath(name string) (string, error) {
	p := filepath.Join(string(d), name)
	_, err := os.Stat(p)
	return p, err
}

// Options say what to run.
type Options struct {
	// Binaries finds etcd, kube-apiserver and the others; required.
	Binaries Binaries
	// Dir holds certificates, logs, the kubeconfig and, unless EtcdDataDir is set, etcd's data.
	// Empty means a temporary directory that Stop removes.
	Dir string
	// EtcdDataDir is an existing data directory to run over, for instance a restored one.
	EtcdDataDir string
	// Etcd finds etcd elsewhere; default: Binaries.
	Etcd Binaries
	// EncryptionConfig is the content of an EncryptionConfiguration file; empty means none.
	EncryptionConfig []byte
	// APIServerArgs, ControllerManagerArgs and SchedulerArgs are added after belay's own.
	APIServerArgs, ControllerManagerArgs, SchedulerArgs []string
	// Controllers runs kube-controller-manager too, Scheduler kube-scheduler.
	Controllers, Scheduler bool
	// Timeout bounds the start of each server; 0 means its own default, one or two minutes.
	Timeout time.Duration
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	// Etcd and API are always there; Controllers and Scheduler if they were asked for.
	Etcd        *controlplane.Etcd
	API         *controlplane.APIServer
	Controllers *controlplane.Controller
	Scheduler   *controlplane.Controller
	// KubeconfigFile is an administrator's access, valid while it runs.
	KubeconfigFile string
	// Dir holds the logs.
	Dir string

	removeDir bool
}

// Start brings a control plane up and returns when every server is ready. A server that dies on
// the way is reported as *controlplane.ExitedError with the end of its log, and those before it
// are stopped. All servers die with this process.
func Start(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	if o.Binaries == nil {
		return nil, errors.New("start control plane: no binaries given")
	}
	if o.Etcd == nil {
		o.Etcd = o.Binaries
	}
	c := &ControlPlane{Dir: o.Dir}
	if c.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", "belay-controlplane-"); err != nil {
			return nil, fmt.Errorf("start control plane: %w", err)
		}
		c.removeDir = true
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
		}
	}()
	pki, err := controlplane.NewPKI(filepath.Join(c.Dir, "pki"))
	if err != nil {
		return nil, err
	}
	bin, err := o.Etcd.BinaryPath("etcd")
	if err != nil {
		return nil, err
	}
	if c.Etcd, err = controlplane.StartEtcd(ctx, controlplane.EtcdOptions{
		Binary: bin, Dir: filepath.Join(c.Dir, "etcd"), DataDir: o.EtcdDataDir, PKI: pki, Timeout: o.Timeout,
	}); err != nil {
		return nil, err
	}
	if bin, err = o.Binaries.BinaryPath("kube-apiserver"); err != nil {
		return nil, err
	}
	if c.API, err = controlplane.StartAPIServer(ctx, controlplane.APIServerOptions{
		Binary: bin, Dir: c.Dir, PKI: pki, Etcd: c.Etcd, EncryptionConfig: o.EncryptionConfig, Args: o.APIServerArgs, Timeout: o.Timeout,
	}); err != nil {
		return nil, err
	}
	kubeconfig, err := c.API.Kubeconfig()
	if err != nil {
		return nil, err
	}
	c.KubeconfigFile = filepath.Join(c.Dir, "kubeconfig")
	if err := atomicfile.WriteFile(c.KubeconfigFile, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	for _, s := range []struct {
		wanted bool
		name   string
		args   []string
		start  func(context.Context, controlplane.ControllerOptions) (*controlplane.Controller, error)
		to     **controlplane.Controller
	}{
		{o.Controllers, "kube-controller-manager", o.ControllerManagerArgs, controlplane.StartControllerManager, &c.Controllers},
		{o.Scheduler, "kube-scheduler", o.SchedulerArgs, controlplane.StartScheduler, &c.Scheduler},
	} {
		if !s.wanted {
			continue
		}
		if bin, err = o.Binaries.BinaryPath(s.name); err != nil {
			return nil, err
		}
		if *s.to, err = s.start(ctx, controlplane.ControllerOptions{Binary: bin, Dir: c.Dir, API: c.API, Args: slices.Clone(s.args), Timeout: o.Timeout}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// RESTConfig gives an administrator's access.
func (c *ControlPlane) RESTConfig() *rest.Config { return c.API.RESTConfig() }

// Err is the first death of a server that nobody asked for, else nil.
func (c *ControlPlane) Err() error {
	var errs []error
	if c.Etcd != nil {
		errs = append(errs, c.Etcd.Err())
	}
	if c.API != nil {
		errs = append(errs, c.API.Err())
	}
	for _, s := range []*controlplane.Controller{c.Controllers, c.Scheduler} {
		if s != nil {
			errs = append(errs, s.Err())
		}
	}
	return errors.Join(errs...)
}

// Stop ends all servers, in the order opposite to the start, and removes a temporary directory.
// What died before is in the error.
func (c *ControlPlane) Stop(ctx context.Context) error {
	var errs []error
	for _, s := range []*controlplane.Controller{c.Scheduler, c.Controllers} {
		if s != nil {
			errs = append(errs, s.Stop(ctx))
		}
	}
	if c.API != nil {
		errs = append(errs, c.API.Stop(ctx))
	}
	if c.Etcd != nil {
		errs = append(errs, c.Etcd.Stop(ctx))
	}
	if c.removeDir {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}
