//go:build !unix

package journal

import (
	"errors"
	"os"
)

var errNoLock = errors.New("this system has no flock: run belay on Linux or macOS")

func lock(*os.File) (bool, error) { return false, errNoLock }

func lockShared(*os.File) (bool, error) { return false, errNoLock }
