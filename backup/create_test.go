package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// fixture is a cluster of fakes around a real etcd.
type fixture struct {
	api  *fakeAPI
	etcd *embed.Etcd
	cli  *clientv3.Client
	host *rootHost
	dir  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{api: newFakeAPI(t), dir: filepath.Join(t.TempDir(), "backups")}
	f.etcd, f.cli = startEtcd(t)
	fill(t, f.cli, 20)
	f.putNamespace(t, fakeUID)
	f.host = newRootHost(t, "cp1", "")
	f.host.put(t, "/etc/kubernetes/pki/ca.key", "PRIVATE-KEY-OF-CA", 0o600)
	f.host.put(t, "/etc/kubernetes/admin.conf", "kind: Config", 0o600)
	f.host.put(t, "/etc/kubernetes/manifests/etcd.yaml", "kind: Pod", 0o600)
	f.host.put(t, "/etc/kubernetes/tmp/kubeadm-backup-etcd/db", "old data", 0o600)
	f.host.put(t, "/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration", 0o644)
	return f
}

func (f *fixture) putNamespace(t *testing.T, uid string) {
	t.Helper()
	ns := fmt.Sprintf(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, uid)
	if _, err := f.cli.Put(t.Context(), "/registry/namespaces/kube-system", ns); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) options() Options {
	return Options{
		Dir: f.dir, REST: f.api.config(), Hosts: []host.Host{f.host}, Tool: "test",
		Etcd: &EtcdAccess{Endpoints: []EtcdEndpoint{{Node: "cp1", URL: endpoint(f.etcd)}}},
	}
}

func (f *fixture) create(t *testing.T) *Backup {
	t.Helper()
	b, err := Create(t.Context(), f.options())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// nothingLeft checks that no backup, whole or partial, is in the directory.
func (f *fixture) nothingLeft(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left", e.Name())
	}
}

