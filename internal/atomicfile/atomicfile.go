// Package atomicfile writes files so that a reader, or a power cut, sees the
// old content or the new one and nothing in between: temporary file in the same
// directory, fsync, close, rename, fsync of the directory.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path with data.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	f, err := Create(path, mode)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Abort())
	}
	return f.Commit()
}

// File is a file under way. Exactly one of Commit and Abort ends it; Abort
// after Commit does nothing, so it can be deferred.
type File struct {
	tmp  *os.File
	path string
	done bool
}

var _ io.Writer = (*File)(nil)

// Create starts a new version of the file at path; nothing is visible there before Commit.
func Create(path string, mode fs.FileMode) (*File, error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".part-*")
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	f := &File{tmp: tmp, path: path}
	if err := tmp.Chmod(mode); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", path, err), f.Abort())
	}
	return f, nil
}

// Write appends to the temporary file.
func (f *File) Write(p []byte) (int, error) {
	n, err := f.tmp.Write(p)
	if err != nil {
		err = fmt.Errorf("write %s: %w", f.path, err)
	}
	return n, err
}

// NotDurableError is a new version that is in its place, where everybody sees it, while it is not known whether it
// would be there after a power cut.
type NotDurableError struct {
	Path string
	Err  error
}

func (e *NotDurableError) Error() string {
	return fmt.Sprintf("write %s: the new version is in place but may not last a power cut: %v", e.Path, e.Err)
}

// Unwrap gives the reason.
func (e *NotDurableError) Unwrap() error { return e.Err }

var syncDir = SyncDir // for tests

// Commit makes the new version visible and durable. On error the old version stays, unless the error is a *NotDurableError.
func (f *File) Commit() error {
	if f.done {
		return fmt.Errorf("write %s: already committed or aborted", f.path)
	}
	if err := f.tmp.Sync(); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", f.path, err), f.Abort())
	}
	if err := f.tmp.Close(); err != nil {
		f.done = true
		return errors.Join(fmt.Errorf("write %s: %w", f.path, err), os.Remove(f.tmp.Name()))
	}
	f.done = true
	if err := os.Rename(f.tmp.Name(), f.path); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", f.path, err), os.Remove(f.tmp.Name()))
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return &NotDurableError{Path: f.path, Err: err}
	}
	return nil
}

// Abort drops the new version.
func (f *File) Abort() error {
	if f.done {
		return nil
	}
	f.done = true
	return errors.Join(f.tmp.Close(), os.Remove(f.tmp.Name()))
}

// SyncDir makes renames within dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := d.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync %s: %w", dir, err), d.Close())
	}
	return d.Close()
}
