package host

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

func TestTailKeepsTheEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := tail{max: rapid.IntRange(1, 20).Draw(rt, "max")}
		var all []byte
		for _, p := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 30)).Draw(rt, "writes") {
			all = append(all, p...)
			if n, err := k.Write(p); n != len(p) || err != nil {
				rt.Fatal(n, err)
			}
			if want := all[max(0, len(all)-k.max):]; !bytes.Equal(k.Bytes(), want) {
				rt.Fatalf("kept %q, want %q", k.Bytes(), want)
			}
		}
	})
}

// However the bytes arrive, noise, mark and output are told apart.
func TestMarkedWriter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		before := rapid.StringMatching(`(noise|\n|ma){0,5}`).Draw(rt, "before")
		after := rapid.StringMatching(`(out|\n|mark){0,5}`).Draw(rt, "after")
		all := []byte(before + "\nmark go 17\n" + after)
		var out bytes.Buffer
		found := 0
		w := markedWriter{mark: "mark", next: &out, found: func() { found++ }}
		for len(all) > 0 {
			n := rapid.IntRange(1, len(all)).Draw(rt, "n")
			if _, err := w.Write(all[:n]); err != nil {
				rt.Fatal(err)
			}
			all = all[n:]
		}
		if out.String() != after || string(w.before) != before || w.rest != "go 17" || found != 1 {
			rt.Fatalf("out %q, before %q, rest %q, found %d", out.String(), w.before, w.rest, found)
		}
	})
}

func TestExactly(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(rt, "data")
		size := rapid.Int64Range(0, 60).Draw(rt, "size")
		var r io.Reader = bytes.NewReader(data)
		if rapid.Bool().Draw(rt, "early EOF") {
			r = iotest.DataErrReader(r)
		}
		if rapid.Bool().Draw(rt, "small reads") {
			r = iotest.HalfReader(r)
		}
		got, err := io.ReadAll(&exactly{r: r, size: size})
		e := (*SizeError)(nil)
		switch n := int64(len(data)); {
		case n == size:
			if err != nil || !bytes.Equal(got, data) {
				rt.Fatalf("got %q, %v", got, err)
			}
		case !errors.As(err, &e) || e.Want != size || (e.Got > size) != (n > size):
			rt.Fatalf("%d bytes for %d: %v", n, size, err)
		case int64(len(got)) > size:
			rt.Fatalf("passed on %d bytes of %d", len(got), size)
		}
	})
}

func TestParseUnit(t *testing.T) {
	const digest = "Description=" + description + "ab12\n"
	since := "ExecMainStartTimestamp=Tue 2026-12-01 00:11:31 UTC\n"
	at := time.Date(2026, 12, 1, 0, 11, 31, 0, time.UTC)
	for name, tc := range map[string]struct {
		out  string
		want UnitState
	}{
		"unknown":   {"LoadState=not-found\nActiveState=inactive\nExecMainStatus=0\nDescription=x.service\n", UnitState{}},
		"stopped":   {"LoadState=loaded\nActiveState=inactive\nSubState=dead\nExecMainStatus=0\n" + digest, UnitState{}},
		"queued":    {"LoadState=loaded\nActiveState=inactive\nJob=12\n" + digest, UnitState{Exists: true, Active: true, Digest: "ab12"}},
		"starting":  {"LoadState=loaded\nActiveState=activating\nSubState=start\n" + digest, UnitState{Exists: true, Active: true, Digest: "ab12"}},
		"running":   {"LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nExecMainStatus=0\n" + since + digest, UnitState{Exists: true, Active: true, Since: at, Digest: "ab12"}},
		"stopping":  {"LoadState=loaded\nActiveState=deactivating\nSubState=stop-sigterm\n" + digest, UnitState{Exists: true, Active: true, Digest: "ab12"}},
		"done":      {"LoadState=loaded\nActiveState=active\nSubState=exited\nResult=success\nExecMainCode=1\nExecMainStatus=0\nExecMainExitTimestamp=Tue 2026-12-01 00:11:31 UTC\n" + digest, UnitState{Exists: true, Result: "success", Ended: at, Digest: "ab12"}},
		"said no":   {"LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainCode=1\nExecMainStatus=3\n" + digest, UnitState{Exists: true, Result: "exit-code", ExitCode: 3, Digest: "ab12"}},
		"killed":    {"LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=signal\nExecMainCode=2\nExecMainStatus=9\n" + digest, UnitState{Exists: true, Result: "signal", ExitCode: 137, Digest: "ab12"}},
		"dumped":    {"LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=core-dump\nExecMainCode=3\nExecMainStatus=11\n" + digest, UnitState{Exists: true, Result: "core-dump", ExitCode: 139, Digest: "ab12"}},
		"timed out": {"LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=timeout\nExecMainCode=1\nExecMainStatus=0\n" + digest, UnitState{Exists: true, Result: "timeout", ExitCode: 1, Digest: "ab12"}},
		"foreign":   {"LoadState=loaded\nActiveState=active\nSubState=running\nDescription=kubelet\n", UnitState{Exists: true, Active: true}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Name = "u"
			got, err := parseUnit("u", []byte(tc.out))
			if err != nil || got != tc.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tc.want)
			}
		})
	}
	for _, bad := range []string{"", "nonsense", "LoadState=loaded\n", "LoadState=loaded\nActiveState=failed\nExecMainStatus=x\n"} {
		if s, err := parseUnit("u", []byte(bad)); err == nil {
			t.Errorf("%q: got %+v and no error", bad, s)
		}
	}
}

func FuzzParseUnit(f *testing.F) {
	f.Add([]byte("LoadState=loaded\nActiveState=failed\nResult=signal\nExecMainCode=2\nExecMainStatus=9\n"))
	f.Add([]byte("LoadState=not-found\nActiveState=inactive\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseUnit("u", b)
		if err != nil {
			return
		}
		// What could not be read must not pass for a program that ended well.
		if s.Finished() && s.ExitCode == 0 && s.Result != "success" {
			t.Errorf("%q is taken for success: %+v", b, s)
		}
		if !s.Exists && s.Active {
			t.Errorf("%q: active without being there", b)
		}
	})
}

// systemd expands $ in arguments; what belay asks for must come out as it is.
func TestSystemdRunEscapes(t *testing.T) {
	u := Unit{Name: "u", Argv: []string{"/bin/echo", "$HOME", "${X}", "$$", "100%", "--"}, Env: []string{"A=$B"}}
	argv := u.systemdRun()
	got := strings.Join(argv[len(argv)-7:], " ")
	if want := "-- /bin/echo $$HOME $${X} $$$$ 100% --"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestErrorsStayShort(t *testing.T) {
	e := &ExitError{Host: "w1", Argv: []string{"x"}, Code: 1, Stderr: []byte(strings.Repeat("line\n", 1000) + "last")}
	if s := e.Error(); len(s) > 200 || !strings.HasSuffix(s, "last") {
		t.Errorf("%d bytes: %q", len(s), s)
	}
}
