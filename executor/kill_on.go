//go:build belaykill

package executor

import (
	"os"
	"syscall"
)

// killPoint ends the process with SIGKILL at the point that BELAY_TEST_KILL_AFTER names, "STEP:POINT". The points of a step are
// intent (written), applied (the effect is there, the outcome is not written) and outcome (written).
func killPoint(step, point string) {
	if os.Getenv("BELAY_TEST_KILL_AFTER") == step+":"+point {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
