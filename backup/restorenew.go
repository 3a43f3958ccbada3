package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
)

// NewNode is a machine that becomes a control plane node.
type NewNode struct {
	// Host's name becomes the node's.
	Host host.Host
	// Address is the machine's IP address, by which the other nodes reach it.
	Address string
	// IgnorePreflight are kubeadm's preflight checks that cannot pass there.
	IgnorePreflight []string
}

// NewMachinesOptions say which machines a cluster's control plane is made anew on.
type NewMachinesOptions struct {
	// EtcdRestoreOptions, but for Hosts, which are those of Nodes. Journal is another
	// file than for a restore in place, and Accept may hold ControlPlaneLives@NODE.
	EtcdRestoreOptions
	Nodes []NewNode
	// Prepare puts containerd, kubelet, kubeadm and images of the version onto a
	// machine; nil when that was done already. owner marks the machine as this
	// cluster's, so that it may be prepared again after an interruption.
	Prepare func(ctx context.Context, h host.Host, v kubeversion.V, owner string) error
	// WorkersWait is how long the other nodes' kubelets have to report again; 0
	// means 90 seconds: they renew their lease every ten, and wait up to thirty
	// between attempts to connect.
	WorkersWait time.Duration
}

// ControlPlaneLives is the waiver for making a control plane anew although the old one answers.
const ControlPlaneLives = "old-control-plane-answers"

// Where kubeadm keeps what all control plane nodes share, and cannot be made anew.
const pkiDir = kubeadm.PKIDir

// sharedKeys are the cluster's identity: everything else in the PKI is signed with it.
var sharedKeys = []string{
	pkiDir + "/ca.crt", pkiDir + "/ca.key", pkiDir + "/sa.pub", pkiDir + "/sa.key",
	pkiDir + "/front-proxy-ca.crt", pkiDir + "/front-proxy-ca.key", etcdPKI + "ca.crt", etcdPKI + "ca.key",
}

// kubeadmSigns are the certificates that kubeadm makes anew for each machine, without their extension.
var kubeadmSigns = []string{
	pkiDir + "/apiserver", pkiDir + "/apiserver-kubelet-client", pkiDir + "/apiserver-etcd-client", pkiDir + "/front-proxy-client",
	etcdPKI + "server", etcdPKI + "peer", etcdPKI + "healthcheck-client",
}

// belongsToMachine says of a file in a node part that it is made anew on the
// new machine, or is the machine's own business.
func belongsToMachine(p string) bool {
	ext := path.Ext(p)
	switch {
	case path.Dir(p) == manifestDir && slices.Contains(controlPlaneComponents, strings.TrimSuffix(path.Base(p), ".yaml")),
		path.Dir(p) == "/etc/kubernetes" && ext == ".conf",
		(ext == ".crt" || ext == ".key") && slices.Contains(kubeadmSigns, strings.TrimSuffix(p, ext)):
		return true
	}
	for _, dir := range []string{"/etc/containerd/", "/var/lib/kubelet/", "/etc/systemd/", "/usr/lib/systemd/"} {
		if strings.HasPrefix(p, dir) {
			return true
		}
	}
	return p == "/etc/crictl.yaml"
}

// lostNode is a control plane node of the backup.
type lostNode struct {
	name string
	// address is what its apiserver advertised.
	address string
}

// newMachines is a RestoreNewMachines under way.
type newMachines struct {
	etcdRestore
	no      NewMachinesOptions
	nodes   map[string]NewNode
	lost    []lostNode
	version kubeversion.V
	// cluster and kubelet are the configurations that kubeadm kept in the API.
	cluster, kubelet []byte
	endpoint         string
	dataDir          string
	apiPort          int
	etcdPrefix       string
}

