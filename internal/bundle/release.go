package bundle

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/klauspost/compress/zstd"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// Release says where the public release sites are. The zero value is the real
// ones; mirrors of the same layout can be named instead.
type Release struct {
	// Kubernetes has v1.37.2/bin/linux/amd64/kubeadm and its .sha256 below it; default https://dl.k8s.io/release.
	Kubernetes string
	// Containerd, Runc and CNI are the projects' download directories on GitHub, with v2.4.2/... below each.
	Containerd, Runc, CNI string
	// Mirrors replaces the start of image references, as in registry.k8s.io -> registry.example.org/k8s.
	Mirrors map[string]string
	// HTTP is the client for downloads and pulls; nil is one with sensible limits.
	HTTP *http.Client
	// Probe bounds how long SourceAuto waits for an answer; 0 is 3 seconds.
	Probe time.Duration

	retry time.Duration // pause between attempts, for tests
	stall time.Duration // how long a server may send nothing, for tests
}

func (r Release) withDefaults() Release {
	r.Kubernetes = strings.TrimSuffix(cmp.Or(r.Kubernetes, "https://dl.k8s.io/release"), "/")
	r.Containerd = strings.TrimSuffix(cmp.Or(r.Containerd, "https://github.com/containerd/containerd/releases/download"), "/")
	r.Runc = strings.TrimSuffix(cmp.Or(r.Runc, "https://github.com/opencontainers/runc/releases/download"), "/")
	r.CNI = strings.TrimSuffix(cmp.Or(r.CNI, "https://github.com/containernetworking/plugins/releases/download"), "/")
	r.Probe = cmp.Or(r.Probe, 3*time.Second)
	r.retry = cmp.Or(r.retry, 2*time.Second)
	if r.HTTP == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 30 * time.Second
		r.HTTP = &http.Client{Transport: t}
	}
	r.HTTP = withStalls(r.HTTP, cmp.Or(r.stall, time.Minute))
	return r
}

// chooseSource makes the source that the options name. With SourceAuto it is
// release if that site answers for this version within seconds.
func (b *builder) chooseSource(ctx context.Context) (source, error) {
	rel := &release{b: b, r: b.o.Release.withDefaults()}
	switch b.o.Source {
	case SourceRelease:
		return rel, nil
	case SourceGoMod:
		return &gomod{b: b}, nil
	case SourceAuto, "":
	default:
		return nil, fmt.Errorf("source %q: want %s, %s or %s", b.o.Source, SourceAuto, SourceRelease, SourceGoMod)
	}
	err := rel.probe(ctx)
	if err == nil {
		return rel, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if _, none := recipeNamed("kubernetes", b.o.Version.String()); none != nil {
		return nil, errors.Join(fmt.Errorf("source %s: %w", SourceRelease, err), fmt.Errorf("source %s: %w", SourceGoMod, none))
	}
	b.emit(event.Event{
		Type: event.Note, Err: err.Error(),
		Msg: "the release site does not answer; building from Go modules instead, which is not the official release: fit for tests and rehearsals",
	})
	return &gomod{b: b}, nil
}

// release takes a bundle from the public release sites.
type release struct {
	b *builder
	r Release
}

func (s *release) name() string                  { return SourceRelease }
func (s *release) prepare(context.Context) error { return nil }

func (s *release) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.r.Probe)
	defer cancel()
	_, err := s.getSmall(ctx, s.kubernetesURL("kubeadm", s.b.o.Arch)+".sha256")
	return err
}

func (s *release) kubernetesURL(binary, arch string) string {
	return fmt.Sprintf("%s/%s/bin/linux/%s/%s", s.r.Kubernetes, s.b.o.Version, arch, binary)
}

// kubeadm must run here to be asked for the images, so one for this computer is fetched too where that differs.
func (s *release) kubeadm() []unit {
	units := []unit{s.kubernetesUnit("kubeadm")}
	if s.b.o.Arch != runtime.GOARCH {
		u := s.download(workDir+"/kubeadm-here", s.kubernetesURL("kubeadm", runtime.GOARCH), "", File{Kind: KindBinary, Component: "kubernetes", Version: s.b.o.Version.String()})
		units = append(units, u)
	}
	return units
}

