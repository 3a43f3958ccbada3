package apicheck

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	webhook := func(policy string) string {
		return "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: w}\nwebhooks:\n- name: a.example.com\n  admissionReviewVersions: [v1beta1]\n" +
			"  matchPolicy: " + policy + "\n  rules:\n  - {apiGroups: [networking.k8s.io], apiVersions: [v1beta1], resources: [ingresses], operations: ['*']}\n"
	}
	for _, c := range []struct {
		name     string
		from, to int
		text     string
		want     []string // parts of "severity verdict path:line message"
	}{
		{"webhook with old review version", 36, 37, "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nwebhooks:\n- {name: a, admissionReviewVersions: [v1beta1]}\n", nil},
		{"webhook, exact", 21, 22, webhook("Exact"), []string{"error removed webhooks[0].rules[0]:9 networking.k8s.io/v1beta1 Ingress", "stops matching"}},
		{"webhook, equivalent", 21, 22, webhook("Equivalent"), []string{"info removed webhooks[0].rules[0]:9", "still matches"}},
		{"webhook before the removal", 20, 21, webhook("Exact"), nil},
		{"role for a group that is gone", 21, 22, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules:\n- {apiGroups: [extensions], resources: [ingresses/status], verbs: [get]}\n",
			[]string{"warning removed rules[0]:5 extensions/v1beta1 Ingress", "grants"}},
		{"role for everything of a group that is gone", 21, 22, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules:\n- apiGroups: [extensions]\n  resources: ['*']\n  verbs: [get]\n",
			[]string{"warning removed rules[0]:5 extensions/v1beta1 Ingress", `grants "*" of group "extensions", which nothing serves any more`}},
		{"role for everything of a group that lives", 24, 25, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nrules:\n- {apiGroups: [policy, '*'], resources: ['*'], verbs: ['*']}\n", nil},
		{"webhook for everything, exact", 24, 25, strings.NewReplacer("networking.k8s.io", "batch", "ingresses", "'*/*'").Replace(webhook("Exact")), []string{"error removed webhooks[0].rules[0]:9 batch/v1beta1 CronJob", "stops matching"}},
		{"webhook for everything of what was gone before", 25, 26, strings.NewReplacer("networking.k8s.io", "batch", "ingresses", "'*'").Replace(webhook("Exact")), nil},
		{"webhook for everything in every version", 24, 25, strings.NewReplacer("networking.k8s.io", "batch", "ingresses", "'*'", "[v1beta1], resources", "['*'], resources").Replace(webhook("Exact")), nil},
		{"role with subresources", 21, 22, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules:\n- {apiGroups: [extensions], resources: [ingresses, ingresses/status], verbs: [get]}\n",
			[]string{"warning removed rules[0]:5 extensions/v1beta1 Ingress"}},
		{"role that Kubernetes writes itself", 21, 22, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r, labels: {kubernetes.io/bootstrapping: rbac-defaults}}\nrules:\n- {apiGroups: [extensions], resources: [ingresses], verbs: [get]}\n", nil},
		{"role that names the new group too", 21, 22, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrules:\n- {apiGroups: [extensions, networking.k8s.io], resources: [ingresses], verbs: [get]}\n",
			[]string{"info removed rules[0]:5"}},
		{"role for a group that lives", 21, 22, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nrules:\n- {apiGroups: [networking.k8s.io], resources: [ingresses], verbs: [get]}\n", nil},
		{"hpa, version gone, group lives", 24, 25, "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  scaleTargetRef: {apiVersion: apps/v1beta1, kind: Deployment, name: d}\n", nil},
		{"hpa, group gone", 24, 25, "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nspec:\n  scaleTargetRef: {apiVersion: extensions/v1beta1, kind: Deployment, name: d}\n",
			[]string{"error removed spec.scaleTargetRef:4 extensions/v1beta1 Deployment"}},
		{"owner", 24, 25, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  ownerReferences:\n  - {apiVersion: batch/v1beta1, kind: CronJob, name: c, uid: u}\n", []string{"warning removed metadata.ownerReferences[0]:6 batch/v1beta1 CronJob"}},
		{"policy parameters", 36, 37, "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nspec:\n  paramKind: {apiVersion: networking.k8s.io/v1beta1, kind: ServiceCIDR}\n", []string{"error removed spec.paramKind:4"}},
		{"crd that stores what it does not serve", 36, 37, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: foos.example.com}\nspec:\n  group: example.com\n  names: {kind: Foo}\n  versions:\n  - {name: v1, served: true, storage: true}\n  - {name: v1alpha1, served: false, storage: false}\nstatus:\n  storedVersions: [v1alpha1, v1]\n",
			[]string{"warning deprecated status.storedVersions[0]:11 example.com/v1alpha1 Foo"}},
		{"crd with a deprecated version", 36, 37, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: foos.example.com}\nspec:\n  group: example.com\n  names: {kind: Foo}\n  versions:\n  - {name: v1alpha1, served: true, deprecated: true, deprecationWarning: use v1}\n",
			[]string{"info deprecated spec.versions[0]:8 example.com/v1alpha1 Foo"}},
		{"crd in its old version", 21, 22, "apiVersion: apiextensions.k8s.io/v1beta1\nkind: CustomResourceDefinition\nspec: {version: v1, validation: {}}\n", []string{"error removed :1 apiextensions.k8s.io/v1beta1"}},
		{"kustomize target", 24, 25, "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\npatches:\n- path: p.yaml\n  target: {group: batch, version: v1beta1, kind: CronJob}\n", []string{"warning removed patches[0].target:5"}},
		{"kyverno, group gone", 21, 22, "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nspec:\n  rules:\n  - match:\n      any:\n      - resources:\n          kinds:\n          - Pod\n          - extensions/v1beta1/Ingress\n", []string{"warning removed spec.rules[0].match.any[0].resources.kinds:10 extensions/v1beta1 Ingress", "no longer matches"}},
		{"kyverno, version gone", 24, 25, "apiVersion: kyverno.io/v1\nkind: Policy\nspec:\n  rules:\n  - match: {resources: {kinds: [batch/v1beta1/CronJob, 'batch/*/Job', v1/Pod]}}\n", []string{"warning removed spec.rules[0].match.resources.kinds:5 batch/v1beta1 CronJob", "this version only"}},
		{"gatekeeper", 21, 22, "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: K8sAllowedHosts\nspec:\n  match:\n    kinds:\n    - apiGroups: [extensions]\n      kinds: [Ingress]\n", []string{"warning removed spec.match.kinds[0]:6 extensions/v1beta1 Ingress"}},
		{"gatekeeper, the new group too", 21, 22, "apiVersion: constraints.gatekeeper.sh/v1beta1\nkind: K8sAllowedHosts\nspec:\n  match:\n    kinds:\n    - apiGroups: [extensions, networking.k8s.io]\n      kinds: [Ingress]\n", []string{"info removed spec.match.kinds[0]:6"}},
		{"audit policy", 21, 22, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: None\n  resources: [{group: extensions, resources: [ingresses]}]\n", []string{"info removed rules[0].resources[0]:5"}},
		{"configuration of webhook admission", 36, 37, "apiVersion: apiserver.config.k8s.io/v1\nkind: WebhookAdmissionConfiguration\nkubeConfigFile: /etc/k.yaml\n", nil},
		{"configuration of webhook admission, old", 35, 36, "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: WebhookAdmission\nkubeConfigFile: /etc/k.yaml\n", []string{"error removed :1 apiserver.config.k8s.io/v1alpha1 WebhookAdmission"}},
		{"encryption", 24, 25, "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, podsecuritypolicies.policy]\n  providers: [{identity: {}}]\n", []string{"info removed resources[0]:4 policy/v1beta1 PodSecurityPolicy"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := scanText(t, c.from, c.to, c.text)
			if len(c.want) == 0 {
				if len(r.Findings) > 0 {
					t.Errorf("findings %v", lines(r))
				}
				return
			}
			if len(r.Findings) != 1 {
				t.Fatalf("%d findings, want 1: %v", len(r.Findings), lines(r))
			}
			f := r.Findings[0]
			got := strings.Join([]string{string(f.Severity), string(f.Verdict), f.Source.Path + ":" + itoa(f.Source.Line), f.Message}, " ")
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("got %s\nwant %q in it", got, w)
				}
			}
		})
	}
}

