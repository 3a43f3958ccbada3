package inspect

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	_ "embed" // the script
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/kubeversion"
)

// factsScript reads everything of one machine in one round trip. It is constant: nothing is put into it.
//
//go:embed facts.sh
var factsScript string

// machine is what a host said, before it becomes part of a node.
type machine struct {
	facts cluster.HostFacts
	// images are the static pod manifests' images by component, args their arguments.
	images map[string]string
	args   map[string][]string
	unread []cluster.Unread
	// kubeletConfig is the whole of the kubelet's configuration file; nil when it was not read.
	kubeletConfig settings
}

// readHost asks one machine. root is "" but in tests.
func readHost(ctx context.Context, h host.Host, node, root string, now func() time.Time) (machine, error) {
	before := now()
	res, err := h.Run(ctx, host.Cmd{Argv: []string{"/bin/sh", "-s", "--", root}, Stdin: strings.NewReader(factsScript)})
	if err != nil {
		return machine{}, err
	}
	records, err := parseRecords(res.Stdout)
	if err != nil {
		return machine{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return interpret(node, records, before, now()), nil
}

// errMalformed marks an answer that makes no sense.
var errMalformed = errors.New("malformed answer")

// record is one line of the script's output.
type record struct {
	name string
	code int
	out  string
}

// parseRecords reads the script's output. A line that is no record is an error: output that was cut or
// mixed with a login banner would otherwise pass for facts that are absent.
func parseRecords(b []byte) ([]record, error) {
	var out []record
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		f := strings.SplitN(line, " ", 3)
		if len(f) != 3 || f[0] == "" {
			return nil, fmt.Errorf("line %d of the machine's facts is not \"name code base64\"", i+1)
		}
		code, err := strconv.Atoi(f[1])
		if err != nil || code < 0 || code > 255 {
			return nil, fmt.Errorf("line %d of the machine's facts (%s): %q is no exit code", i+1, f[0], f[1])
		}
		text, err := base64.StdEncoding.DecodeString(f[2])
		if err != nil {
			return nil, fmt.Errorf("line %d of the machine's facts (%s): %w", i+1, f[0], err)
		}
		out = append(out, record{f[0], code, string(text)})
	}
	if out[0].name != "clock-start" || out[len(out)-1].name != "clock-end" {
		return nil, fmt.Errorf("the machine's facts begin with %s and end with %s: the script did not run to its end", out[0].name, out[len(out)-1].name)
	}
	return out, nil
}

// Exit codes of shells and timeout(1).
const (
	codeTimeout  = 124
	codeNotFound = 127
)

// runningProcess is the source of flags that are seen in /proc alone.
const runningProcess = "running process"

func interpret(node string, records []record, before, after time.Time) machine {
	m := machine{images: make(map[string]string), args: make(map[string][]string)}
	f := &m.facts
	unread := func(what, kind, why string) {
		m.unread = append(m.unread, cluster.Unread{What: cluster.HostRead(node) + "/" + what, Kind: kind, Why: oneLine(why)})
	}
	failed := func(r record) {
		switch r.code {
		case codeTimeout:
			unread(r.name, cluster.UnreadTimeout, "no answer within 15 s")
		case codeNotFound:
			unread(r.name, cluster.UnreadNotFound, cmp.Or(r.out, "no such program"))
		default:
			unread(r.name, cluster.UnreadFailed, cmp.Or(r.out, fmt.Sprintf("exit code %d", r.code)))
		}
	}
	var start, end time.Time
	diskUsed := int64(-1)
	seen := make(map[string]bool)
	for _, r := range records {
		kind, path, _ := strings.Cut(r.name, ":")
		seen[r.name] = true
		// These answer by their exit code as well.
		answersByCode := kind == "kubelet-active" || kind == "dpkg" || kind == "rpm" || kind == "kubelet-unit" ||
			kind == "du" || kind == "residue" // du complains of files that vanish under it, and sums up nevertheless
		if r.code != 0 && !answersByCode {
			failed(r)
			continue
		}
		switch kind {
		case "clock-start":
			start = parseClock(r.out)
		case "clock-end":
			end = parseClock(r.out)
		case "cgroup":
			// statfs types: cgroup2fs is the unified hierarchy; v1 and hybrid mount a tmpfs there.
			switch r.out {
			case "cgroup2fs":
				f.CgroupVersion = 2
			case "tmpfs", "cgroupfs":
				f.CgroupVersion = 1
			default:
				unread("cgroup", cluster.UnreadMalformed, "file system type of /sys/fs/cgroup is "+r.out)
			}
		case "swaps":
			n, err := parseSwaps(r.out)
			if err != nil {
				unread("swaps", cluster.UnreadMalformed, err.Error())
			}
			f.SwapBytes = n
		case "kubelet-version":
			f.KubeletBinary = m.version(r, unread)
		case "kubeadm-version":
			f.KubeadmBinary = m.version(r, unread)
		case "containerd-version":
			f.Containerd = bareVersion(r.out)
		case "runc-version":
			f.Runc = bareVersion(r.out)
		case "kubelet-active":
			f.KubeletActive = firstLine(r.out)
		case "kubelet-unit":
			if r.code == 0 {
				f.KubeletFlags = append(f.KubeletFlags, unitFlags(r.out)...)
			}
		case "kubelet-cmdline":
			f.KubeletFlags = append(f.KubeletFlags, argvFlags(strings.Split(strings.TrimSuffix(r.out, "\n"), "\n"), runningProcess)...)
		case "kubelet-config":
			if err := kubeletConfig(&m, r.out); err != nil {
				unread("kubelet-config", cluster.UnreadMalformed, err.Error())
			}
		case "env":
			f.KubeletFlags = append(f.KubeletFlags, envFlags(r.out, path)...)
		case "df":
			d, err := parseDF(path, r.out)
			if err != nil {
				unread(r.name, cluster.UnreadMalformed, err.Error())
				continue
			}
			f.Disks = append(f.Disks, d)
		case "du":
			n, err := parseDU(r.out)
			if err != nil {
				unread(r.name, cluster.UnreadMalformed, err.Error())
				continue
			}
			diskUsed = n
		case "cert":
			m.certificates(path, []byte(r.out), unread)
		case "kubeconfig":
			// A kubeconfig that names a certificate file has no data here.
			if data := strings.TrimSpace(r.out); data != "" {
				b, err := base64.StdEncoding.DecodeString(firstLine(data))
				if err != nil {
					unread(r.name, cluster.UnreadMalformed, err.Error())
					continue
				}
				m.certificates(path, b, unread)
			}
		case "manifest":
			m.manifest(path, r.out, unread)
		case "residue":
			f.KubeadmResidue = append(f.KubeadmResidue, path)
			if n, err := parseDU(r.out); err == nil {
				f.KubeadmResidueBytes += n
			}
		case "dpkg":
			for line := range strings.Lines(r.out) {
				// "hold installed kubelet"; packages that are not installed give an error line.
				w := strings.Fields(line)
				if len(w) != 3 || w[1] != "installed" {
					continue
				}
				if w[0] == "hold" {
					f.HeldPackages = append(f.HeldPackages, w[2])
				} else {
					f.UnheldPackages = append(f.UnheldPackages, w[2])
				}
			}
		case "rpm":
			m.rpm(r.out, records)
		}
	}
	for i := range f.Disks {
		if f.Disks[i].Path == "/var/lib/etcd" {
			f.Disks[i].UsedBytes = diskUsed
		}
	}
	if !start.IsZero() && !end.IsZero() {
		// The start was read after before, the end before after: the truth lies between the two differences.
		f.ClockOffset = ((start.Sub(before) + end.Sub(after)) / 2).Round(time.Millisecond)
	} else {
		unread("clock", cluster.UnreadMalformed, "the machine's date could not be read")
	}
	f.KubeletFlags = uniqueFlags(f.KubeletFlags)
	slices.Sort(f.Manifests)
	return m
}

func (m *machine) version(r record, unread func(what, kind, why string)) kubeversion.V {
	word := firstLine(r.out)
	if i := strings.LastIndexByte(word, ' '); i >= 0 {
		word = word[i+1:]
	}
	v, err := kubeversion.Parse(word)
	if err != nil {
		unread(r.name, cluster.UnreadMalformed, err.Error())
	}
	return v
}

func (m *machine) certificates(path string, data []byte, unread func(what, kind, why string)) {
	rest, found := data, false
	for {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if b.Type != "CERTIFICATE" {
			continue
		}
		found = true
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			unread("cert:"+path, cluster.UnreadMalformed, err.Error())
			continue
		}
		m.facts.Certificates = append(m.facts.Certificates, cluster.Certificate{Path: path, Subject: c.Subject.String(), CA: c.IsCA, NotAfter: c.NotAfter.UTC()})
	}
	if !found {
		unread("cert:"+path, cluster.UnreadMalformed, "no certificate in the file")
	}
}

