// Package kubeadm holds what belay knows of kubeadm, in one place: argument
// vectors, configuration documents per version, and how its output reads.
//
// It is pure: it runs nothing and reads no file; callers carry its argument
// vectors to a host. provision (init, join) and executor (upgrade) share it.
package kubeadm
