package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// Options say what to back up, and how.
type Options struct {
	// Dir is where backups lie; it is made (0700) when missing.
	Dir string
	// Name is the new backup's directory; empty means the cluster's name and the time.
	Name string
	// Cluster is the cluster's name; empty means the one in kubeadm-config, else "cluster".
	Cluster string
	// REST gives access to the API; required.
	REST *rest.Config
	// Hosts are the control plane nodes. Without them there is no node part,
	// and an etcd part only when Etcd is set.
	Hosts []host.Host
	// Etcd says how to reach etcd; nil finds it through Hosts.
	Etcd *EtcdAccess
	// SnapshotClaims are claims (namespace/name) of which CSI snapshots are taken;
	// SnapshotClass is the VolumeSnapshotClass, empty for the driver's default, and
	// SnapshotTimeout how long is waited until all are ready: 0 means ten minutes.
	SnapshotClaims  []string
	SnapshotClass   string
	SnapshotTimeout time.Duration
	// Accept are the IDs of findings to go on in spite of.
	Accept []string
	// Recipients, if any, can read what is encrypted; RecipientNames are what
	// the manifest says of them. EncryptAll encrypts all files, not only those that hold secrets.
	Recipients     []age.Recipient
	RecipientNames []string
	EncryptAll     bool
	// Tool is belay's version.
	Tool string
	Sink event.Sink
}

// Backup is one backup on disk.
type Backup struct {
	Dir      string
	Manifest *Manifest
}

// ExistsError is a backup of that name that is there already, whole or partial.
type ExistsError struct{ Dir string }

