package testenv

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
)

const (
	switchName   = "_switch"
	resolverName = "_dns"
	balancerName = "_lb"
	readyTimeout = 60 * time.Second
)

func (s *session) machineDir(name string) string  { return filepath.Join(s.dir, "machines", name) }
func (s *session) netns(name string) string       { return filepath.Join(s.dir, "netns", name) }
func (s *session) serviceDir(name string) string  { return filepath.Join(s.dir, "services", name) }
func (s *session) containerID(name string) string { return containerID(s.rec.Name, name) }

func (s *session) lockFile() *os.File {
	if s.lock == nil {
		return nil
	}
	return s.lock.f
}

func (s *session) runcArgv(args ...string) []string {
	return append([]string{filepath.Join(s.dir, "bin", "runc"), "--root", filepath.Join(s.dir, "runc")}, args...)
}

func (s *session) runc(ctx context.Context, args ...string) (string, error) {
	return run(ctx, command{argv: s.runcArgv(args...), lock: s.lockFile()})
}

// ip runs a batch of ip(8) commands, in a network namespace unless it is "".
func (s *session) ip(ctx context.Context, netns string, lines ...string) error {
	return ipBatch(ctx, s.lockFile(), netns, lines...)
}

func ipBatch(ctx context.Context, lock *os.File, netns string, lines ...string) error {
	argv := []string{"ip", "-batch", "-"}
	if netns != "" {
		argv = append([]string{"nsenter", "--net=" + netns}, argv...)
	}
	_, err := run(ctx, command{argv: argv, stdin: strings.Join(lines, "\n") + "\n", lock: lock})
	return err
}

// hasLink says whether an interface exists.
func hasLink(ctx context.Context, netns, link string) bool {
	argv := []string{"ip", "-o", "link", "show", "dev", link}
	if netns != "" {
		argv = append([]string{"nsenter", "--net=" + netns}, argv...)
	}
	_, err := run(ctx, command{argv: argv})
	return err == nil
}

// deleteLink removes an interface if it exists.
func deleteLink(ctx context.Context, netns, link string) error {
	if !hasLink(ctx, netns, link) {
		return nil
	}
	err := ipBatch(ctx, nil, netns, "link delete dev "+link)
	if err != nil && !hasLink(ctx, netns, link) {
		return nil
	}
	return err
}

// makeNetns makes a network namespace that lives as a mount on the file at path.
func (s *session) makeNetns(ctx context.Context, path string) (fresh bool, err error) {
	points, err := mountsUnder(path)
	if err != nil || len(points) > 0 {
		return false, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return false, err
	}
	if err := f.Close(); err != nil {
		return false, err
	}
	_, err = run(ctx, command{argv: []string{"unshare", "--net=" + path, "true"}, lock: s.lockFile()})
	return true, err
}