// RestoreNewMachines makes the control plane of a kubeadm cluster anew on
// machines that were not part of it, for when all control plane nodes are lost:
// the cluster's keys, its etcd data with one new membership of all new machines
// and the revision moved forward, and what kubeadm makes of both. Workers come
// back by themselves when the control plane's endpoint leads to the new machines.
//
// Each step is journaled and can be repeated: after a kill the same call goes on.
func RestoreNewMachines(ctx context.Context, dir string, o NewMachinesOptions) (*EtcdRestoreReport, error) {
	if len(o.Nodes) == 0 {
		return nil, errors.New("restore onto new machines: no machine was given")
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Minute
	}
	if o.WorkersWait <= 0 {
		o.WorkersWait = 90 * time.Second
	}
	x := &newMachines{no: o, nodes: map[string]NewNode{}}
	eo := o.EtcdRestoreOptions
	eo.Hosts = nil
	for _, n := range o.Nodes {
		eo.Hosts = append(eo.Hosts, n.Host)
		x.nodes[n.Host.Name()] = n
	}
	x.etcdRestore = newEtcdRestore(eo)
	x.prefix, x.learn, x.lookAt, x.plan = "rebuild-", x.readBackup, x.survey, x.steps
	r, err := x.restore(ctx, dir)
	if err == nil {
		r.Notes, err = x.flagDifferences(ctx)
	}
	return r, err
}

// survey reads the backup and looks at every machine, before anything is changed.
func (x *newMachines) survey(ctx context.Context) ([]target, error) {
	if err := x.checkLost(ctx); err != nil {
		return nil, err
	}
	var out []target
	for _, n := range x.no.Nodes {
		t := target{Node: n.Host.Name(), Member: n.Host.Name(), Address: n.Address, PeerURL: "https://" + net.JoinHostPort(n.Address, "2380"), DataDir: x.dataDir, APIPort: x.apiPort, EtcdPrefix: x.etcdPrefix}
		if err := x.checkMachine(ctx, n, t); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b target) int { return strings.Compare(a.Node, b.Node) })
	if len(out) < len(x.lost) || len(out)%2 == 0 {
		x.warn(fmt.Sprintf("the cluster had %d control plane nodes and gets %d; add others afterwards with kubeadm join --control-plane", len(x.lost), len(out)))
	}
	return out, nil
}

func (x *newMachines) warn(msg string) {
	x.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Run: x.run, Msg: msg})
}

// readBackup finds in the backup what is needed.
func (x *newMachines) readBackup() error {
	m := x.src.m
	if m.Etcd == nil {
		return errors.New("the backup holds no etcd snapshot; a cluster cannot be made anew from objects alone")
	}
	cm, err := x.configMap("kubeadm-config")
	if err != nil {
		return err
	}
	x.cluster = []byte(cm.Data["ClusterConfiguration"])
	if cm, err = x.configMap("kubelet-config"); err != nil {
		return err
	}
	x.kubelet = []byte(cm.Data["kubelet"])
	var conf struct {
		KubernetesVersion    string `json:"kubernetesVersion"`
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
		Etcd                 struct {
			Local *struct {
				DataDir string `json:"dataDir"`
			} `json:"local"`
			External *struct{} `json:"external"`
		} `json:"etcd"`
	}
	if err := yaml.Unmarshal(x.cluster, &conf); err != nil {
		return fmt.Errorf("the backup's ClusterConfiguration: %w", err)
	}
	if conf.Etcd.External != nil {
		return errors.New("the cluster's etcd is external: restore the snapshot there with etcdutl, then make the control plane anew with kubeadm init")
	}
	if x.version, err = kubeversion.Parse(conf.KubernetesVersion); err != nil {
		return fmt.Errorf("the backup's ClusterConfiguration: %w", err)
	}
	if x.version.Compare(m.Version) != 0 {
		// Taken in the middle of an upgrade: what the older one cannot read may be stored already.
		return fmt.Errorf("the backup is of the middle of an upgrade: an apiserver of %s answered, and kubeadm's record says %s; use a backup from before or after the upgrade", m.Version, x.version)
	}
	x.dataDir, x.endpoint = "/var/lib/etcd", conf.ControlPlaneEndpoint
	if l := conf.Etcd.Local; l != nil && l.DataDir != "" {
		x.dataDir = path.Clean(l.DataDir)
	}
	if err := x.readLost(); err != nil {
		return err
	}
	return x.checkEndpoint()
}

