package apicheck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// Options says what to scan, and for which hops.
type Options struct {
	// From is the minor that runs today. Zero: the cluster's when RESTConfig is given, else the
	// minor before To.
	From kubeversion.Minor
	// To is the minor to go to. It is required.
	To kubeversion.Minor
	// Files are manifest files, directories, chart archives and chart directories; "-" is Stdin.
	Files []string
	Stdin io.Reader
	// Charts says how charts among Files are rendered.
	Charts ChartOptions
	// AuditLogs are audit log files in JSON lines, gzip-compressed or not; "-" is Stdin.
	AuditLogs []string
	// RESTConfig gives access to a live cluster; nil scans none.
	RESTConfig *rest.Config
	// Namespaces limits the live scan; empty for all, and for cluster-scoped objects.
	Namespaces []string
	// Suppressions take known findings out of the report.
	Suppressions []Suppression
	// Only keeps findings of these verdicts; empty for all.
	Only []lifecycle.Verdict
	// RuntimeConfig is the --runtime-config that the target's apiservers have; nil: what a live cluster's static pods show.
	RuntimeConfig RuntimeConfig
	// Patience bounds how long one request to the cluster is repeated; 0 means a minute.
	Patience time.Duration
	// DB replaces the built-in database.
	DB *lifecycle.DB
	// Events receives progress; nil drops it.
	Events event.Sink
	// Now is the time that expiry dates are compared with; nil for the clock's.
	Now func() time.Time
	// Workers bounds how many files are read at once; 0 for the number of processors.
	Workers int
	// FullParse switches the fast path off, so that every document is parsed. The report is the same.
	FullParse bool
}

func countOf(names []string, name string) (n int) {
	for _, s := range names {
		if s == name {
			n++
		}
	}
	return n
}

// Scan reads everything that o names and judges it. The error is for what makes a scan senseless (no
// target, a database that cannot be read, a cancelled context); whatever could not be read on the way
// is in the report's coverage, which is then Unknown.
func Scan(ctx context.Context, o Options) (Report, error) {
	db := o.DB
	if db == nil {
		var err error
		if db, err = lifecycle.Default(); err != nil {
			return Report{}, err
		}
	}
	if o.To == (kubeversion.Minor{}) {
		return Report{}, errors.New("scan API use: no target minor: say which Kubernetes version the upgrade goes to")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Events = event.Or(o.Events)
	var live *liveCluster
	if o.RESTConfig != nil {
		var err error
		if live, err = connect(ctx, o); err != nil {
			return Report{}, err
		}
		if o.From == (kubeversion.Minor{}) {
			o.From = live.version
		}
	}
	if o.From == (kubeversion.Minor{}) {
		o.From = kubeversion.Minor{Major: o.To.Major, Minor: o.To.Minor - 1}
	}
	if o.To.Major != o.From.Major {
		return Report{}, fmt.Errorf("scan API use: from %s to %s: no known Kubernetes has another major than 1", o.From, o.To)
	}
	if slices.Contains(o.Files, "-") && slices.Contains(o.AuditLogs, "-") || countOf(o.AuditLogs, "-") > 1 || countOf(o.Files, "-") > 1 {
		return Report{}, errors.New("scan API use: standard input (-) is named twice, and can be read once")
	}
	if o.To.Compare(o.From) < 0 {
		return Report{}, fmt.Errorf("scan API use: the target %s is older than %s, which runs: downgrades are not judged", o.To, o.From)
	}
	j := &judge{db: db, from: o.From, to: o.To, fullParse: o.FullParse, names: &harmlessNames{}}
	all := j.collector()
	switch {
	case o.RuntimeConfig != nil:
		j.runtime = []RuntimeConfig{o.RuntimeConfig}
	case live != nil:
		j.runtime = live.readRuntimeConfig(ctx, all)
	}
	if db.Newest.Compare(o.To) < 0 {
		all.unread("Kubernetes "+o.To.String(), 0, "planned, not observed: the database ends at %s, so what %s removes is only announced", db.Newest, o.To)
	}
	if err := j.files(ctx, o, all); err != nil {
		return Report{}, err
	}
	for _, name := range o.AuditLogs {
		if err := all.auditLog(ctx, o, name); err != nil {
			return Report{}, err
		}
	}
	if live != nil {
		if err := live.scan(ctx, o, all); err != nil {
			return Report{}, err
		}
	}
	r := Report{
		Schema: Schema, From: o.From, To: o.To, Database: Database{Date: db.Date, Newest: db.Newest},
		Findings: append([]Finding{}, all.findings...),
		Coverage: Coverage{Read: []Covered{}, Unreadable: append([]Unread{}, all.unreadable...)},
	}
	for k, n := range all.read {
		r.Coverage.Read = append(r.Coverage.Read, Covered{What: k[0], Why: k[1], Count: n})
	}
	r.suppress(o)
	r.sort()
	// A resource whose list is refused is refused twice where its contents are wanted too.
	r.Coverage.Unreadable = slices.Compact(r.Coverage.Unreadable)
	r.decide()
	return r, nil
}
