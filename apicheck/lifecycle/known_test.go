package lifecycle

import (
	"strings"
	"testing"
)

// TestRemovalsThatScannersMissOrMisdate holds the removals that tags, the deprecation guide, or the rules of other
// scanners leave out or give another minor for. Each kind must live until its removal, be judged removed at that hop and
// no other, and move to what is served after it.
func TestRemovalsThatScannersMissOrMisdate(t *testing.T) {
	db := testDB(t)
	for _, c := range []struct {
		why        string
		apiVersion string
		kinds      string
		removed    int
		to         string // the replacement's version at that hop; empty for none
	}{
		// Gone from the newest module, with no tag in the last one that had them.
		{"no tag", "auditregistration.k8s.io/v1alpha1", "AuditSink", 19, ""},
		{"no tag", "settings.k8s.io/v1alpha1", "PodPreset", 20, ""},
		{"no tag", "batch/v2alpha1", "CronJob", 21, "batch/v1"},
		{"no tag", "discovery.k8s.io/v1alpha1", "EndpointSlice", 21, "discovery.k8s.io/v1"},
		{"no tag", "resource.k8s.io/v1alpha1", "PodScheduling ResourceClaim ResourceClaimTemplate ResourceClass", 27, "-"},
		{"no tag", "resource.k8s.io/v1alpha2", "PodSchedulingContext ResourceClaim ResourceClaimParameters ResourceClaimTemplate ResourceClass ResourceClassParameters ResourceSlice", 31, "-"},
		{"no tag", "resource.k8s.io/v1alpha3", "PodSchedulingContext", 32, ""},
		{"no tag", "scheduling.k8s.io/v1alpha1", "PriorityClass", 23, "scheduling.k8s.io/v1"},
		{"no tag", "scheduling.k8s.io/v1alpha1", "Workload", 36, "-"},
		{"no tag", "scheduling.k8s.io/v1alpha2", "Workload PodGroup", 37, "-"},
		{"never tagged; pluto has 1.22", "rbac.authorization.k8s.io/v1alpha1", "ClusterRole ClusterRoleBinding Role RoleBinding", 23, "rbac.authorization.k8s.io/v1"},
		{"never tagged", "node.k8s.io/v1alpha1", "RuntimeClass", 24, "node.k8s.io/v1"},
		// Gone from the newest module, with a tag in an older one.
		{"tagged in an older module", "extensions/v1beta1", "PodSecurityPolicy", 16, "policy/v1beta1"},
		{"tagged in an older module", "policy/v1beta1", "PodSecurityPolicy", 25, ""},
		{"tagged in an older module", "flowcontrol.apiserver.k8s.io/v1alpha1", "FlowSchema PriorityLevelConfiguration", 21, "-"},
		{"tagged in an older module", "autoscaling/v2beta1", "HorizontalPodAutoscaler", 25, "autoscaling/v2"},
		{"tagged in an older module", "autoscaling/v2beta2", "HorizontalPodAutoscaler", 26, "autoscaling/v2"},
		// Removed by hand, earlier than the tag says.
		{"tagged 1.31", "networking.k8s.io/v1alpha1", "ClusterCIDR", 29, ""},
		{"tagged 1.33", "networking.k8s.io/v1alpha1", "IPAddress ServiceCIDR", 31, "networking.k8s.io/v1beta1"},
		{"tagged 1.37", "coordination.k8s.io/v1alpha1", "LeaseCandidate", 32, "coordination.k8s.io/v1alpha2"},
		{"tagged 1.37", "resource.k8s.io/v1alpha3", "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice", 34, "resource.k8s.io/v1"},
		{"tagged 1.40", "certificates.k8s.io/v1alpha1", "PodCertificateRequest", 35, "certificates.k8s.io/v1beta1"},
		{"tagged 1.36", "storagemigration.k8s.io/v1alpha1", "StorageVersionMigration", 35, "storagemigration.k8s.io/v1beta1"},
		// In modules of their own.
		{"kubepug: another module", "apiextensions.k8s.io/v1beta1", "CustomResourceDefinition", 22, "apiextensions.k8s.io/v1"},
		{"kubepug: another module", "apiregistration.k8s.io/v1beta1", "APIService", 22, "apiregistration.k8s.io/v1"},
		// The wrong minor in pluto's rules.
		{"pluto has 1.29", "flowcontrol.apiserver.k8s.io/v1beta1", "FlowSchema PriorityLevelConfiguration", 26, "flowcontrol.apiserver.k8s.io/v1beta3"},
		{"pluto has 1.33", "admissionregistration.k8s.io/v1alpha1", "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding", 32, "admissionregistration.k8s.io/v1"},
		// Without a rule in pluto, kubent and mapkubeapis.
		{"no rule in three of them", "admissionregistration.k8s.io/v1beta1", "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding", 34, "admissionregistration.k8s.io/v1"},
		{"no rule in three of them", "networking.k8s.io/v1beta1", "IPAddress ServiceCIDR", 37, "networking.k8s.io/v1"},
		{"no rule, or one without a minor", "storage.k8s.io/v1beta1", "VolumeAttributesClass", 37, "storage.k8s.io/v1"},
		{"no rule in two of them", "storage.k8s.io/v1alpha1", "VolumeAttributesClass", 35, "storage.k8s.io/v1"},
		{"no rule in kubent", "events.k8s.io/v1beta1", "Event", 25, "events.k8s.io/v1"},
		{"no rule in mapkubeapis", "discovery.k8s.io/v1beta1", "EndpointSlice", 25, "discovery.k8s.io/v1"},
		{"no rule in mapkubeapis", "node.k8s.io/v1beta1", "RuntimeClass", 25, "node.k8s.io/v1"},
		{"no rule in three of them", "certificates.k8s.io/v1alpha1", "ClusterTrustBundle", 37, "certificates.k8s.io/v1"},
		// On kubepug's list of what it passes over.
		{"kubepug passes over it", "flowcontrol.apiserver.k8s.io/v1beta2", "FlowSchema PriorityLevelConfiguration", 29, "flowcontrol.apiserver.k8s.io/v1"},
		{"kubepug passes over it", "flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema PriorityLevelConfiguration", 32, "flowcontrol.apiserver.k8s.io/v1"},
		// One version, another fate per kind.
		{"one version, several fates", "networking.k8s.io/v1beta1", "Ingress IngressClass", 22, "networking.k8s.io/v1"},
		{"one version, several fates", "coordination.k8s.io/v1beta1", "Lease", 22, "coordination.k8s.io/v1"},
		{"one version, several fates", "storage.k8s.io/v1beta1", "CSIDriver CSINode StorageClass VolumeAttachment", 22, "storage.k8s.io/v1"},
		{"one version, several fates", "storage.k8s.io/v1beta1", "CSIStorageCapacity", 27, "storage.k8s.io/v1"},
		{"one version, several fates", "admissionregistration.k8s.io/v1beta1", "MutatingWebhookConfiguration ValidatingWebhookConfiguration", 22, "admissionregistration.k8s.io/v1"},
	} {
		for kind := range strings.FieldsSeq(c.kinds) {
			g := ParseGVK(c.apiVersion, kind)
			k, ok := db.Lookup(g)
			if !ok {
				t.Errorf("%s (%s): not in the database", g, c.why)
				continue
			}
			if k.Removed != minor(c.removed) {
				t.Errorf("%s (%s): removed in %s, want 1.%d", g, c.why, k.Removed, c.removed)
			}
			for to := c.removed - 1; to <= 37; to++ {
				want := Removed
				j := db.Judge(g, minor(to-1), minor(to), false)
				if to < c.removed {
					if j.Verdict == want {
						t.Errorf("%s (%s): judged removed at 1.%d already", g, c.why, to)
					}
					continue
				}
				if j.Verdict != want || j.Hop != minor(c.removed) {
					t.Errorf("%s (%s): at 1.%d %s by hop %s, want removed by 1.%d", g, c.why, to, j.Verdict, j.Hop, c.removed)
				}
				if to == c.removed && c.to != "-" && j.Replacement.APIVersion() != c.to {
					t.Errorf("%s (%s): replaced by %q, want %q", g, c.why, j.Replacement.APIVersion(), c.to)
				}
			}
		}
	}
}

