package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/kubeversion"
)

// Schema names the format of a backup's manifest.
const Schema = "belay.dev/backup/v1"

// Files of a backup directory that the manifest does not list.
const (
	manifestName = "manifest.json"
	verifiedName = "verified.json"
)

// partialSuffix ends the name of a directory that is being written.
const partialSuffix = ".partial"

// Manifest says what a backup holds. It is JSON in exactly one form, so that
// any changed byte shows, and carries a digest over itself.
type Manifest struct {
	Schema string `json:"schema"`
	// Tool is the version of belay that wrote it.
	Tool string `json:"tool"`
	// Cluster is the cluster's name, Lineage the UID of its namespace kube-system.
	Cluster string        `json:"cluster"`
	Lineage string        `json:"lineage"`
	Server  string        `json:"server,omitempty"`
	Version kubeversion.V `json:"kubernetesVersion"`
	// Started and Finished are in UTC.
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// Level was reached while it was created.
	Level Level `json:"level"`
	// Encryption says how files with Encrypted set are encrypted; nil when none is.
	Encryption *Encryption `json:"encryption,omitempty"`
	Etcd       *EtcdPart   `json:"etcd,omitempty"`
	// Resources counts the objects of each resource in the object part.
	Resources []ResourcePart `json:"resources,omitempty"`
	// VolumeSnapshots are the CSI snapshots that were taken with it.
	VolumeSnapshots []VolumeSnapshot `json:"volumeSnapshots,omitempty"`
	// Parts says of everything that a backup can hold whether this one holds it.
	Parts []Part `json:"parts"`
	// Accepted are the waivers that were used.
	Accepted []string `json:"accepted,omitempty"`
	Files    []File   `json:"files"`
	// Digest is "sha256:" and the digest of this document with Digest empty.
	Digest string `json:"digest"`

	// unlocked is the key of Encryption.KeyFile, once it was opened.
	unlocked *keyring
}

// Encryption says who can read the encrypted files.
type Encryption struct {
	// Format is "age" (age-encryption.org/v1).
	Format string `json:"format"`
	// Scope is "secrets" (the files that hold Secrets and keys) or "all".
	Scope string `json:"scope"`
	// Recipients are public keys, or the single word "passphrase".
	Recipients []string `json:"recipients"`
	// KeyFile is the file that a passphrase opens: it holds the age identity that opens all others. Deriving a key of a
	// passphrase takes a second by intention, and a backup has hundreds of files.
	KeyFile string `json:"keyFile,omitempty"`
}

// EtcdPart says where the snapshot is from and what is in it.
type EtcdPart struct {
	// File is its path in the backup.
	File string `json:"file"`
	// Member is the name of the member that it was read from, Node where that runs, Endpoint its client URL.
	Member   string `json:"member"`
	MemberID string `json:"memberID"`
	Node     string `json:"node,omitempty"`
	Endpoint string `json:"endpoint"`
	// Leader says that it was the leader at that time, Lag how many raft entries it was behind.
	Leader bool   `json:"leader,omitempty"`
	Lag    uint64 `json:"lag"`
	// ClusterID is in hexadecimal, Version what etcd calls itself.
	ClusterID      string `json:"clusterID"`
	Version        string `json:"version"`
	StorageVersion string `json:"storageVersion,omitempty"`
	// Revision is the newest revision in the snapshot, Hash etcdutl's hash of it.
	Revision  int64  `json:"revision"`
	Hash      uint32 `json:"hash"`
	TotalKeys int    `json:"totalKeys"`
	// Size and SHA256 are of the snapshot itself, before any encryption, in bytes.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// LiveCounts says whether Counts and TotalKeys were found equal to those of the
	// live member at Revision: "equal", or why that could not be told.
	LiveCounts string `json:"liveCounts"`
	// Counts holds the number of keys per prefix at Revision.
	Counts map[string]int `json:"counts"`
	// Members are all members at that time.
	Members []EtcdMember `json:"members"`
}

// EtcdMember is one member of the etcd cluster.
type EtcdMember struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Peers   []string `json:"peerURLs"`
	Clients []string `json:"clientURLs,omitempty"`
	Learner bool     `json:"learner,omitempty"`
	// Problem says why it could not be asked.
	Problem string `json:"problem,omitempty"`
}

