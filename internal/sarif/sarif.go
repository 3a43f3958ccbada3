// Package sarif writes findings as SARIF 2.1.0, which code scanning services
// read (https://docs.oasis-open.org/sarif/sarif/v2.1.0/).
//
// It knows the format and nothing of what is found: who has findings builds a
// Run of them. Only the part of the format that is used is here.
package sarif

import (
	"encoding/json"
	"io"
	"net/url"
	"path/filepath"
)

// The levels of results and rules.
const (
	Error   = "error"
	Warning = "warning"
	Note    = "note"
)

// Log is one file.
type Log struct {
	Schema  string `json:"$schema"`
	Version string `json:"version"`
	Runs    []Run  `json:"runs"`
}

// Run is one run of a tool. NewRun makes one.
type Run struct {
	Tool        Tool         `json:"tool"`
	Invocations []Invocation `json:"invocations"`
	Results     []Result     `json:"results"`
	ColumnKind  string       `json:"columnKind"`
	// Properties is the format's property bag: what the tool wants to say of the whole run.
	Properties map[string]string `json:"properties,omitempty"`
}

// Tool is what made the results.
type Tool struct {
	Driver Driver `json:"driver"`
}

// Driver names the tool and its rules.
type Driver struct {
	Name           string `json:"name"`
	Version        string `json:"version,omitempty"`
	InformationURI string `json:"informationUri"`
	Rules          []Rule `json:"rules"`
}

// Rule is what a result is a case of.
type Rule struct {
	ID               string  `json:"id"`
	ShortDescription Message `json:"shortDescription"`
	DefaultConfig    Config  `json:"defaultConfiguration"`
}

// Config holds a rule's level.
type Config struct {
	Level string `json:"level"`
}

// Message is a text.
type Message struct {
	Text string `json:"text"`
}

// Invocation says whether the tool could look at everything.
type Invocation struct {
	ExecutionSuccessful bool           `json:"executionSuccessful"`
	Notifications       []Notification `json:"toolExecutionNotifications,omitempty"`
}

// Notification is something that the tool could not do.
type Notification struct {
	Level     string     `json:"level"`
	Message   Message    `json:"message"`
	Locations []Location `json:"locations,omitempty"`
}

// Result is one finding.
type Result struct {
	RuleID       string        `json:"ruleId"`
	RuleIndex    int           `json:"ruleIndex"`
	Level        string        `json:"level"`
	Message      Message       `json:"message"`
	Locations    []Location    `json:"locations,omitempty"`
	Suppressions []Suppression `json:"suppressions,omitempty"`
}

// Suppression says who decided that a result does not count: Kind is "external" for what is not in the source.
type Suppression struct {
	Kind          string `json:"kind"`
	Justification string `json:"justification"`
}

// Location is a place in a file, or an object by its name.
type Location struct {
	Physical *Physical `json:"physicalLocation,omitempty"`
	Logical  []Logical `json:"logicalLocations,omitempty"`
}

// Physical is a place in a file.
type Physical struct {
	Artifact Artifact `json:"artifactLocation"`
	Region   *Region  `json:"region,omitempty"`
}

// Artifact is a file, as FileURI gives it.
type Artifact struct {
	URI string `json:"uri"`
}

// Region is a line.
type Region struct {
	StartLine int `json:"startLine"`
}

// Logical is an object by its name.
type Logical struct {
	FullyQualifiedName string `json:"fullyQualifiedName"`
	Kind               string `json:"kind,omitempty"`
}

// NewRun makes an empty, successful run of belay.
func NewRun(toolVersion string) *Run {
	return &Run{ColumnKind: "utf16CodeUnits", Results: []Result{}, Invocations: []Invocation{{ExecutionSuccessful: true}}, Tool: Tool{Driver{
		Name: "belay", Version: toolVersion, InformationURI: "https://github.com/belayops/belay", Rules: []Rule{},
	}}}
}

// Add adds a result of a rule, which is added when it is new.
func (r *Run) Add(rule Rule, res Result) {
	res.RuleID, res.RuleIndex = rule.ID, len(r.Tool.Driver.Rules)
	for i, have := range r.Tool.Driver.Rules {
		if have.ID == rule.ID {
			res.RuleIndex = i
		}
	}
	if res.RuleIndex == len(r.Tool.Driver.Rules) {
		r.Tool.Driver.Rules = append(r.Tool.Driver.Rules, rule)
	}
	r.Results = append(r.Results, res)
}

// NotRead says that something could not be looked at: the run is not successful.
func (r *Run) NotRead(n Notification) {
	inv := &r.Invocations[0]
	inv.ExecutionSuccessful = false
	inv.Notifications = append(inv.Notifications, n)
}

// Write writes a file with the run.
func (r *Run) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(Log{Schema: "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", Version: "2.1.0", Runs: []Run{*r}})
}

// FileURI gives a relative reference for a relative path, as code scanning wants it.
func FileURI(name string) string {
	u := url.URL{Path: filepath.ToSlash(name)}
	if filepath.IsAbs(name) {
		u.Scheme = "file"
	}
	return u.String()
}
