package hosttest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/belayops/belay/internal/host"
)

// SSHServer is a real SSH server in this process: it runs commands through
// /bin/sh as the user of the test, and forwards TCP. It needs neither root nor sshd.
type SSHServer struct {
	// User may log in with the key in KeyFile.
	User, KeyFile string
	// HostKey is the server's own key.
	HostKey ssh.PublicKey
	// Env is the environment of commands; nil is the test's own.
	Env []string
	// Prelude is a piece of shell that runs before each command, as a login script would.
	Prelude string
	// OnExec, if set, is called with each command before it is accepted; an error refuses it.
	// It may drop connections.
	OnExec func(command string) error

	t      testing.TB
	signer ssh.Signer
	config *ssh.ServerConfig
	ln     net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	cmds  map[*exec.Cmd]struct{}

	sessions, peak, logins atomic.Int64
	frozen                 atomic.Bool
	wg                     sync.WaitGroup
}

// NewSSHServer starts a server on a free port of 127.0.0.1; the test's end stops it.
func NewSSHServer(t testing.TB) *SSHServer {
	t.Helper()
	s := &SSHServer{t: t, User: "tester", conns: map[net.Conn]struct{}{}, cmds: map[*exec.Cmd]struct{}{}}
	s.signer = newSigner(t)
	s.HostKey = s.signer.PublicKey()
	client, file := WriteKey(t)
	s.KeyFile = file
	s.config = &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if meta.User() == s.User && string(key.Marshal()) == string(client.Marshal()) {
				return nil, nil
			}
			return nil, errors.New("not this one")
		},
	}
	s.config.AddHostKey(s.signer)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.ln = ln
	s.wg.Go(s.accept)
	t.Cleanup(s.stop)
	return s
}

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// WriteKey makes a key pair and returns the public key and the file of the private one.
func WriteKey(t testing.TB) (ssh.PublicKey, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "test")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer.PublicKey(), file
}

// NewAuthority makes a key that can sign host keys.
func NewAuthority(t testing.TB) ssh.Signer { return newSigner(t) }

// UseCertificate makes the server offer, beside its key, a certificate for it. Call it before the first connection.
func (s *SSHServer) UseCertificate(authority ssh.Signer) {
	s.t.Helper()
	name, _, err := net.SplitHostPort(s.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	c := &ssh.Certificate{
		Key: s.HostKey, CertType: ssh.HostCert, KeyId: "test",
		ValidPrincipals: []string{name}, ValidBefore: ssh.CertTimeInfinity,
	}
	if err := c.SignCert(rand.Reader, authority); err != nil {
		s.t.Fatal(err)
	}
	signer, err := ssh.NewCertSigner(c, s.signer)
	if err != nil {
		s.t.Fatal(err)
	}
	s.config.AddHostKey(signer)
}

// Addr is where the server listens.
func (s *SSHServer) Addr() string { return s.ln.Addr().String() }

// Config is a configuration that this server accepts.
func (s *SSHServer) Config() host.SSHConfig {
	return host.SSHConfig{
		Name: "sshtest", Address: s.Addr(), User: s.User,
		KeyFiles: []string{s.KeyFile}, HostKeys: []ssh.PublicKey{s.HostKey},
	}
}

// Dial gives a Host over this server.
func (s *SSHServer) Dial(change ...func(*host.SSHConfig)) host.Host {
	s.t.Helper()
	c := s.Config()
	for _, f := range change {
		f(&c)
	}
	h, err := host.DialSSH(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := h.Close(); err != nil {
			s.t.Errorf("close: %v", err)
		}
	})
	return h
}

