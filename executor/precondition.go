package executor

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/plan"
)

// precondition looks at one thing that must hold before a step begins. An unknown kind does not hold. What a half-done step may
// have broken itself is not asked of the node except ("" for none).
func (t *task) precondition(ctx context.Context, p plan.Precondition, except string) error {
	switch p.Kind {
	case plan.APIServersAtLeast:
		return t.apiServersAtLeast(ctx, p.Version)
	case plan.APIServersWithinOneMinor:
		return t.eachAPIServer(ctx, except, func(node string, v kubeversion.V) error {
			if d, ok := p.Version.MinorVersion().Sub(v.MinorVersion()); !ok || d < 0 || d > 1 {
				return fmt.Errorf("the apiserver of %s runs %s, which is not within one minor below %s", node, v, p.Version)
			}
			return nil
		})
	case plan.KubeadmConfigIs:
		v, err := t.kubeadmConfigVersion(ctx)
		if err == nil && v.Compare(p.Version) != 0 {
			err = fmt.Errorf("ConfigMap kube-system/kubeadm-config names %s, not %s", v, p.Version)
		}
		return err
	case plan.EtcdHealthy, plan.EtcdAtLeast:
		names, err := t.controlPlanesBut(ctx, except)
		if err != nil {
			return err
		}
		var errs []error
		for _, n := range names {
			v, err := t.EtcdMember(ctx, n)
			if err == nil && v.Less(p.Version) {
				err = fmt.Errorf("etcd of %s runs %s, older than %s", n, v.Bare(), p.Version.Bare())
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	case plan.NodeCordoned:
		n, err := t.node(ctx, p.Node)
		if err == nil && !n.Spec.Unschedulable {
			err = fmt.Errorf("node %s takes new pods: somebody uncordoned it", p.Node)
		}
		return err
	case plan.NodeReady:
		if p.Node == except {
			return nil
		}
		n, err := t.node(ctx, p.Node)
		if err == nil && !ready(n) {
			err = fmt.Errorf("node %s is not Ready", p.Node)
		}
		return err
	}
	return fmt.Errorf("this belay does not know the precondition %q: use the one that made the plan", p.Kind)
}

// controlPlanesBut gives the control plane nodes without one. With one left out the plan says which there are, as the
// API may be down with it.
func (t *task) controlPlanesBut(ctx context.Context, except string) ([]string, error) {
	if except == "" {
		return t.controlPlanes(ctx)
	}
	var names []string
	for _, n := range t.plan.Basis.Nodes {
		if n.ControlPlane && n.Name != except {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// eachAPIServer asks the apiserver of every control plane node but one ("" for none) directly.
func (t *task) eachAPIServer(ctx context.Context, except string, judge func(node string, v kubeversion.V) error) error {
	names, err := t.controlPlanesBut(ctx, except)
	if err != nil {
		return err
	}
	if len(names) == 0 && except == "" {
		return errors.New("no control plane node was found")
	}
	var errs []error
	for _, n := range names {
		v, err := t.APIServer(ctx, n)
		if err == nil {
			err = judge(n, v)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (t *task) apiServersAtLeast(ctx context.Context, want kubeversion.V) error {
	return t.eachAPIServer(ctx, "", func(node string, v kubeversion.V) error {
		if v.Less(want) {
			return fmt.Errorf("the apiserver of %s runs %s, older than %s", node, v, want)
		}
		return nil
	})
}

// kubeadmConfigVersion is kubernetesVersion of ConfigMap kubeadm-config: what `kubeadm upgrade node` goes by.
func (t *task) kubeadmConfigVersion(ctx context.Context) (kubeversion.V, error) {
	var text string
	err := t.mend(ctx, "ConfigMap kubeadm-config to be read", func(ctx context.Context) error {
		cm, err := t.Client.CoreV1().ConfigMaps("kube-system").Get(ctx, "kubeadm-config", metav1.GetOptions{})
		if err == nil {
			text = cm.Data["ClusterConfiguration"]
		}
		return err
	})
	if err != nil {
		return kubeversion.V{}, err
	}
	var c struct {
		KubernetesVersion kubeversion.V `json:"kubernetesVersion"`
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return kubeversion.V{}, fmt.Errorf("ConfigMap kube-system/kubeadm-config: %w", err)
	}
	return c.KubernetesVersion, nil
}
