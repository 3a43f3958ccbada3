// Package junit writes results as JUnit XML, as CI systems read them: suites
// of test cases, each passed, failed, in error or skipped.
//
// It knows the format and nothing of what is found. A failure is a finding, an
// error is something that could not be looked at.
package junit

import (
	"encoding/xml"
	"io"
)

// Suites is one file.
type Suites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr,omitempty"`
	Suites   []Suite  `xml:"testsuite"`
}

// Suite is a group of cases. Add counts.
type Suite struct {
	Name     string `xml:"name,attr"`
	Tests    int    `xml:"tests,attr"`
	Failures int    `xml:"failures,attr"`
	Errors   int    `xml:"errors,attr"`
	Skipped  int    `xml:"skipped,attr,omitempty"`
	// Timestamp is in UTC, without a zone: 2006-01-02T15:04:05.
	Timestamp string `xml:"timestamp,attr,omitempty"`
	Cases     []Case `xml:"testcase"`
}

// Case is one result: passed unless one of Failure, Error and Skipped is set.
type Case struct {
	Name      string  `xml:"name,attr"`
	ClassName string  `xml:"classname,attr"`
	File      string  `xml:"file,attr,omitempty"`
	Line      int     `xml:"line,attr,omitempty"`
	Failure   *Detail `xml:"failure,omitempty"`
	Error     *Detail `xml:"error,omitempty"`
	Skipped   *Detail `xml:"skipped,omitempty"`
	Output    string  `xml:"system-out,omitempty"`
}

// Detail says why a case did not pass.
type Detail struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// Add adds a case and counts it.
func (s *Suite) Add(c Case) {
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
	s.Cases = append(s.Cases, c)
}

// Add adds a suite and its counts.
func (all *Suites) Add(s Suite) {
	all.Tests, all.Failures, all.Errors, all.Skipped = all.Tests+s.Tests, all.Failures+s.Failures, all.Errors+s.Errors, all.Skipped+s.Skipped
	all.Suites = append(all.Suites, s)
}

// Write writes the file.
func (all *Suites) Write(w io.Writer) error {
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
