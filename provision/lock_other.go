//go:build !unix

package provision

import (
	"os"
	"path/filepath"
)

// lock makes the directory's parent. Two runs at one time are not kept apart here.
func (d clusterDir) lock(string) (unlock func() error, err error) {
	return func() error { return nil }, os.MkdirAll(filepath.Dir(string(d)), 0o700)
}
