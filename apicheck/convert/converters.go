package convert

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// converter changes the tree of one object; apiVersion and kind are not its business. It gives notes for people. An
// error says why the object cannot be converted without one.
type converter func(obj *yaml.Node) ([]string, error)

// converterFor finds the converter of a move; nil when the fields need none.
func converterFor(from, to lifecycle.GVK) converter {
	switch from.Group + " " + from.Kind + " -> " + to.Group + " " + to.Kind {
	case "extensions Ingress -> networking.k8s.io Ingress", "networking.k8s.io Ingress -> networking.k8s.io Ingress":
		return ingress
	case "extensions Deployment -> apps Deployment":
		return workload("extensions/v1beta1 rolled out one pod at a time, kept all revisions and had no progress deadline; apps/v1 has 25%, 10 and 600 s where the fields are not set", "")
	case "extensions ReplicaSet -> apps ReplicaSet":
		return workload("", "")
	case "extensions DaemonSet -> apps DaemonSet":
		return workload("", "OnDelete")
	case "apps Deployment -> apps Deployment":
		if from.Version == "v1beta1" {
			return workload("", "")
		}
	case "apps StatefulSet -> apps StatefulSet":
		if from.Version == "v1beta1" {
			return workload("", "OnDelete")
		}
	case "autoscaling HorizontalPodAutoscaler -> autoscaling HorizontalPodAutoscaler":
		if from.Version == "v2beta1" && (to.Version == "v2" || to.Version == "v2beta2") {
			return autoscaler
		}
	case "apiextensions.k8s.io CustomResourceDefinition -> apiextensions.k8s.io CustomResourceDefinition":
		return crd
	case "discovery.k8s.io EndpointSlice -> discovery.k8s.io EndpointSlice":
		if to.Version == "v1" {
			return endpointSlice
		}
	case "flowcontrol.apiserver.k8s.io PriorityLevelConfiguration -> flowcontrol.apiserver.k8s.io PriorityLevelConfiguration":
		if from.Version != "v1beta3" {
			return priorityLevel
		}
	case "resource.k8s.io ResourceClaim -> resource.k8s.io ResourceClaim":
		if to.Version == "v1" || to.Version == "v1beta2" {
			return claim(1)
		}
	case "resource.k8s.io ResourceClaimTemplate -> resource.k8s.io ResourceClaimTemplate":
		if to.Version == "v1" || to.Version == "v1beta2" {
			return claim(2)
		}
	case "resource.k8s.io ResourceSlice -> resource.k8s.io ResourceSlice":
		// From v1alpha3 on; what v1alpha2 has is another thing.
		switch from.Version + " " + to.Version {
		case "v1alpha3 v1beta1":
			return resourceSlice(true, false)
		case "v1alpha3 v1beta2", "v1alpha3 v1":
			return resourceSlice(true, true)
		case "v1beta1 v1beta2", "v1beta1 v1":
			return resourceSlice(false, true)
		}
	case "coordination.k8s.io LeaseCandidate -> coordination.k8s.io LeaseCandidate":
		if from.Version == "v1alpha1" {
			return leaseCandidate
		}
	case "certificates.k8s.io PodCertificateRequest -> certificates.k8s.io PodCertificateRequest":
		if to.Version == "v1" {
			return podCertificateRequest
		}
	case "storagemigration.k8s.io StorageVersionMigration -> storagemigration.k8s.io StorageVersionMigration":
		if from.Version == "v1alpha1" {
			return storageMigration
		}
	case "scheduling.k8s.io Workload -> scheduling.k8s.io Workload":
		return gangWorkload
	case "scheduling.k8s.io PodGroup -> scheduling.k8s.io PodGroup":
		if from.Version == "v1alpha2" {
			return podGroup
		}
	case "node.k8s.io RuntimeClass -> node.k8s.io RuntimeClass":
		if from.Version == "v1alpha1" {
			return runtimeClass
		}
	case "rbac.authorization.k8s.io RoleBinding -> rbac.authorization.k8s.io RoleBinding", "rbac.authorization.k8s.io ClusterRoleBinding -> rbac.authorization.k8s.io ClusterRoleBinding":
		if from.Version == "v1alpha1" {
			return roleBinding
		}
	}
	return nil
}

