package main

import (
	"errors"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/executor"
	"github.com/belayops/belay/internal/host"
)

// domainExitCode maps the typed errors of the domain packages.
func domainExitCode(err error) int {
	var (
		unknown *executor.UnknownError
		stopped *executor.StoppedError
		stale   *executor.StaleError
		blocked *executor.BlockedError
		unseen  *executor.UnseenError
		lost    *host.LostError

		unfinished *backup.UnfinishedError
		standing   *backup.BlockedError
		damaged    *backup.DamagedError
	)
	switch {
	case errors.As(err, &unknown):
		return exitUnknown
	case errors.As(err, &stopped), errors.As(err, &unfinished):
		return exitStopped
	case errors.As(err, &blocked), errors.As(err, &standing), errors.As(err, &damaged):
		return exitBlocked
	case errors.As(err, &stale):
		return exitStale
	case errors.As(err, &lost), errors.As(err, &unseen):
		return exitUnknown
	}
	return exitError
}
