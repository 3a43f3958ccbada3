package executor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/payload"
	"github.com/belayops/belay/plan"
)

// stagedPrograms are copied to every node; the kubelet step puts them in place.
func stagedPrograms() []string { return []string{"kubeadm", "kubelet", "kubectl"} }

// stageWidth bounds how many nodes are staged at a time: the files come from one disk over one network.
const stageWidth = 4

// unpinPatience is how long a node may be out of reach at the end of a run before its images are left pinned.
const unpinPatience = 30 * time.Second

// stage copies a bundle's programs and images to nodes. Nothing runs from there yet, so that all of it is
// in place, with its sums checked on the nodes, before the first change.
type stage struct{ *task }

func (h stage) Probe(ctx context.Context, s plan.Step, _ bool) (Found, error) {
	b, err := h.bundle(s.Params.Version)
	if err != nil {
		return Found{}, err
	}
	var missing, unpinned, all int
	for _, n := range s.Params.Nodes {
		m, err := h.look(ctx, b, n)
		if err != nil {
			return Found{}, err
		}
		missing += len(m.programs) + len(m.images)
		unpinned += len(m.unpinned)
		all += len(stagedPrograms()) + len(h.images(b, n))
	}
	switch {
	case missing+unpinned == 0:
		return found(Done, "every file is in place"), nil
	case missing == 0:
		return found(Partial, "%d images may be deleted by the kubelet's image collector", unpinned), nil
	case missing == all:
		return found(NotStarted, "no file is in place"), nil
	}
	return found(Partial, "%d of %d files are missing", missing, all), nil
}

// images are those that the node's role needs. The network plugin and samples stay as they are.
func (h stage) images(b *bundle.Bundle, node string) []bundle.Image {
	roles := []string{bundle.RoleKubeProxy, bundle.RoleDNS, bundle.RolePause}
	if h.isControlPlane(node) {
		roles = append(roles, bundle.RoleControlPlane, bundle.RoleEtcd, bundle.RoleEtcdStep)
	}
	return slices.DeleteFunc(b.Images(), func(i bundle.Image) bool { return !slices.Contains(roles, i.Role) })
}

type stageMissing struct {
	programs []payload.File
	images   []bundle.Image
	// unpinned are there, or will be after images are imported, and not safe from the kubelet's image collector.
	unpinned []bundle.Image
}

// look finds what a node lacks.
func (h stage) look(ctx context.Context, b *bundle.Bundle, node string) (out stageMissing, err error) {
	m, err := h.Machines.Host(ctx, node)
	if err != nil {
		return out, err
	}
	var files []payload.File
	for _, p := range stagedPrograms() {
		f, err := payload.BundleFile(b, p, kubeadm.Staged(b.Version(), p))
		if err != nil {
			return out, err
		}
		files = append(files, f)
	}
	if out.programs, err = payload.Differing(ctx, m, files); err != nil {
		return out, err
	}
	images := h.images(b, node)
	if out.images, err = payload.MissingImages(ctx, m, images); err != nil {
		return out, err
	}
	// Nothing runs from a staged image until its turn comes, and a disk that fills up meanwhile makes the kubelet delete it.
	// The sandbox image is left to containerd, which pins the one that it uses.
	images = slices.DeleteFunc(images, func(i bundle.Image) bool { return i.Role == bundle.RolePause })
	out.unpinned, err = payload.Unpinned(ctx, m, images)
	return out, err
}

func (h stage) Apply(ctx context.Context, s plan.Step) error {
	b, err := h.bundle(s.Params.Version)
	if err != nil {
		return err
	}
	h.say(s, "checking the sums of bundle %s", b.Version().Bare())
	if err := b.Verify(ctx, nil); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(stageWidth)
	for _, n := range s.Params.Nodes {
		g.Go(func() error {
			if err := h.node(ctx, s, b, n); err != nil {
				return fmt.Errorf("stage %s on %s: %w", b.Version(), n, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (h stage) node(ctx context.Context, s plan.Step, b *bundle.Bundle, node string) error {
	m, err := h.Machines.Host(ctx, node)
	if err != nil {
		return err
	}
	miss, err := h.look(ctx, b, node)
	if err != nil {
		return err
	}
	for _, f := range miss.programs {
		h.say(s, "%s: copying %s", node, path.Base(f.Path))
		if err := payload.Put(ctx, m, f); err != nil {
			return err
		}
	}
	for i, img := range miss.images {
		h.say(s, "%s: image %d of %d: %s", node, i+1, len(miss.images), img.Ref)
		if err := payload.ImportImage(ctx, m, img); err != nil {
			return err
		}
	}
	for _, img := range miss.unpinned {
		if err := payload.Pin(ctx, m, img.Ref, h.run); err != nil {
			return err
		}
	}
	return nil
}

// unpin gives the staged images of the whole plan back to the kubelet's image collector, when no step needs them any more.
// An image that stays pinned costs disk and nothing else: the errors are for a warning.
func (t *task) unpin(ctx context.Context) error {
	var errs []error
	for _, n := range t.plan.Basis.Nodes {
		err := condition.Wait(ctx, condition.Condition{Name: "staged images to be unpinned", Check: func(ctx context.Context) error {
			m, err := t.Machines.Host(ctx, n.Name)
			if err != nil {
				return err
			}
			return payload.Unpin(ctx, m, t.run)
		}}, condition.Options{Timeout: min(unpinPatience, t.patience()), Interval: t.poll()})
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (h stage) Verify(s plan.Step) []condition.Condition {
	return []condition.Condition{{Name: "every file to be in place", Check: func(ctx context.Context) error {
		f, err := h.Probe(ctx, s, true)
		if err == nil && f.Progress != Done {
			err = condition.NotYetf("%s", f.Detail)
		}
		return err
	}}}
}

// programSum is the sum that the bundle's manifest has for a program.
func programSum(b *bundle.Bundle, program string) (string, error) {
	for _, f := range b.Binaries() {
		if f.Path == "bin/"+program {
			return f.SHA256, nil
		}
	}
	return "", fmt.Errorf("bundle %s has no program %s", b.Version().Bare(), program)
}

// versionOf asks a program for the version that it is.
func versionOf(ctx context.Context, m host.Host, program string) (kubeversion.V, error) {
	r, err := m.Run(ctx, host.Cmd{Argv: []string{program, "--version"}})
	if err != nil {
		return kubeversion.V{}, err
	}
	return kubeadm.ParseVersion(r.Stdout)
}
