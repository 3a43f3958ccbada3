package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
)

// Options say where machines live. The zero value works.
type Options struct {
	// CacheDir keeps the root filesystem; default: os.UserCacheDir()/belay.
	CacheDir string
	// StateDir keeps everything of the networks, also the machines' disks. It must be on a local
	// disk file system; default: /var/lib/belay/machines.
	StateDir string
	// RuncPath is the runc to use; default: the one in PATH. Each network keeps a copy.
	RuncPath string
	// InstallTools lets Prepare install missing Debian packages with apt-get. Without it they are only named.
	InstallTools bool
	// KeepFailed leaves a network whose Up went wrong, for a look at it. Clean removes it.
	KeepFailed bool
	// Sink receives progress; default: none.
	Sink event.Sink
}

// MachineSpec is a machine to make.
type MachineSpec struct {
	// Name is its host name: an RFC 1123 label of at most 40 characters.
	Name string
	// Binds are directories of this computer to show in it. Those of a machine that exists already stay as they are.
	Binds []Bind
}

// Bind shows a directory of this computer in a machine.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

// Machine is one machine of a network, and how to reach it by SSH.
type Machine struct {
	Network        string `json:"network"`
	Name           string `json:"name"`
	Address        string `json:"address"` // IPv4
	Port           int    `json:"port"`    // SSH
	User           string `json:"user"`
	KeyFile        string `json:"keyFile"`
	KnownHostsFile string `json:"knownHostsFile"`
	Running        bool   `json:"running"`

	env *Env
}

// Start starts the machine again with the disk it had, and waits until it is ready.
func (m *Machine) Start(ctx context.Context) error { return m.env.Start(ctx, m.Network, m.Name) }

// Stop shuts the machine down; with kill it takes its power away. Its disk stays.
func (m *Machine) Stop(ctx context.Context, kill bool) error {
	return m.env.Stop(ctx, m.Network, m.Name, kill)
}

// Network is a set of machines that reach each other and this computer, and nothing else.
type Network struct {
	Name    string    `json:"name"`
	Status  Status    `json:"status"`
	Created time.Time `json:"created"`
	Subnet  string    `json:"subnet"`
	// Gateway is the address on the machines' bridge at which the resolver and the load balancer answer.
	Gateway  string     `json:"gateway"`
	Machines []*Machine `json:"machines"`
	// LoadBalancer is the balancer's frontend (host:port), if there is one.
	LoadBalancer string `json:"loadBalancer,omitempty"`
	// Dir is where everything of the network is kept.
	Dir string `json:"dir"`
}

// Env makes and removes machines on this computer. It is safe for concurrent use, also by
// several processes.
type Env struct {
	o     Options
	facts Facts
}

// New checks that this computer can run machines and detects what they will need.
// The error is an *UnsupportedError where it cannot.
func New(o Options) (*Env, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	if o.CacheDir == "" {
		d, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find the cache directory: %w", err)
		}
		o.CacheDir = filepath.Join(d, "belay")
	}
	if o.StateDir == "" {
		o.StateDir = "/var/lib/belay/machines"
	}
	o.Sink = event.Or(o.Sink)
	for _, d := range []*string{&o.CacheDir, &o.StateDir} {
		abs, err := filepath.Abs(*d)
		if err != nil {
			return nil, err
		}
		// The kernel names mounts by their real paths.
		if abs, err = realPath(abs); err != nil {
			return nil, err
		}
		if strings.ContainsAny(abs, ":,\\\n\"") {
			return nil, fmt.Errorf("directory %q: a colon, comma, quote or backslash cannot be used in an overlay mount", abs)
		}
		*d = abs
	}
	f, err := detectFacts(context.Background())
	if err != nil {
		return nil, err
	}
	return &Env{o: o, facts: f}, nil
}

// realPath resolves symbolic links in the part of an absolute path that exists.
func realPath(p string) (string, error) {
	real, err := filepath.EvalSymlinks(p)
	if errors.Is(err, fs.ErrNotExist) && p != "/" {
		parent, err := realPath(filepath.Dir(p))
		return filepath.Join(parent, filepath.Base(p)), err
	}
	return real, err
}

