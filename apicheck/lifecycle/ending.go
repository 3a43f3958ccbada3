package lifecycle

// EndingGates gives the feature gates that a hop of from..to removes or locks: setting one of them (a locked one to
// the other value) keeps a component from starting.
func (db *DB) EndingGates(from, to Minor) []Gate {
	var out []Gate
	for _, g := range db.Gates {
		if within(g.Removed, from, to) || within(g.Locked, from, to) {
			out = append(out, g)
		}
	}
	return out
}

// EndingFlags gives the flags of a component ("kubelet") that a hop of from..to removes.
func (db *DB) EndingFlags(component string, from, to Minor) []Flag {
	var out []Flag
	for _, f := range db.Flags {
		if f.Component == component && within(f.Removed, from, to) {
			out = append(out, f)
		}
	}
	return out
}

func within(m, from, to Minor) bool {
	return m != Minor{} && before(from, m) && !before(to, m)
}
