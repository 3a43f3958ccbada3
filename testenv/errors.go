package testenv

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotFound marks a network or a machine that does not exist.
var ErrNotFound = errors.New("not found")

// UnsupportedError says why this computer or user cannot run machines.
type UnsupportedError struct {
	Reason string
	Remedy string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("machines cannot run here: %s; %s", e.Reason, e.Remedy)
}

// MissingToolsError lists programs that this computer lacks and the Debian packages that bring them.
type MissingToolsError struct {
	Tools    []string
	Packages []string
}

func (e *MissingToolsError) Error() string {
	return fmt.Sprintf("missing on this computer: %s; run: apt-get install --no-install-recommends %s",
		strings.Join(e.Tools, ", "), strings.Join(e.Packages, " "))
}

// StateError is a state file that cannot be used.
type StateError struct {
	Path string
	Err  error
}

func (e *StateError) Error() string {
	return fmt.Sprintf("state file %s is unusable: %v; remove its network with: belay cluster down", e.Path, e.Err)
}

// Unwrap gives the reason.
func (e *StateError) Unwrap() error { return e.Err }

// BusyError says that another process works on the same thing.
type BusyError struct {
	What string
	Path string
	Err  error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s is in use by another process (lock on %s); wait for it or stop it", e.What, e.Path)
}

// Unwrap gives the wait's end.
func (e *BusyError) Unwrap() error { return e.Err }

// NotReadyError is a machine that was started and did not become ready.
type NotReadyError struct {
	Machine string
	Err     error
	// Log is the tail of the machine's journal or console.
	Log string
}

func (e *NotReadyError) Error() string {
	s := fmt.Sprintf("machine %s is not ready: %v", e.Machine, e.Err)
	if e.Log != "" {
		s += "\nlast lines of its log:\n" + e.Log
	}
	return s
}

// Unwrap gives the reason.
func (e *NotReadyError) Unwrap() error { return e.Err }
