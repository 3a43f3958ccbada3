//go:build unix

package bundle

import (
	"os/exec"
	"syscall"
)

// ownGroup puts cmd into a process group of its own, and ends the whole group
// when the context ends: go build leaves its compilers running otherwise.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