func verify(t *testing.T, dir string, level Level, ids ...age.Identity) *Report {
	t.Helper()
	r, err := Verify(t.Context(), dir, VerifyOptions{Level: level, Identities: ids})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCreate(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	rec := &event.Recorder{}
	o.Sink = rec
	b, err := Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Manifest
	if m.Level != Opened || !m.Complete() || m.Lineage != fakeUID || m.Cluster != "demo" || m.Version.Bare() != "1.36.3" {
		t.Errorf("manifest: level %s, complete %v, lineage %s, cluster %s, version %s", m.Level, m.Complete(), m.Lineage, m.Cluster, m.Version)
	}
	if m.Etcd == nil || m.Etcd.LiveCounts != liveEqual || m.Etcd.Counts["/registry/pods/"] != 16 {
		t.Errorf("etcd part: %+v", m.Etcd)
	}
	for name, want := range map[string]string{
		"nodes/cp1/etc/kubernetes/pki/ca.key": "PRIVATE-KEY-OF-CA", "nodes/cp1/var/lib/kubelet/config.yaml": "kind: KubeletConfiguration",
	} {
		if got, err := os.ReadFile(filepath.Join(b.Dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if m.File("nodes/cp1/etc/kubernetes/tmp/kubeadm-backup-etcd/db") != nil {
		t.Error("kubeadm's residue is in the backup")
	}
	err = filepath.WalkDir(b.Dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", p, info.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if r := verify(t, b.Dir, Opened); !r.OK() || r.Level != Opened {
		t.Errorf("verify: %+v", r)
	}
	events := rec.Events()
	if len(events) == 0 || events[0].Type != event.RunStarted || events[len(events)-1].Type != event.RunFinished {
		t.Errorf("events: %+v", events)
	}
	if _, err := Create(t.Context(), Options{Dir: f.dir, Name: filepath.Base(b.Dir), REST: f.api.config()}); !errors.As(err, new(*ExistsError)) {
		t.Errorf("a second backup of that name: %v", err)
	}
}

// Every changed byte, in any file, is found and the file is named.
func TestVerifyFindsEveryFlippedByte(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	rec := record{Manifest: b.Manifest.Digest, Level: Restored, At: time.Now().UTC().Truncate(time.Second), Tool: "test"}
	if err := writeRecord(b.Dir, rec); err != nil {
		t.Fatal(err)
	}
	names := []string{manifestName, verifiedName}
	for _, e := range b.Manifest.Files {
		names = append(names, e.Path)
	}
	flips := 0
	for _, name := range names {
		p := filepath.Join(b.Dir, filepath.FromSlash(name))
		orig, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		// Every byte of tiny files, some dozens spread over larger ones, the last always.
		step := max(1, len(orig)/25)
		for i := 0; i < len(orig); i += step {
			if i+step >= len(orig) {
				i = len(orig) - 1
			}
			for _, mask := range []byte{1 << (i % 8), 0x20} { // 0x20 changes the case of letters
				bad := bytes.Clone(orig)
				bad[i] ^= mask
				if err := os.WriteFile(p, bad, 0o600); err != nil {
					t.Fatal(err)
				}
				flips++
				r, err := Verify(t.Context(), b.Dir, VerifyOptions{Level: HashVerified})
				if format := (*FormatError)(nil); name == manifestName && errors.As(err, &format) {
					continue // the schema itself was hit, and the error names the file
				}
				if err != nil {
					t.Fatalf("%s, byte %d: %v", name, i, err)
				}
				if r.OK() || len(r.Problems) != 1 || r.Problems[0].File != name {
					t.Fatalf("%s, byte %d ^ %#x: problems %+v", name, i, mask, r.Problems)
				}
			}
		}
		if err := os.WriteFile(p, orig, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := verify(t, b.Dir, Opened); !r.OK() {
		t.Errorf("after all flips were undone: %+v", r.Problems)
	}
	t.Logf("%d flips in %d files", flips, len(names))
}

func TestVerifyNamesMissingTruncatedAndForeignFiles(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	snap := filepath.Join(b.Dir, snapshotName)
	orig, err := os.ReadFile(snap)
	if err != nil {
		t.Fatal(err)
	}
	one := func(name string) {
		t.Helper()
		r := verify(t, b.Dir, Opened)
		if r.OK() || r.Level >= Copied || len(r.Problems) != 1 || r.Problems[0].File != name {
			t.Errorf("%s: level %s, problems %+v", name, r.Level, r.Problems)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(snap, orig[:len(orig)/2], 0o600))
	one(snapshotName)
	must(os.Remove(snap))
	one(snapshotName)
	must(os.Symlink("/etc/hostname", snap))
	one(snapshotName)
	must(os.Remove(snap))
	must(os.WriteFile(snap, orig, 0o600))
	must(os.WriteFile(filepath.Join(b.Dir, "extra"), nil, 0o600))
	one("extra")
	must(os.Remove(filepath.Join(b.Dir, "extra")))
	if r := verify(t, b.Dir, Opened); !r.OK() {
		t.Errorf("after all was undone: %+v", r.Problems)
	}
}

func TestNewerFormatIsSaid(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	p := filepath.Join(b.Dir, manifestName)
	data, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, bytes.Replace(data, []byte("backup/v1"), []byte("backup/v2"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Verify(t.Context(), b.Dir, VerifyOptions{})
	if format := (*FormatError)(nil); !errors.As(err, &format) || format.Schema != "belay.dev/backup/v2" {
		t.Errorf("err = %v, want a *FormatError", err)
	}
}

func TestOtherClustersEtcdIsRefused(t *testing.T) {
	f := newFixture(t)
	f.putNamespace(t, "99999999-0000-0000-0000-000000000000")
	_, err := Create(t.Context(), f.options())
	if lineage := (*LineageError)(nil); !errors.As(err, &lineage) {
		t.Errorf("err = %v, want a *LineageError", err)
	}
	f.nothingLeft(t)
}

func TestAlarmBlocksUnlessAccepted(t *testing.T) {
	f := newFixture(t)
	req := &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(f.etcd.Server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE}
	if _, err := etcdserverpb.NewMaintenanceClient(f.cli.ActiveConnection()).Alarm(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	_, err := Create(t.Context(), f.options())
	blocked := (*BlockedError)(nil)
	if !errors.As(err, &blocked) || blocked.Findings[0].ID != "etcd-alarm@NOSPACE" {
		t.Fatalf("err = %v, want a *BlockedError", err)
	}
	f.nothingLeft(t)
	o := f.options()
	o.Accept = []string{"etcd-alarm@NOSPACE"}
	b, err := Create(t.Context(), o)
	if err != nil || len(b.Manifest.Accepted) != 1 {
		t.Errorf("with the finding accepted: %v", err)
	}
}

// cutConn breaks after so many bytes were read, as a member that is stopped does.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.Join(syscall.ECONNRESET, c.Close())
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func TestMemberStoppedInTheMiddle(t *testing.T) {
	f := newFixture(t)
	big := strings.Repeat("x", 1<<20)
	for i := range 8 {
		if _, err := f.cli.Put(t.Context(), fmt.Sprintf("/registry/big/shop/%d", i), big); err != nil {
			t.Fatal(err)
		}
	}
	o := f.options()
	o.Etcd.Endpoints[0].Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		return &cutConn{c, 3 << 20}, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := Create(ctx, o); err == nil || !strings.Contains(err.Error(), "cp1") {
		t.Errorf("err = %v, want one that names the member's node", err)
	}
	f.nothingLeft(t)
}

// The child of TestFullDiskInTheMiddle and TestKillLeavesOnlyPartial.
func TestMain(m *testing.M) {
	if dir := os.Getenv("BELAY_TEST_CREATE_IN"); dir != "" {
		signal.Ignore(syscall.SIGXFSZ)
		o := Options{
			Dir: dir, REST: &rest.Config{Host: os.Getenv("BELAY_TEST_API")},
			Etcd: &EtcdAccess{Endpoints: []EtcdEndpoint{{Node: "cp1", URL: os.Getenv("BELAY_TEST_ETCD")}}},
		}
		var err error
		if key := os.Getenv("BELAY_TEST_RECIPIENT"); key != "" {
			if o.Recipients, o.RecipientNames, err = Recipients([]string{key}, ""); err != nil {
				panic(err)
			}
		}
		_, err = Create(context.Background(), o)
		fmt.Println(err)
		if errors.Is(err, syscall.EFBIG) {
			os.Exit(42)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child runs Create in a process of its own, under a shell's limits.
func (f *fixture) child(t *testing.T, limits, etcd string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", limits+`exec "$0"`, self)
	cmd.Env = append(os.Environ(), "BELAY_TEST_CREATE_IN="+f.dir, "BELAY_TEST_API="+f.api.URL, "BELAY_TEST_ETCD="+etcd)
	return cmd
}

func TestFullDiskInTheMiddle(t *testing.T) {
	f := newFixture(t)
	big := strings.Repeat("x", 1<<20)
	for i := range 3 {
		if _, err := f.cli.Put(t.Context(), fmt.Sprintf("/registry/big/shop/%d", i), big); err != nil {
			t.Fatal(err)
		}
	}
	// A limit of 1 MiB a file stands for the full disk: the write fails in the middle.
	out, err := f.child(t, "ulimit -f 2048; ", endpoint(f.etcd)).CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != 42 || !strings.Contains(string(out), "snapshot.db") {
		t.Errorf("%v: %s; want an error that wraps EFBIG and names the file", err, out)
	}
	f.nothingLeft(t)
}

func TestKillLeavesOnlyPartial(t *testing.T) {
	f := newFixture(t)
	// An etcd that accepts and never answers holds Create in the middle.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err == nil {
			close(accepted)
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	cmd := f.child(t, "", "http://"+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-accepted:
	case <-time.After(20 * time.Second):
		t.Error("the child never came to etcd")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	entries, err := List(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || !strings.HasSuffix(entries[0].Dir, partialSuffix) || entries[0].Manifest != nil {
		t.Errorf("after a kill: %+v", entries)
	}
	if _, err := LatestVerified(t.Context(), f.dir, fakeUID, Copied); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("LatestVerified takes it: %v", err)
	}
	if want := "was cut off; the next backup create --keep removes it"; !strings.HasSuffix(entries[0].Problem, want) {
		t.Errorf("the list says %q, want %q", entries[0].Problem, want)
	}
	// Another cluster's retention leaves it, its own one removes it, and nothing that lives or has snapshots.
	lives, asked := filepath.Join(f.dir, "b.partial"), filepath.Join(f.dir, "c.partial")
	for dir, claims := range map[string][]string{lives: nil, asked: {"shop/data"}} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		lock, err := markCreating(dir, creating{Lineage: fakeUID, Claims: claims})
		if err != nil {
			t.Fatal(err)
		}
		if dir == lives {
			defer lock.Close()
		} else if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := Prune(t.Context(), f.dir, "another", 1, nil); err != nil || len(p.Removed) > 0 {
		t.Errorf("another cluster's retention: %+v, %v", p, err)
	}
	if p, err := Prune(t.Context(), f.dir, fakeUID, 1, nil); err != nil || !slices.Equal(p.Removed, []string{entries[0].Dir}) {
		t.Errorf("its retention: %+v, %v", p, err)
	}
	if entries, err = List(f.dir); err != nil || len(entries) != 2 || !strings.HasSuffix(entries[0].Problem, "under way") || !strings.Contains(entries[1].Problem, "-l belay.dev/backup=c)") {
		t.Errorf("left: %+v, %v", entries, err)
	}
}

// slowProxy passes on what comes from target, but stops after so many bytes, and says so.
func slowProxy(t *testing.T, target string, limit int64) (addr string, stopped <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	done := make(chan struct{})
	go func() {
		var left atomic.Int64
		left.Store(limit)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				_ = c.Close()
				return
			}
			go func() { _, _ = io.Copy(up, c) }()
			go func() {
				buf := make([]byte, 32<<10)
				for {
					n, err := up.Read(buf)
					if err != nil {
						return
					}
					if after := left.Add(-int64(n)); after < 0 {
						if after+int64(n) >= 0 {
							close(done)
						}
						return // the connection stays, and nothing comes any more
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), done
}

// A kill while an encrypted backup is written leaves nothing in the clear.
func TestKillLeavesNothingInTheClear(t *testing.T) {
	f := newFixture(t)
	secret := strings.Repeat("SECRET-IN-ETCD ", 64<<10)
	for i := range 6 {
		if _, err := f.cli.Put(t.Context(), fmt.Sprintf("/registry/secrets/shop/%d", i), secret); err != nil {
			t.Fatal(err)
		}
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	addr, stopped := slowProxy(t, f.etcd.Clients[0].Addr().String(), 4<<20)
	cmd := f.child(t, "", "http://"+addr)
	cmd.Env = append(cmd.Env, "BELAY_TEST_RECIPIENT="+key.Recipient().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join("etcd", "snapshot.db"+ageSuffix)
	select {
	case <-stopped:
	case <-time.After(30 * time.Second):
		t.Error("the child never came so far")
	}
	err = condition.Wait(t.Context(), condition.Condition{Name: "the child to write what came", Check: func(context.Context) error {
		found, err := filepath.Glob(filepath.Join(f.dir, "*", snapshot))
		if err != nil || len(found) != 1 {
			return condition.NotYetf("no snapshot: %v %v", found, err)
		}
		if info, err := os.Stat(found[0]); err != nil || info.Size() < 2<<20 {
			return condition.NotYetf("hardly anything is written: %v", err)
		}
		return nil
	}}, condition.Options{Timeout: 20 * time.Second, Interval: 20 * time.Millisecond})
	if err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	files := 0
	err = filepath.WalkDir(f.dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		data, err := os.ReadFile(p)
		if bytes.Contains(data, []byte("SECRET-IN-ETCD")) {
			t.Errorf("%s holds a secret in the clear", p)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("looked at %d files: %v", files, err)
	}
}

// What a killed verification left in the clear is removed by the next one; what a living one has stays.
func TestAbandonedDataInTheClearIsRemoved(t *testing.T) {
	parent := t.TempDir()
	alive, err := newTempDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	abandoned := filepath.Join(parent, tempPrefix+"123")
	foreign := filepath.Join(parent, "other-123")
	for _, dir := range []string{abandoned, foreign} {
		if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(abandoned, tempLock), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := newTempDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{alive.path: true, next.path: true, foreign: true, abandoned: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want there: %t", dir, err, want)
		}
	}
	if err := errors.Join(alive.remove(), next.remove()); err != nil {
		t.Error(err)
	}
}

func TestEncryption(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	var err error
	if o.Recipients, o.RecipientNames, err = Recipients(nil, "correct horse"); err != nil {
		t.Fatal(err)
	}
	o.Recipients[0].(*age.ScryptRecipient).SetWorkFactor(10)
	b, err := Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range b.Manifest.Files {
		data, err := os.ReadFile(filepath.Join(b.Dir, e.Path))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"PRIVATE-KEY-OF-CA", "c2VjcmV0LXZhbHVl", "/registry/"} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %s in the clear", e.Path, secret)
			}
		}
	}
	if r := verify(t, b.Dir, HashVerified); !r.OK() {
		t.Errorf("hash-verified needs no key: %+v", r.Problems)
	}
	right, err := Identities(nil, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	if r := verify(t, b.Dir, Opened, right...); !r.OK() {
		t.Errorf("with the passphrase: %+v", r.Problems)
	}
	wrong, err := Identities(nil, "wrong")
	if err != nil {
		t.Fatal(err)
	}
	for name, ids := range map[string][]age.Identity{"wrong": wrong, "none": nil} {
		_, err := Verify(t.Context(), b.Dir, VerifyOptions{Level: Opened, Identities: ids})
		if key := (*KeyError)(nil); !errors.As(err, &key) || key.Recipients != PassphraseRecipient || !strings.Contains(err.Error(), "--passphrase-file") {
			t.Errorf("%s passphrase: %v, want a *KeyError", name, err)
		}
	}
}

// A cluster that encrypts with a key management service: what can be proved here ends at opened, and that is said.
func TestKeyManagementServiceIsALimit(t *testing.T) {
	f := newFixture(t)
	f.host.put(t, manifestDir+"/kube-apiserver.yaml", `apiVersion: v1
kind: Pod
spec:
  containers:
  - name: kube-apiserver
    command: [kube-apiserver, --encryption-provider-config=/etc/kubernetes/enc/config.yaml]
    volumeMounts: [{name: enc, mountPath: /etc/kubernetes/enc}]
  volumes: [{name: enc, hostPath: {path: /etc/kubernetes/enc}}]
`, 0o600)
	f.host.put(t, "/etc/kubernetes/enc/config.yaml", `kind: EncryptionConfiguration
resources: [{resources: [secrets], providers: [{kms: {apiVersion: v2, name: vault, endpoint: "unix:///run/kms.sock"}}, {identity: {}}]}]
`, 0o600)
	b := f.create(t)
	r := verify(t, b.Dir, Opened)
	if !r.OK() || len(r.Limits) != 1 || r.Limits[0].Level != Opened || !strings.Contains(r.Limits[0].Reason, "vault") || !strings.Contains(r.Limits[0].Remedy, "--onto") {
		t.Errorf("opened: problems %+v, limits %+v", r.Problems, r.Limits)
	}
	r, err := Verify(t.Context(), b.Dir, VerifyOptions{Level: Restored, Binaries: func(kubeversion.V) (Binaries, error) { return Binaries{}, nil }})
	if err != nil || r.OK() || r.Level != Opened || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Problem, "key management service (vault)") {
		t.Errorf("restored: %+v, %v", r, err)
	}
}

func TestForbiddenMakesItIncomplete(t *testing.T) {
	f := newFixture(t)
	f.api.forbidden["/api/v1/secrets"] = true
	b := f.create(t)
	p := b.Manifest.Part("releases")
	if b.Manifest.Complete() || p == nil || p.Status != PartIncomplete || len(p.Missing) == 0 {
		t.Errorf("parts: %+v", b.Manifest.Parts)
	}
	if _, err := LatestVerified(t.Context(), f.dir, fakeUID, Opened); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("an incomplete backup passes the gate: %v", err)
	}
}

func TestReleasesAreKeptAsTheyAreStored(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	r, err := b.Manifest.open(b.Dir, b.Manifest.File("releases/secrets.jsonl.zst"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var lines int
	err = readLines(r, func(line []byte) error {
		lines++
		var s struct {
			Kind string
			Data map[string]string
		}
		if err := json.Unmarshal(line, &s); err != nil {
			return err
		}
		if s.Kind != "Secret" || s.Data["release"] != "c2VjcmV0LXZhbHVl" {
			t.Errorf("line: %s", line)
		}
		return nil
	})
	if err != nil || lines != 1 {
		t.Errorf("%d lines, %v", lines, err)
	}
}

func TestLatestVerifiedTakesTheNewestGoodOne(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	var dirs []string
	for _, name := range []string{"a", "b", "c"} {
		o.Name = name
		b, err := Create(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, b.Dir)
	}
	latest := func(level Level) string {
		t.Helper()
		e, err := LatestVerified(t.Context(), f.dir, fakeUID, level)
		if errors.As(err, new(*NotFoundError)) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(e.Dir)
	}
	if got := latest(Opened); got != "c" {
		t.Errorf("newest opened: %q", got)
	}
	if got := latest(Restored); got != "" {
		t.Errorf("newest restored: %q, none was", got)
	}
	m, err := ReadManifest(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(dirs[0], record{Manifest: m.Digest, Level: Restored}); err != nil {
		t.Fatal(err)
	}
	if got := latest(Restored); got != "a" {
		t.Errorf("newest restored: %q", got)
	}
	// A damaged file disqualifies, whatever was recorded before.
	if err := os.WriteFile(filepath.Join(dirs[2], "nodes/cp1/etc/kubernetes/admin.conf"), []byte("kind: config"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := latest(Opened); got != "b" {
		t.Errorf("newest opened with c damaged: %q", got)
	}
	if _, err := LatestVerified(t.Context(), f.dir, "another", Copied); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("backup of another cluster is taken: %v", err)
	}
}
