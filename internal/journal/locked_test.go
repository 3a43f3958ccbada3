package journal

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLockedOnlyLooks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, err := Create(path, Header{Plan: "sha256:1", Run: "r", Lineage: "l", Tool: "t", Owner: Owner{Who: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
	if o, locked, err := Locked(path); err != nil || !locked || o.Who != "alice" {
		t.Errorf("open: %v %v %v", o, locked, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, locked, err := Locked(path); err != nil || locked {
		t.Errorf("closed: %v %v", locked, err)
	}
	// Another that looks is no process at work.
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := lockShared(f); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, locked, err := Locked(path); err != nil || locked {
		t.Errorf("while another looks: %v %v", locked, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// Looking does not take it over.
	if _, records, err := Read(path); err != nil || len(records) != 0 {
		t.Errorf("%v %v", records, err)
	}
	if _, _, err := Locked(path + "x"); err == nil {
		t.Error("a missing journal is no error")
	}
}
