package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/kubeversion"
)

// Options say where things are.
type Options struct {
	// Home is belay's data directory; clusters lie in Home/clusters/NAME, machines' disks in Home/machines.
	Home string
	// Cache is belay's cache directory: bundles and the machines' root filesystem. Empty is the user's.
	Cache string
	// InstallTools lets missing Debian packages be installed on this computer when machines are made.
	InstallTools bool
	// SendFiles makes machines of this computer get their files over SSH, as other machines do, though they could see them.
	SendFiles bool
	// LeaveUnreachable lets Down forget hosts that do not answer, with what is on them.
	LeaveUnreachable bool
	// Sink receives progress; nil drops it.
	Sink event.Sink
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (o Options) bundleRoot(s *Spec) string {
	if s.BundleRoot != "" {
		return s.BundleRoot
	}
	if o.Cache != "" {
		return filepath.Join(o.Cache, "bundles")
	}
	return ""
}

// Result says what Up made or found.
type Result struct {
	Schema  string        `json:"schema"`
	Name    string        `json:"name"`
	Version kubeversion.V `json:"version"`
	// Endpoint is HOST:PORT of the control plane.
	Endpoint   string   `json:"endpoint"`
	Kubeconfig string   `json:"kubeconfig"`
	Inventory  string   `json:"inventory"`
	Nodes      []string `json:"nodes"`
	// Changed lists what this run did, in words; it is empty when everything was there already.
	Changed []string `json:"changed"`
	// Phases are the steps of this run with the time each took.
	Phases  []Phase       `json:"phases"`
	Elapsed time.Duration `json:"elapsed"`
}

// Phase is one step of a run.
type Phase struct {
	Name    string        `json:"name"`
	Node    string        `json:"node,omitempty"`
	Skipped bool          `json:"skipped,omitempty"`
	Elapsed time.Duration `json:"elapsed"`
}

// StepError is a step of Up that did not come to its end. Running Up again goes on from there.
type StepError struct {
	Cluster, Step, Node string
	Err                 error
}

func (e *StepError) Error() string {
	s := "cluster " + e.Cluster + ": " + e.Step
	if e.Node != "" {
		s += " on " + e.Node
	}
	return s + ": " + e.Err.Error()
}

// Unwrap gives the reason.
func (e *StepError) Unwrap() error { return e.Err }

// Next is the command that goes on.
func (e *StepError) Next() string {
	var busy *BusyError
	if errors.As(e.Err, &busy) {
		return "belay cluster list"
	}
	return "belay cluster up --name " + e.Cluster
}

// VersionError is an Up that asks for a newer version than the cluster runs.
type VersionError struct {
	Name       string
	Want, Have kubeversion.V
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("cluster %s runs %s and %s was asked for: `up` does not change versions", e.Name, e.Have, e.Want)
}

// Next is the command that does.
func (e *VersionError) Next() string {
	return fmt.Sprintf("belay plan --cluster %s --to %s -o plan.json", e.Name, e.Want.Bare())
}

// node is one machine of the cluster under way.
type node struct {
	name, role, address string
	h                   host.Host
	facts               facts
	quirks              Quirks
	// machine marks one that belay made on this computer.
	machine bool
}

// up is one run of Up.
type up struct {
	o    Options
	sink event.Sink
	now  func() time.Time
	spec *Spec
	dir  clusterDir
	b    *bundle.Bundle
	run  string

	stateMu sync.Mutex
	state   *progress

	hosts *inventory.Hosts
	nodes []*node
	api   *api // set once the control plane answers

	index, total atomic.Int32
	resMu        sync.Mutex
	res          *Result
	anyChange    atomic.Bool
}

// Up brings the cluster up, completes it, or finds that nothing is to be done.
func Up(ctx context.Context, spec *Spec, o Options) (res *Result, err error) {
	u := &up{o: o, sink: event.Or(o.Sink), now: o.Now, spec: spec, dir: dirOf(o.Home, spec.Name), run: "cluster-up/" + spec.Name}
	if u.now == nil {
		u.now = time.Now
	}
	start := u.now()
	u.res = &Result{Schema: "belay.dev/cluster-up/v1", Name: spec.Name, Version: spec.Version(), Kubeconfig: u.dir.kubeconfig(), Inventory: u.dir.inventory(), Changed: []string{}}
	spec.SetDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if u.b, err = bundle.Find(o.bundleRoot(spec), spec.Version(), ""); err != nil {
		return nil, err
	}
	unlock, err := u.dir.lock(spec.Name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := os.MkdirAll(string(u.dir), 0o700); err != nil {
		return nil, err
	}
	if u.state, err = u.dir.begin(spec, start); err != nil {
		return nil, err
	}
	n := spec.count(RoleControlPlane) + spec.count(RoleWorker)
	u.total.Store(int32(1 + 3*n + n + 3)) // machines or connections; three per node; init and joins; network, ready, proof
	u.emit(event.Event{Type: event.RunStarted, Total: int(u.total.Load()),
		Msg: fmt.Sprintf("cluster %s: Kubernetes %s, %d+%d nodes", spec.Name, spec.Version().Bare(), spec.count(RoleControlPlane), spec.count(RoleWorker))})
	warnings := spec.Warnings()
	if spec.Machines == nil && !u.b.Official() {
		warnings = append(warnings, "the bundle of "+spec.Version().Bare()+" was built here and is not the official release: it is fit for tests and rehearsals")
	}
	for _, w := range warnings {
		u.emit(event.Event{Type: event.Warning, Subject: spec.Name, Msg: w})
	}
	defer func() {
		if u.hosts != nil {
			err = errors.Join(err, u.hosts.Close())
		}
		e := event.Event{Type: event.RunFinished, Elapsed: u.now().Sub(start)}
		switch {
		case err != nil:
			e.Err, e.Msg = err.Error(), "cluster "+spec.Name+" is not complete"
		case !u.anyChange.Load():
			e.Msg = "cluster " + spec.Name + " is up; nothing had to be changed"
		default:
			e.Msg = "cluster " + spec.Name + " is up"
		}
		u.emit(e)
	}()
	if err := u.all(ctx); err != nil {
		return nil, err
	}
	u.res.Elapsed = u.now().Sub(start)
	u.res.Endpoint = u.state.Endpoint
	for _, n := range u.nodes {
		u.res.Nodes = append(u.res.Nodes, n.name)
	}
	return u.res, nil
}

// all is the whole story, in order.
func (u *up) all(ctx context.Context) error {
	if err := u.step(ctx, "machines", nil, "machines", u.reach); err != nil {
		return err
	}
	if err := u.each(ctx, u.nodes, u.look); err != nil {
		return err
	}
	if u.state.Initialized {
		upgraded, err := u.compareVersion(ctx)
		if err != nil {
			return &StepError{Cluster: u.spec.Name, Step: "compare versions", Err: err}
		}
		if upgraded {
			return u.step(ctx, "ready", nil, "nodes and addons ready", u.ready)
		}
	}
	if err := u.saveAccess(); err != nil {
		return err
	}
	if err := u.build(ctx); err != nil {
		return err
	}
	return u.finish(ctx)
}

// build prepares all nodes side by side; each goes on as soon as what it waits for is there: the first control plane node
// to init, the other control plane nodes one after another, the workers together.
func (u *up) build(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	prepared := make(map[string]chan struct{}, len(u.nodes))
	for _, n := range u.nodes {
		prepared[n.name] = make(chan struct{})
	}
	wait := func(c <-chan struct{}) error {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, n := range u.nodes {
		g.Go(func() error {
			if err := u.prepare(ctx, n); err != nil {
				return err
			}
			close(prepared[n.name])
			return nil
		})
	}
	first := u.nodes[0]
	controlPlane := make(chan struct{})
	g.Go(func() error {
		if err := wait(prepared[first.name]); err != nil {
			return err
		}
		if err := u.step(ctx, "init", first, "kubeadm init", u.init); err != nil {
			return err
		}
		if err := u.step(ctx, "network", nil, "pod network", u.network); err != nil {
			return err
		}
		for _, n := range u.nodes[1:] {
			if n.role != RoleControlPlane {
				continue
			}
			if err := wait(prepared[n.name]); err != nil {
				return err
			}
			if err := u.step(ctx, "join", n, "kubeadm join as control plane", func(ctx context.Context) (string, error) { return u.join(ctx, n) }); err != nil {
				return err
			}
		}
		close(controlPlane)
		return nil
	})
	for _, n := range u.nodes {
		if n.role == RoleControlPlane {
			continue
		}
		g.Go(func() error {
			if err := errors.Join(wait(prepared[n.name]), wait(controlPlane)); err != nil {
				return err
			}
			return u.step(ctx, "join", n, "kubeadm join", func(ctx context.Context) (string, error) { return u.join(ctx, n) })
		})
	}
	return g.Wait()
}

// each does f for every node side by side and reports every error.
func (u *up) each(ctx context.Context, nodes []*node, f func(context.Context, *node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = f(ctx, n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// step runs one step with its events. f says what it did; "" means that nothing had to be done.
func (u *up) step(ctx context.Context, name string, n *node, msg string, f func(context.Context) (string, error)) error {
	subject, id := u.spec.Name, name
	var nodeName string
	if n != nil {
		subject, id, nodeName = n.name, name+" "+n.name, n.name
	}
	start := u.now()
	e := event.Event{Type: event.StepStarted, Step: id, Subject: subject, Index: int(u.index.Add(1)), Total: int(u.total.Load()), Msg: msg}
	u.emit(e)
	did, err := f(ctx)
	e.Elapsed = u.now().Sub(start)
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		// Not what went wrong, but a consequence of it.
		e.Type, e.Msg = event.Note, msg+": stopped"
		err = &StepError{Cluster: u.spec.Name, Step: msg, Node: nodeName, Err: err}
	case err != nil:
		e.Type, e.Err = event.StepFailed, err.Error()
		err = &StepError{Cluster: u.spec.Name, Step: msg, Node: nodeName, Err: err}
	case did == "":
		e.Type, e.Msg = event.StepSkipped, msg+": nothing to do"
	default:
		e.Type, e.Msg = event.StepDone, msg+": "+did
		u.anyChange.Store(true)
	}
	u.emit(e)
	u.resMu.Lock()
	defer u.resMu.Unlock()
	u.res.Phases = append(u.res.Phases, Phase{Name: name, Node: nodeName, Skipped: err == nil && did == "", Elapsed: e.Elapsed})
	if err == nil && did != "" {
		u.res.Changed = append(u.res.Changed, strings.TrimSpace(nodeName+" "+msg)+": "+did)
	}
	return err
}

func (u *up) emit(e event.Event) {
	if e.Time.IsZero() {
		e.Time = u.now()
	}
	e.Run = u.run
	if e.Subject == "" {
		e.Subject = u.spec.Name
	}
	u.sink.Emit(e)
}

func (u *up) noteNode(n *node, msg string) {
	u.emit(event.Event{Type: event.Note, Subject: n.name, Msg: msg})
}

// under reports what a step waits for.
func (u *up) under(step string, n *node) func(string) {
	subject, id := u.spec.Name, step
	if n != nil {
		subject, id = n.name, step+" "+n.name
	}
	start := u.now()
	return func(reason string) {
		u.emit(event.Event{Type: event.StepProgress, Step: id, Subject: subject, Msg: reason, Elapsed: u.now().Sub(start)})
	}
}

// record changes the state and writes it down.
func (u *up) record(change func(*progress)) error {
	u.stateMu.Lock()
	defer u.stateMu.Unlock()
	change(u.state)
	return u.dir.saveState(u.state)
}

// joined says whether a node was a member once.
func (u *up) joined(name string) bool {
	u.stateMu.Lock()
	defer u.stateMu.Unlock()
	return u.state.joined(name)
}

func (u *up) first() *node { return u.nodes[0] }

// reach makes the machines, or takes those of the spec, and connects to each.
func (u *up) reach(ctx context.Context) (string, error) {
	var did string
	inv := &inventory.Inventory{Schema: inventory.Schema, Cluster: u.spec.Name}
	if u.spec.Machines != nil {
		made, err := u.makeMachines(ctx, inv)
		if err != nil {
			return "", err
		}
		did = made
	} else {
		u.listNodes(inv)
	}
	u.hosts = inv.Open()
	err := u.each(ctx, u.nodes, func(ctx context.Context, n *node) error {
		h, err := u.hosts.Host(ctx, n.name)
		n.h = h
		return err
	})
	return did, err
}

func (u *up) listNodes(inv *inventory.Inventory) {
	ssh := func(s SpecSSH) inventory.SSH {
		return inventory.SSH{User: s.User, Port: s.Port, KeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}
	}
	inv.SSH = ssh(u.spec.SSH)
	for _, n := range u.spec.Nodes {
		inv.Nodes = append(inv.Nodes, inventory.Node{Name: n.Name, Address: n.Address, SSH: ssh(n.SSH)})
		u.nodes = append(u.nodes, &node{name: n.Name, role: n.Role, address: n.Address})
	}
	// Control plane nodes first: the first node is the one that init runs on.
	slices.SortStableFunc(u.nodes, func(a, b *node) int { return cmp.Compare(a.role, b.role) })
	endpoint := u.spec.ControlPlaneEndpoint
	if endpoint == "" {
		endpoint = net.JoinHostPort(u.nodes[0].address, strconv.Itoa(apiServerPort))
	}
	u.stateMu.Lock()
	defer u.stateMu.Unlock()
	u.state.Endpoint = endpoint
}

// look gathers a host's facts, refuses what cannot become a node, and notes what it needs.
func (u *up) look(ctx context.Context, n *node) error {
	return u.step(ctx, "check", n, "check the machine", func(ctx context.Context) (string, error) {
		f, err := gatherFacts(ctx, n.h)
		if err != nil {
			return "", err
		}
		n.facts = f
		if err := f.check(n.name, u.spec.Name, u.state.owner(), u.b.Manifest().Arch); err != nil {
			return "", err
		}
		given := n.quirks
		if n.quirks, err = f.quirks(n.name, n.machine, allowed{u.spec.AllowCgroupV1, u.spec.SharedDisk, u.spec.TakeOver}, given); err != nil {
			return "", err
		}
		if f.Owner == u.state.owner() {
			return "", nil
		}
		if w := n.quirks.words(); w != "" {
			u.noteNode(n, "this machine needs: "+w)
		}
		return "is fit to be a node", nil
	})
}

// quirks joins what all nodes need: kubelet and kube-proxy have one configuration for all of them.
func (u *up) quirks() Quirks {
	var q Quirks
	for _, n := range u.nodes {
		q.AllowCgroupV1 = q.AllowCgroupV1 || n.quirks.AllowCgroupV1
		q.AllowSwap = q.AllowSwap || n.quirks.AllowSwap
		q.LeaveConntrack = q.LeaveConntrack || n.quirks.LeaveConntrack
		q.SharedDisk = q.SharedDisk || n.quirks.SharedDisk
		for _, i := range n.quirks.IgnorePreflight {
			if !slices.Contains(q.IgnorePreflight, i) {
				q.IgnorePreflight = append(q.IgnorePreflight, i)
			}
		}
	}
	return q
}

// saveAccess writes the inventory and the quirks.
func (u *up) saveAccess() error {
	inv := *u.hosts.Inventory()
	inv.IgnorePreflightErrors = u.quirks().IgnorePreflight
	inv.Disposable = u.spec.Machines != nil
	if err := inv.Save(u.dir.inventory()); err != nil {
		return err
	}
	return u.record(func(p *progress) {
		p.Bundle = u.b.Digest()
		if p.Quirks == nil {
			p.Quirks = map[string]Quirks{}
		}
		for _, n := range u.nodes {
			p.Quirks[n.name] = n.quirks
		}
	})
}
