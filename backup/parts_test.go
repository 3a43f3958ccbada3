package backup

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func TestTrailerInAnyChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 512, 512).Draw(t, "body")
		sum := sha256.Sum256(body)
		data := append(body, sum[:]...)
		flip := rapid.IntRange(-1, len(data)-1).Draw(t, "flip")
		if flip >= 0 {
			data[flip] ^= 1
		}
		w := newTrailerWriter(io.Discard)
		for rest := data; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.check(); (err == nil) != (flip < 0) {
			t.Fatalf("flip at %d: %v", flip, err)
		}
		if got, err := w.sum(); err != nil || got != fmt.Sprintf("%x", sha256.Sum256(data)) {
			t.Fatalf("the digest of all is %s, %v", got, err)
		}
	})
}

func TestBestMember(t *testing.T) {
	m := func(node string, leader bool, index, applied uint64) *member {
		s := &etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: 1}, Leader: 2, RaftIndex: index, RaftAppliedIndex: applied}
		if leader {
			s.Leader = 1
		}
		return &member{EtcdEndpoint: EtcdEndpoint{Node: node}, status: (*clientv3.StatusResponse)(s)}
	}
	learner := m("learner", false, 5000, 5000)
	learner.status.IsLearner = true
	lost := m("no leader", false, 5000, 5000)
	lost.status.Leader = 0
	dead := &member{EtcdEndpoint: EtcdEndpoint{Node: "dead"}, err: io.EOF}
	for want, members := range map[string][]*member{
		"follower": {m("leader", true, 5000, 5000), m("follower", false, 5000, 4990), dead},
		"nearer":   {m("leader", true, 5000, 5000), m("far", false, 5000, 4900), m("nearer", false, 5000, 4990)},
		"leader":   {m("leader", true, 5000, 5000), m("lagging", false, 5000, 10), learner, lost},
		"only":     {m("only", true, 5000, 5000)},
		"":         {learner, lost, dead},
	} {
		got := ""
		if b := (&etcdCluster{members: members}).best(); b != nil {
			got = b.Node
		}
		if got != want {
			t.Errorf("best is %q, want %q", got, want)
		}
	}
}

func TestHostPath(t *testing.T) {
	dir := func(name, host string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{dir("k8s", "/etc/kubernetes/pki"), dir("enc", "/srv/enc"), {Name: "empty"}}}}
	c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{
		{Name: "k8s", MountPath: "/etc/kubernetes/pki"}, {Name: "enc", MountPath: "/etc/kubernetes/pki/enc/"}, {Name: "empty", MountPath: "/tmp"}, {Name: "enc", MountPath: "/sub", SubPath: "x"},
	}}
	for in, want := range map[string]string{
		"/etc/kubernetes/pki/ca.crt": "/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/enc/c.yaml": "/srv/enc/c.yaml", "/etc/kubernetes/pki-not/x": "",
		"/tmp/x": "", "/elsewhere": "", "/sub/y": "/srv/enc/x/y",
	} {
		if got, ok := hostPath(pod, c, in); got != want || ok != (want != "") {
			t.Errorf("%s is %q on the node, want %q", in, got, want)
		}
	}
}

func TestExpiredClientCertificateIsNamed(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-etcd-healthcheck-client"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	_, err = ClientTLS(cert, cert, keyPEM)
	if expired := (*ExpiredError)(nil); !errors.As(err, &expired) || expired.Subject != "CN=kube-etcd-healthcheck-client" {
		t.Errorf("err = %v, want an *ExpiredError", err)
	}
}

