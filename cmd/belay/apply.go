package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/executor"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
	"github.com/belayops/belay/plan"
)

// applyFlags are what apply and resume share.
type applyFlags struct {
	bundles, backups string
	probes           []string
	format           render.Format
}

func (f *applyFlags) add(d *deps, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.bundles, "bundles", "", "directory that holds the bundles (default: bundles in $BELAY_CACHE)")
	fs.StringVar(&f.backups, "backups", "", "directory that holds the backups (default: backups in $BELAY_HOME)")
	fs.StringArrayVar(&f.probes, "probe-http", nil, "poll this URL while the run works, and report how long it did not answer (repeatable)")
	render.AddFormatFlag(fs, &f.format, render.Table, render.JSON, render.YAML)
	d.addClusterFlags(cmd)
}

func newApplyCmd(d *deps) *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply PLAN",
		Short: "Carry out a plan, step by step, with proof of each",
		Long: `Carry out a plan. It is refused if the cluster is no longer what the plan was made
from (exit code 4). One run at a time works on a cluster. Each step is journaled
before it begins; when a step fails, no later one is begun.

The first interrupt (Ctrl-C) finishes the step that is under way and stops (exit
code 5); the second stops at once. A run that stopped, or that was killed, is taken
up with: belay resume`,
		Example: `  belay apply plan.json --inventory hosts.yaml
  belay apply plan.json --cluster demo --probe-http http://10.77.0.11:30080/`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := readPlan(args[0])
			if err != nil {
				return err
			}
			env, err := d.executorEnv(p, f, false)
			if err != nil {
				return err
			}
			o, err := d.runOptions(f)
			if err != nil {
				return err
			}
			r, err := executor.Apply(cmd.Context(), *env, p, o)
			return d.runReport(f, r, err)
		},
	}
	f.add(d, cmd)
	return cmd
}

func newResumeCmd(d *deps) *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "resume [RUN]",
		Short: "Take up a run that stopped or was killed",
		Long: `Take up a run that stopped or whose process was killed: the newest that has not
ended, unless one is named. What its journal does not say is asked of the cluster,
and where they differ, the cluster is right.`,
		Example: `  belay resume --cluster demo
  belay resume 20261201-001530-4f21ab --inventory hosts.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := executor.OpenRun(d.runsDir(), first(args))
			if err != nil {
				return err
			}
			env, err := d.executorEnv(run.Plan, f, true)
			if err != nil {
				return err
			}
			o, err := d.runOptions(f)
			if err != nil {
				return err
			}
			r, err := run.Resume(cmd.Context(), *env, o)
			return d.runReport(f, r, err)
		},
	}
	f.add(d, cmd)
	cmd.ValidArgsFunction = d.completeRuns
	return cmd
}

func newStatusCmd(d *deps) *cobra.Command {
	var format render.Format
	cmd := &cobra.Command{
		Use:   "status [RUN]",
		Short: "Say how far a run is",
		Long: `Say how far a run is: the newest that has not ended, unless one is named. It reads
the run's journal on this computer and asks no cluster.`,
		Example: `  belay status
  belay status 20261201-001530-4f21ab -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			run, err := executor.OpenRun(d.runsDir(), first(args))
			if err != nil {
				return err
			}
			s, err := run.Status()
			if err != nil {
				return err
			}
			err = render.Value(d.out, format, s, func(w io.Writer) error {
				fmt.Fprintf(w, "run %s: %s -> %s, %s\n", s.Run, s.From, s.To, s.State)
				if s.Error != "" {
					fmt.Fprintf(w, "step %s: %s\n", s.Step, s.Error)
				}
				var rows [][]string
				for i, st := range s.Steps {
					rows = append(rows, []string{fmt.Sprint(i + 1), st.State, st.What})
				}
				return render.Rows(w, []string{"#", "STATE", "STEP"}, rows)
			})
			if err == nil && s.State == "stopped" {
				d.sayNext("belay resume %s", s.Run)
			}
			return err
		},
	}
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML)
	cmd.ValidArgsFunction = d.completeRuns
	return cmd
}

func newAbortCmd(d *deps) *cobra.Command {
	var lost []string
	cmd := &cobra.Command{
		Use:   "abort [RUN]",
		Short: "Give a stopped run up",
		Long: `Give a stopped run up: uncordon what it cordoned, remove its canary pods, and mark it
