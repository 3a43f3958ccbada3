package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/internal/render"
)

// newRootCmd builds the command tree, one constructor a verb.
func newRootCmd(d *deps) *cobra.Command {
	root := &cobra.Command{
		Use:   "belay",
		Short: "Take a Kubernetes cluster from one version to the next, with a rope on",
		Long: `belay checks a Kubernetes cluster, backs it up, plans its upgrade, rehearses the
plan, carries it out node by node, and proves every step. It also brings
clusters up, because a rehearsal needs one.

A first upgrade of a kubeadm cluster:

  belay check --to 1.37.2 --inventory hosts.yaml
  belay backup create --inventory hosts.yaml
  belay plan --to 1.37.2 --inventory hosts.yaml -o plan.json
  belay apply plan.json --inventory hosts.yaml
  belay verify --inventory hosts.yaml

stdout carries data, stderr carries progress and words.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			switch render.ProgressMode(d.progress) {
			case render.ProgressAuto, render.ProgressPlain, render.ProgressJSON, render.ProgressNone:
				return nil
			}
			return usagef("--progress %q: want auto, plain, json or none", d.progress)
		},
	}
	root.PersistentFlags().StringVar(&d.progress, "progress", string(render.ProgressAuto), "progress on stderr: auto, plain, json (one event a line) or none")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddGroup(
		&cobra.Group{ID: "upgrade", Title: "Upgrade a cluster:"},
		&cobra.Group{ID: "look", Title: "Look at a cluster:"},
		&cobra.Group{ID: "bring", Title: "Bring clusters up:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("bring", newClusterCmd(d), newBundleCmd(d))
	add("upgrade", newBackupCmd(d), newPlanCmd(d), newApplyCmd(d), newResumeCmd(d), newStatusCmd(d), newAbortCmd(d))
	add("look", newCheckCmd(d), newStateCmd(d), newAPICmd(d))
	add("look", newVerifyCmd(d))
	root.AddCommand(newVersionCmd(d), newDocsCmd(d))
	root.AddCommand(&cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: strings.TrimSpace(exitCodesText())})
	usageArgs(root)
	return root
}

// usageArgs makes wrong arguments of every command usage errors, and gives
// commands that only group others a usage error for an unknown verb.
func usageArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := errors.Join(check(c, args), c.ValidateFlagGroups()); err != nil {
				return &usageError{err}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && cmd.RunE == nil && cmd.Run == nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], c.CommandPath())
			}
			return nil
		}
		cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	for _, c := range cmd.Commands() {
		usageArgs(c)
	}
}
