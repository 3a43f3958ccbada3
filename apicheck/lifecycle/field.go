package lifecycle

import "strings"

// podTemplates leads from the kinds that have a pod in them to it.
var podTemplates = map[groupKind]string{
	{"", "Pod"}:                   "",
	{"", "PodTemplate"}:           "template",
	{"", "ReplicationController"}: "spec template",
	{"apps", "Deployment"}:        "spec template",
	{"apps", "ReplicaSet"}:        "spec template",
	{"apps", "StatefulSet"}:       "spec template",
	{"apps", "DaemonSet"}:         "spec template",
	{"batch", "Job"}:              "spec template",
	{"batch", "CronJob"}:          "spec jobTemplate spec template",
	{"extensions", "Deployment"}:  "spec template",
	{"extensions", "DaemonSet"}:   "spec template",
	{"extensions", "ReplicaSet"}:  "spec template",
}

// PodPath gives the keys that lead from an object of a kind to the pod in it; ok is false when it has none.
func PodPath(group, kind string) (path []string, ok bool) {
	p, ok := podTemplates[groupKind{group, kind}]
	return strings.Fields(p), ok
}

func (db *DB) indexFields() {
	db.fieldsOf = map[groupKind][]*Field{}
	add := func(gk groupKind, f *Field) { db.fieldsOf[gk] = append(db.fieldsOf[gk], f) }
	for i := range db.Fields {
		f := &db.Fields[i]
		for _, in := range f.In {
			if in == "pod" {
				for gk := range podTemplates {
					add(gk, f)
				}
				continue
			}
			kind, group, _ := strings.Cut(in, ".")
			add(groupKind{group, kind}, f)
		}
	}
}

// FieldsOf gives the fields of a kind, in whatever version, that end.
func (db *DB) FieldsOf(group, kind string) []*Field { return db.fieldsOf[groupKind{group, kind}] }

// OfPod says whether the path begins at a pod, not at the object.
func (f *Field) OfPod() bool { return len(f.In) == 1 && f.In[0] == "pod" }

// Name is the path in one word, from the object or the pod in it: spec.volumes[].gitRepo.
func (f *Field) Name() string {
	var b strings.Builder
	for i, key := range f.Path {
		switch {
		case key == "[]":
			b.WriteString(key)
		case strings.ContainsAny(key, "./"):
			b.WriteString("[" + key + "]")
		default:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(key)
		}
	}
	if f.Value != "" {
		b.WriteString("=" + f.Value)
	}
	return b.String()
}

// Judge says what the hops of from..to do to the field: OK when nothing is to be said. Hop is the minor of the change, zero when
// it lies behind already.
func (f *Field) Judge(from, to Minor) (v Verdict, hop Minor) {
	reached := func(m Minor) bool { return m != Minor{} && !before(to, m) }
	behind := func(m Minor) Minor {
		if before(from, m) {
			return m
		}
		return Minor{}
	}
	switch {
	case reached(f.Dead):
		return Removed, behind(f.Dead)
	case reached(f.Off):
		return OffByDefault, behind(f.Off)
	case f.Dead == Minor{} && f.Off == Minor{} && f.Deprecated == Minor{}, reached(f.Deprecated):
		return Deprecated, Minor{}
	}
	return OK, Minor{}
}
