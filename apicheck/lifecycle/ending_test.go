package lifecycle

import "testing"

func TestEndings(t *testing.T) {
	db := testDB(t)
	find := func(gates []Gate, name string) *Gate {
		for i := range gates {
			if gates[i].Name == name {
				return &gates[i]
			}
		}
		return nil
	}
	if g := find(db.EndingGates(minor(36), minor(37)), "SidecarContainers"); g == nil || g.Removed != minor(37) {
		t.Errorf("SidecarContainers ends in 1.37: %+v", g)
	}
	if g := find(db.EndingGates(minor(34), minor(35)), "SidecarContainers"); g != nil {
		t.Errorf("nothing happens to SidecarContainers in 1.35: %+v", g)
	}
	flags := db.EndingFlags("kubelet", minor(36), minor(37))
	if len(flags) != 18 {
		t.Errorf("%d flags of the kubelet end in 1.37, want the 18 of the changelog", len(flags))
	}
	if len(db.EndingFlags("kubelet", minor(37), minor(37))) != 0 {
		t.Error("a hop to where one is ends nothing")
	}
}