func (m *machine) manifest(path, text string, unread func(what, kind, why string)) {
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(text), &pod); err != nil {
		unread("manifest:"+path, cluster.UnreadMalformed, err.Error())
		return
	}
	component := pod.Labels["component"]
	if component == "" || len(pod.Spec.Containers) == 0 {
		return // a static pod of somebody else
	}
	c := pod.Spec.Containers[0]
	if i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == component }); i > 0 {
		c = pod.Spec.Containers[i]
	}
	m.images[component] = c.Image
	m.args[component] = slices.Concat(c.Command, c.Args)
	m.facts.Manifests = append(m.facts.Manifests, component)
}

func (m *machine) rpm(out string, records []record) {
	var locks strings.Builder
	for _, r := range records {
		if strings.HasPrefix(r.name, "rpmlock:") && r.code == 0 {
			locks.WriteString(r.out + "\n")
		}
	}
	for line := range strings.Lines(out) {
		w := strings.Fields(line)
		if len(w) != 1 { // "package X is not installed"
			continue
		}
		if rpmLocked(w[0], locks.String()) {
			m.facts.HeldPackages = append(m.facts.HeldPackages, w[0])
		} else {
			m.facts.UnheldPackages = append(m.facts.UnheldPackages, w[0])
		}
	}
}

