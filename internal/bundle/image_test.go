package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func testImage(t *testing.T, content string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "etcd"), content)
	l, err := newLayer([]entry{{name: "usr/local/bin/etcd", mode: 0o755, src: filepath.Join(dir, "etcd")}, {name: "bin", link: "usr/bin"}, {name: "etc/passwd", mode: 0o644, data: []byte("root")}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := newImage(imageConfig{arch: "amd64", entrypoint: []string{"/x"}, user: "1:1"}, l)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestImageIsValidAndReproducible(t *testing.T) {
	content := string(bytes.Repeat([]byte("etcd"), 100_000))
	img := testImage(t, content)
	checkLayers(t, img)
	var first, second, other bytes.Buffer
	const ref = "registry.k8s.io/etcd:3.6.8-0"
	if err := errors.Join(writeArchive(t.Context(), &first, ref, img), writeArchive(t.Context(), &second, ref, testImage(t, content)), writeArchive(t.Context(), &other, ref, testImage(t, content+"!"))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same input gives other bytes")
	}
	if bytes.Equal(first.Bytes(), other.Bytes()) {
		t.Error("other input gives the same bytes")
	}
	cf, err := img.ConfigFile()
	if err != nil || cf.Config.Env[0] != imagePath || cf.Architecture != "amd64" || cf.Config.User != "1:1" {
		t.Errorf("config %+v, %v", cf, err)
	}
}

// checkLayers reads every layer and compares it with the digests that the image names.
func checkLayers(t *testing.T, img v1.Image) {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != len(m.Layers) || len(layers) != len(cf.RootFS.DiffIDs) {
		t.Fatalf("%d layers, %d in the manifest, %d in the configuration, %v", len(layers), len(m.Layers), len(cf.RootFS.DiffIDs), err)
	}
	for i, l := range layers {
		packed, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := v1.SHA256(packed)
		if err != nil || got != m.Layers[i].Digest || n != m.Layers[i].Size {
			t.Errorf("layer %d is %s (%d bytes), want %s (%d); %v", i, got, n, m.Layers[i].Digest, m.Layers[i].Size, err)
		}
		packed, err = l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		plain, err := decompress(packed, string(m.Layers[i].MediaType))
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := v1.SHA256(plain); err != nil || got != cf.RootFS.DiffIDs[i] {
			t.Errorf("layer %d unpacks to %s, want %s; %v", i, got, cf.RootFS.DiffIDs[i], err)
		}
	}
}

func TestArchiveNamesTheImageForContainerd(t *testing.T) {
	var b bytes.Buffer
	const ref = "registry.k8s.io/coredns/coredns:v1.14.2"
	if err := writeArchive(t.Context(), &b, ref, testImage(t, "x")); err != nil {
		t.Fatal(err)
	}
	var names []string
	var index v1.IndexManifest
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name == "index.json" {
			if err := json.NewDecoder(tr).Decode(&index); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(names) != 5 || !slices.Contains(names, "oci-layout") {
		t.Errorf("entries %v", names)
	}
	got := index.Manifests[0].Annotations
	if got["io.containerd.image.name"] != ref || got["org.opencontainers.image.ref.name"] != "v1.14.2" {
		t.Errorf("annotations %v", got)
	}
}

func TestExtractFromArchive(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "etcd.tar")
	if err := writeImage(t.Context(), archive, "registry.k8s.io/etcd:3.6.8-0", testImage(t, "the program")); err != nil {
		t.Fatal(err)
	}
	dest := filepath.Join(dir, "etcd")
	if err := extractFromArchive(t.Context(), archive, "usr/local/bin/etcd", dest); err != nil {
		t.Fatal(err)
	}
	if sum, n, err := sumFile(t.Context(), dest); err != nil || n != int64(len("the program")) {
		t.Errorf("%s, %d bytes, %v", sum, n, err)
	}
	if err := extractFromArchive(t.Context(), archive, "usr/local/bin/etcdctl", dest); err == nil {
		t.Error("a file that is not there was found")
	}
}

func TestLayerHasParentsAndFixedTimes(t *testing.T) {
	l, err := newLayer([]entry{{name: "a/b/c", mode: 0o600, data: []byte("x")}, {name: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var names []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if !h.ModTime.Equal(epoch()) {
			t.Errorf("%s has time %s", h.Name, h.ModTime)
		}
		if h.Name == "tmp/" && h.Mode != 0o1777 {
			t.Errorf("tmp has mode %o", h.Mode)
		}
	}
	if want := []string{"a/", "a/b/", "a/b/c", "tmp/"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

func TestArchiveReportsAFullDisk(t *testing.T) {
	full := errors.New("no space left on device")
	err := writeArchive(t.Context(), writerFunc(func([]byte) (int, error) { return 0, full }), "a/b:c", testImage(t, "x"))
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if _, err := layerOf(func(io.Writer) error { return iotest.ErrTimeout }); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestReferences(t *testing.T) {
	for ref, want := range map[string][3]string{
		"registry.k8s.io/etcd:3.6.8-0":            {"registry.k8s.io/etcd", "3.6.8-0", "etcd-3.6.8-0.tar"},
		"registry.k8s.io/coredns/coredns:v1.14.2": {"registry.k8s.io/coredns/coredns", "v1.14.2", "coredns-v1.14.2.tar"},
		"10.0.0.1:5000/a/pause:3":                 {"10.0.0.1:5000/a/pause", "3", "pause-3.tar"},
		"10.0.0.1:5000/pause":                     {"10.0.0.1:5000/pause", "", "pause-.tar"},
	} {
		if got := [3]string{repositoryOf(ref), tagOf(ref), archiveName(ref)}; got != want {
			t.Errorf("%s: %v, want %v", ref, got, want)
		}
	}
}
