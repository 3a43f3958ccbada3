package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
)

// The layer under kube-proxy and kube-router: the tools that they run, from
// Debian packages, cut down to those programs and the libraries they load.

// debianPackages are the packages with those tools.
func debianPackages() []string {
	return []string{"iptables", "nftables", "ipset", "conntrack", "iproute2", "busybox-static", "netbase"}
}

// debianFormat is part of the layer's key, and goes up when its content is chosen differently.
const debianFormat = "1"

// layerPrograms are the programs that stay, as paths in a merged /usr.
func layerPrograms() []string {
	return []string{
		"usr/sbin/xtables-nft-multi", "usr/sbin/xtables-legacy-multi", "usr/sbin/nft", "usr/sbin/ipset", "usr/sbin/conntrack",
		"usr/bin/ip", "usr/sbin/tc", "usr/bin/busybox",
	}
}

// layerData are further files and directories that those programs read.
func layerData() []string {
	return []string{"etc/iproute2", "etc/protocols", "etc/services", "etc/ethertypes"}
}

// iptablesNames are the names under which xtables-*-multi is called.
func iptablesNames() []string {
	var out []string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			out = append(out, family+verb)
		}
	}
	return out
}

// applets are busybox' names in the image: a shell and what scripts of init containers use.
func applets() []string {
	return []string{
		"sh", "ash", "awk", "basename", "cat", "chmod", "chown", "cp", "cut", "date", "df", "dirname", "echo", "env", "false", "find", "grep", "head", "hostname", "id",
		"kill", "ln", "ls", "mkdir", "mktemp", "modprobe", "mount", "mv", "nslookup", "nsenter", "ping", "ps", "pwd", "readlink", "rm", "rmdir", "sed", "seq", "sleep", "sort", "stat", "sync",
		"sysctl", "tail", "tee", "test", "timeout", "touch", "tr", "true", "umount", "uname", "uniq", "vi", "wc", "wget", "which", "xargs",
	}
}

// debianPackage is one package that apt chose.
type debianPackage struct{ name, version string }

// debianUnit makes the layer as a tar file in work/. Its content follows from
// the packages' versions, so it is cached beside the bundles and shared by them.
func (b *builder) debianUnit() unit {
	var closure []debianPackage
	return unit{
		name: workDir + "/debian-layer.tar", verb: "making", subject: "layer of network tools",
		key: func(ctx context.Context) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			var err error
			closure, err = debianClosure(ctx, b.o.Arch)
			return debianKey(closure, b.o.Arch), err
		},
		make: func(ctx context.Context, dest string, report func(string)) (File, error) {
			f := File{Kind: KindImage, Component: "debian", Version: debianFormat, From: "Debian packages"}
			cached := filepath.Join(b.o.Root, "cache", "network-tools-"+debianKey(closure, b.o.Arch)[:16]+".tar")
			return f, b.cachedLayer(ctx, cached, dest, func() error {
				dir := filepath.Join(b.dir, workDir, "debian")
				if err := os.RemoveAll(dir); err != nil {
					return err
				}
				report(fmt.Sprintf("fetching %d Debian packages", len(closure)))
				if err := fetchDebian(ctx, dir, closure); err != nil {
					return err
				}
				entries, err := chooseEntries(filepath.Join(dir, "root"))
				if err != nil {
					return err
				}
				if err := writeLayerFile(dest, entries); err != nil {
					return err
				}
				return os.RemoveAll(dir)
			})
		},
	}
}