// Facts is what was detected of this computer.
func (e *Env) Facts() Facts { return e.facts }

func (e *Env) note(t event.Type, subject, msg string) {
	e.emit(event.Event{Type: t, Subject: subject, Msg: msg})
}

func (e *Env) emit(ev event.Event) {
	if ev.Time.IsZero() {
		ev.Time = time.Now()
	}
	if ev.Run == "" {
		ev.Run = "machines"
	}
	if ev.Subject == "" {
		ev.Subject = ev.Step
	}
	e.o.Sink.Emit(ev)
}

func (e *Env) dir(network string) string { return filepath.Join(e.o.StateDir, network) }

// toolPackages maps each program of this computer that machines need to its Debian package.
func toolPackages() map[string]string {
	return map[string]string{"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "mmdebstrap": "mmdebstrap", "runc": "runc"}
}

func (e *Env) checkTools(tools ...string) error {
	missing := &MissingToolsError{}
	for _, t := range tools {
		if t == "runc" && e.o.RuncPath != "" {
			if _, err := os.Stat(e.o.RuncPath); err != nil {
				return fmt.Errorf("runc: %w", err)
			}
			continue
		}
		if _, err := exec.LookPath(t); err != nil {
			missing.Tools = append(missing.Tools, t)
			if p := toolPackages()[t]; !slices.Contains(missing.Packages, p) {
				missing.Packages = append(missing.Packages, p)
			}
		}
	}
	if len(missing.Tools) > 0 {
		return missing
	}
	return nil
}

// Prepare makes this computer ready for machines: tools, limits, kernel modules and the cached
// root filesystem. It does nothing when all is there.
func (e *Env) Prepare(ctx context.Context) error {
	tools := []string{"ip", "nsenter", "unshare", "runc"}
	if key, err := machineRecipe().key(); err != nil {
		return err
	} else if _, err := os.Stat(filepath.Join(e.o.CacheDir, "rootfs", key)); err != nil {
		tools = append(tools, "mmdebstrap")
	}
	err := e.checkTools(tools...)
	if missing := (*MissingToolsError)(nil); errors.As(err, &missing) && e.o.InstallTools {
		if err := e.install(ctx, missing.Packages); err != nil {
			return err
		}
		err = e.checkTools(tools...)
	}
	if err != nil {
		return err
	}
	e.raiseLimits()
	e.loadModules(ctx)
	_, err = e.ensureRootfs(ctx)
	return err
}

func (e *Env) install(ctx context.Context, packages []string) error {
	e.note(event.Note, "packages", "installing "+strings.Join(packages, ", "))
	if _, err := run(ctx, command{argv: []string{"apt-get", "update", "-qq"}}); err != nil {
		e.note(event.Warning, "packages", err.Error())
	}
	argv := append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends"}, packages...)
	_, err := run(ctx, command{argv: argv})
	return err
}

// raiseLimits makes room for several systemds and kubelets, which share the computer's inotify limits.
func (e *Env) raiseLimits() {
	for name, want := range map[string]int{"fs/inotify/max_user_instances": 8192, "fs/inotify/max_user_watches": 524288} {
		p := filepath.Join("/proc/sys", name)
		have := readInt(p)
		if have >= want {
			continue
		}
		if err := os.WriteFile(p, fmt.Appendf(nil, "%d\n", want), 0); err != nil {
			e.note(event.Warning, "limits", fmt.Sprintf("cannot raise %s from %d to %d: %v", name, have, want, err))
			continue
		}
		e.note(event.Note, "limits", fmt.Sprintf("raised %s from %d to %d until the next reboot of this computer", strings.ReplaceAll(name, "/", "."), have, want))
	}
}

// loadModules loads what nodes need and the kernel has as modules. Built-in ones and kernels
// without modules need nothing; what is really missing shows when it is used.
func (e *Env) loadModules(ctx context.Context) {
	if e.facts.ModulesDir == "" {
		return
	}
	if _, err := exec.LookPath("modprobe"); err != nil {
		return
	}
	for _, m := range []string{"overlay", "veth", "bridge", "br_netfilter", "nf_conntrack", "nf_tables", "ip_set", "loop"} {
		if _, err := run(ctx, command{argv: []string{"modprobe", "-q", m}}); err != nil {
			e.note(event.Note, "modules", fmt.Sprintf("kernel module %s was not loaded", m))
		}
	}
}

// session is a network that this process has locked.
type session struct {
	e    *Env
	dir  string
	lock *dirLock
	mu   sync.Mutex // guards rec while machines start in parallel
	rec  *record
}

func (s *session) Close() { s.lock.Close() }

func (s *session) save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.save(s.dir)
}

