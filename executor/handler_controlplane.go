package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
)

const (
	// kubeadmPatience bounds a whole `kubeadm upgrade`: the sum of its own waits is above an hour (advisories of kubeadm 1.37).
	kubeadmPatience = 100 * time.Minute
	// kubeadmTries is how often kubeadm is run when it ends before it has changed anything.
	kubeadmTries = 2
	// etcdGrace is how long an etcd member may take to answer after kubeadm gave up, before a person is asked.
	etcdGrace = 3 * time.Minute
	// apiGrace is how long an apiserver that was proved new may be silent before its node's step is taken for undone.
	apiGrace = 3 * time.Minute
	// kept is where belay keeps what it replaces on a machine, never below the manifest directory, where the kubelet would run it.
	kept = "/var/lib/belay"
	// lineageFile, in the run's directory there, is a run's mark: the UID of its cluster's namespace kube-system.
	lineageFile = "lineage"
)

// unitName is the systemd unit of a step's work on a machine: found again by whoever resumes the run.
func (t *task) unitName(s plan.Step) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, s.ID)
	return "belay-" + t.run + "-" + clean
}

// inUnit runs argv in the step's unit to its end. running says that an earlier process began it: then it is waited for, and not begun
// again even if it has come to its end by now.
func (t *task) inUnit(ctx context.Context, s plan.Step, argv []string, running bool) error {
	name := t.unitName(s)
	if running {
		t.say(s, "found %s at work in unit %s", path.Base(argv[0]), name)
		return t.unitEnd(ctx, s, argv)
	}
	h, err := t.Machines.Host(ctx, s.Node)
	if err != nil {
		return err
	}
	if err := t.Units.Start(ctx, h, name, argv); err != nil {
		// A start whose answer was lost may have happened: the unit's name says so.
		if lost := (*host.LostError)(nil); !errors.As(err, &lost) {
			return err
		}
		if u, serr := t.Units.Status(ctx, h, name); serr != nil || u.State == UnitAbsent {
			return errors.Join(err, serr)
		}
	}
	return t.unitEnd(ctx, s, argv)
}

