// Package inspect observes a live cluster and gives it as a cluster.State: the
// API's objects, etcd's own answers, and what each machine says of itself.
//
// It changes nothing and keeps no Secret data: private keys that etcd asks for stay in memory and only
// for as long as the connection lasts. What could not be read is listed in State.Unread with a kind and a
// reason, so that nobody takes it for absent.
package inspect
