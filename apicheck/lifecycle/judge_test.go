package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestJudge(t *testing.T) {
	db := testDB(t)
	for _, c := range []struct {
		name             string
		apiVersion, kind string
		from, to         int
		stored           bool
		verdict          Verdict
		also             string
		hop              int
		replacement      string
		rewrite          Rewrite
		remedy           string // part of it
	}{
		{"deployment extensions deprecated", "extensions/v1beta1", "Deployment", 14, 15, false, Deprecated, "", 0, "apps/v1 Deployment", Structural, "move to apps/v1"},
		{"deployment extensions removed", "extensions/v1beta1", "Deployment", 15, 16, false, Removed, "", 16, "apps/v1 Deployment", Structural, "before the hop to 1.16"},
		{"cronjob deprecated", "batch/v1beta1", "CronJob", 23, 24, false, Deprecated, "", 0, "batch/v1 CronJob", Bump, ""},
		{"cronjob removed", "batch/v1beta1", "CronJob", 24, 25, false, Removed, "", 25, "batch/v1 CronJob", Bump, ""},
		{"hpa list by its item", "autoscaling/v2beta2", "HorizontalPodAutoscalerList", 24, 25, false, Deprecated, "", 0, "autoscaling/v2 HorizontalPodAutoscaler", Bump, ""},
		{"hpa list removed", "autoscaling/v2beta2", "HorizontalPodAutoscalerList", 25, 26, false, Removed, "", 26, "autoscaling/v2 HorizontalPodAutoscaler", Bump, ""},
		{"other group, same kind", "networking.example.com/v1beta1", "Ingress", 36, 37, false, Custom, "", 0, "", "", ""},
		{"group that looks like a built-in", "extensions.example.io/v1beta1", "Deployment", 36, 37, false, Custom, "", 0, "", "", ""},
		{"k8s.io group that is not built in", "snapshot.storage.k8s.io/v1", "VolumeSnapshot", 36, 37, false, Custom, "", 0, "", "", ""},
		{"servicecidr deprecated and off", "networking.k8s.io/v1beta1", "ServiceCIDR", 35, 36, false, OffByDefault, "deprecated", 0, "networking.k8s.io/v1 ServiceCIDR", Bump, ""},
		{"servicecidr removed", "networking.k8s.io/v1beta1", "ServiceCIDR", 36, 37, false, Removed, "", 37, "networking.k8s.io/v1 ServiceCIDR", Bump, ""},
		{"ingress of the same version", "networking.k8s.io/v1beta1", "Ingress", 21, 22, false, Removed, "", 22, "networking.k8s.io/v1 Ingress", Structural, ""},
		{"runtimeclass inferred", "node.k8s.io/v1beta1", "RuntimeClass", 24, 25, false, Removed, "", 25, "node.k8s.io/v1 RuntimeClass", Bump, ""},
		{"runtimeclass alpha", "node.k8s.io/v1alpha1", "RuntimeClass", 23, 24, false, Removed, "", 24, "node.k8s.io/v1 RuntimeClass", Structural, ""},
		{"flowschema deprecated and on", "flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema", 30, 31, false, Deprecated, "", 0, "flowcontrol.apiserver.k8s.io/v1 FlowSchema", Bump, ""},
		{"flowschema removed", "flowcontrol.apiserver.k8s.io/v1beta3", "FlowSchema", 31, 32, false, Removed, "", 32, "flowcontrol.apiserver.k8s.io/v1 FlowSchema", Bump, ""},
		{"flowschema over several hops", "flowcontrol.apiserver.k8s.io/v1beta2", "FlowSchema", 28, 32, false, Removed, "", 29, "flowcontrol.apiserver.k8s.io/v1 FlowSchema", Bump,
			"before the hop to 1.29, move to flowcontrol.apiserver.k8s.io/v1beta3 FlowSchema; from 1.29 on and before the hop to 1.32, move to flowcontrol.apiserver.k8s.io/v1 FlowSchema"},
		{"vap deprecated and off", "admissionregistration.k8s.io/v1beta1", "ValidatingAdmissionPolicy", 32, 33, false, OffByDefault, "deprecated", 0, "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", Bump, ""},
		{"vap removed", "admissionregistration.k8s.io/v1beta1", "ValidatingAdmissionPolicy", 33, 34, false, Removed, "", 34, "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", Bump, ""},
		{"vap alpha removed in 1.32, not 1.33", "admissionregistration.k8s.io/v1alpha1", "ValidatingAdmissionPolicy", 31, 32, false, Removed, "", 32, "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", Bump, ""},
		{"claim alpha off, not deprecated", "resource.k8s.io/v1alpha3", "ResourceClaim", 32, 33, false, OffByDefault, "", 0, "resource.k8s.io/v1beta2 ResourceClaim", Structural, ""},
		{"claim alpha removed", "resource.k8s.io/v1alpha3", "ResourceClaim", 33, 34, false, Removed, "", 34, "resource.k8s.io/v1 ResourceClaim", Structural, ""},
		{"claim beta still served in 1.36", "resource.k8s.io/v1beta1", "ResourceClaim", 35, 36, false, OffByDefault, "deprecated", 0, "resource.k8s.io/v1 ResourceClaim", Structural, ""},
		{"claim beta still served in 1.37", "resource.k8s.io/v1beta1", "ResourceClaim", 36, 37, false, OffByDefault, "deprecated", 0, "resource.k8s.io/v1 ResourceClaim", Structural, ""},
		{"claim v1 not yet", "resource.k8s.io/v1", "ResourceClaim", 32, 33, false, NotYet, "", 34, "", "", "from 1.34 on"},
		{"kubeadm deprecated", "kubeadm.k8s.io/v1beta3", "ClusterConfiguration", 35, 36, false, Deprecated, "", 0, "kubeadm.k8s.io/v1beta4 ClusterConfiguration", Structural, "kubeadm config migrate"},
		{"kubeadm removed", "kubeadm.k8s.io/v1beta3", "ClusterConfiguration", 36, 37, false, Removed, "", 37, "kubeadm.k8s.io/v1beta4 ClusterConfiguration", Structural,
			"before the hop to 1.37, move to kubeadm.k8s.io/v1beta4 ClusterConfiguration (fields move); convert with kubeadm config migrate of kubeadm 1.36 or older"},
		{"psp over its two groups", "extensions/v1beta1", "PodSecurityPolicy", 15, 25, false, Removed, "", 16, "", None,
			"before the hop to 1.16, move to policy/v1beta1 PodSecurityPolicy; remove it before the hop to 1.25: it has no successor"},
		{"event semantic", "events.k8s.io/v1beta1", "Event", 24, 25, false, Removed, "", 25, "events.k8s.io/v1 Event", Semantic, "review"},
		{"core event", "v1", "Event", 24, 37, false, OK, "", 0, "", "", ""},
		{"crd", "apiextensions.k8s.io/v1beta1", "CustomResourceDefinition", 21, 22, false, Removed, "", 22, "apiextensions.k8s.io/v1 CustomResourceDefinition", Structural, ""},
		{"psp", "policy/v1beta1", "PodSecurityPolicy", 24, 25, false, Removed, "", 25, "", None, "no successor"},
		{"never existed", "apps/v1beta3", "Deployment", 36, 37, false, UnknownBuiltin, "", 0, "", "", "spelling"},
		{"in the guide, never in a module", "apps/v1beta1", "ReplicaSet", 15, 16, false, UnknownBuiltin, "", 0, "", "", ""},
		{"virtual", "extensions/v1beta1", "Scale", 15, 37, false, VirtualKind, "", 0, "", "", ""},
		{"endpoints deprecated for good", "v1", "Endpoints", 32, 33, false, Deprecated, "", 0, "discovery.k8s.io/v1 EndpointSlice", Structural, ""},
		{"admission review is still spoken", "admission.k8s.io/v1beta1", "AdmissionReview", 36, 37, false, OK, "", 0, "", "", ""},
		{"beyond the database", "resource.k8s.io/v1beta1", "DeviceClass", 37, 38, false, PlannedRemoval, "", 38, "resource.k8s.io/v1 DeviceClass", Bump, ""},
		{"deprecated and planned", "certificates.k8s.io/v1beta1", "ClusterTrustBundle", 36, 37, false, OffByDefault, "deprecated", 0, "certificates.k8s.io/v1 ClusterTrustBundle", Bump, ""},
		{"workload stored", "scheduling.k8s.io/v1alpha2", "Workload", 36, 37, true, Undecodable, "removed", 37, "scheduling.k8s.io/v1beta1 Workload", Structural, "delete all of them before the hop to 1.37"},
		{"workload in a manifest", "scheduling.k8s.io/v1alpha2", "Workload", 36, 37, false, Removed, "", 37, "scheduling.k8s.io/v1beta1 Workload", Structural, "with the hop to 1.37"},
		{"classic DRA stored", "resource.k8s.io/v1alpha3", "PodSchedulingContext", 31, 32, true, Undecodable, "removed", 32, "", None, "neither read nor deleted"},
		{"pcr stored in alpha, no left-over later", "certificates.k8s.io/v1beta1", "PodCertificateRequest", 35, 37, true, OffByDefault, "deprecated", 0, "certificates.k8s.io/v1 PodCertificateRequest", Structural, ""},
		{"stored and decodable", "apps/v1", "Deployment", 29, 37, true, OK, "", 0, "", "", ""},
		{"gone before the start", "extensions/v1beta1", "Ingress", 36, 37, false, Removed, "", 22, "networking.k8s.io/v1 Ingress", Structural, "move to networking.k8s.io/v1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := db.Judge(ParseGVK(c.apiVersion, c.kind), minor(c.from), minor(c.to), c.stored)
			var also []string
			for _, v := range j.Also {
				also = append(also, string(v))
			}
			replacement := ""
			if !j.Replacement.IsZero() {
				replacement = j.Replacement.String()
			}
			got := fmt.Sprintf("%s also %q hop %d -> %q %s", j.Verdict, strings.Join(also, ","), j.Hop.Minor, replacement, j.Rewrite)
			want := fmt.Sprintf("%s also %q hop %d -> %q %s", c.verdict, c.also, c.hop, c.replacement, c.rewrite)
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if !strings.Contains(j.Remedy(), c.remedy) {
				t.Errorf("remedy %q, want %q in it", j.Remedy(), c.remedy)
			}
		})
	}
}

