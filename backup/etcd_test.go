package backup

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/belayops/belay/internal/controlplane"
)

// startEtcd runs an etcd within the test, with plain HTTP on a free port.
func startEtcd(t *testing.T) (*embed.Etcd, *clientv3.Client) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(t.TempDir(), "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	any := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = any, any
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(20 * time.Second):
		t.Fatal("etcd is not ready after 20 s")
	}
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint(e)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return e, cli
}

func endpoint(e *embed.Etcd) string { return "http://" + e.Clients[0].Addr().String() }

// fill puts n keys under each of some prefixes, overwrites some and deletes some.
func fill(t *testing.T, cli *clientv3.Client, n int) {
	t.Helper()
	ctx := context.Background()
	for _, prefix := range []string{"/registry/pods/shop", "/registry/services/specs/shop", "/registry/services/endpoints/shop", "/registry/example.com/widgets/shop"} {
		for i := range n {
			key := fmt.Sprintf("%s/%04d", prefix, i)
			if _, err := cli.Put(ctx, key, "one"); err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				if _, err := cli.Put(ctx, key, "two"); err != nil {
					t.Fatal(err)
				}
			}
			if i%5 == 0 {
				if _, err := cli.Delete(ctx, key); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, key := range []string{"compact_rev_key", "/registry/health"} {
		if _, err := cli.Put(ctx, key, "x"); err != nil {
			t.Fatal(err)
		}
	}
}

// takeSnapshot streams a snapshot of e into a file.
func takeSnapshot(t *testing.T, e *embed.Etcd) (string, *member) {
	t.Helper()
	c, err := survey(t.Context(), &EtcdAccess{Endpoints: []EtcdEndpoint{{URL: endpoint(e)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.close() })
	m, _, err := c.choose(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot.db")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := m.stream(t.Context(), f, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	return file, m
}

func TestSnapshotHoldsWhatTheMemberHolds(t *testing.T) {
	e, cli := startEtcd(t)
	fill(t, cli, 50)
	file, m := takeSnapshot(t, e)
	// What comes later is neither in the snapshot nor in the counts at its revision.
	if _, err := cli.Put(t.Context(), "/registry/pods/shop/later", "x"); err != nil {
		t.Fatal(err)
	}
	c, err := ReadContents(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"/registry/pods/": 40, "/registry/services/specs/": 40, "/registry/services/endpoints/": 40, "/registry/example.com/widgets/": 40, OtherKeys: 2,
	}
	if d := countDifferences(want, c.Counts); len(d) > 0 {
		t.Errorf("counts: %v", d)
	}
	if c.TotalKeys != 162 {
		t.Errorf("TotalKeys = %d, want 162", c.TotalKeys)
	}
	if live, err := m.compareLive(t.Context(), c); err != nil || live != liveEqual {
		t.Errorf("compareLive = %q, %v", live, err)
	}
	// A snapshot that lacks keys must not pass.
	c.Counts["/registry/pods/"]--
	c.TotalKeys--
	if live, err := m.compareLive(t.Context(), c); err == nil {
		t.Errorf("compareLive with a key missing = %q, nil", live)
	}
	delete(c.Counts, "/registry/example.com/widgets/")
	c.Counts["/registry/pods/"]++
	if live, err := m.compareLive(t.Context(), c); err == nil {
		t.Errorf("compareLive with a prefix missing = %q, nil", live)
	}
}

func TestCompactedRevisionIsUnknownNotEqual(t *testing.T) {
	e, cli := startEtcd(t)
	fill(t, cli, 5)
	file, m := takeSnapshot(t, e)
	c, err := ReadContents(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := cli.Put(t.Context(), "/registry/pods/shop/later", "x"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cli.Compact(t.Context(), c.Revision+2); err != nil {
		t.Fatal(err)
	}
	live, err := m.compareLive(t.Context(), c)
	if err != nil || live == liveEqual {
		t.Errorf("compareLive at a compacted revision = %q, %v", live, err)
	}
}

// Why no connection comes about is said: gRPC knows of a time that is over only.
func TestReasonOfAFailedConnection(t *testing.T) {
	pki, err := controlplane.NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := controlplane.NewPKI(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	local := url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	cfg := memberConfig(pki, "m", t.TempDir(), local, url.URL{Scheme: "http", Host: "127.0.0.1:0"})
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	<-e.Server.ReadyNotify()
	ep := EtcdEndpoint{URL: "https://" + e.Clients[0].Addr().String()}
	conf := func(ca, client *controlplane.PKI) *tls.Config {
		c, err := ClientTLS([]byte(readPKI(t, ca, "ca.crt")), []byte(readPKI(t, client, "etcd-client.crt")), []byte(readPKI(t, client, "etcd-client.key")))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if err := handshake(ep, conf(pki, pki)); err != nil {
		t.Errorf("with the right certificates: %v", err)
	}
	if err := handshake(ep, conf(other, pki)); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a CA that did not sign the member's certificate: %v", err)
	}
	if err := handshake(ep, conf(pki, other)); err == nil || !strings.Contains(err.Error(), "remote error") {
		t.Errorf("a client certificate that the member does not take: %v", err)
	}
	if err := handshake(EtcdEndpoint{URL: "https://127.0.0.1:1"}, nil); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody there: %v", err)
	}
}

// halting gives n bytes at a time, and then an error.
type halting struct {
	left, at int
	err      error
}

func (h *halting) Read(p []byte) (int, error) {
	n := min(len(p), h.at, h.left)
	for i := range p[:n] {
		p[i] = byte((h.left - i) % 251)
	}
	h.left -= n
	if h.left == 0 {
		return n, h.err
	}
	return n, nil
}

func TestPumpCopiesAllAndEndsWithEitherSide(t *testing.T) {
	for _, size := range []int{0, 1, 1 << 20, 1<<20 + 1, 9<<20 + 17} {
		var want, got bytes.Buffer
		if _, err := io.Copy(&want, &halting{left: size, at: 32 << 10, err: io.EOF}); err != nil {
			t.Fatal(err)
		}
		if rerr, werr := pump(&halting{left: size, at: 32 << 10, err: io.EOF}, &got, func(int64) {}); rerr != io.EOF || werr != nil {
			t.Errorf("%d bytes: %v, %v", size, rerr, werr)
		}
		if !bytes.Equal(want.Bytes(), got.Bytes()) {
			t.Errorf("%d bytes: what came out is another", size)
		}
	}
	cut := errors.New("reset by peer")
	var got bytes.Buffer
	if rerr, werr := pump(&halting{left: 3 << 20, at: 1000, err: cut}, &got, func(int64) {}); rerr != cut || werr != nil || got.Len() != 3<<20 {
		t.Errorf("a cut stream: %v, %v, %d bytes", rerr, werr, got.Len())
	}
	// A writer that is full ends the reading of a stream that never does.
	full := errors.New("no space left on device")
	h := &halting{left: 1 << 40, at: 32 << 10}
	if rerr, werr := pump(h, failingWriter{after: 2, err: full, n: new(int)}, func(int64) {}); rerr == nil || rerr == io.EOF || werr != full {
		t.Errorf("a full disk: %v, %v", rerr, werr)
	}
}

type failingWriter struct {
	after int
	n     *int
	err   error
}

func (f failingWriter) Write(p []byte) (int, error) {
	if *f.n++; *f.n > f.after {
		return 0, f.err
	}
	return len(p), nil
}
