package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// site is a server with the layout of the public release sites, and a registry.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte
	asked map[string]int
	// ranges counts requests that continue a download.
	ranges int
	// handle, if set, answers instead when it returns true.
	handle func(w http.ResponseWriter, r *http.Request) bool
}

var releaseVersion = kubeversion.MustParse("1.37.2")

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{files: map[string][]byte{}, asked: map[string]int{}}
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			reg.ServeHTTP(w, r)
			return
		}
		s.mu.Lock()
		s.asked[r.URL.Path]++
		if r.Header.Get("Range") != "" {
			s.ranges++
		}
		data, ok := s.files[r.URL.Path]
		handle := s.handle
		s.mu.Unlock()
		if handle != nil && handle(w, r) {
			return
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(s.Close)

	arch := runtime.GOARCH
	list := strings.NewReplacer("v1.36.3", "v1.37.2", "etcd:3.6.8-0", "etcd:3.7.0-0", "v1.14.2", "v1.14.6").Replace(imageList)
	for _, bin := range []string{"kubectl", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		s.addFile("/k8s/v1.37.2/bin/linux/"+arch+"/"+bin, []byte(bin+" 1.37.2"), ".sha256", "")
	}
	s.addFile("/k8s/v1.37.2/bin/linux/"+arch+"/kubeadm", []byte("#!/bin/sh\ncat <<EOF\n"+list+"EOF\n"), ".sha256", "")
	containerd, runc, cni := newestRecipe("containerd"), newestRecipe("runc"), newestRecipe("cni")
	tgz := "/containerd/" + containerd + "/containerd-" + containerd[1:] + "-linux-" + arch + ".tar.gz"
	s.addFile(tgz, tarGz(t, "bin/containerd", "bin/containerd-shim-runc-v2", "bin/ctr", "bin/containerd-stress"), ".sha256sum", path.Base(tgz))
	s.files["/runc/"+runc+"/runc."+arch] = []byte("runc")
	s.files["/runc/"+runc+"/runc.sha256sum"] = fmt.Appendf(nil, "%s  runc.other\n%s *runc.%s\n", strings.Repeat("0", 64), sumOf([]byte("runc")), arch)
	tgz = "/cni/" + cni + "/cni-plugins-linux-" + arch + "-" + cni + ".tgz"
	s.addFile(tgz, tarGz(t, "./bridge", "./host-local", "./loopback", "./portmap", "./vlan"), ".sha256", path.Base(tgz))

	for ref := range strings.Lines(list) {
		s.push(t, strings.TrimSpace(ref))
	}
	for _, tag := range []string{"3.6.8-0", "3.6.12-0", "3.6.16-0", "3.6.16-1", "3.5.32-0", "3.6.99-rc.0", "sha256-abcd.sig"} {
		s.push(t, "registry.k8s.io/etcd:"+tag)
	}
	s.push(t, "docker.io/cloudnativelabs/kube-router:"+newestRecipe("kube-router"))
	return s
}

func (s *site) addFile(p string, data []byte, sumSuffix, sumName string) {
	s.files[p] = data
	s.files[p+sumSuffix] = []byte(strings.TrimSpace(sumOf(data)+"  "+sumName) + "\n")
}

func (s *site) release() Release {
	host := strings.TrimPrefix(s.URL, "http://")
	return Release{
		Kubernetes: s.URL + "/k8s", Containerd: s.URL + "/containerd", Runc: s.URL + "/runc/", CNI: s.URL + "/cni",
		Mirrors: map[string]string{"registry.k8s.io": host + "/k8s", "docker.io": host + "/hub/"},
		retry:   time.Millisecond,
	}
}

