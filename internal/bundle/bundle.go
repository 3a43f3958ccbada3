package bundle

import (
	"archive/tar"
	"context"
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
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// DefaultRoot is where bundles lie unless the user says otherwise: belay/bundles in the user's cache directory.
func DefaultRoot() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the bundle directory: %w; set $XDG_CACHE_HOME or name one", err)
	}
	return filepath.Join(cache, "belay", "bundles"), nil
}

// Bundle is a complete bundle on disk.
type Bundle struct {
	dir      string
	manifest Manifest
	digest   string
	sum      string // of the manifest's bytes, as digest was before it left the sample out
}

// Image is one OCI image archive of a bundle.
type Image struct {
	// Ref is the full reference, as in registry.k8s.io/kube-apiserver:v1.37.2.
	Ref string
	// Path is the archive's absolute path; Size its bytes; SHA256 hexadecimal.
	Path   string
	Size   int64
	SHA256 string
	// Role is one of the Role constants; Component and Version say what is in it.
	Role      string
	Component string
	Version   string
}

// Digest is the digest that a container runtime has for the image once the archive was imported: that of the manifest, or index, to which the
// archive's index.json leads.
func (i Image) Digest() (digest string, err error) {
	f, err := os.Open(i.Path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := tar.NewReader(f) // it seeks past what is not read
	for {
		h, err := r.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it has no index.json")
			}
			return "", fmt.Errorf("image archive %s: %w", i.Path, err)
		}
		if path.Clean(h.Name) != "index.json" {
			continue
		}
		var index v1.IndexManifest
		if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&index); err != nil {
			return "", fmt.Errorf("image archive %s: index.json: %w", i.Path, err)
		}
		for _, m := range index.Manifests {
			if m.Annotations[annotationContainerdName] == i.Ref || len(index.Manifests) == 1 {
				return m.Digest.String(), nil
			}
		}
		return "", fmt.Errorf("image archive %s does not hold %s; run: belay bundle verify", i.Path, i.Ref)
	}
}

// Open reads the bundle in dir. It checks the manifest, not the files: see Verify.
func Open(dir string) (*Bundle, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", dir, err)
	}
	data, err := os.ReadFile(filepath.Join(abs, manifestName))
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", dir, err)
	}
	m, err := DecodeManifest(data)
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", dir, err)
	}
	essence, err := m.withoutSample().Encode()
	if err != nil {
		return nil, fmt.Errorf("open bundle %s: %w", dir, err)
	}
	return &Bundle{dir: abs, manifest: m, digest: digestOf(essence), sum: digestOf(data)}, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Find opens the bundle of one version below root; "" is DefaultRoot, and an
// empty arch is this computer's. The error is a *MissingError when there is none.
func Find(root string, version kubeversion.V, arch string) (*Bundle, error) {
	root, arch, err := defaults(root, arch)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, dirName(version, arch))
	b, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		_, partial := os.Stat(dir + partialSuffix)
		return nil, &MissingError{Version: version, Arch: arch, Dir: root, Partial: partial == nil}
	}
	if err != nil {
		return nil, err
	}
	if b.manifest.Kubernetes != version || b.manifest.Arch != arch {
		return nil, fmt.Errorf("open bundle %s: it holds %s for %s", dir, b.manifest.Kubernetes.Bare(), b.manifest.Arch)
	}
	return b, nil
}

const partialSuffix = ".partial"

func dirName(version kubeversion.V, arch string) string { return version.Bare() + "-" + arch }

func defaults(root, arch string) (string, string, error) {
	if arch == "" {
		arch = runtime.GOARCH
	}
	if root != "" {
		return root, arch, nil
	}
	root, err := DefaultRoot()
	return root, arch, err
}

// Listed is one entry of List.
type Listed struct {
	// Name is the directory's name, Dir its path.
	Name, Dir string
	// Bundle is nil when there is an error, or when the bundle is partial.
	Bundle *Bundle
	// Partial says that a build of it was begun and not finished.
	Partial bool
	// Err says why a directory that should be a bundle cannot be opened.
	Err error
}