// notesFor says what changes in meaning although no field does.
func notesFor(from, _ lifecycle.GVK) []string {
	switch from.Group + "/" + from.Version + " " + from.Kind {
	case "policy/v1beta1 PodDisruptionBudget":
		return []string{"an empty selector ({}) selected no pod and selects every pod of the namespace in policy/v1"}
	case "flowcontrol.apiserver.k8s.io/v1beta3 PriorityLevelConfiguration":
		return []string{"nominalConcurrencyShares: 0 meant the default of 30 and means 0 in v1"}
	case "admissionregistration.k8s.io/v1beta1 ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1beta1 MutatingWebhookConfiguration":
		return []string{"failurePolicy defaults to Fail, matchPolicy to Equivalent, timeoutSeconds to 10; sideEffects (None or NoneOnDryRun) and admissionReviewVersions are required"}
	case "certificates.k8s.io/v1beta1 CertificateSigningRequest":
		return []string{"spec.signerName and spec.usages are required; kubernetes.io/legacy-unknown is not allowed"}
	case "events.k8s.io/v1beta1 Event":
		return []string{"type, reason, action, reportingController and reportingInstance are required; deprecated fields must be empty"}
	}
	return nil
}

// Helpers on trees.

func str(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

func mapping(pairs ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := 0; i+1 < len(pairs); i += 2 {
		v, ok := pairs[i+1].(*yaml.Node)
		if !ok {
			v = str(fmt.Sprint(pairs[i+1]))
		}
		m.Content = append(m.Content, str(pairs[i].(string)), v)
	}
	return m
}

// get follows keys; nil when one is missing.
func get(n *yaml.Node, keys ...string) *yaml.Node {
	for _, k := range keys {
		if n = own(n, k); n == nil {
			return nil
		}
	}
	return n
}

func value(n *yaml.Node, key string) string {
	if v := own(n, key); v != nil && v.Kind == yaml.ScalarNode && v.ShortTag() != "!!null" {
		return v.Value
	}
	return ""
}

func elements(n *yaml.Node, keys ...string) []*yaml.Node {
	v := get(n, keys...)
	if v == nil || v.Kind != yaml.SequenceNode {
		return nil
	}
	return v.Content
}

// set puts a value at a key: in the place of the old one, or at the end.
func set(n *yaml.Node, key string, v *yaml.Node) {
	if i := index(n, key); i >= 0 {
		n.Content[i+1] = v
		return
	}
	n.Content = append(n.Content, str(key), v)
}

// setFirst puts a new key before all others.
func setFirst(n *yaml.Node, key string, v *yaml.Node) {
	n.Content = append([]*yaml.Node{str(key), v}, n.Content...)
}

// remove takes a key out and gives its value.
func remove(n *yaml.Node, key string) *yaml.Node {
	i := index(n, key)
	if i < 0 {
		return nil
	}
	v := n.Content[i+1]
	n.Content = append(n.Content[:i:i], n.Content[i+2:]...)
	return v
}

// replace renames a key and gives it another value, in its place.
func replace(n *yaml.Node, key, with string, v *yaml.Node) {
	if i := index(n, key); i >= 0 {
		k := *n.Content[i]
		k.Value = with
		n.Content[i], n.Content[i+1] = &k, v
	}
}

func isMap(n *yaml.Node) bool { return n != nil && n.Kind == yaml.MappingNode }

// ingress: backends name a service, and every path has a type.
func ingress(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if !isMap(spec) {
		return nil, nil
	}
	var notes []string
	if b := own(spec, "backend"); b != nil {
		nb, err := backend(b)
		if err != nil {
			return nil, err
		}
		replace(spec, "backend", "defaultBackend", nb)
	}
	for _, rule := range elements(spec, "rules") {
		for _, p := range elements(rule, "http", "paths") {
			if !isMap(p) {
				return nil, errors.New("a path of its rules is no mapping")
			}
			if b := own(p, "backend"); b != nil {
				nb, err := backend(b)
				if err != nil {
					return nil, err
				}
				set(p, "backend", nb)
			}
			if value(p, "pathType") == "" {
				remove(p, "pathType")
				// Behind the path, or in front of all else: the reader looks for it there.
				i := index(p, "path")
				rest := append([]*yaml.Node{str("pathType"), str("ImplementationSpecific")}, p.Content[i+1+boolInt(i >= 0):]...)
				if i < 0 {
					p.Content = rest
				} else {
					p.Content = append(p.Content[:i+2:i+2], rest...)
				}
				notes = []string{"paths without a pathType get ImplementationSpecific, which is what they had"}
			}
		}
	}
	return notes, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func backend(b *yaml.Node) (*yaml.Node, error) {
	if !isMap(b) {
		return nil, errors.New("a backend is no mapping")
	}
	name := own(b, "serviceName")
	if name == nil {
		return b, nil // a resource, or of the new form
	}
	nb := *b
	nb.Content = nil
	service := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: b.Style}
	service.Content = append(service.Content, str("name"), name)
	if port := own(b, "servicePort"); port != nil {
		p := *port
		key := "number"
		if n, err := strconv.Atoi(port.Value); port.Kind != yaml.ScalarNode {
			return nil, errors.New("a servicePort is no scalar")
		} else if err != nil {
			key = "name"
		} else if port.ShortTag() == "!!str" {
			// The old API took a number as text too.
			p = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(n)}
		}
		service.Content = append(service.Content, str("port"), &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: b.Style, Content: []*yaml.Node{str(key), &p}})
	}
	placed := false
	for i := 0; i+1 < len(b.Content); i += 2 {
		switch b.Content[i].Value {
		case "serviceName", "servicePort":
			if !placed {
				nb.Content, placed = append(nb.Content, str("service"), service), true
			}
		default:
			nb.Content = append(nb.Content, b.Content[i], b.Content[i+1])
		}
	}
	return &nb, nil
}

