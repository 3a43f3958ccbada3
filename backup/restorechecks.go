package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// What look finds on nodes has these IDs, followed by "@" and the node's or the member's name.
const (
	// EncryptionDiffers: the node's apiserver could not read what the backup holds.
	EncryptionDiffers = "encryption-config"
	// VersionDiffers: the node's apiserver is not of the backup's version.
	VersionDiffers = "apiserver-version"
	// MemberMissing: etcd had a member that none of the given nodes runs.
	MemberMissing = "etcd-member-missing"
)

// nodeState is what one control plane node has, before anything is stopped.
type nodeState struct {
	target
	// ca is the cluster's CA certificate, image what the apiserver runs.
	ca    []byte
	image string
	// encryption is the EncryptionConfiguration, and encryptionFile where it lies; empty without.
	encryption     []byte
	encryptionFile string
}

// look reads what each node runs, and whether it is the backup's cluster and
// has room, before anything is stopped. All that stands in the way is told at once.
func (x *etcdRestore) look(ctx context.Context) ([]target, error) {
	nodes := make([]nodeState, len(x.o.Hosts))
	g, gctx := errgroup.WithContext(ctx)
	for i, h := range x.o.Hosts {
		g.Go(func() (err error) {
			if nodes[i], err = readNodeState(gctx, h); err != nil {
				return err
			}
			if err := versionFits(x.src.m.Etcd, &nodes[i].target); err != nil {
				return err
			}
			return x.checkRoom(gctx, h, nodes[i].DataDir)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(nodes, func(a, b nodeState) int { return strings.Compare(a.Node, b.Node) })
	names := map[string]string{}
	var out []target
	for _, n := range nodes {
		if other := names[n.Member]; other != "" {
			return nil, fmt.Errorf("nodes %s and %s both run an etcd member named %s", other, n.Node, n.Member)
		}
		names[n.Member] = n.Node
		out = append(out, n.target)
	}
	var err error
	if x.etcd, err = DiscoverEtcd(ctx, x.o.Hosts, ""); err != nil {
		return nil, err
	}
	live := readLiveEtcd(ctx, x.etcd, etcdRoot(out[0].EtcdPrefix))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if !live.answered {
		// That is what a restore is for.
		x.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Msg: "no etcd member answers: whether the given nodes are all of them is judged by the members at the time of the backup"})
	}
	if err := live.withoutHome(out); err != nil {
		return nil, err
	}
	kept, err := x.keptCA()
	if err != nil {
		return nil, err
	}
	backed, err := (&verification{o: VerifyOptions{Identities: x.o.Identities}, dir: x.src.dir, m: x.src.m}).apiserverSettings()
	if err != nil {
		return nil, err
	}
	found := x.identityFindings(nodes, live, kept)
	found = append(found, membersFindings(x.src.m.Etcd, live, out)...)
	for i := range nodes {
		found = append(found, encryptionFinding(&nodes[i], x.encrypted, backed.encryption)...)
		found = append(found, x.versionFinding(&nodes[i])...)
	}
	var open []Blocker
	for _, b := range found {
		if slices.Contains(x.o.Accept, b.ID) {
			x.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Subject: b.ID, Msg: "accepted: " + b.Message})
			continue
		}
		open = append(open, b)
	}
	if len(open) > 0 {
		return nil, blockedRestore(open...)
	}
	return out, nil
}