// The recorded discovery decides by itself, hop for hop, what is removed, not yet there, or off.
func TestJudgeAgreesWithDiscovery(t *testing.T) {
	db := testDB(t)
	served := map[int]map[GVK]bool{}
	all := map[GVK]bool{}
	for n := 29; n <= 37; n++ {
		served[n] = recorded(t, minor(n))
		for g := range served[n] {
			all[g] = true
		}
	}
	for g := range all {
		if k, _ := db.Lookup(g); k.Class != Stored {
			continue
		}
		for from := 29; from <= 37; from++ {
			for to := from; to <= 37; to++ {
				var want []Verdict
				on, now := served[to][g]
				earlier := false
				for n := 29; n < to; n++ {
					_, had := served[n][g]
					earlier = earlier || had
				}
				switch {
				case !now && earlier:
					want = []Verdict{Removed}
				case !now:
					want = []Verdict{NotYet}
				case !on:
					want = []Verdict{OffByDefault}
				default:
					want = []Verdict{OK, Deprecated}
				}
				if j := db.Judge(g, minor(from), minor(to), false); !slices.Contains(want, j.Verdict) {
					t.Errorf("%s from 1.%d to 1.%d: %s, discovery says %v", g, from, to, j.Verdict, want)
				}
			}
		}
	}
}

