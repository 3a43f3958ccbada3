package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/belayops/belay/internal/kubeversion"
)

// Projection is the part of a State that a plan relies on: who is in the
// cluster and which version each part runs. Health, load and the time of
// observation are not in it, as gates look at those when their step comes.
type Projection struct {
	Lineage string        `json:"lineage"`
	Version kubeversion.V `json:"version"`
	// KubeadmVersion and KubeadmAPI are of ConfigMap kubeadm-config; empty without one.
	KubeadmVersion kubeversion.V   `json:"kubeadmVersion,omitzero"`
	KubeadmAPI     string          `json:"kubeadmAPI,omitempty"`
	Nodes          []ProjectedNode `json:"nodes"`
	EtcdExternal   bool            `json:"etcdExternal,omitempty"`
	// EtcdMembers are sorted by ID.
	EtcdMembers []ProjectedMember `json:"etcdMembers,omitempty"`
	Addons      []ProjectedAddon  `json:"addons,omitempty"`
}

// ProjectedNode is what a plan relies on of one node.
type ProjectedNode struct {
	Name          string        `json:"name"`
	UID           string        `json:"uid"`
	ControlPlane  bool          `json:"controlPlane"`
	Unschedulable bool          `json:"unschedulable,omitempty"`
	Kubelet       kubeversion.V `json:"kubelet"`
	KubeProxy     kubeversion.V `json:"kubeProxy,omitzero"`
	// Images are the images of the static pods by component.
	Images map[string]string `json:"images,omitempty"`
}

// ProjectedMember is what a plan relies on of one etcd member.
type ProjectedMember struct {
	ID      string        `json:"id"`
	Name    string        `json:"name"`
	Voter   bool          `json:"voter"`
	Version kubeversion.V `json:"version"`
}

// ProjectedAddon is an addon's image.
type ProjectedAddon struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