// rpmLocked says whether versionlock files or an exclude= line of the Kubernetes repository hold a package back.
func rpmLocked(name, locks string) bool {
	for line := range strings.Lines(locks) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "!") {
			continue
		}
		if list, ok := strings.CutPrefix(line, "exclude="); ok {
			if slices.Contains(strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' }), name) {
				return true
			}
			continue
		}
		// versionlock lines are NEVRA patterns: kubelet-0:1.36.3-150500.1.1.*, kubelet-1.36.*.
		if rest, ok := strings.CutPrefix(line, name+"-"); ok && rest != "" && (rest[0] == '*' || rest[0] >= '0' && rest[0] <= '9') {
			return true
		}
	}
	return false
}

func kubeletConfig(m *machine, text string) error {
	var c cluster.KubeletConfig
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(text), &m.kubeletConfig); err != nil {
		return err
	}
	f := &m.facts
	f.FailCgroupV1, f.FailSwapOn, f.CgroupDriver, f.KubeletFeatureGates = c.FailCgroupV1, c.FailSwapOn, c.CgroupDriver, c.FeatureGates
	return nil
}

// envFlags reads the flags of KUBELET_KUBEADM_ARGS and KUBELET_EXTRA_ARGS of an environment file.
func envFlags(text, source string) []cluster.Flag {
	var out []cluster.Flag
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		name = strings.TrimPrefix(name, "export ")
		if !ok || name != "KUBELET_KUBEADM_ARGS" && name != "KUBELET_EXTRA_ARGS" {
			continue
		}
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		out = append(out, argvFlags(strings.Fields(value), source)...)
	}
	return out
}

// unitFlags reads flags that the kubelet's unit and its drop-ins carry themselves. `systemctl cat` puts each file's
// name before it as a comment.
func unitFlags(text string) []cluster.Flag {
	var out []cluster.Flag
	source := "unit kubelet.service"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if p, ok := strings.CutPrefix(line, "# /"); ok {
			source = "/" + p
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		if key != "ExecStart" && key != "Environment" {
			continue
		}
		if key == "Environment" {
			// Environment="KUBELET_EXTRA_ARGS=--a --b"
			value = strings.Trim(value, `"'`)
			_, value, _ = strings.Cut(value, "=")
		}
		out = append(out, argvFlags(strings.Fields(value), source)...)
	}
	return out
}

