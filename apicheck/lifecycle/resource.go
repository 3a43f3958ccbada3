package lifecycle

// ByResource gives every version of the kinds that a group calls by a resource name, as "ingresses".
func (db *DB) ByResource(group, resource string) []*Kind {
	return db.byResource[[2]string{group, resource}]
}
