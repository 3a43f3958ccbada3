package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// SSHConfig says how to reach a machine.
type SSHConfig struct {
	// Name is the node's name. Empty: Address.
	Name string
	// Address is host or host:port; the default port is 22.
	Address string
	User    string
	// KeyFiles are private keys without a passphrase (OpenSSH or PEM format); ones with a passphrase belong into an agent.
	KeyFiles []string
	// UseAgent offers the keys of the agent at SSH_AUTH_SOCK too, after KeyFiles.
	UseAgent bool
	// KnownHostsFile is in OpenSSH's known_hosts format and read anew for each connection.
	KnownHostsFile string
	// HostKeys are the keys that the machine may have; if set, KnownHostsFile is not read.
	HostKeys []ssh.PublicKey
	// ConnectTimeout bounds TCP connect, handshake and login together. 0 means 10 seconds.
	ConnectTimeout time.Duration
	// MaxSessions bounds how many programs run at one time over the connection; others wait. 0 means 8,
	// which leaves two of sshd's default ten for killing.
	MaxSessions int
	// Sudo runs everything through `sudo -n --` unless User is root.
	Sudo bool
	// KeepAlive is the interval of keepalive requests; after three without an answer the
	// connection counts as lost. 0 means 15 seconds.
	KeepAlive time.Duration
}

const (
	defaultConnectTimeout = 10 * time.Second
	defaultMaxSessions    = 8
	defaultKeepAlive      = 15 * time.Second
	keepAliveMisses       = 3
)

// DialSSH prepares access over SSH. It reads the keys and fails on a configuration that can never
// work; the connection itself is made by the first use, and made anew by the next use after it was
// lost. ctx bounds this call only.
//
// The machine needs a POSIX login shell for User, /bin/sh and GNU or BusyBox tools. Programs run
// without a terminal, in the environment that sshd gives plus Cmd.Env. Neither Argv nor Env shows up in the
// process list of the machine beyond what the program itself shows: they travel through its standard input.
//
// When a context ends, the program's process group gets SIGTERM and, two seconds later, SIGKILL, by a second session
// over the same connection (sshd before 7.9 ignores signal requests, later ones refuse them for root). When the connection is lost nobody
// kills the program: use a unit (StartUnit) for what must not be left half-way.
func DialSSH(ctx context.Context, c SSHConfig) (Host, error) {
	h, err := newSSHHost(c)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		name := c.Name
		if name == "" {
			name = c.Address
		}
		return nil, &NotStartedError{Host: name, Err: err}
	}
	return h, nil
}

type sshHost struct {
	cfg     SSHConfig
	signers []ssh.Signer
	agent   string

	sem chan struct{}

	// lock has one token: who holds it may connect. A channel, so that waiting ends with a context.
	lock chan struct{}
	// mu guards what follows.
	mu     sync.Mutex
	conn   *sshConn
	closed bool
}

var _ Host = (*sshHost)(nil)

// sshConn is one connection from login to loss.
type sshConn struct {
	*ssh.Client
	dead chan struct{} // closed when the connection has ended
	err  error         // why; set before dead is closed

	broken *atomic.Bool // set before any stream of a lost connection ends
}

// breakable notes that reading failed, which the SSH library tells nobody before it has ended all streams.
type breakable struct {
	net.Conn
	broken *atomic.Bool
}

func (b breakable) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil {
		b.broken.Store(true)
	}
	return n, err
}

func (c *sshConn) alive() bool {
	select {
	case <-c.dead:
		return false
	default:
		return true
	}
}

