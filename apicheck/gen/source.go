package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/belayops/belay/apicheck/lifecycle"
)

type gvk = lifecycle.GVK

// life is what one module's source says about one kind.
type life struct {
	introduced, deprecated, removed minor
	next                            *gvk
}

// apiPackage is one version directory of an API module.
type apiPackage struct {
	path           string // relative to its module's API root: "storage/v1"
	group, version string
	kinds          []string // registered under group, lists included
	byGroup        map[string][]string
	lives          map[string]*life
	structs        map[string]map[string]string // type -> JSON name -> type expression
}

// readAPIs reads every version directory under root/*/*, or root/* for a single group.
func readAPIs(root string) ([]*apiPackage, error) {
	var dirs []string
	for _, pattern := range []string{"*/register.go", "*/*/register.go"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
	var pkgs []*apiPackage
	for _, f := range dirs {
		p, err := readPackage(filepath.Dir(f))
		if err != nil {
			return nil, err
		}
		if p != nil {
			if p.path, err = filepath.Rel(root, filepath.Dir(f)); err != nil {
				return nil, err
			}
			pkgs = append(pkgs, p)
		}
	}
	return pkgs, nil
}

// readPackage reads one version directory; nil when it registers no external version.
func readPackage(dir string) (*apiPackage, error) {
	p := &apiPackage{version: filepath.Base(dir), lives: map[string]*life{}, structs: map[string]map[string]string{}}
	if !isVersion(p.version) {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	grouped := false
	consts := map[string]string{}    // constant -> string
	groupVars := map[string]string{} // GroupVersion variable -> constant of its group
	known := map[string][]string{}   // GroupVersion variable -> kinds
	for _, name := range files {
		base := filepath.Base(name)
		if strings.HasSuffix(base, "_test.go") || base == "generated.pb.go" || base == "generated.protomessage.pb.go" || strings.HasPrefix(base, "zz_generated.deepcopy") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						if len(s.Names) != 1 || len(s.Values) != 1 {
							continue
						}
						switch v := s.Values[0].(type) {
						case *ast.BasicLit:
							if v.Kind == token.STRING {
								consts[s.Names[0].Name] = mustUnquote(v.Value)
							}
						case *ast.CompositeLit:
							for _, e := range v.Elts {
								if kv, ok := e.(*ast.KeyValueExpr); ok && typeString(kv.Key) == "Group" {
									groupVars[s.Names[0].Name] = typeString(kv.Value)
								}
							}
						}
					case *ast.TypeSpec:
						p.addStruct(s)
					}
				}
			case *ast.FuncDecl:
				if d.Recv != nil {
					if err := p.addLife(d); err != nil {
						return nil, fmt.Errorf("%s: %w", name, err)
					}
					continue
				}
				addKnownTypes(d, known)
			}
		}
	}
	p.group, grouped = consts["GroupName"]
	p.byGroup = map[string][]string{}
	for v, kinds := range known {
		group, ok := consts[groupVars[v]]
		if !ok {
			return nil, fmt.Errorf("%s: registers types under %s, whose group cannot be read", dir, v)
		}
		p.byGroup[group] = append(p.byGroup[group], kinds...)
	}
	p.kinds = p.byGroup[p.group]
	if !grouped || len(known) == 0 {
		return nil, nil
	}
	return p, nil
}

func isVersion(s string) bool { return len(s) > 1 && s[0] == 'v' && s[1] >= '0' && s[1] <= '9' }

func mustUnquote(s string) string {
	u, err := strconv.Unquote(s)
	if err != nil {
		return ""
	}
	return u
}

// addKnownTypes collects the kinds of AddKnownTypes calls by their first argument.
func addKnownTypes(d ast.Node, known map[string][]string) {
	ast.Inspect(d, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "AddKnownTypes" {
			return true
		}
		under := typeString(call.Args[0])
		for _, a := range call.Args[1:] {
			u, ok := a.(*ast.UnaryExpr)
			if !ok {
				continue
			}
			lit, ok := u.X.(*ast.CompositeLit)
			if !ok {
				continue
			}
			// Types of other packages (metav1.Status) are not this group's kinds.
			if id, ok := lit.Type.(*ast.Ident); ok {
				known[under] = append(known[under], id.Name)
			}
		}
		return true
	})
}

