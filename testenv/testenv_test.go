package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/belayops/belay/internal/event"
)

func plainFacts() Facts {
	return Facts{
		Kernel: "6.12", CgroupVersion: 2, CapSysResource: true, Capabilities: capNames(), NofileHard: 1 << 30,
		InotifyMaxInstances: 8192, InotifyMaxWatches: 524288, ConntrackMaxWritable: true, KernelConfig: true, Devices: []string{"/dev/kmsg", "/dev/fuse"},
	}
}

func TestQuirksOnlyWhereDetected(t *testing.T) {
	if q := plainFacts().Quirks(); fmt.Sprint(q) != fmt.Sprint(Quirks{}) {
		t.Errorf("a plain computer has quirks: %+v", q)
	}
	for _, c := range []struct {
		name   string
		change func(*Facts)
		want   Quirks
	}{
		{"cgroup v1", func(f *Facts) { f.CgroupVersion = 1 }, Quirks{FailCgroupV1False: true, IgnorePreflight: []string{"SystemVerification"}}},
		{"no CAP_SYS_RESOURCE", func(f *Facts) { f.CapSysResource = false }, Quirks{RestrictOOMScoreAdj: true}},
		{"conntrack limit is the computer's", func(f *Facts) { f.ConntrackMaxWritable = false }, Quirks{KubeProxyConntrackZero: true}},
		{"no kernel configuration", func(f *Facts) { f.KernelConfig = false }, Quirks{IgnorePreflight: []string{"SystemVerification"}}},
		{"swap", func(f *Facts) { f.Swap = true }, Quirks{FailSwapOnFalse: true, IgnorePreflight: []string{"Swap"}}},
	} {
		f := plainFacts()
		c.change(&f)
		if got := f.Quirks(); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestCapsFromStatus(t *testing.T) {
	caps := capsFromStatus("Name:\tx\nCapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\n")
	if len(caps) != 40 || slices.Contains(caps, "CAP_SYS_RESOURCE") || !slices.Contains(caps, "CAP_CHECKPOINT_RESTORE") {
		t.Errorf("%d capabilities: %v", len(caps), caps)
	}
	if caps := capsFromStatus("CapBnd:\tnonsense\n"); caps != nil {
		t.Errorf("nonsense gives %v", caps)
	}
}

func TestMachineSpec(t *testing.T) {
	v1 := plainFacts()
	v1.CgroupVersion, v1.NofileHard, v1.CapSysResource = 1, 20000, false
	v1.Capabilities = slices.DeleteFunc(capNames(), func(c string) bool { return c == "CAP_SYS_RESOURCE" })
	v1.ModulesDir = "/lib/modules"
	for name, f := range map[string]Facts{"v1": v1, "v2": plainFacts()} {
		t.Run(name, func(t *testing.T) {
			s := machineSpec(f, "/s/n/machines/w1", "/s/n/netns/w1", "belay-1234", "w1", []Bind{{"/b", "/opt/b", true}})
			mount := func(dst string) ociMount {
				i := slices.IndexFunc(s.Mounts, func(m ociMount) bool { return m.Destination == dst })
				if i < 0 {
					t.Fatalf("no mount at %s", dst)
				}
				return s.Mounts[i]
			}
			// runc recognises the cgroup mount by this very source and destination, for both versions.
			if m := mount("/sys/fs/cgroup"); m.Type != "cgroup" || m.Source != "cgroup" || !slices.Contains(m.Options, "rw") {
				t.Errorf("cgroup mount: %+v", m)
			}
			if !slices.Contains(s.Linux.Namespaces, ociNamespace{Type: "cgroup"}) || !slices.Contains(s.Linux.Namespaces, ociNamespace{Type: "network", Path: "/s/n/netns/w1"}) {
				t.Errorf("namespaces: %+v", s.Linux.Namespaces)
			}
			for _, d := range diskDirs() {
				if m := mount(d); m.Type != "bind" || !strings.HasPrefix(m.Source, "/s/n/machines/w1/disk/") || !slices.Contains(m.Options, "rshared") {
					t.Errorf("%s: %+v", d, m)
				}
			}
			if m := mount("/opt/b"); !slices.Contains(m.Options, "ro") {
				t.Errorf("read-only bind: %+v", m)
			}
			if !slices.Equal(s.Process.Capabilities["effective"], f.Capabilities) {
				t.Error("capabilities are not the computer's")
			}
			if l := s.Process.Rlimits[0]; l.Hard > f.NofileHard || l.Hard != l.Soft {
				t.Errorf("open files: %+v with a limit of %d", l, f.NofileHard)
			}
			if hasModules := slices.ContainsFunc(s.Mounts, func(m ociMount) bool { return m.Destination == "/lib/modules" }); hasModules != (f.ModulesDir != "") {
				t.Errorf("modules shown: %v", hasModules)
			}
			if len(s.Linux.Devices) != 2 {
				t.Errorf("devices: %+v, though the computer has kmsg and fuse only", s.Linux.Devices)
			}
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			for _, absent := range []string{"maskedPaths", "readonlyPaths", "seccomp"} {
				if strings.Contains(string(b), absent) {
					t.Errorf("specification has %s", absent)
				}
			}
		})
	}
}

func TestServiceSpecIsConfined(t *testing.T) {
	s := serviceSpec(plainFacts(), "/cache/rootfs/k", "/s/n/netns/_switch", "belay-1", "_dns", "/s/n/services/_dns/conf", []string{"x"})
	if !s.Root.Readonly || !s.Process.NoNewPrivileges || slices.Contains(s.Process.Capabilities["bounding"], "CAP_SYS_ADMIN") {
		t.Errorf("%+v", s)
	}
}

func TestNames(t *testing.T) {
	for _, ok := range []string{"a", "cp1", "demo-1", strings.Repeat("x", 40)} {
		if err := checkName("network", ok); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", "A", "a_b", "-a", "a-", "a.b", strings.Repeat("x", 41), "a\n"} {
		if err := checkName("network", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?`).Draw(t, "name")
		if l := linkName(networkID("/var/lib/belay/machines", name)); len(l) > 15 || !strings.HasPrefix(l, "belay-") {
			t.Fatalf("interface name %q", l)
		}
	})
	if networkID("/a", "x") == networkID("/b", "x") {
		t.Error("two state directories share an identifier")
	}
}

func TestChooseSubnet(t *testing.T) {
	first, err := chooseSubnet("demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := chooseSubnet("demo", nil)
	if err != nil || again != first {
		t.Errorf("not deterministic: %s, then %s (%v)", first, again, err)
	}
	second, err := chooseSubnet("demo", []netip.Prefix{first})
	if err != nil || second == first {
		t.Errorf("taken %s, got %s (%v)", first, second, err)
	}
	// A wide route does not leave everybody without an address; a narrow one is respected.
	if p, err := chooseSubnet("demo", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), first}); err != nil || p == first {
		t.Errorf("with 10.0.0.0/8 routed: %s (%v)", p, err)
	}
	var all []netip.Prefix
	for i := range 40 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(200 + i), 0, 0}), 16))
	}
	if p, err := chooseSubnet("demo", all); err == nil {
		t.Errorf("all taken, got %s", p)
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		var taken []netip.Prefix
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			taken = append(taken, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(t, "a"), rapid.Byte().Draw(t, "b"), 0}), rapid.IntRange(16, 30).Draw(t, "bits")).Masked())
		}
		p, err := chooseSubnet(name, taken)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append(taken, netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")) {
			if x.Overlaps(p) {
				t.Fatalf("%s overlaps %s", p, x)
			}
		}
	})
}

func TestAddMachine(t *testing.T) {
	r := &record{Name: "n", Subnet: netip.MustParsePrefix("10.200.0.0/24")}
	for i := range lastMachine - firstMachine + 1 {
		if err := r.addMachine(MachineSpec{Name: fmt.Sprintf("m%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.addMachine(MachineSpec{Name: "one-too-many"}); err == nil {
		t.Error("more machines than addresses")
	}
	for _, m := range r.Machines {
		if m.Address == r.gateway() || m.Address == r.computer() {
			t.Errorf("%s has a reserved address %s", m.Name, m.Address)
		}
	}
	r.Machines = slices.Delete(r.Machines, 3, 4)
	if err := r.addMachine(MachineSpec{Name: "again"}); err != nil || r.machine("again").Address != netip.MustParseAddr("10.200.0.13") {
		t.Errorf("a free address was not used again: %v %+v", err, r.machine("again"))
	}
}

const goodState = `{"schema":"belay.testenv/v1","name":"demo","id":"00000000","status":"up","subnet":"10.200.0.0/24","rootfs":"/r","created":"2026-01-02T03:04:05Z",
"machines":[{"name":"cp1","address":"10.200.0.10","status":"up"}],"loadBalancer":{"frontend":"10.200.0.1:6443","backends":["10.200.0.10:6443"]}}`

func TestDecodeRecord(t *testing.T) {
	r, err := decodeRecord([]byte(goodState))
	if err != nil || r.machine("cp1") == nil || r.LB == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	for name, c := range map[string][2]string{
		"schema":          {"testenv/v1", "testenv/v9"},
		"status":          {`"status":"up","subnet"`, `"status":"fine","subnet"`},
		"subnet":          {"10.200.0.0/24", "10.200.0.0/8"},
		"unmasked subnet": {"10.200.0.0/24", "10.200.0.7/24"},
		"network name":    {`"demo"`, `"../etc"`},
		"machine name":    {`"cp1"`, `"../../etc"`},
		"machine address": {`"10.200.0.10","status"`, `"192.168.0.1","status"`},
		"truncated":       {`]}}`, ``},
	} {
		text := strings.Replace(goodState, c[0], c[1], 1)
		if text == goodState {
			t.Fatalf("%s: nothing was replaced", name)
		}
		if _, err := decodeRecord([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(goodState))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"schema":"belay.testenv/v1","name":"a","status":"creating","subnet":"::/24"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			return
		}
		// What is accepted can be written and read back, and cannot lead out of its directory.
		dir := t.TempDir()
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(dir, stateFile))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecord(b); err != nil {
			t.Fatalf("written state is refused: %v\n%s", err, b)
		}
		s := &session{dir: "/s/n", rec: r}
		for _, m := range r.Machines {
			if p := s.machineDir(m.Name); filepath.Dir(p) != "/s/n/machines" {
				t.Fatalf("machine directory %s", p)
			}
		}
	})
}

// A state file that cannot be read is named, and does not hide the other networks.
func TestListNamesCorruptState(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"broken": "{", "demo": goodState} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, stateFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "somebody-elses"), 0o700); err != nil {
		t.Fatal(err)
	}
	e := &Env{o: Options{StateDir: dir, Sink: event.Discard}}
	list, err := e.List(context.Background())
	if len(list) != 1 || list[0].Name != "demo" || list[0].Gateway != "10.200.0.1" {
		t.Errorf("list: %+v", list)
	}
	bad := (*StateError)(nil)
	if !errors.As(err, &bad) || bad.Path != filepath.Join(dir, "broken", stateFile) {
		t.Errorf("error: %v", err)
	}
	if _, err := e.Get(context.Background(), "nowhere"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a missing network: %v", err)
	}
}

func TestMissingTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	e := &Env{o: Options{Sink: event.Discard}}
	missing := (*MissingToolsError)(nil)
	if err := e.checkTools("ip", "nsenter", "unshare", "mmdebstrap"); !errors.As(err, &missing) {
		t.Fatal(err)
	}
	if !slices.Equal(missing.Packages, []string{"iproute2", "util-linux", "mmdebstrap"}) || len(missing.Tools) != 4 {
		t.Errorf("%+v", missing)
	}
	e.o.RuncPath = filepath.Join(t.TempDir(), "runc")
	if err := e.checkTools("runc"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a runc that is not there: %v", err)
	}
}

func TestMirrors(t *testing.T) {
	for _, c := range []struct {
		name string
		read map[string]string
		want []string
	}{
		{"nothing known", nil, []string{"deb http://deb.debian.org/debian bookworm main"}},
		{"one-line style", map[string]string{"sources.list": "# a comment\ndeb [arch=amd64 signed-by=/x] https://mirror.example/debian bookworm main contrib # x\ndeb-src https://src.example/debian bookworm main\n" +
			"deb https://mirror.example/debian-security bookworm-security main\n"},
			[]string{"deb https://mirror.example/debian bookworm main", "deb https://mirror.example/debian bookworm-updates main", "deb https://mirror.example/debian-security bookworm-security main"}},
		{"deb822 of a newer release", map[string]string{"debian.sources": "Types: deb\nURIs: http://m.example/debian\nSuites: trixie trixie-updates\nComponents: main\n\nTypes: deb\nEnabled: no\nURIs: http://no.example/debian\nSuites: bookworm\nComponents: main\n"},
			[]string{"deb http://m.example/debian bookworm main"}},
		{"another distribution", map[string]string{"ubuntu.sources": "Types: deb\nURIs: http://archive.example/ubuntu\nSuites: noble\nComponents: main\n", "x.list": "deb https://packages.example/apt cloud main\n"},
			[]string{"deb http://deb.debian.org/debian bookworm main"}},
		{"the right suite wins", map[string]string{"a.list": "deb http://old.example/debian bullseye main\n", "b.list": "deb http://right.example/debian bookworm main\n"},
			[]string{"deb http://right.example/debian bookworm main"}},
	} {
		if got := mirrors("bookworm", c.read); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func FuzzParseSources(f *testing.F) {
	f.Add("a.list", "deb [a=b http://x/debian s main")
	f.Add("a.sources", "Types: deb\n more\nURIs:\n http://x/debian\nSuites: s\nComponents: main")
	f.Add("a.sources", " continued first\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		for _, s := range parseSources(name, text) {
			if !strings.HasPrefix(strings.ToLower(s.uri), "http") || strings.ContainsAny(s.uri+s.suite, " \n") {
				t.Fatalf("%+v", s)
			}
		}
	})
}

func TestRecipeKey(t *testing.T) {
	r := machineRecipe()
	k1, err := r.key()
	if err != nil {
		t.Fatal(err)
	}
	r.Packages = append(r.Packages, "one-more")
	k2, err := r.key()
	if err != nil || k1 == k2 {
		t.Errorf("another package list has the same key %s (%v)", k1, err)
	}
}

func TestFinishRootfs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"etc/ssh/ssh_host_rsa_key": "secret", "etc/machine-id": "x", "etc/systemd/system/multi-user.target.wants/keep": ""} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := finishRootfs(machineRecipe(), dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{"etc/ssh/ssh_host_rsa_key", "etc/machine-id"} {
		if fileExists(filepath.Join(dir, gone)) {
			t.Errorf("%s is shared by all machines", gone)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "etc/systemd/system/systemd-sysctl.service")); err != nil || to != "/dev/null" {
		t.Errorf("systemd-sysctl: %s, %v", to, err)
	}
	if !fileExists(filepath.Join(dir, "belay")) {
		t.Error("no place for the services' configuration")
	}
}

func TestParseMountinfo(t *testing.T) {
	const text = `27 1 254:0 / / rw - ext4 /dev/vda rw
40 27 254:0 /x /s/net rw - ext4 /dev/vda rw
41 40 0:50 / /s/net/machines/a\040b/root rw shared:5 - overlay overlay rw
42 27 0:51 / /s/network-of-another rw - tmpfs tmpfs rw
43 41 0:52 / /s/net/machines/a\040b/root/proc rw - proc proc rw
short line
`
	want := []string{"/s/net", "/s/net/machines/a b/root", "/s/net/machines/a b/root/proc"}
	if got := parseMountinfo(text, "/s/net"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add(`1 2 3 4 /s\134\040x 6`, "/s")
	f.Add(`1 2 3 4 /s\ 6`, "/s")
	f.Fuzz(func(t *testing.T, text, dir string) {
		for _, p := range parseMountinfo(text, dir) {
			if !strings.HasPrefix(p, strings.TrimSuffix(dir, "/")) {
				t.Fatalf("%q is not below %q", p, dir)
			}
		}
	})
}

func TestParseRoutes(t *testing.T) {
	got := parseRoutes(`Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0102A8C0	0003	0	0	0	00000000	0	0	0
eth0	0002A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
tun0	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
`)
	if want := []netip.Prefix{netip.MustParsePrefix("192.168.2.0/24"), netip.MustParsePrefix("10.0.0.0/8")}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestBalancerConfig(t *testing.T) {
	c := balancerConfig(&lbRecord{Frontend: "10.200.0.1:6443", Backends: []string{"10.200.0.10:6443", "10.200.0.11:6443"}})
	for _, want := range []string{"bind 10.200.0.1:6443\n", "uri /readyz", "check-ssl verify none", "server cp1 10.200.0.10:6443\n", "server cp2 10.200.0.11:6443\n"} {
		if !strings.Contains(c, want) {
			t.Errorf("no %q in\n%s", want, c)
		}
	}
}

func TestLocksExcludeAndFollowTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := tryLockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = lockDir(ctx, dir, "it", cancel) // gives up as soon as it has to wait
	if busy := (*BusyError)(nil); !errors.As(err, &busy) || !errors.Is(err, context.Canceled) {
		t.Errorf("a taken lock: %v", err)
	}
	l.Close()
	l, err = lockDir(context.Background(), dir, "it", nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(context.Background(), dir, "it", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is gone: %v", err)
	}
}

func TestKeyPairAndMachineID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k")
	if err := makeKeyPair(path, "c"); err != nil {
		t.Fatal(err)
	}
	if _, err := readKey(path); err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("private key: %v, %v", fi.Mode(), err)
	}
	a, err := newMachineID()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := newMachineID(); err != nil || a == b || len(a) != 32 {
		t.Errorf("%q, %q, %v", a, b, err)
	}
}
