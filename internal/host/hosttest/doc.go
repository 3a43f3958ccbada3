// Package hosttest tests code that works on machines without having one: a
// scripted Fake, a real SSH server inside the test's process, and the
// conformance suite that every kind of host.Host passes. Only tests import it.
package hosttest
