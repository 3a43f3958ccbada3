// Package apicheck finds the use of Kubernetes APIs that an upgrade deprecates, switches off
// or removes: in manifest files, charts, audit logs and in a live cluster's objects, their
// last-applied configuration, managed fields and Helm releases. What it could not read it
// reports as such, and a report with anything unread is never clean. Its knowledge is package
// lifecycle; it also rewrites manifests and releases.
package apicheck
