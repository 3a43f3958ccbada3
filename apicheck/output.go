package apicheck

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/belayops/belay/internal/junit"
	"github.com/belayops/belay/internal/sarif"
)

// WriteMarkdown writes r for a pull request or a wiki page.
func (r Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# API use, %s to %s: %s\n\n%s\n", r.From, r.To, r.Verdict, r.databaseLine())
	if len(r.Findings) > 0 {
		b.WriteString("\n## Findings\n\n| severity | verdict | API | object | where | replacement | remedy |\n|---|---|---|---|---|---|---|\n")
		for _, f := range r.Findings {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", f.Severity, cell(f.verdicts()), cell(f.API()), cell(f.object()), cell(f.Source.String()), cell(f.replacement()), cell(f.Remedy))
		}
	}
	if len(r.Coverage.Unreadable) > 0 {
		b.WriteString("\n## Not read\n\n| what | line | why |\n|---|---|---|\n")
		for _, u := range r.Coverage.Unreadable {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(u.What), lineNumber(u.Line), cell(u.Why))
		}
	}
	if len(r.Suppressed) > 0 {
		b.WriteString("\n## Suppressed\n\n| API | object | where | reason | until |\n|---|---|---|---|---|\n")
		for _, s := range r.Suppressed {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", cell(s.Finding.API()), cell(s.Finding.object()), cell(s.Finding.Source.String()), cell(s.Reason), cell(s.Until))
		}
	}
	b.WriteString("\n## Read\n\n")
	for _, c := range r.Coverage.Read {
		fmt.Fprintf(&b, "- %d × %s (%s)\n", c.Count, cell(c.What), cell(c.Why))
	}
	if len(r.Coverage.Read) == 0 {
		b.WriteString("Nothing.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Report) databaseLine() string {
	return fmt.Sprintf("Lifecycle data of %s; newest observed minor %s.", r.Database.Date.Format("2006-01-02"), r.Database.Newest)
}

func cell(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "\r", " ", "<", "&lt;").Replace(s)
}

