package bundle

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/belayops/belay/internal/kubeversion"
)

// ManifestSchema names the format of manifest.json.
const ManifestSchema = "belay.dev/bundle/v1"

// manifestName is the file that makes a directory a bundle.
const manifestName = "manifest.json"

// The kinds of file in a bundle.
const (
	KindBinary = "binary"
	KindImage  = "image"
)

// The sources of a bundle.
const (
	SourceRelease = "release"
	SourceGoMod   = "gomod"
	// SourceAuto is for Build only: release if its site answers, else gomod.
	SourceAuto = "auto"
)

// The roles of images.
const (
	RoleControlPlane = "control-plane" // kube-apiserver, kube-controller-manager, kube-scheduler
	RoleKubeProxy    = "kube-proxy"
	RoleDNS          = "dns"
	RolePause        = "pause"
	RoleEtcd         = "etcd"
	// RoleEtcdStep is an etcd of the minor before, which every member must run first: see cluster.EtcdFloor.
	RoleEtcdStep = "etcd-step"
	RoleCNI      = "cni"
	// RoleSample is a small HTTP server for demonstrations and tests.
	RoleSample = "sample"
)

// Manifest is what manifest.json holds. It has no times in it: the same
// content gives the same bytes.
type Manifest struct {
	Schema     string        `json:"schema"`
	Kubernetes kubeversion.V `json:"kubernetes"`
	Arch       string        `json:"arch"`
	// Source is SourceRelease or SourceGoMod. Official is true only for the files that the projects themselves published.
	Source     string      `json:"source"`
	Official   bool        `json:"official"`
	Components []Component `json:"components"`
	// Files are all files but the manifest, ordered by path.
	Files []File `json:"files"`
}

// Component is one project's part in a bundle. A bundle can hold one component
// in two versions (etcd and the etcd of RoleEtcdStep); the first is the one in use.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// File is one file of a bundle.
type File struct {
	// Path is relative to the bundle's directory, with forward slashes.
	Path      string `json:"path"`
	Kind      string `json:"kind"`
	Component string `json:"component"`
	Version   string `json:"version"`
	// Ref and Role are set for images: the full reference under which the archive is imported, and what it is for.
	Ref  string `json:"ref,omitempty"`
	Role string `json:"role,omitempty"`
	// Size is in bytes, SHA256 in lower-case hexadecimal.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// From says where the content came from: a URL, an image digest, or module@version with the Go version and build flags.
	From string `json:"from"`
	// Recipe is the digest of everything that went into building the file; empty for a downloaded one.
	Recipe string `json:"recipe,omitempty"`
}

// DecodeManifest reads a manifest and checks that it is whole and names no
// file outside the bundle. Unknown fields are errors.
func DecodeManifest(data []byte) (Manifest, error) {
	var m Manifest
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Manifest{}, fmt.Errorf("read %s: more data after the manifest", manifestName)
	}
	if err := m.validate(); err != nil {
		return Manifest{}, fmt.Errorf("read %s: %w", manifestName, err)
	}
	return m, nil
}

// Encode gives the manifest's bytes, files in order.
func (m Manifest) Encode() ([]byte, error) {
	m.Files = slices.Clone(m.Files)
	slices.SortFunc(m.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("write %s: %w", manifestName, err)
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", manifestName, err)
	}
	return append(data, '\n'), nil
}

// withoutSample is the manifest of the same bundle without belay's own sample.
func (m Manifest) withoutSample() Manifest {
	samples := map[string]bool{}
	others := map[string]bool{}
	for _, f := range m.Files {
		if f.Role == RoleSample {
			samples[f.Component] = true
		} else {
			others[f.Component] = true
		}
	}
	m.Files = slices.DeleteFunc(slices.Clone(m.Files), func(f File) bool { return f.Role == RoleSample })
	m.Components = slices.DeleteFunc(slices.Clone(m.Components), func(c Component) bool { return samples[c.Name] && !others[c.Name] })
	return m
}

func (m Manifest) validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Schema != ManifestSchema {
		fail("schema is %q, want %q", m.Schema, ManifestSchema)
	}
	if m.Kubernetes.IsZero() {
		fail("kubernetes: no version")
	}
	if !isName(m.Arch) {
		fail("arch %q is not an architecture", m.Arch)
	}
	switch m.Source {
	case SourceRelease:
	case SourceGoMod:
		if m.Official {
			fail("a bundle of source %s is not official", SourceGoMod)
		}
	default:
		fail("source is %q, want %s or %s", m.Source, SourceRelease, SourceGoMod)
	}
	for i, c := range m.Components {
		if c.Name == "" || c.Version == "" {
			fail("components[%d]: name or version is missing", i)
		}
	}
	seen := map[string]bool{}
	for i, f := range m.Files {
		if !isBundlePath(f.Path) {
			fail("files[%d]: path %q is not a file below bin/ or images/", i, f.Path)
			continue
		}
		if seen[f.Path] {
			fail("%s is listed twice", f.Path)
		}
		seen[f.Path] = true
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != 32 || f.SHA256 != strings.ToLower(f.SHA256) {
			fail("%s: sha256 %q is not 64 lower-case hexadecimal digits", f.Path, f.SHA256)
		}
		if f.Size < 0 {
			fail("%s: size %d is negative", f.Path, f.Size)
		}
		if f.Component == "" || f.Version == "" {
			fail("%s: component or version is missing", f.Path)
		}
		switch {
		case f.Kind == KindBinary && strings.HasPrefix(f.Path, "bin/"):
		case f.Kind == KindImage && strings.HasPrefix(f.Path, "images/"):
			if f.Ref == "" || f.Role == "" {
				fail("%s: ref or role is missing", f.Path)
			}
		default:
			fail("%s: kind %q does not belong there", f.Path, f.Kind)
		}
	}
	return errors.Join(errs...)
}

// isBundlePath says whether p is a clean relative path of a file below bin/ or images/.
func isBundlePath(p string) bool {
	dir, rest, ok := strings.Cut(p, "/")
	return ok && rest != "" && (dir == "bin" || dir == "images") && path.Clean(p) == p && !strings.ContainsAny(p, "\\\x00")
}

func isName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
