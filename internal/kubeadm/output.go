package kubeadm

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/belayops/belay/internal/kubeversion"
)

// ParseVersion reads what VersionArgv prints, and what `kubelet --version` prints ("Kubernetes v1.36.3").
func ParseVersion(out []byte) (kubeversion.V, error) {
	s := strings.TrimSpace(string(out))
	s = strings.TrimPrefix(s, "Kubernetes ")
	return kubeversion.Parse(s)
}

// ParseToken reads what CreateTokenArgv prints: a token of six and sixteen characters of [a-z0-9].
func ParseToken(out []byte) (string, error) {
	s := strings.TrimSpace(string(out))
	id, secret, ok := strings.Cut(s, ".")
	valid := func(part string, n int) bool {
		return len(part) == n && strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
	}
	if !ok || !valid(id, 6) || !valid(secret, 16) {
		// The output is not repeated here: it may hold a secret all the same.
		return "", errors.New("kubeadm token create: its output is not a bootstrap token")
	}
	return s, nil
}

// ParseImages reads what ImagesListArgv prints: one image reference a line. Lines that kubeadm's logger adds
// are not references and are passed over.
func ParseImages(out []byte) ([]string, error) {
	var images []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.ContainsAny(line, " \t") {
			continue
		}
		repo, tag, ok := cutTag(line)
		if !ok || repo == "" || tag == "" {
			return nil, fmt.Errorf("kubeadm config images list: %q is not an image reference", line)
		}
		images = append(images, line)
	}
	if len(images) == 0 {
		return nil, errors.New("kubeadm config images list: no images in its output")
	}
	return images, nil
}

// cutTag splits an image reference at its tag; a colon before the last slash is a registry's port.
func cutTag(ref string) (repo, tag string, ok bool) {
	i := strings.LastIndexByte(ref, ':')
	if i < 0 || strings.Contains(ref[i:], "/") {
		return ref, "", false
	}
	return ref[:i], ref[i+1:], true
}

// CACertHash gives the hash that a joining node checks the cluster's CA by: "sha256:" and the hexadecimal SHA-256 of
// the certificate's public key (RFC 7469), from a PEM file. kubeadm does not accept any other algorithm.
func CACertHash(caPEM []byte) (string, error) {
	for {
		var block *pem.Block
		block, caPEM = pem.Decode(caPEM)
		if block == nil {
			return "", errors.New("CA certificate: no certificate in the PEM data")
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", fmt.Errorf("CA certificate: %w", err)
		}
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		return "sha256:" + hex.EncodeToString(sum[:]), nil
	}
}
