package journal

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// lookers is how long a lock may be held by one that only looks, as Locked does.
const lookers = 200 * time.Millisecond

// lockSoon takes the lock, waiting for those who only look.
func lockSoon(f *os.File) (ok bool, err error) {
	for end := time.Now().Add(lookers); ; {
		if ok, err = lock(f); ok || err != nil || time.Now().After(end) {
			return ok, err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Locked says whether a process appends to the journal at path, and which. Nothing is written.
func Locked(path string) (owner Owner, locked bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return Owner{}, false, fmt.Errorf("journal: %w", err)
	}
	// Shared: of two that look neither takes the other for a process at work.
	free, err := lockShared(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return Owner{}, false, fmt.Errorf("journal %s: lock: %w", path, err)
	}
	if free {
		return Owner{}, false, nil
	}
	h, records, err := Read(path)
	return LastOwner(h, records), true, err
}
