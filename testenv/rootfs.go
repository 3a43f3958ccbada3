package testenv

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
)

const (
	debianSuite   = "bookworm"
	debianMirror  = "http://deb.debian.org/debian"
	debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// recipe is everything that decides what the root filesystem contains. Its digest is the cache key.
type recipe struct {
	Suite    string            `json:"suite"`
	Packages []string          `json:"packages"`
	Exclude  []string          `json:"exclude"`
	Remove   []string          `json:"remove"`
	Mask     []string          `json:"mask"`
	Enable   []string          `json:"enable"`
	Dirs     []string          `json:"dirs"`
	Files    map[string]string `json:"files"`
}

func machineRecipe() recipe {
	return recipe{
		Suite: debianSuite,
		Packages: []string{
			"systemd", "systemd-sysv", "dbus", "openssh-server", "ca-certificates",
			"util-linux", "mount", "kmod", "procps", "e2fsprogs", "libseccomp2",
			"iproute2", "iptables", "nftables", "ebtables", "ipset", "conntrack", "ethtool", "socat", "iputils-ping",
			// For the network's own services, which run from the same root filesystem.
			"dnsmasq-base", "haproxy",
		},
		Exclude: []string{"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*"},
		// Identity belongs to each machine.
		Remove: []string{"etc/ssh/ssh_host_*", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/lib/dbus/machine-id",
			"var/cache/apt/archives/*.deb", "var/lib/apt/lists/*_*", "var/log/*.log", "var/log/apt/*"},
		Mask: []string{
			// No terminal, no hardware, nothing to trim or update.
			"getty.target", "console-getty.service", "getty@tty1.service", "systemd-udevd.service", "systemd-pstore.service",
			"e2scrub_reap.service", "e2scrub_all.timer", "fstrim.timer", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
			"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount",
			// These change settings that the machine shares with the computer.
			"systemd-sysctl.service", "systemd-modules-load.service", "systemd-timesyncd.service",
			// Runs as a service of the network, not of each machine.
			"haproxy.service",
		},
		Enable: []string{"belay-propagation.service"},
		Dirs:   []string{"belay", "root/.ssh", "etc/ssh/sshd_config.d", "etc/systemd/journald.conf.d", "var/lib/containerd", "var/lib/kubelet", "var/lib/etcd", "var/log/journal", "lib/modules"},
		Files: map[string]string{
			// systemd leaves mount propagation alone in a container; on a node every mount is shared.
			"etc/systemd/system/belay-propagation.service": `[Unit]
Description=Share mounts as on any node
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/mount --make-rshared /

[Install]
WantedBy=sysinit.target
`,
			"etc/ssh/sshd_config.d/belay.conf": `PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
PrintLastLog no
MaxStartups 200
MaxSessions 200
ClientAliveInterval 15
ClientAliveCountMax 4
`,
			// The kernel's log is the computer's, not the machine's.
			"etc/systemd/journald.conf.d/belay.conf": "[Journal]\nStorage=persistent\nReadKMsg=no\nSystemMaxUse=200M\nRateLimitIntervalSec=0\n",
			"etc/fstab":                              "",
		},
	}
}

func (r recipe) key() (string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return r.Suite + "-" + hex.EncodeToString(sum[:6]), nil
}

// mirrors are the sources.list lines for a suite: this computer's own Debian mirror if it has
// one, else Debian's default. read gives the content of each file of /etc/apt's source lists.
func mirrors(suite string, read map[string]string) []string {
	var base, security string
	for _, name := range slices.Sorted(mapsKeys(read)) {
		for _, s := range parseSources(name, read[name]) {
			if !s.has("main") {
				continue
			}
			switch {
			case strings.HasSuffix(s.suite, "-security") && strings.Contains(s.uri, "debian-security"):
				if security == "" || s.suite == suite+"-security" {
					security = s.uri
				}
			case strings.HasSuffix(strings.TrimRight(s.uri, "/"), "/debian"):
				if base == "" || s.suite == suite {
					base = s.uri
				}
			}
		}
	}
	if base == "" {
		base = debianMirror
	}
	lines := []string{fmt.Sprintf("deb %s %s main", base, suite)}
	if security != "" {
		lines = append(lines, fmt.Sprintf("deb %s %s-updates main", base, suite), fmt.Sprintf("deb %s %s-security main", security, suite))
	}
	return lines
}

func mapsKeys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

type aptSource struct {
	uri, suite string
	components []string
}

func (s aptSource) has(c string) bool { return slices.Contains(s.components, c) }

// parseSources reads one file of apt sources: one-line style, or deb822 for *.sources
// (sources.list(5)). What is not an http(s) source of binary packages is left out.
func parseSources(name, text string) []aptSource {
	var out []aptSource
	add := func(uri, suite string, components []string) {
		if u, err := url.Parse(uri); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
			out = append(out, aptSource{uri, suite, components})
		}
	}
	if strings.HasSuffix(name, ".sources") {
		for stanza := range strings.SplitSeq(text, "\n\n") {
			fields, last := map[string]string{}, ""
			for line := range strings.SplitSeq(stanza, "\n") {
				switch k, v, ok := strings.Cut(line, ":"); {
				case strings.HasPrefix(line, "#"):
				case strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"):
					fields[last] += " " + strings.TrimSpace(line)
				case ok:
					last = strings.ToLower(k)
					fields[last] = strings.TrimSpace(v)
				}
			}
			if !slices.Contains(strings.Fields(fields["types"]), "deb") || strings.EqualFold(fields["enabled"], "no") {
				continue
			}
			for _, uri := range strings.Fields(fields["uris"]) {
				for _, suite := range strings.Fields(fields["suites"]) {
					add(uri, suite, strings.Fields(fields["components"]))
				}
			}
		}
		return out
	}
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			_, after, closed := strings.Cut(rest, "]")
			if !closed {
				continue
			}
			rest = after
		}
		if f := strings.Fields(rest); len(f) >= 3 {
			add(f[0], f[1], f[2:])
		}
	}
	return out
}

