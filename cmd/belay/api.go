package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/belayops/belay/apicheck"
	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
)

func newAPICmd(d *deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Find and repair the use of deprecated and removed APIs",
		Long: `The use of Kubernetes APIs that an upgrade deprecates, switches off or removes:
in manifests, charts, audit logs, and in a cluster's objects and Helm releases.`,
	}
	cmd.AddCommand(newAPIScanCmd(d), newAPIConvertCmd(d), newAPIRepairHelmCmd(d))
	return cmd
}

// apiScanFlags are what scan, and later verbs, take to say what to read.
type apiScanFlags struct {
	from, to     string
	files        []string
	auditLogs    []string
	namespaces   []string
	only         []string
	ignore       []string
	suppressions string
	cluster      bool
	chart        apicheck.ChartOptions
	database     string

	runtimeConfig string
}

func newAPIScanCmd(d *deps) *cobra.Command {
	var f apiScanFlags
	var format render.Format
	cmd := &cobra.Command{
		Use:   "scan --to VERSION [-f PATH]... [-]",
		Short: "Say which uses of APIs an upgrade breaks, and what was not read",
		Long: `Scan judges every use of a Kubernetes API over each minor between the current
version and the target. With -f it reads files, directories, charts (which it
renders) and stdin; with --audit-log it reads audit logs; with neither, or with
--live, it reads the cluster of the kubeconfig: stored objects, last-applied
configuration, managed fields, Helm releases, manifests kept in ConfigMaps and
Secrets, and what objects name. Fields, annotations and node labels that end
while their kind lives on are found too.

A scan that could not read everything is never clean: its verdict is unknown and
its exit code 6, whatever else was found. The coverage lists what was not read.

Exit codes: 0 clean; 3 findings of severity warning or error; 6 something was
not read, so the answer is unknown; 1 and 2 as everywhere.`,
		Example: `  belay api scan --to 1.37
  belay api scan --to 1.37 -f deploy/ -f chart.tgz --values prod.yaml
  helm template shop ./shop | belay api scan --to 1.37 -
  belay api scan --from 1.31 --to 1.37 -f . -o sarif > scan.sarif
  belay api scan --to 1.37 --audit-log /var/log/kubernetes/audit.log
  belay api scan --to 1.37 --ignore 'kind=CronJob,namespace=shop,reason=moves next week,until=2027-03-31'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, a := range args {
				if a != "-" {
					return usagef("unexpected argument %q: name files with -f", a)
				}
				f.files = append(f.files, a)
			}
			o, err := f.options(d)
			if err != nil {
				return err
			}
			if f.cluster || len(o.Files)+len(o.AuditLogs) == 0 {
				if o.RESTConfig, err = d.restConfig(); err != nil {
					return err
				}
			}
			r, err := apicheck.Scan(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := writeScan(d, r, format); err != nil {
				return err
			}
			switch r.Verdict {
			case apicheck.Findings:
				return &silentError{code: exitBlocked}
			case apicheck.Unknown:
				return &silentError{code: exitUnknown}
			}
			return nil
		},
	}
	d.addClusterFlags(cmd)
	f.add(cmd)
	render.AddFormatFlag(cmd.Flags(), &format, render.Table, render.JSON, render.YAML, render.Markdown, render.SARIF, render.JUnit)
	return cmd
}

func (f *apiScanFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "Kubernetes version to go to, as 1.37 or 1.37.2 (required)")
	fl.StringVar(&f.from, "from", "", "Kubernetes version that runs today (default: the cluster's, or the minor before --to)")
	fl.StringArrayVarP(&f.files, "filename", "f", nil, "manifest file, directory, chart directory or archive, or - for stdin (repeatable)")
	fl.StringArrayVar(&f.auditLogs, "audit-log", nil, "audit log file in JSON lines, .gz too, or - for stdin (repeatable)")
	fl.BoolVar(&f.cluster, "live", false, "scan the cluster as well when files are given")
	fl.StringSliceVarP(&f.namespaces, "namespace", "n", nil, "scan only these namespaces of the cluster")
	fl.StringSliceVar(&f.only, "only", nil, "keep only findings of these verdicts: removed, deprecated, ...")
	fl.StringArrayVar(&f.ignore, "ignore", nil, "take findings out: key=pattern,... with keys apiVersion, kind, field, namespace, name, file, release, source, verdict; reason is required, until=DATE ends it")
	fl.StringVar(&f.suppressions, "suppressions", "", "file with suppressions (a YAML list \"ignore\")")
	fl.StringArrayVar(&f.chart.ValueFiles, "values", nil, "values file for charts among the files (repeatable)")
	fl.StringArrayVar(&f.chart.Set, "set", nil, "value for charts among the files, as helm --set (repeatable)")
	fl.StringVar(&f.chart.Namespace, "chart-namespace", "", "namespace that charts are rendered for")
	fl.StringVar(&f.chart.Release, "chart-release", "", "release name that charts are rendered for")
	fl.StringVar(&f.runtimeConfig, "runtime-config", "", "the apiservers' --runtime-config at the target, as networking.k8s.io/v1beta1=true (default: what a live cluster's apiserver pods show)")
	fl.StringVar(&f.database, "db", "", "lifecycle database file in place of the built-in one")
}

func (f *apiScanFlags) options(d *deps) (apicheck.Options, error) {
	o := apicheck.Options{Files: f.files, AuditLogs: f.auditLogs, Namespaces: f.namespaces, Stdin: d.in, Events: d.sink(), Now: d.now, Charts: f.chart}
	var err error
	if f.to == "" {
		return o, usagef("--to is required: the Kubernetes version that the upgrade goes to, as 1.37")
	}
	if o.To, err = kubeversion.ParseMinor(f.to); err != nil {
		return o, usagef("--to: %v", err)
	}
	if f.from != "" {
		if o.From, err = kubeversion.ParseMinor(f.from); err != nil {
			return o, usagef("--from: %v", err)
		}
		if o.To.Compare(o.From) < 0 {
			return o, usagef("--to %s is older than --from %s: downgrades are not judged", o.To, o.From)
		}
	}
	known := []string{"undecodable", "removed", "not-yet", "unknown-builtin", "planned", "off-by-default", "deprecated"}
	for _, v := range f.only {
		if !slices.Contains(known, v) {
			return o, usagef("--only %q: want %s", v, strings.Join(known, ", "))
		}
		o.Only = append(o.Only, lifecycle.Verdict(v))
	}
	if f.runtimeConfig != "" {
		if o.RuntimeConfig, err = apicheck.ParseRuntimeConfig(f.runtimeConfig); err != nil {
			return o, usagef("--runtime-config: %v", err)
		}
	}
	if f.suppressions != "" {
		data, err := os.ReadFile(f.suppressions)
		if err != nil {
			return o, usagef("--suppressions: %v", err)
		}
		if o.Suppressions, err = apicheck.ParseSuppressions(data); err != nil {
			return o, usagef("%s: %v", f.suppressions, err)
		}
	}
	for _, text := range f.ignore {
		s, err := parseIgnore(text)
		if err != nil {
			return o, usagef("--ignore %q: %v", text, err)
		}
		o.Suppressions = append(o.Suppressions, s)
	}
	if f.database != "" {
		data, err := os.ReadFile(f.database)
		if err != nil {
			return o, usagef("--db: %v", err)
		}
		if o.DB, err = lifecycle.Parse(data); err != nil {
			return o, fmt.Errorf("%s: %w", f.database, err)
		}
	}
	return o, nil
}

// parseIgnore reads key=pattern pairs. A reason may hold commas: what follows one without a key belongs to it.
func parseIgnore(text string) (apicheck.Suppression, error) {
	var s apicheck.Suppression
	fields := map[string]*string{"apiVersion": &s.APIVersion, "kind": &s.Kind, "field": &s.Field, "namespace": &s.Namespace, "name": &s.Name, "file": &s.File,
		"release": &s.Release, "source": &s.Source, "verdict": &s.Verdict, "reason": &s.Reason, "until": &s.Until}
	var last string
	for _, pair := range strings.Split(text, ",") {
		k, v, ok := strings.Cut(pair, "=")
		if (!ok || fields[k] == nil) && last == "reason" {
			s.Reason += "," + pair
			continue
		}
		if !ok || fields[k] == nil {
			return s, fmt.Errorf("%q: want key=pattern with a known key", pair)
		}
		*fields[k], last = v, k
	}
	return s, s.Validate()
}

func writeScan(d *deps, r apicheck.Report, format render.Format) error {
	switch format {
	case render.Markdown:
		return r.WriteMarkdown(d.out)
	case render.SARIF:
		return r.WriteSARIF(d.out, buildVersion().Version)
	case render.JUnit:
		return r.WriteJUnit(d.out)
	}
	return render.Value(d.out, format, r, func(w io.Writer) error { return scanTable(w, r) })
}

// scanTable shows findings and gaps to people, each remedy once.
func scanTable(w io.Writer, r apicheck.Report) error {
	if header, rows := r.Table(); len(rows) > 0 {
		if err := render.Rows(w, header, rows); err != nil {
			return err
		}
		fmt.Fprintln(w, "\nWhat to do:")
		var seen []string
		for _, f := range r.Findings {
			line := f.API() + ": " + f.Remedy
			if f.Remedy != "" && !slices.Contains(seen, line) {
				seen = append(seen, line)
				fmt.Fprintln(w, "  "+line)
			}
		}
		fmt.Fprintln(w)
	}
	if len(r.Coverage.Unreadable) > 0 {
		var rows [][]string
		for _, u := range r.Coverage.Unreadable {
			rows = append(rows, []string{u.Where(), u.Why})
		}
		if err := render.Rows(w, []string{"NOT READ", "WHY"}, rows); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, s := range r.Suppressed {
		until := ""
		if s.Until != "" {
			until = " until " + s.Until
		}
		fmt.Fprintf(w, "suppressed%s: %s %s: %s\n", until, s.Finding.API(), s.Finding.Source, s.Reason)
	}
	_, err := fmt.Fprintln(w, r.Summary())
	return err
}

func newAPIConvertCmd(d *deps) *cobra.Command {
	var from, to string
	var o apicheck.ConvertOptions
	var showDiff bool
	cmd := &cobra.Command{
		Use:   "convert --to VERSION -f PATH... [--write | --diff]",
		Short: "Move manifests to API versions that the target serves",
		Long: `Convert edits manifests in place: only what must change changes; comments, order
and every other byte stay. Fields that move are moved (Ingress, CRDs, autoscalers,
workloads, DRA claims and others). Kinds whose fields stay equal while their
meaning or defaults change need --accept KIND. What has no successor, is shared
through an anchor, or is a template is left as it is and named. So is what the
target would refuse: the result is held against the fields that it has.

Without --write nothing is written: the differences are shown, or, with stdin
alone, the converted text.

Exit codes: 0 nothing left to do; 3 something needs a person; 6 something could not be read.`,
		Example: `  belay api convert --to 1.37 -f deploy/ --diff
  belay api convert --to 1.37 -f deploy/ --write --accept PodDisruptionBudget
  kubectl kustomize . | belay api convert --to 1.37 -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.Files) == 0 {
				return usagef("name what to convert with -f")
			}
			if err := minors(&o.From, &o.To, from, to); err != nil {
				return err
			}
			o.Stdin = d.in
			rep, err := apicheck.Convert(cmd.Context(), o)
			for _, f := range rep.Files {
				for _, c := range f.Changes {
					verb := "would move"
					if f.Written {
						verb = "moved"
					}
					target := c.To.APIVersion()
					if c.To.Kind != c.From.Kind {
						target = c.To.String()
					}
					fmt.Fprintf(d.err, "%s:%d: %s %s to %s (%s)\n", f.Name, c.Line, verb, objectName(c.From, c.Namespace, c.Name), target, c.Rewrite)
					for _, n := range c.Notes {
						fmt.Fprintf(d.err, "    note: %s\n", n)
					}
				}
				for _, k := range f.Kept {
					hint := ""
					if k.Acceptable {
						hint = " (--accept " + k.GVK.Kind + ")"
					}
					fmt.Fprintf(d.err, "%s:%d: left as it is: %s: %s%s\n", f.Name, k.Line, objectName(k.GVK, k.Namespace, k.Name), k.Why, hint)
				}
			}
			for _, u := range rep.Unreadable {
				fmt.Fprintf(d.err, "%s: not read: %s\n", u.Where(), u.Why)
			}
			if err != nil {
				return err
			}
			if err := showConverted(d, rep, o, showDiff); err != nil {
				return err
			}
			if len(rep.Unreadable) > 0 {
				return &silentError{code: exitUnknown}
			}
			for _, f := range rep.Files {
				if len(f.Kept) > 0 {
					return &silentError{code: exitBlocked}
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&to, "to", "", "Kubernetes version to go to (required)")
	fl.StringVar(&from, "from", "", "Kubernetes version that runs today (default: the minor before --to)")
	fl.StringArrayVarP(&o.Files, "filename", "f", nil, "manifest file or directory, or - for stdin (repeatable)")
	fl.StringSliceVar(&o.Accept, "accept", nil, "kinds that you have looked at, whose meaning changes or that hold fields the target refuses; or *")
	fl.BoolVar(&o.OnlyRemoved, "only-removed", false, "leave alone what is deprecated and still served")
	fl.BoolVar(&o.Write, "write", false, "replace the files")
	fl.BoolVar(&showDiff, "diff", false, "show the differences (the default without --write)")
	cmd.MarkFlagsMutuallyExclusive("write", "diff")
	return cmd
}

// objectName names an object: batch/v1beta1 CronJob shop/nightly.
func objectName(g lifecycle.GVK, namespace, name string) string {
	switch {
	case name == "":
		return g.String()
	case namespace == "":
		return g.String() + " " + name
	}
	return g.String() + " " + namespace + "/" + name
}

// minors reads --from and --to.
func minors(from, to *kubeversion.Minor, fromText, toText string) error {
	if toText == "" {
		return usagef("--to is required: the Kubernetes version that the upgrade goes to, as 1.37")
	}
	var err error
	if *to, err = kubeversion.ParseMinor(toText); err != nil {
		return usagef("--to: %v", err)
	}
	if fromText != "" {
		if *from, err = kubeversion.ParseMinor(fromText); err != nil {
			return usagef("--from: %v", err)
		}
		if to.Compare(*from) < 0 {
			return usagef("--to %s is older than --from %s: downgrades are not judged", *to, *from)
		}
	}
	return nil
}

// showConverted prints the converted stdin, or differences.
func showConverted(d *deps, rep apicheck.ConvertReport, o apicheck.ConvertOptions, diff bool) error {
	if len(o.Files) == 1 && o.Files[0] == "-" && !diff {
		if len(rep.Files) == 1 {
			_, err := d.out.Write(rep.Files[0].New)
			return err
		}
		_, err := d.out.Write(rep.Stdin)
		return err
	}
	if o.Write {
		return nil
	}
	for _, f := range rep.Files {
		if len(f.Changes) == 0 {
			continue
		}
		text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: difflib.SplitLines(string(f.Old)), B: difflib.SplitLines(string(f.New)), FromFile: f.Name, ToFile: f.Name, Context: 3})
		if err != nil {
			return err
		}
		fmt.Fprint(d.out, text)
	}
	return nil
}

