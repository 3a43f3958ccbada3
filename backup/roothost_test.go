package backup

import (
	"context"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayops/belay/internal/host"
)

// rootHost is a node whose files lie under a directory of this machine.
type rootHost struct {
	host.Host
	root string
	// etcd is where 127.0.0.1:2379 of the node really is.
	etcd string
}

func newRootHost(t *testing.T, name, etcd string) *rootHost {
	t.Helper()
	return &rootHost{Host: host.NewLocal(name), root: t.TempDir(), etcd: etcd}
}

func (h *rootHost) put(t *testing.T, path, data string, mode fs.FileMode) {
	t.Helper()
	p := filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
}

// Run runs the program with every absolute path argument moved under the root.
func (h *rootHost) Run(ctx context.Context, c host.Cmd) (host.Result, error) {
	argv := append([]string(nil), c.Argv...)
	for i, a := range argv {
		if i > 0 && strings.HasPrefix(a, "/") {
			argv[i] = filepath.Join(h.root, a)
		}
	}
	c.Argv = argv
	return h.Host.Run(ctx, c)
}

func (h *rootHost) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return h.Host.ReadFile(ctx, filepath.Join(h.root, path))
}

func (h *rootHost) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return h.Host.WriteFile(ctx, filepath.Join(h.root, path), data, mode)
}

func (h *rootHost) Upload(ctx context.Context, path string, r io.Reader, size int64, mode fs.FileMode) error {
	return h.Host.Upload(ctx, filepath.Join(h.root, path), r, size, mode)
}

func (h *rootHost) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if addr == "127.0.0.1:2379" {
		addr = h.etcd
	}
	return h.Host.Dial(ctx, network, addr)
}