// configMap reads one of kubeadm's ConfigMaps in the backup.
func (x *newMachines) configMap(name string) (*corev1.ConfigMap, error) {
	want := "config/kube-system_" + name + ".yaml"
	f := x.src.m.File(want)
	if f == nil {
		f = x.src.m.File(want + ageSuffix)
	}
	if f == nil {
		return nil, fmt.Errorf("the backup does not hold ConfigMap kube-system/%s, which a kubeadm cluster has", name)
	}
	b, err := x.read(f)
	if err != nil {
		return nil, err
	}
	var cm corev1.ConfigMap
	if err := yaml.Unmarshal(b, &cm); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	return &cm, nil
}

// read gives a file of the backup in the clear.
func (x *newMachines) read(f *File) ([]byte, error) {
	v := &verification{o: VerifyOptions{Identities: x.o.Identities}, dir: x.src.dir, m: x.src.m}
	return v.read(f)
}

// readLost finds the control plane nodes of the backup, and their ports.
func (x *newMachines) readLost() error {
	x.lost, x.apiPort = nil, 6443
	for i := range x.src.m.Files {
		f := &x.src.m.Files[i]
		node, ok := manifestOf(f, "kube-apiserver")
		if !ok {
			continue
		}
		manifest, err := x.read(f)
		if err != nil {
			return err
		}
		address, _, err := apiserverFlag(manifest, "advertise-address")
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		port, _, err := apiserverFlag(manifest, "secure-port")
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if x.etcdPrefix, _, err = apiserverFlag(manifest, "etcd-prefix"); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if port != "" {
			if x.apiPort, err = strconv.Atoi(port); err != nil {
				return fmt.Errorf("%s: --secure-port=%s", f.Path, port)
			}
		}
		x.lost = append(x.lost, lostNode{node, address})
	}
	if len(x.lost) == 0 {
		return errors.New("the backup holds no files of control plane nodes: it was taken without access to them (--inventory), and the cluster's keys are in no other place")
	}
	_, err := x.keySource()
	return err
}

// keySource gives the node part that holds all of the cluster's keys.
func (x *newMachines) keySource() (string, error) {
	var missing []string
	for _, n := range x.lost {
		missing = nil
		for _, k := range sharedKeys {
			if x.src.m.sourceFile(n.name, k) == nil {
				missing = append(missing, k)
			}
		}
		if len(missing) == 0 {
			return n.name, nil
		}
	}
	return "", fmt.Errorf("the backup does not hold %s: an external authority signs this cluster's certificates, and new machines need theirs from it", strings.Join(missing, ", "))
}

// checkEndpoint refuses an endpoint that can never lead to the new machines.
func (x *newMachines) checkEndpoint() error {
	if x.endpoint == "" {
		// kubeadm then had every node use the first control plane node's own address.
		x.endpoint = net.JoinHostPort(x.lost[0].address, strconv.Itoa(x.apiPort))
	}
	hostname, _, err := net.SplitHostPort(x.endpoint)
	if err != nil {
		hostname = x.endpoint
		x.endpoint = net.JoinHostPort(hostname, strconv.Itoa(x.apiPort))
	}
	for _, n := range x.no.Nodes {
		if net.ParseIP(n.Address) == nil {
			return fmt.Errorf("machine %s: address %q is no IP address; certificates and etcd need the one by which the other nodes reach it", n.Host.Name(), n.Address)
		}
		if n.Address == hostname {
			return nil
		}
	}
	for _, l := range x.lost {
		if l.address == hostname {
			return fmt.Errorf("the nodes reach the control plane at %s, which was %s's own address: give one of the new machines that address", x.endpoint, l.name)
		}
	}
	return nil
}

// checkLost asks, from a new machine, whether the control plane is really lost.
func (x *newMachines) checkLost(ctx context.Context) error {
	from := x.no.Nodes[0].Host
	var found []Blocker
	for _, l := range x.lost {
		if l.address == "" || slices.ContainsFunc(x.no.Nodes, func(n NewNode) bool { return n.Address == l.address }) || slices.Contains(x.o.Accept, ControlPlaneLives+"@"+l.name) {
			continue
		}
		for _, port := range []string{"2379", strconv.Itoa(x.apiPort)} {
			dctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			conn, err := from.Dial(dctx, "tcp", net.JoinHostPort(l.address, port))
			cancel()
			if err != nil {
				continue
			}
			found = append(found, Blocker{
				ID: ControlPlaneLives + "@" + l.name, Message: fmt.Sprintf("%s (%s) answers on port %s: two control planes of one cluster would work against each other", l.name, l.address, port),
				Remedy: "shut it down for good, or restore in place with --etcd and without --onto",
			})
			if err := conn.Close(); err != nil {
				return err
			}
			break
		}
	}
	if len(found) > 0 {
		return blockedRestore(found...)
	}
	return ctx.Err()
}

