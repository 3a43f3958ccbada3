package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
)

func newBundleCmd(d *deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Make and verify bundles: everything that one Kubernetes version needs",
		Long: `A bundle is a directory with every binary and container image that one Kubernetes
version needs, with sums: kubeadm, kubelet, kubectl, containerd, runc, CNI
plugins, etcd, and the images of the control plane, CoreDNS, pause and the CNI.

It comes from the public release sites, or is built from Go modules where those
cannot be reached. A bundle that was built is not the official release: it is fit
for tests and rehearsals.`,
		Example: `  belay bundle build 1.37.2
  belay bundle list
  belay bundle verify 1.37.2`,
	}
	cmd.AddCommand(newBundleBuildCmd(d), newBundleVerifyCmd(d), newBundleListCmd(d), newBundlePathCmd(d))
	return cmd
}

// bundleRoot is the directory of bundles: the flag's, or bundles in the cache directory.
func (d *deps) bundleRoot(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	cache, err := d.cacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "bundles"), nil
}

func addBundleDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "bundles", "", "directory of bundles (default: bundles in $BELAY_CACHE or ~/.cache/belay)")
}

// bundleView is a bundle as build, list and verify print it.
type bundleView struct {
	Version    string             `json:"version"`
	Arch       string             `json:"arch"`
	State      string             `json:"state"` // complete, partial, broken
	Source     string             `json:"source,omitempty"`
	Official   bool               `json:"official"`
	Files      int                `json:"files,omitempty"`
	Bytes      int64              `json:"bytes,omitempty"`
	Digest     string             `json:"digest,omitempty"`
	Dir        string             `json:"dir"`
	Components []bundle.Component `json:"components,omitempty"`
	Problem    string             `json:"problem,omitempty"`
}

func viewBundle(b *bundle.Bundle) bundleView {
	m := b.Manifest()
	return bundleView{
		Version: m.Kubernetes.Bare(), Arch: m.Arch, State: "complete", Source: m.Source, Official: m.Official,
		Files: len(m.Files), Bytes: b.Size(), Digest: b.Digest(), Dir: b.Dir(), Components: m.Components,
	}
}

// origin says what a bundle may be used for.
func (v bundleView) origin() string {
	if v.Official {
		return "official release"
	}
	return "built from Go modules, not the official release: fit for tests and rehearsals"
}

