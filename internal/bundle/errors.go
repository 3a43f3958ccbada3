package bundle

import (
	"fmt"

	"github.com/belayops/belay/internal/kubeversion"
)

// MissingError says that there is no complete bundle of a version.
type MissingError struct {
	Version kubeversion.V
	Arch    string
	// Dir is where it was looked for.
	Dir string
	// Partial says that a build of it was begun and not finished.
	Partial bool
}

func (e *MissingError) Error() string {
	state := "there is no bundle"
	if e.Partial {
		state = "the build was begun and is not finished"
	}
	return fmt.Sprintf("bundle %s for %s: %s in %s; make it with: %s", e.Version.Bare(), e.Arch, state, e.Dir, e.Next())
}

// Next is the command that mends it.
func (e *MissingError) Next() string { return "belay bundle build " + e.Version.Bare() }

// SumError says that one file is not what it should be: changed, missing, or not listed.
type SumError struct {
	// Path is relative to the bundle, or a URL for a download.
	Path string `json:"path"`
	// Want and Got describe the content: "sha256:... (123 bytes)", "no such file", "not in the manifest".
	Want string `json:"want"`
	Got  string `json:"got"`
}

func (e *SumError) Error() string {
	return fmt.Sprintf("%s: want %s, got %s", e.Path, e.Want, e.Got)
}

// PrerequisiteError says that the computer lacks something that a build needs.
type PrerequisiteError struct {
	// What is missing, and For what it is needed.
	What, For string
	// Package is the Debian package that has it; empty when it is not one.
	Package string
	// Remedy is used when Package is empty.
	Remedy string
	// Err is the cause, if there is one.
	Err error
}

func (e *PrerequisiteError) Error() string {
	remedy := e.Remedy
	if e.Package != "" {
		remedy = "install it with: apt-get install " + e.Package
	}
	return fmt.Sprintf("%s needs %s, which this computer does not have; %s", e.For, e.What, remedy)
}

func (e *PrerequisiteError) Unwrap() error { return e.Err }

// NoRecipeError says that a component's version cannot be built from Go modules.
type NoRecipeError struct {
	Component, Version string
	// Have are the versions that can.
	Have []string
}

func (e *NoRecipeError) Error() string {
	return fmt.Sprintf("%s %s cannot be built from Go modules: there are recipes for %v; in a clone of the repository, add one with: go run ./internal/bundle/gen -component %s -version %s",
		e.Component, e.Version, e.Have, e.Component, e.Version)
}
