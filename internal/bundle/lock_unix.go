//go:build unix

package bundle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/belayops/belay/internal/condition"
)

// lock takes the lock file at path; waiting is called once if another process has
// it. The kernel drops the lock when the process ends, however it ends, so the
// file itself means nothing and stays.
func lock(ctx context.Context, path string, waiting func()) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	told := false
	err = condition.Wait(ctx, condition.Condition{
		Name: "the lock " + path,
		Check: func(context.Context) error {
			err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			switch {
			case err == nil:
				return nil
			case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
				return condition.Final(err)
			}
			if !told {
				told = true
				waiting()
			}
			return condition.NotYetf("another process has it")
		},
	}, condition.Options{Interval: 200 * time.Millisecond})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}
