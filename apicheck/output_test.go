package apicheck

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/belayops/belay/internal/junit"
	"github.com/belayops/belay/internal/sarif"
)

// report has every shape that the formats must cope with.
func outputReport(t *testing.T) Report {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "a b.yaml")
	text := "apiVersion: v1\nkind: Pod\n---\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata:\n  name: \"a|b<c\"\n---\nkind: x: y\n---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), Files: []string{name}, Suppressions: []Suppression{{Kind: "PodDisruptionBudget", Reason: "known"}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Findings = append(r.Findings, Finding{Verdict: "deprecated", Severity: Info, APIVersion: "v1", Kind: "Endpoints", Source: Source{Type: SourceHelm, Release: "r", Revision: 3, Hook: "h"}, Message: "m"})
	return r
}

func TestSARIF(t *testing.T) {
	// The standard's own schema, whose bytes are held too: one that was made laxer proves nothing.
	text, err := os.ReadFile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e" {
		t.Fatal("testdata/sarif-schema-2.1.0.json is not the schema that OASIS published")
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	schema, err := c.Compile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]Report{"full": outputReport(t), "empty": scanText(t, 36, 37, "")} {
		var b bytes.Buffer
		if err := r.WriteSARIF(&b, "1.2.3"); err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(v); err != nil {
			t.Errorf("%s: %v\n%s", name, err, b.String())
		}
	}
	var b bytes.Buffer
	r := outputReport(t)
	if err := r.WriteSARIF(&b, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	var log sarif.Log
	if err := json.Unmarshal(b.Bytes(), &log); err != nil {
		t.Fatal(err)
	}
	run := log.Runs[0]
	if got := run.Results[0]; got.Level != "error" || got.Locations[0].Physical.Region.StartLine != 4 || !strings.HasSuffix(got.Locations[0].Physical.Artifact.URI, "/a%20b.yaml") || !strings.HasPrefix(got.Locations[0].Physical.Artifact.URI, "file:///") {
		t.Errorf("first result %+v", got)
	}
	for _, res := range run.Results {
		if run.Tool.Driver.Rules[res.RuleIndex].ID != res.RuleID {
			t.Errorf("rule index of %s points at %s", res.RuleID, run.Tool.Driver.Rules[res.RuleIndex].ID)
		}
	}
	if len(run.Results[len(run.Results)-1].Suppressions) != 1 {
		t.Error("the suppressed finding is not marked")
	}
	if run.Invocations[0].ExecutionSuccessful || run.Invocations[0].Notifications[0].Locations[0].Physical.Region.StartLine != 9 {
		t.Errorf("what was not read: %+v", run.Invocations[0])
	}
	if sarif.FileURI("deploy/a.yaml") != "deploy/a.yaml" {
		t.Errorf("a relative path becomes %s", sarif.FileURI("deploy/a.yaml"))
	}
}

func TestJUnit(t *testing.T) {
	var b bytes.Buffer
	if err := outputReport(t).WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	var s junit.Suites
	if err := xml.NewDecoder(&b).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if s.Failures != 1 || s.Errors != 1 || s.Tests < 4 {
		t.Errorf("%d tests, %d failures, %d errors", s.Tests, s.Failures, s.Errors)
	}
	sum := 0
	for _, suite := range s.Suites {
		sum += len(suite.Cases)
	}
	if sum != s.Tests {
		t.Errorf("%d cases, %d tests", sum, s.Tests)
	}
}

func TestMarkdownAndTable(t *testing.T) {
	r := outputReport(t)
	var b bytes.Buffer
	if err := r.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# API use, 1.24 to 1.25: unknown", `a\|b&lt;c`, "## Not read", "## Suppressed", "known"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	for _, line := range strings.Split(b.String(), "\n") {
		if strings.HasPrefix(line, "| error") && strings.Count(line, "|")-strings.Count(line, `\|`) != 8 {
			t.Errorf("a row with other than 7 cells: %s", line)
		}
	}
	header, rows := r.Table()
	if len(rows) != len(r.Findings) || len(rows[0]) != len(header) {
		t.Errorf("%d rows for %d findings", len(rows), len(r.Findings))
	}
	if !strings.Contains(r.Summary(), "newest observed minor 1.37") {
		t.Error(r.Summary())
	}
}