func newSSHHost(c SSHConfig) (*sshHost, error) {
	if c.Address == "" {
		return nil, errors.New("no address given")
	}
	if c.User == "" {
		return nil, errors.New("no user to log in as given")
	}
	if c.Name == "" {
		c.Name = c.Address
	}
	c.Address = withPort(c.Address)
	if len(c.HostKeys) == 0 && c.KnownHostsFile == "" {
		return nil, errors.New("neither a known_hosts file nor host keys given: host keys are always checked")
	}
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = defaultConnectTimeout
	}
	if c.MaxSessions <= 0 {
		c.MaxSessions = defaultMaxSessions
	}
	if c.KeepAlive <= 0 {
		c.KeepAlive = defaultKeepAlive
	}
	h := &sshHost{cfg: c, sem: make(chan struct{}, c.MaxSessions), lock: make(chan struct{}, 1)}
	for _, f := range c.KeyFiles {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("SSH key: %w", err)
		}
		s, err := ssh.ParsePrivateKey(b)
		if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
			return nil, fmt.Errorf("SSH key %s has a passphrase: add it to an agent (ssh-add %s) and use the agent", f, Quote(f))
		}
		if err != nil {
			return nil, fmt.Errorf("SSH key %s is not a private key: %w", f, err)
		}
		h.signers = append(h.signers, s)
	}
	if c.UseAgent {
		if h.agent = os.Getenv("SSH_AUTH_SOCK"); h.agent == "" {
			return nil, errors.New("no SSH agent: SSH_AUTH_SOCK is not set (run: eval \"$(ssh-agent)\" && ssh-add)")
		}
	}
	if len(h.signers) == 0 && h.agent == "" {
		return nil, errors.New("no way to log in: give a key file or use an agent")
	}
	return h, nil
}

func withPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), "22")
}

func (h *sshHost) Name() string { return h.cfg.Name }

func (h *sshHost) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.conn == nil || !h.conn.alive() {
		return nil
	}
	err := h.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // it was lost in the same moment
	}
	return err
}

var errHostClosed = errors.New("used after Close")

// current is the connection if there is one that lives.
func (h *sshHost) current() (*sshConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errHostClosed
	}
	if h.conn != nil && h.conn.alive() {
		return h.conn, nil
	}
	return nil, nil
}

// connect gives the connection, made anew if need be; fresh says that this call made it.
func (h *sshHost) connect(ctx context.Context) (conn *sshConn, fresh bool, err error) {
	if conn, err = h.current(); conn != nil || err != nil {
		return conn, false, err
	}
	select {
	case h.lock <- struct{}{}:
		defer func() { <-h.lock }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if conn, err = h.current(); conn != nil || err != nil {
		return conn, false, err
	}
	if conn, err = h.dial(ctx); err != nil {
		return nil, false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false, errors.Join(errHostClosed, conn.Close())
	}
	h.conn = conn
	return conn, true, nil
}

func (h *sshHost) dial(ctx context.Context) (*sshConn, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.ConnectTimeout)
	defer cancel()

	check, known, algorithms, err := h.hostKeyCheck()
	if err != nil {
		return nil, err
	}
	raw, err := (&net.Dialer{KeepAlive: h.cfg.KeepAlive}).DialContext(ctx, "tcp", h.cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	auth, closeAgent, err := h.auth(ctx)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	defer closeAgent()

	var keyErr error
	keyGood := false
	broken := new(atomic.Bool)
	cfg := &ssh.ClientConfig{
		User: h.cfg.User,
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(auth)},
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			keyErr = check(name, remote, key)
			keyGood = keyErr == nil
			return keyErr
		},
		HostKeyAlgorithms: algorithms,
		ClientVersion:     "SSH-2.0-belay",
	}
	// The handshake knows no context; closing the connection ends it, and the agent's socket what waits for an agent that says nothing.
	stop := context.AfterFunc(ctx, func() {
		_ = raw.Close()
		closeAgent()
	})
	c, chans, reqs, err := ssh.NewClientConn(breakable{raw, broken}, h.cfg.Address, cfg)
	if !stop() && err == nil {
		err = c.Close()
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("connect: no SSH login within %s: %w", h.cfg.ConnectTimeout, errors.Join(ctx.Err(), err))
	}
	if err != nil {
		_ = raw.Close() // most often it is closed already
	}
	switch {
	case keyErr != nil:
		return nil, keyErr
	case err != nil && keyGood:
		return nil, fmt.Errorf("log in as %s with %s: %w", h.cfg.User, h.keyNames(), err)
	case err != nil:
		return nil, h.keyOfAnotherKind(known, fmt.Errorf("connect: %w", err))
	}
	conn := &sshConn{Client: ssh.NewClient(c, chans, reqs), dead: make(chan struct{}), broken: broken}
	go func() {
		conn.err = conn.Wait()
		close(conn.dead)
	}()
	go conn.keepAlive(h.cfg.KeepAlive)
	return conn, nil
}

