// Package payload puts what a bundle holds onto a host: files by their sums,
// images into containerd.
//
// It looks first and moves only what differs, so every call may be repeated.
// Where the host already sees the bundle (machines on this computer have it
// mounted at MirrorDir) the bytes are copied there instead of sent; their sums
// are checked all the same.
package payload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/host"
)

// MirrorDir is where a host may see the bundles of this computer, read-only: <MirrorDir>/<version>-<arch>/.
const MirrorDir = "/opt/belay/bundles"

// CtrPath is containerd's client as belay installs it.
const CtrPath = "/usr/local/bin/ctr"

// File is one file that a host is to have.
type File struct {
	// Path is absolute, on the host.
	Path string
	Mode fs.FileMode
	// Content is the whole file; or, if nil, Local is a file of a bundle on this computer with its SHA256
	// (hexadecimal) and Size in bytes.
	Content []byte
	Local   string
	SHA256  string
	Size    int64
}

// Sum is the SHA-256 that the file is to have.
func (f File) Sum() string {
	if f.Content == nil {
		return f.SHA256
	}
	sum := sha256.Sum256(f.Content)
	return hex.EncodeToString(sum[:])
}

// BundleFile is a binary of a bundle that is to lie at dst on a host. name is relative to bin/.
func BundleFile(b *bundle.Bundle, name, dst string) (File, error) {
	for _, f := range b.Binaries() {
		if f.Path == "bin/"+name {
			return File{Path: dst, Mode: 0o755, Local: filepath.Join(b.Dir(), filepath.FromSlash(f.Path)), SHA256: f.SHA256, Size: f.Size}, nil
		}
	}
	return File{}, fmt.Errorf("bundle %s has no binary %s", b.Dir(), name)
}

// Differing gives those of files that are missing on the host or have other content.
func Differing(ctx context.Context, h host.Host, files []File) ([]File, error) {
	if len(files) == 0 {
		return nil, nil
	}
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	have, err := Sums(ctx, h, paths)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, f := range files {
		if have[f.Path] != f.Sum() {
			out = append(out, f)
		}
	}
	return out, nil
}

// Sums gives the SHA-256, in hexadecimal, of those of paths that are regular files on the host.
func Sums(ctx context.Context, h host.Host, paths []string) (map[string]string, error) {
	// sha256sum exits with 1 for a missing file; the loop leaves those out instead.
	const script = `for f in "$@"; do if [ -f "$f" ]; then sha256sum -z -- "$f" || exit 1; fi; done`
	res, err := h.Run(ctx, host.Cmd{Argv: append([]string{"sh", "-c", script, "sums"}, paths...)})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for rec := range bytes.SplitSeq(res.Stdout, []byte{0}) {
		if len(rec) == 0 {
			continue
		}
		sum, name, ok := strings.Cut(string(rec), " ")
		if !ok || len(sum) != 64 || len(name) < 2 {
			return nil, fmt.Errorf("%s: sha256sum printed %q", h.Name(), rec)
		}
		out[name[1:]] = sum // the second character is a blank or, for binary mode, an asterisk
	}
	return out, nil
}

// Put writes one file, atomically. A file of a bundle is copied on the host where it sees the bundle.
func Put(ctx context.Context, h host.Host, f File) error {
	if f.Content != nil {
		return h.WriteFile(ctx, f.Path, f.Content, f.Mode)
	}
	if done, err := copyMirrored(ctx, h, f); done || err != nil {
		return err
	}
	r, err := os.Open(f.Local)
	if err != nil {
		return err
	}
	err = h.Upload(ctx, f.Path, &soundReader{r: r, left: f.Size, want: f.SHA256, sum: sha256.New(), name: f.Local}, f.Size, f.Mode)
	if err = errors.Join(err, r.Close()); err != nil {
		return fmt.Errorf("%s: put %s: %w", h.Name(), f.Path, err)
	}
	return nil
}

// soundReader fails instead of giving the last byte of content that has another
// digest, so that an upload of it never takes the old file's place.
type soundReader struct {
	r    io.Reader
	left int64
	sum  hash.Hash
	want string
	name string
}

func (s *soundReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	if s.left -= int64(n); n > 0 && s.left == 0 || err == io.EOF {
		if hex.EncodeToString(s.sum.Sum(nil)) != s.want {
			return 0, fmt.Errorf("%s: its content is not what the bundle's manifest says; run: belay bundle verify", s.name)
		}
	}
	return n, err
}

// mirrored gives the path at which a host would see a bundle's file; "" when local is in no bundle.
func mirrored(local string) string {
	rel := filepath.Base(local)
	for dir := filepath.Dir(local); ; dir = filepath.Dir(dir) {
		base, parent := filepath.Base(dir), filepath.Dir(dir)
		switch {
		case base == "bin" || base == "images":
			return path.Join(MirrorDir, filepath.Base(parent), base, rel)
		case parent == dir:
			return ""
		}
		rel = path.Join(base, rel)
	}
}

