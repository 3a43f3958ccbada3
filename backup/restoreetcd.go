package backup

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"filippo.io/age"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/journal"
)

// EtcdRestoreOptions say where to restore a cluster's etcd.
type EtcdRestoreOptions struct {
	// Hosts are all control plane nodes of a kubeadm cluster with stacked etcd.
	Hosts []host.Host
	// Journal is the file that the restore is recorded in. One that holds an
	// unfinished restore of this backup is resumed; a new one is made otherwise.
	Journal string
	// Identities decrypt.
	Identities []age.Identity
	// Accept may hold NotRestored, OtherCluster, and IDs of what was found on nodes.
	Accept []string
	// TempDir is where data directories are made before they are sent.
	TempDir string
	Tool    string
	Sink    event.Sink
	// Timeout bounds each wait for a component; 0 means five minutes.
	Timeout time.Duration
}

// NotRestored is the waiver for restoring from a backup of which it was never proved that it can be.
const NotRestored = "backup-not-restored"

// NotOpened is the waiver for restoring from a backup whose keys were never compared with those of the live member.
const NotOpened = "backup-not-opened"

// EtcdRestoreReport says what was done.
type EtcdRestoreReport struct {
	Run string `json:"run"`
	// Revision is the first one after the restore.
	Revision int64 `json:"revision"`
	Keys     int   `json:"keys"`
	// Members are the names of the new membership.
	Members []string `json:"members"`
	// Kept names the old data of each node, as NODE:PATH; remove it when it is no longer needed.
	Kept []string `json:"kept,omitempty"`
	// Silent are nodes whose kubelets did not report again while the restore waited for them.
	Silent []string `json:"silent,omitempty"`
	// Notes name what is not as it was on nodes that were lost.
	Notes []string `json:"notes,omitempty"`
}

// target is what was learned of a node before anything was stopped. It is
// journaled, since the manifests that it is read from are moved away.
type target struct {
	Node    string `json:"node"`
	Member  string `json:"member"`
	PeerURL string `json:"peerURL"`
	// DataDir is etcd's data directory on the node.
	DataDir string `json:"dataDir"`
	// APIPort is the apiserver's.
	APIPort int `json:"apiPort"`
	// EtcdImage is what the manifest runs.
	EtcdImage string `json:"etcdImage,omitempty"`
	// EtcdPrefix is what the apiserver puts before its keys; empty means /registry.
	EtcdPrefix string `json:"etcdPrefix,omitempty"`
	// Address is the machine's, where it becomes a node only now.
	Address string `json:"address,omitempty"`
}

// etcdRestore is a RestoreEtcd under way.
type etcdRestore struct {
	o       EtcdRestoreOptions
	sink    event.Sink
	src     *backupSource
	j       *journal.Journal
	run     string
	done    map[string]bool
	targets []target
	hosts   map[string]host.Host
	r       *EtcdRestoreReport
	etcd    *EtcdAccess
	// encrypted are the keys that the snapshot's values are encrypted with; see Contents.
	encrypted map[string]int

	// What differs between the kinds of restore: the prefix of a run's name, what
	// is read of the backup at each start, what is looked at before a run begins,
	// and the steps of it.
	prefix string
	learn  func() error
	lookAt func(context.Context) ([]target, error)
	plan   func() []restoreStep
}

// restoreStep is one journaled step. name is its identity in the journal, msg what people read.
type restoreStep struct {
	name, msg string
	run       func(context.Context) error
}

func newEtcdRestore(o EtcdRestoreOptions) etcdRestore {
	x := etcdRestore{o: o, sink: event.Or(o.Sink), done: map[string]bool{}, hosts: map[string]host.Host{}, r: &EtcdRestoreReport{}}
	for _, h := range o.Hosts {
		x.hosts[h.Name()] = h
	}
	return x
}

// controlPlaneComponents are the static pods that are stopped and started, in
// the order in which they are stopped: nobody writes to etcd any more when it is stopped.
var controlPlaneComponents = []string{"kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"}

// UnfinishedError is a restore of etcd that stopped before its end. The
// cluster's control plane may be down until it is resumed.
type UnfinishedError struct {
	Journal string
	Err     error
}

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("the restore of etcd is unfinished, and the control plane may be down: %v; run the same command again to go on, or give a restore in place up with --abort (journal %s)", e.Err, e.Journal)
}

