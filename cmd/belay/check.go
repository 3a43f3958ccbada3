package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belayops/belay/apicheck"
	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/junit"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
	"github.com/belayops/belay/internal/sarif"
	"github.com/belayops/belay/preflight"
)

func newCheckCmd(d *deps) *cobra.Command {
	var format render.Format
	var o checkOptions
	var accept []string
	var all, list bool
	cmd := &cobra.Command{
		Use:   "check [--to VERSION]",
		Short: "Check whether a cluster may be upgraded; changes nothing",
		Long: `Check a cluster before an upgrade: what would stop it, hang it or break it, and what
to do about each. Nothing is changed. With --to the way to that version is judged too:
its hops and bundles, and every use of an API that it lacks, in the cluster's objects and
in manifests given with -f. With -f, --to and no cluster, the manifests alone are checked.

Each finding is named check@subject. One that is meant to stay can be accepted by
that name; what could not be read stands in the way as a failure does. There is no
--force. The checks are listed by --list and explained in docs/checks.md.

Exit codes: 0 nothing stands in the way, 3 at least one failure, 6 no failure and
something is not known.`,
		Example: `  belay check --to 1.37.2 --inventory hosts.yaml
  belay check --to 1.37.2 --cluster demo --accept pdb-blocks-drain@shop/web
  belay check --to 1.37.2 --state state.json -o json
  belay check --to 1.37.2 -f manifests/
  belay check --only etcd-members,etcd-quorum --cluster demo
  belay check --to 1.37.2 -o junit > check.xml
  belay check --to 1.37.2 -o sarif > check.sarif`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return printChecks(d.out, format)
			}
			in, only, err := d.checkInput(cmd.Context(), o)
			if err != nil {
				return err
			}
			rep, err := preflight.Run(cmd.Context(), in, preflight.Options{Accept: accept, Only: only})
			if err != nil {
				if cmd.Context().Err() != nil {
					return err
				}
				return &usageError{err}
			}
			if err := writeCheckReport(d.out, format, rep, all); err != nil {
				return err
			}
			for _, w := range rep.UnusedWaivers {
				fmt.Fprintf(d.err, "note: --accept %s names no finding\n", w)
			}
			for _, w := range rep.RefusedWaivers {
				fmt.Fprintf(d.err, "note: --accept %s: this finding cannot be accepted\n", w)
			}
			switch rep.Verdict {
			case preflight.Findings:
				return &silentError{code: exitBlocked, next: checkAgain(cmd)}
			case preflight.Undecided:
				return &silentError{code: exitUnknown, next: checkAgain(cmd)}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "Kubernetes version to go to")
	f.StringVar(&o.state, "state", "", "check a state file (belay state -o state.json) instead of the live cluster")
	f.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file, directory, chart, or - for stdin, to scan for APIs that the target lacks (repeatable)")
	f.StringVar(&o.bundles, "bundles", "", "directory that holds the bundles (default: bundles in $BELAY_CACHE)")
	f.StringVar(&o.backup, "backup", "", "directory of the backup to judge (default: the cluster's newest in $BELAY_HOME/backups)")
	f.StringVar(&o.level, "backup-level", backup.Restored.String(), "level that the backup must have reached: copied, hash-verified, opened or restored")
	f.StringSliceVar(&accept, "accept", nil, "accept this finding, CHECK@SUBJECT (repeatable)")
	f.StringSliceVar(&o.only, "only", nil, "run only these checks, and those that they need")
	f.BoolVar(&all, "all", false, "show every result, not only findings")
	f.BoolVar(&list, "list", false, "list the checks, and run none")
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML, render.SARIF, render.JUnit)
	_ = cmd.RegisterFlagCompletionFunc("only", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var ids []string
		for _, c := range preflight.Checks() {
			ids = append(ids, c.ID+"\t"+c.Title)
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	})
	d.addClusterFlags(cmd)
	return cmd
}

// checkOptions say what is checked, and against what.
type checkOptions struct {
	to, state, bundles, backup, level string
	files, only                       []string
}

func (o checkOptions) wants(check string) bool {
	return len(o.only) == 0 || slices.Contains(o.only, check)
}

