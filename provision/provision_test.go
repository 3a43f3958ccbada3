package provision

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belayops/belay/internal/host"
)

// A Debian 12 node as it comes: cgroup v2, root, every capability.
const ordinaryFacts = `uid=0
machine=x86_64
systemd=1
cgroup=cgroup2fs
capbnd=000001ffffffffff
swaps=0
forward=0
bridge=
overlay=1
free=20000000
disk=100000000
`

func parse(t *testing.T, out string) facts {
	t.Helper()
	f, err := parseFacts(out)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOrdinaryHostNeedsNothingSpecial(t *testing.T) {
	f := parse(t, ordinaryFacts)
	if err := f.check("n1", "shop", "shop/1", "amd64"); err != nil {
		t.Error(err)
	}
	q, err := f.quirks("n1", false, allowed{}, Quirks{})
	if err != nil || q.words() != "" {
		t.Errorf("quirks %q, %v", q.words(), err)
	}
}

func TestHostProblems(t *testing.T) {
	for name, c := range map[string]struct {
		replace [2]string
		want    string
	}{
		"not root":     {[2]string{"uid=0", "uid=1000"}, "sudo"},
		"no systemd":   {[2]string{"systemd=1\n", ""}, "systemd"},
		"architecture": {[2]string{"x86_64", "aarch64"}, "is arm64 and the bundle is for amd64"},
		"no overlay":   {[2]string{"overlay=1\n", ""}, "overlay"},
		"disk":         {[2]string{"free=20000000", "free=1000000"}, "976 MiB free"},
		"programs":     {[2]string{"free=", "missing=ethtool\nmissing=ip\nfree="}, "install there: ethtool iproute2"},
		"foreign node": {[2]string{"free=", "kubernetes=1\nfree="}, "that belay did not bring up"},
		"other owner":  {[2]string{"free=", "kubernetes=1\nowner=web/2\nfree="}, "another cluster (web/2)"},
	} {
		f := parse(t, strings.Replace(ordinaryFacts, c.replace[0], c.replace[1], 1))
		err := f.check("n1", "shop", "shop/1", "amd64")
		problem := (*HostProblem)(nil)
		if !errors.As(err, &problem) || !strings.Contains(err.Error(), c.want) || problem.Remedy == "" || problem.Host != "n1" {
			t.Errorf("%s: %v", name, err)
		}
	}
	ours := parse(t, strings.Replace(ordinaryFacts, "free=", "kubernetes=1\nowner=shop/1\nfree=", 1))
	if err := ours.check("n1", "shop", "shop/1", "amd64"); err != nil {
		t.Errorf("a node of this very cluster: %v", err)
	}
}

// What is somebody else's in belay's places would be overwritten, and removed with the cluster.
func TestWhatBelayDidNotPutThereIsNotTakenOver(t *testing.T) {
	with := func(lines string) facts { return parse(t, ordinaryFacts+lines) }
	for name, c := range map[string]struct {
		f          facts
		takeOver   bool
		want       string
		forMachine bool
	}{
		"containerd's data":         {with("foreign=/var/lib/containerd\nforeign=/etc/containerd/config.toml\n"), false, "takeOver: true", false},
		"taken over":                {with("foreign=/var/lib/containerd\n"), true, "", false},
		"an etcd":                   {with("foreign=/var/lib/etcd/member\n"), false, "data of an etcd", false},
		"an etcd is never taken":    {with("foreign=/var/lib/etcd/member\n"), true, "data of an etcd", false},
		"ours":                      {with("foreign=/var/lib/containerd\nforeign=/var/lib/etcd/member\nowner=shop/1\n"), false, "", false},
		"a machine that belay made": {with("foreign=/usr/bin/kubectl\n"), false, "", true},
		"nothing":                   {with(""), false, "", false},
	} {
		_, err := c.f.quirks("n1", c.forMachine, allowed{takeOver: c.takeOver}, Quirks{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The script itself, on this computer: it names what is there, and nothing else.
func TestFactsScriptNamesWhatIsThere(t *testing.T) {
	h := host.NewLocal("here")
	here := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := h.Run(t.Context(), host.Cmd{Argv: []string{"sh", "-c", factsScript, "facts", "sh", "no-such-program", "--", here, here + ".not"}})
	if err != nil {
		t.Fatal(err)
	}
	f := parse(t, string(res.Stdout))
	if !slices.Contains(f.Foreign, here) || slices.Contains(f.Foreign, here+".not") || !slices.Equal(f.Missing, []string{"no-such-program"}) {
		t.Errorf("foreign %q, missing %q", f.Foreign, f.Missing)
	}
}

func TestOnlySilentHostsAreUnreached(t *testing.T) {
	_, noKey := os.ReadFile(filepath.Join(t.TempDir(), "id_ed25519"))
	_, noAgent := net.Dial("unix", filepath.Join(t.TempDir(), "agent"))
	if noKey == nil || noAgent == nil {
		t.Fatal("they are there")
	}
	for want, errs := range map[bool][]error{
		true: {
			&host.NotStartedError{Host: "a", Err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}},
			fmt.Errorf("look: %w", &host.NotStartedError{Host: "a", Err: context.DeadlineExceeded}),
		},
		false: {
			&host.NotStartedError{Host: "a", Err: &host.HostKeyError{}},
			&host.NotStartedError{Host: "a", Err: fmt.Errorf("key: %w", noKey)},
			&host.NotStartedError{Host: "a", Err: noAgent},
			&host.NotStartedError{Host: "a", Err: errors.New("ssh: unable to authenticate")},
			&host.LostError{Host: "a", Err: context.DeadlineExceeded},
			nil,
		},
	} {
		for _, err := range errs {
			if unreached(err) != want {
				t.Errorf("%v: want %v", err, want)
			}
		}
	}
}

func TestParseFactsRefusesHalfAnAnswer(t *testing.T) {
	for _, out := range []string{"", "uid=0\n", "machine=x86_64\n", strings.Replace(ordinaryFacts, "free=20000000", "free=", 1), strings.Replace(ordinaryFacts, "capbnd=0", "capbnd=x", 1)} {
		if f, err := parseFacts(out); err == nil {
			t.Errorf("%q: %+v", out, f)
		}
	}
}

// What a host of one's own needs must be somebody's decision; machines made for tests bring theirs along.
func TestQuirks(t *testing.T) {
	v1 := parse(t, strings.NewReplacer("cgroup2fs", "tmpfs", "capbnd=000001ffffffffff", "capbnd=000001fffeffffff", "swaps=0", "swaps=0\nconntracklocked=1").Replace(ordinaryFacts))

	_, err := v1.quirks("n1", false, allowed{}, Quirks{})
	if err == nil || !strings.Contains(err.Error(), "allowCgroupV1: true") {
		t.Errorf("cgroup v1 on a user's host: %v", err)
	}
	q, err := v1.quirks("n1", false, allowed{cgroupV1: true}, Quirks{})
	if err != nil || !q.AllowCgroupV1 || !slices.Contains(q.IgnorePreflight, "SystemVerification") {
		t.Errorf("allowed by name: %+v, %v", q, err)
	}
	if !q.RestrictOOMScoreAdj || !q.LeaveConntrack {
		t.Errorf("not detected on the host: %+v", q)
	}
	given := Quirks{AllowCgroupV1: true, IgnorePreflight: []string{"SystemVerification"}}
	q, err = v1.quirks("m1", true, allowed{}, given)
	if err != nil || !q.AllowCgroupV1 || len(q.IgnorePreflight) != 1 || !q.RestrictOOMScoreAdj {
		t.Errorf("a machine: %+v, %v", q, err)
	}
	swap := parse(t, strings.Replace(ordinaryFacts, "swaps=0", "swaps=1", 1))
	full := parse(t, strings.Replace(ordinaryFacts, "free=20000000", "free=14000000", 1))
	if _, err := full.quirks("n1", false, allowed{}, Quirks{}); err == nil || !strings.Contains(err.Error(), "14% of its disk free") || !strings.Contains(err.Error(), "sharedDisk: true") {
		t.Errorf("a disk on which a kubelet takes no pods: %v", err)
	}
	if q, err := full.quirks("n1", false, allowed{sharedDisk: true}, Quirks{}); err != nil || !q.SharedDisk {
		t.Errorf("a shared disk: %+v, %v", q, err)
	}
	full.Owner = "shop/1"
	if _, err := full.quirks("n1", false, allowed{}, Quirks{}); err != nil {
		t.Errorf("a node that is there already: %v", err)
	}
	if _, err := swap.quirks("n1", false, allowed{}, Quirks{}); err == nil || !strings.Contains(err.Error(), "swapoff") {
		t.Errorf("swap: %v", err)
	}
}

func TestContainerdConfig(t *testing.T) {
	plain := renderContainerd("registry.k8s.io/pause:3.10.2", false)
	for _, want := range []string{"version = 3\n", "SystemdCgroup = true", `sandbox = "registry.k8s.io/pause:3.10.2"`, "restrict_oom_score_adj = false"} {
		if !strings.Contains(plain, want) {
			t.Errorf("%q is missing in:\n%s", want, plain)
		}
	}
	if !strings.Contains(renderContainerd("p", true), "restrict_oom_score_adj = true") {
		t.Error("the quirk has no effect")
	}
}

func TestKubeRouterManifest(t *testing.T) {
	objects, err := renderKubeRouter("docker.io/cloudnativelabs/kube-router:v2.1.0", "10.0.0.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range objects {
		kinds = append(kinds, o.GetKind())
		if o.GetName() == "" || o.GetAPIVersion() == "" {
			t.Errorf("an object without name or version: %v", o.Object)
		}
		text, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "@") {
			t.Errorf("a placeholder is left in %s: %s", o.GetKind(), text)
		}
	}
	if want := []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
	if _, err := renderKubeRouter("x", "10.0.0.1"); err == nil {
		t.Error("an endpoint without a port was accepted")
	}
}

func machinesSpec(name string) *Spec {
	s := &Spec{APIVersion: SpecAPIVersion, Kind: SpecKind, Name: name, KubernetesVersion: "1.36.3", Machines: &SpecMachines{ControlPlanes: 1, Workers: 1}}
	s.SetDefaults()
	return s
}

func TestStateIsTakenUpAgain(t *testing.T) {
	home := t.TempDir()
	d := dirOf(home, "a")
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	first, err := d.begin(machinesSpec("a"), now)
	if err != nil {
		t.Fatal(err)
	}
	if first.ID == "" || first.owner() != "a/"+first.ID {
		t.Errorf("identity: %+v", first)
	}
	first.Joined = append(first.Joined, "a-cp1")
	if err := d.saveState(first); err != nil {
		t.Fatal(err)
	}
	again, err := d.begin(machinesSpec("a"), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if again.ID != first.ID || !again.joined("a-cp1") || again.joined("a-w1") || !again.Created.Equal(first.Created) {
		t.Errorf("taken up: %+v, want %+v", again, first)
	}

	other := machinesSpec("a")
	other.Machines.Workers, other.PodSubnet = 2, "10.245.0.0/16"
	_, err = d.begin(other, now)
	changed := (*ChangedSpecError)(nil)
	if !errors.As(err, &changed) || !slices.Equal(changed.Fields, []string{"podSubnet", "machines"}) {
		t.Errorf("another spec: %v", err)
	}
}

func TestOneRunAtATime(t *testing.T) {
	d := dirOf(t.TempDir(), "a")
	unlock, err := d.lock("a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.lock("a"); !errors.As(err, new(*BusyError)) {
		t.Errorf("second lock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = d.lock("a")
	if err != nil {
		t.Fatal(err)
	}
	// A lock file that its owner removed locks nobody.
	if err := os.Remove(d.lockFile()); err != nil {
		t.Fatal(err)
	}
	second, err := d.lock("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unlock(), second()); err != nil {
		t.Fatal(err)
	}
}

func TestDownLeavesNothing(t *testing.T) {
	home := t.TempDir()
	o := Options{Home: home}
	if err := Down(t.Context(), "a", o); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("a cluster that never was: %v", err)
	}
	d := dirOf(home, "a")
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.begin(machinesSpec("a"), time.Now()); err != nil {
		t.Fatal(err)
	}
	list, err := List(t.Context(), o)
	if err != nil || len(list) != 1 || list[0].Status != StatusIncomplete || list[0].Nodes != "1+1" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := Down(t.Context(), "a", o); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), "../x", o); err == nil || errors.As(err, new(*NotFoundError)) {
		t.Errorf("a name that is a path: %v", err)
	}
}