func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s exists already; give the backup another name", e.Dir)
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$`)

// timeFormat makes names that sort by time.
const timeFormat = "20060102T150405Z"

// Create takes a backup. It gets its name when it is complete; on an error
// nothing is left, after a kill a directory that ends in ".partial".
//
// A backup of which parts could not be read is no error: its parts say what is
// missing, and Manifest.Complete is false.
func Create(ctx context.Context, o Options) (b *Backup, err error) {
	sink := event.Or(o.Sink)
	started := time.Now()
	c := &creation{o: o, sink: sink, m: &Manifest{
		Schema: Schema, Tool: o.Tool, Started: started.UTC().Truncate(time.Second), Accepted: o.Accept, Files: []File{}, Parts: []Part{},
	}}
	defer func() {
		e := event.Event{Time: time.Now(), Type: event.RunFinished, Run: "backup", Elapsed: time.Since(started)}
		switch {
		case err != nil:
			// The caller says why; it is not told twice.
			e.Msg = "no backup was taken, and nothing is left of the attempt"
		case !b.Manifest.Complete():
			e.Msg = fmt.Sprintf("backup %s is there, at level %s, and incomplete", filepath.Base(b.Dir), b.Manifest.Level)
		default:
			e.Msg = fmt.Sprintf("backup %s is complete, at level %s", filepath.Base(b.Dir), b.Manifest.Level)
		}
		sink.Emit(e)
	}()
	if c.claims, err = parseClaims(o.SnapshotClaims); err != nil {
		return nil, err
	}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	steps := c.steps()
	sink.Emit(event.Event{Time: started, Type: event.RunStarted, Run: "backup", Total: len(steps), Msg: fmt.Sprintf("backup %s of cluster %s, Kubernetes %s", c.name, c.m.Cluster, c.m.Version.Bare())})
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(c.d.dir), c.undoSnapshots(ctx))
		}
		// Only the lock mattered, and it goes with the process as well.
		_ = c.mark.Close()
	}()
	for i, s := range steps {
		begin := time.Now()
		e := event.Event{Time: begin, Run: "backup", Step: s.name, Msg: s.msg, Index: i + 1, Total: len(steps)}
		e.Type = event.StepStarted
		sink.Emit(e)
		err := s.run(ctx)
		e.Time, e.Elapsed = time.Now(), time.Since(begin)
		if err != nil {
			e.Type, e.Err = event.StepFailed, err.Error()
			sink.Emit(e)
			return nil, withRoomRemedy(fmt.Errorf("back up %s: %w", s.name, err), o.Dir)
		}
		e.Type = event.StepDone
		if said := c.said(s.name); said != "" {
			e.Msg += ": " + said
		}
		sink.Emit(e)
	}
	return &Backup{Dir: c.final, Manifest: c.m}, nil
}

// creation is a backup under way.
type creation struct {
	o     Options
	sink  event.Sink
	m     *Manifest
	d     *dirWriter
	final string
	// name is the backup's.
	name string
	// mark says to others that the directory is being written.
	mark   *os.File
	claims []types.NamespacedName
	client kubernetes.Interface
	// clusterConfiguration is kubeadm's.
	clusterConfiguration string
}

type createStep struct {
	// name is the part's, msg what people read.
	name, msg string
	run       func(context.Context) error
}

func (c *creation) steps() []createStep {
	steps := []createStep{{"config", "kubeadm's configuration", c.config}}
	if len(c.o.SnapshotClaims) > 0 {
		steps = append(steps, createStep{"snapshots", "CSI snapshots of the chosen volumes", c.volumeSnapshots})
	}
	return append(steps, []createStep{
		{"etcd", "etcd: snapshot, opened and counted", c.etcd},
		{"nodes", "files of the control plane nodes", c.nodes},
		{"releases", "Helm releases", c.releases},
		{"objects", "every object of the API, and the volume mount map", c.objects},
		{"manifest", "read everything back and write the manifest", c.finish},
	}...)
}

// said tells in a line what became of a step's part.
func (c *creation) said(name string) string {
	var out []string
	for _, p := range c.m.Parts {
		if p.Name != name && !strings.HasPrefix(p.Name, name+"/") {
			continue
		}
		s := p.Detail
		if p.Status != PartComplete {
			s = strings.TrimSuffix(p.Status+": "+p.Detail, ": ")
		}
		for _, m := range p.Missing {
			s += "; " + m
		}
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, "; ")
}

func (c *creation) add(p Part) {
	c.m.Parts = append(c.m.Parts, p)
	if p.Status == PartIncomplete {
		c.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Run: "backup", Subject: p.Name, Msg: "incomplete: " + strings.Join(p.Missing, "; ")})
	}
}

// open asks the API which cluster this is and makes the partial directory.
func (c *creation) open(ctx context.Context) error {
	if c.o.REST == nil {
		return errors.New("back up: no access to the API was given")
	}
	var err error
	if c.client, err = kubernetes.NewForConfig(c.o.REST); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	ns, err := asked(ctx, func() (*corev1.Namespace, error) {
		return c.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	})
	if err != nil {
		return fmt.Errorf("read the cluster's identity, namespace kube-system: %w", err)
	}
	info, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("read the cluster's version: %w", err)
	}
	if c.m.Version, err = kubeversion.Parse(info.GitVersion); err != nil {
		return fmt.Errorf("read the cluster's version: %w", err)
	}
	c.m.Lineage, c.m.Server = string(ns.UID), c.o.REST.Host
	if c.m.Cluster, err = c.clusterName(ctx); err != nil {
		return err
	}
	if len(c.o.Recipients) > 0 {
		c.m.Encryption = &Encryption{Format: "age", Scope: "secrets", Recipients: c.o.RecipientNames}
		if c.o.EncryptAll {
			c.m.Encryption.Scope = "all"
		}
	}
	if err := os.MkdirAll(c.o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of backups: %w", err)
	}
	name := c.o.Name
	if name == "" {
		name = c.m.Cluster + "-" + c.m.Started.Format(timeFormat)
	}
	if !validName.MatchString(name) || strings.HasSuffix(name, partialSuffix) || strings.HasSuffix(name, removingSuffix) {
		return fmt.Errorf("%q cannot name a backup: use letters, digits, dots and dashes", name)
	}
	c.name, c.final = name, filepath.Join(c.o.Dir, name)
	for _, p := range []string{c.final, c.final + partialSuffix} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			return &ExistsError{p}
		}
	}
	if err := os.Mkdir(c.final+partialSuffix, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return &ExistsError{c.final + partialSuffix}
		}
		return fmt.Errorf("make the backup's directory: %w", err)
	}
	if c.mark, err = markCreating(c.final+partialSuffix, creating{Lineage: c.m.Lineage, Claims: c.o.SnapshotClaims}); err != nil {
		return errors.Join(fmt.Errorf("mark the backup's directory: %w", err), os.RemoveAll(c.final+partialSuffix))
	}
	c.d = &dirWriter{dir: c.final + partialSuffix, recipients: c.o.Recipients, all: c.o.EncryptAll}
	if slices.ContainsFunc(c.o.Recipients, isPassphrase) {
		c.m.Encryption.KeyFile = keyName + ageSuffix
		if err := lockWithPassphrase(c.d); err != nil {
			return errors.Join(err, os.RemoveAll(c.d.dir), c.mark.Close())
		}
	}
	return nil
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func (c *creation) clusterName(ctx context.Context) (string, error) {
	name := c.o.Cluster
	if name == "" {
		// What cannot be read here is told by step config.
		if cm, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubeadm-config", metav1.GetOptions{}); err == nil {
			var conf struct {
				ClusterName string `json:"clusterName"`
			}
			if err := yaml.Unmarshal([]byte(cm.Data["ClusterConfiguration"]), &conf); err == nil {
				name = conf.ClusterName
			}
		}
	}
	name = strings.Trim(notInName.ReplaceAllString(name, "-"), "-.")
	if name == "" {
		name = "cluster"
	}
	return name, ctx.Err()
}

func (c *creation) config(ctx context.Context) error {
	part, conf, err := writeConfig(ctx, c.client, c.d)
	if err != nil {
		return err
	}
	c.clusterConfiguration = conf
	c.add(part)
	return nil
}

func (c *creation) releases(ctx context.Context) error {
	part, err := writeReleases(ctx, c.client, c.d)
	if err != nil {
		return err
	}
	c.add(part)
	return nil
}

// nodes reads the control plane nodes side by side.
func (c *creation) nodes(ctx context.Context) error {
	if len(c.o.Hosts) == 0 {
		c.add(Part{Name: "nodes", Status: PartAbsent, Detail: "no access to the control plane nodes was given"})
		return nil
	}
	parts := make([]Part, len(c.o.Hosts))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, h := range c.o.Hosts {
		g.Go(func() error {
			files, missing := readNode(ctx, h)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			for _, f := range files {
				if err := c.d.writeFile(nodePath(h.Name(), f.path), true, f.data, f.path, f.mode); err != nil {
					return err
				}
			}
			parts[i] = Part{Name: "nodes/" + h.Name(), Status: PartComplete, Detail: fmt.Sprintf("%d files of %s", len(files), h.Name()), Missing: missing}
			if len(missing) > 0 {
				parts[i].Status = PartIncomplete
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, p := range parts {
		c.add(p)
	}
	return nil
}

// snapshotName is the snapshot's path in the backup.
const snapshotName = "etcd/snapshot.db"

func (c *creation) etcd(ctx context.Context) (err error) {
	access := c.o.Etcd
	if access == nil {
		if len(c.o.Hosts) == 0 {
			c.add(Part{Name: "etcd", Status: PartAbsent, Detail: "no access to etcd: neither control plane nodes nor endpoints were given"})
			c.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Run: "backup", Subject: "etcd", Msg: "without an etcd snapshot, objects can be restored from this backup, and no cluster; give --inventory or --etcd-endpoint"})
			return nil
		}
		if access, err = DiscoverEtcd(ctx, c.o.Hosts, c.clusterConfiguration); err != nil {
			return err
		}
	}
	cluster, err := survey(ctx, access)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.close()) }()
	for _, m := range cluster.members {
		if m.err != nil {
			c.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Run: "backup", Subject: m.name(), Msg: "etcd member does not answer: " + m.err.Error()})
		}
	}
	m, found, err := cluster.choose(ctx, c.o.Accept)
	if err != nil {
		return err
	}
	for _, f := range found {
		c.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Run: "backup", Subject: f.ID, Msg: "accepted: " + f.Message})
	}
	// Encryption needs a second copy for as long as the snapshot is opened.
	need := m.status.DbSize
	if c.d.encrypts(true) {
		need *= 2
	}
	if err := checkFree(c.d.dir, need, "-o"); err != nil {
		return err
	}
	part, err := c.snapshot(ctx, cluster, m)
	if err != nil {
		return err
	}
	c.m.Etcd = part
	detail := fmt.Sprintf("revision %d of member %s, %d keys, %d MiB", part.Revision, part.Member, part.TotalKeys, part.Size>>20)
	if part.LiveCounts != liveEqual {
		detail += "; not compared with the live member: " + part.LiveCounts
	}
	c.add(Part{Name: "etcd", Status: PartComplete, Detail: detail})
	return nil
}

// snapshot streams, opens and counts.
func (c *creation) snapshot(ctx context.Context, cluster *etcdCluster, m *member) (part *EtcdPart, err error) {
	w, err := c.d.create(snapshotName, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Abort()) }()
	plain, out := w.f.Name(), io.Writer(w)
	if w.entry.Encrypted {
		// The database library opens files by name, and only what is in the clear:
		// a second copy that has no name, so that nothing of it stays.
		private, path, err := privateFile(c.d.dir)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, releasePrivate(private)) }()
		plain, out = path, io.MultiWriter(w, private)
	} else {
		w.hash = nil // the stream is hashed on the way
	}
	t, version, err := m.stream(ctx, out, emitProgress(c.sink, "etcd", m.name()))
	if err != nil {
		return nil, err
	}
	sum, err := t.sum()
	if err != nil {
		return nil, err
	}
	if !w.entry.Encrypted {
		w.entry.SHA256 = sum
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	contents, err := ReadContents(ctx, plain)
	if err != nil {
		return nil, err
	}
	if contents.Lineage != "" && contents.Lineage != c.m.Lineage {
		return nil, &LineageError{What: "the etcd that was reached", Got: contents.Lineage, Want: c.m.Lineage}
	}
	live, err := m.compareLive(ctx, contents)
	if err != nil {
		return nil, err
	}
	part = &EtcdPart{
		File: w.entry.Path, Node: m.Node, Endpoint: m.URL, Leader: m.isLeader(), Lag: cluster.lag(m),
		MemberID: fmt.Sprintf("%x", m.status.Header.GetMemberId()), ClusterID: fmt.Sprintf("%x", cluster.clusterID),
		Version: m.status.Version, StorageVersion: contents.StorageVersion,
		Revision: contents.Revision, Hash: contents.Hash, TotalKeys: contents.TotalKeys, Counts: contents.Counts,
		Size: t.n, SHA256: sum, LiveCounts: live,
	}
	if version != "" && part.StorageVersion == "" {
		part.StorageVersion = version
	}
	for _, k := range cluster.known {
		e := EtcdMember{ID: fmt.Sprintf("%x", k.GetID()), Name: k.GetName(), Peers: k.GetPeerURLs(), Clients: k.GetClientURLs(), Learner: k.GetIsLearner()}
		if k.GetID() == m.status.Header.GetMemberId() {
			part.Member = k.GetName()
		}
		part.Members = append(part.Members, e)
	}
	return part, nil
}

// finish reads everything back, writes the manifest and gives the directory its name.
func (c *creation) finish(ctx context.Context) error {
	c.m.Files = c.d.list()
	for i := range c.m.Files {
		if err := checkFile(ctx, c.d.dir, &c.m.Files[i]); err != nil {
			return err
		}
	}
	c.m.Level = HashVerified
	if c.m.Etcd != nil && c.m.Etcd.LiveCounts == liveEqual {
		c.m.Level = Opened
	}
	slices.SortFunc(c.m.Parts, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	if len(c.m.Accepted) == 0 {
		c.m.Accepted = nil
	}
	if err := syncTree(c.d.dir); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// The manifest's write makes that durable, too.
	if err := os.Remove(c.mark.Name()); err != nil {
		return err
	}
	c.m.Finished = time.Now().UTC().Truncate(time.Second)
	if err := c.m.write(c.d.dir); err != nil {
		return err
	}
	if err := os.Rename(c.d.dir, c.final); err != nil {
		return fmt.Errorf("give the backup its name: %w", err)
	}
	return atomicfile.SyncDir(c.o.Dir)
}

// syncTree makes the names in all directories under dir durable.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return atomicfile.SyncDir(p)
	})
}

// LineageError is data of another cluster than the one that was asked for.
type LineageError struct{ What, Got, Want string }

func (e *LineageError) Error() string {
	return fmt.Sprintf("%s belongs to another cluster: its kube-system has UID %s, this cluster's %s; check which kubeconfig, inventory and backup were given", e.What, e.Got, e.Want)
}