// workload: the selector is required, and what the old version did by default is written out.
func workload(note, updateStrategy string) converter {
	return func(obj *yaml.Node) ([]string, error) {
		spec := own(obj, "spec")
		if !isMap(spec) {
			return nil, errors.New("it has no spec")
		}
		var notes []string
		if note != "" {
			notes = append(notes, note)
		}
		if s := own(spec, "selector"); s == nil || s.ShortTag() == "!!null" || isMap(s) && len(s.Content) == 0 {
			labels := get(spec, "template", "metadata", "labels")
			if !isMap(labels) || len(labels.Content) == 0 {
				return nil, errors.New("its selector is required now, and its template has no labels to take it from")
			}
			match := deepCopy(labels)
			match.Style = 0
			remove(spec, "selector")
			setFirst(spec, "selector", mapping("matchLabels", match))
			notes = append(notes, "the selector is required, and cannot be changed later: it is taken from the labels of the template, as the old version did")
		}
		if remove(spec, "rollbackTo") != nil {
			notes = append(notes, "spec.rollbackTo is gone: use kubectl rollout undo")
		}
		if remove(spec, "templateGeneration") != nil {
			notes = append(notes, "spec.templateGeneration is gone")
		}
		if updateStrategy != "" && own(spec, "updateStrategy") == nil {
			set(spec, "updateStrategy", mapping("type", updateStrategy))
			notes = append(notes, "the default of updateStrategy changed to RollingUpdate: the old default, "+updateStrategy+", is written out")
		}
		return notes, nil
	}
}

// autoscaler: targets moved below "target", and metrics below "metric".
func autoscaler(obj *yaml.Node) ([]string, error) {
	for _, m := range elements(obj, "spec", "metrics") {
		if !isMap(m) {
			return nil, errors.New("a metric is no mapping")
		}
		for _, key := range []string{"resource", "containerResource", "pods", "object", "external"} {
			src := own(m, key)
			if src == nil {
				continue
			}
			if !isMap(src) {
				return nil, errors.New("a metric is no mapping")
			}
			target := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			take := func(old, typ, field string) {
				if v := remove(src, old); v != nil && len(target.Content) == 0 {
					target.Content = append(target.Content, str("type"), str(typ), str(field), v)
				}
			}
			described := remove(src, "target") // of an object metric: what is measured
			take("targetAverageUtilization", "Utilization", "averageUtilization")
			take("targetAverageValue", "AverageValue", "averageValue")
			if key == "object" {
				// An average wins over the value, which the old version required beside it.
				take("averageValue", "AverageValue", "averageValue")
			}
			take("targetValue", "Value", "value")
			if len(target.Content) == 0 {
				if key != "object" && isMap(described) { // of the new form already
					set(src, "target", described)
					continue
				}
				return nil, fmt.Errorf("a metric of type %s has no target", value(m, "type"))
			}
			if key == "pods" || key == "object" || key == "external" {
				name := remove(src, "metricName")
				if name == nil {
					return nil, fmt.Errorf("a metric of type %s has no metricName", value(m, "type"))
				}
				metric := mapping("name", name)
				if sel := firstOf(remove(src, "selector"), remove(src, "metricSelector")); sel != nil {
					set(metric, "selector", sel)
				}
				setFirst(src, "metric", metric)
			}
			if described != nil {
				setFirst(src, "describedObject", described)
			}
			set(src, "target", target)
		}
	}
	return nil, nil
}

