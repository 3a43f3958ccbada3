//go:build e2e

package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/belayops/belay/internal/event"
)

// childVar makes the test binary a process that makes and removes a network until it is killed.
const childVar = "BELAY_E2E_CHILD_STATE_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVar); dir != "" {
		os.Exit(childMain(dir))
	}
	os.Exit(m.Run())
}

func childMain(dir string) int {
	e, err := New(Options{StateDir: dir, RuncPath: runcPath()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	for {
		if _, err := e.Up(ctx, "crash", []MachineSpec{{Name: "a"}, {Name: "b"}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := e.Stop(ctx, "crash", "b", true); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := e.Down(ctx, "crash"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

// runcPath gives the runc of a bundle if there is one, else the one in PATH; BELAY_TEST_RUNC overrides both.
func runcPath() string {
	if p := os.Getenv("BELAY_TEST_RUNC"); p != "" {
		return p
	}
	dir := os.Getenv("BELAY_BUNDLES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(cache, "belay", "bundles")
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "bin", "runc"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return slices.Max(found)
}

// newStateDir gives a state directory on a real disk, which /tmp may not be.
func newStateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/lib", "belay-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("state directory is not empty at the end: %v", err)
		}
	})
	return dir
}

func newEnv(t *testing.T, stateDir string) *Env {
	t.Helper()
	start := time.Now()
	e, err := New(Options{StateDir: stateDir, RuncPath: runcPath(), InstallTools: true, Sink: event.Func(func(ev event.Event) {
		t.Logf("%6.2fs %-13s %-13s %s %s", time.Since(start).Seconds(), ev.Type, ev.Subject, ev.Msg, ev.Err)
	})})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// traces lists everything on this computer that belongs to networks of a state directory.
func traces(t *testing.T, stateDir string, networks ...string) []string {
	t.Helper()
	marks := []string{stateDir}
	for _, n := range networks {
		marks = append(marks, networkID(stateDir, n), containerID(n, ""))
	}
	marked := func(s string) bool {
		return slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(s, m) })
	}
	var found []string
	add := func(kind, s string) {
		if marked(s) {
			found = append(found, kind+": "+s)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		add("mount", line)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		add("interface", l.Name)
		if l.Name == "computer" || l.Name == "br0" {
			found = append(found, "interface: "+l.Name)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/belay-*", "/sys/fs/cgroup/*/belay-*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			add("cgroup", n)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if p == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue
		}
		// A process that ended and was not yet collected by its parent (this computer's init) is no trace of ours.
		if stat, err := os.ReadFile(filepath.Join(p, "stat")); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			continue
		}
		cgroup, _ := os.ReadFile(filepath.Join(p, "cgroup")) // may have ended
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		add("process", p+" "+strings.ReplaceAll(string(cmdline), "\x00", " ")+strings.ReplaceAll(string(cgroup), "\n", " "))
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backing {
		if s, err := os.ReadFile(b); err == nil {
			add("loop device", b+" "+string(s))
		}
	}
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, d := range entries {
		found = append(found, "file: "+filepath.Join(stateDir, d.Name()))
	}
	return found
}

// sh runs a shell command on a machine with nothing but what Machine says about it.
func sh(t *testing.T, m *Machine, command string) (string, error) {
	t.Helper()
	key, err := readKey(m.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	known, err := knownhosts.New(m.KnownHostsFile)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ssh.Dial("tcp", fmt.Sprintf("%s:%d", m.Address, m.Port), &ssh.ClientConfig{
		User: m.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: known, Timeout: 5 * time.Second,
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	s, err := c.NewSession()
	if err != nil {
		return "", err
	}
	defer s.Close()
	out, err := s.CombinedOutput(command)
	return strings.TrimSpace(string(out)), err
}

func mustSh(t *testing.T, m *Machine, command string) string {
	t.Helper()
	out, err := sh(t, m, command)
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s", m.Name, command, err, out)
	}
	return out
}

func TestMachines(t *testing.T) {
	ctx := context.Background()
	dir := newStateDir(t)
	e := newEnv(t, dir)
	t.Logf("quirks: %+v", e.Facts().Quirks())
	share := t.TempDir()
	if err := os.WriteFile(filepath.Join(share, "hello"), []byte("hi"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Down(ctx, "pair"); err != nil {
			t.Error(err)
		}
		if left := traces(t, dir, "pair"); len(left) > 0 {
			t.Errorf("down left:\n%s", strings.Join(left, "\n"))
		}
	}()
	if err := e.Prepare(ctx); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	ms, err := e.Up(ctx, "pair", []MachineSpec{{Name: "m1", Binds: []Bind{{Source: share, Target: "/mnt/share", ReadOnly: true}}}, {Name: "m2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("two machines ready in %s", time.Since(start))
	m1, m2 := ms[0], ms[1]

	if s := mustSh(t, m1, "systemctl is-system-running"); s != "running" {
		t.Errorf("m1 is %s: %s", s, mustSh(t, m1, "systemctl --failed --no-legend"))
	}
	if got := mustSh(t, m1, "hostname"); got != "m1" {
		t.Errorf("host name is %q", got)
	}
	if id1, id2 := mustSh(t, m1, "cat /etc/machine-id"), mustSh(t, m2, "cat /etc/machine-id"); id1 == id2 || len(id1) != 32 {
		t.Errorf("machine ids %q and %q", id1, id2)
	}
	mustSh(t, m1, "ping -c 1 -W 2 m2")
	mustSh(t, m2, "ping -c 1 -W 2 "+m1.Address)
	if got := mustSh(t, m1, "cat /mnt/share/hello"); got != "hi" {
		t.Errorf("bind shows %q", got)
	}
	if _, err := sh(t, m1, "touch /mnt/share/x"); err == nil {
		t.Error("a read-only bind was written to")
	}
	// The resolver knows the machines, and says no at once to everything else.
	began := time.Now()
	if out, err := sh(t, m1, "getent ahosts nowhere.example.org"); err == nil {
		t.Errorf("a name outside was resolved: %s", out)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("an unknown name took %s", d)
	}
	for _, d := range diskDirs() {
		if s := mustSh(t, m1, "findmnt -n -o FSTYPE,PROPAGATION -T "+d); strings.HasPrefix(s, "overlay") || !strings.Contains(s, "shared") {
			t.Errorf("%s is on %s", d, s)
		}
	}
	if s := mustSh(t, m1, "findmnt -n -o PROPAGATION /"); s != "shared" {
		t.Errorf("root propagation is %s", s)
	}
	mustSh(t, m1, "systemd-run --wait --unit=belay-trial true")
	mustSh(t, m1, "nft add table inet t && nft delete table inet t && ipset create s hash:ip && ipset destroy s && iptables -L -n")

	// A second Up adds nothing and starts nothing.
	boot := mustSh(t, m1, "stat -c %Y /proc/1")
	start = time.Now()
	if _, err := e.Up(ctx, "pair", []MachineSpec{{Name: "m1"}, {Name: "m2"}}); err != nil {
		t.Fatal(err)
	}
	t.Logf("up again: %s", time.Since(start))
	if now := mustSh(t, m1, "stat -c %Y /proc/1"); now != boot {
		t.Error("up restarted a running machine")
	}

	// What is on the disk survives a reboot, what is in memory and in the kernel's network does not.
	mustSh(t, m2, "echo kept > /srv/kept; echo kept > /var/lib/etcd/kept; echo gone > /run/gone; ip link add dummy9 type dummy; sync")
	for _, kill := range []bool{false, true} {
		start = time.Now()
		if err := m2.Stop(ctx, kill); err != nil {
			t.Fatal(err)
		}
		stopped := time.Since(start)
		n, err := e.Get(ctx, "pair")
		if err != nil {
			t.Fatal(err)
		}
		if n.Machines[1].Running || !n.Machines[0].Running {
			t.Errorf("after the stop of m2: %+v %+v", n.Machines[0], n.Machines[1])
		}
		start = time.Now()
		if err := m2.Start(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("kill=%v: stopped in %s, started again in %s", kill, stopped, time.Since(start))
		if got := mustSh(t, m2, "cat /srv/kept /var/lib/etcd/kept"); got != "kept\nkept" {
			t.Errorf("after a reboot the disk has %q", got)
		}
		for _, gone := range []string{"test -e /run/gone", "ip link show dummy9"} {
			if out, err := sh(t, m2, gone); err == nil {
				t.Errorf("after a reboot %q still succeeds: %s", gone, out)
			}
		}
		mustSh(t, m1, "ping -c 1 -W 5 m2")
	}

	// A machine that is added later is known to the others.
	if ms, err = e.Up(ctx, "pair", []MachineSpec{{Name: "m3"}}); err != nil {
		t.Fatal(err)
	}
	mustSh(t, m1, "ping -c 1 -W 2 m3")
	mustSh(t, ms[0], "getent hosts m1")

	// A kubelet sets these for the whole computer; they are put back when its last network goes, which another test may have.
	before := e.settings().kept()
	panicBefore, err := strconv.Atoi(before["kernel/panic"])
	if err != nil {
		t.Fatalf("settings before the first network: %v, %v", before, err)
	}
	defer func() {
		if err := e.Down(ctx, "pair"); err != nil {
			t.Error(err)
		}
		others, err := switches()
		if err != nil {
			t.Error(err)
		}
		if now := readInt("/proc/sys/kernel/panic"); len(others) == 0 && now != panicBefore {
			t.Errorf("kernel.panic stays %d, was %d", now, panicBefore)
		}
	}()
	mustSh(t, m1, fmt.Sprintf("echo %d > /proc/sys/kernel/panic", panicBefore+11))

	// A loop device that a machine attached goes with it.
	mustSh(t, m1, "truncate -s 16M /var/lib/kubelet/disk.img && mkfs.ext4 -q /var/lib/kubelet/disk.img && mkdir /var/lib/kubelet/m && mount -o loop /var/lib/kubelet/disk.img /var/lib/kubelet/m")
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(b, []byte("/kubelet/m ")) {
		t.Errorf("a mount in a machine shows on this computer (%v)", err)
	}
}

func TestBalancer(t *testing.T) {
	ctx := context.Background()
	dir := newStateDir(t)
	e := newEnv(t, dir)
	defer func() {
		if err := e.Down(ctx, "lb"); err != nil {
			t.Error(err)
		}
		if left := traces(t, dir, "lb"); len(left) > 0 {
			t.Errorf("down left:\n%s", strings.Join(left, "\n"))
		}
	}()
	ms, err := e.Up(ctx, "lb", []MachineSpec{{Name: "a"}, {Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	n, err := e.Get(ctx, "lb")
	if err != nil {
		t.Fatal(err)
	}
	front := n.Gateway + ":6443"
	if err := e.StartLB(ctx, "lb", front, []string{ms[0].Address + ":6443"}); err != nil {
		t.Fatal(err)
	}
	// A stand-in for an apiserver: TLS, and the machine's name as the answer to every GET.
	for _, m := range ms {
		mustSh(t, m, `openssl req -x509 -newkey rsa:2048 -nodes -keyout /srv/k -out /srv/c -days 1 -subj /CN=x 2>/dev/null && mkdir -p /srv/w && cd /srv/w && hostname > readyz && hostname > name &&
			systemd-run --unit=fake-apiserver --working-directory=/srv/w openssl s_server -accept 6443 -key /srv/k -cert /srv/c -WWW`)
	}
	ask := func() string {
		out, _ := sh(t, ms[1], "printf 'GET /name HTTP/1.0\\r\\n\\r\\n' | timeout 3 openssl s_client -quiet -connect "+front+" 2>/dev/null | tail -1")
		return out
	}
	wait := func(want string) {
		t.Helper()
		began, got := time.Now(), ""
		for time.Since(began) < 15*time.Second {
			if got = ask(); got == want {
				t.Logf("the balancer leads to %s after %s", want, time.Since(began).Round(10*time.Millisecond))
				return
			}
		}
		t.Fatalf("the balancer answers %q, want %q; its log:\n%s", got, want, fileTail(filepath.Join(n.Dir, "services", balancerName, "console.log"), 20))
	}
	wait("a")
	if err := e.UpdateLB(ctx, "lb", []string{ms[0].Address + ":6443", ms[1].Address + ":6443"}); err != nil {
		t.Fatal(err)
	}
	// A server that answers late, as all of them do on a busy computer, stays in; one that says no, or refuses, goes.
	// (A server that has just come in goes at its first failure; every good check gives it one more.)
	mustSh(t, ms[1], "sleep 10 && systemctl kill -s STOP fake-apiserver && sleep 7 && systemctl kill -s CONT fake-apiserver")
	if log := fileTail(filepath.Join(n.Dir, "services", balancerName, "console.log"), 20); strings.Contains(log, "cp2 is DOWN") {
		t.Errorf("a server that was slow for seven seconds was taken out:\n%s", log)
	}
	mustSh(t, ms[0], "rm /srv/w/readyz")
	mustSh(t, ms[0], "systemctl stop fake-apiserver")
	wait("b")
}

// TestKilledAtAnyMoment kills a process that makes and removes machines, and looks at what a
// later one leaves behind.
func TestKilledAtAnyMoment(t *testing.T) {
	ctx := context.Background()
	dir := newStateDir(t)
	e := newEnv(t, dir)
	if err := e.Prepare(ctx); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 25 {
		after := time.Duration(rng.IntN(2500)) * time.Millisecond
		child := exec.Command("/proc/self/exe", "-test.run=^$")
		child.Env = append(os.Environ(), childVar+"="+dir)
		var out bytes.Buffer
		child.Stderr = &out
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		killer := time.AfterFunc(after, func() { _ = child.Process.Kill() })
		err := child.Wait()
		if killer.Stop() {
			t.Fatalf("round %d: the child ended by itself: %v\n%s", round, err, out.String())
		}
		before := len(traces(t, dir, "crash"))
		start := time.Now()
		removed, err := e.Clean(ctx)
		if err != nil {
			t.Fatalf("round %d (killed after %s): %v", round, after, err)
		}
		took := time.Since(start).Round(time.Millisecond)
		// What was finished is no garbage; it goes by name.
		list, err := e.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range list {
			if n.Status != StatusUp {
				t.Errorf("round %d: Clean left %+v", round, n)
			}
			if err := e.Down(ctx, n.Name); err != nil {
				t.Fatal(err)
			}
		}
		left := traces(t, dir, "crash")
		t.Logf("round %2d: killed after %6s: %3d traces, Clean removed %v in %s, %d finished", round, after, before, removed, took, len(list))
		if len(left) > 0 {
			t.Fatalf("round %d (killed after %s) left:\n%s", round, after, strings.Join(left, "\n"))
		}
		if err := os.MkdirAll(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTwoProcesses: two networks at once get different addresses, and two Ups of one network are one.
func TestTwoProcesses(t *testing.T) {
	ctx := context.Background()
	dir := newStateDir(t)
	e1, e2 := newEnv(t, dir), newEnv(t, dir)
	errs := make(chan error, 3)
	up := func(e *Env, name string) { _, err := e.Up(ctx, name, []MachineSpec{{Name: "m"}}); errs <- err }
	go up(e1, "one")
	go up(e2, "one")
	go up(e2, "two")
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	list, err := e1.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Subnet == list[1].Subnet || len(list[0].Machines) != 1 {
		t.Errorf("networks: %+v", list)
	}
	for _, n := range []string{"one", "two"} {
		if err := e2.Down(ctx, n); err != nil {
			t.Error(err)
		}
	}
	if left := traces(t, dir, "one", "two"); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}
