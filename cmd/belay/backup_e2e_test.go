//go:build e2e

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/internal/bundle"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/payload"
	"github.com/belayops/belay/testenv"
)

// drill is a real cluster of three control plane nodes and two workers that is
// backed up and restored with the real program.
type drill struct {
	name, home, bin string
	client          kubernetes.Interface
}

// TestRestoreDrill backs a real cluster up, sets it back in place with belay
// killed in the middle, then loses all control plane machines and makes the
// control plane anew on other ones. It needs root and the bundle of 1.36.3 in the
// user's cache (belay bundle build), and fails without.
func TestRestoreDrill(t *testing.T) {
	dir := t.TempDir()
	d := &drill{name: "bk", home: filepath.Join(dir, "home"), bin: filepath.Join(dir, "belay")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", d.bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build belay: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := d.command(context.Background(), "cluster", "down", d.name).CombinedOutput(); err != nil {
			t.Errorf("cluster down: %v\n%s", err, out)
		}
	})
	d.belay(t, "cluster", "up", "--machines", "3+2", "--name", d.name)
	cfg, err := clientcmd.BuildConfigFromFlags("", d.belay(t, "cluster", "kubeconfig", d.name, "--path"))
	must(t, err)
	d.client, err = kubernetes.NewForConfig(cfg)
	must(t, err)

	t.Run("a disk that gets full", d.fullDisk)
	t.Run("volumes", d.volumes)
	t.Run("in place", d.inPlace)
	t.Run("onto new machines", d.ontoNewMachines)
}

func (d *drill) command(ctx context.Context, args ...string) *exec.Cmd {
	// In front, as what follows "--" is for the node.
	cmd := exec.CommandContext(ctx, d.bin, append([]string{"--progress", "plain"}, args...)...)
	cmd.Env = append(os.Environ(), "BELAY_HOME="+d.home)
	return cmd
}

