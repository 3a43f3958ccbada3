//go:build !unix

package journal

import (
	"errors"
	"os"
)

func lock(*os.File) (bool, error) {
	return false, errors.New("this system has no flock: run belay on Linux or macOS")
}
