package apicheck

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	one := func(name string, text []byte) *ConvertedFile {
		rep.Read++
		res := convert.Text(opts, text)
		for _, g := range res.Gaps {
			rep.Unreadable = append(rep.Unreadable, Unread{What: name, Line: g.Line, Why: g.Why})
		}
		if len(res.Changes)+len(res.Kept) == 0 {
			return nil
		}
		rep.Files = append(rep.Files, ConvertedFile{Name: name, Old: text, New: res.Text, Changes: res.Changes, Kept: res.Kept})
		return &rep.Files[len(rep.Files)-1]
	}
	file := func(name string) error {
		text, _, err := readFile(name, nil)
		if err != nil {
			rep.Unreadable = append(rep.Unreadable, Unread{What: name, Why: fileError(err)})
			return nil
		}
		f := one(name, text)
		if f == nil || !o.Write || len(f.Changes) == 0 {
			return nil
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		// A link stays a link: what it points at is replaced.
		target, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		if err := atomicfile.WriteFile(target, f.New, info.Mode().Perm()); err != nil {
			return err
		}
		f.Written = true
		return nil
	}
	for _, name := range o.Files {
		if name == "-" {
			if o.Stdin == nil {
				return rep, errors.New("convert manifests: there is no stdin")
			}
			text, err := io.ReadAll(io.LimitReader(o.Stdin, maxFile))
			if err != nil {
				return rep, fmt.Errorf("read stdin: %w", err)
			}
			rep.Stdin = text
			one("stdin", text)
			continue
		}
		var failed error
		walkManifests(ctx, name, func(p string) {
			if failed == nil {
				failed = file(p)
			}
		}, nil, func(p, why string) { rep.Unreadable = append(rep.Unreadable, Unread{What: p, Why: why}) })
		if err := errors.Join(failed, ctx.Err()); err != nil {
			return rep, err
		}
	}
	return rep, nil
}
