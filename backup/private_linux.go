package backup

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// privateFile makes a file in dir that has no name, and gives a path by which
// this process alone can open it: whatever ends the process, nothing of it is
// left to be found. The database library opens files by name.
func privateFile(dir string) (f *os.File, path string, err error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	switch {
	case err == nil:
		f = os.NewFile(uintptr(fd), dir)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOENT):
		// This file system cannot make one without a name (NFS); it loses its name at once.
		if f, err = os.CreateTemp(dir, ".belay-"); err != nil {
			return nil, "", err
		}
		if err := os.Remove(f.Name()); err != nil {
			return nil, "", errors.Join(err, f.Close())
		}
	default:
		return nil, "", fmt.Errorf("make a file in %s: %w", dir, err)
	}
	return f, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), nil
}

// releasePrivate closes what privateFile made.
func releasePrivate(f *os.File) error { return f.Close() }
