//go:build unix

package executor

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes an exclusive lock that ends with the process. ok is false when another process has it.
func lockFile(f *os.File) (ok bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