func readSources() map[string]string {
	read := map[string]string{}
	for _, pattern := range []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"} {
		names, _ := filepath.Glob(pattern) // the patterns are well-formed
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil {
				read[n] = string(b)
			}
		}
	}
	return read
}

// ensureRootfs gives the directory of the cached root filesystem, building it if needed.
func (e *Env) ensureRootfs(ctx context.Context) (string, error) {
	r := machineRecipe()
	key, err := r.key()
	if err != nil {
		return "", err
	}
	parent := filepath.Join(e.o.CacheDir, "rootfs")
	dir := filepath.Join(parent, key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	lock, err := lockDir(ctx, parent, "the cache of machine images", func() {
		e.note(event.Note, "machine image", "another process builds it; waiting")
	})
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Nobody else builds while the lock is held: unfinished directories were left by killed builds.
	stale, err := filepath.Glob(filepath.Join(parent, ".part-*"))
	if err != nil {
		return "", err
	}
	for _, s := range stale {
		if err := removeTree(s); err != nil {
			return "", err
		}
	}
	if err := e.checkTools("mmdebstrap"); err != nil {
		return "", err
	}
	part := filepath.Join(parent, ".part-"+key)
	start := time.Now()
	e.note(event.StepStarted, "machine image", fmt.Sprintf("building a Debian %s root filesystem (once, one to five minutes)", r.Suite))
	if err := e.buildRootfs(ctx, r, part, lock.f); err != nil {
		e.note(event.StepFailed, "machine image", err.Error())
		return "", errors.Join(fmt.Errorf("build machine image: %w", err), removeTree(part))
	}
	// Some ten thousand files that nobody flushed: their names must not become durable before what is in them.
	if err := syncFS(parent); err != nil {
		return "", err
	}
	if err := os.Rename(part, dir); err != nil {
		return "", err
	}
	if err := atomicfile.SyncDir(parent); err != nil {
		return "", err
	}
	e.emit(event.Event{Type: event.StepDone, Step: "machine image", Msg: dir, Elapsed: time.Since(start)})
	return dir, nil
}

func (e *Env) buildRootfs(ctx context.Context, r recipe, part string, lock *os.File) error {
	// In namespaces of its own, so that a kill of this process takes all of it along: its
	// children, its mounts. The lock is inherited, so that a later build waits for its end.
	argv := []string{"unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--include=" + strings.Join(r.Packages, ","),
		`--aptopt=APT::Sandbox::User "root"`, `--aptopt=Acquire::Retries "3"`}
	for _, opt := range aptProxies(ctx) {
		argv = append(argv, "--aptopt="+opt)
	}
	for _, x := range r.Exclude {
		argv = append(argv, "--dpkgopt=path-exclude="+x)
	}
	if _, err := os.Stat(debianKeyring); err == nil {
		argv = append(argv, "--keyring="+debianKeyring)
	}
	argv = append(argv, r.Suite, part)
	argv = append(argv, mirrors(r.Suite, readSources())...)
	_, err := run(ctx, command{argv: argv, lock: lock, dieWithParent: true, line: func(s string) {
		if msg, ok := strings.CutPrefix(s, "I: "); ok {
			e.note(event.StepProgress, "machine image", msg)
		}
	}})
	if err != nil {
		return err
	}
	return finishRootfs(r, part)
}

// finishRootfs makes a bare Debian tree the common part of all machines.
func finishRootfs(r recipe, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, pattern := range r.Remove {
		names, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := root.RemoveAll(n); err != nil {
				return err
			}
		}
	}
	for _, d := range r.Dirs {
		if err := root.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for name, text := range r.Files {
		if err := root.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, u := range r.Mask {
		if err := replaceSymlink(root, "/dev/null", "etc/systemd/system/"+u); err != nil {
			return err
		}
	}
	for _, u := range r.Enable {
		if err := root.MkdirAll("etc/systemd/system/sysinit.target.wants", 0o755); err != nil {
			return err
		}
		if err := replaceSymlink(root, "/etc/systemd/system/"+u, "etc/systemd/system/sysinit.target.wants/"+u); err != nil {
			return err
		}
	}
	return nil
}

func replaceSymlink(root *os.Root, target, name string) error {
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	return root.Symlink(target, name)
}

// aptProxies carries this computer's proxy settings over.
func aptProxies(ctx context.Context) []string {
	out, err := run(ctx, command{argv: []string{"apt-config", "dump"}})
	if err != nil {
		return nil // not a Debian computer
	}
	var opts []string
	sc := bufio.NewScanner(strings.NewReader(out))
	for sc.Scan() {
		k, v, ok := strings.Cut(strings.TrimSuffix(sc.Text(), ";"), " ")
		if ok && strings.HasPrefix(k, "Acquire::http") && strings.HasSuffix(k, "::Proxy") && v != `""` {
			opts = append(opts, k+" "+v)
		}
	}
	return opts
}

func newMachineID() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", err
	}
	// Version 4 as machine-id(5) asks for.
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return hex.EncodeToString(b), nil
}
