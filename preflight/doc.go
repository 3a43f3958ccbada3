// Package preflight judges whether a cluster may be upgraded: a registry of
// checks over an observed state and a goal, run in parallel, each with findings
// that name what was seen and what to do about it.
//
// What could not be read is a finding as well, and stands in the way as a failure does. A finding
// goes away by mending the cluster or by a waiver that names exactly it; there is no way to turn all off.
package preflight