// push puts a two-platform image into the registry, under the name that the mirrors give it.
func (s *site) push(t *testing.T, ref string) {
	t.Helper()
	rel := &release{r: s.release()}
	mirrored, err := name.ParseReference(rel.mirrored(ref))
	if err != nil {
		t.Fatal(err)
	}
	idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range []string{"s390x", runtime.GOARCH} {
		l, err := newLayer([]entry{{name: "usr/local/bin/etcd", mode: 0o755, data: []byte(ref + " for " + arch)}})
		if err != nil {
			t.Fatal(err)
		}
		img, err := newImage(imageConfig{arch: arch}, l)
		if err != nil {
			t.Fatal(err)
		}
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	if err := remote.WriteIndex(mirrored, idx); err != nil {
		t.Fatal(err)
	}
}

func sumOf(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func tarGz(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	tw := tar.NewWriter(z)
	for _, n := range names {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n, Size: int64(len(n)), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReleaseBundle(t *testing.T) {
	s := newSite(t)
	// Without Go there is no sample image, and everything else is there.
	t.Setenv("PATH", "/usr/bin:/bin")
	var rec event.Recorder
	b, err := Build(t.Context(), Options{Version: releaseVersion, Source: SourceAuto, Root: t.TempDir(), Release: s.release(), Sink: &rec})
	if err != nil {
		t.Fatal(err)
	}
	if !b.Official() || b.Manifest().Source != SourceRelease {
		t.Errorf("official %v, source %s", b.Official(), b.Manifest().Source)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for bin, want := range map[string]string{
		"kubelet": "kubelet 1.37.2", "ctr": "bin/ctr", "runc": "runc", "cni/portmap": "./portmap",
		"etcd": "registry.k8s.io/etcd:3.7.0-0 for " + runtime.GOARCH,
	} {
		p, err := b.BinaryPath(bin)
		if err != nil {
			t.Error(err)
			continue
		}
		if data, err := os.ReadFile(p); err != nil || string(data) != want {
			t.Errorf("%s holds %q, want %q; %v", bin, data, want, err)
		}
	}
	var refs []string
	for _, i := range b.Images() {
		refs = append(refs, i.Ref)
	}
	// The newest patch of the older etcd, in its newest image.
	for _, want := range []string{"registry.k8s.io/kube-proxy:v1.37.2", "registry.k8s.io/etcd:3.6.16-1", "docker.io/cloudnativelabs/kube-router:" + newestRecipe("kube-router")} {
		if !slices.Contains(refs, want) {
			t.Errorf("no image %s in %v", want, refs)
		}
	}
	if step := b.ImagesByRole(RoleEtcdStep); len(step) != 1 || step[0].Version != "v3.6.16" || b.Component("etcd") != "v3.7.0" {
		t.Errorf("etcd step %+v; etcd %s", step, b.Component("etcd"))
	}
	if !slices.ContainsFunc(rec.Events(), func(e event.Event) bool { return e.Type == event.Warning && strings.Contains(e.Msg, "sample") }) {
		t.Error("nothing says that the sample image is missing")
	}
	for _, f := range b.Manifest().Files {
		if f.Kind == KindImage && !strings.Contains(f.From, "@sha256:") || f.From == "" {
			t.Errorf("%s comes from %q", f.Path, f.From)
		}
	}
}

func TestReleaseRefusesAWrongSum(t *testing.T) {
	s := newSite(t)
	p := "/k8s/v1.37.2/bin/linux/" + runtime.GOARCH + "/kubelet"
	s.files[p] = []byte("kubelet with a guest")
	root := t.TempDir()
	o := Options{Version: releaseVersion, Source: SourceRelease, Root: root, Release: s.release()}
	_, err := Build(t.Context(), o)
	var sum *SumError
	if !errors.As(err, &sum) || sum.Path != s.URL+p {
		t.Fatalf("got %v", err)
	}
	if s.asked[p] != 1 {
		t.Errorf("a wrong file was asked for %d times", s.asked[p])
	}
	// Once the site is right again the same command ends well, and gets no finished file again.
	s.files[p] = []byte("kubelet 1.37.2")
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if n := s.asked["/k8s/v1.37.2/bin/linux/"+runtime.GOARCH+"/kubeadm"]; n != 1 {
		t.Errorf("kubeadm was downloaded %d times", n)
	}
}

func TestReleaseSaysWhatIsNotThere(t *testing.T) {
	s := newSite(t)
	p := "/runc/" + newestRecipe("runc") + "/runc." + runtime.GOARCH
	delete(s.files, p)
	_, err := Build(t.Context(), Options{Version: releaseVersion, Source: SourceRelease, Root: t.TempDir(), Release: s.release()})
	if err == nil || !strings.Contains(err.Error(), p) || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v", err)
	}
	if s.asked[p] != 1 {
		t.Errorf("a file that is not there was asked for %d times", s.asked[p])
	}
}

func TestReleaseNamesTheImageThatIsNotThere(t *testing.T) {
	s := newSite(t)
	rel := s.release()
	rel.Mirrors["docker.io"] = rel.Mirrors["docker.io"] + "elsewhere"
	_, err := Build(t.Context(), Options{Version: releaseVersion, Source: SourceRelease, Root: t.TempDir(), Release: rel})
	if err == nil || !strings.Contains(err.Error(), "kube-router") {
		t.Errorf("got %v", err)
	}
}

func TestDownload(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	const p = "/big"
	// cut answers the first n requests with the headers of the whole file and half of what is left of it.
	cut := func(s *site, n int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != p || n == 0 {
				return false
			}
			n--
			from := 0
			if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(big)-1, len(big)))
			}
			rest := big[from:]
			w.Header().Set("Content-Length", fmt.Sprint(len(rest)))
			if from > 0 {
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = w.Write(rest[:len(rest)/2])
			return true
		}
	}
	for _, c := range []struct {
		name   string
		handle func(s *site) func(http.ResponseWriter, *http.Request) bool
		want   string // in the error
		asked  int
		ranges int
	}{
		{name: "whole", asked: 1},
		{name: "cut off twice", handle: func(s *site) func(http.ResponseWriter, *http.Request) bool { return cut(s, 2) }, asked: 3, ranges: 2},
		{name: "cut off always", handle: func(s *site) func(http.ResponseWriter, *http.Request) bool { return cut(s, 99) }, asked: attempts, ranges: attempts - 1, want: "tried 5 times"},
		{name: "busy at first", asked: 3, handle: func(s *site) func(http.ResponseWriter, *http.Request) bool {
			n := 2
			return func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != p || n == 0 {
					return false
				}
				n--
				http.Error(w, "busy", http.StatusServiceUnavailable)
				return true
			}
		}},
		{name: "a server that does not continue", asked: 2, ranges: 1, handle: func(s *site) func(http.ResponseWriter, *http.Request) bool {
			first := cut(s, 1)
			return func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != p || first(w, r) {
					return r.URL.Path == p
				}
				_, _ = w.Write(big)
				return true
			}
		}},
		{name: "forbidden", asked: 1, want: "403", handle: func(s *site) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == p {
					http.Error(w, "no", http.StatusForbidden)
				}
				return r.URL.Path == p
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			s.files[p] = big
			if c.handle != nil {
				s.handle = c.handle(s)
			}
			rel := &release{r: s.release().withDefaults(), b: &builder{o: Options{heartbeat: time.Nanosecond}}}
			dest := t.TempDir() + "/big"
			reports := 0
			err := rel.fetch(t.Context(), s.URL+p, sumOf(big), dest, func(string) { reports++ })
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if s.asked[p] != c.asked || s.ranges != c.ranges {
				t.Errorf("asked %d times, %d times to go on; want %d and %d", s.asked[p], s.ranges, c.asked, c.ranges)
			}
			if err != nil {
				if _, err := os.Stat(dest); err == nil {
					t.Error("a file that is not whole got its name")
				}
				return
			}
			if data, err := os.ReadFile(dest); err != nil || !bytes.Equal(data, big) {
				t.Errorf("%d bytes, %v", len(data), err)
			}
			if reports == 0 {
				t.Error("no progress")
			}
		})
	}
}

