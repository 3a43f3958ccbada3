package executor

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/belayops/belay/internal/journal"
)

// log is the journal as the loop needs it.
type log interface {
	Append(r journal.Record) error
}

// note appends a record with data to a journal.
func note(l log, step string, kind journal.Kind, data any, cause error) error {
	r := journal.Record{Step: step, Kind: kind}
	if cause != nil {
		r.Error = cause.Error()
	}
	if data != nil {
		b, err := json.Marshal(data)
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		r.Data = b
	}
	return l.Append(r)
}

// ended names the states of a run that has ended.
type ended string

const (
	stateFinished ended = "finished"
	stateAborted  ended = "aborted"
)

type endNote struct {
	State ended `json:"state"`
}

// stepState is what the journal has of a step.
type stepState struct {
	// begun: there is an intent; done: and an outcome after it.
	begun, done bool
}

// replayed is what a journal says of a run.
type replayed struct {
	steps map[string]stepState
	// last is the step of the newest record of a step, err its error if it failed.
	last, err string
	ended     ended
}

func replay(records []journal.Record) replayed {
	out := replayed{steps: map[string]stepState{}}
	for _, rec := range records {
		if rec.Step == "" {
			var d endNote
			if rec.Kind == journal.Note && json.Unmarshal(rec.Data, &d) == nil && d.State != "" {
				out.ended = d.State
			}
			continue
		}
		st := out.steps[rec.Step]
		switch rec.Kind {
		case journal.Intent:
			st, out.err = stepState{begun: true}, ""
		case journal.Outcome:
			st, out.err = stepState{begun: true, done: true}, ""
		case journal.Failed:
			out.err = rec.Error
		case journal.Note, journal.Takeover:
		}
		out.steps[rec.Step] = st
		out.last = rec.Step
	}
	return out
}

func (r *Run) journalPath() string { return filepath.Join(r.Dir, journalFile) }

// read replays the journal without locking it.
func (r *Run) read() (replayed, error) {
	_, records, err := journal.Read(r.journalPath())
	return replay(records), err
}

// open takes the journal over. Another process that has it makes a *BusyError.
func (r *Run) open() (*journal.Journal, replayed, error) {
	j, records, err := journal.Open(r.journalPath())
	if err != nil {
		return nil, replayed{}, busyJournal(r.ID, err)
	}
	return j, replay(records), nil
}
