package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// Networks of two state directories share one computer, and its settings are to be as before when both are gone.
func TestSettingsAreOfTheComputer(t *testing.T) {
	dir := t.TempDir()
	proc, file := filepath.Join(dir, "proc"), filepath.Join(dir, "run", "settings.json")
	panicFile := filepath.Join(proc, "kernel", "panic")
	set := func(v string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(panicFile), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(panicFile, []byte(v+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(panicFile); err != nil || string(b) != want+"\n" {
			t.Errorf("kernel.panic is %q, %v, want %s", b, err, want)
		}
	}
	var up []string
	s := settings{proc: proc, file: file, switches: func() ([]string, error) { return up, nil }}
	before := func() map[string]string {
		t.Helper()
		m, err := s.before()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	restore := func(recorded map[string]string) []string {
		t.Helper()
		changed, err := s.restore(recorded)
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}

	set("1")
	a := before()
	up = []string{"belay-a"}
	set("10") // a kubelet of a
	b := before()
	up = []string{"belay-a", "belay-b"}
	if a["kernel/panic"] != "1" || b["kernel/panic"] != "1" {
		t.Errorf("the second takes the first one's changes for the computer's own: %v, %v", a, b)
	}
	up = []string{"belay-b"}
	if got := restore(a); got != nil {
		t.Errorf("settings are put back under a running network: %v", got)
	}
	is("10")
	up = nil
	if got := restore(b); len(got) != 1 || got[0] != "set kernel.panic back from 10 to 1" {
		t.Errorf("changed: %q", got)
	}
	is("1")
	if _, err := os.Stat(filepath.Dir(file)); err == nil {
		t.Error("the file is left behind")
	}

	// A file that a network of a former time left is not believed.
	set("1")
	before()
	set("5")
	if m := before(); m["kernel/panic"] != "5" {
		t.Errorf("with no network up: %v", m)
	}
	// Without the file, the network's own record has to do.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	set("10")
	restore(map[string]string{"kernel/panic": "5"})
	is("5")
}
