package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/render"
	"github.com/belayops/belay/provision"
)

func newClusterCmd(d *deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Bring clusters up and take them down",
		Long: `Bring up kubeadm clusters, on machines that exist (over SSH) or on machines
that belay makes on this computer (root on Linux; no virtual machines needed).`,
		Example: `  belay cluster up --machines 1+1 --kubernetes 1.36.3
  kubectl --kubeconfig "$(belay cluster kubeconfig demo --path)" get nodes
  belay cluster down demo`,
	}
	cmd.AddCommand(newClusterUpCmd(d), newClusterDownCmd(d), newClusterListCmd(d), newClusterKubeconfigCmd(d), newClusterSSHCmd(d))
	return cmd
}

func (d *deps) provisionOptions() (provision.Options, error) {
	cache, err := d.cacheDir()
	return provision.Options{Home: d.home(), Cache: cache, Sink: d.sink(), Now: d.now}, err
}

// defaultKubernetes is what `cluster up` brings up unless told otherwise.
const defaultKubernetes = "1.36.3"

func newClusterUpCmd(d *deps) *cobra.Command {
	var file, machines, name, version string
	var format render.Format
	var install, send bool
	cmd := &cobra.Command{
		Use:   "up (-f FILE | --machines CONTROL_PLANES+WORKERS | --name NAME)",
		Short: "Bring a cluster up, or complete one",
		Long: `Bring a cluster up. Every phase looks first and acts only on what is missing:
run it again after an interruption, and it goes on; run it on a cluster that is
up, and it changes nothing and says so.

With -f the cluster file says everything. With --machines the nodes are made on
this computer. With --name alone, a cluster that was begun is completed.

A bundle of the Kubernetes version must exist: belay bundle build VERSION.`,
		Example: `  belay cluster up --machines 1+1
  belay cluster up --machines 3+2 --name ha --kubernetes 1.36.3
  belay cluster up -f cluster.yaml
  belay cluster up --name ha        # go on after an interruption`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flag := func(n string) bool { return cmd.Flags().Changed(n) }
			spec, err := clusterSpec(d, file, machines, name, version, flag("name"), flag("kubernetes"))
			if err != nil {
				return err
			}
			o, err := d.provisionOptions()
			if err != nil {
				return err
			}
			o.InstallTools, o.SendFiles = install, send
			res, err := provision.Up(cmd.Context(), spec, o)
			if err != nil {
				return err
			}
			return writeUp(d, format, res)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "cluster file (apiVersion "+provision.SpecAPIVersion+"); - is standard input")
	f.StringVar(&machines, "machines", "", "make machines on this computer: CONTROL_PLANES+WORKERS, as in 1+1 or 3+2")
	f.StringVar(&name, "name", provision.DefaultName, "the cluster's name, with --machines; or a cluster to complete")
	f.StringVar(&version, "kubernetes", defaultKubernetes, "Kubernetes version, with --machines")
	f.BoolVar(&install, "install-tools", false, "install missing Debian packages on this computer (iproute2, mmdebstrap ...)")
	f.BoolVar(&send, "send-files", false, "send files to machines of this computer over SSH, as to any other machine")
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML)
	cmd.MarkFlagsMutuallyExclusive("file", "machines")
	cmd.MarkFlagsMutuallyExclusive("file", "kubernetes")
	cmd.MarkFlagsMutuallyExclusive("file", "name")
	return cmd
}

// clusterSpec finds out which cluster is meant.
func clusterSpec(d *deps, file, machines, name, version string, named, versioned bool) (*provision.Spec, error) {
	switch {
	case file != "":
		data, err := d.readFileOrStdin(file)
		if err != nil {
			return nil, fmt.Errorf("cluster file: %w", err)
		}
		spec, err := provision.ParseSpec(data)
		if err != nil {
			return nil, usagef("cluster file %s:\n%w", file, err)
		}
		dir, err := filepath.Abs(filepath.Dir(file))
		if err != nil {
			return nil, err
		}
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		spec.ResolvePaths(dir, home)
		return spec, nil
	case machines != "":
		m, err := provision.ParseMachines(machines)
		if err != nil {
			return nil, usagef("--machines %w", err)
		}
		spec := &provision.Spec{APIVersion: provision.SpecAPIVersion, Kind: provision.SpecKind, Name: name, KubernetesVersion: strings.TrimPrefix(version, "v"), Machines: &m}
		spec.SetDefaults()
		if err := spec.Validate(); err != nil {
			return nil, &usageError{err}
		}
		return spec, nil
	case named && !versioned:
		return provision.LoadSpec(d.home(), name)
	}
	return nil, usagef("say which cluster: -f FILE, --machines 1+1, or --name of one that was begun")
}

