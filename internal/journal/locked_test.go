package journal

import (
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
	// Looking does not take it over.
	if _, records, err := Read(path); err != nil || len(records) != 0 {
		t.Errorf("%v %v", records, err)
	}
	if _, _, err := Locked(path + "x"); err == nil {
		t.Error("a missing journal is no error")
	}
}
