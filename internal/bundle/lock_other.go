//go:build !unix

package bundle

import (
	"context"
	"errors"
)

func lock(context.Context, string, func()) (func() error, error) {
	return nil, errors.New("bundles can be built only where files can be locked (Linux, macOS)")
}
