package bundle

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/belayops/belay/internal/kubeversion"
)

// imageRef is one image that a bundle carries.
type imageRef struct {
	// ref is the full reference with tag.
	ref string
	// component is the project's name, role what the image is for.
	component, role string
}

// askKubeadm asks the kubeadm of that very version for the images it wants.
// The version is given, since kubeadm asks the internet for it otherwise.
func askKubeadm(ctx context.Context, kubeadm string, v kubeversion.V) ([]imageRef, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, kubeadm, "config", "images", "list", "--kubernetes-version", v.String())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("ask kubeadm %s which images it wants: %w: %s", v, err, tail(stderr.String(), 500))
	}
	images, err := parseImages(stdout.String(), v)
	if err != nil {
		return nil, fmt.Errorf("ask kubeadm %s which images it wants: %w", v, err)
	}
	return images, nil
}

// parseImages reads kubeadm's list, one reference a line. An image that belay
// does not know, or one that is missing, is an error: a bundle without it would
// be found wanting only on the nodes.
func parseImages(list string, v kubeversion.V) ([]imageRef, error) {
	roles := map[string]string{
		"kube-apiserver": RoleControlPlane, "kube-controller-manager": RoleControlPlane, "kube-scheduler": RoleControlPlane,
		"kube-proxy": RoleKubeProxy, "coredns": RoleDNS, "pause": RolePause, "etcd": RoleEtcd,
	}
	seen := map[string]bool{}
	var out []imageRef
	for line := range strings.Lines(list) {
		ref := strings.TrimSpace(line)
		if ref == "" {
			continue
		}
		name, tag := path.Base(repositoryOf(ref)), tagOf(ref)
		role, ok := roles[name]
		switch {
		case !ok || tag == "" || !strings.Contains(ref, "/"):
			return nil, fmt.Errorf("%q is not an image that belay knows", ref)
		case seen[name]:
			return nil, fmt.Errorf("it names %s twice", name)
		case strings.HasPrefix(name, "kube-") && tag != v.String():
			return nil, fmt.Errorf("it names %s, which is not of version %s", ref, v)
		}
		seen[name] = true
		out = append(out, imageRef{ref: ref, component: componentOf(name), role: role})
	}
	for name := range roles {
		if !seen[name] {
			return nil, fmt.Errorf("it names no image %s", name)
		}
	}
	return out, nil
}

func componentOf(image string) string {
	if strings.HasPrefix(image, "kube-") {
		return "kubernetes"
	}
	return image
}

// etcdVersion gives etcd's version for a tag of its image: 3.6.8-0 is v3.6.8 (the last number counts the image's own changes).
func etcdVersion(tag string) (kubeversion.V, error) {
	number, revision, ok := strings.Cut(tag, "-")
	v, err := kubeversion.Parse(number)
	if err != nil || !ok || strings.Trim(revision, "0123456789") != "" || revision == "" {
		return kubeversion.V{}, fmt.Errorf("tag %q of the etcd image is not of the form 3.6.8-0", tag)
	}
	return v, nil
}

// tail gives the last n bytes of s, on one line.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = "... " + s[len(s)-n:]
	}
	return strings.ReplaceAll(s, "\n", " | ")
}

func asLayers(ls []*layer) []v1.Layer {
	out := make([]v1.Layer, 0, len(ls))
	for _, l := range ls {
		out = append(out, l)
	}
	return out
}
