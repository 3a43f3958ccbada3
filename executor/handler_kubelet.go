package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/payload"
	"github.com/belayops/belay/plan"
)

// kubelet replaces the programs of one node, restarts its kubelet, and proves that the new one is what runs.
type kubelet struct{ *task }

// KubeletProcess is met when the kubelet process of a node is of the version: what runs, not what lies on disk.
func KubeletProcess(m Machines, node string, want kubeversion.V) condition.Condition {
	return condition.Condition{Name: fmt.Sprintf("the kubelet process of %s to be %s", node, want), Check: func(ctx context.Context) error {
		h, err := m.Host(ctx, node)
		if err != nil {
			return err
		}
		k, err := kubeletOf(ctx, h)
		switch {
		case err != nil:
			return err
		case k.pid == 0:
			return condition.NotYetf("no kubelet runs; journalctl -u kubelet on %s says why", node)
		case k.version.Compare(want) != 0:
			return condition.NotYetf("process %d is %s", k.pid, k.version)
		}
		return nil
	}}
}

// running is what the machine says of its kubelet.
type running struct {
	// path is the program that the unit starts.
	path string
	// pid is 0 when it does not run.
	pid int
	// version is what the process itself is, not what lies on disk by now.
	version kubeversion.V
}

// kubeletOf asks systemd for the kubelet and the process for its version.
func kubeletOf(ctx context.Context, m host.Host) (running, error) {
	r, err := m.Run(ctx, host.Cmd{Argv: []string{"systemctl", "show", "kubelet.service", "--property=MainPID", "--property=ExecStart"}})
	if err != nil {
		return running{}, err
	}
	out := running{path: kubeadm.KubeletPath}
	for line := range strings.Lines(string(r.Stdout)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key {
		case "MainPID":
			if out.pid, err = strconv.Atoi(value); err != nil {
				return running{}, fmt.Errorf("%s: systemctl show kubelet: MainPID=%s", m.Name(), value)
			}
		case "ExecStart":
			if _, rest, ok := strings.Cut(value, "path="); ok {
				p, _, _ := strings.Cut(rest, " ;")
				if path.IsAbs(p) {
					out.path = p
				}
			}
		}
	}
	if out.pid == 0 {
		return out, nil
	}
	// The link leads to the program that the process was started from, also after the file has been replaced.
	out.version, err = versionOf(ctx, m, fmt.Sprintf("/proc/%d/exe", out.pid))
	if exit := (*host.ExitError)(nil); errors.As(err, &exit) {
		out.pid, err = 0, nil // it ended in between
	}
	if none := (*host.NotStartedError)(nil); errors.As(err, &none) {
		out.pid, err = 0, nil
	}
	return out, err
}

// places are the programs to put in place, by where they go: beside the kubelet that the unit starts.
func places(k running) map[string]string {
	dir := path.Dir(k.path)
	return map[string]string{"kubelet": k.path, "kubectl": path.Join(dir, "kubectl"), "kubeadm": path.Join(dir, "kubeadm")}
}

func (h kubelet) Probe(ctx context.Context, s plan.Step, wasDone bool) (Found, error) {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return Found{}, err
	}
	k, err := kubeletOf(ctx, m)
	if err != nil {
		return Found{}, err
	}
	want := s.Params.Version
	if wasDone && k.pid != 0 && !k.version.Less(want) {
		return found(Done, "kubelet %s runs", k.version), nil
	}
	swapped, err := h.swapped(ctx, m, k, want)
	if err != nil {
		return Found{}, err
	}
	switch {
	case k.pid != 0 && k.version.Compare(want) == 0 && swapped == len(stagedPrograms()):
		return found(Done, "kubelet %s runs", k.version), nil
	case k.pid == 0:
		return found(Partial, "the kubelet does not run"), nil
	case swapped > 0 || k.version.Compare(want) == 0:
		return found(Partial, "%d of %d programs are in place, and kubelet %s runs", swapped, len(stagedPrograms()), k.version), nil
	}
	return found(NotStarted, "kubelet %s runs", k.version), nil
}

// swapped counts the programs that are in place.
func (h kubelet) swapped(ctx context.Context, m host.Host, k running, v kubeversion.V) (int, error) {
	b, err := h.bundle(v)
	if err != nil {
		return 0, err
	}
	var paths []string
	for _, p := range places(k) {
		paths = append(paths, p)
	}
	sums, err := payload.Sums(ctx, m, paths)
	if err != nil {
		return 0, err
	}
	n := 0
	for program, p := range places(k) {
		want, err := programSum(b, program)
		if err != nil {
			return 0, err
		}
		if sums[p] == want {
			n++
		}
	}
	return n, nil
}

func (h kubelet) Apply(ctx context.Context, s plan.Step) error {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return err
	}
	k, err := kubeletOf(ctx, m)
	if err != nil {
		return err
	}
	b, err := h.bundle(s.Params.Version)
	if err != nil {
		return err
	}
	if err := h.stripFlags(ctx, s, m); err != nil {
		return err
	}
	if err := h.keep(ctx, s, m, b, k); err != nil {
		return err
	}
	for _, program := range stagedPrograms() {
		if err := h.put(ctx, m, b.Version(), program, places(k)[program]); err != nil {
			return fmt.Errorf("put %s in place on %s: %w", program, s.Node, err)
		}
	}
	if sum, err := programSum(b, "kubelet"); err != nil {
		return err
	} else if sums, err := payload.Sums(ctx, m, []string{k.path}); err != nil {
		return err
	} else if sums[k.path] != sum {
		return fmt.Errorf("%s on %s has sum %s, not %s: the kubelet was not restarted", k.path, s.Node, sums[k.path], sum)
	}
	if k.pid != 0 && k.version.Compare(s.Params.Version) == 0 {
		return nil // it was restarted already
	}
	h.say(s, "restarting the kubelet")
	if _, err := m.Run(ctx, host.Cmd{Argv: []string{"systemctl", "restart", "kubelet.service"}}); err != nil {
		return err
	}
	return nil
}