// TestRemovalsThatScannersMakeUp holds what other scanners report as removed, and is not.
func TestRemovalsThatScannersMakeUp(t *testing.T) {
	db := testDB(t)
	for _, c := range []struct {
		why, apiVersion, kinds string
		to                     int
		verdict                Verdict
		replacement            string
	}{
		{"pluto has 1.36, and v1beta2 to go to", "resource.k8s.io/v1beta1", "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice", 36, OffByDefault, "resource.k8s.io/v1"},
		{"pluto has 1.36, and v1beta2 to go to", "resource.k8s.io/v1beta1", "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice", 37, OffByDefault, "resource.k8s.io/v1"},
		{"its removal is planned for 1.38", "resource.k8s.io/v1beta1", "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice", 38, PlannedRemoval, "resource.k8s.io/v1"},
		{"in the deprecation guide, in no module", "apps/v1beta1", "ReplicaSet", 37, UnknownBuiltin, ""},
		{"a kind of pluto's rules that does not exist", "flowcontrol.apiserver.k8s.io/v1beta1", "FlowControl", 37, UnknownBuiltin, ""},
		{"a rule of pluto's without a version", "rbac.istio.io/v1alpha1", "AuthorizationPolicy", 37, Custom, ""},
		{"a rule of pluto's that names another group", "acme.cert-manager.io/v1beta1", "Challenge Order", 37, Custom, ""},
		{"its definition decides", "snapshot.storage.k8s.io/v1beta1", "VolumeSnapshot", 37, Custom, ""},
		{"tagged as removed in 1.22, and still spoken", "admission.k8s.io/v1beta1", "AdmissionReview", 37, OK, ""},
		{"tagged as removed in 1.22, and still spoken", "apiextensions.k8s.io/v1beta1", "ConversionReview", 37, OK, ""},
		{"nothing keeps it", "extensions/v1beta1", "Scale DeploymentRollback", 37, VirtualKind, ""},
		{"nothing keeps it", "policy/v1beta1", "Eviction", 37, VirtualKind, ""},
		{"nothing keeps it", "authentication.k8s.io/v1beta1", "SelfSubjectReview TokenReview", 37, VirtualKind, ""},
	} {
		for kind := range strings.FieldsSeq(c.kinds) {
			g := ParseGVK(c.apiVersion, kind)
			j := db.Judge(g, minor(c.to-1), minor(c.to), false)
			if j.Verdict != c.verdict || c.replacement != "" && j.Replacement.APIVersion() != c.replacement {
				t.Errorf("%s (%s): at 1.%d %s, replaced by %q; want %s, %q", g, c.why, c.to, j.Verdict, j.Replacement, c.verdict, c.replacement)
			}
		}
	}
	// A client that asks for one fails all the same: the miss of pluto, kubent and mapkubeapis in 1.33.
	if j := db.JudgeRequest(ParseGVK("authentication.k8s.io/v1beta1", "SelfSubjectReview"), minor(32), minor(33)); j.Verdict != Removed || j.Hop != minor(33) {
		t.Errorf("a request for a SelfSubjectReview: %s by hop %s", j.Verdict, j.Hop)
	}
}

