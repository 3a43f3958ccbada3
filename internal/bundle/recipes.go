package bundle

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	goversion "github.com/hashicorp/go-version"
	"golang.org/x/mod/modfile"
)

// The recipes are one go.mod and go.sum per component and version, named mod
// and sum because a directory with a go.mod would be left out of this module.
// Each is a module of its own: in a shared one containerd, runc, etcd and the
// CNI plugins pull each other's dependencies to versions that do not build.
//
//go:embed recipes
var recipeFiles embed.FS

//go:embed pause/main.go
var pauseSource []byte

//go:embed sample/main.go
var sampleSource []byte

// corednsSource is the main package that coredns is built from. It is no Go file
// of this module, which does not depend on CoreDNS.
//
//go:embed coredns/main.go.txt
var corednsSource []byte

// sampleVersion is the tag of the sample image.
const sampleVersion = "1.1"

func sampleRef() string { return "docker.io/belayops/sample:" + sampleVersion }

// binary is one main package of a component.
type binary struct {
	// name is the path below bin/ of the bundle, or the name in work/ when keep is false.
	name string
	pkg  string
	keep bool
	tags string // replaces the component's when set
}

// component says how a project's binaries are built; the versions are the recipes'.
type component struct {
	name, module string
	tags         string
	cgo          bool
	// stamp are the linker's -X settings and other flags; $V is the version with v, $N without.
	stamp []string
	// main, where there is one, is built in place of the project's main package.
	main     []byte
	binaries []binary
}

