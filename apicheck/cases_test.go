package apicheck

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// knownCases are the cases that the scanner was designed from, by their numbers, and what is known of other scanners: what they
// miss, and what they report that is untrue. Each names its tests as "Test" or "Test/case", those of another package with its
// directory before a colon.
var knownCases = []struct{ number, what, tests string }{
	{"1", "a Deployment of extensions/v1beta1", "TestManifests/plain, deprecated; TestManifests/plain, removed; lifecycle:TestJudge/deployment extensions removed; convert:TestConvert/deployment without a selector"},
	{"2", "a List of v1", "TestManifests/list; TestManifests/list, deprecated; convert:TestConvert/list"},
	{"3", "Lists within Lists", "TestManifests/list in a list; TestManifests/list fifty levels deep"},
	{"4", "a typed list whose items have no kind", "TestManifests/typed list, items without kind; TestManifests/typed list, removed; lifecycle:TestJudge/hpa list by its item; convert:TestConvert/typed list"},
	{"6", "a kind of the same name in another group", "TestManifests/same kind, other group; lifecycle:TestJudge/group that looks like a built-in"},
	{"7", "two kinds of one version with different ends", "TestManifests/same version, other kind; TestManifests/same version, other kind, removed; lifecycle:TestJudge/ingress of the same version"},
	{"9", "JSON with the kind first, and JSON lines with CRLF", "TestManifests/json, kind first; TestManifests/json lines with CRLF; convert:TestConvert/json"},
	{"10", "a HorizontalPodAutoscaler of v2beta1", "TestOldAutoscaler; convert:TestConvert/hpa v2beta1"},
	{"11", "RuntimeClasses", "lifecycle:TestJudge/runtimeclass inferred; lifecycle:TestJudge/runtimeclass alpha; lifecycle:TestReplacementsThatNoTagNames; convert:TestConvert/runtime class"},
	{"12", "FlowSchemas over several hops", "lifecycle:TestJudge/flowschema deprecated and on; lifecycle:TestJudge/flowschema removed; lifecycle:TestJudge/flowschema over several hops"},
	{"14", "ValidatingAdmissionPolicies", "lifecycle:TestJudge/vap deprecated and off; lifecycle:TestJudge/vap removed; lifecycle:TestJudge/vap alpha removed in 1.32, not 1.33"},
	{"15", "claims of devices", "lifecycle:TestJudge/claim alpha off, not deprecated; lifecycle:TestJudge/claim alpha removed; lifecycle:TestJudge/claim beta still served in 1.36; lifecycle:TestJudge/claim beta still served in 1.37; lifecycle:TestJudge/claim v1 not yet; convert:TestConvert/claim"},
	{"17", "a stale or malformed last-applied configuration", "TestLastApplied/stale; TestLastApplied/malformed"},
	{"18", "server-side apply without that annotation", "TestManagedFields/applied with the old version; TestManagedFields/and with the new one since"},
	{"19", "hooks of Helm releases, by driver and compression", "TestHelmReleases/hook, in a Secret; TestHelmReleases/hook, in a ConfigMap; TestHelmReleases/not compressed"},
	{"21", "manifests within ConfigMaps", "TestManifests/configmap payload; TestManifests/secret payload; TestContentsOfLiveObjects"},
	{"22", "kubeadm-config", "TestManifests/kubeadm-config, deprecated; TestManifests/kubeadm-config, removed; lifecycle:TestJudge/kubeadm deprecated; lifecycle:TestJudge/kubeadm removed; TestContentsOfLiveObjects"},
	{"25", "Events, in manifests and live", "TestManifests/event semantic; TestLiveEventsAreNotJudged"},
	{"26", "webhooks", "TestReferences/webhook with old review version; TestReferences/webhook, exact; TestReferences/webhook, equivalent; lifecycle:TestJudge/admission review is still spoken"},
	{"28", "CustomResourceDefinitions", "TestReferences/crd in its old version; TestReferences/crd that stores what it does not serve; convert:TestConvert/crd"},
	{"29", "a PodSecurityPolicy, which has no successor", "TestManifests/psp; convert:TestConvert/no successor"},
	{"31", "guards", "TestManifests/never existed; TestManifests/virtual; TestManifests/endpoints; TestManifests/beyond the database"},

	{"tags", "removals earlier than tagged, or not tagged", "lifecycle:TestRemovalsThatScannersMissOrMisdate; lifecycle:TestKnownValues"},
	{"tags", "plans that moved or were withdrawn", "lifecycle:TestPlansAreNoRemovals; lifecycle:TestJudge/beyond the database"},
	{"tags", "payloads of webhooks and virtual kinds", "lifecycle:TestRemovalsThatScannersMakeUp; TestAuditLogOfVirtualKinds"},
	{"tags", "lists that disagree with their items", "lifecycle:TestListsFollowTheirItems"},
	{"tags", "replacements that are missing, gone, or no kind", "lifecycle:TestReplacementsThatNoTagNames; lifecycle:TestEveryReplacementExistsAndOutlives"},
	{"discovery", "what each minor served, and had on by default", "lifecycle:TestDatabaseEqualsDiscoveryOfEveryMinor; lifecycle:TestJudgeAgreesWithDiscovery"},
	{"discovery", "a cluster that emulates an older minor", "TestEmulatedVersion"},
	{"discovery", "stored objects that the next minor cannot decode, without left-overs", "lifecycle:TestUndecodable; lifecycle:TestJudge/pcr stored in alpha, no left-over later; TestStoredObjectsThatTheTargetCannotDecode"},
	{"components", "feature gates, flags and files of components", "lifecycle:TestGatesAndFlags; TestComponents"},
	{"fields", "fields, annotations and labels that end", "lifecycle:TestFieldsThatEnd; TestFields; TestDeadAnnotationsOfLiveObjects"},
	{"rewrites", "what a move takes, and converts of it", "lifecycle:TestRewriteOfEveryPair; convert:TestWholeObjects; convert:TestEveryStructuralMoveIsKnown"},

	{"pluto", "its missing and wrong rules", "lifecycle:TestRemovalsThatScannersMissOrMisdate; lifecycle:TestRemovalsThatScannersMakeUp; TestComparison"},
	{"pluto", "a default target that is old: here it must be given", "TestScanRefuses"},
	{"pluto", "one level of items", "TestManifests/list in a list"},
	{"pluto", "templates passed over in silence", "TestManifests/template; TestCharts; TestTemplateLines"},
	{"pluto", "rules of roles", "TestReferences/role for a group that is gone; TestReferences/role with subresources"},
	{"pluto", "rewriting manifests", "convert:TestConvert/bump keeps every other byte; TestConvertFiles"},
	{"pluto, kubent", "stale last-applied configurations called errors", "TestLastApplied/stale"},
	{"pluto, kubent", "nothing without a last-applied configuration", "TestManagedFields/applied with the old version"},
	{"severity", "older Helm revisions, to which only a rollback goes", "TestOlderHelmRevisions; TestSeverityOfRevisions/uninstalled"},
	{"severity", "by where Helm starts from", "TestSeverityOfRevisions/deployed; TestSeverityOfRevisions/failed over a clean one; TestSeverityOfRevisions/cut off over a clean one"},
	{"pluto", "two revisions marked deployed", "TestHelmReleases/newest and newest deployed of several"},
	{"pluto, kubent, mapkubeapis", "hooks of Helm releases", "TestHelmReleases/hook, in a Secret; TestRepairHelm"},
	{"kubent", "its missing rules", "lifecycle:TestRemovalsThatScannersMissOrMisdate"},
	{"kubent", "objects without metadata", "TestManifests/psp"},
	{"kubent", "Lists not looked into", "TestManifests/list"},
	{"kubent", "kinds that it asks for in versions that are gone", "TestObjectsServedOnlyInTheirNewVersion"},
	{"kubepug", "its missing rules, and those it passes over", "lifecycle:TestRemovalsThatScannersMissOrMisdate"},
	{"kubepug", "cutting at every three dashes", "TestManifests/certificate in a value"},
	{"kubepug", "directories within directories", "TestFilesOfEveryKind"},
	{"kubepug", "deprecated versions that are not the preferred one, and lists through them, which prove nothing", "TestListingThroughAnOldVersionProvesNothing; TestManagedFields/applied with the old version"},
	{"mapkubeapis", "the order of keys, CRLF, and white space", "convert:TestConvert/CRLF and quotes; convert:TestConvert/bump keeps every other byte; TestManifests/comments, quotes, order"},
	{"mapkubeapis", "the newest revision although it failed", "TestRepairHelm"},
	{"mapkubeapis", "an Ingress whose version alone changes", "TestRepairHelm; convert:TestConvert/ingress; convert:TestWholeObjects"},
	{"mapkubeapis", "documents without a successor cut without being asked", "TestRepairHelmChangesNothingWhenItMustNot; convert:TestDropAndOnlyRemoved"},
	{"the gauge", "clients that list everything keep it at one", "TestMetricIsOnlyExtraEvidence"},
	{"audit logs", "marked only once the running minor deprecates", "TestAuditLog"},
	{"managed fields", "only the newest entry of a manager counts", "TestManagedFields/and with the new one since"},
	{"managed fields", "entries that break server-side apply", "TestManagersOfCustomResources"},
}

