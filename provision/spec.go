package provision

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/internal/kubeversion"
)

// The version and kind of a cluster file.
const (
	SpecAPIVersion = "belay.dev/v1alpha1"
	SpecKind       = "Cluster"
)

// The roles of a node.
const (
	RoleControlPlane = "control-plane"
	RoleWorker       = "worker"
)

// Defaults of a Spec.
const (
	DefaultName          = "demo"
	DefaultPodSubnet     = "10.244.0.0/16"
	DefaultServiceSubnet = "10.96.0.0/16"
	DefaultProxyMode     = "nftables"
	apiServerPort        = 6443
)

// Spec is what a cluster file says. Either Nodes (machines that exist, reached over SSH) or Machines (made on this
// computer) is set.
type Spec struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// Name is the cluster's name: a DNS label.
	Name string `yaml:"name"`
	// KubernetesVersion is MAJOR.MINOR.PATCH; a bundle of it must exist.
	KubernetesVersion string `yaml:"kubernetesVersion"`
	// BundleRoot is the directory that holds bundles; empty is the default one.
	BundleRoot string `yaml:"bundleRoot,omitempty"`
	// ControlPlaneEndpoint is HOST or HOST:PORT by which every node reaches the apiservers. It is required for several
	// control plane nodes on own hosts, and computed for machines.
	ControlPlaneEndpoint string `yaml:"controlPlaneEndpoint,omitempty"`
	PodSubnet            string `yaml:"podSubnet,omitempty"`
	ServiceSubnet        string `yaml:"serviceSubnet,omitempty"`
	// KubeProxyMode is nftables (the default), iptables or ipvs.
	KubeProxyMode string `yaml:"kubeProxyMode,omitempty"`
	// CertSANs are further names and addresses of the apiserver.
	CertSANs []string `yaml:"certSANs,omitempty"`
	// AllowCgroupV1 lets kubelets run on own hosts with cgroup v1, which Kubernetes has put out of support.
	AllowCgroupV1 bool `yaml:"allowCgroupV1,omitempty"`
	// SharedDisk says that own hosts share their disk with others, so that its fill level says nothing about them: kubelets
	// then evict pods below 1 GiB, not below a share of the disk.
	SharedDisk bool `yaml:"sharedDisk,omitempty"`
	// TakeOver says that nothing is needed any more of the containerd, kubeadm, kubelet and kubectl that own hosts have.
	TakeOver bool `yaml:"takeOver,omitempty"`
	// FeatureGates are set on every kubelet.
	FeatureGates map[string]bool `yaml:"featureGates,omitempty"`
	// ExtraArgs are flags by component: apiServer, controllerManager, scheduler, etcd.
	ExtraArgs map[string]map[string]string `yaml:"extraArgs,omitempty"`

	// SSH holds for every node that does not say otherwise.
	SSH   SpecSSH    `yaml:"ssh,omitempty"`
	Nodes []SpecNode `yaml:"nodes,omitempty"`

	Machines *SpecMachines `yaml:"machines,omitempty"`
}

// SpecSSH is how to log in; the fields mean what they mean in an inventory file.
type SpecSSH struct {
	User           string `yaml:"user,omitempty"`
	Port           int    `yaml:"port,omitempty"`
	KeyFile        string `yaml:"keyFile,omitempty"`
	KnownHostsFile string `yaml:"knownHostsFile,omitempty"`
}

// SpecNode is one machine that exists.
type SpecNode struct {
	Name string `yaml:"name"`
	// Role is control-plane or worker.
	Role string `yaml:"role"`
	// Address is the node's IP address, where SSH answers and the other nodes reach it.
	Address string  `yaml:"address"`
	SSH     SpecSSH `yaml:"ssh,omitempty"`
}

// SpecMachines asks for machines on this computer.
type SpecMachines struct {
	ControlPlanes int `yaml:"controlPlanes"`
	Workers       int `yaml:"workers"`
}

// SpecError is one thing that is wrong with a cluster file.
type SpecError struct {
	// Line is the line in the file, from 1; 0 when it is about the file as a whole.
	Line int
	// Field is where it stands, as in nodes[1].name.
	Field string
	Msg   string
}

func (e *SpecError) Error() string {
	s := e.Msg
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Line > 0 {
		s = "line " + strconv.Itoa(e.Line) + ": " + s
	}
	return s
}

