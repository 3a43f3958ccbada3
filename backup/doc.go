// Package backup writes, verifies, compares and restores backups of a cluster:
// an etcd snapshot, every API object, the volume mount map, Helm releases, and
// the files of each control plane node, in one directory with a manifest.
//
// A backup is worth what was proved of it. It carries a Level (copied,
// hash-verified, opened, restored), each level includes those below, and the
// gate before an upgrade asks for one by name. The manifest is written last, in
// a directory that gets its name last: what a kill leaves is called NAME.partial.
//
// Verify decides from the files alone; Create and Restore take access to hosts
// and the API from their caller. Nothing here prints.
package backup
