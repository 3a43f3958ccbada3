// Package bundletest makes image archives of a few bytes, for tests of what
// stages and imports them. A container runtime takes none of them: there is
// nothing in them but a name and a digest.
package bundletest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

type index struct {
	SchemaVersion int        `json:"schemaVersion"`
	Manifests     []manifest `json:"manifests"`
}

type manifest struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations"`
}

// name is the annotation by which containerd names what it imports.
const name = "io.containerd.image.name"

// Archive is an archive of one image; another build makes another digest.
func Archive(ref, build string) []byte {
	doc, err := json.Marshal(index{SchemaVersion: 2, Manifests: []manifest{{
		MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref+build))),
		Size: 1, Annotations: map[string]string{name: ref}}}})
	if err != nil {
		return nil // strings and numbers are encoded always
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if errors.Join(w.WriteHeader(&tar.Header{Name: "index.json", Mode: 0o644, Size: int64(len(doc))}), write(w, doc), w.Close()) != nil {
		return nil // a buffer takes everything
	}
	return out.Bytes()
}

func write(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// Read gives what Archive put in.
func Read(r io.Reader) (ref, digest string, err error) {
	t := tar.NewReader(r)
	if _, err := t.Next(); err != nil {
		return "", "", err
	}
	var i index
	if err := json.NewDecoder(t).Decode(&i); err != nil {
		return "", "", err
	}
	if len(i.Manifests) != 1 {
		return "", "", errors.New("not one image")
	}
	return i.Manifests[0].Annotations[name], i.Manifests[0].Digest, nil
}