// argvFlags reads --name=value, --name value and --name.
func argvFlags(argv []string, source string) []cluster.Flag {
	var out []cluster.Flag
	for i := 0; i < len(argv); i++ {
		arg := argv[i]
		if !strings.HasPrefix(arg, "-") || strings.Trim(arg, "-") == "" {
			continue
		}
		name, value, has := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !has && i+1 < len(argv) && argv[i+1] != "" && !strings.HasPrefix(argv[i+1], "-") && !strings.HasPrefix(argv[i+1], "$") {
			i++
			value = argv[i]
		}
		// pflag takes underscores for dashes.
		out = append(out, cluster.Flag{Name: strings.ReplaceAll(name, "_", "-"), Value: value, Source: source})
	}
	return out
}

// uniqueFlags drops what the running process shows when a file shows it too, as the file is where it is mended.
func uniqueFlags(in []cluster.Flag) []cluster.Flag {
	slices.SortStableFunc(in, func(a, b cluster.Flag) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value), boolCompare(a.Source == runningProcess, b.Source == runningProcess), cmp.Compare(a.Source, b.Source))
	})
	var out []cluster.Flag
	for _, f := range in {
		if n := len(out); n > 0 && out[n-1].Name == f.Name && out[n-1].Value == f.Value && (f.Source == runningProcess || f.Source == out[n-1].Source) {
			continue
		}
		out = append(out, f)
	}
	return out
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

var versionPattern = regexp.MustCompile(`\bv?([0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+~-]*)`)

// bareVersion finds the first version in `containerd --version` or `runc --version`; "" without one.
func bareVersion(text string) string {
	if m := versionPattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// parseClock reads `date +%s.%N`; BusyBox and others without %N give the seconds alone.
func parseClock(text string) time.Time {
	sec, frac, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(sec, 10, 64)
	if err != nil {
		return time.Time{}
	}
	n, err := strconv.ParseInt(frac, 10, 64)
	if err != nil || len(frac) != 9 {
		n = int64(time.Second / 2)
	}
	return time.Unix(s, n)
}

// parseSwaps sums the sizes (in KiB) of /proc/swaps.
func parseSwaps(text string) (int64, error) {
	var sum int64
	for i, line := range strings.Split(text, "\n") {
		w := strings.Fields(line)
		if i == 0 || len(w) == 0 {
			continue // the heading
		}
		if len(w) < 3 {
			return 0, fmt.Errorf("line %d of /proc/swaps has %d fields", i+1, len(w))
		}
		kib, err := strconv.ParseInt(w[2], 10, 64)
		if err != nil || kib < 0 || kib > 1<<52 {
			return 0, fmt.Errorf("line %d of /proc/swaps: %q is no size", i+1, w[2])
		}
		sum += kib << 10
	}
	return sum, nil
}

// parseDF reads `df -Pk PATH`: a heading and one line, sizes in KiB.
func parseDF(path, text string) (cluster.Disk, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	w := strings.Fields(lines[len(lines)-1])
	if len(lines) < 2 || len(w) < 6 {
		return cluster.Disk{}, fmt.Errorf("output of df for %s makes no sense", path)
	}
	// Names of file systems may hold blanks; the numbers are counted from the percentage.
	i := slices.IndexFunc(w, func(s string) bool { return strings.HasSuffix(s, "%") || s == "-" })
	if i < 4 {
		return cluster.Disk{}, fmt.Errorf("output of df for %s makes no sense", path)
	}
	total, err1 := kib(w[i-3])
	free, err2 := kib(w[i-1])
	if err := errors.Join(err1, err2); err != nil {
		return cluster.Disk{}, fmt.Errorf("df of %s: %w", path, err)
	}
	return cluster.Disk{Path: path, FreeBytes: free, TotalBytes: total, UsedBytes: -1}, nil
}

func parseDU(text string) (int64, error) {
	w := strings.Fields(text)
	if len(w) == 0 {
		return 0, errors.New("du gave nothing")
	}
	// A file that vanished meanwhile gives a line of its own; the sum comes last.
	lines := strings.Split(strings.TrimSpace(text), "\n")
	w = strings.Fields(lines[len(lines)-1])
	return kib(w[0])
}

func kib(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<52 {
		return 0, fmt.Errorf("%q is no size in KiB", s)
	}
	return n << 10, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(s)
}

// oneLine keeps reasons short and on one line.
func oneLine(s string) string {
	s = string(bytes.ToValidUTF8([]byte(strings.Join(strings.Fields(s), " ")), []byte("?")))
	if r := []rune(s); len(r) > 600 {
		s = string(r[:600]) + "..."
	}
	return s
}
