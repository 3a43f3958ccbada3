package provision

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/belayops/belay/internal/host"
)

// unitLimit bounds kubeadm's own waits, which add up to about a quarter of an hour when everything goes wrong.
const unitLimit = 20 * time.Minute

// unitName names a transient unit on a host; the cluster's identity in it keeps two clusters' work apart.
func (u *up) unitName(what string) string { return "belay-" + what + "-" + u.state.ID }

// runUnit runs argv in a named transient unit, so that neither a kill of belay nor a lost connection ends it half-way.
// A finished unit of that name is forgotten first; one that runs must have been awaited.
func (u *up) runUnit(ctx context.Context, n *node, what string, argv []string) error {
	name := u.unitName(what)
	if err := host.ResetUnit(ctx, n.h, name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	if _, err := host.RunUnit(ctx, n.h, host.Unit{Name: name, Argv: argv}, u.kubeadmSays(what, n)); err != nil {
		return fmt.Errorf("%w; its whole output: belay cluster ssh %s -- cat %s/%s.log", err, n.name, host.UnitDir, name)
	}
	return nil
}

// earlierUnit waits for a unit that an earlier run left running, and says whether there is one that did argv to the end.
func (u *up) earlierUnit(ctx context.Context, n *node, what string, argv []string) (bool, error) {
	name := u.unitName(what)
	s, err := host.UnitStatus(ctx, n.h, name)
	if err != nil {
		return false, err
	}
	if s.Active {
		u.noteNode(n, "an earlier run's work goes on there; waiting for it")
		ctx, cancel := context.WithTimeout(ctx, unitLimit)
		defer cancel()
		if s, err = host.WaitUnit(ctx, n.h, name, u.kubeadmSays(what, n)); err != nil {
			return false, err
		}
	}
	return s.Finished() && s.ExitCode == 0 && s.Digest == host.Unit{Name: name, Argv: argv}.Digest(), nil
}

// kubeadmSays passes kubeadm's phases on as progress.
func (u *up) kubeadmSays(what string, n *node) func(string) {
	report := u.under(what, n)
	return func(line string) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[") {
			report(line)
		}
	}
}
