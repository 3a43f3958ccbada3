package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
	"github.com/belayops/belay/preflight"
)

// The check's SARIF holds against the standard's own schema, with every status in it.
func TestCheckSARIFIsValid(t *testing.T) {
	in := preflight.Input{State: clustertest.New("1.36.3", 1, 2, clustertest.NotReady("w1", "gone"), clustertest.BarePod("a", "b", "w2"),
		clustertest.Unread(cluster.ReadBudgets, cluster.UnreadForbidden, "no")), Now: clustertest.Observed.Add(time.Minute)}
	rep, err := preflight.Run(t.Context(), in, preflight.Options{Accept: []string{"pods-without-controller@a/b"}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := checkSARIF(&b, rep); err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	// apicheck's test holds the bytes of this file.
	schema, err := c.Compile("../../apicheck/testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(v); err != nil {
		t.Errorf("%v\n%s", err, b.String())
	}
	for _, want := range []string{`"ruleId": "nodes-ready"`, `"justification": "accepted: --accept pods-without-controller@a/b"`, `"executionSuccessful": false`, `"level": "warning"`, `coverage@poddisruptionbudgets: could not be read`} {
		if !bytes.Contains(b.Bytes(), []byte(want)) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}
