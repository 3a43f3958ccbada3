package backup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

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
