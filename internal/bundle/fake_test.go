package bundle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

var testVersion = kubeversion.MustParse("1.36.3")

// imageList is what kubeadm 1.36.3 prints.
const imageList = `registry.k8s.io/kube-apiserver:v1.36.3
registry.k8s.io/kube-controller-manager:v1.36.3
registry.k8s.io/kube-scheduler:v1.36.3
registry.k8s.io/kube-proxy:v1.36.3
registry.k8s.io/coredns/coredns:v1.14.2
registry.k8s.io/pause:3.10.2
registry.k8s.io/etcd:3.6.8-0
`

// kubeadmScript is a kubeadm that can only be asked for its images.
func kubeadmScript(list string) string {
	return "#!/bin/sh\n[ \"$*\" = \"config images list --kubernetes-version v1.36.3\" ] || { echo \"unexpected: $*\" >&2; exit 1; }\ncat <<EOF\n" + list + "EOF\n"
}

// fakeSource makes small files, and counts how often each was made.
type fakeSource struct {
	mu      sync.Mutex
	made    map[string]int
	content map[string]string // by unit name
	order   []string          // without kubeadm
	lanes   map[string]string // by unit name
	before  func(ctx context.Context, unit string)
	fail    map[string]error
}

func newFakeSource() *fakeSource {
	return &fakeSource{
		made: map[string]int{},
		content: map[string]string{
			"bin/kubeadm": kubeadmScript(imageList), "bin/kubelet": "kubelet", "bin/etcd": "etcd", "bin/cni/bridge": "bridge",
			"work/pause": "pause", "images/pause-3.10.2.tar": "image",
		},
		order: []string{"bin/kubelet", "bin/etcd", "bin/cni/bridge", "work/pause", "images/pause-3.10.2.tar"},
	}
}

func (s *fakeSource) name() string                  { return SourceGoMod }
func (s *fakeSource) prepare(context.Context) error { return nil }
func (s *fakeSource) kubeadm() []unit               { return []unit{s.unit("bin/kubeadm")} }

func (s *fakeSource) rest(_ context.Context, images []imageRef) ([]unit, []Component, error) {
	if len(images) != 7 {
		return nil, nil, errors.New("kubeadm's list did not arrive")
	}
	var units []unit
	for _, name := range s.order {
		units = append(units, s.unit(name))
	}
	return units, []Component{{"kubernetes", "v1.36.3"}, {"etcd", "v3.6.8"}}, nil
}

func (s *fakeSource) unit(name string) unit {
	return unit{
		name: name, verb: "building", subject: name, lane: s.lanes[name],
		key: func(context.Context) (string, error) { return s.content[name], nil },
		make: func(ctx context.Context, dest string, _ func(string)) (File, error) {
			if s.before != nil {
				s.before(ctx, name)
			}
			if err := ctx.Err(); err != nil {
				return File{}, err
			}
			if err := s.fail[name]; err != nil {
				return File{}, err
			}
			s.mu.Lock()
			s.made[name]++
			s.mu.Unlock()
			f := File{Kind: KindBinary, Component: "kubernetes", Version: "v1.36.3", From: "a test"}
			if strings.HasPrefix(name, "images/") {
				f.Kind, f.Ref, f.Role = KindImage, "registry.k8s.io/pause:3.10.2", RolePause
				if strings.HasPrefix(name, "images/sample-") {
					f.Ref, f.Role = "docker.io/belayops/sample:0.9", RoleSample
				}
			}
			return f, os.WriteFile(dest, []byte(s.content[name]), 0o644)
		},
	}
}

func (s *fakeSource) count() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for k, v := range s.made {
		out[k] = v
	}
	return out
}

// builtBundle builds a small bundle below a temporary root.
func builtBundle(t *testing.T) *Bundle {
	t.Helper()
	b, err := Build(t.Context(), Options{Version: testVersion, Root: t.TempDir(), source: newFakeSource()})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func hostArch() string { return runtime.GOARCH }