// TestEveryKnownCaseHasItsTest keeps the table true: each test that it names exists, with its case.
func TestEveryKnownCaseHasItsTest(t *testing.T) {
	texts := map[string]map[string]bool{} // by "dir:Test", the strings in it
	for _, dir := range []string{".", "convert", "lifecycle"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !strings.HasPrefix(fn.Name.Name, "Test") {
					continue
				}
				strs := map[string]bool{}
				ast.Inspect(fn, func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						if s, err := strconv.Unquote(lit.Value); err == nil {
							strs[s] = true
						}
					}
					return true
				})
				texts[strings.TrimPrefix(dir+":", ".:")+fn.Name.Name] = strs
			}
		}
	}
	for _, c := range knownCases {
		for test := range strings.SplitSeq(c.tests, "; ") {
			fn, sub, hasSub := strings.Cut(test, "/")
			switch strs, ok := texts[fn]; {
			case !ok:
				t.Errorf("%s (%s): there is no %s", c.number, c.what, fn)
			case hasSub && !strs[sub]:
				t.Errorf("%s (%s): %s has no case %q", c.number, c.what, fn, sub)
			}
		}
	}
	for _, number := range []int{1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 14, 15, 17, 18, 19, 21, 22, 25, 26, 28, 29, 31} {
		found := false
		for _, c := range knownCases {
			found = found || c.number == itoa(number)
		}
		if !found {
			t.Errorf("case %d is not in the table", number)
		}
	}
}

