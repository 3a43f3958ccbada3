package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
)

// settings are the kernel's settings that all machines share with this computer, and that kubelet and systemd change. Networks of every state
// directory change the same ones: the first on the computer writes down what was there, and the last puts it back.
type settings struct {
	// proc is /proc/sys. file is where the first network writes: gone after a restart of the computer, as what machines changed is.
	proc, file string
	// switches gives the switches of networks on this computer.
	switches func() ([]string, error)
}

func (e *Env) settings() settings {
	return settings{proc: "/proc/sys", file: "/run/belay/settings.json", switches: switches}
}

// switches lists the interfaces of this computer that belong to networks of any state directory.
func switches() ([]string, error) {
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range entries {
		if strings.HasPrefix(d.Name(), linkName("")) {
			out = append(out, d.Name())
		}
	}
	return out, nil
}

// sharedSysctls names them below /proc/sys (kubelet: pkg/kubelet/cm, setupKernelTunables).
func sharedSysctls() []string {
	return []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "kernel/pid_max"}
}

// before gives the settings as they were before the first network of the computer. The caller holds the lock on the choice of addresses
// until its switch is there.
func (s settings) before() (map[string]string, error) {
	others, err := s.switches()
	if err != nil {
		return nil, err
	}
	if len(others) > 0 {
		if kept := s.kept(); kept != nil {
			return kept, nil
		}
	}
	now := map[string]string{}
	for _, k := range sharedSysctls() {
		if b, err := os.ReadFile(filepath.Join(s.proc, k)); err == nil {
			now[k] = strings.TrimSpace(string(b))
		}
	}
	data, err := json.Marshal(now)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
		return nil, err
	}
	return now, atomicfile.WriteFile(s.file, data, 0o644)
}

// kept is what the first network wrote down; nil when there is nothing that can be read.
func (s settings) kept() map[string]string {
	b, err := os.ReadFile(s.file)
	if err != nil {
		return nil
	}
	var m map[string]string
	if json.Unmarshal(b, &m) != nil {
		return nil
	}
	return m
}

// restore puts back what machines changed, unless another network is there that may still want it. recorded is for want of the file. It gives a
// sentence for each setting that it changed.
func (s settings) restore(recorded map[string]string) (changed []string, err error) {
	others, err := s.switches()
	if err != nil || len(others) > 0 {
		return nil, err
	}
	want := s.kept()
	if want == nil {
		want = recorded
	}
	var errs []error
	for _, k := range sharedSysctls() {
		path, name := filepath.Join(s.proc, k), strings.ReplaceAll(k, "/", ".")
		b, err := os.ReadFile(path)
		now := strings.TrimSpace(string(b))
		if want[k] == "" || err != nil || now == want[k] {
			continue
		}
		if err := os.WriteFile(path, []byte(want[k]+"\n"), 0); err != nil {
			errs = append(errs, fmt.Errorf("set %s back to %s: %w", name, want[k], err))
			continue
		}
		changed = append(changed, fmt.Sprintf("set %s back from %s to %s", name, now, want[k]))
	}
	if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	_ = os.Remove(filepath.Dir(s.file)) // others may have files there
	return changed, errors.Join(errs...)
}

// restoreSettings puts this computer's settings back when the last network goes, those included that are only down for now.
func (e *Env) restoreSettings(ctx context.Context, r *record) error {
	names, err := e.names()
	if r == nil || err != nil || slices.ContainsFunc(names, func(n string) bool { return n != r.Name }) {
		return err
	}
	lock, err := lockDir(ctx, "/sys/class/net", "the choice of addresses", nil)
	if err != nil {
		return err
	}
	defer lock.Close()
	changed, err := e.settings().restore(r.Sysctls)
	for _, c := range changed {
		e.note(event.Note, "settings", c)
	}
	if err != nil {
		// It is no reason to keep a network.
		e.note(event.Warning, "settings", err.Error())
	}
	return nil
}
