package host_test

import (
	"testing"

	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/host/hosttest"
)

func TestLocalConforms(t *testing.T) {
	t.Parallel()
	hosttest.Conformance(t, func(*testing.T) host.Host { return host.NewLocal("here") })
}

func TestSSHConforms(t *testing.T) {
	t.Parallel()
	hosttest.Conformance(t, func(t *testing.T) host.Host { return hosttest.NewSSHServer(t).Dial() })
}
