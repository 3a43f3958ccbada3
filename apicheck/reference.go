package apicheck

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/internal/kubeversion"
)

// references judges the APIs that an object names without being of them: rules of roles and webhooks,
// scale targets, owners, policies, kustomize targets, versions of a CRD.
func (c *collector) references(og origin, o object) {
	switch o.gvk.Group {
	case "rbac.authorization.k8s.io":
		if o.gvk.Kind == "Role" || o.gvk.Kind == "ClusterRole" {
			c.roleRules(og, o)
		}
	case "admissionregistration.k8s.io":
		switch o.gvk.Kind {
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration":
			for i, w := range list(o.node, "webhooks") {
				c.admissionRules(og, o, w, list(w, "rules"), fmt.Sprintf("webhooks[%d].rules", i))
			}
		case "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy":
			spec := field(o.node, "spec")
			constraints := field(spec, "matchConstraints")
			c.admissionRules(og, o, constraints, list(constraints, "resourceRules"), "spec.matchConstraints.resourceRules")
			if p := field(spec, "paramKind"); p != nil {
				c.reference(og, o, p, "spec.paramKind", lifecycle.ParseGVK(scalar(p, "apiVersion"), scalar(p, "kind")), Error, "parameters of a policy are looked up by this version")
			}
		}
	case "autoscaling":
		// The autoscaler maps group and kind only: a version that is gone does no harm.
		if t := field(field(o.node, "spec"), "scaleTargetRef"); t != nil && o.gvk.Kind == "HorizontalPodAutoscaler" {
			g := lifecycle.ParseGVK(scalar(t, "apiVersion"), scalar(t, "kind"))
			if c.groupKindGone(g.Group, g.Kind) {
				c.reference(og, o, t, "spec.scaleTargetRef", g, Error, "the autoscaler no longer finds its target in this group")
			}
		}
	case "apiextensions.k8s.io":
		if o.gvk.Kind == "CustomResourceDefinition" {
			c.crd(og, o)
		}
	case "audit.k8s.io":
		if o.gvk.Kind == "Policy" {
			for i, r := range list(o.node, "rules") {
				c.groupResources(og, o, r, fmt.Sprintf("rules[%d]", i), "the rule no longer matches anything there")
			}
		}
	case "apiserver.config.k8s.io":
		if o.gvk.Kind == "EncryptionConfiguration" {
			c.encryption(og, o)
		}
	case "kustomize.config.k8s.io":
		c.kustomize(og, o)
	case "kyverno.io":
		if o.gvk.Kind == "Policy" || o.gvk.Kind == "ClusterPolicy" {
			c.kyverno(og, o)
		}
	case "constraints.gatekeeper.sh":
		for i, m := range list(field(field(o.node, "spec"), "match"), "kinds") {
			m = resolve(m)
			for _, group := range scalars(m, "apiGroups") {
				for _, kind := range scalars(m, "kinds") {
					c.goneMatch(og, o, m, fmt.Sprintf("spec.match.kinds[%d]", i), group, kind, scalars(m, "apiGroups"))
				}
			}
		}
	}
	for i, r := range list(field(o.node, "metadata"), "ownerReferences") {
		// Garbage collection maps group, kind and version.
		c.reference(og, o, resolve(r), fmt.Sprintf("metadata.ownerReferences[%d]", i), lifecycle.ParseGVK(scalar(r, "apiVersion"), scalar(r, "kind")), Warning,
			"garbage collection looks the owner up by this version")
	}
}

// reference judges one API that o names at path; only what breaks counts.
func (c *collector) reference(og origin, o object, n *yaml.Node, path string, g lifecycle.GVK, most Severity, why string) {
	j := c.verdictOf(g, false)
	switch j.Verdict {
	case lifecycle.Removed, lifecycle.PlannedRemoval, lifecycle.NotYet:
	default:
		return
	}
	c.refer(og, o, n, path, g, j, most, why)
}

func (c *collector) refer(og origin, o object, n *yaml.Node, path string, g lifecycle.GVK, j lifecycle.Judgement, most Severity, why string) {
	src := c.at(og, o, n, join(o.path, path))
	src.Type, src.Object = SourceReference, o.String()
	if og.cap != "" {
		most = lower(most, og.cap)
	}
	c.found(use{gvk: g, namespace: o.namespace, name: o.name, source: src, confidence: og.confidence, cap: most, note: "named by " + o.String() + ": " + why}, j)
}

