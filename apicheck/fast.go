package apicheck

import (
	"bytes"
	"strings"
	"sync"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// fast says whether a document surely is well-formed and surely gives neither a finding nor a gap. Everything that it
// does not understand at once it leaves to the parser, which is slower by an order of magnitude; most manifests are of
// the simple YAML that it understands. A test holds both ways against each other.
func (c *collector) fast(text []byte) bool {
	s := shape{watch: c.names.watched(c.db)}
	if !s.read(text) {
		return false
	}
	if len(s.apiVersion) == 0 || len(s.kind) == 0 {
		// No object, unless one whose name the parser has to look at.
		return !bytes.Contains(text, []byte("apiVersion")) && !bytes.Contains(text, []byte("kind"))
	}
	return c.names.object(c.judge, &s, text)
}

// shape recognizes a conservative part of YAML: block mappings and sequences, plain and quoted scalars on one line, plain
// scalars over several, block scalars, and simple flow collections on one line. No anchors, tags, merges, tabs or escapes.
type shape struct {
	apiVersion, kind []byte
	hasData          bool // data or stringData stands at the top level
	naming           bool // the line before gave apiVersion or kind

	watch  *watched
	seen   bool // a watched key stands somewhere
	valued bool // a common key of which one value is watched does

	stack [64]level
	depth int
}

type level struct {
	indent int
	seq    bool
}

// Byte classes.
const (
	keyByte   = 1 << iota // may be part of a plain key
	badByte               // never outside of what the parser reads
	highByte              // part of a longer UTF-8 sequence
	textStart             // may begin a further line of a plain scalar
	plainByte             // may be part of a plain scalar in a flow collection
)

var class = func() (t [256]byte) {
	for b := range 256 {
		switch {
		case b >= '0' && b <= '9', b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z':
			t[b] = keyByte | textStart | plainByte
		case b == '_' || b == '.' || b == '/':
			t[b] = keyByte | textStart | plainByte
		case b == '-':
			t[b] = keyByte | plainByte
		case b == '(' || b == '<' || b == '=' || b == '$':
			t[b] = textStart
		case b < 0x20 && b != '\n' && b != '\r', b == 0x7f:
			t[b] = badByte
		case b >= 0x80:
			t[b] = highByte
		}
	}
	return t
}()

// odd says whether a line holds a byte that only the parser can judge: controls, tabs, and the characters beyond ASCII
// that YAML forbids or takes for line breaks.
func odd(line []byte) bool {
	for i, b := range line {
		k := class[b]
		if k&(badByte|highByte) == 0 {
			continue
		}
		if k&badByte != 0 || b == 0xef {
			return true
		}
		if i+1 < len(line) && (b == 0xc2 && line[i+1] < 0xa0 || b == 0xe2 && line[i+1] == 0x80 && (i+2 >= len(line) || line[i+2]&0xfe == 0xa8)) {
			return true
		}
	}
	return false
}

// What the line before left open.
type open int

const (
	nothing open = iota
	pending      // a key or dash without a value: a deeper block may follow
	plainly      // a plain scalar: deeper lines go on with it
)

func (s *shape) read(text []byte) bool {
	state := nothing
	scalarParent, scalarIndent := -1, -1 // of a block scalar; -1: in none; scalarIndent -1: not seen yet
	inScalar := false
	blankMax := 0
	first := true
	for len(text) > 0 {
		var line []byte
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			line, text = text, nil
		}
		if n := len(line); n > 0 && line[n-1] == '\r' {
			line = line[:n-1]
		}
		if first {
			first = false
			if len(line) >= 3 && line[0] == '-' && line[1] == '-' && line[2] == '-' {
				if rest := bytes.TrimLeft(line[3:], " "); len(rest) > 0 && (rest[0] != '#' || odd(rest)) {
					return false
				}
				continue
			}
		}
		indent := 0
		for indent < len(line) && line[indent] == ' ' {
			indent++
		}
		if inScalar {
			if indent == len(line) { // blank
				blankMax = max(blankMax, indent)
				continue
			}
			if scalarIndent < 0 && indent > scalarParent {
				if blankMax > indent {
					return false
				}
				scalarIndent = indent
			}
			if scalarIndent >= 0 && indent >= scalarIndent {
				if oddInScalar(line[indent:]) {
					return false
				}
				continue
			}
			if indent > scalarParent {
				return false
			}
			inScalar, state = false, nothing
		}
		if indent == len(line) {
			continue
		}
		if odd(line) || bytes.IndexByte(line, '\r') >= 0 {
			return false
		}
		if line[indent] == '#' {
			if state == plainly {
				state = nothing
			}
			continue
		}
		if state == plainly && indent > s.top() {
			if s.naming {
				return false
			}
			more, ok := continuation(line[indent:])
			if !ok {
				return false
			}
			if !more {
				state = nothing
			}
			continue
		}
		var ok, scalar bool
		if state, scalar, ok = s.line(line, indent, state); !ok {
			return false
		}
		if scalar {
			inScalar, scalarParent, scalarIndent, blankMax = true, s.top(), -1, 0
		}
	}
	return true
}

