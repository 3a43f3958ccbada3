package backup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/belayops/belay/internal/atomicfile"
)

// Prune removes backups of the cluster with that lineage from dir, all but the
// newest keep of them, and gives the directories that it removed. The newest
// that is opened, and the newest that is restored, stay in any case. Backups of
// other clusters, and what is no usable backup, are not touched.
//
// remove deletes the CSI snapshots of a backup before the backup, which alone
// knows of them, goes; with nil, a backup that has some is an error.
func Prune(ctx context.Context, dir, lineage string, keep int, remove func(context.Context, []VolumeSnapshot) error) ([]string, error) {
	if keep < 1 {
		return nil, fmt.Errorf("keep at least one backup, not %d", keep)
	}
	entries, err := List(dir)
	if err != nil {
		return nil, err
	}
	var removed []string
	n := 0
	opened, restored := false, false
	for _, e := range entries {
		if e.Manifest == nil || e.Manifest.Lineage != lineage {
			continue
		}
		n++
		good := e.Manifest.Complete() && e.Problem == ""
		first := good && (e.Level >= Opened && !opened || e.Level >= Restored && !restored)
		if good {
			opened = opened || e.Level >= Opened
			restored = restored || e.Level >= Restored
		}
		if n <= keep || first {
			continue
		}
		if snapshots := e.Manifest.VolumeSnapshots; len(snapshots) > 0 {
			if remove == nil {
				return removed, fmt.Errorf("remove backup %s: it has volume snapshots, and there is no access to the cluster to remove them", e.Dir)
			}
			if err := remove(ctx, snapshots); err != nil {
				return removed, fmt.Errorf("remove backup %s: %w", e.Dir, err)
			}
		}
		// A kill in the middle must not leave a directory that looks complete.
		gone := e.Dir + partialSuffix
		if err := os.Rename(e.Dir, gone); err != nil {
			return removed, fmt.Errorf("remove backup: %w", err)
		}
		if err := atomicfile.SyncDir(filepath.Dir(e.Dir)); err != nil {
			return removed, err
		}
		if err := os.RemoveAll(gone); err != nil {
			return removed, fmt.Errorf("remove backup: %w", err)
		}
		removed = append(removed, e.Dir)
	}
	return removed, nil
}
