package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
)

//go:embed overrides.yaml
var overridesYAML []byte

// result is what a generation gives: the database, the fields of kinds that replace others, and per minor what it was
// recorded to serve.
type result struct {
	database []byte
	schema   []byte
	served   map[string][]byte
}

// typed is a kind in the newest module that still has its type.
type typed struct {
	pkg  *apiPackage
	kind string
	// first and last are the pinned minors that have the type.
	first, last minor
	config      bool
}

// sources is everything read from the modules.
type sources struct {
	oldest, newest minor
	kinds          map[gvk]*typed
	registered     map[minor]map[gvk]bool // of k8s.io/api, per minor
	served         map[minor]map[gvk]*servedKind
	storage        map[minor]map[[3]string]gvk
	configs        map[minor]map[gvk]bool
	gates          map[minor]map[string][]gateSpec
	openAPI        *openAPI
}

func generate(ctx context.Context) (*result, error) {
	mods, err := download(ctx)
	if err != nil {
		return nil, err
	}
	var ov overrides
	dec := yaml.NewDecoder(bytes.NewReader(overridesYAML))
	dec.KnownFields(true)
	if err := dec.Decode(&ov); err != nil {
		return nil, fmt.Errorf("read overrides.yaml: %w", err)
	}
	src, err := readSources(mods, &ov)
	if err != nil {
		return nil, err
	}
	kinds, err := src.merge(&ov)
	if err != nil {
		return nil, err
	}
	gates, err := src.gateEnds(&ov)
	if err != nil {
		return nil, err
	}
	db := &lifecycle.DB{Schema: lifecycle.Schema, Oldest: src.oldest, Newest: src.newest, Kinds: kinds, Gates: gates, Flags: ov.Flags}
	if db.Fields, err = ov.fields(mods); err != nil {
		return nil, err
	}
	for _, mod := range mods {
		db.Modules = append(db.Modules, lifecycle.Module{Path: mod.path, Version: mod.version, Sum: mod.sum})
		if mod.released.After(db.Date) {
			db.Date = mod.released.UTC()
		}
	}
	for _, f := range db.Flags {
		if f.Evidence == "" || f.Remedy == "" {
			return nil, fmt.Errorf("overrides.yaml: flag %s of %s has no evidence or no remedy", f.Name, f.Component)
		}
	}
	slices.SortFunc(db.Flags, func(a, b lifecycle.Flag) int {
		return cmp.Or(cmp.Compare(a.Component, b.Component), cmp.Compare(a.Name, b.Name))
	})
	res := &result{served: src.record()}
	if res.schema, err = src.openAPI.schema(kinds); err != nil {
		return nil, err
	}
	res.database, err = encode(db)
	return res, err
}

