package preflight

import (
	"flag"
	"os"
	"testing"

	"github.com/belayops/belay/plan"
)

var update = flag.Bool("update", false, "write docs/checks.md anew")

func TestDocsMatchTheRegistry(t *testing.T) {
	const path = "../docs/checks.md"
	want := Docs() + plan.FindingDocs()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the registry says; run: go test ./preflight -run TestDocs -update", path)
	}
}
