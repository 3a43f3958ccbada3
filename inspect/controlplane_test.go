//go:build controlplane

package inspect

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/host"
)

func program(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("BELAY_BUNDLES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "belay", "bundles")
	}
	path := filepath.Join(dir, "1.36.3-"+runtime.GOARCH, "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; this layer needs it: belay bundle build 1.36.3", err)
	}
	return path
}

// A real etcd behind a real apiserver: members, versions, alarms and a member that was added and never started.
func TestObserveAsksARealEtcd(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	pki, err := controlplane.NewPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := controlplane.StartEtcd(ctx, controlplane.EtcdOptions{Binary: program(t, "etcd"), Dir: filepath.Join(dir, "etcd"), PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Stop(context.WithoutCancel(ctx)) })
	api, err := controlplane.StartAPIServer(ctx, controlplane.APIServerOptions{Binary: program(t, "kube-apiserver"), Dir: filepath.Join(dir, "api"), PKI: pki, Etcd: etcd})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Stop(context.WithoutCancel(ctx)) })

	client, err := kubernetes.NewForConfig(api.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cp1", Labels: map[string]string{controlPlaneLabel: ""}}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-apiserver-cp1", Namespace: systemNamespace, Labels: map[string]string{"component": "kube-apiserver"}, Annotations: map[string]string{mirrorAnnotation: "x"}}}
	pod.Spec = corev1.PodSpec{NodeName: "cp1", AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{Name: "kube-apiserver", Image: "registry.k8s.io/kube-apiserver:v1.36.3", Command: []string{
		"kube-apiserver", "--etcd-servers=" + etcd.Endpoint(), "--etcd-cafile=" + pki.Path("ca.crt"), "--etcd-certfile=" + pki.Path("etcd-client.crt"), "--etcd-keyfile=" + pki.Path("etcd-client.key"),
	}}}}
	if _, err := client.CoreV1().Namespaces().Get(ctx, systemNamespace, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods(systemNamespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	observe := func() *cluster.State {
		t.Helper()
		s, err := Observe(ctx, Sources{REST: api.RESTConfig(), Host: func(_ context.Context, node string) (host.Host, error) { return host.NewLocal(node), nil }}, Options{PageSize: 3})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	s := observe()
	if !s.Etcd.Reached || len(s.Etcd.Members) != 1 || s.Lineage == "" || s.Version.String() != "v1.36.3" {
		t.Fatalf("%+v, unread %+v", s.Etcd, s.Unread)
	}
	m := s.Etcd.Members[0]
	if !m.Healthy || !m.Leader || m.Version.Minor != 6 || m.DBSize == 0 || m.Quota == 0 || s.Etcd.Revision == 0 || s.Etcd.ClusterVersion != "3.6.0" {
		t.Errorf("member %+v, revision %d, cluster version %q", m, s.Etcd.Revision, s.Etcd.ClusterVersion)
	}
	if _, err := cluster.Encode(s); err != nil {
		t.Error(err)
	}

	c, err := clientv3.New(etcd.ClientConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	added, err := c.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	s = observe()
	q := cluster.QuorumAfter(s.Etcd, cluster.EtcdOp{Action: cluster.EtcdRestart, Members: []string{m.ID}})
	if len(s.Etcd.Members) != 2 || q.OK() {
		t.Errorf("a learner that never started: %+v, vetoes %q", s.Etcd.Members, q.Vetoes)
	}
	for _, x := range s.Etcd.Members {
		if x.ID != m.ID && (x.Healthy || !x.Learner || !strings.Contains(x.Problem, "never started")) {
			t.Errorf("%+v", x)
		}
	}
	if _, err := c.MemberRemove(ctx, added.Member.ID); err != nil {
		t.Fatal(err)
	}

	// The alarm that a full database raises.
	status, err := c.Status(ctx, etcd.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: pb.AlarmType_NOSPACE}
	if _, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, alarm); err != nil {
		t.Fatal(err)
	}
	s = observe()
	if len(s.Etcd.Alarms) != 1 || s.Etcd.Alarms[0] != (cluster.EtcdAlarm{MemberID: m.ID, Alarm: "NOSPACE"}) {
		t.Errorf("alarms %+v", s.Etcd.Alarms)
	}
}