func readSources(mods []module, ov *overrides) (*sources, error) {
	s := &sources{
		kinds:      map[gvk]*typed{},
		registered: map[minor]map[gvk]bool{}, served: map[minor]map[gvk]*servedKind{},
		storage: map[minor]map[[3]string]gvk{}, configs: map[minor]map[gvk]bool{}, gates: map[minor]map[string][]gateSpec{},
	}
	paths := map[minor]map[string]*apiPackage{}
	for _, mod := range mods {
		var root string
		switch mod.path {
		case "k8s.io/api":
			root = mod.dir
		case "k8s.io/apiextensions-apiserver":
			root = filepath.Join(mod.dir, "pkg/apis/apiextensions")
		case "k8s.io/kube-aggregator":
			root = filepath.Join(mod.dir, "pkg/apis/apiregistration")
		default:
			continue
		}
		pkgs, err := readAPIs(root)
		if err != nil {
			return nil, err
		}
		if paths[mod.minor] == nil {
			paths[mod.minor] = map[string]*apiPackage{}
			s.registered[mod.minor] = map[gvk]bool{}
		}
		for _, p := range pkgs {
			if mod.path == "k8s.io/api" {
				paths[mod.minor][p.path] = p
			}
			for _, kind := range p.kinds {
				g := gvk{Group: p.group, Version: p.version, Kind: kind}
				s.registered[mod.minor][g] = true
				t := s.kinds[g]
				if t == nil {
					t = &typed{first: mod.minor}
					s.kinds[g] = t
				}
				// Pins are in order of minors: the newest wins.
				t.pkg, t.kind, t.last = p, kind, mod.minor
			}
		}
	}
	for _, mod := range mods {
		if mod.path != "k8s.io/kubernetes" {
			continue
		}
		served, err := readDiscovery(mod.dir)
		if err != nil {
			return nil, err
		}
		on, err := readEnabled(mod.dir)
		if err != nil {
			return nil, err
		}
		versions, resources := map[[2]string]bool{}, map[[3]string]bool{}
		for path := range on.versions {
			p := paths[mod.minor][path]
			if p == nil {
				return nil, fmt.Errorf("%s switches on %s, which k8s.io/api of that minor does not have", mod.dir, path)
			}
			versions[[2]string{p.group, p.version}] = true
		}
		for path := range on.resources {
			p := paths[mod.minor][filepath.Dir(path)]
			if p == nil {
				return nil, fmt.Errorf("%s switches on %s, which k8s.io/api of that minor does not have", mod.dir, path)
			}
			resources[[3]string{p.group, p.version, filepath.Base(path)}] = true
		}
		for g, k := range served {
			// These two groups are served by their own servers, which have no switch.
			own := g.Group == "apiextensions.k8s.io" || g.Group == "apiregistration.k8s.io"
			k.on = own || versions[[2]string{g.Group, g.Version}] || resources[[3]string{g.Group, g.Version, k.resource}]
		}
		s.served[mod.minor] = served
		if s.storage[mod.minor], err = readStorage(mod.dir); err != nil {
			return nil, err
		}
		if (s.oldest == minor{}) {
			s.oldest = mod.minor
		} else if n, ok := mod.minor.Sub(s.newest); !ok || n != 1 {
			return nil, fmt.Errorf("k8s.io/kubernetes pins are not contiguous: %s after %s", mod.minor, s.newest)
		}
		s.newest = mod.minor
	}
	if err := s.readConfigs(mods, ov); err != nil {
		return nil, err
	}
	var err error
	if s.openAPI, err = readOpenAPI(mods); err != nil {
		return nil, err
	}
	return s, s.readGates(mods)
}

// readConfigs reads which configuration APIs each minor has.
func (s *sources) readConfigs(mods []module, ov *overrides) error {
	for _, c := range ov.Configs {
		found := 0
		for _, mod := range mods {
			if mod.path != c.Module {
				continue
			}
			dirs, err := filepath.Glob(filepath.Join(mod.dir, c.Dir, "v*"))
			if err != nil {
				return err
			}
			for _, dir := range dirs {
				v := filepath.Base(dir)
				if !isVersion(v) {
					continue
				}
				kinds := c.Kinds[v]
				p, err := readPackage(dir)
				if err != nil {
					return err
				}
				if p != nil && len(kinds) == 0 {
					kinds = p.byGroup[c.Group]
				}
				if len(kinds) == 0 && p == nil {
					return fmt.Errorf("%s: no kinds found and none given for %s/%s in overrides.yaml", dir, c.Group, v)
				}
				for _, kind := range kinds {
					g := gvk{Group: c.Group, Version: v, Kind: kind}
					if s.configs[mod.minor] == nil {
						s.configs[mod.minor] = map[gvk]bool{}
					}
					s.configs[mod.minor][g] = true
					t := s.kinds[g]
					if t == nil {
						t = &typed{first: mod.minor, config: true}
						s.kinds[g] = t
					}
					t.pkg, t.kind, t.last = p, kind, mod.minor
					found++
				}
			}
		}
		if found == 0 {
			return fmt.Errorf("overrides.yaml: config %s in %s is in no pinned module", c.Dir, c.Module)
		}
	}
	return nil
}

