package backup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// freshMachine is a machine without a cluster. Its kubeadm knows the phases of
// init, and its kubelet runs an etcd member once it was started.
type freshMachine struct {
	*fakeNode
	address string
	certs   map[string]string
	// kubelet was started.
	started *bool
	phases  *[]string
}

func (m *freshMachine) Run(ctx context.Context, c host.Cmd) (host.Result, error) {
	m.mu.Lock()
	switch {
	case c.Argv[0] == "ip":
		defer m.mu.Unlock()
		return host.Result{Stdout: []byte("2: eth0    inet " + m.address + "/24 brd 10.0.0.255 scope global eth0\n")}, nil
	case strings.HasSuffix(c.Argv[0], "/kubeadm"):
		defer m.mu.Unlock()
		if *m.budget--; *m.budget <= 0 {
			return host.Result{}, &host.LostError{Host: m.Name(), Argv: c.Argv, Err: errCut}
		}
		if c.Argv[1] == "version" {
			return host.Result{Stdout: []byte("v1.36.3\n")}, nil
		}
		return host.Result{}, m.phase(strings.Join(c.Argv[3:len(c.Argv)-2], " "))
	}
	m.mu.Unlock()
	return m.fakeNode.Run(ctx, c)
}

// phase is one of kubeadm init's.
func (m *freshMachine) phase(name string) error {
	*m.phases = append(*m.phases, m.Name()+" "+name)
	has := func(p string) bool {
		_, err := os.Stat(filepath.Join(m.root, p))
		return err == nil
	}
	switch name {
	case "preflight":
		if has(manifestDir + "/etcd.yaml") {
			return errors.New("port 6443 is in use")
		}
	case "certs all":
		for _, k := range sharedKeys {
			if !has(k) {
				return fmt.Errorf("%s is not there", k)
			}
		}
		for to, data := range m.certs {
			m.put(m.t, to, data, 0o600)
		}
	case "etcd local":
		m.put(m.t, manifestDir+"/etcd.yaml", "apiVersion: v1\nkind: Pod\n", 0o600)
	case "control-plane all":
		for _, c := range controlPlaneComponents[:3] {
			m.put(m.t, manifestDir+"/"+c+".yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: x, command: [x, --v=2]}]}\n", 0o600)
		}
	case "kubelet-start":
		*m.started = true
		m.kubelet()
	case "kubeconfig all", "mark-control-plane", "kubelet-finalize all":
	default:
		return fmt.Errorf("phase %q is not known", name)
	}
	return nil
}

// lostCluster is a backup of a cluster whose only control plane node is gone, and the machines that are to take its place.
type lostCluster struct {
	api      *fakeAPI
	backup   *Backup
	machines []*freshMachine
	budget   int
	phases   []string
	access   *EtcdAccess
}