func (s *release) kubernetesUnit(binary string) unit {
	return s.download("bin/"+binary, s.kubernetesURL(binary, s.b.o.Arch), "", File{Kind: KindBinary, Component: "kubernetes", Version: s.b.o.Version.String()})
}

// download is a unit that fetches one file. Its sum is at sumURL, or at the URL with .sha256 appended.
func (s *release) download(unitName, url, sumURL string, f File) unit {
	if sumURL == "" {
		sumURL = url + ".sha256"
	}
	f.From = url
	return unit{
		name: unitName, verb: "downloading", subject: path.Base(url),
		key: func(context.Context) (string, error) { return "download|" + url, nil },
		make: func(ctx context.Context, dest string, report func(string)) (File, error) {
			sums, err := s.getSmall(ctx, sumURL)
			if err != nil {
				return File{}, err
			}
			want, err := parseSum(string(sums), path.Base(url))
			if err != nil {
				return File{}, fmt.Errorf("%s: %w", sumURL, err)
			}
			return f, s.fetch(ctx, url, want, dest, report)
		},
	}
}

func (s *release) rest(ctx context.Context, images []imageRef) ([]unit, []Component, error) {
	b := s.b
	kube, arch := b.o.Version.String(), b.o.Arch
	containerd, runc, cni, router := newestRecipe("containerd"), newestRecipe("runc"), newestRecipe("cni"), newestRecipe("kube-router")
	components := []Component{{"kubernetes", kube}, {"containerd", containerd}, {"runc", runc}, {"cni", cni}, {"kube-router", router}}
	var units []unit
	for _, bin := range []string{"kubectl", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		units = append(units, s.kubernetesUnit(bin))
	}

	tgz := fmt.Sprintf("%s/%s/containerd-%s-linux-%s.tar.gz", s.r.Containerd, containerd, strings.TrimPrefix(containerd, "v"), arch)
	units = append(units, s.download(workDir+"/containerd.tar.gz", tgz, tgz+".sha256sum", File{Kind: KindImage, Component: "containerd", Version: containerd}))
	for _, bin := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		units = append(units, s.fromTarball("bin/"+bin, workDir+"/containerd.tar.gz", "bin/"+bin, tgz, Component{"containerd", containerd}))
	}
	runcURL := fmt.Sprintf("%s/%s/runc.%s", s.r.Runc, runc, arch)
	units = append(units, s.download("bin/runc", runcURL, fmt.Sprintf("%s/%s/runc.sha256sum", s.r.Runc, runc), File{Kind: KindBinary, Component: "runc", Version: runc}))
	tgz = fmt.Sprintf("%s/%s/cni-plugins-linux-%s-%s.tgz", s.r.CNI, cni, arch, cni)
	units = append(units, s.download(workDir+"/cni.tgz", tgz, "", File{Kind: KindImage, Component: "cni", Version: cni}))
	for _, bin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		units = append(units, s.fromTarball("bin/cni/"+bin, workDir+"/cni.tgz", bin, tgz, Component{"cni", cni}))
	}

	for _, i := range images {
		version := tagOf(i.ref)
		if i.role == RoleEtcd {
			v, err := etcdVersion(version)
			if err != nil {
				return nil, nil, err
			}
			// The one in use comes before the one of the step.
			components = append(components, Component{"etcd", v.String()})
			units = append(units, s.pull(i, v.String()), s.etcdBinary(i, v.String()))
			step, err := s.etcdStepUnits(ctx, i, v.String())
			if err != nil {
				return nil, nil, err
			}
			if step.unit.name != "" {
				components = append(components, Component{"etcd", step.version})
				units = append(units, step.unit)
			}
			continue
		}
		if i.component != "kubernetes" {
			components = append(components, Component{i.component, "v" + strings.TrimPrefix(version, "v")})
		}
		units = append(units, s.pull(i, "v"+strings.TrimPrefix(version, "v")))
	}
	units = append(units, s.pull(imageRef{ref: "docker.io/cloudnativelabs/kube-router:" + router, component: "kube-router", role: RoleCNI}, router))

	// The sample is belay's own program and published nowhere.
	if sample, component, err := sampleUnits(ctx, b); err != nil {
		b.emit(event.Event{Type: event.Warning, Msg: "no go command: the bundle will have no sample image, which demonstrations use"})
	} else {
		units = append(units, sample...)
		components = append(components, component)
	}
	return units, sortComponents(components), nil
}

