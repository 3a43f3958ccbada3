// Package testenv makes systemd machines on this computer: an overlay over a
// cached Debian root filesystem, a network namespace and runc, reached by SSH
// like any other machine. Tests, demonstrations and rehearsals run real
// clusters on them.
//
// Everything a network of machines consists of lives under one directory
// (Options.StateDir/NAME) or carries an identifier derived from that directory,
// and is written down before it is made. So a later process finds and removes
// what a killed one left, and never touches anything else.
//
// It needs root on Linux; New says so elsewhere. What only some computers need
// (cgroup v1, missing capabilities) is detected: see Facts and Quirks.
package testenv
