// Package convert rewrites manifests from API versions that an upgrade ends to those that take
// their place. It edits only what must change: comments, order and every other byte stay as they
// are. What has no successor, or needs a decision of a person, is left byte for byte and named.
package convert