// groupKindGone says whether the target serves no version of a built-in kind in a group that once did.
func (j *judge) groupKindGone(group, kind string) bool {
	return gone(j.db.Versions(group, kind), j.to)
}

func gone(versions []*lifecycle.Kind, at kubeversion.Minor) bool {
	any := false
	for _, k := range versions {
		any = any || k.Class == lifecycle.Stored
		if k.Served(at) || k.Class != lifecycle.Stored {
			return false
		}
	}
	return any
}

// roleRules finds rules for resources that left their group: whoever has the role loses access.
func (c *collector) roleRules(og origin, o object) {
	// Kubernetes writes these itself at every start of an apiserver, left-overs included.
	if scalar(field(field(o.node, "metadata"), "labels"), "kubernetes.io/bootstrapping") == "rbac-defaults" {
		return
	}
	for i, r := range list(o.node, "rules") {
		r = resolve(r)
		groups := scalars(r, "apiGroups")
		told := map[[2]string]bool{}
		for _, g := range groups {
			for _, res := range scalars(r, "resources") {
				res, _, _ = strings.Cut(res, "/")
				kinds := c.db.ByResource(g, res)
				if res == "*" {
					kinds = c.db.InGroup(g) // of a group that lives on, the rule still grants the rest
				}
				if told[[2]string{g, res}] || !gone(kinds, c.to) {
					continue
				}
				told[[2]string{g, res}] = true // once for a resource and its subresources
				last := lastOf(kinds)
				j := c.verdictOf(last.GVK(), false)
				// A rule that also names the new group is only a left-over.
				most := Warning
				if !j.Replacement.IsZero() && slices.Contains(groups, j.Replacement.Group) || c.to.Compare(last.Removed) > 0 && c.from.Compare(last.Removed) >= 0 {
					most = Info
				}
				c.refer(og, o, r, fmt.Sprintf("rules[%d]", i), last.GVK(), j, most, fmt.Sprintf("the rule grants %q of group %q, which nothing serves any more", res, g))
			}
		}
	}
}

// lastOf gives the version that was served longest.
func lastOf(kinds []*lifecycle.Kind) *lifecycle.Kind {
	last := kinds[0]
	for _, k := range kinds[1:] {
		if k.Removed.Compare(last.Removed) > 0 {
			last = k
		}
	}
	return last
}

// groupResources judges a rule of the form {resources: [{group, resources}]}.
func (c *collector) groupResources(og origin, o object, rule *yaml.Node, path, why string) {
	for i, gr := range list(rule, "resources") {
		gr = resolve(gr)
		group := scalar(gr, "group")
		for _, res := range scalars(gr, "resources") {
			res, _, _ = strings.Cut(res, "/")
			if kinds := c.db.ByResource(group, res); gone(kinds, c.to) {
				last := lastOf(kinds)
				c.refer(og, o, gr, fmt.Sprintf("%s.resources[%d]", path, i), last.GVK(), c.verdictOf(last.GVK(), false), Info, why)
			}
		}
	}
}

// encryption judges the resources of an encryption configuration, written "resource.group".
func (c *collector) encryption(og origin, o object) {
	for i, r := range list(o.node, "resources") {
		r = resolve(r)
		for _, name := range scalars(r, "resources") {
			res, group, _ := strings.Cut(name, ".")
			if kinds := c.db.ByResource(group, res); gone(kinds, c.to) {
				last := lastOf(kinds)
				c.refer(og, o, r, fmt.Sprintf("resources[%d]", i), last.GVK(), c.verdictOf(last.GVK(), false), Info, "nothing of it is stored any more")
			}
		}
	}
}

