package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/inspect"
	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
	"github.com/belayops/belay/plan"
	"github.com/belayops/belay/preflight"
)

func newPlanCmd(d *deps) *cobra.Command {
	var to, stateFile, out, bundles, level string
	var accept, ignore []string
	var drainTimeout, backupAge time.Duration
	var keepEmptyDir bool
	cmd := &cobra.Command{
		Use:   "plan --to VERSION [-o plan.json]",
		Short: "Plan an upgrade, as a file to review and to apply",
		Long: `Plan the upgrade of a kubeadm cluster: which steps, in which order, behind which
gates. Nothing is changed. Every prefix of a plan is a cluster within the version
skew policy and with etcd's quorum; each drain is simulated, and a node that would
hang on a disruption budget is named now.

The checks of belay check are run on the same state, but for the one on backups, which
is a gate of the plan. What stands in the way is listed with a remedy, and ends with
exit code 3. A finding that is marked so can be accepted by its name, --accept
ID@SUBJECT; that is recorded in the plan, which runs the checks once more before its
first change and goes past these findings alone. There is no --force.`,
		Example: `  belay plan --to 1.37.2 --inventory hosts.yaml -o plan.json
  belay plan --to 1.37.2 --state state.json
  belay plan --to 1.37.2 --cluster demo -o plan.json --accept pdb-blocks-drain@shop/web
  belay plan show plan.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return usagef("--to VERSION is required")
			}
			target, err := kubeversion.Parse(to)
			if err != nil {
				return &usageError{err}
			}
			if _, err := backup.ParseLevel(level); err != nil {
				return &usageError{err}
			}
			goal := plan.Goal{To: target, Tool: buildVersion().Version, IgnorePreflightErrors: ignore}
			if goal.Bundles, err = d.bundleInfos(bundles); err != nil {
				return err
			}
			hosts, err := d.hosts()
			if err != nil {
				return err
			}
			if hosts != nil {
				goal.Disposable, goal.PatchesDir = hosts.Inventory().Disposable, hosts.Inventory().PatchesDir
				goal.IgnorePreflightErrors = append(goal.IgnorePreflightErrors, hosts.Inventory().IgnorePreflightErrors...)
			}
			s, err := d.stateForPlan(cmd.Context(), stateFile)
			if err != nil {
				return err
			}
			found, err := d.preflight(cmd.Context(), s, stateFile == "", to, bundles, accept)
			if err != nil {
				return err
			}
			p, findings := plan.Build(*s, goal, plan.Policy{
				Accept: accept, Preflight: found, PreflightGate: true, DrainTimeout: drainTimeout, KeepEmptyDir: keepEmptyDir, BackupLevel: level, BackupMaxAge: backupAge,
			})
			if p == nil {
				if err := printFindings(d.out, findings); err != nil {
					return err
				}
				return &codedError{err: fmt.Errorf("no plan: %s in the way", standing(blocking(findings))), code: exitBlocked, next: firstRemedy(findings)}
			}
			b, err := p.Encode()
			if err != nil {
				return err
			}
			if out == "-" {
				_, err := d.out.Write(b)
				return err
			}
			if err := printPlan(d.out, p); err != nil {
				return err
			}
			if out == "" {
				fmt.Fprintln(d.err, "the plan was not written: give -o plan.json")
				return nil
			}
			if err := atomicfile.WriteFile(out, b, 0o600); err != nil {
				return err
			}
			d.sayNext("belay apply %s", host.Quote(out))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "Kubernetes version to go to")
	f.StringVarP(&out, "output", "o", "", "file to write the plan to, - for stdout")
	f.StringVar(&stateFile, "state", "", "plan from a state file (belay state -o state.json) instead of the live cluster")
	f.StringVar(&bundles, "bundles", "", "directory that holds the bundles (default: bundles in $BELAY_CACHE)")
	f.StringSliceVar(&accept, "accept", nil, "go on past this finding, ID@SUBJECT (repeatable; recorded in the plan)")
	f.StringSliceVar(&ignore, "ignore-preflight-errors", nil, "checks of kubeadm that do not hold for these machines (also from the inventory)")
	f.DurationVar(&drainTimeout, "drain-timeout", 10*time.Minute, "time limit of each drain")
	f.BoolVar(&keepEmptyDir, "keep-emptydir", false, "do not evict pods with emptyDir volumes")
	f.StringVar(&level, "backup-level", backup.Restored.String(), "level that the backup must have reached: copied, hash-verified, opened or restored")
	f.DurationVar(&backupAge, "backup-max-age", 24*time.Hour, "how old the backup may be")
	d.addClusterFlags(cmd)
	cmd.AddCommand(newPlanShowCmd(d))
	return cmd
}

func newPlanShowCmd(d *deps) *cobra.Command {
	var format render.Format
	cmd := &cobra.Command{
		Use:   "show PLAN",
		Short: "Show a plan file",
		Example: `  belay plan show plan.json
  belay plan show plan.json -o yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := readPlan(args[0])
			if err != nil {
				return err
			}
			return render.Value(d.out, format, p, func(w io.Writer) error { return printPlan(w, p) })
		},
	}
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func readPlan(file string) (*plan.Plan, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p, err := plan.Decode(b)
	if err != nil {
		return nil, &codedError{err: fmt.Errorf("%s: %w", file, err), code: exitCode(err), next: cmp.Or(nextCommand(err), "belay plan --to VERSION -o "+host.Quote(file))}
	}
	return p, nil
}

