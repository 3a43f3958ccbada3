package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belayops/belay/internal/condition"
)

func supported() error {
	if os.Geteuid() != 0 {
		return &UnsupportedError{Reason: "this user is not root", Remedy: "run as root, for instance with sudo"}
	}
	caps := detectCaps()
	for _, c := range []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_MKNOD", "CAP_SYS_CHROOT"} {
		if !slices.Contains(caps, c) {
			return &UnsupportedError{Reason: "root lacks " + c, Remedy: "run outside of a container, or in a privileged one"}
		}
	}
	return nil
}

func detectCaps() []string {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return nil
	}
	return capsFromStatus(string(b))
}

func detectFacts(ctx context.Context) (Facts, error) {
	f := Facts{CgroupVersion: 1, Capabilities: detectCaps()}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return f, fmt.Errorf("uname: %w", err)
	}
	f.Kernel = unix.ByteSliceToString(uts.Release[:])
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return f, &UnsupportedError{Reason: "no cgroup file system at /sys/fs/cgroup", Remedy: "mount it, or use another computer"}
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		f.CgroupVersion = 2
	}
	f.CapSysResource = slices.Contains(f.Capabilities, "CAP_SYS_RESOURCE")
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return f, fmt.Errorf("read the limit of open files: %w", err)
	}
	f.NofileHard = lim.Max
	f.InotifyMaxInstances = readInt("/proc/sys/fs/inotify/max_user_instances")
	f.InotifyMaxWatches = readInt("/proc/sys/fs/inotify/max_user_watches")
	f.IPForward = readInt("/proc/sys/net/ipv4/ip_forward") == 1
	f.ConntrackMaxWritable = conntrackMaxWritable(ctx)
	if b, err := os.ReadFile("/proc/swaps"); err == nil {
		f.Swap = strings.Count(strings.TrimSpace(string(b)), "\n") > 0
	}
	for _, d := range optionalDevices() {
		if _, err := os.Stat(d.Path); err == nil {
			f.Devices = append(f.Devices, d.Path)
		}
	}
	if fi, err := os.Stat(filepath.Join("/lib/modules", f.Kernel)); err == nil && fi.IsDir() {
		f.ModulesDir = "/lib/modules"
	}
	if p := "/boot/config-" + f.Kernel; exists(p) {
		f.KernelConfigFile = p
	}
	f.KernelConfig = f.KernelConfigFile != "" || exists("/proc/config.gz")
	return f, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// conntrackMaxWritable asks a fresh network namespace, as a machine has one: kernels leave
// nf_conntrack_max to the first namespace. Not loaded counts as writable: nothing was refused.
func conntrackMaxWritable(ctx context.Context) bool {
	out, err := run(ctx, command{argv: []string{"unshare", "--net", "stat", "-c", "%a", "/proc/sys/net/netfilter/nf_conntrack_max"}})
	if err != nil {
		return !exists("/proc/sys/net/netfilter/nf_conntrack_max")
	}
	mode, err := strconv.ParseUint(strings.TrimSpace(out), 8, 32)
	return err == nil && mode&0o200 != 0
}

// checkStateDir refuses file systems on which machines cannot work.
func checkStateDir(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	switch st.Type {
	case unix.OVERLAYFS_SUPER_MAGIC:
		return &UnsupportedError{Reason: dir + " is on an overlay file system", Remedy: "give a state directory on a real disk"}
	case unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return &UnsupportedError{Reason: dir + " is on a network or FUSE file system", Remedy: "give a state directory on a local disk"}
	}
	return nil
}

// dirLock is an advisory lock on a directory. It belongs to the open file, which children may
// inherit, and ends with the last process that has it open.
type dirLock struct{ f *os.File }

// Close gives the lock back.
func (l *dirLock) Close() {
	if l != nil && l.f != nil {
		// Children that still run keep their copy of the file, so unlock by closing only.
		_ = l.f.Close() // nothing was written
	}
}

// lockDir waits for the lock on a directory that exists. waiting is called once if it is taken.
// The lock of a directory that was removed or replaced meanwhile is not given.
func lockDir(ctx context.Context, dir, what string, waiting func()) (*dirLock, error) {
	told := false
	var lock *dirLock
	err := condition.Wait(ctx, condition.Condition{Name: what + " to be free", Check: func(context.Context) error {
		l, err := tryLockDir(dir)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			if !told && waiting != nil {
				waiting()
			}
			told = true
			return condition.NotYetf("another process holds the lock on %s", dir)
		case err != nil:
			return condition.Final(err)
		}
		lock = l
		return nil
	}}, condition.Options{Interval: 100 * time.Millisecond})
	if errors.Is(err, condition.ErrNotYet) {
		return nil, &BusyError{What: what, Path: dir, Err: err}
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}

