package bundle

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/kubeversion"
)

// gomod builds a bundle from Go modules.
type gomod struct {
	b         *builder
	goVersion string
	kube      recipe
}

func (g *gomod) name() string { return SourceGoMod }

func (g *gomod) prepare(ctx context.Context) error {
	kube, err := recipeNamed("kubernetes", g.b.o.Version.String())
	if err != nil {
		return err
	}
	g.kube = kube
	if g.b.o.Arch != runtime.GOARCH {
		return &PrerequisiteError{What: "a computer of architecture " + g.b.o.Arch, For: "building from Go modules", Remedy: "build there, or use --source release"}
	}
	if g.goVersion, err = goVersion(ctx); err != nil {
		return err
	}
	if err := checkSeccomp(ctx); err != nil {
		return err
	}
	// Asked again when the layer is made; here so that nobody waits a quarter of an hour to learn of it.
	_, err = debianClosure(ctx, g.b.o.Arch)
	return err
}

// goVersion asks the go command for its version, "go1.26.8".
func goVersion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	v := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(v, "go") {
		return "", &PrerequisiteError{What: "the go command", For: "building from Go modules", Remedy: "install Go from https://go.dev/dl/ and put it in PATH, or use --source release where the release sites can be reached", Err: err}
	}
	return v, nil
}

// checkSeccomp finds out whether runc can be built: it needs a C compiler and libseccomp's headers and static library.
func checkSeccomp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, p := range []struct{ cmd, pkg string }{{"gcc", "gcc libc6-dev"}, {"pkg-config", "pkg-config"}} {
		if _, err := exec.LookPath(p.cmd); err != nil {
			return &PrerequisiteError{What: p.cmd, For: "building runc", Package: p.pkg, Err: err}
		}
	}
	if err := exec.CommandContext(ctx, "pkg-config", "--exists", "libseccomp").Run(); err != nil {
		return &PrerequisiteError{What: "libseccomp's development files", For: "building runc", Package: "libseccomp-dev", Err: err}
	}
	return nil
}

func (g *gomod) kubeadm() []unit {
	return []unit{g.unit(g.kube, g.kube.binaries[0])}
}

// work is where a program lies that is only wanted in an image.
func unitName(b binary, r recipe) string {
	if b.keep {
		return "bin/" + b.name
	}
	return workDir + "/" + b.name + "-" + r.version
}

