package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/belayops/belay/internal/event"
)

// Entry is one directory among backups.
type Entry struct {
	Dir      string    `json:"dir"`
	Manifest *Manifest `json:"manifest,omitempty"`
	// Level is the highest that was recorded, at creation or by a later
	// verification; one that failed since lowers it.
	Level Level `json:"level"`
	// Size is the sum of all files, in bytes, as the manifest says.
	Size int64 `json:"size,omitempty"`
	// Problem says why it is no usable backup: partial, damaged, of another format.
	Problem string `json:"problem,omitempty"`
	// Note says what kept a verification from proving more.
	Note string `json:"note,omitempty"`
	err  error
}

// List gives the backups in dir, newest first, then what is no usable backup.
// A directory that is not there holds none. Files are not read; see Verify.
func List(dir string) ([]Entry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var out []Entry
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			continue
		}
		if strings.HasSuffix(e.Name(), partialSuffix) {
			out = append(out, Entry{Dir: p, Problem: partialProblem(p)})
			continue
		}
		if strings.HasSuffix(e.Name(), removingSuffix) {
			out = append(out, Entry{Dir: p, Problem: "its removal was cut off, or is under way; the next backup create --keep goes on with it"})
			continue
		}
		if _, err := os.Lstat(filepath.Join(p, manifestName)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		out = append(out, entry(p))
	}
	slices.SortStableFunc(out, func(a, b Entry) int {
		if (a.Manifest == nil) != (b.Manifest == nil) {
			if a.Manifest == nil {
				return 1
			}
			return -1
		}
		if a.Manifest == nil {
			return strings.Compare(a.Dir, b.Dir)
		}
		if c := b.Manifest.Started.Compare(a.Manifest.Started); c != 0 {
			return c
		}
		return strings.Compare(b.Dir, a.Dir)
	})
	return out, nil
}

func entry(dir string) Entry {
	e := Entry{Dir: dir}
	m, err := ReadManifest(dir)
	if err != nil {
		e.Problem, e.err = err.Error(), err
		return e
	}
	e.Manifest, e.Level = m, m.Level
	for _, f := range m.Files {
		e.Size += f.Size
	}
	switch r, err := readRecord(dir, m); {
	case err != nil:
		// What it recorded counts no longer; the backup itself may be sound.
		e.Problem = err.Error()
	case r != nil && r.Problem != "":
		e.Level = r.Level
		if said := fmt.Sprintf("found %s: %s", r.At.Format(time.RFC3339), r.Problem); r.Level < HashVerified {
			e.Problem = said
		} else {
			e.Note = said
		}
	case r != nil:
		e.Level = max(e.Level, r.Level)
	}
	return e
}

// NotFoundError says why no backup in a directory satisfies what was asked.
type NotFoundError struct {
	Dir, Lineage string
	Level        Level
	// Seen says of each candidate why it does not do.
	Seen []string
	// lower is the newest complete backup of the cluster at a lower level.
	lower string
}

func (e *NotFoundError) Error() string {
	msg := fmt.Sprintf("%s holds no backup of this cluster (kube-system UID %s) at level %s", e.Dir, e.Lineage, e.Level)
	if len(e.Seen) > 0 {
		msg += ":\n  " + strings.Join(e.Seen, "\n  ")
	}
	return msg
}

// Next is the command that gets what is missing.
func (e *NotFoundError) Next() string {
	if e.lower != "" {
		return "belay backup verify " + e.lower + " --level " + e.Level.String()
	}
	return "belay backup create -o " + e.Dir
}

// LatestVerified gives the newest complete backup of the cluster with that
// lineage that is recorded at level or above, after comparing every file's
// digest anew. None gives a *NotFoundError.
func LatestVerified(ctx context.Context, dir, lineage string, level Level) (*Entry, error) {
	entries, err := List(dir)
	if err != nil {
		return nil, err
	}
	none := &NotFoundError{Dir: dir, Lineage: lineage, Level: level}
	for _, e := range entries {
		name := filepath.Base(e.Dir)
		switch {
		case e.Manifest == nil:
			none.Seen = append(none.Seen, name+": "+e.Problem)
			continue
		case e.Manifest.Lineage != lineage:
			continue
		case e.Level < level:
			if none.lower == "" && e.Manifest.Complete() {
				none.lower = e.Dir
			}
			why := strings.Join(append(nonEmpty(e.Problem), nonEmpty(e.Note)...), "; ")
			none.Seen = append(none.Seen, strings.TrimSuffix(fmt.Sprintf("%s: verified to level %s only: %s", name, e.Level, why), ": "))
			continue
		case !e.Manifest.Complete():
			none.Seen = append(none.Seen, name+": incomplete, something could not be read when it was taken")
			continue
		}
		r, err := Verify(ctx, e.Dir, VerifyOptions{Level: min(level, HashVerified), Sink: event.Discard})
		if err != nil {
			return nil, err
		}
		if !r.OK() {
			none.Seen = append(none.Seen, fmt.Sprintf("%s: damaged: %s: %s", name, r.Problems[0].File, r.Problems[0].Problem))
			continue
		}
		return &e, nil
	}
	return nil, none
}