// belay runs the program and gives its stdout.
func (d *drill) belay(t *testing.T, args ...string) string {
	t.Helper()
	start := time.Now()
	cmd := d.command(t.Context(), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("belay %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	t.Logf("belay %s: %s\n%s%s", strings.Join(args, " "), time.Since(start).Round(time.Second), stderr.String(), out)
	return strings.TrimSpace(string(out))
}

// fails runs the program, which must end with an exit code, and gives its stderr.
func (d *drill) fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	cmd := d.command(t.Context(), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	exit := (*exec.ExitError)(nil)
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != code {
		t.Errorf("belay %s: %v, want exit code %d\n%s", strings.Join(args, " "), err, code, stderr.String())
	}
	return stderr.String()
}

func (d *drill) configMap(t *testing.T, name string) {
	t.Helper()
	_, err := d.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
}

// kubelets gives the process of each node's kubelet.
func (d *drill) kubelets(t *testing.T, nodes ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, n := range nodes {
		out[n] = d.belay(t, "cluster", "ssh", n, "--", "pgrep", "-x", "kubelet")
	}
	return out
}

func (d *drill) node(role string, i int) string { return fmt.Sprintf("%s-%s%d", d.name, role, i) }

// fullDisk lets the file system of the backups get full in the middle.
func (d *drill) fullDisk(t *testing.T) {
	dir := t.TempDir()
	// etcd's snapshot fits in, by what its size is, and hardly anything else.
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=600m"))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	var s syscall.Statfs_t
	must(t, syscall.Statfs(dir, &s))
	probe := d.belay(t, "backup", "create", "--cluster", d.name, "-o", filepath.Join(dir, "probe"))
	m, err := backup.ReadManifest(probe)
	must(t, err)
	must(t, os.RemoveAll(probe))
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%dk", m.Etcd.Size>>10+100)))
	stderr := d.fails(t, exitError, "backup", "create", "--cluster", d.name, "-o", filepath.Join(dir, "full"))
	if !strings.Contains(stderr, "no space left") || !strings.Contains(stderr, "-o") {
		t.Errorf("it does not say what is wrong and what to do:\n%s", stderr)
	}
	left, err := os.ReadDir(filepath.Join(dir, "full"))
	must(t, err)
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// volumes makes a claim that a pod mounts, and asks what belay says when it no longer does.
func (d *drill) volumes(t *testing.T) {
	ctx := t.Context()
	none, kind := "", corev1.HostPathDirectoryOrCreate
	gib := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	_, err := d.client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "shop-data"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: gib, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/shop", Type: &kind}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = d.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &none, VolumeName: "shop-data", AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: gib}},
	}, metav1.CreateOptions{})
	must(t, err)
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"kubernetes.io/hostname": d.node("w", 1)},
				Containers: []corev1.Container{{Name: "main", Image: drillImage, VolumeMounts: []corev1.VolumeMount{
					{Name: "v", MountPath: "/var/log/shop", SubPath: "logs"}, {Name: "v", MountPath: "/data", ReadOnly: true},
				}}},
				Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
			},
		}
	}
	for _, name := range []string{"shop", "brief"} {
		_, err = d.client.CoreV1().Pods("default").Create(ctx, pod(name), metav1.CreateOptions{})
		must(t, err)
		d.running(t, name)
	}
	dir := d.belay(t, "backup", "create", "--cluster", d.name, "-o", t.TempDir())
	b, err := os.ReadFile(filepath.Join(dir, "volumes", "mounts.json"))
	must(t, err)
	var got backup.Mounts
	must(t, json.Unmarshal(b, &got))
	i := slices.IndexFunc(got.Claims, func(c backup.Claim) bool { return c.ID() == "default/data" })
	if i < 0 {
		t.Fatalf("the claim is not in the mount map: %s", b)
	}
	c := got.Claims[i]
	if c.Phase != "Bound" || c.Volume == nil || c.Volume.Handle != "/var/lib/shop" || c.Volume.ReclaimPolicy != "Retain" || len(c.Pods) != 2 {
		t.Fatalf("claim: %+v, volume %+v", c, c.Volume)
	}
	want := []backup.At{{Container: "main", Path: "/var/log/shop", SubPath: "logs"}, {Container: "main", Path: "/data", ReadOnly: true}}
	if p := c.Pods[1]; p.Name != "shop" || p.Node != d.node("w", 1) || p.Phase != "Running" || !slices.Equal(p.Mounts, want) {
		t.Errorf("pod: %+v", p)
	}
	// What the map says is what the machine has.
	d.belay(t, "cluster", "ssh", d.node("w", 1), "--", "test", "-d", "/var/lib/shop/logs")

	zero := int64(0)
	for _, name := range []string{"shop", "brief"} {
		must(t, d.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	}
	cmd := d.command(ctx, "backup", "diff", dir, "--cluster", d.name)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != exitBlocked {
		t.Errorf("diff: %v, want exit code %d", err, exitBlocked)
	}
	if !regexp.MustCompile(`default/data +no running pod mounts it any more; before: brief, shop`).Match(out) {
		t.Errorf("diff does not tell of the claim:\n%s", out)
	}
	_, err = d.client.CoreV1().Pods("default").Create(ctx, pod("shop"), metav1.CreateOptions{})
	must(t, err)
	d.running(t, "shop")
}

const drillImage = "registry.k8s.io/pause:3.10.2"

func (d *drill) running(t *testing.T, name string) {
	t.Helper()
	must(t, condition.Wait(t.Context(), condition.Condition{Name: "pod " + name + " to run", Check: func(ctx context.Context) error {
		p, err := d.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning {
			return condition.NotYetf("it is %s", p.Status.Phase)
		}
		return nil
	}}, condition.Options{Timeout: 2 * time.Minute}))
}