func (s *sources) merge(ov *overrides) ([]lifecycle.Kind, error) {
	lists := map[gvk]bool{}
	for g := range s.kinds {
		if item, ok := strings.CutSuffix(g.Kind, "List"); ok && s.kinds[gvk{Group: g.Group, Version: g.Version, Kind: item}] != nil {
			lists[g] = true
		}
	}
	byGVK := map[gvk]*lifecycle.Kind{}
	var errs []error
	for g, t := range s.kinds {
		if lists[g] || (g.Group == "" && g.Kind == "List") || strings.HasSuffix(g.Kind, "Options") && g.Group == "" {
			continue
		}
		k, err := s.life(g, t, lists)
		if err != nil {
			errs = append(errs, err)
		}
		byGVK[g] = k
	}
	for _, extra := range ov.Extra {
		g := lifecycle.ParseGVK(extra.APIVersion, extra.Kind)
		if byGVK[g] != nil {
			errs = append(errs, fmt.Errorf("overrides.yaml: extra %s is redundant: the sources have it", g))
			continue
		}
		if extra.Cite == "" {
			errs = append(errs, fmt.Errorf("overrides.yaml: extra %s has no citation", g))
		}
		byGVK[g] = &lifecycle.Kind{Group: g.Group, Version: g.Version, Kind: g.Kind, Class: extra.Class, Removed: extra.Removed, Evidence: []string{extra.Cite}}
		if extra.Removed != (minor{}) {
			byGVK[g].RemovedBasis = lifecycle.Override
		}
	}
	errs = append(errs, ov.apply(byGVK)...)
	for g, k := range byGVK {
		if k.RemovedBasis == "" && k.Removed != (minor{}) {
			errs = append(errs, fmt.Errorf("%s: removal without a basis", g))
		}
		if k.Class == lifecycle.Stored && s.kinds[g] != nil && s.unexplained(g) && k.Removed == (minor{}) {
			errs = append(errs, fmt.Errorf("%s has a type but was served in no observed minor, and nothing says when it was removed: give an override", g))
		}
		s.defaults(k)
		s.undecodable(k)
	}
	s.resources(byGVK)
	errs = append(errs, s.next(byGVK, ov)...)
	errs = append(errs, ov.unused()...)
	errs = append(errs, check(byGVK, s.newest)...)
	out := make([]lifecycle.Kind, 0, len(byGVK))
	for _, k := range byGVK {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b lifecycle.Kind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind), compareVersions(a.Version, b.Version))
	})
	slices.SortFunc(errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return out, errors.Join(errs...)
}

// unexplained says whether no observed minor served g.
func (s *sources) unexplained(g gvk) bool {
	for _, served := range s.served {
		if served[g] != nil {
			return false
		}
	}
	return !s.kinds[g].config
}

// life derives the entry of one kind from the sources alone.
func (s *sources) life(g gvk, t *typed, lists map[gvk]bool) (*lifecycle.Kind, error) {
	k := &lifecycle.Kind{Group: g.Group, Version: g.Version, Kind: g.Kind, Class: lifecycle.Virtual}
	if t.config {
		k.Class = lifecycle.Config
	} else if lists[gvk{Group: g.Group, Version: g.Version, Kind: g.Kind + "List"}] {
		k.Class = lifecycle.Stored
	}
	tags := &life{}
	if t.pkg != nil && t.pkg.lives[g.Kind] != nil {
		tags = t.pkg.lives[g.Kind]
	}
	k.Introduced, k.Deprecated = tags.introduced, tags.deprecated
	if k.Introduced == (minor{}) && t.first.Compare(m(20)) > 0 && !t.config {
		// No tag, and the first pinned minor that has it is not the first pin. Only a type's age is
		// known then, which is the minor that serves it but for types added early.
		k.Introduced = t.first
	}
	var first, last minor // observed
	for n := s.oldest; n.Compare(s.newest) <= 0; n = n.Next() {
		o := s.served[n][g]
		seen := o != nil
		if t.config {
			seen = s.configs[n][g]
		}
		if !seen {
			continue
		}
		if (first == minor{}) {
			first = n
		} else if last.Next() != n {
			return k, fmt.Errorf("%s was served in %s and in %s but not between", g, last, n)
		}
		last = n
		if o != nil {
			k.Resource, k.Namespaced = o.resource, o.namespaced
			// Component statuses can be listed although nothing stores them: the storage table decides.
			_, stored := s.storage[n][[3]string{g.Group, g.Version, o.resource}]
			if stored != (k.Class == lifecycle.Stored) && g.Kind != "ComponentStatus" && (n == s.newest || s.served[n.Next()][g] == nil) {
				return k, fmt.Errorf("%s: class %s by its types, but the storage table of %s says stored=%v", g, k.Class, n, stored)
			}
		}
	}
	if first.Compare(s.oldest) > 0 {
		if k.Introduced == (minor{}) {
			k.Introduced = first
		}
		if tags.introduced != (minor{}) && tags.introduced != first {
			return k, fmt.Errorf("%s: tag says introduced %s, first served in %s", g, tags.introduced, first)
		}
		k.Introduced = first
	}
	switch {
	case last == s.newest:
		if tags.removed != (minor{}) && tags.removed.Compare(s.newest) <= 0 {
			return k, fmt.Errorf("%s: tag says removed %s, but %s serves it", g, tags.removed, s.newest)
		}
		k.Removed = tags.removed
		k.RemovedBasis = basisIf(k.Removed, lifecycle.Planned)
	case last != minor{}:
		k.Removed, k.RemovedBasis = last.Next(), lifecycle.Observed
	default:
		k.Removed = tags.removed
		k.RemovedBasis = basisIf(k.Removed, lifecycle.Tag)
		if gone := t.last.Next(); t.last.Compare(s.newest) < 0 && (k.Removed == minor{} || gone.Compare(k.Removed) < 0) {
			// Between 1.17 and 1.20 no module is to be had, so the minor after 1.17 proves nothing.
			if t.last.Compare(m(17)) > 0 && gone.Compare(s.oldest) <= 0 {
				k.Removed, k.RemovedBasis = gone, lifecycle.Vanished
			}
		}
	}
	if k.Removed != (minor{}) && k.Deprecated.Compare(k.Removed) > 0 {
		k.Deprecated = k.Removed
	}
	return k, nil
}

