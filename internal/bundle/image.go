package bundle

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// The annotations by which containerd names what it imports from an OCI
// archive: the first holds the full reference and wins, the second the tag.
const (
	annotationContainerdName = "io.containerd.image.name"
	annotationRefName        = "org.opencontainers.image.ref.name"
)

// imagePath is PATH in the images that are built here.
const imagePath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// epoch is the time of everything in an image, so that the same input gives the same bytes.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

// entry is one file, directory or symbolic link of a layer.
type entry struct {
	// name is the path in the image without a leading slash.
	name string
	mode fs.FileMode
	// Exactly one of src (a file on disk), data and link is set for what is not a directory.
	src  string
	data []byte
	link string
}

// layer is an OCI layer with zstd compression: a quarter of the bytes go to
// each node, and unpacking costs a tenth of a second. containerd reads it since 1.5.
type layer struct {
	write          func(io.Writer) error // the tar stream
	digest, diffID v1.Hash
	size           int64
}

var _ v1.Layer = (*layer)(nil)

// newLayer makes a layer of entries; parent directories are added. Content is
// read when the layer is written, and again each time.
func newLayer(entries []entry) (*layer, error) {
	entries = withParents(entries)
	return layerOf(func(w io.Writer) error { return writeLayer(w, entries) })
}

// layerFromFile makes a layer of a tar file.
func layerFromFile(tarFile string) (*layer, error) {
	return layerOf(func(w io.Writer) (err error) {
		f, err := os.Open(tarFile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		_, err = io.Copy(w, f)
		return err
	})
}

func layerOf(write func(io.Writer) error) (*layer, error) {
	plain, packed := sha256.New(), sha256.New()
	n := &countWriter{}
	err := compress(io.MultiWriter(packed, n), func(w io.Writer) error { return write(io.MultiWriter(w, plain)) })
	if err != nil {
		return nil, err
	}
	return &layer{write: write, size: n.n, digest: hashOf(packed), diffID: hashOf(plain)}, nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// compress writes what write gives. One encoder at a time, so that the same input gives the same bytes.
func compress(w io.Writer, write func(io.Writer) error) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close())
}

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return l.size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayerZStd, nil }

func (l *layer) Compressed() (io.ReadCloser, error) {
	return piped(func(w io.Writer) error { return compress(w, l.write) }), nil
}

func (l *layer) Uncompressed() (io.ReadCloser, error) { return piped(l.write), nil }

// piped reads what write writes. Closing the reader ends the writer.
func piped(write func(io.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(write(w)) }()
	return r
}

type countWriter struct{ n int64 }

func (c *countWriter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func withParents(entries []entry) []entry {
	seen := map[string]bool{}
	var out []entry
	for _, e := range entries {
		seen[e.name] = true
		out = append(out, e)
	}
	for _, e := range entries {
		for dir := path.Dir(e.name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if !seen[dir] {
				seen[dir] = true
				out = append(out, entry{name: dir, mode: fs.ModeDir | 0o755})
			}
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return out
}

func writeLayer(w io.Writer, entries []entry) error {
	tw := tar.NewWriter(w)
	for _, e := range entries {
		if err := writeEntry(tw, e); err != nil {
			return fmt.Errorf("pack %s: %w", e.name, err)
		}
	}
	return tw.Close()
}

func writeEntry(tw *tar.Writer, e entry) (err error) {
	h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), ModTime: epoch(), Format: tar.FormatPAX}
	if e.mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
		return tw.WriteHeader(h)
	case e.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		return tw.WriteHeader(h)
	case e.src == "":
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.data))
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := tw.Write(e.data)
		return err
	}
	f, err := os.Open(e.src)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}

// imageConfig is what an image built here says of how to run it.
type imageConfig struct {
	arch       string
	entrypoint []string
	user       string
}

// newImage makes an image of layers.
func newImage(c imageConfig, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		return nil, err
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", c.arch
	cf.Created = v1.Time{Time: epoch()}
	cf.Config = v1.Config{Env: []string{imagePath}, Entrypoint: c.entrypoint, User: c.user}
	cf.History = nil
	return mutate.ConfigFile(img, cf)
}

// writeArchive writes img as an OCI image archive that
// "ctr -n k8s.io images import" brings in under the full reference ref.
func writeArchive(ctx context.Context, w io.Writer, ref string, img v1.Image) error {
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	mediaType, err := img.MediaType()
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	configDigest, err := img.ConfigName()
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	index, err := json.Marshal(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType: mediaType, Digest: digest, Size: int64(len(manifest)),
			Annotations: map[string]string{annotationContainerdName: ref, annotationRefName: tagOf(ref)},
		}},
	})
	if err != nil {
		return err
	}
	a := archive{ctx: ctx, tw: tar.NewWriter(w), seen: map[string]bool{}}
	a.bytes("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	a.bytes("index.json", index)
	a.bytes(blobName(digest), manifest)
	a.bytes(blobName(configDigest), config)
	for _, l := range layers {
		a.layer(l)
	}
	if a.err != nil {
		return a.err
	}
	return a.tw.Close()
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// archive writes tar entries until the first error.
type archive struct {
	ctx  context.Context
	tw   *tar.Writer
	seen map[string]bool
	err  error
}

func (a *archive) header(name string, size int64) bool {
	if a.err != nil || a.seen[name] {
		return false
	}
	a.seen[name] = true
	a.err = a.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: epoch(), Format: tar.FormatPAX})
	return a.err == nil
}

func (a *archive) bytes(name string, data []byte) {
	if a.header(name, int64(len(data))) {
		_, a.err = a.tw.Write(data)
	}
}

func (a *archive) layer(l v1.Layer) {
	digest, err := l.Digest()
	if err != nil {
		a.err = cmp.Or(a.err, err)
		return
	}
	size, err := l.Size()
	if err != nil {
		a.err = cmp.Or(a.err, err)
		return
	}
	if !a.header(blobName(digest), size) {
		return
	}
	r, err := l.Compressed()
	if err != nil {
		a.err = err
		return
	}
	_, err = io.Copy(a.tw, ctxReader{a.ctx, r})
	a.err = errors.Join(err, r.Close())
}

// tagOf gives the tag of a full reference, "" when it has none.
func tagOf(ref string) string {
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[i+1:]
	}
	return ""
}

// repositoryOf gives a full reference without its tag.
func repositoryOf(ref string) string {
	if tag := tagOf(ref); tag != "" {
		return strings.TrimSuffix(ref, ":"+tag)
	}
	return ref
}

// archiveName is the file name of an image in a bundle: registry.k8s.io/etcd:3.7.0-0 is etcd-3.7.0-0.tar.
func archiveName(ref string) string {
	return path.Base(repositoryOf(ref)) + "-" + tagOf(ref) + ".tar"
}

// writeImage writes the archive of img to dest.
func writeImage(ctx context.Context, dest, ref string, img v1.Image) (err error) {
	f, err := os.OpenFile(dest, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := writeArchive(ctx, f, ref, img); err != nil {
		return fmt.Errorf("write image %s to %s: %w", ref, filepath.Base(dest), err)
	}
	return f.Sync()
}
