package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/yamltext"
)

func testSet(t testing.TB) *Set {
	t.Helper()
	s, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// problems validates one text; the line and words of each problem.
func problems(t *testing.T, s *Set, at int, apiVersion, kind, text string) []string {
	t.Helper()
	root, err := yamltext.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range s.Validate(root, lifecycle.ParseGVK(apiVersion, kind), lifecycle.Minor{Major: 1, Minor: at}) {
		out = append(out, fmt.Sprintf("%d %s", p.Line, p))
	}
	return out
}

func TestValidate(t *testing.T) {
	s := testSet(t)
	for _, c := range []struct {
		name             string
		at               int
		apiVersion, kind string
		text             string
		want             []string
	}{
		{"whole", 37, "networking.k8s.io/v1", "Ingress", "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i, labels: {a: b}}\nspec:\n  defaultBackend:\n    service: {name: a, port: {number: 80}}\n", nil},
		{"old fields", 37, "networking.k8s.io/v1", "Ingress", "spec:\n  backend:\n    serviceName: a\n", []string{"2 spec.backend is no field of it"}},
		{"one level too high", 37, "networking.k8s.io/v1", "Ingress", "spec:\n  defaultBackend:\n    service:\n      name: a\n    port: {number: 80}\n", []string{"5 spec.defaultBackend.port is no field of it"}},
		{"types", 37, "apps/v1", "Deployment", "metadata: {labels: {a: 1}, annotations: [a]}\nspec: {replicas: \"3\", paused: yes, selector: {}, template: a}\n",
			[]string{"1 metadata.labels.a: want text, have the number 1", "1 metadata.annotations: want a mapping, have a list", "2 spec.replicas: want a whole number, have text", "2 spec.template: want a mapping, have text"}},
		{"quantities and ports", 37, "apps/v1", "Deployment", "spec:\n  selector: {}\n  template:\n    spec:\n      containers:\n      - name: a\n        resources: {requests: {cpu: 1, memory: 1Gi, x: 0.5}}\n        livenessProbe: {httpGet: {port: http}}\n", nil},
		{"a quantity that is a list", 37, "apps/v1", "Deployment", "spec:\n  selector: {}\n  template:\n    spec:\n      containers:\n      - name: a\n        resources: {requests: {cpu: []}}\n", []string{"7 spec.template.spec.containers[0].resources.requests.cpu: want a quantity, have a list"}},
		{"required", 37, "batch/v1", "CronJob", "spec: {schedule: a}\n", []string{"1 spec.jobTemplate is required and missing"}},
		{"null is nothing", 37, "apps/v1", "Deployment", "spec: {selector: {}, template: {spec: null}, strategy: null}\nstatus: {}\n", nil},
		{"merge and alias", 37, "apps/v1", "Deployment", "spec:\n  selector: &s {matchLabels: {a: b}}\n  template:\n    metadata:\n      <<: {labels: {a: b}, nonsense: 1}\n    spec: {containers: [], nodeSelector: {a: &x y, b: *x}}\n", []string{"5 spec.template.metadata.nonsense is no field of it"}},
		{"a schema of a CRD", 37, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "spec:\n  group: a\n  names: {kind: A, plural: as}\n  scope: Cluster\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {openAPIV3Schema: {properties: {a: {default: {any: [1]}, items: {type: object}, x-kubernetes-preserve-unknown-fields: true, typ: x}}}}\n",
			[]string{"9 spec.versions[0].schema.openAPIV3Schema.properties.a.typ is no field of it"}},
		{"a field before its minor", 33, "apps/v1", "Deployment", "spec: {selector: {}, template: {spec: {containers: [], hostnameOverride: a}}}\n", []string{"1 spec.template.spec.hostnameOverride is no field of it"}},
		{"and from its minor on", 34, "apps/v1", "Deployment", "spec: {selector: {}, template: {spec: {containers: [], hostnameOverride: a}}}\n", nil},
		{"a field after its last minor", 36, "apps/v1", "Deployment", "spec: {selector: {}, template: {spec: {containers: [], workloadRef: {}}}}\n", []string{"1 spec.template.spec.workloadRef is no field of it"}},
		{"not known", 37, "example.com/v1", "Foo", "a: b\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := problems(t, s, c.at, c.apiVersion, c.kind, c.text); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestValidateEndsOnCycles(t *testing.T) {
	if got := problems(t, testSet(t), 37, "apps/v1", "Deployment", "&a {<<: [*a, *a, *a]}\n"); len(got) != 1 || !strings.Contains(got[0], "values, aliases followed") {
		t.Errorf("%q", got)
	}
	got := problems(t, testSet(t), 37, "apiextensions.k8s.io/v1", "CustomResourceDefinition",
		"spec: {group: a, names: {kind: A, plural: as}, scope: Cluster, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {properties: &p {a: {properties: *p}, b: {properties: *p}}}}}]}\n")
	if len(got) != 1 || !strings.Contains(got[0], "values, aliases followed") {
		t.Errorf("%q", got)
	}
}

// Every type that a field names is there, and every replacement of the database that a recorded minor serves has fields.
func TestSetIsWhole(t *testing.T) {
	s := testSet(t)
	for g, name := range s.kinds {
		if s.types[name] == nil {
			t.Errorf("%s: no type %s", g, name)
		}
	}
	for name, fields := range s.types {
		for f, v := range fields {
			typ := v.typ
			for strings.HasPrefix(typ, "[]") || strings.HasPrefix(typ, "map:") {
				typ = strings.TrimPrefix(strings.TrimPrefix(typ, "[]"), "map:")
			}
			if typ != "any" && scalars[typ] == nil && s.types[typ] == nil {
				t.Errorf("%s.%s: no type %s", name, f, typ)
			}
		}
	}
	for typ := range scalars {
		if words[typ] == "" {
			t.Errorf("%s has no words", typ)
		}
	}
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	for i := range db.Kinds {
		for _, n := range db.Kinds[i].Next {
			to, _ := db.Lookup(n.GVK)
			if db.Kinds[i].Class == lifecycle.Stored && to.Served(db.Oldest) && !s.Has(n.GVK) {
				t.Errorf("the fields of %s are not known", n.GVK)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"kind a\n", "what is this\n", "type a b\n", "type a b@x=str\n"} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func FuzzValidate(f *testing.F) {
	for _, s := range []string{"spec: {replicas: 1}\n", "a: &a {<<: *a}\n", "spec: &s\n  template: *s\n", "spec:\n  template:\n    <<: [{a: b}, null]\n", "[]"} {
		f.Add([]byte(s))
	}
	set := testSet(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		root, err := yamltext.Parse(text)
		if err != nil || root == nil {
			return
		}
		for _, p := range set.Validate(root, lifecycle.ParseGVK("apps/v1", "Deployment"), lifecycle.Minor{Major: 1, Minor: 37}) {
			if p.Line < 1 || p.String() == "" {
				t.Fatalf("%+v", p)
			}
		}
	})
}
