package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/belayops/belay/internal/atomicfile"
)

// StartLB starts a TCP load balancer at the network's gateway address in front of API servers:
// frontend is GATEWAY:PORT, backends are ADDRESS:PORT. A backend takes part while its /readyz
// answers 200. It is stopped by Down, and started again with the network.
func (e *Env) StartLB(ctx context.Context, network, frontend string, backends []string) error {
	s, err := e.open(ctx, network)
	if err != nil {
		return err
	}
	defer s.Close()
	f, err := netip.ParseAddrPort(frontend)
	if err != nil || f.Addr() != s.rec.gateway() || f.Port() == 53 {
		return fmt.Errorf("load balancer frontend %q: want %s:PORT", frontend, s.rec.gateway())
	}
	return s.setLB(ctx, &lbRecord{Frontend: frontend, Backends: backends})
}

// UpdateLB replaces the balancer's backends. Connections to those that stay are kept.
func (e *Env) UpdateLB(ctx context.Context, network string, backends []string) error {
	s, err := e.open(ctx, network)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.rec.LB == nil {
		return fmt.Errorf("network %s: load balancer: %w", network, ErrNotFound)
	}
	return s.setLB(ctx, &lbRecord{Frontend: s.rec.LB.Frontend, Backends: backends})
}

func (s *session) setLB(ctx context.Context, lb *lbRecord) error {
	for _, b := range lb.Backends {
		if _, err := netip.ParseAddrPort(b); err != nil {
			return fmt.Errorf("load balancer backend %q: want ADDRESS:PORT", b)
		}
	}
	sameFrontend := s.rec.LB != nil && s.rec.LB.Frontend == lb.Frontend
	s.rec.LB = lb
	if err := s.save(); err != nil {
		return err
	}
	running, err := s.running(ctx)
	if err != nil {
		return err
	}
	if !running[s.containerID(balancerName)] || !sameFrontend {
		return s.startBalancer(ctx)
	}
	if err := s.writeBalancerConfig(); err != nil {
		return err
	}
	// The master starts new workers and lets the old ones finish.
	_, err = s.runc(ctx, "kill", s.containerID(balancerName), "USR2")
	return err
}

func (s *session) writeBalancerConfig() error {
	dir := filepath.Join(s.serviceDir(balancerName), "conf")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if s.rec.LB == nil {
		return errors.New("no load balancer is recorded")
	}
	return atomicfile.WriteFile(filepath.Join(dir, "haproxy.cfg"), []byte(balancerConfig(s.rec.LB)), 0o644)
}

func (s *session) startBalancer(ctx context.Context) error {
	if err := s.writeBalancerConfig(); err != nil {
		return err
	}
	return s.startService(ctx, balancerName, []string{"/usr/sbin/haproxy", "-W", "-db", "-f", serviceConfDir + "/haproxy.cfg"})
}

// balancerConfig is haproxy's configuration. The check speaks TLS and does not verify: it asks
// whether a server is ready, not who it is; clients verify for themselves. Of its numbers: inter
// is also what a check's TLS handshake may take (haproxy's "timeout check" is for what follows), and
// on a busy computer all apiservers are slow together: taking them all out ends every connection to
// the cluster. So a server that answers late is out after ten seconds, one that refuses or
// is not ready after four; connections that it refuses meanwhile go to another one.
func balancerConfig(lb *lbRecord) string {
	var b strings.Builder
	fmt.Fprintf(&b, `global
    log stdout format raw local0 notice
    maxconn 4000
defaults
    mode tcp
    log global
    option dontlognull
    option redispatch
    retries 2
    timeout connect 2s
    timeout check 10s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
frontend apiserver
    bind %s
    default_backend apiservers
backend apiservers
    balance leastconn
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host %s
    http-check expect status 200
    default-server check check-ssl verify none inter 2s fastinter 500ms downinter 1s fall 5 rise 2 on-marked-down shutdown-sessions
`, lb.Frontend, lb.Frontend)
	for i, backend := range lb.Backends {
		fmt.Fprintf(&b, "    server cp%d %s\n", i+1, backend)
	}
	return b.String()
}
