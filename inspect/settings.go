package inspect

import (
	"reflect"
	"slices"
)

// settings is a configuration document, field by field.
type settings map[string]any

// byNode are the fields of a KubeletConfiguration that kubeadm itself sets by node: the resolver's file where systemd-resolved
// runs, and the runtime's socket.
var byNode = []string{"apiVersion", "kind", "resolvConf", "containerRuntimeEndpoint"}

// drift names the fields that are not in node as they are in s, sorted. A field that is absent and one with an empty value are the
// same: kubeadm writes empty values of fields that its own minor knows.
func (s settings) drift(node settings) []string {
	var out []string
	for _, m := range []settings{s, node} {
		for k := range m {
			if !slices.Contains(byNode, k) && !slices.Contains(out, k) && !reflect.DeepEqual(trim(s[k]), trim(node[k])) {
				out = append(out, k)
			}
		}
	}
	slices.Sort(out)
	return out
}

// trim takes empty values out, in whatever form kubeadm writes them. false is none: it is a choice.
func trim(v any) any {
	switch v := v.(type) {
	case string:
		if v == "" || v == "0s" || v == "0" {
			return nil
		}
	case float64:
		if v == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if t := trim(e); t != nil {
				out[k] = t
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	}
	return v
}
