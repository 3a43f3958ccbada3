package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

type recordKind string

const (
	recIntent   recordKind = "intent"
	recOutcome  recordKind = "outcome"
	recFailed   recordKind = "failed"
	recNote     recordKind = "note"
	recTakeover recordKind = "takeover"
)

type record struct {
	Time  time.Time       `json:"time"`
	Step  string          `json:"step"`
	Kind  recordKind      `json:"kind"`
	Data  json.RawMessage `json:"data,omitempty"`
	Error string          `json:"error,omitempty"`
}

type fileJournal struct{ f *os.File }

func (j *fileJournal) Append(step string, kind recordKind, data any, cause error) error {
	r := record{Time: time.Now().UTC(), Step: step, Kind: kind}
	if cause != nil {
		r.Error = cause.Error()
	}
	if data != nil {
		b, err := json.Marshal(data)
		if err != nil {
			return err
		}
		r.Data = b
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := j.f.Write(append(b, '\n')); err != nil {
		return err
	}
	return j.f.Sync()
}

func (j *fileJournal) Close() error { return j.f.Close() }

func (r *Run) createJournal(Options) error {
	f, err := os.OpenFile(filepath.Join(r.Dir, journalFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (r *Run) openJournal() (*fileJournal, error) {
	f, err := os.OpenFile(filepath.Join(r.Dir, journalFile), os.O_APPEND|os.O_WRONLY, 0o600)
	return &fileJournal{f}, err
}

func (r *Run) append(kind recordKind, data any) error {
	j, err := r.openJournal()
	if err != nil {
		return err
	}
	return errors.Join(j.Append(runStep, kind, data, nil), j.Close())
}

// replayed is what a journal says of a run.
type replayed struct {
	steps map[string]stepState
	// last is the step of the newest record of a step, err its error if it failed.
	last, err string
	ended     ended
}

func (r *Run) replay() (replayed, error) {
	b, err := os.ReadFile(filepath.Join(r.Dir, journalFile))
	if err != nil {
		return replayed{}, err
	}
	out := replayed{steps: map[string]stepState{}}
	for line := range strings.Lines(string(b)) {
		var rec record
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			return replayed{}, fmt.Errorf("journal: %w", err)
		}
		out.take(rec)
	}
	return out, nil
}

func (out *replayed) take(rec record) {
	if rec.Step == runStep {
		var d struct {
			State ended `json:"state"`
		}
		if len(rec.Data) > 0 && json.Unmarshal(rec.Data, &d) == nil && d.State != "" {
			out.ended = d.State
		}
		return
	}
	st := out.steps[rec.Step]
	switch rec.Kind {
	case recIntent:
		st.begun, st.done = true, false
		out.err = ""
	case recOutcome:
		st.begun, st.done = true, true
		out.err = ""
	case recFailed:
		out.err = rec.Error
	case recNote, recTakeover:
	}
	out.steps[rec.Step] = st
	out.last = rec.Step
}