// TestPlansAreNoRemovals holds that tags later than what was observed are plans, whose minors moved and which were
// withdrawn before. The values are those of the newest module, after their moves.
func TestPlansAreNoRemovals(t *testing.T) {
	db := testDB(t)
	planned := 0
	for i := range db.Kinds {
		k := &db.Kinds[i]
		if !before(db.Newest, k.Removed) {
			continue
		}
		planned++
		if k.RemovedBasis != Planned {
			t.Errorf("%s: removal in %s is %s", k.GVK(), k.Removed, k.RemovedBasis)
		}
		for to := db.Newest; to.Minor < 45; to = to.Next() {
			if j := db.Judge(k.GVK(), db.Newest, to, false); j.Verdict == Removed || j.Verdict == Undecodable || j.Verdict == PlannedRemoval != !before(to, k.Removed) {
				t.Errorf("%s, planned for %s: %s at %s", k.GVK(), k.Removed, j.Verdict, to)
			}
		}
	}
	if planned < 20 {
		t.Errorf("%d plans", planned)
	}
	for _, c := range []struct {
		apiVersion, kind string
		removed          int
	}{
		{"certificates.k8s.io/v1beta1", "ClusterTrustBundle", 40},
		{"certificates.k8s.io/v1beta1", "PodCertificateRequest", 40},
		{"storagemigration.k8s.io/v1beta1", "StorageVersionMigration", 40},
		{"admissionregistration.k8s.io/v1beta1", "MutatingAdmissionPolicy", 40},
		{"coordination.k8s.io/v1beta1", "LeaseCandidate", 39},
		// Their plans were withdrawn in 1.38's first versions.
		{"admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicy", 38},
		{"admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicyBinding", 38},
		{"coordination.k8s.io/v1alpha2", "LeaseCandidate", 38},
		{"lifecycle.k8s.io/v1alpha1", "Eviction", 43},
		{"lifecycle.k8s.io/v1alpha1", "EvictionRequest", 43},
		{"resource.k8s.io/v1alpha3", "DeviceTaintRule", 39},
		{"resource.k8s.io/v1alpha3", "ResourcePoolStatusRequest", 42},
	} {
		if k, ok := db.Lookup(ParseGVK(c.apiVersion, c.kind)); !ok || k.Removed != minor(c.removed) || k.RemovedBasis != Planned {
			t.Errorf("%s %s: removed %s (%s), want a plan for 1.%d", c.apiVersion, c.kind, k.Removed, k.RemovedBasis, c.removed)
		}
	}
}