// ParseSpec reads a cluster file and fills in defaults. Unknown fields, wrong types and everything that Validate
// finds are errors with their line.
func ParseSpec(data []byte) (*Spec, error) {
	var s Spec
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&s); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &SpecError{Msg: "the file is empty"}
		}
		return nil, typeErrors(err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &SpecError{Msg: "more than one YAML document"}
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, err
	}
	s.SetDefaults()
	return &s, s.validate(&root)
}

// typeErrors splits the decoder's list, so that each mistake has a line of its own.
func typeErrors(err error) error {
	list := (*yaml.TypeError)(nil)
	if !errors.As(err, &list) {
		return err
	}
	var errs []error
	for _, e := range list.Errors {
		// The decoder names Go types, which say nothing to the reader.
		e = strings.NewReplacer(
			" in type provision.SpecNode", " in a node", " in type provision.SpecSSH", " in ssh",
			" in type provision.SpecMachines", " in machines", " in type provision.Spec", " in a cluster file",
			"provision.SpecNode", "a node", "provision.SpecMachines", "machines", "provision.SpecSSH", "ssh settings",
			"provision.Spec", "a cluster file", "!!str", "text", "!!int", "a number", "!!map", "a mapping", "!!seq", "a list", "!!bool", "a boolean",
		).Replace(e)
		errs = append(errs, errors.New(e))
	}
	return errors.Join(errs...)
}

// SetDefaults fills in what the file left out.
func (s *Spec) SetDefaults() {
	s.PodSubnet = cmp.Or(s.PodSubnet, DefaultPodSubnet)
	s.ServiceSubnet = cmp.Or(s.ServiceSubnet, DefaultServiceSubnet)
	s.KubeProxyMode = cmp.Or(s.KubeProxyMode, DefaultProxyMode)
	if e := s.ControlPlaneEndpoint; e != "" && !strings.HasPrefix(e, "[") && strings.Count(e, ":") != 1 {
		s.ControlPlaneEndpoint = net.JoinHostPort(e, strconv.Itoa(apiServerPort))
	}
}

// ResolvePaths makes the spec's paths absolute: relative ones are relative to dir, where the file lies; ~/ is home.
func (s *Spec) ResolvePaths(dir, home string) {
	paths := []*string{&s.BundleRoot, &s.SSH.KeyFile, &s.SSH.KnownHostsFile}
	for i := range s.Nodes {
		paths = append(paths, &s.Nodes[i].SSH.KeyFile, &s.Nodes[i].SSH.KnownHostsFile)
	}
	for _, p := range paths {
		if rest, ok := strings.CutPrefix(*p, "~/"); ok && home != "" {
			*p = filepath.Join(home, rest)
		}
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// Encode writes the spec as a cluster file; ParseSpec reads the same spec back.
func (s *Spec) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(s), enc.Close()); err != nil {
		return nil, fmt.Errorf("cluster file: %w", err)
	}
	return b.Bytes(), nil
}

// ParseMachines reads the short form "1+1": control planes + workers.
func ParseMachines(s string) (SpecMachines, error) {
	cp, w, ok := strings.Cut(s, "+")
	a, errA := strconv.Atoi(cp)
	b, errB := strconv.Atoi(w)
	if !ok || errA != nil || errB != nil {
		return SpecMachines{}, fmt.Errorf("%q: want CONTROL_PLANES+WORKERS, as in 1+1 or 3+2", s)
	}
	m := SpecMachines{ControlPlanes: a, Workers: b}
	if msg := m.check(); msg != "" {
		return SpecMachines{}, fmt.Errorf("%q: %s", s, msg)
	}
	return m, nil
}

func (m SpecMachines) check() string {
	switch {
	case m.ControlPlanes < 1:
		return "at least one control plane is needed"
	case m.ControlPlanes > 7:
		return "more than 7 control planes make etcd slower, not safer"
	case m.Workers < 0 || m.Workers > 100:
		return "workers: want 0 to 100"
	}
	return ""
}

// Validate says everything that is wrong; each error is a *SpecError. Defaults must be set.
func (s *Spec) Validate() error { return s.validate(nil) }

// A DNS label: RFC 1123, at most 63 characters. Machine and cgroup names are made of the cluster's name, so it is kept shorter (testenv allows 40 for CLUSTER-cp1).
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

const maxName = 34

