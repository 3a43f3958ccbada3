package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/atomicfile"
)

func newStateCmd(d *deps) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "state [-o state.json]",
		Short: "Observe a cluster, as a file",
		Long: `Read what belay knows of a cluster: versions, nodes, etcd, pods, budgets, webhooks,
and what each machine says of itself. Nothing is changed, and no Secret is read.

The file can be given to "belay check" and "belay plan", on another computer too,
and belongs to a bug report. What could not be read is listed in it, field unread;
with such gaps the exit code is 6.`,
		Example: `  belay state --cluster demo -o state.json
  belay state --inventory hosts.yaml | jq .etcd
  belay check --state state.json --to 1.37.2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := d.observe(cmd.Context())
			if err != nil {
				return err
			}
			b, err := cluster.Encode(s)
			if err != nil {
				return err
			}
			next := ""
			if out == "" || out == "-" {
				if _, err := d.out.Write(b); err != nil {
					return err
				}
			} else {
				// Labels, images and addresses of a cluster are nobody else's business.
				if err := atomicfile.WriteFile(out, b, 0o600); err != nil {
					return err
				}
				fmt.Fprintf(d.err, "wrote %s: %d nodes, %d pods\n", out, len(s.Nodes), len(s.Pods))
				next = "belay check --state " + out
			}
			if gaps := reportGaps(d, s); gaps > 0 {
				return &silentError{code: exitUnknown, next: next}
			}
			if next != "" {
				d.sayNext("%s", next)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "file to write to (default: stdout)")
	d.addClusterFlags(cmd)
	return cmd
}

// reportGaps says on stderr what could not be read, and counts it. A ConfigMap that is not there, or machines
// that nobody named, is no gap of the observation.
func reportGaps(d *deps, s *cluster.State) int {
	n := 0
	for _, u := range s.Unread {
		if u.Kind == cluster.UnreadNotFound || u.Kind == cluster.UnreadNotAsked {
			fmt.Fprintf(d.err, "note: %s: %s\n", u.What, u.Why)
			continue
		}
		n++
		fmt.Fprintf(d.err, "not read: %s (%s): %s\n", u.What, u.Kind, u.Why)
	}
	return n
}
