package executor

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/plan"
)

func TestSalientLinesOfKubeadm(t *testing.T) {
	out := "\x1b[0;37mCGROUPS_PIDS\x1b[0m: \x1b[0;32menabled\x1b[0m\n[preflight] Some fatal errors occurred:\n\t[ERROR CreateJob]: Job did not complete\nTo see the stack trace\nerror: error execution phase preflight\n"
	if got, want := salient(out), "[ERROR CreateJob]: Job did not complete\nerror: error execution phase preflight"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := salient("\x1b[0;32mlast\x1b[0m line"); got != "last line" {
		t.Errorf("without an error line: %q", got)
	}
}

func TestUnknownKindsAreRefused(t *testing.T) {
	w := newWorld(t, 1, 1)
	env := w.env()
	k := &task{Env: &env, run: "r", plan: w.plan(t), baseline: w.initial}
	if err := k.precondition(t.Context(), plan.Precondition{Kind: "moon-is-full"}, ""); err == nil || !strings.Contains(err.Error(), "moon-is-full") {
		t.Errorf("a precondition that nobody knows holds: %v", err)
	}
	l := &loop{task: k, state: map[string]stepState{}, handlers: k.handlers(), report: &Report{}}
	var stopped *StoppedError
	if err := l.step(t.Context(), plan.Step{ID: "x", Kind: "dance"}, 1, 1); !errors.As(err, &stopped) || stopped.Begun {
		t.Errorf("a step that nobody knows: %v", err)
	}
	// Every kind that a plan can hold has a handler.
	for _, s := range k.plan.Steps {
		if _, ok := l.handlers[s.Kind]; !ok {
			t.Errorf("no handler for %s", s.Kind)
		}
	}
}

func TestForeignCordonIsNeitherTakenNorGivenBack(t *testing.T) {
	w := newWorld(t, 1, 1)
	env := w.env()
	k := &task{Env: &env, run: "r", plan: w.plan(t)}
	s := plan.Step{ID: "cordon", Kind: plan.Cordon, Node: "w1"}
	if err := k.patchNode(t.Context(), "w1", func(*corev1.Node) string { return `"annotations":{}},"spec":{"unschedulable":true}` }); err != nil {
		t.Fatal(err)
	}
	if f, err := (cordon{k}).Probe(t.Context(), s, false); err != nil || f.Progress != Done {
		t.Errorf("cordon: %+v, %v", f, err)
	}
	if f, err := (uncordon{k}).Probe(t.Context(), s, false); err != nil || f.Progress != Done {
		t.Errorf("uncordon would take somebody else's cordon away: %+v, %v", f, err)
	}
}

func TestDrainWaitsForVolumesToLeave(t *testing.T) {
	w := newWorld(t, 1, 2)
	env := w.env()
	env.Patience = 400 * time.Millisecond
	var said []string
	env.Sink = event.Func(func(e event.Event) { said = append(said, e.Msg) })
	k := &task{Env: &env, run: "r", plan: w.plan(t)}
	s := plan.Step{ID: "drain", Kind: plan.Drain, Node: "w1"}
	ctx := t.Context()
	for _, v := range []struct {
		pv, node, claim string
		attached        bool
	}{{"pv-web", "w1", "web-0", true}, {"pv-agent", "w1", "agent", true}, {"pv-gone", "w1", "gone", false}, {"pv-else", "w2", "else", true}} {
		if _, err := w.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v.pv},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: v.claim}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-" + v.pv},
			Spec:   storagev1.VolumeAttachmentSpec{NodeName: v.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.pv}},
			Status: storagev1.VolumeAttachmentStatus{Attached: v.attached}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// A DaemonSet's pod stays through the drain, and so does its volume.
	if _, err := w.client.CoreV1().Pods("shop").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-x", Namespace: "shop"},
		Spec: corev1.PodSpec{NodeName: "w1", Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "agent"}}}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	c := drainNode{k}.volumesDetached(s)
	if err := c.Check(ctx); err == nil || err.Error() != "attached: pv-web (csi-pv-web, claim shop/web-0)" {
		t.Fatalf("got %v, want the one volume that should leave", err)
	}
	// The wait has an end: kubelets are upgraded over mounts, too.
	if err := condition.Wait(ctx, c, condition.Options{Timeout: time.Minute, Interval: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "pv-web") {
		t.Errorf("what stayed attached is not said: %q", said)
	}
	if err := w.client.StorageV1().VolumeAttachments().Delete(ctx, "csi-pv-web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := (drainNode{k}).volumesDetached(s).Check(ctx); err != nil {
		t.Errorf("with nothing left: %v", err)
	}
}