func (s *Spec) validate(root *yaml.Node) error {
	var errs []error
	fail := func(path []any, format string, args ...any) {
		errs = append(errs, &SpecError{Line: lineOf(root, path), Field: fieldName(path), Msg: fmt.Sprintf(format, args...)})
	}
	at := func(path ...any) []any { return path }

	if s.APIVersion != SpecAPIVersion {
		fail(at("apiVersion"), "is %q; this belay reads %s", s.APIVersion, SpecAPIVersion)
	}
	if s.Kind != SpecKind {
		fail(at("kind"), "is %q; want %s", s.Kind, SpecKind)
	}
	if !dnsLabel.MatchString(s.Name) || len(s.Name) > maxName {
		fail(at("name"), "%q is not a name: want at most %d lower-case letters, digits and dashes", s.Name, maxName)
	}
	if v, err := kubeversion.Parse(s.KubernetesVersion); err != nil {
		fail(at("kubernetesVersion"), "%v", err)
	} else if v.Major != 1 || v.Minor < 31 {
		fail(at("kubernetesVersion"), "%s is older than 1.31, the oldest whose kubeadm configuration belay writes", v.Bare())
	}
	switch s.KubeProxyMode {
	case "nftables", "iptables", "ipvs":
	default:
		fail(at("kubeProxyMode"), "%q: want nftables, iptables or ipvs", s.KubeProxyMode)
	}
	s.validateNetworks(fail)
	for component := range s.ExtraArgs {
		if !slices.Contains([]string{"apiServer", "controllerManager", "scheduler", "etcd"}, component) {
			fail(at("extraArgs", component), "no such component: want apiServer, controllerManager, scheduler or etcd")
		}
	}

	switch {
	case s.Machines != nil && len(s.Nodes) > 0:
		fail(at("machines"), "give nodes (machines that exist) or machines (made on this computer), not both")
	case s.Machines != nil:
		if msg := s.Machines.check(); msg != "" {
			fail(at("machines"), "%s", msg)
		}
		if s.ControlPlaneEndpoint != "" {
			fail(at("controlPlaneEndpoint"), "is computed for machines; leave it out")
		}
	case len(s.Nodes) == 0:
		fail(at("nodes"), "no nodes: list machines that exist under nodes, or ask for new ones with machines: {controlPlanes: 1, workers: 1}")
	default:
		s.validateNodes(fail)
	}
	if p := s.SSH.Port; p < 0 || p > 65535 {
		fail(at("ssh", "port"), "%d is out of range", p)
	}
	slices.SortStableFunc(errs, func(a, b error) int {
		return cmp.Compare(a.(*SpecError).Line, b.(*SpecError).Line) //nolint:errcheck,errorlint // every element is one
	})
	return errors.Join(errs...)
}

func (s *Spec) validateNodes(fail func([]any, string, ...any)) {
	names, addrs := map[string]bool{}, map[string]string{}
	controlPlanes := 0
	for i, n := range s.Nodes {
		at := func(field string) []any { return []any{"nodes", i, field} }
		switch {
		case !dnsLabel.MatchString(n.Name) || len(n.Name) > 63:
			fail(at("name"), "%q is not a node name: want lower-case letters, digits and dashes", n.Name)
		case names[n.Name]:
			fail(at("name"), "node %s is listed twice", n.Name)
		}
		names[n.Name] = true
		switch n.Role {
		case RoleControlPlane:
			controlPlanes++
		case RoleWorker:
		default:
			fail(at("role"), "%q: want %s or %s", n.Role, RoleControlPlane, RoleWorker)
		}
		if _, err := netip.ParseAddr(n.Address); err != nil {
			fail(at("address"), "%q is not an IP address", n.Address)
		} else if other, dup := addrs[n.Address]; dup {
			fail(at("address"), "%s is the address of node %s too", n.Address, other)
		}
		addrs[n.Address] = n.Name
		if p := n.SSH.Port; p < 0 || p > 65535 {
			fail([]any{"nodes", i, "ssh", "port"}, "%d is out of range", p)
		}
	}
	switch {
	case controlPlanes == 0:
		fail([]any{"nodes"}, "at least one node must have role %s", RoleControlPlane)
	case controlPlanes > 1 && s.ControlPlaneEndpoint == "":
		fail([]any{"controlPlaneEndpoint"}, "is required for %d control plane nodes: the address of a load balancer, or a name that leads to every apiserver", controlPlanes)
	}
}