// Unwrap gives the reason.
func (e *UnfinishedError) Unwrap() error { return e.Err }

// RestoreEtcd sets the etcd of a kubeadm cluster back to a backup, on all
// control plane nodes at once: it stops the control plane, makes one new
// membership of all members from the snapshot with the revision moved forward
// (so that every watcher starts anew), and starts all again. The old data stays
// on the nodes, under the names in the report.
//
// Each step is journaled and can be repeated: after a kill the same call goes on.
func RestoreEtcd(ctx context.Context, dir string, o EtcdRestoreOptions) (*EtcdRestoreReport, error) {
	if len(o.Hosts) == 0 {
		return nil, errors.New("restore etcd: access to the control plane nodes is needed; give an inventory")
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	x := newEtcdRestore(o)
	x.prefix, x.learn, x.lookAt, x.plan = "restore-", func() error { return nil }, x.look, x.steps
	return x.restore(ctx, dir)
}

// restore carries a restore out, or goes on with one that was begun.
func (x *etcdRestore) restore(ctx context.Context, dir string) (*EtcdRestoreReport, error) {
	if err := x.open(ctx, dir); err != nil {
		return nil, err
	}
	defer x.j.Close()
	start := time.Now()
	e := event.Event{Time: start, Type: event.RunStarted, Run: x.run, Msg: fmt.Sprintf("restore of cluster %s to its state at %s (run %s)", x.src.m.Cluster, x.src.m.Started.Format(time.RFC3339), x.run)}
	x.sink.Emit(e)
	err := x.carryOut(ctx)
	e.Type, e.Time, e.Elapsed = event.RunFinished, time.Now(), time.Since(start)
	if err != nil {
		err = &UnfinishedError{Journal: x.o.Journal, Err: err}
		e.Msg = "the restore stopped before its end, and can be gone on with"
	} else {
		e.Msg = "cluster " + x.src.m.Cluster + " is restored"
	}
	x.sink.Emit(e)
	return x.r, err
}

// open checks the backup and the nodes, and opens or begins the journal.
func (x *etcdRestore) open(ctx context.Context, dir string) error {
	r, err := Verify(ctx, dir, VerifyOptions{Level: Opened, Identities: x.o.Identities, TempDir: x.o.TempDir, Sink: x.sink})
	if err != nil {
		return err
	}
	if len(r.Problems) > 0 {
		return &DamagedError{filepath.Join(dir, r.Problems[0].File), r.Problems[0].Problem}
	}
	if e := entry(dir); !r.OK() && e.Level < Restored && !slices.Contains(x.o.Accept, NotOpened) {
		why := "level opened is not reached"
		if len(r.Limits) > 0 {
			why = r.Limits[0].Reason
		}
		return blockedRestore(Blocker{ID: NotOpened, Message: why, Remedy: "prove that it can be restored: belay backup verify " + dir + " --level restored"})
	}
	x.encrypted = r.Encrypted
	if x.src, err = newBackupSource(dir, x.o.Identities); err != nil {
		return err
	}
	if e := entry(dir); e.Level < Restored && !slices.Contains(x.o.Accept, NotRestored) {
		return blockedRestore(Blocker{ID: NotRestored, Message: "nobody ever restored this backup", Remedy: "prove that it can be: belay backup verify " + dir + " --level restored"})
	}
	if err := x.learn(); err != nil {
		return err
	}
	header := journal.Header{Plan: x.src.m.Digest, Run: x.prefix + time.Now().UTC().Format("20060102T150405Z"), Lineage: x.src.m.Lineage, Tool: x.o.Tool}
	j, records, err := journal.Open(x.o.Journal)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return x.begin(ctx, header)
	case err != nil:
		return err
	}
	finished, looked := false, false
	for _, rec := range records {
		if rec.Kind == journal.Outcome {
			x.done[rec.Step] = true
			finished = finished || rec.Step == "verify"
		}
		if rec.Step == "look" && rec.Kind == journal.Outcome {
			if err := json.Unmarshal(rec.Data, &x.targets); err != nil {
				return errors.Join(fmt.Errorf("journal %s: %w", x.o.Journal, err), j.Close())
			}
			looked = true
		}
	}
	if beingGivenUp(records) {
		return errors.Join(fmt.Errorf("restore %s is being given up: finish that with the same command and --abort (journal %s)", j.Header().Run, x.o.Journal), j.Close())
	}
	if !looked {
		// It ended before anything was done; a step that finds no node to work on would pass.
		if err := errors.Join(j.Close(), os.Remove(x.o.Journal)); err != nil {
			return err
		}
		x.done, x.targets = map[string]bool{}, nil
		return x.begin(ctx, header)
	}
	if h := j.Header(); h.Plan != header.Plan && !finished {
		return errors.Join(fmt.Errorf("journal %s holds an unfinished restore of another backup (%s); finish that one first, with the same command and that backup, or give it up with --abort", x.o.Journal, h.Run), j.Close())
	}
	if finished {
		if err := j.Close(); err != nil {
			return err
		}
		// The finished one is kept beside the new one.
		if err := os.Rename(x.o.Journal, x.o.Journal+"."+j.Header().Run); err != nil {
			return err
		}
		x.done, x.targets = map[string]bool{}, nil
		return x.begin(ctx, header)
	}
	x.j, x.run = j, j.Header().Run
	for _, t := range x.targets {
		if x.hosts[t.Node] == nil {
			return errors.Join(fmt.Errorf("the restore was begun on node %s, which was not given now", t.Node), j.Close())
		}
	}
	x.sink.Emit(event.Event{Time: time.Now(), Type: event.Note, Run: x.run, Msg: "going on with the restore that was begun"})
	return nil
}