// TestListsFollowTheirItems holds that a list is judged by its item: the tags of lists disagree with those of items.
func TestListsFollowTheirItems(t *testing.T) {
	db := testDB(t)
	for _, c := range []struct {
		apiVersion, list    string
		introduced, removed int
	}{
		{"autoscaling/v2beta2", "HorizontalPodAutoscalerList", 12, 26}, // tagged 1.25
		{"coordination.k8s.io/v1", "LeaseList", 14, 0},                 // tagged 1.19
		{"networking.k8s.io/v1", "NetworkPolicyList", 7, 0},            // tagged 1.19
		{"networking.k8s.io/v1beta1", "IngressClassList", 18, 22},
	} {
		k, ok := db.Lookup(ParseGVK(c.apiVersion, c.list))
		if !ok || k.Introduced != minor(c.introduced) || k.Removed.Minor != c.removed {
			t.Errorf("%s %s: introduced %s removed %s, want 1.%d 1.%d", c.apiVersion, c.list, k.Introduced, k.Removed, c.introduced, c.removed)
		}
	}
}

// TestReplacementsThatNoTagNames holds replacements that are inferred, because their tag is missing, or names a kind
// that is not one or a version that is itself gone.
func TestReplacementsThatNoTagNames(t *testing.T) {
	db := testDB(t)
	for _, c := range []struct {
		apiVersion, kind string
		removed          int
		to               string
		rewrite          Rewrite
	}{
		{"node.k8s.io/v1beta1", "RuntimeClass", 25, "node.k8s.io/v1 RuntimeClass", Bump},
		{"events.k8s.io/v1beta1", "Event", 25, "events.k8s.io/v1 Event", Semantic},
		{"networking.k8s.io/v1beta1", "ServiceCIDR", 37, "networking.k8s.io/v1 ServiceCIDR", Bump},
		{"admissionregistration.k8s.io/v1beta1", "ValidatingAdmissionPolicy", 34, "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", Bump},
	} {
		if j := db.Judge(ParseGVK(c.apiVersion, c.kind), minor(c.removed-1), minor(c.removed), false); j.ReplacementBasis != Inferred || j.Replacement.String() != c.to || j.Rewrite != c.rewrite {
			t.Errorf("%s %s: %s %s %s", c.apiVersion, c.kind, j.ReplacementBasis, j.Replacement, j.Rewrite)
		}
	}
	// The tag names IngressClassList, a kind that is no object.
	if j := db.Judge(ParseGVK("networking.k8s.io/v1beta1", "IngressClass"), minor(21), minor(22), false); j.Replacement.String() != "networking.k8s.io/v1 IngressClass" {
		t.Errorf("IngressClass is replaced by %s", j.Replacement)
	}
	// The tags name versions that are themselves gone at 1.37.
	for _, s := range []string{"flowcontrol.apiserver.k8s.io/v1alpha1 FlowSchema", "flowcontrol.apiserver.k8s.io/v1beta1 FlowSchema", "flowcontrol.apiserver.k8s.io/v1beta2 FlowSchema",
		"flowcontrol.apiserver.k8s.io/v1beta1 PriorityLevelConfiguration", "storage.k8s.io/v1alpha1 CSIStorageCapacity"} {
		apiVersion, kind, _ := strings.Cut(s, " ")
		if j := db.Judge(ParseGVK(apiVersion, kind), minor(36), minor(37), false); j.Replacement.Version != "v1" {
			t.Errorf("%s is replaced by %s", s, j.Replacement)
		}
	}
	// The best higher version of it is gone with it.
	if j := db.Judge(ParseGVK("resource.k8s.io/v1alpha1", "ResourceClass"), minor(36), minor(37), false); !j.Replacement.IsZero() {
		t.Errorf("ResourceClass is replaced by %s", j.Replacement)
	}
}