func readNodeState(ctx context.Context, h host.Host) (nodeState, error) {
	t, err := readTarget(ctx, h)
	n := nodeState{target: t}
	if err != nil {
		return n, err
	}
	const ca = pkiDir + "/ca.crt"
	if n.ca, err = h.ReadFile(ctx, ca); err != nil {
		return n, fmt.Errorf("%s: read %s: %w", h.Name(), ca, err)
	}
	manifest, err := h.ReadFile(ctx, manifestDir+"/kube-apiserver.yaml")
	if err != nil {
		return n, fmt.Errorf("%s: %w", h.Name(), err)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal(manifest, &pod); err != nil {
		return n, fmt.Errorf("%s: kube-apiserver.yaml: %w", h.Name(), err)
	}
	if len(pod.Spec.Containers) > 0 {
		n.image = pod.Spec.Containers[0].Image
	}
	named, file, err := apiserverFlag(manifest, "encryption-provider-config")
	if err != nil {
		return n, fmt.Errorf("%s: kube-apiserver.yaml: %w", h.Name(), err)
	}
	if named == "" {
		return n, nil
	}
	n.encryptionFile = file
	if n.encryption, err = h.ReadFile(ctx, file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return n, fmt.Errorf("%s: read %s: %w", h.Name(), file, err)
	}
	return n, nil
}

// etcdRoot is what all keys of an apiserver with that --etcd-prefix begin with.
func etcdRoot(prefix string) string {
	if prefix = strings.Trim(prefix, "/"); prefix == "" {
		prefix = "registry"
	}
	return "/" + prefix
}

// liveEtcd is what the members say that still answer.
type liveEtcd struct {
	answered bool
	members  []*etcdserverpb.Member
	// uid is kube-system's, empty when nobody has it in the clear.
	uid string
}

// readLiveEtcd asks every member for what it has by itself: there may be no quorum.
func readLiveEtcd(ctx context.Context, access *EtcdAccess, root string) liveEtcd {
	var out liveEtcd
	for _, ep := range access.Endpoints {
		if out.uid != "" || ctx.Err() != nil {
			break
		}
		ask(ctx, ep, access, func(ctx context.Context, cli *clientv3.Client) {
			// The list of a member that lost touch may be old; that of a quorum is not.
			agreed, cancel := context.WithTimeout(ctx, memberTimeout/3)
			list, err := cli.MemberList(agreed)
			cancel()
			if err != nil {
				list, err = cli.MemberList(ctx, clientv3.WithSerializable())
			}
			if err != nil {
				return
			}
			out.answered, out.members = true, list.Members
			r, err := cli.Get(ctx, root+"/namespaces/kube-system", clientv3.WithSerializable())
			if err == nil && len(r.Kvs) > 0 {
				out.uid = namespaceUID(r.Kvs[0].Value)
			}
		})
	}
	return out
}

// ask works with a client of one member, when that answers.
func ask(ctx context.Context, ep EtcdEndpoint, access *EtcdAccess, f func(context.Context, *clientv3.Client)) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	// gRPC would try until its time is over.
	if ep.Dial != nil && tryDial(ctx, ep) != nil {
		return
	}
	cli, err := connect(ep, access.TLS)
	if err != nil {
		return
	}
	defer func() { _ = cli.Close() }()
	f(ctx, cli)
}

// withoutHome refuses to leave out a member that the cluster has: it would go
// on with the old data and the old quorum.
func (l liveEtcd) withoutHome(targets []target) error {
	for _, k := range l.members {
		if !hasHome(k.GetName(), k.GetPeerURLs(), targets) {
			return fmt.Errorf("etcd member %s (%s) runs on none of the given nodes; a restore takes all members: add its node to the inventory, or remove the member", k.GetName(), strings.Join(k.GetPeerURLs(), ", "))
		}
	}
	return nil
}

func hasHome(name string, peers []string, targets []target) bool {
	return slices.ContainsFunc(targets, func(t target) bool { return t.Member == name || slices.Contains(peers, t.PeerURL) })
}

// membersFindings goes by the backup's members where none can be asked now.
func membersFindings(e *EtcdPart, live liveEtcd, targets []target) []Blocker {
	if live.answered {
		return nil
	}
	var out []Blocker
	for _, k := range e.Members {
		if hasHome(k.Name, k.Peers, targets) {
			continue
		}
		out = append(out, Blocker{
			ID: MemberMissing + "@" + k.Name, Message: fmt.Sprintf("no etcd member answers, and member %s (%s), which was there at the time of the backup, runs on none of the given nodes: it would go on with the old data", k.Name, strings.Join(k.Peers, ", ")),
			Remedy: "add its node to the inventory, or make sure that it is gone for good",
		})
	}
	return out
}

// keptCA gives the cluster's CA certificate in the backup, nil when it holds none.
func (x *etcdRestore) keptCA() ([]byte, error) {
	for i := range x.src.m.Files {
		f := &x.src.m.Files[i]
		if f.Source != pkiDir+"/ca.crt" {
			continue
		}
		r, err := x.src.m.open(x.src.dir, f, x.o.Identities)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(r, maxNodeFile))
		return b, errors.Join(err, r.Close())
	}
	return nil, nil
}

// identityFindings says why the nodes are not known to be the backup's
// cluster: by the UID of namespace kube-system that etcd holds, and by the CA
// under which the restored tokens and certificates are good.
func (x *etcdRestore) identityFindings(nodes []nodeState, live liveEtcd, kept []byte) []Blocker {
	var out []Blocker
	add := func(format string, args ...any) {
		out = append(out, Blocker{ID: OtherCluster, Message: fmt.Sprintf(format, args...), Remedy: "check the inventory and the backup"})
	}
	if live.uid != "" && live.uid != x.src.m.Lineage {
		add("etcd on the given nodes is another cluster's: its kube-system has UID %s, the backup's %s", live.uid, x.src.m.Lineage)
	}
	for _, n := range nodes {
		if kept != nil && string(kept) != string(n.ca) {
			add("node %s has another cluster CA than the one in the backup", n.Node)
		}
	}
	if live.uid == "" && kept == nil {
		add("whether the given nodes are the backup's cluster cannot be told: the backup holds no files of its nodes, and no etcd member says which cluster this is")
	}
	return out
}

