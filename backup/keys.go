package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"filippo.io/age"
)

// PassphraseRecipient is what a manifest says of a backup that a passphrase opens.
const PassphraseRecipient = "passphrase"

// Recipients gives what encrypts for age public keys, or for a passphrase. The
// format allows no mixture of the two. names are for the manifest.
func Recipients(publicKeys []string, passphrase string) (recipients []age.Recipient, names []string, err error) {
	if passphrase != "" {
		if len(publicKeys) > 0 {
			return nil, nil, errors.New("encrypt for public keys or with a passphrase, not both")
		}
		r, err := age.NewScryptRecipient(passphrase)
		if err != nil {
			return nil, nil, fmt.Errorf("passphrase: %w", err)
		}
		return []age.Recipient{r}, []string{PassphraseRecipient}, nil
	}
	for _, k := range publicKeys {
		r, err := age.ParseRecipients(strings.NewReader(k))
		if err != nil {
			return nil, nil, fmt.Errorf("recipient %q: %w", k, err)
		}
		recipients = append(recipients, r...)
		names = append(names, k)
	}
	return recipients, names, nil
}

// Identities gives what decrypts, of age identity files and a passphrase.
func Identities(files []string, passphrase string) ([]age.Identity, error) {
	var out []age.Identity
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		ids, err := age.ParseIdentities(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("identity %s: %w", f, err)
		}
		out = append(out, ids...)
	}
	if passphrase != "" {
		id, err := age.NewScryptIdentity(passphrase)
		if err != nil {
			return nil, fmt.Errorf("passphrase: %w", err)
		}
		out = append(out, id)
	}
	return out, nil
}

// keyName is where the key of a backup lies that a passphrase opens.
const keyName = "key"

// maxKey bounds what is read of it, in bytes.
const maxKey = 4 << 10

// lockWithPassphrase makes a key for this backup's files and writes it,
// encrypted with the passphrase, so that the passphrase is worked on once.
func lockWithPassphrase(d *dirWriter) error {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return fmt.Errorf("make the backup's key: %w", err)
	}
	if err := d.writeFile(keyName, true, []byte(key.String()+"\n"), "", 0); err != nil {
		return err
	}
	d.recipients = []age.Recipient{key.Recipient()}
	return nil
}

func isPassphrase(r age.Recipient) bool {
	_, ok := r.(*age.ScryptRecipient)
	return ok
}

// keyring keeps a backup's key once it was opened.
type keyring struct {
	mu  sync.Mutex
	key age.Identity
}

// key opens the backup's key file.
func (m *Manifest) key(dir string, ids []age.Identity) (age.Identity, error) {
	m.unlocked.mu.Lock()
	defer m.unlocked.mu.Unlock()
	if m.unlocked.key != nil {
		return m.unlocked.key, nil
	}
	f := m.File(m.Encryption.KeyFile)
	p := filepath.Join(dir, m.Encryption.KeyFile)
	if f == nil {
		return nil, &DamagedError{p, "it opens all other files and is not in the manifest's list"}
	}
	r, err := m.open(dir, f, ids)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, maxKey))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	key, err := age.ParseX25519Identity(strings.TrimSpace(string(b)))
	if err != nil {
		// The error may repeat what it read.
		return nil, &DamagedError{p, "it holds no key"}
	}
	m.unlocked.key = key
	return key, nil
}
