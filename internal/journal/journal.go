// Package journal records what a run is about to do and how it ended, so that a
// killed run can be resumed: append-only JSON lines, each on disk before Append
// returns, after a header that says whose run it is. It knows nothing of steps
// but their names; what a record means is for the executor, and where journal
// and cluster differ the cluster is right.
//
// Only one process at a time can append (a file lock that ends with the process). A last
// line without its end, as a kill or a power cut leaves it, is dropped; everything else that is not
// as written is an error, since a journal that is guessed at is worse than none.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
)

// Schema names the format of a journal file.
const Schema = "belay.dev/journal/v1"

// Header is the first line of a journal.
type Header struct {
	// Schema is set by Create.
	Schema string `json:"schema"`
	// Plan is the digest of the plan that the run carries out.
	Plan string `json:"plan"`
	// Run identifies the run, Lineage its cluster (the UID of namespace kube-system).
	Run     string `json:"run"`
	Lineage string `json:"lineage"`
	// Tool is the version of the program that began the run.
	Tool string `json:"tool"`
	// Owner is who began it; Create sets what is empty.
	Owner
	// Time is when; Create sets it if it is zero.
	Time time.Time `json:"time"`
}

// Owner is a process that appends, or appended, to a journal.
type Owner struct {
	Who  string `json:"who"`  // user name
	Host string `json:"host"` // of the computer
	PID  int    `json:"pid"`
}

func (o Owner) String() string { return fmt.Sprintf("%s on %s, process %d", o.Who, o.Host, o.PID) }

// Kind says what a record is.
type Kind string

// The kinds of records.
const (
	// Intent is written before a step changes anything, Outcome after it was verified.
	Intent  Kind = "intent"
	Outcome Kind = "outcome"
	// Failed is a step that ended with an error.
	Failed Kind = "failed"
	// Note is a remark.
	Note Kind = "note"
	// Takeover is written by Open: another process goes on. Its data is an Owner.
	Takeover Kind = "takeover"
)

func (k Kind) valid() bool {
	switch k {
	case Intent, Outcome, Failed, Note, Takeover:
		return true
	}
	return false
}

// Record is one line after the header.
type Record struct {
	// Seq counts from 1 without gaps; Append sets it.
	Seq int64 `json:"seq"`
	// Time is set by Append if it is zero.
	Time time.Time `json:"time"`
	// Step is the step that the record is about; empty for the run as a whole.
	Step string `json:"step,omitempty"`
	Kind Kind   `json:"kind"`
	// Data is the executor's. No secrets: a journal is shown and attached to reports.
	Data json.RawMessage `json:"data,omitempty"`
	// Error is the text of a Failed record's error.
	Error string `json:"error,omitempty"`
}

// CorruptError is a journal that is not as it was written. It is not mended: a step could be missing.
type CorruptError struct {
	Path string
	// Line counts from 1, the header.
	Line int
	Err  error
}

