//go:build unix

package backup

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFree says before a long copy whether the file system of dir has room for it.
func checkFree(dir string, need int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := int64(s.Bavail) * int64(s.Bsize); free < need {
		return &NoSpaceError{Dir: dir, Need: need, Free: free}
	}
	return nil
}

// NoSpaceError is a file system without room for what is about to be written.
type NoSpaceError struct {
	Dir string
	// Need and Free are in bytes.
	Need, Free int64
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("%s has %d MiB free and %d MiB are needed; make room or choose another place with -o", e.Dir, e.Free>>20, (e.Need+1<<20-1)>>20)
}