type versionedUnit struct {
	version string
	unit    unit
}

// etcdStepUnits gives the pull of an older etcd, when this hop needs one; see etcdStep.
func (s *release) etcdStepUnits(ctx context.Context, etcd imageRef, version string) (versionedUnit, error) {
	v, err := kubeversion.Parse(version)
	if err != nil {
		return versionedUnit{}, err
	}
	if firstKubernetes(v.MinorVersion()) != s.b.o.Version.MinorVersion() {
		return versionedUnit{}, nil
	}
	repo, err := name.NewRepository(s.mirrored(repositoryOf(etcd.ref)))
	if err != nil {
		return versionedUnit{}, err
	}
	tags, err := remote.List(repo, s.remoteOptions(ctx)...)
	if err != nil {
		return versionedUnit{}, fmt.Errorf("list the tags of %s: %w", repo, err)
	}
	// Of one etcd version the image with the highest last number is the newest.
	newest := map[string]string{}
	var have []string
	for _, t := range tags {
		v, err := etcdVersion(t)
		if err != nil {
			continue // signatures and pre-releases
		}
		if old, ok := newest[v.String()]; !ok || len(t) > len(old) || len(t) == len(old) && t > old {
			newest[v.String()] = t
		}
		have = append(have, v.String())
	}
	step, err := etcdStep(s.b.o.Version, v, have)
	if err != nil || step.IsZero() {
		return versionedUnit{}, err
	}
	ref := imageRef{ref: repositoryOf(etcd.ref) + ":" + newest[step.String()], component: "etcd", role: RoleEtcdStep}
	return versionedUnit{step.String(), s.pull(ref, step.String())}, nil
}

// fromTarball is a unit that takes one file out of a tarball that was downloaded before.
func (s *release) fromTarball(unitName, tarball, member, url string, c Component) unit {
	return unit{
		name: unitName, verb: "unpacking", subject: path.Base(member),
		key: func(context.Context) (string, error) { return "member|" + member + "|" + s.b.done[tarball].SHA256, nil },
		make: func(ctx context.Context, dest string, _ func(string)) (File, error) {
			f := File{Kind: KindBinary, Component: c.Name, Version: c.Version, From: url + "#" + member}
			return f, extractTarGz(ctx, s.b.file(tarball), member, dest)
		},
	}
}

func (s *release) mirrored(ref string) string {
	best := ""
	for from := range s.r.Mirrors {
		if strings.HasPrefix(ref, from+"/") && len(from) > len(best) {
			best = from
		}
	}
	if best == "" {
		return ref
	}
	return strings.TrimSuffix(s.r.Mirrors[best], "/") + strings.TrimPrefix(ref, best)
}

func (s *release) remoteOptions(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithTransport(s.r.HTTP.Transport),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: s.b.o.Arch}),
	}
}

// pull is a unit that fetches an image. The registry's digests are checked as the layers are read.
func (s *release) pull(i imageRef, version string) unit {
	return unit{
		name: "images/" + archiveName(i.ref), verb: "pulling", subject: i.ref,
		key: func(context.Context) (string, error) { return "pull|" + i.ref + "|" + s.b.o.Arch, nil },
		make: func(ctx context.Context, dest string, report func(string)) (File, error) {
			ref, err := name.ParseReference(s.mirrored(i.ref))
			if err != nil {
				return File{}, err
			}
			defer every(s.b.o.heartbeat, func() { report("still pulling") })()
			img, err := remote.Image(ref, s.remoteOptions(ctx)...)
			if err != nil {
				return File{}, err
			}
			cf, err := img.ConfigFile()
			if err != nil {
				return File{}, err
			}
			if cf.Architecture != s.b.o.Arch || cf.OS != "linux" {
				return File{}, fmt.Errorf("%s is for %s/%s, want linux/%s", ref, cf.OS, cf.Architecture, s.b.o.Arch)
			}
			digest, err := img.Digest()
			if err != nil {
				return File{}, err
			}
			f := File{Kind: KindImage, Component: i.component, Version: version, Ref: i.ref, Role: i.role, From: repositoryOf(s.mirrored(i.ref)) + "@" + digest.String()}
			return f, writeImage(ctx, dest, i.ref, img)
		},
	}
}

