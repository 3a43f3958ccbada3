package apicheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/cli/values"
	"helm.sh/helm/v4/pkg/engine"
)

// ChartOptions says how charts are rendered.
type ChartOptions struct {
	// ValueFiles and Set are the --values and --set of helm; Namespace and Release what the chart sees as its own.
	ValueFiles []string
	Set        []string
	Namespace  string
	Release    string
}

// chart renders a chart as a cluster of the target version would have it, and judges the result. A chart that asks for
// the cluster's APIs therefore answers for the target.
func (c *collector) chart(ctx context.Context, o Options, name string) {
	rendered, err := c.render(ctx, o, name)
	if err != nil {
		c.unread(name, 0, "chart: %v", err)
		return
	}
	c.covered("charts", "rendered for "+c.to.String(), 1)
	dir := ""
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		dir = name
	}
	for _, f := range rendered {
		// Names begin with the chart's own; the file lies under the directory that was given.
		_, path, _ := strings.Cut(f.name, "/")
		og := origin{what: name + ": " + f.name, confidence: High, source: Source{Type: SourceFile, File: name}, namespace: o.Charts.Namespace}
		if dir != "" {
			og.source.File = filepath.Join(dir, path)
		}
		if f.template != nil {
			og.note = "in the rendered chart " + name
		}
		sub := c.judge.collector()
		sub.text(og, f.text)
		line := func(n int) int { return n }
		if f.template != nil {
			line = templateLines(f.template, f.text)
		}
		for i := range sub.findings {
			src := &sub.findings[i].Source
			src.Line = line(src.Line)
			if dir == "" {
				// A line of a file within an archive is none of the archive.
				at := f.name
				if src.Line > 0 {
					at += fmt.Sprintf(":%d", src.Line)
				}
				src.Path, src.Line = strings.TrimSuffix(at+" "+src.Path, " "), 0
			}
		}
		for i := range sub.unreadable {
			sub.unreadable[i].Line = line(sub.unreadable[i].Line)
		}
		c.merge(sub)
	}
}

// templateLines gives a function from the lines of a rendered text to those of its template, as well as they can be told: the
// line that reads the same, or that begins with the same key, the first for the first and so on. 0 stands for none.
func templateLines(template, rendered []byte) func(int) int {
	templ, out := strings.Split(string(template), "\n"), strings.Split(string(rendered), "\n")
	key := func(s string) string {
		s = strings.TrimPrefix(strings.TrimSpace(s), "- ")
		k, _, ok := strings.Cut(s, ":")
		if !ok || strings.HasPrefix(s, "{{") {
			return ""
		}
		return strings.Trim(k, `"'`)
	}
	whole := func(s string) string { return strings.TrimSpace(strings.TrimSuffix(s, "\r")) }
	// nth counts the lines of the rendered text up to n that read like it, and finds that one in the template, or the last.
	nth := func(n int, like func(string) string) int {
		want := like(out[n-1])
		if want == "" {
			return 0
		}
		count := 0
		for _, s := range out[:n] {
			if like(s) == want {
				count++
			}
		}
		found := 0
		for i, s := range templ {
			if like(s) == want {
				found = i + 1
				if count--; count == 0 {
					break
				}
			}
		}
		return found
	}
	return func(n int) int {
		if n < 1 || n > len(out) {
			return 0
		}
		if l := nth(n, whole); l > 0 {
			return l
		}
		return nth(n, key)
	}
}

type renderedFile struct {
	name string
	text []byte
	// template is what it was rendered from; nil for a file that is no template: its lines are the file's.
	template []byte
}

func (c *collector) render(ctx context.Context, o Options, name string) (files []renderedFile, err error) {
	// Templates are programs of strangers; a scan must survive them.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the renderer gave up: %v", r)
		}
	}()
	ch, err := loader.Load(name)
	if err != nil {
		return nil, err
	}
	given, err := (&values.Options{ValueFiles: o.Charts.ValueFiles, Values: o.Charts.Set}).MergeValues(nil)
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(ch, given); err != nil {
		return nil, err
	}
	if missing := missingDependencies(ch); len(missing) > 0 {
		return nil, fmt.Errorf("dependencies are not there: %s; run helm dependency build", strings.Join(missing, ", "))
	}
	caps, err := c.capabilities()
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: o.Charts.Release, Namespace: o.Charts.Namespace, Revision: 1, IsInstall: true}
	if release.Name == "" {
		release.Name = "release-name"
	}
	if release.Namespace == "" {
		release.Namespace = "default"
	}
	v, err := util.ToRenderValues(ch, given, release, caps)
	if err != nil {
		return nil, err
	}
	out, err := engine.Engine{}.RenderWithContext(ctx, ch, v)
	if err != nil {
		return nil, err
	}
	templates := map[string][]byte{}
	addTemplates(ch, ch.Name(), templates)
	for path, text := range out {
		base := filepath.Base(path)
		if strings.HasPrefix(base, "_") || base == "NOTES.txt" || strings.TrimSpace(text) == "" {
			continue
		}
		files = append(files, renderedFile{name: path, text: []byte(text), template: templates[path]})
	}
	for _, crd := range ch.CRDObjects() {
		files = append(files, renderedFile{name: crd.Filename, text: crd.File.Data})
	}
	slices.SortFunc(files, func(a, b renderedFile) int { return strings.Compare(a.name, b.name) })
	return files, nil
}

// addTemplates collects the templates of a chart and of those below it, by the names that rendering gives them.
func addTemplates(ch *chart.Chart, prefix string, to map[string][]byte) {
	for _, t := range ch.Templates {
		to[prefix+"/"+t.Name] = append([]byte{}, t.Data...)
	}
	for _, sub := range ch.Dependencies() {
		addTemplates(sub, prefix+"/charts/"+sub.Name(), to)
	}
}

// missingDependencies names what Chart.yaml asks for and the chart does not have. What conditions and tags switched off
// is gone from both by now.
func missingDependencies(ch *chart.Chart) []string {
	var missing []string
	for _, want := range ch.Metadata.Dependencies {
		if !slices.ContainsFunc(ch.Dependencies(), func(have *chart.Chart) bool {
			return have.Name() == want.Name || have.Name() == want.Alias
		}) {
			missing = append(missing, want.Name)
		}
	}
	return missing
}

// capabilities gives what a cluster of the target minor serves by default.
func (c *collector) capabilities() (*common.Capabilities, error) {
	v, err := common.ParseKubeVersion("v" + c.to.String() + ".0")
	if err != nil {
		return nil, err
	}
	caps := common.DefaultCapabilities.Copy()
	caps.KubeVersion = *v
	caps.APIVersions = nil
	seen := map[string]bool{}
	for i := range c.db.Kinds {
		k := &c.db.Kinds[i]
		if !k.On(c.to) {
			continue
		}
		gv := k.GVK().APIVersion()
		if !seen[gv] {
			seen[gv] = true
			caps.APIVersions = append(caps.APIVersions, gv)
		}
		caps.APIVersions = append(caps.APIVersions, gv+"/"+k.Kind)
	}
	return caps, nil
}
