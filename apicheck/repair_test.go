package apicheck

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// writableAPI adds creating, updating and deleting Secrets to fakeAPI, with resource versions.
type writableAPI struct {
	// broken answers writes of records with an error; lost does so after it has done them.
	broken, lost bool
	// meanwhile is what revision 1 is when it is read by its name, after the list.
	meanwhile string
	fakeAPI
	mu sync.Mutex
	// conflict fails updates of this name.
	conflict string
}

func (w *writableAPI) handle(rw http.ResponseWriter, r *http.Request) bool {
	if noMetric(rw, r) {
		return true
	}
	if r.Method == http.MethodGet {
		if w.meanwhile != "" && strings.HasSuffix(r.URL.Path, ".v1") {
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprint(rw, w.meanwhile)
			return true
		}
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	rw.Header().Set("Content-Type", "application/json")
	status := func(code int, reason string) bool {
		rw.WriteHeader(code)
		fmt.Fprintf(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
		return true
	}
	find := func(name string) int {
		for i, o := range w.objects["secrets"] {
			if strings.Contains(o, fmt.Sprintf(`"name":%q`, name)) {
				return i
			}
		}
		return -1
	}
	p := strings.Split(r.URL.Path, "/")
	name := p[len(p)-1]
	switch r.Method {
	case http.MethodPost:
		var o struct{ Metadata struct{ Name string } }
		if err := json.Unmarshal(body, &o); err != nil {
			return status(400, "BadRequest")
		}
		if find(o.Metadata.Name) >= 0 {
			return status(409, "AlreadyExists")
		}
		w.objects["secrets"] = append(w.objects["secrets"], string(body))
		fmt.Fprintf(rw, `{"metadata":{"name":%q,"uid":"u","resourceVersion":"9"}}`, o.Metadata.Name)
	case http.MethodPut:
		if name == w.conflict {
			return status(409, "Conflict")
		}
		if w.broken {
			return status(500, "InternalError")
		}
		w.objects["secrets"][find(name)] = string(body)
		if w.lost {
			return status(500, "InternalError")
		}
		fmt.Fprint(rw, "{}")
	case http.MethodDelete:
		if !strings.Contains(string(body), `"resourceVersion":"9"`) {
			return status(409, "Conflict")
		}
		i := find(name)
		w.objects["secrets"] = append(w.objects["secrets"][:i:i], w.objects["secrets"][i+1:]...)
		fmt.Fprint(rw, "{}")
	}
	return true
}

func repairSetup(t *testing.T, records ...string) *writableAPI {
	t.Helper()
	w := &writableAPI{fakeAPI: fakeAPI{t: t, version: "v1.25.0", resources: map[string][]string{"v1": {"secrets Secret"}}, objects: map[string][]string{"secrets": records}}}
	w.intercept = w.handle
	return w
}

func releaseRecord(t *testing.T, status string, revision int, manifest, hook string) string {
	t.Helper()
	text := fmt.Sprintf(`{"name":"shop","namespace":"n","version":%d,"info":{"status":%q,"notes":"keep me"},"chart":{"future":{"field":1}},"manifest":%q,"hooks":[{"name":"h","manifest":%q,"weight":3}],"unknown_field":[1,2]}`, revision, status, manifest, hook)
	data := base64.StdEncoding.EncodeToString([]byte(wrapRelease(t, text, true)))
	return helmRecord("Secret", fmt.Sprintf("sh.helm.release.v1.shop.v%d", revision), "shop", status, revision, data)
}

const (
	oldManifest = "---\n# Source: shop/templates/a.yaml\napiVersion: extensions/v1beta1\nkind: Ingress\nmetadata:\n  name: i\nspec:\n  backend:\n    serviceName: s\n    servicePort: 80\n---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: p}\n"
	oldHook     = "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: c}\n"
)

func runRepair(t *testing.T, w *writableAPI, o RepairOptions) RepairReport {
	t.Helper()
	o.RESTConfig, o.To, o.Patience = w.start(), minor(25), time.Second
	if o.BackupDir == "" {
		o.BackupDir = t.TempDir()
	}
	rep, err := RepairHelm(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// stored gives a record's status by its label and by its payload, and the payload.
func (w *writableAPI) stored(name string) (label, inside string, payload map[string]any) {
	w.t.Helper()
	for _, raw := range w.objects["secrets"] {
		var o struct {
			Metadata struct {
				Name   string
				Labels map[string]string
			}
			Data map[string]string
		}
		if err := json.Unmarshal([]byte(raw), &o); err != nil {
			w.t.Fatal(err)
		}
		if o.Metadata.Name != name {
			continue
		}
		text, err := unwrap([]byte(o.Data["release"]))
		if err != nil {
			w.t.Fatal(err)
		}
		if err := json.Unmarshal(text, &payload); err != nil {
			w.t.Fatal(err)
		}
		return o.Metadata.Labels["status"], payload["info"].(map[string]any)["status"].(string), payload
	}
	return "", "", nil
}

func TestRepairHelm(t *testing.T) {
	w := repairSetup(t, releaseRecord(t, "superseded", 1, oldManifest, ""), releaseRecord(t, "deployed", 2, oldManifest, oldHook), releaseRecord(t, "failed", 3, "broken", ""))
	rep := runRepair(t, w, RepairOptions{})
	if len(rep.Releases) != 1 || rep.Releases[0].Status != ReleaseRepaired || rep.Releases[0].Revision != 2 || rep.Releases[0].NewRevision != 4 || len(rep.Releases[0].Changes) != 3 {
		t.Fatalf("%s", asJSON(t, rep))
	}
	label, inside, p := w.stored("sh.helm.release.v1.shop.v4")
	if label != "deployed" || inside != "deployed" || p["version"] != 4.0 {
		t.Errorf("new revision: label %s, status %s, version %v", label, inside, p["version"])
	}
	manifest := p["manifest"].(string)
	for _, want := range []string{"# Source: shop/templates/a.yaml\napiVersion: networking.k8s.io/v1\n", "defaultBackend:", "apiVersion: policy/v1\n"} {
		if !strings.Contains(manifest, want) {
			t.Errorf("no %q in the new manifest:\n%s", want, manifest)
		}
	}
	hook := p["hooks"].([]any)[0].(map[string]any)
	if hook["manifest"] != strings.Replace(oldHook, "v1beta1", "v1", 1) || hook["weight"] != 3.0 {
		t.Errorf("hook %v", hook)
	}
	if p["unknown_field"] == nil || p["chart"].(map[string]any)["future"] == nil || p["info"].(map[string]any)["notes"] != "keep me" {
		t.Errorf("fields were lost: %v", p)
	}
	if label, inside, p := w.stored("sh.helm.release.v1.shop.v2"); label != "superseded" || inside != "superseded" || p["manifest"] != oldManifest {
		t.Errorf("old revision: label %s, status %s", label, inside)
	}
	if label, _, _ := w.stored("sh.helm.release.v1.shop.v3"); label != "failed" {
		t.Errorf("failed revision: %s", label)
	}
	text, err := os.ReadFile(rep.Releases[0].Backup)
	if err != nil || strings.Count(string(text), "sh.helm.release.v1.shop.v") != 3 {
		t.Errorf("backup: %v", err)
	}
	if info, err := os.Stat(rep.Releases[0].Backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("backup mode: %v %v", info.Mode(), err)
	}
	if again := runRepair(t, w, RepairOptions{}); again.Releases[0].Status != ReleaseClean || len(w.objects["secrets"]) != 4 {
		t.Errorf("a second run: %s", asJSON(t, again))
	}
}

// An error says nothing of whether the write was done: the record is asked, or the release would be left without a deployed revision.
func TestRepairHelmAsksAfterALostAnswer(t *testing.T) {
	w := repairSetup(t, releaseRecord(t, "deployed", 1, oldManifest, ""))
	w.lost = true
	rep := runRepair(t, w, RepairOptions{})
	if rep.Releases[0].Status != ReleaseRepaired {
		t.Errorf("%s", asJSON(t, rep))
	}
	if one, _, _ := w.stored("sh.helm.release.v1.shop.v1"); one != "superseded" {
		t.Errorf("revision 1 is %s", one)
	}
	if two, inside, _ := w.stored("sh.helm.release.v1.shop.v2"); two != "deployed" || inside != "deployed" {
		t.Errorf("revision 2 is %s, %s", two, inside)
	}

	record := releaseRecord(t, "deployed", 1, oldManifest, "")
	w = repairSetup(t, record)
	w.broken = true
	if rep := runRepair(t, w, RepairOptions{}); rep.Releases[0].Status != ReleaseRefused || len(w.objects["secrets"]) != 1 || w.objects["secrets"][0] != record {
		t.Errorf("a write that was not done: %s", asJSON(t, rep))
	}
}

// A release that was uninstalled after the list is not brought back.
func TestRepairHelmSeesWhatHappenedSinceTheList(t *testing.T) {
	record := releaseRecord(t, "deployed", 1, oldManifest, "")
	w := repairSetup(t, record)
	w.meanwhile = releaseRecord(t, "uninstalled", 1, oldManifest, "")
	if rep := runRepair(t, w, RepairOptions{}); rep.Releases[0].Status != ReleaseRefused || !strings.Contains(rep.Releases[0].Why, "is uninstalled now") || len(w.objects["secrets"]) != 1 {
		t.Errorf("%s", asJSON(t, rep))
	}
}

func TestRepairHelmChangesNothingWhenItMustNot(t *testing.T) {
	psp := oldManifest + "---\napiVersion: policy/v1beta1\nkind: PodSecurityPolicy\nmetadata: {name: x}\n"
	for _, c := range []struct {
		name     string
		records  []string
		options  RepairOptions
		conflict string
		status   RepairStatus
		why      string
	}{
		{"dry run", []string{releaseRecord(t, "deployed", 1, oldManifest, "")}, RepairOptions{DryRun: true}, "", ReleaseWould, ""},
		{"clean", []string{releaseRecord(t, "deployed", 1, "apiVersion: v1\nkind: Pod\n", "")}, RepairOptions{}, "", ReleaseClean, ""},
		{"a failed revision over a clean one", []string{releaseRecord(t, "deployed", 1, "apiVersion: v1\nkind: Pod\n", ""), releaseRecord(t, "failed", 2, oldManifest, "")}, RepairOptions{}, "", ReleaseClean, "helm upgrade starts from revision 1, which is clean; revision 2, failed, names"},
		{"a clean failed revision", []string{releaseRecord(t, "deployed", 1, "apiVersion: v1\nkind: Pod\n", ""), releaseRecord(t, "failed", 2, "", "")}, RepairOptions{}, "", ReleaseClean, ""},
		{"cut off over a clean one", []string{releaseRecord(t, "deployed", 1, "apiVersion: v1\nkind: Pod\n", ""), releaseRecord(t, "pending-upgrade", 2, oldManifest, "")}, RepairOptions{}, "", ReleaseRefused, "delete secret sh.helm.release.v1.shop.v2"},
		{"uninstalled", []string{releaseRecord(t, "uninstalled", 1, oldManifest, "")}, RepairOptions{}, "", ReleaseClean, "only helm rollback would"},
		{"no successor", []string{releaseRecord(t, "deployed", 1, psp, "")}, RepairOptions{}, "", ReleaseRefused, "PodSecurityPolicy"},
		{"an operation is under way", []string{releaseRecord(t, "deployed", 1, oldManifest, ""), releaseRecord(t, "pending-upgrade", 2, "", "")}, RepairOptions{}, "", ReleaseRefused, "pending-upgrade"},
		{"another writer", []string{releaseRecord(t, "deployed", 1, oldManifest, "")}, RepairOptions{}, "sh.helm.release.v1.shop.v1", ReleaseRefused, "run it again"},
		{"nothing is deployed", []string{releaseRecord(t, "superseded", 1, oldManifest, "")}, RepairOptions{}, "", ReleaseRefused, "no revision is deployed"},
		{"uninstalling", []string{releaseRecord(t, "uninstalling", 1, oldManifest, "")}, RepairOptions{}, "", ReleaseRefused, "uninstalling"},
		{"broken record", []string{helmRecord("Secret", "sh.helm.release.v1.shop.v1", "shop", "deployed", 1, "!")}, RepairOptions{}, "", ReleaseUnread, "neither JSON"},
		{"no such release", []string{releaseRecord(t, "deployed", 1, oldManifest, "")}, RepairOptions{Releases: []string{"other"}}, "", ReleaseUnread, "no such release"},
		{"too large", []string{releaseRecord(t, "deployed", 1, oldManifest, "# "+incompressible(2000<<10))}, RepairOptions{}, "", ReleaseRefused, "more than the apiserver takes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := repairSetup(t, c.records...)
			w.conflict = c.conflict
			rep := runRepair(t, w, c.options)
			if len(rep.Releases) != 1 || rep.Releases[0].Status != c.status || !strings.Contains(rep.Releases[0].Why, c.why) {
				t.Errorf("%s", asJSON(t, rep))
			}
			if strings.Join(w.objects["secrets"], "\n") != strings.Join(c.records, "\n") {
				t.Error("records changed")
			}
		})
	}
	w := repairSetup(t, releaseRecord(t, "deployed", 1, psp, ""))
	if rep := runRepair(t, w, RepairOptions{Drop: true}); rep.Releases[0].Status != ReleaseRepaired {
		t.Errorf("with leave to cut: %s", asJSON(t, rep))
	}
	if _, _, p := w.stored("sh.helm.release.v1.shop.v2"); p == nil || strings.Contains(p["manifest"].(string), "PodSecurityPolicy") {
		t.Error("the document without a successor is still there")
	}
}

// incompressible gives n characters that gzip makes little of.
func incompressible(n int) string {
	var b strings.Builder
	x := uint64(88172645463325252)
	for b.Len() < n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		fmt.Fprintf(&b, "%x", x)
	}
	return b.String()[:n]
}

// A record that Helm 3's own library wrote is read and repaired like one of Helm 4's.
func TestRepairRecordOfHelm3(t *testing.T) {
	text, err := os.ReadFile("testdata/helm3-record.json")
	if err != nil {
		t.Fatal(err)
	}
	var one bytes.Buffer
	if err := json.Compact(&one, text); err != nil {
		t.Fatal(err)
	}
	w := repairSetup(t, one.String())
	w.version = "v1.37.2"
	cfg := w.start()
	r, err := Scan(t.Context(), Options{To: minor(37), RESTConfig: cfg})
	if err != nil {
		t.Fatal(err)
	}
	var hooks, manifests int
	for _, f := range r.Findings {
		if f.Kind == "ServiceCIDR" && f.Source.Type == SourceHelm && f.Severity == Error && strings.HasSuffix(f.Message, "the next helm upgrade fails on it") {
			if f.Source.Hook != "" {
				hooks++
			} else {
				manifests++
			}
		}
	}
	if hooks != 1 || manifests != 1 {
		t.Errorf("%d hooks and %d manifests: %v", hooks, manifests, seen(r))
	}
	_, _, before := w.stored("sh.helm.release.v1.shop.v1")
	rep, err := RepairHelm(t.Context(), RepairOptions{RESTConfig: cfg, To: minor(37), BackupDir: t.TempDir(), Patience: time.Second})
	if err != nil || len(rep.Releases) != 1 || rep.Releases[0].Status != ReleaseRepaired || len(rep.Releases[0].Changes) != 2 {
		t.Fatalf("%s %v", asJSON(t, rep), err)
	}
	label, inside, after := w.stored("sh.helm.release.v1.shop.v2")
	if label != "deployed" || inside != "deployed" || strings.Contains(asJSON(t, after), "v1beta1") {
		t.Errorf("label %s, status %s\n%s", label, inside, asJSON(t, after))
	}
	// Nothing but what was meant differs.
	for _, p := range []map[string]any{before, after} {
		delete(p, "manifest")
		delete(p, "version")
		delete(p["hooks"].([]any)[0].(map[string]any), "manifest")
		info := p["info"].(map[string]any)
		delete(info, "status")
		delete(info, "last_deployed")
		delete(info, "description")
	}
	if a, b := asJSON(t, before), asJSON(t, after); a != b {
		t.Errorf("before\n%s\nafter\n%s", a, b)
	}
}