func lineNumber(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (f Finding) verdicts() string {
	s := string(f.Verdict)
	for _, v := range f.Also {
		s += ", " + string(v)
	}
	return s
}

func (f Finding) object() string {
	switch {
	case f.Name == "":
		return f.Namespace
	case f.Namespace == "":
		return f.Name
	}
	return f.Namespace + "/" + f.Name
}

func (f Finding) replacement() string {
	if f.Replacement == nil {
		return ""
	}
	s := f.Replacement.APIVersion
	if f.Replacement.Kind != f.Kind {
		s += " " + f.Replacement.Kind
	}
	if f.Rewrite != "" {
		s += " (" + string(f.Rewrite) + ")"
	}
	return s
}

// String says where in one line.
func (s Source) String() string {
	var parts []string
	if s.File != "" {
		p := s.File
		if s.Line > 0 {
			p += fmt.Sprintf(":%d", s.Line)
		}
		parts = append(parts, p)
	}
	if s.Release != "" {
		parts = append(parts, fmt.Sprintf("release %s revision %d", s.Release, s.Revision))
	}
	if s.Hook != "" {
		parts = append(parts, "hook "+s.Hook)
	} else if s.Path != "" {
		parts = append(parts, s.Path)
	}
	if s.Object != "" && s.Release == "" {
		parts = append(parts, s.Object)
	}
	if s.Type != SourceFile {
		parts = append([]string{string(s.Type)}, parts...)
	}
	if s.Manager != "" {
		parts = append(parts, "by "+s.Manager)
	}
	if s.User != "" {
		parts = append(parts, "by "+s.User)
	}
	if s.Agent != "" {
		parts = append(parts, "with "+s.Agent)
	}
	if s.Requests > 0 {
		parts = append(parts, fmt.Sprintf("%d requests", s.Requests))
	}
	if s.Time != nil {
		parts = append(parts, s.Time.Format("2006-01-02 15:04"))
	}
	return strings.Join(parts, ", ")
}

// Table gives the findings as rows for people, with their header.
func (r Report) Table() (header []string, rows [][]string) {
	header = []string{"SEVERITY", "VERDICT", "HOP", "API", "OBJECT", "REPLACEMENT", "WHERE"}
	for _, f := range r.Findings {
		hop := ""
		if f.Hop.Minor > 0 {
			hop = f.Hop.String()
		}
		rows = append(rows, []string{string(f.Severity), f.verdicts(), hop, f.API(), f.object(), f.replacement(), f.Source.String()})
	}
	return header, rows
}

// Summary is one line for people, and what the whole says.
func (r Report) Summary() string {
	count := map[Severity]int{}
	for _, f := range r.Findings {
		count[f.Severity]++
	}
	read := 0
	for _, c := range r.Coverage.Read {
		read += c.Count
	}
	s := fmt.Sprintf("%s: %s, %s, %s; %s read, %d not", r.Verdict, plural(count[Error], "error"), plural(count[Warning], "warning"), plural(count[Info], "note"), plural(read, "thing"), len(r.Coverage.Unreadable))
	if len(r.Suppressed) > 0 {
		s += fmt.Sprintf("; %d suppressed", len(r.Suppressed))
	}
	return s + ". " + r.databaseLine()
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// WriteSARIF writes r as SARIF 2.1.0. What was not read becomes a notification, and the run not successful.
func (r Report) WriteSARIF(w io.Writer, toolVersion string) error {
	run := sarif.NewRun(toolVersion)
	run.Properties = map[string]string{"lifecycleDate": r.Database.Date.Format("2006-01-02"), "newestObservedMinor": r.Database.Newest.String(), "verdict": string(r.Verdict)}
	add := func(f Finding, suppressions []sarif.Suppression) {
		text := f.Message
		if f.Remedy != "" {
			text += ". Remedy: " + f.Remedy
		}
		rule := sarif.Rule{ID: "api-" + string(f.Verdict), ShortDescription: sarif.Message{Text: ruleText[string(f.Verdict)]}, DefaultConfig: sarif.Config{Level: sarifLevel(severity(f.Verdict))}}
		run.Add(rule, sarif.Result{Level: sarifLevel(f.Severity), Message: sarif.Message{Text: text}, Locations: f.sarif(), Suppressions: suppressions})
	}
	for _, f := range r.Findings {
		add(f, nil)
	}
	for _, s := range r.Suppressed {
		add(s.Finding, []sarif.Suppression{{Kind: "external", Justification: s.Reason}})
	}
	for _, u := range r.Coverage.Unreadable {
		n := sarif.Notification{Level: sarif.Error, Message: sarif.Message{Text: "not read: " + u.What + ": " + u.Why}}
		if u.Line > 0 {
			n.Locations = []sarif.Location{{Physical: &sarif.Physical{Artifact: sarif.Artifact{URI: sarif.FileURI(u.What)}, Region: &sarif.Region{StartLine: u.Line}}}}
		}
		run.NotRead(n)
	}
	return run.Write(w)
}

var ruleText = map[string]string{
	"undecodable":     "Stored objects that the target version cannot decode",
	"removed":         "API that the target version does not serve",
	"not-yet":         "API that the target version does not serve yet",
	"unknown-builtin": "Kind of a built-in group that no release is known to serve",
	"planned":         "API whose removal is planned, not observed",
	"off-by-default":  "API that is off by default",
	"deprecated":      "Deprecated API",
}

func sarifLevel(s Severity) string {
	if s == Info {
		return "note"
	}
	return string(s)
}

func (f Finding) sarif() []sarif.Location {
	var loc sarif.Location
	if f.Source.File != "" {
		loc.Physical = &sarif.Physical{Artifact: sarif.Artifact{URI: sarif.FileURI(f.Source.File)}}
		if f.Source.Line > 0 {
			loc.Physical.Region = &sarif.Region{StartLine: f.Source.Line}
		}
	}
	if name := strings.TrimSpace(f.Kind + " " + f.object()); f.Source.File == "" || f.Name != "" {
		loc.Logical = []sarif.Logical{{FullyQualifiedName: name, Kind: "resource"}}
	}
	return []sarif.Location{loc}
}

// WriteJUnit writes r as JUnit XML: one suite a kind of source; findings of severity info pass with a note, what was
// not read is an error.
func (r Report) WriteJUnit(w io.Writer) error {
	suites := map[string]*junit.Suite{}
	suite := func(name string) *junit.Suite {
		if suites[name] == nil {
			suites[name] = &junit.Suite{Name: name}
		}
		return suites[name]
	}
	for _, f := range r.Findings {
		c := junit.Case{Name: strings.TrimSpace(f.API() + " " + f.object()), ClassName: f.Source.String(), File: f.Source.File, Line: f.Source.Line}
		if f.Severity == Info {
			c.Output = f.Message + "\n" + f.Remedy
		} else {
			c.Failure = &junit.Detail{Message: f.Message, Type: string(f.Verdict), Text: f.Remedy}
		}
		suite("api " + string(f.Source.Type)).Add(c)
	}
	cover := suite("api coverage")
	cover.Add(junit.Case{Name: r.databaseLine(), ClassName: "lifecycle data"})
	for _, c := range r.Coverage.Read {
		cover.Add(junit.Case{Name: fmt.Sprintf("%d × %s", c.Count, c.What), ClassName: c.Why})
	}
	for _, u := range r.Coverage.Unreadable {
		cover.Add(junit.Case{Name: u.What, ClassName: "not read", Line: u.Line, Error: &junit.Detail{Message: u.Why, Type: "not-read", Text: u.Why}})
	}
	all := junit.Suites{Name: fmt.Sprintf("API use %s to %s", r.From, r.To)}
	for _, n := range slices.Sorted(maps.Keys(suites)) {
		all.Add(*suites[n])
	}
	return all.Write(w)
}