func newAPIRepairHelmCmd(d *deps) *cobra.Command {
	var to string
	var o apicheck.RepairOptions
	var format render.Format
	cmd := &cobra.Command{
		Use:   "repair-helm --to VERSION [RELEASE...]",
		Short: "Rewrite Helm's records of releases that name APIs which are gone",
		Long: `Helm maps every object of the deployed revision before an upgrade, and fails on
the first whose API the cluster no longer serves. Repair-helm writes a new
revision of such releases, with manifest and hooks moved to versions that the
target serves, and marks the old one as superseded. It changes records only,
never the objects: the apiserver has those in the new version already.

Each release is repaired as a whole or not at all, after a backup of its records
to a file. A release that another Helm works on is left alone.

Exit codes: 0 all clean or repaired; 3 a release needs a person, or would be repaired
but for --dry-run; 6 something could not be read or told.`,
		Example: `  belay api repair-helm --to 1.37 --dry-run
  belay api repair-helm --to 1.37 -n shop
  belay api repair-helm --to 1.37 -n shop web`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var none kubeversion.Minor
			if err := minors(&none, &o.To, "", to); err != nil {
				return err
			}
			var err error
			if o.RESTConfig, err = d.restConfig(); err != nil {
				return err
			}
			if o.BackupDir == "" {
				o.BackupDir = filepath.Join(d.home(), "helm-records")
			}
			o.Releases, o.Events, o.Now = args, d.sink(), d.now
			rep, err := apicheck.RepairHelm(cmd.Context(), o)
			if err != nil && len(rep.Releases) == 0 {
				return err
			}
			// What was done before an interrupt is told as well, with where the old records are.
			stopped := err
			if err := render.Value(d.out, format, rep, func(w io.Writer) error { return repairTable(w, rep) }); err != nil {
				return err
			}
			if stopped != nil {
				return stopped
			}
			code := 0
			for _, r := range rep.Releases {
				switch r.Status {
				case apicheck.ReleaseRefused, apicheck.ReleaseWould:
					code = max(code, exitBlocked)
				case apicheck.ReleaseUnread:
					code = exitUnknown
				}
			}
			if len(rep.Unreadable) > 0 {
				code = exitUnknown
			}
			if code != 0 {
				return &silentError{code: code}
			}
			return nil
		},
	}
	d.addClusterFlags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&to, "to", "", "Kubernetes version that the releases must be upgradable at (required)")
	fl.StringSliceVarP(&o.Namespaces, "namespace", "n", nil, "only releases of these namespaces")
	fl.BoolVar(&o.DryRun, "dry-run", false, "only say what would be done")
	fl.BoolVar(&o.Drop, "drop-without-successor", false, "cut documents without a successor out of the record; the objects are not touched")
	fl.StringVar(&o.BackupDir, "backup-dir", "", "where the old records are written (default: helm-records in belay's directory)")
	render.AddFormatFlag(fl, &format, render.Table, render.JSON, render.YAML)
	return cmd
}

func repairTable(w io.Writer, rep apicheck.RepairReport) error {
	var rows [][]string
	for _, r := range rep.Releases {
		revision := fmt.Sprint(r.Revision)
		if r.NewRevision > 0 {
			revision += fmt.Sprintf(" -> %d", r.NewRevision)
		}
		rows = append(rows, []string{r.Namespace, r.Name, string(r.Status), revision, r.Why})
		for _, c := range r.Changes {
			what := c.From + " " + c.Name
			if c.Hook != "" {
				what = "hook " + c.Hook + ": " + what
			}
			to := c.To
			if to == "" {
				to = "cut out"
			}
			rows = append(rows, []string{"", "", "", "", what + " -> " + to})
		}
		if r.Backup != "" {
			rows = append(rows, []string{"", "", "", "", "backup: " + r.Backup})
		}
	}
	for _, u := range rep.Unreadable {
		rows = append(rows, []string{"", u.What, "not read", "", u.Why})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "no Helm releases")
		return err
	}
	return render.Rows(w, []string{"NAMESPACE", "RELEASE", "STATUS", "REVISION", "DETAIL"}, rows)
}