func TestClaimsThatAreNoLongerMounted(t *testing.T) {
	vol := func(handle string, at ...Attachment) *Volume {
		return &Volume{Name: "pv", Driver: "csi.example.com", Handle: handle, Attachments: at}
	}
	claim := func(v *Volume, pods ...PodMount) *Claim {
		return &Claim{Namespace: "shop", Name: "data", Phase: "Bound", Volume: v, Pods: pods}
	}
	on := func(node string) Attachment { return Attachment{Node: node, Attached: true} }
	runs := func(name, node string) PodMount { return PodMount{Name: name, Node: node, Phase: "Running"} }
	was := claim(vol("h1", on("w1")), runs("db-0", "w1"))
	for name, c := range map[string]struct {
		is   *Claim
		want []string
	}{
		"as it was":       {claim(vol("h1", on("w1")), runs("db-0", "w1")), nil},
		"moved with pod":  {claim(vol("h1", on("w2")), runs("db-0", "w2")), nil},
		"gone":            {nil, []string{"the claim is gone"}},
		"unbound":         {claim(nil), []string{"it is no longer bound: phase Bound"}},
		"another volume":  {claim(vol("h2", on("w1")), runs("db-0", "w1")), []string{"it is another volume: csi.example.com h2, was csi.example.com h1"}},
		"no pod":          {claim(vol("h1", on("w1"))), []string{"no running pod mounts it any more; before: db-0"}},
		"pod elsewhere":   {claim(vol("h1", on("w1")), runs("db-0", "w2")), []string{"pod db-0 runs on w2, where the volume is not attached"}},
		"attach is stuck": {claim(vol("h1", Attachment{Node: "w2"}), runs("db-0", "w2")), []string{"pod db-0 runs on w2, where the volume is not attached"}},
	} {
		if got := claimProblems(was, c.is); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestPatterns(t *testing.T) {
	for s, c := range map[string]struct {
		resource string
		id       identity
		want     bool
	}{
		"deployments.apps/shop/*": {"deployments.apps", identity{Namespace: "shop", Name: "web"}, true},
		"deployments.apps/shop/w": {"deployments.apps", identity{Namespace: "shop", Name: "web"}, false},
		"*/shop/*":                {"secrets", identity{Namespace: "shop", Name: "web"}, true},
		"namespaces/*":            {"namespaces", identity{Name: "shop"}, true},
		"namespaces/sh?p":         {"namespaces", identity{Name: "shop"}, true},
		"configmaps/*":            {"configmaps", identity{Namespace: "shop", Name: "x"}, false},
	} {
		p, err := parsePattern(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.matchResource(c.resource) && p.match(c.id); got != c.want {
			t.Errorf("%s selects %s %+v: %v", s, c.resource, c.id, got)
		}
	}
	for _, s := range []string{"", "pods", "a/b/c/d", "pods/[", "pods//x"} {
		if _, err := parsePattern(s); err == nil {
			t.Errorf("%q is taken for a pattern", s)
		}
	}
}

// stack makes a directory of backups of one file each, the first the oldest.
type stacked struct {
	name, lineage string
	level         Level
	incomplete    bool
}

func stack(t *testing.T, backups ...stacked) string {
	t.Helper()
	dir := t.TempDir()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, b := range backups {
		d := &dirWriter{dir: filepath.Join(dir, b.name)}
		if err := os.Mkdir(d.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := d.writeFile("nodes/cp1/etc/kubernetes/admin.conf", true, []byte(b.name), "/etc/kubernetes/admin.conf", 0o600); err != nil {
			t.Fatal(err)
		}
		m := &Manifest{Schema: Schema, Lineage: b.lineage, Level: b.level, Started: start.Add(time.Duration(i) * time.Hour), Files: d.list(), Parts: []Part{}}
		if b.incomplete {
			m.Parts = append(m.Parts, Part{Name: "objects", Status: PartIncomplete})
		}
		if err := m.write(d.dir); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rot changes a byte of a backup's file.
func rot(t *testing.T, dir string) {
	t.Helper()
	p := filepath.Join(dir, "nodes/cp1/etc/kubernetes/admin.conf")
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func left(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestPruneKeepsTheNewestVerified(t *testing.T) {
	dir := stack(t, stacked{"a-restored", "L", Restored, false}, stacked{"b-opened", "L", Opened, false}, stacked{"c-restored", "L", Restored, false}, stacked{"d-opened", "L", Opened, false},
		stacked{"e-incomplete", "L", Opened, true}, stacked{"f-hashed", "L", HashVerified, false}, stacked{"g-other", "M", Copied, false})
	if _, err := Prune(t.Context(), dir, "L", 1, nil); err != nil {
		t.Fatal(err)
	}
	// Kept: the newest, the newest opened, the newest restored, and the other cluster's.
	if got, want := left(t, dir), []string{"c-restored", "d-opened", "f-hashed", "g-other"}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if _, err := Prune(t.Context(), dir, "L", 0, nil); err == nil {
		t.Error("keep 0 is taken")
	}
}

func TestPruneDoesNotTrustRecordsOverBytes(t *testing.T) {
	dir := stack(t, stacked{"a-restored", "L", Restored, false}, stacked{"b-restored", "L", Restored, false}, stacked{"c-rotten", "L", Restored, false}, stacked{"d-rotten", "L", Opened, false})
	rot(t, filepath.Join(dir, "c-rotten"))
	rot(t, filepath.Join(dir, "d-rotten"))
	p, err := Prune(t.Context(), dir, "L", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The newest sound one counts as the one to keep; what rotted is left for a person.
	if got, want := left(t, dir), []string{"b-restored", "c-rotten", "d-rotten"}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if len(p.Damaged) != 2 || !strings.Contains(p.Damaged[0], "d-rotten: nodes/cp1/etc/kubernetes/admin.conf") {
		t.Errorf("damaged: %q", p.Damaged)
	}
}

func TestPruneCountsABackupWhoseRecordIsDamaged(t *testing.T) {
	dir := stack(t, stacked{"a-opened", "L", Opened, false}, stacked{"b-opened", "L", Opened, false}, stacked{"c-hashed", "L", HashVerified, false})
	if err := os.WriteFile(filepath.Join(dir, "b-opened", verifiedName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Prune(t.Context(), dir, "L", 1, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := left(t, dir), []string{"b-opened", "c-hashed"}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

func TestPruneGoesOnWithARemovalThatWasCutOff(t *testing.T) {
	dir := stack(t, stacked{"a", "L", Opened, false}, stacked{"b.removing", "L", Opened, false}, stacked{"c.removing", "M", Opened, false})
	if err := os.Mkdir(filepath.Join(dir, "d.removing"), 0o700); err != nil {
		t.Fatal(err)
	}
	if entries, err := List(dir); err != nil || len(entries) != 4 || entries[1].Manifest != nil {
		t.Errorf("list: %+v, %v", entries, err)
	}
	if _, err := Prune(t.Context(), dir, "L", 3, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := left(t, dir), []string{"a", "c.removing"}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

func TestAVerificationThatFailsLowersTheLevel(t *testing.T) {
	dir := filepath.Join(stack(t, stacked{"a", "L", Restored, false}), "a")
	if e := entry(dir); e.Level != Restored || e.Problem != "" {
		t.Fatalf("at first: %+v", e)
	}
	rot(t, dir)
	if r := verify(t, dir, HashVerified); r.OK() {
		t.Fatal("a changed byte is not found")
	}
	if e := entry(dir); e.Level != Copied || !strings.Contains(e.Problem, "admin.conf") {
		t.Errorf("after a byte changed: level %s, problem %q", e.Level, e.Problem)
	}
	// A level that was reached before says nothing of what failed above it.
	if r := verify(t, dir, Copied); !r.OK() || entry(dir).Level != Copied {
		t.Errorf("copied: %+v, level %s", r, entry(dir).Level)
	}
	// The right byte back, as from another copy: the same content is as good as it was when it was written.
	rot(t, dir)
	if r := verify(t, dir, HashVerified); !r.OK() {
		t.Fatalf("%+v", r.Problems)
	}
	if e := entry(dir); e.Level != Restored || e.Problem != "" {
		t.Errorf("mended: level %s, problem %q", e.Level, e.Problem)
	}
}

func TestARecordThatWasCutOffIsNoDamage(t *testing.T) {
	dir := filepath.Join(stack(t, stacked{"a", "L", HashVerified, false}), "a")
	leftover := filepath.Join(dir, ".verified.json.part-123")
	if err := os.WriteFile(leftover, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir, HashVerified); !r.OK() {
		t.Errorf("%+v", r.Problems)
	}
}

func TestVerifyOfAMediumThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(stack(t, stacked{"a", "L", Copied, false}), "a")
	if os.Geteuid() == 0 {
		// Permissions do not hold root.
		for _, argv := range [][]string{{"mount", "--bind", dir, dir}, {"mount", "-o", "remount,bind,ro", dir}} {
			if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
				t.Skipf("this root may not mount (%v: %v: %s), and permissions do not hold it", argv, err, out)
			}
		}
		t.Cleanup(func() {
			if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
				t.Errorf("umount: %v: %s", err, out)
			}
		})
	} else if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, dir, HashVerified); !r.OK() || r.Level != HashVerified || r.NotRecorded == "" {
		t.Errorf("%+v", r)
	}
	if e := entry(dir); e.Level != Copied {
		t.Errorf("level %s is recorded", e.Level)
	}
}

func TestLaggingMemberBlocksUnlessAccepted(t *testing.T) {
	_, cli := startEtcd(t)
	m := func(node string, applied uint64) *member {
		s := &etcdserverpb.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: 1}, Leader: 2, RaftIndex: 5000, RaftAppliedIndex: applied}
		return &member{EtcdEndpoint: EtcdEndpoint{Node: node}, cli: cli, status: (*clientv3.StatusResponse)(s)}
	}
	c := &etcdCluster{members: []*member{m("far", 10), m("cp2", 3900)}}
	_, _, err := c.choose(t.Context(), nil)
	blocked := (*BlockedError)(nil)
	if !errors.As(err, &blocked) || len(blocked.Findings) != 1 || blocked.Findings[0].ID != "etcd-member-lags@cp2" || !strings.Contains(err.Error(), "1100 entries behind") {
		t.Errorf("err = %v", err)
	}
	if got, found, err := c.choose(t.Context(), []string{"etcd-member-lags@cp2"}); err != nil || got.Node != "cp2" || len(found) != 1 {
		t.Errorf("accepted: %v, %v, %v", got, found, err)
	}
}
