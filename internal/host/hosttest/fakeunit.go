package hosttest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/belayops/belay/internal/host"
)

// UnitReply is what the program of a transient unit does on a Fake.
type UnitReply struct {
	Output string
	Code   int
	// Polls is how often it is seen running before it has ended. -1: it never ends.
	Polls int
	// LoseStart starts the unit but loses the answer, once.
	LoseStart bool
	// Do, if set, runs when the unit is started and gives Output and Code.
	Do func(ctx context.Context, u host.Unit) (output string, code int)
}

type unitRule struct {
	match Match
	reply UnitReply
}

type fakeUnit struct {
	argv   []string
	digest string
	reply  UnitReply
	start  time.Time
}

// OnUnit lets the machine run units (host.StartUnit and the like) whose program matches; rules added last are asked first. The
// machine then has a systemd that remembers units; rules for commands come first, so losing the connection in
// the middle of a wait is f.Once(Prefix("systemctl", "show"), Reply{Err: ErrLost}).
func (f *Fake) OnUnit(m Match, r UnitReply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unitFn = append([]unitRule{{m, r}}, f.unitFn...)
}

// Started tells whether a unit of that name was started (and not reset), and with which arguments.
func (f *Fake) Started(name string) (argv []string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u, ok := f.units[name]
	if !ok {
		return nil, false
	}
	return u.argv, true
}

// Reboot forgets every unit and its output, as a restart of the machine does.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.units {
		delete(f.files, logOf(name))
	}
	clear(f.units)
}

func logOf(name string) string { return host.UnitDir + "/" + name + ".log" }

// unitCommand answers the commands that package host makes for units.
func (f *Fake) unitCommand(ctx context.Context, c host.Cmd) (Reply, bool) {
	f.mu.Lock()
	known := len(f.unitFn) > 0
	f.mu.Unlock()
	if !known {
		return Reply{}, false
	}
	a := c.Argv
	switch {
	case len(a) > 3 && a[0] == "systemctl":
		name := strings.TrimSuffix(a[len(a)-1], ".service")
		switch a[1] {
		case "show":
			return Reply{Stdout: f.showUnit(name)}, true
		case "stop":
			f.stopUnit(name, false)
			return Reply{}, true
		case "reset-failed":
			f.stopUnit(name, true)
			return Reply{}, true
		}
	case len(a) == 5 && a[3] == "belay-unit-reset":
		if data, mode, ok := f.File(a[4]); ok {
			f.SetFile(a[4]+".old", data, mode)
			f.RemoveFile(a[4])
		}
		return Reply{}, true
	case len(a) > 4 && a[1] == "-c" && a[3] == "belay-unit-start":
		return f.startUnit(ctx, a[7:])
	case len(a) == 7 && a[3] == "belay-unit-output":
		from, err1 := strconv.Atoi(a[5])
		n, err2 := strconv.Atoi(a[6])
		data, _, ok := f.File(a[4])
		if !ok || err1 != nil || err2 != nil {
			return Reply{Code: 44}, true
		}
		data = data[min(from, len(data)):]
		return Reply{Stdout: string(data[:min(n, len(data))])}, true
	case len(a) == 6 && a[3] == "belay-unit-tail":
		n, err := strconv.Atoi(a[5])
		data, _, ok := f.File(a[4])
		if !ok || err != nil {
			return Reply{Code: 44}, true
		}
		return Reply{Stdout: string(data[max(0, len(data)-n):])}, true
	}
	return Reply{}, false
}

func (f *Fake) startUnit(ctx context.Context, a []string) (Reply, bool) {
	u := &fakeUnit{}
	var unit host.Unit
	for i, arg := range a {
		switch {
		case strings.HasPrefix(arg, "--unit="):
			unit.Name = strings.TrimSuffix(strings.TrimPrefix(arg, "--unit="), ".service")
		case strings.HasPrefix(arg, "--description="):
			u.digest = arg
		case strings.HasPrefix(arg, "--setenv="):
			unit.Env = append(unit.Env, strings.TrimPrefix(arg, "--setenv="))
		case strings.HasPrefix(arg, "--working-directory="):
			unit.Dir = strings.TrimPrefix(arg, "--working-directory=")
		}
		if arg == "--" {
			for _, arg := range a[i+1:] {
				unit.Argv = append(unit.Argv, strings.ReplaceAll(arg, "$$", "$"))
			}
			break
		}
	}
	f.mu.Lock()
	if _, ok := f.units[unit.Name]; ok {
		f.mu.Unlock()
		return Reply{Code: 1, Stderr: "Unit " + unit.Name + ".service was already loaded.\n"}, true
	}
	var found bool
	for _, r := range f.unitFn {
		if found = r.match.fn(host.Cmd{Argv: unit.Argv, Env: unit.Env}); found {
			u.reply = r.reply
			break
		}
	}
	f.mu.Unlock()
	if !found {
		f.t.Errorf("%s: unexpected unit %s: %q", f.name, unit.Name, unit.Argv)
		return Reply{Code: 1, Stderr: "the test expects no such unit\n"}, true
	}
	if u.reply.Do != nil {
		u.reply.Output, u.reply.Code = u.reply.Do(ctx, unit)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(time.Second)
	u.argv, u.start = unit.Argv, f.now
	f.units[unit.Name] = u
	f.files[logOf(unit.Name)] = fakeFile{[]byte(u.reply.Output), 0o600}
	if u.reply.LoseStart {
		return Reply{Err: ErrLost}, true
	}
	return Reply{}, true
}

func (f *Fake) showUnit(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	u, ok := f.units[name]
	if !ok {
		return "LoadState=not-found\nActiveState=inactive\nSubState=dead\nResult=success\nExecMainCode=0\nExecMainStatus=0\nDescription=" + name + ".service\n"
	}
	head := "LoadState=loaded\nDescription=" + strings.TrimPrefix(u.digest, "--description=") +
		"\nExecMainStartTimestamp=" + u.start.Format("Mon 2006-01-02 15:04:05 MST") + "\n"
	if u.reply.Polls != 0 {
		if u.reply.Polls > 0 {
			u.reply.Polls--
		}
		return head + "ActiveState=active\nSubState=running\nResult=success\nExecMainCode=0\nExecMainStatus=0\nExecMainExitTimestamp=\n"
	}
	state := "ActiveState=active\nSubState=exited\nResult=success\n"
	if u.reply.Code != 0 {
		state = "ActiveState=failed\nSubState=failed\nResult=exit-code\n"
	}
	return head + state + fmt.Sprintf("ExecMainCode=1\nExecMainStatus=%d\nExecMainExitTimestamp=%s\n",
		u.reply.Code, u.start.Add(time.Second).Format("Mon 2006-01-02 15:04:05 MST"))
}

// stopUnit forgets a unit; one that failed only when it is reset.
func (f *Fake) stopUnit(name string, reset bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u, ok := f.units[name]; ok && (reset || u.reply.Code == 0 || u.reply.Polls != 0) {
		delete(f.units, name)
	}
}