func (p *apiPackage) addLife(d *ast.FuncDecl) error {
	what, ok := strings.CutPrefix(d.Name.Name, "APILifecycle")
	if !ok {
		return nil
	}
	recv := d.Recv.List[0].Type
	if s, ok := recv.(*ast.StarExpr); ok {
		recv = s.X
	}
	id, ok := recv.(*ast.Ident)
	if !ok || len(d.Body.List) != 1 {
		return fmt.Errorf("%s has a shape that this generator does not know", d.Name.Name)
	}
	ret, ok := d.Body.List[0].(*ast.ReturnStmt)
	if !ok {
		return fmt.Errorf("%s does not just return", d.Name.Name)
	}
	l := p.lives[id.Name]
	if l == nil {
		l = &life{}
		p.lives[id.Name] = l
	}
	if what == "Replacement" {
		lit, ok := ret.Results[0].(*ast.CompositeLit)
		if !ok {
			return fmt.Errorf("%s does not return a literal", d.Name.Name)
		}
		var g gvk
		for _, e := range lit.Elts {
			kv := e.(*ast.KeyValueExpr)
			v := mustUnquote(kv.Value.(*ast.BasicLit).Value)
			switch kv.Key.(*ast.Ident).Name {
			case "Group":
				g.Group = v
			case "Version":
				g.Version = v
			case "Kind":
				g.Kind = v
			}
		}
		l.next = &g
		return nil
	}
	var n [2]int
	for i, r := range ret.Results {
		lit, ok := r.(*ast.BasicLit)
		if !ok || i > 1 {
			return fmt.Errorf("%s does not return two numbers", d.Name.Name)
		}
		v, err := strconv.Atoi(lit.Value)
		if err != nil {
			return err
		}
		n[i] = v
	}
	at := minor{Major: n[0], Minor: n[1]}
	switch what {
	case "Introduced":
		l.introduced = at
	case "Deprecated":
		l.deprecated = at
	case "Removed":
		l.removed = at
	default:
		return fmt.Errorf("%s is a lifecycle method that this generator does not know", d.Name.Name)
	}
	return nil
}

// addStruct records a struct's fields by JSON name; an embedded one by its type with a plus sign.
func (p *apiPackage) addStruct(s *ast.TypeSpec) {
	st, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	fields := map[string]string{}
	for _, f := range st.Fields.List {
		typ := typeString(f.Type)
		if f.Tag == nil {
			continue
		}
		name, opts, _ := strings.Cut(reflect.StructTag(mustUnquote(f.Tag.Value)).Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" || strings.Contains(opts, "inline") {
			name = "+" + typ
		}
		fields[name] = typ
	}
	p.structs[s.Name.Name] = fields
}

func typeString(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		// A pointer and a value are the same JSON.
		return typeString(e.X)
	case *ast.ArrayType:
		return "[]" + typeString(e.Elt)
	case *ast.MapType:
		return "map[" + typeString(e.Key) + "]" + typeString(e.Value)
	case *ast.SelectorExpr:
		// By its own name: packages borrow one another's types under other paths.
		return e.Sel.Name
	default:
		return fmt.Sprintf("%T", e)
	}
}

// compare says what it takes to turn JSON of a's type into one of b's, by structure alone.
func compare(a, b *apiPackage, ta, tb string, seen map[string]bool) lifecycle.Rewrite {
	key := ta + " " + tb
	if seen[key] {
		return lifecycle.Bump
	}
	seen[key] = true
	for strings.HasPrefix(ta, "[]") && strings.HasPrefix(tb, "[]") {
		ta, tb = ta[2:], tb[2:]
	}
	if strings.HasPrefix(ta, "map[") && strings.HasPrefix(tb, "map[") {
		ta, tb = ta[strings.Index(ta, "]")+1:], tb[strings.Index(tb, "]")+1:]
	}
	fa, okA := a.structs[ta]
	fb, okB := b.structs[tb]
	switch {
	case okA && okB:
	case ta == tb:
		return lifecycle.Bump
	// Named strings and numbers of one package stand against plain ones of the other.
	case !okA && !okB && !strings.ContainsAny(ta+tb, "[]"):
		return lifecycle.Bump
	default:
		return lifecycle.Structural
	}
	for name, t := range fa {
		u, ok := fb[name]
		if !ok {
			return lifecycle.Structural
		}
		// What status holds is written by the cluster, never moved by hand.
		if name == "status" {
			continue
		}
		if compare(a, b, t, u, seen) != lifecycle.Bump {
			return lifecycle.Structural
		}
	}
	return lifecycle.Bump
}

// servedKind is one line of a minor's recorded discovery.
type servedKind struct {
	gvk
	resource   string
	namespaced bool
	// listable says whether objects of it can be listed, that is: are stored.
	listable bool
	on       bool
}

