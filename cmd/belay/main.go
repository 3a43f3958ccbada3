// Command belay takes Kubernetes clusters from one version to the next.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is belay as a function: it gives the exit code. Tests call it too.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := newDeps(in, out, errOut)
	d.interrupts = newInterrupts(cancel)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		for range signals {
			d.interrupts.signal()
		}
	}()
	defer close(signals)
	defer signal.Stop(signals)

	root := newRootCmd(d)
	d.root = root
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, d.close())
	if err == nil {
		return exitOK
	}
	if d.interrupts.cancelled() {
		err = &interruptedError{err}
	}
	return d.report(cmd.CommandPath(), err)
}

// report prints an error with the command to run next, and gives its exit code.
func (d *deps) report(command string, err error) int {
	if quiet := (*silentError)(nil); !errors.As(err, &quiet) {
		fmt.Fprintf(d.err, "belay: %v\n", err)
	}
	if next := nextCommand(err); next != "" {
		d.sayNext("%s", next)
	} else if code := exitCode(err); code == exitUsage {
		fmt.Fprintf(d.err, "next:  %s --help\n", command)
	}
	return exitCode(err)
}
