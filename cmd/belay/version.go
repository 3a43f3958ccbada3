package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/internal/render"
)

// version is stamped by the linker for releases.
var version string

type buildInfo struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	Target  string `json:"target"`
}

func buildVersion() buildInfo {
	b := buildInfo{Schema: "belay.dev/version/v1", Version: version, Go: runtime.Version(), Target: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	return b
}

func newVersionCmd(d *deps) *cobra.Command {
	var format render.Format
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print belay's version",
		Example: "  belay version\n  belay version -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := buildVersion()
			return render.Value(d.out, format, b, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "belay %s (%s, %s)\n", b.Version, b.Go, b.Target)
				return err
			})
		},
	}
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	return cmd
}