// checkMachine refuses a machine that is a node already, or has no room.
func (x *newMachines) checkMachine(ctx context.Context, n NewNode, t target) error {
	for _, p := range []string{kubeadm.AdminKubeconfig, kubeadm.KubeletKubeconfig, manifestDir + "/kube-apiserver.yaml", x.dataDir + "/member"} {
		there, err := exists(ctx, n.Host, p)
		if err != nil {
			return err
		}
		if there {
			return fmt.Errorf("%s has a Kubernetes node on it (%s is there): take another machine, or run there, if nothing of it is needed: kubeadm reset", t.Node, p)
		}
	}
	out, err := n.Host.Run(ctx, host.Cmd{Argv: []string{"ip", "-o", "addr", "show"}})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(strings.Fields(string(out.Stdout)), func(s string) bool { a, _, _ := strings.Cut(s, "/"); return a == t.Address }) {
		return fmt.Errorf("machine %s does not have the address %s: give the one by which the other nodes reach it", t.Node, t.Address)
	}
	return x.checkRoom(ctx, n.Host, "/var/lib")
}

func (x *newMachines) steps() []restoreStep {
	each := func(f func(context.Context, target, host.Host) error) func(context.Context) error {
		return func(ctx context.Context) error { return x.onEach(ctx, f) }
	}
	phases := func(phases ...[]string) func(context.Context) error {
		return each(func(ctx context.Context, t target, h host.Host) error { return x.phases(ctx, t, h, phases...) })
	}
	steps := []restoreStep{
		{"prepare", "install containerd, kubelet, kubeadm and images of " + x.version.Bare() + " on the new machines", each(x.prepare)},
		{"preflight", "let kubeadm check the new machines", phases([]string{"preflight"})},
		{"keys", "put the cluster's keys and configuration onto the new machines", each(x.keys)},
	}
	for _, t := range x.targets {
		steps = append(steps, restoreStep{"data/" + t.Node, "make etcd's data of the snapshot and send it to " + t.Node, func(ctx context.Context) error { return x.data(ctx, t, x.hosts[t.Node]) }})
	}
	return append(steps,
		restoreStep{"swap", "move etcd's data into place", each(x.swap)},
		restoreStep{"certificates", "sign certificates for the new machines with the cluster's keys", phases([]string{"certs", "all"}, []string{"kubeconfig", "all"})},
		restoreStep{"manifests/etcd", "write the static pods of etcd", phases([]string{"etcd", "local"})},
		restoreStep{"kubelet", "start the kubelets of the new machines", phases([]string{"kubelet-start"})},
		// Before any apiserver: it writes, and compacts what was restored within minutes.
		restoreStep{"quorum", "wait until every etcd member serves exactly the backup's keys", x.quorum},
		restoreStep{"manifests", "write the static pods of the control plane", phases([]string{"control-plane", "all"})},
		restoreStep{"apiserver-ready", "wait until every kube-apiserver is ready", each(x.apiReady)},
		restoreStep{"endpoint", "wait until " + x.endpoint + " leads to the new control plane", x.endpointLeadsHere},
		restoreStep{"nodes", "mark the new control plane nodes, forget the lost ones", x.nodeObjects},
		restoreStep{"verify", "prove that controllers, scheduler and kubelets work again", x.verifyNodes},
	)
}

// owner marks a machine as this cluster's.
func (x *newMachines) owner() string { return x.src.m.Cluster + "/" + x.src.m.Lineage }

