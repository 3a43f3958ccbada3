package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
)

// EtcdEndpoint is one member's client URL and how to reach it.
type EtcdEndpoint struct {
	// Node is the control plane node that runs it; empty for an external etcd.
	Node string
	// URL is the client URL as seen by Dial.
	URL string
	// Dial makes the connection; nil dials from here.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// EtcdAccess is how to reach the members of an etcd cluster.
type EtcdAccess struct {
	Endpoints []EtcdEndpoint
	// TLS has the client certificate; nil for plain HTTP.
	TLS *tls.Config
}

// maxLag is how many raft entries a member may be behind before a snapshot of it is refused.
// Members that are asked one after the other differ by what was written in between.
const maxLag = 1000

// memberTimeout bounds one question to one member.
const memberTimeout = 10 * time.Second

// etcdPKI is where kubeadm keeps etcd's certificates.
const etcdPKI = "/etc/kubernetes/pki/etcd/"

// clientCerts are the client certificates that kubeadm makes for etcd, in the order they are tried.
var clientCerts = [][2]string{
	{etcdPKI + "healthcheck-client.crt", etcdPKI + "healthcheck-client.key"},
	{"/etc/kubernetes/pki/apiserver-etcd-client.crt", "/etc/kubernetes/pki/apiserver-etcd-client.key"},
}

// DiscoverEtcd finds out how to reach the etcd of a kubeadm cluster through
// its control plane nodes. Keys are read into memory and nowhere else.
// clusterConfiguration is that entry of ConfigMap kubeadm-config; it may be empty.
func DiscoverEtcd(ctx context.Context, hosts []host.Host, clusterConfiguration string) (*EtcdAccess, error) {
	var conf struct {
		Etcd struct {
			External *struct {
				Endpoints                 []string
				CAFile, CertFile, KeyFile string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(clusterConfiguration), &conf); err != nil {
		return nil, fmt.Errorf("read ClusterConfiguration of ConfigMap kube-system/kubeadm-config: %w", err)
	}
	if ext := conf.Etcd.External; ext != nil {
		return externalEtcd(ctx, hosts, ext.Endpoints, ext.CAFile, ext.CertFile, ext.KeyFile)
	}
	a := &EtcdAccess{}
	var errs []error
	for _, h := range hosts {
		if a.TLS == nil {
			conf, err := stackedTLS(ctx, h)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			a.TLS = conf
		}
	}
	if a.TLS == nil {
		return nil, errors.Join(errs...)
	}
	for _, h := range hosts {
		// The serving certificate that kubeadm makes is good for 127.0.0.1.
		a.Endpoints = append(a.Endpoints, EtcdEndpoint{Node: h.Name(), URL: "https://127.0.0.1:2379", Dial: h.Dial})
	}
	return a, nil
}

func stackedTLS(ctx context.Context, h host.Host) (*tls.Config, error) {
	for _, pair := range clientCerts {
		conf, err := readTLS(ctx, h, etcdPKI+"ca.crt", pair[0], pair[1])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return conf, err
	}
	return nil, fmt.Errorf("%s: no client certificate for etcd: neither %s nor %s is there", h.Name(), clientCerts[0][0], clientCerts[1][0])
}

func externalEtcd(ctx context.Context, hosts []host.Host, endpoints []string, ca, cert, key string) (*EtcdAccess, error) {
	if len(endpoints) == 0 {
		return nil, errors.New("kubeadm-config names an external etcd without endpoints")
	}
	var errs []error
	for _, h := range hosts {
		a := &EtcdAccess{}
		for _, e := range endpoints {
			a.Endpoints = append(a.Endpoints, EtcdEndpoint{URL: e, Dial: h.Dial})
		}
		if strings.HasPrefix(endpoints[0], "http:") {
			return a, nil
		}
		conf, err := readTLS(ctx, h, ca, cert, key)
		if err == nil {
			a.TLS = conf
			return a, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func readTLS(ctx context.Context, h host.Host, ca, cert, key string) (*tls.Config, error) {
	var pem [3][]byte
	for i, p := range []string{ca, cert, key} {
		b, err := h.ReadFile(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s: read %s: %w", h.Name(), p, err)
		}
		pem[i] = b
	}
	conf, err := ClientTLS(pem[0], pem[1], pem[2])
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", h.Name(), cert, err)
	}
	return conf, nil
}

// ClientTLS makes a client's configuration of PEM data. An expired certificate
// is an error here, since the server's refusal would not say why.
func ClientTLS(ca, cert, key []byte) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the CA file holds no certificate")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil && time.Now().After(leaf.NotAfter) {
		return nil, &ExpiredError{Subject: leaf.Subject.String(), NotAfter: leaf.NotAfter}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

// ExpiredError is a client certificate past its end.
type ExpiredError struct {
	Subject  string
	NotAfter time.Time
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the client certificate of %s expired at %s; renew it with kubeadm certs renew", e.Subject, e.NotAfter.UTC().Format(time.RFC3339))
}

// BlockedError is a finding that stands in the way of a backup, or of a restore, and can be waived by its ID.
type BlockedError struct {
	Findings []Blocker
	// Undone says what was not done; empty means that no backup was taken.
	Undone string
}

// Blocker is one such finding.
type Blocker struct {
	// ID is what a waiver names: etcd-alarm@NOSPACE, etcd-member-lags@cp1.
	ID string
	// Message says what is wrong, Remedy what mends it.
	Message, Remedy string
}

func blockedRestore(found ...Blocker) error {
	return &BlockedError{Findings: found, Undone: "nothing was restored"}
}

func (e *BlockedError) Error() string {
	var b strings.Builder
	b.WriteString(cmp.Or(e.Undone, "no backup was taken") + ":")
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\n  %s: %s; %s (or go on with --accept=%s)", f.ID, f.Message, f.Remedy, f.ID)
	}
	return b.String()
}

// member is one endpoint with an open client and what it said.
type member struct {
	EtcdEndpoint
	cli    *clientv3.Client
	status *clientv3.StatusResponse
	err    error
}

func (m *member) name() string { return cmp.Or(m.Node, m.URL) }

func (m *member) close() error {
	if m.cli == nil {
		return nil
	}
	return m.cli.Close()
}

// connect opens a client that talks to this one endpoint only.
func connect(ep EtcdEndpoint, conf *tls.Config) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Endpoints: []string{ep.URL}, DialTimeout: memberTimeout, Logger: zap.NewNop(),
		MaxCallRecvMsgSize: 64 << 20,
	}
	if conf != nil {
		cfg.TLS = conf.Clone()
	}
	if ep.Dial != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			u, err := url.Parse(ep.URL)
			if err != nil {
				return nil, err
			}
			return ep.Dial(ctx, "tcp", u.Host)
		}))
	}
	return clientv3.New(cfg)
}

