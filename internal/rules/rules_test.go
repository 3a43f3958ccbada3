package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/belayops/belay"

// levels is the picture of ARCHITECTURE.md: imports run downward only. A
// package may import those of lower levels, and those of its own level that
// sideways lists.
var levels = map[string]int{
	"internal/kubeversion": 0, "internal/event": 0, "internal/condition": 0, "internal/atomicfile": 0,
	"internal/sarif": 0, "internal/junit": 0,
	"internal/host": 1, "internal/journal": 1, "internal/kubeadm": 1, "internal/bundle": 1, "cluster": 1,
	"internal/controlplane": 1, "internal/inventory": 1,
	"apicheck": 2, "backup": 2, "inspect": 2, "testenv": 2, "internal/payload": 2,
	"plan": 3, "preflight": 3,
	"executor": 4, "provision": 4, "rehearse": 4,
	"internal/render": 5, "cmd/belay": 6,
	// Programs of the build and tests of tests.
	"internal/layers": 6, "internal/rules": 6,
}

// sideways lists the imports within one level, each with its reason.
var sideways = map[string]map[string]string{
	"internal/inventory":    {"internal/host": "an inventory opens hosts"},
	"internal/bundle":       {"cluster": "the table of etcd floors is cluster's"},
	"internal/controlplane": {"internal/bundle": "a control plane runs a bundle's binaries"},
}

// level finds a package's level; a package below a listed one has its level.
func level(pkg string) (root string, lvl int, ok bool) {
	for p := pkg; p != "."; p = filepath.Dir(p) {
		if l, ok := levels[p]; ok {
			return p, l, true
		}
	}
	return "", 0, false
}

type source struct {
	path, pkg string
	file      *ast.File
	test      bool
}

func sources(t *testing.T) (root string, files []source) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, source{path: rel, pkg: filepath.Dir(rel), file: f, test: strings.HasSuffix(name, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d Go files found: the walk is broken", len(files))
	}
	return root, files
}

func TestImportsRunDownward(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		root, lvl, ok := level(f.pkg)
		if !ok {
			t.Errorf("%s: package %s has no level: add it to the picture in ARCHITECTURE.md and to this test", f.path, f.pkg)
			continue
		}
		if f.test {
			continue
		}
		for _, imp := range f.file.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			rel, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			otherRoot, other, ok := level(rel)
			switch {
			case !ok || otherRoot == root || other < lvl:
			case other == lvl && sideways[root][otherRoot] != "":
			default:
				t.Errorf("%s (level %d) imports %s (level %d): imports run downward only", f.path, lvl, rel, other)
			}
		}
	}
}

// forbidden imports, with the packages that may have them.
var forbidden = []struct {
	imports *regexp.Regexp
	allowed *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`^github\.com/spf13/cobra`), regexp.MustCompile(`^cmd/`), "only cmd reads flags"},
	{regexp.MustCompile(`^github\.com/pkg/errors$`), regexp.MustCompile(`^$`), "the standard library wraps errors"},
	{regexp.MustCompile(`^` + module + `/internal/render$`), regexp.MustCompile(`^cmd/`), "only cmd has words and colours"},
	{regexp.MustCompile(`^` + module + `/internal/host/hosttest$`), regexp.MustCompile(`^$`), "hosttest is for tests"},
	{regexp.MustCompile(`^` + module + `/internal/bundle/bundletest$`), regexp.MustCompile(`^$`), "bundletest is for tests"},
}

// impure imports are closed to cluster and plan: no I/O, no client.
var impure = regexp.MustCompile(`^(k8s\.io/client-go|go\.etcd\.io|net|net/http|os|os/exec|log)(/|$)`)

func TestClusterAndPlanArePure(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		if f.test || (f.pkg != "cluster" && f.pkg != "plan") {
			continue
		}
		for _, imp := range f.file.Imports {
			if path, _ := strconv.Unquote(imp.Path.Value); impure.MatchString(path) {
				t.Errorf("%s imports %s: packages cluster and plan are pure", f.path, path)
			}
		}
	}
}

func TestForbiddenImports(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		if f.test {
			continue
		}
		for _, imp := range f.file.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, rule := range forbidden {
				if rule.imports.MatchString(path) && !rule.allowed.MatchString(f.pkg) {
					t.Errorf("%s imports %s: %s", f.path, path, rule.why)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	_, files := sources(t)
	docs := map[string]string{}
	for _, f := range files {
		if f.test {
			continue
		}
		if f.file.Doc != nil {
			if docs[f.pkg] != "" {
				t.Errorf("%s: package %s has a second package comment", f.path, f.pkg)
			}
			docs[f.pkg] = f.file.Doc.Text()
		} else if _, ok := docs[f.pkg]; !ok {
			docs[f.pkg] = ""
		}
	}
	for pkg, doc := range docs {
		if len(strings.Fields(doc)) < 5 {
			t.Errorf("package %s has no comment that says what it is for", pkg)
		}
	}
}

func TestNoVaguePackageNames(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		for part := range strings.SplitSeq(f.pkg, string(filepath.Separator)) {
			if slices.Contains([]string{"util", "utils", "common", "helpers", "types", "misc", "pkg", "shared"}, part) {
				t.Errorf("%s: %q says nothing about the package", f.path, part)
			}
		}
	}
}

// calls that only some packages may make.
var calls = []struct {
	pkg, name string
	allowed   *regexp.Regexp
	why       string
}{
	{"os", "Exit", regexp.MustCompile(`^(cmd/|internal/layers|apicheck/gen|internal/bundle/)`), "only a program's main exits"},
	{"fmt", "Print", regexp.MustCompile(`^(cmd/|internal/layers|apicheck/gen|internal/bundle/)`), "domain packages emit events"},
	{"fmt", "Println", regexp.MustCompile(`^(cmd/|internal/layers|apicheck/gen|internal/bundle/)`), "domain packages emit events"},
	{"fmt", "Printf", regexp.MustCompile(`^(cmd/|internal/layers|apicheck/gen|internal/bundle/)`), "domain packages emit events"},
	{"time", "Sleep", regexp.MustCompile(`^$`), "wait for a condition instead"},
	{"context", "TODO", regexp.MustCompile(`^$`), "take the caller's context"},
}

func TestForbiddenCalls(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		if f.test {
			continue
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			for _, c := range calls {
				if id.Name == c.pkg && sel.Sel.Name == c.name && !c.allowed.MatchString(f.pkg) {
					t.Errorf("%s calls %s.%s: %s", f.path, c.pkg, c.name, c.why)
				}
			}
			return true
		})
	}
}

func TestGoModHasNoReplace(t *testing.T) {
	root, _ := sources(t)
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "\nreplace ") {
		t.Error("go.mod replaces a module: `go install` of this module would ignore it")
	}
}

// The project speaks of itself only: no path or host of the machine it was made on.
func TestNoMachinePaths(t *testing.T) {
	root, _ := sources(t)
	out, err := exec.Command("git", "-C", root, "ls-files").Output()
	if err != nil {
		t.Fatal(err)
	}
	home := regexp.MustCompile(`(^|[^A-Za-z0-9])/(root|home/[a-z]+)/`)
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.HasSuffix(name, ".sum") || strings.HasSuffix(name, "/sum") || strings.Contains(name, "testdata/") || name == "internal/rules/rules_test.go" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // removed in the work tree
		}
		for i, line := range strings.Split(string(data), "\n") {
			if home.MatchString(line) && !strings.Contains(line, "/root"+"/.ssh") {
				t.Errorf("%s:%d: a path of one machine: %s", name, i+1, strings.TrimSpace(line))
			}
		}
	}
}
