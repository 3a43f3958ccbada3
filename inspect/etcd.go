package inspect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// errNoAnswer marks a machine that was asked before, in vain.
var errNoAnswer = errors.New("did not answer")

// etcdAccess is how a control plane's apiserver reaches etcd, and through which machine.
type etcdAccess struct {
	host      host.Host
	node      string
	endpoints []string
	tls       *tls.Config
}

// etcd asks every member for itself, through the machines of the control plane.
func (ob *observer) etcd(ctx context.Context, machines map[string]host.Host) {
	s := ob.state
	var apis []*cluster.Node
	for i := range s.Nodes {
		if s.Nodes[i].StaticPod("kube-apiserver") != nil {
			apis = append(apis, &s.Nodes[i])
		}
	}
	for _, what := range []string{"nodes", "pods"} {
		if i := slices.IndexFunc(s.Unread, func(u cluster.Unread) bool { return u.What == what }); i >= 0 && len(apis) == 0 {
			ob.add(cluster.Unread{What: "etcd", Kind: s.Unread[i].Kind, Why: what + " could not be read, so that it is not known where etcd runs"})
			return
		}
	}
	if len(apis) == 0 {
		ob.add(cluster.Unread{What: "etcd", Kind: cluster.UnreadNotFound, Why: "no node runs kube-apiserver as a static pod: the control plane is managed, or of another kind"})
		return
	}
	if ob.hostOf == nil {
		ob.add(cluster.Unread{What: "etcd", Kind: cluster.UnreadNotAsked, Why: "etcd is reached through the control plane's machines, and no access to them was configured"})
		return
	}
	var ways []etcdAccess
	var errs []error
	for _, n := range apis {
		h, ok := machines[n.Name]
		if !ok {
			errs = append(errs, fmt.Errorf("the machine of node %s %w", n.Name, errNoAnswer))
			continue
		}
		w, err := ob.access(ctx, h, n)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		ways = append(ways, w)
	}
	if len(ways) == 0 {
		ob.unread("etcd", errors.Join(errs...))
		return
	}
	var members []cluster.EtcdMember
	for _, w := range ways {
		m, err := ob.members(ctx, w)
		if err == nil {
			members = m
			break
		}
		errs = append(errs, fmt.Errorf("member list through node %s: %w", w.node, err))
	}
	if members == nil {
		ob.unread("etcd", errors.Join(errs...))
		return
	}
	s.Etcd.Reached = true
	for i := range members {
		m := &members[i]
		for _, n := range apis {
			if m.Name == n.Name && n.StaticPod("etcd") != nil || slices.ContainsFunc(m.PeerURLs, func(u string) bool { return hostOfURL(u) == n.InternalIP && n.InternalIP != "" }) {
				m.Node = n.Name
			}
		}
	}
	// Each member is asked through its own machine where there is one, and through any other else.
	var g errgroup.Group
	g.SetLimit(ob.o.Parallel)
	var mu sync.Mutex
	for i := range members {
		m := &members[i]
		g.Go(func() error {
			w := ways[0]
			if j := slices.IndexFunc(ways, func(w etcdAccess) bool { return w.node == m.Node }); j >= 0 {
				w = ways[j]
			}
			alarms, clusterVersion, revision, err := ob.status(ctx, w, m)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				m.Healthy, m.Problem = false, oneLine(err.Error())
				ob.unread("etcd/member/"+cmp.Or(m.Name, m.ID), err)
				return nil
			}
			s.Etcd.Revision = max(s.Etcd.Revision, revision)
			s.Etcd.ClusterVersion = cmp.Or(s.Etcd.ClusterVersion, clusterVersion)
			for _, a := range alarms {
				if !slices.Contains(s.Etcd.Alarms, a) {
					s.Etcd.Alarms = append(s.Etcd.Alarms, a)
				}
			}
			return nil
		})
	}
	_ = g.Wait() // every error is with its member
	s.Etcd.Members = members
	s.Etcd.External = s.Etcd.External || !slices.ContainsFunc(apis, func(n *cluster.Node) bool { return n.StaticPod("etcd") != nil })
}