// TestRewriteOfEveryPair holds what a move takes, as far as a comparison of the types' fields, and what is known of
// defaults and meanings, say it.
func TestRewriteOfEveryPair(t *testing.T) {
	db := testDB(t)
	for rewrite, moves := range map[Rewrite]string{
		Bump: `apps/v1beta2 Deployment; apps/v1beta2 DaemonSet; apps/v1beta2 StatefulSet; apps/v1beta2 ReplicaSet; extensions/v1beta1 NetworkPolicy; networking.k8s.io/v1beta1 IngressClass;
			scheduling.k8s.io/v1beta1 PriorityClass; node.k8s.io/v1beta1 RuntimeClass; rbac.authorization.k8s.io/v1beta1 Role; rbac.authorization.k8s.io/v1beta1 ClusterRole;
			rbac.authorization.k8s.io/v1beta1 RoleBinding; rbac.authorization.k8s.io/v1beta1 ClusterRoleBinding; storage.k8s.io/v1beta1 StorageClass; storage.k8s.io/v1beta1 CSIDriver;
			storage.k8s.io/v1beta1 CSINode; storage.k8s.io/v1beta1 CSIStorageCapacity; storage.k8s.io/v1beta1 VolumeAttachment; storage.k8s.io/v1beta1 VolumeAttributesClass;
			flowcontrol.apiserver.k8s.io/v1beta1 FlowSchema; flowcontrol.apiserver.k8s.io/v1beta2 FlowSchema; flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema; autoscaling/v2beta2 HorizontalPodAutoscaler;
			networking.k8s.io/v1beta1 ServiceCIDR; networking.k8s.io/v1beta1 IPAddress; certificates.k8s.io/v1beta1 ClusterTrustBundle; resource.k8s.io/v1beta1 DeviceClass; resource.k8s.io/v1beta2 ResourceClaim;
			resource.k8s.io/v1beta2 ResourceSlice; apiregistration.k8s.io/v1beta1 APIService; batch/v1beta1 CronJob; admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicy;
			admissionregistration.k8s.io/v1beta1 MutatingAdmissionPolicy; storagemigration.k8s.io/v1beta1 StorageVersionMigration; coordination.k8s.io/v1beta1 Lease`,
		Structural: `extensions/v1beta1 Ingress; networking.k8s.io/v1beta1 Ingress; apiextensions.k8s.io/v1beta1 CustomResourceDefinition; autoscaling/v2beta1 HorizontalPodAutoscaler;
			discovery.k8s.io/v1beta1 EndpointSlice; extensions/v1beta1 Deployment; apps/v1beta1 Deployment; extensions/v1beta1 DaemonSet; flowcontrol.apiserver.k8s.io/v1beta1 PriorityLevelConfiguration;
			flowcontrol.apiserver.k8s.io/v1beta2 PriorityLevelConfiguration; resource.k8s.io/v1alpha3 ResourceClaim; resource.k8s.io/v1alpha3 ResourceClaimTemplate; resource.k8s.io/v1beta1 ResourceClaim;
			resource.k8s.io/v1beta1 ResourceClaimTemplate; resource.k8s.io/v1beta1 ResourceSlice; rbac.authorization.k8s.io/v1alpha1 RoleBinding; rbac.authorization.k8s.io/v1alpha1 ClusterRoleBinding;
			node.k8s.io/v1alpha1 RuntimeClass; storagemigration.k8s.io/v1alpha1 StorageVersionMigration; coordination.k8s.io/v1alpha1 LeaseCandidate; certificates.k8s.io/v1beta1 PodCertificateRequest;
			scheduling.k8s.io/v1alpha1 Workload; scheduling.k8s.io/v1alpha2 Workload; scheduling.k8s.io/v1alpha2 PodGroup`,
		Semantic: `admissionregistration.k8s.io/v1beta1 ValidatingWebhookConfiguration; admissionregistration.k8s.io/v1beta1 MutatingWebhookConfiguration; certificates.k8s.io/v1beta1 CertificateSigningRequest;
			policy/v1beta1 PodDisruptionBudget; events.k8s.io/v1beta1 Event; flowcontrol.apiserver.k8s.io/v1beta3 PriorityLevelConfiguration`,
		None: `policy/v1beta1 PodSecurityPolicy; settings.k8s.io/v1alpha1 PodPreset; auditregistration.k8s.io/v1alpha1 AuditSink; networking.k8s.io/v1alpha1 ClusterCIDR;
			resource.k8s.io/v1alpha2 ResourceClass; resource.k8s.io/v1alpha2 ResourceClaim; resource.k8s.io/v1alpha3 PodSchedulingContext`,
	} {
		for move := range strings.SplitSeq(moves, ";") {
			apiVersion, kind, _ := strings.Cut(strings.TrimSpace(move), " ")
			// All of these are served by no minor, or not judged ok, at 1.37.
			if j := db.Judge(ParseGVK(apiVersion, kind), minor(36), minor(37), false); j.Rewrite != rewrite {
				t.Errorf("%s %s -> %q: %q, want %s", apiVersion, kind, j.Replacement, j.Rewrite, rewrite)
			}
		}
	}
}

