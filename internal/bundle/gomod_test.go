package bundle

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belayops/belay/internal/kubeversion"
)

// testGoMod builds below a temporary directory with the real go command.
func testGoMod(t *testing.T) *gomod {
	t.Helper()
	v, err := goVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &gomod{b: &builder{dir: t.TempDir(), o: Options{Arch: runtime.GOARCH, heartbeat: time.Millisecond}}, goVersion: v}
}

func TestCompile(t *testing.T) {
	g := testGoMod(t)
	r := embeddedRecipe("hello", "1.2", []byte("package main\n\nvar version string\n\nfunc main() { println(version) }\n"))
	dest := filepath.Join(t.TempDir(), "hello")
	if err := g.compile(t.Context(), r, r.binaries[0], dest, func(string) {}); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(dest).CombinedOutput()
	if err != nil || string(out) != "1.2\n" {
		t.Errorf("it says %q, %v", out, err)
	}
	// The user's GOFLAGS and workspaces must not change what is built.
	t.Setenv("GOFLAGS", "-mod=mod -tags=nonsense")
	t.Setenv("GOWORK", "/nonexistent/go.work")
	again := filepath.Join(t.TempDir(), "hello")
	if err := g.compile(t.Context(), r, r.binaries[0], again, func(string) {}); err != nil {
		t.Fatal(err)
	}
	a, errA := os.ReadFile(dest)
	b, errB := os.ReadFile(again)
	if err := errors.Join(errA, errB); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the same input gives other bytes (%v)", err)
	}
}

func TestCompileSaysWhatTheCompilerSaid(t *testing.T) {
	g := testGoMod(t)
	r := embeddedRecipe("broken", "1", []byte("package main\n\nfunc main() { undefinedThing() }\n"))
	err := g.compile(t.Context(), r, r.binaries[0], filepath.Join(t.TempDir(), "x"), func(string) {})
	if err == nil || !strings.Contains(err.Error(), "undefinedThing") {
		t.Errorf("got %v", err)
	}
}