// etcdCluster is what was learned of all members before one is chosen.
type etcdCluster struct {
	members []*member
	// known is the member list as the cluster has it.
	known     []*etcdserverpb.Member
	clusterID uint64
}

func (c *etcdCluster) close() error {
	var errs []error
	for _, m := range c.members {
		errs = append(errs, m.close())
	}
	return errors.Join(errs...)
}

// survey asks every endpoint for its state.
func survey(ctx context.Context, a *EtcdAccess) (*etcdCluster, error) {
	c := &etcdCluster{}
	var wg sync.WaitGroup
	for _, ep := range a.Endpoints {
		m := &member{EtcdEndpoint: ep}
		c.members = append(c.members, m)
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, memberTimeout)
			defer cancel()
			if m.Dial != nil {
				// The reason why a connection fails is lost within gRPC, so it is tried once outside.
				if err := tryDial(ctx, m.EtcdEndpoint); err != nil {
					m.err = err
					return
				}
			}
			if m.cli, m.err = connect(ep, a.TLS); m.err != nil {
				return
			}
			if m.status, m.err = m.cli.Status(ctx, ep.URL); m.err != nil {
				// gRPC tries again until its time is over, and forgets why.
				if why := handshake(ep, a.TLS); why != nil {
					m.err = why
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), c.close())
	}
	var errs []error
	for _, m := range c.members {
		if m.err != nil {
			errs = append(errs, fmt.Errorf("etcd member on %s: %w", m.name(), m.err))
			continue
		}
		if c.known != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, memberTimeout)
		list, err := m.cli.MemberList(ctx)
		cancel()
		if err != nil {
			m.err = err
			errs = append(errs, fmt.Errorf("etcd member on %s: list members: %w", m.name(), err))
			continue
		}
		c.known, c.clusterID = list.Members, list.Header.GetClusterId()
	}
	if c.known == nil {
		return nil, errors.Join(append(errs, c.close())...)
	}
	return c, nil
}