// deploy has controllers, scheduler and kubelets work: a new Deployment must become ready.
func (d *drill) deploy(t *testing.T, name string) {
	t.Helper()
	replicas := int32(4)
	labels := map[string]string{"app": name}
	_, err := d.client.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: drillImage}}},
			},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	err = condition.Wait(t.Context(), condition.Condition{Name: "a new Deployment to run", Check: func(ctx context.Context) error {
		d, err := d.client.AppsV1().Deployments("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ReadyReplicas != replicas {
			return condition.NotYetf("%d of %d replicas are ready", d.Status.ReadyReplicas, replicas)
		}
		return nil
	}}, condition.Options{Timeout: 3 * time.Minute})
	if err != nil {
		t.Error(err)
	}
}

// set says whether ConfigMap before is there, and after is not.
func (d *drill) setBack(t *testing.T, before, after string) {
	t.Helper()
	_, err := d.client.CoreV1().ConfigMaps("default").Get(t.Context(), after, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("what was written after the backup: %v, want not found", err)
	}
	if _, err := d.client.CoreV1().ConfigMaps("default").Get(t.Context(), before, metav1.GetOptions{}); err != nil {
		t.Errorf("what was there before the backup: %v", err)
	}
}

// killedAfter starts the program and kills it as soon as its journal holds a word.
func (d *drill) killedAfter(t *testing.T, journal, word string, args ...string) {
	t.Helper()
	cut := d.command(t.Context(), args...)
	must(t, cut.Start())
	must(t, condition.Wait(t.Context(), condition.Condition{Name: "the restore to come to " + word, Check: func(context.Context) error {
		journals, err := filepath.Glob(filepath.Join(d.home, "restores", journal))
		if err != nil || len(journals) != 1 {
			return condition.NotYetf("journals: %v %v", journals, err)
		}
		b, err := os.ReadFile(journals[0])
		if err != nil {
			return err
		}
		if !bytes.Contains(b, []byte(word)) {
			return condition.NotYetf("not there yet")
		}
		return nil
	}}, condition.Options{Timeout: 5 * time.Minute, Interval: 100 * time.Millisecond}))
	must(t, cut.Process.Signal(syscall.SIGKILL))
	_ = cut.Wait()
}

// inPlace sets the cluster back on its machines.
func (d *drill) inPlace(t *testing.T) {
	d.configMap(t, "before")
	dir := d.belay(t, "backup", "create", "--cluster", d.name)
	d.belay(t, "backup", "verify", dir, "--level", "restored")
	d.configMap(t, "after")
	nodes := []string{d.node("cp", 1), d.node("cp", 2), d.node("cp", 3), d.node("w", 1), d.node("w", 2)}
	pids := d.kubelets(t, nodes...)
	restore := []string{"backup", "restore", dir, "--etcd", "--cluster", d.name, "--confirm", d.name}

	// A name that is mistyped changes nothing.
	d.fails(t, exitUsage, append(restore[:len(restore)-1:len(restore)-1], "bx")...)

	// Killed when etcd is stopped everywhere and the data is under way.
	d.killedAfter(t, "*.jsonl", `"data/`+d.node("cp", 2)+`"`, restore...)
	d.belay(t, restore...)

	d.setBack(t, "before", "after")
	d.deploy(t, "again")
	if now := d.kubelets(t, nodes...); !maps.Equal(now, pids) {
		t.Errorf("a kubelet was restarted: %v, was %v", now, pids)
	}
}

