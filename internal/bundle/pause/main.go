// Command pause holds the namespaces of a pod: it reaps orphaned children and
// ends on SIGINT or SIGTERM. With -v it prints its version and exits 0, which
// kubeadm's health check before an upgrade relies on (it runs a Job of the pause image with -v).
//
// Package bundle embeds this file and builds it into the pause image.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "dev"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		fmt.Println("pause " + version)
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		// One SIGCHLD can stand for several children.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
