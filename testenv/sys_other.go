//go:build !linux

package testenv

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
)

func unsupported() error {
	return &UnsupportedError{Reason: "this is not Linux", Remedy: "use a Linux computer, or a virtual machine with one"}
}

type dirLock struct{ f *os.File }

// Close does nothing.
func (l *dirLock) Close() {}

const signalPowerOff = 0

func supported() error                                                  { return unsupported() }
func detectFacts(context.Context) (Facts, error)                        { return Facts{}, unsupported() }
func checkStateDir(string) error                                        { return unsupported() }
func lockDir(context.Context, string, string, func()) (*dirLock, error) { return nil, unsupported() }
func tryLockDir(string) (*dirLock, error)                               { return nil, unsupported() }
func renameNoReplace(string, string) error                              { return unsupported() }
func bindPrivate(string) error                                          { return unsupported() }
func mountOverlay(string, string, string, string) error                 { return unsupported() }
func unmountLazily(string) error                                        { return unsupported() }
func mountsUnder(string) ([]string, error)                              { return nil, unsupported() }
func removeTree(string) error                                           { return unsupported() }
func takenPrefixes() ([]netip.Prefix, error)                            { return nil, unsupported() }
func killCgroup(context.Context, int, string) error                     { return unsupported() }
func syncFS(string) error                                               { return unsupported() }
func detachLoops(string) error                                          { return unsupported() }
func setDieWithParent(*exec.Cmd)                                        {}
