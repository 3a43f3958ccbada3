package payload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/bundle/bundletest"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/host/hosttest"
)

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// bundleFile writes a file as a bundle would have it, below bin/ of a directory that no host sees.
func bundleFile(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "0.0.0-test", "bin", "tool")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// On a real computer, with real sha256sum and cp: this one.
func TestPutMovesOnlyWhatDiffers(t *testing.T) {
	h := host.NewLocal("here")
	dir := t.TempDir()
	local := bundleFile(t, "tool 2")
	files := []File{
		{Path: filepath.Join(dir, "a b", "text"), Mode: 0o640, Content: []byte("hello\n")},
		{Path: filepath.Join(dir, "tool"), Mode: 0o755, Local: local, SHA256: sum("tool 2"), Size: 6},
		{Path: filepath.Join(dir, "same"), Mode: 0o644, Content: []byte("same")},
	}
	for name, content := range map[string]string{"same": "same", "tool": "tool 1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stale, err := Differing(t.Context(), h, files)
	if err != nil {
		t.Fatal(err)
	}
	if len(stale) != 2 || stale[0].Path != files[0].Path || stale[1].Path != files[1].Path {
		t.Fatalf("differing: %+v", stale)
	}
	for _, f := range stale {
		if err := Put(t.Context(), h, f); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(f.Path)
		if err != nil || info.Mode().Perm() != f.Mode {
			t.Errorf("%s: %v, %v", f.Path, info, err)
		}
	}
	if stale, err = Differing(t.Context(), h, files); err != nil || len(stale) > 0 {
		t.Errorf("after Put: %+v, %v", stale, err)
	}
}

func TestPutRefusesAChangedBundle(t *testing.T) {
	h := host.NewLocal("here")
	local := bundleFile(t, "tampered")
	f := File{Path: filepath.Join(t.TempDir(), "tool"), Mode: 0o755, Local: local, SHA256: sum("original"), Size: 8}
	if err := os.WriteFile(f.Path, []byte("what ran before"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := Put(t.Context(), h, f)
	if err == nil || !strings.Contains(err.Error(), "belay bundle verify") {
		t.Errorf("error %v", err)
	}
	if b, err := os.ReadFile(f.Path); err != nil || string(b) != "what ran before" {
		t.Errorf("the old file was replaced: %q, %v", b, err)
	}
	f.Size = 9
	if err := Put(t.Context(), h, f); err == nil {
		t.Error("a file of another size was accepted")
	}
}

func TestMirrored(t *testing.T) {
	for in, want := range map[string]string{
		"/c/belay/bundles/1.36.3-amd64/bin/kubelet":           MirrorDir + "/1.36.3-amd64/bin/kubelet",
		"/c/belay/bundles/1.36.3-amd64/bin/cni/bridge":        MirrorDir + "/1.36.3-amd64/bin/cni/bridge",
		"/c/belay/bundles/1.36.3-amd64/images/etcd-3.6.8.tar": MirrorDir + "/1.36.3-amd64/images/etcd-3.6.8.tar",
		"/somewhere/else": "",
	} {
		if got := mirrored(in); got != want {
			t.Errorf("mirrored(%q) = %q, want %q", in, got, want)
		}
	}
}

func image(t *testing.T, ref string) bundle.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "1.0.0-test", "images", "x.tar")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	b := bundletest.Archive(ref, "")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return bundle.Image{Ref: ref, Path: path, Size: int64(len(b)), SHA256: sum(string(b))}
}

// line is one of `ctr images list`.
func line(t *testing.T, img bundle.Image) string {
	t.Helper()
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return img.Ref + "  application/vnd.oci.image.manifest.v1+json " + digest + " 18.2 MiB linux/amd64 io.cri-containerd.image=managed"
}

// containerd answers as one that takes what it is given.
func containerd(t *testing.T, sees bool) (*hosttest.Fake, *[]string) {
	t.Helper()
	f := hosttest.NewFake(t, "n1")
	have := &[]string{}
	f.On(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "list"), hosttest.Reply{Do: func(context.Context, host.Cmd) (host.Result, error) {
		return host.Result{Stdout: []byte("REF TYPE DIGEST SIZE PLATFORMS LABELS\n" + strings.Join(*have, "\n") + "\n")}, nil
	}})
	f.On(hosttest.Prefix("sh", "-c"), hosttest.Reply{Do: func(_ context.Context, c host.Cmd) (host.Result, error) {
		p := c.Argv[len(c.Argv)-1]
		if !sees || !strings.HasPrefix(p, MirrorDir) {
			return host.Result{}, nil
		}
		return host.Result{Stdout: []byte(sum(string(bundletest.Archive("x", ""))) + "  " + p + "\x00")}, nil
	}})
	return f, have
}

