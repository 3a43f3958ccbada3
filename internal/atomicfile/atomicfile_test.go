package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	return names
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v %v", fi, err)
	}
	if got := entries(t, dir); len(got) != 1 {
		t.Errorf("left behind: %q", got)
	}
}

func TestNothingIsVisibleBeforeCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := Create(path, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("before Commit: %q", got)
	}
	if err := f.Abort(); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("after Abort: %q", got)
	}
	if got := entries(t, dir); len(got) != 1 {
		t.Errorf("left behind: %q", got)
	}
	if err := f.Commit(); err == nil {
		t.Error("Commit after Abort should be an error")
	}
}

func TestAFailedSyncOfTheDirectorySaysThatTheNewVersionIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("input/output error")
	syncDir = func(string) error { return broken }
	defer func() { syncDir = SyncDir }()
	err := WriteFile(path, []byte("new"), 0o644)
	if e := (*NotDurableError)(nil); !errors.As(err, &e) || e.Path != path || !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("got %q, %v", got, err)
	}
	// While what fails before is another error, and the old version stays.
	if err := os.Mkdir(path+".d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path+".d", []byte("x"), 0o644); err == nil || errors.As(err, new(*NotDurableError)) {
		t.Errorf("got %v", err)
	}
}

func TestAFailedRenameLeavesNothingBehind(t *testing.T) {
	// A rename onto a directory refuses the last step.
	dir := t.TempDir()
	path := filepath.Join(dir, "d")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x"), 0o644); err == nil {
		t.Fatal("a file replaced a directory")
	}
	if got := entries(t, dir); len(got) != 1 || got[0] != "d" {
		t.Errorf("left behind: %q", got)
	}
	if err := WriteFile(filepath.Join(dir, "no", "such", "dir"), nil, 0o644); err == nil {
		t.Error("a missing directory should be an error")
	}
}
