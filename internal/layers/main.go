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
	"sync"
	"text/tabwriter"
	"time"
)

// layer is one kind of test.
type layer struct {
	name, what string
	// args are go test's, for layers of Go tests. tag selects the test files with this build tag, and runs their tests alone.
	args []string
	tag  string
	// order names packages that take long, longest first.
	order []string
	// steps are commands, for layers that are no Go tests.
	steps [][]string
	// beside says that the layer waits more than it computes: it runs beside others of which that is said, jobs at a time.
	beside bool
}

// jobs is how many packages with real machines are tested at a time: they wait for kubelets for more than a third of their time.
const jobs = 2

var layers = []layer{
	{name: "lint", what: "formatting, vet, staticcheck, tidy, generated files", steps: [][]string{
		{"sh", "-c", `out=$(gofmt -l $(git ls-files '*.go')); [ -z "$out" ] || { echo "not formatted:"; echo "$out"; exit 1; }`},
		{"go", "vet", "./..."},
		{"go", "vet", "-tags", "e2e,controlplane", "./..."},
		// It looks at every dependency; collecting garbage less often halves its time.
		{"env", "GOGC=400", "go", "tool", "staticcheck", "./..."},
		{"go", "mod", "tidy", "-diff"},
		{"go", "mod", "verify"},
	}},
	{name: "unit", what: "every package, no root, no network", args: []string{"-skip", "^TestScript", "./..."}},
	{name: "script", what: "the belay program itself, over state files and local servers", args: []string{"-run", "^TestScript", "./cmd/belay"}},
	{name: "controlplane", what: "real etcd and kube-apiserver processes", tag: "controlplane", args: []string{"-p", "2", "-timeout", "25m"}},
	{
		name: "machines", what: "real machines and clusters", tag: "e2e", args: []string{"-timeout", "45m"}, beside: true,
		order: []string{"./cmd/belay", "./provision", "./executor"},
	},
	{name: "demo", what: "make demo: a cluster up, checked, backed up, upgraded, verified", steps: [][]string{{"make", "--no-print-directory", "demo"}}, beside: true},
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
		var chosen []layer
		for _, name := range names {
			i := slices.IndexFunc(layers, func(l layer) bool { return l.name == name })
			if i < 0 {
				return fmt.Errorf("no layer %q", name)
			}
			chosen = append(chosen, layers[i])
		}
		for len(chosen) > 0 {
			n := 1
			for chosen[0].beside && n < len(chosen) && chosen[n].beside {
				n++
			}
			rs, err := execute(chosen[:n])
			if err != nil {
				return err
			}
			chosen = chosen[n:]
			all = append(all, rs...)
			if file != "" {
				data, err := json.Marshal(all)
				if err == nil {
					err = os.WriteFile(file, data, 0o644)
				}
				if err != nil {
					return err
				}
			}
			if slices.ContainsFunc(rs, func(r result) bool { return !r.ok() }) {
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

// execute runs one layer, or several beside each other.
func execute(ls []layer) ([]result, error) {
	type job struct {
		layer int
		run   func(*result) error
	}
	var queue []job
	rs := make([]result, len(ls))
	for i, l := range ls {
		fmt.Printf("==> layer %s: %s\n", l.name, l.what)
		rs[i] = result{Layer: l.name, What: l.what}
		parts, err := l.parts(len(ls) > 1)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.name, err)
		}
		for _, p := range parts {
			queue = append(queue, job{i, p})
		}
	}
	width := 1
	if ls[0].beside {
		width = jobs
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	began := make([]time.Time, len(ls))
	slots := make(chan struct{}, width)
	for _, j := range queue {
		slots <- struct{}{}
		if began[j.layer].IsZero() {
			began[j.layer] = time.Now()
		}
		start := began[j.layer]
		wg.Go(func() {
			defer func() { <-slots }()
			var r result
			err := j.run(&r)
			mu.Lock()
			defer mu.Unlock()
			t := &rs[j.layer]
			t.Passed, t.Failed, t.Skipped = t.Passed+r.Passed, t.Failed+r.Failed, t.Skipped+r.Skipped
			t.Seconds = time.Since(start).Seconds()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return rs, errors.Join(errs...)
}

// parts are what a layer consists of, to be run in this order. among says that others print at the same time.
func (l layer) parts(among bool) ([]func(*result) error, error) {
	if l.steps != nil {
		return []func(*result) error{func(r *result) error { return l.runSteps(r, among) }}, nil
	}
	if l.tag == "" {
		return []func(*result) error{func(r *result) error { return l.runTests(r, nil, nil) }}, nil
	}
	packages, tests, err := tagged(l.tag)
	if err != nil || len(packages) == 0 {
		return nil, err
	}
	if !l.beside {
		return []func(*result) error{func(r *result) error { return l.runTests(r, packages, tests) }}, nil
	}
	rank := func(p string) int {
		if i := slices.Index(l.order, p); i >= 0 {
			return i
		}
		return len(l.order)
	}
	slices.SortStableFunc(packages, func(a, b string) int { return rank(a) - rank(b) })
	var out []func(*result) error
	for _, p := range packages {
		out = append(out, func(r *result) error { return l.runTests(r, []string{p}, tests) })
	}
	return out, nil
}

// named puts the layer's name before each line.
type named struct {
	name string
	rest []byte
}

func (n *named) Write(p []byte) (int, error) {
	n.rest = append(n.rest, p...)
	i := bytes.LastIndexByte(n.rest, '\n') + 1
	var b bytes.Buffer
	for line := range bytes.Lines(n.rest[:i]) {
		fmt.Fprintf(&b, "%s | %s", n.name, line)
	}
	n.rest = n.rest[i:]
	if _, err := os.Stdout.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (l layer) runSteps(r *result, among bool) error {
	for _, argv := range l.steps {
		fmt.Printf("  .. %s\n", strings.Join(argv, " "))
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if among {
			w := &named{name: l.name}
			cmd.Stdout, cmd.Stderr = w, w
		}
		if err := cmd.Run(); err != nil {
			fmt.Printf("  !! %s: %v\n", strings.Join(argv, " "), err)
			r.Failed++
			continue
		}
		r.Passed++
	}
	return nil
}

func (l layer) runTests(r *result, packages, tests []string) error {
	// Layer lint has vetted them, with more than go test asks for.
	args := append([]string{"test", "-json", "-vet=off"}, l.args...)
	if l.tag != "" {
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