// Project gives the projection of a State. It shares nothing with s.
func Project(s *State) Projection {
	p := Projection{Lineage: s.Lineage, Version: s.Version, Nodes: []ProjectedNode{}, EtcdExternal: s.Etcd.External}
	if s.Kubeadm != nil {
		p.KubeadmVersion, p.KubeadmAPI = s.Kubeadm.KubernetesVersion, s.Kubeadm.APIVersion
	}
	for _, n := range s.Nodes {
		pn := ProjectedNode{
			Name: n.Name, UID: n.UID, ControlPlane: n.ControlPlane, Unschedulable: n.Unschedulable,
			Kubelet: n.Kubelet, KubeProxy: n.KubeProxy,
		}
		for _, sp := range n.StaticPods {
			if sp.Image != "" {
				if pn.Images == nil {
					pn.Images = make(map[string]string)
				}
				pn.Images[sp.Component] = sp.Image
			}
		}
		p.Nodes = append(p.Nodes, pn)
	}
	for _, m := range s.Etcd.Members {
		p.EtcdMembers = append(p.EtcdMembers, ProjectedMember{ID: m.ID, Name: m.Name, Voter: !m.Learner, Version: m.Version})
	}
	for _, a := range s.Addons {
		p.Addons = append(p.Addons, ProjectedAddon{Name: a.Namespace + "/" + a.Name, Image: a.Image})
	}
	slices.SortFunc(p.Nodes, func(a, b ProjectedNode) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(p.EtcdMembers, func(a, b ProjectedMember) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(p.Addons, func(a, b ProjectedAddon) int { return cmp.Compare(a.Name, b.Name) })
	return p
}

// Digest is "sha256:" and the hexadecimal SHA-256 of the projection's JSON. Equal projections have equal digests.
func (p Projection) Digest() string {
	b, err := json.Marshal(p)
	if err != nil {
		// Strings, booleans and versions always marshal.
		b = []byte(err.Error())
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Diff says in sentences what changed from a to b; nil when nothing did.
func Diff(a, b Projection) []string {
	var d differ
	if a.Lineage != b.Lineage {
		d.addf("this is another cluster: UID of namespace kube-system was %s, is %s", a.Lineage, b.Lineage)
	}
	d.changed("API server version", a.Version.String(), b.Version.String())
	d.changed("kubernetesVersion in ConfigMap kubeadm-config", a.KubeadmVersion.String(), b.KubeadmVersion.String())
	d.changed("apiVersion of ConfigMap kubeadm-config", a.KubeadmAPI, b.KubeadmAPI)

	eachPair(a.Nodes, b.Nodes, func(n ProjectedNode) string { return n.Name },
		func(n ProjectedNode) { d.addf("node %s is gone", n.Name) },
		func(n ProjectedNode) { d.addf("node %s is new (%s, kubelet %s)", n.Name, role(n), n.Kubelet) },
		func(x, y ProjectedNode) {
			who := "node " + x.Name
			if x.UID != y.UID {
				d.addf("%s was replaced: its UID was %s, is %s", who, x.UID, y.UID)
			}
			d.changed("role of "+who, role(x), role(y))
			if x.Unschedulable != y.Unschedulable {
				d.addf("%s was %s, is %s", who, cordoned(x), cordoned(y))
			}
			d.changed("kubelet of "+who, x.Kubelet.String(), y.Kubelet.String())
			d.changed("kube-proxy of "+who, x.KubeProxy.String(), y.KubeProxy.String())
			for _, c := range sortedKeys(x.Images, y.Images) {
				d.changed(c+" of "+who, x.Images[c], y.Images[c])
			}
		})

	if a.EtcdExternal != b.EtcdExternal {
		d.addf("etcd was %s, is %s", external(a), external(b))
	}
	eachPair(a.EtcdMembers, b.EtcdMembers, func(m ProjectedMember) string { return m.ID },
		func(m ProjectedMember) { d.addf("etcd member %s (%s) is gone", m.Name, m.ID) },
		func(m ProjectedMember) { d.addf("etcd member %s (%s) is new", m.Name, m.ID) },
		func(x, y ProjectedMember) {
			who := "etcd member " + x.ID
			d.changed("name of "+who, x.Name, y.Name)
			d.changed("version of etcd member "+cmp.Or(y.Name, y.ID), x.Version.String(), y.Version.String())
			d.changed("role of etcd member "+cmp.Or(y.Name, y.ID), voter(x), voter(y))
		})
	eachPair(a.Addons, b.Addons, func(x ProjectedAddon) string { return x.Name },
		func(x ProjectedAddon) { d.addf("addon %s is gone", x.Name) },
		func(x ProjectedAddon) { d.addf("addon %s is new (%s)", x.Name, x.Image) },
		func(x, y ProjectedAddon) { d.changed("image of addon "+x.Name, x.Image, y.Image) })
	return d.out
}

type differ struct{ out []string }

func (d *differ) addf(format string, args ...any) {
	d.out = append(d.out, fmt.Sprintf(format, args...))
}

func (d *differ) changed(what, was, is string) {
	if was != is {
		d.addf("%s was %s, is %s", what, cmp.Or(was, "unknown"), cmp.Or(is, "unknown"))
	}
}

// eachPair walks two lists that are sorted by key.
func eachPair[T any](a, b []T, key func(T) string, gone, added func(T), both func(x, y T)) {
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case j == len(b) || i < len(a) && key(a[i]) < key(b[j]):
			gone(a[i])
			i++
		case i == len(a) || key(b[j]) < key(a[i]):
			added(b[j])
			j++
		default:
			both(a[i], b[j])
			i, j = i+1, j+1
		}
	}
}

func sortedKeys(ms ...map[string]string) []string {
	var keys []string
	for _, m := range ms {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func role(n ProjectedNode) string {
	if n.ControlPlane {
		return "control plane"
	}
	return "worker"
}

func cordoned(n ProjectedNode) string {
	if n.Unschedulable {
		return "cordoned"
	}
	return "schedulable"
}

func external(p Projection) string {
	if p.EtcdExternal {
		return "external"
	}
	return "stacked"
}

func voter(m ProjectedMember) string {
	if m.Voter {
		return "voter"
	}
	return "learner"
}

// ShortDigest gives the first 12 hexadecimal digits of a digest, for people.
func ShortDigest(digest string) string {
	_, hexa, _ := strings.Cut(digest, ":")
	return hexa[:min(12, len(hexa))]
}
