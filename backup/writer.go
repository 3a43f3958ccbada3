package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"filippo.io/age"
)

// ageSuffix ends the names of encrypted files.
const ageSuffix = ".age"

// localError is a failure to write the backup itself. Without room for a backup
// there is none; what cannot be read makes one incomplete.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func local(err error) error {
	if err == nil {
		return nil
	}
	return &localError{err}
}

// fatal says whether an error ends the backup: one of ours, or the end of ctx.
func fatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.As(err, new(*localError))
}

// dirWriter writes the files of a backup and remembers them for the manifest.
// Every file is 0600 in directories that are 0700, and fsynced when it is closed.
type dirWriter struct {
	dir        string
	recipients []age.Recipient
	all        bool

	mu    sync.Mutex
	files []File
}

// encrypts says whether a file with or without secrets is encrypted.
func (d *dirWriter) encrypts(secret bool) bool {
	return len(d.recipients) > 0 && (secret || d.all)
}

// fileWriter is one file under way. Close makes it durable and lists it; Abort removes it.
type fileWriter struct {
	d *dirWriter
	f *os.File
	// hash is nil when the caller hashes, and sets entry.SHA256.
	hash  hash.Hash
	n     int64
	enc   io.WriteCloser
	entry File
	done  bool
}

// create begins a file at a slash-separated path. secret says whether it may hold secrets.
func (d *dirWriter) create(name string, secret bool) (*fileWriter, error) {
	w := &fileWriter{d: d, hash: sha256.New(), entry: File{Path: name, Encrypted: d.encrypts(secret)}}
	if w.entry.Encrypted {
		w.entry.Path += ageSuffix
	}
	full := filepath.Join(d.dir, filepath.FromSlash(w.entry.Path))
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return nil, fmt.Errorf("write %s: %w", full, err)
	}
	f, err := os.OpenFile(full, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", full, err)
	}
	w.f = f
	if w.entry.Encrypted {
		if w.enc, err = age.Encrypt(rawWriter{w}, d.recipients...); err != nil {
			return nil, errors.Join(fmt.Errorf("encrypt %s: %w", full, err), w.Abort())
		}
	}
	return w, nil
}

// rawWriter writes what lies on disk.
type rawWriter struct{ w *fileWriter }

func (r rawWriter) Write(p []byte) (int, error) {
	n, err := r.w.f.Write(p)
	if r.w.hash != nil {
		r.w.hash.Write(p[:n])
	}
	r.w.n += int64(n)
	if err != nil {
		err = fmt.Errorf("write %s: %w", r.w.f.Name(), err)
	}
	return n, err
}

// Write adds to the file, through encryption where the file is encrypted.
func (w *fileWriter) Write(p []byte) (int, error) {
	if w.enc != nil {
		return w.enc.Write(p)
	}
	return rawWriter{w}.Write(p)
}

// Close makes the file durable and adds it to the list.
func (w *fileWriter) Close() error {
	if w.done {
		return nil
	}
	var err error
	if w.enc != nil {
		err = w.enc.Close()
	}
	if err == nil {
		err = w.f.Sync()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", w.f.Name(), err), w.Abort())
	}
	w.done = true
	if err := w.f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", w.f.Name(), err)
	}
	w.entry.Size = w.n
	if w.hash != nil {
		w.entry.SHA256 = hex.EncodeToString(w.hash.Sum(nil))
	}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.d.files = append(w.d.files, w.entry)
	return nil
}

// Abort removes the file. After Close it does nothing.
func (w *fileWriter) Abort() error {
	if w.done {
		return nil
	}
	w.done = true
	return errors.Join(w.f.Close(), os.Remove(w.f.Name()))
}

// writeFile writes a whole file.
func (d *dirWriter) writeFile(name string, secret bool, data []byte, source string, mode os.FileMode) error {
	w, err := d.create(name, secret)
	if err != nil {
		return err
	}
	w.entry.Source, w.entry.Mode = source, mode.Perm()
	if _, err := w.Write(data); err != nil {
		return errors.Join(err, w.Abort())
	}
	return w.Close()
}

// list gives the files that were closed, sorted by path.
func (d *dirWriter) list() []File {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := slices.Clone(d.files)
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// nodePath is where a file of a node lies in the backup.
func nodePath(node, file string) string { return path.Join("nodes", node, path.Clean("/"+file)) }
