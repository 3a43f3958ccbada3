package preflight

import (
	"fmt"
	"strings"
)

// Docs gives docs/checks.md: every check with when it fails and warns, from the registry.
func Docs() string {
	var b strings.Builder
	b.WriteString(`# Checks

` + "`belay check`" + ` runs these over the observed state of a cluster and, with ` + "`--to`" + `, a target version. This page is
generated from the registry in package preflight; ` + "`go test ./preflight -run TestDocs -update`" + ` writes it anew.

A result is **pass**, **warn**, **fail**, **unknown** (what was needed could not be read), **blocked** (another finding has to be
settled first; the result names it) or **skipped** (does not apply here; the result says why). Fail, unknown and blocked stand in the
way of an upgrade: exit code 3 with at least one failure, 6 when there is none and something is unknown.

` + "`-o json|yaml|sarif|junit`" + ` gives them to programs: in SARIF a rule is a check, and what was accepted is suppressed; in JUnit what is not
known is an error.

A finding is named ` + "`check@subject`" + `. ` + "`--accept check@subject`" + ` waives exactly that finding, and the report says so. What follows from an
accepted gap in what was read (` + "`coverage@...`" + `) is skipped. Checks marked *no* cannot be waived.

The kubeconfig's user needs the rights in [rbac-check.yaml](rbac-check.yaml); a test holds that list against what is asked.
The machines are asked through the inventory's SSH user, by one read-only script that leaves nothing there (inspect/facts.sh); private
keys do not leave them, but for the client key by which etcd is asked, which stays in memory.

| check | looks whether | fails when | warns when | waivable | needs | source |
|---|---|---|---|---|---|---|
`)
	for _, c := range Checks() {
		waivable := "yes"
		if !c.Waivable {
			waivable = "no"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", c.ID, lower(c.Title), c.Fails, orDash(c.Warns), waivable, orDash(strings.Join(c.Needs, ", ")), orDash(c.Source))
	}
	return b.String()
}

func lower(s string) string {
	// Names keep their capitals.
	for _, name := range []string{"API", "CoreDNS", "ConfigMap", "PodDisruptionBudget", "Kubernetes"} {
		if strings.HasPrefix(s, name) {
			return s
		}
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
