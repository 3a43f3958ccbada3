package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
)

func newBackupCmd(d *deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Back the cluster up, and prove that the backup can be restored",
		Long: `A backup is one directory: an etcd snapshot, the files of each control plane
node (certificates, kubeconfigs, static pod manifests, kubelet and containerd
configuration), kubeadm's configuration, Helm releases, and a manifest with
the digest of every file. It is readable by its owner only.

What was proved of it is its level, and each level includes those before it:
  copied         every file is there
  hash-verified  every file has its digest, and the snapshot the one etcd gave it
  opened         the snapshot's database is sound and holds what the live member held
  restored       an etcd ran from it, an apiserver of the cluster's version over
                 that, and every object was listed`,
	}
	cmd.AddCommand(newBackupCreateCmd(d), newBackupVerifyCmd(d), newBackupListCmd(d), newBackupDiffCmd(d), newBackupRestoreCmd(d))
	return cmd
}

// backupsDir is where backups lie unless the user says otherwise.
func (d *deps) backupsDir() string { return filepath.Join(d.home(), "backups") }

// controlPlaneHosts connects to the control plane nodes, where the user said how.
func (d *deps) controlPlaneHosts(ctx context.Context) ([]host.Host, error) {
	hosts, err := d.hosts()
	if err != nil || hosts == nil {
		return nil, err
	}
	cfg, err := d.restConfig()
	if err != nil {
		return nil, err
	}
	names, err := backup.ControlPlaneNodes(ctx, cfg)
	if err != nil {
		return nil, err
	}
	var out []host.Host
	for _, n := range names {
		h, err := hosts.Host(ctx, n)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

// bundleBinaries gives the programs of a Kubernetes version: those in dir, else its bundle's.
func (d *deps) bundleBinaries(dir string) func(kubeversion.V) (backup.Binaries, error) {
	return func(v kubeversion.V) (backup.Binaries, error) {
		if dir != "" {
			return backup.FindBinaries(dir)
		}
		b, err := d.bundleOf(v)
		if err != nil {
			return backup.Binaries{}, err
		}
		etcd, err := b.BinaryPath("etcd")
		if err != nil {
			return backup.Binaries{}, err
		}
		api, err := b.BinaryPath("kube-apiserver")
		return backup.Binaries{Etcd: etcd, APIServer: api}, err
	}
}

// backupKeys are the flags that say how to decrypt.
type backupKeys struct {
	identities     []string
	passphraseFile string
}

func (k *backupKeys) add(f *pflag.FlagSet) {
	f.StringArrayVarP(&k.identities, "identity", "i", nil, "age identity file that decrypts the backup (repeatable)")
	f.StringVar(&k.passphraseFile, "passphrase-file", "", "file with the passphrase of the backup, - for stdin")
}

func (k *backupKeys) open(d *deps) ([]age.Identity, error) {
	pass, err := d.passphrase(k.passphraseFile)
	if err != nil {
		return nil, err
	}
	return backup.Identities(k.identities, pass)
}

// passphrase reads the first line of a file; flags and the environment would show it to others.
func (d *deps) passphrase(file string) (string, error) {
	var b []byte
	var err error
	switch file {
	case "":
		return "", nil
	case "-":
		b, err = io.ReadAll(io.LimitReader(d.in, 64<<10))
	default:
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("passphrase: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", usagef("passphrase: the first line of %s is empty", file)
	}
	return line, nil
}

func newBackupCreateCmd(d *deps) *cobra.Command {
	var o backup.Options
	var recipients []string
	var passphraseFile string
	var keep int
	var etcd etcdFlags
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Take a backup of the cluster",
		Long: `Takes a backup into one new directory, named by cluster and time, and prints that
directory's path on stdout. etcd is read from its healthiest follower, through
the control plane nodes of the inventory.

Without an inventory only what the API shows can be backed up. If something
could not be read, the backup is incomplete: it is kept, and the exit code is 6.

The data in volumes is not in the backup; which claim is which volume, mounted
where, is. With --snapshot-claims the storage system takes snapshots of chosen
claims, which the backup names.`,
		Example: `  belay backup create --cluster demo -o backups/
  belay backup create --inventory hosts.yaml --keep 7
  belay backup create --cluster demo --snapshot-claims shop/data,shop/orders
  belay backup create --inventory hosts.yaml --recipient age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			pass, err := d.passphrase(passphraseFile)
			if err != nil {
				return err
			}
			if o.Recipients, o.RecipientNames, err = backup.Recipients(recipients, pass); err != nil {
				return &usageError{err}
			}
			if o.EncryptAll && len(o.Recipients) == 0 {
				return usagef("--encrypt-all needs --recipient or --passphrase-file")
			}
			if o.REST, err = d.restConfig(); err != nil {
				return err
			}
			if o.Hosts, err = d.controlPlaneHosts(ctx); err != nil {
				return err
			}
			if o.Etcd, err = etcd.access(); err != nil {
				return err
			}
			if o.Dir == "" {
				o.Dir = d.backupsDir()
			}
			if o.Cluster == "" {
				o.Cluster = d.clusterName
			}
			o.Tool, o.Sink = buildVersion().Version, d.sink()
			b, err := backup.Create(ctx, o)
			if blocked := (*backup.BlockedError)(nil); errors.As(err, &blocked) {
				return &codedError{err: err, code: exitBlocked}
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(d.out, b.Dir)
			if keep > 0 {
				pruned, err := backup.Prune(ctx, o.Dir, b.Manifest.Lineage, keep, func(ctx context.Context, s []backup.VolumeSnapshot) error {
					return backup.DeleteVolumeSnapshots(ctx, o.REST, s)
				})
				if pruned != nil {
					for _, r := range pruned.Removed {
						fmt.Fprintf(d.err, "removed %s\n", r)
					}
					for _, r := range pruned.Damaged {
						fmt.Fprintf(d.err, "warn damaged, and not counted as a backup to keep: %s\n", r)
					}
				}
				if err != nil {
					return err
				}
			}
			if !b.Manifest.Complete() {
				return &codedError{err: fmt.Errorf("the backup is incomplete: %s", strings.Join(missing(b.Manifest), "; ")), code: exitUnknown, next: "belay backup list " + host.Quote(o.Dir) + " -o json"}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Dir, "dir", "o", "", "directory that holds the backups (default: backups in $BELAY_HOME)")
	f.StringVar(&o.Name, "name", "", "name of the new directory (default: cluster and time)")
	f.StringSliceVar(&o.Accept, "accept", nil, "go on in spite of this finding (repeatable; recorded in the manifest)")
	f.StringArrayVar(&recipients, "recipient", nil, "encrypt what holds secrets for this age public key (repeatable)")
	f.StringVar(&passphraseFile, "passphrase-file", "", "encrypt what holds secrets with the passphrase in this file, - for stdin")
	f.IntVar(&keep, "keep", 0, "afterwards remove older backups of this cluster but so many; the newest sound one that was verified always stays")
	f.StringSliceVar(&o.SnapshotClaims, "snapshot-claims", nil, "take CSI snapshots of these claims, as NAMESPACE/NAME,...; --keep removes them with their backup")
	f.StringVar(&o.SnapshotClass, "snapshot-class", "", "VolumeSnapshotClass for them (default: the driver's)")
	f.DurationVar(&o.SnapshotTimeout, "snapshot-timeout", 10*time.Minute, "how long to wait until they are ready to use")
	f.BoolVar(&o.EncryptAll, "encrypt-all", false, "encrypt every file, not only those that hold secrets")
	cmd.MarkFlagsMutuallyExclusive("recipient", "passphrase-file")
	etcd.add(cmd)
	d.addClusterFlags(cmd)
	return cmd
}

// etcdFlags say how to reach an etcd that is not found through the control plane nodes.
type etcdFlags struct {
	endpoints     []string
	ca, cert, key string
}

func (e *etcdFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&e.endpoints, "etcd-endpoint", nil, "client URL of an etcd member, reached from here instead of through the nodes (repeatable)")
	f.StringVar(&e.ca, "etcd-cacert", "", "file with the CA of those members")
	f.StringVar(&e.cert, "etcd-cert", "", "file with a client certificate for them")
	f.StringVar(&e.key, "etcd-key", "", "file with its key")
	cmd.MarkFlagsRequiredTogether("etcd-cacert", "etcd-cert", "etcd-key")
}

// access is nil when no endpoint was given.
func (e *etcdFlags) access() (*backup.EtcdAccess, error) {
	if len(e.endpoints) == 0 {
		if e.ca != "" {
			return nil, usagef("--etcd-cacert, --etcd-cert and --etcd-key go with --etcd-endpoint")
		}
		return nil, nil
	}
	a := &backup.EtcdAccess{}
	for _, u := range e.endpoints {
		if !strings.HasPrefix(u, "https://") && !strings.HasPrefix(u, "http://") {
			return nil, usagef("--etcd-endpoint %q: want a URL, as in https://10.0.0.5:2379", u)
		}
		a.Endpoints = append(a.Endpoints, backup.EtcdEndpoint{URL: u})
	}
	if e.ca == "" {
		return a, nil
	}
	var pem [3][]byte
	for i, file := range []string{e.ca, e.cert, e.key} {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("etcd certificates: %w", err)
		}
		pem[i] = b
	}
	var err error
	if a.TLS, err = backup.ClientTLS(pem[0], pem[1], pem[2]); err != nil {
		return nil, fmt.Errorf("etcd certificates: %s: %w", e.cert, err)
	}
	return a, nil
}

func missing(m *backup.Manifest) []string {
	var out []string
	for _, p := range m.Parts {
		if p.Status == backup.PartIncomplete {
			out = append(out, p.Name+": "+strings.Join(p.Missing, ", "))
		}
	}
	return out
}

func newBackupVerifyCmd(d *deps) *cobra.Command {
	var format render.Format
	var keys backupKeys
	var level, binDir, tempDir string
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Prove how good a backup is",
		Long: `Verifies a backup up to a level, says what is wrong with it, and records the level
that was reached in the backup. Every changed byte in any file is found.

Level restored runs the cluster's own versions of etcd and kube-apiserver as plain
processes of yours, on 127.0.0.1, over a copy of the snapshot. They come from the
bundle of that version (belay bundle build) or from --bin-dir.`,
		Example: `  belay backup verify backups/demo-20261201T001530Z
  belay backup verify backups/demo-20261201T001530Z --level restored
  belay backup verify backups/demo-20261201T001530Z --level hash-verified -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := backup.ParseLevel(level)
			if err != nil || l == backup.None {
				return usagef("--level %q: want copied, hash-verified, opened or restored", level)
			}
			ids, err := keys.open(d)
			if err != nil {
				return err
			}
			r, err := backup.Verify(cmd.Context(), args[0], backup.VerifyOptions{
				Level: l, Identities: ids, Binaries: d.bundleBinaries(binDir), TempDir: tempDir, Tool: buildVersion().Version, Sink: d.sink(),
			})
			if err != nil {
				return err
			}
			if err := render.Value(d.out, format, r, func(w io.Writer) error { return printReport(w, r) }); err != nil {
				return err
			}
			if !r.OK() {
				return &codedError{err: fmt.Errorf("%s is not %s", args[0], l), code: exitBlocked, next: "belay backup create"}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&level, "level", backup.Opened.String(), "how far to go: copied, hash-verified, opened or restored")
	f.StringVar(&binDir, "bin-dir", "", "directory with etcd and kube-apiserver of the cluster's version, instead of the bundle")
	f.StringVar(&tempDir, "temp-dir", "", "where restored data lies meanwhile (default: the system's)")
	keys.add(f)
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func printReport(w io.Writer, r *backup.Report) error {
	for _, p := range r.Problems {
		if p.File != "" {
			fmt.Fprintf(w, "%s: %s\n", p.File, p.Problem)
			continue
		}
		fmt.Fprintln(w, p.Problem)
	}
	rows := [][]string{{"backup", r.Dir}, {"cluster", r.Cluster}, {"level", r.Level.String()}, {"files", fmt.Sprintf("%d, %s", r.Files, render.Bytes(r.Bytes))}}
	if !r.Complete {
		rows = append(rows, []string{"incomplete", "something could not be read when it was taken; see its manifest.json"})
	}
	for _, l := range r.Limits {
		rows = append(rows, []string{"limit", fmt.Sprintf("no further than %s: %s; %s", l.Level, l.Reason, l.Remedy)})
	}
	if r.NotRecorded != "" {
		rows = append(rows, []string{"not recorded", "belay apply and --keep go by what is recorded: " + r.NotRecorded})
	}
	if s := r.Restore; s != nil && r.Level >= backup.Restored {
		rows = append(rows,
			[]string{"restored", fmt.Sprintf("%d objects of %d resources listed by kube-apiserver %s over etcd %s", s.Objects, len(s.Resources), s.APIServer, s.Etcd)},
			[]string{"time", fmt.Sprintf("%s to start, %s to list", s.StartedIn.Round(10*time.Millisecond), s.ListedIn.Round(10*time.Millisecond))})
		for p, n := range s.Unserved {
			rows = append(rows, []string{"not served", fmt.Sprintf("%d keys under %s", n, p)})
		}
	}
	return render.Rows(w, nil, rows)
}

type backupList struct {
	Schema  string         `json:"schema"`
	Dir     string         `json:"dir"`
	Backups []backup.Entry `json:"backups"`
}

func newBackupListCmd(d *deps) *cobra.Command {
	var format render.Format
	cmd := &cobra.Command{
		Use:     "list [DIR]",
		Short:   "List backups, newest first",
		Example: "  belay backup list\n  belay backup list backups/ -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := d.backupsDir()
			if len(args) > 0 {
				dir = args[0]
			}
			entries, err := backup.List(dir)
			if err != nil {
				return err
			}
			out := backupList{Schema: "belay.dev/backup-list/v1", Dir: dir, Backups: entries}
			return render.Value(d.out, format, out, func(w io.Writer) error { return printBackups(w, dir, entries) })
		},
	}
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func printBackups(w io.Writer, dir string, entries []backup.Entry) error {
	if len(entries) == 0 {
		_, err := fmt.Fprintf(w, "no backups in %s\n", dir)
		return err
	}
	var rows [][]string
	for _, e := range entries {
		row := []string{filepath.Base(e.Dir), "-", "-", "-", "-", "-", e.Problem}
		if m := e.Manifest; m != nil {
			verdict := "complete"
			if !m.Complete() {
				verdict = "incomplete"
			}
			rev := "-"
			if m.Etcd != nil {
				rev = strconv.FormatInt(m.Etcd.Revision, 10)
			}
			row = []string{filepath.Base(e.Dir), m.Version.String(), e.Level.String(), verdict, rev, render.Bytes(e.Size), cmp.Or(e.Problem, e.Note)}
		}
		rows = append(rows, row)
	}
	return render.Rows(w, []string{"NAME", "VERSION", "LEVEL", "VERDICT", "ETCD REVISION", "SIZE", "PROBLEM"}, rows)
}

func newBackupDiffCmd(d *deps) *cobra.Command {
	var format render.Format
	var keys backupKeys
	var o backup.DiffOptions
	cmd := &cobra.Command{
		Use:   "diff DIR [DIR]",
		Short: "Say what appeared, vanished and changed since a backup",
		Long: `Compares a backup with another one of the same cluster, or with the live cluster:
which objects appeared, vanished and changed, and which volume claims are not
bound, attached and mounted where their pods run, as they were.

Exit code 0 means no difference, 3 means that there are some.`,
		Example: `  belay backup diff backups/demo-20261201T001530Z --cluster demo
  belay backup diff backups/demo-20261201T001530Z backups/demo-20261202T001530Z -o json`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Identities, err = keys.open(d); err != nil {
				return err
			}
			o.Sink = d.sink()
			var r *backup.Diff
			if len(args) == 2 {
				r, err = backup.DiffBackups(cmd.Context(), args[0], args[1], o)
			} else {
				cfg, cerr := d.restConfig()
				if cerr != nil {
					return cerr
				}
				r, err = backup.DiffLive(cmd.Context(), args[0], cfg, o)
			}
			if err != nil {
				return err
			}
			if err := render.Value(d.out, format, r, func(w io.Writer) error { return printDiff(w, r) }); err != nil {
				return err
			}
			if !r.Empty() {
				return &silentError{code: exitBlocked}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Status, "status", false, "compare status, too")
	f.BoolVar(&o.All, "all", false, "compare events, leases and endpoints, too, which change all the time")
	keys.add(f)
	d.addClusterFlags(cmd)
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func printDiff(w io.Writer, r *backup.Diff) error {
	var rows [][]string
	for _, rd := range r.Resources {
		for _, n := range rd.Appeared {
			rows = append(rows, []string{"appeared", rd.Resource, n, ""})
		}
		for _, n := range rd.Vanished {
			rows = append(rows, []string{"vanished", rd.Resource, n, ""})
		}
		for _, c := range rd.Changed {
			what := strings.Join(c.Fields, ", ")
			if c.Recreated {
				what = strings.TrimSuffix("made anew; "+what, "; ")
			}
			rows = append(rows, []string{"changed", rd.Resource, c.Object, what})
		}
	}
	for _, c := range r.Claims {
		rows = append(rows, []string{"volume", "persistentvolumeclaims", c.Claim, strings.Join(c.Problems, "; ")})
	}
	if len(rows) > 0 {
		if err := render.Rows(w, []string{"WHAT", "RESOURCE", "OBJECT", "DETAIL"}, rows); err != nil {
			return err
		}
	}
	for _, n := range r.NotCompared {
		fmt.Fprintf(w, "not compared: %s\n", n)
	}
	_, err := fmt.Fprintf(w, "%d differences in %d objects\n", len(rows), r.Compared)
	return err
}