func (x *newMachines) prepare(ctx context.Context, _ target, h host.Host) error {
	if x.no.Prepare != nil {
		if err := x.no.Prepare(ctx, h, x.version, x.owner()); err != nil {
			return err
		}
	}
	out, err := h.Run(ctx, host.Cmd{Argv: kubeadm.VersionArgv()})
	if err != nil {
		return fmt.Errorf("%w; kubeadm, kubelet and containerd must be there with --prepared", err)
	}
	have, err := kubeadm.ParseVersion(out.Stdout)
	if err != nil {
		return err
	}
	if have.Compare(x.version) != 0 {
		return fmt.Errorf("kubeadm there is %s and the cluster runs %s: install that version", have, x.version)
	}
	return nil
}

// restoreConfig is kubeadm's configuration on a new machine while the restore goes on. It holds no secrets.
const restoreConfig = "/etc/kubernetes/belay-restore.yaml"

// phases runs phases of kubeadm init, which leave alone what is there and good.
func (x *newMachines) phases(ctx context.Context, t target, h host.Host, phases ...[]string) error {
	n := kubeadm.Node{Name: t.Node, Address: t.Address, IgnorePreflight: x.nodes[t.Node].IgnorePreflight}
	args, err := x.kubeletArgs(t)
	if err != nil {
		return err
	}
	conf, err := kubeadm.RenderRestore(n, t.APIPort, args, x.cluster, x.kubelet)
	if err != nil {
		return err
	}
	if err := h.WriteFile(ctx, restoreConfig, conf, 0o600); err != nil {
		return err
	}
	for _, p := range phases {
		if err := run(ctx, h, kubeadm.InitPhaseArgv(restoreConfig, p...)...); err != nil {
			return err
		}
	}
	return nil
}

// sourceOf gives the lost node whose files a new machine gets: the one of its name, else the one with the keys.
func (x *newMachines) sourceOf(t target) (string, error) {
	if slices.ContainsFunc(x.lost, func(l lostNode) bool { return l.name == t.Node }) {
		return t.Node, nil
	}
	return x.keySource()
}

// machinesOwn are kubelet flags that kubeadm sets of itself, or that only fit the machine that is lost.
var machinesOwn = []string{"--container-runtime-endpoint", "--node-ip", "--hostname-override", "--pod-infra-container-image"}

// kubeletArgs gives the flags that the lost node's kubelet had beyond kubeadm's own.
func (x *newMachines) kubeletArgs(t target) ([]string, error) {
	from, err := x.sourceOf(t)
	if err != nil {
		return nil, err
	}
	f := x.src.m.sourceFile(from, kubeadm.KubeletFlagsEnv)
	if f == nil {
		return nil, nil
	}
	b, err := x.read(f)
	if err != nil {
		return nil, err
	}
	_, value, _ := strings.Cut(strings.TrimSpace(string(b)), "=")
	var out []string
	for a := range strings.FieldsSeq(strings.Trim(value, `"'`)) {
		name, _, ok := strings.Cut(a, "=")
		if ok && strings.HasPrefix(name, "--") && !slices.Contains(machinesOwn, name) {
			out = append(out, a)
		}
	}
	return out, nil
}

// keys puts the cluster's keys onto a machine, and every other file of a
// control plane node that kubeadm does not make.
func (x *newMachines) keys(ctx context.Context, t target, h host.Host) error {
	keys, err := x.keySource()
	if err != nil {
		return err
	}
	from, err := x.sourceOf(t)
	if err != nil {
		return err
	}
	for i := range x.src.m.Files {
		f := &x.src.m.Files[i]
		node, ok := nodeOf(f)
		shared := slices.Contains(sharedKeys, f.Source)
		if !ok || shared && node != keys || !shared && (node != from || belongsToMachine(f.Source)) {
			continue
		}
		b, err := x.read(f)
		if err != nil {
			return err
		}
		if !shared {
			if name := x.namesLost(b); name != "" {
				x.warn(fmt.Sprintf("%s: %s names %s, which is lost: it was put back as it was, look at it", t.Node, f.Source, name))
			}
		}
		mode := f.Mode
		if mode == 0 {
			mode = 0o600
		}
		if err := h.WriteFile(ctx, f.Source, b, mode); err != nil {
			return err
		}
	}
	return run(ctx, h, "mkdir", "-p", "-m", "0700", t.DataDir)
}

// nodeOf says of which node a file is.
func nodeOf(f *File) (string, bool) {
	parts := strings.SplitN(f.Path, "/", 3)
	if f.Source == "" || len(parts) < 3 || parts[0] != "nodes" {
		return "", false
	}
	return parts[1], true
}

