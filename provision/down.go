package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/payload"
	"github.com/belayops/belay/testenv"
)

// Down takes a cluster down and removes its files. Machines of this computer go with their disks; other machines lose what
// Up put there. A cluster that is gone already is a *NotFoundError, unless something of it was left: then that is removed.
func Down(ctx context.Context, name string, o Options) (err error) {
	if !dnsLabel.MatchString(name) || len(name) > maxName {
		return fmt.Errorf("%q is not a cluster's name", name)
	}
	sink := event.Or(o.Sink)
	dir := dirOf(o.Home, name)
	unlock, err := dir.lock(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	start := time.Now()
	run := "cluster-down/" + name
	emit := func(e event.Event) {
		e.Time, e.Run = time.Now(), run
		e.Subject = cmp.Or(e.Subject, name)
		sink.Emit(e)
	}

	// Nothing of a cluster that is gone stays, not even its lock file.
	defer func() {
		if _, statErr := os.Stat(string(dir)); errors.Is(statErr, fs.ErrNotExist) {
			if rmErr := os.Remove(dir.lockFile()); !errors.Is(rmErr, fs.ErrNotExist) {
				err = errors.Join(err, rmErr)
			}
		}
	}()

	found := true
	state, err := dir.loadState()
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(string(dir)); errors.Is(err, fs.ErrNotExist) {
			found = false
		}
	} else if err != nil {
		return err
	}
	spec, err := dir.loadSpec()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.Home, "machines", name)); !found && errors.Is(err, fs.ErrNotExist) {
		return &NotFoundError{Name: name}
	}
	emit(event.Event{Type: event.RunStarted, Msg: "taking cluster " + name + " down"})
	defer func() {
		e := event.Event{Type: event.RunFinished, Elapsed: time.Since(start), Msg: "cluster " + name + " is gone"}
		if err != nil {
			e.Msg, e.Err = "cluster "+name+" is not gone", err.Error()
		}
		emit(e)
	}()

	if err := removeMachines(ctx, name, o, spec, event.Func(emit)); err != nil {
		return err
	}
	if spec != nil && spec.Machines == nil && state != nil {
		if err := cleanHosts(ctx, dir, state, o.LeaveUnreachable, emit); err != nil {
			return err
		}
	}
	// The state goes first: what has none was never begun, should this be cut short.
	if err := os.Remove(dir.state()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(string(dir))
}

// removeMachines removes the network of that name below the home, whatever made it.
func removeMachines(ctx context.Context, name string, o Options, spec *Spec, sink event.Sink) error {
	if _, err := os.Stat(filepath.Join(o.Home, "machines")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	env, err := machineEnv(o, runcFor(o, spec), sink)
	if unsupported := (*testenv.UnsupportedError)(nil); errors.As(err, &unsupported) && spec != nil && spec.Machines == nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := env.Down(ctx, name); !errors.Is(err, testenv.ErrNotFound) {
		return err
	}
	return nil
}

// UnreachableError is a host that Down cannot clean as nobody answers there.
type UnreachableError struct {
	Cluster string
	Err     error
}

func (e *UnreachableError) Error() string { return e.Err.Error() }

// Unwrap gives the reason.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Next is the command for a host that will never answer again.
func (e *UnreachableError) Next() string {
	return "belay cluster down " + e.Cluster + " --leave-unreachable"
}

// cleanHosts undoes on each host what Up did. Hosts that are not this cluster's are left alone.
func cleanHosts(ctx context.Context, dir clusterDir, state *progress, leaveUnreachable bool, emit func(event.Event)) error {
	inv, err := inventory.Load(dir.inventory())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no host was touched yet
	}
	if err != nil {
		return err
	}
	hosts := inv.Open()
	var errs []error
	for i, name := range inv.Names() {
		start := time.Now()
		e := event.Event{Type: event.StepStarted, Step: "clean " + name, Subject: name, Index: i + 1, Total: len(inv.Nodes), Msg: "removing the node"}
		emit(e)
		err := cleanHost(ctx, hosts, name, state)
		e.Type, e.Elapsed, e.Msg = event.StepDone, time.Since(start), "no node any more"
		silent := unreached(err) && ctx.Err() == nil
		switch {
		case silent && leaveUnreachable:
			e.Type, e.Msg = event.Warning, "left as it is: "+err.Error()
		case silent:
			err = &UnreachableError{Cluster: inv.Cluster, Err: err}
			fallthrough
		case err != nil:
			e.Type, e.Err = event.StepFailed, err.Error()
			errs = append(errs, fmt.Errorf("clean %s: %w", name, err))
		}
		emit(e)
	}
	return errors.Join(append(errs, hosts.Close())...)
}

