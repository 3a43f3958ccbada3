package backup

import "fmt"

// Level is how far a backup was proved to be good. Levels are ordered and each includes those below.
type Level int

// The levels.
const (
	// None: not even a readable manifest.
	None Level = iota
	// Copied: every file is there with the size that the manifest says.
	Copied
	// HashVerified: every file has the digest that the manifest says, and the snapshot the one that etcd appended.
	HashVerified
	// Opened: the snapshot's database is sound, and holds per prefix as many keys as the live member had at that revision.
	Opened
	// Restored: an etcd ran from it, the cluster's version of kube-apiserver over that, and every object was listed.
	Restored
)

var levelNames = [...]string{"none", "copied", "hash-verified", "opened", "restored"}

// String gives the level's name.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelNames) {
		return fmt.Sprintf("level(%d)", int(l))
	}
	return levelNames[l]
}

// ParseLevel reads a level's name.
func ParseLevel(s string) (Level, error) {
	for i, n := range levelNames {
		if n == s {
			return Level(i), nil
		}
	}
	return None, fmt.Errorf("%q is no level of verification: want copied, hash-verified, opened or restored", s)
}

// MarshalText gives the level's name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is ParseLevel.
func (l *Level) UnmarshalText(b []byte) error {
	v, err := ParseLevel(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}