func (g *gomod) rest(_ context.Context, images []imageRef) ([]unit, []Component, error) {
	b := g.b
	refs := map[string]imageRef{}
	for _, i := range images {
		refs[i.component] = i // of Kubernetes' own four any will do here
	}
	var errs []error
	need := func(name, version string) recipe {
		r, err := recipeNamed(name, version)
		errs = append(errs, err)
		return r
	}
	etcdV, err := etcdVersion(tagOf(refs["etcd"].ref))
	if err != nil {
		return nil, nil, err
	}
	etcd := need("etcd", etcdV.String())
	dns := need("coredns", tagOf(refs["coredns"].ref))
	containerd, runc, cni, router := need("containerd", newestRecipe("containerd")), need("runc", newestRecipe("runc")), need("cni", newestRecipe("cni")), need("kube-router", newestRecipe("kube-router"))
	step, err := etcdStep(b.o.Version, etcdV, recipeVersions("etcd"))
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	pause := embeddedRecipe("pause", tagOf(refs["pause"].ref), pauseSource)
	sample := embeddedRecipe("sample", sampleVersion, sampleSource)

	var units []unit
	components := []Component{{g.kube.name, g.kube.version}, {etcd.name, etcd.version}}
	add := func(r recipe) {
		if r.name != "etcd" {
			components = append(components, Component{r.name, r.version})
		}
		for _, bin := range r.binaries {
			u := g.unit(r, bin)
			u.lane = "others"
			units = append(units, u)
		}
	}
	// Kubernetes' own programs share what they compile among themselves, and hardly anything with the others: two lanes compile nothing twice.
	for _, bin := range g.kube.binaries[1:] {
		u := g.unit(g.kube, bin)
		u.lane = "kubernetes"
		units = append(units, u)
	}
	for _, r := range []recipe{etcd, dns, containerd, runc, cni, router, pause, sample} {
		add(r)
	}
	image := func(ref imageRef, r recipe, bin binary, c imageConfig, at, base string) {
		c.arch = b.o.Arch
		units = append(units, b.packUnit(imageUnit{
			ref: ref, config: c, component: r.name, version: r.version, from: r.from(bin, g.goVersion),
			binary: unitName(bin, r), at: at, base: base,
		}))
	}
	stepRef := imageRef{}
	if !step.IsZero() {
		r, err := recipeNamed("etcd", step.String())
		if err != nil {
			return nil, nil, err
		}
		r.binaries = []binary{{name: "etcd-step", pkg: r.binaries[0].pkg}}
		units = append(units, g.unit(r, r.binaries[0]))
		components = append(components, Component{r.name, r.version})
		stepRef = imageRef{ref: repositoryOf(refs["etcd"].ref) + ":" + step.Bare() + "-0", component: "etcd", role: RoleEtcdStep}
		image(stepRef, r, r.binaries[0], imageConfig{}, "usr/local/bin/etcd", "")
	}
	base := b.debianUnit()
	units = append(units, base)
	for _, i := range images {
		switch i.role {
		case RoleControlPlane, RoleKubeProxy:
			name := archiveName(i.ref)
			name = name[:strings.LastIndex(name, "-"+b.o.Version.String())]
			for _, bin := range g.kube.binaries {
				if bin.name != name {
					continue
				}
				layer := ""
				if i.role == RoleKubeProxy {
					layer = base.name
				}
				image(i, g.kube, bin, imageConfig{}, "usr/local/bin/"+name, layer)
			}
		case RoleEtcd:
			image(i, etcd, etcd.binaries[0], imageConfig{}, "usr/local/bin/etcd", "")
		case RoleDNS:
			image(i, dns, dns.binaries[0], imageConfig{entrypoint: []string{"/coredns"}}, "coredns", "")
		case RolePause:
			image(i, pause, pause.binaries[0], imageConfig{entrypoint: []string{"/pause"}, user: "65535:65535"}, "pause", "")
		}
	}
	image(imageRef{ref: "docker.io/cloudnativelabs/kube-router:" + router.version, component: router.name, role: RoleCNI},
		router, router.binaries[0], imageConfig{entrypoint: []string{"/usr/local/bin/kube-router"}}, "usr/local/bin/kube-router", base.name)
	units = append(units, b.packUnit(g.sampleImage(sample)))
	return units, sortComponents(components), nil
}

func (g *gomod) sampleImage(r recipe) imageUnit {
	return imageUnit{
		ref:    imageRef{ref: sampleRef(), component: r.name, role: RoleSample},
		config: imageConfig{arch: g.b.o.Arch, entrypoint: []string{"/usr/local/bin/sample"}, user: "65532:65532"}, component: r.name, version: r.version,
		from: r.from(r.binaries[0], g.goVersion), binary: unitName(r.binaries[0], r), at: "usr/local/bin/sample",
	}
}

// etcdStep gives the etcd that every member must run before this Kubernetes
// version's own, when its hop brings an etcd minor with a documented floor: the
// newest patch that can be had at or above the floor. Zero when none is needed.
func etcdStep(kube, etcd kubeversion.V, have []string) (kubeversion.V, error) {
	floor, ok := cluster.EtcdFloorFor(etcd.MinorVersion())
	if !ok || firstKubernetes(etcd.MinorVersion()) != kube.MinorVersion() {
		return kubeversion.V{}, nil
	}
	var best kubeversion.V
	for _, h := range have {
		v, err := kubeversion.Parse(h)
		if err == nil && v.Pre == "" && v.MinorVersion() == floor.Least.MinorVersion() && !v.Less(floor.Least) && best.Less(v) {
			best = v
		}
	}
	if best.IsZero() {
		return best, fmt.Errorf("every etcd member must run %s or later before %s (%s), and there is no such etcd among %v", floor.Least.Bare(), etcd.Bare(), floor.Source, have)
	}
	return best, nil
}

