//go:build unix

package journal

import (
	"errors"
	"os"
	"syscall"
)

// lock takes the lock that ends with the process. ok is false when another process has it.
func lock(f *os.File) (ok bool, err error) { return flock(f, syscall.LOCK_EX) }

// lockShared takes the lock beside others that do so.
func lockShared(f *os.File) (ok bool, err error) { return flock(f, syscall.LOCK_SH) }

func flock(f *os.File, how int) (ok bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB) //nolint:gosec // a file descriptor fits
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