// cleanScript removes what Up put on a host, but for the directories that other programs share. The arguments are files; the last one, the mark of ownership,
// goes only if everything else went: until then another try finds the host again. What is mounted below /var/lib/kubelet is somebody's
// data: it is left, and the directory then cannot go, which is told. One that is a mount point itself is emptied and stays.
const cleanScript = `
systemctl disable --now --quiet kubelet.service containerd.service 2>/dev/null
ip link delete kube-bridge 2>/dev/null
nft delete table ip kube-proxy 2>/dev/null
nft delete table ip6 kube-proxy 2>/dev/null
bad=0
for d in /etc/kubernetes /var/lib/kubelet /var/lib/etcd/member /var/lib/containerd /run/containerd /var/lib/cni /etc/systemd/system/kubelet.service.d; do
  [ -e "$d" ] || continue
  find "$d" -xdev -mindepth 1 -delete
  rmdir "$d" 2>/dev/null || mountpoint -q "$d" || bad=1
done
while [ $# -gt 1 ]; do rm -f -- "$1" || bad=1; shift; done
systemctl daemon-reload || bad=1
[ $bad = 0 ] && rm -f -- "$1"
`

func cleanHost(ctx context.Context, hosts *inventory.Hosts, name string, state *progress) error {
	h, err := hosts.Host(ctx, name)
	if err != nil {
		return err
	}
	f, err := gatherFacts(ctx, h)
	if err != nil {
		return err
	}
	if f.Owner != state.owner() {
		return nil
	}
	if f.Kubernetes && f.Kubeadm {
		// kubeadm knows what it made, and unmounts and stops what runs.
		if _, err := h.Run(ctx, host.Cmd{Argv: kubeadm.ResetArgv(nil)}); err != nil {
			return fmt.Errorf("kubeadm reset: %w", err)
		}
	}
	files := append(madeFiles(), initConfigFile, joinConfigFile, pendingFile, ownerFile)
	_, err = h.Run(ctx, host.Cmd{Argv: append([]string{"sh", "-c", cleanScript, "clean"}, files...)})
	return err
}

// madeFiles are the files that Up puts on a host, apart from those that name belay and the CNI plugins.
func madeFiles() []string {
	return []string{
		kubeadm.KubeadmPath, kubeadm.KubeletPath, kubeadm.KubectlPath, payload.CtrPath,
		"/usr/local/bin/containerd", "/usr/local/bin/containerd-shim-runc-v2", "/usr/local/sbin/runc",
		containerdConfig, containerdUnit, kubeadm.KubeletUnitPath, sysctlFile, modulesFile, cniConfigFile,
	}
}

// unreached says of an error whether the host did not answer at all. A host
// that refuses a login, or has another key than is known, may run a node.
func unreached(err error) bool {
	if !errors.As(err, new(*host.NotStartedError)) || errors.As(err, new(*host.HostKeyError)) {
		return false
	}
	// Not any net.Error: every errno is one, that of a missing key file, too.
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && strings.HasPrefix(op.Net, "tcp") || errors.Is(err, context.DeadlineExceeded)
}

// The states of a listed cluster.
const (
	StatusUp         = "up"
	StatusIncomplete = "incomplete" // `up` did not come to its end
	StatusStopped    = "stopped"    // some of its machines do not run
	StatusNotReady   = "not ready"  // a node is not Ready, or the API does not answer
)

// Summary is one cluster of List.
type Summary struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Nodes   string    `json:"nodes"` // "1+1"
	Status  string    `json:"status"`
	Reason  string    `json:"reason,omitempty"`
	Created time.Time `json:"created"`
	// Kubeconfig is the file's path; empty before there is one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// List describes the clusters of a home, by name. It asks each of them whether it is well, for a few seconds at most.
