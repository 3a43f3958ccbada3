package bundle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belayops/belay/internal/event"
)

func TestParseURIs(t *testing.T) {
	out := `'http://mirror.example/debian/pool/main/i/iptables/iptables_1.8.9-2_amd64.deb' iptables_1.8.9-2_amd64.deb 360192 MD5Sum:33613e9e4c6e917174b3b8a2ae2137cd
'http://mirror.example/debian/pool/main/b/busybox/busybox-static_1.35.0-4%2bb1_amd64.deb' busybox-static_1%3a1.35.0-4+b1_amd64.deb 928188
`
	got, err := parseURIs(out)
	if err != nil || len(got) != 2 || got[0] != (debianPackage{"busybox-static", "1:1.35.0-4+b1"}) || got[1] != (debianPackage{"iptables", "1.8.9-2"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "Reading package lists...\n", "'http://x' iptables.deb 1\n"} {
		if got, err := parseURIs(bad); err == nil {
			t.Errorf("%q: %v without an error", bad, got)
		}
	}
}

func FuzzParseURIs(f *testing.F) {
	f.Add("'u' a_1_amd64.deb 1 MD5Sum:0\n")
	f.Fuzz(func(t *testing.T, s string) {
		pkgs, err := parseURIs(s)
		if err == nil && len(pkgs) == 0 {
			t.Error("no packages and no error")
		}
	})
}

// debianTree is a tree such as the packages unpack to, with files that are no programs in place of them.
func debianTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, p := range layerPrograms() {
		if p == "usr/sbin/nft" {
			continue
		}
		writeFile(t, filepath.Join(root, strings.TrimPrefix(p, "usr/")), "not an ELF file")
	}
	for _, p := range []string{"usr/lib/x86_64-linux-gnu/xtables/libxt_comment.so", "etc/iproute2/rt_tables", "usr/share/doc/iptables/copyright", "usr/sbin/nft.real", "usr/bin/unwanted"} {
		writeFile(t, filepath.Join(root, p), "x")
	}
	if err := os.Symlink("nft.real", filepath.Join(root, "usr/sbin/nft")); err != nil {
		t.Fatal(err)
	}
	return root
}

// apt-get is ended with the build that asks it.
func TestDebianKeyEndsWithItsContext(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"apt-get", "dpkg-deb"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nexec sleep 50\n"), 0o755); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b := &builder{o: Options{Arch: hostArch()}}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := b.debianUnit().key(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 20*time.Second {
		t.Errorf("got %v after %s", err, time.Since(start))
	}
}

func TestCachedLayerIsChecked(t *testing.T) {
	dir := t.TempDir()
	cached, dest := filepath.Join(dir, "cache", "layer.tar"), filepath.Join(dir, "dest")
	made := 0
	b := &builder{o: Options{Sink: event.Discard}}
	get := func(wantMade int) {
		t.Helper()
		if err := b.cachedLayer(t.Context(), cached, dest, func() error {
			made++
			return os.WriteFile(dest, []byte("layer"), 0o644)
		}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(dest); err != nil || string(got) != "layer" || made != wantMade {
			t.Errorf("got %q, made %d times, want %d: %v", got, made, wantMade, err)
		}
	}
	get(1)
	get(1)
	writeFile(t, cached, "lay") // cut off
	get(2)
	get(2)
	if err := os.Remove(cached + sumSuffix); err != nil { // as an earlier belay left it
		t.Fatal(err)
	}
	get(3)
	if err := os.Remove(cached); err != nil {
		t.Fatal(err)
	}
	get(4)
	get(4)
}

func TestChooseEntries(t *testing.T) {
	entries, err := chooseEntries(debianTree(t))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]entry{}
	for _, e := range entries {
		got[e.name] = e
	}
	for name, link := range map[string]string{
		"usr/sbin/iptables": "xtables-nft-multi", "usr/sbin/ip6tables-legacy-save": "xtables-legacy-multi", "usr/sbin/iptables-nft-restore": "xtables-nft-multi",
		"usr/bin/sh": "busybox", "bin": "usr/bin", "lib64": "usr/lib64", "usr/sbin/nft": "nft.real",
	} {
		if got[name].link != link {
			t.Errorf("%s links to %q, want %q", name, got[name].link, link)
		}
	}
	for _, want := range []string{"usr/bin/ip", "usr/sbin/nft.real", "usr/lib/x86_64-linux-gnu/xtables/libxt_comment.so", "etc/iproute2/rt_tables", "tmp", "run"} {
		if _, ok := got[want]; !ok {
			t.Errorf("%s is missing", want)
		}
	}
	for _, not := range []string{"usr/share/doc/iptables/copyright", "usr/bin/unwanted"} {
		if _, ok := got[not]; ok {
			t.Errorf("%s is there", not)
		}
	}
}

func TestChooseEntriesNamesWhatIsMissing(t *testing.T) {
	root := debianTree(t)
	if err := os.Remove(filepath.Join(root, "sbin/conntrack")); err != nil {
		t.Fatal(err)
	}
	if _, err := chooseEntries(root); err == nil || !strings.Contains(err.Error(), "usr/sbin/conntrack") {
		t.Errorf("got %v", err)
	}
}

// The test program itself is an ELF file; what the tree cannot give is named.
func TestTakeFollowsLibraries(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	needed, err := neededBy(self)
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{files: map[string]entry{"usr/bin/x": {name: "usr/bin/x", src: self}}}
	err = tr.take(map[string]entry{}, "usr/bin/x")
	if (err != nil) != (len(needed) > 0) {
		t.Errorf("needs %v: %v", needed, err)
	}
	for _, n := range needed {
		name := merged(strings.TrimPrefix(n, "/"))
		if !filepath.IsAbs(n) {
			name = "usr/lib/some-triplet/" + n
		}
		tr.files[name] = entry{name: name, data: []byte("x"), src: os.DevNull}
	}
	chosen := map[string]entry{}
	if err := tr.take(chosen, "usr/bin/x"); err != nil || len(chosen) != len(needed)+1 {
		t.Errorf("chose %d files for %v: %v", len(chosen), needed, err)
	}
}
