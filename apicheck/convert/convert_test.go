package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/schema"
	"github.com/belayops/belay/apicheck/yamltext"
)

func minor(n int) lifecycle.Minor { return lifecycle.Minor{Major: 1, Minor: n} }

func options(t testing.TB, from, to int) Options {
	t.Helper()
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	return Options{DB: db, From: minor(from), To: minor(to)}
}

func TestConvert(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to int
		accept   string
		in, want string // want empty: unchanged
		kept     string // part of why
	}{
		{"bump keeps every other byte", 24, 25, "", "# head\n\napiVersion:   batch/v1beta1   # old\nkind: CronJob\nmetadata: {name: c}  \nspec:\n    schedule: \"* * * * *\"\n# end\n",
			"# head\n\napiVersion:   batch/v1   # old\nkind: CronJob\nmetadata: {name: c}  \nspec:\n    schedule: \"* * * * *\"\n# end\n", ""},
		{"CRLF and quotes", 24, 25, "", "kind: 'CronJob'\r\n\"apiVersion\": \"batch/v1beta1\"\r\n", "kind: 'CronJob'\r\n\"apiVersion\": \"batch/v1\"\r\n", ""},
		{"the second of three documents", 24, 25, "", "apiVersion: v1\nkind: Pod\n---\napiVersion: batch/v1beta1\nkind: CronJob\n...\n---\na: b", "apiVersion: v1\nkind: Pod\n---\napiVersion: batch/v1\nkind: CronJob\n...\n---\na: b", ""},
		{"list", 24, 25, "", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: batch/v1beta1, kind: CronJob}\n- apiVersion: batch/v1beta1 # x\n  kind: CronJob\n",
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: batch/v1, kind: CronJob}\n- apiVersion: batch/v1 # x\n  kind: CronJob\n", ""},
		{"typed list", 25, 26, "", "{apiVersion: autoscaling/v2beta2, kind: HorizontalPodAutoscalerList, items: [{metadata: {name: h}}]}\n", "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscalerList, items: [{metadata: {name: h}}]}\n", ""},
		{"json", 25, 26, "", `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2beta2","metadata":{"name":"h"}}`, `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v2","metadata":{"name":"h"}}`, ""},
		{"text that looks like it stays", 24, 25, "", "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata:\n  annotations:\n    note: |\n      apiVersion: batch/v1beta1\n    x: batch/v1beta1\n",
			"apiVersion: batch/v1\nkind: CronJob\nmetadata:\n  annotations:\n    note: |\n      apiVersion: batch/v1beta1\n    x: batch/v1beta1\n", ""},
		{"anchor of the version keeps its old value elsewhere", 24, 25, "", "apiVersion: &v batch/v1beta1\nkind: CronJob\nmetadata:\n  annotations: {a: *v, b: *v}\n", "apiVersion: batch/v1\nkind: CronJob\nmetadata:\n  annotations: {a: &v batch/v1beta1, b: *v}\n", ""},
		{"version from an alias", 24, 25, "CronJob", "x-v: &v batch/v1beta1\napiVersion: *v\nkind: CronJob\n", "x-v: &v batch/v1beta1\napiVersion: batch/v1\nkind: CronJob\n", ""},
		{"object shared through an anchor", 24, 25, "", "apiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: batch/v1beta1, kind: CronJob}\n- *a\n", "", "shared through an anchor"},
		{"merged version", 24, 25, "", "apiVersion: v1\nkind: List\nx: &x {apiVersion: batch/v1beta1}\nitems:\n- <<: *x\n  kind: CronJob\n", "", "merged in"},
		{"no successor", 24, 25, "", "apiVersion: policy/v1beta1\nkind: PodSecurityPolicy\n", "", "no successor"},
		{"semantic, not accepted", 24, 25, "", "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n", "", "accept"},
		{"semantic, accepted", 24, 25, "PodDisruptionBudget", "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\n", "apiVersion: policy/v1\nkind: PodDisruptionBudget\n", ""},
		{"nothing to do", 24, 25, "", "apiVersion: batch/v1\nkind: CronJob\n", "", ""},
		{"custom", 24, 25, "", "apiVersion: batch.example.com/v1beta1\nkind: CronJob\n", "", ""},
		{"endpoints have no converter", 36, 37, "", "apiVersion: v1\nkind: Endpoints\n", "", "may become several EndpointSlices"},
		{"deployment without a selector", 15, 16, "", "{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {labels: {app: a}}}}}\n",
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}}}}\n", ""},
		{"deployment in blocks", 15, 16, "", "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  # how many\n  replicas: 2 # two\n  rollbackTo:\n    revision: 1\n  template:\n    metadata:\n      labels:\n        app: a\n",
			"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  # how many\n  selector:\n    matchLabels:\n      app: a\n  replicas: 2 # two\n  template:\n    metadata:\n      labels:\n        app: a\n", ""},
		{"deployment with a null selector", 15, 16, "", "{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: a}, spec: {selector: null, template: {metadata: {labels: {app: a}}}}}\n",
			"{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}}}}\n", ""},
		{"daemonset keeps its strategy", 15, 16, "", "apiVersion: extensions/v1beta1\nkind: DaemonSet\nspec:\n  selector:\n    matchLabels: {a: b}\n  templateGeneration: 3\n",
			"apiVersion: apps/v1\nkind: DaemonSet\nspec:\n  selector:\n    matchLabels: {a: b}\n  updateStrategy:\n    type: OnDelete\n", ""},
		{"deployment without labels", 15, 16, "", "apiVersion: extensions/v1beta1\nkind: Deployment\nspec:\n  template: {}\n", "", "no labels"},
		{"ingress", 21, 22, "", "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata:\n  name: i # the one\nspec:\n  backend:\n    serviceName: fallback\n    servicePort: http\n  rules:\n  - host: example.com\n    http:\n      paths:\n      # the root\n      - path: /\n        backend:\n          serviceName: web\n          servicePort: 80\n  tls: []\n",
			"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: i # the one\nspec:\n  defaultBackend:\n    service:\n      name: fallback\n      port:\n        name: http\n  rules:\n  - host: example.com\n    http:\n      paths:\n      # the root\n      - path: /\n        pathType: ImplementationSpecific\n        backend:\n          service:\n            name: web\n            port:\n              number: 80\n  tls: []\n", ""},
		{"ingress in json", 21, 22, "", `{"apiVersion":"networking.k8s.io/v1beta1","kind":"Ingress","spec":{"backend":{"serviceName":"a","servicePort":80},"tls":[]}}`,
			`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","spec":{"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}, "tls": []}}`, ""},
		{"hpa v2beta1", 24, 25, "", "apiVersion: autoscaling/v2beta1\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n  - type: Resource\n    resource:\n      name: cpu\n      targetAverageUtilization: 50 # half\n  - type: Pods\n    pods:\n      metricName: m\n      targetAverageValue: 1k\n",
			"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n  - type: Resource\n    resource:\n      name: cpu\n      target:\n        type: Utilization\n        averageUtilization: 50 # half\n  - type: Pods\n    pods:\n      metric:\n        name: m\n      target:\n        type: AverageValue\n        averageValue: 1k\n", ""},
		{"hpa object metric", 24, 25, "", "apiVersion: autoscaling/v2beta1\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n  - type: Object\n    object: {metricName: m, target: {kind: Service, name: s}, targetValue: 5}\n",
			"apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n  - type: Object\n    object: {describedObject: {kind: Service, name: s}, metric: {name: m}, target: {type: Value, value: 5}}\n", ""},
		{"claim", 33, 34, "", "apiVersion: resource.k8s.io/v1alpha3\nkind: ResourceClaim\nspec: {devices: {requests: [{name: r, deviceClassName: g}]}}\n",
			"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nspec: {devices: {requests: [{name: r, exactly: {deviceClassName: g}}]}}\n", ""},
		{"claim template in blocks", 36, 37, "", "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaimTemplate\nspec:\n  spec:\n    devices:\n      requests:\n      - name: r\n        # which\n        deviceClassName: g\n        count: 2\n",
			"apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nspec:\n  spec:\n    devices:\n      requests:\n      - name: r\n        # which\n        exactly:\n          deviceClassName: g\n          count: 2\n", ""},
		{"resource slice", 36, 37, "", "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceSlice\nspec:\n  devices:\n  - name: d\n    basic:\n      attributes: {}\n      capacity: {}\n",
			"apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nspec:\n  devices:\n  - name: d\n    attributes: {}\n    capacity: {}\n", ""},
		{"runtime class", 23, 24, "", "apiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata: {name: k}\nspec: {runtimeHandler: kata}\n", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: k}\nhandler: kata\n", ""},
		{"role binding", 22, 23, "", "apiVersion: rbac.authorization.k8s.io/v1alpha1\nkind: RoleBinding\nsubjects:\n- kind: Group\n  apiVersion: rbac.authorization.k8s.io/v1alpha1\n  name: g\n",
			"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nsubjects:\n- kind: Group\n  apiGroup: rbac.authorization.k8s.io\n  name: g\n", ""},
		{"priority level", 28, 29, "", "apiVersion: flowcontrol.apiserver.k8s.io/v1beta2\nkind: PriorityLevelConfiguration\nspec:\n  type: Limited\n  limited:\n    assuredConcurrencyShares: 10\n",
			"apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: PriorityLevelConfiguration\nspec:\n  type: Limited\n  limited:\n    nominalConcurrencyShares: 10\n", ""},
		{"endpoint slice", 24, 25, "", "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nendpoints:\n- addresses: [10.0.0.1]\n  topology:\n    kubernetes.io/hostname: n1\n    topology.kubernetes.io/zone: z\n",
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nendpoints:\n- addresses: [10.0.0.1]\n  nodeName: n1\n  zone: z\n", ""},
		{"crd", 21, 22, "", "apiVersion: apiextensions.k8s.io/v1beta1\nkind: CustomResourceDefinition\nmetadata:\n  name: foos.example.com\nspec:\n  group: example.com\n  version: v1\n  scope: Namespaced\n  names: {kind: Foo, plural: foos}\n  preserveUnknownFields: false\n  validation:\n    openAPIV3Schema:\n      type: object\n  subresources: {status: {}}\n",
			"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: foos.example.com\nspec:\n  group: example.com\n  versions:\n    - name: v1\n      served: true\n      storage: true\n      schema:\n        openAPIV3Schema:\n          type: object\n      subresources: {status: {}}\n  scope: Namespaced\n  names: {kind: Foo, plural: foos}\n", ""},
		{"template", 24, 25, "", "apiVersion: batch/v1beta1\nkind: CronJob\n{{ x }}\n", "", ""},
		{"anchors where fields must move", 21, 22, "", "apiVersion: extensions/v1beta1\nkind: Ingress\nspec:\n  backend: &b {serviceName: a, servicePort: 80}\n", "", "anchors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, c.from, c.to)
			if c.accept != "" {
				o.Accept = []string{c.accept}
			}
			r := Text(o, []byte(c.in))
			want := c.want
			if want == "" {
				want = c.in
			}
			if string(r.Text) != want {
				t.Errorf("got\n%s\nwant\n%s\nkept %+v", r.Text, want, r.Kept)
			}
			if (c.want != "") != (len(r.Changes) > 0) {
				t.Errorf("changes %+v", r.Changes)
			}
			if c.kept != "" && (len(r.Kept) == 0 || !strings.Contains(r.Kept[0].Why, c.kept)) || c.kept == "" && len(r.Kept) > 0 {
				t.Errorf("kept %+v, want %q", r.Kept, c.kept)
			}
			again := Text(o, r.Text)
			if !bytes.Equal(again.Text, r.Text) || len(again.Changes) > 0 {
				t.Errorf("a second run changes again:\n%s", again.Text)
			}
		})
	}
	if r := Text(options(t, 24, 25), []byte("{{- if .x }}\nkind: Pod\n{{- end }}\n")); len(r.Gaps) != 1 {
		t.Errorf("a template is not named as a gap: %+v", r)
	}
}