func List(ctx context.Context, o Options) ([]Summary, error) {
	entries, err := os.ReadDir(filepath.Join(o.Home, "clusters"))
	if errors.Is(err, fs.ErrNotExist) {
		return []Summary{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := []Summary{}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, summarize(ctx, e.Name(), o))
		}
	}
	slices.SortFunc(out, func(a, b Summary) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func summarize(ctx context.Context, name string, o Options) Summary {
	dir := dirOf(o.Home, name)
	s := Summary{Name: name, Status: StatusIncomplete}
	state, err := dir.loadState()
	if err != nil {
		s.Reason = err.Error()
		return s
	}
	s.Created = state.Created
	spec, err := dir.loadSpec()
	if err != nil {
		s.Reason = err.Error()
		return s
	}
	s.Version = spec.Version().Bare()
	s.Nodes = fmt.Sprintf("%d+%d", spec.count(RoleControlPlane), spec.count(RoleWorker))
	if _, err := os.Stat(dir.kubeconfig()); err == nil {
		s.Kubeconfig = dir.kubeconfig()
	}
	if !state.Up {
		s.Reason = "go on with: belay cluster up --name " + name
		return s
	}
	if spec.Machines != nil {
		if down := stoppedMachines(ctx, name, o, spec); len(down) > 0 {
			s.Status, s.Reason = StatusStopped, strings.Join(down, ", ")
			return s
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	version, reason := health(ctx, dir)
	if version != "" {
		s.Version = version
	}
	s.Status = StatusUp
	if reason != "" {
		s.Status, s.Reason = StatusNotReady, reason
	}
	return s
}

func stoppedMachines(ctx context.Context, name string, o Options, spec *Spec) []string {
	env, err := machineEnv(o, runcFor(o, spec), event.Discard)
	if err != nil {
		return nil // not root: only the API can be asked
	}
	network, err := env.Get(ctx, name)
	if err != nil {
		return []string{err.Error()}
	}
	var down []string
	for _, m := range network.Machines {
		if !m.Running {
			down = append(down, m.Name)
		}
	}
	return down
}

// health asks the API for the version and for what is not well.
func health(ctx context.Context, dir clusterDir) (version, reason string) {
	kubeconfig, err := os.ReadFile(dir.kubeconfig())
	if err != nil {
		return "", err.Error()
	}
	a, err := newAPI(kubeconfig)
	if err != nil {
		return "", err.Error()
	}
	if v, err := a.clusterVersion(ctx); err != nil {
		return "", err.Error()
	} else {
		version = v.Bare()
	}
	nodes, err := a.cs.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return version, err.Error()
	}
	var not []string
	for i := range nodes.Items {
		if ok, why := nodeReady(&nodes.Items[i]); !ok {
			not = append(not, nodes.Items[i].Name+": "+why)
		}
	}
	return version, strings.Join(not, "; ")
}

// Kubeconfig gives the path of a cluster's kubeconfig.
func Kubeconfig(home, name string) (string, error) {
	dir := dirOf(home, name)
	if _, err := dir.loadState(); errors.Is(err, fs.ErrNotExist) {
		return "", &NotFoundError{Name: name}
	} else if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir.kubeconfig()); err != nil {
		return "", &StepError{Cluster: name, Step: "kubeconfig", Err: errors.New("there is none yet: the control plane was not brought up")}
	}
	return dir.kubeconfig(), nil
}

// Inventory loads a cluster's inventory.
func Inventory(home, name string) (*inventory.Inventory, error) {
	dir := dirOf(home, name)
	if _, err := dir.loadState(); errors.Is(err, fs.ErrNotExist) {
		return nil, &NotFoundError{Name: name}
	} else if err != nil {
		return nil, err
	}
	return inventory.Load(dir.inventory())
}

// LoadSpec gives the spec that a cluster was brought up with.
func LoadSpec(home, name string) (*Spec, error) {
	s, err := dirOf(home, name).loadSpec()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NotFoundError{Name: name}
	}
	return s, err
}
