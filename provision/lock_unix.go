//go:build unix

package provision

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock makes the directory's parent and takes the cluster's lock. The kernel drops it when the process ends, however it ends.
// The lock file lies beside the directory, so that removing the directory does not pull it away from a waiting process.
func (d clusterDir) lock(name string) (unlock func() error, err error) {
	dir := filepath.Dir(string(d))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := d.lockFile()
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			err = errors.Join(err, f.Close())
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, &BusyError{Name: name}
			}
			return nil, fmt.Errorf("lock cluster %s: %w", name, err)
		}
		// Whoever had it before may have removed the file on its way out: then the lock is on nothing.
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if now, err := os.Stat(path); err == nil && os.SameFile(mine, now) {
			return f.Close, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}