func (t *task) unitEnd(ctx context.Context, s plan.Step, argv []string) error {
	name := t.unitName(s)
	line := ""
	return condition.Wait(ctx, condition.Condition{Name: fmt.Sprintf("unit %s on %s to end", name, s.Node), Check: func(ctx context.Context) error {
		h, err := t.Machines.Host(ctx, s.Node)
		if err != nil {
			return err
		}
		u, err := t.Units.Status(ctx, h, name)
		if err != nil {
			return err // a connection that broke says nothing of the unit
		}
		if l := lastLine(u.Output); l != "" && l != line {
			line = l
			t.say(s, "%s", l)
		}
		switch u.State {
		case UnitSucceeded:
			return nil
		case UnitFailed:
			return condition.Final(&UnitError{Host: s.Node, Unit: name, Argv: argv, Detail: u.Detail, Output: salient(u.Output)})
		case UnitAbsent:
			return condition.Final(&UnitError{Host: s.Node, Unit: name, Argv: argv, Detail: "the unit is gone: the machine was restarted, or somebody removed it"})
		case UnitRunning:
		}
		return condition.NotYetf("it is at work")
	}}, condition.Options{Timeout: kubeadmPatience, Interval: 2 * t.poll()})
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// salient gives the lines of kubeadm's output that say what went wrong, or else the last ones.
func salient(s string) string {
	lines := strings.Split(strings.TrimSpace(colours.ReplaceAllString(s, "")), "\n")
	var errs []string
	for _, l := range lines {
		if strings.Contains(l, "[ERROR") || strings.HasPrefix(l, "error") || strings.HasPrefix(l, "[upgrade/") && strings.Contains(l, "FATAL") {
			errs = append(errs, strings.TrimSpace(l))
		}
	}
	if len(errs) > 0 {
		lines = errs
	}
	const most = 8
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// mark leaves the run's cluster on a machine before a control plane step changes anything there: a later process that finds the API down
// knows by it that the machine is of the run's cluster.
func (t *task) mark(ctx context.Context, m host.Host) error {
	return m.WriteFile(ctx, path.Join(kept, t.run, lineageFile), []byte(t.plan.Lineage+"\n"), 0o600)
}

// marked proves by mark that a node's machine is of the run's cluster.
func (t *task) marked(ctx context.Context, node string) error {
	m, err := t.Machines.Host(ctx, node)
	if err != nil {
		return err
	}
	b, err := m.ReadFile(ctx, path.Join(kept, t.run, lineageFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the API does not answer, and the machine of %s has no mark of run %s: it may be another cluster's", node, t.run)
	}
	if err == nil && strings.TrimSpace(string(b)) != t.plan.Lineage {
		err = fmt.Errorf("the mark of run %s on the machine of %s is of another cluster", t.run, node)
	}
	return err
}

func upgradeOptions(s plan.Step) kubeadm.UpgradeOptions {
	return kubeadm.UpgradeOptions{Ignore: s.Params.IgnorePreflightErrors, Patches: s.Params.PatchesDir}
}

// controlPlane is `kubeadm upgrade apply` or `upgrade node` on one control plane node.
type controlPlane struct{ *task }

// manifests are the images of the static pod manifests on a machine; a component without a manifest is in missing.
func (t *task) manifests(ctx context.Context, m host.Host) (images map[string]string, missing []string, err error) {
	images = map[string]string{}
	for _, c := range kubeadm.Components() {
		if c == "etcd" && t.plan.Basis.EtcdExternal {
			continue
		}
		b, err := m.ReadFile(ctx, kubeadm.ManifestPath(c))
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, c)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if images[c], err = kubeadm.ManifestImage(b); err != nil {
			return nil, nil, fmt.Errorf("%s on %s: %w", kubeadm.ManifestPath(c), m.Name(), err)
		}
	}
	return images, missing, nil
}

func (h controlPlane) Probe(ctx context.Context, s plan.Step, wasDone bool) (Found, error) {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return Found{}, err
	}
	u, err := h.Units.Status(ctx, m, h.unitName(s))
	if err != nil {
		return Found{}, err
	}
	if u.State == UnitRunning {
		return found(Partial, "kubeadm is at work in unit %s", h.unitName(s)), nil
	}
	images, missing, err := h.manifests(ctx, m)
	if err != nil {
		return Found{}, err
	}
	if len(missing) > 0 {
		return found(Partial, "there is no manifest for %s: kubeadm was cut off between moving the old one away and the new one in", strings.Join(missing, ", ")), nil
	}
	target := s.Params.Version
	atTarget, behind := 0, 0
	for _, c := range kubeadm.Components() {
		v, want := cluster.ImageVersion(images[c]), target
		if c == "etcd" {
			if want = s.Params.EtcdVersion; want.IsZero() {
				continue
			}
		}
		if v.Less(want) {
			behind++
		} else {
			atTarget++
		}
	}
	switch {
	case atTarget == 0:
		return found(NotStarted, "every static pod is as it was"), nil
	case behind > 0:
		return found(Partial, "%d static pods are new, %d are old", atTarget, behind), nil
	}
	running, err := h.APIServer(ctx, s.Node)
	if err != nil && wasDone {
		// It was proved once. That it is restarting just now is no reason to run kubeadm again.
		err = condition.Wait(ctx, condition.Condition{Name: "the apiserver of " + s.Node + " to answer", Check: func(ctx context.Context) (err error) {
			running, err = h.APIServer(ctx, s.Node)
			return err
		}}, condition.Options{Timeout: min(apiGrace, h.patience()), Interval: h.poll()})
	}
	if err != nil {
		return found(Partial, "the manifests are new, and the apiserver does not answer: %v", err), nil
	}
	if running.Less(target) {
		return found(Partial, "the manifests are new, and the apiserver still runs %s", running), nil
	}
	if s.Kind == plan.KubeadmApply {
		v, err := h.kubeadmConfigVersion(ctx)
		if err != nil {
			return Found{}, err
		}
		if v.Less(target) {
			// Other nodes' `kubeadm upgrade node` would go by the old version.
			return found(Partial, "the static pods are new, and ConfigMap kubeadm-config still names %s", v), nil
		}
	}
	if wasDone || u.State == UnitSucceeded {
		return found(Done, "every static pod runs %s", target), nil
	}
	return found(Partial, "the static pods are new; whether kubeadm came to its last phase is not known, and it may be run again"), nil
}

func (h controlPlane) Apply(ctx context.Context, s plan.Step) error {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return err
	}
	if err := h.mark(ctx, m); err != nil {
		return err
	}
	argv := kubeadm.UpgradeNodeArgv(kubeadm.Staged(s.Params.Version, "kubeadm"), upgradeOptions(s))
	if s.Kind == plan.KubeadmApply {
		argv = kubeadm.UpgradeApplyArgv(kubeadm.Staged(s.Params.Version, "kubeadm"), s.Params.Version, upgradeOptions(s))
	}
	u, err := h.Units.Status(ctx, m, h.unitName(s))
	if err != nil {
		return err
	}
	switch u.State {
	case UnitRunning:
	case UnitSucceeded:
		// It may have come to its end since Probe looked.
		if f, err := h.Probe(ctx, s, false); err != nil || f.Progress == Done {
			return err
		}
		fallthrough
	case UnitAbsent, UnitFailed:
		if err := h.restoreManifests(ctx, s, m); err != nil {
			return err
		}
	}
	for try := 1; ; try++ {
		running := try == 1 && u.State == UnitRunning
		if !running {
			if err := h.etcdBeforeKubeadm(ctx, s, err); err != nil {
				return err
			}
		}
		err = h.inUnit(ctx, s, argv, running)
		if unit := (*UnitError)(nil); !errors.As(err, &unit) {
			return err
		}
		// kubeadm's own preflight starts a pod and gives it a minute, which a busy cluster does not always manage.
		// As long as nothing was changed, running it again is what a person would do.
		f, perr := h.Probe(ctx, s, false)
		if try == kubeadmTries || perr != nil || f.Progress != NotStarted {
			if down := h.etcdBeforeKubeadm(ctx, s, err); down != nil {
				return down
			}
			return err
		}
		h.say(s, "kubeadm ended before it changed anything; trying once more: %v", err)
	}
}

