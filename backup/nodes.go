package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/host"
)

// nodeFile is a file that was read from a node.
type nodeFile struct {
	path string
	mode fs.FileMode
	data []byte
}

// Limits of what is taken for configuration. More than this under
// /etc/kubernetes is something else that landed there.
const (
	maxNodeFile  = 4 << 20
	maxNodeTotal = 64 << 20
)

// nodeTrees are directories that are read whole. Under tmp, kubeadm leaves
// copies of etcd's data.
var nodeTrees = []struct {
	dir string
	// required says that a control plane node without it is not one.
	required bool
	exclude  string
}{
	{dir: "/etc/kubernetes", required: true, exclude: "./tmp"},
	{dir: "/etc/containerd"},
}

// nodeFiles are single files that are read where they exist.
var nodeFiles = []string{
	"/var/lib/kubelet/config.yaml",
	"/var/lib/kubelet/instance-config.yaml",
	"/var/lib/kubelet/kubeadm-flags.env",
	"/etc/default/kubelet",
	"/etc/sysconfig/kubelet",
	"/etc/crictl.yaml",
	"/etc/systemd/system/kubelet.service",
	"/etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
	"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
}

// readNode reads the configuration of a control plane node: PKI, kubeconfigs,
// static pod manifests, what their flags name, kubelet and containerd.
// missing names what could not be read although it should be there.
func readNode(ctx context.Context, h host.Host) (files []nodeFile, missing []string) {
	for _, tree := range nodeTrees {
		got, skipped, err := readTree(ctx, h, tree.dir, tree.exclude)
		files = append(files, got...)
		if err != nil {
			// tar says no to a directory that is not there.
			exit := (*host.ExitError)(nil)
			if errors.As(err, &exit) && !tree.required {
				if there, perr := exists(ctx, h, tree.dir); perr == nil && !there {
					continue
				}
			}
			missing = append(missing, err.Error())
			if lost := errors.As(err, new(*host.NotStartedError)) || errors.As(err, new(*host.LostError)); lost {
				return files, missing // every further question would wait as long
			}
		}
		missing = append(missing, skipped...)
	}
	have := map[string]bool{}
	for _, f := range files {
		have[f.path] = true
	}
	for _, p := range nodeFiles {
		if err := readOptional(ctx, h, p, have, &files); err != nil {
			missing = append(missing, err.Error())
		}
	}
	named, unread := filesOfFlags(files)
	missing = append(missing, unread...)
	for _, p := range named {
		if have[p] {
			continue
		}
		data, err := h.ReadFile(ctx, p)
		if err != nil {
			// A flag may name what is no file (a directory, a socket): that is for a reader to judge.
			missing = append(missing, fmt.Sprintf("%s, which a static pod's flag names: %v", p, err))
			continue
		}
		have[p] = true
		files = append(files, nodeFile{path: p, mode: 0o600, data: data})
	}
	slices.SortFunc(files, func(a, b nodeFile) int { return strings.Compare(a.path, b.path) })
	return files, missing
}

func readOptional(ctx context.Context, h host.Host, p string, have map[string]bool, files *[]nodeFile) error {
	if have[p] {
		return nil
	}
	data, err := h.ReadFile(ctx, p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: read %s: %w", h.Name(), p, err)
	}
	have[p] = true
	*files = append(*files, nodeFile{path: p, mode: 0o644, data: data})
	return nil
}

// readTree reads a directory as one tar stream, so that it costs one round
// trip. What tar could not read (a link to nowhere, a file that changed
// meanwhile) is in skipped; the rest is there.
func readTree(ctx context.Context, h host.Host, dir, exclude string) (files []nodeFile, skipped []string, err error) {
	argv := []string{"tar", "-c", "-h", "-f", "-", "-C", dir}
	if exclude != "" {
		argv = append(argv, "--exclude="+exclude)
	}
	argv = append(argv, ".")
	var out limitedBuffer
	if _, err := h.Run(ctx, host.Cmd{Argv: argv, Stdout: &out}); err != nil {
		exit := (*host.ExitError)(nil)
		if !errors.As(err, &exit) || out.Len() == 0 {
			return nil, nil, fmt.Errorf("%s: read %s: %w", h.Name(), dir, err)
		}
		for line := range strings.Lines(string(exit.Stderr)) {
			if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "Exiting with failure status") {
				skipped = append(skipped, dir+": "+line)
			}
		}
		if len(skipped) == 0 {
			skipped = append(skipped, dir+": "+err.Error())
		}
	}
	if out.over {
		return nil, nil, fmt.Errorf("%s: %s holds more than %d MiB, which is no configuration; move out what does not belong there", h.Name(), dir, maxNodeTotal>>20)
	}
	r := tar.NewReader(&out.Buffer)
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, skipped, nil
		}
		if err != nil {
			return files, skipped, fmt.Errorf("%s: read %s: %w", h.Name(), dir, err)
		}
		p := path.Join(dir, head.Name)
		switch {
		case head.Typeflag == tar.TypeDir:
			continue
		case head.Typeflag != tar.TypeReg:
			skipped = append(skipped, p+": no regular file")
			continue
		case head.Size > maxNodeFile:
			skipped = append(skipped, fmt.Sprintf("%s: %d bytes, too large for configuration", p, head.Size))
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return files, skipped, fmt.Errorf("%s: read %s: %w", h.Name(), p, err)
		}
		files = append(files, nodeFile{path: p, mode: head.FileInfo().Mode().Perm(), data: data})
	}
}