as ended. No version is taken back: the cluster stays between the two, which every
step of a plan keeps within the version skew policy. A new plan goes on from there.

Nodes that are gone from the cluster are passed over. A machine that cannot be reached
is named with --lost, once it is known that it will not come back: nobody can look then
whether kubeadm is still at work on it.`,
		Example: `  belay abort --cluster demo
  belay abort 20261201-001530-4f21ab --inventory hosts.yaml --lost w3`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := executor.OpenRun(d.runsDir(), first(args))
			if err != nil {
				return err
			}
			env, err := d.clusterEnv(true)
			if err != nil {
				return err
			}
			did, err := run.Abort(cmd.Context(), *env, d.runOwner(), lost...)
			for _, s := range did {
				fmt.Fprintln(d.out, s)
			}
			if err == nil {
				d.sayNext("belay plan --to %s -o plan.json", run.Plan.To.Bare())
			}
			return err
		},
	}
	cmd.Flags().StringSliceVar(&lost, "lost", nil, "node whose machine cannot be reached and will not come back (repeatable)")
	d.addClusterFlags(cmd)
	cmd.ValidArgsFunction = d.completeRuns
	return cmd
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (d *deps) completeRuns(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	journals, err := filepath.Glob(filepath.Join(d.runsDir(), "*", "*", "plan.json"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, j := range journals {
		ids = append(ids, filepath.Base(filepath.Dir(j)))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

func (d *deps) runsDir() string { return filepath.Join(d.home(), "runs") }

// clusterEnv is what reaches the cluster and its machines.
// rightsProved says that the API took changes from this user before, in the run that is taken up.
func (d *deps) clusterEnv(rightsProved bool) (*executor.Env, error) {
	cfg, err := d.restConfig()
	if err != nil {
		return nil, err
	}
	// A call must end when an apiserver goes away in the middle of it.
	cfg.Timeout = 60 * time.Second
	cfg.Wrap(executor.RetryForbidden(rightsProved))
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	hosts, err := d.hosts()
	if err != nil {
		return nil, err
	}
	if hosts == nil {
		return nil, usagef("belay works on the cluster's machines: name them with --inventory FILE or --cluster NAME")
	}
	return &executor.Env{
		Client: client, Machines: hosts, Units: executor.SystemdUnits{}, Observe: d.observe,
		APIServer: executor.DialAPIServer(cfg, hosts), EtcdMember: executor.DialEtcd(hosts), Sink: d.sink(),
	}, nil
}

// executorEnv is clusterEnv with what a plan needs: bundles and backups.
func (d *deps) executorEnv(p *plan.Plan, f applyFlags, rightsProved bool) (*executor.Env, error) {
	env, err := d.clusterEnv(rightsProved)
	if err != nil {
		return nil, err
	}
	root, err := d.bundleRoot(f.bundles)
	if err != nil {
		return nil, err
	}
	env.Bundles = map[kubeversion.V]*bundle.Bundle{}
	for _, ref := range p.Bundles {
		b, err := bundle.Find(root, ref.Version, "")
		if err != nil {
			return nil, err
		}
		env.Bundles[ref.Version] = b
	}
	dir := f.backups
	if dir == "" {
		dir = d.backupsDir()
	}
	env.Preflight = d.preflightGate(f.bundles)
	env.Backup = func(ctx context.Context, lineage, level string, maxAge time.Duration) (string, error) {
		l, err := backup.ParseLevel(level)
		if err != nil {
			return "", err
		}
		e, err := backup.LatestVerified(ctx, dir, lineage, l)
		if err != nil {
			return "", err
		}
		if age := d.now().Sub(e.Manifest.Started); age > maxAge {
			return "", fmt.Errorf("the newest backup of this cluster at level %s, %s, is %s old; at most %s is allowed", level, e.Dir, render.Duration(age), render.Duration(maxAge))
		}
		return fmt.Sprintf("%s, verified to level %s", e.Dir, e.Level), nil
	}
	return env, nil
}

// runOwner says where runs are kept, and who works on them.
func (d *deps) runOwner() executor.Options {
	o := executor.Options{Dir: d.runsDir(), Tool: buildVersion().Version, PID: os.Getpid(), Now: d.now}
	if u, err := user.Current(); err == nil {
		o.Who = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		o.Host = h
	}
	return o
}

func (d *deps) runOptions(f applyFlags) (executor.Options, error) {
	o := d.runOwner()
	if d.interrupts != nil {
		o.Stop = d.interrupts.graceful(func() {
			d.sink().Emit(event.Event{Type: event.Warning, Msg: "stopping after the step that is under way; interrupt once more to stop at once"})
		})
	}
	cfg, err := d.restConfig()
	if err != nil {
		return o, err
	}
	api, err := readyz(cfg)
	if err != nil {
		return o, err
	}
	o.Targets = append(o.Targets, *api)
	for _, url := range f.probes {
		// A certificate for another name is an answer too.
		client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // only whether somebody answers counts
		o.Targets = append(o.Targets, executor.HTTPTarget(url, url, client))
	}
	return o, nil
}

// readyz polls the API as clients reach it: at the address in the kubeconfig, with a new connection each time.
func readyz(cfg *rest.Config) (*executor.Target, error) {
	c := rest.CopyConfig(cfg)
	c.Timeout = 2 * time.Second
	tlsConfig, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	rt, err := rest.HTTPWrappersForConfig(c, &http.Transport{DisableKeepAlives: true, TLSClientConfig: tlsConfig, Proxy: http.ProxyFromEnvironment})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	t := executor.HTTPTarget("API /readyz", c.Host+"/readyz", &http.Client{Timeout: 2 * time.Second, Transport: rt})
	return &t, nil
}

// runReport prints what a run did, and gives its error.
func (d *deps) runReport(f applyFlags, r *executor.Report, err error) error {
	if r == nil {
		return err
	}
	perr := render.Value(d.out, f.format, r, func(w io.Writer) error {
		var rows [][]string
		for _, s := range r.Steps {
			took := render.Duration(time.Duration(s.Seconds * float64(time.Second)))
			if s.Skipped {
				took += " (nothing to do)"
			}
			rows = append(rows, []string{s.What, took})
		}
		if err := render.Rows(w, []string{"STEP", "TIME"}, rows); err != nil {
			return err
		}
		fmt.Fprintf(w, "\nrun %s: %s -> %s, %d steps in %s\n", r.Run, r.From, r.To, len(r.Steps), render.Duration(time.Duration(r.Seconds*float64(time.Second))))
		for _, o := range r.Outages {
			if o.Failures == 0 {
				fmt.Fprintf(w, "%s: answered all of %d polls\n", o.Name, o.Polls)
				continue
			}
			fmt.Fprintf(w, "%s: no answer for %.1fs at the longest, %.1fs in all (%d of %d polls failed; last: %s)\n",
				o.Name, o.LongestSeconds, o.TotalSeconds, o.Failures, o.Polls, o.LastError)
		}
		return nil
	})
	return errors.Join(err, perr)
}

// baselineFor is the state to compare a cluster with, and where it comes from: the file, or the newest run on that cluster.
func (d *deps) baselineFor(file, lineage string) (*cluster.State, string, error) {
	if file == "" {
		run, err := executor.NewestRun(d.runsDir(), lineage)
		if run == nil || err != nil {
			return nil, "", err
		}
		s, err := run.Baseline()
		return s, "run " + run.ID, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, "", err
	}
	s, err := cluster.Decode(b)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	if s.Lineage != lineage {
		return nil, "", fmt.Errorf("%s is of another cluster: its lineage is %s, this one's %s", file, s.Lineage, lineage)
	}
	return s, file, nil
}
