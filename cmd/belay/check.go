package main

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
	"github.com/belayops/belay/preflight"
)

func newCheckCmd(d *deps) *cobra.Command {
	var format render.Format
	var to, stateFile, bundles string
	var accept, only []string
	var all, list bool
	cmd := &cobra.Command{
		Use:   "check [--to VERSION]",
		Short: "Check whether a cluster may be upgraded; changes nothing",
		Long: `Check a cluster before an upgrade: what would stop it, hang it or break it, and what
to do about each. Nothing is changed. With --to the way to that version is judged too.

Each finding is named check@subject. One that is meant to stay can be accepted by
that name; what could not be read stands in the way as a failure does. There is no
--force. The checks are listed by --list and explained in docs/checks.md.

Exit codes: 0 nothing stands in the way, 3 at least one failure, 6 no failure and
something is not known.`,
		Example: `  belay check --to 1.37.2 --inventory hosts.yaml
  belay check --to 1.37.2 --cluster demo --accept pdb-blocks-drain@shop/web
  belay check --to 1.37.2 --state state.json -o json
  belay check --only etcd-members,etcd-quorum --cluster demo
  belay check --to 1.37.2 -o junit > check.xml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return printChecks(d.out, format)
			}
			in, err := d.checkInput(cmd.Context(), to, stateFile, bundles)
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
	f.StringVar(&to, "to", "", "Kubernetes version to go to")
	f.StringVar(&stateFile, "state", "", "check a state file (belay state -o state.json) instead of the live cluster")
	f.StringVar(&bundles, "bundles", "", "directory that holds the bundles (default: bundles in $BELAY_CACHE)")
	f.StringSliceVar(&accept, "accept", nil, "accept this finding, CHECK@SUBJECT (repeatable)")
	f.StringSliceVar(&only, "only", nil, "run only these checks, and those that they need")
	f.BoolVar(&all, "all", false, "show every result, not only findings")
	f.BoolVar(&list, "list", false, "list the checks, and run none")
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML, render.JUnit)
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

// checkInput gathers what the checks look at.
func (d *deps) checkInput(ctx context.Context, to, stateFile, bundles string) (preflight.Input, error) {
	var in preflight.Input
	if to != "" {
		v, err := kubeversion.Parse(to)
		if err != nil {
			return in, &usageError{fmt.Errorf("--to: %w", err)}
		}
		in.Goal.Target = v
		infos, err := d.bundleInfos(bundles)
		if err != nil {
			return in, err
		}
		in.Goal.Bundles, in.Goal.Etcd = []kubeversion.V{}, map[kubeversion.Minor]kubeversion.V{}
		for _, i := range infos {
			in.Goal.Bundles = append(in.Goal.Bundles, i.Version)
			in.Goal.Etcd[i.Version.MinorVersion()] = i.Etcd
			if !i.EtcdStep.IsZero() {
				in.Goal.EtcdSteps = append(in.Goal.EtcdSteps, i.EtcdStep)
			}
		}
	}
	s, err := d.stateForPlan(ctx, stateFile)
	if err != nil {
		return in, err
	}
	in.State = s
	if stateFile == "" {
		in.Now = d.now()
	}
	return in, nil
}

// checkAgain is the command line with every flag that was given.
func checkAgain(cmd *cobra.Command) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "progress" {
			return
		}
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, s := range v.GetSlice() {
				words = append(words, "--"+f.Name+" "+s)
			}
		default:
			if f.Value.Type() == "bool" {
				words = append(words, "--"+f.Name)
				return
			}
			words = append(words, "--"+f.Name+" "+f.Value.String())
		}
	})
	return strings.Join(words, " ") + "   (after mending; or with --accept CHECK@SUBJECT for each finding that is to stay)"
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
	if format == render.JUnit {
		return checkJUnit(w, r)
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
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Failure *message `xml:"failure,omitempty"`
		Error   *message `xml:"error,omitempty"`
		Skipped *message `xml:"skipped,omitempty"`
		Out     string   `xml:"system-out,omitempty"`
	}
	type suite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     string     `xml:"timestamp,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	s := suite{Name: "belay check", Tests: len(r.Results), Time: r.Observed.UTC().Format("2006-01-02T15:04:05")}
	for _, x := range r.Results {
		c := testcase{Name: x.ID(), Class: "belay.check." + x.Check}
		m := &message{Message: x.Message, Text: x.Remedy}
		switch {
		case x.Waived:
			c.Skipped = &message{Message: "accepted: " + x.Message}
			s.Skipped++
		case x.Status == preflight.Fail:
			c.Failure = m
			s.Failures++
		case x.Status == preflight.Unknown, x.Status == preflight.Blocked:
			c.Error = m
			s.Errors++
		case x.Status == preflight.Skipped:
			c.Skipped = &message{Message: x.Message}
			s.Skipped++
		case x.Status == preflight.Warn:
			c.Out = "warning: " + x.Message + "\n" + x.Remedy
		}
		s.Cases = append(s.Cases, c)
	}
	b, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, b)
	return err
}
