package main

import (
	"errors"

	"github.com/belayops/belay/internal/host"
)

// domainExitCode maps the typed errors of the domain packages.
func domainExitCode(err error) int {
	if lost := (*host.LostError)(nil); errors.As(err, &lost) {
		return exitUnknown
	}
	return exitError
}