// What convert passes over it names, or "nothing left to do" would be untrue.
func TestGaps(t *testing.T) {
	for _, text := range []string{
		"apiVersion: {{ .v }}\nkind: CronJob\n",
		"apiVersion: \"{{ .v }}\"\nkind: CronJob\n",
		"apiVersion: ${API}\nkind: CronJob\n",
		"apiVersion: v1\nkind: List\nitems: {{ .items }}\n",
		"x: &x {apiVersion: batch/v1beta1, kind: CronJob}\napiVersion: v1\nkind: List\nitems: [*x]\n",
	} {
		if r := Text(options(t, 24, 25), []byte(text)); len(r.Gaps) != 1 || string(r.Text) != text {
			t.Errorf("%q: gaps %+v", text, r.Gaps)
		}
	}
	for _, text := range []string{"kind: DaemonSet\nimage: x\n", "apiVersion: v1\nkind: List\nitems:\n", "a: &a [1]\nb: *a\n"} {
		if r := Text(options(t, 24, 25), []byte(text)); len(r.Gaps) != 0 {
			t.Errorf("%q: gaps %+v", text, r.Gaps)
		}
	}
}

// What was JSON stays JSON, whatever its strings hold: YAML has escapes that JSON has not.
func TestJSONStaysJSON(t *testing.T) {
	text := `{
  "apiVersion": "extensions/v1beta1",
  "kind": "Ingress",
  "metadata": {"name": "i"},
  "spec": {"backend": {"serviceName": "s", "servicePort": "p😀\u001b\u2028<&>", "resource": null}}
}
`
	o := options(t, 21, 22)
	o.Accept = []string{"*"}
	r := Text(o, []byte(text))
	if len(r.Changes) != 1 || !json.Valid(r.Text) || !strings.Contains(string(r.Text), "😀") {
		t.Errorf("changes %+v, kept %+v:\n%s", r.Changes, r.Kept, r.Text)
	}
}