// cachedLayer puts the layer at cached to dest, or else has it made at dest and keeps it. The sum beside a cached layer says that it is
// whole and as it was made: one without, or with another, is made anew.
func (b *builder) cachedLayer(ctx context.Context, cached, dest string, make func() error) error {
	want, err := os.ReadFile(cached + sumSuffix)
	if err == nil {
		if err = copyFile(cached, dest); err == nil {
			got, _, err := sumFile(ctx, dest)
			if err != nil {
				return err
			}
			if got == strings.TrimSpace(string(want)) {
				return nil
			}
			b.emit(event.Event{Type: event.Warning, Msg: cached + " is not as it was made; making it again"})
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := make(); err != nil {
		return err
	}
	sum, _, err := sumFile(ctx, dest)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(cached), 0o755); err != nil {
		return err
	}
	tmp := dest + ".cache"
	if err := copyFile(dest, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, cached); err != nil {
		return err
	}
	return atomicfile.WriteFile(cached+sumSuffix, []byte(sum+"\n"), 0o644)
}

// sumSuffix is what the name of a sum has beyond that of its file.
const sumSuffix = ".sha256"

func debianKey(closure []debianPackage, arch string) string {
	h := sha256.New()
	fmt.Fprintln(h, debianFormat, arch, layerPrograms(), layerData(), iptablesNames(), applets())
	for _, p := range closure {
		fmt.Fprintln(h, p.name, p.version)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// debianClosure asks apt for the packages and all they depend on, as if nothing were installed.
func debianClosure(ctx context.Context, arch string) ([]debianPackage, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, &PrerequisiteError{What: "apt-get", For: "the images of kube-proxy and kube-router", Remedy: "build on Debian or Ubuntu, or use --source release", Err: err}
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		return nil, &PrerequisiteError{What: "dpkg-deb", For: "the images of kube-proxy and kube-router", Package: "dpkg", Err: err}
	}
	args := append([]string{
		"install", "--print-uris", "-qq", "-y", "--no-install-recommends",
		"-o", "Dir::State::status=/dev/null", "-o", "Debug::NoLocking=1", "-o", "APT::Architecture=" + arch,
	}, debianPackages()...)
	out, err := output(ctx, "", "apt-get", args...)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("ask apt-get for Debian's packages: %w", ctx.Err())
	}
	if err != nil {
		return nil, &PrerequisiteError{What: "Debian's package lists with " + strings.Join(debianPackages(), ", "), For: "the images of kube-proxy and kube-router", Remedy: "run: apt-get update", Err: err}
	}
	return parseURIs(out)
}

// parseURIs reads what "apt-get --print-uris" prints: 'URI' name_version_arch.deb size sum.
func parseURIs(out string) ([]debianPackage, error) {
	var pkgs []debianPackage
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 2 || !strings.HasPrefix(fields[0], "'") {
			return nil, fmt.Errorf("apt-get says %q where a package is expected", strings.TrimSpace(line))
		}
		parts := strings.Split(strings.TrimSuffix(fields[1], ".deb"), "_")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%q is not the name of a Debian package file", fields[1])
		}
		version := strings.ReplaceAll(parts[1], "%3a", ":")
		pkgs = append(pkgs, debianPackage{name: parts[0], version: version})
	}
	if len(pkgs) == 0 {
		return nil, errors.New("apt-get names no packages; run: apt-get update")
	}
	slices.SortFunc(pkgs, func(a, b debianPackage) int { return strings.Compare(a.name, b.name) })
	return pkgs, nil
}