// checkInput gathers what the checks look at, and which of them make sense with it.
func (d *deps) checkInput(ctx context.Context, o checkOptions) (in preflight.Input, only []string, err error) {
	if o.to == "" && len(o.files) > 0 {
		return in, nil, usagef("-f asks for --to VERSION: which APIs are gone depends on it")
	}
	// Wrong flags are told before the cluster is read.
	if _, err := backup.ParseLevel(o.level); err != nil {
		return in, nil, &usageError{err}
	}
	if o.to != "" {
		if _, err := kubeversion.Parse(o.to); err != nil {
			return in, nil, &usageError{fmt.Errorf("--to: %w", err)}
		}
	}
	only = o.only
	s, err := d.stateForPlan(ctx, o.state)
	if noCluster := (*usageError)(nil); errors.As(err, &noCluster) && len(o.files) > 0 {
		fmt.Fprintln(d.err, "note: no cluster was named; only the manifests are checked")
		only, err = []string{"api-use"}, nil
		s = &cluster.State{Schema: cluster.StateSchema, Observed: d.now()}
	}
	if err != nil {
		return in, nil, err
	}
	in, err = d.checkInputOf(ctx, o, s, o.state == "")
	return in, only, err
}

// checkInputOf gathers what the checks look at beside a state; fresh says that it was observed just now, so that the cluster
// itself may be asked for more.
func (d *deps) checkInputOf(ctx context.Context, o checkOptions, s *cluster.State, fresh bool) (in preflight.Input, err error) {
	level, err := backup.ParseLevel(o.level)
	if err != nil {
		return in, &usageError{err}
	}
	in.State = s
	if o.to != "" {
		if in.Goal, err = d.checkGoal(o.to, o.bundles); err != nil {
			return in, err
		}
	}
	hosts, err := d.hosts()
	if err != nil {
		return in, err
	}
	if hosts != nil {
		in.Goal.PatchesDir = hosts.Inventory().PatchesDir
	}
	live := fresh && s.Lineage != ""
	if fresh {
		in.Now = d.now()
	}
	if o.wants("backup-verified") && (o.backup != "" || live) {
		if in.Backup, err = d.checkBackup(o.backup, s.Lineage, level); err != nil {
			return in, err
		}
	}
	if o.to != "" && o.wants("api-use") && (live || len(o.files) > 0) {
		if in.APIUse, err = d.checkAPIUse(ctx, in, o.files, live); err != nil {
			return in, err
		}
	}
	return in, nil
}

// checkGoal is the target with the bundles at hand.
func (d *deps) checkGoal(to, bundles string) (g preflight.Goal, err error) {
	if g.Target, err = kubeversion.Parse(to); err != nil {
		return g, &usageError{fmt.Errorf("--to: %w", err)}
	}
	infos, err := d.bundleInfos(bundles)
	if err != nil {
		return g, err
	}
	g.Bundles, g.Etcd = []kubeversion.V{}, map[kubeversion.Minor]kubeversion.V{}
	for _, i := range infos {
		g.Bundles = append(g.Bundles, i.Version)
		g.Etcd[i.Version.MinorVersion()] = i.Etcd
		if !i.EtcdStep.IsZero() {
			g.EtcdSteps = append(g.EtcdSteps, i.EtcdStep)
		}
	}
	return g, nil
}

// checkBackup finds the named backup, or the newest one of the cluster; nil when there is none. It trusts
// the level on record: that the files still hold is what `belay backup verify` and apply look at.
func (d *deps) checkBackup(dir, lineage string, level backup.Level) (*preflight.Backup, error) {
	parent, named := d.backupsDir(), dir != ""
	if named {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		dir, parent = abs, filepath.Dir(abs)
	}
	entries, err := backup.List(parent)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if named && e.Dir != dir || !named && (e.Manifest == nil || e.Manifest.Lineage != lineage || e.Problem != "") {
			continue
		}
		b := &preflight.Backup{Path: e.Dir, Problem: e.Problem, Level: e.Level.String(), Want: level.String(), Enough: e.Level >= level}
		if e.Manifest != nil {
			b.Lineage, b.Taken = e.Manifest.Lineage, e.Manifest.Started
		}
		return b, nil
	}
	if named {
		return &preflight.Backup{Path: dir, Problem: "there is no backup in that directory"}, nil
	}
	return nil, nil
}

