package convert

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/schema"
	"github.com/belayops/belay/apicheck/yamltext"
)

var update = flag.Bool("update", false, "write what the conversion gives as the wanted text")

// TestWholeObjects converts whole objects of every kind whose fields move or change their meaning, and of common others. What
// comes out is held against the wanted text, byte for byte, and against the fields of the target: nothing unknown, nothing of a
// wrong type, nothing missing. The control plane layer has real apiservers take the same texts.
func TestWholeObjects(t *testing.T) {
	files, err := filepath.Glob("testdata/whole/*.yaml")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	fields, err := schema.Default()
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".yaml"), func(t *testing.T) {
			in, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			o := options(t, 14, 37)
			o.Accept = []string{"*"}
			r := Text(o, in)
			if len(r.Changes) != 1 || len(r.Kept)+len(r.Gaps) > 0 {
				t.Fatalf("changes %+v, kept %+v, gaps %+v", r.Changes, r.Kept, r.Gaps)
			}
			covered[r.Changes[0].From.String()] = true
			want := strings.Replace(name, "/whole/", "/converted/", 1)
			if *update {
				if err := os.WriteFile(want, r.Text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if text, err := os.ReadFile(want); err != nil || !bytes.Equal(text, r.Text) {
				t.Errorf("%v\n%s", err, r.Text)
			}
			root, err := yamltext.Parse(r.Text)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range fields.Validate(root, r.Changes[0].To, minor(37)) {
				t.Errorf("line %d: %s", p.Line, p)
			}
			for _, line := range strings.SplitAfter(string(in), "\n") {
				if _, comment, ok := strings.Cut(line, "#"); ok && !strings.Contains(string(r.Text), comment) {
					t.Errorf("the comment %q is gone", comment)
				}
			}
		})
	}
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	for i := range db.Kinds {
		k := &db.Kinds[i]
		j := db.Judge(k.GVK(), minor(14), minor(37), false)
		// The two that a person moves, and one that the cluster makes again.
		switch k.GVK().String() {
		case "v1 Endpoints", "resource.k8s.io/v1alpha2 ResourceSlice", "certificates.k8s.io/v1alpha1 PodCertificateRequest":
			continue
		}
		if k.Class == lifecycle.Stored && (j.Rewrite == lifecycle.Structural || j.Rewrite == lifecycle.Semantic) && !covered[k.GVK().String()] {
			t.Errorf("no whole object of %s is converted", k.GVK())
		}
	}
}

// What would be invalid at the target stays as it is and says where, unless a person accepts it or the text is a record.
func TestInvalidResults(t *testing.T) {
	const (
		cron    = "kind: ConfigMap\napiVersion: v1\n---\napiVersion: batch/v1beta1\nkind: CronJob\nspec:\n  schedule: a\n  jobTemplate: {}\n  shedule: b\n"
		webhook = "apiVersion: admissionregistration.k8s.io/v1beta1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: a}\nwebhooks:\n- name: a\n  clientConfig: {url: u}\n"
		patch   = "apiVersion: batch/v1beta1\nkind: CronJob\nspec:\n  suspend: true\n"
	)
	for _, c := range []struct {
		name, in   string
		from, to   int
		options    func(*Options)
		changed    bool
		kept, note string // parts of what is said
		line       int
		acceptable bool
	}{
		{"unknown field", cron, 24, 25, nil, false, "as batch/v1 CronJob of 1.25 it would be invalid: spec.shedule is no field of it", "", 9, true},
		{"unknown field, accepted", cron, 24, 25, func(o *Options) { o.Accept = []string{"CronJob"} }, true, "", "spec.shedule is no field of it", 0, false},
		{"unknown field of a record", cron, 24, 25, func(o *Options) { o.Record = true }, true, "", "spec.shedule is no field of it", 0, false},
		{"wrong type", strings.Replace(cron, "shedule: b", "suspend: \"no\"", 1), 24, 25, nil, false, "spec.suspend: want true or false, have text", "", 9, true},
		{"required where the meaning changes", webhook, 21, 22, func(o *Options) { o.Accept = []string{"*"} }, false, "webhooks[0].admissionReviewVersions is required and missing", "", 5, false},
		{"required, of a record", webhook, 21, 22, func(o *Options) { o.Accept, o.Record = []string{"*"}, true }, true, "", "webhooks[0].sideEffects is required and missing", 0, false},
		{"a patch has not everything", patch, 24, 25, nil, true, "", "spec.jobTemplate is required and missing: right in a patch", 0, false},
		{"a field that the target has not yet", strings.Replace(patch, "suspend: true", "jobTemplate: {spec: {template: {spec: {containers: [], hostnameOverride: a}}}}", 1), 24, 33, nil, false, "hostnameOverride is no field", "", 4, true},
		{"a list", "apiVersion: policy/v1beta1\nkind: PodDisruptionBudgetList\nitems:\n- spec:\n    minAvailable: 1\n    selecter: {}\n", 24, 25, func(o *Options) { o.Accept = []string{"x"} }, false, "accept it", "", 1, true},
		{"an item of a typed list", "apiVersion: autoscaling/v2beta2\nkind: HorizontalPodAutoscalerList\nitems:\n- spec:\n    maxReplicas: 1\n    minReplica: 1\n", 25, 26, nil, false, "spec.minReplica is no field", "", 6, true},
		{"a request whose key the kubelet has", "apiVersion: certificates.k8s.io/v1beta1\nkind: PodCertificateRequest\nspec: {pkixPublicKey: a, proofOfPossession: b}\n", 36, 37, nil, false, "delete the request", "", 1, false},
		{"a candidate without its version", "apiVersion: coordination.k8s.io/v1alpha1\nkind: LeaseCandidate\nspec: {leaseName: a, preferredStrategies: [x]}\n", 31, 32, nil, false, "binaryVersion is required", "", 1, false},
		{"a mode that is none", "apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nspec: {disruptionMode: All}\n", 36, 37, nil, false, "neither Pod nor PodGroup", "", 1, false},
		{"a slice of the classic kind", "apiVersion: resource.k8s.io/v1alpha2\nkind: ResourceSlice\nnodeName: n\n", 30, 31, nil, false, "upgrade the driver", "", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t, c.from, c.to)
			if c.options != nil {
				c.options(&o)
			}
			r := Text(o, []byte(c.in))
			if (len(r.Changes) == 1) != c.changed || !c.changed && string(r.Text) != c.in {
				t.Fatalf("changes %+v, kept %+v\n%s", r.Changes, r.Kept, r.Text)
			}
			if c.changed {
				if notes := strings.Join(r.Changes[0].Notes, "\n"); !strings.Contains(notes, c.note) {
					t.Errorf("notes %q", notes)
				}
				return
			}
			if len(r.Kept) != 1 || !strings.Contains(r.Kept[0].Why, c.kept) || r.Kept[0].Line != c.line || r.Kept[0].Acceptable != c.acceptable {
				t.Errorf("kept %+v", r.Kept)
			}
		})
	}
}