func TestKustomizations(t *testing.T) {
	const head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"remote resources", head + "resources:\n- deployment.yaml\n- ../base\n- https://github.com/org/repo//deploy?ref=v1\n- github.com/org/repo/deploy\nbases: ['git@github.com:org/repo.git']\n",
			[]string{"unread 6 resources[2] is fetched from https://github.com/org/repo", "unread 7 resources[3] is fetched", "unread 8 bases[0] is fetched"}},
		{"without apiVersion and kind", "resources:\n- https://example.com/all.yaml\n", []string{"unread 2 resources[0] is fetched"}},
		{"a chart from elsewhere", head + "helmCharts:\n- {name: web, repo: 'https://charts.example.com'}\n", []string{"unread 4 helmCharts[0] is fetched"}},
		{"inline patches", head + "patches:\n- patch: |-\n    apiVersion: batch/v1beta1\n    kind: CronJob\n    metadata: {name: a}\n- patch: |-\n    - {op: remove, path: /metadata/annotations/apiVersion}\npatchesStrategicMerge:\n- \"{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: p}}\"\n- patch.yaml\n",
			[]string{"payload 5 batch/v1beta1 CronJob patches[0].patch", "payload 11 policy/v1beta1 PodDisruptionBudget patchesStrategicMerge[0]"}},
		{"nothing to say", head + "resources: [a.yaml, ./b]\npatches: [{path: p.yaml}]\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "kustomization.yaml")
			if err := os.WriteFile(name, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), Files: []string{name}})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%s %d %s %s", f.Source.Type, f.Source.Line, f.API(), f.Source.Path))
			}
			for _, u := range r.Coverage.Unreadable {
				got = append(got, fmt.Sprintf("unread %d %s", u.Line, u.Why))
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i, w := range c.want {
				if !strings.HasPrefix(got[i], w) {
					t.Errorf("got %q, want %q", got[i], w)
				}
			}
		})
	}
}