// checkAPIUse scans manifests and the cluster, and gathers what it found by API: a report names each kind once, and
// `belay api scan` lists the places.
func (d *deps) checkAPIUse(ctx context.Context, in preflight.Input, files []string, live bool) (*preflight.APIUse, error) {
	o := apicheck.Options{To: in.Goal.Target.MinorVersion(), Files: files, Stdin: d.in, Events: d.sink(), Now: d.now}
	if v := in.State.Version; !v.IsZero() {
		o.From = v.MinorVersion()
		if o.To.Compare(o.From) < 0 {
			return nil, nil // version-target says that there is no such way
		}
	}
	scan := "belay api scan --to " + o.To.String()
	for _, f := range files {
		scan += " -f " + f
	}
	if live {
		cfg, err := d.restConfig()
		if err != nil {
			return nil, err
		}
		o.RESTConfig = cfg
		if len(files) > 0 {
			scan += " --live"
		}
	}
	r, err := apicheck.Scan(ctx, o)
	if err != nil {
		return nil, err
	}
	use := &preflight.APIUse{}
	at := make(map[string]int)
	count := make(map[string]int)
	for _, f := range r.Findings {
		if f.Severity != apicheck.Error && f.Severity != apicheck.Warning {
			continue
		}
		key := f.APIVersion + "/" + f.Kind
		if f.Field != "" {
			key += "/" + f.Field // the kind lives on
		}
		count[key]++
		i, seen := at[key]
		if !seen {
			i = len(use.Findings)
			at[key] = i
			use.Findings = append(use.Findings, preflight.APIFinding{Subject: key, Message: f.Message, Remedy: f.Remedy})
		}
		// The worst of a kind is shown.
		if f.Severity == apicheck.Error && !use.Findings[i].Removed {
			use.Findings[i].Removed, use.Findings[i].Message, use.Findings[i].Remedy = true, f.Message, f.Remedy
		}
	}
	for i := range use.Findings {
		if n := count[use.Findings[i].Subject]; n > 1 {
			use.Findings[i].Message += fmt.Sprintf(" (%d uses: %s)", n, scan)
		}
	}
	for _, u := range r.Coverage.Unreadable {
		what := u.What
		if u.Line > 0 {
			what = fmt.Sprintf("%s:%d", u.What, u.Line)
		}
		use.Unread = append(use.Unread, cluster.Unread{What: what, Kind: cluster.UnreadFailed, Why: u.Why})
	}
	return use, nil
}

// checkAgain is the command to run once the findings are mended.
func checkAgain(cmd *cobra.Command) string {
	return repeat(cmd, nil) + "   (after mending; or with --accept CHECK@SUBJECT for each finding that is to stay)"
}

func printChecks(w io.Writer, format render.Format) error {
	type check struct {
		ID       string   `json:"id"`
		Title    string   `json:"title"`
		Fails    string   `json:"fails"`
		Warns    string   `json:"warns,omitempty"`
		Needs    []string `json:"needs,omitempty"`
		Waivable bool     `json:"waivable"`
	}
	checks := []check{}
	var rows [][]string
	for _, c := range preflight.Checks() {
		checks = append(checks, check{c.ID, c.Title, c.Fails, c.Warns, c.Needs, c.Waivable})
		rows = append(rows, []string{c.ID, c.Title})
	}
	return render.Value(w, format, struct {
		Schema string  `json:"schema"`
		Checks []check `json:"checks"`
	}{"belay.dev/checks/v1", checks}, func(w io.Writer) error { return render.Rows(w, []string{"CHECK", "TITLE"}, rows) })
}

func writeCheckReport(w io.Writer, format render.Format, r *preflight.Report, all bool) error {
	switch format {
	case render.JUnit:
		return checkJUnit(w, r)
	case render.SARIF:
		return checkSARIF(w, r)
	case render.Table, render.JSON, render.YAML, render.Markdown:
	}
	return render.Value(w, format, r, func(w io.Writer) error { return checkTable(w, r, all) })
}

