package executor

import (
	"context"
	"fmt"

	"github.com/belayops/belay/internal/host"
)

// unitOutput bounds what is read of a unit's output each time, in bytes.
const unitOutput = 16 << 10

// SystemdUnits is Units by transient systemd units.
type SystemdUnits struct{}

var _ Units = SystemdUnits{}

// Start begins argv in a unit, clearing one of that name that has ended.
func (SystemdUnits) Start(ctx context.Context, h host.Host, name string, argv []string) error {
	s, err := host.UnitStatus(ctx, h, name)
	if err != nil {
		return err
	}
	if s.Finished() {
		if err := host.ResetUnit(ctx, h, name); err != nil {
			return err
		}
	}
	return host.StartUnit(ctx, h, host.Unit{Name: name, Argv: argv, Env: []string{"HOME=/root"}})
}

// Status looks at the unit and reads the end of its output.
func (SystemdUnits) Status(ctx context.Context, h host.Host, name string) (Unit, error) {
	s, err := host.UnitStatus(ctx, h, name)
	if err != nil {
		return Unit{}, err
	}
	if !s.Exists {
		return Unit{State: UnitAbsent}, nil
	}
	out, err := host.UnitOutput(ctx, h, name, unitOutput)
	if err != nil {
		return Unit{}, err
	}
	u := Unit{State: UnitRunning, Output: string(out)}
	switch {
	case s.Active:
	case s.Result == "success" && s.ExitCode == 0:
		u.State = UnitSucceeded
	default:
		u.State, u.Detail = UnitFailed, fmt.Sprintf("exit code %d (%s)", s.ExitCode, s.Result)
	}
	return u, nil
}
