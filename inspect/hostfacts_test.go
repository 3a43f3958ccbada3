package inspect

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/host"
)

// scriptHost runs the real script with the real shell of this computer.
func scriptHost(t *testing.T) host.Host {
	t.Helper()
	h := host.NewLocal("cp1")
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func write(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certAndKey gives a PEM file of a certificate and its key.
func certAndKey(t *testing.T, cn string, notAfter time.Time) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, NotBefore: notAfter.AddDate(-1, 0, 0), NotAfter: notAfter}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kb}))
}

func TestReadHostRunsTheScript(t *testing.T) {
	root := t.TempDir()
	end := time.Now().Add(100 * time.Hour).Truncate(time.Second).UTC()
	cert, key := certAndKey(t, "system:node:cp1", end)
	write(t, root, "sys/fs/cgroup/x", "")
	write(t, root, "proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1024 0 -2\n/swapfile file 2048 0 -3\n")
	write(t, root, "var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nfailCgroupV1: false\nfailSwapOn: false\ncgroupDriver: systemd\nfeatureGates:\n  SidecarContainers: true\n")
	write(t, root, "var/lib/kubelet/kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --pod-infra-container-image=registry.k8s.io/pause:3.9"`+"\n")
	write(t, root, "etc/default/kubelet", "# comment\nKUBELET_EXTRA_ARGS=--node_ip 10.0.0.1 -v=2\n")
	write(t, root, "var/lib/kubelet/pki/kubelet-client-current.pem", cert+key)
	write(t, root, "etc/kubernetes/pki/etcd/server.crt", cert)
	write(t, root, "etc/kubernetes/pki/broken.crt", "nothing")
	write(t, root, "etc/kubernetes/admin.conf", "users:\n- user:\n    client-certificate-data: "+base64.StdEncoding.EncodeToString([]byte(cert))+"\n    client-key-data: "+base64.StdEncoding.EncodeToString([]byte(key))+"\n")
	write(t, root, "etc/kubernetes/kubelet.conf", "users:\n- user:\n    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n")
	write(t, root, "etc/kubernetes/manifests/etcd.yaml", "kind: Pod\nmetadata:\n  labels: {component: etcd}\nspec:\n  containers:\n  - name: etcd\n    image: registry.k8s.io/etcd:3.6.8-0\n    command: [etcd, --experimental-x=1]\n")
	write(t, root, "etc/kubernetes/manifests/vip.yaml", "kind: Pod\nmetadata: {name: vip}\nspec: {containers: [{name: vip, image: vip}]}\n")
	write(t, root, "etc/kubernetes/manifests/bad.yaml", "kind: [\n")
	write(t, root, "etc/kubernetes/tmp/kubeadm-backup-etcd-1/member/snap/db", strings.Repeat("x", 8192))
	write(t, root, "var/lib/etcd/member/snap/db", strings.Repeat("x", 1<<20))

	var sent bytes.Buffer
	h := recordingHost{scriptHost(t), &sent}
	m, err := readHost(context.Background(), h, "cp1", root, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	f := m.facts
	no := false
	if f.SwapBytes != 3<<20 || !reflect.DeepEqual(f.FailCgroupV1, &no) || !reflect.DeepEqual(f.FailSwapOn, &no) || f.CgroupDriver != "systemd" || !f.KubeletFeatureGates["SidecarContainers"] {
		t.Errorf("swap and kubelet configuration: %+v", f)
	}
	wantFlags := []cluster.Flag{
		{Name: "container-runtime-endpoint", Value: "unix:///run/containerd/containerd.sock", Source: "/var/lib/kubelet/kubeadm-flags.env"},
		{Name: "node-ip", Value: "10.0.0.1", Source: "/etc/default/kubelet"},
		{Name: "pod-infra-container-image", Value: "registry.k8s.io/pause:3.9", Source: "/var/lib/kubelet/kubeadm-flags.env"},
		{Name: "v", Value: "2", Source: "/etc/default/kubelet"},
	}
	if !reflect.DeepEqual(f.KubeletFlags, wantFlags) {
		t.Errorf("kubelet flags %+v", f.KubeletFlags)
	}
	var paths []string
	for _, c := range f.Certificates {
		paths = append(paths, c.Path)
		if !c.NotAfter.Equal(end) || c.Subject != "CN=system:node:cp1" || c.CA {
			t.Errorf("certificate %+v", c)
		}
	}
	if want := []string{"/etc/kubernetes/pki/etcd/server.crt", "/var/lib/kubelet/pki/kubelet-client-current.pem", "/etc/kubernetes/admin.conf"}; !slices.Equal(paths, want) {
		t.Errorf("certificates of %q, want %q", paths, want)
	}
	if m.images["etcd"] != "registry.k8s.io/etcd:3.6.8-0" || !slices.Equal(f.Manifests, []string{"etcd"}) || !slices.Contains(m.args["etcd"], "--experimental-x=1") {
		t.Errorf("manifests %v %v %v", f.Manifests, m.images, m.args)
	}
	if !slices.Equal(f.KubeadmResidue, []string{"/etc/kubernetes/tmp/kubeadm-backup-etcd-1"}) || f.KubeadmResidueBytes < 8192 {
		t.Errorf("residue %v, %d bytes", f.KubeadmResidue, f.KubeadmResidueBytes)
	}
	etcdDisk := slices.IndexFunc(f.Disks, func(d cluster.Disk) bool { return d.Path == "/var/lib/etcd" })
	if etcdDisk < 0 || f.Disks[etcdDisk].UsedBytes < 1<<20 || f.Disks[etcdDisk].TotalBytes <= 0 || f.Disks[etcdDisk].FreeBytes <= 0 {
		t.Errorf("disks %+v", f.Disks)
	}
	if f.ClockOffset > time.Second || f.ClockOffset < -time.Second {
		t.Errorf("the own clock is off by %s", f.ClockOffset)
	}
	unread := map[string]string{}
	for _, u := range m.unread {
		unread[u.What] = u.Kind
	}
	for what, kind := range map[string]string{
		"node/cp1/host/cert:/etc/kubernetes/pki/broken.crt":         cluster.UnreadMalformed,
		"node/cp1/host/manifest:/etc/kubernetes/manifests/bad.yaml": cluster.UnreadMalformed,
	} {
		if unread[what] != kind {
			t.Errorf("%s: kind %q, want %q (all: %v)", what, unread[what], kind, unread)
		}
	}
	// The machine's private keys stay there.
	for line := range strings.Lines(sent.String()) {
		text, err := base64.StdEncoding.DecodeString(line[strings.LastIndexByte(line, ' ')+1:][:len(line)-strings.LastIndexByte(line, ' ')-2])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if bytes.Contains(text, []byte("PRIVATE KEY")) || bytes.Contains(text, []byte("client-key-data")) {
			t.Errorf("a private key left the machine: %s", line[:40])
		}
	}
}

// recordingHost keeps what programs print.
type recordingHost struct {
	host.Host
	out *bytes.Buffer
}

func (h recordingHost) Run(ctx context.Context, c host.Cmd) (host.Result, error) {
	r, err := h.Host.Run(ctx, c)
	h.out.Write(r.Stdout)
	return r, err
}

func line(name string, code string, text string) string {
	return name + " " + code + " " + base64.StdEncoding.EncodeToString([]byte(text)) + "\n"
}

func TestInterpret(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	facts := func(lines ...string) (cluster.HostFacts, map[string]string) {
		t.Helper()
		all := line("clock-start", "0", "1800000010.000000000") + strings.Join(lines, "") + line("clock-end", "0", "1800000010.000000000")
		rs, err := parseRecords([]byte(all))
		if err != nil {
			t.Fatal(err)
		}
		m := interpret("n", rs, at, at)
		unread := map[string]string{}
		for _, u := range m.unread {
			unread[strings.TrimPrefix(u.What, "node/n/host/")] = u.Kind
		}
		return m.facts, unread
	}
	if f, _ := facts(); f.ClockOffset != 10*time.Second {
		t.Errorf("clock offset %s", f.ClockOffset)
	}
	for fs, want := range map[string]int{"cgroup2fs": 2, "tmpfs": 1, "ext2/ext3": 0} {
		if f, u := facts(line("cgroup", "0", fs)); f.CgroupVersion != want || (want == 0) != (u["cgroup"] == cluster.UnreadMalformed) {
			t.Errorf("%s: cgroup %d, %v", fs, f.CgroupVersion, u)
		}
	}
	f, u := facts(
		line("kubelet-version", "0", "Kubernetes v1.36.3"), line("kubeadm-version", "127", "sh: kubeadm: not found"),
		line("containerd-version", "0", "containerd github.com/containerd/containerd/v2 v2.4.2 abcdef"),
		line("runc-version", "0", "runc version 1.5.3\ncommit: v1.5.3-0-g\nspec: 1.3.0\n"),
		line("du:/var/lib/etcd", "124", ""), line("kubelet-active", "3", "inactive"),
		line("dpkg", "1", "hold installed kubelet\ninstall installed kubeadm\nunknown not-installed kubectl\ndpkg-query: no packages found matching cri-o"),
	)
	if f.KubeletBinary.String() != "v1.36.3" || !f.KubeadmBinary.IsZero() || f.Containerd != "2.4.2" || f.Runc != "1.5.3" || f.KubeletActive != "inactive" {
		t.Errorf("%+v", f)
	}
	if !slices.Equal(f.HeldPackages, []string{"kubelet"}) || !slices.Equal(f.UnheldPackages, []string{"kubeadm"}) {
		t.Errorf("held %v unheld %v", f.HeldPackages, f.UnheldPackages)
	}
	if u["kubeadm-version"] != cluster.UnreadNotFound || u["du:/var/lib/etcd"] != cluster.UnreadMalformed && u["du:/var/lib/etcd"] != cluster.UnreadTimeout {
		t.Errorf("unread %v", u)
	}
	f, _ = facts(line("rpm", "2", "kubelet\nkubeadm\npackage kubectl is not installed\ncri-tools\n"),
		line("rpmlock:/etc/dnf/plugins/versionlock.list", "0", "# kubeadm-0:1\nkubelet-0:1.36.3-150500.1.1.*\n"),
		line("rpmlock:/etc/yum.repos.d/kubernetes.repo", "0", "[kubernetes]\nexclude=cri-tools kubernetes-cni\n"))
	if !slices.Equal(f.HeldPackages, []string{"kubelet", "cri-tools"}) || !slices.Equal(f.UnheldPackages, []string{"kubeadm"}) {
		t.Errorf("rpm: held %v unheld %v", f.HeldPackages, f.UnheldPackages)
	}
	// A flag that a file has and the process runs with is mended in the file.
	f, _ = facts(line("env:/etc/default/kubelet", "0", "KUBELET_EXTRA_ARGS='--containerd=/run/x.sock'"),
		line("kubelet-cmdline", "0", "/usr/bin/kubelet\n--containerd=/run/x.sock\n--boot-id-file=/x\n"),
		line("kubelet-unit", "0", "# /etc/systemd/system/kubelet.service.d/10-x.conf\n[Service]\nEnvironment=\"X=--storage_driver_db=y\"\nExecStart=/usr/bin/kubelet $X\n"))
	want := []cluster.Flag{
		{Name: "boot-id-file", Value: "/x", Source: runningProcess},
		{Name: "containerd", Value: "/run/x.sock", Source: "/etc/default/kubelet"},
		{Name: "storage-driver-db", Value: "y", Source: "/etc/systemd/system/kubelet.service.d/10-x.conf"},
	}
	if !reflect.DeepEqual(f.KubeletFlags, want) {
		t.Errorf("flags %+v", f.KubeletFlags)
	}
}

func TestParseRecordsRefuses(t *testing.T) {
	for _, in := range []string{
		"", "Welcome to cp1!\n", line("clock-start", "0", "1"), "clock-start 0 !!!\n", "clock-start x MQ==\n",
		line("clock-start", "0", "1") + "a banner in between\n" + line("clock-end", "0", "1"),
		line("clock-start", "0", "1") + line("cgroup", "0", "tmpfs"), // cut off
	} {
		if r, err := parseRecords([]byte(in)); err == nil {
			t.Errorf("%q gave %v", in, r)
		}
	}
}

func TestParseDF(t *testing.T) {
	d, err := parseDF("/x", "Filesystem     1024-blocks      Used Available Capacity Mounted on\n//server/my share  1000000    400000    600000      40% /mnt/a b\n")
	if err != nil || d.FreeBytes != 600000<<10 || d.TotalBytes != 1000000<<10 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, in := range []string{"", "Filesystem\n", "F\na b c d e f\n", "F\n/dev/x a b c 1% /\n", "F\n/dev/x -1 1 1 1% /\n"} {
		if _, err := parseDF("/x", in); err == nil {
			t.Errorf("%q was read", in)
		}
	}
}

func TestReadHostSaysMalformed(t *testing.T) {
	h := bannerHost{scriptHost(t)}
	_, err := readHost(context.Background(), h, "cp1", "", time.Now)
	if !errors.Is(err, errMalformed) || kindOf(err) != cluster.UnreadMalformed {
		t.Errorf("%v", err)
	}
}

type bannerHost struct{ host.Host }

func (bannerHost) Run(context.Context, host.Cmd) (host.Result, error) {
	return host.Result{Stdout: []byte("This account is currently not available.\n")}, nil
}

func FuzzParseRecords(f *testing.F) {
	f.Add([]byte(line("clock-start", "0", "1.5") + line("df:/", "0", "x\n1 2 3 4 5% /") + line("swaps", "0", "h\na b 1") + line("clock-end", "0", "2")))
	f.Add([]byte(line("clock-start", "0", "") + line("manifest:/m", "0", "kind: Pod") + line("env:/e", "0", "KUBELET_EXTRA_ARGS=\"--a b\"") + line("clock-end", "0", "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		rs, err := parseRecords(b)
		if err != nil {
			return
		}
		m := interpret("n", rs, time.Unix(0, 0), time.Unix(1, 0))
		for _, d := range m.facts.Disks {
			if d.FreeBytes < 0 || d.TotalBytes < 0 {
				t.Fatalf("%+v", d)
			}
		}
		for _, fl := range m.facts.KubeletFlags {
			if fl.Name == "" {
				t.Fatalf("a flag without a name: %+v", fl)
			}
		}
	})
}