// checkTable shows what stands in the way first, then what somebody should know, then counts. What a
// gap keeps from being judged is one line a gap: on a cluster without access to its machines that is a dozen checks.
func checkTable(w io.Writer, r *preflight.Report, all bool) error {
	p := &printer{w: w}
	name := r.Cluster
	if name == "" {
		name = cluster.ShortDigest("uid:" + r.Lineage)
	}
	head := fmt.Sprintf("cluster %s, %s, observed %s", name, r.Version, r.Observed.UTC().Format("2006-01-02 15:04:05 MST"))
	if r.Lineage == "" && r.Version.IsZero() {
		head = "manifests only"
	}
	if !r.Target.IsZero() {
		head += ", target " + r.Target.String()
	}
	p.f("%s\n", head)

	sections := []struct {
		title string
		of    func(preflight.Result) bool
	}{
		{"FAIL", func(x preflight.Result) bool { return x.Status == preflight.Fail && !x.Waived }},
		{"UNKNOWN", func(x preflight.Result) bool { return x.Status == preflight.Unknown && !x.Waived }},
		{"WARN", func(x preflight.Result) bool { return x.Status == preflight.Warn }},
		{"ACCEPTED", func(x preflight.Result) bool { return x.Waived }},
	}
	for _, s := range sections {
		for _, g := range alike(r.Results, s.of) {
			x := g[0]
			p.f("\n%-8s %s\n         %s\n", s.title, x.ID(), x.Message)
			if len(g) > 1 {
				p.f("         the same: %s\n", subjects(g[1:]))
			}
			if x.Remedy != "" && !x.Waived {
				p.f("         do: %s\n", x.Remedy)
			}
			if x.Status == preflight.Fail && !x.Waivable {
				p.f("         (cannot be accepted)\n")
			}
		}
	}
	for _, b := range blockedBy(r.Results) {
		p.f("\n%-8s by %s\n         not judged: %s\n", "BLOCKED", strings.Join(b.causes, ", "), strings.Join(b.checks, ", "))
	}
	if all {
		p.f("\n")
		for _, x := range r.Results {
			if x.Status == preflight.Pass || x.Status == preflight.Skipped {
				p.f("%-8s %s: %s\n", x.Status, x.ID(), x.Message)
			}
		}
	} else {
		var skipped []string
		for _, x := range r.Results {
			if x.Status == preflight.Skipped && !slices.Contains(skipped, x.Check) {
				skipped = append(skipped, x.Check)
			}
		}
		if len(skipped) > 0 {
			p.f("\nskipped  %s (--all says why)\n", strings.Join(skipped, ", "))
		}
	}
	p.f("\n%s\n", summary(r))
	return p.err
}

type block struct{ causes, checks []string }

// blockedBy gathers which checks each gap keeps from judging, and gaps that keep the same checks.
func blockedBy(rs []preflight.Result) []block {
	var causes []string
	checks := make(map[string][]string)
	for _, x := range rs {
		if x.Status != preflight.Blocked || x.Waived {
			continue
		}
		cause := strings.Join(x.Because, ", ")
		if checks[cause] == nil {
			causes = append(causes, cause)
		}
		if !slices.Contains(checks[cause], x.Check) {
			checks[cause] = append(checks[cause], x.Check)
		}
	}
	var out []block
	for _, c := range causes {
		if i := slices.IndexFunc(out, func(b block) bool { return slices.Equal(b.checks, checks[c]) }); i >= 0 {
			out[i].causes = append(out[i].causes, c)
			continue
		}
		out = append(out, block{[]string{c}, checks[c]})
	}
	return out
}

// alike groups results of one check that say the same of different nodes, so that a property of a hundred nodes is read once.
func alike(rs []preflight.Result, of func(preflight.Result) bool) [][]preflight.Result {
	var out [][]preflight.Result
	at := make(map[string]int)
	for _, x := range rs {
		if !of(x) {
			continue
		}
		node, _, _ := strings.Cut(x.Subject, "/")
		key := x.Check + "\x00" + strings.ReplaceAll(x.Message, node, "\x00")
		if i, seen := at[key]; seen {
			out[i] = append(out[i], x)
			continue
		}
		at[key] = len(out)
		out = append(out, []preflight.Result{x})
	}
	return out
}

