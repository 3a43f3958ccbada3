// Command gen writes the recipes from which bundles are built of Go modules,
// into internal/bundle/recipes of this clone.
//
//	go run ./internal/bundle/gen -kubernetes 1.35.4
//	go run ./internal/bundle/gen -component etcd -version v3.6.16
//
// The first form writes Kubernetes' own recipe, builds its kubeadm, asks it which
// etcd and CoreDNS belong to that version, and writes theirs where they are missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/kubeversion"
)

func main() {
	kubernetes := flag.String("kubernetes", "", "Kubernetes version, with the etcd and CoreDNS that it asks for")
	component := flag.String("component", "", "one component")
	version := flag.String("version", "", "the component's version, with its v")
	dir := flag.String("dir", filepath.Join("internal", "bundle", "recipes"), "where recipes are written")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *dir, *kubernetes, *component, *version); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, kubernetes, component, version string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%w: run it at the root of a clone, or give -dir", err)
	}
	switch {
	case kubernetes != "" && component == "" && version == "":
	case kubernetes == "" && component == "kubernetes" && version != "":
		kubernetes = version
	case kubernetes == "" && component != "" && version != "":
		return write(ctx, dir, component, version)
	default:
		return errors.New("give -kubernetes VERSION, or -component NAME -version VERSION")
	}
	v, err := kubeversion.Parse(kubernetes)
	if err != nil {
		return err
	}
	if err := write(ctx, dir, "kubernetes", v.String()); err != nil {
		return err
	}
	say := func(s string) { fmt.Fprintln(os.Stderr, "  "+s) }
	fmt.Fprintln(os.Stderr, "building kubeadm", v, "to ask it for etcd and CoreDNS")
	wanted, err := bundle.WantedComponents(ctx, dir, v, say)
	if err != nil {
		return err
	}
	for _, c := range wanted {
		if err := write(ctx, dir, c.Name, c.Version); err != nil {
			return err
		}
	}
	return nil
}

// write makes one recipe unless it is there: what was pinned stays pinned.
func write(ctx context.Context, dir, component, version string) error {
	path := filepath.Join(dir, component+"-"+version)
	if _, err := os.Stat(filepath.Join(path, "sum")); err == nil {
		fmt.Fprintln(os.Stderr, path, "is there already")
		return nil
	}
	if err := bundle.WriteRecipe(ctx, dir, component, version); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "wrote", path)
	return nil
}