func basisIf(at minor, b lifecycle.Basis) lifecycle.Basis {
	if at == (minor{}) {
		return ""
	}
	return b
}

// defaults derives from which minor to which the kind is on by default. Before the observed minors
// the policy of KEP 3136 stands in: alphas off, betas on when introduced before 1.24.
func (s *sources) defaults(k *lifecycle.Kind) {
	if k.Class == lifecycle.Config || k.Class == lifecycle.Payload {
		return
	}
	g := k.GVK()
	observed, onAtOldest := false, false
	var on []minor
	for n := s.oldest; n.Compare(s.newest) <= 0; n = n.Next() {
		if o := s.served[n][g]; o != nil {
			observed = true
			if o.on {
				on = append(on, n)
				onAtOldest = onAtOldest || n == s.oldest
			}
		}
	}
	start := max1(k.Introduced, m(0))
	if observed {
		k.OnBasis = lifecycle.Observed
		if len(on) == 0 {
			return
		}
		k.OnFrom, k.OnUntil = on[0], on[len(on)-1].Next()
		if onAtOldest {
			k.OnFrom = start
		}
		if k.OnUntil.Compare(s.newest) > 0 {
			k.OnUntil = minor{}
		}
		return
	}
	k.OnBasis = lifecycle.Rule
	stage := stageOf(k.Version)
	if stage == 0 || stage == 1 && k.Introduced.Compare(m(24)) >= 0 {
		return
	}
	k.OnFrom, k.OnUntil = start, k.Removed
}

func max1(a, b minor) minor {
	if a.Compare(b) > 0 {
		return a
	}
	return minor{Major: 1, Minor: b.Minor}
}

// undecodable finds the minor that lost the Go type which its predecessor stored k in. Only what the
// predecessor also served counts: the storage table keeps left-overs of versions that are gone.
func (s *sources) undecodable(k *lifecycle.Kind) {
	if s.kinds[k.GVK()] == nil || k.Group == "apiextensions.k8s.io" || k.Group == "apiregistration.k8s.io" {
		return
	}
	for n := s.oldest; n.Compare(s.newest) < 0; n = n.Next() {
		for g, o := range s.served[n] {
			stored, ok := s.storage[n][[3]string{g.Group, g.Version, o.resource}]
			if !ok {
				continue
			}
			if stored.Kind == "" {
				stored.Kind = g.Kind
			}
			if stored == k.GVK() && !s.registered[n.Next()][stored] {
				k.Undecodable = n.Next()
			}
		}
	}
}