// subjects names the first few.
func subjects(rs []preflight.Result) string {
	const most = 8
	var names []string
	for _, x := range rs[:min(len(rs), most)] {
		names = append(names, x.Subject)
	}
	s := strings.Join(names, ", ")
	if n := len(rs) - most; n > 0 {
		s += fmt.Sprintf(" and %d more (-o json names all)", n)
	}
	return s
}

// summary is the last line: the verdict in words.
func summary(r *preflight.Report) string {
	var parts []string
	for _, s := range []struct{ status, word string }{
		{"fail", "failed"}, {"unknown", "unknown"}, {"blocked", "blocked"}, {"waived", "accepted"}, {"warn", "with a warning"}, {"pass", "passed"}, {"skipped", "skipped"},
	} {
		if n := r.Counts[s.status]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s.word))
		}
	}
	verdict := map[preflight.Verdict]string{
		preflight.Clean:     "nothing stands in the way",
		preflight.Findings:  "findings stand in the way",
		preflight.Undecided: "not known: what could not be read or judged stands in the way",
	}[r.Verdict]
	return verdict + " (" + strings.Join(parts, ", ") + ")"
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// checkJUnit writes one test case a result, as CI systems read them: failures and, for what is not known, errors.
func checkJUnit(w io.Writer, r *preflight.Report) error {
	s := junit.Suite{Name: "belay check", Timestamp: r.Observed.UTC().Format("2006-01-02T15:04:05")}
	for _, x := range r.Results {
		c := junit.Case{Name: x.ID(), ClassName: "belay.check." + x.Check}
		d := &junit.Detail{Message: x.Message, Type: string(x.Status), Text: x.Remedy}
		switch {
		case x.Waived:
			c.Skipped = &junit.Detail{Message: "accepted: " + x.Message}
		case x.Status == preflight.Fail:
			c.Failure = d
		case x.Status == preflight.Unknown, x.Status == preflight.Blocked:
			c.Error = d
		case x.Status == preflight.Skipped:
			c.Skipped = &junit.Detail{Message: x.Message}
		case x.Status == preflight.Warn:
			c.Output = "warning: " + x.Message + "\n" + x.Remedy
		}
		s.Add(c)
	}
	all := junit.Suites{Name: "belay check"}
	all.Add(s)
	return all.Write(w)
}

// checkSARIF writes findings as code scanning reads them. A rule is a check; what was accepted is suppressed; what is not known is an
// error, and something that the run could not do.
func checkSARIF(w io.Writer, r *preflight.Report) error {
	titles := make(map[string]string)
	for _, c := range preflight.Checks() {
		titles[c.ID] = c.Title
	}
	run := sarif.NewRun(buildVersion().Version)
	for _, x := range r.Results {
		at := []sarif.Location{{Logical: []sarif.Logical{{FullyQualifiedName: x.Subject, Kind: "resource"}}}}
		level := sarif.Error
		switch x.Status {
		case preflight.Fail:
		case preflight.Warn:
			level = sarif.Warning
		case preflight.Unknown, preflight.Blocked:
			if !x.Waived {
				run.NotRead(sarif.Notification{Level: sarif.Error, Message: sarif.Message{Text: x.ID() + ": " + x.Message}, Locations: at})
			}
		case preflight.Pass, preflight.Skipped:
		}
		if x.Status != preflight.Fail && x.Status != preflight.Warn && x.Status != preflight.Unknown {
			continue
		}
		res := sarif.Result{Level: level, Message: sarif.Message{Text: x.Message}, Locations: at}
		if x.Remedy != "" {
			res.Message.Text += ". Remedy: " + x.Remedy
		}
		if x.Waived {
			res.Suppressions = []sarif.Suppression{{Kind: "external", Justification: "accepted: --accept " + x.ID()}}
		}
		run.Add(sarif.Rule{ID: x.Check, ShortDescription: sarif.Message{Text: titles[x.Check]}, DefaultConfig: sarif.Config{Level: sarif.Error}}, res)
	}
	return run.Write(w)
}