// KnownHosts writes a known_hosts file with the given keys for this server's address.
func (s *SSHServer) KnownHosts(keys ...ssh.PublicKey) string {
	s.t.Helper()
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(knownhosts.Line([]string{s.Addr()}, k) + "\n")
	}
	file := filepath.Join(s.t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// DropAll cuts every connection, as a network failure would. Commands go on.
func (s *SSHServer) DropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

// Freeze makes the server silent on every connection from now on, as an unplugged cable would.
func (s *SSHServer) Freeze() { s.frozen.Store(true) }

// Thaw lets new connections speak; the frozen ones have lost bytes and are of no use any more.
func (s *SSHServer) Thaw() { s.frozen.Store(false) }

// Peak is the highest number of sessions that were open at one time.
func (s *SSHServer) Peak() int { return int(s.peak.Load()) }

// Running is how many sessions are open.
func (s *SSHServer) Running() int { return int(s.sessions.Load()) }

// Logins is how many connections got as far as a login.
func (s *SSHServer) Logins() int { return int(s.logins.Load()) }

func (s *SSHServer) stop() {
	_ = s.ln.Close()
	s.DropAll()
	s.mu.Lock()
	for c := range s.cmds {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *SSHServer) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		c = &freezable{Conn: c, frozen: &s.frozen}
		s.mu.Lock()
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			s.serve(c)
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

// freezable swallows what is written while frozen.
type freezable struct {
	net.Conn
	frozen *atomic.Bool
}

func (f *freezable) Write(p []byte) (int, error) {
	if f.frozen.Load() {
		return len(p), nil
	}
	return f.Conn.Write(p)
}

func (s *SSHServer) serve(raw net.Conn) {
	conn, chans, reqs, err := ssh.NewServerConn(raw, s.config)
	if err != nil {
		_ = raw.Close()
		return
	}
	s.logins.Add(1)
	defer func() { _ = conn.Close() }()
	go ssh.DiscardRequests(reqs)
	for nc := range chans {
		switch nc.ChannelType() {
		case "session":
			ch, reqs, err := nc.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.session(ch, reqs) })
		case "direct-tcpip":
			s.wg.Go(func() { s.forward(nc) })
		default:
			_ = nc.Reject(ssh.UnknownChannelType, "unknown")
		}
	}
}

func (s *SSHServer) session(ch ssh.Channel, reqs <-chan *ssh.Request) {
	n := s.sessions.Add(1)
	for {
		if p := s.peak.Load(); n <= p || s.peak.CompareAndSwap(p, n) {
			break
		}
	}
	defer func() {
		s.sessions.Add(-1) // before the client sees the end, and opens another one
		_ = ch.Close()
	}()
	for r := range reqs {
		var m struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &m) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		if s.OnExec != nil {
			if err := s.OnExec(m.Command); err != nil {
				_ = r.Reply(false, nil)
				return
			}
		}
		_ = r.Reply(true, nil)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			// Like an old sshd: signal requests are ignored.
			for r := range reqs {
				_ = r.Reply(false, nil)
			}
		}()
		s.command(ch, m.Command, closed)
		return
	}
}

// command does as sshd does: a session (and process group) of its own, pipes, the exit status as soon
// as the command has ended, the end of the channel when its streams have or the client closes it.
func (s *SSHServer) command(ch ssh.Channel, command string, closed <-chan struct{}) {
	cmd := exec.Command("/bin/sh", "-c", s.Prelude+"\n"+command) //nolint:gosec,noctx // a test server
	cmd.Env = s.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err1 := cmd.StdinPipe()
	outR, outW, err2 := os.Pipe()
	errR, errW, err3 := os.Pipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return
	}
	cmd.Stdout, cmd.Stderr = outW, errW
	err := cmd.Start()
	_ = outW.Close()
	_ = errW.Close()
	if err != nil {
		return
	}
	s.mu.Lock()
	s.cmds[cmd] = struct{}{}
	s.mu.Unlock()
	go func() {
		_, _ = io.Copy(stdin, ch)
		_ = stdin.Close()
	}()
	go func() {
		<-closed
		_ = outR.Close()
		_ = errR.Close()
	}()
	var streams sync.WaitGroup
	streams.Go(func() { _, _ = io.Copy(ch, outR); _ = outR.Close() })
	streams.Go(func() { _, _ = io.Copy(ch.Stderr(), errR); _ = errR.Close() })
	_ = cmd.Wait() // the process state says it all
	s.mu.Lock()
	delete(s.cmds, cmd)
	s.mu.Unlock()
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && ws.Signaled():
		_, _ = ch.SendRequest("exit-signal", false, ssh.Marshal(struct {
			Signal    string
			Core      bool
			Text, Tag string
		}{Signal: signalName(ws.Signal())}))
	default:
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(cmd.ProcessState.ExitCode())})) //nolint:gosec // 0 to 255
	}
	streams.Wait()
}

func signalName(s syscall.Signal) string {
	for name, number := range map[string]syscall.Signal{
		"ABRT": syscall.SIGABRT, "HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL,
		"PIPE": syscall.SIGPIPE, "SEGV": syscall.SIGSEGV, "TERM": syscall.SIGTERM,
	} {
		if number == s {
			return name
		}
	}
	return fmt.Sprintf("SIG%d@openssh.com", int(s))
}

func (s *SSHServer) forward(nc ssh.NewChannel) {
	var m struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &m); err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	c, err := net.Dial("tcp", net.JoinHostPort(m.Host, fmt.Sprint(m.Port))) //nolint:noctx // a test server
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	defer func() { _ = c.Close() }()
	ch, reqs, err := nc.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs)
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(c, ch)
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.CloseWrite()
		}
	})
	both.Go(func() { _, _ = io.Copy(ch, c); _ = ch.CloseWrite() })
	both.Wait()
	_ = ch.Close()
}
