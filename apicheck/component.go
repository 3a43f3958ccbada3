package apicheck

import (
	"fmt"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
)

// components are the programs whose flags and feature gates are known.
var components = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"}

// component judges the feature gates and flags in files that configure Kubernetes' own programs: what names one that is gone,
// or sets a locked gate otherwise, does not start. Those of a live cluster are the business of belay check.
func (c *collector) component(og origin, o object) {
	if og.source.Object != "" && og.source.File == "" {
		return
	}
	switch o.gvk.Group + " " + o.gvk.Kind {
	case "kubelet.config.k8s.io KubeletConfiguration", "kubeproxy.config.k8s.io KubeProxyConfiguration":
		c.gates(og, o, field(o.node, "featureGates"), "featureGates")
	case "kubeadm.k8s.io ClusterConfiguration":
		for key, name := range map[string]string{"apiServer": "kube-apiserver", "controllerManager": "kube-controller-manager", "scheduler": "kube-scheduler"} {
			c.extraArgs(og, o, name, field(field(o.node, key), "extraArgs"), key+".extraArgs")
		}
	case "kubeadm.k8s.io InitConfiguration", "kubeadm.k8s.io JoinConfiguration":
		c.extraArgs(og, o, "kubelet", field(field(o.node, "nodeRegistration"), "kubeletExtraArgs"), "nodeRegistration.kubeletExtraArgs")
	case " Pod": // a static one
		for i, ctr := range list(field(o.node, "spec"), "containers") {
			at := fmt.Sprintf("spec.containers[%d].", i)
			c.commandLine(og, o, resolve(ctr), at)
		}
	}
}

// commandLine judges the flags of a container that runs a component, written --flag=value, --flag value, or --flag alone.
func (c *collector) commandLine(og origin, o object, ctr *yaml.Node, at string) {
	type word struct {
		n  *yaml.Node
		at string
	}
	var words []word
	for _, key := range []string{"command", "args"} {
		for k, arg := range list(ctr, key) {
			if arg = resolve(arg); arg != nil {
				words = append(words, word{arg, fmt.Sprintf("%s%s[%d]", at, key, k)})
			}
		}
	}
	name := ""
	for i, w := range words {
		if name == "" {
			name = componentOf(w.n.Value)
		}
		if name == "" || !strings.HasPrefix(w.n.Value, "-") {
			continue
		}
		flag, value, ok := strings.Cut(strings.TrimLeft(w.n.Value, "-"), "=")
		if !ok && i+1 < len(words) && !strings.HasPrefix(words[i+1].n.Value, "-") {
			value = words[i+1].n.Value
		}
		c.flag(og, o, name, flag, value, w.n, w.at)
	}
}

func componentOf(command string) string {
	for _, name := range components {
		if path.Base(command) == name {
			return name
		}
	}
	return ""
}

// extraArgs judges kubeadm's arguments for a component: a mapping until v1beta3, a list of name and value since.
func (c *collector) extraArgs(og origin, o object, component string, args *yaml.Node, at string) {
	if args == nil {
		return
	}
	switch args.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(args.Content); i += 2 {
			if v := resolve(args.Content[i+1]); v != nil {
				c.flag(og, o, component, args.Content[i].Value, v.Value, args.Content[i], fieldPath(at, args.Content[i].Value))
			}
		}
	case yaml.SequenceNode:
		for i, e := range args.Content {
			if e = resolve(e); e != nil {
				c.flag(og, o, component, scalar(e, "name"), scalar(e, "value"), e, fmt.Sprintf("%s[%d]", at, i))
			}
		}
	}
}

func (c *collector) flag(og origin, o object, component, name, value string, n *yaml.Node, at string) {
	if name == "feature-gates" {
		for _, pair := range strings.Split(value, ",") {
			if gate, v, ok := strings.Cut(strings.TrimSpace(pair), "="); ok {
				c.gate(og, o, gate, v, n, at)
			}
		}
		return
	}
	for _, f := range c.db.EndingFlags(component, kubeversion.Minor{}, c.to) {
		if f.Name == strings.ReplaceAll(name, "_", "-") {
			c.ending(og, o, n, at, "--"+f.Name, f.Removed, fmt.Sprintf("%s no longer takes --%s", component, f.Name), "take it out: "+f.Remedy)
		}
	}
}

func (c *collector) gates(og origin, o object, gates *yaml.Node, at string) {
	if gates == nil || gates.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(gates.Content); i += 2 {
		if v := resolve(gates.Content[i+1]); v != nil {
			c.gate(og, o, gates.Content[i].Value, v.Value, gates.Content[i], fieldPath(at, gates.Content[i].Value))
		}
	}
}

func (c *collector) gate(og origin, o object, name, value string, n *yaml.Node, at string) {
	reached := func(m kubeversion.Minor) bool { return m != kubeversion.Minor{} && m.Compare(c.to) <= 0 }
	for _, g := range c.db.EndingGates(kubeversion.Minor{}, c.to) {
		switch {
		case g.Name != name:
		case reached(g.Removed):
			c.ending(og, o, n, at, name, g.Removed, "the feature gate "+name+" is gone", "take it out while a version that knows it still runs")
		case reached(g.Locked) && !strings.EqualFold(value, fmt.Sprint(g.LockedTo)):
			c.ending(og, o, n, at, name, g.Locked, fmt.Sprintf("the feature gate %s is locked to %t", name, g.LockedTo), "take it out")
		}
	}
}

// ending reports a gate or flag that keeps its program from starting from a minor on.
func (c *collector) ending(og origin, o object, n *yaml.Node, at, what string, since kubeversion.Minor, says, remedy string) {
	f := Finding{Verdict: lifecycle.Removed, Severity: Error, Confidence: og.confidence, APIVersion: o.gvk.APIVersion(), Kind: o.gvk.Kind, Field: what, Namespace: o.namespace, Name: o.name,
		Hop: since, RemovedIn: since, Source: c.at(og, o, n, join(o.path, at)), Message: fmt.Sprintf("%s, %s: %s from %s on: what names it so does not start", o.gvk, at, says, since), Remedy: remedy}
	if c.from.Compare(since) >= 0 {
		f.Hop, f.Severity = kubeversion.Minor{}, Warning // the hops change nothing about it
	}
	if og.cap != "" {
		f.Severity = lower(f.Severity, og.cap)
	}
	c.findings = append(c.findings, f)
}
