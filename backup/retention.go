package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
)

// removingSuffix ends the name of a directory that Prune is removing.
const removingSuffix = ".removing"

// Pruned says what Prune did.
type Pruned struct {
	// Removed are the directories that are gone.
	Removed []string
	// Damaged are backups that were found to be unsound, each with the reason.
	// They count as none, and are left for a person to look at.
	Damaged []string
}

// Prune removes backups of the cluster with that lineage from dir, all but the
// newest keep of them. The newest that is opened, and the newest that is
// restored, stay in any case. What was recorded of a backup counts only if all
// of its files have their digests now, so that a sound older one is not
// removed for a newer one that rotted. What killed creations left goes.
// Backups of other clusters, and what else is no usable backup, are not touched.
//
// remove deletes the CSI snapshots of a backup, of which the backup alone
// knows; with nil, a backup that has some is an error. A removal that was cut
// off is gone on with.
func Prune(ctx context.Context, dir, lineage string, keep int, remove func(context.Context, []VolumeSnapshot) error) (*Pruned, error) {
	if keep < 1 {
		return nil, fmt.Errorf("keep at least one backup, not %d", keep)
	}
	out := &Pruned{}
	if err := finishRemovals(ctx, dir, lineage, remove, out); err != nil {
		return out, err
	}
	if err := removePartials(dir, lineage, out); err != nil {
		return out, err
	}
	entries, err := List(dir)
	if err != nil {
		return out, err
	}
	var own []Entry
	for _, e := range entries {
		if e.Manifest != nil && e.Manifest.Lineage == lineage {
			own = append(own, e)
		}
	}
	if len(own) <= keep {
		return out, nil
	}
	// Newest first: whoever is the first sound one of a level stays.
	opened, restored := false, false
	n := 0
	var surplus []Entry
	for _, e := range own {
		proves := e.Manifest.Complete() && (e.Level >= Opened && !opened || e.Level >= Restored && !restored)
		if proves {
			switch problem, err := unsound(ctx, e.Dir); {
			case err != nil:
				return out, err
			case problem != "":
				out.Damaged = append(out.Damaged, fmt.Sprintf("%s: %s", e.Dir, problem))
				continue
			}
			opened = opened || e.Level >= Opened
			restored = restored || e.Level >= Restored
		}
		if n++; n > keep && !proves {
			surplus = append(surplus, e)
		}
	}
	for _, e := range surplus {
		if len(e.Manifest.VolumeSnapshots) > 0 && remove == nil {
			return out, fmt.Errorf("remove backup %s: it has volume snapshots, and there is no access to the cluster to remove them", e.Dir)
		}
		// A kill in the middle must not leave a directory that looks complete, and
		// not one that no longer knows which snapshots are its own.
		gone := e.Dir + removingSuffix
		if err := os.Rename(e.Dir, gone); err != nil {
			return out, fmt.Errorf("remove backup: %w", err)
		}
		if err := atomicfile.SyncDir(dir); err != nil {
			return out, err
		}
		if err := removeDir(ctx, gone, e.Manifest, remove); err != nil {
			return out, err
		}
		out.Removed = append(out.Removed, e.Dir)
	}
	return out, nil
}

// unsound reads all files of a backup and says what is wrong with them, "" when nothing is.
func unsound(ctx context.Context, dir string) (string, error) {
	r, err := Verify(ctx, dir, VerifyOptions{Level: HashVerified, Sink: event.Discard})
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return err.Error(), nil // it cannot be read, which is as bad
	}
	for _, p := range r.Problems {
		// The record is no part of the backup.
		if p.File != verifiedName {
			return strings.TrimPrefix(p.File+": "+p.Problem, ": "), nil
		}
	}
	return "", nil
}

// removeDir removes a directory that has its suffix already. The manifest goes
// last: it alone knows the snapshots.
func removeDir(ctx context.Context, gone string, m *Manifest, remove func(context.Context, []VolumeSnapshot) error) error {
	if m != nil && len(m.VolumeSnapshots) > 0 {
		if err := remove(ctx, m.VolumeSnapshots); err != nil {
			return fmt.Errorf("remove backup %s: %w", gone, err)
		}
	}
	if err := removeBut(gone, manifestName); err != nil {
		return fmt.Errorf("remove backup: %w", err)
	}
	return nil
}

// finishRemovals goes on with removals of this cluster's backups that were cut off.
func finishRemovals(ctx context.Context, dir, lineage string, remove func(context.Context, []VolumeSnapshot) error, out *Pruned) error {
	found, err := filepath.Glob(filepath.Join(dir, "*"+removingSuffix))
	if err != nil {
		return err
	}
	for _, gone := range found {
		m, err := ReadManifest(gone)
		switch {
		case errors.Is(err, os.ErrNotExist):
			m = nil // all but the directory is removed
		case err != nil:
			continue // whose it is cannot be told
		case m.Lineage != lineage, len(m.VolumeSnapshots) > 0 && remove == nil:
			continue
		}
		if err := removeDir(ctx, gone, m, remove); err != nil {
			return err
		}
		out.Removed = append(out.Removed, strings.TrimSuffix(gone, removingSuffix))
	}
	return nil
}