// ensureSwitch makes the network's switch: a namespace of its own with a bridge, so that no
// firewall rule or bridge setting of this computer (Docker's, for one) touches the machines'
// traffic, and none of theirs this computer. One cable leads to the computer.
func (s *session) ensureSwitch(ctx context.Context) error {
	points, err := mountsUnder(s.dir)
	if err != nil {
		return err
	}
	if !slices.Contains(points, s.dir) {
		if err := bindPrivate(s.dir); err != nil {
			return err
		}
	}
	ns := s.netns(switchName)
	if _, err := s.makeNetns(ctx, ns); err != nil {
		return err
	}
	// A link that is there may have been left by a run that was cut off right after it: all that follows is set again.
	if !hasLink(ctx, ns, "br0") {
		if err := s.ip(ctx, ns, "link add name br0 type bridge"); err != nil {
			return err
		}
	}
	// What lies outside is unreachable, which the gateway says at once instead of leaving callers to time-outs.
	if err := s.ip(ctx, ns, "link set dev lo up", "link set dev br0 up",
		fmt.Sprintf("addr replace %s/24 dev br0", s.rec.gateway()), "route replace unreachable default"); err != nil {
		return err
	}
	if _, err := run(ctx, command{argv: []string{"nsenter", "--net=" + ns, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"}, lock: s.lockFile()}); err != nil {
		return err
	}
	link := linkName(s.rec.ID)
	if !hasLink(ctx, "", link) || !hasLink(ctx, ns, "computer") {
		if err := deleteLink(ctx, "", link); err != nil {
			return err
		}
		if err := s.ip(ctx, "", fmt.Sprintf("link add name %s type veth peer name computer netns %s", link, ns)); err != nil {
			return err
		}
	}
	if err := s.ip(ctx, ns, "link set dev computer master br0 up"); err != nil {
		return err
	}
	return s.ip(ctx, "", fmt.Sprintf("addr replace %s/24 dev %s", s.rec.computer(), link), fmt.Sprintf("link set dev %s up", link))
}

// ensureCable makes a machine's namespace and its cable to the switch.
func (s *session) ensureCable(ctx context.Context, m *machineRecord) error {
	ns, sw, port := s.netns(m.Name), s.netns(switchName), portName(m.Address)
	fresh, err := s.makeNetns(ctx, ns)
	if err != nil {
		return err
	}
	if fresh || !hasLink(ctx, ns, "eth0") || !hasLink(ctx, sw, port) {
		if err := deleteLink(ctx, sw, port); err != nil {
			return err
		}
		a := m.Address.As4()
		mac := fmt.Sprintf("02:be:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3])
		if err := s.ip(ctx, sw, fmt.Sprintf("link add name %s type veth peer name eth0 address %s netns %s", port, mac, ns)); err != nil {
			return err
		}
	}
	if err := s.ip(ctx, sw, fmt.Sprintf("link set dev %s master br0 up", port)); err != nil {
		return err
	}
	return s.ip(ctx, ns, "link set dev lo up", fmt.Sprintf("addr replace %s/24 dev eth0", m.Address), "link set dev eth0 up",
		fmt.Sprintf("route replace default via %s", s.rec.gateway()))
}

// removeCable takes a machine's namespace away.
func (s *session) removeCable(ctx context.Context, m *machineRecord) error {
	if fileExists(s.netns(switchName)) {
		if err := deleteLink(ctx, s.netns(switchName), portName(m.Address)); err != nil {
			return err
		}
	}
	return removeTree(s.netns(m.Name))
}

// hosts is /etc/hosts of every machine, and the resolver's data.
func (s *session) hosts() string {
	var b strings.Builder
	for _, m := range s.rec.Machines {
		fmt.Fprintf(&b, "%s %s\n", m.Address, m.Name)
	}
	return b.String()
}

// ensureServices starts the resolver, and the load balancer if the network has one, and tells
// every machine all names.
func (s *session) ensureServices(ctx context.Context) error {
	conf := filepath.Join(s.serviceDir(resolverName), "conf")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return err
	}
	if err := atomicfile.WriteFile(filepath.Join(conf, "hosts"), []byte(s.hosts()), 0o644); err != nil {
		return err
	}
	for i := range s.rec.Machines {
		m := &s.rec.Machines[i]
		etc := filepath.Join(s.machineDir(m.Name), "root", "etc")
		if fileExists(filepath.Join(etc, "hostname")) {
			if err := s.writeHosts(etc, m); err != nil {
				return err
			}
		}
	}
	running, err := s.running(ctx)
	if err != nil {
		return err
	}
	if running[s.containerID(resolverName)] {
		if _, err := s.runc(ctx, "kill", s.containerID(resolverName), "HUP"); err != nil {
			return err
		}
	} else if err := s.startService(ctx, resolverName, []string{
		"/usr/sbin/dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file=", "--log-facility=-",
		"--no-resolv", "--no-hosts", "--addn-hosts=" + serviceConfDir + "/hosts", "--listen-address=" + s.rec.gateway().String(), "--bind-interfaces",
		// Every other name does not exist, and that is answered at once.
		"--local=/#/", "--bogus-priv", "--cache-size=0",
	}); err != nil {
		return err
	}
	if s.rec.LB != nil && !running[s.containerID(balancerName)] {
		return s.startBalancer(ctx)
	}
	return nil
}

// startService runs a small service in the switch's namespace.
func (s *session) startService(ctx context.Context, name string, args []string) error {
	dir := s.serviceDir(name)
	spec := serviceSpec(s.e.facts, s.rec.Rootfs, s.netns(switchName), cgroupName(s.rec.ID), name, filepath.Join(dir, "conf"), args)
	return s.runContainer(ctx, name, dir, spec)
}

// runContainer starts a container in place of a stopped one of the same name.
func (s *session) runContainer(ctx context.Context, name, bundle string, spec ociSpec) error {
	if err := s.deleteContainers(ctx, func(id string) bool { return id == s.containerID(name) }); err != nil {
		return err
	}
	if err := killCgroup(ctx, s.e.facts.CgroupVersion, cgroupName(s.rec.ID)+"/"+name); err != nil {
		return err
	}
	b, err := json.MarshalIndent(spec, "", " ")
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600); err != nil {
		return err
	}
	// The container keeps its output open, so it must be a file.
	log, err := os.OpenFile(filepath.Join(bundle, "console.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = run(ctx, command{argv: s.runcArgv("run", "--detach", "--bundle", bundle, s.containerID(name)), output: log, lock: s.lockFile()})
	if err != nil {
		return fmt.Errorf("start %s: %w: %s", name, err, fileTail(log.Name(), 5))
	}
	return nil
}

// deleteContainers kills and deletes the containers that match.
func (s *session) deleteContainers(ctx context.Context, match func(id string) bool) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "runc"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range entries {
		if !match(d.Name()) {
			continue
		}
		// A runc that was killed half-way leaves a directory that it does not know itself; what
		// runs is found by its cgroup in any case.
		_, err := s.runc(ctx, "delete", "--force", d.Name())
		if err != nil && ctx.Err() != nil {
			return err
		}
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, "runc", d.Name())))
	}
	return errors.Join(errs...)
}