func firstOf(nodes ...*yaml.Node) *yaml.Node {
	for _, n := range nodes {
		if n != nil {
			return n
		}
	}
	return nil
}

// crd: schema, subresources and columns belong to each version.
func crd(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if !isMap(spec) {
		return nil, errors.New("it has no spec")
	}
	var notes []string
	if own(spec, "versions") == nil {
		v := value(spec, "version")
		if v == "" {
			return nil, errors.New("it has neither version nor versions")
		}
		replace(spec, "version", "versions", &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{
			mapping("name", v, "served", boolean(true), "storage", boolean(true)),
		}})
	}
	remove(spec, "version")
	validation, subresources, columns := remove(spec, "validation"), remove(spec, "subresources"), remove(spec, "additionalPrinterColumns")
	open := value(spec, "preserveUnknownFields") != "false"
	remove(spec, "preserveUnknownFields")
	if own(spec, "scope") == nil {
		set(spec, "scope", str("Namespaced"))
		notes = append(notes, "scope is required: the old default, Namespaced, is written out")
	}
	for _, v := range elements(spec, "versions") {
		if !isMap(v) {
			return nil, errors.New("a version is no mapping")
		}
		schema := own(v, "schema")
		if schema == nil && validation != nil {
			schema = deepCopy(validation)
			set(v, "schema", schema)
		}
		if schema == nil {
			schema = mapping("openAPIV3Schema", mapping("type", "object"))
			set(v, "schema", schema)
			if anything := "a schema is required: one that takes anything is written"; !slices.Contains(notes, anything) {
				notes = append(notes, anything)
			}
		}
		root := own(schema, "openAPIV3Schema")
		if !isMap(root) {
			root = mapping("type", "object")
			set(schema, "openAPIV3Schema", root)
		}
		if own(root, "type") == nil {
			setFirst(root, "type", str("object"))
		}
		if open && own(root, "x-kubernetes-preserve-unknown-fields") == nil {
			set(root, "x-kubernetes-preserve-unknown-fields", boolean(true))
			const kept = "unknown fields were kept by default, so the schema says so now; every other level of it must be structural (types given) to be accepted"
			if !slices.Contains(notes, kept) { // once, for all versions
				notes = append(notes, kept)
			}
		}
		if own(v, "subresources") == nil && subresources != nil {
			set(v, "subresources", deepCopy(subresources))
		}
		if own(v, "additionalPrinterColumns") == nil && columns != nil {
			set(v, "additionalPrinterColumns", deepCopy(columns))
		}
		for _, c := range elements(v, "additionalPrinterColumns") {
			if p := own(c, "JSONPath"); p != nil {
				replace(c, "JSONPath", "jsonPath", p)
			}
		}
	}
	if conv := own(spec, "conversion"); isMap(conv) {
		client, versions := remove(conv, "webhookClientConfig"), remove(conv, "conversionReviewVersions")
		if client != nil || versions != nil {
			hook := mapping()
			if client != nil {
				set(hook, "clientConfig", client)
			}
			if versions == nil {
				versions = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{str("v1beta1")}}
			}
			set(hook, "conversionReviewVersions", versions)
			set(conv, "webhook", hook)
		}
	}
	return notes, nil
}

func boolean(b bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(b)}
}

// endpointSlice: topology became fields of its own.
func endpointSlice(obj *yaml.Node) ([]string, error) {
	var notes []string
	for _, e := range elements(obj, "endpoints") {
		topology := own(e, "topology")
		if !isMap(topology) {
			continue
		}
		rest := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: topology.Style}
		var node, zone *yaml.Node
		for i := 0; i+1 < len(topology.Content); i += 2 {
			switch k := topology.Content[i].Value; k {
			case "kubernetes.io/hostname":
				node = topology.Content[i+1]
			case "topology.kubernetes.io/zone":
				zone = topology.Content[i+1]
			default:
				rest.Content = append(rest.Content, topology.Content[i], topology.Content[i+1])
			}
		}
		remove(e, "topology")
		if node != nil && own(e, "nodeName") == nil {
			set(e, "nodeName", node)
		}
		if zone != nil {
			set(e, "zone", zone)
		}
		if len(rest.Content) > 0 {
			set(e, "deprecatedTopology", rest)
			notes = []string{"topology other than node and zone is kept as deprecatedTopology, which nothing reads"}
		}
	}
	return notes, nil
}

