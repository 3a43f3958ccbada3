package apicheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/belayops/belay/apicheck/convert"
	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/schema"
	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/kubeversion"
)

// ConvertOptions says which manifests to convert.
type ConvertOptions struct {
	// To is required; From defaults to the minor before it.
	From, To kubeversion.Minor
	// Files are manifest files and directories; "-" is Stdin.
	Files []string
	Stdin io.Reader
	// Accept and OnlyRemoved are as in package convert.
	Accept      []string
	OnlyRemoved bool
	// Write replaces the files, atomically, with the mode they had. Stdin is never written.
	Write bool
	DB    *lifecycle.DB
}

// ConvertedFile is what became of one file.
type ConvertedFile struct {
	Name     string
	Old, New []byte
	Changes  []convert.Change
	Kept     []convert.Kept
	Written  bool
	// Stdin says that it is no file.
	Stdin bool
}

// ConvertReport is what became of all of them. Files holds those with changes or with something kept.
type ConvertReport struct {
	Files      []ConvertedFile
	Read       int
	Unreadable []Unread
	// Stdin is the text of stdin as it was read.
	Stdin []byte
}

// Convert converts manifests in memory, and writes them when told to. The error is for what makes the whole senseless,
// or for a file that could not be written: those before it are whole, those after it untouched.
func Convert(ctx context.Context, o ConvertOptions) (ConvertReport, error) {
	var rep ConvertReport
	if o.DB == nil {
		var err error
		if o.DB, err = lifecycle.Default(); err != nil {
			return rep, err
		}
	}
	if o.To == (kubeversion.Minor{}) {
		return rep, errors.New("convert manifests: no target minor")
	}
	if o.From == (kubeversion.Minor{}) {
		o.From = kubeversion.Minor{Major: o.To.Major, Minor: o.To.Minor - 1}
	}
	if o.To.Compare(o.From) < 0 {
		return rep, fmt.Errorf("convert manifests: the target %s is older than %s", o.To, o.From)
	}
	fields, err := schema.Default()
	if err != nil {
		return rep, err
	}
	opts := convert.Options{DB: o.DB, From: o.From, To: o.To, Accept: o.Accept, OnlyRemoved: o.OnlyRemoved, Schema: fields}
	one := func(name string, text []byte, stdin bool) {
		rep.Read++
		res := convert.Text(opts, text)
		for _, g := range res.Gaps {
			rep.Unreadable = append(rep.Unreadable, Unread{What: name, Line: g.Line, Why: g.Why})
		}
		if len(res.Changes)+len(res.Kept) > 0 {
			rep.Files = append(rep.Files, ConvertedFile{Name: name, Old: text, New: res.Text, Changes: res.Changes, Kept: res.Kept, Stdin: stdin})
		}
	}
	for _, name := range o.Files {
		if name == "-" {
			if o.Stdin == nil {
				return rep, errors.New("convert manifests: there is no stdin")
			}
			text, err := io.ReadAll(io.LimitReader(o.Stdin, maxFile+1))
			if err != nil {
				return rep, fmt.Errorf("read stdin: %w", err)
			}
			if len(text) > maxFile {
				return rep, fmt.Errorf("read stdin: more than %d MB", maxFile>>20)
			}
			rep.Stdin = text
			if len(bytes.TrimSpace(text)) == 0 {
				rep.Unreadable = append(rep.Unreadable, Unread{What: "stdin", Why: emptyStdin})
				continue
			}
			one("stdin", text, true)
			continue
		}
		found := 0
		walkManifests(ctx, name, func(p string) {
			found++
			text, _, err := readFile(p, nil)
			if err != nil {
				rep.Unreadable = append(rep.Unreadable, Unread{What: p, Why: fileError(err)})
				return
			}
			one(p, text, false)
		}, nil, func(p, why string) { found++; rep.Unreadable = append(rep.Unreadable, Unread{What: p, Why: why}) })
		if found == 0 && ctx.Err() == nil {
			rep.Unreadable = append(rep.Unreadable, Unread{What: name, Why: noManifests})
		}
		if err := ctx.Err(); err != nil {
			return rep, err
		}
	}
	if !o.Write {
		return rep, nil
	}
	return rep, rep.write()
}

// write replaces the files that changed. Nothing is written when one of them may not be.
func (rep *ConvertReport) write() error {
	type target struct {
		file *ConvertedFile
		path string
		mode fs.FileMode
	}
	var targets []target
	var errs []error
	for i := range rep.Files {
		f := &rep.Files[i]
		if len(f.Changes) == 0 || f.Stdin {
			continue
		}
		// A link stays a link: what it points at is replaced.
		path, err := filepath.EvalSymlinks(f.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			errs = append(errs, err)
		case info.Mode().Perm()&0o200 == 0:
			errs = append(errs, fmt.Errorf("write %s: it is read-only (mode %04o): make it writable, or convert it elsewhere; no file was written", f.Name, info.Mode().Perm()))
		default:
			targets = append(targets, target{f, path, info.Mode().Perm()})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, t := range targets {
		now, _, err := readFile(t.path, nil)
		if err != nil {
			return fmt.Errorf("write %s: %w", t.file.Name, err)
		}
		switch {
		case bytes.Equal(now, t.file.New): // through a link to the same file
		case !bytes.Equal(now, t.file.Old):
			return fmt.Errorf("write %s: it changed while it was converted: run it again", t.file.Name)
		default:
			if err := atomicfile.WriteFile(t.path, t.file.New, t.mode); err != nil {
				return err
			}
		}
		t.file.Written = true
	}
	return nil
}