// firstKubernetes gives the Kubernetes minor whose kubeadm was the first to
// deploy an etcd minor: only on the hop to it does etcd's floor matter. kubeadm
// cannot be asked: for the minor before its own it names its own etcd.
// Source: cmd/kubeadm/app/constants/constants.go (DefaultEtcdVersion) of 1.33 to 1.37.
func firstKubernetes(etcd kubeversion.Minor) kubeversion.Minor {
	switch etcd {
	case kubeversion.Minor{Major: 3, Minor: 6}:
		return kubeversion.Minor{Major: 1, Minor: 34}
	case kubeversion.Minor{Major: 3, Minor: 7}:
		return kubeversion.Minor{Major: 1, Minor: 37}
	}
	return kubeversion.Minor{}
}

func (g *gomod) unit(r recipe, bin binary) unit {
	digest := r.digest(bin, g.goVersion, g.b.o.Arch)
	return unit{
		name: unitName(bin, r), verb: "building", subject: bin.name,
		key: func(context.Context) (string, error) { return digest, nil },
		make: func(ctx context.Context, dest string, report func(string)) (File, error) {
			f := File{Kind: KindBinary, Component: r.name, Version: r.version, From: r.from(bin, g.goVersion), Recipe: digest}
			return f, g.compile(ctx, r, bin, dest, report)
		},
	}
}

// compile runs "go build" in a directory that holds the recipe as a module.
func (g *gomod) compile(ctx context.Context, r recipe, bin binary, dest string, report func(string)) error {
	dir := filepath.Join(g.b.dir, workDir, "module-"+r.name+"-"+r.version)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{"go.mod": r.mod}
	if r.sum != nil {
		files["go.sum"] = r.sum
	}
	for name, data := range r.sources {
		files[name] = data
	}
	for name, data := range files {
		if err := atomicfile.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	dest, err := filepath.Abs(dest)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", r.args(bin, dest)...)
	cmd.Dir = dir
	cgo := "0"
	if r.cgo {
		cgo = "1"
	}
	// What the user's shell sets must not change what is built. GOFLAGS is emptied, since -mod=mod would edit the recipe.
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH="+g.b.o.Arch, "GOWORK=off", "GOFLAGS=-buildvcs=false", "GO111MODULE=on")
	err = runBuild(cmd, g.b.o.heartbeat, report)
	if ctx.Err() != nil {
		return ctx.Err() // what the killed compiler said is of no use
	}
	return err
}

// runBuild runs a go build that names the packages it compiles (-v) and
// reports how many so far, since one binary can take minutes.
func runBuild(cmd *exec.Cmd, heartbeat time.Duration, report func(string)) error {
	ownGroup(cmd)
	cmd.WaitDelay = 10 * time.Second
	var compiled atomic.Int64
	var mu sync.Mutex
	var said []string
	r, w := io.Pipe()
	cmd.Stderr = w
	scanned := make(chan struct{})
	go func() {
		defer close(scanned)
		s := bufio.NewScanner(r)
		s.Buffer(make([]byte, 0, 64<<10), 1<<20)
		for s.Scan() {
			if line := s.Text(); isPackageLine(line) {
				compiled.Add(1)
			} else {
				mu.Lock()
				said = append(said, line)
				mu.Unlock()
			}
		}
		// Read on if a line was too long, so that the compiler is not blocked.
		_, _ = io.Copy(io.Discard, r)
	}()
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		w.Close()
		<-scanned
		return err
	}
	stop := every(heartbeat, func() { report(fmt.Sprintf("%d packages compiled", compiled.Load())) })
	err := cmd.Wait()
	stop()
	w.Close()
	<-scanned
	if err != nil {
		mu.Lock()
		defer mu.Unlock()
		if len(said) > 30 {
			said = append([]string{"..."}, said[len(said)-30:]...)
		}
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:2], " "), err, strings.Join(said, "\n"))
	}
	return nil
}

// every calls f at an interval, in its own goroutine, until the returned function is called.
func every(interval time.Duration, f func()) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				f()
			}
		}
	}()
	return func() { close(quit); <-ended }
}

// isPackageLine tells a package name, as go build -v prints it, from a message.
func isPackageLine(s string) bool {
	return s != "" && !strings.ContainsAny(s, " \t:#")
}
