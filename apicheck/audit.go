package apicheck

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/event"
)

const (
	// maxAuditLine bounds one event. With request and response objects real ones reach a few MB.
	maxAuditLine = 32 << 20
	// maxAuditClients bounds how many different (API, user, agent) are told apart.
	maxAuditClients = 20000
	// maxAuditGaps bounds how many broken lines are listed one by one.
	maxAuditGaps = 10
)

// auditLog reads one audit log, an event a line, in constant memory. Events are judged by what they ask for and by the
// database: the log's own deprecation annotation only knows the version that ran.
func (c *collector) auditLog(ctx context.Context, o Options, name string) error {
	var r io.Reader
	if name == "-" {
		if o.Stdin == nil {
			c.unread("stdin", 0, "there is none")
			return nil
		}
		name, r = "stdin", o.Stdin
	} else {
		f, err := os.Open(name)
		if err != nil {
			c.unread(name, 0, "%s", fileError(err))
			return nil
		}
		defer f.Close()
		r = f
	}
	br := bufio.NewReaderSize(r, 1<<20)
	if magic, err := br.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		zr, err := gzip.NewReader(br)
		if err != nil {
			c.unread(name, 0, "gzip: %v", err)
			return nil
		}
		br = bufio.NewReaderSize(zr, 1<<20)
	}
	a := &auditReader{collector: c, name: name, uses: map[auditKey]*auditUse{}, passed: map[string]bool{}}
	defer a.finish()
	var long []byte
	for line := 1; ; line++ {
		text, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], text...)
			for errors.Is(err, bufio.ErrBufferFull) {
				if text, err = br.ReadSlice('\n'); len(long) <= maxAuditLine {
					long = append(long, text...)
				}
			}
			text = long
		}
		if len(text) > maxAuditLine {
			a.gap(line, fmt.Sprintf("an event of more than %d MB", maxAuditLine>>20))
		} else {
			a.line(line, text)
		}
		if line%4096 == 0 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if line%(1<<18) == 0 {
				o.Events.Emit(event.Event{Type: event.StepProgress, Step: "audit", Subject: name, Msg: fmt.Sprintf("%d events read", a.events)})
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.unread(name, line, "the log breaks off here: %v", err)
			} else if line == 1 && len(bytes.TrimSpace(text)) == 0 {
				c.unread(name, 0, "it is empty")
			}
			return nil
		}
	}
}

type auditKey struct{ gvk, user, agent string }

type auditUse struct {
	kind                *lifecycle.Kind
	namespace, name     string
	received, completed int
	verbs               []string
	last                time.Time
	line                int
}

type auditReader struct {
	*collector
	name         string
	uses         map[auditKey]*auditUse
	passed       map[string]bool // raw objectRef parts that are known to be harmless
	events, gaps int
	tooMany      bool
	key          []byte
}

func (a *auditReader) gap(line int, why string) {
	if a.gaps++; a.gaps <= maxAuditGaps {
		a.unread(a.name, line, "%s", why)
	}
}

// auditEvent is what is read of an event that needs a closer look.
type auditEvent struct {
	Kind      string `json:"kind"`
	Stage     string `json:"stage"`
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		APIGroup, APIVersion, Resource, Namespace, Name string
	} `json:"objectRef"`
	StageTimestamp time.Time    `json:"stageTimestamp"`
	Items          []auditEvent `json:"items"`
}

// line judges one line. Most events are passed over by their reference alone.
func (a *auditReader) line(n int, text []byte) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return
	}
	ref, kind, ok := auditRef(text)
	if ok && string(kind) == `"Event"` {
		a.events++
		if ref == nil || a.harmlessRef(ref) {
			return
		}
		a.events--
	}
	var e auditEvent
	if err := json.Unmarshal(text, &e); err != nil {
		a.gap(n, "not an audit event: "+jsonMessage(err))
		return
	}
	switch e.Kind {
	case "Event":
		a.event(n, e)
	case "EventList":
		for _, item := range e.Items {
			a.event(n, item)
		}
	default:
		a.gap(n, "not an audit event: its kind is "+short(fmt.Sprintf("%q", e.Kind)))
	}
}

func jsonMessage(err error) string {
	return strings.TrimPrefix(err.Error(), "json: ")
}

// harmlessRef says whether a raw objectRef names an API with nothing to tell.
func (a *auditReader) harmlessRef(ref []byte) bool {
	group, version, resource := jsonString(ref, "apiGroup"), jsonString(ref, "apiVersion"), jsonString(ref, "resource")
	if version == nil || resource == nil {
		return false
	}
	a.key = append(append(append(append(append(a.key[:0], group...), 0), version...), 0), resource...)
	if ok, seen := a.passed[string(a.key)]; seen {
		return ok
	}
	ok := true
	for _, k := range a.db.ByResource(string(group), string(resource)) {
		if k.Version == string(version) && !harmless(a.requested(k.GVK())) {
			ok = false
		}
	}
	if len(a.passed) < maxAuditClients {
		a.passed[string(a.key)] = ok
	}
	return ok
}

