package cluster

import (
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

func TestEtcdFloor(t *testing.T) {
	for _, c := range []struct {
		to      string
		member  string
		met, ok bool
	}{
		{"3.7", "3.6.8", false, true}, // what kubeadm 1.36.3 deploys
		{"3.7", "3.6.10", false, true},
		{"3.7", "3.6.11", true, true},
		{"3.7", "3.6.16", true, true},
		{"3.7", "3.7.0", true, true},
		{"3.6", "3.5.24", false, true}, // what kubeadm 1.33.13 deploys
		{"3.6", "3.5.26", true, true},
		{"3.5", "3.4.0", false, false},
		{"3.8", "3.7.0", false, false},
	} {
		to, err := kubeversion.ParseMinor(c.to)
		if err != nil {
			t.Fatal(err)
		}
		f, ok := EtcdFloorFor(to)
		if ok != c.ok {
			t.Errorf("EtcdFloorFor(%s): ok = %v, want %v", c.to, ok, c.ok)
			continue
		}
		if ok && f.Met(kubeversion.MustParse(c.member)) != c.met {
			t.Errorf("floor for %s met by %s = %v, want %v", c.to, c.member, !c.met, c.met)
		}
	}
}

func TestEtcdFloorIsOfTheMinorBefore(t *testing.T) {
	for _, f := range EtcdFloors() {
		if f.AtLeast.MinorVersion().Next() != f.Etcd {
			t.Errorf("floor %s is not of the minor before %s", f.AtLeast, f.Etcd)
		}
		if f.Source == "" || f.Reason == "" {
			t.Errorf("floor for %s has no source or no reason", f.Etcd)
		}
	}
}