func (d *deps) readFileOrStdin(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(d.in)
	}
	return os.ReadFile(file)
}

func writeUp(d *deps, format render.Format, res *provision.Result) error {
	err := render.Value(d.out, format, res, func(w io.Writer) error {
		if len(res.Changed) == 0 {
			fmt.Fprintf(w, "cluster %s was up; nothing was changed\n", res.Name)
		} else {
			fmt.Fprintf(w, "cluster %s is up after %s\n", res.Name, res.Elapsed.Round(time.Second))
		}
		_, err := fmt.Fprintf(w, "kubeconfig  %s\ninventory   %s\n", res.Kubeconfig, res.Inventory)
		return err
	})
	fmt.Fprintf(d.err, "next:  kubectl --kubeconfig %s get nodes\n", res.Kubeconfig)
	return err
}

func newClusterDownCmd(d *deps) *cobra.Command {
	var leave bool
	cmd := &cobra.Command{
		Use:   "down NAME",
		Short: "Take a cluster down and remove everything of it",
		Long: `Take a cluster down: its machines with their disks if belay made them, else what
belay put on its hosts; and its directory. Half-made clusters are removed like
complete ones. A cluster that is gone already is no error.`,
		Example:           "  belay cluster down demo",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: d.completeClusters,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := d.provisionOptions()
			if err != nil {
				return err
			}
			o.LeaveUnreachable = leave
			err = provision.Down(cmd.Context(), args[0], o)
			if missing := (*provision.NotFoundError)(nil); errors.As(err, &missing) {
				fmt.Fprintf(d.err, "there is no cluster %s; nothing to do\n", args[0])
				return nil
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&leave, "leave-unreachable", false, "forget hosts that do not answer, with what is on them")
	return cmd
}

func newClusterListCmd(d *deps) *cobra.Command {
	var format render.Format
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the clusters that belay brought up here",
		Example: "  belay cluster list\n  belay cluster list -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := d.provisionOptions()
			if err != nil {
				return err
			}
			clusters, err := provision.List(cmd.Context(), o)
			if err != nil {
				return err
			}
			list := struct {
				Schema   string              `json:"schema"`
				Clusters []provision.Summary `json:"clusters"`
			}{"belay.dev/clusters/v1", clusters}
			return render.Value(d.out, format, list, func(w io.Writer) error {
				rows := [][]string{}
				for _, c := range clusters {
					status := c.Status
					if c.Reason != "" {
						status += " (" + c.Reason + ")"
					}
					rows = append(rows, []string{c.Name, c.Version, c.Nodes, status})
				}
				return render.Rows(w, []string{"NAME", "KUBERNETES", "NODES", "STATUS"}, rows)
			})
		},
	}
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func newClusterKubeconfigCmd(d *deps) *cobra.Command {
	var path bool
	cmd := &cobra.Command{
		Use:   "kubeconfig NAME",
		Short: "Print a cluster's kubeconfig",
		Example: `  belay cluster kubeconfig demo > ~/.kube/demo
  export KUBECONFIG="$(belay cluster kubeconfig demo --path)"`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: d.completeClusters,
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := provision.Kubeconfig(d.home(), args[0])
			if err != nil {
				return err
			}
			if path {
				_, err = fmt.Fprintln(d.out, file)
				return err
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			_, err = d.out.Write(data)
			return err
		},
	}
	cmd.Flags().BoolVar(&path, "path", false, "print the file's path instead of its content")
	return cmd
}

