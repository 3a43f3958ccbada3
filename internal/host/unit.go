package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/belayops/belay/internal/condition"
)

// Unit is long work: a transient systemd service under a name by which a later process finds it again.
// It goes on when the connection drops or belay is killed. It needs systemd 247 or later and root.
type Unit struct {
	// Name identifies the work on this machine (letters, digits, ":", "_", "." and "-"; no ".service").
	// Make it of the run and the step: "belay-4f21-cp2-kubeadm-upgrade".
	Name string
	// Argv is the program and its arguments. No shell sees it, and systemd's $-expansion is undone.
	Argv []string
	// Env adds KEY=value pairs to the service's environment, which is systemd's own, not a login's. Everybody on the machine can
	// read it (systemctl show): no secrets.
	Env []string
	// Dir is the working directory; empty means /.
	Dir string
	// Properties are further systemd properties as "Name=value" ("TimeoutStopSec=5s").
	Properties []string
}

// UnitState is what systemd knows of a unit.
type UnitState struct {
	Name string
	// Exists is false for a unit that was never started, was reset, or was forgotten by a restart of the machine.
	Exists bool
	// Active is true until the program has ended.
	Active bool
	// Result is systemd's word for how it ended: "success", "exit-code", "signal", "timeout", "oom-kill", ...
	Result string
	// ExitCode is the program's, or 128 + N for a signal N. It means something when the unit exists and is not active.
	ExitCode int
	// Since is when the program was started, Ended when it ended; in seconds' precision, by the machine's clock.
	Since, Ended time.Time
	// Digest is what Unit.Digest gave for the unit that was started.
	Digest string
}

// Finished says that the program has run to its end.
func (s UnitState) Finished() bool { return s.Exists && !s.Active }

// UnitConflictError is a unit of that name that does other work than asked for.
type UnitConflictError struct {
	Host, Name string
	Want, Have string // digests; Have is empty for a unit that belay did not start
}

func (e *UnitConflictError) Error() string {
	return fmt.Sprintf("%s: unit %s exists and does other work (digest %q, want %q); look at it with: systemctl status %s", e.Host, e.Name, e.Have, e.Want, e.Name)
}

// UnitMissingError is a unit that is not there: never started, reset, or gone with a restart of the machine.
type UnitMissingError struct{ Host, Name string }

func (e *UnitMissingError) Error() string {
	return fmt.Sprintf("%s: there is no unit %s: it was never started, or the machine was restarted since", e.Host, e.Name)
}

// UnitActiveError is a unit that cannot be reset as its program still runs.
type UnitActiveError struct{ Host, Name string }

func (e *UnitActiveError) Error() string {
	return fmt.Sprintf("%s: unit %s still runs; stop it first: systemctl stop %s", e.Host, e.Name, e.Name)
}

// UnitDir is where the output of units is kept on a machine, one file NAME.log each, for root only. It is gone after
// a restart of the machine, as the units are.
const UnitDir = "/run/belay/units"

