package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
)

// PKI is a throwaway certificate authority and what it signed, as files (0600) in a directory.
type PKI struct {
	dir    string
	ca     *x509.Certificate
	caKey  crypto.Signer
	serial int64
	notBef time.Time
}

// pkiLife is how long the certificates live. They are never renewed: a run lasts minutes.
const pkiLife = 7 * 24 * time.Hour

// NewPKI makes a CA and the certificates of etcd, kube-apiserver and an administrator in dir (made 0700).
func NewPKI(dir string) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	// An hour back, for clocks that are set while it runs.
	p := &PKI{dir: dir, caKey: key, serial: 1, notBef: time.Now().Add(-time.Hour)}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(p.serial), Subject: pkix.Name{CommonName: "belay throwaway CA"},
		NotBefore: p.notBef, NotAfter: p.notBef.Add(pkiLife), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	local := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	err = errors.Join(
		p.write("ca.crt", "CERTIFICATE", der),
		p.sign("etcd", pkix.Name{CommonName: "etcd"}, local),
		p.sign("etcd-client", pkix.Name{CommonName: "etcd-client"}, nil),
		p.sign("apiserver", pkix.Name{CommonName: "kube-apiserver"}, append(local, net.IPv4(10, 96, 0, 1))),
		p.sign("admin", pkix.Name{CommonName: "belay-admin", Organization: []string{"system:masters"}}, nil),
		p.serviceAccountKey(),
	)
	if err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	return p, nil
}

// Path gives the file that holds name ("ca.crt", "admin.key", "etcd-client.crt", "sa.key").
func (p *PKI) Path(name string) string { return filepath.Join(p.dir, name) }

// sign writes NAME.crt and NAME.key; with ips it is a server's (and client's) certificate, else a client's.
func (p *PKI) sign(name string, subject pkix.Name, ips []net.IP) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	p.serial++
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(p.serial), Subject: subject,
		NotBefore: p.notBef, NotAfter: p.notBef.Add(pkiLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(ips) > 0 {
		tmpl.IPAddresses = ips
		tmpl.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, p.ca, key.Public(), p.caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(p.write(name+".crt", "CERTIFICATE", der), p.write(name+".key", "PRIVATE KEY", keyDER))
}

func (p *PKI) serviceAccountKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return errors.Join(p.write("sa.key", "PRIVATE KEY", der), p.write("sa.pub", "PUBLIC KEY", pub))
}

func (p *PKI) write(name, kind string, der []byte) error {
	return atomicfile.WriteFile(p.Path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// clientTLS gives a configuration that trusts only this CA and presents NAME.crt.
func (p *PKI) clientTLS(name string) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(p.Path(name+".crt"), p.Path(name+".key"))
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{cert}}, nil
}