// priorityLevel: shares were renamed.
func priorityLevel(obj *yaml.Node) ([]string, error) {
	limited := get(obj, "spec", "limited")
	if v := own(limited, "assuredConcurrencyShares"); v != nil {
		replace(limited, "assuredConcurrencyShares", "nominalConcurrencyShares", v)
		if v.Value == "0" {
			return []string{"shares of 0 meant the default of 30 and mean 0 in v1"}, nil
		}
	}
	return nil, nil
}

// claim: a request says "exactly" what it wants. depth is how many specs lie above.
func claim(depth int) converter {
	return func(obj *yaml.Node) ([]string, error) {
		spec := obj
		for range depth {
			spec = own(spec, "spec")
		}
		for _, r := range elements(spec, "devices", "requests") {
			if !isMap(r) {
				return nil, errors.New("a request is no mapping")
			}
			if own(r, "exactly") != nil || own(r, "firstAvailable") != nil {
				continue
			}
			exactly := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: r.Style}
			var rest []*yaml.Node
			for i := 0; i+1 < len(r.Content); i += 2 {
				if r.Content[i].Value == "name" {
					rest = append(rest, r.Content[i], r.Content[i+1])
				} else {
					exactly.Content = append(exactly.Content, r.Content[i], r.Content[i+1])
				}
			}
			r.Content = append(rest, str("exactly"), exactly)
		}
		return nil, nil
	}
}

// resourceSlice: a capacity says more than its value (wrap), and what stood below "basic" belongs to the device itself
// (flatten).
func resourceSlice(wrap, flatten bool) converter {
	return func(obj *yaml.Node) ([]string, error) {
		for _, dev := range elements(obj, "spec", "devices") {
			basic := own(dev, "basic")
			if !isMap(basic) {
				continue
			}
			if capacity := own(basic, "capacity"); wrap && isMap(capacity) {
				for k := 1; k < len(capacity.Content); k += 2 {
					if v := capacity.Content[k]; v.Kind == yaml.ScalarNode {
						capacity.Content[k] = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Style: capacity.Style, Content: []*yaml.Node{str("value"), v}}
					}
				}
			}
			if flatten {
				i := index(dev, "basic")
				dev.Content = append(append(dev.Content[:i:i], basic.Content...), dev.Content[i+2:]...)
			}
		}
		return nil, nil
	}
}

// leaseCandidate: one strategy in place of a list, of which the first superseded all others; the binary's version is required.
func leaseCandidate(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if !isMap(spec) {
		return nil, errors.New("it has no spec")
	}
	if value(spec, "binaryVersion") == "" {
		return nil, errors.New("spec.binaryVersion is required now: add it")
	}
	strategies := elements(spec, "preferredStrategies")
	if len(strategies) == 0 {
		remove(spec, "preferredStrategies")
		return nil, nil
	}
	replace(spec, "preferredStrategies", "strategy", strategies[0])
	if len(strategies) > 1 {
		return []string{"only the first of its preferred strategies is kept: it superseded the others"}, nil
	}
	return nil, nil
}

// podCertificateRequest: one certificate request that the key signed replaces the key and its proof.
func podCertificateRequest(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if value(spec, "stubPKCS10Request") == "" {
		return nil, errors.New("spec.stubPKCS10Request is required now, and only the kubelet that holds the key can sign it: delete the request, the kubelet makes a new one")
	}
	var notes []string
	for _, key := range []string{"pkixPublicKey", "proofOfPossession"} {
		if remove(spec, key) != nil {
			notes = append(notes, "spec."+key+" is gone: spec.stubPKCS10Request holds what it said")
		}
	}
	return notes, nil
}

// storageMigration: it names group and resource, not a version, and keeps its place by itself.
func storageMigration(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	res := own(spec, "resource")
	if !isMap(res) {
		return nil, errors.New("it has no spec.resource")
	}
	var notes []string
	if remove(res, "version") != nil {
		notes = append(notes, "spec.resource.version is gone: objects are written in the version that the apiserver stores")
	}
	if own(res, "group") == nil {
		empty := str("")
		empty.Style = yaml.DoubleQuotedStyle
		setFirst(res, "group", empty)
	}
	if remove(spec, "continueToken") != nil {
		notes = append(notes, "spec.continueToken is gone: the migration begins anew")
	}
	return notes, nil
}

