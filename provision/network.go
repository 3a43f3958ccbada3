package provision

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/belayops/belay/internal/bundle"
)

//go:embed kube-router.yaml
var kubeRouterManifest string

// fieldManager is who owns the fields that belay applies.
const fieldManager = "belay-provision"

// renderNetwork gives the objects of the CNI.
func renderNetwork(b *bundle.Bundle, endpoint string) ([]*unstructured.Unstructured, error) {
	images := b.ImagesByRole(bundle.RoleCNI)
	if len(images) != 1 {
		return nil, fmt.Errorf("bundle %s has %d CNI images, want one", b.Dir(), len(images))
	}
	return renderKubeRouter(images[0].Ref, endpoint)
}

func renderKubeRouter(image, endpoint string) ([]*unstructured.Unstructured, error) {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, fmt.Errorf("control plane endpoint: %w", err)
	}
	text := strings.NewReplacer("@IMAGE@", image, "@HOST@", host, "@PORT@", port).Replace(kubeRouterManifest)
	dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	var out []*unstructured.Unstructured
	for {
		u := &unstructured.Unstructured{}
		if err := dec.Decode(&u.Object); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("kube-router manifest: %w", err)
		}
		out = append(out, u)
	}
}

// applyObjects applies objects server-side and says which of them were changed by it.
func applyObjects(ctx context.Context, c dynamic.Interface, objects []*unstructured.Unstructured) ([]string, error) {
	resources := map[string]string{
		"ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
		"ConfigMap": "configmaps", "DaemonSet": "daemonsets",
	}
	var changed []string
	for _, u := range objects {
		gvk := u.GroupVersionKind()
		id := gvk.Kind + " " + u.GetName()
		r := c.Resource(schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: resources[gvk.Kind]})
		var target dynamic.ResourceInterface = r
		if ns := u.GetNamespace(); ns != "" {
			target = r.Namespace(ns)
		}
		before := ""
		if old, err := target.Get(ctx, u.GetName(), metav1.GetOptions{}); err == nil {
			before = old.GetResourceVersion()
		}
		now, err := target.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return changed, fmt.Errorf("apply %s: %w", id, err)
		}
		if now.GetResourceVersion() != before {
			changed = append(changed, id)
		}
	}
	return changed, nil
}