func (x *etcdRestore) begin(ctx context.Context, h journal.Header) error {
	targets, err := x.lookAt(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(x.o.Journal), 0o700); err != nil {
		return err
	}
	if x.j, err = journal.Create(x.o.Journal, h); err != nil {
		return err
	}
	x.run, x.targets = h.Run, targets
	data, err := json.Marshal(targets)
	if err != nil {
		return err
	}
	x.done["look"] = true
	return x.j.Append(journal.Record{Step: "look", Kind: journal.Outcome, Data: data})
}

// readTarget reads etcd's and the apiserver's static pod manifests.
func readTarget(ctx context.Context, h host.Host) (target, error) {
	t := target{Node: h.Name(), APIPort: 6443}
	data, err := h.ReadFile(ctx, manifestDir+"/etcd.yaml")
	if errors.Is(err, fs.ErrNotExist) {
		if parked := parkedElsewhere(ctx, h); parked != "" {
			return t, fmt.Errorf("%s: a restore that was begun from another place, or with another BELAY_HOME, has put its manifests into %s: go on with it there or give it up there with --abort; if its journal is lost, see \"Restoring\" in docs/backup.md", h.Name(), parked)
		}
		return t, fmt.Errorf("%s: %s/etcd.yaml is not there: only etcd that kubeadm runs as a static pod can be restored this way", h.Name(), manifestDir)
	}
	if err != nil {
		return t, err
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal(data, &pod); err != nil {
		return t, fmt.Errorf("%s: etcd.yaml: %w", h.Name(), err)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name != "etcd" {
			continue
		}
		t.EtcdImage = c.Image
		for _, arg := range slices.Concat(c.Command, c.Args) {
			name, value, _ := strings.Cut(arg, "=")
			switch name {
			case "--name":
				t.Member = value
			case "--initial-advertise-peer-urls":
				t.PeerURL = value
			case "--data-dir":
				t.DataDir, _ = hostPath(&pod, c, path.Clean(value))
			case "--wal-dir":
				return t, fmt.Errorf("%s: etcd keeps its log apart (--wal-dir=%s), which this restore does not do", h.Name(), value)
			}
		}
	}
	if t.Member == "" || t.PeerURL == "" || t.DataDir == "" || strings.Contains(t.PeerURL, ",") {
		return t, fmt.Errorf("%s: etcd.yaml: want one each of --name, --initial-advertise-peer-urls and --data-dir on a hostPath, got %q, %q, %q", h.Name(), t.Member, t.PeerURL, t.DataDir)
	}
	api, err := h.ReadFile(ctx, manifestDir+"/kube-apiserver.yaml")
	if err != nil {
		return t, fmt.Errorf("%s: %w", h.Name(), err)
	}
	if t.EtcdPrefix, _, err = apiserverFlag(api, "etcd-prefix"); err != nil {
		return t, fmt.Errorf("%s: kube-apiserver.yaml: %w", h.Name(), err)
	}
	if port, _, err := apiserverFlag(api, "secure-port"); err == nil && port != "" {
		if t.APIPort, err = strconv.Atoi(port); err != nil {
			return t, fmt.Errorf("%s: kube-apiserver.yaml: --secure-port=%s", h.Name(), port)
		}
	}
	return t, nil
}

// parkedElsewhere gives the directory in which an unfinished restore keeps etcd's manifest, "" for none.
func parkedElsewhere(ctx context.Context, h host.Host) string {
	out, err := h.Run(ctx, host.Cmd{Argv: []string{"find", "/etc/kubernetes", "-maxdepth", "2", "-path", "*/belay-restore-*/etcd.yaml"}})
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out.Stdout), "\n")
	return strings.TrimSuffix(first, "/etcd.yaml")
}