// Aliases of aliases are few lines, and endless when they are written out.
func TestBombsOfAliases(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: batch/v1beta1\nkind: CronJob\nspec:\n  schedule: a\n  jobTemplate:\n    metadata:\n      annotations:\n        a: x\nx0: &a0 {a: b}\n")
	for i := range 60 {
		fmt.Fprintf(&b, "x%d: &a%d [*a%d, *a%d, *a%d]\n", i+1, i+1, i, i, i)
	}
	o := options(t, 24, 25)
	o.Accept = []string{"*"}
	if r := Text(o, []byte(b.String())); len(r.Changes) != 1 {
		t.Errorf("changes %+v, kept %+v", r.Changes, r.Kept)
	}
	if r := Text(o, []byte("apiVersion: batch/v1beta1\nkind: CronJob\nx: &x {<<: [*x, *x, *x, *x, *x, *x]}\n<<: *x\n")); len(r.Changes)+len(r.Kept)+len(r.Gaps) == 0 {
		t.Errorf("%+v", r)
	}
}

func TestDropAndOnlyRemoved(t *testing.T) {
	o := options(t, 24, 25)
	o.Drop, o.OnlyRemoved = true, true
	r := Text(o, []byte("apiVersion: policy/v1beta1\nkind: PodSecurityPolicy\n---\napiVersion: v1\nkind: Pod\n---\napiVersion: autoscaling/v2beta2\nkind: HorizontalPodAutoscaler\n"))
	if want := "---\napiVersion: v1\nkind: Pod\n---\napiVersion: autoscaling/v2beta2\nkind: HorizontalPodAutoscaler\n"; string(r.Text) != want || len(r.Changes) != 1 || !r.Changes[0].To.IsZero() {
		t.Errorf("got %q, changes %+v", r.Text, r.Changes)
	}
}