// restoreManifests puts back what kubeadm moved away when it was cut off between its two renames: the old manifest,
// so that kubeadm begins again from a state that it knows.
func (h controlPlane) restoreManifests(ctx context.Context, s plan.Step, m host.Host) error {
	_, missing, err := h.manifests(ctx, m)
	if err != nil || len(missing) == 0 {
		return err
	}
	for _, c := range missing {
		from, err := h.keptManifest(ctx, m, c)
		if err != nil {
			return err
		}
		b, err := m.ReadFile(ctx, from)
		if err != nil {
			return err
		}
		h.say(s, "putting back the manifest of %s from %s", c, from)
		if err := m.WriteFile(ctx, kubeadm.ManifestPath(c), b, 0o600); err != nil {
			return err
		}
	}
	// kubeadm reads the mirror pods first thing: they come back once the apiserver does.
	return h.wait(ctx, s, condition.Condition{Name: "the control plane of " + s.Node + " to be back", Check: func(ctx context.Context) error {
		if _, err := h.APIServer(ctx, s.Node); err != nil {
			return err
		}
		for _, c := range kubeadm.Components() {
			if c == "etcd" && h.plan.Basis.EtcdExternal {
				continue
			}
			// One that is being deleted is the mirror of the time without a manifest.
			p, err := h.Client.CoreV1().Pods("kube-system").Get(ctx, c+"-"+s.Node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if p.DeletionTimestamp != nil {
				return condition.NotYetf("mirror pod %s is being deleted", p.Name)
			}
		}
		return nil
	}}, h.patience())
}

// keptManifest finds the newest copy of a component's manifest in kubeadm's directories: the old one, else the new one.
func (h controlPlane) keptManifest(ctx context.Context, m host.Host, component string) (string, error) {
	for _, dir := range []string{"kubeadm-backup-manifests*", "kubeadm-upgraded-manifests*"} {
		r, err := m.Run(ctx, host.Cmd{Argv: []string{"find", kubeadm.TmpDir, "-path", path.Join(kubeadm.TmpDir, dir, component+".yaml"), "-printf", `%T@ %p\n`}})
		if err != nil {
			return "", err
		}
		lines := strings.Fields(string(r.Stdout))
		var newest, file string
		for i := 0; i+1 < len(lines); i += 2 {
			if file == "" || newest < lines[i] {
				newest, file = lines[i], lines[i+1]
			}
		}
		if file != "" {
			return file, nil
		}
	}
	return "", &ManualError{
		Err: fmt.Errorf("%s on %s is missing, and no copy of it lies in %s", kubeadm.ManifestPath(component), m.Name(), kubeadm.TmpDir),
		Do:  []string{fmt.Sprintf("put the manifest back on %s, by hand or from a backup", m.Name())},
	}
}

// etcdBeforeKubeadm keeps kubeadm from being run on a node whose etcd member is down, be it for the first time or once more after cause:
// kubeadm's own roll-back of etcd's data copies it to the wrong place (kubernetes/kubernetes#143087), and in a cluster of several
// members its check asks for quorum only, so that it would copy damaged data over the good and swap again.
func (h controlPlane) etcdBeforeKubeadm(ctx context.Context, s plan.Step, cause error) error {
	if h.plan.Basis.EtcdExternal {
		return nil
	}
	err := h.wait(ctx, s, condition.Condition{Name: "etcd on " + s.Node + " to answer", Check: func(ctx context.Context) error {
		_, err := h.EtcdMember(ctx, s.Node)
		return err
	}}, min(etcdGrace, h.patience()))
	if err == nil || ctx.Err() != nil {
		return err
	}
	err = fmt.Errorf("kubeadm is not run while etcd on %s does not answer (%w): its own roll-back of etcd restores nothing", s.Node, err)
	if cause != nil {
		err = fmt.Errorf("%w; and %w", cause, err)
	}
	return &ManualError{
		Err: err,
		Do: []string{
			fmt.Sprintf("on %s, read why: crictl logs $(crictl ps -a --name etcd -q | head -1)", s.Node),
			fmt.Sprintf("on %s, compare %s with the copies in %s/kubeadm-backup-manifests-*", s.Node, kubeadm.ManifestPath("etcd"), kubeadm.TmpDir),
			"if its data is damaged: belay backup restore, with the backup that this run's gate named",
		},
	}
}

func (h controlPlane) Verify(s plan.Step) []condition.Condition {
	cs := []condition.Condition{
		{Name: fmt.Sprintf("the apiserver of %s to answer with %s", s.Node, s.Params.Version), Check: func(ctx context.Context) error {
			v, err := h.APIServer(ctx, s.Node)
			if err == nil && v.Less(s.Params.Version) {
				err = condition.NotYetf("it answers with %s", v)
			}
			return err
		}},
		verify.StaticPodsAt(h.Client, s.Node, s.Params.Version),
	}
	if !s.Params.EtcdVersion.IsZero() {
		cs = append(cs, h.etcdAt(s.Node, s.Params.EtcdVersion))
	}
	if s.Kind == plan.KubeadmApply {
		cs = append(cs, condition.Condition{Name: "ConfigMap kubeadm-config to name " + s.Params.Version.String(), Check: func(ctx context.Context) error {
			v, err := h.kubeadmConfigVersion(ctx)
			if err == nil && v.Less(s.Params.Version) {
				err = condition.NotYetf("it names %s", v)
			}
			return err
		}})
	}
	return cs
}

// etcdAt is met when the member on a node itself says that it runs the version, and serves reads that need quorum.
func (t *task) etcdAt(node string, want kubeversion.V) condition.Condition {
	return condition.Condition{Name: fmt.Sprintf("etcd of %s to run %s and to have quorum", node, want.Bare()), Check: func(ctx context.Context) error {
		v, err := t.EtcdMember(ctx, node)
		if err == nil && v.Less(want) {
			err = condition.NotYetf("it runs %s", v.Bare())
		}
		return err
	}}
}

// etcdPatch takes one etcd member to a newer patch: the image in its manifest, and nothing else.
type etcdPatch struct{ *task }

func (h etcdPatch) Probe(ctx context.Context, s plan.Step, _ bool) (Found, error) {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return Found{}, err
	}
	images, missing, err := h.manifests(ctx, m)
	if err != nil {
		return Found{}, err
	}
	if slices.Contains(missing, "etcd") {
		return found(Unknown, "there is no manifest %s, and this step never takes it away", kubeadm.ManifestPath("etcd")), nil
	}
	file := cluster.ImageVersion(images["etcd"])
	if file.Less(s.Params.EtcdVersion) {
		return found(NotStarted, "the manifest has %s", images["etcd"]), nil
	}
	v, err := h.EtcdMember(ctx, s.Node)
	switch {
	case err != nil:
		return found(Partial, "the manifest has %s, and the member does not answer yet: %v", images["etcd"], err), nil
	case v.Less(s.Params.EtcdVersion):
		return found(Partial, "the manifest has %s, and the member still runs %s", images["etcd"], v.Bare()), nil
	}
	return found(Done, "the member runs %s", v.Bare()), nil
}

