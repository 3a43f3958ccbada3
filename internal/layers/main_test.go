package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestLayersBesideEachOther: both wait for the other one's file, so that neither ends alone.
func TestLayersBesideEachOther(t *testing.T) {
	dir := t.TempDir()
	meet := func(mine, other string) []string {
		return []string{"sh", "-c", `touch "$1"; for i in $(seq 600); do [ -e "$2" ] && exit 0; sleep 0.1; done; exit 1`, "sh", filepath.Join(dir, mine), filepath.Join(dir, other)}
	}
	rs, err := execute([]layer{
		{name: "a", steps: [][]string{meet("a", "b"), {"true"}}, beside: true},
		{name: "b", steps: [][]string{meet("b", "a"), {"false"}}, beside: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := rs[0]; a.Layer != "a" || a.Passed != 2 || a.Failed != 0 || a.Seconds <= 0 || !a.ok() {
		t.Errorf("%+v", a)
	}
	if b := rs[1]; b.Layer != "b" || b.Passed != 1 || b.Failed != 1 || b.ok() {
		t.Errorf("%+v", b)
	}
}

func TestTableFailsOnWhatDidNotRun(t *testing.T) {
	for _, c := range []struct {
		r    result
		want string
	}{
		{result{Layer: "unit", Passed: 3}, ""},
		{result{Layer: "unit", Passed: 3, Failed: 1}, "FAILED"},
		{result{Layer: "unit", Passed: 3, Skipped: 1}, "SKIPPED TESTS"},
		{result{Layer: "unit"}, "RAN NOTHING"},
	} {
		var out bytes.Buffer
		err := table(&out, []result{c.r})
		if (err != nil) != (c.want != "") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%+v: %v\n%s", c.r, err, out.String())
		}
	}
}

func TestEveryLayerOfTaggedTestsHasSome(t *testing.T) {
	t.Chdir("../..")
	for _, l := range layers {
		if l.tag == "" {
			continue
		}
		packages, tests, err := tagged(l.tag)
		if err != nil || len(packages) == 0 || len(tests) == 0 {
			t.Errorf("layer %s: packages %q, tests %q, %v", l.name, packages, tests, err)
		}
		for _, p := range l.order {
			if !strings.Contains(strings.Join(packages, " ")+" ", p+" ") {
				t.Errorf("layer %s names %s, which has no test of it", l.name, p)
			}
		}
	}
}
