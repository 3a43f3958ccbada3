//go:build unix

package backup

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// checkFree says before a long copy whether the file system of dir has room for it. flag names the other place.
func checkFree(dir string, need int64, flag string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := int64(s.Bavail) * int64(s.Bsize); free < need {
		return &NoSpaceError{Dir: dir, Need: need, Free: free, Flag: flag}
	}
	return nil
}

// NoSpaceError is a file system without room for what is about to be written.
type NoSpaceError struct {
	Dir string
	// Need and Free are in bytes.
	Need, Free int64
	// Flag is the one that chooses another place; empty where there is none.
	Flag string
}

func (e *NoSpaceError) Error() string {
	msg := fmt.Sprintf("%s has %d MiB free and %d MiB are needed; make room", e.Dir, e.Free>>20, (e.Need+1<<20-1)>>20)
	if e.Flag != "" {
		msg += " or choose another place with " + e.Flag
	}
	return msg
}

// withRoomRemedy adds to a write that found the disk full what can be done.
func withRoomRemedy(err error, dir string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; make room in %s or choose another place with -o", err, dir)
	}
	return err
}