// Every kind that the database calls structural has a converter, or is known to have none.
func TestEveryStructuralMoveIsKnown(t *testing.T) {
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	// Another kind, or fields without a counterpart: a person decides.
	none := map[string]bool{"v1 Endpoints": true, "resource.k8s.io/v1alpha2 ResourceSlice": true}
	for i := range db.Kinds {
		k := &db.Kinds[i]
		if k.Class != lifecycle.Stored {
			continue
		}
		for _, n := range k.Next {
			if n.Rewrite != lifecycle.Structural || n.GVK.Group == "autoscaling" && n.Version == "v1" { // of which v2 is always the better one
				continue
			}
			if got := converterFor(k.GVK(), n.GVK) == nil; got != none[k.GVK().String()] {
				t.Errorf("%s -> %s: converter missing: %v", k.GVK(), n.GVK, got)
			}
		}
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"apiVersion: batch/v1beta1\nkind: CronJob\n", "apiVersion: extensions/v1beta1\nkind: Ingress\nspec:\n  backend:\n    serviceName: a\n    servicePort: 80\n",
		"apiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: batch/v1beta1, kind: CronJob}\n- *a\n", `{"apiVersion":"networking.k8s.io/v1beta1","kind":"Ingress","spec":{"backend":{"serviceName":"a","servicePort":80}}}`,
		"apiVersion: extensions/v1beta1\nkind: Deployment\nspec:\n  template:\n    metadata:\n      labels:\n        a: b\n  # c\n", "apiVersion: &v batch/v1beta1\nkind: CronJob\nx: *v\n",
		"apiVersion: autoscaling/v2beta1\nkind: HorizontalPodAutoscaler\nspec:\n  metrics:\n  - resource: {name: cpu, targetAverageUtilization: 5}\n", "apiVersion: apiextensions.k8s.io/v1beta1\nkind: CustomResourceDefinition\nspec: {version: v1}\n",
		"- apiVersion: resource.k8s.io/v1beta1\n  kind: ResourceClaim\n  spec:\n    devices:\n      requests:\n      - name: r\n        deviceClassName: g\n"} {
		f.Add([]byte(s))
	}
	o := options(f, 21, 37)
	o.Accept = []string{"*"}
	var err error
	if o.Schema, err = schema.Default(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<14 {
			return
		}
		r := Text(o, text)
		if len(r.Changes) == 0 && !bytes.Equal(r.Text, text) {
			t.Fatalf("no change, other bytes:\n%q\n%q", text, r.Text)
		}
		before, after := 0, 0
		yamltext.Split(text, func(yamltext.Part) bool { before++; return true })
		yamltext.Split(r.Text, func(yamltext.Part) bool { after++; return true })
		if before != after {
			t.Fatalf("%d documents became %d:\n%q\n%q", before, after, text, r.Text)
		}
		if again := Text(o, r.Text); !bytes.Equal(again.Text, r.Text) {
			t.Fatalf("not idempotent:\n%q\n%q\n%q", text, r.Text, again.Text)
		}
	})
}