// fetchDebian downloads the packages (apt checks their sums) and unpacks them into dir/root.
func fetchDebian(ctx context.Context, dir string, pkgs []debianPackage) error {
	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	args := []string{"download", "-qq", "-o", "APT::Sandbox::User=root"}
	for _, p := range pkgs {
		args = append(args, p.name+"="+p.version)
	}
	if _, err := output(ctx, dir, "apt-get", args...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	slices.Sort(debs)
	for _, deb := range debs {
		if _, err := output(ctx, dir, "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	return nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second // for children that hold its output
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, tail(stderr.String(), 500))
	}
	return stdout.String(), nil
}

// chooseEntries picks the programs, what they load, and what they read, out of
// an unpacked tree. bin, sbin, lib and lib64 become links into usr, as on any
// merged system, wherever a package puts its files.
func chooseEntries(root string) ([]entry, error) {
	t, err := readTree(root)
	if err != nil {
		return nil, err
	}
	chosen := map[string]entry{}
	var errs []error
	take := func(name string) {
		if err := t.take(chosen, name); err != nil {
			errs = append(errs, err)
		}
	}
	for _, p := range layerPrograms() {
		take(p)
	}
	for name := range t.files {
		// Loaded by name at run time, so no program lists them.
		if ok, err := path.Match("usr/lib/*/xtables/lib*.so", name); ok && err == nil {
			take(name)
		}
		for _, d := range layerData() {
			if name == d || strings.HasPrefix(name, d+"/") {
				chosen[name] = t.files[name]
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	link := func(name, to string) { chosen[name] = entry{name: name, link: to} }
	for _, n := range iptablesNames() {
		link("usr/sbin/"+n, "xtables-nft-multi")
		link("usr/sbin/"+strings.Replace(n, "tables", "tables-nft", 1), "xtables-nft-multi")
		link("usr/sbin/"+strings.Replace(n, "tables", "tables-legacy", 1), "xtables-legacy-multi")
	}
	for _, a := range applets() {
		link("usr/bin/"+a, "busybox")
	}
	link("usr/sbin/ip", "../bin/ip")
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		link(d, "usr/"+d)
	}
	for _, d := range []string{"run", "var/lib", "etc", "root"} {
		chosen[d] = entry{name: d, mode: fs.ModeDir | 0o755}
	}
	chosen["tmp"] = entry{name: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777}
	chosen["etc/passwd"] = entry{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\n")}
	chosen["etc/group"] = entry{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\n")}
	out := make([]entry, 0, len(chosen))
	for _, e := range chosen {
		out = append(out, e)
	}
	return out, nil
}

// tree is an unpacked file system, by merged path.
type tree struct{ files map[string]entry }

// merged gives the path that a file has when bin, sbin, lib and lib64 are links into usr.
func merged(name string) string {
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains([]string{"bin", "sbin", "lib", "lib64"}, top) {
		return "usr/" + name
	}
	return name
}

func readTree(root string) (*tree, error) {
	t := &tree{files: map[string]entry{}}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name := merged(filepath.ToSlash(rel))
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			t.files[name] = entry{name: name, link: to}
		case info.Mode().IsRegular():
			t.files[name] = entry{name: name, mode: info.Mode().Perm(), src: p}
		}
		return nil
	})
	return t, err
}

// take adds a file, what it links to, its program interpreter and the libraries it needs.
func (t *tree) take(chosen map[string]entry, name string) error {
	if _, ok := chosen[name]; ok {
		return nil
	}
	e, ok := t.files[name]
	if !ok {
		return fmt.Errorf("no Debian package has /%s", name)
	}
	chosen[name] = e
	if e.link != "" {
		to := e.link
		if !path.IsAbs(to) {
			to = path.Join(path.Dir("/"+name), to)
		}
		return t.take(chosen, merged(strings.TrimPrefix(path.Clean(to), "/")))
	}
	needed, err := neededBy(e.src)
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	for _, n := range needed {
		found, err := t.find(n)
		if err != nil {
			return fmt.Errorf("/%s: %w", name, err)
		}
		if err := t.take(chosen, found); err != nil {
			return err
		}
	}
	return nil
}

// find gives the path of an interpreter (absolute) or of a library by its name.
func (t *tree) find(n string) (string, error) {
	if path.IsAbs(n) {
		return merged(strings.TrimPrefix(n, "/")), nil
	}
	var found []string
	for name := range t.files {
		ok, err := path.Match("usr/lib/*/"+n, name)
		if err != nil {
			return "", err
		}
		if ok || name == "usr/lib/"+n {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no Debian package has library %s", n)
	}
	return slices.Min(found), nil
}

// neededBy lists the libraries and the interpreter of an ELF file; a file that is none needs nothing.
func neededBy(file string) (_ []string, err error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := in.ReadAt(magic, 0); errors.Is(err, io.EOF) || err == nil && string(magic) != elf.ELFMAG {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(in)
	if err != nil {
		return nil, err
	}
	var needed []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data := make([]byte, p.Filesz)
			if _, err := p.ReadAt(data, 0); err != nil {
				return nil, err
			}
			needed = append(needed, strings.TrimRight(string(data), "\x00"))
		}
	}
	libs, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	return append(needed, libs...), nil
}

func writeLayerFile(dest string, entries []entry) (err error) {
	f, err := os.OpenFile(dest, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := writeLayer(f, withParents(entries)); err != nil {
		return err
	}
	return f.Sync()
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := out.ReadFrom(in); err != nil {
		return err
	}
	return out.Sync()
}