func newClusterSSHCmd(d *deps) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "ssh NODE [-- COMMAND ...]",
		Short: "Log in to a node, or run a command there",
		Long: `Log in to a node of a cluster that belay brought up, with the keys of its
inventory. With a command, run it without a terminal and pass its exit code on.`,
		Example: `  belay cluster ssh demo-cp1
  belay cluster ssh demo-w1 -- journalctl -u kubelet -n 50`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: d.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			inv, node, err := d.findNode(name, args[0])
			if err != nil {
				return err
			}
			if len(args) > 1 {
				return d.runOnNode(cmd, inv, node.Name, args[1:])
			}
			return d.login(cmd, inv, node)
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "the cluster's name; needed only if several have a node of that name")
	_ = cmd.RegisterFlagCompletionFunc("name", d.completeClusters)
	return cmd
}

func (d *deps) clusterNames() []string {
	entries, err := os.ReadDir(filepath.Join(d.home(), "clusters"))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func (d *deps) completeClusters(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return d.clusterNames(), cobra.ShellCompDirectiveNoFileComp
}

func (d *deps) completeNodes(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var nodes []string
	if len(args) == 0 {
		for _, c := range d.clusterNames() {
			if inv, err := provision.Inventory(d.home(), c); err == nil {
				nodes = append(nodes, inv.Names()...)
			}
		}
	}
	return nodes, cobra.ShellCompDirectiveNoFileComp
}

// findNode looks for a node in one cluster, or in all.
func (d *deps) findNode(cluster, node string) (*inventory.Inventory, inventory.Node, error) {
	names := []string{cluster}
	if cluster == "" {
		names = d.clusterNames()
	}
	var inv *inventory.Inventory
	var found inventory.Node
	for _, c := range names {
		i, err := provision.Inventory(d.home(), c)
		if err != nil {
			if cluster != "" {
				return nil, found, err
			}
			continue // a half-made one without machines yet
		}
		for _, n := range i.Nodes {
			if n.Name != node {
				continue
			}
			if inv != nil {
				return nil, found, usagef("clusters %s and %s both have a node %s: give --name", inv.Cluster, i.Cluster, node)
			}
			inv, found = i, n
		}
	}
	if inv == nil {
		return nil, found, &codedError{err: fmt.Errorf("no cluster of belay has a node %s", node), code: exitError, next: "belay cluster list"}
	}
	return inv, found, nil
}

// runOnNode passes output, input and exit code on.
func (d *deps) runOnNode(cmd *cobra.Command, inv *inventory.Inventory, node string, argv []string) (err error) {
	hosts := inv.Open()
	defer func() { err = errors.Join(err, hosts.Close()) }()
	h, err := hosts.Host(cmd.Context(), node)
	if err != nil {
		return err
	}
	c := host.Cmd{Argv: argv, Stdout: d.out, Stderr: d.err}
	// A terminal is left alone: waiting for its end would keep the command from ending.
	if f, ok := d.in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		c.Stdin = d.in
	}
	_, err = h.Run(cmd.Context(), c)
	if exit := (*host.ExitError)(nil); errors.As(err, &exit) {
		return &silentError{code: exit.Code}
	}
	return err
}

// login hands over to the ssh client, which knows terminals.
func (d *deps) login(cmd *cobra.Command, inv *inventory.Inventory, node inventory.Node) error {
	c := inv.SSHConfig(node)
	if node.Address == inventory.Local {
		return usagef("node %s is this computer", node.Name)
	}
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		return &codedError{
			err: errors.New("an interactive session needs the ssh client, which is not installed"), code: exitError,
			next: "belay cluster ssh " + node.Name + " -- COMMAND",
		}
	}
	addr, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return err
	}
	argv := []string{"-p", port, "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + c.KnownHostsFile}
	for _, k := range c.KeyFiles {
		argv = append(argv, "-i", k, "-o", "IdentitiesOnly=yes")
	}
	s := exec.CommandContext(cmd.Context(), ssh, append(argv, c.User+"@"+addr)...)
	s.Stdin, s.Stdout, s.Stderr = d.in, d.out, d.err
	err = s.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return &silentError{code: exit.ExitCode()}
	}
	return err
}