// components gives all that gomod can build, with the flags that their own projects build them with
// (static wherever they allow it, so that the node's C library does not matter).
func components() []component {
	return []component{
		{
			name: "kubernetes", module: "k8s.io/kubernetes", tags: "selinux,notest,grpcnotrace", stamp: nil, // see kubernetesStamp
			binaries: []binary{
				{name: "kubeadm", pkg: "k8s.io/kubernetes/cmd/kubeadm", keep: true},
				{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl", keep: true},
				{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet", keep: true},
				{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", keep: true},
				{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", keep: true},
				{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", keep: true},
				{name: "kube-proxy", pkg: "k8s.io/kubernetes/cmd/kube-proxy"},
			},
		},
		{
			name: "etcd", module: "go.etcd.io/etcd/server/v3",
			binaries: []binary{{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", keep: true}},
		},
		{
			name: "coredns", module: "github.com/coredns/coredns", main: corednsSource,
			binaries: []binary{{name: "coredns", pkg: "github.com/coredns/coredns"}},
		},
		{
			name: "containerd", module: "github.com/containerd/containerd/v2", tags: "urfave_cli_no_docs,osusergo,netgo,static_build",
			stamp: []string{"-X", "github.com/containerd/containerd/v2/version.Version=$V"},
			binaries: []binary{
				{name: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd", keep: true},
				{
					name: "containerd-shim-runc-v2", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", keep: true,
					tags: "urfave_cli_no_docs,osusergo,netgo,static_build,no_grpc",
				},
				{name: "ctr", pkg: "github.com/containerd/containerd/v2/cmd/ctr", keep: true},
			},
		},
		{
			// Without the tag seccomp every pod sandbox fails with "seccomp not supported".
			name: "runc", module: "github.com/opencontainers/runc", tags: "seccomp,urfave_cli_no_docs,netgo,osusergo", cgo: true,
			stamp:    []string{"-linkmode", "external", "-extldflags", "-static"},
			binaries: []binary{{name: "runc", pkg: "github.com/opencontainers/runc", keep: true}},
		},
		{
			name: "cni", module: "github.com/containernetworking/plugins",
			stamp: []string{"-X", "github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$V"},
			binaries: []binary{
				{name: "cni/bridge", pkg: "github.com/containernetworking/plugins/plugins/main/bridge", keep: true},
				{name: "cni/host-local", pkg: "github.com/containernetworking/plugins/plugins/ipam/host-local", keep: true},
				{name: "cni/loopback", pkg: "github.com/containernetworking/plugins/plugins/main/loopback", keep: true},
				{name: "cni/portmap", pkg: "github.com/containernetworking/plugins/plugins/meta/portmap", keep: true},
			},
		},
		{
			name: "kube-router", module: "github.com/cloudnativelabs/kube-router/v2",
			stamp:    []string{"-X", "github.com/cloudnativelabs/kube-router/v2/pkg/version.Version=$V"},
			binaries: []binary{{name: "kube-router", pkg: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}},
		},
	}
}

func componentNamed(name string) (component, bool) {
	cs := components()
	i := slices.IndexFunc(cs, func(c component) bool { return c.name == name })
	if i < 0 {
		return component{}, false
	}
	return cs[i], true
}

// recipe is how one version of one component is built.
type recipe struct {
	component
	version  string // with v
	mod, sum []byte
	// sources are further files of the module, by name.
	sources map[string][]byte
}

// recipeNamed gives the recipe of a component and version; the error is a *NoRecipeError when there is none.
func recipeNamed(name, version string) (recipe, error) {
	c, ok := componentNamed(name)
	if !ok {
		return recipe{}, fmt.Errorf("there is no component %s", name)
	}
	dir := "recipes/" + name + "-" + version
	mod, err := recipeFiles.ReadFile(dir + "/mod")
	if err != nil {
		return recipe{}, &NoRecipeError{Component: name, Version: version, Have: recipeVersions(name)}
	}
	sum, err := recipeFiles.ReadFile(dir + "/sum")
	if err != nil {
		return recipe{}, fmt.Errorf("recipe %s-%s: %w", name, version, err)
	}
	if name == "kubernetes" {
		c.stamp = kubernetesStamp(version)
	}
	r := recipe{component: c, version: version, mod: mod, sum: sum}
	if c.main != nil {
		r.sources = map[string][]byte{"main.go": c.main}
	}
	return r, nil
}

// kubernetesStamp gives the version to kubeadm and the others, which do not work sensibly without it.
// Commit and date are left out on purpose: this is not the build that the project made.
func kubernetesStamp(version string) []string {
	var minor string
	if parts := strings.Split(version, "."); len(parts) > 1 {
		minor = parts[1]
	}
	var out []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range []string{
			"gitVersion=$V", "gitMajor=1", "gitMinor=" + minor, "gitTreeState=clean",
			"gitCommit=0000000000000000000000000000000000000000", "buildDate=1970-01-01T00:00:00Z",
		} {
			out = append(out, "-X", pkg+"."+kv)
		}
	}
	return out
}

// embeddedRecipe makes a recipe of one of this package's own programs.
func embeddedRecipe(name, version string, source []byte) recipe {
	module := "belay.dev/bundle/" + name
	return recipe{
		component: component{
			name: name, module: module, stamp: []string{"-X", "main.version=$N"},
			binaries: []binary{{name: name, pkg: module}},
		},
		version: "v" + version,
		mod:     []byte("module " + module + "\n\ngo 1.25\n"),
		sources: map[string][]byte{"main.go": source},
	}
}

// recipeVersions gives the versions that there are recipes for, oldest first.
func recipeVersions(name string) []string {
	entries, err := recipeFiles.ReadDir("recipes")
	if err != nil {
		return nil
	}
	var vs []*goversion.Version
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), name+"-v")
		if !ok {
			continue
		}
		if v, err := goversion.NewVersion(rest); err == nil {
			vs = append(vs, v)
		}
	}
	slices.SortFunc(vs, func(a, b *goversion.Version) int { return a.Compare(b) })
	var out []string
	for _, v := range vs {
		out = append(out, "v"+v.Original())
	}
	return out
}

// newestRecipe gives the newest version of a component that there is a recipe for.
func newestRecipe(name string) string {
	vs := recipeVersions(name)
	if len(vs) == 0 {
		return ""
	}
	return vs[len(vs)-1]
}

// ldflags are the linker's flags, ready for -ldflags.
func (r recipe) ldflags() string {
	s := strings.Join(append([]string{"-s", "-w"}, r.stamp...), " ")
	s = strings.ReplaceAll(s, "$V", r.version)
	return strings.ReplaceAll(s, "$N", strings.TrimPrefix(r.version, "v"))
}

func (r recipe) tagsFor(b binary) string {
	if b.tags != "" {
		return b.tags
	}
	return r.tags
}

// args are the arguments of "go" that build b into dest.
func (r recipe) args(b binary, dest string) []string {
	// What debuggers read is stripped below: it need not be made.
	args := []string{"build", "-v", "-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false"}
	if t := r.tagsFor(b); t != "" {
		args = append(args, "-tags", t)
	}
	pkg := b.pkg
	if r.main != nil {
		pkg = "."
	}
	return append(args, "-ldflags", r.ldflags(), "-o", dest, pkg)
}

// digest names everything that decides the bytes of b, apart from the computer's C compiler and libraries.
func (r recipe) digest(b binary, goVersion, arch string) string {
	h := sha256.New()
	for _, s := range []string{
		r.name, r.version, string(r.mod), string(r.sum), b.pkg, r.tagsFor(b), r.ldflags(), fmt.Sprint(r.cgo), goVersion, arch,
	} {
		fmt.Fprintf(h, "%d %s\n", len(s), s)
	}
	names := make([]string, 0, len(r.sources))
	for name := range r.sources {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(h, "%s %d %s\n", name, len(r.sources[name]), r.sources[name])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// from says where b comes from, for the manifest.
func (r recipe) from(b binary, goVersion string) string {
	cgo := "CGO_ENABLED=0"
	if r.cgo {
		cgo = "CGO_ENABLED=1"
	}
	s := fmt.Sprintf("%s@%s %s %s -trimpath", r.module, r.version, goVersion, cgo)
	if t := r.tagsFor(b); t != "" {
		s += " -tags " + t
	}
	if r.main != nil {
		s += " with a main package of belay's"
	}
	return s
}

// check says whether the recipe pins what its name says.
func (r recipe) check() error {
	f, err := modfile.Parse(r.name+"-"+r.version+"/mod", r.mod, nil)
	if err != nil {
		return err
	}
	pinned := ""
	for _, req := range f.Require {
		if req.Mod.Path == r.module {
			pinned = req.Mod.Version
		}
	}
	if pinned != r.version && pinned != r.version+"+incompatible" {
		return fmt.Errorf("recipe %s-%s requires %s %q", r.name, r.version, r.module, pinned)
	}
	for _, b := range r.binaries {
		if !slices.ContainsFunc(f.Tool, func(t *modfile.Tool) bool { return t.Path == b.pkg }) {
			return fmt.Errorf("recipe %s-%s has no tool %s", r.name, r.version, b.pkg)
		}
	}
	for _, rep := range f.Replace {
		if rep.New.Version == "" {
			return fmt.Errorf("recipe %s-%s replaces %s with a local directory", r.name, r.version, rep.Old.Path)
		}
	}
	return nil
}