// namesLost gives the name or address of a lost node that a text holds, "" for none.
func (x *newMachines) namesLost(text []byte) string {
	words := strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" \t\n\"',=/[]{}()", r) })
	for _, l := range x.lost {
		if slices.ContainsFunc(x.no.Nodes, func(n NewNode) bool { return n.Address == l.address && n.Host.Name() == l.name }) {
			continue
		}
		for _, w := range words {
			if w == l.name || w == l.address || strings.HasPrefix(w, l.address+":") {
				return w
			}
		}
	}
	return ""
}

// endpointLeadsHere waits until the name or address that all nodes know leads
// to the new control plane. Moving it there is the operator's.
func (x *newMachines) endpointLeadsHere(ctx context.Context) error {
	t := x.targets[0]
	h := x.hosts[t.Node]
	api, err := endpointAPI(ctx, x.endpoint, h)
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	var addresses []string
	for _, t := range x.targets {
		addresses = append(addresses, net.JoinHostPort(t.Address, strconv.Itoa(t.APIPort)))
	}
	told := false
	return condition.Wait(ctx, condition.Condition{Name: "the control plane's endpoint " + x.endpoint + " to lead to " + strings.Join(addresses, ", "), Check: func(ctx context.Context) error {
		raw, err := api.get(ctx, "/api/v1/namespaces/kube-system")
		if err != nil {
			return err
		}
		id, err := identify(raw)
		if err == nil && id.UID != x.src.m.Lineage {
			err = &LineageError{What: "what answers there", Got: id.UID, Want: x.src.m.Lineage}
		}
		return err
	}}, condition.Options{Timeout: x.o.Timeout, Interval: time.Second, Attempt: 5 * time.Second, OnChange: func(why string) {
		if !told {
			told = true
			x.sink.Emit(event.Event{Time: time.Now(), Type: event.Note, Run: x.run, Msg: "point the balancer or name " + x.endpoint + " at " + strings.Join(addresses, ", ") + ", if that was not done yet (" + why + ")"})
		}
	}})
}

// endpointAPI gives access to the control plane as its nodes reach it, from one of them.
func endpointAPI(ctx context.Context, endpoint string, h host.Host) (*apiClient, error) {
	data, err := h.ReadFile(ctx, kubeadm.AdminKubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeadm.AdminKubeconfig, err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kubeadm.AdminKubeconfig, err)
	}
	cfg.Host = "https://" + endpoint
	cfg.Dial = h.Dial
	return newAPIClient(cfg)
}

// nodeObjects marks the new nodes as kubeadm does, and removes the Node objects
// of the lost ones: their pods are collected then, and nothing waits for them.
func (x *newMachines) nodeObjects(ctx context.Context) error {
	err := x.onEach(ctx, func(ctx context.Context, t target, h host.Host) error {
		return x.phases(ctx, t, h, []string{"mark-control-plane"}, []string{"kubelet-finalize", "all"})
	})
	if err != nil {
		return err
	}
	api, err := nodeAPI(ctx, x.targets[0], x.hosts[x.targets[0].Node])
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	for _, l := range x.lost {
		if x.nodes[l.name].Host != nil {
			continue
		}
		u := api.base.JoinPath("/api/v1/nodes/" + l.name)
		if _, err := api.do(ctx, "DELETE", u.String(), "", nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("remove node %s: %w", l.name, err)
		}
	}
	return x.onEach(ctx, func(ctx context.Context, _ target, h host.Host) error { return run(ctx, h, "rm", "-f", restoreConfig) })
}

