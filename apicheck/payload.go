package apicheck

import (
	"encoding/base64"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubeadmKeys are values that kubeadm itself keeps, so that reading them as objects is no guess.
var kubeadmKeys = map[string]map[string]bool{
	"kubeadm-config": {"ClusterConfiguration": true},
	"kubelet-config": {"kubelet": true},
	"kube-proxy":     {"config.conf": true, "kubeconfig.conf": true},
}

// payloads judges objects that are kept as text inside a ConfigMap or Secret. Only a value that is
// an object, as a whole, counts: text that mentions an apiVersion is no use of it.
func (c *collector) payloads(og origin, o object) {
	if o.gvk.Group != "" || o.gvk.Version != "v1" || (o.gvk.Kind != "ConfigMap" && o.gvk.Kind != "Secret") {
		return
	}
	for _, key := range []string{"data", "stringData"} {
		m := field(o.node, key)
		if m == nil || m.Kind != yaml.MappingNode {
			continue
		}
		for i := 0; i+1 < len(m.Content); i += 2 {
			name, v := m.Content[i].Value, resolve(m.Content[i+1])
			if v == nil || v.Kind != yaml.ScalarNode {
				continue
			}
			text := v.Value
			encoded := o.gvk.Kind == "Secret" && key == "data"
			if encoded {
				raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
				if err != nil {
					continue
				}
				text = string(raw)
			}
			if !strings.Contains(text, "apiVersion") || !strings.Contains(text, "kind") || len(text) > maxDocument {
				continue
			}
			inner := og
			inner.payload, inner.nesting, inner.confidence = true, og.nesting+1, Medium
			inner.namespace = ""
			if o.namespace == "kube-system" && kubeadmKeys[o.name][name] {
				inner.confidence = High
			}
			c.embedded(og, inner, o, v, fmt.Sprintf("%s[%q]", key, name), text, encoded)
		}
	}
}

// embedded judges objects that are kept as text in a scalar of o, at path. What is no object, or no YAML, is no gap: it is
// somebody's data. encoded says that the text is not as it stands in the file.
func (c *collector) embedded(og, inner origin, o object, v *yaml.Node, path, text string, encoded bool) {
	inner.source = c.at(og, o, v, join(o.path, path))
	inner.source.Type = SourcePayload
	inner.note = strings.TrimPrefix(og.note+"; kept as text in "+o.String(), "; ")
	if src := og.source; src.Type == SourceStored {
		inner.source.Object = o.String()
	}
	// A block scalar keeps its lines, one below its indicator; anything else is one place.
	inner.lineOffset = og.lineOffset + o.line + v.Line
	oneLine := v.Style != yaml.LiteralStyle || encoded
	if oneLine {
		inner.lineOffset = inner.source.Line - 1
	}
	sub := c.judge.collector()
	sub.text(inner, []byte(text))
	if oneLine {
		for i := range sub.findings {
			sub.findings[i].Source.Line = inner.source.Line
		}
	}
	c.findings = append(c.findings, sub.findings...)
}
