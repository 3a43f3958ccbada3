package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
)

// unitStatus is what systemd says of a transient unit.
type unitStatus struct{ load, active, sub, result, code string }

func (s unitStatus) exists() bool { return s.load == "loaded" }
func (s unitStatus) running() bool {
	return s.exists() && (s.active == "activating" || s.sub == "running")
}

func showUnit(ctx context.Context, h host.Host, unit string) (unitStatus, error) {
	res, err := h.Run(ctx, host.Cmd{Argv: []string{"systemctl", "show", "-p", "LoadState,ActiveState,SubState,Result,ExecMainStatus", unit + ".service"}})
	if err != nil {
		return unitStatus{}, err
	}
	var s unitStatus
	fields := map[string]*string{"LoadState": &s.load, "ActiveState": &s.active, "SubState": &s.sub, "Result": &s.result, "ExecMainStatus": &s.code}
	for line := range strings.Lines(string(res.Stdout)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && fields[k] != nil {
			*fields[k] = v
		}
	}
	return s, nil
}

func unitRunning(ctx context.Context, h host.Host, unit string) (bool, error) {
	s, err := showUnit(ctx, h, unit)
	return s.running(), err
}

// unitLimit bounds kubeadm's own waits, which add up to about a quarter of an hour when everything goes wrong.
const unitLimit = 20 * time.Minute

// runUnit runs argv in a named transient unit, so that neither a kill of belay nor a lost connection ends it half-way. One that
// runs already is waited for.
func (u *up) runUnit(ctx context.Context, n *node, unit string, argv []string) error {
	running, err := unitRunning(ctx, n.h, unit)
	if err != nil {
		return err
	}
	if !running {
		if err := dropUnit(ctx, n.h, unit); err != nil {
			return err
		}
		start := append([]string{"systemd-run", "--quiet", "--no-block", "--unit=" + unit, "--property=RemainAfterExit=yes", "--property=KillMode=process", "--"}, argv...)
		if _, err := n.h.Run(ctx, host.Cmd{Argv: start}); err != nil {
			return err
		}
	}
	var last unitStatus
	err = condition.Wait(ctx, condition.Condition{Name: strings.Join(argv[:2], " ") + " on " + n.name, Check: func(ctx context.Context) error {
		s, err := showUnit(ctx, n.h, unit)
		if err != nil {
			return err
		}
		if last = s; s.running() {
			return condition.NotYetf("it runs")
		}
		return nil
	}}, condition.Options{Timeout: unitLimit, Interval: pollInterval})
	if err != nil {
		return err
	}
	if last.result == "success" && last.code == "0" && last.exists() {
		return dropUnit(ctx, n.h, unit)
	}
	if !last.exists() {
		return errors.New("its unit is gone: the machine was started anew meanwhile")
	}
	return u.withLog(ctx, n, unit+".service", fmt.Errorf("%s: exit code %s (%s)", strings.Join(argv, " "), last.code, last.result))
}

func dropUnit(ctx context.Context, h host.Host, unit string) error {
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", `systemctl stop "$1"; systemctl reset-failed "$1" 2>/dev/null; exit 0`, "drop", unit + ".service"}})
	return err
}
