package apicheck

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// scanMade scans a file that is written piece by piece, and gives how much was allocated for it.
func scanMade(t *testing.T, write func(*bufio.Writer)) (r Report, size, allocated int64) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "dump.json")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	write(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{From: minor(24), To: minor(25), Workers: 1}
	if _, err := Scan(t.Context(), o); err != nil { // the database is read once
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	o.Files = []string{name}
	runtime.ReadMemStats(&before)
	if r, err = Scan(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	return r, info.Size(), int64(after.TotalAlloc - before.TotalAlloc)
}

// A document of which one item is nearly all is read in little more memory than its text takes, and what is too large for a
// tree is named.
func TestHugeItems(t *testing.T) {
	const old = `{"apiVersion":"batch/v1beta1","kind":"CronJob","metadata":{"name":%q}}`
	for _, c := range []struct {
		name, begin, fill, end string
		times                  int
		want                   []string
	}{
		{"a string", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"a":"`, strings.Repeat("x", 1<<10), `"}}`, 100 << 10,
			[]string{"dump.json:3 items[1]: v1 ConfigMap of more than 4 MB"}},
		{"many values", `{"apiVersion":"policy/v1beta1","kind":"PodDisruptionBudget","metadata":{"name":"big"},"spec":[0`, strings.Repeat(",[{}]", 200), `]}`, 100 << 10,
			[]string{"dump.json:3 policy/v1beta1 PodDisruptionBudget items[1]", "dump.json:3 items[1]: policy/v1beta1 PodDisruptionBudget of more than 4 MB"}},
		{"a list", `{"items":[` + fmt.Sprintf(old, "within") + `,{"apiVersion":"v1","kind":"Secret","data":["`, strings.Repeat("x", 1<<10), `"]}],"apiVersion":"v1","kind":"List"}`, 100 << 10,
			[]string{"dump.json:3 batch/v1beta1 CronJob items[1].items[0]", "dump.json:3 items[1].items[1]: v1 Secret of more than 4 MB"}},
		{"many values in little text", `{"apiVersion":"v1","kind":"Foo","spec":[0`, strings.Repeat(",0", 1<<10), `]},` + `"` + strings.Repeat("x", 2<<20) + `"`, 1 << 10,
			[]string{"dump.json:3 items[1]: 2048 kB of JSON: too many values", "dump.json:3 items[2] is no object"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, size, allocated := scanMade(t, func(w *bufio.Writer) {
				fmt.Fprintf(w, "{\"kind\":\"List\",\"items\":[\n"+old+",\n", "first")
				w.WriteString(c.begin)
				for range c.times {
					w.WriteString(c.fill)
				}
				w.WriteString(c.end)
				fmt.Fprintf(w, ",\n"+old+"\n],\"apiVersion\":\"v1\"}\n", "last")
			})
			if limit := size + 100<<20; allocated > limit || allocated > 200<<20 {
				t.Errorf("%d MB allocated for a document of %d MB", allocated>>20, size>>20)
			}
			var got []string
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%s:%d %s %s", filepath.Base(f.Source.File), f.Source.Line, f.API(), f.Source.Path))
			}
			for _, u := range r.Coverage.Unreadable {
				got = append(got, filepath.Base(u.Where())+" "+u.Why)
			}
			all := strings.Join(got, "\n")
			for _, want := range append(c.want, "dump.json:2 batch/v1beta1 CronJob items[0]", "dump.json:4 batch/v1beta1 CronJob items[") {
				if !strings.Contains(all, want) {
					t.Errorf("no %q in\n%s", want, all)
				}
			}
			if r.Verdict != Unknown {
				t.Errorf("verdict %s", r.Verdict)
			}
		})
	}
}

// What finds the ends of values agrees with the decoder.
func FuzzJSONEnd(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\\\"]",{}],"b":null} x`, `[]`, `"a\u0041\\"`, `-1.5e3,`, `00`, `{"items":[{"kind":"List"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		dec := newDecoder(text)
		if _, err := jsonNode(dec, &lineCounter{text: text}, 0, nil); err != nil {
			_ = jsonEnd(text, 0)
			return
		}
		start := jsonSpace(text, 0)
		// Numbers and words without anything between them are several values to the decoder; within brackets that is no JSON.
		if got, want := jsonEnd(text, start), int(dec.InputOffset()); got != want && bytes.IndexByte([]byte(`{["`), text[start]) >= 0 {
			t.Errorf("%q ends at %d, not at %d", text, want, got)
		}
		if text[start] == '{' {
			jsonMembers(text, start, func(string, int, int) {})
		}
	})
}
