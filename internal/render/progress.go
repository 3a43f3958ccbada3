package render

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/belayops/belay/internal/event"
)

// ProgressMode says how events are shown.
type ProgressMode string

// The progress modes. Auto redraws one line on a terminal and is plain elsewhere.
const (
	ProgressAuto  ProgressMode = "auto"
	ProgressPlain ProgressMode = "plain"
	ProgressJSON  ProgressMode = "json"
	ProgressNone  ProgressMode = "none"
)

// Progress shows events on a writer. It is an event.Sink.
type Progress struct {
	mu   sync.Mutex
	w    io.Writer
	mode ProgressMode
	live bool
	// width is the terminal's, for cutting live lines.
	width int
	// shown is the live line on screen, to be wiped before the next output.
	shown string
	// last keeps the last plain progress of each step, so that a long build does not flood a log.
	last map[string]time.Time
}

var _ event.Sink = (*Progress)(nil)

// plainInterval is how often a step that is under way says so where there is no terminal.
const plainInterval = 15 * time.Second

// NewProgress shows events on w.
func NewProgress(w io.Writer, mode ProgressMode) *Progress {
	p := &Progress{w: w, mode: mode, last: map[string]time.Time{}}
	if f, ok := w.(*os.File); ok && mode == ProgressAuto && term.IsTerminal(int(f.Fd())) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			p.live, p.width = true, width
		}
	}
	return p
}

// Emit shows e.
func (p *Progress) Emit(e event.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.mode {
	case ProgressNone:
		return
	case ProgressJSON:
		if b, err := json.Marshal(e); err == nil {
			fmt.Fprintf(p.w, "%s\n", b)
		}
		return
	}
	line := text(e)
	if e.Type == event.StepStarted || e.Type == event.StepProgress {
		if p.live {
			p.draw(line)
			return
		}
		key := e.Run + "\x00" + e.Step
		if e.Type == event.StepProgress && e.Time.Sub(p.last[key]) < plainInterval {
			return
		}
		p.last[key] = e.Time
	}
	p.wipe()
	fmt.Fprintln(p.w, line)
}

// Close wipes the live line.
func (p *Progress) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	return nil
}

func (p *Progress) draw(line string) {
	if r := []rune(line); len(r) >= p.width {
		line = string(r[:p.width-1])
	}
	p.wipe()
	fmt.Fprint(p.w, line)
	p.shown = line
}

func (p *Progress) wipe() {
	if p.shown != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = ""
	}
}

// text is an event as one line.
func text(e event.Event) string {
	var b strings.Builder
	mark := map[event.Type]string{
		event.RunStarted: "==>", event.RunFinished: "==>", event.StepStarted: "  ..", event.StepProgress: "  ..",
		event.StepDone: "  ok", event.StepFailed: "  !!", event.StepSkipped: "  --", event.Note: "    ", event.Warning: "warn",
	}[e.Type]
	b.WriteString(mark)
	if e.Index > 0 && e.Total > 0 {
		fmt.Fprintf(&b, " [%d/%d]", e.Index, e.Total)
	}
	msg := e.Msg
	if msg == "" {
		msg = e.Step
	}
	if e.Subject != "" && !strings.Contains(msg, e.Subject) {
		msg = e.Subject + ": " + msg
	}
	b.WriteString(" " + msg)
	if e.Err != "" {
		b.WriteString(": " + strings.ReplaceAll(strings.TrimSpace(e.Err), "\n", "; "))
	}
	if e.Elapsed >= 100*time.Millisecond {
		fmt.Fprintf(&b, " (%s)", Duration(e.Elapsed))
	}
	return b.String()
}

// Duration prints a time as people read it: 0.4s, 12s, 3m05s, 1h02m.
func Duration(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