func TestMarkOfByteOrder(t *testing.T) {
	const mark = "\ufeff"
	from := mark + "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: a}\n"
	got := Text(options(t, 24, 25), []byte(from))
	if want := strings.Replace(from, "batch/v1beta1", "batch/v1", 1); string(got.Text) != want {
		t.Errorf("got %q, want %q (%+v, %+v)", got.Text, want, got.Kept, got.Gaps)
	}
	again := Text(options(t, 24, 25), got.Text)
	if string(again.Text) != string(got.Text) || len(again.Changes) > 0 {
		t.Errorf("again: %q", again.Text)
	}
}

// Comments stay where they are in the text, however many keys move away from under them.
func TestCommentsOfMovedKeysAreThereOnce(t *testing.T) {
	const from = `apiVersion: apiextensions.k8s.io/v1beta1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
spec:
  group: example.com
  names: {plural: widgets, kind: Widget}
  # about the version
  version: v1
  # about the fields
  validation:
    openAPIV3Schema:
      type: object
  # about the status
  subresources:
    status: {}
  # about the scope
  scope: Namespaced
`
	got := Text(options(t, 21, 22), []byte(from))
	if len(got.Changes) != 1 {
		t.Fatalf("%+v %+v %+v", got.Changes, got.Kept, got.Gaps)
	}
	for _, c := range []string{"# about the version", "# about the fields", "# about the status", "# about the scope"} {
		if n := strings.Count(string(got.Text), c); n != 1 {
			t.Errorf("%q is there %d times:\n%s", c, n, got.Text)
		}
	}
}
