package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeadm"
	"github.com/belayops/belay/internal/payload"
)

// prepare puts files, services and images onto a node.
func (u *up) prepare(ctx context.Context, n *node) error {
	if n.facts.Owner != u.state.owner() {
		// From here on the machine is known as ours, and may be reset while it is no member yet. The inventory
		// that leads to it is written.
		if err := n.h.WriteFile(ctx, ownerFile, []byte(u.state.owner()+"\n"), 0o644); err != nil {
			return &StepError{Cluster: u.spec.Name, Step: "mark " + n.name, Err: err}
		}
	}
	if err := u.step(ctx, "files", n, "files and services", func(ctx context.Context) (string, error) { return u.install(ctx, n) }); err != nil {
		return err
	}
	return u.step(ctx, "images", n, "images", func(ctx context.Context) (string, error) { return u.images(ctx, n) })
}

// How many files, and images, go to one node at a time. The machine's disk and one processor are the limit, not the network.
const (
	filesAtOnce  = 3
	imagesAtOnce = 2
)

func (u *up) install(ctx context.Context, n *node) (string, error) {
	files, err := nodeFiles(u.b, n.quirks)
	if err != nil {
		return "", err
	}
	stale, err := payload.Differing(ctx, n.h, files)
	if err != nil {
		return "", err
	}
	// What an interrupted run put there, its services were not told of.
	told := stale
	pending, err := exists(ctx, n.h, pendingFile)
	if err != nil {
		return "", err
	}
	switch {
	case pending:
		told = files
	case len(stale) > 0:
		if err := n.h.WriteFile(ctx, pendingFile, nil, 0o644); err != nil {
			return "", err
		}
	}
	progress := u.under("files", n)
	var done atomic.Int32
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for _, f := range stale {
		g.Go(func() error {
			if err := payload.Put(gctx, n.h, f); err != nil {
				return err
			}
			progress(fmt.Sprintf("%d of %d files: %s", done.Add(1), len(stale), f.Path))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	did, err := u.services(ctx, n, told)
	if err == nil && len(told) > 0 {
		err = removeFile(ctx, n.h, pendingFile)
	}
	if len(stale) > 0 {
		did = strings.TrimSuffix(fmt.Sprintf("%d files, %s", len(stale), did), ", ")
	}
	return did, err
}

// exists says whether a file is there.
func exists(ctx context.Context, h host.Host, path string) (bool, error) {
	_, err := h.ReadFile(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// services makes systemd and the kernel take notice of new files. It says what it had to do.
func (u *up) services(ctx context.Context, n *node, changed []payload.File) (string, error) {
	touched := func(paths ...string) bool {
		for _, f := range changed {
			for _, p := range paths {
				if strings.HasPrefix(f.Path, p) {
					return true
				}
			}
		}
		return false
	}
	var did []string
	systemctl := func(args ...string) error {
		_, err := n.h.Run(ctx, host.Cmd{Argv: append([]string{"systemctl"}, args...)})
		return err
	}
	// A module that is built in, or not there at all, is no error; what is really missing shows when it is used.
	if touched(modulesFile) {
		if _, err := n.h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", "modprobe -qa overlay br_netfilter || true"}}); err != nil {
			return "", err
		}
	}
	if touched(sysctlFile) || !n.facts.IPForward || n.facts.BridgeFilter == "0" {
		if _, err := n.h.Run(ctx, host.Cmd{Argv: []string{"sysctl", "-e", "-p", sysctlFile}}); err != nil {
			return "", err
		}
		did = append(did, "kernel settings")
	}
	if touched("/etc/systemd/") {
		if err := systemctl("daemon-reload"); err != nil {
			return "", err
		}
	}
	res, err := n.h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", `for u in containerd kubelet; do echo "$u $(systemctl is-enabled $u 2>/dev/null) $(systemctl is-active $u 2>/dev/null)"; done`}})
	if err != nil {
		return "", err
	}
	status := string(res.Stdout)
	if strings.Count(status, " enabled ") < 2 {
		if err := systemctl("enable", "--quiet", "containerd.service", "kubelet.service"); err != nil {
			return "", err
		}
		did = append(did, "services enabled")
	}
	if touched("/usr/local/bin/containerd", containerdConfig, containerdUnit) || !strings.Contains(status, "containerd enabled active") {
		if err := systemctl("restart", "containerd.service"); err != nil {
			return "", u.withLog(ctx, n, "containerd.service", err)
		}
		did = append(did, "containerd started")
	}
	// kubeadm starts the kubelet for the first time; later it is restarted only for a new unit or program.
	if n.facts.Kubernetes && (touched(kubeadm.KubeletPath, kubeadm.KubeletUnitPath) || !strings.Contains(status, "kubelet enabled active")) {
		if err := systemctl("restart", "kubelet.service"); err != nil {
			return "", u.withLog(ctx, n, "kubelet.service", err)
		}
		did = append(did, "kubelet started")
	}
	return strings.Join(did, ", "), nil
}

// withLog adds the last lines of a unit's log to an error.
func (u *up) withLog(ctx context.Context, n *node, unit string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	res, logErr := n.h.Run(ctx, host.Cmd{Argv: []string{"journalctl", "--no-pager", "--quiet", "-o", "cat", "-n", "15", "-u", unit}})
	log := strings.TrimSpace(string(res.Stdout))
	if logErr != nil || log == "" {
		return err
	}
	return fmt.Errorf("%w\nlast lines of %s on %s:\n%s", err, unit, n.name, log)
}

func (u *up) images(ctx context.Context, n *node) (string, error) {
	missing, err := payload.MissingImages(ctx, n.h, nodeImages(u.b, n.role))
	if err != nil || len(missing) == 0 {
		return "", err
	}
	progress := u.under("images", n)
	var done atomic.Int32
	var bytes int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(imagesAtOnce)
	for _, img := range missing {
		bytes += img.Size
		g.Go(func() error {
			if err := payload.ImportImage(gctx, n.h, img); err != nil {
				return err
			}
			progress(fmt.Sprintf("%d of %d images: %s", done.Add(1), len(missing), img.Ref))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d loaded (%d MB)", len(missing), bytes/1_000_000), nil
}

// kubeadmCluster is the cluster as kubeadm's configuration has it.
func (u *up) kubeadmCluster() kubeadm.Cluster {
	q := u.quirks()
	return kubeadm.Cluster{
		Name: u.spec.Name, Version: u.spec.Version(), Endpoint: u.state.Endpoint,
		PodSubnet: u.spec.PodSubnet, ServiceSubnet: u.spec.ServiceSubnet, CertSANs: u.spec.CertSANs, ExtraArgs: u.spec.ExtraArgs,
		Kubelet: kubeadm.KubeletSettings{AllowCgroupV1: q.AllowCgroupV1, AllowSwap: q.AllowSwap, SharedDisk: q.SharedDisk, FeatureGates: u.spec.FeatureGates},
		Proxy:   kubeadm.ProxySettings{Mode: u.spec.KubeProxyMode, LeaveConntrack: q.LeaveConntrack},
	}
}

// residue says whether init or join left something on the host.
func residue(ctx context.Context, h host.Host) (bool, error) {
	f, err := gatherFacts(ctx, h)
	return f.Kubernetes, err
}

// reset takes a node that never was a member back to where it was before init or join.
func (u *up) reset(ctx context.Context, n *node) error {
	if u.joined(n.name) {
		return fmt.Errorf("%s was a member of the cluster before: it is not reset; look at it with: belay cluster ssh --name %s %s", n.name, u.spec.Name, n.name)
	}
	u.noteNode(n, "an earlier attempt did not come to its end; undoing it with kubeadm reset")
	if _, err := u.earlierUnit(ctx, n, "reset", nil); err != nil {
		return err
	}
	if err := u.runUnit(ctx, n, "reset", kubeadm.ResetArgv(n.quirks.IgnorePreflight)); err != nil {
		return fmt.Errorf("kubeadm reset: %w", err)
	}
	// kubeadm leaves the pod network to its maker. The node will get another pod subnet, and a bridge that keeps the
	// address of the one before takes no pods.
	_, err := n.h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", networkResetScript, "reset", cniConfigFile}})
	return err
}

// networkResetScript removes what kube-router and the CNI plugins keep on a node, beside rules that they write anew.
const networkResetScript = `
rm -rf -- "$1" /var/lib/cni/networks /var/lib/cni/results /var/lib/cni/cache || exit 1
ip link show kube-bridge >/dev/null 2>&1 || exit 0
ip link delete kube-bridge
`

// init makes the first control plane node, or completes what an earlier run began. It says what it did.
func (u *up) init(ctx context.Context) (string, error) {
	n := u.first()
	if u.state.Initialized {
		return "", u.waitAPI(ctx, "init", n, apiWait)
	}
	config, err := kubeadm.RenderInit(u.kubeadmCluster(), kubeadm.Node{Name: n.name, Address: n.address, IgnorePreflight: n.quirks.IgnorePreflight})
	if err != nil {
		return "", err
	}
	argv := kubeadm.InitArgv(initConfigFile)
	done, err := u.earlierUnit(ctx, n, "init", argv)
	if err != nil {
		return "", err
	}
	left, err := residue(ctx, n.h)
	if err != nil {
		return "", err
	}
	did := "control plane at " + u.state.Endpoint
	alive := false
	if left && !done {
		if alive, err = u.leftAlive(ctx, n); err != nil {
			return "", err
		}
	}
	switch {
	case left && done:
		did += ", begun by an earlier run"
	case alive:
		// The control plane lives. What init does after that may be done again.
		did += ", completed after an interruption"
		if err := n.h.WriteFile(ctx, initConfigFile, config, 0o600); err != nil {
			return "", err
		}
		for _, phase := range kubeadm.LateInitPhases() {
			if err := u.runUnit(ctx, n, "init", kubeadm.InitPhaseArgv(initConfigFile, phase...)); err != nil {
				return "", err
			}
		}
	default:
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if left {
			if err := u.reset(ctx, n); err != nil {
				return "", err
			}
		}
		if err := n.h.WriteFile(ctx, initConfigFile, config, 0o600); err != nil {
			return "", err
		}
		if err := u.runUnit(ctx, n, "init", argv); err != nil {
			return "", err
		}
	}
	if err := u.waitAPI(ctx, "init", n, apiWait); err != nil {
		return "", err
	}
	if err := removeFile(ctx, n.h, initConfigFile); err != nil {
		return "", err
	}
	return did, u.record(func(p *progress) {
		p.Initialized = true
		if !p.joined(n.name) {
			p.Joined = append(p.Joined, n.name)
		}
	})
}

// runningScript waits for an apiserver on the machine: the kubelet starts it
// again within seconds. It exits with 1 when there is none.
const runningScript = `i=0
command -v pgrep >/dev/null || exit 3
while [ $i -lt 30 ]; do
  pgrep -x kube-apiserver >/dev/null && exit 0
  [ $? = 1 ] || exit 3
  i=$((i+1)); sleep 1
done
exit 1`

// leftAlive says whether what an earlier init left is a control plane that
// answers. One that runs there and is not reached is an error: it is not known
// to be half-way, and a reset would wipe its data.
func (u *up) leftAlive(ctx context.Context, n *node) (bool, error) {
	wait := u.waitAPI(ctx, "init", n, leftoverWait)
	if wait == nil || ctx.Err() != nil {
		return wait == nil, ctx.Err()
	}
	_, err := n.h.Run(ctx, host.Cmd{Argv: []string{"sh", "-c", runningScript}})
	if exit := (*host.ExitError)(nil); errors.As(err, &exit) && exit.Code == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("whether the control plane that an earlier run began lives cannot be told: %w", err)
	}
	return false, fmt.Errorf("kube-apiserver runs on %s, and is not reached at %s: %w; see that it is and run the same command again, or begin anew with: belay cluster down %s", n.name, u.state.Endpoint, wait, u.spec.Name)
}

// join makes n a member, or completes what an earlier run began. It says what it did.
func (u *up) join(ctx context.Context, n *node) (string, error) {
	if u.joined(n.name) {
		if _, err := u.api.node(ctx, n.name); err != nil {
			return "", fmt.Errorf("%s was a member of the cluster before and is none now; to make it one again by hand, run there: kubeadm reset, and kubeadm join: %w", n.name, err)
		}
		return "", nil
	}
	did := "is a member"
	argv := kubeadm.JoinArgv(joinConfigFile)
	done, err := u.earlierUnit(ctx, n, "join", argv)
	if err != nil {
		return "", err
	}
	left, err := residue(ctx, n.h)
	if err != nil {
		return "", err
	}
	// Whatever an earlier run's join said, what holds now is asked of the API and the host.
	if left {
		wait, how := memberWait, ", as an earlier run left it"
		if done {
			wait, how = doneWait, ", begun by an earlier run"
		}
		// A kubelet that has just got its credentials takes some seconds to be seen.
		err := condition.Wait(ctx, condition.Condition{Name: n.name + " to be a member", Check: func(ctx context.Context) error {
			member, why, err := u.api.member(ctx, n)
			if err == nil && !member {
				err = condition.NotYetf("%s", why)
			}
			return err
		}}, condition.Options{Timeout: wait, Interval: pollInterval, OnChange: u.under("join", n)})
		switch {
		case err == nil:
			return did + how, u.joinedNow(ctx, n)
		case !errors.Is(err, condition.ErrNotYet) || ctx.Err() != nil:
			return "", err // what could not be asked is not known to be half-way
		}
		u.noteNode(n, "joined half-way: "+err.Error())
		if err := u.reset(ctx, n); err != nil {
			return "", err
		}
	}
	if err := u.api.deleteNode(ctx, n.name); err != nil {
		return "", err
	}
	config, err := u.joinConfig(ctx, n)
	if err != nil {
		return "", err
	}
	if err := n.h.WriteFile(ctx, joinConfigFile, config, 0o600); err != nil {
		return "", err
	}
	if err := u.runUnit(ctx, n, "join", argv); err != nil {
		return "", err
	}
	return did, u.joinedNow(ctx, n)
}

func (u *up) joinedNow(ctx context.Context, n *node) error {
	if err := removeFile(ctx, n.h, joinConfigFile); err != nil {
		return err
	}
	return u.record(func(p *progress) {
		if !p.joined(n.name) {
			p.Joined = append(p.Joined, n.name)
		}
	})
}

// tokenTTL is how long a bootstrap token of a join lives.
const tokenTTL = "30m"

// joinConfig makes what a join needs on the first node: a token, and for a control plane node the uploaded certificates.
func (u *up) joinConfig(ctx context.Context, n *node) ([]byte, error) {
	first := u.first()
	ca, err := first.h.ReadFile(ctx, kubeadm.CACertificate)
	if err != nil {
		return nil, err
	}
	hash, err := kubeadm.CACertHash(ca)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", first.name, kubeadm.CACertificate, err)
	}
	res, err := first.h.Run(ctx, host.Cmd{Argv: kubeadm.CreateTokenArgv(tokenTTL)})
	if err != nil {
		return nil, err
	}
	token, err := kubeadm.ParseToken(res.Stdout)
	if err != nil {
		return nil, err
	}
	j := kubeadm.Join{
		Node:     kubeadm.Node{Name: n.name, Address: n.address, IgnorePreflight: n.quirks.IgnorePreflight},
		Endpoint: u.state.Endpoint, Token: token, CACertHash: hash,
	}
	if n.role == RoleControlPlane {
		j.ControlPlane, j.CertificateKey = true, kubeadm.NewCertificateKey()
		config, err := kubeadm.RenderInit(u.kubeadmCluster(), kubeadm.Node{Name: first.name, Address: first.address, CertificateKey: j.CertificateKey})
		if err != nil {
			return nil, err
		}
		if err := first.h.WriteFile(ctx, initConfigFile, config, 0o600); err != nil {
			return nil, err
		}
		_, err = first.h.Run(ctx, host.Cmd{Argv: kubeadm.UploadCertsArgv(initConfigFile)})
		if err = errors.Join(err, removeFile(ctx, first.h, initConfigFile)); err != nil {
			return nil, fmt.Errorf("upload the control plane's certificates: %w", err)
		}
	}
	return kubeadm.RenderJoin(u.spec.Version(), j)
}

func removeFile(ctx context.Context, h host.Host, path string) error {
	_, err := h.Run(ctx, host.Cmd{Argv: []string{"rm", "-f", "--", path}})
	return err
}
