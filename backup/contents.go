package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// Contents is what is in an etcd snapshot file.
type Contents struct {
	// Revision is the newest one. Hash and StorageVersion are what etcdutl says;
	// TotalKeys is the number of keys that a client can see at Revision.
	Revision       int64
	Hash           uint32
	TotalKeys      int
	StorageVersion string
	// Counts holds the number of keys at Revision per prefix, as Prefix tells them apart.
	Counts map[string]int
	// Lineage is the UID of namespace kube-system as it is stored; empty when
	// there is none, or it is encrypted.
	Lineage string
	// Encrypted holds the number of keys whose values an apiserver encrypted, by
	// provider and key as in "aescbc:key1"; nil when there are none.
	Encrypted map[string]int
}

// OtherKeys counts the keys that lie under no prefix.
const OtherKeys = "(other keys)"

// Prefix gives the prefix that a key is counted under: "/registry/pods/", with
// the group where kube-apiserver stores one ("/registry/apps.example.com/widgets/"),
// and OtherKeys for a key without one.
func Prefix(key []byte) string {
	parts := strings.SplitN(string(key), "/", 5)
	// parts[0] is what stands before the first slash: nothing.
	if len(parts) < 4 || parts[0] != "" {
		return OtherKeys
	}
	// A dot marks an API group; Services and their Endpoints share a first element.
	if strings.Contains(parts[2], ".") || parts[2] == "services" {
		if len(parts) < 5 {
			return OtherKeys
		}
		return "/" + parts[1] + "/" + parts[2] + "/" + parts[3] + "/"
	}
	return "/" + parts[1] + "/" + parts[2] + "/"
}

// ReadContents checks the database in a snapshot file and counts what is in
// it. It asks etcdutl's own check first. The file must have been
// hash-verified before: the database library trusts its pages.
func ReadContents(ctx context.Context, file string) (c Contents, err error) {
	defer func() {
		// bbolt panics on pages that make no sense.
		if r := recover(); r != nil {
			err = &DamagedError{file, fmt.Sprint("the database library gave up: ", r)}
		}
	}()
	status, err := snapshot.NewV3(zap.NewNop()).Status(file)
	if err != nil {
		return c, &DamagedError{file, err.Error()}
	}
	c = Contents{
		Revision: status.Revision, Hash: status.Hash, TotalKeys: status.TotalKey, StorageVersion: status.Version,
		Counts: map[string]int{},
	}
	db, err := bolt.Open(file, 0o400, &bolt.Options{ReadOnly: true})
	if err != nil {
		return c, fmt.Errorf("open %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return c, db.View(func(tx *bolt.Tx) error { return c.count(ctx, file, tx) })
}

// count walks all revisions in order. Of each live key only 16 bytes of its
// hash are kept, so that millions of keys fit.
func (c *Contents) count(ctx context.Context, file string, tx *bolt.Tx) error {
	bucket := tx.Bucket(schema.Key.Name())
	if bucket == nil {
		return &DamagedError{file, "it has no bucket of keys"}
	}
	// A class is a prefix and what the value is encrypted with.
	type class struct{ prefix, encryption string }
	classes := map[class]uint32{}
	var names []class
	live := map[[16]byte]uint32{}
	bumped := false
	n := 0
	err := bucket.ForEach(func(k, v []byte) error {
		if n++; n%10000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		key, err := storedKey(v)
		if err != nil {
			return &DamagedError{file, fmt.Sprintf("revision %x: %v", k, err)}
		}
		if len(key) == 0 {
			// What a restore with a revision bump leaves to hold the new revision. No
			// client can write or read a key without a name, and etcdutl counts it.
			bumped = true
			return nil
		}
		sum := sha256.Sum256(key)
		id := [16]byte(sum[:16])
		if mvcc.IsTombstone(k) {
			delete(live, id)
			return nil
		}
		value, err := storedValue(v)
		if err != nil {
			return &DamagedError{file, fmt.Sprintf("key %s: %v", key, err)}
		}
		cl := class{Prefix(key), encryptionOf(value)}
		p, ok := classes[cl]
		if !ok {
			p = uint32(len(names))
			classes[cl] = p
			names = append(names, cl)
		}
		live[id] = p
		if bytes.HasSuffix(key, []byte("/namespaces/kube-system")) {
			c.Lineage = namespaceUID(value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range live {
		c.Counts[names[p].prefix]++
		if e := names[p].encryption; e != "" {
			if c.Encrypted == nil {
				c.Encrypted = map[string]int{}
			}
			c.Encrypted[e]++
		}
	}
	if bumped {
		c.TotalKeys--
	}
	if len(live) != c.TotalKeys {
		return &DamagedError{file, fmt.Sprintf("%d keys by one count, %d by etcdutl's", len(live), c.TotalKeys)}
	}
	return nil
}

// encryptionOf gives the provider and the key that an apiserver encrypted a
// stored value with, as in "aescbc:key1", "" for a value in the clear.
// Source: the prefixes of k8s.io/apiserver/pkg/server/options/encryptionconfig
// ("k8s:enc:aescbc:v1:", "k8s:enc:kms:v2:", ...), after which the name of the
// key or of the KMS plugin stands, and a colon.
func encryptionOf(value []byte) string {
	rest, ok := bytes.CutPrefix(value[:min(len(value), 512)], []byte("k8s:enc:"))
	if !ok {
		return ""
	}
	parts := bytes.SplitN(rest, []byte(":"), 4)
	if len(parts) < 4 {
		return "unknown"
	}
	return string(parts[0]) + ":" + string(parts[2])
}

// Field numbers of mvccpb.KeyValue.
const (
	fieldKey   = 1
	fieldValue = 5
)

func storedKey(kv []byte) ([]byte, error)   { return bytesField(kv, fieldKey) }
func storedValue(kv []byte) ([]byte, error) { return bytesField(kv, fieldValue) }

// bytesField finds one field of an encoded message without decoding (and copying) the others.
func bytesField(b []byte, want protowire.Number) ([]byte, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		b = b[n:]
		if num == want && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return nil, protowire.ParseError(n)
			}
			return v, nil
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return nil, protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil, nil
}

// namespaceUID decodes a stored Namespace; empty when it is encrypted or no Namespace.
func namespaceUID(value []byte) string {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return ""
	}
	ns, ok := obj.(*corev1.Namespace)
	if !ok {
		return ""
	}
	return string(ns.UID)
}
