package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write docs/cli anew")

// The reference in docs/cli is what `belay docs` writes: help texts, flags and their defaults as they are.
func TestReferenceIsCurrent(t *testing.T) {
	const dir = "../../docs/cli"
	// Defaults must not depend on who writes them.
	t.Setenv("BELAY_HOME", "/nonexistent")
	t.Setenv("BELAY_CACHE", "/nonexistent")
	made := t.TempDir()
	var out bytes.Buffer
	if code := run(t.Context(), []string{"docs", made}, nil, &out, &out); code != exitOK {
		t.Fatalf("exit code %d\n%s", code, out.String())
	}
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(made)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := filepath.Glob(filepath.Join(made, "*.md"))
	if err != nil || len(want) < 20 {
		t.Fatalf("%d files, %v", len(want), err)
	}
	have, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil || len(have) != len(want) {
		t.Errorf("%s has %d files, and there are %d commands, %v", dir, len(have), len(want), err)
	}
	for _, f := range want {
		a, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.Base(f)))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is not what the program says, %v; run: make generate", filepath.Base(f), err)
		}
	}
}
