//go:build unix && !linux

package backup

import (
	"errors"
	"os"
)

// privateFile makes a file in dir for this process alone, and gives its path.
// Without /proc a file cannot be opened once its name is gone, so that a kill leaves it.
func privateFile(dir string) (f *os.File, path string, err error) {
	if f, err = os.CreateTemp(dir, ".belay-"); err != nil {
		return nil, "", err
	}
	return f, f.Name(), nil
}

// releasePrivate closes and removes what privateFile made.
func releasePrivate(f *os.File) error { return errors.Join(f.Close(), os.Remove(f.Name())) }