func (h *sshHost) keyNames() string {
	names := append([]string(nil), h.cfg.KeyFiles...)
	if h.agent != "" {
		names = append(names, "the agent's keys")
	}
	return strings.Join(names, ", ")
}

// auth gives the keys to offer. Key files come first: servers count each offered key as an attempt.
func (h *sshHost) auth(ctx context.Context) (keys func() ([]ssh.Signer, error), done func(), err error) {
	if h.agent == "" {
		return func() ([]ssh.Signer, error) { return h.signers, nil }, func() {}, nil
	}
	sock, err := (&net.Dialer{}).DialContext(ctx, "unix", h.agent)
	if err != nil {
		return nil, nil, fmt.Errorf("SSH agent: %w", err)
	}
	a := agent.NewClient(sock)
	return func() ([]ssh.Signer, error) {
		more, err := a.Signers()
		if err != nil {
			return nil, fmt.Errorf("SSH agent: %w", err)
		}
		return append(append([]ssh.Signer(nil), h.signers...), more...), nil
	}, func() { _ = sock.Close() }, nil
}

// keepAlive closes the connection when the other side stopped answering: TCP alone takes a quarter of an hour to notice.
func (c *sshConn) keepAlive(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	answered := make(chan struct{}, 1)
	outstanding, misses := false, 0
	for {
		select {
		case <-c.dead:
			return
		case <-answered:
			outstanding, misses = false, 0
		case <-tick.C:
			if outstanding {
				if misses++; misses >= keepAliveMisses {
					_ = c.Close()
					return
				}
				continue
			}
			outstanding = true
			go func() {
				// Any answer will do, "no such request" too; an error means that the connection ended.
				if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err == nil {
					answered <- struct{}{}
				}
			}()
		}
	}
}

// Dial goes through the connection (a direct-tcpip channel): addr is resolved and reached by the machine.
func (h *sshHost) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	argv := []string{"dial " + addr}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, &NotStartedError{Host: h.cfg.Name, Argv: argv, Err: err}
	}
	for attempt := 0; ; attempt++ {
		conn, fresh, err := h.connect(ctx)
		if err != nil {
			return nil, &NotStartedError{Host: h.cfg.Name, Argv: argv, Err: err}
		}
		c, err := conn.DialContext(ctx, network, addr)
		if err == nil {
			return withDeadlines(c), nil
		}
		refused := (*ssh.OpenChannelError)(nil)
		if errors.As(err, &refused) || ctx.Err() != nil || fresh || attempt > 0 {
			return nil, &NotStartedError{Host: h.cfg.Name, Argv: argv, Err: err}
		}
		// The connection was dead without anybody knowing. Nothing was sent: once more over a new one.
		_ = conn.Close()
		<-conn.dead
	}
}

// withDeadlines gives the connection deadlines, which SSH channels do not have and
// HTTP and gRPC ask for.
func withDeadlines(c net.Conn) net.Conn {
	near, far := net.Pipe()
	var once sync.Once
	end := func() { once.Do(func() { _ = far.Close(); _ = c.Close() }) }
	go func() { defer end(); copyAll(far, c) }()
	go func() { defer end(); copyAll(c, far) }()
	return &forwarded{Conn: near, local: c.LocalAddr(), remote: c.RemoteAddr()}
}

type forwarded struct {
	net.Conn
	local, remote net.Addr
}

func (f *forwarded) LocalAddr() net.Addr  { return f.local }
func (f *forwarded) RemoteAddr() net.Addr { return f.remote }