// open locks an existing network.
func (e *Env) open(ctx context.Context, name string) (*session, error) {
	if err := checkName("network", name); err != nil {
		return nil, err
	}
	dir := e.dir(name)
	lock, err := lockDir(ctx, dir, "network "+name, func() {
		e.note(event.Note, name, "another process works on this network; waiting")
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("network %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	rec, err := e.load(name)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &session{e: e, dir: dir, lock: lock, rec: rec}, nil
}

func (e *Env) load(name string) (*record, error) {
	path := filepath.Join(e.dir(name), stateFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("network %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	r, err := decodeRecord(b)
	if err == nil && r.Name != name {
		err = fmt.Errorf("it names network %q", r.Name)
	}
	if err != nil {
		return nil, &StateError{Path: path, Err: err}
	}
	return r, nil
}

// openOrCreate locks a network, which it makes if there is none. What a killed process left
// half-made is removed first.
func (e *Env) openOrCreate(ctx context.Context, name, rootfs string) (s *session, fresh bool, err error) {
	for {
		s, err := e.open(ctx, name)
		if err == nil && s.rec.Status != StatusUp {
			e.note(event.Note, name, "removing what an interrupted run left")
			err = e.remove(ctx, name, s.rec)
			s.Close()
			if err != nil {
				return nil, false, err
			}
			continue
		}
		if err == nil || !errors.Is(err, ErrNotFound) {
			return s, false, err
		}
		s, err = e.create(ctx, name, rootfs)
		if errors.Is(err, fs.ErrExist) {
			continue // another process was faster
		}
		return s, err == nil, err
	}
}

// create makes a network's directory and its switch. Nothing exists before the state file does.
func (e *Env) create(ctx context.Context, name, rootfs string) (_ *session, err error) {
	if err := checkName("network", name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(e.o.StateDir, 0o711); err != nil {
		return nil, err
	}
	if err := checkStateDir(e.o.StateDir); err != nil {
		return nil, err
	}
	staging, err := os.MkdirTemp(e.o.StateDir, stagingPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := tryLockDir(staging)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(staging))
	}
	dir := e.dir(name)
	r := &record{Schema: stateSchema, Name: name, ID: networkID(e.o.StateDir, name), Status: StatusCreating, Rootfs: rootfs, Created: time.Now().UTC()}
	s := &session{e: e, dir: dir, lock: lock, rec: r}
	err = func() error {
		for _, d := range []string{"bin", "machines", "netns", "runc", "services", "ssh"} {
			if err := os.Mkdir(filepath.Join(staging, d), 0o700); err != nil {
				return err
			}
		}
		if err := e.copyRunc(filepath.Join(staging, "bin", "runc")); err != nil {
			return err
		}
		if err := makeKeyPair(filepath.Join(staging, "ssh", "id_ed25519"), "belay-"+name); err != nil {
			return err
		}
		// One process at a time chooses addresses on this computer, whatever its state directory.
		// The lock is on a directory that always exists, so that it leaves nothing.
		choosing, err := lockDir(ctx, "/sys/class/net", "the choice of addresses", nil)
		if err != nil {
			return err
		}
		defer choosing.Close()
		taken, err := e.taken()
		if err != nil {
			return err
		}
		if r.Subnet, err = chooseSubnet(name, taken); err != nil {
			return err
		}
		if r.Sysctls, err = e.settings().before(); err != nil {
			return err
		}
		if err := r.save(staging); err != nil {
			return err
		}
		if err := renameNoReplace(staging, dir); err != nil {
			return err
		}
		staging = ""
		return s.ensureSwitch(ctx)
	}()
	if err != nil {
		if staging != "" {
			err = errors.Join(err, os.RemoveAll(staging))
		} else {
			err = errors.Join(err, e.remove(context.WithoutCancel(ctx), name, r))
		}
		lock.Close()
		return nil, err
	}
	return s, nil
}

// taken are the networks in use here: by this computer, and by networks of ours that are down for now.
func (e *Env) taken() ([]netip.Prefix, error) {
	taken, err := takenPrefixes()
	if err != nil {
		return nil, err
	}
	names, err := e.names()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if r, err := e.load(n); err == nil {
			taken = append(taken, r.Subnet)
		}
	}
	return taken, nil
}

// names lists the directories in StateDir that hold a network.
func (e *Env) names() ([]string, error) {
	entries, err := os.ReadDir(e.o.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range entries {
		if d.IsDir() && validName.MatchString(d.Name()) {
			if _, err := os.Stat(filepath.Join(e.dir(d.Name()), stateFile)); err == nil {
				names = append(names, d.Name())
			}
		}
	}
	return names, nil
}

func (e *Env) copyRunc(to string) error {
	from := e.o.RuncPath
	if from == "" {
		p, err := exec.LookPath("runc")
		if err != nil {
			return e.checkTools("runc")
		}
		from = p
	}
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("runc: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Up brings a network and its machines up: it makes what is missing, starts what is stopped,
// leaves alone what runs, and returns when every machine of specs is ready. Calling it again
// changes nothing.
func (e *Env) Up(ctx context.Context, name string, specs []MachineSpec) ([]*Machine, error) {
	seen := map[string]bool{}
	for _, s := range specs {
		if err := checkName("machine", s.Name); err != nil {
			return nil, err
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("machine %s is listed twice", s.Name)
		}
		seen[s.Name] = true
		for _, b := range s.Binds {
			if !filepath.IsAbs(b.Source) || !filepath.IsAbs(b.Target) {
				return nil, fmt.Errorf("machine %s: bind %s to %s: want absolute paths", s.Name, b.Source, b.Target)
			}
		}
	}
	if err := e.Prepare(ctx); err != nil {
		return nil, err
	}
	rootfs, err := e.ensureRootfs(ctx)
	if err != nil {
		return nil, err
	}
	s, fresh, err := e.openOrCreate(ctx, name, rootfs)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	machines, err := s.up(ctx, specs)
	if err != nil && fresh && !e.o.KeepFailed {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, e.remove(cleanup, name, s.rec))
	}
	return machines, err
}

func (s *session) up(ctx context.Context, specs []MachineSpec) ([]*Machine, error) {
	for _, spec := range specs {
		if s.rec.machine(spec.Name) == nil {
			if err := s.rec.addMachine(spec); err != nil {
				return nil, err
			}
		}
	}
	if err := s.save(); err != nil {
		return nil, err
	}
	if err := s.ensureSwitch(ctx); err != nil {
		return nil, err
	}
	if err := s.ensureServices(ctx); err != nil {
		return nil, err
	}
	names := make([]string, len(specs))
	for i, spec := range specs {
		names[i] = spec.Name
	}
	if err := s.startAll(ctx, names); err != nil {
		return nil, err
	}
	for _, n := range names {
		s.rec.machine(n).Status = StatusUp
	}
	s.rec.Status = StatusUp
	if err := s.save(); err != nil {
		return nil, err
	}
	var out []*Machine
	for _, n := range names {
		m := s.view(s.rec.machine(n))
		m.Running = true
		out = append(out, m)
	}
	return out, nil
}

func (s *session) view(m *machineRecord) *Machine {
	return &Machine{
		Network: s.rec.Name, Name: m.Name, Address: m.Address.String(), Port: 22, User: "root",
		KeyFile: filepath.Join(s.dir, "ssh", "id_ed25519"), KnownHostsFile: filepath.Join(s.dir, "ssh", "known_hosts"), env: s.e,
	}
}

// Get describes one network. The error wraps ErrNotFound if there is none.
func (e *Env) Get(ctx context.Context, name string) (Network, error) {
	if err := checkName("network", name); err != nil {
		return Network{}, err
	}
	r, err := e.load(name)
	if err != nil {
		return Network{}, err
	}
	s := &session{e: e, dir: e.dir(name), rec: r}
	n := Network{Name: name, Status: r.Status, Created: r.Created, Subnet: r.Subnet.String(), Gateway: r.gateway().String(), Dir: s.dir}
	if r.LB != nil {
		n.LoadBalancer = r.LB.Frontend
	}
	running, err := s.running(ctx)
	if err != nil {
		return Network{}, err
	}
	for i := range r.Machines {
		m := s.view(&r.Machines[i])
		m.Running = running[containerID(name, m.Name)]
		n.Machines = append(n.Machines, m)
	}
	return n, nil
}

// List describes every network. Networks whose state cannot be read are in the error, the others in the result.
func (e *Env) List(ctx context.Context) ([]Network, error) {
	names, err := e.names()
	if err != nil {
		return nil, err
	}
	var out []Network
	var errs []error
	for _, name := range names {
		n, err := e.Get(ctx, name)
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, n)
	}
	return out, errors.Join(errs...)
}

// Start starts one stopped machine again with the disk it had and waits until it is ready.
func (e *Env) Start(ctx context.Context, network, machine string) error {
	s, err := e.open(ctx, network)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.rec.machine(machine) == nil {
		return fmt.Errorf("machine %s in network %s: %w", machine, network, ErrNotFound)
	}
	if err := s.ensureSwitch(ctx); err != nil {
		return err
	}
	if err := s.ensureServices(ctx); err != nil {
		return err
	}
	return s.startAll(ctx, []string{machine})
}

// Stop shuts one machine down; with kill, or when it does not end in 30 seconds, it takes its
// power away. Its disk stays.
func (e *Env) Stop(ctx context.Context, network, machine string, kill bool) error {
	s, err := e.open(ctx, network)
	if err != nil {
		return err
	}
	defer s.Close()
	m := s.rec.machine(machine)
	if m == nil {
		return fmt.Errorf("machine %s in network %s: %w", machine, network, ErrNotFound)
	}
	return s.stop(ctx, m, kill)
}

// Down removes a network without a trace. A network that does not exist is no error; one
// whose state file is unreadable is removed too.
func (e *Env) Down(ctx context.Context, name string) error {
	if err := checkName("network", name); err != nil {
		return err
	}
	dir := e.dir(name)
	if _, err := os.Stat(filepath.Join(dir, stateFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockDir(ctx, dir, "network "+name, func() {
		e.note(event.Note, name, "another process works on this network; waiting")
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := e.load(name)
	if bad := (*StateError)(nil); errors.As(err, &bad) {
		e.note(event.Warning, name, bad.Error())
		err = nil
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return e.remove(ctx, name, r)
}

// remove takes a locked network away. r may be nil.
func (e *Env) remove(ctx context.Context, name string, r *record) error {
	dir, id := e.dir(name), networkID(e.o.StateDir, name)
	start := time.Now()
	if r != nil {
		r.Status = StatusRemoving
		if err := r.save(dir); err != nil {
			return fmt.Errorf("remove network %s: %w", name, err)
		}
	}
	s := &session{e: e, dir: dir, rec: r}
	var errs []error
	errs = append(errs, s.deleteContainers(ctx, func(string) bool { return true }))
	errs = append(errs, killCgroup(ctx, e.facts.CgroupVersion, cgroupName(id)))
	errs = append(errs, deleteLink(ctx, "", linkName(id)))
	errs = append(errs, detachLoops(dir))
	errs = append(errs, e.restoreSettings(ctx, r))
	// The state file goes last, or what is left would not be known as ours.
	entries, err := os.ReadDir(dir)
	errs = append(errs, err)
	for _, d := range entries {
		if d.Name() != stateFile {
			errs = append(errs, removeTree(filepath.Join(dir, d.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	if err := removeTree(dir); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	e.emit(event.Event{Type: event.StepDone, Step: "remove " + name, Subject: name, Msg: "network removed", Elapsed: time.Since(start)})
	e.removeEmpty()
	return nil
}

// removeEmpty leaves no empty directories either. Those in use by others stay.
func (e *Env) removeEmpty() {
	if os.Remove(e.o.StateDir) == nil && filepath.Base(filepath.Dir(e.o.StateDir)) == "belay" {
		_ = os.Remove(filepath.Dir(e.o.StateDir)) // not empty, or not there
	}
}

// Clean removes what killed processes left: networks and machines that were never finished,
// removals that did not end, networks whose files are gone. It leaves alone what another
// process has locked and what is not marked as belay's. It returns what it removed.
func (e *Env) Clean(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(e.o.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, d := range entries {
		name := d.Name()
		if strings.HasPrefix(name, stagingPrefix) {
			lock, err := tryLockDir(filepath.Join(e.o.StateDir, name))
			if err != nil {
				continue // being made right now, or gone
			}
			errs = append(errs, removeTree(filepath.Join(e.o.StateDir, name)))
			lock.Close()
			removed = append(removed, name)
			continue
		}
		what, err := e.cleanNetwork(ctx, name)
		removed = append(removed, what...)
		errs = append(errs, err)
	}
	e.removeEmpty()
	return removed, errors.Join(errs...)
}

func (e *Env) cleanNetwork(ctx context.Context, name string) ([]string, error) {
	if !validName.MatchString(name) || !fileExists(filepath.Join(e.dir(name), stateFile)) {
		return nil, nil
	}
	// A killed process's last helper may still hold the lock for a moment.
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := e.open(short, name)
	if busy := (*BusyError)(nil); errors.As(err, &busy) || errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	whole := s.rec.Status != StatusUp || !fileExists(s.rec.Rootfs)
	for _, m := range s.rec.Machines {
		if m.Status == StatusUp && !fileExists(s.machineDir(m.Name)) {
			whole = true
		}
	}
	if whole {
		return []string{name}, e.remove(ctx, name, s.rec)
	}
	var removed []string
	for _, m := range slices.Clone(s.rec.Machines) {
		if m.Status == StatusUp {
			continue
		}
		if err := s.removeMachine(ctx, &m); err != nil {
			return removed, err
		}
		removed = append(removed, name+"/"+m.Name)
	}
	return removed, nil
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// running tells which containers of the network run.
func (s *session) running(ctx context.Context) (map[string]bool, error) {
	running := map[string]bool{}
	if !fileExists(filepath.Join(s.dir, "bin", "runc")) {
		return running, nil
	}
	out, err := s.runc(ctx, "list", "--format", "json")
	if err != nil {
		return nil, err
	}
	var list []struct {
		ID     string `json:"id"`
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read the list of containers: %w", err)
	}
	for _, c := range list {
		running[c.ID] = c.Status == "running"
	}
	return running, nil
}

func (s *session) waitStopped(ctx context.Context, id string, timeout time.Duration) error {
	return condition.Wait(ctx, condition.Condition{Name: id + " to stop", Check: func(ctx context.Context) error {
		running, err := s.running(ctx)
		if err != nil {
			return err
		}
		if running[id] {
			return condition.NotYetf("it still runs")
		}
		return nil
	}}, condition.Options{Timeout: timeout, Interval: 100 * time.Millisecond})
}
