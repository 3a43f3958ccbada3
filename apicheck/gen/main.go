// Command gen writes the lifecycle database from pinned Kubernetes modules.
//
// It reads sources with go/ast and recorded discovery files with encoding/json; it
// imports nothing of Kubernetes, so it can read every minor at once. Modules come from the
// module cache, through "go mod download". What the sources get wrong is corrected in
// overrides.yaml: each entry cites why, names the derived value that it corrects, and fails
// the generation when the source caught up or moved.
//
//	go generate ./apicheck/lifecycle
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/belayops/belay/internal/atomicfile"
)

func main() {
	out := flag.String("out", "lifecycle.json", "database file to write")
	schema := flag.String("schema", "", "file to write the fields of kinds that replace others to; none when empty")
	served := flag.String("served", "", "directory to record what each minor serves in, one file a minor; none when empty")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *schema, *served); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, out, schema, served string) error {
	res, err := generate(ctx)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(out, res.database, 0o644); err != nil {
		return err
	}
	if schema != "" {
		if err := atomicfile.WriteFile(schema, res.schema, 0o644); err != nil {
			return err
		}
	}
	if served == "" {
		return nil
	}
	if err := os.MkdirAll(served, 0o755); err != nil {
		return err
	}
	for name, data := range res.served {
		if err := atomicfile.WriteFile(filepath.Join(served, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