// verifyNodes proves that the control plane works, that the new nodes are ready,
// and tells which of the old nodes report again.
func (x *newMachines) verifyNodes(ctx context.Context) error {
	if err := x.verify(ctx); err != nil {
		return err
	}
	api, err := nodeAPI(ctx, x.targets[0], x.hosts[x.targets[0].Node])
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	wait := func(name string, timeout time.Duration, mine bool) error {
		return condition.Wait(ctx, condition.Condition{Name: name, Check: func(ctx context.Context) error {
			waiting, err := x.notReporting(ctx, api, mine)
			x.r.Silent = waiting
			if err == nil && len(waiting) > 0 {
				err = condition.NotYetf("%s", strings.Join(waiting, ", "))
			}
			return err
		}}, condition.Options{Timeout: timeout, Interval: 2 * time.Second, Attempt: 10 * time.Second})
	}
	if err := wait("the new nodes to be ready", x.o.Timeout, true); err != nil {
		return err
	}
	err = wait("the other nodes' kubelets to report again", x.no.WorkersWait, false)
	if err != nil && errors.Is(err, condition.ErrNotYet) && ctx.Err() == nil {
		// The control plane is whole; what a lone kubelet lacks is not this restore's to mend.
		x.warn("these nodes' kubelets do not report yet: " + strings.Join(x.r.Silent, ", ") + "; see there: journalctl -u kubelet")
		err = nil
	}
	return err
}

// notReporting names the nodes, of the new ones or of all others, that are not
// ready by a heartbeat that is younger than the restored data.
func (x *newMachines) notReporting(ctx context.Context, api *apiClient, mine bool) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	_, err := api.list(ctx, "/api/v1/nodes", "", func(raw json.RawMessage) error {
		var n corev1.Node
		if err := json.Unmarshal(raw, &n); err != nil {
			return err
		}
		seen[n.Name] = true
		if (x.nodes[n.Name].Host != nil) != mine {
			return nil
		}
		ready := false
		for _, c := range n.Status.Conditions {
			ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}
		if !ready {
			out = append(out, n.Name)
			return nil
		}
		// The status in the snapshot says ready, too.
		lease, err := x.leaseOf(ctx, api, n.Name)
		if err != nil {
			return err
		}
		if rv, err := strconv.ParseInt(lease, 10, 64); err != nil || rv <= x.r.Revision {
			out = append(out, n.Name)
		}
		return nil
	})
	if mine {
		for _, t := range x.targets {
			if !seen[t.Node] {
				out = append(out, t.Node)
			}
		}
	}
	return out, err
}

// leaseOf gives the revision at which a node's lease was last renewed, "" for none.
func (x *newMachines) leaseOf(ctx context.Context, api *apiClient, node string) (string, error) {
	raw, err := api.get(ctx, "/apis/coordination.k8s.io/v1/namespaces/"+corev1.NamespaceNodeLease+"/leases/"+node)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var o metav1.PartialObjectMetadata
	return o.ResourceVersion, json.Unmarshal(raw, &o)
}

// differences tells in which flags the new static pods differ from the lost
// ones beyond names and addresses: what was edited by hand is in no configuration.
func (x *newMachines) flagDifferences(ctx context.Context) ([]string, error) {
	t := x.targets[0]
	from, err := x.sourceOf(t)
	if err != nil {
		return nil, err
	}
	was := lostNode{}
	for _, l := range x.lost {
		if l.name == from {
			was = l
		}
	}
	var out []string
	for _, c := range controlPlaneComponents {
		p := manifestDir + "/" + c + ".yaml"
		f := x.src.m.sourceFile(from, p)
		if f == nil {
			continue
		}
		before, err := x.read(f)
		if err != nil {
			return nil, err
		}
		after, err := x.hosts[t.Node].ReadFile(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s: read %s: %w", t.Node, p, err)
		}
		old, err := podFlags(before)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		now, err := podFlags(after)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", t.Node, p, err)
		}
		for name, v := range old {
			want := strings.NewReplacer(was.name, t.Node, was.address, t.Address).Replace(v)
			// A member that joined was told of the others; the restored data knows them.
			if strings.HasPrefix(name, "--initial-cluster") || now[name] == want {
				continue
			}
			out = append(out, fmt.Sprintf("%s %s was %q and is %q", c, name, v, now[name]))
		}
	}
	slices.Sort(out)
	return out, nil
}

// podFlags gives the flags of a static pod's containers.
func podFlags(manifest []byte) (map[string]string, error) {
	var pod corev1.Pod
	if err := yaml.Unmarshal(manifest, &pod); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, c := range pod.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if name, value, _ := strings.Cut(arg, "="); strings.HasPrefix(name, "--") {
				out[name] = value
			}
		}
	}
	return out, nil
}
