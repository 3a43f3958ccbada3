package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/belayops/belay/internal/kubeversion"
)

type minor = kubeversion.Minor

func m(n int) minor { return minor{Major: 1, Minor: n} }

// pin is one module version that the database is made from.
type pin struct {
	path, version string
	// minor is the Kubernetes minor that the version belongs to.
	minor minor
}

// The pinned versions. k8s.io/api has a version for each minor from 1.20 on and one for 1.17 (the
// proxy has neither 0.18 nor 0.19); k8s.io/kubernetes carries its discovery files from 1.29 on
// in the versions that are to be had. The newest k8s.io/api decides about tags.
var pins = []pin{
	{"k8s.io/api", "v0.17.5", m(17)}, {"k8s.io/api", "v0.20.6", m(20)}, {"k8s.io/api", "v0.21.1", m(21)},
	{"k8s.io/api", "v0.22.5", m(22)}, {"k8s.io/api", "v0.23.16", m(23)}, {"k8s.io/api", "v0.24.3", m(24)},
	{"k8s.io/api", "v0.25.9", m(25)}, {"k8s.io/api", "v0.26.9", m(26)}, {"k8s.io/api", "v0.27.3", m(27)},
	{"k8s.io/api", "v0.28.3", m(28)}, {"k8s.io/api", "v0.29.15", m(29)}, {"k8s.io/api", "v0.30.14", m(30)},
	{"k8s.io/api", "v0.31.14", m(31)}, {"k8s.io/api", "v0.32.13", m(32)}, {"k8s.io/api", "v0.33.13", m(33)},
	{"k8s.io/api", "v0.34.13", m(34)}, {"k8s.io/api", "v0.35.10", m(35)}, {"k8s.io/api", "v0.36.6", m(36)},
	{"k8s.io/api", "v0.37.2", m(37)},
	{"k8s.io/apiextensions-apiserver", "v0.37.2", m(37)},
	{"k8s.io/kube-aggregator", "v0.37.2", m(37)},
	{"k8s.io/kubernetes", "v1.29.6", m(29)}, {"k8s.io/kubernetes", "v1.30.14", m(30)}, {"k8s.io/kubernetes", "v1.31.14", m(31)},
	{"k8s.io/kubernetes", "v1.32.13", m(32)}, {"k8s.io/kubernetes", "v1.33.13", m(33)}, {"k8s.io/kubernetes", "v1.34.4", m(34)},
	{"k8s.io/kubernetes", "v1.35.4", m(35)}, {"k8s.io/kubernetes", "v1.36.3", m(36)}, {"k8s.io/kubernetes", "v1.37.2", m(37)},
	{"k8s.io/apiserver", "v0.29.15", m(29)}, {"k8s.io/apiserver", "v0.30.14", m(30)}, {"k8s.io/apiserver", "v0.31.14", m(31)},
	{"k8s.io/apiserver", "v0.32.13", m(32)}, {"k8s.io/apiserver", "v0.33.13", m(33)}, {"k8s.io/apiserver", "v0.34.4", m(34)},
	{"k8s.io/apiserver", "v0.35.4", m(35)}, {"k8s.io/apiserver", "v0.36.3", m(36)}, {"k8s.io/apiserver", "v0.37.2", m(37)},
}

// module is a pin in the module cache.
type module struct {
	pin
	dir, sum string
	released time.Time
}

// download brings every pin into the module cache.
func download(ctx context.Context) ([]module, error) {
	args := []string{"mod", "download", "-json"}
	for _, p := range pins {
		args = append(args, p.path+"@"+p.version)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	// Outside of any module: the pins are no requirements of this one.
	cmd.Dir = os.TempDir()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, runErr := cmd.Output()
	type answer struct{ Path, Version, Error, Info, Dir, Sum string }
	byPin := map[string]answer{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var a answer
		if err := dec.Decode(&a); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("read the answer of go mod download: %w", err), runErr)
		}
		byPin[a.Path+"@"+a.Version] = a
	}
	var mods []module
	for _, p := range pins {
		a, ok := byPin[p.path+"@"+p.version]
		// Some releases ask for a newer Go, which is an error of the command, while the source is there.
		if !ok || a.Dir == "" || a.Sum == "" {
			return nil, fmt.Errorf("go mod download %s@%s: %s %s (%w)", p.path, p.version, a.Error, stderr.Bytes(), runErr)
		}
		info, err := os.ReadFile(a.Info)
		if err != nil {
			return nil, fmt.Errorf("read %s@%s: %w", p.path, p.version, err)
		}
		var t struct{ Time time.Time }
		if err := json.Unmarshal(info, &t); err != nil {
			return nil, fmt.Errorf("read %s: %w", a.Info, err)
		}
		mods = append(mods, module{pin: p, dir: a.Dir, sum: a.Sum, released: t.Time})
	}
	return mods, nil
}
