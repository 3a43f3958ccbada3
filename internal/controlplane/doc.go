// Package controlplane runs etcd and kube-apiserver as plain processes of the
// current user: no root, no containers, nothing listening beyond 127.0.0.1.
// It exists to look at a backup, or to rehearse on one, with the very programs
// that would read it for real. Both servers ask for client certificates of a
// throwaway CA, because what they serve may be a production cluster's Secrets.
package controlplane