// access reads the client certificate that the apiserver uses for etcd. Key and certificate stay in memory.
func (ob *observer) access(ctx context.Context, h host.Host, n *cluster.Node) (etcdAccess, error) {
	ctx, cancel := context.WithTimeout(ctx, ob.o.HostTimeout)
	defer cancel()
	args := n.StaticPod("kube-apiserver").Args
	w := etcdAccess{host: h, node: n.Name, endpoints: strings.Split(cmp.Or(argOf(args, "etcd-servers"), "https://127.0.0.1:2379"), ",")}
	if !strings.HasPrefix(w.endpoints[0], "https://") {
		return w, nil
	}
	files := []string{
		cmp.Or(argOf(args, "etcd-cafile"), "/etc/kubernetes/pki/etcd/ca.crt"),
		cmp.Or(argOf(args, "etcd-certfile"), "/etc/kubernetes/pki/apiserver-etcd-client.crt"),
		cmp.Or(argOf(args, "etcd-keyfile"), "/etc/kubernetes/pki/apiserver-etcd-client.key"),
	}
	data := make([][]byte, len(files))
	g, gctx := errgroup.WithContext(ctx)
	for i, f := range files {
		g.Go(func() (err error) {
			data[i], err = h.ReadFile(gctx, f)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return w, fmt.Errorf("certificates for etcd: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data[0]) {
		return w, fmt.Errorf("%w: no certificate in %s", errMalformed, files[0])
	}
	pair, err := tls.X509KeyPair(data[1], data[2])
	if err != nil {
		return w, fmt.Errorf("%w: %s and %s: %w", errMalformed, files[1], files[2], err)
	}
	w.tls = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	return w, nil
}

func (ob *observer) client3(ctx context.Context, w etcdAccess, endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: w.tls, Context: ctx, DialTimeout: ob.o.EtcdTimeout, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return w.host.Dial(ctx, "tcp", addr)
		})},
	})
}

func (ob *observer) members(ctx context.Context, w etcdAccess) (out []cluster.EtcdMember, err error) {
	ctx, cancel := context.WithTimeout(ctx, ob.o.EtcdTimeout)
	defer cancel()
	c, err := ob.client3(ctx, w, w.endpoints)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closed(c.Close())) }()
	// Not linearizable: without quorum, who the members are is what one wants to know most.
	res, err := c.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return nil, err
	}
	for _, m := range res.Members {
		out = append(out, cluster.EtcdMember{ID: strconv.FormatUint(m.ID, 16), Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: an empty member list", errMalformed)
	}
	return out, nil
}

// closed forgets that a context ended while a connection was closed.
func closed(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// status asks one member, and no other, for itself.
func (ob *observer) status(ctx context.Context, w etcdAccess, m *cluster.EtcdMember) (alarms []cluster.EtcdAlarm, clusterVersion string, revision int64, err error) {
	if len(m.ClientURLs) == 0 {
		return nil, "", 0, errors.New("it has no client URL: it was added and never started")
	}
	ctx, cancel := context.WithTimeout(ctx, ob.o.EtcdTimeout)
	defer cancel()
	endpoint := m.ClientURLs[0]
	c, err := ob.client3(ctx, w, []string{endpoint})
	if err != nil {
		return nil, "", 0, err
	}
	defer func() { err = errors.Join(err, closed(c.Close())) }()
	st, err := c.Status(ctx, endpoint)
	if err != nil {
		return nil, "", 0, fmt.Errorf("%s: %w", endpoint, err)
	}
	id := strconv.FormatUint(st.Header.MemberId, 16)
	if id != m.ID {
		return nil, "", 0, fmt.Errorf("%w: at %s answers member %s", errMalformed, endpoint, id)
	}
	if m.Version, err = kubeversion.Parse(st.Version); err != nil {
		return nil, "", 0, fmt.Errorf("%w: version: %w", errMalformed, err)
	}
	m.Learner, m.Leader = st.IsLearner, st.Leader == st.Header.MemberId
	m.DBSize, m.DBSizeInUse, m.Quota = st.DbSize, st.DbSizeInUse, st.DbSizeQuota
	m.RaftIndex, m.RaftApplied = st.RaftIndex, st.RaftAppliedIndex
	m.Healthy = true
	var problems []string
	if st.Leader == 0 {
		problems = append(problems, "it has no leader")
	}
	problems = append(problems, st.Errors...)
	if !m.Learner {
		// A linearizable read proves that this member reaches a quorum; a status does not.
		if _, err := c.Get(ctx, "health"); err != nil {
			problems = append(problems, "a linearizable read failed: "+oneLine(err.Error()))
		}
	}
	if al, err := c.AlarmList(ctx); err == nil {
		for _, a := range al.Alarms {
			alarms = append(alarms, cluster.EtcdAlarm{MemberID: strconv.FormatUint(a.MemberID, 16), Alarm: a.Alarm.String()})
		}
	} else if !m.Learner {
		problems = append(problems, "its alarms could not be read: "+oneLine(err.Error()))
	}
	if cv, err := ob.clusterVersion(ctx, w, endpoint); err == nil {
		clusterVersion = cv
	}
	if len(problems) > 0 {
		m.Healthy, m.Problem = false, strings.Join(problems, "; ")
	}
	return alarms, clusterVersion, st.Header.Revision, nil
}

// clusterVersion is what the members agreed on. Once it is a new minor, old binaries refuse the data.
func (ob *observer) clusterVersion(ctx context.Context, w etcdAccess, endpoint string) (v string, err error) {
	tr := &http.Transport{TLSClientConfig: w.tls, DialContext: w.host.Dial, DisableKeepAlives: true, TLSHandshakeTimeout: 5 * time.Second}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(endpoint, "/")+"/version", nil)
	if err != nil {
		return "", err
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	var body struct {
		Cluster string `json:"etcdcluster"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<16)).Decode(&body); err != nil {
		return "", err
	}
	return body.Cluster, nil
}

func hostOfURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
