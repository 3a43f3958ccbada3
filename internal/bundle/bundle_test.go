package bundle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

func TestAccessors(t *testing.T) {
	b := builtBundle(t)
	if b.Official() || b.Version() != testVersion || b.Component("etcd") != "v3.6.8" || b.Component("nothing") != "" {
		t.Errorf("official %v, version %s, etcd %q", b.Official(), b.Version(), b.Component("etcd"))
	}
	p, err := b.BinaryPath("cni/bridge")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(p); err != nil || string(data) != "bridge" {
		t.Errorf("%s: %q, %v", p, data, err)
	}
	if _, err := b.BinaryPath("pause"); err == nil {
		t.Error("a file of work/ can still be found")
	}
	images := b.ImagesByRole(RolePause)
	if len(images) != 1 || images[0].Ref != "registry.k8s.io/pause:3.10.2" || !filepath.IsAbs(images[0].Path) {
		t.Errorf("images: %+v", images)
	}
	if len(b.ImagesByRole(RoleEtcdStep)) != 0 {
		t.Error("an etcd step from nowhere")
	}
	again, err := Open(b.Dir())
	if err != nil || again.Digest() != b.Digest() || !strings.HasPrefix(b.Digest(), "sha256:") {
		t.Errorf("digest %s, then %s, %v", b.Digest(), again.Digest(), err)
	}
}

func TestVerify(t *testing.T) {
	path := func(b *Bundle, rel string) string { return filepath.Join(b.Dir(), rel) }
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, b *Bundle) error
		want  []string // paths that are named
	}{
		{name: "whole", spoil: func(*testing.T, *Bundle) error { return nil }},
		{name: "flipped byte", want: []string{"bin/kubelet"}, spoil: func(_ *testing.T, b *Bundle) error {
			data, err := os.ReadFile(path(b, "bin/kubelet"))
			if err != nil {
				return err
			}
			data[3] ^= 1
			return os.WriteFile(path(b, "bin/kubelet"), data, 0o755)
		}},
		{name: "cut short", want: []string{"images/pause-3.10.2.tar"}, spoil: func(_ *testing.T, b *Bundle) error {
			return os.Truncate(path(b, "images/pause-3.10.2.tar"), 2)
		}},
		{name: "missing", want: []string{"bin/cni/bridge"}, spoil: func(_ *testing.T, b *Bundle) error { return os.Remove(path(b, "bin/cni/bridge")) }},
		{name: "extra", want: []string{"bin/kubelet.new"}, spoil: func(t *testing.T, b *Bundle) error {
			writeFile(t, path(b, "bin/kubelet.new"), "x")
			return nil
		}},
		{name: "not executable", want: []string{"bin/etcd"}, spoil: func(_ *testing.T, b *Bundle) error { return os.Chmod(path(b, "bin/etcd"), 0o644) }},
		{name: "a link", want: []string{"bin/etcd"}, spoil: func(_ *testing.T, b *Bundle) error {
			return errors.Join(os.Remove(path(b, "bin/etcd")), os.Symlink("kubelet", path(b, "bin/etcd")))
		}},
		{name: "several", want: []string{"bin/etcd", "bin/kubelet", "bin/zzz"}, spoil: func(t *testing.T, b *Bundle) error {
			writeFile(t, path(b, "bin/zzz"), "x")
			return errors.Join(os.Remove(path(b, "bin/etcd")), os.WriteFile(path(b, "bin/kubelet"), []byte("kubelex"), 0o755))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := builtBundle(t)
			if err := c.spoil(t, b); err != nil {
				t.Fatal(err)
			}
			var rec event.Recorder
			err := b.Verify(t.Context(), &rec)
			if got := namedBy(err); !slices.Equal(got, c.want) {
				t.Errorf("named %v, want %v (%v)", got, c.want, err)
			}
			events := rec.Events()
			if last := events[len(events)-1]; last.Type != event.RunFinished || (last.Err != "") != (len(c.want) > 0) {
				t.Errorf("last event %+v", last)
			}
		})
	}
}

// namedBy gives the paths of all *SumError in err, sorted.
func namedBy(err error) []string {
	var out []string
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case *SumError:
			out = append(out, e.Path)
		case interface{ Unwrap() []error }:
			for _, sub := range e.Unwrap() {
				walk(sub)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		}
	}
	walk(err)
	slices.Sort(out)
	return out
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	b := builtBundle(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Verify(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFindSaysWhatToRun(t *testing.T) {
	root := t.TempDir()
	v := kubeversion.MustParse("1.37.2")
	_, err := Find(root, v, "amd64")
	var missing *MissingError
	if !errors.As(err, &missing) || missing.Partial || missing.Next() != "belay bundle build 1.37.2" || !strings.Contains(err.Error(), root) {
		t.Errorf("got %v", err)
	}
	if err := os.Mkdir(filepath.Join(root, "1.37.2-amd64.partial"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(root, v, "amd64"); !errors.As(err, &missing) || !missing.Partial {
		t.Errorf("with a partial build: %v", err)
	}
}

func TestFindRefusesABundleUnderAnotherName(t *testing.T) {
	b := builtBundle(t)
	root := filepath.Dir(b.Dir())
	if err := os.Rename(b.Dir(), filepath.Join(root, "1.37.2-amd64")); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(root, kubeversion.MustParse("1.37.2"), "amd64"); err == nil || !strings.Contains(err.Error(), "1.36.3") {
		t.Errorf("got %v", err)
	}
}

func TestList(t *testing.T) {
	if got, err := List(filepath.Join(t.TempDir(), "none")); err != nil || len(got) != 0 {
		t.Errorf("no root: %v, %v", got, err)
	}
	b := builtBundle(t)
	root := filepath.Dir(b.Dir())
	writeFile(t, filepath.Join(root, "1.9.0-amd64", "manifest.json"), "{}")
	writeFile(t, filepath.Join(root, "1.37.2-arm64.partial", "bin", "kubeadm"), "x")
	writeFile(t, filepath.Join(root, "cache", "x"), "x")
	got, err := List(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range got {
		names = append(names, l.Name)
	}
	if want := []string{"1.9.0-amd64", filepath.Base(b.Dir()), "1.37.2-arm64"}; !slices.Equal(names, want) {
		t.Fatalf("listed %v, want %v", names, want)
	}
	if got[0].Err == nil || got[1].Bundle == nil || !got[2].Partial {
		t.Errorf("broken, complete, partial: %+v", got)
	}
}