func TestImportStreamsToAHostThatSeesNoBundle(t *testing.T) {
	img := image(t, "registry.k8s.io/pause:3.10.2")
	f, have := containerd(t, false)
	var got string
	f.Once(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "import", "-"), hosttest.Reply{Do: func(_ context.Context, c host.Cmd) (host.Result, error) {
		ref, _, err := bundletest.Read(c.Stdin)
		got = ref
		*have = append(*have, line(t, img))
		return host.Result{}, err
	}})
	if err := ImportImage(t.Context(), f, img); err != nil {
		t.Fatal(err)
	}
	if got != img.Ref {
		t.Errorf("streamed %q", got)
	}
	other := image(t, "registry.k8s.io/etcd:3.6.8-0")
	missing, err := MissingImages(t.Context(), f, []bundle.Image{img, other})
	if err != nil || len(missing) != 1 || missing[0].Ref != other.Ref {
		t.Errorf("missing: %+v, %v", missing, err)
	}
	// The same name over another build is another image.
	if err := os.WriteFile(img.Path, bundletest.Archive(img.Ref, "official"), 0o644); err != nil {
		t.Fatal(err)
	}
	if missing, err := MissingImages(t.Context(), f, []bundle.Image{img}); err != nil || len(missing) != 1 {
		t.Errorf("another build of the same version passes for it: %+v, %v", missing, err)
	}
}

func TestImportTakesWhatTheHostSees(t *testing.T) {
	img := image(t, "x")
	f, have := containerd(t, true)
	f.Once(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "import", MirrorDir+"/1.0.0-test/images/x.tar"), hosttest.Reply{Do: func(context.Context, host.Cmd) (host.Result, error) {
		*have = append(*have, line(t, img))
		return host.Result{}, nil
	}})
	if err := ImportImage(t.Context(), f, img); err != nil {
		t.Fatal(err)
	}
}

func TestImportOfAnArchiveWithoutItsImage(t *testing.T) {
	img := image(t, "registry.k8s.io/pause:3.10.2")
	f, _ := containerd(t, false)
	f.Once(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "import", "-"), hosttest.Reply{})
	err := ImportImage(t.Context(), f, img)
	if err == nil || !strings.Contains(err.Error(), "does not hold image") {
		t.Errorf("error %v", err)
	}
}

func TestPins(t *testing.T) {
	img, kept := image(t, "registry.k8s.io/kube-proxy:v1.37.2"), image(t, "registry.k8s.io/pause:3.10.2")
	f := hosttest.NewFake(t, "n1")
	f.On(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "list", `labels."io.cri-containerd.pinned"==pinned`), hosttest.Reply{Stdout: line(t, kept)})
	free, err := Unpinned(t.Context(), f, []bundle.Image{img, kept})
	if err != nil || len(free) != 1 || free[0].Ref != img.Ref {
		t.Errorf("unpinned: %+v, %v", free, err)
	}
	f.Once(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "label", img.Ref, "io.cri-containerd.pinned=pinned", "belay.dev/run=r1"), hosttest.Reply{})
	if err := Pin(t.Context(), f, img.Ref, "r1"); err != nil {
		t.Error(err)
	}
	// Only what the run pinned is given back.
	f.On(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "list", `labels."belay.dev/run"=="r1"`), hosttest.Reply{Stdout: line(t, img)})
	f.Once(hosttest.Argv(CtrPath, "--namespace", "k8s.io", "images", "label", img.Ref, "io.cri-containerd.pinned=", "belay.dev/run="), hosttest.Reply{})
	if err := Unpin(t.Context(), f, "r1"); err != nil {
		t.Error(err)
	}
}

func TestSumsOfOddNames(t *testing.T) {
	h := host.NewLocal("here")
	dir := t.TempDir()
	var paths []string
	for i, name := range []string{"plain", "with blank", "back\\slash", "new\nline", "-dash"} {
		p := filepath.Join(dir, name)
		paths = append(paths, p)
		if err := os.WriteFile(p, fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Sums(t.Context(), h, append(slices.Clone(paths), filepath.Join(dir, "none"), dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(paths) {
		t.Errorf("%d sums: %v", len(got), got)
	}
	for i, p := range paths {
		if got[p] != sum(fmt.Sprint(i)) {
			t.Errorf("%q: %q", p, got[p])
		}
	}
}
