package provision

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/belayops/belay/internal/event"
)

// TestProofOutlastsAnAPIThatIsAway proves a node over an apiserver whose balancer ends
// every connection for a time, as on a computer that brings several clusters up at once.
func TestProofOutlastsAnAPIThatIsAway(t *testing.T) {
	for _, tt := range []struct {
		name string
		verb string
		away time.Duration
		// lost: the call takes effect, and only its answer is missing.
		lost, fails bool
	}{
		{name: "create", verb: "create", away: 2 * time.Minute},
		{name: "create whose answers are lost", verb: "create", away: time.Second, lost: true},
		{name: "get", verb: "get", away: 2 * time.Minute},
		{name: "delete", verb: "delete", away: 2 * time.Minute},
		{name: "any", verb: "*", away: 2 * time.Minute},
		{name: "for good", verb: "*", away: time.Hour, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cs := fake.NewClientset()
				began := time.Now()
				created := 0
				cs.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
					p := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
					p.Status.Phase = corev1.PodSucceeded // as soon as its node has it
					created++
					return false, nil, nil
				})
				cs.PrependReactor(tt.verb, "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
					if time.Since(began) >= tt.away {
						return false, nil, nil
					}
					if create, ok := a.(k8stesting.CreateAction); ok && tt.lost {
						p := create.GetObject().(*corev1.Pod).DeepCopy()
						p.Namespace, p.Status.Phase = a.GetNamespace(), corev1.PodSucceeded
						created++
						if err := cs.Tracker().Add(p); apierrors.IsAlreadyExists(err) {
							return true, nil, err
						} else if err != nil {
							t.Error(err)
						}
					}
					return true, nil, io.EOF
				})
				u := &up{sink: event.Discard, spec: machinesSpec("a"), now: time.Now, api: &api{cs: cs}}
				err := u.proveNode(t.Context(), &node{name: "a-w1"}, "sample")
				if tt.fails {
					if !errors.Is(err, io.EOF) || time.Since(began) > 5*time.Minute {
						t.Errorf("after %s: %v", time.Since(began), err)
					}
					return
				}
				if err != nil {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
				left, err := cs.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
				if err != nil || len(left.Items) > 0 {
					t.Errorf("left %d pods, %v", len(left.Items), err)
				}
				if created == 0 {
					t.Error("no pod was made")
				}
			})
		})
	}
}
