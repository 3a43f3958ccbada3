package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/belayops/belay/internal/event"
)

func TestFormatFlag(t *testing.T) {
	var f Format
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	AddFormatFlag(fs, &f, Table, JSON)
	if f != Table {
		t.Errorf("default is %q", f)
	}
	if err := fs.Parse([]string{"-o", "json"}); err != nil || f != JSON {
		t.Errorf("json: %v, %q", err, f)
	}
	if err := fs.Parse([]string{"-o", "xml"}); err == nil || !strings.Contains(err.Error(), "table|json") {
		t.Errorf("xml: %v; want an error that lists the formats", err)
	}
}

func TestValue(t *testing.T) {
	v := map[string]string{"a": "<b>"}
	var b bytes.Buffer
	if err := Value(&b, JSON, v, nil); err != nil || !strings.Contains(b.String(), `"<b>"`) {
		t.Errorf("json: %v %s", err, b.String())
	}
	b.Reset()
	if err := Value(&b, YAML, v, nil); err != nil || strings.TrimSpace(b.String()) != "a: <b>" {
		t.Errorf("yaml: %v %s", err, b.String())
	}
	wanted := errors.New("no room")
	if err := Value(&b, Table, v, func(io.Writer) error { return wanted }); !errors.Is(err, wanted) {
		t.Errorf("table: %v", err)
	}
}

func TestRowsKeepsOneLineARow(t *testing.T) {
	var b bytes.Buffer
	if err := Rows(&b, []string{"A", "B"}, [][]string{{"x\ny", "z\tw"}}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(b.String()), "\n"); len(lines) != 2 || !strings.Contains(lines[1], "z w") {
		t.Errorf("got %q", b.String())
	}
}

func TestPlainProgress(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, ProgressAuto)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	emit := func(typ event.Type, after time.Duration, e event.Event) {
		e.Type, e.Time = typ, at.Add(after)
		p.Emit(e)
	}
	step := event.Event{Run: "r", Step: "build", Subject: "kube-apiserver", Msg: "build kube-apiserver", Index: 3, Total: 21}
	emit(event.StepStarted, 0, step)
	emit(event.StepProgress, time.Second, step)
	emit(event.StepProgress, plainInterval+time.Second, step)
	step.Elapsed = 75 * time.Second
	emit(event.StepDone, 75*time.Second, step)
	emit(event.StepFailed, 76*time.Second, event.Event{Subject: "w1", Msg: "drain", Err: "a\nb"})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	want := `  .. [3/21] build kube-apiserver
  .. [3/21] build kube-apiserver
  ok [3/21] build kube-apiserver (1m15s)
  !! w1: drain: a; b
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestJSONProgressIsOneEventALine(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, ProgressJSON)
	p.Emit(event.Event{Type: event.Note, Msg: "one"})
	p.Emit(event.Event{Type: event.Warning, Msg: "two\nlines"})
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %q", b.String())
	}
	var e event.Event
	if err := json.Unmarshal([]byte(lines[1]), &e); err != nil || e.Msg != "two\nlines" || e.Time.IsZero() {
		t.Errorf("%v %+v", err, e)
	}
}

func TestDurationAndBytes(t *testing.T) {
	for d, want := range map[time.Duration]string{400 * time.Millisecond: "0.4s", 12 * time.Second: "12s", 185 * time.Second: "3m05s", 62 * time.Minute: "1h02m"} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) = %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{5: "5 B", 5_300: "5.3 kB", 88_678_562: "88.7 MB", 2_500_000_000: "2.5 GB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
}