// oddInScalar is odd for the content of block scalars, which may hold tabs.
func oddInScalar(line []byte) bool {
	for i, b := range line {
		k := class[b]
		if k&(badByte|highByte) == 0 {
			continue
		}
		if k&badByte != 0 && b != '\t' || b == 0xef {
			return true
		}
		if i+1 < len(line) && (b == 0xc2 && line[i+1] < 0xa0 || b == 0xe2 && line[i+1] == 0x80 && (i+2 >= len(line) || line[i+2]&0xfe == 0xa8)) {
			return true
		}
	}
	return bytes.IndexByte(line, '\r') >= 0
}

func (s *shape) top() int {
	if s.depth == 0 {
		return -1
	}
	return s.stack[s.depth-1].indent
}

func (s *shape) push(indent int, seq bool) bool {
	if s.depth == len(s.stack) {
		return false
	}
	s.stack[s.depth] = level{indent, seq}
	s.depth++
	return true
}

// line reads one line of structure. blockScalar says that the lines below belong to a block scalar.
func (s *shape) line(line []byte, col int, state open) (next open, blockScalar, ok bool) {
	popped := false
	for s.top() > col {
		s.depth--
		popped = true
	}
	expected := state == pending && !popped // the block that the line before announced
	for {
		rest := line[col:]
		dash := rest[0] == '-' && (len(rest) == 1 || rest[1] == ' ')
		if dash {
			switch {
			case s.depth > 0 && s.top() == col && s.stack[s.depth-1].seq:
			case expected && s.top() < col, expected && s.top() == col && s.depth > 0 && !s.stack[s.depth-1].seq:
				if s.depth == 0 || !s.push(col, true) {
					return nothing, false, false // a sequence at the top is no object
				}
			default:
				return nothing, false, false
			}
			i := 1
			for i < len(rest) && rest[i] == ' ' {
				i++
			}
			if i == len(rest) || rest[i] == '#' {
				return pending, false, true
			}
			col += i
			expected = true
			if rest[i] == '-' && (i+1 == len(rest) || rest[i+1] == ' ') {
				continue
			}
			if key, _ := splitKey(line[col:]); key == nil {
				return s.value(line[col:])
			}
		}
		break
	}
	key, after := splitKey(line[col:])
	if key == nil {
		return nothing, false, false
	}
	if s.depth > 1 && s.top() == col && s.stack[s.depth-1].seq && s.stack[s.depth-2].indent == col {
		s.depth-- // a sequence as deep as the mapping that holds it ends with the next key
	}
	switch {
	case s.depth > 0 && s.top() == col && !s.stack[s.depth-1].seq:
	case s.depth == 0 && col == 0, expected && s.top() < col:
		if !s.push(col, false) {
			return nothing, false, false
		}
	default:
		return nothing, false, false
	}
	rest := line[col+after:]
	for len(rest) > 0 && rest[0] == ' ' {
		rest = rest[1:]
	}
	s.naming = false
	s.note(key)
	if s.depth == 1 {
		switch string(key) {
		case "apiVersion":
			s.naming = true
			if s.apiVersion != nil {
				return nothing, false, false
			}
			if s.apiVersion = name(rest); s.apiVersion == nil {
				return nothing, false, false
			}
		case "kind":
			s.naming = true
			if s.kind != nil {
				return nothing, false, false
			}
			if s.kind = name(rest); s.kind == nil {
				return nothing, false, false
			}
		case "data", "stringData":
			s.hasData = true
		}
	}
	if len(rest) == 0 || rest[0] == '#' {
		return pending, false, true
	}
	return s.value(rest)
}

