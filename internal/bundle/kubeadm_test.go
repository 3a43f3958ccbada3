package bundle

import (
	"strings"
	"testing"

	"github.com/belayops/belay/internal/kubeversion"
)

func TestParseImages(t *testing.T) {
	images, err := parseImages(imageList, testVersion)
	if err != nil || len(images) != 7 {
		t.Fatalf("got %v, %v", images, err)
	}
	for _, i := range images {
		if i.ref == "registry.k8s.io/coredns/coredns:v1.14.2" && (i.role != RoleDNS || i.component != "coredns") {
			t.Errorf("CoreDNS is %+v", i)
		}
		if strings.Contains(i.ref, "kube-apiserver") && (i.role != RoleControlPlane || i.component != "kubernetes") {
			t.Errorf("kube-apiserver is %+v", i)
		}
	}
	replace := func(from, to string) string { return strings.Replace(imageList, from, to, 1) }
	for _, c := range []struct{ name, in, want string }{
		{"another registry", strings.ReplaceAll(imageList, "registry.k8s.io", "10.0.0.1:5000/k8s"), ""},
		{"empty", "", "no image"},
		{"one missing", replace("registry.k8s.io/pause:3.10.2\n", ""), "pause"},
		{"one unknown", imageList + "registry.k8s.io/konnectivity:v1\n", "konnectivity"},
		{"another version", replace("kube-proxy:v1.36.3", "kube-proxy:v1.36.2"), "v1.36.2"},
		{"no tag", replace("pause:3.10.2", "pause"), "pause"},
		{"twice", imageList + "registry.k8s.io/pause:3.10.2\n", "twice"},
		{"words", "could not reach the internet\n" + imageList, "could not reach"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseImages(c.in, testVersion)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzParseImages(f *testing.F) {
	f.Add(imageList)
	f.Add("a/b:c\n")
	f.Fuzz(func(t *testing.T, list string) {
		images, err := parseImages(list, testVersion)
		if err == nil && len(images) != 7 {
			t.Errorf("%d images without an error", len(images))
		}
	})
}

func TestEtcdVersion(t *testing.T) {
	for tag, want := range map[string]string{"3.6.8-0": "v3.6.8", "3.7.0-0": "v3.7.0", "3.5.24-12": "v3.5.24", "3.6.99-rc.0": "", "3.6.8": "", "3.6.8-": "", "latest": "", "": "", "3.6": ""} {
		v, err := etcdVersion(tag)
		if v.String() != want || (err == nil) != (want != "") {
			t.Errorf("etcdVersion(%q) = %s, %v", tag, v, err)
		}
	}
}

func TestEtcdStep(t *testing.T) {
	have := []string{"v3.5.24", "v3.5.32", "v3.6.8", "v3.6.11", "v3.6.16", "v3.6.9", "v3.7.0"}
	for _, c := range []struct {
		kube, etcd string
		have       []string
		want       string
		fails      bool
	}{
		{kube: "1.37.2", etcd: "3.7.0", have: have, want: "v3.6.16"},
		{kube: "1.37.2", etcd: "3.7.0", have: []string{"v3.6.8", "v3.7.0"}, fails: true},
		{kube: "1.36.3", etcd: "3.6.8", have: have},
		{kube: "1.38.0", etcd: "3.7.5", have: have}, // every cluster on 1.37 runs 3.7 already
		{kube: "1.34.4", etcd: "3.6.5", have: have, want: "v3.5.32"},
		{kube: "1.33.13", etcd: "3.5.24", have: have},
	} {
		got, err := etcdStep(kubeversion.MustParse(c.kube), kubeversion.MustParse(c.etcd), c.have)
		if got.String() != c.want || (err != nil) != c.fails {
			t.Errorf("%s with etcd %s: %s, %v; want %q", c.kube, c.etcd, got, err, c.want)
		}
	}
}
