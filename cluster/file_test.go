package cluster_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/cluster/clustertest"
)

func full() *cluster.State {
	yes := true
	return clustertest.New("1.36.3", 3, 2,
		clustertest.Deployment("shop", "web", 3, "w1", "w2"),
		clustertest.PDB("shop", "web", 1),
		clustertest.BarePod("default", "lonely", "w1"),
		clustertest.Unread("node/w2/host", cluster.UnreadUnreachable, "connection refused"),
		clustertest.Node("w1", func(n *cluster.Node) {
			n.Host.FailCgroupV1, n.Host.FailSwapOn = &yes, &yes
			n.Host.KubeletFeatureGates = map[string]bool{"B": true, "A": false}
			n.Annotations = map[string]string{"belay.dev/run": "<&>"}
		}),
		func(s *cluster.State) {
			s.Webhooks = []cluster.Webhook{{Kind: "ValidatingWebhookConfiguration", Configuration: "a", Name: "b", FailurePolicy: "Fail", ReadyEndpoints: -1}}
			s.Etcd.Alarms = []cluster.EtcdAlarm{{MemberID: "00000000000000a1", Alarm: "NOSPACE"}}
			s.Kubeadm.ExtraArgs = map[string][]cluster.Flag{"apiServer": {{Name: "v", Value: "4"}}}
		})
}

func TestEncodeDecode(t *testing.T) {
	s := full()
	data, err := cluster.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	back, err := cluster.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(s, back) {
		t.Errorf("came back different")
	}
	if !bytes.HasSuffix(data, []byte("}\n")) || bytes.Contains(data, []byte(`\u003c`)) {
		t.Error("want a final newline and plain characters")
	}
	// The order in which things were collected leaves no trace.
	other := full()
	slices.Reverse(other.Nodes)
	slices.Reverse(other.Pods)
	slices.Reverse(other.Etcd.Members)
	slices.Reverse(other.PDBs[0].Pods)
	again, err := cluster.Encode(other)
	if err != nil || !bytes.Equal(again, data) {
		t.Errorf("another order gives other bytes (%v)", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good, err := cluster.Encode(full())
	if err != nil {
		t.Fatal(err)
	}
	swap := func(old, with string) []byte {
		t.Helper()
		out := bytes.Replace(good, []byte(old), []byte(with), 1)
		if bytes.Equal(out, good) {
			t.Fatalf("%q is not in the state file", old)
		}
		return out
	}
	for name, c := range map[string]struct {
		in   []byte
		is   error
		want string
	}{
		"nothing":             {nil, cluster.ErrNotState, "line 1"},
		"no JSON":             {[]byte("hello"), cluster.ErrNotState, "line 1, column"},
		"cut off":             {good[:len(good)/2], cluster.ErrNotState, "line"},
		"another file":        {[]byte(`{"schema":"belay.dev/plan/v1"}`), cluster.ErrNotState, `its schema is "belay.dev/plan/v1"`},
		"a Kubernetes object": {[]byte(`{"apiVersion":"v1","kind":"Pod"}`), cluster.ErrNotState, "belay state -o state.json"},
		"a list":              {[]byte(`[]`), cluster.ErrNotState, ""},
		"newer":               {[]byte(`{"schema":"belay.dev/state/v2","tool":"belay 9.0","new":1}`), cluster.ErrNewerSchema, "belay 9.0"},
		"unknown field":       {swap(`"lineage"`, `"linage"`), nil, `unknown field "linage"`},
		"unknown field below": {swap(`"uid"`, `"udi"`), nil, `unknown field "nodes[0].udi"`},
		"field in capitals":   {swap(`"lineage"`, `"Lineage"`), nil, `unknown field "Lineage"`},
		"field twice":         {swap(`"lineage"`, `"name": "x", "lineage"`), nil, `duplicate field "name"`},
		"no version":          {swap(`"version": "v1.36.3"`, `"version": "new"`), nil, `"new" is not a Kubernetes version`},
		"something behind":    {append(slices.Clone(good), "{}"...), cluster.ErrNotState, "line"},
		"node twice":          {swap(`"name": "w2"`, `"name": "w1"`), nil, "node w1 is listed twice"},
		"node without name":   {swap(`"name": "w2"`, `"name": ""`), nil, "has no name"},
	} {
		_, err := cluster.Decode(c.in)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %q and %v", name, err, c.want, c.is)
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, err := cluster.Encode(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"schema":"belay.dev/state/v1","lineage":"x","version":"","etcd":{"reached":false}}`))
	f.Add([]byte(`{"schema":"belay.dev/state/v2"}`))
	f.Add([]byte(`{"schema":"belay.dev/state/v1","nodes":[{"name":"a"},null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := cluster.Decode(data)
		if err != nil {
			return
		}
		// What was read can be written, and what was written reads back to the same bytes. Nothing pure panics on it.
		out, err := cluster.Encode(s)
		if err != nil {
			t.Fatalf("decoded and not encoded: %v", err)
		}
		back, err := cluster.Decode(out)
		if err != nil {
			t.Fatalf("encoded and not decoded: %v\n%s", err, out)
		}
		again, err := cluster.Encode(back)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("not stable (%v):\n%s\n%s", err, out, again)
		}
		if d := cluster.Diff(cluster.Project(s), cluster.Project(back)); d != nil {
			t.Fatalf("projections differ: %q", d)
		}
		cluster.CheckSkew(s)
		for _, m := range s.Etcd.Members {
			cluster.QuorumAfter(s.Etcd, cluster.EtcdOp{Action: cluster.EtcdRestart, Members: []string{m.ID}})
		}
	})
}
