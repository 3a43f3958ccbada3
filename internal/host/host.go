// Package host gives access to one machine: run a program, read and write its
// files, reach a TCP port as that machine sees it.
//
// Programs are argument vectors, never shell strings. Errors come in three
// kinds that callers must tell apart: *ExitError (it ran and said no),
// *NotStartedError (it never ran) and *LostError (it was started and nobody
// knows how it ended).
package host

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"
)

// Cmd is one program to run.
type Cmd struct {
	// Argv is the program and its arguments. No shell sees it.
	Argv []string
	// Env adds KEY=value pairs to the environment.
	Env []string
	// Stdin, if set, is fed to the program. A program may end without reading it all; a Read that
	// is under way then goes on after Run has returned. If Stdin fails, the program is killed: it must not take the part for the whole.
	Stdin io.Reader
	// Stdout and Stderr, if set, receive output as it comes, beside what Result keeps.
	Stdout, Stderr io.Writer
	// Secret hides Argv beyond its first element in errors.
	Secret bool
}

// Result is what a program that exited with 0 left.
type Result struct {
	// Stdout and Stderr hold the last MaxOutput bytes of each.
	Stdout, Stderr []byte
	Elapsed        time.Duration
}

// MaxOutput bounds what Result and ExitError keep of each stream, in bytes.
const MaxOutput = 16 << 20

// Host is one machine. Implementations are safe for concurrent use.
type Host interface {
	// Name is how people call the machine: its node name.
	Name() string
	// Run runs a program to its end and its output to the output's end, for as long as a writer takes or a child of it goes on
	// writing. Output that does not end is a *LostError that wraps ErrOutputIncomplete. A context that ends kills the program.
	Run(ctx context.Context, c Cmd) (Result, error)
	// ReadFile reads a whole file and never gives a part for it; a missing one gives an error that wraps fs.ErrNotExist.
	ReadFile(ctx context.Context, path string) ([]byte, error)
	// WriteFile replaces a file atomically and durably (temporary file, fsync, rename),
	// making missing parent directories with mode 0755.
	WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error
	// Upload is WriteFile for streams. size is in bytes; a stream of another length is an error
	// and leaves the old file.
	Upload(ctx context.Context, path string, r io.Reader, size int64, mode fs.FileMode) error
	// Dial opens a connection from the machine to an address as the machine sees it
	// (network "tcp"; "127.0.0.1:2379" is the machine's own).
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
	// Close drops connections. It does not stop transient units.
	Close() error
}

// ExitError is a program that ran and exited with a code other than 0.
type ExitError struct {
	Host   string
	Argv   []string
	Code   int
	Stdout []byte
	Stderr []byte
}

func (e *ExitError) Error() string {
	out := lastLines(e.Stderr, 5)
	if out == "" {
		out = lastLines(e.Stdout, 5)
	}
	if out != "" {
		out = ": " + out
	}
	return fmt.Sprintf("%s: %s: exit code %d%s", e.Host, showArgv(e.Argv), e.Code, out)
}

// NotStartedError is work that never began: no connection, no such program, a refused key.
type NotStartedError struct {
	Host string
	Argv []string
	Err  error
}

func (e *NotStartedError) Error() string {
	if len(e.Argv) == 0 {
		return fmt.Sprintf("%s: not reached: %v", e.Host, e.Err)
	}
	return fmt.Sprintf("%s: %s: not started: %v", e.Host, showArgv(e.Argv[:1]), e.Err)
}

// Unwrap gives the reason.
func (e *NotStartedError) Unwrap() error { return e.Err }

// LostError is work that was started and whose end was not seen.
type LostError struct {
	Host string
	Argv []string
	Err  error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s: %s: outcome unknown: %v", e.Host, showArgv(e.Argv), e.Err)
}

// Unwrap gives the reason.
func (e *LostError) Unwrap() error { return e.Err }

// maxShown bounds what errors show of a command, in bytes.
const maxShown = 400

// showArgv prints a command so that it can be pasted into a shell.
func showArgv(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		if words[i] = a; strings.Trim(a, plain) != "" || a == "" {
			words[i] = Quote(a)
		}
	}
	s := strings.Join(words, " ")
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return s
}

// plain are the characters that no shell takes for anything else. Strings of nothing else need no quotes.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-[]"

func lastLines(b []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.TrimSpace(strings.Join(lines, "; "))
}