func (e *CorruptError) Error() string {
	if e.Line == 1 {
		return fmt.Sprintf("journal %s: line 1, the header: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("journal %s: line %d: %v", e.Path, e.Line, e.Err)
}

// Unwrap gives the reason.
func (e *CorruptError) Unwrap() error { return e.Err }

// ErrTornHeader is the reason of a CorruptError for a journal that ends within its first line: nothing
// was begun with it, and it can be removed.
var ErrTornHeader = errors.New("it ends before the header does, so nothing was begun with it")

// LockedError is a journal that another process appends to.
type LockedError struct {
	Path string
	// Owner is the process that opened it last.
	Owner Owner
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("journal %s is in use by %s; wait for it to end, or stop it", e.Path, e.Owner)
}

// Journal appends to a file. It is safe for concurrent use.
type Journal struct {
	header Header
	path   string

	mu     sync.Mutex
	f      *os.File
	seq    int64 // of the last record
	broken error // why nothing can be appended any more
}

// Create makes the journal at path, mode 0600, with its header, and locks it. A file that is there already is an error that
// wraps fs.ErrExist. The file appears with the whole header in it: a kill leaves no journal or a good one.
func Create(path string, h Header) (*Journal, error) {
	h.Schema = Schema
	me := self()
	if h.Who == "" {
		h.Who = me.Who
	}
	if h.Host == "" {
		h.Host = me.Host
	}
	if h.PID == 0 {
		h.PID = me.PID
	}
	if h.Time.IsZero() {
		h.Time = time.Now()
	}
	h.Time = h.Time.UTC().Round(0)
	if err := h.check(); err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	f, err := createWith(path, append(line, '\n'))
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return &Journal{header: h, path: path, f: f}, nil
}

// createWith makes a locked file with data in it, in one step for everybody who looks. A hard link does what
// a rename cannot: it fails if the name is taken.
func createWith(path string, data []byte) (f *os.File, err error) {
	dir := filepath.Dir(path)
	if f, err = os.CreateTemp(dir, "."+filepath.Base(path)+".part-*"); err != nil { // mode 0600
		return nil, err
	}
	defer func() {
		// Under its own name the file stays, if it got there.
		err = errors.Join(err, os.Remove(f.Name()))
		if err == nil {
			err = atomicfile.SyncDir(dir)
		}
		if err != nil {
			err = errors.Join(err, f.Close())
			f = nil
		}
	}()
	ok, err := lock(f)
	if err != nil {
		return f, err
	}
	if !ok {
		return f, errors.New("a file just made is locked by somebody else")
	}
	if _, err := f.Write(data); err != nil {
		return f, err
	}
	if err := f.Sync(); err != nil {
		return f, err
	}
	return f, os.Link(f.Name(), path)
}

// Open takes over the journal at path: it locks the file, reads it, cuts off a torn last line and appends a Takeover record with
// this process as the owner. The records it returns are those from before. A lock that is held
// is a *LockedError, a bad file a *CorruptError; neither changes the file.
func Open(path string) (j *Journal, records []Record, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("journal: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			j, records = nil, nil
		}
	}()
	ok, err := lockSoon(f)
	if err != nil {
		return nil, nil, fmt.Errorf("journal %s: lock: %w", path, err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, fmt.Errorf("journal %s: %w", path, err)
	}
	h, records, good, err := parse(path, data)
	if !ok {
		return nil, nil, &LockedError{Path: path, Owner: LastOwner(h, records)}
	}
	if err != nil {
		return nil, nil, err
	}
	if good < int64(len(data)) {
		// Before anything is appended: behind half a line it would be lost.
		if err := errors.Join(f.Truncate(good), f.Sync()); err != nil {
			return nil, nil, fmt.Errorf("journal %s: cut off the torn last line: %w", path, err)
		}
	}
	j = &Journal{header: h, path: path, f: f, seq: int64(len(records))}
	owner, err := json.Marshal(self())
	if err != nil {
		return nil, nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if err := j.Append(Record{Kind: Takeover, Data: owner}); err != nil {
		return nil, nil, err
	}
	return j, records, nil
}

// Read reads a journal without locking it, also while a process appends to it: what that process is just writing counts
// as a torn last line and is left out.
func Read(path string) (Header, []Record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Header{}, nil, fmt.Errorf("journal: %w", err)
	}
	h, records, _, err := parse(path, data)
	if err != nil {
		return Header{}, nil, err
	}
	return h, records, nil
}

// LastOwner is the process that opened the journal last.
func LastOwner(h Header, records []Record) Owner {
	owner := h.Owner
	for _, r := range records {
		var o Owner
		if r.Kind == Takeover && json.Unmarshal(r.Data, &o) == nil {
			owner = o
		}
	}
	return owner
}

// Header is the journal's first line.
func (j *Journal) Header() Header { return j.header }

// Append writes r as one line and returns when it is on disk. After an error nothing more can be appended, as the end of the
// file is unknown; Open finds out.
func (j *Journal) Append(r Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return fmt.Errorf("journal %s: %w", j.path, j.broken)
	}
	r.Seq = j.seq + 1
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.Time = r.Time.UTC().Round(0)
	if err := r.check(r.Seq); err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("journal %s: record %d: %w", j.path, r.Seq, err)
	}
	_, err = j.f.Write(append(line, '\n'))
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		j.broken = err
		return fmt.Errorf("journal %s: record %d: %w", j.path, r.Seq, err)
	}
	j.seq = r.Seq
	return nil
}

// Close lets go of the journal.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Is(j.broken, fs.ErrClosed) {
		return nil
	}
	j.broken = fs.ErrClosed
	if err := j.f.Close(); err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// parse reads a journal. good is how many bytes hold whole lines.
func parse(path string, data []byte) (h Header, records []Record, good int64, err error) {
	bad := func(line int, err error) (Header, []Record, int64, error) {
		// What could be read names the owner of a locked file.
		return h, records, good, &CorruptError{Path: path, Line: line, Err: err}
	}
	for n := 1; ; n++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			if n == 1 {
				return bad(1, ErrTornHeader)
			}
			return h, records, good, nil
		}
		if n == 1 {
			if err := decode(line, &h); err != nil {
				return bad(n, err)
			}
			if err := h.check(); err != nil {
				return bad(n, err)
			}
		} else {
			var r Record
			if err := decode(line, &r); err != nil {
				return bad(n, err)
			}
			if err := r.check(int64(n - 1)); err != nil {
				return bad(n, err)
			}
			records = append(records, r)
		}
		good += int64(len(line)) + 1
		data = rest
	}
}

// decode is strict: a field that this version does not know may be what matters.
func decode(line []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

func (h Header) check() error {
	switch {
	case h.Schema != Schema:
		return fmt.Errorf("schema is %q, this version of belay reads %q", h.Schema, Schema)
	case h.Run == "":
		return errors.New("no run id")
	case h.Plan == "":
		return errors.New("no plan digest")
	}
	return nil
}

func (r Record) check(seq int64) error {
	switch {
	case r.Seq != seq:
		return fmt.Errorf("record has number %d where %d comes", r.Seq, seq)
	case !r.Kind.valid():
		return fmt.Errorf("record of unknown kind %q", r.Kind)
	case r.Time.IsZero():
		return errors.New("record without a time")
	case (r.Kind == Intent || r.Kind == Outcome) && r.Step == "":
		return fmt.Errorf("record of kind %q names no step", r.Kind)
	}
	return nil
}

func self() Owner {
	o := Owner{PID: os.Getpid(), Who: strconv.Itoa(os.Getuid()), Host: "unknown"}
	if u, err := user.Current(); err == nil {
		o.Who = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		o.Host = h
	}
	return o
}
