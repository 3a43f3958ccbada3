// Package plan decides how a cluster gets from one version to another: which
// steps, in which order, behind which gates, as a file that people can review
// and the executor carries out. It is pure and deterministic: the same state,
// goal and policy give the same bytes.
//
// Every prefix of a plan is a legal cluster. Build holds each prefix against
// the version skew policy and etcd's quorum before it gives a plan out, and
// simulates every drain, so that a node that would hang is named beforehand.
package plan