// keep copies the kubelet that is replaced to the run's directory on the machine: the way back, should the new one not start.
func (h kubelet) keep(ctx context.Context, s plan.Step, m host.Host, b *bundle.Bundle, k running) error {
	want, err := programSum(b, "kubelet")
	if err != nil {
		return err
	}
	to := path.Join(kept, h.run, "kubelet")
	sums, err := payload.Sums(ctx, m, []string{k.path, to})
	if err != nil {
		return err
	}
	if sums[k.path] == want || sums[k.path] == "" || sums[to] == sums[k.path] {
		return nil
	}
	if _, err := m.Run(ctx, host.Cmd{Argv: []string{"install", "-D", "-m", "0755", k.path, to}}); err != nil {
		return fmt.Errorf("keep the kubelet of %s: %w", s.Node, err)
	}
	h.say(s, "the kubelet that is replaced is kept: %s", to)
	return nil
}

// stripFlags takes flags that the new kubelet no longer knows out of the file that kubeadm once wrote.
func (h kubelet) stripFlags(ctx context.Context, s plan.Step, m host.Host) error {
	gone := kubeadm.GoneKubeletFlags(s.Params.Version)
	for _, file := range kubeadm.KubeletEnvFiles() {
		b, err := m.ReadFile(ctx, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		out, changed := kubeadm.StripFlags(b, gone)
		if !changed {
			continue
		}
		h.say(s, "taking %s out of %s", strings.Join(gone, ", "), file)
		// By its whole path: two of the files have one name, which is also that of the kubelet that keep puts there.
		if err := m.WriteFile(ctx, path.Join(kept, h.run, "files", file), b, 0o600); err != nil {
			return err
		}
		mode, err := fileMode(ctx, m, file)
		if err != nil {
			return err
		}
		if err := m.WriteFile(ctx, file, out, mode); err != nil {
			return err
		}
	}
	return nil
}

// fileMode gives the permissions of a file.
func fileMode(ctx context.Context, m host.Host, file string) (fs.FileMode, error) {
	r, err := m.Run(ctx, host.Cmd{Argv: []string{"stat", "-c", "%a", file}})
	if err != nil {
		return 0, err
	}
	mode, err := strconv.ParseUint(strings.TrimSpace(string(r.Stdout)), 8, 12)
	if err != nil {
		return 0, fmt.Errorf("%s: stat %s: %w", m.Name(), file, err)
	}
	return fs.FileMode(mode).Perm(), nil
}

// put replaces a program by its staged version: a copy beside it, flushed, then a rename, so that there is always a whole program.
func (h kubelet) put(ctx context.Context, m host.Host, v kubeversion.V, program, to string) error {
	next := to + ".belay-new"
	for _, argv := range [][]string{
		{"install", "-D", "-m", "0755", kubeadm.Staged(v, program), next},
		{"sync", next},
		{"mv", "-f", next, to},
	} {
		if _, err := m.Run(ctx, host.Cmd{Argv: argv}); err != nil {
			return err
		}
	}
	return nil
}

func (h kubelet) Verify(s plan.Step) []condition.Condition {
	want := s.Params.Version
	return []condition.Condition{
		KubeletProcess(h.Machines, s.Node, want),
		{Name: fmt.Sprintf("node %s to report kubelet %s and to be Ready", s.Node, want), Check: func(ctx context.Context) error {
			since, err := h.newKubelet(ctx, s)
			if err != nil {
				return err
			}
			n, err := h.Client.CoreV1().Nodes().Get(ctx, s.Node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if v := n.Status.NodeInfo.KubeletVersion; v != want.String() {
				return condition.NotYetf("it reports %s", v)
			}
			// Both times are the machine's. A lease from before the restart is the old kubelet's word.
			l, err := h.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, s.Node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if l.Spec.RenewTime == nil || !l.Spec.RenewTime.After(since) {
				return condition.NotYetf("its lease is older than the restart")
			}
			if !verify.Ready(n) {
				return condition.NotYetf("it is not Ready")
			}
			return nil
		}},
	}
}

// newKubelet proves that the process is of the new version, and says since when it has been running by the machine's clock.
func (h kubelet) newKubelet(ctx context.Context, s plan.Step) (time.Time, error) {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return time.Time{}, err
	}
	k, err := kubeletOf(ctx, m)
	if err != nil {
		return time.Time{}, err
	}
	if k.pid == 0 {
		return time.Time{}, condition.NotYetf("no kubelet runs; journalctl -u kubelet on %s says why", s.Node)
	}
	if k.version.Compare(s.Params.Version) != 0 {
		return time.Time{}, condition.NotYetf("process %d is %s", k.pid, k.version)
	}
	r, err := m.Run(ctx, host.Cmd{Argv: []string{"stat", "-c", "%Y", fmt.Sprintf("/proc/%d", k.pid)}})
	if err != nil {
		return time.Time{}, err
	}
	sec, err := strconv.ParseInt(strings.TrimSpace(string(r.Stdout)), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: stat /proc/%d: %w", s.Node, k.pid, err)
	}
	return time.Unix(sec, 0), nil
}
