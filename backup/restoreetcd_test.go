package backup

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/journal"
	"github.com/belayops/belay/internal/kubeversion"
)

// fakeNode is a node with a kubelet that knows one trick: it runs an etcd
// member while etcd.yaml is in the manifest directory, and lets the schedulers'
// leases be renewed while theirs are. An apiserver is faked for all nodes.
type fakeNode struct {
	*rootHost
	t       *testing.T
	cfg     func() *embed.Config
	api     string
	renew   func()
	mu      *sync.Mutex // of all nodes: one command at a time
	running *embed.Etcd
	// budget is how many more commands may run before the connection is lost; shared.
	budget *int
}

var errCut = errors.New("connection cut by the test")

func (n *fakeNode) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	switch addr {
	case "127.0.0.1:6443":
		addr = n.api
	case "127.0.0.1:2379":
		addr = n.etcd
	}
	return n.Host.Dial(ctx, network, addr)
}

func (n *fakeNode) Run(ctx context.Context, c host.Cmd) (host.Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if *n.budget--; *n.budget == 0 {
		return host.Result{}, &host.LostError{Host: n.Name(), Argv: c.Argv, Err: errCut}
	}
	if *n.budget < 0 {
		return host.Result{}, &host.NotStartedError{Host: n.Name(), Argv: c.Argv, Err: errCut}
	}
	switch {
	case len(c.Argv) > 2 && c.Argv[2] == listProcesses:
		out := "77 etcd --name=another-cluster --data-dir=/srv/etcd\n"
		if n.running != nil {
			out += "78 etcd --name=" + n.Name() + " --data-dir=/var/lib/etcd\n"
		}
		if c.Argv[4] != "etcd" {
			out = ""
		}
		return host.Result{Stdout: []byte(out)}, nil
	case c.Argv[0] == "sync":
		return host.Result{}, nil
	}
	r, err := n.rootHost.Run(ctx, c)
	n.kubelet()
	return r, err
}

func (n *fakeNode) kubelet() {
	has := func(component string) bool {
		_, err := os.Stat(filepath.Join(n.root, manifestDir, component+".yaml"))
		return err == nil
	}
	switch {
	case has("etcd") && n.running == nil:
		e, err := embed.StartEtcd(n.cfg())
		if err != nil {
			n.t.Errorf("%s: start etcd: %v", n.Name(), err)
			*n.budget = 0 // nothing goes on from here
			return
		}
		n.running = e
	case !has("etcd") && n.running != nil:
		n.running.Close()
		n.running = nil
	}
	if has("kube-scheduler") && n.running != nil && n.renew != nil {
		n.renew()
	}
}

func readPKI(t *testing.T, pki *controlplane.PKI, name string) string {
	t.Helper()
	b, err := os.ReadFile(pki.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// serveSecure serves an API over TLS as an apiserver does, and gives its address.
func serveSecure(t *testing.T, pki *controlplane.PKI, api http.Handler) string {
	t.Helper()
	cert, err := tls.X509KeyPair([]byte(readPKI(t, pki, "apiserver.crt")), []byte(readPKI(t, pki, "apiserver.key")))
	if err != nil {
		t.Fatal(err)
	}
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			fmt.Fprint(w, "ok")
			return
		}
		api.ServeHTTP(w, r)
	}))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	return strings.TrimPrefix(secure.URL, "https://")
}

// adminKubeconfig is what kubeadm leaves for the administrator.
func adminKubeconfig(t *testing.T, pki *controlplane.PKI, server string) string {
	t.Helper()
	conf := clientcmdapi.NewConfig()
	conf.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: []byte(readPKI(t, pki, "ca.crt"))}
	conf.AuthInfos["a"] = &clientcmdapi.AuthInfo{ClientCertificateData: []byte(readPKI(t, pki, "admin.crt")), ClientKeyData: []byte(readPKI(t, pki, "admin.key"))}
	conf.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "a"}
	conf.CurrentContext = "x"
	out, err := clientcmd.Write(*conf)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// memberConfig is an etcd member that answers fast and trusts the client certificates of pki.