func TestOldAutoscaler(t *testing.T) {
	const text = "apiVersion: autoscaling/v2beta1\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec:\n  metrics:\n  - {type: Resource, resource: {name: cpu, targetAverageUtilization: 50}}\n"
	for to, want := range map[int]string{
		24: "warning deprecated autoscaling/v2beta1 HorizontalPodAutoscaler@:1 high -> autoscaling/v2 HorizontalPodAutoscaler (structural)",
		25: "error removed autoscaling/v2beta1 HorizontalPodAutoscaler@:1 high -> autoscaling/v2 HorizontalPodAutoscaler (structural)",
	} {
		if got := lines(scanText(t, to-1, to, text)); len(got) != 1 || got[0] != want {
			t.Errorf("to 1.%d: got %q, want %q", to, got, want)
		}
	}
}

// Whoever writes Events writes thousands, and their entries say nothing that Events in manifests do not.
func TestLiveEventsAreNotJudged(t *testing.T) {
	event := `{"metadata":{"name":"e","namespace":"n","managedFields":[{"manager":"old-controller","operation":"Update","apiVersion":"events.k8s.io/v1beta1","time":"2023-05-06T07:08:09Z"}]}}`
	f := &fakeAPI{t: t, version: "v1.24.0",
		resources: map[string][]string{"v1": {"events Event", "pods Pod"}, "events.k8s.io/v1": {"events Event"}, "events.k8s.io/v1beta1": {"events Event"}, "example.com/v1": {"events Event"}},
		objects: map[string][]string{"events": {event}, "events.k8s.io/events": {event},
			"example.com/events": {`{"metadata":{"name":"e","namespace":"n","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"example.com/v1beta1"}]}}`}}}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/events") && !strings.Contains(r.URL.Path, "example.com") {
			t.Errorf("%s was listed", r.URL.Path)
		}
		return noMetric(w, r)
	}
	// Only the other group's kind of the same name.
	expect(t, f.scan(0, 25), Findings, `warning removed managed-fields example.com/v1beta1 Event e by "m"`)
}

