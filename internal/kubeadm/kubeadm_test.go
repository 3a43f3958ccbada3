package kubeadm

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/kubeversion"
)

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (UPDATE_GOLDEN=1 rewrites it)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

func cluster() Cluster {
	return Cluster{
		Name: "demo", Version: kubeversion.MustParse("1.36.3"), Endpoint: "10.0.0.1:6443",
		PodSubnet: "10.244.0.0/16", ServiceSubnet: "10.96.0.0/12",
		Proxy: ProxySettings{Mode: "nftables"},
	}
}

func TestRenderInit(t *testing.T) {
	n := Node{Name: "cp1", Address: "10.0.0.2"}
	plain, err := RenderInit(cluster(), n)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "init.yaml", plain)
	for _, word := range []string{"failCgroupV1", "failSwapOn", "evictionHard", "conntrack", "ignorePreflightErrors"} {
		if bytes.Contains(plain, []byte(word)) {
			t.Errorf("%s is set without need", word)
		}
	}

	c := cluster()
	c.Kubelet = KubeletSettings{AllowCgroupV1: true, AllowSwap: true, SharedDisk: true, FeatureGates: map[string]bool{"X": true}}
	c.Proxy.LeaveConntrack = true
	c.CertSANs = []string{"api.example.org"}
	c.ExtraArgs = map[string]map[string]string{"apiServer": {"v": "2", "audit-log-path": "-"}, "etcd": {"quota-backend-bytes": "1"}, "scheduler": {"v": "3"}}
	n.IgnorePreflight = []string{SystemVerification}
	n.CertificateKey = strings.Repeat("ab", 32)
	full, err := RenderInit(c, n)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "init-full.yaml", full)
	again, _ := RenderInit(c, n)
	if !bytes.Equal(full, again) {
		t.Error("the same input gave other bytes")
	}
	for i, doc := range bytes.Split(full, []byte("---\n")) {
		if err := yaml.UnmarshalStrict(doc, &map[string]any{}); err != nil {
			t.Errorf("document %d: %v", i, err)
		}
	}
}

func TestRenderJoin(t *testing.T) {
	j := Join{
		Node:     Node{Name: "cp2", Address: "10.0.0.3", CertificateKey: strings.Repeat("cd", 32)},
		Endpoint: "10.0.0.1:6443", Token: "abcdef.0123456789abcdef", CACertHash: "sha256:00", ControlPlane: true,
	}
	v := kubeversion.MustParse("1.36.3")
	out, err := RenderJoin(v, j)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "join-control-plane.yaml", out)
	j.ControlPlane = false
	out, err = RenderJoin(v, j)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "join-worker.yaml", out)
	if bytes.Contains(out, []byte("certificateKey")) {
		t.Error("a worker gets the key of the control plane's certificates")
	}
}

func TestRenderRefuses(t *testing.T) {
	v := kubeversion.MustParse("1.36.3")
	full := Join{Node: Node{Name: "n", Address: "a"}, Endpoint: "e", Token: "t", CACertHash: "h"}
	for name, mutate := range map[string]func(*Join){
		"node name":           func(j *Join) { j.Name = "" },
		"address":             func(j *Join) { j.Address = "" },
		"endpoint":            func(j *Join) { j.Endpoint = "" },
		"token":               func(j *Join) { j.Token = "" },
		"CA certificate hash": func(j *Join) { j.CACertHash = "" },
		"certificate key":     func(j *Join) { j.ControlPlane = true },
	} {
		j := full
		mutate(&j)
		if _, err := RenderJoin(v, j); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: error %v", name, err)
		}
	}
	c := cluster()
	c.Version = kubeversion.MustParse("1.30.9")
	if _, err := RenderInit(c, Node{Name: "n", Address: "a"}); err == nil {
		t.Error("1.30 has no v1beta4 and was accepted")
	}
}

func TestParseImages(t *testing.T) {
	out := "W1201 00:00:00.000000 1 version.go:100] could not fetch\nregistry.k8s.io/kube-apiserver:v1.36.3\nlocalhost:5000/pause:3.10.2\n\n"
	got, err := ParseImages([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"registry.k8s.io/kube-apiserver:v1.36.3", "localhost:5000/pause:3.10.2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"", "\n", "localhost:5000/pause\n", "pause:\n"} {
		if got, err := ParseImages([]byte(bad)); err == nil {
			t.Errorf("%q: got %v and no error", bad, got)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{"v1.36.3\n": "v1.36.3", "Kubernetes v1.37.2\n": "v1.37.2"} {
		got, err := ParseVersion([]byte(in))
		if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	if _, err := ParseVersion([]byte("kubeadm: not found")); err == nil {
		t.Error("nonsense was accepted")
	}
}

func TestParseToken(t *testing.T) {
	if tok, err := ParseToken([]byte("abcdef.0123456789abcdef\n")); err != nil || tok != "abcdef.0123456789abcdef" {
		t.Errorf("got %q, %v", tok, err)
	}
	for _, bad := range []string{"", "abcdef", "abcdef.0123456789abcde", "abcdeF.0123456789abcdef", "abcdef.0123456789abcdef extra"} {
		_, err := ParseToken([]byte(bad))
		if err == nil {
			t.Errorf("%q was accepted", bad)
		} else if bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("the error repeats %q", bad)
		}
	}
}

func TestCACertHash(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	sum := func() string {
		der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		h, err := CACertHash(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	a := sum()
	tmpl.SerialNumber = big.NewInt(2)
	if b := sum(); a != b {
		t.Error("a renewed certificate of the same key has another hash")
	}
	if !strings.HasPrefix(a, "sha256:") || len(a) != len("sha256:")+64 {
		t.Errorf("hash is %q", a)
	}
	if _, err := CACertHash([]byte("nothing")); err == nil {
		t.Error("no certificate was accepted")
	}
}

func FuzzParseImages(f *testing.F) {
	f.Add([]byte("registry.k8s.io/pause:3.10.2\n"))
	f.Add([]byte("a b\n:\nlocalhost:5000/x:y"))
	f.Fuzz(func(t *testing.T, in []byte) {
		images, err := ParseImages(in)
		if (err == nil) != (len(images) > 0) {
			t.Fatalf("%d images and error %v", len(images), err)
		}
		for _, i := range images {
			if strings.ContainsAny(i, " \t\n") || !strings.Contains(i, ":") {
				t.Fatalf("image %q", i)
			}
		}
	})
}
