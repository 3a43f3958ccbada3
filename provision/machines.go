package provision

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/payload"
	"github.com/belayops/belay/testenv"
)

// machineEnv is where a belay home's machines live. The directory is below the home, so that clusters of the same name in two
// homes are two networks.
func machineEnv(o Options, runc string, sink event.Sink) (*testenv.Env, error) {
	return testenv.New(testenv.Options{
		CacheDir: o.Cache, StateDir: filepath.Join(o.Home, "machines"),
		RuncPath: runc, InstallTools: o.InstallTools, Sink: sink,
		// What a failed start left is there for a look at it: the next `up` begins anew, and `down` removes it.
		KeepFailed: true,
	})
}

// makeMachines brings the machines of the spec up and fills in nodes, inventory and endpoint. It says what it had to do.
func (u *up) makeMachines(ctx context.Context, inv *inventory.Inventory) (string, error) {
	runc, err := u.b.BinaryPath("runc")
	if err != nil {
		return "", err
	}
	env, err := machineEnv(u.o, runc, event.Func(func(e event.Event) {
		if e.Type != event.RunStarted && e.Type != event.RunFinished {
			u.emit(e)
		}
	}))
	if err != nil {
		return "", err
	}
	var specs []testenv.MachineSpec
	var binds []testenv.Bind
	if !u.o.SendFiles {
		binds = []testenv.Bind{{Source: filepath.Dir(u.b.Dir()), Target: payload.MirrorDir, ReadOnly: true}}
	}
	roles := map[string]string{}
	for _, r := range []struct {
		prefix, role string
		n            int
	}{{"cp", RoleControlPlane, u.spec.Machines.ControlPlanes}, {"w", RoleWorker, u.spec.Machines.Workers}} {
		for i := range r.n {
			// The cluster's name is part of the host name: two clusters are told apart in every prompt and log.
			name := fmt.Sprintf("%s-%s%d", u.spec.Name, r.prefix, i+1)
			roles[name] = r.role
			specs = append(specs, testenv.MachineSpec{Name: name, Binds: binds})
		}
	}
	was := 0
	if net, err := env.Get(ctx, u.spec.Name); err == nil {
		for _, m := range net.Machines {
			if m.Running {
				was++
			}
		}
	} else if !errors.Is(err, testenv.ErrNotFound) {
		return "", err
	}
	machines, err := env.Up(ctx, u.spec.Name, specs)
	if err != nil {
		return "", err
	}
	q := env.Facts().Quirks()
	var backends []string
	for _, m := range machines {
		n := &node{name: m.Name, role: roles[m.Name], address: m.Address, machine: true, quirks: Quirks{
			AllowCgroupV1: q.FailCgroupV1False, AllowSwap: q.FailSwapOnFalse, RestrictOOMScoreAdj: q.RestrictOOMScoreAdj,
			LeaveConntrack: q.KubeProxyConntrackZero, SharedDisk: true, IgnorePreflight: q.IgnorePreflight,
		}}
		u.nodes = append(u.nodes, n)
		inv.SSH = inventory.SSH{User: m.User, Port: m.Port, KeyFile: m.KeyFile, KnownHostsFile: m.KnownHostsFile}
		inv.Nodes = append(inv.Nodes, inventory.Node{Name: m.Name, Address: m.Address})
		if n.role == RoleControlPlane {
			backends = append(backends, net.JoinHostPort(m.Address, strconv.Itoa(apiServerPort)))
		}
	}
	var did []string
	if was < len(machines) {
		did = append(did, fmt.Sprintf("%d started", len(machines)-was))
	}
	endpoint := backends[0]
	if len(backends) > 1 {
		network, err := env.Get(ctx, u.spec.Name)
		if err != nil {
			return "", err
		}
		endpoint = net.JoinHostPort(network.Gateway, strconv.Itoa(apiServerPort))
		if network.LoadBalancer != endpoint {
			if err := env.StartLB(ctx, u.spec.Name, endpoint, backends); err != nil {
				return "", fmt.Errorf("load balancer: %w", err)
			}
			did = append(did, "load balancer at "+endpoint)
		}
	}
	return strings.Join(did, ", "), u.record(func(p *progress) { p.Endpoint = endpoint })
}

// runcFor finds a runc to take machines down with; any will do, and each network keeps a copy of its own.
func runcFor(o Options, spec *Spec) string {
	if spec == nil {
		return ""
	}
	b, err := bundle.Find(o.bundleRoot(spec), spec.Version(), "")
	if err != nil {
		return ""
	}
	p, err := b.BinaryPath("runc")
	if err != nil {
		return ""
	}
	return p
}
