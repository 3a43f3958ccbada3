package bundle

import (
	"errors"
	"strings"
	"testing"
)

func TestEveryRecipePinsWhatItsNameSays(t *testing.T) {
	entries, err := recipeFiles.ReadDir("recipes")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, c := range components() {
		versions := recipeVersions(c.name)
		if len(versions) == 0 {
			t.Errorf("no recipe for %s", c.name)
		}
		for _, v := range versions {
			known[c.name+"-"+v] = true
			r, err := recipeNamed(c.name, v)
			if err != nil {
				t.Errorf("%s %s: %v", c.name, v, err)
				continue
			}
			if err := r.check(); err != nil {
				t.Error(err)
			}
			if len(r.sum) == 0 {
				t.Errorf("%s %s has no sums", c.name, v)
			}
		}
	}
	for _, e := range entries {
		if !known[e.Name()] {
			t.Errorf("recipes/%s is of no known component and version", e.Name())
		}
	}
}

func TestRecipeCheckFinds(t *testing.T) {
	r, err := recipeNamed("runc", newestRecipe("runc"))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*recipe){
		"another version":   func(r *recipe) { r.version = "v0.0.1" },
		"a missing tool":    func(r *recipe) { r.mod = []byte(strings.ReplaceAll(string(r.mod), "tool ", "// tool ")) },
		"a local directory": func(r *recipe) { r.mod = append(append([]byte{}, r.mod...), "\nreplace example.org/x => ../x\n"...) },
		"nonsense":          func(r *recipe) { r.mod = []byte("}") },
	} {
		bad := r
		spoil(&bad)
		if bad.check() == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func TestNoRecipeSaysWhatThereIs(t *testing.T) {
	_, err := recipeNamed("kubernetes", "v1.2.3")
	var none *NoRecipeError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "v1.37.2") || !strings.Contains(err.Error(), "internal/bundle/gen") {
		t.Errorf("got %v", err)
	}
}

func TestRecipeDigestNamesAllInput(t *testing.T) {
	base := embeddedRecipe("pause", "3.10.2", []byte("package main"))
	digest := func(r recipe, goVersion, arch string) string { return r.digest(r.binaries[0], goVersion, arch) }
	seen := map[string]string{digest(base, "go1.26.8", "amd64"): "base"}
	check := func(name, d string) {
		if other, ok := seen[d]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[d] = name
	}
	check("another Go", digest(base, "go1.26.9", "amd64"))
	check("another architecture", digest(base, "go1.26.8", "arm64"))
	check("another version", digest(embeddedRecipe("pause", "3.10.3", []byte("package main")), "go1.26.8", "amd64"))
	check("another source", digest(embeddedRecipe("pause", "3.10.2", []byte("package  main")), "go1.26.8", "amd64"))
	if digest(base, "go1.26.8", "amd64") != digest(embeddedRecipe("pause", "3.10.2", []byte("package main")), "go1.26.8", "amd64") {
		t.Error("the same input has two digests")
	}
}

func TestKubernetesIsStamped(t *testing.T) {
	r, err := recipeNamed("kubernetes", "v1.37.2")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"k8s.io/component-base/version.gitVersion=v1.37.2", "k8s.io/client-go/pkg/version.gitMinor=37"} {
		if !strings.Contains(r.ldflags(), want) {
			t.Errorf("%s is not in %s", want, r.ldflags())
		}
	}
}

func TestCoreDNSHasThePluginsOfKubeadmsCorefile(t *testing.T) {
	r, err := recipeNamed("coredns", newestRecipe("coredns"))
	if err != nil {
		t.Fatal(err)
	}
	// Source: k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/dns (CoreDNSConfigMap); prometheus is plugin/metrics.
	for _, p := range []string{"errors", "health", "ready", "kubernetes", "metrics", "forward", "cache", "loop", "reload", "loadbalance"} {
		if !strings.Contains(string(r.sources["main.go"]), `coredns/plugin/`+p+`"`) {
			t.Errorf("plugin %s is not built in", p)
		}
	}
	if args := r.args(r.binaries[0], "x"); args[len(args)-1] != "." {
		t.Errorf("built from %v", args)
	}
}
