// Package rules holds the rules of this repository as tests: who may import
// whom, what every package must say of itself, what must not appear.
//
// It has no code of its own. A rule that only lives in a document is broken
// within a month; here it fails the build.
package rules