func (h etcdPatch) Apply(ctx context.Context, s plan.Step) error {
	m, err := h.Machines.Host(ctx, s.Node)
	if err != nil {
		return err
	}
	if err := h.mark(ctx, m); err != nil {
		return err
	}
	file := kubeadm.ManifestPath("etcd")
	b, err := m.ReadFile(ctx, file)
	if err != nil {
		return err
	}
	image, err := kubeadm.ManifestImage(b)
	if err != nil {
		return fmt.Errorf("%s on %s: %w", file, s.Node, err)
	}
	if cluster.ImageVersion(image).Less(s.Params.EtcdVersion) {
		changed, err := kubeadm.SetManifestImage(b, s.Params.Image)
		if err != nil {
			return fmt.Errorf("%s on %s: %w", file, s.Node, err)
		}
		if err := m.WriteFile(ctx, path.Join(kept, h.run, "etcd.yaml"), b, 0o600); err != nil {
			return err
		}
		h.say(s, "setting the image to %s; the old manifest is kept in %s", s.Params.Image, path.Join(kept, h.run))
		if err := m.WriteFile(ctx, file, changed, 0o600); err != nil {
			return err
		}
	}
	// The member is asked itself: until the kubelet has replaced it, the old one still answers, with the old version.
	if err := h.wait(ctx, s, h.etcdAt(s.Node, s.Params.EtcdVersion), h.patience()); err != nil {
		return &ManualError{Err: err, Do: []string{
			fmt.Sprintf("on %s, read why: crictl logs $(crictl ps -a --name etcd -q | head -1)", s.Node),
			fmt.Sprintf("on %s, the way back: cp %s %s", s.Node, path.Join(kept, h.run, "etcd.yaml"), file),
		}}
	}
	return nil
}

func (h etcdPatch) Verify(s plan.Step) []condition.Condition {
	return []condition.Condition{
		h.etcdAt(s.Node, s.Params.EtcdVersion),
		{Name: "the mirror pod of etcd on " + s.Node + " to show it", Check: func(ctx context.Context) error {
			p, err := h.Client.CoreV1().Pods("kube-system").Get(ctx, "etcd-"+s.Node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if len(p.Spec.Containers) != 1 || cluster.ImageVersion(p.Spec.Containers[0].Image).Less(s.Params.EtcdVersion) {
				return condition.NotYetf("pod kube-system/%s is the old one", p.Name)
			}
			return nil
		}},
		{Name: "the apiserver of " + s.Node + " to answer", Check: func(ctx context.Context) error {
			_, err := h.APIServer(ctx, s.Node)
			return err
		}},
	}
}
