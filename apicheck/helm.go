package apicheck

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/belayops/belay/apicheck/lifecycle"
)

const (
	// maxRelease bounds what a Helm release may decompress to. The largest real ones have a few MB.
	maxRelease = 64 << 20
	// maxWraps bounds how often a release is wrapped in base64 and gzip: Kubernetes' own base64, Helm's, its gzip, and one to spare each.
	maxWraps = 6
)

// record is where Helm keeps one revision of a release.
type record struct {
	driver          string // secrets or configmaps
	namespace, name string
	release, status string
	revision        int
}

func (r record) String() string {
	return fmt.Sprintf("release %s revision %d in namespace %s", r.release, r.revision, r.namespace)
}

// release is what is read of a revision.
type release struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Version   int    `json:"version"`
	Info      struct {
		Status string `json:"status"`
	} `json:"info"`
	Manifest string `json:"manifest"`
	Hooks    []struct {
		Name     string `json:"name"`
		Path     string `json:"path"`
		Manifest string `json:"manifest"`
	} `json:"hooks"`
}

// unwrap takes base64 and gzip off a stored release, as often as they are there, and stops at JSON.
func unwrap(data []byte) ([]byte, error) {
	for range maxWraps {
		data = bytes.TrimSpace(data)
		switch {
		case len(data) == 0:
			return nil, errors.New("empty")
		case data[0] == '{':
			return data, nil
		case bytes.HasPrefix(data, []byte{0x1f, 0x8b}):
			zr, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return nil, fmt.Errorf("gzip: %w", err)
			}
			out, err := io.ReadAll(io.LimitReader(zr, maxRelease+1))
			if err != nil {
				return nil, fmt.Errorf("gzip: %w", err)
			}
			if len(out) > maxRelease {
				return nil, fmt.Errorf("decompresses to more than %d MB", maxRelease>>20)
			}
			data = out
		default:
			out := make([]byte, base64.StdEncoding.DecodedLen(len(data)))
			n, err := base64.StdEncoding.Decode(out, data)
			if err != nil {
				return nil, errors.New("neither JSON, nor gzip, nor base64")
			}
			data = out[:n]
		}
	}
	return nil, fmt.Errorf("wrapped more than %d times", maxWraps)
}

// parseRelease decodes a stored release.
func parseRelease(data []byte) (*release, error) {
	text, err := unwrap(data)
	if err != nil {
		return nil, err
	}
	var r release
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("not the JSON of a release: %w", err)
	}
	if r.Name == "" {
		return nil, errors.New("not a release: it has no name")
	}
	return &r, nil
}

// maxRollbacks bounds how many older revisions of a release are read: helm rollback goes one back unless it is told otherwise.
const maxRollbacks = 3

// releases judges the Helm releases of a cluster: of each its newest revision and its newest deployed one. Helm starts
// from these, and fails when it can no longer map what they hold. The revisions before them are where helm rollback goes.
func (l *liveCluster) releases(ctx context.Context, o Options, c *collector) {
	for _, r := range l.records(ctx, o, c) {
		first := len(c.findings)
		for _, p := range r.picked {
			what := p.String()
			rel, err := l.fetch(ctx, p.record)
			if err != nil {
				if apierrors.IsNotFound(err) {
					continue // uninstalled meanwhile
				}
				c.unread(what, 0, "%v", err)
				continue
			}
			c.covered("helm releases", "manifests and hooks", 1)
			c.release(p, rel, what)
		}
		l.rollbacks(ctx, c, r.older, c.findings[first:])
	}
	l.unlabelled(ctx, o, c)
}

// rollbacks judges older revisions, the newest first. Nothing starts from them unless somebody asks for it, so what was found of
// the release already is not said again, and a revision that cannot be read takes nothing away.
func (l *liveCluster) rollbacks(ctx context.Context, c *collector, older []record, found []Finding) {
	type object struct{ apiVersion, kind, namespace, name, hook string }
	of := func(f Finding) object { return object{f.APIVersion, f.Kind, f.Namespace, f.Name, f.Source.Hook} }
	said := map[object]bool{}
	for _, f := range found {
		said[of(f)] = true
	}
	for i, rec := range older {
		if i == maxRollbacks {
			c.covered("helm releases", "older revisions, not judged: only a rollback to them would use them", len(older)-i)
			return
		}
		rel, err := l.fetch(ctx, rec)
		if err != nil {
			if !apierrors.IsNotFound(err) {
				c.covered("helm releases", "older revisions that could not be read", 1)
			}
			continue
		}
		c.covered("helm releases", "older revisions", 1)
		sub := c.collector()
		sub.release(pickedRecord{rec, releaseUse{Info, fmt.Sprintf("helm rollback to revision %d fails on it", rec.revision)}}, rel, rec.String())
		for _, f := range sub.findings {
			if helmFails(f) && !said[of(f)] {
				said[of(f)] = true
				c.findings = append(c.findings, f)
			}
		}
	}
}