// admissionRules judges the rules of a webhook or policy. With matchPolicy Exact a rule for a version that is gone
// stops matching, which can open a hole; with Equivalent (the default) requests are converted to match.
func (c *collector) admissionRules(og origin, o object, holder *yaml.Node, rules []*yaml.Node, path string) {
	exact := scalar(holder, "matchPolicy") == "Exact"
	for i, r := range rules {
		r = resolve(r)
		versions := scalars(r, "apiVersions")
		for _, g := range scalars(r, "apiGroups") {
			for _, res := range scalars(r, "resources") {
				res, _, _ = strings.Cut(res, "/")
				kinds := c.db.ByResource(g, res)
				if res == "*" {
					kinds = c.db.InGroup(g)
				}
				for _, k := range kinds {
					if !slices.Contains(versions, k.Version) {
						continue
					}
					j := c.verdictOf(k.GVK(), false)
					if res == "*" && j.Verdict == lifecycle.Removed && c.from.Compare(j.RemovedIn) >= 0 {
						continue // a rule for everything names by chance what is gone already
					}
					if j.Verdict != lifecycle.Removed && j.Verdict != lifecycle.PlannedRemoval {
						continue
					}
					most, why := Info, "the rule still matches: requests are converted (matchPolicy Equivalent)"
					switch {
					case !exact && c.groupKindGone(g, k.Kind):
						most, why = Warning, "the rule stops matching: nothing of this kind is left in the group"
					case exact && !slices.Contains(versions, "*") && !c.otherServed(k, versions):
						most, why = Error, "the rule stops matching (matchPolicy Exact)"
					}
					c.refer(og, o, r, fmt.Sprintf("%s[%d]", path, i), k.GVK(), j, most, why)
				}
			}
		}
	}
}

// otherServed says whether a rule names another version of the kind that the target serves.
func (c *collector) otherServed(k *lifecycle.Kind, versions []string) bool {
	for _, v := range c.db.Versions(k.Group, k.Kind) {
		if slices.Contains(versions, v.Version) && v.On(c.to) {
			return true
		}
	}
	return false
}

// crd judges a CRD's own versions: what is stored in a version that is no longer served, or deprecated.
func (c *collector) crd(og origin, o object) {
	spec := field(o.node, "spec")
	group, kind := scalar(spec, "group"), scalar(field(spec, "names"), "kind")
	served := map[string]bool{}
	for i, v := range list(spec, "versions") {
		v = resolve(v)
		name := scalar(v, "name")
		served[name] = scalar(v, "served") != "false"
		if scalar(v, "deprecated") == "true" && served[name] {
			g := lifecycle.GVK{Group: group, Version: name, Kind: kind}
			msg := scalar(v, "deprecationWarning")
			if msg == "" {
				msg = "its CRD marks it as deprecated"
			}
			c.crdFinding(og, o, v, fmt.Sprintf("spec.versions[%d]", i), g, Info, fmt.Sprintf("%s: deprecated by its CRD: %s", g, msg), "follow the notes of the CRD's maker")
		}
	}
	status := field(o.node, "status")
	for i, v := range list(status, "storedVersions") {
		v = resolve(v)
		if v == nil || served[v.Value] {
			continue
		}
		g := lifecycle.GVK{Group: group, Version: v.Value, Kind: kind}
		c.crdFinding(og, o, v, fmt.Sprintf("status.storedVersions[%d]", i), g, Warning,
			fmt.Sprintf("%s: objects may be stored in this version, which the CRD no longer serves", g),
			"store every object again (read and write each unchanged), then take the version out of status.storedVersions, before the CRD drops it")
	}
}

func (c *collector) crdFinding(og origin, o object, n *yaml.Node, path string, g lifecycle.GVK, s Severity, message, remedy string) {
	src := c.at(og, o, n, join(o.path, path))
	src.Type, src.Object = SourceReference, o.String()
	if og.cap != "" {
		s = lower(s, og.cap)
	}
	c.findings = append(c.findings, Finding{Verdict: lifecycle.Deprecated, Severity: s, Confidence: og.confidence, APIVersion: g.APIVersion(), Kind: g.Kind,
		Name: o.name, Source: src, Message: message, Remedy: remedy})
}

// goneMatch judges a match by group and kind: when nothing of the kind is left in the group, the policy no longer holds for it,
// unless it names the group where the kind went.
func (c *collector) goneMatch(og origin, o object, n *yaml.Node, path, group, kind string, groups []string) {
	if !c.groupKindGone(group, kind) {
		return
	}
	last := lastOf(c.db.Versions(group, kind))
	j := c.verdictOf(last.GVK(), false)
	most := Warning
	if !j.Replacement.IsZero() && slices.Contains(groups, j.Replacement.Group) || slices.Contains(groups, "*") {
		most = Info
	}
	c.refer(og, o, n, path, last.GVK(), j, most, "the policy no longer matches anything there")
}

