package lifecycle

// ByResource gives every version of the kinds that a group calls by a resource name, as "ingresses".
func (db *DB) ByResource(group, resource string) []*Kind {
	return db.byResource[[2]string{group, resource}]
}

// InGroup gives every stored kind of a group that the database knows, in the order of the file.
func (db *DB) InGroup(group string) []*Kind {
	var out []*Kind
	for i := range db.Kinds {
		if db.Kinds[i].Group == group && db.Kinds[i].Class == Stored {
			out = append(out, &db.Kinds[i])
		}
	}
	return out
}