func TestJudgeProperties(t *testing.T) {
	db := testDB(t)
	rapid.Check(t, func(t *rapid.T) {
		k := &db.Kinds[rapid.IntRange(0, len(db.Kinds)-1).Draw(t, "kind")]
		from := rapid.IntRange(14, 38).Draw(t, "from")
		to := rapid.IntRange(from, 39).Draw(t, "to")
		stored := rapid.Bool().Draw(t, "stored")
		j := db.Judge(k.GVK(), minor(from), minor(to), stored)
		if !j.Replacement.IsZero() {
			r, ok := db.Lookup(j.Replacement)
			if !ok || !r.Served(minor(to)) {
				t.Fatalf("%s: replacement %s is not served at 1.%d", k.GVK(), j.Replacement, to)
			}
		}
		if (j.Verdict == Removed || j.Verdict == PlannedRemoval) && k.Served(minor(to)) {
			t.Fatalf("%s is served at 1.%d but judged %s", k.GVK(), to, j.Verdict)
		}
		if j.Verdict == OK && k.Class == Stored && !k.On(minor(to)) {
			t.Fatalf("%s is not on at 1.%d but judged ok", k.GVK(), to)
		}
		if j.Verdict == Undecodable && !stored {
			t.Fatalf("%s: only a stored object can be undecodable", k.GVK())
		}
		// What is removed stays removed when the target moves on.
		if j.Verdict == Removed {
			if next := db.Judge(k.GVK(), minor(from), minor(to+1), false); next.Verdict != Removed {
				t.Fatalf("%s: removed at 1.%d, %s at 1.%d", k.GVK(), to, next.Verdict, to+1)
			}
		}
		// Each step starts from a version that lives, and ends in one that does.
		cur := k
		for _, s := range j.Steps {
			if s.To.IsZero() {
				if len(db.byGVK) == 0 || s.Rewrite != None {
					t.Fatalf("%s: step without successor is %s", k.GVK(), s.Rewrite)
				}
				break
			}
			next, ok := db.Lookup(s.To)
			if !ok {
				t.Fatalf("%s: step to unknown %s", k.GVK(), s.To)
			}
			if s.Before != (Minor{}) && !s.Recreate {
				last := prev(s.Before)
				if !cur.Served(last) || !next.Served(last) {
					t.Fatalf("%s: step %q, but %s does not serve both", k.GVK(), s, last)
				}
				if s.NotBefore.Compare(s.Before) >= 0 {
					t.Fatalf("%s: step %q has an empty window", k.GVK(), s)
				}
			}
			if s.At != (Minor{}) && !s.Recreate && (cur.Served(s.At) || !next.Served(s.At)) {
				t.Fatalf("%s: step %q is not forced by its hop", k.GVK(), s)
			}
			cur = next
		}
		if j.Verdict != OK && j.Verdict != VirtualKind && j.Verdict != Custom && j.Remedy() == "" {
			t.Fatalf("%s: %s without a remedy", k.GVK(), j.Verdict)
		}
	})
}