// versionFits refuses data of a newer etcd minor than the one that would read it.
func versionFits(e *EtcdPart, t *target) error {
	tag := t.EtcdImage[strings.LastIndex(t.EtcdImage, ":")+1:]
	var have, want [2]int
	if _, err := fmt.Sscanf(tag, "%d.%d", &have[0], &have[1]); err != nil {
		return nil // a digest, or a tag of somebody's own: etcd itself will tell
	}
	if _, err := fmt.Sscanf(e.Version, "%d.%d", &want[0], &want[1]); err != nil {
		return nil
	}
	if slices.Compare(have[:], want[:]) < 0 {
		return fmt.Errorf("%s runs etcd %s, and the snapshot is of etcd %s, which an older one does not read", t.Node, tag, e.Version)
	}
	return nil
}

// checkRoom asks the node's file system whether another data directory fits in.
func (x *etcdRestore) checkRoom(ctx context.Context, h host.Host, dataDir string) error {
	out, err := h.Run(ctx, host.Cmd{Argv: []string{"stat", "-f", "-c", "%a %S", dataDir}})
	if err != nil {
		return err
	}
	var blocks, size int64
	if _, err := fmt.Sscan(string(out.Stdout), &blocks, &size); err != nil {
		return fmt.Errorf("%s: free space of %s: %q", h.Name(), dataDir, out.Stdout)
	}
	// etcd preallocates its log in files of 64 MiB.
	if need := x.src.m.Etcd.Size + 128<<20; blocks*size < need {
		return fmt.Errorf("%s: %w", h.Name(), &NoSpaceError{Dir: dataDir, Need: need, Free: blocks * size})
	}
	return nil
}

// carryOut does all steps that the journal does not show as done.
func (x *etcdRestore) carryOut(ctx context.Context) error {
	x.r.Run = x.run
	steps := x.plan()
	for i, s := range steps {
		if x.done[s.name] && s.name != "verify" {
			continue
		}
		if err := x.step(ctx, s, i+1, len(steps)); err != nil {
			return err
		}
	}
	for _, t := range x.targets {
		x.r.Members = append(x.r.Members, t.Member)
		if t.Address == "" { // a new machine had no data before
			x.r.Kept = append(x.r.Kept, t.Node+":"+x.keptDir(t))
		}
	}
	return nil
}

// steps are those of a restore in place.
func (x *etcdRestore) steps() []restoreStep {
	var steps []restoreStep
	// Component by component over all nodes: no apiserver writes while another node's etcd is already stopped.
	for _, c := range controlPlaneComponents {
		steps = append(steps, restoreStep{"stop/" + c, "stop " + c + " on all control plane nodes", func(ctx context.Context) error {
			return x.onEach(ctx, func(ctx context.Context, t target, h host.Host) error { return x.stop(ctx, t, h, c) })
		}})
	}
	for _, t := range x.targets {
		steps = append(steps, restoreStep{"data/" + t.Node, "make etcd's data of the snapshot and send it to " + t.Node, func(ctx context.Context) error { return x.data(ctx, t, x.hosts[t.Node]) }})
	}
	start := func(c string) restoreStep {
		return restoreStep{"start/" + c, "let the kubelets start " + c, func(ctx context.Context) error {
			return x.onEach(ctx, func(ctx context.Context, _ target, h host.Host) error { return x.start(ctx, h, c) })
		}}
	}
	return append(steps,
		restoreStep{"swap", "move the old data aside and the restored data in", func(ctx context.Context) error { return x.onEach(ctx, x.swap) }},
		start("etcd"),
		restoreStep{"quorum", "wait until every etcd member serves exactly the backup's keys", x.quorum},
		start("kube-apiserver"),
		restoreStep{"apiserver-ready", "wait until every kube-apiserver is ready", func(ctx context.Context) error { return x.onEach(ctx, x.apiReady) }},
		start("kube-controller-manager"),
		start("kube-scheduler"),
		restoreStep{"verify", "prove that the controllers lead and write again", x.verify},
	)
}