// List gives what is below root, oldest Kubernetes version first. A root that
// does not exist has no bundles.
func List(root string) ([]Listed, error) {
	root, _, err := defaults(root, "")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list bundles: %w", err)
	}
	type keyed struct {
		v kubeversion.V
		l Listed
	}
	var found []keyed
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		name, partial := strings.CutSuffix(e.Name(), partialSuffix)
		version, ok := splitDirName(name)
		if !ok {
			continue
		}
		l := Listed{Name: name, Dir: filepath.Join(root, e.Name()), Partial: partial}
		if !partial {
			l.Bundle, l.Err = Open(l.Dir)
		}
		found = append(found, keyed{version, l})
	}
	slices.SortStableFunc(found, func(a, b keyed) int { return a.v.Compare(b.v) })
	out := make([]Listed, 0, len(found))
	for _, k := range found {
		out = append(out, k.l)
	}
	return out, nil
}

func splitDirName(name string) (kubeversion.V, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 || !isName(name[i+1:]) {
		return kubeversion.V{}, false
	}
	v, err := kubeversion.Parse(name[:i])
	return v, err == nil
}

// Dir is the bundle's directory, an absolute path.
func (b *Bundle) Dir() string { return b.dir }

// Manifest is what the bundle says of itself. The caller must not change it.
func (b *Bundle) Manifest() Manifest { return b.manifest }

// Digest is "sha256:" and the sum of the manifest without belay's own sample: the manifest holds the sums of all files, so it names
// the content. The sample goes to no cluster that is upgraded, and another belay replaces it in a bundle that a run may be in the middle of.
func (b *Bundle) Digest() string { return b.digest }

// Is says whether digest names this content. The sum of the manifest with the sample does so too: it is in plans of earlier versions of belay.
func (b *Bundle) Is(digest string) bool { return digest == b.digest || digest == b.sum }

// Version is the Kubernetes version that the bundle is for.
func (b *Bundle) Version() kubeversion.V { return b.manifest.Kubernetes }

// Official says whether every file is as the projects published it. A bundle
// that is not is fit for tests and rehearsals.
func (b *Bundle) Official() bool { return b.manifest.Official }

// Component gives the version of a component as its project writes it ("v2.4.2", etcd: "v3.7.0"); "" when the bundle has none.
func (b *Bundle) Component(name string) string {
	for _, c := range b.manifest.Components {
		if c.Name == name {
			return c.Version
		}
	}
	return ""
}

// Size is the sum of all files, in bytes.
func (b *Bundle) Size() int64 {
	var n int64
	for _, f := range b.manifest.Files {
		n += f.Size
	}
	return n
}

// BinaryPath gives the absolute path of a binary by its name below bin/: "kubeadm", "cni/bridge".
func (b *Bundle) BinaryPath(name string) (string, error) {
	for _, f := range b.manifest.Files {
		if f.Kind == KindBinary && f.Path == "bin/"+name {
			return filepath.Join(b.dir, filepath.FromSlash(f.Path)), nil
		}
	}
	return "", fmt.Errorf("bundle %s has no binary %s", b.manifest.Kubernetes.Bare(), name)
}

// Binaries gives the files of kind binary, ordered by path.
func (b *Bundle) Binaries() []File {
	var out []File
	for _, f := range b.manifest.Files {
		if f.Kind == KindBinary {
			out = append(out, f)
		}
	}
	return out
}

// Images gives the images, ordered by path.
func (b *Bundle) Images() []Image {
	var out []Image
	for _, f := range b.manifest.Files {
		if f.Kind == KindImage {
			out = append(out, Image{
				Ref: f.Ref, Path: filepath.Join(b.dir, filepath.FromSlash(f.Path)), Size: f.Size, SHA256: f.SHA256,
				Role: f.Role, Component: f.Component, Version: f.Version,
			})
		}
	}
	return out
}

