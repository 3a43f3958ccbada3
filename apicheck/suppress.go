package apicheck

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// Suppression takes findings out of a report, for a reason and until a date. Empty fields match all;
// the others take the patterns of path.Match.
type Suppression struct {
	APIVersion string `yaml:"apiVersion" json:"apiVersion,omitempty"`
	Kind       string `yaml:"kind" json:"kind,omitempty"`
	Field      string `yaml:"field" json:"field,omitempty"`
	Namespace  string `yaml:"namespace" json:"namespace,omitempty"`
	Name       string `yaml:"name" json:"name,omitempty"`
	File       string `yaml:"file" json:"file,omitempty"`
	Release    string `yaml:"release" json:"release,omitempty"`
	Source     string `yaml:"source" json:"source,omitempty"`
	Verdict    string `yaml:"verdict" json:"verdict,omitempty"`
	// Reason is required: the next reader wants to know.
	Reason string `yaml:"reason" json:"reason"`
	// Until is the last day on which it holds, as 2027-03-31; empty for no end.
	Until string `yaml:"until" json:"until,omitempty"`
}

// Suppressed is a finding that was taken out, and why.
type Suppressed struct {
	Finding Finding `json:"finding"`
	Reason  string  `json:"reason"`
	Until   string  `json:"until,omitempty"`
}

// ParseSuppressions reads a suppression file: a YAML document with the list "ignore". Unknown fields,
// missing reasons and bad dates are errors with their line.
func ParseSuppressions(data []byte) ([]Suppression, error) {
	var doc struct {
		Ignore []Suppression `yaml:"ignore"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("read suppressions: %w", err)
	}
	for i, s := range doc.Ignore {
		if err := s.Validate(); err != nil {
			return nil, fmt.Errorf("read suppressions: entry %d: %w", i+1, err)
		}
	}
	return doc.Ignore, nil
}

// Validate says what is wrong with s.
func (s Suppression) Validate() error {
	if s.Reason == "" {
		return fmt.Errorf("no reason: say why the finding does not matter")
	}
	matches := false
	for _, p := range s.patterns(Finding{}) {
		matches = matches || p[0] != ""
		// Names of fields hold brackets: they are taken as they are.
		if _, err := path.Match(p[0], ""); err != nil && p[0] != s.Field {
			return fmt.Errorf("pattern %q: %w", p[0], err)
		}
	}
	if !matches {
		return fmt.Errorf("it would match every finding: name what it is about")
	}
	if s.Until != "" {
		if _, err := time.Parse(time.DateOnly, s.Until); err != nil {
			return fmt.Errorf("until %q: want a day, as 2027-03-31", s.Until)
		}
	}
	return nil
}

func (s Suppression) patterns(f Finding) [][2]string {
	return [][2]string{
		{s.APIVersion, f.APIVersion}, {s.Kind, f.Kind}, {s.Field, f.Field}, {s.Namespace, f.Namespace}, {s.Name, f.Name}, {s.File, f.Source.File},
		{s.Release, f.Source.Release}, {s.Source, string(f.Source.Type)}, {s.Verdict, string(f.Verdict)},
	}
}

func (s Suppression) matches(f Finding) bool {
	for _, p := range s.patterns(f) {
		if p[0] == "" || p[0] == p[1] {
			continue
		}
		if ok, err := path.Match(p[0], p[1]); err != nil || !ok {
			return false
		}
	}
	return true
}

// suppress takes out what o's suppressions name. One that is over holds no longer.
func (r *Report) suppress(o Options) {
	today := o.Now().Format(time.DateOnly)
	r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool {
		if len(o.Only) > 0 && !slices.Contains(o.Only, f.Verdict) && !slices.ContainsFunc(f.Also, func(v verdict) bool { return slices.Contains(o.Only, v) }) {
			return true
		}
		for _, s := range o.Suppressions {
			if s.matches(f) && (s.Until == "" || today <= s.Until) {
				r.Suppressed = append(r.Suppressed, Suppressed{f, s.Reason, s.Until})
				return true
			}
		}
		return false
	})
}
