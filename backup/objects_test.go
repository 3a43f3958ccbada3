package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belayops/belay/internal/host"
)

// objectLines gives the objects of a resource in a backup.
func objectLines(t *testing.T, b *Backup, group, name string) []map[string]any {
	t.Helper()
	p := b.Manifest.resource(group, name)
	if p == nil || p.File == "" {
		t.Fatalf("%s.%s is not in the object part", name, group)
	}
	r, err := b.Manifest.open(b.Dir, b.Manifest.File(p.File), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out []map[string]any
	if err := readLines(r, func(line []byte) error {
		var o map[string]any
		out = append(out, nil)
		err := json.Unmarshal(line, &o)
		out[len(out)-1] = o
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestObjectsInPagesThatExpire(t *testing.T) {
	f := newFixture(t)
	for i := range 25 {
		f.api.add("v1", "configmaps", "shop", fmt.Sprintf("c%02d", i), map[string]any{"data": map[string]any{"k": "line\nbreak"}})
	}
	f.api.pageSize, f.api.expire = 4, 2
	b := f.create(t)
	objs := objectLines(t, b, "", "configmaps")
	if len(objs) != 26 {
		t.Errorf("%d ConfigMaps, want 26, each once", len(objs))
	}
	for _, o := range objs {
		if o["kind"] != "ConfigMap" || o["apiVersion"] != "v1" {
			t.Errorf("type of %v: %v %v", o["metadata"], o["apiVersion"], o["kind"])
		}
	}
	restarts := 0
	for _, r := range b.Manifest.Resources {
		restarts += r.Restarts
	}
	if restarts != 2 {
		t.Errorf("%d restarts are in the manifest, want 2", restarts)
	}
	if r := verify(t, b.Dir, Opened); !r.OK() {
		t.Errorf("verify: %+v", r.Problems)
	}
}

// incomplete creates a backup and gives the part that is incomplete.
func (f *fixture) incomplete(t *testing.T, part string) (*Backup, *Part) {
	t.Helper()
	b := f.create(t)
	p := b.Manifest.Part(part)
	if p == nil || p.Status != PartIncomplete || b.Manifest.Complete() {
		t.Fatalf("part %s: %+v, want it incomplete", part, p)
	}
	if b.Manifest.Etcd == nil || b.Manifest.Level != Opened {
		t.Errorf("the snapshot went with it: level %s", b.Manifest.Level)
	}
	if r := verify(t, b.Dir, Opened); !r.OK() {
		t.Errorf("verify: %+v", r.Problems)
	}
	return b, p
}

func TestListsThatAlwaysExpireMakeItIncomplete(t *testing.T) {
	f := newFixture(t)
	for i := range 9 {
		f.api.add("v1", "configmaps", "shop", fmt.Sprintf("c%02d", i), map[string]any{})
	}
	f.api.pageSize, f.api.expire = 4, 1000
	if _, p := f.incomplete(t, "objects"); len(p.Missing) != 1 || !strings.HasPrefix(p.Missing[0], "configmaps: ") {
		t.Errorf("missing: %q", p.Missing)
	}
}

func TestAServerThatIsOverloadedIsAskedAgain(t *testing.T) {
	f := newFixture(t)
	f.api.refuse = map[string][]int{"/api/v1/configmaps": {429, 503}, "/api/v1/namespaces": {500}}
	b := f.create(t)
	if !b.Manifest.Complete() || len(objectLines(t, b, "", "configmaps")) != 1 {
		t.Errorf("parts: %+v", b.Manifest.Parts)
	}
}

func TestAListThatIsCutOffIsReadAnew(t *testing.T) {
	f := newFixture(t)
	for i := range 9 {
		f.api.add("v1", "configmaps", "shop", fmt.Sprintf("c%02d", i), map[string]any{})
	}
	f.api.pageSize, f.api.cut = 4, map[string]int{"/api/v1/configmaps": 2}
	b := f.create(t)
	if p := b.Manifest.resource("", "configmaps"); !b.Manifest.Complete() || p.Count != 10 || p.Restarts != 2 || len(objectLines(t, b, "", "configmaps")) != 10 {
		t.Errorf("%+v, parts %+v", p, b.Manifest.Parts)
	}
	if r := verify(t, b.Dir, Opened); !r.OK() {
		t.Errorf("verify: %+v", r.Problems)
	}
}

func TestAResourceThatIsNeverListedMakesItIncomplete(t *testing.T) {
	f := newFixture(t)
	f.api.cut = map[string]int{"/api/v1/configmaps": 1000}
	b, p := f.incomplete(t, "objects")
	if len(p.Missing) != 1 || !strings.HasPrefix(p.Missing[0], "configmaps: ") || b.Manifest.resource("", "namespaces") == nil {
		t.Errorf("missing: %q", p.Missing)
	}
}

func TestANodeThatIsDownMakesItIncomplete(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.Hosts = append(o.Hosts, lostHost{newRootHost(t, "cp2", "")})
	b, err := Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if p := b.Manifest.Part("nodes/cp2"); p == nil || p.Status != PartIncomplete || !strings.Contains(p.Missing[0], "no route to host") || b.Manifest.Complete() {
		t.Errorf("part: %+v", p)
	}
	if p := b.Manifest.Part("nodes/cp1"); p == nil || p.Status != PartComplete || b.Manifest.Level != Opened {
		t.Errorf("the others: %+v", b.Manifest.Parts)
	}
}

func TestALinkToNowhereMakesANodeIncomplete(t *testing.T) {
	f := newFixture(t)
	if err := os.Symlink("/nowhere/at/all", filepath.Join(f.host.root, "/etc/kubernetes/old.conf")); err != nil {
		t.Fatal(err)
	}
	f.host.put(t, "/etc/kubernetes/manifests/broken.yaml", "kind: [", 0o600)
	b, p := f.incomplete(t, "nodes/cp1")
	if len(p.Missing) != 2 || !strings.Contains(p.Missing[0], "old.conf") || !strings.Contains(p.Missing[1], "broken.yaml") {
		t.Errorf("missing: %q", p.Missing)
	}
	if b.Manifest.sourceFile("cp1", "/etc/kubernetes/pki/ca.key") == nil {
		t.Error("the other files are not there")
	}
}

func TestSecretsThatNothingHoldsMakeItIncomplete(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.Hosts, o.Etcd = nil, nil
	b, err := Create(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if p := b.Manifest.Part("objects"); b.Manifest.Complete() || len(p.Missing) != 1 || !strings.Contains(p.Missing[0], "--recipient") {
		t.Errorf("objects: %+v", p)
	}
	// Encrypted, they are in it.
	if o.Recipients, o.RecipientNames, err = Recipients(nil, "correct horse"); err != nil {
		t.Fatal(err)
	}
	o.Name = "encrypted"
	if b, err = Create(t.Context(), o); err != nil || !b.Manifest.Complete() {
		t.Errorf("encrypted: %+v, %v", b, err)
	}
}

// rewrite changes the content of a backup's file and the manifest with it, as a belay with a bug would write both.
func rewrite(t *testing.T, b *Backup, file string, content func([]byte) []byte) {
	t.Helper()
	p := filepath.Join(b.Dir, file)
	r, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	var plain bytes.Buffer
	if err := readLines(r, func(l []byte) error { plain.Write(l); return nil }); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	var out bytes.Buffer
	z, err := newCompressor(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(content(plain.Bytes())); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f := b.Manifest.File(file)
	sum := sha256.Sum256(out.Bytes())
	f.Size, f.SHA256 = int64(out.Len()), hex.EncodeToString(sum[:])
	if err := b.Manifest.write(b.Dir); err != nil {
		t.Fatal(err)
	}
}

func TestOpenedReadsEveryObject(t *testing.T) {
	for name, c := range map[string]struct {
		file    string
		content func([]byte) []byte
		want    string
	}{
		"an object less":    {"objects/core/configmaps.jsonl.zst", func(b []byte) []byte { return nil }, "holds 0 objects"},
		"another object":    {"objects/core/configmaps.jsonl.zst", func(b []byte) []byte { return bytes.Replace(b, []byte("kubeadm-config"), []byte("kubeadm-confid"), 1) }, "are not the 1"},
		"no JSON":           {"objects/core/configmaps.jsonl.zst", func(b []byte) []byte { return b[:len(b)/2] }, "line 1"},
		"a release record":  {"releases/secrets.jsonl.zst", func(b []byte) []byte { return b[1:] }, "line 1 is no JSON"},
		"nothing was wrong": {"releases/secrets.jsonl.zst", func(b []byte) []byte { return b }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			b := f.create(t)
			rewrite(t, b, c.file, c.content)
			r := verify(t, b.Dir, Opened)
			if c.want == "" {
				if !r.OK() {
					t.Errorf("%+v", r.Problems)
				}
				return
			}
			if r.Level != HashVerified || len(r.Problems) != 1 || r.Problems[0].File != c.file || !strings.Contains(r.Problems[0].Problem, c.want) {
				t.Errorf("level %s, problems %+v, want one with %q", r.Level, r.Problems, c.want)
			}
		})
	}
}

func TestASnapshotThatWasNotCountedIsNoDamage(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	b.Manifest.Level, b.Manifest.Etcd.LiveCounts = HashVerified, "the member compacted it"
	if err := b.Manifest.write(b.Dir); err != nil {
		t.Fatal(err)
	}
	r := verify(t, b.Dir, Opened)
	if r.OK() || r.Level != HashVerified || len(r.Problems) > 0 || len(r.Limits) != 1 {
		t.Errorf("%+v", r)
	}
	o := EtcdRestoreOptions{Hosts: []host.Host{f.host}, Journal: filepath.Join(t.TempDir(), "j"), Accept: []string{NotRestored}}
	if ids, msg := notRestored(t, b.Dir, o); ids[0] != NotOpened || !strings.Contains(msg, "--level restored") {
		t.Errorf("restore: %v, %s", ids, msg)
	}
}

func TestSecretsAreOnlyInEncryptedParts(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	if p := b.Manifest.resource("", "secrets"); p == nil || p.Count != 1 || p.File != "" {
		t.Errorf("secrets: %+v", p)
	}
	if p := b.Manifest.Part("objects"); p == nil || !strings.Contains(p.Detail, "1 Secrets left out") {
		t.Errorf("the part does not say so: %+v", p)
	}
}

func TestForbiddenResourceMakesObjectsIncomplete(t *testing.T) {
	f := newFixture(t)
	f.api.serve("example.com/v1", "widgets", "Widget", true)
	f.api.forbidden["/apis/example.com/v1/widgets"] = true
	b := f.create(t)
	p := b.Manifest.Part("objects")
	if p == nil || p.Status != PartIncomplete || len(p.Missing) != 1 || p.Missing[0] != "widgets.example.com: forbidden" {
		t.Errorf("part: %+v", p)
	}
}

func TestMountMap(t *testing.T) {
	f := newFixture(t)
	f.api.serve("v1", "pods", "Pod", true)
	f.api.serve("v1", "persistentvolumeclaims", "PersistentVolumeClaim", true)
	f.api.serve("v1", "persistentvolumes", "PersistentVolume", false)
	f.api.serve("storage.k8s.io/v1", "volumeattachments", "VolumeAttachment", false)
	f.api.add("v1", "persistentvolumeclaims", "shop", "data-db-0", object(`{"spec":{"volumeName":"pv1","storageClassName":"fast","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}},"status":{"phase":"Bound"}}`))
	f.api.add("v1", "persistentvolumeclaims", "shop", "cache-web-scratch", object(`{"spec":{"volumeName":"pv2"},"status":{"phase":"Bound"}}`))
	f.api.add("v1", "persistentvolumeclaims", "shop", "waiting", object(`{"spec":{},"status":{"phase":"Pending"}}`))
	f.api.add("v1", "persistentvolumes", "", "pv1", object(`{"spec":{"capacity":{"storage":"1Gi"},"persistentVolumeReclaimPolicy":"Delete","csi":{"driver":"csi.example.com","volumeHandle":"vol-1"},"claimRef":{"namespace":"shop","name":"data-db-0"}},"status":{"phase":"Bound"}}`))
	f.api.add("v1", "persistentvolumes", "", "pv2", object(`{"spec":{"nfs":{"server":"10.0.0.1","path":"/x"}},"status":{"phase":"Bound"}}`))
	f.api.add("v1", "persistentvolumes", "", "pv3", object(`{"spec":{"persistentVolumeReclaimPolicy":"Retain","claimRef":{"namespace":"shop","name":"gone"}},"status":{"phase":"Released"}}`))
	f.api.add("storage.k8s.io/v1", "volumeattachments", "", "va1", object(`{"spec":{"nodeName":"w1","source":{"persistentVolumeName":"pv1"}},"status":{"attached":true}}`))
	f.api.add("v1", "pods", "shop", "db-0", object(`{"metadata":{"ownerReferences":[{"kind":"StatefulSet","name":"db","controller":true}]},"spec":{"nodeName":"w1","volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data-db-0"}}],"containers":[{"name":"db","volumeMounts":[{"name":"data","mountPath":"/var/lib/db","subPath":"a"},{"name":"other","mountPath":"/x"}]}]},"status":{"phase":"Running"}}`))
	f.api.add("v1", "pods", "shop", "cache-web", object(`{"spec":{"nodeName":"w2","volumes":[{"name":"scratch","ephemeral":{"volumeClaimTemplate":{}}}],"containers":[{"name":"c","volumeMounts":[{"name":"scratch","mountPath":"/s"}]}]},"status":{"phase":"Running"}}`))
	b := f.create(t)
	data, err := os.ReadFile(filepath.Join(b.Dir, mountsName))
	if err != nil {
		t.Fatal(err)
	}
	var m Mounts
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	if len(m.Claims) != 3 || len(m.Unclaimed) != 1 || m.Unclaimed[0].Name != "pv3" || m.Unclaimed[0].Claim != "shop/gone" {
		t.Fatalf("map: %+v", m)
	}
	cache, db, waiting := m.Claims[0], m.Claims[1], m.Claims[2]
	if cache.Volume == nil || cache.Volume.Driver != "kubernetes.io/nfs" || len(cache.Pods) != 1 || cache.Pods[0].Mounts[0].Path != "/s" {
		t.Errorf("ephemeral claim: %+v", cache)
	}
	if waiting.Phase != "Pending" || waiting.Volume != nil {
		t.Errorf("pending claim: %+v", waiting)
	}
	if db.Volume == nil || db.Volume.Handle != "vol-1" || len(db.Volume.Attachments) != 1 || !db.Volume.Attachments[0].Attached {
		t.Fatalf("claim: %+v", db)
	}
	if p := db.Pods[0]; p.Node != "w1" || p.Owner != "StatefulSet/db" || len(p.Mounts) != 1 || p.Mounts[0] != (At{Container: "db", Path: "/var/lib/db", SubPath: "a"}) {
		t.Errorf("pod: %+v", p)
	}
}

func object(s string) map[string]any {
	var o map[string]any
	if err := json.Unmarshal([]byte(s), &o); err != nil {
		panic(err)
	}
	return o
}

func FuzzDecodeList(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"x"},"items":[{"metadata":{"name":"a","uid":"u"}}]}`))
	f.Add([]byte(`{"items":null}`))
	f.Add([]byte(`{"items":[{]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var meta metav1.ListMeta
		n := 0
		err := decodeList(strings.NewReader(string(b)), &meta, func(raw json.RawMessage) error {
			n++
			if !json.Valid(raw) {
				t.Errorf("an item that is not JSON: %q", raw)
			}
			return nil
		})
		// What is accepted must be what the standard decoder takes it for.
		if err != nil || !json.Valid(b) {
			return
		}
		var want struct{ Items []json.RawMessage }
		if json.Unmarshal(b, &want) == nil && strings.Count(string(b), `"items"`) == 1 && len(want.Items) != n {
			t.Errorf("%d items, want %d", n, len(want.Items))
		}
	})
}

func FuzzParseManifest(f *testing.F) {
	m := Manifest{Schema: Schema, Parts: []Part{}, Files: []File{{Path: "a/b", SHA256: "00"}}}
	m.Digest, _ = m.digest()
	b, err := encode(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":"belay.dev/backup/v2"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest("manifest.json", b)
		if err != nil {
			if !errors.As(err, new(*DamagedError)) && !errors.As(err, new(*FormatError)) {
				t.Errorf("an error of another type: %v", err)
			}
			return
		}
		for _, f := range m.Files {
			if !filepath.IsLocal(filepath.FromSlash(f.Path)) {
				t.Errorf("path %q leaves the backup", f.Path)
			}
		}
	})
}

func FuzzPrefix(f *testing.F) {
	for _, s := range []string{"/registry/pods/a/b", "/registry/services/specs/a/b", "/registry/example.com/widgets/a", "compact_rev_key", "/", "//", "/registry/ranges/serviceips"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		p := Prefix(key)
		if p == OtherKeys {
			return
		}
		if !strings.HasPrefix(string(key), p) || !strings.HasSuffix(p, "/") {
			t.Errorf("key %q is counted under %q", key, p)
		}
		// No prefix lies within another: counting by range would count twice.
		if q := Prefix([]byte(p + "x/y/z")); q != p {
			t.Errorf("prefix %q holds prefix %q", p, q)
		}
	})
}

// What is read of a stored key without decoding all of it is what etcd's own decoder reads.
func FuzzStoredKey(f *testing.F) {
	for _, kv := range []*mvccpb.KeyValue{{}, {Key: []byte("/registry/pods/a/b"), Value: []byte("k8s\x00"), ModRevision: 9, Version: 2, Lease: -1}, {Value: make([]byte, 300)}} {
		b, err := proto.Marshal(kv)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, in []byte) {
		key, kerr := storedKey(in)
		value, verr := storedValue(in)
		var want mvccpb.KeyValue
		if proto.Unmarshal(in, &want) != nil {
			return // of a message that is none, parts may be read all the same
		}
		if kerr != nil || verr != nil {
			t.Fatalf("etcd decodes it: %v, %v", kerr, verr)
		}
		// Of a field that stands there twice the last counts; etcd writes each once.
		again, err := proto.Marshal(&want)
		if err != nil || !bytes.Equal(again, in) {
			return
		}
		if !bytes.Equal(key, want.GetKey()) || !bytes.Equal(value, want.GetValue()) {
			t.Fatalf("key %q, value %q; etcd reads %q, %q", key, value, want.GetKey(), want.GetValue())
		}
	})
}