// The apiserver gives every object in every version that it serves: that one can be listed says nothing of who uses it.
func TestListingThroughAnOldVersionProvesNothing(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.24.0", intercept: noMetric,
		resources: map[string][]string{"autoscaling/v2": {"horizontalpodautoscalers HorizontalPodAutoscaler"}, "autoscaling/v2beta1": {"horizontalpodautoscalers HorizontalPodAutoscaler"},
			"autoscaling/v2beta2": {"horizontalpodautoscalers HorizontalPodAutoscaler"}, "batch/v1": {"cronjobs CronJob"}, "batch/v1beta1": {"cronjobs CronJob"}},
		objects: map[string][]string{"autoscaling/horizontalpodautoscalers": {`{"metadata":{"name":"h","namespace":"n"}}`}, "batch/cronjobs": {`{"metadata":{"name":"c","namespace":"n"}}`}}}
	expect(t, f.scan(0, 26), Clean)
}

// What wrote an object in an old version is found although the cluster serves only the new one.
func TestObjectsServedOnlyInTheirNewVersion(t *testing.T) {
	const old = `{"apiVersion":"flowcontrol.apiserver.k8s.io/v1beta3","kind":"FlowSchema","metadata":{"name":"f"}}`
	f := &fakeAPI{t: t, version: "v1.36.0", intercept: noMetric, resources: map[string][]string{"flowcontrol.apiserver.k8s.io/v1": {"flowschemas FlowSchema"}},
		objects: map[string][]string{"flowcontrol.apiserver.k8s.io/flowschemas": {
			fmt.Sprintf(`{"metadata":{"name":"f","annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q}}}`, old),
			`{"metadata":{"name":"g","managedFields":[{"manager":"flux","operation":"Apply","apiVersion":"flowcontrol.apiserver.k8s.io/v1beta3","time":"2024-05-06T07:08:09Z"}]}}`}}}
	expect(t, f.scan(0, 37), Findings, "error removed last-applied flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema f", `warning removed managed-fields flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema g by "flux"`)
}

// Nothing starts from an older revision but a rollback to it: that it would fail is worth a word, once, and no more.
func TestOlderHelmRevisions(t *testing.T) {
	const clean, ingress = "apiVersion: v1\nkind: Pod\n", "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: i}\n"
	scan := func(records ...string) Report {
		t.Helper()
		f := &fakeAPI{t: t, version: "v1.24.0", objects: map[string][]string{"secrets": records}, intercept: noMetric, resources: map[string][]string{"v1": {"secrets Secret"}}}
		return f.scan(0, 25)
	}
	r := scan(releaseRecord(t, "superseded", 1, ingress, ""), releaseRecord(t, "superseded", 2, ingress, ""),
		helmRecord("Secret", "sh.helm.release.v1.shop.v3", "shop", "superseded", 3, "!"),
		releaseRecord(t, "superseded", 4, oldHook+"---\n"+ingress, ""), releaseRecord(t, "superseded", 5, oldHook, ""), releaseRecord(t, "deployed", 6, clean, ""))
	expect(t, r, Clean, `info removed helm extensions/v1beta1 Ingress i by "" rel "shop"/4`, `info removed helm batch/v1beta1 CronJob c by "" rel "shop"/5`)
	if !strings.HasSuffix(r.Findings[1].Message, "helm rollback to revision 5 fails on it") {
		t.Errorf("message %q", r.Findings[1].Message)
	}
	read := map[string]int{}
	for _, c := range r.Coverage.Read {
		if c.What == "helm releases" {
			read[c.Why] = c.Count
		}
	}
	want := map[string]int{"manifests and hooks": 1, "older revisions": 2, "older revisions that could not be read": 1, "older revisions, not judged: only a rollback to them would use them": 2}
	if fmt.Sprint(read) != fmt.Sprint(want) {
		t.Errorf("read %v, want %v", read, want)
	}
	// What is only deprecated breaks no rollback, and what counts for more is not said twice.
	expect(t, scan(releaseRecord(t, "superseded", 1, "apiVersion: autoscaling/v2beta2\nkind: HorizontalPodAutoscaler\n", ""), releaseRecord(t, "superseded", 2, oldHook, ""), releaseRecord(t, "deployed", 3, oldHook, "")),
		Findings, `error removed helm batch/v1beta1 CronJob c by "" rel "shop"/3`)
}