// ImagesByRole gives the images of one role.
func (b *Bundle) ImagesByRole(role string) []Image {
	return slices.DeleteFunc(b.Images(), func(i Image) bool { return i.Role != role })
}

// Verify reads every file and compares it with the manifest. The error joins
// one *SumError for each file that is changed, missing, or not listed.
func (b *Bundle) Verify(ctx context.Context, sink event.Sink) error {
	sink = event.Or(sink)
	start := time.Now()
	run := "bundle-verify/" + filepath.Base(b.dir)
	total := len(b.manifest.Files)
	sink.Emit(event.Event{Type: event.RunStarted, Run: run, Subject: b.dir, Total: total, Msg: "verifying bundle " + filepath.Base(b.dir)})
	var errs []error
	listed := map[string]bool{manifestName: true}
	for i, f := range b.manifest.Files {
		listed[f.Path] = true
		err := checkFile(ctx, filepath.Join(b.dir, filepath.FromSlash(f.Path)), f)
		e := event.Event{Type: event.StepProgress, Run: run, Step: "verify", Subject: f.Path, Index: i + 1, Total: total, Elapsed: time.Since(start), Msg: f.Path + " is as the manifest says"}
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("verify bundle %s: %w", b.dir, ctx.Err())
			}
			errs = append(errs, err)
			e.Type, e.Step, e.Msg, e.Err = event.StepFailed, f.Path, f.Path+" is not as the manifest says", err.Error()
		}
		sink.Emit(e)
	}
	errs = append(errs, b.extraFiles(listed)...)
	err := errors.Join(errs...)
	done := event.Event{Type: event.RunFinished, Run: run, Subject: b.dir, Total: total, Elapsed: time.Since(start), Msg: fmt.Sprintf("%d files are as the manifest says", total)}
	if err != nil {
		err = fmt.Errorf("verify bundle %s: %w", b.dir, err)
		done.Msg, done.Err = fmt.Sprintf("%d problems", len(errs)), err.Error()
	}
	sink.Emit(done)
	return err
}

// extraFiles finds what the manifest does not list: a file that nobody vouches for could be copied to a node.
func (b *Bundle) extraFiles(listed map[string]bool) []error {
	var errs []error
	walkErr := filepath.WalkDir(b.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		rel, err := filepath.Rel(b.dir, p)
		if err != nil {
			return err
		}
		if rel = filepath.ToSlash(rel); !listed[rel] {
			errs = append(errs, &SumError{Path: rel, Want: "no such file", Got: "a file that is not in the manifest"})
		}
		return nil
	})
	if walkErr != nil {
		errs = append(errs, walkErr)
	}
	return errs
}

// checkFile compares the regular file at p with what f says of it.
func checkFile(ctx context.Context, p string, f File) error {
	want := describe(f.SHA256, f.Size)
	info, err := os.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return &SumError{Path: f.Path, Want: want, Got: "no such file"}
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &SumError{Path: f.Path, Want: want, Got: "a " + info.Mode().Type().String() + ", not a regular file"}
	}
	if f.Kind == KindBinary && info.Mode().Perm()&0o111 == 0 {
		return &SumError{Path: f.Path, Want: "an executable file", Got: "mode " + info.Mode().Perm().String()}
	}
	sum, n, err := sumFile(ctx, p)
	if err != nil {
		return fmt.Errorf("verify %s: %w", f.Path, err)
	}
	if sum != f.SHA256 || n != f.Size {
		return &SumError{Path: f.Path, Want: want, Got: describe(sum, n)}
	}
	return nil
}

func describe(sum string, size int64) string { return fmt.Sprintf("sha256:%s (%d bytes)", sum, size) }

// sumFile gives the SHA-256 sum, hexadecimal, and the size of a file.
func sumFile(ctx context.Context, p string) (sum string, size int64, err error) {
	f, err := os.Open(p)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	size, err = io.Copy(h, ctxReader{ctx, f})
	if err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// ctxReader ends a copy when its context does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
