package backup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestChangesNameSingleFields(t *testing.T) {
	for name, c := range map[string]struct {
		backup, live string
		want         []string
	}{
		"a value":              {`{"spec":{"replicas":3}}`, `{"spec":{"replicas":5}}`, []string{"spec.replicas: 3 | 5"}},
		"a large number":       {`{"spec":{"n":9007199254740993}}`, `{"spec":{"n":9007199254740993}}`, nil},
		"of a named element":   {`{"spec":{"c":[{"name":"web","image":"a"},{"name":"log","image":"x"}]}}`, `{"spec":{"c":[{"name":"log","image":"x"},{"name":"web","image":"b"}]}}`, []string{`spec.c[name=web].image: "a" | "b"`}},
		"of a place":           {`{"spec":{"a":[1,2]}}`, `{"spec":{"a":[1,3,4]}}`, []string{"spec.a[1]: 2 | 3", "spec.a[2]:  | 4"}},
		"order alone":          {`{"spec":{"c":[{"name":"a"},{"name":"b"}]}}`, `{"spec":{"c":[{"name":"b"},{"name":"a"}]}}`, []string{"spec.c:  | "}},
		"a label":              {`{"metadata":{"labels":{"app.kubernetes.io/name":"x"}}}`, `{"metadata":{}}`, []string{`metadata.labels: {"app.kubernetes.io/name":"x"} | `}},
		"a label of several":   {`{"metadata":{"labels":{"a/b":"x","c":"d"}}}`, `{"metadata":{"labels":{"c":"d"}}}`, []string{`metadata.labels["a/b"]: "x" | `}},
		"bookkeeping":          {`{"kind":"A","metadata":{"uid":"1","resourceVersion":"1"},"status":{"x":1}}`, `{"kind":"A","metadata":{"uid":"2","resourceVersion":"9"}}`, nil},
		"what is not set":      {`{"spec":{},"data":null}`, `{"metadata":{}}`, nil},
		"a list for an object": {`{"spec":{"x":[1]}}`, `{"spec":{"x":{"a":1}}}`, []string{`spec.x: [1] | {"a":1}`}},
	} {
		got, err := changes([]byte(c.backup), []byte(c.live), true)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, f := range got {
			lines = append(lines, fmt.Sprintf("%s: %s | %s", f.Field, f.Backup, f.Live))
		}
		if !slices.Equal(lines, c.want) {
			t.Errorf("%s: %q, want %q", name, lines, c.want)
		}
	}
	got, err := changes([]byte(`{"data":{"password":"aHVudGVyMg=="}}`), []byte(`{"data":{"password":"eA=="}}`), false)
	if err != nil || len(got) != 1 || got[0] != (FieldChange{Field: "data.password"}) {
		t.Errorf("a Secret's value is shown: %+v, %v", got, err)
	}
	long, err := changes([]byte(`{"data":{"k":"`+strings.Repeat("ä", 5000)+`"}}`), []byte(`{}`), true)
	if err != nil || len(long[0].Backup) > maxValue+3 {
		t.Errorf("%d bytes are shown", len(long[0].Backup))
	}
}