// next gives every kind that ends its replacements, best first.
func (s *sources) next(byGVK map[gvk]*lifecycle.Kind, ov *overrides) []error {
	var errs []error
	for g, k := range byGVK {
		if k.Class == lifecycle.Payload || k.Deprecated == (minor{}) && k.Removed == (minor{}) {
			continue
		}
		type cand struct {
			gvk
			basis lifecycle.Basis
		}
		var cands []cand
		add := func(to gvk, b lifecycle.Basis) {
			if item, ok := strings.CutSuffix(to.Kind, "List"); ok && byGVK[to] == nil {
				to.Kind = item
			}
			t := byGVK[to]
			if t == nil || to == g || slices.ContainsFunc(cands, func(c cand) bool { return c.gvk == to }) {
				return
			}
			// A successor outlives what it replaces.
			if t.Removed != (minor{}) && (k.Removed == minor{} || t.Removed.Compare(k.Removed) <= 0) {
				return
			}
			cands = append(cands, cand{to, b})
		}
		given, hasGiven := ov.replacement(g)
		switch {
		case hasGiven && given.Kind == "":
			continue
		case hasGiven:
			add(given, lifecycle.Override)
		}
		families := []gvk{g}
		if t := s.kinds[g]; t != nil && t.pkg != nil && t.pkg.lives[g.Kind] != nil && t.pkg.lives[g.Kind].next != nil && !hasGiven {
			to := *t.pkg.lives[g.Kind].next
			add(to, lifecycle.Tag)
			families = append(families, to)
		}
		if hasGiven {
			families = append(families, given)
		}
		for _, f := range families {
			for other := range byGVK {
				if other.Group == f.Group && other.Kind == strings.TrimSuffix(f.Kind, "List") &&
					(f.Group != g.Group || compareVersions(other.Version, g.Version) < 0) {
					add(other, lifecycle.Inferred)
				}
			}
		}
		slices.SortFunc(cands, func(a, b cand) int {
			return cmp.Or(compareVersions(a.Version, b.Version), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Kind, b.Kind))
		})
		if len(cands) == 0 {
			if k.Class == lifecycle.Stored && k.Removed != (minor{}) && k.RemovedBasis != lifecycle.Planned && !hasGiven && !ov.noSuccessor(g) {
				errs = append(errs, fmt.Errorf("%s is removed in %s and has no replacement: say so in overrides.yaml (replacement: none)", g, k.Removed))
			}
			continue
		}
		if hasGiven && byGVK[given] == nil {
			errs = append(errs, fmt.Errorf("overrides.yaml: replacement %s of %s does not exist", given, g))
		}
		for _, c := range cands {
			// The recorded OpenAPI of both knows best; else the structs, whose imported parts are taken as equal.
			derived, ok := s.openAPI.rewrite(g, c.gvk)
			if !ok {
				derived = lifecycle.Structural
			}
			if a, b := s.kinds[g], s.kinds[c.gvk]; !ok && a != nil && b != nil && a.pkg != nil && b.pkg != nil {
				derived = compare(a.pkg, b.pkg, a.kind, b.kind, map[string]bool{})
			}
			rewrite, err := ov.rewrite(g, c.gvk, derived)
			if err != nil {
				errs = append(errs, err)
			}
			k.Next = append(k.Next, lifecycle.Next{GVK: c.gvk, Basis: c.basis, Rewrite: rewrite})
		}
	}
	return errs
}

// resources names the resources of kinds that were gone before discovery was recorded: as the same kind is
// called elsewhere, or by the rule of English that Kubernetes' own plurals follow.
func (s *sources) resources(byGVK map[gvk]*lifecycle.Kind) {
	type named struct {
		resource   string
		namespaced bool
	}
	observed := map[string]named{}
	for _, k := range byGVK {
		if k.Resource != "" {
			observed[k.Kind] = named{k.Resource, k.Namespaced}
		}
	}
	for _, k := range byGVK {
		if k.Resource != "" || k.Class != lifecycle.Stored {
			continue
		}
		if n, ok := observed[k.Kind]; ok {
			k.Resource, k.Namespaced = n.resource, n.namespaced
			continue
		}
		k.Resource = strings.ToLower(k.Kind) + "s"
		switch {
		case strings.HasSuffix(k.Kind, "y"):
			k.Resource = strings.ToLower(strings.TrimSuffix(k.Kind, "y")) + "ies"
		case strings.HasSuffix(k.Kind, "ss"):
			k.Resource = strings.ToLower(k.Kind) + "es"
		case strings.HasSuffix(k.Kind, "ers"):
			k.Resource = strings.ToLower(k.Kind)
		}
	}
}

