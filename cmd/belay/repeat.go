package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belayops/belay/internal/host"
)

// repeat is the command line of this invocation, as a shell takes it: every
// argument, and every flag that was given but how progress is shown.
func repeat(cmd *cobra.Command, args []string) string {
	words := []string{cmd.CommandPath()}
	for _, a := range args {
		words = append(words, host.Quote(a))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "progress" {
			return
		}
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, s := range v.GetSlice() {
				words = append(words, "--"+f.Name, host.Quote(s))
			}
		default:
			switch {
			case f.Value.Type() != "bool":
				words = append(words, "--"+f.Name, host.Quote(f.Value.String()))
			case f.Value.String() == "true":
				words = append(words, "--"+f.Name)
			default:
				words = append(words, "--"+f.Name+"="+f.Value.String())
			}
		}
	})
	return strings.Join(words, " ")
}