// releaseRecords are the revisions of one release.
type releaseRecords struct {
	picked []pickedRecord
	older  []record // the newest first
}

// records lists where releases are kept, and picks the revisions that count.
func (l *liveCluster) records(ctx context.Context, o Options, c *collector) []releaseRecords {
	byRelease := map[[3]string][]record{}
	l.eachRecord(ctx, o, c, func(r record) {
		k := [3]string{r.namespace, r.release, r.driver}
		byRelease[k] = append(byRelease[k], r)
	})
	var out []releaseRecords
	for _, revisions := range byRelease {
		var r releaseRecords
		p := pick(revisions)
		for _, rec := range p {
			r.picked = append(r.picked, pickedRecord{rec, helmUse(rec, p[len(p)-1])})
		}
		slices.SortFunc(r.picked, func(a, b pickedRecord) int { return cmp.Compare(a.revision, b.revision) })
		slices.SortFunc(revisions, func(a, b record) int { return cmp.Compare(b.revision, a.revision) })
		for _, rec := range revisions {
			if !slices.Contains(p, rec) {
				r.older = append(r.older, rec)
			}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(x, y releaseRecords) int {
		a, b := x.picked[0], y.picked[0]
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.release, b.release), cmp.Compare(a.driver, b.driver))
	})
	return out
}

// eachRecord lists the records of all releases by their labels.
func (l *liveCluster) eachRecord(ctx context.Context, o Options, c *collector, yield func(record)) {
	for _, driver := range []string{"secrets", "configmaps"} {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: driver}
		for _, ns := range namespaces(o, true) {
			seen := map[record]bool{}
			n, err := l.pages(ctx, "helm releases in "+driver, func(ctx context.Context, opts metav1.ListOptions) (string, int, error) {
				opts.Limit, opts.LabelSelector = metadataPage, "owner=helm"
				page, err := l.meta.Resource(gvr).Namespace(ns).List(ctx, opts)
				if err != nil {
					return "", 0, err
				}
				for i := range page.Items {
					m := &page.Items[i]
					revision, err := strconv.Atoi(m.Labels["version"])
					if err != nil || m.Labels["name"] == "" {
						c.unread(fmt.Sprintf("%s %s/%s", driver, m.Namespace, m.Name), 0, "labelled as Helm's, without a release name and version")
						continue
					}
					seen[record{driver, m.Namespace, m.Name, m.Labels["name"], m.Labels["status"], revision}] = true
				}
				return page.Continue, len(page.Items), nil
			}, func() { clear(seen) })
			c.listed("helm release records in "+driver, ns, "labels", n, err)
			for r := range seen {
				yield(r)
			}
		}
	}
}

// unlabelled names the Secrets of Helm's type that lack its label. Helm finds its records by the label, so it does not see them,
// and neither does anything here: the readers of manifests in Secrets leave that type out.
func (l *liveCluster) unlabelled(ctx context.Context, o Options, c *collector) {
	for _, ns := range namespaces(o, true) {
		names := map[string]bool{}
		n, err := l.pages(ctx, "secrets of Helm's type", func(ctx context.Context, opts metav1.ListOptions) (string, int, error) {
			opts.Limit, opts.FieldSelector, opts.LabelSelector = metadataPage, "type=helm.sh/release.v1", "owner!=helm"
			page, err := l.meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(ns).List(ctx, opts)
			if err != nil {
				return "", 0, err
			}
			for i := range page.Items {
				names[page.Items[i].Namespace+"/"+page.Items[i].Name] = true
			}
			return page.Continue, len(page.Items), nil
		}, func() { clear(names) })
		if err != nil { // a refusal is told with the records already
			c.listed("helm release records in secrets", ns, "labels", n, err)
		}
		for name := range names {
			c.unread("secrets "+name, 0, "of Helm's type, but without its label owner=helm: Helm does not find it; label it if it is a release, or delete it")
		}
	}
}