// check holds what must be true of any database.
func check(byGVK map[gvk]*lifecycle.Kind, newest minor) []error {
	var errs []error
	for g, k := range byGVK {
		if k.Removed != (minor{}) && k.Introduced != (minor{}) && k.Removed.Compare(k.Introduced) <= 0 {
			errs = append(errs, fmt.Errorf("%s: removed in %s but introduced in %s", g, k.Removed, k.Introduced))
		}
		if k.Removed.Compare(newest) > 0 && k.RemovedBasis != lifecycle.Planned {
			errs = append(errs, fmt.Errorf("%s: removal in %s is later than observed, basis %s", g, k.Removed, k.RemovedBasis))
		}
		for _, n := range k.Next {
			if byGVK[n.GVK] == nil {
				errs = append(errs, fmt.Errorf("%s: replacement %s does not exist", g, n.GVK))
			}
		}
	}
	return errs
}

// stageOf is 0 for alpha, 1 for beta, 2 for stable.
func stageOf(v string) int {
	switch {
	case strings.Contains(v, "alpha"):
		return 0
	case strings.Contains(v, "beta"):
		return 1
	}
	return 2
}

// compareVersions orders API versions best first, as Kubernetes does.
func compareVersions(a, b string) int {
	parse := func(v string) (major, stage, n int) {
		stage = stageOf(v)
		fmt.Sscanf(v, "v%d", &major)
		if i := strings.LastIndexAny(v, "ab"); i > 0 && stage < 2 {
			i = strings.IndexAny(v[1:], "ab") + 1
			fmt.Sscanf(strings.TrimLeft(v[i:], "alphbet"), "%d", &n)
		}
		return major, stage, n
	}
	am, as, an := parse(a)
	bm, bs, bn := parse(b)
	return cmp.Or(cmp.Compare(bs, as), cmp.Compare(bm, am), cmp.Compare(bn, an))
}

// record writes what each observed minor serves, a line a kind.
func (s *sources) record() map[string][]byte {
	out := map[string][]byte{}
	for n, served := range s.served {
		var lines []string
		for g, k := range served {
			scope, on := "cluster", "off"
			if k.namespaced {
				scope = "namespaced"
			}
			if k.on {
				on = "on"
			}
			lines = append(lines, fmt.Sprintf("%s %s %s %s %s\n", g.APIVersion(), g.Kind, k.resource, scope, on))
		}
		slices.Sort(lines)
		out[n.String()+".txt"] = []byte("# apiVersion kind resource scope default, as " + n.String() + " serves them\n" + strings.Join(lines, ""))
	}
	return out
}

// encode writes the database with one entry a line, so that a change shows as the lines it is.
func encode(db *lifecycle.DB) ([]byte, error) {
	var b bytes.Buffer
	date, err := json.Marshal(db.Date)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, "{\n\"schema\": %d,\n\"date\": %s,\n\"oldest\": %q,\n\"newest\": %q", db.Schema, date, db.Oldest, db.Newest)
	if err := errors.Join(lines(&b, "modules", db.Modules), lines(&b, "kinds", db.Kinds), lines(&b, "gates", db.Gates), lines(&b, "flags", db.Flags), lines(&b, "fields", db.Fields)); err != nil {
		return nil, err
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}

func lines[T any](b *bytes.Buffer, name string, list []T) error {
	fmt.Fprintf(b, ",\n%q: [", name)
	for i, v := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		data, err := json.Marshal(v)
		if err != nil {
			return err
		}
		b.Write(data)
	}
	b.WriteString("\n]")
	return nil
}