// startAll starts machines in parallel and waits until they are ready.
func (s *session) startAll(ctx context.Context, names []string) error {
	running, err := s.running(ctx)
	if err != nil {
		return err
	}
	if err := s.ensureHostKeys(); err != nil {
		return err
	}
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		m := s.rec.machine(name)
		wg.Go(func() {
			if err := s.start(ctx, m, running[s.containerID(name)]); err != nil {
				errs[i] = fmt.Errorf("start machine %s: %w", name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *session) start(ctx context.Context, m *machineRecord, running bool) error {
	start := time.Now()
	if !running {
		s.e.emit(event.Event{Type: event.StepStarted, Step: "start " + m.Name, Subject: m.Name, Msg: "starting"})
		if err := s.boot(ctx, m); err != nil {
			return err
		}
	}
	degraded, err := s.waitReady(ctx, m)
	if err != nil {
		return err
	}
	if degraded != "" {
		s.e.note(event.Warning, m.Name, "running, but these units failed: "+degraded)
	}
	if !running {
		s.e.emit(event.Event{Type: event.StepDone, Step: "start " + m.Name, Subject: m.Name, Msg: "ready at " + m.Address.String(), Elapsed: time.Since(start)})
	}
	return nil
}

// boot starts a machine that does not run.
func (s *session) boot(ctx context.Context, m *machineRecord) error {
	dir := s.machineDir(m.Name)
	// A fresh namespace each time, as after a reboot: no interface, route or rule of before.
	if err := s.removeCable(ctx, m); err != nil {
		return err
	}
	if err := s.ensureCable(ctx, m); err != nil {
		return err
	}
	for _, d := range []string{"upper", "work", "root", "disk"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, d := range diskDirs() {
		if err := os.MkdirAll(filepath.Join(dir, "disk", filepath.Base(d)), 0o700); err != nil {
			return err
		}
	}
	root := filepath.Join(dir, "root")
	points, err := mountsUnder(root)
	if err != nil {
		return err
	}
	if len(points) == 0 {
		if err := mountOverlay(s.rec.Rootfs, filepath.Join(dir, "upper"), filepath.Join(dir, "work"), root); err != nil {
			return err
		}
	}
	if err := s.writeIdentity(root, m); err != nil {
		return err
	}
	spec := machineSpec(s.e.facts, dir, s.netns(m.Name), cgroupName(s.rec.ID), m.Name, m.Binds)
	return s.runContainer(ctx, m.Name, dir, spec)
}

// writeIdentity writes what makes a machine this one. What exists stays, as on a reboot.
func (s *session) writeIdentity(root string, m *machineRecord) error {
	r, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := r.Stat("etc/machine-id"); errors.Is(err, fs.ErrNotExist) {
		id, err := newMachineID()
		if err != nil {
			return err
		}
		if err := r.WriteFile("etc/machine-id", []byte(id+"\n"), 0o444); err != nil {
			return err
		}
	}
	etc := filepath.Join(root, "etc")
	if err := s.writeHosts(etc, m); err != nil {
		return err
	}
	hostKey, err := os.ReadFile(s.hostKeyFile(m.Name))
	if err != nil {
		return err
	}
	userKey, err := os.ReadFile(filepath.Join(s.dir, "ssh", "id_ed25519.pub"))
	if err != nil {
		return err
	}
	if err := r.MkdirAll("root/.ssh", 0o700); err != nil {
		return err
	}
	if err := r.Chmod("root/.ssh", 0o700); err != nil {
		return err
	}
	files := []struct {
		name string
		data []byte
		mode fs.FileMode
	}{
		// Without it systemd takes the computer's name.
		{"etc/hostname", []byte(m.Name + "\n"), 0o644},
		{"etc/resolv.conf", fmt.Appendf(nil, "nameserver %s\noptions timeout:1 attempts:2\n", s.rec.gateway()), 0o644},
		{"etc/ssh/ssh_host_ed25519_key", hostKey, 0o600},
		{"root/.ssh/authorized_keys", userKey, 0o600},
	}
	if src := s.e.facts.KernelConfigFile; src != "" {
		if b, err := os.ReadFile(src); err == nil {
			if err := r.MkdirAll("boot", 0o755); err != nil {
				return err
			}
			files = append(files, struct {
				name string
				data []byte
				mode fs.FileMode
			}{strings.TrimPrefix(src, "/"), b, 0o644})
		}
	}
	for _, f := range files {
		if err := r.RemoveAll(f.name); err != nil {
			return err
		}
		if err := r.WriteFile(f.name, f.data, f.mode); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) writeHosts(etc string, m *machineRecord) error {
	text := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" + s.hosts()
	return atomicfile.WriteFile(filepath.Join(etc, "hosts"), []byte(text), 0o644)
}

// waitReady waits until systemd has started everything and SSH lets us in. It returns the names
// of failed units, if any.
func (s *session) waitReady(ctx context.Context, m *machineRecord) (degraded string, err error) {
	id := s.containerID(m.Name)
	systemd := condition.Condition{Name: "systemd of " + m.Name, Check: func(ctx context.Context) error {
		out, err := s.runc(ctx, "exec", id, "systemctl", "is-system-running")
		switch state := strings.TrimSpace(out); state {
		case "running":
			return nil
		case "degraded":
			failed, err := s.runc(ctx, "exec", id, "systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager")
			if err != nil {
				return err
			}
			var units []string
			for line := range strings.SplitSeq(failed, "\n") {
				if f := strings.Fields(line); len(f) > 0 {
					units = append(units, f[0])
				}
			}
			degraded = strings.Join(units, ", ")
			return nil
		case "":
			if running, lerr := s.running(ctx); lerr == nil && !running[id] {
				return condition.Final(errors.New("it ended while it started"))
			}
			return condition.NotYetf("systemd does not answer: %v", err)
		default:
			return condition.NotYetf("systemd says %s", state)
		}
	}}
	login := condition.Condition{Name: "SSH on " + m.Name, Check: func(ctx context.Context) error { return s.login(ctx, m) }}
	for _, c := range []condition.Condition{systemd, login} {
		err := condition.Wait(ctx, c, condition.Options{Timeout: readyTimeout, Interval: 200 * time.Millisecond, Attempt: 10 * time.Second})
		if err != nil {
			return "", &NotReadyError{Machine: m.Name, Err: err, Log: s.machineLog(context.WithoutCancel(ctx), m)}
		}
	}
	return degraded, nil
}

func (s *session) machineLog(ctx context.Context, m *machineRecord) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := s.runc(ctx, "exec", s.containerID(m.Name), "journalctl", "--no-pager", "-n", "20", "-o", "cat")
	if err == nil && strings.TrimSpace(out) != "" {
		return strings.TrimSpace(out)
	}
	return fileTail(filepath.Join(s.machineDir(m.Name), "console.log"), 20)
}

// login proves that the machine lets us in, with the host key that we gave it.
func (s *session) login(ctx context.Context, m *machineRecord) error {
	user, err := readKey(filepath.Join(s.dir, "ssh", "id_ed25519"))
	if err != nil {
		return condition.Final(err)
	}
	hostKey, err := readKey(s.hostKeyFile(m.Name))
	if err != nil {
		return condition.Final(err)
	}
	addr := netip.AddrPortFrom(m.Address, 22).String()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	c, chans, reqs, err := ssh.NewClientConn(conn, addr, &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(user)}, HostKeyCallback: ssh.FixedHostKey(hostKey.PublicKey()),
	})
	if err != nil {
		return err
	}
	return ssh.NewClient(c, chans, reqs).Close()
}

func (s *session) stop(ctx context.Context, m *machineRecord, kill bool) error {
	id := s.containerID(m.Name)
	running, err := s.running(ctx)
	if err != nil {
		return err
	}
	if running[id] && !kill {
		if _, err := s.runc(ctx, "kill", id, fmt.Sprint(signalPowerOff)); err != nil {
			return err
		}
		if err := s.waitStopped(ctx, id, 30*time.Second); err != nil {
			if ctx.Err() != nil {
				return err
			}
			s.e.note(event.Warning, m.Name, "did not shut down in 30 seconds; taking its power away")
		}
	}
	if err := s.deleteContainers(ctx, func(c string) bool { return c == id }); err != nil {
		return err
	}
	if err := killCgroup(ctx, s.e.facts.CgroupVersion, cgroupName(s.rec.ID)+"/"+m.Name); err != nil {
		return err
	}
	if err := detachLoops(s.machineDir(m.Name)); err != nil {
		return err
	}
	points, err := mountsUnder(filepath.Join(s.machineDir(m.Name), "root"))
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unmountLazily(p); err != nil {
			return err
		}
	}
	return s.removeCable(ctx, m)
}

// removeMachine takes one machine out of a network.
func (s *session) removeMachine(ctx context.Context, m *machineRecord) error {
	if err := s.stop(ctx, m, true); err != nil {
		return err
	}
	if err := removeTree(s.machineDir(m.Name)); err != nil {
		return err
	}
	s.rec.Machines = slices.DeleteFunc(s.rec.Machines, func(r machineRecord) bool { return r.Name == m.Name })
	if err := s.save(); err != nil {
		return err
	}
	if err := os.Remove(s.hostKeyFile(m.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.ensureHostKeys()
}

func (s *session) hostKeyFile(machine string) string {
	return filepath.Join(s.dir, "ssh", "host-"+machine)
}

// ensureHostKeys gives every machine a host key and writes known_hosts, which is thus complete
// before the first connection.
func (s *session) ensureHostKeys() error {
	var known bytes.Buffer
	for _, m := range s.rec.Machines {
		path := s.hostKeyFile(m.Name)
		if !fileExists(path + ".pub") {
			if err := makeKeyPair(path, m.Name); err != nil {
				return err
			}
		}
		pub, err := os.ReadFile(path + ".pub")
		if err != nil {
			return err
		}
		fmt.Fprintf(&known, "%s,%s %s", m.Name, m.Address, pub)
	}
	return atomicfile.WriteFile(filepath.Join(s.dir, "ssh", "known_hosts"), known.Bytes(), 0o644)
}

// makeKeyPair writes path and then path.pub, so that a public key says the pair is complete.
func makeKeyPair(path, comment string) error {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(priv, comment)
	if err != nil {
		return err
	}
	sshPub, err := ssh.NewPublicKey(pub)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshPub))) + " " + comment + "\n"
	return atomicfile.WriteFile(path+".pub", []byte(line), 0o644)
}

func readKey(path string) (ssh.Signer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	return k, nil
}
