// Package render turns values into what people and programs read: tables,
// JSON, YAML, and the progress display on stderr.
//
// Only cmd/belay imports it. It decides nothing: what a value means is the
// domain packages' business.
package render

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Format is an output format.
type Format string

// The output formats. Each command names those it has.
const (
	Table    Format = "table"
	JSON     Format = "json"
	YAML     Format = "yaml"
	Markdown Format = "markdown"
	SARIF    Format = "sarif"
	JUnit    Format = "junit"
)

// AddFormatFlag adds -o/--output with the formats that a command has, the first being the default.
func AddFormatFlag(fs *pflag.FlagSet, f *Format, formats ...Format) {
	*f = formats[0]
	fs.VarP(&formatValue{f, formats}, "output", "o", "output format: "+join(formats))
}

type formatValue struct {
	f       *Format
	allowed []Format
}

func (v *formatValue) String() string { return string(*v.f) }
func (v *formatValue) Type() string   { return "format" }
func (v *formatValue) Set(s string) error {
	if !slices.Contains(v.allowed, Format(s)) {
		return fmt.Errorf("want %s", join(v.allowed))
	}
	*v.f = Format(s)
	return nil
}

func join(formats []Format) string {
	s := make([]string, len(formats))
	for i, f := range formats {
		s[i] = string(f)
	}
	return strings.Join(s, "|")
}

// Value writes v as JSON or YAML, or calls table for the format meant for people.
func Value(w io.Writer, f Format, v any, table func(io.Writer) error) error {
	switch f {
	case JSON:
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	case YAML:
		b, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	default:
		return table(w)
	}
}

// Rows writes aligned columns. The header is left out when it is empty.
func Rows(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if len(header) > 0 {
		fmt.Fprintln(tw, strings.Join(header, "\t"))
	}
	for _, r := range rows {
		for i := range r {
			r[i] = strings.NewReplacer("\t", " ", "\n", " ").Replace(r[i])
		}
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// Bytes prints a size as people read it: 88.7 MB.
func Bytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
