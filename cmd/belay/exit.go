package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// The exit codes, documented in `belay help exit-codes`.
const (
	exitOK          = 0   // done, nothing found
	exitError       = 1   // an error
	exitUsage       = 2   // wrong flags or arguments
	exitBlocked     = 3   // findings stand in the way
	exitStale       = 4   // the plan no longer fits the cluster
	exitStopped     = 5   // stopped before the end, can be resumed
	exitUnknown     = 6   // the outcome, or part of what was asked, is not known
	exitInterrupted = 130 // interrupted by a signal
)

// coder is an error that carries its exit code. Domain errors do not know
// codes: exitCode maps them here.
type coder interface{ exitCode() int }

// exitCode is the one place where errors become exit codes.
func exitCode(err error) int {
	var c coder
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.exitCode()
	}
	// A run that was stopped by a signal says what became of it, which is more than that there was a signal.
	if code := domainExitCode(err); code != exitError || !errors.Is(err, context.Canceled) {
		return code
	}
	return exitInterrupted
}

// usageError is a wrong flag or argument.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) exitCode() int { return exitUsage }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// codedError gives an error an exit code and, where there is one, the command to run next.
type codedError struct {
	err  error
	code int
	next string
}

func (e *codedError) Error() string       { return e.err.Error() }
func (e *codedError) Unwrap() error       { return e.err }
func (e *codedError) exitCode() int       { return e.code }
func (e *codedError) nextCommand() string { return e.next }

// silentError ends the program with a code, after everything was said.
type silentError struct {
	code int
	next string
}

func (e *silentError) Error() string       { return fmt.Sprintf("exit code %d", e.code) }
func (e *silentError) exitCode() int       { return e.code }
func (e *silentError) nextCommand() string { return e.next }

// interruptedError is work that a signal cut short.
type interruptedError struct{ err error }

func (e *interruptedError) Error() string { return "interrupted: " + e.err.Error() }
func (e *interruptedError) Unwrap() error { return e.err }

// exitCode keeps a code that says more than "interrupted", as "stopped, can be resumed" does.
func (e *interruptedError) exitCode() int {
	if c := exitCode(e.err); c == exitStopped || c == exitUnknown {
		return c
	}
	return exitInterrupted
}

// nextCommand finds the command that an error suggests.
func nextCommand(err error) string {
	var n interface{ nextCommand() string }
	if errors.As(err, &n) {
		return n.nextCommand()
	}
	var domain interface{ Next() string }
	if errors.As(err, &domain) {
		return domain.Next()
	}
	return ""
}

const exitCodesHelp = `
Exit codes
  0    done; for checks and scans: nothing found
  1    an error: the message says what and what to run next
  2    wrong flags or arguments
  3    blocked: findings stand in the way
  4    stale: the plan no longer fits the cluster
  5    stopped before the end, and can be resumed
  6    unknown: the outcome, or part of what was asked, could not be told
  130  interrupted
`

func exitCodesText() string { return strings.TrimPrefix(exitCodesHelp, "\n") }