func TestCompileEndsWithItsContext(t *testing.T) {
	g := testGoMod(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := embeddedRecipe("x", "1", []byte("package main\n\nfunc main() {}\n"))
	if err := g.compile(ctx, r, r.binaries[0], filepath.Join(t.TempDir(), "x"), func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPauseImageProgram(t *testing.T) {
	g := testGoMod(t)
	r := embeddedRecipe("pause", "3.10.2", pauseSource)
	dest := filepath.Join(t.TempDir(), "pause")
	if err := g.compile(t.Context(), r, r.binaries[0], dest, func(string) {}); err != nil {
		t.Fatal(err)
	}
	// kubeadm's health check before an upgrade runs it like this, and waits for its end.
	if out, err := exec.Command(dest, "-v").Output(); err != nil || string(out) != "pause 3.10.2\n" {
		t.Errorf("pause -v: %q, %v", out, err)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := exec.Command(dest)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			t.Fatalf("it ended by itself: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("on %s: %v", s, err)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("it does not end on %s", s)
		}
	}
}

func TestRunBuildReportsAndEnds(t *testing.T) {
	script := "echo k8s.io/api/core/v1 >&2; echo 'note: something' >&2; sleep 60 & wait"
	reported := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now()
	err := runBuild(exec.CommandContext(ctx, "sh", "-c", script), 5*time.Millisecond, func(s string) {
		reported <- s
		if strings.HasPrefix(s, "1 ") {
			cancel()
		}
	})
	if err == nil || !strings.Contains(err.Error(), "note: something") {
		t.Errorf("got %v", err)
	}
	// The whole group ends, so that the sleep does not hold the output open.
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %s to end", took)
	}
	if len(reported) == 0 {
		t.Error("no progress")
	}
}

func TestIsPackageLine(t *testing.T) {
	for line, want := range map[string]bool{
		"k8s.io/api/core/v1": true, "fmt": true, "": false,
		"# k8s.io/api": false, "x.go:3:4: undefined: y": false, "go: downloading k8s.io/api v0.1.0": false,
	} {
		if isPackageLine(line) != want {
			t.Errorf("%q: %v", line, !want)
		}
	}
}

func TestGoModNamesWhatIsMissing(t *testing.T) {
	b := &builder{o: Options{Version: kubeversion.MustParse("1.37.2"), Arch: runtime.GOARCH}, dir: t.TempDir()}
	t.Run("go", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		var pre *PrerequisiteError
		if err := (&gomod{b: b}).prepare(t.Context()); !errors.As(err, &pre) || !strings.Contains(err.Error(), "go.dev/dl") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("libseccomp", func(t *testing.T) {
		bin := t.TempDir()
		for name, script := range map[string]string{"go": "echo go1.26.8", "gcc": "exit 0", "pkg-config": "exit 1"} {
			if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", bin)
		var pre *PrerequisiteError
		if err := (&gomod{b: b}).prepare(t.Context()); !errors.As(err, &pre) || pre.Package != "libseccomp-dev" || !strings.Contains(err.Error(), "apt-get install libseccomp-dev") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("architecture", func(t *testing.T) {
		other := &builder{o: Options{Version: kubeversion.MustParse("1.37.2"), Arch: "s390x"}}
		var pre *PrerequisiteError
		if err := (&gomod{b: other}).prepare(t.Context()); !errors.As(err, &pre) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("version", func(t *testing.T) {
		other := &builder{o: Options{Version: kubeversion.MustParse("1.2.3"), Arch: runtime.GOARCH}}
		var none *NoRecipeError
		if err := (&gomod{b: other}).prepare(t.Context()); !errors.As(err, &none) {
			t.Errorf("got %v", err)
		}
	})
}

// What 1.37.2's kubeadm asks for can all be built, each image from a file that an earlier unit makes.
func TestGoModUnits(t *testing.T) {
	g := testGoMod(t)
	g.b.o.Version = kubeversion.MustParse("1.37.2")
	var err error
	if g.kube, err = recipeNamed("kubernetes", "v1.37.2"); err != nil {
		t.Fatal(err)
	}
	images, err := parseImages(strings.NewReplacer("v1.36.3", "v1.37.2", "3.6.8-0", "3.7.0-0", "v1.14.2", "v1.14.6").Replace(imageList), g.b.o.Version)
	if err != nil {
		t.Fatal(err)
	}
	units, components, err := g.rest(t.Context(), images)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, u := range units {
		if seen[u.name] {
			t.Errorf("%s is made twice", u.name)
		}
		seen[u.name] = true
	}
	for _, want := range []string{
		"bin/kubelet", "bin/etcd", "bin/cni/loopback", "bin/containerd-shim-runc-v2", "images/etcd-3.7.0-0.tar", "images/etcd-3.6.16-0.tar",
		"images/kube-apiserver-v1.37.2.tar", "images/kube-controller-manager-v1.37.2.tar", "images/kube-scheduler-v1.37.2.tar", "images/kube-proxy-v1.37.2.tar",
		"images/coredns-v1.14.6.tar", "images/pause-3.10.2.tar", "images/sample-1.1.tar", "images/kube-router-" + newestRecipe("kube-router") + ".tar",
	} {
		if !seen[want] {
			t.Errorf("nothing makes %s", want)
		}
	}
	for i, c := range components {
		if c.Name == "etcd" {
			if c.Version != "v3.7.0" || components[i+1].Version != "v3.6.16" {
				t.Errorf("etcd %s, then %s", c.Version, components[i+1].Version)
			}
			break
		}
	}
	_, _, err = g.rest(t.Context(), func() []imageRef {
		bad, _ := parseImages(strings.NewReplacer("v1.36.3", "v1.37.2", "3.6.8-0", "3.7.99-0", "v1.14.2", "v9.9.9").Replace(imageList), g.b.o.Version)
		return bad
	}())
	if err == nil || !strings.Contains(err.Error(), "v3.7.99") || !strings.Contains(err.Error(), "v9.9.9") {
		t.Errorf("missing recipes: %v; want both named", err)
	}
}
