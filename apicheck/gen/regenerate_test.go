//go:build modules

// The layer "modules" needs the Go module proxy, or a module cache that holds the pins.

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestCommittedDatabaseIsWhatTheModulesGive(t *testing.T) {
	res, err := generate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const remedy = "run go generate ./apicheck/lifecycle and look at the difference"
	for name, data := range map[string][]byte{"../lifecycle/lifecycle.json": res.database, "../schema/schema.txt": res.schema} {
		golden, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(golden, data) {
			t.Errorf("%s differs from what the pinned modules give: %s", name, remedy)
		}
	}
	files, err := filepath.Glob("../lifecycle/testdata/served/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(res.served) {
		t.Errorf("%d minors recorded, the modules give %d: %s", len(files), len(res.served), remedy)
	}
	for name, data := range res.served {
		golden, err := os.ReadFile(filepath.Join("../lifecycle/testdata/served", name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(golden, data) {
			t.Errorf("%s differs from what the pinned modules give: %s", name, remedy)
		}
	}
}
