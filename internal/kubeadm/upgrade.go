package kubeadm

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/kubeversion"
)

// Places that an upgrade looks at.
const (
	// TmpDir is where kubeadm keeps manifests that it replaces, and those that it is about to put in place.
	TmpDir = "/etc/kubernetes/tmp"
	// StageDir is where belay puts a version's programs before they are used: StageDir/VERSION/kubeadm.
	StageDir = "/opt/belay"
)

// Staged gives the path of a staged program of a version.
func Staged(v kubeversion.V, program string) string { return path.Join(StageDir, v.Bare(), program) }

// Components are the static pods of a kubeadm control plane node; etcd is missing where it is external.
func Components() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// ManifestPath is where a component's static pod manifest lies.
func ManifestPath(component string) string { return path.Join(ManifestsDir, component+".yaml") }

// UpgradeApplyArgv is `kubeadm upgrade apply` with the program at binary: the first control plane node.
func UpgradeApplyArgv(binary string, v kubeversion.V, o UpgradeOptions) []string {
	return o.add([]string{binary, "upgrade", "apply", v.String(), "--yes", "--etcd-upgrade=true"})
}

// UpgradeOptions are what both upgrade commands take.
type UpgradeOptions struct {
	// Ignore are preflight checks that do not hold for the machine.
	Ignore []string
	// Patches is a directory on the machine with patches for the manifests and the kubelet's configuration that kubeadm writes; empty for none.
	Patches string
}

// UpgradeNodeArgv is `kubeadm upgrade node`: further control plane nodes, and the kubelet's configuration on workers.
// The version is that of ConfigMap kubeadm-config.
func UpgradeNodeArgv(binary string, o UpgradeOptions) []string {
	return o.add([]string{binary, "upgrade", "node", "--etcd-upgrade=true"})
}

func (o UpgradeOptions) add(argv []string) []string {
	if len(o.Ignore) > 0 {
		argv = append(argv, "--ignore-preflight-errors="+strings.Join(o.Ignore, ","))
	}
	if o.Patches != "" {
		argv = append(argv, "--patches="+o.Patches)
	}
	return argv
}

// manifestContainer is what is read of the container of a static pod.
type manifestContainer struct {
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
}

func containerOf(manifest []byte) (manifestContainer, error) {
	var pod struct {
		Spec struct {
			Containers []manifestContainer `json:"containers"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(manifest, &pod); err != nil {
		return manifestContainer{}, fmt.Errorf("static pod manifest: %w", err)
	}
	if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Image == "" {
		return manifestContainer{}, fmt.Errorf("static pod manifest: %d containers, want one with an image", len(pod.Spec.Containers))
	}
	return pod.Spec.Containers[0], nil
}

// ManifestImage gives the image of a static pod manifest with one container.
func ManifestImage(manifest []byte) (string, error) {
	c, err := containerOf(manifest)
	return c.Image, err
}

// ManifestFlag gives the value of --flag=value in a static pod manifest with one container; "" when it is not set. The last one
// counts, as it does for the program.
func ManifestFlag(manifest []byte, flag string) (string, error) {
	c, err := containerOf(manifest)
	if err != nil {
		return "", err
	}
	value := ""
	for _, a := range slices.Concat(c.Command, c.Args) {
		if v, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
			value = v
		}
	}
	return value, nil
}

var imageLine = regexp.MustCompile(`(?m)^(\s+(?:- )?image:\s*)(\S+)(\s*)$`)

// SetManifestImage gives a static pod manifest with another image and every other byte as it was.
func SetManifestImage(manifest []byte, image string) ([]byte, error) {
	old, err := ManifestImage(manifest)
	if err != nil {
		return nil, err
	}
	lines := imageLine.FindAllSubmatchIndex(manifest, -1)
	if len(lines) != 1 {
		return nil, fmt.Errorf("static pod manifest: %d lines with an image, want one", len(lines))
	}
	at := lines[0]
	out := slices.Concat(manifest[:at[4]], []byte(image), manifest[at[5]:])

	// What was meant is what happened: the same document but for the image.
	var before, after map[string]any
	if err := errors.Join(yaml.Unmarshal(manifest, &before), yaml.Unmarshal(out, &after)); err != nil {
		return nil, fmt.Errorf("static pod manifest: %w", err)
	}
	if now, err := ManifestImage(out); err != nil || now != image {
		return nil, fmt.Errorf("static pod manifest: the image could not be set from %s to %s", old, image)
	}
	blank(before)
	blank(after)
	if !reflect.DeepEqual(before, after) {
		return nil, errors.New("static pod manifest: setting the image would change more than the image")
	}
	return out, nil
}

func blank(pod map[string]any) {
	spec, _ := pod["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	for _, c := range containers {
		if m, ok := c.(map[string]any); ok {
			delete(m, "image")
		}
	}
}

// GoneKubeletFlags are kubelet flags that kubeadm once wrote to its flags file and that a kubelet of version v refuses to
// start with. kubeadm cleans the file in one release alone, which a kubelet that skips minors never meets
// (kubernetes/kubernetes#133779).
func GoneKubeletFlags(v kubeversion.V) []string {
	if v.Minor >= 35 {
		return []string{"--pod-infra-container-image"}
	}
	return nil
}

// StripFlags takes flags out of an environment file such as kubeadm-flags.env, where the value of a variable is a
// list of --flag=value. changed says whether there was anything to take.
func StripFlags(env []byte, flags []string) (out []byte, changed bool) {
	lines := strings.SplitAfter(string(env), "\n")
	for i, line := range lines {
		body := strings.TrimRight(line, "\r\n")
		name, value, ok := strings.Cut(body, "=")
		if !ok || strings.HasPrefix(strings.TrimSpace(name), "#") {
			continue
		}
		quote := ""
		for _, q := range []string{`"`, `'`} {
			if len(value) >= 2 && strings.HasPrefix(value, q) && strings.HasSuffix(value, q) {
				quote, value = q, value[1:len(value)-1]
			}
		}
		words := strings.Fields(value)
		var kept []string
		for j := 0; j < len(words); j++ {
			flag, _, hasValue := strings.Cut(words[j], "=")
			if !slices.Contains(flags, flag) {
				kept = append(kept, words[j])
				continue
			}
			changed = true
			if !hasValue && j+1 < len(words) && !strings.HasPrefix(words[j+1], "-") {
				j++ // --flag value
			}
		}
		if len(kept) != len(words) {
			lines[i] = name + "=" + quote + strings.Join(kept, " ") + quote + line[len(body):]
		}
	}
	return []byte(strings.Join(lines, "")), changed
}
