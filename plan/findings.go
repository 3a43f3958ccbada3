package plan

import (
	"fmt"
	"strings"
)

// Remark is a kind of finding that planning alone has. The others are those of preflight's checks, by the same ids.
type Remark struct {
	ID string
	// Subject and Severity say what it is about, and what it does to a plan; Meaning when it is found.
	Subject, Severity, Meaning string
}

// Remarks gives every kind of finding that planning alone has.
func Remarks() []Remark {
	return []Remark{
		{"already-at-target", "version", "info", "every part runs the target: the plan only verifies"},
		{"bundle-unofficial", "version", "warn; info on a disposable cluster", "a bundle was built from Go modules and is not the official release; a plan says so and does not refuse it"},
		{"drain-empties-emptydir", "node", "info; block, not waivable, with `--keep-emptydir`", "pods with emptyDir volumes are evicted"},
		{"drain-leaves-pending", "node", "warn", "evicted pods fit nowhere until the node is back"},
		{"drain-undecided", "node", "info", "affinity, topology or volumes decide where pods go"},
		{"etcd-no-spare", "cluster", "warn", "two etcd members: the API does not answer while either restarts"},
		{"external-etcd", "etcd", "info", "etcd is external: the plan does not touch it"},
		{"internal", "plan", "block", "the plan cannot be written as JSON: a bug"},
		{"kubelet-stays", "node", "info", "a kubelet has a newer patch than the target, of the same minor: it is left as it is"},
		{WaiveBackup, "cluster", "warn; `--accept " + WaiveBackup + "@cluster` alone brings it about", "the plan has no backup gate"},
		{"runtime-stays", "node", "info", "the bundle has another containerd than the node: it is left as it is"},
		{"single-control-plane", "cluster", "info", "one control plane node: the API does not answer for a minute or two"},
		{"single-worker", "node", "info", "one worker: its pods have few other places while it is drained"},
		{"unused-waiver", "the waiver", "info", "`--accept` names nothing that was found"},
	}
}

// FindingDocs is the part of docs/checks.md on plans.
func FindingDocs() string {
	var b strings.Builder
	b.WriteString(`
## Findings of a plan

` + "`belay plan`" + ` runs these checks on the same state, but for ` + "`backup-verified`" + `, which is its backup gate's matter, and refuses as
long as one stands in the way. What it finds itself, hop by hop and drain by drain, has the id and the subject of the check that looks
for the same thing, so that one waiver is good for both; a plan cannot go past an unready node, an unknown version, a missing part of
the control plane or a missing bundle, whatever was accepted. Beside those it says:

| id | subject | severity | found when |
|---|---|---|---|
`)
	for _, r := range Remarks() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.ID, r.Subject, r.Severity, r.Meaning)
	}
	return b.String()
}
