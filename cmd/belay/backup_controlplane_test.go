//go:build controlplane

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/kubeversion"
)

// expiredCert writes a client certificate whose time is over. Who signed it is never asked.
func expiredCert(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: "etcd-backup"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(k)
	must(t, err)
	cert, key = filepath.Join(dir, "old.crt"), filepath.Join(dir, "old.key")
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return cert, key
}

// TestBackupOfExternalEtcd backs a cluster up whose etcd is not on its nodes,
// with certificates that the user gives, and restores and verifies it.
func TestBackupOfExternalEtcd(t *testing.T) {
	cache, err := os.UserCacheDir()
	must(t, err)
	root := os.Getenv("BELAY_BUNDLES")
	if root == "" {
		root = filepath.Join(cache, "belay", "bundles")
	}
	b, err := bundle.Find(root, kubeversion.MustParse(defaultKubernetes), "")
	must(t, err)
	binary := func(name string) string {
		p, err := b.BinaryPath(name)
		must(t, err)
		return p
	}
	dir := t.TempDir()
	t.Setenv("BELAY_HOME", filepath.Join(dir, "home"))
	pki, err := controlplane.NewPKI(filepath.Join(dir, "pki"))
	must(t, err)
	other, err := controlplane.NewPKI(filepath.Join(dir, "other-pki"))
	must(t, err)
	etcd, err := controlplane.StartEtcd(t.Context(), controlplane.EtcdOptions{Binary: binary("etcd"), Dir: filepath.Join(dir, "etcd"), PKI: pki})
	must(t, err)
	defer etcd.Stop(t.Context())
	api, err := controlplane.StartAPIServer(t.Context(), controlplane.APIServerOptions{Binary: binary("kube-apiserver"), Dir: filepath.Join(dir, "api"), PKI: pki, Etcd: etcd})
	must(t, err)
	defer api.Stop(t.Context())
	client, err := kubernetes.NewForConfig(api.RESTConfig())
	must(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "here"}}, metav1.CreateOptions{})
	must(t, err)
	conf, err := api.Kubeconfig()
	must(t, err)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must(t, os.WriteFile(kubeconfig, conf, 0o600))

	belay := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errOut bytes.Buffer
		if code := run(t.Context(), append([]string{"--progress", "plain"}, args...), strings.NewReader(""), &out, &errOut); code != want {
			t.Fatalf("belay %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, out.String(), errOut.String())
		}
		t.Logf("belay %s\n%s%s", strings.Join(args, " "), errOut.String(), out.String())
		return strings.TrimSpace(out.String()), errOut.String()
	}
	create := func(ca, cert, key string) []string {
		return []string{"backup", "create", "--kubeconfig", kubeconfig, "-o", filepath.Join(dir, "backups"), "--etcd-endpoint", etcd.Endpoint(), "--etcd-cacert", ca, "--etcd-cert", cert, "--etcd-key", key}
	}
	oldCert, oldKey := expiredCert(t, dir)
	if _, stderr := belay(exitError, create(pki.Path("ca.crt"), oldCert, oldKey)...); !strings.Contains(stderr, "etcd-backup expired at") || !strings.Contains(stderr, "renew it") {
		t.Errorf("an expired certificate: %s", stderr)
	}
	if _, stderr := belay(exitError, create(other.Path("ca.crt"), pki.Path("etcd-client.crt"), pki.Path("etcd-client.key"))...); !strings.Contains(stderr, etcd.Endpoint()) || !strings.Contains(stderr, "certificate signed by unknown authority") {
		t.Errorf("a CA that did not sign the members' certificates: %s", stderr)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "backups")); err == nil && len(left) > 0 {
		t.Errorf("what failed left something: %v", left)
	}
	made, stderr := belay(exitOK, create(pki.Path("ca.crt"), pki.Path("etcd-client.crt"), pki.Path("etcd-client.key"))...)
	if strings.Contains(stderr, "==> \n") || strings.Contains(stderr, "==>\n") || !strings.Contains(stderr, "etcd: snapshot, opened and counted: revision") {
		t.Errorf("progress:\n%s", stderr)
	}
	m, err := backup.ReadManifest(made)
	must(t, err)
	if m.Level != backup.Opened || m.Etcd == nil || m.Etcd.Endpoint != etcd.Endpoint() || m.Etcd.Node != "" {
		t.Errorf("level %s, etcd %+v", m.Level, m.Etcd)
	}
	stdout, _ := belay(exitOK, "backup", "verify", made, "--level", "restored", "--bin-dir", filepath.Dir(binary("etcd")))
	if !strings.Contains(stdout, "listed by kube-apiserver v"+defaultKubernetes) {
		t.Errorf("report:\n%s", stdout)
	}
}