// kyverno judges the kinds that the rules of a policy match, written Kind, version/Kind or group/version/Kind, a subresource
// behind a dot or slash.
func (c *collector) kyverno(og origin, o object) {
	for i, rule := range list(field(o.node, "spec"), "rules") {
		match := field(rule, "match")
		type place struct {
			resources *yaml.Node
			path      string
		}
		places := []place{{field(match, "resources"), fmt.Sprintf("spec.rules[%d].match.resources.kinds", i)}}
		for _, key := range []string{"any", "all"} {
			for k, e := range list(match, key) {
				places = append(places, place{field(e, "resources"), fmt.Sprintf("spec.rules[%d].match.%s[%d].resources.kinds", i, key, k)})
			}
		}
		for _, at := range places {
			for _, n := range list(at.resources, "kinds") {
				n = resolve(n)
				if n == nil || n.Kind != yaml.ScalarNode {
					continue
				}
				parts := strings.Split(n.Value, "/")
				if len(parts) < 3 || strings.ContainsAny(parts[0]+parts[1]+parts[2], "*?") {
					continue // without a group, or with any: it matches where the kind is
				}
				group, version, kind := parts[0], parts[1], parts[2]
				if c.groupKindGone(group, kind) {
					c.goneMatch(og, o, n, at.path, group, kind, nil)
					continue
				}
				c.reference(og, o, n, at.path, lifecycle.GVK{Group: group, Version: version, Kind: kind}, Warning, "the policy matches requests of this version only")
			}
		}
	}
}

// kustomize judges the targets of patches, which select by group, version and kind, and the patches that are written out. What it
// takes from elsewhere is unread.
func (c *collector) kustomize(og origin, o object) {
	inline := func(v *yaml.Node, path string) {
		if v = resolve(v); v == nil || v.Kind != yaml.ScalarNode || !strings.Contains(v.Value, "apiVersion") || og.nesting > 0 {
			return
		}
		inner := og
		inner.payload, inner.nesting = true, og.nesting+1
		c.embedded(og, inner, o, v, path, v.Value, false)
	}
	for _, key := range []string{"patches", "patchesJson6902"} {
		for i, p := range list(o.node, key) {
			inline(field(p, "patch"), fmt.Sprintf("%s[%d].patch", key, i))
			t := field(p, "target")
			if t == nil || scalar(t, "version") == "" || scalar(t, "kind") == "" {
				continue
			}
			g := lifecycle.GVK{Group: scalar(t, "group"), Version: scalar(t, "version"), Kind: scalar(t, "kind")}
			c.reference(og, o, t, fmt.Sprintf("%s[%d].target", key, i), g, Warning, "the patch selects objects of this version")
		}
	}
	for i, p := range list(o.node, "patchesStrategicMerge") {
		inline(p, fmt.Sprintf("patchesStrategicMerge[%d]", i))
	}
	for _, key := range []string{"resources", "bases", "components", "crds"} {
		for i, r := range list(o.node, key) {
			if r = resolve(r); r != nil && r.Kind == yaml.ScalarNode && remote(r.Value) {
				c.unread(og.what, og.lineOffset+o.line+r.Line, "%s[%d] is fetched from %s: scan what kustomize build gives", key, i, short(r.Value))
			}
		}
	}
	for i, h := range list(o.node, "helmCharts") {
		if h = resolve(h); h != nil && scalar(h, "repo") != "" {
			c.unread(og.what, og.lineOffset+o.line+h.Line, "helmCharts[%d] is fetched from %s: scan what kustomize build --enable-helm gives", i, short(scalar(h, "repo")))
		}
	}
}

// remote says whether kustomize fetches a resource: a URL, a repository as Git's scp syntax has it, or a host it knows.
func remote(resource string) bool {
	host, _, _ := strings.Cut(resource, "/")
	return strings.Contains(resource, "://") || strings.HasPrefix(resource, "git@") || strings.Contains(resource, "?ref=") || strings.Contains(resource, "::") ||
		host == "github.com" || host == "gitlab.com" || host == "bitbucket.org"
}

// isKustomization says whether a file is one that kustomize takes by its name: apiVersion and kind may be left out there.
func isKustomization(file string) bool {
	switch path.Base(file) {
	case "kustomization.yaml", "kustomization.yml", "Kustomization":
		return true
	}
	return false
}