var unitName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9:_.-]{0,199}$`)

// Digest identifies the work: argv, environment, directory and properties, in hexadecimal.
func (u Unit) Digest() string {
	b, err := json.Marshal([]any{u.Argv, u.Env, u.Dir, u.Properties})
	if err != nil {
		return "" // strings always encode
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func checkUnitName(name string) error {
	if !unitName.MatchString(name) || strings.HasSuffix(name, ".service") {
		return fmt.Errorf("unit name %q: want letters, digits, \":\", \"_\", \".\", \"-\", at most 200, and no .service: %w", name, fs.ErrInvalid)
	}
	return nil
}

// UnitLog is the file on a machine that holds the output of the unit's work. That of an earlier unit of the name, which ResetUnit made the machine
// forget, lies beside it with ".old" at its end.
func UnitLog(name string) string { return UnitDir + "/" + name + ".log" }

// description carries the digest: it is set in the same call that starts the unit, so no moment lies between.
const description = "belay work, argv digest sha256:"

// systemdRun is the command that starts u.
func (u Unit) systemdRun() []string {
	argv := []string{
		"systemd-run", "--quiet", "--unit=" + u.Name + ".service",
		"--description=" + description + u.Digest(),
		// The end is kept for whoever asks later, also for a program that exits with 0.
		"--remain-after-exit",
		// So that systemd-run says when there is no such program.
		"--service-type=exec",
		"--property=StandardOutput=append:" + UnitLog(u.Name),
		"--property=StandardError=append:" + UnitLog(u.Name),
	}
	if u.Dir != "" {
		argv = append(argv, "--working-directory="+u.Dir)
	}
	for _, p := range u.Properties {
		argv = append(argv, "--property="+p)
	}
	for _, kv := range u.Env {
		argv = append(argv, "--setenv="+kv)
	}
	argv = append(argv, "--", u.Argv[0])
	for _, a := range u.Argv[1:] {
		// systemd itself expands $NAME in arguments; --expand-environment=no came with 254 only.
		argv = append(argv, strings.ReplaceAll(a, "$", "$$"))
	}
	return argv
}

// startScript makes the directory $1 for output and becomes systemd-run, $4 and on. The log $3 of an earlier unit goes
// unless systemd still knows the unit $2, whose log it then is; the lock is for others who look at the same time.
const startScript = `umask 077
mkdir -p -- "$1" || exit 1
exec 9>"$1/lock"
flock 9 || exit 1
case $(systemctl show --property=LoadState --value -- "$2") in not-found) rm -f -- "$3" ;; esac
shift 3
exec "$@"
`

// outputScript prints the file $1 from byte $2 (from 0), at most $3 bytes.
const outputScript = `[ -e "$1" ] || exit 44
tail -c "+$(($2 + 1))" -- "$1" | head -c "$3"
`

// StartUnit starts the work unless it was started before: if the unit exists, running or finished, with the same
// digest, nothing is done. Another digest is a *UnitConflictError. If the connection drops while it
// starts, StartUnit finds out what happened, until ctx ends.
func StartUnit(ctx context.Context, h Host, u Unit) error {
	err := u.start(ctx, h)
	if !errors.As(err, new(*LostError)) || ctx.Err() != nil {
		return err
	}
	// Asking again is safe: systemd itself starts a name only once.
	again := condition.Wait(ctx, condition.Condition{
		Name: fmt.Sprintf("unit %s on %s to be started", u.Name, h.Name()),
		Check: func(ctx context.Context) error {
			err := u.start(ctx, h)
			if err == nil || unreachable(err) {
				return err
			}
			return condition.Final(err)
		},
	}, condition.Options{Interval: unitPoll})
	if errors.As(again, new(*condition.TimeoutError)) {
		return errors.Join(err, again)
	}
	return again
}

func (u Unit) start(ctx context.Context, h Host) error {
	notStarted := func(err error) error { return &NotStartedError{Host: h.Name(), Argv: u.Argv, Err: err} }
	if err := checkUnitName(u.Name); err != nil {
		return notStarted(err)
	}
	if err := (Cmd{Argv: u.Argv, Env: u.Env}).check(); err != nil {
		return notStarted(err)
	}
	if strings.Contains(u.Argv[0], "$") {
		return notStarted(errors.New("systemd cannot run a program with $ in its name"))
	}
	if _, exists, err := u.find(ctx, h); exists || err != nil {
		return err
	}
	argv := []string{"/bin/sh", "-c", startScript, "belay-unit-start", UnitDir, u.Name + ".service", UnitLog(u.Name)}
	_, err := h.Run(ctx, Cmd{Argv: append(argv, u.systemdRun()...)})
	exit := (*ExitError)(nil)
	if !errors.As(err, &exit) {
		return relabel(err, "systemd-run", "--unit="+u.Name)
	}
	s, exists, again := u.find(ctx, h)
	switch {
	case again != nil:
		return again
	case exists && s.Finished() && s.ExitCode >= 200 && s.ExitCode <= 243:
		// systemd's own codes for what it could not set up (no such program, no such directory). The
		// failed unit must not pass for the work.
		why := fmt.Errorf("systemd could not set it up: status %d%s: %w", s.ExitCode, setupStatus(s.ExitCode), relabel(exit, "systemd-run", "--unit="+u.Name))
		return errors.Join(notStarted(why), ResetUnit(ctx, h, u.Name))
	case exists:
		return nil // somebody else was quicker, or the answer to an earlier attempt was lost
	}
	return notStarted(relabel(exit, "systemd-run", "--unit="+u.Name))
}

// setupStatus names the codes that a Unit of belay's can run into (systemd.exec(5), "Process Exit Codes").
func setupStatus(code int) string {
	switch code {
	case 200:
		return " (CHDIR: no such working directory)"
	case 203:
		return " (EXEC: the program cannot be run)"
	case 209:
		return " (STDOUT: its output file cannot be opened)"
	}
	return " (see systemd.exec(5), \"Process Exit Codes\")"
}

// find looks for u among the units of the machine.
func (u Unit) find(ctx context.Context, h Host) (UnitState, bool, error) {
	s, err := UnitStatus(ctx, h, u.Name)
	if err == nil && s.Exists && s.Digest != u.Digest() {
		err = &UnitConflictError{Host: h.Name(), Name: u.Name, Want: u.Digest(), Have: s.Digest}
	}
	return s, s.Exists, err
}

// unreachable says that err is about the way to the machine, so that asking again may help.
func unreachable(err error) bool {
	for _, final := range []bool{
		errors.As(err, new(*HostKeyError)),
		errors.As(err, new(*ExitError)),
		errors.Is(err, fs.ErrNotExist),
		errors.Is(err, fs.ErrPermission),
		errors.Is(err, fs.ErrInvalid),
		errors.Is(err, errHostClosed),
	} {
		if final {
			return false
		}
	}
	return errors.As(err, new(*LostError)) || errors.As(err, new(*NotStartedError))
}

// unitPoll is how often a unit is asked for.
const unitPoll = time.Second

// UnitStatus asks systemd for a unit. One that is not there is no error: Exists is false.
func UnitStatus(ctx context.Context, h Host, name string) (UnitState, error) {
	if err := checkUnitName(name); err != nil {
		return UnitState{}, fmt.Errorf("%s: %w", h.Name(), err)
	}
	res, err := h.Run(ctx, Cmd{
		Argv: []string{
			"systemctl", "show",
			"--property=LoadState,ActiveState,SubState,Job,Result,ExecMainCode,ExecMainStatus,ExecMainStartTimestamp,ExecMainExitTimestamp,Description",
			"--", name + ".service",
		},
		Env: []string{"LC_ALL=C", "TZ=UTC"},
	})
	if err != nil {
		return UnitState{}, err
	}
	s, err := parseUnit(name, res.Stdout)
	if err != nil {
		return UnitState{}, fmt.Errorf("%s: unit %s: %w", h.Name(), name, err)
	}
	return s, nil
}

// parseUnit reads what `systemctl show` prints: one NAME=value on a line.
func parseUnit(name string, out []byte) (UnitState, error) {
	p := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			p[k] = v
		}
	}
	s := UnitState{Name: name}
	if p["LoadState"] == "" || p["ActiveState"] == "" {
		return s, fmt.Errorf("systemctl show gave no LoadState or ActiveState: %q", lastLines(out, 5))
	}
	queued := p["Job"] != "" && p["Job"] != "0"
	switch p["ActiveState"] {
	case "inactive":
		// Stopped, and forgotten by systemd soon; unless its start is still queued.
		s.Active = queued
		s.Exists = queued && p["LoadState"] != "not-found"
	case "failed":
		s.Exists = true
	case "active":
		s.Exists = true
		s.Active = p["SubState"] != "exited"
	default: // activating, deactivating, reloading, maintenance
		s.Exists, s.Active = true, true
	}
	if !s.Exists {
		return UnitState{Name: name}, nil
	}
	s.Digest, _ = strings.CutPrefix(p["Description"], description)
	if s.Digest == p["Description"] {
		s.Digest = "" // not one of ours
	}
	s.Since = systemdTime(p["ExecMainStartTimestamp"])
	if s.Active {
		return s, nil
	}
	s.Ended = systemdTime(p["ExecMainExitTimestamp"])
	s.Result = p["Result"]
	status, err := strconv.Atoi(p["ExecMainStatus"])
	if err != nil {
		return s, fmt.Errorf("ExecMainStatus is %q, not a number", p["ExecMainStatus"])
	}
	s.ExitCode = status
	if c := p["ExecMainCode"]; c == "2" || c == "3" { // CLD_KILLED, CLD_DUMPED: the status is a signal
		s.ExitCode = 128 + status
	}
	if s.ExitCode == 0 && s.Result != "success" {
		s.ExitCode = 1 // a timeout, or resources: systemd calls it failed, and so must we
	}
	return s, nil
}

func systemdTime(v string) time.Time {
	t, err := time.Parse("Mon 2006-01-02 15:04:05 MST", v)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// outputChunk is how much output is fetched at one time, in bytes.
const outputChunk = 1 << 20

// WaitUnit waits until the unit's program has ended and passes on its output, line by line and from the
// beginning, while it waits; onOutput may be nil. Dropped connections and a machine that does not answer do not end it,
// only ctx does, with a *condition.TimeoutError; the unit goes on then. A unit that does not exist is a *UnitMissingError.
// How the program ended is in the state, not in the error.
func WaitUnit(ctx context.Context, h Host, name string, onOutput func(line string)) (UnitState, error) {
	var s UnitState
	lines := lineReader{emit: onOutput}
	err := condition.Wait(ctx, condition.Condition{
		Name: fmt.Sprintf("unit %s on %s to finish", name, h.Name()),
		Check: func(ctx context.Context) error {
			var err error
			// First the state, then the output: so the output of a finished unit is whole.
			if s, err = UnitStatus(ctx, h, name); err == nil && onOutput != nil && s.Exists {
				err = lines.fetch(ctx, h, name)
			}
			switch {
			case errors.As(err, new(*ExitError)):
				return err // systemd itself restarts, or the machine goes down: ask again
			case err != nil && !unreachable(err):
				return condition.Final(err)
			case err != nil:
				return err
			case !s.Exists:
				return condition.Final(&UnitMissingError{Host: h.Name(), Name: name})
			case s.Active:
				return condition.NotYetf("it runs since %s", s.Since.Format(time.RFC3339))
			}
			return nil
		},
	}, condition.Options{Interval: unitPoll})
	if err == nil {
		lines.end()
	}
	return s, err
}

// lineReader fetches a growing file and cuts it into lines.
type lineReader struct {
	emit   func(string)
	offset int64
	part   []byte
}

func (l *lineReader) fetch(ctx context.Context, h Host, name string) error {
	for {
		res, err := h.Run(ctx, Cmd{Argv: []string{
			"/bin/sh", "-c", outputScript, "belay-unit-output", UnitLog(name),
			strconv.FormatInt(l.offset, 10), strconv.Itoa(outputChunk),
		}})
		if exit := (*ExitError)(nil); errors.As(err, &exit) && exit.Code == codeMissing {
			return nil // nothing was written so far
		}
		if err != nil {
			return relabel(err, "read", UnitLog(name))
		}
		l.offset += int64(len(res.Stdout))
		l.part = append(l.part, res.Stdout...)
		for {
			line, rest, ok := bytes.Cut(l.part, []byte("\n"))
			if !ok {
				break
			}
			l.emit(string(line))
			l.part = rest
		}
		if len(res.Stdout) < outputChunk {
			return nil
		}
	}
}

func (l *lineReader) end() {
	if len(l.part) > 0 {
		l.emit(string(l.part))
	}
}

// UnitOutput gives the last max bytes of what the unit wrote to stdout and stderr so far. No output file is an
// error that wraps fs.ErrNotExist.
func UnitOutput(ctx context.Context, h Host, name string, maxBytes int) ([]byte, error) {
	if err := checkUnitName(name); err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name(), err)
	}
	res, err := h.Run(ctx, Cmd{Argv: []string{"/bin/sh", "-c", tailScript, "belay-unit-tail", UnitLog(name), strconv.Itoa(maxBytes)}})
	if exit := (*ExitError)(nil); errors.As(err, &exit) && exit.Code == codeMissing {
		return nil, fmt.Errorf("%s: output of unit %s: %w", h.Name(), name, &fs.PathError{Op: "read", Path: UnitLog(name), Err: fs.ErrNotExist})
	}
	return res.Stdout, relabel(err, "read", UnitLog(name))
}

// relabel names a command by what it is for, where its argv is one of the scripts above.
func relabel(err error, argv ...string) error {
	exit, notStarted, lost := (*ExitError)(nil), (*NotStartedError)(nil), (*LostError)(nil)
	switch {
	case errors.As(err, &exit):
		return &ExitError{Host: exit.Host, Argv: argv, Code: exit.Code, Stdout: exit.Stdout, Stderr: exit.Stderr}
	case errors.As(err, &lost):
		return &LostError{Host: lost.Host, Argv: argv, Err: lost.Err}
	case errors.As(err, &notStarted):
		return &NotStartedError{Host: notStarted.Host, Argv: argv, Err: notStarted.Err}
	}
	return err
}

const tailScript = `[ -e "$1" ] || exit 44
exec tail -c "$2" -- "$1"
`

// RunUnit starts the unit (if it was not before) and waits for its end. A program that ended with another code than 0 is
// an *ExitError with the end of its output. See StartUnit and WaitUnit for the other errors.
func RunUnit(ctx context.Context, h Host, u Unit, onOutput func(line string)) (UnitState, error) {
	if err := StartUnit(ctx, h, u); err != nil {
		return UnitState{}, err
	}
	s, err := WaitUnit(ctx, h, u.Name, onOutput)
	if err != nil || s.ExitCode == 0 {
		return s, err
	}
	// That it failed is known; a lost tail must not hide it.
	out, tailErr := UnitOutput(ctx, h, u.Name, maxUnitTail)
	if tailErr != nil && !errors.Is(tailErr, fs.ErrNotExist) {
		out = fmt.Appendf(out, "(its output could not be read: %v)", tailErr)
	}
	return s, &ExitError{Host: h.Name(), Argv: u.Argv, Code: s.ExitCode, Stdout: out}
}

// maxUnitTail bounds the output in the error of RunUnit, in bytes.
const maxUnitTail = 64 << 10

// StopUnit ends a unit's program with all its processes (SIGTERM, then SIGKILL after the unit's TimeoutStopSec) and waits for that.
// Its output stays. A unit that does not exist is no error.
func StopUnit(ctx context.Context, h Host, name string) error {
	s, err := UnitStatus(ctx, h, name)
	if err != nil || !s.Exists {
		return err
	}
	_, err = h.Run(ctx, Cmd{Argv: []string{"systemctl", "stop", "--", name + ".service"}})
	return err
}

// ResetUnit makes a machine forget a finished unit and puts its output aside, so that the name can be used again. A
// unit that still runs is a *UnitActiveError, one that does not exist no error.
func ResetUnit(ctx context.Context, h Host, name string) error {
	s, err := UnitStatus(ctx, h, name)
	if err != nil {
		return err
	}
	if s.Active {
		return &UnitActiveError{Host: h.Name(), Name: name}
	}
	if s.Exists {
		if _, err := h.Run(ctx, Cmd{Argv: []string{"systemctl", "stop", "--", name + ".service"}}); err != nil {
			return err
		}
		// A unit that ended well is forgotten by the stop, and resetting it says no; one that failed needs it.
		if _, err := h.Run(ctx, Cmd{Argv: []string{"systemctl", "reset-failed", "--", name + ".service"}}); err != nil && !errors.As(err, new(*ExitError)) {
			return err
		}
		if s, err = UnitStatus(ctx, h, name); err != nil {
			return err
		}
		if s.Exists {
			return fmt.Errorf("%s: unit %s is still there after systemctl reset-failed; look at it with: systemctl status %s", h.Name(), name, name)
		}
	}
	_, err = h.Run(ctx, Cmd{Argv: []string{"/bin/sh", "-c", `[ ! -e "$1" ] || mv -f -- "$1" "$1.old"`, "belay-unit-reset", UnitLog(name)}})
	return relabel(err, "mv", UnitLog(name))
}