// readDiscovery reads what a minor serves with every API on.
func readDiscovery(dir string) (map[gvk]*servedKind, error) {
	files, err := filepath.Glob(filepath.Join(dir, "api", "discovery", "api*__v*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) < 30 {
		return nil, fmt.Errorf("%s has %d discovery files, expected 30 or more", dir, len(files))
	}
	out := map[gvk]*servedKind{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var list struct {
			GroupVersion string
			Resources    []struct {
				Name, Kind, Group, Version string
				Namespaced                 bool
				Verbs                      []string
			}
		}
		if err := json.Unmarshal(data, &list); err != nil {
			return nil, fmt.Errorf("parse %s: %w", f, err)
		}
		gv := lifecycle.ParseGVK(list.GroupVersion, "")
		for _, r := range list.Resources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			k := &servedKind{gvk: gvk{Group: gv.Group, Version: gv.Version, Kind: r.Kind}, resource: r.Name, namespaced: r.Namespaced}
			for _, v := range r.Verbs {
				k.listable = k.listable || v == "list"
			}
			out[k.gvk] = k
		}
	}
	return out, nil
}

// enabled is what instance.go switches on by default.
type enabled struct {
	versions  map[string]bool // import path under k8s.io/api, as "storage/v1"
	resources map[string]bool // the same, with "/" and the resource
}

func readEnabled(dir string) (*enabled, error) {
	name := filepath.Join(dir, "pkg/controlplane/instance.go")
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	imports := map[string]string{}
	for _, im := range f.Imports {
		path := mustUnquote(im.Path.Value)
		alias := filepath.Base(path)
		if im.Name != nil {
			alias = im.Name.Name
		}
		for _, root := range []string{"k8s.io/api/", "k8s.io/kubernetes/pkg/apis/"} {
			if rest, ok := strings.CutPrefix(path, root); ok {
				imports[alias] = rest
			}
		}
	}
	e := &enabled{map[string]bool{}, map[string]bool{}}
	var badExpr error
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok || len(v.Names) != 1 || len(v.Values) != 1 || !strings.Contains(v.Names[0].Name, "EnabledByDefault") {
				continue
			}
			lit, ok := v.Values[0].(*ast.CompositeLit)
			if !ok {
				continue
			}
			for _, el := range lit.Elts {
				resource := ""
				if call, ok := el.(*ast.CallExpr); ok {
					resource = mustUnquote(call.Args[0].(*ast.BasicLit).Value)
					el = call.Fun.(*ast.SelectorExpr).X
				}
				sel, ok := el.(*ast.SelectorExpr)
				if !ok || sel.Sel.Name != "SchemeGroupVersion" {
					badExpr = fmt.Errorf("%s: %s holds an element that this generator does not know", name, v.Names[0].Name)
					continue
				}
				path, ok := imports[sel.X.(*ast.Ident).Name]
				if !ok {
					badExpr = fmt.Errorf("%s: no import for %v", name, sel.X)
				}
				if resource != "" {
					e.resources[path+"/"+resource] = true
				} else {
					e.versions[path] = true
				}
			}
		}
	}
	if badExpr == nil && len(e.versions) < 15 {
		badExpr = fmt.Errorf("%s: found %d versions that are on by default, expected 15 or more", name, len(e.versions))
	}
	return e, badExpr
}

// readStorage gives the version that each served resource is stored in, by group/version/resource.
func readStorage(dir string) (map[[3]string]gvk, error) {
	name := filepath.Join(dir, "test/integration/etcd/data.go")
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	strs := func(e ast.Expr, fun string) (s [3]string, ok bool) {
		call, isCall := e.(*ast.CallExpr)
		if !isCall || len(call.Args) != 3 {
			return s, false
		}
		if id, isID := call.Fun.(*ast.Ident); !isID || id.Name != fun {
			return s, false
		}
		for i, a := range call.Args {
			lit, isLit := a.(*ast.BasicLit)
			if !isLit {
				return s, false
			}
			s[i] = mustUnquote(lit.Value)
		}
		return s, true
	}
	out := map[[3]string]gvk{}
	ast.Inspect(f, func(n ast.Node) bool {
		kv, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		key, ok := strs(kv.Key, "gvr")
		if !ok {
			return true
		}
		stored := gvk{Group: key[0], Version: key[1]} // its own version; the kind is discovery's
		if lit, ok := kv.Value.(*ast.CompositeLit); ok {
			for _, e := range lit.Elts {
				f, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				if id, ok := f.Key.(*ast.Ident); ok && id.Name == "ExpectedGVK" {
					if g, ok := strs(f.Value, "gvkP"); ok {
						stored = gvk{Group: g[0], Version: g[1], Kind: g[2]}
					}
				}
			}
		}
		out[key] = stored
		return true
	})
	if len(out) < 40 {
		return nil, fmt.Errorf("%s: found %d stored resources, expected 40 or more", name, len(out))
	}
	return out, nil
}
