//go:build unix

package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belayops/belay/internal/atomicfile"
)

// creatingName is a file in a directory that is being written. Its lock says that the writer lives,
// however a process ends; its text says whose the directory is, which the manifest, written last, cannot.
const creatingName = "creating"

// creating is what that file holds.
type creating struct {
	Lineage string `json:"lineage"`
	// Claims are those of which CSI snapshots were asked for: some of them may exist.
	Claims []string `json:"claims,omitempty"`
}

// markCreating marks dir. The caller closes the file when dir is complete, or gone.
func markCreating(dir string, c creating) (*os.File, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, creatingName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	// The lock first: whoever can read the text must find it. Who looks at a file without text lets go of it at once.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = atomicfile.SyncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// abandoned looks at a partial directory: whose it is, and whether its writer is gone. held is its lock
// then, for the caller to close. The error says why it cannot be told.
func abandoned(dir string) (c creating, held *os.File, err error) {
	f, err := os.OpenFile(filepath.Join(dir, creatingName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return c, nil, err
	}
	defer func() {
		if held == nil {
			err = errors.Join(err, f.Close())
		}
	}()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return c, nil, errUnderWay
	case err != nil:
		return c, nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := json.NewDecoder(f).Decode(&c); err != nil {
		return c, nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return c, f, nil
}

var errUnderWay = errors.New("it is being written")

// removePartials removes what killed creations of this cluster's backups left in dir. What another one
// writes, is another cluster's, or may have left CSI snapshots that nothing else names, stays.
func removePartials(dir, lineage string, out *Pruned) error {
	found, err := filepath.Glob(filepath.Join(dir, "*"+partialSuffix))
	if err != nil {
		return err
	}
	for _, p := range found {
		c, held, err := abandoned(p)
		if err != nil {
			continue // List says so
		}
		if c.Lineage == lineage && len(c.Claims) == 0 {
			if err = removeBut(p, creatingName); err == nil {
				out.Removed = append(out.Removed, p)
			}
		}
		if err := errors.Join(err, held.Close()); err != nil {
			return fmt.Errorf("remove %s: %w", p, err)
		}
	}
	return nil
}

// removeBut removes a directory, the file called last after all others.
func removeBut(dir, last string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == last {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// partialProblem says what a partial directory is, for a list.
func partialProblem(dir string) string {
	c, held, err := abandoned(dir)
	switch {
	case errors.Is(err, errUnderWay):
		return "partial: its creation is under way"
	case err != nil:
		return "partial: its creation was cut off, or is under way"
	}
	_ = held.Close()
	if len(c.Claims) > 0 {
		return "partial: its creation was cut off; look for its volume snapshots (kubectl get volumesnapshots -A -l " + BackupLabel + "=" +
			labelValue(strings.TrimSuffix(filepath.Base(dir), partialSuffix)) + "), then remove both"
	}
	return "partial: its creation was cut off; the next backup create --keep removes it"
}
