package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// HostKeyError is a machine that offered a key which is not known to be its own.
// Nothing was sent to it, no login was tried.
type HostKeyError struct {
	Address string
	// File is where the key was looked for; empty when the keys were given directly.
	File string
	// KeyType and Fingerprint (SHA256:...) describe the key offered. Fingerprint is empty when the machine has no key of a kind on
	// record: it then shows none, and KeyType lists what it would sign with.
	KeyType, Fingerprint string
	// Known are the keys on record as "type fingerprint (file:line)"; empty for a machine without any.
	Known []string
	// Revoked is set when the key offered is marked as revoked.
	Revoked bool
}

// Changed says that other keys are on record: the machine was reinstalled, or is another one.
func (e *HostKeyError) Changed() bool { return len(e.Known) > 0 }

func (e *HostKeyError) Error() string {
	host, port, err := net.SplitHostPort(e.Address)
	if err != nil {
		host, port = e.Address, "22"
	}
	offered := e.KeyType + " " + e.Fingerprint
	if e.Fingerprint == "" {
		offered = "only keys for " + e.KeyType
	}
	verify := "compare it on the machine's own console: ssh-keygen -lf /etc/ssh/ssh_host_" + hostKeyFile(e.KeyType) + "_key.pub"
	switch {
	case e.Revoked:
		return fmt.Sprintf("host key of %s: it offered %s, which %s marks as revoked; do not connect", e.Address, offered, e.File)
	case e.File == "" && e.Changed():
		return fmt.Sprintf("host key of %s: it offered %s, expected %s; %s", e.Address, offered, strings.Join(e.Known, ", "), verify)
	case e.Changed():
		return fmt.Sprintf("host key of %s CHANGED: it offered %s, on record is %s. Either the machine was reinstalled or another one answers in its place: %s; only if it is the same, remove the old key: ssh-keygen -R %s -f %s",
			e.Address, offered, strings.Join(e.Known, ", "), verify, Quote(knownhosts.Normalize(e.Address)), Quote(e.File))
	default:
		return fmt.Sprintf("host key of %s is not in %s: it offered %s; %s; only if it is the same, add it: ssh-keyscan -t %s -p %s %s >> %s (ssh-keyscan itself verifies nothing)",
			e.Address, e.File, offered, verify, hostKeyFile(e.KeyType), port, host, Quote(e.File))
	}
}

func hostKeyFile(keyType string) string {
	switch {
	case strings.HasPrefix(keyType, "ecdsa"):
		return "ecdsa"
	case strings.Contains(keyType, "rsa"):
		return "rsa"
	default:
		return "ed25519"
	}
}

func describeKey(k ssh.PublicKey) string { return k.Type() + " " + ssh.FingerprintSHA256(k) }

// keyOfAnotherKind makes a HostKeyError of err where the server has no key for any of the algorithms on record, which the handshake finds
// before there is a key to check: the key changed as surely as if it were another of the same kind.
func (h *sshHost) keyOfAnotherKind(known []string, err error) error {
	e := (*ssh.AlgorithmNegotiationError)(nil)
	if len(known) == 0 || !errors.As(err, &e) || e.What != "host key" {
		return err
	}
	file := h.cfg.KnownHostsFile
	if len(h.cfg.HostKeys) > 0 {
		file = ""
	}
	return &HostKeyError{Address: h.cfg.Address, File: file, KeyType: strings.Join(e.RequestedAlgorithms, ", "), Known: known}
}

// hostKeyCheck gives the check, the keys on record in words, and the algorithms to ask the server for. Those matter: a server with several keys offers
// the one that the client likes best, and that need not be the one on record.
func (h *sshHost) hostKeyCheck() (check ssh.HostKeyCallback, known, algorithms []string, err error) {
	if len(h.cfg.HostKeys) > 0 {
		for _, k := range h.cfg.HostKeys {
			known = append(known, describeKey(k))
		}
		check := func(_ string, _ net.Addr, key ssh.PublicKey) error {
			for _, k := range h.cfg.HostKeys {
				if bytes.Equal(k.Marshal(), key.Marshal()) {
					return nil
				}
			}
			return &HostKeyError{Address: h.cfg.Address, KeyType: key.Type(), Fingerprint: ssh.FingerprintSHA256(key), Known: known}
		}
		return check, known, hostKeyAlgorithms(h.cfg.HostKeys), nil
	}
	file := h.cfg.KnownHostsFile
	db, err := knownhosts.New(file)
	if errors.Is(err, fs.ErrNotExist) {
		db, err = knownhosts.New() // no file, no keys: the error then says what to do
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("known hosts: %w", err)
	}
	check = func(name string, remote net.Addr, key ssh.PublicKey) error {
		err := db(name, remote, key)
		if err == nil {
			return nil
		}
		e := &HostKeyError{Address: h.cfg.Address, File: file, KeyType: key.Type(), Fingerprint: ssh.FingerprintSHA256(key)}
		unknown, revoked := (*knownhosts.KeyError)(nil), (*knownhosts.RevokedError)(nil)
		switch {
		case errors.As(err, &revoked):
			e.Revoked = true
		case errors.As(err, &unknown):
			e.Known = describeKnown(unknown.Want)
		default:
			return fmt.Errorf("known hosts: %w", err)
		}
		return e
	}
	// Asking for a key that nobody has lists the ones on record.
	want := (*knownhosts.KeyError)(nil)
	if !errors.As(db(h.cfg.Address, noAddr{}, noKey{}), &want) || len(want.Want) == 0 {
		return check, nil, nil, nil
	}
	authorities, err := authorityLines(file)
	if err != nil {
		return nil, nil, nil, err
	}
	var keys []ssh.PublicKey
	for _, k := range want.Want {
		switch {
		case !authorities[k.Line]:
			keys = append(keys, k.Key)
		case algorithms == nil:
			algorithms = certificateAlgorithms()
		}
	}
	return check, describeKnown(want.Want), append(algorithms, hostKeyAlgorithms(keys)...), nil
}

func describeKnown(keys []knownhosts.KnownKey) []string {
	var out []string
	for _, k := range keys {
		out = append(out, fmt.Sprintf("%s (%s:%d)", describeKey(k.Key), k.Filename, k.Line))
	}
	return out
}

// authorityLines gives the numbers of the lines of a known_hosts file that name certificate authorities.
func authorityLines(file string) (map[int]bool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("known hosts: %w", err)
	}
	lines, n := map[int]bool{}, 0
	for line := range bytes.Lines(b) {
		n++
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte("@cert-authority")) {
			lines[n] = true
		}
	}
	return lines, nil
}

func certificateAlgorithms() []string {
	return []string{
		ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
		ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
	}
}

// hostKeyAlgorithms lists the signature algorithms of keys; none means the library's default.
func hostKeyAlgorithms(keys []ssh.PublicKey) []string {
	var algos []string
	for _, k := range keys {
		if k.Type() == ssh.KeyAlgoRSA {
			algos = append(algos, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			continue
		}
		algos = append(algos, k.Type())
	}
	return algos
}

type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return []byte("none") }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// noAddr stands for the remote address before there is one; known_hosts lines by name only count then.
type noAddr struct{}

func (noAddr) Network() string { return "tcp" }
func (noAddr) String() string  { return "0.0.0.0:0" }
