package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// childVar makes the test binary a process that appends to the journal named, until it is killed.
const childVar = "BELAY_JOURNAL_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childVar); path != "" {
		os.Exit(child(path))
	}
	os.Exit(m.Run())
}

// child says every record's number after it is on disk.
func child(path string) int {
	j, _, err := Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		j, err = Create(path, header())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pad, err := json.Marshal(strings.Repeat("x", 5000))
	if err != nil {
		return 1
	}
	for {
		if err := j.Append(Record{Step: "s", Kind: Intent, Data: pad}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(j.seq)
	}
}

func header() Header {
	return Header{Plan: "sha256:ab", Run: "r1", Lineage: "uid", Tool: "v0.1.0"}
}

func create(t testing.TB) (*Journal, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	j, err := Create(path, header())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, path
}

func appendAll(t testing.TB, j *Journal, records ...Record) {
	t.Helper()
	for _, r := range records {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCreateAppendReadOpen(t *testing.T) {
	j, path := create(t)
	at := time.Date(2026, 12, 1, 2, 3, 4, 5, time.UTC)
	want := []Record{
		{Seq: 1, Time: at, Step: "drain/w1", Kind: Intent, Data: json.RawMessage(`{"found":"not started"}`)},
		{Seq: 2, Time: at, Step: "drain/w1", Kind: Failed, Error: "line\nbreak"},
		{Seq: 3, Time: at, Kind: Note, Data: json.RawMessage(`"<&>"`)},
		{Seq: 4, Time: at, Step: "drain/w1", Kind: Outcome},
	}
	for _, r := range want {
		r.Seq = 0
		appendAll(t, j, r)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	same := func(got []Record) {
		t.Helper()
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		if !bytes.Equal(a, b) {
			t.Errorf("got  %s\nwant %s", a, b)
		}
	}
	h, got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	same(got)
	if h != j.Header() || h.Schema != Schema || h.Run != "r1" || h.PID != os.Getpid() || h.Host == "" || h.Who == "" || h.Time.IsZero() {
		t.Errorf("header %+v", h)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := j.Append(Record{Kind: Note}); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("append after Close: %v", err)
	}
	j, got, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	same(got)
	appendAll(t, j, Record{Kind: Note})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	_, got, err = Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 6 || got[4].Kind != Takeover || got[5].Seq != 6 {
		t.Errorf("got %+v", got)
	}
	if o := LastOwner(h, got); o.PID != os.Getpid() {
		t.Errorf("owner %+v", o)
	}
	// One file, no temporary ones beside it.
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	j, path := create(t)
	appendAll(t, j, Record{Kind: Note})
	if _, err := Create(path, header()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want fs.ErrExist", err)
	}
	if _, records, err := Read(path); err != nil || len(records) != 1 {
		t.Errorf("%d records, %v", len(records), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Create(filepath.Join(filepath.Dir(path), "none", "j"), header()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	for _, h := range []Header{{Run: "r"}, {Plan: "p"}} {
		p := filepath.Join(t.TempDir(), "j")
		if _, err := Create(p, h); err == nil {
			t.Errorf("made a journal of %+v", h)
		}
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left a file behind: %v", err)
		}
	}
}

func TestOnlyOneCreates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	var wg sync.WaitGroup
	made := make(chan *Journal, 10)
	for range 10 {
		wg.Go(func() {
			j, err := Create(path, header())
			switch {
			case err == nil:
				made <- j
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("%d created it", len(made))
	}
	_ = (<-made).Close()
}

func TestLocked(t *testing.T) {
	j, path := create(t)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = Open(path)
	locked := (*LockedError)(nil)
	if !errors.As(err, &locked) || locked.Owner != j.Header().Owner || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("got %v (%+v), want a LockedError that names this process", err, locked)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
	if _, _, err := Read(path); err != nil {
		t.Errorf("read while locked: %v", err)
	}
	// After a takeover the lock is named after the new owner.
	if err := j.Append(Record{Kind: Takeover, Data: json.RawMessage(`{"who":"eve","host":"elsewhere","pid":7}`)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err = Open(path); !errors.As(err, &locked) || locked.Owner != (Owner{"eve", "elsewhere", 7}) {
		t.Errorf("got %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j, _, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
}

func TestAppendRefusesNonsense(t *testing.T) {
	j, path := create(t)
	for _, r := range []Record{{}, {Kind: "other"}, {Kind: Intent}, {Kind: Note, Data: json.RawMessage("{")}} {
		if err := j.Append(r); err == nil {
			t.Errorf("appended %+v", r)
		}
	}
	appendAll(t, j, Record{Kind: Note}) // none of them broke the journal
	if _, records, err := Read(path); err != nil || len(records) != 1 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// A write that failed half-way must not be followed by another one.
func TestAppendAfterAFailedWrite(t *testing.T) {
	j, path := create(t)
	appendAll(t, j, Record{Kind: Note})
	ro, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	rw := j.f
	j.f = ro
	if err := j.Append(Record{Kind: Note}); err == nil {
		t.Fatal("wrote into a file that is open for reading")
	}
	j.f = rw
	if err := j.Append(Record{Kind: Note}); err == nil {
		t.Error("appended after a failed write")
	}
	_ = ro.Close()
}

func TestCorrupt(t *testing.T) {
	j, path := create(t)
	appendAll(t, j, Record{Kind: Note}, Record{Step: "a", Kind: Intent}, Record{Step: "a", Kind: Outcome})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(good), "\n"), "\n")
	lines[3] += "\n"
	join := func(ls ...string) string { return strings.Join(ls, "") }
	for name, tc := range map[string]struct {
		data string
		line int
	}{
		"empty":             {"", 1},
		"torn header":       {lines[0][:20], 1},
		"no header":         {join(lines[1:]...), 1},
		"other schema":      {strings.Replace(string(good), "journal/v1", "journal/v2", 1), 1},
		"no run":            {strings.Replace(string(good), `"run":"r1"`, `"run":""`, 1), 1},
		"header twice":      {join(lines[0], lines[0]), 2},
		"line missing":      {join(lines[0], lines[2], lines[3]), 2},
		"line twice":        {join(lines[0], lines[1], lines[1], lines[2]), 3},
		"lines swapped":     {join(lines[0], lines[2], lines[1], lines[3]), 2},
		"broken line":       {join(lines[0], "{\n", lines[2]), 2},
		"broken last line":  {join(lines[0], lines[1], "{\n"), 3},
		"empty line":        {join(lines[0], lines[1], "\n", lines[2]), 3},
		"two in one":        {join(lines[0], strings.TrimSuffix(lines[1], "\n")+lines[2]), 2},
		"unknown field":     {join(lines[0], strings.Replace(lines[1], `{`, `{"skip":true,`, 1)), 2},
		"unknown kind":      {join(lines[0], strings.Replace(lines[1], `"note"`, `"nose"`, 1)), 2},
		"zeros in between":  {join(lines[0], "\x00\x00\x00\n", lines[2]), 2},
		"step name missing": {join(lines[0], lines[1], strings.Replace(lines[2], `"step":"a",`, "", 1)), 3},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tc.data), 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, readErr := Read(path)
			_, _, openErr := Open(path)
			for _, err := range []error{readErr, openErr} {
				if c := (*CorruptError)(nil); !errors.As(err, &c) || c.Line != tc.line || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, want a CorruptError in line %d", err, tc.line)
				}
			}
			if after, _ := os.ReadFile(path); string(after) != tc.data {
				t.Error("the file was changed")
			}
		})
	}
	t.Run("zeros at the end are a torn line", func(t *testing.T) {
		// What some file systems leave after a power cut: the size grew, the data did not come.
		if err := os.WriteFile(path, append(bytes.Clone(good), make([]byte, 300)...), 0o600); err != nil {
			t.Fatal(err)
		}
		j, records, err := Open(path)
		if err != nil || len(records) != 3 {
			t.Fatalf("%d records, %v", len(records), err)
		}
		_ = j.Close()
		if _, records, err := Read(path); err != nil || len(records) != 4 {
			t.Errorf("%d records, %v", len(records), err)
		}
	})
}

func drawRecord(rt *rapid.T) Record {
	r := Record{
		Step:  rapid.String().Draw(rt, "step"),
		Kind:  rapid.SampledFrom([]Kind{Intent, Outcome, Failed, Note}).Draw(rt, "kind"),
		Error: rapid.String().Draw(rt, "error"),
	}
	if r.Step == "" {
		r.Step = "s"
	}
	if rapid.Bool().Draw(rt, "with data") {
		b, err := json.Marshal(rapid.MapOf(rapid.String(), rapid.String()).Draw(rt, "data"))
		if err != nil {
			rt.Fatal(err)
		}
		r.Data = b
	}
	return r
}

// Whatever a kill leaves of a journal, it opens to the records that were whole, or, cut within the header, says so.
func TestEveryPrefixOpens(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		path := filepath.Join(dir, strconv.Itoa(n))
		j, err := Create(path, header())
		if err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(0, 4).Draw(rt, "records") {
			if err := j.Append(drawRecord(rt)); err != nil {
				rt.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			rt.Fatal(err)
		}
		whole, err := os.ReadFile(path)
		if err != nil {
			rt.Fatal(err)
		}
		_, all, _, err := parse(path, whole)
		if err != nil {
			rt.Fatal(err)
		}
		headerEnd := bytes.IndexByte(whole, '\n')
		for cut := range len(whole) + 1 {
			_, got, good, err := parse(path, whole[:cut])
			if cut <= headerEnd {
				if !errors.Is(err, ErrTornHeader) {
					rt.Fatalf("cut at %d: %v", cut, err)
				}
				continue
			}
			if err != nil {
				rt.Fatalf("cut at %d: %v", cut, err)
			}
			if want := all[:bytes.Count(whole[:cut], []byte("\n"))-1]; len(want)+len(got) > 0 && !reflect.DeepEqual(got, want) {
				rt.Fatalf("cut at %d: got %+v, want %+v", cut, got, want)
			}
			if good > int64(cut) || whole[good-1] != '\n' {
				rt.Fatalf("cut at %d: good is %d", cut, good)
			}
		}
		// And the file itself, at one place.
		cut := rapid.IntRange(headerEnd+1, len(whole)).Draw(rt, "cut")
		if err := os.Truncate(path, int64(cut)); err != nil {
			rt.Fatal(err)
		}
		j, before, err := Open(path)
		if err != nil {
			rt.Fatal(err)
		}
		if err := errors.Join(j.Append(Record{Kind: Note}), j.Close()); err != nil {
			rt.Fatal(err)
		}
		if _, after, err := Read(path); err != nil || len(after) != len(before)+2 {
			rt.Fatalf("%d records before, %d after, %v", len(before), len(after), err)
		}
	})
}

// Kills a process that appends, at any instant, again and again: the journal always opens, and every record
// that Append said is on disk is there.
func TestSurvivesKills(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "j")
	var seen int
	for i := range 40 {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), childVar+"="+path)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// A little later each time, in steps that no fsync is in step with: the first ones from the start of the process, to
		// hit Create and Open, the others from its first record.
		kill := time.AfterFunc(time.Duration(i)*1700*time.Microsecond, func() { _ = cmd.Process.Kill() })
		if i >= 15 {
			kill.Stop()
		}
		acked := 0
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if i >= 15 && acked == 0 {
				kill.Reset(time.Duration(i-15) * time.Duration(i-15) * 97 * time.Microsecond)
			}
			if acked, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Wait()
		kill.Stop()
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: the process says: %s", i, stderr.String())
		}
		_, records, err := Read(path)
		if errors.Is(err, fs.ErrNotExist) && acked == 0 && seen == 0 {
			continue
		}
		if err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if len(records) < acked || len(records) < seen {
			t.Fatalf("kill %d: %d records, %d were on disk before, %d were said to be", i, len(records), seen, acked)
		}
		seen = len(records)
	}
	if seen < 25 {
		t.Errorf("%d records only: the kills came too early to prove anything", seen)
	}
	j, _, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
}

// Another process's lock, not only this one's.
func TestLockedByAnotherProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "j")
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childVar+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	_, _, err = Open(path)
	if l := (*LockedError)(nil); !errors.As(err, &l) || l.Owner.PID != cmd.Process.Pid {
		t.Errorf("got %v, want a LockedError that names process %d", err, cmd.Process.Pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	j, _, err := Open(path)
	if err != nil {
		t.Fatalf("after its death: %v", err)
	}
	_ = j.Close()
}

func TestConcurrentAppends(t *testing.T) {
	j, path := create(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := j.Append(Record{Step: strconv.Itoa(i), Kind: Intent}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, records, err := Read(path); err != nil || len(records) != 20 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

func FuzzRead(f *testing.F) {
	j, path := create(f)
	appendAll(f, j, Record{Step: "a", Kind: Intent, Data: json.RawMessage(`{"x":1}`)}, Record{Step: "a", Kind: Failed, Error: "no"})
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add([]byte{})
	f.Add([]byte("{}\n{}\n"))
	f.Add(bytes.Replace(good, []byte(`"seq":1`), []byte(`"seq":1e0`), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, records, good, err := parse("j", data)
		if good < 0 || good > int64(len(data)) {
			t.Fatalf("good is %d of %d", good, len(data))
		}
		if err != nil {
			if c := (*CorruptError)(nil); !errors.As(err, &c) || c.Line < 1 {
				t.Fatalf("got %v, want a CorruptError with a line", err)
			}
			return
		}
		// What was read can be written and read again.
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		if err := e.Encode(h); err != nil {
			return // a time that JSON cannot hold
		}
		for _, r := range records {
			if err := e.Encode(r); err != nil {
				return
			}
		}
		h2, records2, _, err := parse("j", b.Bytes())
		if err != nil || !h2.Time.Equal(h.Time) || h2.Run != h.Run || len(records2) != len(records) {
			t.Fatalf("%v: %s", err, b.Bytes())
		}
	})
}

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "journal.jsonl")
	j, err := Create(path, Header{Plan: "sha256:ab", Run: "r1"})
	if err != nil {
		return
	}
	_ = j.Append(Record{Step: "drain/w1", Kind: Intent})
	_ = j.Close() // or the process is killed

	j, records, err := Open(path)
	if err != nil {
		return
	}
	defer func() { _ = j.Close() }()
	for _, r := range records {
		fmt.Println(r.Seq, r.Kind, r.Step)
	}
	// Output: 1 intent drain/w1
}
