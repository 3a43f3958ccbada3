package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// gateSpec is one stage of a feature gate.
type gateSpec struct {
	Default       bool   `yaml:"default"`
	LockToDefault bool   `yaml:"lockToDefault"`
	PreRelease    string `yaml:"preRelease"`
	Version       string `yaml:"version"`
}

// readGates reads the lists that Kubernetes keeps of its own gates, from 1.32 on.
func (s *sources) readGates(mods []module) error {
	for _, mod := range mods {
		if mod.path != "k8s.io/kubernetes" || mod.minor.Compare(m(32)) < 0 {
			continue
		}
		gates := map[string][]gateSpec{}
		for _, dir := range []string{"test/featuregates_linter/test_data", "test/compatibility_lifecycle/reference"} {
			for _, name := range []string{"versioned_feature_list.yaml", "unversioned_feature_list.yaml"} {
				data, err := os.ReadFile(filepath.Join(mod.dir, dir, name))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				} else if err != nil {
					return err
				}
				var list []struct {
					Name           string     `yaml:"name"`
					VersionedSpecs []gateSpec `yaml:"versionedSpecs"`
				}
				if err := yaml.Unmarshal(data, &list); err != nil {
					return fmt.Errorf("parse %s of %s: %w", name, mod.dir, err)
				}
				for _, g := range list {
					gates[g.Name] = g.VersionedSpecs
				}
			}
		}
		if len(gates) < 100 {
			return fmt.Errorf("%s: found %d feature gates, expected 100 or more", mod.dir, len(gates))
		}
		s.gates[mod.minor] = gates
	}
	return nil
}

// gateEnds derives when gates were locked and removed.
func (s *sources) gateEnds(ov *overrides) ([]lifecycle.Gate, error) {
	// The lists name gates by their Go identifier until 1.35 and by their real name from 1.36 on.
	real := map[string]string{}
	for _, g := range ov.Gates {
		if g.Cite == "" {
			return nil, fmt.Errorf("overrides.yaml: gate %s has no citation", g.Name)
		}
		real[g.Identifier] = g.Name
	}
	used := map[string]bool{}
	byName := map[string]*lifecycle.Gate{}
	present := map[string]minor{} // last minor that has it
	for n := m(32); n.Compare(s.newest) <= 0; n = n.Next() {
		for name, specs := range s.gates[n] {
			if r := real[name]; r != "" && n.Compare(m(36)) < 0 {
				used[name] = true
				name = r
			}
			present[name] = n
			lock, err := lockAt(n, specs)
			if err != nil {
				return nil, fmt.Errorf("gate %s: %w", name, err)
			}
			switch old := byName[name]; {
			case lock == nil:
				delete(byName, name) // a lock that was taken back
			case old == nil || old.LockedTo != lock.Default:
				// A binary can lock a gate at a version before its own: what counts is the first minor whose binary does. Only
				// the first list tells nothing of the minors before it, so there the version stands.
				at := n
				if n == m(32) && lock.Version != "" {
					if err := at.UnmarshalText([]byte(lock.Version)); err != nil {
						return nil, fmt.Errorf("gate %s: %w", name, err)
					}
				}
				byName[name] = &lifecycle.Gate{Name: name, Locked: at, LockedTo: lock.Default}
			}
		}
	}
	for id := range real {
		if !used[id] {
			return nil, fmt.Errorf("overrides.yaml: gate identifier %s is redundant", id)
		}
	}
	for name, last := range present {
		if last == s.newest {
			continue
		}
		if byName[name] == nil {
			byName[name] = &lifecycle.Gate{Name: name}
		}
		byName[name].Removed = last.Next()
	}
	var names []string
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []lifecycle.Gate
	for _, name := range names {
		out = append(out, *byName[name])
	}
	return out, nil
}

// lockAt gives the specification that holds at a minor, when it locks the gate.
func lockAt(n minor, specs []gateSpec) (*gateSpec, error) {
	var at *gateSpec
	var since minor
	for i := range specs {
		var v minor // an unversioned gate holds always
		if specs[i].Version != "" {
			if err := v.UnmarshalText([]byte(specs[i].Version)); err != nil {
				return nil, err
			}
		}
		if v.Compare(n) <= 0 && v.Compare(since) >= 0 {
			at, since = &specs[i], v
		}
	}
	if at == nil || !at.LockToDefault {
		return nil, nil
	}
	return at, nil
}
