package host_test

import (
	"context"
	"net"
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

// The fake has to treat commands, files and connections as the real ones do; its commands run on this computer here.
func TestFakeConforms(t *testing.T) {
	t.Parallel()
	hosttest.Conformance(t, func(t *testing.T) host.Host {
		f := hosttest.NewFake(t, "fake")
		l := host.NewLocal("fake")
		f.On(hosttest.Where("anything", func(c host.Cmd) bool { return c.Argv[0] != "read" && c.Argv[0] != "write" }),
			hosttest.Reply{Do: func(ctx context.Context, c host.Cmd) (host.Result, error) {
				for _, name := range f.Files() { // programs are files too
					if c.Argv[0] == name {
						data, mode, _ := f.File(name)
						if err := l.WriteFile(ctx, name, data, mode); err != nil {
							return host.Result{}, err
						}
					}
				}
				return l.Run(ctx, c)
			}})
		f.OnDial("*", nil)
		return dialsForReal{f, l}
	})
}

type dialsForReal struct {
	*hosttest.Fake
	l host.Host
}

func (d dialsForReal) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.OnDial(addr, func(ctx context.Context) (net.Conn, error) { return d.l.Dial(ctx, network, addr) })
	return d.Fake.Dial(ctx, network, addr)
}
