package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newDocsCmd(_ *deps) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "docs DIR",
		Short:   "Write the reference of every command into a directory",
		Example: "  belay docs docs/cli\n  belay docs --format man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("docs: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			switch format {
			case "markdown":
				return doc.GenMarkdownTree(root, args[0])
			case "man":
				return doc.GenManTree(root, &doc.GenManHeader{Title: "BELAY", Section: "1"}, args[0])
			}
			return usagef("--format %q: want markdown or man", format)
		},
	}
	cmd.Flags().StringVar(&format, "format", "markdown", "markdown or man")
	return cmd
}
