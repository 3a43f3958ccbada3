package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

const crdGV = "apiextensions.k8s.io/v1"

// widgetCRD defines widgets.example.com at versions, the first of which is stored.
func (f *fakeAPI) widgetCRD(strategy string, versions ...string) {
	var vs []any
	for i, v := range versions {
		f.serve("example.com/"+v, "widgets", "Widget", true)
		vs = append(vs, map[string]any{"name": v, "served": true, "storage": i == 0})
	}
	f.serve(crdGV, "customresourcedefinitions", "CustomResourceDefinition", false)
	f.add(crdGV, "customresourcedefinitions", "", "widgets.example.com", map[string]any{
		"apiVersion": crdGV, "kind": "CustomResourceDefinition",
		"spec": map[string]any{
			"group": "example.com", "names": map[string]any{"plural": "widgets", "kind": "Widget"}, "versions": vs,
			"conversion": map[string]any{"strategy": strategy},
		},
	})
}

// An object whose version is gone since the backup is rewritten, or it is said why it is not.
func TestRestoreConvertsWhatIsNoLongerServed(t *testing.T) {
	f := newFixture(t)
	f.api.serve("batch/v1beta1", "cronjobs", "CronJob", true)
	f.api.add("batch/v1beta1", "cronjobs", "shop", "nightly", map[string]any{"apiVersion": "batch/v1beta1", "kind": "CronJob", "spec": map[string]any{"schedule": "@daily"}})
	f.api.widgetCRD("None", "v1beta1")
	f.api.add("example.com/v1beta1", "widgets", "shop", "red", map[string]any{"apiVersion": "example.com/v1beta1", "kind": "Widget", "spec": map[string]any{"size": 3}})
	b := f.create(t)
	later := func(strategy string) *fakeAPI {
		api := newFakeAPI(t)
		api.serve("batch/v1", "cronjobs", "CronJob", true)
		api.widgetCRD(strategy, "v1")
		return api
	}
	asked := 0
	convert := func(object []byte, from, to kubeversion.V) (Converted, error) {
		asked++
		if from.Bare() != "1.36.3" || to.Bare() != "1.36.3" {
			t.Errorf("asked to convert from %s to %s", from, to)
		}
		return Converted{Object: []byte(strings.ReplaceAll(string(object), "batch/v1beta1", "batch/v1")), Notes: []string{"look at time zones"}}, nil
	}
	restore := func(api *fakeAPI, c Converter) map[string]RestoredObject {
		t.Helper()
		r, err := RestoreObjects(t.Context(), b.Dir, RestoreOptions{Patterns: []string{"cronjobs.batch/shop/*", "widgets.example.com/shop/*"}, REST: api.config(), Convert: c})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]RestoredObject{}
		for _, o := range r.Objects {
			out[o.Object] = o
		}
		return out
	}

	api := later("None")
	got := restore(api, convert)
	for name, want := range map[string]string{"shop/nightly": "converted from batch/v1beta1 to batch/v1; look at time zones", "shop/red": "taken as v1, as its CustomResourceDefinition converts nothing; it was stored as v1beta1"} {
		if o := got[name]; o.Action != ActionCreated || o.Note != want {
			t.Errorf("%s: %+v", name, o)
		}
	}
	if api.objects["/apis/batch/v1/cronjobs"]["shop/nightly"] == nil || api.objects["/apis/example.com/v1/widgets"]["shop/red"] == nil {
		raw, _ := json.Marshal(api.objects)
		t.Errorf("they are not there: %s", raw)
	}
	// The second time they are there, under the version that is served.
	for name, o := range restore(api, convert) {
		if o.Action == ActionCreated || o.Action == ActionFailed {
			t.Errorf("%s again: %+v", name, o)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times to convert", asked)
	}

	refuse := func([]byte, kubeversion.V, kubeversion.V) (Converted, error) {
		return Converted{}, errors.New("ask a person")
	}
	got = restore(later("Webhook"), refuse)
	for name, want := range map[string]string{"shop/nightly": "ask a person", "shop/red": "served: true"} {
		if o := got[name]; o.Action != ActionFailed || !strings.Contains(o.Note, want) {
			t.Errorf("%s: %+v, want one that failed with %q", name, o, want)
		}
	}
	if o := restore(later("None"), nil)["shop/nightly"]; o.Action != ActionFailed || !strings.Contains(o.Note, "belay api convert") {
		t.Errorf("without a converter: %+v", o)
	}
}

func TestObjectsOfAnotherClusterNeedAWaiver(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	other := newFakeAPI(t)
	other.objects["/api/v1/namespaces"]["/kube-system"]["metadata"].(map[string]any)["uid"] = "99999999-0000-0000-0000-000000000000"
	o := RestoreOptions{Patterns: []string{"configmaps/kube-system/kubeadm-config"}, REST: other.config(), Overwrite: true}
	_, err := RestoreObjects(t.Context(), b.Dir, o)
	if blocked := (*BlockedError)(nil); !errors.As(err, &blocked) || blocked.Findings[0].ID != OtherCluster || !strings.Contains(err.Error(), "nothing was restored") || !strings.Contains(err.Error(), fakeUID) {
		t.Errorf("err = %v, want a *BlockedError", err)
	}
	o.Accept = []string{OtherCluster}
	if r, err := RestoreObjects(t.Context(), b.Dir, o); err != nil || len(r.Objects) != 1 {
		t.Errorf("accepted: %+v, %v", r, err)
	}
}

