package provision

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
)

// PrepareOptions say what Prepare puts onto a machine.
type PrepareOptions struct {
	Bundle *bundle.Bundle
	// Role is the node's: it decides which images it gets.
	Role string
	// Cluster is for messages. Owner (NAME/ID) is written onto the machine, and one that another owner's mark is on is
	// refused; so is one without a mark that has a Kubernetes node, a containerd or an etcd on it.
	Cluster, Owner string
	Sink           event.Sink
}

// Prepare makes a machine ready for kubeadm, as Up does with each of its nodes: files, services and images of a bundle.
// It may be repeated. Whether kubelets bear cgroup v1 or swap is not judged: that is the cluster's kubelet configuration's to say.
func Prepare(ctx context.Context, h host.Host, o PrepareOptions) (string, error) {
	u := &up{sink: event.Or(o.Sink), now: time.Now, spec: &Spec{Name: o.Cluster}, b: o.Bundle, run: "prepare/" + h.Name()}
	f, err := gatherFacts(ctx, h)
	if err != nil {
		return "", err
	}
	err = f.check(h.Name(), o.Cluster, o.Owner, o.Bundle.Manifest().Arch)
	if f.Owner == "" && len(f.Foreign) > 0 {
		err = errors.Join(err, &HostProblem{h.Name(), "has in belay's places what belay did not put there: " + strings.Join(f.Foreign, ", "),
			"move it away if nothing of it is needed any more, or choose another machine"})
	}
	if err != nil {
		return "", err
	}
	n := &node{name: h.Name(), role: o.Role, h: h, facts: f}
	if n.quirks, err = f.quirks(n.name, true, allowed{}, Quirks{}); err != nil {
		return "", err
	}
	if err := h.WriteFile(ctx, ownerFile, []byte(o.Owner+"\n"), 0o644); err != nil {
		return "", err
	}
	files, err := u.install(ctx, n)
	if err != nil {
		return "", err
	}
	images, err := u.images(ctx, n)
	return strings.Trim(files+"; images: "+images, "; "), err
}
