// Command layers runs the project's test layers and prints one table of them.
//
// Usage: go run ./internal/layers [-results FILE] [-show] LAYER...
//
// A layer that ran nothing, or skipped a test, has failed: a test that does
// not run proves nothing, and nobody would see it otherwise.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// layer is one kind of test.
type layer struct {
	name, what string
	// args are go test's, for layers of Go tests. tag selects the test files with this build tag, and runs their tests alone.
	args []string
	tag  string
	// steps are commands, for layers that are no Go tests.
	steps [][]string
}

var layers = []layer{
	{name: "lint", what: "formatting, vet, staticcheck, tidy, generated files", steps: [][]string{
		{"sh", "-c", `out=$(gofmt -l $(git ls-files '*.go')); [ -z "$out" ] || { echo "not formatted:"; echo "$out"; exit 1; }`},
		{"go", "vet", "./..."},
		{"go", "vet", "-tags", "e2e,controlplane", "./..."},
		{"go", "tool", "staticcheck", "./..."},
		{"go", "mod", "tidy", "-diff"},
		{"go", "mod", "verify"},
	}},
	{name: "unit", what: "every package, no root, no network", args: []string{"-skip", "^TestScript", "./..."}},
	{name: "script", what: "the belay program itself, over state files and local servers", args: []string{"-run", "^TestScript", "./cmd/belay"}},
	{name: "controlplane", what: "real etcd and kube-apiserver processes", tag: "controlplane", args: []string{"-p", "2", "-timeout", "25m"}},
	{name: "machines", what: "real machines and clusters", tag: "e2e", args: []string{"-p", "2", "-timeout", "45m"}},
	{name: "demo", what: "make demo: a cluster up, checked, backed up, upgraded, verified", steps: [][]string{{"make", "demo"}}},
}

type result struct {
	Layer   string  `json:"layer"`
	What    string  `json:"what"`
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped int     `json:"skipped"`
	Seconds float64 `json:"seconds"`
	Note    string  `json:"note,omitempty"`
}

func (r result) ok() bool { return r.Failed == 0 && r.Skipped == 0 && r.Passed > 0 }