func tryLockDir(dir string) (*dirLock, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "lock", Path: dir, Err: err}, f.Close())
	}
	mine, err := f.Stat()
	if err == nil {
		var now fs.FileInfo
		if now, err = os.Stat(dir); err == nil && !os.SameFile(mine, now) {
			err = &fs.PathError{Op: "lock", Path: dir, Err: fs.ErrNotExist}
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &dirLock{f}, nil
}

// renameNoReplace fails if the target exists.
func renameNoReplace(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// bindPrivate makes dir a mount of its own that passes no mounts to or from the rest of the computer.
func bindPrivate(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "bind mount", Path: dir, Err: err}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return &fs.PathError{Op: "make mount private", Path: dir, Err: err}
	}
	return nil
}

func mountOverlay(lower, upper, work, target string) error {
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	if err := unix.Mount("overlay", target, "overlay", 0, opts); err != nil {
		return &fs.PathError{Op: "overlay mount", Path: target, Err: err}
	}
	return nil
}

func unmountLazily(target string) error {
	err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unmount", Path: target, Err: err}
	}
	return nil
}

// mountsUnder lists the mount points at and below dir, the last mounted first.
func mountsUnder(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	points := parseMountinfo(string(b), dir)
	slices.Reverse(points)
	return points, nil
}

// removeTree unmounts what is mounted at or below dir and removes it. It never reaches through
// a mount that could not be taken away.
func removeTree(dir string) error {
	points, err := mountsUnder(dir)
	if err != nil {
		return err
	}
	for _, p := range points {
		if unix.Unmount(p, unix.UMOUNT_NOFOLLOW) == nil {
			continue
		}
		if err := unmountLazily(p); err != nil {
			return err
		}
	}
	if points, err = mountsUnder(dir); err != nil {
		return err
	}
	if len(points) > 0 {
		return fmt.Errorf("remove %s: still mounted: %s", dir, strings.Join(points, ", "))
	}
	return os.RemoveAll(dir)
}

// takenPrefixes are the networks that this computer has addresses in or routes to.
func takenPrefixes() ([]netip.Prefix, error) {
	var taken []netip.Prefix
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read interface addresses: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			taken = append(taken, p.Masked())
		}
	}
	b, err := os.ReadFile("/proc/thread-self/net/route")
	if err != nil {
		return nil, err
	}
	return append(taken, parseRoutes(string(b))...), nil
}

// cgroupRoots are the directories in which the hierarchies are mounted.
func cgroupRoots(version int) []string {
	if version == 2 {
		return []string{"/sys/fs/cgroup"}
	}
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var roots []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		fields := strings.Fields(left)
		if ok && len(fields) > 4 && strings.HasPrefix(fields[4], "/sys/fs/cgroup/") && strings.HasPrefix(right, "cgroup") {
			roots = append(roots, fields[4])
		}
	}
	return roots
}

// killCgroup kills every process in a cgroup of any hierarchy until none is left, then removes
// the cgroup.
func killCgroup(ctx context.Context, version int, name string) error {
	return condition.Wait(ctx, condition.Condition{Name: "cgroup " + name + " to be empty", Check: func(context.Context) error {
		left := 0
		for _, root := range cgroupRoots(version) {
			var dirs []string
			err := filepath.WalkDir(filepath.Join(root, name), func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, p)
				}
				return nil // what vanishes while we look is what we want
			})
			if err != nil {
				return err
			}
			slices.Reverse(dirs)
			for _, d := range dirs {
				b, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
				if err == nil {
					for pid := range strings.FieldsSeq(string(b)) {
						if n, err := strconv.Atoi(pid); err == nil && n > 1 && n != os.Getpid() {
							_ = syscall.Kill(n, syscall.SIGKILL) // may be gone already; the next look tells
						}
					}
				}
				if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
					left++
				}
			}
		}
		if left > 0 {
			return condition.NotYetf("%d cgroup directories still in use", left)
		}
		return nil
	}}, condition.Options{Timeout: 30 * time.Second, Interval: 50 * time.Millisecond})
}

// detachLoops detaches the loop devices whose backing files are below dir.
func detachLoops(dir string) error {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			continue // detached meanwhile
		}
		file := strings.TrimSuffix(strings.TrimSpace(string(b)), " (deleted)")
		if !strings.HasPrefix(file, dir+"/") {
			continue
		}
		dev := "/dev/" + strings.Split(n, "/")[3]
		f, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			errs = append(errs, &fs.PathError{Op: "detach", Path: dev, Err: err})
		}
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func setDieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// signal numbers that tell systemd to halt in order: SIGRTMIN+4 is "poweroff" (systemd(1)).
const signalPowerOff = 34 + 4

// syncFS flushes the file system that holds dir.
func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return errors.Join(fmt.Errorf("flush the file system of %s: %w", dir, err), d.Close())
	}
	return d.Close()
}