func newLostCluster(t *testing.T) *lostCluster {
	t.Helper()
	l := &lostCluster{budget: 1 << 30}
	f := newFixture(t)
	l.api = f.api
	pki, err := controlplane.NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string { return readPKI(t, pki, name) }
	endpoint := serveSecure(t, pki, l.api)
	// Addresses of this computer alone, which hardly anything else uses.
	address := func(i int) string { return fmt.Sprintf("127.77.%d.%d", os.Getpid()%250+1, i+1) }

	for _, k := range sharedKeys {
		f.host.put(t, k, "key "+k, 0o600)
	}
	f.host.put(t, "/etc/kubernetes/audit/policy.yaml", "kind: Policy\n", 0o640)
	f.host.put(t, "/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--node-ip="+address(9)+"\n", 0o644)
	f.host.put(t, "/var/lib/kubelet/kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--node-ip=`+address(9)+` --node-labels=rack=7"`, 0o600)
	f.host.put(t, pkiDir+"/apiserver.key", "of the lost machine", 0o600)
	f.host.put(t, manifestDir+"/kube-apiserver.yaml", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: x, command: [x, --advertise-address="+address(9)+", --v=4]}]}\n", 0o600)
	l.api.add("v1", "configmaps", "kube-system", "kubeadm-config", map[string]any{"data": map[string]any{
		"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nclusterName: demo\nkubernetesVersion: v1.36.3\ncontrolPlaneEndpoint: " + endpoint + "\n",
	}})
	l.api.add("v1", "configmaps", "kube-system", "kubelet-config", map[string]any{"data": map[string]any{"kubelet": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n"}})
	l.api.serve("v1", "nodes", "Node", false)
	l.backup = f.create(t)

	l.api.serve("coordination.k8s.io/v1", "leases", "Lease", true)
	for _, n := range []string{"cp1", "new1", "new2", "new3", "w1"} {
		l.api.add("v1", "nodes", "", n, map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
		lease := map[string]any{}
		l.api.add("coordination.k8s.io/v1", "leases", "kube-node-lease", n, lease)
		if n != "w1" { // whose kubelet does not come back
			lease["metadata"].(map[string]any)["resourceVersion"] = "2000000000"
		}
	}
	adminConf := adminKubeconfig(t, pki, "https://"+endpoint)
	mu := &sync.Mutex{}
	for i := range 3 {
		name := fmt.Sprintf("new%d", i+1)
		client := url.URL{Scheme: "https", Host: net.JoinHostPort(address(i), "2379")}
		peer := url.URL{Scheme: "https", Host: net.JoinHostPort(address(i), "2380")}
		n := &fakeNode{rootHost: newRootHost(t, name, client.Host), t: t, api: endpoint, mu: mu, budget: &l.budget}
		m := &freshMachine{fakeNode: n, address: address(i), started: new(bool), phases: &l.phases, certs: map[string]string{
			etcdPKI + "healthcheck-client.crt": read("etcd-client.crt"), etcdPKI + "healthcheck-client.key": read("etcd-client.key"),
			// The CA of this test's etcd members, who have nothing to do with the keys in the backup.
			etcdPKI + "ca.crt": read("ca.crt"), "/etc/kubernetes/admin.conf": adminConf,
		}}
		n.cfg = func() *embed.Config {
			c := memberConfig(pki, name, filepath.Join(n.root, "/var/lib/etcd"), client, peer)
			c.InitialCluster = name + "=" + peer.String() // as kubeadm writes it: the restored data knows better
			c.PeerTLSInfo = transport.TLSInfo{CertFile: pki.Path("etcd.crt"), KeyFile: pki.Path("etcd.key"), InsecureSkipVerify: true}
			return c
		}
		n.renew = func() { l.renew(t) }
		if err := os.MkdirAll(filepath.Join(n.root, "var/lib"), 0o755); err != nil {
			t.Fatal(err)
		}
		l.machines = append(l.machines, m)
		t.Cleanup(func() {
			if n.running != nil {
				n.running.Close()
			}
		})
	}
	tlsConf, err := ClientTLS([]byte(read("ca.crt")), []byte(read("etcd-client.crt")), []byte(read("etcd-client.key")))
	if err != nil {
		t.Fatal(err)
	}
	l.access = &EtcdAccess{TLS: tlsConf, Endpoints: []EtcdEndpoint{{Node: "new1", URL: "https://127.0.0.1:2379", Dial: l.machines[0].Dial}}}
	return l
}

// renew lets the controllers' leases be renewed, as controllers that work do.
func (l *lostCluster) renew(t *testing.T) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		cli, err := connect(l.access.Endpoints[0], l.access.TLS)
		if err != nil {
			t.Error(err)
			return
		}
		defer cli.Close()
		for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
			_, _ = cli.Put(ctx, "/registry/leases/kube-system/"+name, "renewed")
		}
	}()
}

func (l *lostCluster) options(t *testing.T) NewMachinesOptions {
	o := NewMachinesOptions{WorkersWait: time.Second, EtcdRestoreOptions: EtcdRestoreOptions{Journal: filepath.Join(t.TempDir(), "j", "new.jsonl"), Accept: []string{NotRestored}, Timeout: 20 * time.Second}}
	for _, m := range l.machines {
		o.Nodes = append(o.Nodes, NewNode{Host: m, Address: m.address})
	}
	return o
}

func (l *lostCluster) check(t *testing.T, r *EtcdRestoreReport) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cli, err := connect(l.access.Endpoints[0], l.access.TLS)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if got, err := cli.Get(ctx, "/registry/pods/shop/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count == 0 {
		t.Errorf("what was there before: %v, %v", got, err)
	}
	if list, err := cli.MemberList(ctx); err != nil || len(list.Members) != 3 {
		t.Errorf("members: %v, %v", list, err)
	}
	if want := []string{"new1", "new2", "new3"}; !slices.Equal(r.Members, want) || !slices.Equal(r.Silent, []string{"w1"}) || len(r.Kept) > 0 {
		t.Errorf("report: %+v", r)
	}
	if want := []string{`kube-apiserver --v was "4" and is "2"`}; len(r.Notes) != 2 || r.Notes[1] != want[0] || !strings.Contains(r.Notes[0], "--advertise-address") {
		t.Errorf("notes: %q", r.Notes)
	}
	if l.api.objects["/api/v1/nodes"]["/cp1"] != nil || l.api.objects["/api/v1/nodes"]["/w1"] == nil {
		t.Error("the lost node is still an object, or a worker is none")
	}
	for _, m := range l.machines {
		for p, want := range map[string]string{pkiDir + "/ca.key": "key " + pkiDir + "/ca.key", "/etc/kubernetes/audit/policy.yaml": "kind: Policy\n", pkiDir + "/apiserver.key": "", restoreConfig: ""} {
			if b, _ := os.ReadFile(filepath.Join(m.root, p)); string(b) != want {
				t.Errorf("%s: %s holds %q, want %q", m.Name(), p, b, want)
			}
		}
	}
}

func TestRestoreOntoNewMachines(t *testing.T) {
	l := newLostCluster(t)
	o := l.options(t)
	prepared := 0
	var mu sync.Mutex
	o.Prepare = func(_ context.Context, _ host.Host, v kubeversion.V, owner string) error {
		mu.Lock()
		defer mu.Unlock()
		if prepared++; v.Bare() != "1.36.3" || owner != "demo/"+fakeUID {
			t.Errorf("prepare for %s, %s", v, owner)
		}
		return nil
	}
	// Refused, with nothing changed: a machine that is a node, an address that it does not have, an old control plane that lives.
	l.machines[1].put(t, "/etc/kubernetes/kubelet.conf", "x", 0o600)
	if _, err := RestoreNewMachines(t.Context(), l.backup.Dir, o); err == nil || !strings.Contains(err.Error(), "kubeadm reset") {
		t.Errorf("a machine that is a node: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(l.machines[1].root, "etc")); err != nil {
		t.Fatal(err)
	}
	wrong := o
	wrong.Nodes = slices.Clone(o.Nodes)
	wrong.Nodes[0].Address = "192.0.2.7"
	if _, err := RestoreNewMachines(t.Context(), l.backup.Dir, wrong); err == nil || !strings.Contains(err.Error(), "192.0.2.7") {
		t.Errorf("an address that the machine does not have: %v", err)
	}
	old, err := net.Listen("tcp", net.JoinHostPort(strings.TrimSuffix(l.machines[0].address, "1")+"10", "2379"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = RestoreNewMachines(t.Context(), l.backup.Dir, o)
	if blocked := (*BlockedError)(nil); !errors.As(err, &blocked) || blocked.Findings[0].ID != ControlPlaneLives+"@cp1" {
		t.Errorf("while the old control plane answers: %v, want a *BlockedError", err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if len(l.phases) > 0 || prepared > 0 {
		t.Errorf("something was done: %v", l.phases)
	}
	r, err := RestoreNewMachines(t.Context(), l.backup.Dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if prepared != 3 {
		t.Errorf("%d machines were prepared", prepared)
	}
	l.check(t, r)
}

// The connection is lost after every few commands; every next call goes on.
func TestRestoreOntoNewMachinesIsResumed(t *testing.T) {
	l := newLostCluster(t)
	o := l.options(t)
	for try := 1; ; try++ {
		l.budget = 14 + 3*try
		r, err := RestoreNewMachines(t.Context(), l.backup.Dir, o)
		if err == nil {
			l.budget = 1 << 30
			l.check(t, r)
			if try < 4 {
				t.Errorf("it was hardly ever cut: %d calls", try)
			}
			t.Logf("finished at call %d", try)
			return
		}
		if !errors.Is(err, errCut) || try == 60 {
			t.Fatalf("call %d: %v", try, err)
		}
	}
}