// note remembers that a watched key was seen.
func (s *shape) note(key []byte) {
	if s.watch.key(key) {
		s.seen = true
	}
	if len(key) > 2 && key[len(key)-1] == 'y' && commonKeys[string(key)] {
		s.valued = true
	}
}

// name gives a plain or quoted name that stands alone on its line; nil for anything else.
func name(v []byte) []byte {
	if i := bytes.Index(v, []byte(" #")); i >= 0 {
		v = v[:i]
	}
	v = bytes.TrimRight(v, " ")
	if len(v) > 2 && (v[0] == '"' || v[0] == '\'') && v[len(v)-1] == v[0] {
		v = v[1 : len(v)-1]
	}
	for _, b := range v {
		if class[b]&keyByte == 0 {
			return nil
		}
	}
	switch string(v) {
	case "", "null", "Null", "NULL":
		return nil
	}
	if v[0] == '-' {
		return nil
	}
	return v
}

// splitKey gives the key that a text begins with, and where the text goes on after its colon; nil when it begins with none.
func splitKey(t []byte) (key []byte, after int) {
	if t[0] == '"' || t[0] == '\'' {
		i := bytes.IndexByte(t[1:], t[0])
		if i <= 0 || i > 500 || i+2 >= len(t) || t[i+2] != ':' || (i+3 < len(t) && t[i+3] != ' ') {
			return nil, 0
		}
		if bytes.IndexByte(t[1:i+1], '\\') >= 0 {
			return nil, 0
		}
		return t[1 : i+1], i + 3
	}
	i := 0
	for i < len(t) && class[t[i]]&keyByte != 0 {
		i++
	}
	if i == 0 || i > 500 || i >= len(t) || t[i] != ':' || (i+1 < len(t) && t[i+1] != ' ') {
		return nil, 0
	}
	if t[0] == '-' && i == 1 {
		return nil, 0
	}
	return t[:i], i + 1
}

// value reads what stands behind a key or dash.
func (s *shape) value(v []byte) (next open, blockScalar, ok bool) {
	switch v[0] {
	case '|', '>':
		i := 1
		if i < len(v) && (v[i] == '-' || v[i] == '+') {
			i++
		}
		rest := bytes.TrimLeft(v[i:], " ")
		if len(rest) > 0 && (rest[0] != '#' || v[i] != ' ') {
			return nothing, false, false
		}
		return nothing, true, true
	case '"', '\'':
		i := 1
		for i < len(v) {
			if v[i] == '\\' && v[0] == '"' {
				return nothing, false, false
			}
			if v[i] == v[0] {
				if v[0] == '\'' && i+1 < len(v) && v[i+1] == '\'' {
					i += 2
					continue
				}
				break
			}
			i++
		}
		return nothing, false, i < len(v) && ended(v[i+1:])
	case '[', '{':
		n := s.flow(v, 0)
		return nothing, false, n > 0 && ended(v[n:])
	case '&', '*', '!', '%', '@', '`', '?', ':', ',', ']', '}', '#':
		return nothing, false, false
	case '-':
		if len(v) == 1 || v[1] == ' ' {
			return nothing, false, false
		}
	}
	more, ok := continuation1(v)
	if !more {
		return nothing, false, ok
	}
	return plainly, false, ok
}

// ended says whether nothing but space and comment is left of a line.
func ended(rest []byte) bool {
	t := bytes.TrimLeft(rest, " ")
	return len(t) == 0 || t[0] == '#' && len(t) < len(rest)
}

// continuation reads a further line of a plain scalar; more is false when a comment ends it.
func continuation(v []byte) (more, ok bool) {
	if class[v[0]]&textStart == 0 {
		return false, false
	}
	return continuation1(v)
}