func (s *Spec) validateNetworks(fail func([]any, string, ...any)) {
	type subnet struct {
		field string
		p     netip.Prefix
	}
	var all []subnet
	for _, f := range []struct{ field, value string }{{"podSubnet", s.PodSubnet}, {"serviceSubnet", s.ServiceSubnet}} {
		p, err := netip.ParsePrefix(f.value)
		if err != nil || p != p.Masked() {
			fail([]any{f.field}, "%q is not a network, as in 10.244.0.0/16", f.value)
			continue
		}
		if f.field == "podSubnet" && p.Addr().Is4() && p.Bits() > 24 {
			fail([]any{f.field}, "%s is too small: every node takes a /24 of it", p)
		}
		all = append(all, subnet{f.field, p})
	}
	if len(all) == 2 {
		if all[0].p.Addr().Is4() != all[1].p.Addr().Is4() {
			fail([]any{"serviceSubnet"}, "%s and the pods' %s are of different address families", all[1].p, all[0].p)
		}
		if all[0].p.Overlaps(all[1].p) {
			fail([]any{"serviceSubnet"}, "%s overlaps the pods' %s", all[1].p, all[0].p)
		}
	}
	for i, n := range s.Nodes {
		a, err := netip.ParseAddr(n.Address)
		if err != nil {
			continue
		}
		for _, sn := range all {
			if sn.p.Contains(a) {
				fail([]any{sn.field}, "%s contains the address %s of node %s", sn.p, a, n.Name)
			}
		}
		_ = i
	}
	if e := s.ControlPlaneEndpoint; e != "" {
		host, port, err := net.SplitHostPort(e)
		n, perr := strconv.Atoi(port)
		if err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
			fail([]any{"controlPlaneEndpoint"}, "%q: want HOST or HOST:PORT", e)
		}
	}
}

// Warnings are remarks about a valid spec.
func (s *Spec) Warnings() []string {
	var out []string
	n := s.count(RoleControlPlane)
	if n%2 == 0 {
		out = append(out, fmt.Sprintf("%d control plane nodes: etcd tolerates no more failures with %d members than with %d", n, n, n-1))
	}
	if s.Machines == nil && n == 1 && s.ControlPlaneEndpoint == "" {
		out = append(out, "no controlPlaneEndpoint: control plane nodes cannot be added to this cluster later")
	}
	return out
}

func (s *Spec) count(role string) int {
	if s.Machines != nil {
		if role == RoleControlPlane {
			return s.Machines.ControlPlanes
		}
		return s.Machines.Workers
	}
	n := 0
	for _, node := range s.Nodes {
		if node.Role == role {
			n++
		}
	}
	return n
}

// Version is KubernetesVersion of a valid spec.
func (s *Spec) Version() kubeversion.V {
	v, err := kubeversion.Parse(s.KubernetesVersion)
	if err != nil {
		return kubeversion.V{}
	}
	return v
}

// differences names the fields in which two specs differ, without those that may change on a cluster that is up.
func (s *Spec) differences(o *Spec) []string {
	var out []string
	diff := func(field string, same bool) {
		if !same {
			out = append(out, field)
		}
	}
	diff("kubernetesVersion", s.KubernetesVersion == o.KubernetesVersion)
	diff("controlPlaneEndpoint", s.ControlPlaneEndpoint == o.ControlPlaneEndpoint)
	diff("podSubnet", s.PodSubnet == o.PodSubnet)
	diff("serviceSubnet", s.ServiceSubnet == o.ServiceSubnet)
	diff("kubeProxyMode", s.KubeProxyMode == o.KubeProxyMode)
	diff("certSANs", slices.Equal(s.CertSANs, o.CertSANs))
	diff("allowCgroupV1", s.AllowCgroupV1 == o.AllowCgroupV1)
	diff("sharedDisk", s.SharedDisk == o.SharedDisk)
	diff("featureGates", maps.Equal(s.FeatureGates, o.FeatureGates))
	diff("extraArgs", maps.EqualFunc(s.ExtraArgs, o.ExtraArgs, func(a, b map[string]string) bool { return maps.Equal(a, b) }))
	diff("machines", (s.Machines == nil) == (o.Machines == nil) && (s.Machines == nil || *s.Machines == *o.Machines))
	diff("nodes", slices.Equal(s.Nodes, o.Nodes))
	return out
}

// lineOf gives the line of the field at path, or of the nearest thing around it; 0 without a document.
func lineOf(n *yaml.Node, path []any) int {
	if n == nil {
		return 0
	}
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	line := n.Line
	for _, step := range path {
		var next *yaml.Node
		switch step := step.(type) {
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		case int:
			if n.Kind == yaml.SequenceNode && step < len(n.Content) {
				next, line = n.Content[step], n.Content[step].Line
			}
		}
		if next == nil {
			break
		}
		if n = next; n.Kind == yaml.AliasNode {
			n = n.Alias
		}
	}
	return line
}

func fieldName(path []any) string {
	var b strings.Builder
	for _, step := range path {
		switch step := step.(type) {
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		}
	}
	return b.String()
}