// pick takes the newest revision and the newest deployed one. Interrupted upgrades leave several marked deployed.
func pick(revisions []record) []record {
	revisions = slices.SortedFunc(slices.Values(revisions), func(a, b record) int { return cmp.Compare(b.revision, a.revision) })
	out := revisions[:1:1]
	for _, r := range revisions {
		if r.status == "deployed" {
			if r.revision != out[0].revision {
				out = append(out, r)
			}
			break
		}
	}
	return out
}

// pickedRecord is a revision that counts, and what for.
type pickedRecord struct {
	record
	use releaseUse
}

// releaseUse is what Helm does with a revision: it decides how much a finding in it matters.
type releaseUse struct {
	cap  Severity // empty for no limit
	says string
}

// helmUse says what Helm does with one of the revisions that pick chose; base is the one that helm upgrade starts from: the newest
// deployed revision or, when there is none, the newest. Helm rollback and helm uninstall start from the newest one, whatever
// became of it, and after an operation that was cut off helm upgrade does nothing before one of them was run.
func helmUse(rec, base record) releaseUse {
	switch {
	case strings.HasPrefix(rec.status, "pending-"):
		return releaseUse{says: fmt.Sprintf("revision %d is %s: helm upgrade refuses to run before helm rollback or helm uninstall, and these fail on it", rec.revision, rec.status)}
	case rec.status == "uninstalled":
		return releaseUse{Info, "the release is uninstalled: only helm rollback would start from it"}
	case rec.status == "uninstalling":
		return releaseUse{Warning, "helm uninstall, run again to finish, fails on it"}
	case rec != base:
		return releaseUse{Warning, fmt.Sprintf("revision %d is %s: helm upgrade starts from revision %d instead; until one has succeeded, helm rollback and helm uninstall fail on it",
			rec.revision, rec.status, base.revision)}
	}
	return releaseUse{says: "the next helm upgrade fails on it"}
}

// fetchRaw reads the object of one record.
func (l *liveCluster) fetchRaw(ctx context.Context, rec record) (body []byte, err error) {
	err = l.retry(ctx, rec.driver+" "+rec.namespace+"/"+rec.name, func(ctx context.Context) error {
		var err error
		body, err = answer(l.raw.Get().AbsPath("api", "v1", "namespaces", rec.namespace, rec.driver, rec.name).SetHeader("Accept", "application/json").Do(ctx))
		return err
	})
	return body, err
}

// fetch reads one record whole.
func (l *liveCluster) fetch(ctx context.Context, rec record) (*release, error) {
	body, err := l.fetchRaw(ctx, rec)
	if err != nil {
		return nil, err
	}
	var obj struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(body, &obj); err != nil {
		return nil, err
	}
	data, ok := obj.Data["release"]
	if !ok {
		return nil, errors.New("labelled as Helm's, but holds no release")
	}
	return parseRelease([]byte(data))
}

// release judges the manifest and the hooks of one revision.
func (c *collector) release(rec pickedRecord, rel *release, what string) {
	og := origin{what: what, noLines: true, confidence: High, cap: rec.use.cap, namespace: cmp.Or(rel.Namespace, rec.namespace),
		source: Source{Type: SourceHelm, Release: rec.release, Revision: rec.revision, Object: rec.driver + " " + rec.namespace + "/" + rec.name},
		note:   "in " + what}
	first := len(c.findings)
	c.text(og, []byte(rel.Manifest))
	for i, h := range rel.Hooks {
		hook := og
		hook.source.Hook = cmp.Or(h.Name, h.Path, fmt.Sprintf("hooks[%d]", i))
		hook.source.Path = fmt.Sprintf("hooks[%d]", i)
		c.text(hook, []byte(h.Manifest))
	}
	for i := range c.findings[first:] {
		if f := &c.findings[first+i]; helmFails(*f) {
			f.Message += ": " + rec.use.says
		}
	}
}

// helmFails says whether Helm fails on what was found in a revision: it maps what it deployed to what the cluster serves, and
// knows nothing of fields.
func helmFails(f Finding) bool {
	return f.Source.Type == SourceHelm && (f.Verdict == lifecycle.NotYet || f.Verdict == lifecycle.Removed && f.Rewrite != "")
}
