//go:build unix && !linux

package controlplane

import "syscall"

// sysProcAttr gives a process its own group, so that an interrupt at the
// terminal reaches only its parent, which then stops it in order.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