func memberConfig(pki *controlplane.PKI, name, dir string, client, peer url.URL) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = name, dir
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	c.UnsafeNoFsync = true
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ClientTLSInfo = transport.TLSInfo{CertFile: pki.Path("etcd.crt"), KeyFile: pki.Path("etcd.key"), TrustedCAFile: pki.Path("ca.crt"), ClientCertAuth: true}
	c.TickMs, c.ElectionMs = 20, 200
	return c
}

// fakeHA is a kubeadm cluster of three control plane nodes.
type fakeHA struct {
	nodes  []*fakeNode
	access *EtcdAccess
	budget int
	api    *fakeAPI
}

func newFakeHA(t *testing.T) *fakeHA {
	t.Helper()
	f := &fakeHA{budget: 1 << 30, api: newFakeAPI(t)}
	pki, err := controlplane.NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string { return readPKI(t, pki, name) }
	endpoint := serveSecure(t, pki, f.api)
	adminConf := adminKubeconfig(t, pki, "https://elsewhere:6443")
	ports := make([]int, 6)
	listeners := make([]net.Listener, len(ports))
	for i := range ports { // all open at a time, so that they differ
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		ports[i] = listeners[i].Addr().(*net.TCPAddr).Port
	}
	for _, l := range listeners {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	local := func(scheme string, port int) url.URL {
		return url.URL{Scheme: scheme, Host: fmt.Sprintf("127.0.0.1:%d", port)}
	}
	var initial []string
	for i := range 3 {
		peer := local("http", ports[3+i])
		initial = append(initial, fmt.Sprintf("cp%d=%s", i+1, peer.String()))
	}
	mu := &sync.Mutex{}
	for i := range 3 {
		name := fmt.Sprintf("cp%d", i+1)
		client, peer := local("https", ports[i]), local("http", ports[3+i])
		n := &fakeNode{rootHost: newRootHost(t, name, client.Host), t: t, api: endpoint, mu: mu, budget: &f.budget}
		n.cfg = func() *embed.Config {
			c := memberConfig(pki, name, filepath.Join(n.root, "/var/lib/etcd"), client, peer)
			c.InitialCluster = strings.Join(initial, ",")
			return c
		}
		n.put(t, etcdPKI+"ca.crt", read("ca.crt"), 0o600)
		n.put(t, etcdPKI+"server.crt", read("etcd.crt"), 0o600)
		n.put(t, etcdPKI+"healthcheck-client.crt", read("etcd-client.crt"), 0o600)
		n.put(t, etcdPKI+"healthcheck-client.key", read("etcd-client.key"), 0o600)
		n.put(t, "/etc/kubernetes/pki/ca.crt", read("ca.crt"), 0o600)
		n.put(t, "/etc/kubernetes/admin.conf", adminConf, 0o600)
		n.put(t, "/var/lib/etcd/.keep", "", 0o600)
		n.put(t, manifestDir+"/etcd.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
spec:
  containers:
  - name: etcd
    image: registry.k8s.io/etcd:3.7.3-0
    command: [etcd, --name=%s, "--initial-advertise-peer-urls=%s", --data-dir=/var/lib/etcd]
    volumeMounts: [{name: data, mountPath: /var/lib/etcd}]
  volumes: [{name: data, hostPath: {path: /var/lib/etcd}}]
`, name, peer.String()), 0o600)
		for _, c := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			n.put(t, manifestDir+"/"+c+".yaml", "apiVersion: v1\nkind: Pod\n", 0o600)
		}
		f.nodes = append(f.nodes, n)
		t.Cleanup(func() {
			if n.running != nil {
				n.running.Close()
			}
		})
	}
	for _, n := range f.nodes {
		n.kubelet()
	}
	if f.access, err = DiscoverEtcd(t.Context(), f.hosts(), ""); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fakeHA) hosts() []host.Host {
	var out []host.Host
	for _, n := range f.nodes {
		out = append(out, n)
	}
	return out
}

func (f *fakeHA) client(t *testing.T, i int) *clientv3.Client {
	t.Helper()
	cli, err := connect(f.access.Endpoints[i], f.access.TLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

func put(t *testing.T, cli *clientv3.Client, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := cli.Put(ctx, key, value); err != nil {
		t.Fatal(err)
	}
}

// backUp fills the cluster, takes a backup, and writes something that is to be lost.
func (f *fakeHA) backUp(t *testing.T) (*Backup, *clientv3.Client) {
	t.Helper()
	cli := f.client(t, 0)
	fill(t, cli, 10)
	put(t, cli, "/registry/namespaces/kube-system", fmt.Sprintf(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, fakeUID))
	b, err := Create(t.Context(), Options{Dir: t.TempDir(), REST: f.api.config(), Hosts: f.hosts()})
	if err != nil {
		t.Fatal(err)
	}
	put(t, cli, "/registry/pods/shop/after", "to be lost")
	for _, n := range f.nodes {
		n.renew = func() {
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				for _, l := range []string{"kube-controller-manager", "kube-scheduler"} {
					_, _ = cli.Put(ctx, "/registry/leases/kube-system/"+l, "renewed")
				}
			}()
		}
	}
	return b, cli
}

// check looks at the cluster after a restore.
func (f *fakeHA) check(t *testing.T, b *Backup, cli *clientv3.Client, r *EtcdRestoreReport) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if got, err := cli.Get(ctx, "/registry/pods/shop/after"); err != nil || len(got.Kvs) != 0 {
		t.Errorf("what was written after the backup: %v, %v", got, err)
	}
	if got, err := cli.Get(ctx, "/registry/pods/shop/0001"); err != nil || len(got.Kvs) != 1 {
		t.Errorf("what was there before the backup: %v, %v", got, err)
	}
	// A watcher that goes on where it was must be told, and not miss changes.
	w := <-cli.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(b.Manifest.Etcd.Revision+1))
	if !errors.Is(w.Err(), rpctypes.ErrCompacted) {
		t.Errorf("an old watcher gets %v, want ErrCompacted", w.Err())
	}
	list, err := cli.MemberList(ctx)
	if err != nil || len(list.Members) != 3 {
		t.Errorf("members: %v, %v", list, err)
	}
	if len(r.Kept) != 3 || !slices.Equal(r.Members, []string{"cp1", "cp2", "cp3"}) || r.Keys != b.Manifest.Etcd.TotalKeys {
		t.Errorf("report: %+v", r)
	}
	for i, n := range f.nodes {
		kept := strings.TrimPrefix(r.Kept[i], n.Name()+":")
		if _, err := os.Stat(filepath.Join(n.root, kept, "member", "snap", "db")); err != nil {
			t.Errorf("old data of %s: %v", n.Name(), err)
		}
		for _, c := range controlPlaneComponents {
			if _, err := os.Stat(filepath.Join(n.root, manifestDir, c+".yaml")); err != nil {
				t.Errorf("%s: %v", n.Name(), err)
			}
		}
		left, err := filepath.Glob(filepath.Join(n.root, "var/lib/etcd/belay-*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v %v", n.Name(), left, err)
		}
	}
}

func TestRestoreEtcd(t *testing.T) {
	f := newFakeHA(t)
	b, cli := f.backUp(t)
	o := EtcdRestoreOptions{Hosts: f.hosts(), Journal: filepath.Join(t.TempDir(), "j", "restore.jsonl"), Timeout: time.Minute}
	_, err := RestoreEtcd(t.Context(), b.Dir, o)
	if blocked := (*BlockedError)(nil); !errors.As(err, &blocked) || blocked.Findings[0].ID != NotRestored {
		t.Fatalf("a backup that was never restored: %v, want a *BlockedError", err)
	}
	o.Accept = []string{NotRestored}
	// Without one of the members it would go on with the old data.
	short := o
	short.Hosts = o.Hosts[:2]
	if _, err := RestoreEtcd(t.Context(), b.Dir, short); err == nil || !strings.Contains(err.Error(), "cp3") {
		t.Fatalf("with a member left out: %v", err)
	}
	// One node of another cluster in the inventory, and nothing is touched.
	ca := filepath.Join(f.nodes[1].root, "/etc/kubernetes/pki/ca.crt")
	own, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	f.nodes[1].put(t, "/etc/kubernetes/pki/ca.crt", "another CA", 0o600)
	_, err = RestoreEtcd(t.Context(), b.Dir, o)
	if blocked := (*BlockedError)(nil); !errors.As(err, &blocked) || blocked.Findings[0].ID != OtherCluster || f.nodes[1].running == nil {
		t.Fatalf("a node of another cluster: %v, want a *BlockedError", err)
	}
	f.nodes[1].put(t, "/etc/kubernetes/pki/ca.crt", string(own), 0o600)
	r, err := RestoreEtcd(t.Context(), b.Dir, o)
	if err != nil {
		t.Fatal(err)
	}
	f.check(t, b, cli, r)
	// What was restored can be backed up: the revision was moved forward by an entry that is no key.
	again, err := Create(t.Context(), Options{Dir: t.TempDir(), REST: f.api.config(), Hosts: f.hosts()})
	if err != nil || again.Manifest.Level != Opened || again.Manifest.Etcd.Revision <= r.Revision {
		t.Errorf("backup after the restore: %+v, %v", again, err)
	}
}

// The connection is lost after every few commands; every next call goes on.
func TestRestoreEtcdIsResumed(t *testing.T) {
	f := newFakeHA(t)
	b, cli := f.backUp(t)
	o := EtcdRestoreOptions{Hosts: f.hosts(), Journal: filepath.Join(t.TempDir(), "restore.jsonl"), Accept: []string{NotRestored}, Timeout: 20 * time.Second}
	for try := 1; ; try++ {
		f.budget = 5 + 3*try
		r, err := RestoreEtcd(t.Context(), b.Dir, o)
		if err == nil {
			f.budget = 1 << 30
			f.check(t, b, cli, r)
			t.Logf("finished at call %d", try)
			if try < 5 {
				t.Errorf("it was hardly ever cut: %d calls", try)
			}
			return
		}
		if !errors.Is(err, errCut) {
			t.Fatalf("call %d: %v", try, err)
		}
		if try == 60 {
			t.Fatalf("not finished after %d calls: %v", try, err)
		}
	}
}

// killAt ends the process that emits the nth step event, as far as a panic can: nothing is written afterwards.
type killAt struct{ n int }

type killed struct{}

func (k *killAt) Emit(e event.Event) {
	if e.Type != event.StepStarted && e.Type != event.StepDone || e.Run == "verify" {
		return
	}
	if k.n--; k.n == 0 {
		panic(killed{})
	}
}

// A kill before every intent, and between every effect and its record.
func TestRestoreEtcdIsResumedAfterAKillAtEveryRecord(t *testing.T) {
	f := newFakeHA(t)
	b, cli := f.backUp(t)
	o := EtcdRestoreOptions{Hosts: f.hosts(), Journal: filepath.Join(t.TempDir(), "restore.jsonl"), Accept: []string{NotRestored}, Timeout: 20 * time.Second}
	for kills := 0; kills < 200; kills++ {
		// The second event is the end of the first step that is to be done, before
		// its record; the third is the start of the one after it, before its intent.
		o.Sink = &killAt{n: 2 + kills%2}
		r, err := untilKilled(func() (*EtcdRestoreReport, error) { return RestoreEtcd(t.Context(), b.Dir, o) })
		if errors.Is(err, errCut) {
			continue
		}
		if err != nil {
			t.Fatalf("after %d kills: %v", kills, err)
		}
		f.check(t, b, cli, r)
		if kills < 20 {
			t.Errorf("it was hardly ever killed: %d times", kills)
		}
		return
	}
	t.Fatal("it never ends")
}

func untilKilled(run func() (*EtcdRestoreReport, error)) (r *EtcdRestoreReport, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case killed{}:
			err = errCut
		default:
			panic(p)
		}
	}()
	return run()
}

// A restore that is cut off anywhere can be given up, and the cluster is what it was.
func TestRestoreEtcdIsGivenUp(t *testing.T) {
	f := newFakeHA(t)
	b, cli := f.backUp(t)
	o := EtcdRestoreOptions{Hosts: f.hosts(), Journal: filepath.Join(t.TempDir(), "restore.jsonl"), Accept: []string{NotRestored}, Timeout: 20 * time.Second}
	if _, err := AbortEtcdRestore(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no restore to give up") {
		t.Errorf("nothing was begun: %v", err)
	}
	for _, events := range []int{3, 14, 19, 27} {
		o.Sink = &killAt{n: events}
		if _, err := untilKilled(func() (*EtcdRestoreReport, error) { return RestoreEtcd(t.Context(), b.Dir, o) }); !errors.Is(err, errCut) {
			t.Fatalf("killed at event %d: %v", events, err)
		}
		o.Sink = nil
		// Cut off as well, once.
		f.budget = 12
		if _, err := AbortEtcdRestore(t.Context(), o); !errors.Is(err, errCut) {
			t.Fatalf("cut abort after event %d: %v", events, err)
		}
		f.budget = 1 << 30
		if _, err := RestoreEtcd(t.Context(), b.Dir, o); err == nil || !strings.Contains(err.Error(), "--abort") {
			t.Fatalf("what is being given up is gone on with: %v", err)
		}
		r, err := AbortEtcdRestore(t.Context(), o)
		if err != nil {
			t.Fatalf("abort after event %d: %v", events, err)
		}
		if !slices.Equal(r.Members, []string{"cp1", "cp2", "cp3"}) {
			t.Errorf("report: %+v", r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if got, err := cli.Get(ctx, "/registry/pods/shop/after"); err != nil || len(got.Kvs) != 1 {
			t.Errorf("after event %d: what was written after the backup: %v, %v", events, got, err)
		}
		cancel()
		for _, n := range f.nodes {
			for _, c := range controlPlaneComponents {
				if _, err := os.Stat(filepath.Join(n.root, manifestDir, c+".yaml")); err != nil {
					t.Errorf("after event %d: %s: %v", events, n.Name(), err)
				}
			}
			for _, pattern := range []string{"var/lib/etcd/belay-*", "var/lib/etcd/before-*", "etc/kubernetes/belay-*"} {
				if left, err := filepath.Glob(filepath.Join(n.root, pattern)); err != nil || len(left) > 0 {
					t.Errorf("after event %d: %s: left behind: %v %v", events, n.Name(), left, err)
				}
			}
		}
		// Runs are told apart by the second.
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	}
	// And afterwards it can be restored as if nothing had been.
	r, err := RestoreEtcd(t.Context(), b.Dir, o)
	if err != nil {
		t.Fatal(err)
	}
	f.check(t, b, cli, r)
	if _, err := AbortEtcdRestore(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is finished") {
		t.Errorf("a finished restore is given up: %v", err)
	}
}

// notRestored gives the IDs of what a restore is blocked by.
func notRestored(t *testing.T, dir string, o EtcdRestoreOptions) (ids []string, message string) {
	t.Helper()
	_, err := RestoreEtcd(t.Context(), dir, o)
	blocked := (*BlockedError)(nil)
	if !errors.As(err, &blocked) {
		t.Fatalf("err = %v, want a *BlockedError", err)
	}
	for _, b := range blocked.Findings {
		ids = append(ids, b.ID)
	}
	return ids, err.Error()
}

// A backup without files of nodes has no CA to tell clusters apart by: etcd's own word counts.
func TestRestoreEtcdOfAnotherCluster(t *testing.T) {
	f := newFakeHA(t)
	f.backUp(t)
	b, err := Create(t.Context(), Options{Dir: t.TempDir(), REST: f.api.config(), Etcd: f.access})
	if err != nil {
		t.Fatal(err)
	}
	other := newFakeHA(t)
	put(t, other.client(t, 0), "/registry/namespaces/kube-system", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"another"}}`)
	o := EtcdRestoreOptions{Hosts: other.hosts(), Journal: filepath.Join(t.TempDir(), "j.jsonl"), Accept: []string{NotRestored}, Timeout: time.Minute}
	if ids, msg := notRestored(t, b.Dir, o); !slices.Equal(ids, []string{OtherCluster}) || !strings.Contains(msg, "UID another") {
		t.Errorf("another cluster: %v: %s", ids, msg)
	}
	if other.nodes[0].running == nil {
		t.Error("its etcd was stopped")
	}
	// Without quorum, a member's own word still counts; without any member, nothing is known.
	for i, n := range other.nodes {
		n.running.Close()
		if i == 1 {
			break
		}
	}
	if ids, msg := notRestored(t, b.Dir, o); !slices.Equal(ids, []string{OtherCluster}) || !strings.Contains(msg, "UID another") {
		t.Errorf("without quorum: %v: %s", ids, msg)
	}
	other.nodes[2].running.Close()
	if ids, msg := notRestored(t, b.Dir, o); !slices.Equal(ids, []string{OtherCluster}) || !strings.Contains(msg, "cannot be told") {
		t.Errorf("without any member: %v: %s", ids, msg)
	}
	// The members are those of the backup then.
	o.Hosts, o.Accept = o.Hosts[:2], append(o.Accept, OtherCluster)
	if ids, _ := notRestored(t, b.Dir, o); !slices.Equal(ids, []string{MemberMissing + "@cp3"}) {
		t.Errorf("with a node left out: %v", ids)
	}
	for _, n := range other.nodes {
		n.running = nil
	}
}

// A kill between the making of the journal and its first record must not leave
// a restore whose steps have no nodes to work on.
func TestRestoreEtcdAfterAKillBeforeTheFirstRecord(t *testing.T) {
	f := newFakeHA(t)
	b, cli := f.backUp(t)
	o := EtcdRestoreOptions{Hosts: f.hosts(), Journal: filepath.Join(t.TempDir(), "restore.jsonl"), Accept: []string{NotRestored}, Timeout: time.Minute}
	j, err := journal.Create(o.Journal, journal.Header{Plan: b.Manifest.Digest, Run: "restore-20260101T000000Z", Lineage: b.Manifest.Lineage, Tool: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := RestoreEtcd(t.Context(), b.Dir, o)
	if err != nil {
		t.Fatal(err)
	}
	f.check(t, b, cli, r)
}

func TestARestoreThatWasBegunElsewhereIsNamed(t *testing.T) {
	h := newRootHost(t, "cp1", "")
	h.put(t, manifestDir+"/kube-proxy.yaml", "x", 0o600)
	if _, err := readTarget(t.Context(), h); err == nil || !strings.Contains(err.Error(), "static pod") {
		t.Errorf("no kubeadm etcd: %v", err)
	}
	h.put(t, "/etc/kubernetes/belay-restore-20260101T000000Z/etcd.yaml", "x", 0o600)
	if _, err := readTarget(t.Context(), h); err == nil || !strings.Contains(err.Error(), "belay-restore-20260101T000000Z") || !strings.Contains(err.Error(), "--abort") {
		t.Errorf("parked manifests: %v", err)
	}
}

func TestEncryptionOfTheNodesIsCompared(t *testing.T) {
	conf := func(name, secret string) []byte {
		return []byte("resources:\n- resources: [secrets]\n  providers:\n  - aescbc: {keys: [{name: " + name + ", secret: " + secret + "}]}\n  - kms: {name: vault}\n  - identity: {}\n")
	}
	need := map[string]int{"aescbc:key1": 3, "kms:vault": 1}
	for name, c := range map[string]struct {
		node, backup []byte
		need         map[string]int
		want         string
	}{
		"the same":               {conf("key1", "czE="), conf("key1", "czE="), need, ""},
		"backup without it":      {conf("key1", "czE="), nil, need, ""},
		"another name":           {conf("key2", "czI="), nil, need, "3 keys of the backup are stored encrypted with aescbc:key1"},
		"another secret":         {conf("key1", "czI="), conf("key1", "czE="), need, "with another secret"},
		"none on the node":       {nil, conf("key1", "czE="), need, "4 keys"},
		"nothing is encrypted":   {nil, conf("key1", "czE="), nil, ""},
		"a provider of tomorrow": {conf("key1", "czE="), nil, map[string]int{"unknown": 1}, "unknown"},
	} {
		found := encryptionFinding(&nodeState{target: target{Node: "cp1"}, encryption: c.node, encryptionFile: "/etc/kubernetes/enc.yaml"}, c.need, c.backup)
		if (len(found) > 0) != (c.want != "") || c.want != "" && (!strings.Contains(found[0].Message, c.want) || found[0].ID != EncryptionDiffers+"@cp1") {
			t.Errorf("%s: %+v, want %q", name, found, c.want)
		}
	}
	for value, want := range map[string]string{
		"k8s:enc:aescbc:v1:key1:\x00\x01": "aescbc:key1", "k8s:enc:kms:v2:vault:\x00": "kms:vault", "k8s:enc:new": "unknown", "k8s\x00\n": "", "": "",
	} {
		if got := encryptionOf([]byte(value)); got != want {
			t.Errorf("encryptionOf(%q) = %q, want %q", value, got, want)
		}
	}
}

func TestVersionOfTheNodesIsCompared(t *testing.T) {
	x := etcdRestore{sink: event.Discard, src: &backupSource{m: &Manifest{Version: kubeversion.MustParse("v1.36.3")}}}
	for image, want := range map[string]bool{
		"registry.k8s.io/kube-apiserver:v1.36.3": false, "registry.k8s.io/kube-apiserver:v1.36.9": false, "host:5000/kube-apiserver:v1.37.2": false,
		"registry.k8s.io/kube-apiserver:v1.35.4": true, "registry.k8s.io/kube-apiserver:v1.38.0@sha256:0123": true, "host:5000/kube-apiserver": false,
	} {
		if found := x.versionFinding(&nodeState{target: target{Node: "cp1"}, image: image}); (len(found) > 0) != want {
			t.Errorf("%s: %+v, want a finding: %v", image, found, want)
		}
	}
}

// lostHost is a machine that does not answer.
type lostHost struct{ *rootHost }

func (h lostHost) Run(_ context.Context, c host.Cmd) (host.Result, error) {
	return host.Result{}, &host.NotStartedError{Host: h.Name(), Argv: c.Argv, Err: errors.New("no route to host")}
}

func TestAWorkerThatIsDownDoesNotStandInTheWay(t *testing.T) {
	cp, worker := newRootHost(t, "cp1", ""), lostHost{newRootHost(t, "w1", "")}
	cp.put(t, etcdPKI+"server.crt", "x", 0o600)
	m := &Manifest{Etcd: &EtcdPart{Members: []EtcdMember{{Name: "cp1"}, {Name: "cp2"}}}}
	hosts, silent, err := EtcdHosts(t.Context(), m, []host.Host{cp, worker})
	if err != nil || len(hosts) != 1 || len(silent) != 1 || !strings.Contains(silent[0].Error(), "w1") {
		t.Errorf("hosts %v, silent %v, %v", hosts, silent, err)
	}
	if _, _, err := EtcdHosts(t.Context(), m, []host.Host{cp, lostHost{newRootHost(t, "cp2", "")}}); err == nil || !strings.Contains(err.Error(), "cp2") {
		t.Errorf("a control plane node that is down: %v", err)
	}
}

func TestNewerSnapshotIsNotGivenToOlderEtcd(t *testing.T) {
	for tag, ok := range map[string]bool{"3.6.8-0": false, "3.7.0-0": true, "3.8.1": true, "mirror": true} {
		err := versionFits(&EtcdPart{Version: "3.7.0"}, &target{Node: "cp1", EtcdImage: "registry.k8s.io/etcd:" + tag})
		if (err == nil) != ok {
			t.Errorf("snapshot of 3.7.0 for etcd %s: %v", tag, err)
		}
	}
}