// limitedBuffer keeps what fits and swallows the rest, so that the writer is not killed by a full pipe.
type limitedBuffer struct {
	bytes.Buffer
	over bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.over || b.Len()+len(p) > maxNodeTotal {
		b.over = true
		return len(p), nil
	}
	return b.Buffer.Write(p)
}

// manifestDir is where the kubelet of a kubeadm node finds static pods.
const manifestDir = "/etc/kubernetes/manifests"

// filesOfFlags gives the host paths that flags of static pods name, such as
// --encryption-provider-config or --audit-policy-file, through the pods' hostPath volumes.
// unread are manifests that hold no pod.
func filesOfFlags(files []nodeFile) (out, unread []string) {
	for _, f := range files {
		if path.Dir(f.path) != manifestDir {
			continue
		}
		var pod corev1.Pod
		if err := yaml.Unmarshal(f.data, &pod); err != nil {
			unread = append(unread, fmt.Sprintf("what %s names: it holds no pod: %v", f.path, err))
			continue
		}
		for _, c := range pod.Spec.Containers {
			for _, arg := range slices.Concat(c.Command, c.Args) {
				_, value, ok := strings.Cut(arg, "=")
				if !ok || !strings.HasPrefix(arg, "--") || !path.IsAbs(value) {
					continue
				}
				if p, ok := hostPath(&pod, &c, path.Clean(value)); ok && mayBeFile(arg, p) {
					out = append(out, p)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), unread
}

// mayBeFile leaves out what is known to be a directory.
func mayBeFile(arg, p string) bool {
	for _, dir := range []string{"--data-dir=", "--wal-dir=", "--cert-dir=", "--flex-volume-plugin-dir="} {
		if strings.HasPrefix(arg, dir) {
			return false
		}
	}
	return !strings.HasPrefix(p, "/var/log/") && !strings.HasSuffix(p, ".sock")
}

// hostPath translates a path of a container into one of the node, by the longest mount that holds it.
func hostPath(pod *corev1.Pod, c *corev1.Container, p string) (string, bool) {
	best, found := "", ""
	for _, m := range c.VolumeMounts {
		mount := path.Clean(m.MountPath)
		rest, ok := strings.CutPrefix(p, mount)
		if !ok || (rest != "" && !strings.HasPrefix(rest, "/") && mount != "/") || len(mount) < len(best) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.Name == m.Name && v.HostPath != nil {
				best, found = mount, path.Join(v.HostPath.Path, m.SubPath, rest)
			}
		}
	}
	return found, found != ""
}

// apiserverFlag gives a flag's value of the kube-apiserver's manifest among a node's files, "" without.
func apiserverFlag(manifest []byte, name string) (value, hostFile string, err error) {
	var pod corev1.Pod
	if err := yaml.Unmarshal(manifest, &pod); err != nil {
		return "", "", err
	}
	for _, c := range pod.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				p, _ := hostPath(&pod, &c, path.Clean(v))
				value, hostFile = v, p
			}
		}
	}
	return value, hostFile, nil
}

// controlPlaneLabel marks the nodes that kubeadm runs a control plane on.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// ControlPlaneNodes gives the names of the cluster's control plane nodes, sorted.
func ControlPlaneNodes(ctx context.Context, cfg *rest.Config) ([]string, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("list control plane nodes: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: controlPlaneLabel})
	if err != nil {
		return nil, fmt.Errorf("list control plane nodes: %w", err)
	}
	var out []string
	for _, n := range nodes.Items {
		out = append(out, n.Name)
	}
	slices.Sort(out)
	return out, nil
}
