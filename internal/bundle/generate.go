package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/mod/modfile"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/kubeversion"
)

// WriteRecipe makes the recipe of one component and version and writes it below
// dir, internal/bundle/recipes of a clone. It needs the go command and a module
// proxy. The version has its v, as the module has it.
func WriteRecipe(ctx context.Context, dir, name, version string) error {
	c, ok := componentNamed(name)
	if !ok {
		var names []string
		for _, c := range components() {
			names = append(names, c.name)
		}
		return fmt.Errorf("there is no component %s: want one of %s", name, strings.Join(names, ", "))
	}
	r, err := newRecipe(ctx, c, version)
	if err != nil {
		return fmt.Errorf("recipe %s-%s: %w", name, version, err)
	}
	out := filepath.Join(dir, name+"-"+version)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	return errors.Join(
		atomicfile.WriteFile(filepath.Join(out, "mod"), r.mod, 0o644),
		atomicfile.WriteFile(filepath.Join(out, "sum"), r.sum, 0o644),
	)
}

func newRecipe(ctx context.Context, c component, version string) (_ recipe, err error) {
	work, err := os.MkdirTemp("", "belay-recipe-")
	if err != nil {
		return recipe{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	out, err := goCommand(ctx, work, "mod", "download", "-json", c.module+"@"+version)
	if err != nil {
		return recipe{}, err
	}
	var got struct{ GoMod string }
	if err := json.Unmarshal(out, &got); err != nil {
		return recipe{}, fmt.Errorf("go mod download: %w", err)
	}
	upstream, err := os.ReadFile(got.GoMod)
	if err != nil {
		return recipe{}, err
	}
	mod, err := recipeMod(c, version, upstream)
	if err != nil {
		return recipe{}, err
	}
	if err := os.WriteFile(filepath.Join(work, "go.mod"), mod, 0o644); err != nil {
		return recipe{}, err
	}
	if _, err := goCommand(ctx, work, "mod", "tidy"); err != nil {
		return recipe{}, err
	}
	r := recipe{component: c, version: version}
	var errs [2]error
	r.mod, errs[0] = os.ReadFile(filepath.Join(work, "go.mod"))
	r.sum, errs[1] = os.ReadFile(filepath.Join(work, "go.sum"))
	return r, errors.Join(errs[0], errs[1], r.check())
}

// recipeMod writes the go.mod of a recipe before it is tidied. A module's own
// replacements do not count for who imports it, so they are said again here;
// Kubernetes' point at directories of its repository, which are published as
// modules of version v0.MINOR.PATCH.
func recipeMod(c component, version string, upstream []byte) ([]byte, error) {
	up, err := modfile.ParseLax("go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	// ParseLax leaves replacements out.
	full, err := modfile.Parse("go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	f := new(modfile.File)
	errs := []error{f.AddModuleStmt("belay.dev/bundle/" + c.name), f.AddRequire(c.module, version)}
	if up.Go != nil {
		errs = append(errs, f.AddGoStmt(up.Go.Version))
	}
	for _, b := range c.binaries {
		errs = append(errs, f.AddTool(b.pkg))
	}
	for _, rep := range full.Replace {
		switch {
		case rep.New.Version != "":
			errs = append(errs, f.AddReplace(rep.Old.Path, rep.Old.Version, rep.New.Path, rep.New.Version))
		case c.name == "kubernetes" && strings.HasPrefix(rep.New.Path, "./staging/"):
			errs = append(errs, f.AddReplace(rep.Old.Path, "", rep.Old.Path, "v0."+strings.TrimPrefix(version, "v1.")))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	f.Cleanup()
	return f.Format()
}

func goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GO111MODULE=on")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, tail(stderr.String()+stdout.String(), 1000))
	}
	return stdout.Bytes(), nil
}

// WantedComponents builds the kubeadm of a Kubernetes version by its recipe
// below dir and asks it which etcd and CoreDNS belong to it, with the etcd that
// must come before where there is a floor. report gets lines of progress.
func WantedComponents(ctx context.Context, dir string, v kubeversion.V, report func(string)) (_ []Component, err error) {
	r := recipe{version: v.String()}
	r.component, _ = componentNamed("kubernetes")
	r.stamp = kubernetesStamp(r.version)
	var errs [2]error
	r.mod, errs[0] = os.ReadFile(filepath.Join(dir, "kubernetes-"+r.version, "mod"))
	r.sum, errs[1] = os.ReadFile(filepath.Join(dir, "kubernetes-"+r.version, "sum"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "belay-recipe-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	g := &gomod{b: &builder{dir: work, o: Options{Arch: runtime.GOARCH, heartbeat: 10 * time.Second}}}
	kubeadm := filepath.Join(work, "kubeadm")
	if err := g.compile(ctx, r, r.binaries[0], kubeadm, report); err != nil {
		return nil, err
	}
	images, err := askKubeadm(ctx, kubeadm, v)
	if err != nil {
		return nil, err
	}
	var out []Component
	for _, i := range images {
		switch i.role {
		case RoleEtcd:
			etcd, err := etcdVersion(tagOf(i.ref))
			if err != nil {
				return nil, err
			}
			out = append(out, Component{"etcd", etcd.String()})
			step, err := etcdStep(v, etcd, recipeVersions("etcd"))
			if err != nil {
				report(err.Error())
			} else if !step.IsZero() {
				report("the etcd to go through first is there: " + step.String())
			}
		case RoleDNS:
			out = append(out, Component{"coredns", tagOf(i.ref)})
		}
	}
	return out, nil
}