func continuation1(v []byte) (more, ok bool) {
	for i := 0; i < len(v); {
		j := bytes.IndexByte(v[i:], ':')
		if j < 0 {
			break
		}
		i += j + 1
		if i == len(v) || v[i] == ' ' {
			return false, false
		}
	}
	for i := 1; i < len(v); {
		j := bytes.IndexByte(v[i:], '#')
		if j < 0 {
			break
		}
		i += j
		if v[i-1] == ' ' {
			return false, true
		}
		i++
	}
	return true, true
}

// flow reads a simple flow collection on one line and gives its length; 0 for what it does not understand.
func (s *shape) flow(v []byte, depth int) int {
	if depth > 8 {
		return 0
	}
	end := byte(']')
	if v[0] == '{' {
		end = '}'
	}
	i := 1
	skip := func() {
		for i < len(v) && v[i] == ' ' {
			i++
		}
	}
	element := func() bool {
		if i >= len(v) {
			return false
		}
		switch v[i] {
		case '[', '{':
			n := s.flow(v[i:], depth+1)
			i += n
			return n > 0
		case '"', '\'':
			j := bytes.IndexByte(v[i+1:], v[i])
			if j < 0 || bytes.IndexByte(v[i:i+j+1], '\\') >= 0 {
				return false
			}
			i += j + 2
			return i >= len(v) || v[i] != '\'' // '' within
		}
		start := i
		for i < len(v) && class[v[i]]&plainByte != 0 {
			i++
		}
		return i > start && (v[start] != '-' || i > start+1)
	}
	for {
		skip()
		if i < len(v) && v[i] == end {
			return i + 1
		}
		start := i
		if !element() {
			return 0
		}
		if end == '}' {
			if i+1 >= len(v) || v[i] != ':' || v[i+1] != ' ' {
				return 0
			}
			s.note(bytes.Trim(v[start:i], `"'`))
			i++
			skip()
			if !element() {
				return 0
			}
		}
		skip()
		switch {
		case i >= len(v):
			return 0
		case v[i] == ',':
			i++
			if i < len(v) && v[i] != ' ' {
				return 0
			}
		case v[i] != end:
			return 0
		}
	}
}

// harmless remembers which names can be passed over. It is shared by the readers of a scan.
type harmlessNames struct {
	objects sync.Map // apiVersion NUL kind -> bool
	refs    sync.Map // apiVersion -> bool
	watch   sync.Once
	keys    *watched
	once    sync.Once
	gone    [][2][]byte // group and resource that nothing serves at the target
}

func (h *harmlessNames) watched(db *lifecycle.DB) *watched {
	h.watch.Do(func() { h.keys = watch(db) })
	return h.keys
}

// object says whether an object of the shape, with this text, gives no finding.
func (h *harmlessNames) object(j *judge, s *shape, text []byte) bool {
	if !h.kind(j, s.apiVersion, s.kind) {
		return false
	}
	if (s.seen || s.valued && h.keys.value(text)) && h.hasFields(j, s) {
		return false
	}
	mentions := bytes.Count(text, []byte("apiVersion"))
	group, _, grouped := bytes.Cut(s.apiVersion, []byte("/"))
	if !grouped {
		switch string(s.kind) {
		case "Secret":
			return !s.hasData
		case "ConfigMap":
			return mentions == 1
		case "Pod":
			for _, name := range components {
				if bytes.Contains(text, []byte(name)) {
					return false
				}
			}
		}
	}
	switch string(group) {
	case "rbac.authorization.k8s.io", "audit.k8s.io", "apiserver.config.k8s.io":
		if grouped && h.mentionsGone(j, text) {
			return false
		}
	case "apiextensions.k8s.io":
		if bytes.Contains(text, []byte("deprecated:")) || bytes.Contains(text, []byte("storedVersions")) || bytes.Contains(text, []byte("deprecated\"")) || bytes.Contains(text, []byte("deprecated'")) {
			return false
		}
	case "admissionregistration.k8s.io", "kustomize.config.k8s.io", "kyverno.io", "constraints.gatekeeper.sh",
		"kubelet.config.k8s.io", "kubeproxy.config.k8s.io", "kubeadm.k8s.io":
		return false
	}
	if mentions > 1 {
		return h.references(j, text)
	}
	return true
}

