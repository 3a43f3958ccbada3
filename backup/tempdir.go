//go:build unix

package backup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the directories that hold data in the clear while a backup is
// verified or restored, and of the file in each whose lock says that its process lives.
const (
	tempPrefix = "belay-verify-"
	tempLock   = "in-use"
)

// youngTemp is how old a directory without a lock file must be to be taken for abandoned: its maker may be about to lock it.
const youngTemp = time.Minute

// tempDir is a directory for data in the clear (0700). The kernel drops its lock
// however the process ends, so that a later process knows it for abandoned.
type tempDir struct {
	path string
	lock *os.File
}

// newTempDir removes what killed processes left in parent, and makes a directory there.
func newTempDir(parent string) (*tempDir, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	removeAbandoned(parent)
	dir, err := os.MkdirTemp(parent, tempPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, tempLock), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), os.RemoveAll(dir))
	}
	return &tempDir{dir, lock}, nil
}

func (t *tempDir) remove() error { return errors.Join(os.RemoveAll(t.path), t.lock.Close()) }

// removeAbandoned removes directories whose process is gone. What belongs to
// another user, or cannot be told, stays: nobody waits for it.
func removeAbandoned(parent string) {
	dirs, err := filepath.Glob(filepath.Join(parent, tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(dir, tempLock), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) && time.Since(info.ModTime()) > youngTemp {
			_ = os.RemoveAll(dir)
			continue
		}
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}