// TestFieldsThatEnd holds when fields and values stop doing anything, of those that Kubernetes warns of in code only.
func TestFieldsThatEnd(t *testing.T) {
	db := testDB(t)
	minorOf := func(m Minor) string {
		if m == (Minor{}) {
			return "-"
		}
		return m.String()
	}
	got := map[string]string{}
	for i := range db.Fields {
		f := &db.Fields[i]
		key := f.Path[len(f.Path)-1]
		if f.Value != "" {
			key += "=" + f.Value
		}
		got[key] = "deprecated " + minorOf(f.Deprecated) + " off " + minorOf(f.Off) + " dead " + minorOf(f.Dead)
	}
	for key, want := range map[string]string{
		"photonPersistentDisk":                 "deprecated 1.11 off - dead 1.16",
		"scaleIO":                              "deprecated 1.16 off - dead 1.22",
		"flocker":                              "deprecated 1.22 off - dead 1.25",
		"storageos":                            "deprecated 1.22 off - dead 1.25",
		"quobyte":                              "deprecated 1.22 off - dead 1.25",
		"glusterfs":                            "deprecated 1.25 off - dead 1.26",
		"cephfs":                               "deprecated 1.28 off - dead 1.31",
		"rbd":                                  "deprecated 1.28 off - dead 1.31",
		"gitRepo":                              "deprecated 1.11 off 1.33 dead 1.36",
		"azureFile":                            "deprecated 1.21 off - dead -", // which a CSI driver takes over
		"vsphereVolume":                        "deprecated 1.19 off - dead -",
		"portworxVolume":                       "deprecated 1.25 off - dead -",
		"security.alpha.kubernetes.io/sysctls": "deprecated - off - dead 1.11",
		"scheduler.alpha.kubernetes.io/critical-pod":       "deprecated - off - dead 1.16",
		"seccomp.security.alpha.kubernetes.io/pod":         "deprecated - off - dead 1.27",
		"container.seccomp.security.alpha.kubernetes.io/*": "deprecated - off - dead 1.27",
		"container.apparmor.security.beta.kubernetes.io/*": "deprecated 1.30 off - dead -",
		"volume.beta.kubernetes.io/storage-class":          "deprecated 1.8 off - dead -",
		"volume.beta.kubernetes.io/mount-options":          "deprecated 1.31 off - dead -",
		"kubernetes.io/enforce-mountable-secrets":          "deprecated 1.32 off - dead -",
		"kubernetes.io/ingress.class":                      "deprecated 1.18 off - dead -",
		"service.kubernetes.io/topology-aware-hints":       "deprecated 1.27 off - dead -",
		"loadBalancerIP":                                       "deprecated 1.24 off - dead -",
		"externalIPs":                                          "deprecated 1.36 off - dead -",
		"configSource":                                         "deprecated 1.22 off - dead 1.24",
		"node-role.kubernetes.io/master":                       "deprecated 1.20 off - dead 1.24",
		"beta.kubernetes.io/arch":                              "deprecated 1.14 off - dead -",
		"beta.kubernetes.io/os":                                "deprecated 1.14 off - dead -",
		"beta.kubernetes.io/instance-type":                     "deprecated 1.17 off - dead -",
		"failure-domain.beta.kubernetes.io/region":             "deprecated 1.17 off - dead -",
		"failure-domain.beta.kubernetes.io/zone":               "deprecated 1.17 off - dead -",
		"trafficDistribution=PreferClose":                      "deprecated - off - dead -",
		"persistentVolumeReclaimPolicy=Recycle":                "deprecated - off - dead -",
		"addressType=FQDN":                                     "deprecated - off - dead -",
		"topologyKey=failure-domain.beta.kubernetes.io/zone":   "deprecated 1.17 off - dead -",
		"topologyKey=failure-domain.beta.kubernetes.io/region": "deprecated 1.17 off - dead -",
	} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
}
