package apicheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConvertFiles(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old.yaml")
	for name, text := range map[string]string{"old.yaml": "apiVersion: batch/v1beta1\nkind: CronJob\n", "pdb.yaml": "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n",
		"new.yaml": "apiVersion: v1\nkind: Pod\n", "bad.yaml": "a: b: c\n", "notes.txt": "apiVersion: batch/v1beta1\nkind: CronJob\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(old, filepath.Join(dir, "a-link.yaml")); err != nil {
		t.Fatal(err)
	}
	o := ConvertOptions{To: minor(25), Files: []string{dir}}
	rep, err := Convert(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Files) != 3 || rep.Read != 5 || len(rep.Unreadable) != 1 {
		t.Errorf("%d files, %d read, unread %v", len(rep.Files), rep.Read, rep.Unreadable)
	}
	if text, _ := os.ReadFile(old); !strings.Contains(string(text), "v1beta1") {
		t.Error("a file was written without being asked")
	}
	o.Write = true
	if _, err = Convert(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(old)
	if err != nil || string(text) != "apiVersion: batch/v1\nkind: CronJob\n" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(old); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "a-link.yaml")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("a link became a file")
	}
	if rep, err = Convert(t.Context(), o); err != nil || len(rep.Files) != 1 || rep.Files[0].Written {
		t.Errorf("a second run: %+v, %v", rep.Files, err)
	}
}

func TestConvertWritesAllOrNothing(t *testing.T) {
	const text = "apiVersion: batch/v1beta1\nkind: CronJob\n"
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a.yaml": 0o644, "b.yaml": 0o444} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	rep, err := Convert(t.Context(), ConvertOptions{To: minor(25), Files: []string{dir}, Write: true})
	if err == nil || !strings.Contains(err.Error(), "b.yaml: it is read-only (mode 0444)") {
		t.Errorf("%v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "a.yaml")); string(got) != text || rep.Files[0].Written {
		t.Error("a file was written although another may not be")
	}
	// A file that changed since it was read is left alone.
	rep, err = Convert(t.Context(), ConvertOptions{To: minor(25), Files: []string{filepath.Join(dir, "a.yaml")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("# new\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := rep.write(); err == nil || !strings.Contains(err.Error(), "changed while") {
		t.Errorf("%v", err)
	}
}