// A server that goes silent in the middle of a file is given up, and the file continued.
func TestDownloadOutlivesASilentServer(t *testing.T) {
	s := newSite(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	const p = "/big"
	s.files[p] = big
	silences := 2
	s.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != p || silences == 0 {
			return false
		}
		if silences--; silences == 0 { // half of it before
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			_, _ = w.Write(big[:len(big)/2])
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := s.release()
	r.stall = 300 * time.Millisecond
	rel := &release{r: r.withDefaults(), b: &builder{o: Options{heartbeat: time.Hour}}}
	dest := t.TempDir() + "/big"
	if err := rel.fetch(ctx, s.URL+p, sumOf(big), dest, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(dest); err != nil || !bytes.Equal(data, big) || s.asked[p] != 3 || s.ranges != 1 {
		t.Errorf("%d bytes, asked %d times, %d times to go on: %v", len(data), s.asked[p], s.ranges, err)
	}
}

// A reader that is slow is no silent server.
func TestSlowReadersAreNoStall(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 4<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
	defer srv.Close()
	resp, err := withStalls(srv.Client(), 200*time.Millisecond).Get(srv.URL) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.ReadFull(resp.Body, make([]byte, 10))
	time.Sleep(time.Second)
	rest, err2 := io.Copy(io.Discard, resp.Body)
	if err := errors.Join(err, err2); err != nil || n+int(rest) != len(data) {
		t.Errorf("%d bytes, %v", n+int(rest), err)
	}
}

func TestPullGivesUpOnASilentRegistry(t *testing.T) {
	s := newSite(t)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			_, _ = w.Write([]byte("{"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		s.Config.Handler.ServeHTTP(w, r)
	}))
	defer silent.Close()
	r := s.release()
	r.stall = 300 * time.Millisecond
	r.Mirrors = map[string]string{"registry.k8s.io": strings.TrimPrefix(silent.URL, "http://") + "/k8s"}
	rel := &release{r: r.withDefaults(), b: &builder{o: Options{Arch: runtime.GOARCH, heartbeat: time.Hour}}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := rel.pull(imageRef{ref: "registry.k8s.io/pause:3.10.2"}, "v3.10.2").make(ctx, t.TempDir()+"/image", func(string) {})
	if e := (*stallError)(nil); !errors.As(err, &e) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}

func TestAutoFallsBackToGoModules(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	for name, url := range map[string]string{"refused": gone.URL, "silent": silent.URL} {
		t.Run(name, func(t *testing.T) {
			var rec event.Recorder
			b := &builder{o: Options{Version: releaseVersion, Sink: &rec, Release: Release{Kubernetes: url, Probe: 50 * time.Millisecond}}, final: "x"}
			src, err := b.chooseSource(t.Context())
			if err != nil || src.name() != SourceGoMod {
				t.Fatalf("source %v, %v", src, err)
			}
			events := rec.Events()
			if len(events) != 1 || events[0].Type != event.Note || !strings.Contains(events[0].Msg, "not the official release") {
				t.Errorf("events %+v", events)
			}
			b.o.Version = kubeversion.MustParse("1.2.3")
			var none *NoRecipeError
			if _, err := b.chooseSource(t.Context()); !errors.As(err, &none) {
				t.Errorf("without a recipe: %v", err)
			}
		})
	}
}

func TestUnknownSource(t *testing.T) {
	if _, err := Build(t.Context(), Options{Version: releaseVersion, Source: "usb", Root: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "usb") {
		t.Errorf("got %v", err)
	}
}

func TestParseSum(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for _, c := range []struct{ text, want, err string }{
		{sum, sum, ""},
		{sum + "\n", sum, ""},
		{strings.ToUpper(sum), sum, ""},
		{sum + "  kubeadm\n", sum, ""},
		{sum + " *./bin/kubeadm", sum, ""},
		{strings.Repeat("cd", 32) + "  kubelet\n" + sum + "  kubeadm\n", sum, ""},
		{sum + "  kubelet\n", "", "no sum"},
		{"", "", "no sum"},
		{"<html>", "", "not a SHA-256"},
		{"abcd", "", "not a SHA-256"},
	} {
		got, err := parseSum(c.text, "kubeadm")
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v", c.text, got, err)
		}
	}
}

func FuzzParseSum(f *testing.F) {
	f.Add(strings.Repeat("ab", 32)+" *kubeadm\n", "kubeadm")
	f.Add("x", "")
	f.Fuzz(func(t *testing.T, text, file string) {
		sum, err := parseSum(text, file)
		if err == nil && (len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "") {
			t.Errorf("accepted %q", sum)
		}
	})
}