// reach finds out how to talk to the restored members.
func (x *etcdRestore) reach(ctx context.Context) (err error) {
	if x.etcd == nil {
		x.etcd, err = DiscoverEtcd(ctx, x.o.Hosts, "")
	}
	return err
}

func (x *etcdRestore) step(ctx context.Context, s restoreStep, i, n int) error {
	start := time.Now()
	e := event.Event{Time: start, Type: event.StepStarted, Run: x.run, Step: s.name, Msg: s.msg, Index: i, Total: n}
	x.sink.Emit(e)
	if err := x.j.Append(journal.Record{Step: s.name, Kind: journal.Intent}); err != nil {
		return err
	}
	err := s.run(ctx)
	e.Time, e.Elapsed = time.Now(), time.Since(start)
	if err != nil {
		e.Type, e.Err = event.StepFailed, err.Error()
		x.sink.Emit(e)
		return errors.Join(fmt.Errorf("%s: %w", s.msg, err), x.j.Append(journal.Record{Step: s.name, Kind: journal.Failed, Error: err.Error()}))
	}
	e.Type = event.StepDone
	x.sink.Emit(e)
	return x.j.Append(journal.Record{Step: s.name, Kind: journal.Outcome})
}

// onEach works on all nodes side by side.
func (x *etcdRestore) onEach(ctx context.Context, f func(context.Context, target, host.Host) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range x.targets {
		g.Go(func() error {
			if err := f(ctx, t, x.hosts[t.Node]); err != nil {
				return fmt.Errorf("%s: %w", t.Node, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// parked is where manifests lie while their components are stopped: on the
// same file system, and where no kubelet looks.
func (x *etcdRestore) parked() string { return "/etc/kubernetes/belay-" + x.run }

// exists says whether a path is there. test answers 1 for no; every other failure is one.
func exists(ctx context.Context, h host.Host, p string) (bool, error) {
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"test", "-e", p}})
	if exit := (*host.ExitError)(nil); errors.As(err, &exit) && exit.Code == 1 {
		return false, nil
	}
	return err == nil, err
}

func run(ctx context.Context, h host.Host, argv ...string) error {
	_, err := h.Run(ctx, host.Cmd{Argv: argv})
	return err
}

// stop moves a component's manifest away and waits until its process has ended.
func (x *etcdRestore) stop(ctx context.Context, t target, h host.Host, component string) error {
	manifest := manifestDir + "/" + component + ".yaml"
	there, err := exists(ctx, h, manifest)
	if err != nil {
		return err
	}
	if there {
		if err := run(ctx, h, "mkdir", "-p", "-m", "0700", x.parked()); err != nil {
			return err
		}
		if err := run(ctx, h, "mv", "-f", manifest, x.parked()+"/"+component+".yaml"); err != nil {
			return err
		}
	} else if parked, err := exists(ctx, h, x.parked()+"/"+component+".yaml"); err != nil || !parked {
		return errors.Join(err, fmt.Errorf("%s is neither in %s nor in %s", component+".yaml", manifestDir, x.parked()))
	}
	return condition.Wait(ctx, condition.Condition{Name: component + " on " + h.Name() + " to end", Check: func(ctx context.Context) error {
		running, err := processes(ctx, h, component, t.Member)
		if err == nil && running != "" {
			err = condition.NotYetf("it runs: process %s", running)
		}
		return err
	}}, condition.Options{Timeout: x.o.Timeout, Interval: time.Second})
}

// listProcesses prints a line for each process of a name ($1) that runs in a
// container: its ID and its arguments. What shares the mounts of process 1 is
// no pod's.
const listProcesses = `own=$(readlink /proc/1/ns/mnt)
for p in $(pgrep -x "$1"); do
  ns=$(readlink /proc/$p/ns/mnt) || continue
  [ -n "$own" ] && [ "$ns" = "$own" ] && continue
  echo "$p $(tr '\0' ' ' < /proc/$p/cmdline)"
done
exit 0`

// processes gives the first process of a component on a node, "" when none
// runs. Others that only have its name do not count: an etcd outside of
// containers, or one of another member.
func processes(ctx context.Context, h host.Host, component, member string) (string, error) {
	// The kernel keeps 15 bytes of a program's name.
	out, err := h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", listProcesses, "sh", component[:min(len(component), 15)]}})
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out.Stdout)) {
		line = strings.TrimSpace(line)
		args := strings.Fields(line)
		// A process that just ends has no arguments any more: it counts.
		if component == "etcd" && len(args) > 1 && !slices.Contains(args, "--name="+member) {
			continue
		}
		if line != "" {
			return line[:min(len(line), 200)], nil
		}
	}
	return "", nil
}

// start moves a component's manifest back.
func (x *etcdRestore) start(ctx context.Context, h host.Host, component string) error {
	manifest, parked := manifestDir+"/"+component+".yaml", x.parked()+"/"+component+".yaml"
	there, err := exists(ctx, h, parked)
	if err != nil {
		return err
	}
	if !there {
		back, err := exists(ctx, h, manifest)
		if err == nil && !back {
			err = fmt.Errorf("%s.yaml is neither in %s nor in %s", component, manifestDir, x.parked())
		}
		return err
	}
	return run(ctx, h, "mv", "-f", parked, manifest)
}

// stagedDir is where new data lies before it takes the old one's place, keptDir where the old data goes.
// Both are within the data directory: that may be a file system of its own, and a rename must not leave it.
func (x *etcdRestore) stagedDir(t target) string { return t.DataDir + "/belay-new-" + x.run }
func (x *etcdRestore) keptDir(t target) string   { return t.DataDir + "/before-" + x.run }

// completeMark is written into stagedDir when all of it is there and on disk.
const completeMark = "complete"

// data makes a member's new data directory here and sends it.
func (x *etcdRestore) data(ctx context.Context, t target, h host.Host) (err error) {
	staged := x.stagedDir(t)
	complete, err := exists(ctx, h, staged+"/"+completeMark)
	if err != nil || complete {
		return err
	}
	v := &verification{o: VerifyOptions{Identities: x.o.Identities, TempDir: x.o.TempDir}, sink: event.Discard, dir: x.src.dir, m: x.src.m, r: &Report{}}
	defer func() { err = errors.Join(err, v.cleanUp()) }()
	tmp, err := v.temp()
	if err != nil {
		return err
	}
	snapshot, err := v.snapshotFile(ctx)
	if err != nil {
		return err
	}
	if snapshot == "" {
		return &DamagedError{x.src.m.Etcd.File, v.r.Problems[0].Problem}
	}
	if err := checkFree(tmp, x.src.m.Etcd.Size+64<<20, "--temp-dir"); err != nil {
		return err
	}
	var initial []string
	for _, o := range x.targets {
		initial = append(initial, o.Member+"="+o.PeerURL)
	}
	local := filepath.Join(tmp, "data")
	if err := restoreMember(snapshot, local, t.Member, t.PeerURL, strings.Join(initial, ","), x.run); err != nil {
		return err
	}
	if err := run(ctx, h, "rm", "-rf", staged); err != nil {
		return err
	}
	if err := run(ctx, h, "mkdir", "-m", "0700", staged); err != nil {
		return err
	}
	if err := sendTree(ctx, h, local, staged); err != nil {
		return err
	}
	if err := run(ctx, h, "sync"); err != nil {
		return err
	}
	return h.WriteFile(ctx, staged+"/"+completeMark, []byte(x.run+"\n"), 0o600)
}

// sendTree sends a directory's content as one compressed stream: of etcd's
// log, 64 MB are zeros.
func sendTree(ctx context.Context, h host.Host, local, remote string) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(writeTree(pw, local)) }()
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"tar", "-x", "-z", "-f", "-", "-C", remote}, Stdin: pr})
	return errors.Join(err, pr.Close())
}

