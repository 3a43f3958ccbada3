package kubeversion

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"1.36.3": "v1.36.3", "v1.37.2": "v1.37.2", "1.38.0-beta.0": "v1.38.0-beta.0",
		"v1.29.4-gke.1043002": "v1.29.4-gke.1043002", "v1.33.6+k3s1": "v1.33.6+k3s1", "v0.0.1": "v0.0.1",
	} {
		v, err := Parse(in)
		if err != nil || v.String() != want {
			t.Errorf("Parse(%q) = %v, %v; want %s", in, v, err, want)
		}
	}
	for _, in := range []string{"", "v", "1", "1.36", "1.36.3.4", "1.x.2", "latest", "1.36.3 ", "vv1.2.3", "1.-1.0", "01.2.3.4", "1.36.99999999999999999999", "+", "-"} {
		if v, err := Parse(in); err == nil {
			t.Errorf("Parse(%q) = %v; want an error", in, v)
		}
	}
}

func TestParseMinor(t *testing.T) {
	for in, want := range map[string]string{"1.37": "1.37", "v1.36": "1.36", "1.37.2": "1.37"} {
		if m, err := ParseMinor(in); err != nil || m.String() != want {
			t.Errorf("ParseMinor(%q) = %v, %v; want %s", in, m, err, want)
		}
	}
	for _, in := range []string{"", "1", "1.x", "1.37-", "1.37+x"} {
		if m, err := ParseMinor(in); err == nil {
			t.Errorf("ParseMinor(%q) = %v; want an error", in, m)
		}
	}
}

func genV(t *rapid.T, name string) V {
	return V{
		Major: 1, Minor: rapid.IntRange(0, 60).Draw(t, name+".minor"), Patch: rapid.IntRange(0, 30).Draw(t, name+".patch"),
		Pre: rapid.SampledFrom([]string{"", "", "", "alpha.0", "alpha.1", "beta.0", "rc.0", "rc.10"}).Draw(t, name+".pre"),
	}
}

func TestOrderIsTotalAndRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := genV(t, "a"), genV(t, "b"), genV(t, "c")
		if a.Compare(b) != -b.Compare(a) {
			t.Fatalf("%v and %v do not compare the same both ways", a, b)
		}
		if a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			t.Fatalf("order of %v %v %v is not transitive", a, b, c)
		}
		if (a.Compare(b) == 0) != (a == b) {
			t.Fatalf("%v and %v: equal in order, not in value", a, b)
		}
		back, err := Parse(a.String())
		if err != nil || back != a {
			t.Fatalf("%v came back as %v, %v", a, back, err)
		}
		js, err := json.Marshal(a)
		var again V
		if err != nil || json.Unmarshal(js, &again) != nil || again != a {
			t.Fatalf("%v through JSON %s: %v", a, js, again)
		}
	})
}

func TestPreReleaseComesBeforeRelease(t *testing.T) {
	order := []string{"1.36.3", "1.37.0-alpha.0", "1.37.0-alpha.2", "1.37.0-beta.0", "1.37.0-rc.1", "1.37.0", "1.37.1"}
	for i := 1; i < len(order); i++ {
		if !MustParse(order[i-1]).Less(MustParse(order[i])) {
			t.Errorf("%s should come before %s", order[i-1], order[i])
		}
	}
}

// The table against the policy's own words, for every pair of minors.
func TestSkewExhaustive(t *testing.T) {
	for api := 0; api <= 40; api++ {
		for c := 0; c <= 40; c++ {
			a, v := V{Major: 1, Minor: api}, V{Major: 1, Minor: c}
			want := map[Component]bool{
				Kubelet: c <= api && c >= api-3, KubeProxy: c <= api && c >= api-3,
				ControllerManager: c <= api && c >= api-1, Scheduler: c <= api && c >= api-1, CloudController: c <= api && c >= api-1,
				APIServer: c-api <= 1 && api-c <= 1, Kubectl: c-api <= 1 && api-c <= 1,
			}
			for comp, ok := range want {
				if err := Skew(comp, v, a); (err == nil) != ok {
					t.Fatalf("Skew(%s, 1.%d, apiserver 1.%d) = %v; want allowed=%v", comp, c, api, err, ok)
				}
			}
		}
	}
	if err := Skew(Kubelet, MustParse("2.0.0"), MustParse("1.99.0")); err == nil {
		t.Error("majors apart should not be allowed")
	}
	if err := Skew("etcd", MustParse("1.0.0"), MustParse("1.0.0")); err == nil {
		t.Error("a component without a rule should be an error")
	}
}

func TestHops(t *testing.T) {
	hops, err := Hops(MustParse("1.34.4"), MustParse("1.37.2"))
	if err != nil || len(hops) != 3 || hops[0].String() != "1.35" || hops[2].String() != "1.37" {
		t.Errorf("hops = %v, %v", hops, err)
	}
	if hops, err := Hops(MustParse("1.37.0"), MustParse("1.37.2")); err != nil || len(hops) != 1 {
		t.Errorf("patch: %v, %v", hops, err)
	}
	if _, err := Hops(MustParse("1.37.2"), MustParse("1.36.9")); err == nil || !strings.Contains(err.Error(), "going back") {
		t.Errorf("a way back: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1.36.3", "v1.37.2", "1.38.0-beta.0+x", "", "v", "1..2", "-1.2.3", "+", "1.2.3--"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(v.String())
		if err != nil || again != v {
			t.Fatalf("Parse(%q) = %#v, which comes back as %#v, %v", s, v, again, err)
		}
	})
}