// etcdBinary takes etcd's binary out of its image: rehearsals run it as a plain process.
func (s *release) etcdBinary(i imageRef, version string) unit {
	archive := "images/" + archiveName(i.ref)
	return unit{
		name: "bin/etcd", verb: "unpacking", subject: "etcd",
		key: func(context.Context) (string, error) {
			return "image-member|usr/local/bin/etcd|" + s.b.done[archive].SHA256, nil
		},
		make: func(ctx context.Context, dest string, _ func(string)) (File, error) {
			f := File{Kind: KindBinary, Component: "etcd", Version: version, From: i.ref + "#/usr/local/bin/etcd"}
			return f, extractFromArchive(ctx, s.b.file(archive), "usr/local/bin/etcd", dest)
		},
	}
}

func extractTarGz(ctx context.Context, tarball, member, dest string) (err error) {
	f, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewReader(ctxReader{ctx, f})
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(tarball), err)
	}
	ok, err := extractMember(z, member, dest)
	if err == nil && !ok {
		err = fmt.Errorf("%s has no file %s", filepath.Base(tarball), member)
	}
	return err
}

// extractMember writes the regular file named member of a tar stream to dest.
func extractMember(r io.Reader, member, dest string) (found bool, err error) {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if h.Typeflag != tar.TypeReg || strings.TrimPrefix(path.Clean("/"+h.Name), "/") != member {
			continue
		}
		out, err := os.OpenFile(dest, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
		if err != nil {
			return false, err
		}
		_, err = io.Copy(out, tr)
		return true, errors.Join(err, out.Close())
	}
}

// extractFromArchive takes one file out of an OCI image archive, from the topmost layer that has it.
func extractFromArchive(ctx context.Context, archivePath, member, dest string) error {
	var index v1.IndexManifest
	if err := readBlob(archivePath, "index.json", func(r io.Reader) error { return json.NewDecoder(r).Decode(&index) }); err != nil {
		return err
	}
	if len(index.Manifests) != 1 {
		return fmt.Errorf("%s holds %d images, want one", filepath.Base(archivePath), len(index.Manifests))
	}
	var m v1.Manifest
	if err := readBlob(archivePath, blobName(index.Manifests[0].Digest), func(r io.Reader) error { return json.NewDecoder(r).Decode(&m) }); err != nil {
		return err
	}
	for i := len(m.Layers) - 1; i >= 0; i-- {
		found := false
		err := readBlob(archivePath, blobName(m.Layers[i].Digest), func(r io.Reader) (err error) {
			plain, err := decompress(ctxReader{ctx, r}, string(m.Layers[i].MediaType))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, plain.Close()) }()
			found, err = extractMember(plain, member, dest)
			return err
		})
		if err != nil || found {
			return err
		}
	}
	return fmt.Errorf("%s has no file %s", filepath.Base(archivePath), member)
}

func decompress(r io.Reader, mediaType string) (io.ReadCloser, error) {
	switch {
	case strings.HasSuffix(mediaType, "gzip"):
		return gzip.NewReader(r)
	case strings.HasSuffix(mediaType, "zstd"):
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// readBlob gives one entry of a tar file to read.
func readBlob(tarPath, entryName string, read func(io.Reader) error) (err error) {
	f, err := os.Open(tarPath)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s has no %s", filepath.Base(tarPath), entryName)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(tarPath), err)
		}
		if h.Name == entryName {
			return read(tr)
		}
	}
}
