package apicheck

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// RuntimeConfig is what one apiserver's --runtime-config says, by its keys: group/version/resource, group/version, api/alpha,
// api/beta, api/ga and api/all.
type RuntimeConfig map[string]bool

// ParseRuntimeConfig reads the flag's value, as networking.k8s.io/v1beta1=true,api/alpha=false. A key alone means true.
func ParseRuntimeConfig(text string) (RuntimeConfig, error) {
	rc := RuntimeConfig{}
	for _, pair := range strings.Split(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		k, v, set := strings.Cut(pair, "=")
		if k == "v1" || !strings.Contains(k, "/") && k != "" {
			k = "/" + k // the core group
		}
		switch strings.ToLower(v) {
		case "true", "1", "t":
			rc[k] = true
		case "false", "0", "f":
			rc[k] = false
		default:
			if set && v != "" {
				return nil, fmt.Errorf("runtime config %q: %q is neither true nor false", pair, v)
			}
			rc[k] = true
		}
	}
	return rc, nil
}

// says gives what is said of a kind, the most specific first; ok is false when nothing is.
func (rc RuntimeConfig) says(k *lifecycle.Kind) (on, ok bool) {
	gv := k.Group + "/" + k.Version
	stage := "api/ga"
	switch {
	case strings.Contains(k.Version, "alpha"):
		stage = "api/alpha"
	case strings.Contains(k.Version, "beta"):
		stage = "api/beta"
	}
	for _, key := range []string{gv + "/" + k.Resource, gv, stage, "api/all"} {
		if on, ok := rc[key]; ok {
			return on, true
		}
	}
	return false, false
}

// verdictOf judges a kind by the database and by what is known of the apiservers' --runtime-config, which the target is taken
// to have too. Of several apiservers all have to serve an API.
func (j *judge) verdictOf(g lifecycle.GVK, stored bool) lifecycle.Judgement {
	return j.withRuntimeConfig(g, j.db.Judge(g, j.from, j.to, stored))
}

// requested judges a kind that a client was seen to ask for.
func (j *judge) requested(g lifecycle.GVK) lifecycle.Judgement {
	return j.withRuntimeConfig(g, j.db.JudgeRequest(g, j.from, j.to))
}

func (j *judge) withRuntimeConfig(g lifecycle.GVK, r lifecycle.Judgement) lifecycle.Judgement {
	if len(j.runtime) == 0 {
		return r
	}
	switch r.Verdict {
	case lifecycle.OffByDefault, lifecycle.OK, lifecycle.Deprecated:
	default:
		return r
	}
	k, ok := j.db.Lookup(g)
	if !ok || k.Class != lifecycle.Stored {
		return r
	}
	on := true
	for _, rc := range j.runtime {
		says, said := rc.says(k)
		on = on && (said && says || !said && k.On(j.to))
	}
	switch {
	case on && r.Verdict == lifecycle.OffByDefault:
		deprecated := slices.Contains(r.Also, lifecycle.Deprecated)
		r.Verdict, r.Also, r.Hop = lifecycle.OK, nil, lifecycle.Minor{}
		if deprecated {
			r.Verdict = lifecycle.Deprecated
		}
	case !on && r.Verdict != lifecycle.OffByDefault:
		if r.Verdict == lifecycle.Deprecated {
			r.Also = []verdict{lifecycle.Deprecated}
		} else {
			r.Rewrite = lifecycle.None
		}
		r.Verdict = lifecycle.OffByDefault
	}
	return r
}

// readRuntimeConfig reads the flag from the static pods of the apiservers, where the cluster shows them. A managed control
// plane does not; then what is off by default counts as off.
func (l *liveCluster) readRuntimeConfig(ctx context.Context, c *collector) []RuntimeConfig {
	const what = "--runtime-config of the apiservers"
	var body []byte
	err := l.retry(ctx, what, func(ctx context.Context) error {
		var err error
		body, err = l.get(ctx, schema.GroupVersionResource{Version: "v1", Resource: "pods"}, metav1.NamespaceSystem, metav1.ListOptions{LabelSelector: "component=kube-apiserver"}, objectPage)
		return err
	})
	if err != nil {
		return nil // the list of pods says so itself
	}
	var page struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
				Containers []struct {
					Name          string
					Command, Args []string
				}
			}
		}
	}
	if err := json.Unmarshal(body, &page); err != nil {
		c.unread(what, 0, "%v", err)
		return nil
	}
	var all []RuntimeConfig
	for _, pod := range page.Items {
		rc := RuntimeConfig{}
		for _, container := range pod.Spec.Containers {
			args := append(container.Command, container.Args...)
			for i, arg := range args {
				value, ok := strings.CutPrefix(strings.TrimLeft(arg, "-"), "runtime-config=")
				if !ok && strings.TrimLeft(arg, "-") == "runtime-config" && i+1 < len(args) {
					value, ok = args[i+1], true
				}
				if !ok || !strings.HasPrefix(arg, "-") {
					continue
				}
				parsed, err := ParseRuntimeConfig(value)
				if err != nil {
					c.unread(what, 0, "pod %s: %v", pod.Metadata.Name, err)
					return nil
				}
				for k, v := range parsed { // given twice, the flag adds up
					rc[k] = v
				}
			}
		}
		all = append(all, rc)
	}
	if len(all) > 0 {
		c.covered(what, "static pods", len(all))
	}
	return all
}