func tryDial(ctx context.Context, ep EtcdEndpoint) error {
	u, err := url.Parse(ep.URL)
	if err != nil {
		return fmt.Errorf("etcd endpoint: %w", err)
	}
	conn, err := ep.Dial(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	return conn.Close()
}

// handshake connects once as a client of etcd does, and gives the reason why that fails, if it does.
func handshake(ep EtcdEndpoint, conf *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	u, err := url.Parse(ep.URL)
	if err != nil {
		return err
	}
	dial := ep.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if conf == nil {
		return nil
	}
	conf = conf.Clone()
	conf.ServerName, conf.NextProtos = u.Hostname(), []string{"h2"}
	c := tls.Client(conn, conf)
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	// A server that does not take the client's certificate says so after the handshake.
	if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	if alert := tls.AlertError(0); errors.As(err, &alert) {
		return err
	}
	if refused := (*net.OpError)(nil); errors.As(err, &refused) && refused.Op == "remote error" {
		return err
	}
	return nil
}

func (m *member) isLeader() bool {
	return m.status.Leader == m.status.Header.GetMemberId()
}

// lag is how many entries m is behind the furthest committed one that any member told.
func (c *etcdCluster) lag(m *member) uint64 {
	var top uint64
	for _, o := range c.members {
		if o.err == nil {
			top = max(top, o.status.RaftIndex)
		}
	}
	return top - min(top, m.status.RaftAppliedIndex)
}

// best gives the healthiest member to read a snapshot from: a follower that is
// up to date before the leader, which has more to do. nil when none will do.
func (c *etcdCluster) best() *member {
	var ok []*member
	for _, m := range c.members {
		if m.err == nil && !m.status.IsLearner && m.status.Leader != 0 {
			ok = append(ok, m)
		}
	}
	if len(ok) == 0 {
		return nil
	}
	return slices.MinFunc(ok, func(a, b *member) int {
		return cmp.Or(
			cmp.Compare(boolInt(c.lag(a) > maxLag), boolInt(c.lag(b) > maxLag)),
			cmp.Compare(boolInt(a.isLeader()), boolInt(b.isLeader())),
			cmp.Compare(c.lag(a), c.lag(b)),
		)
	})
}

// choose gives the best member, and what was found. Findings that stand in the
// way are an error unless accept names them.
func (c *etcdCluster) choose(ctx context.Context, accept []string) (*member, []Blocker, error) {
	m := c.best()
	if m == nil {
		return nil, nil, errors.New("no etcd member that answered is a voting member with a leader: the cluster has no quorum")
	}
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	alarms, err := m.cli.AlarmList(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("etcd member on %s: list alarms: %w", m.name(), err)
	}
	var found []Blocker
	for _, a := range alarms.Alarms {
		kind := a.Alarm.String()
		remedy := "see etcdctl alarm list; replace the member if its data is damaged"
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE {
			remedy = "free space with etcdctl compact and defrag, then etcdctl alarm disarm"
		}
		found = append(found, Blocker{
			ID:      "etcd-alarm@" + kind,
			Message: fmt.Sprintf("etcd member %x has raised the alarm %s", a.MemberID, kind), Remedy: remedy,
		})
	}
	if lag := c.lag(m); lag > maxLag {
		found = append(found, Blocker{
			ID:      "etcd-member-lags@" + m.name(),
			Message: fmt.Sprintf("the best etcd member is %d entries behind", lag), Remedy: "wait until it has caught up, or mend the others",
		})
	}
	var open []Blocker
	for _, b := range found {
		if !slices.Contains(accept, b.ID) {
			open = append(open, b)
		}
	}
	if len(open) > 0 {
		return nil, found, &BlockedError{Findings: open}
	}
	return m, found, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// trailerWriter passes on everything and keeps the digest of all but the last
// 32 bytes, which are the digest that etcd appends. Hashing is most of the work
// of a snapshot, so every byte is hashed once.
type trailerWriter struct {
	w    io.Writer
	body hash.Hash
	tail []byte
	n    int64
}

func newTrailerWriter(w io.Writer) *trailerWriter {
	return &trailerWriter{w: w, body: sha256.New(), tail: make([]byte, 0, 2*sha256.Size)}
}

func (t *trailerWriter) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.add(p[:n])
	return n, err
}

func (t *trailerWriter) add(p []byte) {
	t.n += int64(len(p))
	if len(p) >= sha256.Size {
		t.body.Write(t.tail)
		t.body.Write(p[:len(p)-sha256.Size])
		t.tail = append(t.tail[:0], p[len(p)-sha256.Size:]...)
		return
	}
	t.tail = append(t.tail, p...)
	if over := len(t.tail) - sha256.Size; over > 0 {
		t.body.Write(t.tail[:over])
		t.tail = append(t.tail[:0], t.tail[over:]...)
	}
}

// sum gives the digest of everything that was written, in hexadecimal.
func (t *trailerWriter) sum() (string, error) {
	c, ok := t.body.(hash.Cloner)
	if !ok {
		return "", errors.New("this SHA-256 cannot be copied")
	}
	all, err := c.Clone()
	if err != nil {
		return "", err
	}
	all.Write(t.tail)
	return hex.EncodeToString(all.Sum(nil)), nil
}

// check compares the appended digest with the content's. The database is made
// of whole pages, so a length that leaves no 32 bytes over has no digest.
func (t *trailerWriter) check() error {
	if t.n%512 != sha256.Size {
		return fmt.Errorf("the stream ended after %d bytes, which leaves no digest at its end", t.n)
	}
	if got := t.body.Sum(nil); !slices.Equal(got, t.tail) {
		return fmt.Errorf("the content's digest is %x, etcd says %x", got, t.tail)
	}
	return nil
}

// stream copies a snapshot of the member to w and checks it against the digest that etcd appends.
// The client library's own Save checks only the length.
func (m *member) stream(ctx context.Context, w io.Writer, progress func(int64)) (*trailerWriter, string, error) {
	resp, err := m.cli.SnapshotWithVersion(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("snapshot of etcd member on %s: %w", m.name(), err)
	}
	t := newTrailerWriter(w)
	err, werr := pump(resp.Snapshot, t, progress)
	if werr != nil {
		return nil, "", errors.Join(werr, resp.Snapshot.Close())
	}
	cerr := resp.Snapshot.Close()
	if !errors.Is(err, io.EOF) {
		return nil, "", fmt.Errorf("snapshot of etcd member on %s: broke off after %d bytes: %w; see to that member (crictl logs, journalctl) and take the backup again: another one is read while it does not answer", m.name(), t.n, err)
	}
	if cerr != nil {
		return nil, "", fmt.Errorf("snapshot of etcd member on %s: %w", m.name(), cerr)
	}
	if err := t.check(); err != nil {
		return nil, "", fmt.Errorf("snapshot of etcd member on %s: %w; take it again", m.name(), err)
	}
	return t, resp.Version, nil
}

// pump copies r to w until r ends, and gives r's last error, io.EOF for a whole stream, and w's. Reading and writing go on side by side, with a few
// large pieces between them: etcd sends 32 KiB at a time, and would wait while w hashes. Both are over when pump returns.
func pump(r io.Reader, w io.Writer, progress func(int64)) (rerr, werr error) {
	const pieces, size = 4, 1 << 20
	full, free := make(chan []byte, pieces), make(chan []byte, pieces)
	for range pieces {
		free <- make([]byte, size)
	}
	failed, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		for piece := range full {
			if werr == nil {
				if _, werr = w.Write(piece); werr != nil {
					close(failed)
				}
			}
			free <- piece[:size]
		}
	}()
	var read int64
	last := time.Now()
	for rerr == nil {
		piece := <-free
		n := 0
		for n < len(piece) && rerr == nil {
			var k int
			k, rerr = r.Read(piece[n:])
			n += k
		}
		full <- piece[:n]
		if read += int64(n); time.Since(last) > time.Second {
			last = time.Now()
			progress(read)
		}
		select {
		case <-failed:
			rerr = errors.New("it was not read to its end")
		default:
		}
	}
	close(full)
	<-finished
	return rerr, werr
}