func writeTree(w io.Writer, dir string) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		head := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o600, ModTime: info.ModTime(), Typeflag: tar.TypeReg, Size: info.Size()}
		if e.IsDir() {
			head.Typeflag, head.Size, head.Mode, head.Name = tar.TypeDir, 0, 0o700, head.Name+"/"
		}
		if err := t.WriteHeader(head); err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
	return errors.Join(err, t.Close(), z.Close())
}

// swap moves the old data aside and the new data in. It looks at what is
// there, so that it goes on wherever it was cut off.
func (x *etcdRestore) swap(ctx context.Context, t target, h host.Host) error {
	live, staged, kept := t.DataDir+"/member", x.stagedDir(t), x.keptDir(t)
	waiting, err := exists(ctx, h, staged+"/member")
	if err != nil {
		return err
	}
	if !waiting {
		// It was moved in before.
		there, err := exists(ctx, h, live)
		if err == nil && !there {
			err = fmt.Errorf("neither %s nor %s/member is there", live, staged)
		}
		if err != nil {
			return err
		}
		return run(ctx, h, "rm", "-rf", staged)
	}
	there, err := exists(ctx, h, live)
	if err != nil {
		return err
	}
	if there {
		if err := run(ctx, h, "mkdir", "-p", "-m", "0700", kept); err != nil {
			return err
		}
		// -T: into a directory of that name it must not go.
		if err := run(ctx, h, "mv", "-T", live, kept+"/member"); err != nil {
			return err
		}
	}
	if err := run(ctx, h, "mv", "-T", staged+"/member", live); err != nil {
		return err
	}
	if err := run(ctx, h, "rm", "-rf", staged); err != nil {
		return err
	}
	return run(ctx, h, "sync")
}