func newBundleBuildCmd(d *deps) *cobra.Command {
	var format render.Format
	var o bundle.Options
	var mirrors []string
	cmd := &cobra.Command{
		Use:   "build VERSION...",
		Short: "Download or build the bundles of Kubernetes versions",
		Long: `Download or build the bundle of each Kubernetes version.

Source "release" downloads what the projects published and checks its sums.
Source "gomod" builds it from Go modules at pinned versions; it needs Go, a C
compiler, libseccomp-dev, and Debian's apt for the network tools in two images,
and takes about a quarter of an hour on two cores the first time.
Source "auto" takes the release if its site answers within three seconds.

An interrupted build goes on where it was when the same command is run again.`,
		Example: `  belay bundle build 1.36.3 1.37.2
  belay bundle build 1.37.2 --source release --mirror registry.k8s.io=registry.example.org/k8s`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			versions, err := parseVersions(args)
			if err != nil {
				return err
			}
			switch o.Source {
			case bundle.SourceAuto, bundle.SourceRelease, bundle.SourceGoMod:
			default:
				return usagef("--source %q: want %s, %s or %s", o.Source, bundle.SourceAuto, bundle.SourceRelease, bundle.SourceGoMod)
			}
			o.Release.Mirrors = map[string]string{}
			for _, m := range mirrors {
				from, to, ok := strings.Cut(m, "=")
				if !ok || from == "" || to == "" {
					return usagef("--mirror %q: want FROM=TO, as in registry.k8s.io=registry.example.org/k8s", m)
				}
				o.Release.Mirrors[from] = to
			}
			if o.Root, err = d.bundleRoot(o.Root); err != nil {
				return err
			}
			o.Sink = d.sink()
			var views []bundleView
			for _, v := range versions {
				o.Version = v
				b, err := bundle.Build(cmd.Context(), o)
				if err != nil {
					return err
				}
				views = append(views, viewBundle(b))
			}
			return writeBundles(d.out, format, views)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Source, "source", bundle.SourceAuto, "where it comes from: auto, release or gomod")
	addBundleDirFlag(cmd, &o.Root)
	f.StringVar(&o.Arch, "arch", "", "architecture, as Go names it (default: this computer's)")
	f.StringVar(&o.Release.Kubernetes, "kubernetes-url", "", "mirror of https://dl.k8s.io/release")
	f.StringVar(&o.Release.Containerd, "containerd-url", "", "mirror of containerd's releases on GitHub")
	f.StringVar(&o.Release.Runc, "runc-url", "", "mirror of runc's releases on GitHub")
	f.StringVar(&o.Release.CNI, "cni-url", "", "mirror of the CNI plugins' releases on GitHub")
	f.StringArrayVar(&mirrors, "mirror", nil, "pull images of a registry from elsewhere: FROM=TO (repeatable)")
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func parseVersions(args []string) ([]kubeversion.V, error) {
	var out []kubeversion.V
	for _, a := range args {
		v, err := kubeversion.Parse(a)
		if err != nil {
			return nil, &usageError{err}
		}
		out = append(out, v)
	}
	return out, nil
}

func newBundleListCmd(d *deps) *cobra.Command {
	var format render.Format
	var root string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the bundles on this computer",
		Example: "  belay bundle list\n  belay bundle list -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, err := d.bundleRoot(root)
			if err != nil {
				return err
			}
			listed, err := bundle.List(dir)
			if err != nil {
				return err
			}
			views := []bundleView{}
			for _, l := range listed {
				if l.Bundle != nil {
					views = append(views, viewBundle(l.Bundle))
					continue
				}
				i := strings.LastIndexByte(l.Name, '-')
				v := bundleView{Version: l.Name[:i], Arch: l.Name[i+1:], State: "partial", Dir: l.Dir, Problem: "the build was begun and is not finished; go on with: belay bundle build " + l.Name[:i]}
				if l.Err != nil {
					v.State, v.Problem = "broken", l.Err.Error()
				}
				views = append(views, v)
			}
			if len(views) == 0 && format == render.Table {
				_, err := fmt.Fprintf(d.out, "no bundles in %s\n", dir)
				return err
			}
			return writeBundles(d.out, format, views)
		},
	}
	addBundleDirFlag(cmd, &root)
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func writeBundles(out io.Writer, format render.Format, views []bundleView) error {
	doc := struct {
		Schema  string       `json:"schema"`
		Bundles []bundleView `json:"bundles"`
	}{"belay.dev/bundles/v1", views}
	return render.Value(out, format, doc, func(w io.Writer) error {
		var rows [][]string
		notes := false
		for _, v := range views {
			official := "yes"
			switch {
			case v.State != "complete":
				official = "-"
			case !v.Official:
				official, notes = "no (1)", true
			}
			rows = append(rows, []string{v.Version, v.Arch, v.State, dash(v.Source), official, fmt.Sprint(v.Files), render.Bytes(v.Bytes), v.Dir})
		}
		if err := render.Rows(w, []string{"VERSION", "ARCH", "STATE", "SOURCE", "OFFICIAL", "FILES", "SIZE", "DIRECTORY"}, rows); err != nil {
			return err
		}
		if notes {
			fmt.Fprintln(w, "\n(1) "+bundleView{}.origin())
		}
		for _, v := range views {
			if v.Problem != "" {
				fmt.Fprintf(w, "\n%s-%s: %s\n", v.Version, v.Arch, v.Problem)
			}
		}
		return nil
	})
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newBundleVerifyCmd(d *deps) *cobra.Command {
	var format render.Format
	var root, arch string
	cmd := &cobra.Command{
		Use:   "verify [VERSION...]",
		Short: "Read every file of bundles and compare it with the manifest",
		Long: `Read every file of the bundles of the given versions, or of all complete bundles,
and compare it with the manifest. Every file that is changed, missing or not in
the manifest is named; the exit code is then 1.`,
		Example: "  belay bundle verify\n  belay bundle verify 1.37.2",
		RunE: func(cmd *cobra.Command, args []string) error {
			versions, err := parseVersions(args)
			if err != nil {
				return err
			}
			dir, err := d.bundleRoot(root)
			if err != nil {
				return err
			}
			bundles, err := findBundles(dir, arch, versions)
			if err != nil {
				return err
			}
			type result struct {
				bundleView
				Verified bool              `json:"verified"`
				Sums     []bundle.SumError `json:"wrong,omitempty"`
			}
			var results []result
			var errs []error
			for _, b := range bundles {
				r := result{bundleView: viewBundle(b), Verified: true}
				if err := b.Verify(cmd.Context(), d.sink()); err != nil {
					errs = append(errs, err)
					r.Verified, r.Sums = false, sumErrors(err)
				}
				results = append(results, r)
			}
			doc := struct {
				Schema  string   `json:"schema"`
				Bundles []result `json:"bundles"`
			}{"belay.dev/bundle-verification/v1", results}
			err = render.Value(d.out, format, doc, func(w io.Writer) error {
				for _, r := range results {
					state := fmt.Sprintf("%d files, %s: all as the manifest says", r.Files, render.Bytes(r.Bytes))
					if !r.Verified {
						state = "NOT as the manifest says"
					}
					fmt.Fprintf(w, "%s-%s: %s\n  %s\n  %s\n", r.Version, r.Arch, state, r.origin(), r.Digest)
					for _, s := range r.Sums {
						fmt.Fprintf(w, "  %s\n", s.Error())
					}
				}
				return nil
			})
			return errors.Join(append(errs, err)...)
		},
	}
	addBundleDirFlag(cmd, &root)
	cmd.Flags().StringVar(&arch, "arch", "", "architecture, as Go names it (default: this computer's)")
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func newBundlePathCmd(d *deps) *cobra.Command {
	var root, arch string
	cmd := &cobra.Command{
		Use:   "path VERSION [BINARY]",
		Short: "Print where a bundle, or one of its binaries, lies",
		Long: `Print the directory of a complete bundle, or the path of one of its binaries: the
kubectl of the version that a cluster runs, say.`,
		Example: "  belay bundle path 1.37.2\n  $(belay bundle path 1.37.2 kubectl) get nodes",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			versions, err := parseVersions(args[:1])
			if err != nil {
				return err
			}
			dir, err := d.bundleRoot(root)
			if err != nil {
				return err
			}
			bundles, err := findBundles(dir, arch, versions)
			if err != nil {
				return err
			}
			path := bundles[0].Dir()
			if len(args) == 2 {
				if path, err = bundles[0].BinaryPath(args[1]); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintln(d.out, path)
			return err
		},
	}
	addBundleDirFlag(cmd, &root)
	cmd.Flags().StringVar(&arch, "arch", "", "architecture, as Go names it (default: this computer's)")
	return cmd
}

// findBundles opens the bundles of versions, or all complete ones.
func findBundles(root, arch string, versions []kubeversion.V) ([]*bundle.Bundle, error) {
	var out []*bundle.Bundle
	for _, v := range versions {
		b, err := bundle.Find(root, v, arch)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	if len(versions) > 0 {
		return out, nil
	}
	listed, err := bundle.List(root)
	if err != nil {
		return nil, err
	}
	for _, l := range listed {
		if l.Err != nil {
			return nil, l.Err
		}
		if l.Bundle != nil {
			out = append(out, l.Bundle)
		}
	}
	if len(out) == 0 {
		return nil, &codedError{err: fmt.Errorf("there is no complete bundle in %s", root), code: exitError, next: "belay bundle build VERSION"}
	}
	return out, nil
}

// sumErrors finds every *bundle.SumError in a joined error.
func sumErrors(err error) []bundle.SumError {
	var out []bundle.SumError
	switch e := err.(type) {
	case *bundle.SumError:
		return []bundle.SumError{*e}
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			out = append(out, sumErrors(sub)...)
		}
	case interface{ Unwrap() error }:
		return sumErrors(e.Unwrap())
	}
	return out
}