// encryptionFinding says whether the node's apiserver has the keys of what the snapshot holds.
func encryptionFinding(n *nodeState, need map[string]int, backed []byte) []Blocker {
	have, was := encryptionKeys(n.encryption), encryptionKeys(backed)
	var lacking []string
	keys := 0
	for _, k := range slices.Sorted(maps.Keys(need)) {
		secret, ok := have[k]
		if old, known := was[k]; ok && (!known || old == secret) {
			continue
		}
		if ok {
			k += " (with another secret)"
		}
		lacking = append(lacking, k)
		keys += need[strings.TrimSuffix(k, " (with another secret)")]
	}
	if len(lacking) == 0 {
		return nil
	}
	where := "its apiserver has no --encryption-provider-config"
	if n.encryptionFile != "" {
		where = n.encryptionFile + " does not have it"
	}
	remedy := "add the key that was in use then to every control plane node"
	if backed != nil {
		remedy = "put back the file that is in the backup, under nodes/, on every control plane node"
	}
	return []Blocker{{
		ID:      EncryptionDiffers + "@" + n.Node,
		Message: fmt.Sprintf("%d keys of the backup are stored encrypted with %s, and %s: nobody could read them", keys, strings.Join(lacking, ", "), where), Remedy: remedy,
	}}
}

// encryptionKeys gives the secret of every key of an EncryptionConfiguration, by
// provider and name as in "aescbc:key1"; for a KMS plugin, which keeps its own, an empty one.
func encryptionKeys(config []byte) map[string]string {
	type keys struct {
		Keys []struct{ Name, Secret string } `json:"keys"`
	}
	var c struct {
		Resources []struct {
			Providers []struct {
				AESCBC    *keys `json:"aescbc"`
				AESGCM    *keys `json:"aesgcm"`
				Secretbox *keys `json:"secretbox"`
				KMS       *struct {
					Name string `json:"name"`
				} `json:"kms"`
			} `json:"providers"`
		} `json:"resources"`
	}
	if err := yaml.Unmarshal(config, &c); err != nil {
		return nil // no key is known then
	}
	out := map[string]string{}
	for _, r := range c.Resources {
		for _, p := range r.Providers {
			for name, k := range map[string]*keys{"aescbc": p.AESCBC, "aesgcm": p.AESGCM, "secretbox": p.Secretbox} {
				if k == nil {
					continue
				}
				for _, key := range k.Keys {
					out[name+":"+key.Name] = key.Secret
				}
			}
			if p.KMS != nil {
				out["kms:"+p.KMS.Name] = ""
			}
		}
	}
	return out
}

// versionFinding compares the version of the node's apiserver with the
// backup's. An older one may not read what a newer one stored; one that is a
// minor newer reads it as it does in an upgrade, and further ones may have dropped kinds.
func (x *etcdRestore) versionFinding(n *nodeState) []Blocker {
	_, tag, _ := strings.Cut(n.image[strings.LastIndex(n.image, "/")+1:], ":")
	tag, _, _ = strings.Cut(tag, "@")
	v, err := kubeversion.Parse(tag)
	if err != nil {
		x.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Subject: n.Node, Msg: fmt.Sprintf("the version of kube-apiserver on %s cannot be told from its image %q; the backup is of %s", n.Node, n.image, x.src.m.Version)})
		return nil
	}
	was := x.src.m.Version
	steps := int(v.Minor) - int(was.Minor)
	switch {
	case steps < 0, steps > 1:
		return []Blocker{{
			ID: VersionDiffers + "@" + n.Node, Message: fmt.Sprintf("kube-apiserver on %s is %s, and the backup's data was stored by %s", n.Node, v, was),
			Remedy: "put back the static pod manifests of that version, which are in the backup under nodes/",
		}}
	case steps == 1:
		x.sink.Emit(event.Event{Time: time.Now(), Type: event.Warning, Subject: n.Node, Msg: fmt.Sprintf("kube-apiserver on %s is %s, and kubeadm's record in the backup will say %s: plan the upgrade anew afterwards", n.Node, v, was)})
	}
	return nil
}