func FuzzParsePattern(f *testing.F) {
	for _, s := range []string{"deployments.apps/shop/*", "namespaces/sh?p", "*/*/*", "pods/[", "a//b", "pods/[a-z]/\\*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePattern(s)
		if err != nil {
			return
		}
		parts := strings.Split(s, "/")
		if p.resource != parts[0] || p.name != parts[len(parts)-1] || p.name == "" {
			t.Fatalf("%q is read as %+v", s, p)
		}
		// What has no wildcard selects what is called so, and nothing else.
		if !strings.ContainsAny(s, `*?[]\`) {
			id := identity{Namespace: p.namespace, Name: p.name}
			if !p.matchResource(p.resource) || !p.match(id) || p.match(identity{Namespace: p.namespace, Name: p.name + "x"}) {
				t.Fatalf("%q does not select itself alone", s)
			}
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	r := record{Schema: recordSchema, Manifest: "sha256:aa", Level: Restored, Tool: "test"}
	var err error
	if r.Digest, err = r.digest(); err != nil {
		f.Fatal(err)
	}
	b, err := encode(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := parseRecord("p", in, "sha256:aa")
		if err != nil {
			return
		}
		// Only what was written in the one form is taken.
		if again, err := encode(got); err != nil || !bytes.Equal(again, in) {
			t.Fatalf("%q is taken and would be written as %q", in, again)
		}
	})
}