// ResourcePart is one resource of the object part.
type ResourcePart struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
	// Version is the one that the objects are written in, Versions all that the server serves.
	Version  string   `json:"version"`
	Versions []string `json:"versions,omitempty"`
	Kind     string   `json:"kind"`
	// ResourceVersion is the one that the whole list is consistent at.
	ResourceVersion string `json:"resourceVersion"`
	Count           int    `json:"count"`
	// Identities is a digest over namespace, name, UID and resourceVersion of all objects in order.
	Identities string `json:"identities"`
	File       string `json:"file,omitempty"`
	// Restarts counts how often the list had to begin anew as its continue token had expired.
	Restarts int `json:"restarts,omitempty"`
}

// The states of a Part.
const (
	// PartComplete: everything of it is in the backup.
	PartComplete = "complete"
	// PartIncomplete: some of it could not be read; the backup's verdict is incomplete.
	PartIncomplete = "incomplete"
	// PartAbsent: this cluster does not have it, or it was not asked for; Detail says which.
	PartAbsent = "absent"
)

// Part is something that a backup can hold.
type Part struct {
	// Name is etcd, nodes/NAME, config, releases, objects, volumes or snapshots.
	Name   string `json:"name"`
	Status string `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Missing names what could not be read, each with the reason.
	Missing []string `json:"missing,omitempty"`
}

// File is one file of the backup.
type File struct {
	// Path is relative to the backup, with slashes.
	Path string `json:"path"`
	Size int64  `json:"size"`
	// SHA256 is of the file as it lies there, in hexadecimal.
	SHA256    string `json:"sha256"`
	Encrypted bool   `json:"encrypted,omitempty"`
	// Source and Mode are of the file on the node that it was read from.
	Source string      `json:"source,omitempty"`
	Mode   fs.FileMode `json:"mode,omitempty"`
}

// Complete says whether everything that was asked for is in the backup.
func (m *Manifest) Complete() bool {
	for _, p := range m.Parts {
		if p.Status == PartIncomplete {
			return false
		}
	}
	return true
}

// Part gives the part of that name, or nil.
func (m *Manifest) Part(name string) *Part {
	for i := range m.Parts {
		if m.Parts[i].Name == name {
			return &m.Parts[i]
		}
	}
	return nil
}

// resource gives the entry of a resource in the object part, or nil.
func (m *Manifest) resource(group, name string) *ResourcePart {
	for i := range m.Resources {
		if r := &m.Resources[i]; r.Group == group && r.Resource == name {
			return r
		}
	}
	return nil
}

// File gives the entry of that path, or nil.
func (m *Manifest) File(name string) *File {
	for i := range m.Files {
		if m.Files[i].Path == name {
			return &m.Files[i]
		}
	}
	return nil
}

// digest is what Digest must hold.
func (m Manifest) digest() (string, error) {
	m.Digest = ""
	b, err := encode(m)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// encode gives the one form in which manifests and verification records are written.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func (m *Manifest) write(dir string) error {
	var err error
	if m.Digest, err = m.digest(); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	b, err := encode(m)
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return atomicfile.WriteFile(filepath.Join(dir, manifestName), b, 0o600)
}

// DamagedError is a file of a backup that is not as it was written.
type DamagedError struct {
	// Path is the file.
	Path string
	// Problem says what is wrong with it.
	Problem string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s: damaged: %s; take another backup, or a copy of this one", e.Path, e.Problem)
}

// FormatError is a backup in a format that this version of belay does not read.
type FormatError struct{ Path, Schema string }

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: format %q is not known to this belay, which reads %q; use the version of belay that wrote it", e.Path, e.Schema, Schema)
}

// maxManifest bounds what is read as a manifest, in bytes.
const maxManifest = 64 << 20

// ReadManifest reads and checks the manifest of the backup in dir. A changed
// one gives a *DamagedError, one of another format a *FormatError, and a
// directory without one an error that wraps fs.ErrNotExist.
func ReadManifest(dir string) (*Manifest, error) {
	p := filepath.Join(dir, manifestName)
	b, err := readBounded(p, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not a complete backup: %w", dir, err)
	}
	if err != nil {
		return nil, err
	}
	return parseManifest(p, b)
}

// parseManifest checks the content of a manifest; p is for errors.
func parseManifest(p string, b []byte) (*Manifest, error) {
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, &DamagedError{p, "not JSON: " + err.Error()}
	}
	if head.Schema != Schema {
		return nil, &FormatError{p, head.Schema}
	}
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, &DamagedError{p, err.Error()}
	}
	// Any byte that decoding forgives (white space, case of names, a second
	// value of one name) makes a difference here.
	if again, err := encode(m); err != nil || !bytes.Equal(again, b) {
		return nil, &DamagedError{p, "changed after it was written"}
	}
	if want, err := m.digest(); err != nil || m.Digest != want {
		return nil, &DamagedError{p, "its digest is " + m.Digest + ", the content's is " + want}
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if !fs.ValidPath(f.Path) || path.Clean(f.Path) != f.Path || f.Path == manifestName || strings.ContainsRune(f.Path, '\\') {
			return nil, &DamagedError{p, fmt.Sprintf("lists %q, which is no file of a backup", f.Path)}
		}
		if seen[f.Path] {
			return nil, &DamagedError{p, fmt.Sprintf("lists %q twice", f.Path)}
		}
		seen[f.Path] = true
	}
	m.unlocked = &keyring{}
	return &m, nil
}

func readBounded(p string, limit int64) ([]byte, error) {
	f, err := os.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	if int64(len(b)) > limit {
		return nil, &DamagedError{p, fmt.Sprintf("larger than %d bytes", limit)}
	}
	return b, nil
}

// record is what Verify leaves in verified.json.
type record struct {
	Schema string `json:"schema"`
	// Manifest is the digest of the manifest that it is about.
	Manifest string `json:"manifest"`
	// Level was reached; with Problem, it is all that the backup is good for.
	Level Level `json:"level"`
	// Problem is what kept the verification from going further.
	Problem string    `json:"problem,omitempty"`
	At      time.Time `json:"at"`
	Tool    string    `json:"tool"`
	Digest  string    `json:"digest"`
}

const recordSchema = "belay.dev/backup-verified/v1"

func (r record) digest() (string, error) {
	r.Digest = ""
	b, err := encode(r)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

func writeRecord(dir string, r record) error {
	r.Schema = recordSchema
	var err error
	if r.Digest, err = r.digest(); err != nil {
		return fmt.Errorf("write %s: %w", verifiedName, err)
	}
	b, err := encode(r)
	if err != nil {
		return fmt.Errorf("write %s: %w", verifiedName, err)
	}
	// Another verification may be writing at this moment, so only what is old is a leftover.
	left, err := filepath.Glob(filepath.Join(dir, "."+verifiedName+".part-*"))
	if err != nil {
		return err
	}
	for _, p := range left {
		if info, err := os.Lstat(p); err == nil && time.Since(info.ModTime()) > time.Minute {
			if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return atomicfile.WriteFile(filepath.Join(dir, verifiedName), b, 0o600)
}

// readRecord gives what was verified of the backup in dir after its creation, nil when nothing was.
func readRecord(dir string, m *Manifest) (*record, error) {
	p := filepath.Join(dir, verifiedName)
	b, err := readBounded(p, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRecord(p, b, m.Digest)
}

func parseRecord(p string, b []byte, manifest string) (*record, error) {
	// The backup itself may be sound: what is lost is the proof of it.
	const again = " (remove it and verify anew)"
	var r record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, &DamagedError{p, err.Error() + again}
	}
	if same, err := encode(r); err != nil || !bytes.Equal(same, b) {
		return nil, &DamagedError{p, "changed after it was written" + again}
	}
	if want, err := r.digest(); err != nil || r.Digest != want || r.Schema != recordSchema {
		return nil, &DamagedError{p, "its digest is not its content's" + again}
	}
	if r.Manifest != manifest {
		return nil, &DamagedError{p, "it is about another backup" + again}
	}
	return &r, nil
}