// A claim that says that it is bound, to a volume that does not know it, would be Lost.
func TestRestoredClaimsCanBeBoundAgain(t *testing.T) {
	f := newFixture(t)
	serve := func(api *fakeAPI) {
		api.serve("v1", "persistentvolumes", "PersistentVolume", false)
		api.serve("v1", "persistentvolumeclaims", "PersistentVolumeClaim", true)
	}
	serve(f.api)
	claims := []string{"gone", "free", "released", "taken"}
	for _, name := range claims {
		f.api.add("v1", "persistentvolumeclaims", "shop", name, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "w1", "team": "a"}},
			"spec":     map[string]any{"volumeName": "pv-" + name, "storageClassName": "fast"},
		})
	}
	b := f.create(t)
	live := newFakeAPI(t)
	serve(live)
	volume := func(name string, ref map[string]any) {
		live.add("v1", "persistentvolumes", "", name, map[string]any{"spec": map[string]any{"claimRef": ref}})
	}
	volume("pv-free", map[string]any{"namespace": "shop", "name": "free"})
	volume("pv-released", map[string]any{"namespace": "shop", "name": "released", "uid": "old"})
	volume("pv-taken", map[string]any{"namespace": "other", "name": "data", "uid": "x"})
	r, err := RestoreObjects(t.Context(), b.Dir, RestoreOptions{Patterns: []string{"persistentvolumeclaims/shop/*"}, REST: live.config()})
	if err != nil {
		t.Fatal(err)
	}
	notes := map[string]string{}
	for _, o := range r.Objects {
		if o.Action != ActionCreated {
			t.Errorf("%+v", o)
		}
		notes[o.Object] = o.Note
	}
	for name, want := range map[string]struct{ volume, note string }{
		"gone": {"", "is not there"}, "free": {"pv-free", ""}, "released": {"pv-released", "kubectl patch pv pv-released"}, "taken": {"", "belongs to claim other/data"},
	} {
		o := live.objects["/api/v1/persistentvolumeclaims"]["shop/"+name]
		spec, _ := o["spec"].(map[string]any)
		meta, _ := o["metadata"].(map[string]any)
		if got, _ := spec["volumeName"].(string); got != want.volume || spec["storageClassName"] != "fast" {
			t.Errorf("%s: spec %v, want volume %q", name, spec, want.volume)
		}
		if a, _ := meta["annotations"].(map[string]any); len(a) != 1 || a["team"] != "a" {
			t.Errorf("%s: annotations %v", name, a)
		}
		if got := notes["shop/"+name]; !strings.Contains(got, want.note) || (want.note == "") != (got == "") {
			t.Errorf("%s: note %q, want %q", name, got, want.note)
		}
	}
}

func TestAWildcardTellsOfSecretsThatAreNotKept(t *testing.T) {
	f := newFixture(t)
	b := f.create(t)
	r, err := RestoreObjects(t.Context(), b.Dir, RestoreOptions{Patterns: []string{"*/kube-system/*"}, REST: f.api.config()})
	if err != nil || len(r.NotKept) != 1 || !strings.Contains(r.NotKept[0], "the etcd snapshot has them") {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := RestoreObjects(t.Context(), b.Dir, RestoreOptions{Patterns: []string{"secrets/shop/*"}, REST: f.api.config()}); err == nil || !strings.Contains(err.Error(), "only in encrypted backups") {
		t.Errorf("by name: %v", err)
	}
}

// An object that somebody changes between the look and the write is left to them.
func TestAnOverwriteHoldsToWhatWasSeen(t *testing.T) {
	f := newFixture(t)
	f.api.add("v1", "configmaps", "shop", "settings", map[string]any{"data": map[string]any{"k": "old"}})
	b := f.create(t)
	f.api.add("v1", "configmaps", "shop", "settings", map[string]any{"data": map[string]any{"k": "new"}})
	var applied []string
	f.api.onApply = func(q string, o map[string]any) {
		meta, _ := o["metadata"].(map[string]any)
		applied = append(applied, fmt.Sprintf("%s %v", q, meta["resourceVersion"]))
	}
	r, err := RestoreObjects(t.Context(), b.Dir, RestoreOptions{Patterns: []string{"configmaps/shop/*"}, REST: f.api.config(), Overwrite: true})
	if err != nil || r.Count[ActionOverwritten] != 1 || r.Objects[0].Changes[0] != (FieldChange{"data.k", `"old"`, `"new"`}) {
		t.Fatalf("%+v, %v", r, err)
	}
	delete(f.api.objects["/api/v1/configmaps"], "shop/settings")
	if _, err := RestoreObjects(t.Context(), b.Dir, RestoreOptions{Patterns: []string{"configmaps/shop/*"}, REST: f.api.config(), Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"force=true 5", "force=false <nil>"}; !slices.Equal(applied, want) {
		t.Errorf("applied %q, want %q", applied, want)
	}
}