// ontoNewMachines loses every control plane machine and makes the control plane anew.
func (d *drill) ontoNewMachines(t *testing.T) {
	ctx := t.Context()
	d.configMap(t, "saved")
	pass := filepath.Join(t.TempDir(), "passphrase")
	must(t, os.WriteFile(pass, []byte("a drill is no secret\n"), 0o600))
	dir := d.belay(t, "backup", "create", "--cluster", d.name, "--passphrase-file", pass)
	d.belay(t, "backup", "verify", dir, "--level", "restored", "--passphrase-file", pass)
	d.configMap(t, "lost")
	shop, err := d.client.CoreV1().Pods("default").Get(ctx, "shop", metav1.GetOptions{})
	must(t, err)
	workers := []string{d.node("w", 1), d.node("w", 2)}
	pids := d.kubelets(t, workers...)

	restore := []string{"backup", "restore", dir, "--etcd", "--onto", d.newMachines(t), "--confirm", d.name, "--passphrase-file", pass}
	// While the old control plane lives, there must be no second one.
	if stderr := d.fails(t, exitBlocked, restore...); !strings.Contains(stderr, backup.ControlPlaneLives+"@"+d.node("cp", 1)) {
		t.Errorf("it does not say that the old control plane answers:\n%s", stderr)
	}
	d.loseControlPlane(t)
	d.killedAfter(t, "*-new-machines.jsonl", `"certificates"`, restore...)
	d.belay(t, restore...)

	d.setBack(t, "saved", "lost")
	d.deploy(t, "anew")
	if now := d.kubelets(t, workers...); !maps.Equal(now, pids) {
		t.Errorf("a worker's kubelet was restarted: %v, was %v", now, pids)
	}
	nodes, err := d.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	want := []string{d.node("cp", 4), d.node("cp", 5), d.node("cp", 6), d.node("w", 1), d.node("w", 2)}
	var names []string
	for _, n := range nodes.Items {
		names = append(names, n.Name)
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("node %s is not ready", n.Name)
		}
	}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("nodes are %v, want %v", names, want)
	}
	// A pod on a worker lived through all of it.
	if p, err := d.client.CoreV1().Pods("default").Get(ctx, "shop", metav1.GetOptions{}); err != nil || p.UID != shop.UID || p.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("pod shop: %v, UID %s was %s, %+v", err, p.UID, shop.UID, p.Status.ContainerStatuses)
	}
}

func (d *drill) machines(t *testing.T) (*testenv.Env, *bundle.Bundle) {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	cache = filepath.Join(cache, "belay")
	b, err := bundle.Find(filepath.Join(cache, "bundles"), kubeversion.MustParse(defaultKubernetes), "")
	must(t, err)
	runc, err := b.BinaryPath("runc")
	must(t, err)
	env, err := testenv.New(testenv.Options{CacheDir: cache, StateDir: filepath.Join(d.home, "machines"), RuncPath: runc, KeepFailed: true})
	must(t, err)
	return env, b
}

// newMachines makes three machines with other names and addresses, and gives their inventory.
func (d *drill) newMachines(t *testing.T) string {
	t.Helper()
	env, b := d.machines(t)
	var specs []testenv.MachineSpec
	for i := range 3 {
		specs = append(specs, testenv.MachineSpec{Name: d.node("cp", 4+i), Binds: []testenv.Bind{{Source: filepath.Dir(b.Dir()), Target: payload.MirrorDir, ReadOnly: true}}})
	}
	machines, err := env.Up(t.Context(), d.name, specs)
	must(t, err)
	inv := &inventory.Inventory{Schema: inventory.Schema, Cluster: d.name, Disposable: true, IgnorePreflightErrors: env.Facts().Quirks().IgnorePreflight}
	for _, m := range machines {
		inv.SSH = inventory.SSH{User: m.User, Port: m.Port, KeyFile: m.KeyFile, KnownHostsFile: m.KnownHostsFile}
		inv.Nodes = append(inv.Nodes, inventory.Node{Name: m.Name, Address: m.Address})
	}
	file := filepath.Join(d.home, "new.yaml")
	must(t, inv.Save(file))
	return file
}

// loseControlPlane takes the power of all control plane machines away and points the balancer at the new ones.
func (d *drill) loseControlPlane(t *testing.T) {
	t.Helper()
	env, _ := d.machines(t)
	n, err := env.Get(t.Context(), d.name)
	must(t, err)
	var backends []string
	for _, m := range n.Machines {
		switch {
		case slices.Contains([]string{d.node("cp", 1), d.node("cp", 2), d.node("cp", 3)}, m.Name):
			must(t, m.Stop(t.Context(), true))
		case strings.HasPrefix(m.Name, d.name+"-cp"):
			backends = append(backends, net.JoinHostPort(m.Address, "6443"))
		}
	}
	must(t, env.UpdateLB(t.Context(), d.name, backends))
}