// gangWorkload: groups became templates of groups, and a mode of disruption a mapping. Both steps work on their own.
func gangWorkload(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if groups := own(spec, "podGroups"); groups != nil {
		replace(spec, "podGroups", "podGroupTemplates", groups)
	}
	for _, g := range elements(spec, "podGroupTemplates") {
		if !isMap(g) {
			return nil, errors.New("a pod group is no mapping")
		}
		if policy := own(g, "policy"); policy != nil {
			replace(g, "policy", "schedulingPolicy", policy)
		}
		if err := disruptionMode(g); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// podGroup: the reference to its template is flat, and its mode of disruption a mapping.
func podGroup(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if ref := own(spec, "podGroupTemplateRef"); ref != nil {
		workload := own(ref, "workload")
		if !isMap(workload) {
			return nil, errors.New("spec.podGroupTemplateRef names no workload")
		}
		if name := own(workload, "podGroupTemplateName"); name != nil {
			replace(workload, "podGroupTemplateName", "templateName", name)
		}
		replace(spec, "podGroupTemplateRef", "workloadRef", workload)
	}
	return nil, disruptionMode(spec)
}

// disruptionMode: "Pod" became single, "PodGroup" all.
func disruptionMode(holder *yaml.Node) error {
	mode := own(holder, "disruptionMode")
	if mode == nil || mode.Kind != yaml.ScalarNode || mode.ShortTag() == "!!null" {
		return nil
	}
	key := map[string]string{"Pod": "single", "PodGroup": "all"}[mode.Value]
	if key == "" {
		return fmt.Errorf("disruptionMode %q is neither Pod nor PodGroup", mode.Value)
	}
	set(holder, "disruptionMode", &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{str(key), {Kind: yaml.MappingNode, Tag: "!!map", Style: yaml.FlowStyle, LineComment: mode.LineComment}}})
	return nil
}

// leftTo says who can make the move of a kind whose fields have no counterpart in what takes its place.
func leftTo(from, to lifecycle.GVK) string {
	switch from.APIVersion() + " " + from.Kind {
	case "v1 Endpoints":
		return "one Endpoints object may become several EndpointSlices, and the control plane mirrors it as long as it is there: write slices with the label kubernetes.io/service-name, then delete it"
	case "resource.k8s.io/v1alpha2 ResourceSlice":
		return "drivers publish ResourceSlices, and its pool is known to the driver alone: upgrade the driver"
	}
	return "fields move on the way to " + to.String() + ", and no converter is known"
}

// runtimeClass: the spec went up to the top.
func runtimeClass(obj *yaml.Node) ([]string, error) {
	spec := own(obj, "spec")
	if !isMap(spec) {
		return nil, errors.New("it has no spec")
	}
	handler := own(spec, "runtimeHandler")
	if handler == nil {
		return nil, errors.New("it has no spec.runtimeHandler")
	}
	i := index(obj, "spec")
	up := []*yaml.Node{str("handler"), handler}
	for k := 0; k+1 < len(spec.Content); k += 2 {
		if spec.Content[k].Value != "runtimeHandler" {
			up = append(up, spec.Content[k], spec.Content[k+1])
		}
	}
	obj.Content = append(append(obj.Content[:i:i], up...), obj.Content[i+2:]...)
	return nil, nil
}

// roleBinding: subjects name a group, not a version.
func roleBinding(obj *yaml.Node) ([]string, error) {
	for _, s := range elements(obj, "subjects") {
		if !isMap(s) {
			return nil, errors.New("a subject is no mapping")
		}
		if value(s, "kind") == "User" && value(s, "name") == "*" {
			return nil, errors.New("a subject is User *, which meant every authenticated user: name the group system:authenticated, if that is wanted")
		}
		old := own(s, "apiVersion")
		if old == nil {
			continue
		}
		group, _, grouped := strings.Cut(old.Value, "/")
		if !grouped || value(s, "kind") == "ServiceAccount" {
			remove(s, "apiVersion")
			continue
		}
		replace(s, "apiVersion", "apiGroup", str(group))
	}
	return nil, nil
}
