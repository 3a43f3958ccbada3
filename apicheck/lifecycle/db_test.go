package lifecycle

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func minor(n int) Minor { return Minor{Major: 1, Minor: n} }

func testDB(t testing.TB) *DB {
	t.Helper()
	db, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// recorded reads what a minor was recorded to serve; the value says whether by default.
func recorded(t *testing.T, m Minor) map[GVK]bool {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "served", m.String()+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	served := map[GVK]bool{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		var apiVersion, kind, resource, scope, on string
		if _, err := fmt.Sscan(sc.Text(), &apiVersion, &kind, &resource, &scope, &on); err != nil {
			t.Fatalf("%s: %q: %v", f.Name(), sc.Text(), err)
		}
		served[ParseGVK(apiVersion, kind)] = on == "on"
	}
	return served
}

// Spans of minors in the database, expanded again, must give what each minor's own discovery says.
func TestDatabaseEqualsDiscoveryOfEveryMinor(t *testing.T) {
	db := testDB(t)
	if db.Oldest != minor(29) || db.Newest != minor(37) {
		t.Fatalf("observed minors are %s to %s, want 1.29 to 1.37", db.Oldest, db.Newest)
	}
	for m := db.Oldest; m.Compare(db.Newest) <= 0; m = m.Next() {
		served := recorded(t, m)
		if len(served) < 70 {
			t.Errorf("%s: only %d kinds recorded", m, len(served))
		}
		for g, on := range served {
			k, ok := db.Lookup(g)
			if !ok {
				t.Errorf("%s serves %s, which the database does not have", m, g)
				continue
			}
			if !k.Served(m) {
				t.Errorf("%s serves %s, the database says it does not (introduced %s, removed %s)", m, g, k.Introduced, k.Removed)
			}
			if k.On(m) != on {
				t.Errorf("%s: %s is on by default: %v, the database says %v", m, g, on, k.On(m))
			}
		}
		for i := range db.Kinds {
			k := &db.Kinds[i]
			if _, ok := served[k.GVK()]; !ok && k.Class == Stored && k.Served(m) {
				t.Errorf("the database says %s serves %s, its discovery does not have it", m, k.GVK())
			}
		}
	}
}

func TestKnownValues(t *testing.T) {
	db := testDB(t)
	for _, c := range []struct {
		apiVersion, kind              string
		deprecated, removed, undecode int
	}{
		{"policy/v1beta1", "PodDisruptionBudget", 21, 25, 0},
		{"autoscaling/v2beta2", "HorizontalPodAutoscaler", 23, 26, 0},
		// The list's own tag says 1.25.
		{"autoscaling/v2beta2", "HorizontalPodAutoscalerList", 23, 26, 0},
		{"networking.k8s.io/v1beta1", "Ingress", 19, 22, 0},
		{"networking.k8s.io/v1beta1", "ServiceCIDR", 34, 37, 0},
		{"networking.k8s.io/v1alpha1", "ClusterCIDR", 28, 29, 0},
		{"admissionregistration.k8s.io/v1alpha1", "ValidatingAdmissionPolicy", 29, 32, 0},
		{"scheduling.k8s.io/v1alpha1", "PriorityClass", 0, 23, 0},
		{"scheduling.k8s.io/v1alpha1", "Workload", 0, 36, 36},
		{"scheduling.k8s.io/v1alpha2", "Workload", 0, 37, 37},
		{"resource.k8s.io/v1alpha2", "ResourceClaim", 0, 31, 31},
		{"resource.k8s.io/v1alpha3", "PodSchedulingContext", 0, 32, 32},
		{"coordination.k8s.io/v1alpha1", "LeaseCandidate", 32, 32, 32},
		{"certificates.k8s.io/v1alpha1", "PodCertificateRequest", 35, 35, 35},
		{"storagemigration.k8s.io/v1alpha1", "StorageVersionMigration", 33, 35, 35},
		{"v1", "Endpoints", 33, 0, 0},
		{"v1", "ComponentStatus", 19, 0, 0},
		{"admission.k8s.io/v1beta1", "AdmissionReview", 19, 0, 0},
		{"kubeadm.k8s.io/v1beta3", "ClusterConfiguration", 31, 37, 0},
	} {
		k, ok := db.Lookup(ParseGVK(c.apiVersion, c.kind))
		if !ok {
			t.Errorf("%s %s: not in the database", c.apiVersion, c.kind)
			continue
		}
		if k.Deprecated.Minor != c.deprecated || k.Removed.Minor != c.removed || k.Undecodable.Minor != c.undecode {
			t.Errorf("%s %s: deprecated %s removed %s undecodable %s, want 1.%d 1.%d 1.%d", c.apiVersion, c.kind,
				k.Deprecated, k.Removed, k.Undecodable, c.deprecated, c.removed, c.undecode)
		}
	}
}

// The versions that cannot be decoded after a hop, all of them: no left-over of the storage tables.
func TestUndecodable(t *testing.T) {
	got := map[string][]string{}
	for _, k := range testDB(t).Kinds {
		if k.Undecodable != (Minor{}) {
			got[k.Undecodable.String()] = append(got[k.Undecodable.String()], k.GVK().String())
		}
	}
	want := map[string]int{"1.31": 7, "1.32": 2, "1.35": 2, "1.36": 1, "1.37": 2}
	for hop, n := range want {
		if len(got[hop]) != n {
			t.Errorf("%s: %d kinds, want %d: %v", hop, len(got[hop]), n, got[hop])
		}
	}
	if len(got) != len(want) {
		t.Errorf("hops %v, want those of %v", got, want)
	}
}

func TestEveryReplacementExistsAndOutlives(t *testing.T) {
	db := testDB(t)
	for i := range db.Kinds {
		k := &db.Kinds[i]
		for _, n := range k.Next {
			to, ok := db.Lookup(n.GVK)
			if !ok {
				t.Errorf("%s: replacement %s is not in the database", k.GVK(), n.GVK)
				continue
			}
			if to.Removed != (Minor{}) && to.Removed.Compare(k.Removed) <= 0 {
				t.Errorf("%s (removed %s): replacement %s is removed in %s", k.GVK(), k.Removed, n.GVK, to.Removed)
			}
			if n.Rewrite == "" || n.Basis == "" {
				t.Errorf("%s: replacement %s without rewrite or basis", k.GVK(), n.GVK)
			}
		}
		if k.Removed != (Minor{}) && k.RemovedBasis == "" {
			t.Errorf("%s: removal without a basis", k.GVK())
		}
	}
}

func TestGatesAndFlags(t *testing.T) {
	db := testDB(t)
	removed := map[string]int{}
	for _, g := range db.Gates {
		if g.Removed != (Minor{}) {
			removed[g.Removed.String()]++
		}
		if g.Name == "CPUCFSQuotaPeriod" || g.Name == "CustomCPUCFSQuotaPeriod" && g.Removed != (Minor{}) {
			t.Errorf("gate %s: an identifier taken for a name, or a living gate for a removed one", g.Name)
		}
	}
	for m, n := range map[string]int{"1.33": 16, "1.34": 5, "1.35": 11, "1.36": 9, "1.37": 25} {
		if removed[m] != n {
			t.Errorf("%d gates removed in %s, want %d", removed[m], m, n)
		}
	}
	for _, name := range []string{"SidecarContainers", "SchedulerQueueingHints", "RetryGenerateName", "JobSuccessPolicy", "StructuredAuthenticationConfiguration", "PreventStaticPodAPIReferences"} {
		found := false
		for _, g := range db.Gates {
			found = found || g.Name == name && g.Removed == minor(37)
		}
		if !found {
			t.Errorf("gate %s is not recorded as removed in 1.37", name)
		}
	}
	// Flags that libraries register are not in the components' own sources.
	for _, want := range []string{"kubelet iptables-drop-bit 1.31", "kube-proxy proxy-port-range 1.31", "kube-controller-manager volume-host-cidr-denylist 1.31", "kube-apiserver cloud-provider 1.33",
		"kubelet register-schedulable 1.34", "kubelet containerd 1.37", "kubelet storage-driver-db 1.37", "kube-controller-manager concurrent-service-syncs 1.37"} {
		if !slices.ContainsFunc(db.Flags, func(f Flag) bool { return f.Component+" "+f.Name+" "+f.Removed.String() == want }) {
			t.Errorf("no flag %s", want)
		}
	}
	for _, f := range db.Flags {
		if f.Name == "housekeeping-interval" {
			t.Error("the one flag of cAdvisor's that stayed is called removed")
		}
		if f.Evidence == "" || f.Removed == (Minor{}) {
			t.Errorf("flag %s of %s without evidence or minor", f.Name, f.Component)
		}
	}
}