// quorum waits until every member serves, with exactly the new membership and
// exactly the backup's keys at the restored revision.
func (x *etcdRestore) quorum(ctx context.Context) error {
	if err := x.reach(ctx); err != nil {
		return err
	}
	e := x.src.m.Etcd
	rev := e.Revision + RevisionBump
	for _, ep := range x.etcd.Endpoints {
		cli, err := connect(ep, x.etcd.TLS)
		if err != nil {
			return err
		}
		err = condition.Wait(ctx, condition.Condition{Name: "etcd on " + ep.Node + " to serve the restored data", Check: func(ctx context.Context) error {
			if err := tryDial(ctx, ep); err != nil {
				return err
			}
			if _, err := cli.Get(ctx, "belay-health", clientv3.WithCountOnly()); err != nil {
				return err
			}
			list, err := cli.MemberList(ctx)
			if err != nil {
				return err
			}
			var names []string
			for _, m := range list.Members {
				names = append(names, m.GetName())
			}
			slices.Sort(names)
			var want []string
			for _, t := range x.targets {
				want = append(want, t.Member)
			}
			slices.Sort(want)
			if !slices.Equal(names, want) {
				return condition.NotYetf("its members are %v, not %v", names, want)
			}
			r, err := cli.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly(), clientv3.WithRev(rev), clientv3.WithSerializable())
			if errors.Is(err, rpctypes.ErrCompacted) {
				// Only a member that went on from that revision can have left it behind; its keys can be counted no more.
				x.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Run: x.run, Subject: ep.Node, Msg: fmt.Sprintf("etcd compacted revision %d already, so that its keys could not be counted", rev)})
				return nil
			}
			if err != nil {
				return err
			}
			if int(r.Count) != e.TotalKeys {
				return condition.NotYetf("it holds %d keys at revision %d, the backup %d", r.Count, rev, e.TotalKeys)
			}
			return nil
		}}, condition.Options{Timeout: x.o.Timeout, Interval: time.Second, Attempt: 5 * time.Second})
		if err = errors.Join(err, cli.Close()); err != nil {
			return err
		}
	}
	return nil
}

// apiReady waits until the node's own apiserver says that it is ready.
func (x *etcdRestore) apiReady(ctx context.Context, t target, h host.Host) error {
	api, err := nodeAPI(ctx, t, h)
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	return condition.Wait(ctx, condition.Condition{Name: "kube-apiserver on " + t.Node + " to be ready", Check: func(ctx context.Context) error {
		_, err := api.get(ctx, "/readyz")
		return err
	}}, condition.Options{Timeout: x.o.Timeout, Interval: time.Second, Attempt: 10 * time.Second})
}