// hasFields says whether a kind has fields that end.
func (h *harmlessNames) hasFields(j *judge, s *shape) bool {
	g := lifecycle.ParseGVK(string(s.apiVersion), string(s.kind))
	return len(j.db.FieldsOf(g.Group, g.Kind)) > 0
}

// kind says whether an object is nothing to report, and no list of others.
func (h *harmlessNames) kind(j *judge, apiVersion, kind []byte) bool {
	// The compiler does not make a string of the key for a lookup of a plain map; sync.Map needs one.
	key := string(apiVersion) + "\x00" + string(kind)
	if v, ok := h.objects.Load(key); ok {
		return v.(bool)
	}
	ok := false
	if !strings.HasSuffix(string(kind), "List") {
		switch j.verdictOf(lifecycle.ParseGVK(string(apiVersion), string(kind)), false).Verdict {
		case lifecycle.OK, lifecycle.VirtualKind, lifecycle.Custom:
			ok = true
		}
	}
	h.objects.Store(key, ok)
	return ok
}

// references says whether every apiVersion in a text is one that can be named without harm.
func (h *harmlessNames) references(j *judge, text []byte) bool {
	for {
		i := bytes.Index(text, []byte("apiVersion"))
		if i < 0 {
			return true
		}
		text = text[i+len("apiVersion"):]
		if len(text) > 0 && (text[0] == '"' || text[0] == '\'') {
			text = text[1:]
		}
		if len(text) < 2 || text[0] != ':' || text[1] != ' ' {
			return false
		}
		v := bytes.TrimLeft(text[1:], " ")
		if len(v) > 0 && (v[0] == '"' || v[0] == '\'') {
			v = v[1:]
		}
		n := 0
		for n < len(v) && class[v[n]]&keyByte != 0 {
			n++
		}
		if n == 0 || !h.reference(j, v[:n]) {
			return false
		}
	}
}

func (h *harmlessNames) reference(j *judge, apiVersion []byte) bool {
	if v, ok := h.refs.Load(string(apiVersion)); ok {
		return v.(bool)
	}
	g := lifecycle.ParseGVK(string(apiVersion), "")
	ok := true
	known := !j.db.Builtin(g.Group)
	for i := range j.db.Kinds {
		k := &j.db.Kinds[i]
		if k.Group != g.Group {
			continue
		}
		if k.Version == g.Version {
			known = true
			switch j.verdictOf(k.GVK(), false).Verdict {
			case lifecycle.Removed, lifecycle.PlannedRemoval, lifecycle.NotYet:
				ok = false
			}
		}
		// A scale target is looked up by group and kind: one that left the group counts whatever the version.
		if j.groupKindGone(k.Group, k.Kind) {
			ok = false
		}
	}
	ok = ok && known
	h.refs.Store(string(apiVersion), ok)
	return ok
}

// mentionsGone says whether a text names both group and resource of something that nothing serves any more.
func (h *harmlessNames) mentionsGone(j *judge, text []byte) bool {
	h.once.Do(func() {
		seen := map[[2]string]bool{}
		for i := range j.db.Kinds {
			k := &j.db.Kinds[i]
			gr := [2]string{k.Group, k.Resource}
			if k.Resource == "" || seen[gr] || !gone(j.db.ByResource(k.Group, k.Resource), j.to) {
				continue
			}
			seen[gr] = true
			h.gone = append(h.gone, [2][]byte{[]byte(k.Group), []byte(k.Resource)})
		}
		for i := range j.db.Kinds {
			g := [2]string{j.db.Kinds[i].Group, "*"}
			if !seen[g] && gone(j.db.InGroup(g[0]), j.to) {
				h.gone = append(h.gone, [2][]byte{[]byte(g[0]), []byte(g[1])})
			}
			seen[g] = true
		}
	})
	for _, gr := range h.gone {
		if bytes.Contains(text, gr[1]) && bytes.Contains(text, gr[0]) {
			return true
		}
	}
	return false
}
