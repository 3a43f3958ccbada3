package journal

import (
	"errors"
	"fmt"
	"os"
)

// Locked says whether a process appends to the journal at path, and which. Nothing is written.
func Locked(path string) (owner Owner, locked bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return Owner{}, false, fmt.Errorf("journal: %w", err)
	}
	free, err := lock(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return Owner{}, false, fmt.Errorf("journal %s: lock: %w", path, err)
	}
	if free {
		return Owner{}, false, nil
	}
	h, records, err := Read(path)
	return LastOwner(h, records), true, err
}