// nodeAPI gives access to the node's own apiserver, past any balancer, as kubeadm's administrator.
func nodeAPI(ctx context.Context, t target, h host.Host) (*apiClient, error) {
	const conf = "/etc/kubernetes/admin.conf"
	data, err := h.ReadFile(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("%s: read %s: %w", t.Node, conf, err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", t.Node, conf, err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(t.APIPort))
	cfg.Host, cfg.ServerName = "https://"+addr, "kubernetes"
	cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) { return h.Dial(ctx, network, addr) }
	return newAPIClient(cfg)
}

// verify proves that the restored cluster works: every apiserver shows the
// backup's identity, and the controllers write again.
func (x *etcdRestore) verify(ctx context.Context) error {
	if err := x.reach(ctx); err != nil {
		return err
	}
	x.r.Revision, x.r.Keys = x.src.m.Etcd.Revision+RevisionBump, x.src.m.Etcd.TotalKeys
	ep := x.etcd.Endpoints[0]
	cli, err := connect(ep, x.etcd.TLS)
	if err != nil {
		return err
	}
	defer cli.Close()
	// The leases of the leaders are renewed every few seconds, if watches and writes work.
	for _, lease := range []string{"kube-controller-manager", "kube-scheduler"} {
		key := etcdRoot(x.targets[0].EtcdPrefix) + "/leases/kube-system/" + lease
		err := condition.Wait(ctx, condition.Condition{Name: lease + " to lead again", Check: func(ctx context.Context) error {
			r, err := cli.Get(ctx, key)
			if err != nil {
				return err
			}
			if len(r.Kvs) == 0 || r.Kvs[0].ModRevision <= x.r.Revision {
				return condition.NotYetf("its lease was not renewed since the restore")
			}
			return nil
		}}, condition.Options{Timeout: x.o.Timeout, Interval: time.Second, Attempt: 10 * time.Second})
		if err != nil {
			return err
		}
	}
	for _, t := range x.targets {
		if err := x.checkLineage(ctx, t); err != nil {
			return err
		}
		if err := run(ctx, x.hosts[t.Node], "rm", "-rf", x.parked()); err != nil {
			return err
		}
	}
	return nil
}

// checkLineage asks the node's apiserver for the identity of what it serves.
func (x *etcdRestore) checkLineage(ctx context.Context, t target) error {
	api, err := nodeAPI(ctx, t, x.hosts[t.Node])
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, x.o.Timeout)
	defer cancel()
	raw, err := api.get(ctx, "/api/v1/namespaces/kube-system")
	if err != nil {
		return fmt.Errorf("%s: read namespace kube-system: %w", t.Node, err)
	}
	id, err := identify(raw)
	if err != nil {
		return fmt.Errorf("%s: namespace kube-system: %w", t.Node, err)
	}
	if id.UID != x.src.m.Lineage {
		return &LineageError{What: "what the apiserver on " + t.Node + " serves", Got: id.UID, Want: x.src.m.Lineage}
	}
	return nil
}

// EtcdHosts picks, among hosts, those that run a member of kubeadm's stacked
// etcd, or ran one that is stopped now. It asks the machines, since the API may
// be down. One that cannot be asked is an error when the backup knows it as a
// control plane node, and one of silent when it does not: a worker that is down
// is no part of this.
func EtcdHosts(ctx context.Context, m *Manifest, hosts []host.Host) (etcd []host.Host, silent []error, err error) {
	is := make([]bool, len(hosts))
	errs := make([]error, len(hosts))
	var g sync.WaitGroup
	for i, h := range hosts {
		g.Go(func() {
			is[i], errs[i] = exists(ctx, h, etcdPKI+"server.crt")
		})
	}
	g.Wait()
	for i, h := range hosts {
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case errs[i] != nil && m.knowsControlPlane(h.Name()):
			return nil, nil, fmt.Errorf("%w; it was a control plane node when the backup was taken, and a restore takes all of them: bring it up, or take it out of the inventory if it is gone for good", errs[i])
		case errs[i] != nil:
			silent = append(silent, errs[i])
		case is[i]:
			etcd = append(etcd, h)
		}
	}
	return etcd, silent, nil
}

// knowsControlPlane says whether a node of that name ran a part of the control plane when the backup was taken.
func (m *Manifest) knowsControlPlane(node string) bool {
	if m.Part("nodes/"+node) != nil {
		return true
	}
	return m.Etcd != nil && (m.Etcd.Node == node || slices.ContainsFunc(m.Etcd.Members, func(e EtcdMember) bool { return e.Name == node }))
}
