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

// precondition looks at one thing that must hold before a step begins. An unknown kind does not hold.
func (t *task) precondition(ctx context.Context, p plan.Precondition) error {
	switch p.Kind {
	case plan.APIServersAtLeast:
		return t.apiServersAtLeast(ctx, p.Version)
	case plan.APIServersWithinOneMinor:
		return t.eachAPIServer(ctx, func(node string, v kubeversion.V) error {
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
		names, err := t.controlPlanes(ctx)
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
		n, err := t.node(ctx, p.Node)
		if err == nil && !ready(n) {
			err = fmt.Errorf("node %s is not Ready", p.Node)
		}
		return err
	}
	return fmt.Errorf("this belay does not know the precondition %q: use the one that made the plan", p.Kind)
}

// disturbs says whether a step that is half-way may itself have broken the precondition.
func disturbs(k plan.PreconditionKind) bool {
	switch k {
	case plan.NodeReady, plan.EtcdHealthy, plan.EtcdAtLeast, plan.APIServersWithinOneMinor:
		return true
	case plan.APIServersAtLeast, plan.KubeadmConfigIs, plan.NodeCordoned:
	}
	return false
}

// eachAPIServer asks the apiserver of every control plane node directly.
func (t *task) eachAPIServer(ctx context.Context, judge func(node string, v kubeversion.V) error) error {
	names, err := t.controlPlanes(ctx)
	if err != nil {
		return err
	}
	if len(names) == 0 {
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
	return t.eachAPIServer(ctx, func(node string, v kubeversion.V) error {
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