func copyMirrored(ctx context.Context, h host.Host, f File) (bool, error) {
	src := mirrored(f.Local)
	if src == "" {
		return false, nil
	}
	// The copy is made beside the target and renamed, so that a program that runs is never written to.
	const script = `set -e
[ -f "$1" ] || exit 9
mkdir -p "$(dirname "$2")"
t="$2.belay-part"
trap 'rm -f "$t"' EXIT
cp "$1" "$t"
[ "$(sha256sum < "$t")" = "$3  -" ] || exit 9
chmod "$4" "$t"
sync "$t"
mv -f "$t" "$2"`
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", script, "copy", src, f.Path, f.SHA256, strconv.FormatUint(uint64(f.Mode.Perm()), 8)}})
	if exit := (*host.ExitError)(nil); errors.As(err, &exit) && exit.Code == 9 {
		return false, nil // not there, or another build of it: send it
	}
	if err != nil {
		return false, fmt.Errorf("put %s: %w", f.Path, err)
	}
	return true, nil
}

// MissingImages gives those of images that containerd on the host does not have under their references, or has in another build: two
// builds of one version bear the same name, and which one runs is not the name's to say.
func MissingImages(ctx context.Context, h host.Host, images []bundle.Image) ([]bundle.Image, error) {
	have, err := hostImages(ctx, h)
	if err != nil {
		return nil, err
	}
	var out []bundle.Image
	for _, i := range images {
		want, err := i.Digest()
		if err != nil {
			return nil, err
		}
		if have[i.Ref] != want {
			out = append(out, i)
		}
	}
	return out, nil
}

// hostImages are the images that containerd has for Kubernetes and that a filter in containerd's syntax lets through: digests by reference.
func hostImages(ctx context.Context, h host.Host, filter ...string) (map[string]string, error) {
	res, err := h.Run(ctx, host.Cmd{Argv: append([]string{CtrPath, "--namespace", "k8s.io", "images", "list"}, filter...)})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(res.Stdout)) {
		// REF TYPE DIGEST SIZE PLATFORMS LABELS; a size has a blank in it.
		if f := strings.Fields(line); len(f) >= 3 && strings.HasPrefix(f[2], "sha256:") {
			have[f[0]] = f[2]
		}
	}
	return have, nil
}

// ImportImage loads one image archive into containerd and checks that it is there under its reference.
func ImportImage(ctx context.Context, h host.Host, img bundle.Image) error {
	argv := []string{CtrPath, "--namespace", "k8s.io", "images", "import"}
	var err error
	if src := mirrored(img.Path); src != "" && sees(ctx, h, src, img) {
		_, err = h.Run(ctx, host.Cmd{Argv: append(argv, src)})
	} else {
		err = stream(ctx, h, append(argv, "-"), img.Path)
	}
	if err != nil {
		return fmt.Errorf("import image %s: %w", img.Ref, err)
	}
	missing, err := MissingImages(ctx, h, []bundle.Image{img})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%s: the archive %s does not hold image %s; run: belay bundle verify", h.Name(), img.Path, img.Ref)
	}
	return err
}

// The labels of an image that is kept for a run. containerd's CRI plugin tells the kubelet of pinned images, and the kubelet's image
// collector leaves them alone (KEP-4033, io.cri-containerd.pinned in containerd's CRI documentation).
const (
	pinLabel   = "io.cri-containerd.pinned"
	pinned     = "pinned"
	ownerLabel = "belay.dev/run"
)

// Unpinned gives those of images that the kubelet's image collector may delete when the disk gets full.
func Unpinned(ctx context.Context, h host.Host, images []bundle.Image) ([]bundle.Image, error) {
	have, err := hostImages(ctx, h, fmt.Sprintf("labels.%q==%s", pinLabel, pinned))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(images), func(i bundle.Image) bool { return have[i.Ref] != "" }), nil
}

// Pin keeps one image of the host from the kubelet's image collector, for a run: Unpin with the same run ends that.
func Pin(ctx context.Context, h host.Host, ref, run string) error {
	_, err := h.Run(ctx, host.Cmd{Argv: []string{CtrPath, "--namespace", "k8s.io", "images", "label", ref, pinLabel + "=" + pinned, ownerLabel + "=" + run}})
	if err != nil {
		return fmt.Errorf("pin image %s: %w", ref, err)
	}
	return nil
}

// Unpin gives back what was pinned for a run, and nothing that somebody else pinned.
func Unpin(ctx context.Context, h host.Host, run string) error {
	refs, err := hostImages(ctx, h, fmt.Sprintf("labels.%q==%q", ownerLabel, run))
	if err != nil {
		return err
	}
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		// An empty value takes a label away.
		if _, err := h.Run(ctx, host.Cmd{Argv: []string{CtrPath, "--namespace", "k8s.io", "images", "label", ref, pinLabel + "=", ownerLabel + "="}}); err != nil {
			return fmt.Errorf("unpin image %s: %w", ref, err)
		}
	}
	return nil
}

// sees says whether the host has the image's archive at p.
func sees(ctx context.Context, h host.Host, p string, img bundle.Image) bool {
	sums, err := Sums(ctx, h, []string{p})
	return err == nil && sums[p] == img.SHA256
}

func stream(ctx context.Context, h host.Host, argv []string, local string) error {
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	_, err = h.Run(ctx, host.Cmd{Argv: argv, Stdin: f})
	return errors.Join(err, f.Close())
}