func main() {
	results := flag.String("results", "", "file that collects results over several runs")
	show := flag.Bool("show", false, "only print the table of the results file")
	flag.Parse()
	if err := run(*results, *show, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

func run(file string, show bool, names []string) error {
	var all []result
	if file != "" {
		data, err := os.ReadFile(file)
		if err == nil && len(data) > 0 {
			err = json.Unmarshal(data, &all)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if !show {
		for _, name := range names {
			i := slices.IndexFunc(layers, func(l layer) bool { return l.name == name })
			if i < 0 {
				return fmt.Errorf("no layer %q", name)
			}
			r, err := layers[i].execute()
			if err != nil {
				return fmt.Errorf("layer %s: %w", name, err)
			}
			all = append(all, r)
			if file != "" {
				data, err := json.Marshal(all)
				if err == nil {
					err = os.WriteFile(file, data, 0o644)
				}
				if err != nil {
					return err
				}
			}
			if !r.ok() {
				break
			}
		}
	}
	return table(os.Stdout, all)
}

func table(w io.Writer, all []result) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "\nLAYER\tPASSED\tFAILED\tSKIPPED\tSECONDS\tRESULT\tWHAT")
	var bad []string
	passed, failed, skipped := 0, 0, 0
	for _, r := range all {
		verdict := "ok"
		switch {
		case r.Failed > 0:
			verdict = "FAILED"
		case r.Skipped > 0:
			verdict = "SKIPPED TESTS"
		case r.Passed == 0:
			verdict = "RAN NOTHING"
		}
		if !r.ok() {
			bad = append(bad, r.Layer)
		}
		passed, failed, skipped = passed+r.Passed, failed+r.Failed, skipped+r.Skipped
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%.0f\t%s\t%s\n", r.Layer, r.Passed, r.Failed, r.Skipped, r.Seconds, verdict, r.What)
	}
	for _, l := range layers {
		if !slices.ContainsFunc(all, func(r result) bool { return r.Layer == l.name }) {
			fmt.Fprintf(tw, "%s\t-\t-\t-\t-\tnot run\t%s\n", l.name, l.what)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if len(bad) > 0 || len(all) == 0 {
		return fmt.Errorf("not ok: %s", strings.Join(bad, ", "))
	}
	return nil
}

func (l layer) execute() (result, error) {
	fmt.Printf("==> layer %s: %s\n", l.name, l.what)
	start := time.Now()
	r := result{Layer: l.name, What: l.what}
	var err error
	if l.steps != nil {
		err = l.runSteps(&r)
	} else {
		err = l.runTests(&r)
	}
	r.Seconds = time.Since(start).Seconds()
	return r, err
}

func (l layer) runSteps(r *result) error {
	for _, argv := range l.steps {
		fmt.Printf("  .. %s\n", strings.Join(argv, " "))
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Printf("  !! %s: %v\n", strings.Join(argv, " "), err)
			r.Failed++
			continue
		}
		r.Passed++
	}
	return nil
}

func (l layer) runTests(r *result) error {
	args := append([]string{"test", "-json"}, l.args...)
	if l.tag != "" {
		packages, tests, err := tagged(l.tag)
		if err != nil {
			return err
		}
		if len(packages) == 0 {
			return nil
		}
		args = append(args, "-tags", l.tag, "-count", "1", "-run", "^("+strings.Join(tests, "|")+")$")
		args = append(args, packages...)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failedPackages := read(out, r)
	if err := cmd.Wait(); err != nil && r.Failed == 0 {
		r.Failed += max(1, failedPackages)
	}
	return nil
}

// read counts tests and shows what failed, with its output, and each package as it ends.
func read(out io.Reader, r *result) (failedPackages int) {
	output := map[string]*bytes.Buffer{}
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		var e struct {
			Action, Package, ImportPath, Test, Output string
			Elapsed                                   float64
		}
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Println(sc.Text())
			continue
		}
		pkg := e.Package
		if pkg == "" {
			pkg = e.ImportPath
		}
		key := pkg + "\x00" + e.Test
		switch e.Action {
		case "output", "build-output":
			if output[key] == nil {
				output[key] = &bytes.Buffer{}
			}
			output[key].WriteString(e.Output)
		case "pass", "fail", "skip":
			if e.Test != "" {
				switch e.Action {
				case "pass":
					r.Passed++
				case "fail":
					r.Failed++
				case "skip":
					r.Skipped++
				}
			} else if e.Action == "fail" {
				failedPackages++
			}
			if b := output[key]; b != nil && (e.Action != "pass" && (e.Test != "" || e.Action == "fail")) {
				fmt.Print(b.String())
			}
			if e.Test == "" && e.Action != "skip" {
				fmt.Printf("  %s %s (%.1fs)\n", map[string]string{"pass": "ok", "fail": "!!"}[e.Action], pkg, e.Elapsed)
			}
			delete(output, key)
		case "build-fail":
			if b := output[key]; b != nil {
				fmt.Print(b.String())
			}
		}
	}
	return failedPackages
}

// tagged finds the packages with test files that carry a build tag, and the tests in those files.
func tagged(tag string) (packages, tests []string, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("//go:build "+tag+"\n")) {
			return nil
		}
		if pkg := "./" + filepath.Dir(path); !slices.Contains(packages, pkg) {
			packages = append(packages, pkg)
		}
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "func Test"); ok {
				if name, _, ok := strings.Cut(rest, "("); ok && name != "Main" && !slices.Contains(tests, "Test"+name) {
					tests = append(tests, "Test"+name)
				}
			}
		}
		return nil
	})
	return packages, tests, err
}
