package bundle

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

func TestRecipeMod(t *testing.T) {
	c, _ := componentNamed("kubernetes")
	upstream := `module k8s.io/kubernetes

go 1.26.0

require k8s.io/api v0.0.0

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/other => ../outside
	example.org/a v1.0.0 => example.org/b v1.2.3
)
`
	mod, err := recipeMod(c, "v1.36.3", []byte(upstream))
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse("go.mod", mod, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f.Go.Version != "1.26.0" || len(f.Tool) != len(c.binaries) || len(f.Replace) != 2 {
		t.Errorf("got\n%s", mod)
	}
	for _, want := range []string{"k8s.io/api => k8s.io/api v0.36.3", "example.org/a v1.0.0 => example.org/b v1.2.3", "require k8s.io/kubernetes v1.36.3"} {
		if !strings.Contains(string(mod), want) {
			t.Errorf("no %q in\n%s", want, mod)
		}
	}
	r := recipe{component: c, version: "v1.36.3", mod: mod}
	if err := r.check(); err != nil {
		t.Error(err)
	}
}

func TestWriteRecipeRefusesUnknownComponents(t *testing.T) {
	dir := t.TempDir()
	if err := WriteRecipe(t.Context(), dir, "flannel", "v1.0.0"); err == nil || !strings.Contains(err.Error(), "kube-router") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
