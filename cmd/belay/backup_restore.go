package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
	"github.com/belayops/belay/provision"
)

func newBackupRestoreCmd(d *deps) *cobra.Command {
	var format render.Format
	var keys backupKeys
	var o backup.RestoreOptions
	var etcd, prepared, abort bool
	var confirm, tempDir, onto string
	cmd := &cobra.Command{
		Use:   "restore DIR (--objects PATTERN | --etcd)",
		Short: "Bring objects, or the whole cluster's data, back from a backup",
		Long: `With --objects, applies selected objects of a backup to the cluster with a server-side apply:
namespaces and custom resource definitions first, webhooks last. An object that
is there and differs is left alone unless --overwrite is given. Objects that a
controller makes are left to it. An object whose version the cluster no longer
serves is converted to the one that replaces it, where that can be done without a
person; kinds whose meaning changes need --accept=convert@KIND.

A pattern is RESOURCE/NAME for cluster-wide objects and RESOURCE/NAMESPACE/NAME
for others; each element may have * and ?.

With --etcd, sets the whole cluster's data back: stops the control plane on all
nodes, gives every etcd member the backup's data with one new membership and a
revision so far forward that every watcher starts anew, starts all again, and
waits until it works. What was written after the backup is lost. The cluster's
name must be typed. The old data stays on the nodes, and its place is told. After
an interruption the same command goes on; with --abort it gives the restore up
instead, and the cluster goes on with the data that it had before.

With --etcd --onto FILE, makes the control plane anew on other machines, for when
all control plane nodes are lost. FILE is an inventory of these machines: each
becomes a control plane node under its name and IP address there. They get
containerd, kubelet and kubeadm from the bundle of the cluster's version, unless
--prepared says that they have them; the cluster's keys, and certificates for
their own addresses; and the backup's etcd data. Point the balancer or name of the
control plane at them, before or while it waits for that: then workers come back
by themselves, and their pods were never stopped.`,
		Example: `  belay backup restore backups/demo-20261201T001530Z --objects 'deployments.apps/shop/*' --dry-run
  belay backup restore backups/demo-20261201T001530Z --objects namespaces/shop --objects '*/shop/*'
  belay backup restore backups/demo-20261201T001530Z --etcd --inventory hosts.yaml
  belay backup restore backups/demo-20261201T001530Z --etcd --onto new-machines.yaml -i backup-key.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(o.Patterns) == 0 && !etcd {
				return usagef("say what to restore: --objects 'deployments.apps/shop/*', or --etcd")
			}
			if etcd && (o.DryRun || o.Overwrite) {
				return usagef("--dry-run and --overwrite are for --objects")
			}
			if !etcd && (onto != "" || prepared) {
				return usagef("--onto and --prepared go with --etcd")
			}
			if abort && (!etcd || onto != "") {
				return usagef("--abort goes with --etcd, and not with --onto: new machines are given up with kubeadm reset")
			}
			if prepared && onto == "" {
				return usagef("--prepared goes with --onto: the nodes of a cluster are prepared")
			}
			if o.Identities, err = keys.open(d); err != nil {
				return err
			}
			if etcd {
				return d.restoreEtcd(cmd.Context(), etcdRestoreFlags{dir: args[0], confirm: confirm, tempDir: tempDir, onto: onto, prepared: prepared, abort: abort, format: format, again: repeat(cmd, args)}, o)
			}
			if o.REST, err = d.restConfig(); err != nil {
				return err
			}
			o.Sink, o.Convert = d.sink(), objectConverter(o.Accept)
			r, err := backup.RestoreObjects(cmd.Context(), args[0], o)
			if blocked := (*backup.BlockedError)(nil); errors.As(err, &blocked) {
				return &codedError{err: err, code: exitBlocked}
			}
			if err != nil {
				return err
			}
			if err := render.Value(d.out, format, r, func(w io.Writer) error { return printRestored(w, r) }); err != nil {
				return err
			}
			switch {
			case r.Count[backup.ActionFailed] > 0:
				return fmt.Errorf("%d objects were not restored", r.Count[backup.ActionFailed])
			case r.Count[backup.ActionDiffers] > 0:
				return &codedError{err: fmt.Errorf("%d objects are there and differ, and were left alone", r.Count[backup.ActionDiffers]), code: exitBlocked}
			case len(r.NotKept) > 0:
				return &codedError{err: fmt.Errorf("whether all that is selected was restored is not known: %s", strings.Join(r.NotKept, "; ")), code: exitUnknown}
			case len(r.Objects) == 0:
				return errors.New("the backup holds no object that is selected")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Patterns, "objects", nil, "which objects to restore (repeatable)")
	f.BoolVar(&etcd, "etcd", false, "set the whole cluster's data back, on all control plane nodes")
	f.StringVar(&confirm, "confirm", "", "the cluster's name, with --etcd, instead of typing it when asked")
	f.StringVar(&tempDir, "temp-dir", "", "where data lies before it is sent to the nodes, with --etcd (default: the system's)")
	f.StringVar(&onto, "onto", "", "inventory file of machines to make the lost control plane anew on, with --etcd")
	f.BoolVar(&abort, "abort", false, "give up a restore with --etcd that was begun: every member gets back the data that it had before")
	f.BoolVar(&prepared, "prepared", false, "the machines of --onto have containerd, kubelet, kubeadm and images of the cluster's version already")
	f.BoolVar(&o.DryRun, "dry-run", false, "let the server say what would happen, and change nothing")
	f.BoolVar(&o.Overwrite, "overwrite", false, "set back objects that were changed after the backup")
	f.StringSliceVar(&o.Accept, "accept", nil, "go on in spite of this finding (repeatable)")
	keys.add(f)
	d.addClusterFlags(cmd)
	cmd.MarkFlagsMutuallyExclusive("objects", "etcd")
	cmd.MarkFlagsMutuallyExclusive("onto", "cluster")
	cmd.MarkFlagsMutuallyExclusive("onto", "inventory")
	cmd.MarkFlagsMutuallyExclusive("onto", "kubeconfig")
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func printRestored(w io.Writer, r *backup.ObjectsReport) error {
	var rows [][]string
	for _, o := range r.Objects {
		detail := o.Note
		for _, c := range o.Changes {
			detail += "; " + shownChange(c)
		}
		rows = append(rows, []string{o.Action, o.Resource, o.Object, strings.TrimPrefix(detail, "; ")})
	}
	if err := render.Rows(w, []string{"ACTION", "RESOURCE", "OBJECT", "DETAIL"}, rows); err != nil {
		return err
	}
	if r.DryRun {
		fmt.Fprintln(w, "dry run: nothing was changed")
	}
	return nil
}

// shownChange tells of a field what it is now and what the backup has.
func shownChange(c backup.FieldChange) string {
	switch {
	case c.Live == "" && c.Backup == "":
		return c.Field
	case c.Live == "":
		return fmt.Sprintf("%s: not set, was %s", c.Field, c.Backup)
	case c.Backup == "":
		return fmt.Sprintf("%s: %s, was not set", c.Field, c.Live)
	}
	return fmt.Sprintf("%s: %s, was %s", c.Field, c.Live, c.Backup)
}

// etcdRestoreFlags are the flags of backup restore --etcd.
type etcdRestoreFlags struct {
	dir, confirm, tempDir, onto string
	prepared, abort             bool
	format                      render.Format
	// again is the command that goes on with a restore.
	again string
}

// restoreEtcd carries out backup restore --etcd.
func (d *deps) restoreEtcd(ctx context.Context, fl etcdRestoreFlags, o backup.RestoreOptions) error {
	m, err := backup.ReadManifest(fl.dir)
	if err != nil {
		return err
	}
	var r *backup.EtcdRestoreReport
	if fl.onto != "" {
		r, err = d.restoreOnto(ctx, m, fl, o)
	} else {
		r, err = d.restoreInPlace(ctx, m, fl, o)
	}
	if blocked := (*backup.BlockedError)(nil); errors.As(err, &blocked) {
		return &codedError{err: err, code: exitBlocked}
	}
	if unfinished := (*backup.UnfinishedError)(nil); errors.As(err, &unfinished) {
		return &codedError{err: err, code: exitStopped, next: fl.again}
	}
	if err != nil {
		return err
	}
	return render.Value(d.out, fl.format, r, func(w io.Writer) error {
		if fl.abort {
			fmt.Fprintf(w, "the restore was given up: %s have the data that they had before\n", strings.Join(r.Members, ", "))
			for _, k := range r.Kept {
				fmt.Fprintf(w, "data of the restore: %s (remove it when it is no longer needed)\n", k)
			}
			return nil
		}
		fmt.Fprintf(w, "restored %d keys on %s, revision %d\n", r.Keys, strings.Join(r.Members, ", "), r.Revision)
		for _, k := range r.Kept {
			fmt.Fprintf(w, "old data: %s (remove it when it is no longer needed)\n", k)
		}
		for _, n := range r.Notes {
			fmt.Fprintf(w, "not as it was: %s\n", n)
		}
		for _, n := range r.Silent {
			fmt.Fprintf(w, "not back yet: node %s\n", n)
		}
		return nil
	})
}

// restoreInPlace restores on the machines that the cluster has.
func (d *deps) restoreInPlace(ctx context.Context, m *backup.Manifest, fl etcdRestoreFlags, o backup.RestoreOptions) (*backup.EtcdRestoreReport, error) {
	inv, err := d.hosts()
	if err != nil {
		return nil, err
	}
	if inv == nil {
		return nil, usagef("--etcd works on the control plane nodes: give --inventory FILE or --cluster NAME")
	}
	var all []host.Host
	for _, n := range inv.Names() {
		h, err := inv.Host(ctx, n)
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	hosts, silent, err := backup.EtcdHosts(ctx, m, all)
	if err != nil {
		return nil, err
	}
	for _, s := range silent {
		fmt.Fprintf(d.err, "warn a machine that does not answer is taken for a worker: %v\n", s)
	}
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name()
	}
	what := fmt.Sprintf("This sets the data of cluster %s on %s back to %s.\nEverything that was written since is lost.", m.Cluster, strings.Join(names, ", "), m.Started.Format(time.RFC3339))
	if fl.abort {
		what = fmt.Sprintf("This gives up the restore that was begun: cluster %s on %s gets back the data that it had before.\nEverything that was written to the restored one is lost to it.", m.Cluster, strings.Join(names, ", "))
	}
	if err := d.confirmCluster(m, what, fl.confirm); err != nil {
		return nil, err
	}
	eo := d.etcdRestoreOptions(m.Lineage, fl, o)
	eo.Hosts = hosts
	if fl.abort {
		return backup.AbortEtcdRestore(ctx, eo)
	}
	return backup.RestoreEtcd(ctx, fl.dir, eo)
}

func (d *deps) etcdRestoreOptions(journal string, fl etcdRestoreFlags, o backup.RestoreOptions) backup.EtcdRestoreOptions {
	return backup.EtcdRestoreOptions{
		Journal: filepath.Join(d.home(), "restores", journal+".jsonl"), Identities: o.Identities, Accept: o.Accept,
		TempDir: fl.tempDir, Tool: buildVersion().Version, Sink: d.sink(),
	}
}

// restoreOnto makes the control plane anew on the machines of another inventory.
func (d *deps) restoreOnto(ctx context.Context, m *backup.Manifest, fl etcdRestoreFlags, o backup.RestoreOptions) (*backup.EtcdRestoreReport, error) {
	inv, err := inventory.Load(fl.onto)
	if err != nil {
		return nil, err
	}
	hosts := inv.Open()
	d.closers = append(d.closers, hosts.Close)
	what := fmt.Sprintf("This makes the control plane of cluster %s anew on %s, from its state at %s.\nIts old control plane nodes are taken for lost: they must never start again.", m.Cluster, strings.Join(inv.Names(), ", "), m.Started.Format(time.RFC3339))
	if err := d.confirmCluster(m, what, fl.confirm); err != nil {
		return nil, err
	}
	no := backup.NewMachinesOptions{EtcdRestoreOptions: d.etcdRestoreOptions(m.Lineage+"-new-machines", fl, o)}
	for _, n := range inv.Nodes {
		h, err := hosts.Host(ctx, n.Name)
		if err != nil {
			return nil, err
		}
		no.Nodes = append(no.Nodes, backup.NewNode{Host: h, Address: n.Address, IgnorePreflight: inv.IgnorePreflightErrors})
	}
	if !fl.prepared {
		b, err := d.bundleOf(m.Version)
		if err != nil {
			return nil, err
		}
		if !inv.Disposable && !b.Official() {
			fmt.Fprintf(d.err, "warn the bundle of %s was built here and is not the official release; --prepared takes what is installed on the machines\n", m.Version.Bare())
		}
		no.Prepare = func(ctx context.Context, h host.Host, _ kubeversion.V, owner string) error {
			_, err := provision.Prepare(ctx, h, provision.PrepareOptions{Bundle: b, Role: provision.RoleControlPlane, Cluster: m.Cluster, Owner: owner, Sink: d.sink()})
			return err
		}
	}
	return backup.RestoreNewMachines(ctx, fl.dir, no)
}

// bundleOf finds the bundle of a version in the cache.
func (d *deps) bundleOf(v kubeversion.V) (*bundle.Bundle, error) {
	cache, err := d.cacheDir()
	if err != nil {
		return nil, err
	}
	return bundle.Find(filepath.Join(cache, "bundles"), v, "")
}

// confirmCluster has the cluster's name typed: what stands in what cannot be undone.
func (d *deps) confirmCluster(m *backup.Manifest, what, typed string) error {
	if typed == "" {
		fmt.Fprintf(d.err, "%s Type the cluster's name to go on: ", what)
		line, err := bufio.NewReader(io.LimitReader(d.in, 1024)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the confirmation: %w", err)
		}
		typed = strings.TrimSpace(line)
	}
	if typed != m.Cluster {
		return usagef("%q is not the name of the cluster in the backup, %q: nothing was changed", typed, m.Cluster)
	}
	return nil
}