// liveEqual is what EtcdPart.LiveCounts holds when the counts agree.
const liveEqual = "equal"

// compareLive compares the counts of a snapshot with those of the live member
// at the same revision. It gives liveEqual, or why the member could not tell.
func (m *member) compareLive(ctx context.Context, c Contents) (string, error) {
	count := func(key string, opts ...clientv3.OpOption) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		// Serializable: it is this member's own data that is asked for.
		r, err := m.cli.Get(ctx, key, append(opts, clientv3.WithCountOnly(), clientv3.WithRev(c.Revision), clientv3.WithSerializable())...)
		if err != nil {
			return 0, err
		}
		return int(r.Count), nil
	}
	var problems []string
	differs := func(what string, file, live int) {
		if file != live {
			problems = append(problems, fmt.Sprintf("%s: %d keys in the snapshot, %d in the member", what, file, live))
		}
	}
	total, err := count("\x00", clientv3.WithFromKey())
	if err == nil {
		differs("all", c.TotalKeys, total)
		other := total
		for prefix, n := range c.Counts {
			if prefix == OtherKeys {
				continue
			}
			var live int
			if live, err = count(prefix, clientv3.WithPrefix()); err != nil {
				break
			}
			differs(prefix, n, live)
			other -= live
		}
		if err == nil {
			differs(OtherKeys, c.Counts[OtherKeys], other)
		}
	}
	if errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Sprintf("revision %d was compacted before it could be counted", c.Revision), nil
	}
	if err != nil {
		return "", fmt.Errorf("count keys of etcd member on %s: %w", m.name(), err)
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return "", fmt.Errorf("the snapshot of etcd member on %s does not hold what the member holds at revision %d: %s", m.name(), c.Revision, strings.Join(problems, "; "))
	}
	return liveEqual, nil
}

func emitProgress(sink event.Sink, step, subject string) func(int64) {
	return func(n int64) {
		sink.Emit(event.Event{Time: time.Now(), Type: event.StepProgress, Step: step, Subject: subject, Msg: fmt.Sprintf("etcd snapshot from %s: %d MiB so far", subject, n>>20)})
	}
}
