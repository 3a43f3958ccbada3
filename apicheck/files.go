package apicheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/belayops/belay/internal/event"
)

// maxFile bounds what is read into memory of one file.
const maxFile = 256 << 20

// files reads every manifest that o names into all. The files of directories are read side by side.
func (j *judge) files(ctx context.Context, o Options, all *collector) error {
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	paths := make(chan string, 256)
	var wg sync.WaitGroup
	var done atomic.Int64
	parts := make([]*collector, workers)
	for i := range workers {
		c := j.collector()
		parts[i] = c
		wg.Go(func() {
			var buf []byte
			for p := range paths {
				if ctx.Err() != nil {
					continue
				}
				buf = c.file(p, buf)
				if n := done.Add(1); n%1000 == 0 {
					o.Events.Emit(event.Event{Type: event.StepProgress, Step: "files", Msg: fmt.Sprintf("%d files read", n)})
				}
			}
		})
	}
	for _, name := range o.Files {
		if name == "-" {
			all.stdin(o.Stdin)
			continue
		}
		all.tree(ctx, o, name, paths)
	}
	close(paths)
	wg.Wait()
	for _, c := range parts {
		all.merge(c)
	}
	return ctx.Err()
}

// Why input counts as not read although every byte of it was.
const (
	emptyStdin  = "nothing came: did the command before it fail?"
	noManifests = "holds no manifest (*.yaml, *.yml, *.json): name files that are called otherwise one by one"
)

func (c *collector) stdin(r io.Reader) {
	if r == nil {
		c.unread("stdin", 0, "there is none")
		return
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		c.unread("stdin", 0, "%v", err)
	case len(text) > maxFile:
		c.unread("stdin", 0, "more than %d MB", maxFile>>20)
	case len(bytes.TrimSpace(text)) == 0:
		c.unread("stdin", 0, emptyStdin)
	default:
		c.covered("stdin", "manifests", 1)
		c.text(origin{what: "stdin", source: Source{Type: SourceFile, File: "stdin"}, confidence: High}, text)
	}
}

// tree sends the manifest files under name to paths, and renders the charts.
func (c *collector) tree(ctx context.Context, o Options, name string, paths chan<- string) {
	found := 0
	walkManifests(ctx, name, func(p string) { found++; paths <- p }, func(p string) { found++; c.chart(ctx, o, p) }, func(p, why string) { found++; c.unread(p, 0, "%s", why) })
	if found == 0 && ctx.Err() == nil {
		c.unread(name, 0, noManifests)
	}
}

// walkManifests calls file for a file that is named, and for every manifest in a directory; chart for charts, archives and
// directories; and unread for what cannot be gone through. With a nil chart the files of a chart are files like others, and
// archives are left out. A cancelled context ends it.
func walkManifests(ctx context.Context, name string, file, chart func(string), unread func(name, why string)) {
	info, err := os.Stat(name)
	if err != nil {
		unread(name, fileError(err))
		return
	}
	if !info.IsDir() {
		if isChartArchive(name) && chart != nil {
			chart(name)
			return
		}
		file(name)
		return
	}
	err = filepath.WalkDir(name, func(p string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return filepath.SkipAll
		}
		if err != nil {
			unread(p, fileError(err))
			if d != nil && d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			if d.Name() == ".git" && p != name {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "Chart.yaml")); err == nil && chart != nil {
				chart(p)
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Stat(p)
			if err != nil {
				if isManifest(p) {
					unread(p, fileError(err))
				}
				return nil
			}
			if target.IsDir() {
				unread(p, "a symbolic link to a directory is not followed: name the directory itself")
				return nil
			}
		}
		switch {
		case isChartArchive(p) && chart != nil:
			chart(p)
		case isManifest(p):
			file(p)
		case isTemplate(p):
			unread(p, "a template: render it and scan the result")
		}
		return nil
	})
	if err != nil {
		unread(name, fileError(err))
	}
}

// isManifest says whether a file of a directory is taken for a manifest. A file that is named is always read.
func isManifest(name string) bool {
	if filepath.Base(name) == "Kustomization" { // the third of the names that kustomize takes
		return true
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// isTemplate says whether a file is called as templates of manifests are: web.yaml.j2, web.yml.tmpl.
func isTemplate(name string) bool {
	switch ext := filepath.Ext(name); strings.ToLower(ext) {
	case ".j2", ".jinja", ".jinja2", ".tmpl", ".tpl", ".gotmpl", ".erb", ".mustache", ".envsubst":
		return isManifest(strings.TrimSuffix(name, ext))
	}
	return false
}

func isChartArchive(name string) bool {
	return strings.HasSuffix(name, ".tgz") || strings.HasSuffix(name, ".tar.gz")
}

// fileError words an error without the path, which stands beside it.
func fileError(err error) string {
	switch {
	case os.IsNotExist(err):
		return "there is no such file (any more)"
	case os.IsPermission(err):
		return "no permission to read it"
	}
	if pe, ok := err.(*fs.PathError); ok { //nolint:errorlint // the operating system's own error, unwrapped on purpose
		return pe.Err.Error()
	}
	return err.Error()
}

// file judges one file. buf is used and given back, perhaps grown.
func (c *collector) file(name string, buf []byte) []byte {
	text, buf, err := readFile(name, buf)
	if err != nil {
		c.unread(name, 0, "%s", fileError(err))
		return buf
	}
	c.covered("files", "manifests", 1)
	c.text(origin{what: name, source: Source{Type: SourceFile, File: name}, confidence: High}, text)
	return buf
}

func typeWord(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsDir():
		return "a directory"
	}
	return "another kind of thing"
}

// readFile reads a regular file (or what behaves like one) into buf. Opening does not wait: a named pipe
// in a tree must not hang a scan.
func readFile(name string, buf []byte) (text, reuse []byte, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, buf, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, buf, err
	}
	if !info.Mode().IsRegular() {
		return nil, buf, errors.New("not a regular file but " + typeWord(info.Mode()))
	}
	size := info.Size()
	if size > maxFile {
		return nil, buf, fmt.Errorf("%d MB: more than %d MB are not read", size>>20, maxFile>>20)
	}
	keep := buf
	if int64(cap(buf)) < size+1 {
		buf = make([]byte, size+1, max(size+1, 64<<10))
		if cap(buf) <= 1<<20 {
			keep = buf // large ones are not kept
		}
	}
	buf = buf[:cap(buf)]
	n := 0
	for {
		m, err := f.Read(buf[n:])
		n += m
		if err == io.EOF {
			return buf[:n], keep, nil
		}
		if err != nil {
			return nil, keep, err
		}
		if n == len(buf) { // it grew while it was read
			if n > maxFile {
				return nil, keep, fmt.Errorf("more than %d MB are not read", maxFile>>20)
			}
			buf = append(buf, make([]byte, n)...)
		}
	}
}