func (a *auditReader) event(n int, e auditEvent) {
	a.events++
	if e.ObjectRef == nil {
		return
	}
	for _, k := range a.db.ByResource(e.ObjectRef.APIGroup, e.ObjectRef.Resource) {
		if k.Version != e.ObjectRef.APIVersion || harmless(a.requested(k.GVK())) {
			continue
		}
		key := auditKey{k.GVK().String(), e.User.Username, e.UserAgent}
		u := a.uses[key]
		if u == nil {
			if len(a.uses) >= maxAuditClients {
				a.tooMany = true
				continue
			}
			u = &auditUse{kind: k, namespace: e.ObjectRef.Namespace, name: e.ObjectRef.Name, line: n}
			a.uses[key] = u
		}
		// Most policies log a request twice: when it came, and when it was answered.
		if e.Stage == "RequestReceived" {
			u.received++
		} else {
			u.completed++
		}
		if !slices.Contains(u.verbs, e.Verb) && len(u.verbs) < 10 {
			u.verbs = append(u.verbs, e.Verb)
		}
		if e.StageTimestamp.After(u.last) {
			u.last = e.StageTimestamp
		}
	}
}

// finish turns what was gathered into findings.
func (a *auditReader) finish() {
	a.covered("audit events", a.name, a.events)
	if a.gaps > maxAuditGaps {
		a.unread(a.name, 0, "%d further lines are no audit events", a.gaps-maxAuditGaps)
	}
	if a.tooMany {
		a.unread(a.name, 0, "more than %d different users, agents and APIs: the rest was not told apart", maxAuditClients)
	}
	for key, u := range a.uses {
		j := a.requested(u.kind.GVK())
		slices.Sort(u.verbs)
		src := Source{Type: SourceAudit, File: a.name, Line: u.line, User: key.user, Agent: key.agent, Requests: max(u.received, u.completed)}
		if !u.last.IsZero() {
			last := u.last.UTC()
			src.Time = &last
		}
		f := use{gvk: u.kind.GVK(), namespace: u.namespace, name: u.name, source: src, confidence: High, cap: Warning,
			note: fmt.Sprintf("requested by %s (%s)", key.user, strings.Join(u.verbs, ", "))}
		if listsEverything(key.user) {
			f.cap = Info
			f.note += ", which lists whatever is served"
		}
		a.found(f, j)
	}
}

// listsEverything knows the parts of Kubernetes that read every served version, whether or not anybody uses it.
func listsEverything(user string) bool {
	switch user {
	case "system:apiserver", "system:kube-controller-manager",
		"system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccount:kube-system:namespace-controller",
		"system:serviceaccount:kube-system:resourcequota-controller", "system:serviceaccount:kube-system:metadata-informers",
		"system:serviceaccount:kube-system:storage-version-migrator-controller":
		return true
	}
	return false
}

// auditRef walks the top level of one JSON object and gives its raw objectRef and kind. ok is false when the text is not
// one well-nested object, or has anything that this walk does not handle.
func auditRef(text []byte) (ref, kind []byte, ok bool) {
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return nil, nil, false
	}
	depth := 0
	var key []byte
	valueStart := -1
	wantKey := false
	// done closes the value of a key at the top level.
	done := func(end int) bool {
		v := bytes.TrimSpace(text[valueStart:end])
		if len(v) == 0 {
			return false
		}
		switch string(key) {
		case "objectRef":
			if ref != nil {
				return false
			}
			ref = v
		case "kind":
			if kind != nil {
				return false
			}
			kind = v
		}
		key, valueStart = nil, -1
		return true
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			start := i + 1
			for {
				j := bytes.IndexByte(text[i+1:], '"')
				if j < 0 {
					return nil, nil, false
				}
				i += j + 1
				back := 0
				for text[i-1-back] == '\\' {
					back++
				}
				if back%2 == 0 {
					break
				}
			}
			if depth == 1 && wantKey {
				key, wantKey = text[start:i], false
			}
		case ':':
			if depth == 1 && valueStart < 0 {
				valueStart = i + 1
			}
		case ',':
			if depth == 1 {
				if valueStart < 0 || !done(i) {
					return nil, nil, false
				}
				wantKey = true
			}
		case '{', '[':
			depth++
			if depth == 1 {
				wantKey = true
			}
		case '}', ']':
			depth--
			if depth == 0 {
				if valueStart >= 0 && !done(i) {
					return nil, nil, false
				}
				return ref, kind, i == len(text)-1 && text[i] == '}'
			}
		}
	}
	return nil, nil, false
}

// jsonString gives the value of a key whose value is a plain string, in a flat object; nil when there is none.
func jsonString(object []byte, key string) []byte {
	for rest := object; ; {
		i := bytes.Index(rest, []byte(key))
		if i < 0 {
			return nil
		}
		end := i + len(key)
		if i == 0 || rest[i-1] != '"' || end >= len(rest) || rest[end] != '"' {
			rest = rest[end:]
			continue
		}
		v := bytes.TrimLeft(rest[end+1:], " ")
		if len(v) == 0 || v[0] != ':' {
			rest = rest[end:]
			continue
		}
		v = bytes.TrimLeft(v[1:], " ")
		if len(v) == 0 || v[0] != '"' {
			return nil
		}
		j := bytes.IndexByte(v[1:], '"')
		if j < 0 || bytes.IndexByte(v[1:j+1], '\\') >= 0 {
			return nil
		}
		return v[1 : j+1]
	}
}