// stateForPlan is the state of the file, or else of the live cluster.
func (d *deps) stateForPlan(ctx context.Context, file string) (*cluster.State, error) {
	if file == "" {
		return d.observe(ctx)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s, err := cluster.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// observe reads the live cluster and, where the inventory names them, its machines.
func (d *deps) observe(ctx context.Context) (*cluster.State, error) {
	cfg, err := d.restConfig()
	if err != nil {
		return nil, err
	}
	src := inspect.Sources{REST: cfg}
	hosts, err := d.hosts()
	if err != nil {
		return nil, err
	}
	if hosts != nil {
		src.Host = hosts.Host
	}
	return inspect.Observe(ctx, src, inspect.Options{Tool: buildVersion().Version, Sink: d.sink(), Now: d.now})
}

// preflight runs the checks over a state and gives what stands in the way or was accepted, as findings of a plan. It asks what
// `belay check` asks, but for the backup, which has a gate of its own. What only waits for another finding is left out.
func (d *deps) preflight(ctx context.Context, s *cluster.State, live bool, to, bundles string, accept []string) ([]plan.Finding, error) {
	o := checkOptions{to: to, bundles: bundles, level: backup.Restored.String()}
	for _, c := range preflight.Checks() {
		if c.ID != "backup-verified" {
			o.only = append(o.only, c.ID)
		}
	}
	in, err := d.checkInputOf(ctx, o, s, live)
	if err != nil {
		return nil, err
	}
	rep, err := preflight.Run(ctx, in, preflight.Options{Accept: accept, Only: o.only})
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, &usageError{err}
	}
	out := []plan.Finding{}
	for _, r := range rep.Results {
		if r.Status == preflight.Fail || r.Status == preflight.Unknown {
			out = append(out, plan.Finding{ID: r.Check, Subject: r.Subject, Severity: plan.Block, Message: r.Message, Remedy: r.Remedy, Waivable: r.Waivable, Waived: r.Waived})
		}
	}
	return out, nil
}

// preflightGate gives executor.Env.Preflight: it reads the cluster anew, runs the checks for a target with the plan's waivers, and names
// what stands in the way.
func (d *deps) preflightGate(bundles string) func(ctx context.Context, target kubeversion.V, accept []string) ([]string, error) {
	return func(ctx context.Context, target kubeversion.V, accept []string) ([]string, error) {
		s, err := d.observe(ctx)
		if err != nil {
			return nil, err
		}
		found, err := d.preflight(ctx, s, true, target.String(), bundles, accept)
		if err != nil {
			return nil, err
		}
		var blocking []string
		for _, f := range found {
			if f.Blocks() {
				blocking = append(blocking, f.Waiver()+": "+f.Message)
			}
		}
		return blocking, nil
	}
}

// bundleInfos tells the planner which bundles are at hand.
func (d *deps) bundleInfos(dir string) ([]plan.BundleInfo, error) {
	root, err := d.bundleRoot(dir)
	if err != nil {
		return nil, err
	}
	listed, err := bundle.List(root)
	if err != nil {
		return nil, err
	}
	var out []plan.BundleInfo
	for _, l := range listed {
		if l.Bundle == nil {
			continue
		}
		i, err := bundleInfo(l.Bundle)
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

func bundleInfo(b *bundle.Bundle) (plan.BundleInfo, error) {
	i := plan.BundleInfo{Version: b.Version(), Digest: b.Digest(), Official: b.Official(), Components: map[string]string{}}
	for _, c := range []string{"containerd", "runc", "cni"} {
		i.Components[c] = b.Component(c)
	}
	var err error
	if i.Etcd, err = kubeversion.Parse(b.Component("etcd")); err != nil {
		return i, fmt.Errorf("bundle %s: etcd: %w", b.Version().Bare(), err)
	}
	for _, img := range b.ImagesByRole(bundle.RoleEtcdStep) {
		i.EtcdStep, i.EtcdStepImage = cluster.ImageVersion(img.Ref), img.Ref
	}
	for _, img := range b.ImagesByRole(bundle.RolePause) {
		i.CanaryImage = img.Ref
	}
	return i, nil
}

func blocking(fs []plan.Finding) int {
	n := 0
	for _, f := range fs {
		if f.Blocks() {
			n++
		}
	}
	return n
}

func standing(n int) string {
	if n == 1 {
		return "1 finding stands"
	}
	return fmt.Sprintf("%d findings stand", n)
}

func firstRemedy(fs []plan.Finding) string {
	for _, f := range fs {
		if f.Blocks() && strings.HasPrefix(f.Remedy, "belay ") {
			return f.Remedy
		}
	}
	return ""
}

func printFindings(w io.Writer, fs []plan.Finding) error {
	for _, f := range fs {
		mark := string(f.Severity)
		if f.Waived {
			mark = "waived"
		}
		_, err := fmt.Fprintf(w, "%-6s  %s: %s\n", mark, f.Waiver(), f.Message)
		if f.Remedy != "" && f.Severity != plan.Info {
			_, e := fmt.Fprintf(w, "        remedy: %s\n", f.Remedy)
			err = errors.Join(err, e)
		}
		if f.Blocks() && f.Waivable {
			_, e := fmt.Fprintf(w, "        or go on past it: --accept %s\n", f.Waiver())
			err = errors.Join(err, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func printPlan(w io.Writer, p *plan.Plan) error {
	name := p.Cluster
	if name == "" {
		name = "cluster"
	}
	fmt.Fprintf(w, "%s: %s -> %s, %d steps, plan %s\n", name, p.From, p.To, len(p.Steps), cluster.ShortDigest(p.Digest))
	for _, h := range p.Hops {
		workers := "workers stay"
		if h.Workers {
			workers = "with workers"
		}
		if h.Why != "" {
			workers += ": " + h.Why
		}
		fmt.Fprintf(w, "hop %s -> %s (%s)\n", h.From, h.To, workers)
	}
	fmt.Fprintln(w)
	var rows [][]string
	for i, s := range p.Steps {
		mark := ""
		switch {
		case s.PointOfNoReturn != "":
			mark = "no way back: " + s.PointOfNoReturn
		case !s.Reversible:
			mark = "not reversible"
		}
		rows = append(rows, []string{fmt.Sprint(i + 1), s.Describe(), mark})
	}
	if err := render.Rows(w, []string{"#", "STEP", ""}, rows); err != nil {
		return err
	}
	if len(p.Findings) > 0 {
		fmt.Fprintln(w)
	}
	return printFindings(w, p.Findings)
}
