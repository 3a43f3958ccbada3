package bundle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// Options say what to build and from where.
type Options struct {
	Version kubeversion.V
	// Source is SourceAuto, SourceRelease or SourceGoMod; empty is SourceAuto.
	Source string
	// Root is the directory of bundles; empty is DefaultRoot. Arch is a Go architecture; empty is this computer's.
	Root, Arch string
	Sink       event.Sink
	// Release says where the public release sites are.
	Release Release

	// For tests: sources other than the real ones, how often a running compile is reported, and what flushes a directory.
	source    source
	sample    func(ctx context.Context, b *builder) ([]unit, Component, error)
	heartbeat time.Duration
	syncDir   func(dir string) error
}

// source makes the files of a bundle.
type source interface {
	name() string
	// prepare finds out whether it can work at all.
	prepare(ctx context.Context) error
	// kubeadm is the unit that makes bin/kubeadm, which is asked for the images; the last unit given is it.
	kubeadm() []unit
	// rest are all other units, for the images that kubeadm named, in an order in which each finds what it needs: those of
	// lanes need nothing but kubeadm.
	rest(ctx context.Context, images []imageRef) ([]unit, []Component, error)
}

// unit makes one file.
type unit struct {
	// name is the path below the bundle: bin/... and images/... stay, work/... is dropped at the end.
	name string
	// verb says what is done, as in "building"; subject to what.
	verb, subject string
	// lane, if set, is a sequence of units that is made beside the other lanes, and before all units without one. A linker and the last
	// packages of a compile keep one processor busy; another lane uses the others meanwhile.
	lane string
	// key names all input: a finished file with the same key is taken as it is. It is called when the unit's turn comes.
	key func(ctx context.Context) (string, error)
	// make writes dest and describes it; size and sum are filled in afterwards. report gives a line of progress.
	make func(ctx context.Context, dest string, report func(string)) (File, error)
}

// workDir is where what does not stay lies in a partial bundle; recordDir holds the records of finished files.
const (
	workDir   = "work"
	recordDir = "records"
)

// record says that a file of a partial bundle is finished.
type record struct {
	Key  string `json:"key"`
	File File   `json:"file"`
}

// Build makes the bundle of one version, or opens the one that is there. An
// interrupted build goes on where it was; of two at the same time the second
// waits for the first. Errors about this computer are *PrerequisiteError,
// versions that cannot be built *NoRecipeError, wrong content *SumError.
func Build(ctx context.Context, o Options) (*Bundle, error) {
	root, arch, err := defaults(o.Root, o.Arch)
	if err != nil {
		return nil, err
	}
	if o.Version.IsZero() {
		return nil, errors.New("build bundle: no Kubernetes version given")
	}
	o.Root, o.Arch, o.Sink = root, arch, event.Or(o.Sink)
	if o.sample == nil {
		o.sample = sampleUnits
	}
	if o.syncDir == nil {
		o.syncDir = atomicfile.SyncDir
	}
	if o.heartbeat <= 0 {
		o.heartbeat = 10 * time.Second
	}
	b := &builder{
		o: o, final: filepath.Join(root, dirName(o.Version, arch)),
		dir: filepath.Join(root, dirName(o.Version, arch)+partialSuffix),
		run: "bundle/" + dirName(o.Version, arch), done: map[string]File{}, start: time.Now(),
	}
	bundle, err := b.build(ctx)
	if err != nil {
		err = fmt.Errorf("build bundle %s: %w", o.Version.Bare(), err)
		b.emit(event.Event{Type: event.RunFinished, Err: err.Error(), Msg: "bundle " + filepath.Base(b.final) + " is not finished; the same command goes on from here"})
		return nil, err
	}
	return bundle, nil
}

type builder struct {
	o          Options
	final, dir string
	run        string
	start      time.Time

	total int // of units; 0 until kubeadm has named the images

	mu    sync.Mutex
	index int             // of the unit that was begun last
	done  map[string]File // by unit name
}

// begin counts a unit.
func (b *builder) begin() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.index++
	return b.index
}

func (b *builder) finished(u unit, f File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done[u.name] = f
}

func (b *builder) emit(e event.Event) {
	e.Time = time.Now()
	e.Run = b.run
	e.Total = b.total
	if e.Elapsed == 0 {
		e.Elapsed = time.Since(b.start)
	}
	if e.Subject == "" {
		e.Subject = filepath.Base(b.final)
	}
	b.o.Sink.Emit(e)
}

func (b *builder) build(ctx context.Context) (_ *Bundle, err error) {
	if bundle, err := b.complete(); err != nil || bundle != nil && !oldSample(bundle) {
		return bundle, err
	}
	if runtime.GOOS != "linux" {
		return nil, &PrerequisiteError{What: "Linux", For: "building bundles", Remedy: "build on a Linux machine and copy the directory"}
	}
	if err := os.MkdirAll(b.o.Root, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, b.final+".lock", func() {
		b.emit(event.Event{Type: event.Note, Msg: "another process builds this bundle; waiting for it"})
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if bundle, err := b.complete(); bundle != nil || err != nil {
		if err != nil || !oldSample(bundle) {
			return bundle, err
		}
		return b.renewSample(ctx, bundle)
	}
	if bundle, err := b.finishRename(ctx); bundle != nil || err != nil {
		return bundle, err
	}
	src := b.o.source
	if src == nil {
		if src, err = b.chooseSource(ctx); err != nil {
			return nil, err
		}
	}
	if err := src.prepare(ctx); err != nil {
		return nil, err
	}
	return b.buildFrom(ctx, src)
}

// complete opens the bundle if it is there.
func (b *builder) complete() (*Bundle, error) {
	if _, err := os.Stat(b.final); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	bundle, err := Open(b.final)
	if err != nil {
		return nil, fmt.Errorf("%w; remove the directory and build again", err)
	}
	m := bundle.manifest
	if s := b.o.Source; s != "" && s != SourceAuto && s != m.Source {
		return nil, fmt.Errorf("%s is there already, from source %s; remove the directory to build it from source %s", b.final, m.Source, s)
	}
	if oldSample(bundle) {
		return bundle, nil
	}
	b.total = len(m.Files)
	b.emit(event.Event{Type: event.RunFinished, Msg: fmt.Sprintf("bundle %s is there already (%d files)", filepath.Base(b.final), len(m.Files))})
	return bundle, nil
}

// sampleFile is the image of belay's own sample in a bundle; nil if it has none, as one that was made without Go.
func sampleFile(b *Bundle) *File {
	for i, f := range b.manifest.Files {
		if f.Role == RoleSample {
			return &b.manifest.Files[i]
		}
	}
	return nil
}

// oldSample says whether a bundle holds the sample of another belay. All else in a bundle belongs to its Kubernetes version and stays as it was
// built; the sample belongs to the belay whose demonstrations use it.
func oldSample(b *Bundle) bool {
	f := sampleFile(b)
	return f != nil && f.Ref != sampleRef()
}

// renewSample puts this belay's sample into a complete bundle, whose other files are taken as they are.
func (b *builder) renewSample(ctx context.Context, have *Bundle) (*Bundle, error) {
	units, component, err := b.o.sample(ctx, b)
	if err != nil {
		b.emit(event.Event{Type: event.Warning, Msg: "the bundle keeps the sample of an earlier belay", Err: err.Error()})
		return have, nil
	}
	if err := os.RemoveAll(b.dir); err != nil {
		return nil, err
	}
	m := have.manifest
	m.Files = nil
	for _, f := range have.manifest.Files {
		if f.Role == RoleSample {
			continue
		}
		m.Files = append(m.Files, f)
		to := b.file(f.Path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		// The same file under both names: whoever has it open keeps it.
		if err := os.Link(filepath.Join(have.dir, filepath.FromSlash(f.Path)), to); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{workDir, recordDir} {
		if err := os.MkdirAll(b.file(d), 0o755); err != nil {
			return nil, err
		}
	}
	b.total = len(units)
	b.emit(event.Event{Type: event.RunStarted, Msg: fmt.Sprintf("bundle %s holds the sample of another belay: making this one's", filepath.Base(b.final))})
	for _, u := range units {
		if err := b.do(ctx, u); err != nil {
			return nil, err
		}
		if f := b.done[u.name]; !strings.HasPrefix(u.name, workDir+"/") {
			m.Files = append(m.Files, f)
		}
	}
	m.Components = slices.Clone(m.Components)
	for i, c := range m.Components {
		if c.Name == component.Name {
			m.Components[i] = component
		}
	}
	return b.finish(m)
}

// sampleUnits make this belay's sample.
func sampleUnits(ctx context.Context, b *builder) ([]unit, Component, error) {
	g := &gomod{b: b}
	var err error
	if g.goVersion, err = goVersion(ctx); err != nil {
		return nil, Component{}, err
	}
	r := embeddedRecipe("sample", sampleVersion, sampleSource)
	return []unit{g.unit(r, r.binaries[0]), b.packUnit(g.sampleImage(r))}, Component{r.name, r.version}, nil
}

// finishRename ends a build that was interrupted after its manifest was written.
func (b *builder) finishRename(ctx context.Context) (*Bundle, error) {
	path := filepath.Join(b.dir, manifestName)
	if _, err := os.Stat(path); err != nil {
		return nil, nil
	}
	bundle, err := Open(b.dir)
	if err == nil {
		for _, d := range []string{workDir, recordDir} {
			if err := os.RemoveAll(filepath.Join(b.dir, d)); err != nil {
				return nil, err
			}
		}
		err = bundle.Verify(ctx, nil)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		b.emit(event.Event{Type: event.Warning, Msg: "the interrupted build is not usable as it is, going on with it", Err: err.Error()})
		return nil, os.Remove(path)
	}
	return b.publish()
}

// publish gives the finished directory its name. One that it replaces is moved away first and removed afterwards: a kill in between leaves a
// finished build, which the next one gives its name.
func (b *builder) publish() (*Bundle, error) {
	old := filepath.Join(b.o.Root, "."+filepath.Base(b.final)+".old")
	if err := os.RemoveAll(old); err != nil {
		return nil, err
	}
	if err := os.Rename(b.final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Rename(b.dir, b.final); err != nil {
		return nil, err
	}
	// Before the old one goes: after a power cut one of the two has to be there.
	if err := b.o.syncDir(b.o.Root); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(old); err != nil {
		return nil, err
	}
	bundle, err := Open(b.final)
	if err != nil {
		return nil, err
	}
	b.emit(event.Event{Type: event.RunFinished, Msg: fmt.Sprintf("bundle %s is complete: %d files, %d MB", filepath.Base(b.final), len(bundle.manifest.Files), bundle.Size()>>20)})
	return bundle, nil
}

func (b *builder) buildFrom(ctx context.Context, src source) (*Bundle, error) {
	for _, d := range []string{"bin/cni", "images", workDir, recordDir} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	first := src.kubeadm()
	// How many files there will be is known only when kubeadm has named the images; this is the usual number.
	b.total = 0
	b.emit(event.Event{Type: event.RunStarted, Msg: fmt.Sprintf("building bundle %s from source %s", filepath.Base(b.final), src.name())})
	for _, u := range first {
		if err := b.do(ctx, u); err != nil {
			return nil, err
		}
	}
	images, err := askKubeadm(ctx, filepath.Join(b.dir, first[len(first)-1].name), b.o.Version)
	if err != nil {
		return nil, err
	}
	rest, components, err := src.rest(ctx, images)
	if err != nil {
		return nil, err
	}
	b.total = len(first) + len(rest)
	b.emit(event.Event{Type: event.Note, Msg: fmt.Sprintf("%d files to make; kubeadm asks for %s", b.total, wanted(images))})
	if err := b.all(ctx, rest); err != nil {
		return nil, err
	}
	m := Manifest{
		Schema: ManifestSchema, Kubernetes: b.o.Version, Arch: b.o.Arch,
		Source: src.name(), Official: src.name() == SourceRelease, Components: components,
	}
	for name, f := range b.done {
		if !strings.HasPrefix(name, workDir+"/") {
			m.Files = append(m.Files, f)
		}
	}
	return b.finish(m)
}

// all makes units: lanes side by side, then the others one by one. A failure ends every lane.
func (b *builder) all(ctx context.Context, units []unit) error {
	var names []string
	for _, u := range units {
		if u.lane != "" && !slices.Contains(names, u.lane) {
			names = append(names, u.lane)
		}
	}
	g, laneCtx := errgroup.WithContext(ctx)
	sequence := func(ctx context.Context, lane string) error {
		for _, u := range units {
			if u.lane == lane {
				if err := b.do(ctx, u); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, name := range names {
		g.Go(func() error { return sequence(laneCtx, name) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return sequence(ctx, "")
}

// wanted says in words which versions belong to the Kubernetes version.
func wanted(images []imageRef) string {
	var parts []string
	for _, i := range images {
		if i.role == RoleEtcd || i.role == RoleDNS || i.role == RolePause {
			parts = append(parts, i.component+" "+tagOf(i.ref))
		}
	}
	return strings.Join(parts, ", ")
}

// finish drops what does not stay, writes the manifest, and gives the directory its name.
func (b *builder) finish(m Manifest) (*Bundle, error) {
	data, err := m.Encode()
	if err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, f := range m.Files {
		keep[f.Path] = true
	}
	var dirs []string
	for _, top := range []string{"bin", "images"} {
		err := filepath.WalkDir(filepath.Join(b.dir, top), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				dirs = append(dirs, p)
				return nil
			}
			rel, err := filepath.Rel(b.dir, p)
			if err != nil || keep[filepath.ToSlash(rel)] {
				return err
			}
			return os.Remove(p)
		})
		if err != nil {
			return nil, err
		}
	}
	// The manifest says that everything is there. Names are flushed before it, those of the directories too.
	for _, d := range append(dirs, b.dir) {
		if err := b.o.syncDir(d); err != nil {
			return nil, err
		}
	}
	if err := atomicfile.WriteFile(filepath.Join(b.dir, manifestName), data, 0o644); err != nil {
		return nil, err
	}
	for _, d := range []string{workDir, recordDir} {
		if err := os.RemoveAll(filepath.Join(b.dir, d)); err != nil {
			return nil, err
		}
	}
	return b.publish()
}

// do makes the file of u unless it is there.
func (b *builder) do(ctx context.Context, u unit) error {
	index := b.begin()
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	place := fmt.Sprintf("%s %s", u.verb, u.subject)
	if b.total == 0 {
		place += ", about 30 more files after it"
	} else {
		place += fmt.Sprintf(", %d left", b.total-index)
	}
	say := func(t event.Type, msg string, err error) {
		e := event.Event{Type: t, Step: u.name, Subject: u.subject, Index: index, Msg: msg, Elapsed: time.Since(began)}
		if err != nil {
			e.Err = err.Error()
		}
		b.emit(e)
	}
	key, err := u.key(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: %w", u.verb, u.subject, err)
	}
	if f, ok := b.recorded(ctx, u.name, key); ok {
		b.finished(u, f)
		say(event.StepSkipped, u.subject+" is there already", nil)
		return nil
	}
	say(event.StepStarted, place, nil)
	f, err := b.make(ctx, u, key, func(detail string) {
		say(event.StepProgress, place+", "+detail, nil)
	})
	if err != nil {
		err = fmt.Errorf("%s %s: %w", u.verb, u.subject, err)
		say(event.StepFailed, place, err)
		return err
	}
	b.finished(u, f)
	say(event.StepDone, fmt.Sprintf("%s: %.1f MB", u.subject, float64(f.Size)/(1<<20)), nil)
	return nil
}

func (b *builder) make(ctx context.Context, u unit, key string, report func(string)) (File, error) {
	final := filepath.Join(b.dir, filepath.FromSlash(u.name))
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return File{}, err
	}
	// The temporary name lies in work/, so that a kill leaves nothing beside finished files. It is this process' own:
	// after a kill of belay a compiler may still run, and write to its output when the next build is at it already.
	dest := filepath.Join(b.dir, workDir, fmt.Sprintf(".making-%d-%s", os.Getpid(), strings.ReplaceAll(u.name, "/", "_")))
	if err := os.RemoveAll(dest); err != nil {
		return File{}, err
	}
	f, err := u.make(ctx, dest, report)
	if err != nil {
		return File{}, errors.Join(err, os.RemoveAll(dest))
	}
	mode := fs.FileMode(0o644)
	if f.Kind == KindBinary {
		mode = 0o755
	}
	if err := os.Chmod(dest, mode); err != nil {
		return File{}, err
	}
	f.Path = u.name
	if f.SHA256, f.Size, err = sumFile(ctx, dest); err != nil {
		return File{}, err
	}
	if err := syncFile(dest); err != nil {
		return File{}, err
	}
	if err := os.Rename(dest, final); err != nil {
		return File{}, err
	}
	if err := atomicfile.SyncDir(filepath.Dir(final)); err != nil {
		return File{}, err
	}
	data, err := json.Marshal(record{Key: key, File: f})
	if err != nil {
		return File{}, err
	}
	return f, atomicfile.WriteFile(b.recordPath(u.name), data, 0o644)
}

func syncFile(p string) (err error) {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

func (b *builder) recordPath(name string) string {
	return filepath.Join(b.dir, recordDir, strings.ReplaceAll(name, "/", "_")+".json")
}

// recorded gives the finished file of that name and key. A file that is not as
// its record says is made again: the disk may have been full, or cut off.
func (b *builder) recorded(ctx context.Context, name, key string) (File, bool) {
	data, err := os.ReadFile(b.recordPath(name))
	if err != nil {
		return File{}, false
	}
	var r record
	if json.Unmarshal(data, &r) != nil || r.Key != key || r.File.Path != name {
		return File{}, false
	}
	if checkFile(ctx, filepath.Join(b.dir, filepath.FromSlash(name)), r.File) != nil {
		return File{}, false
	}
	return r.File, true
}

// file gives the path of a file that an earlier unit made.
func (b *builder) file(name string) string { return filepath.Join(b.dir, filepath.FromSlash(name)) }

// imageUnit packs an image of files that earlier units made.
type imageUnit struct {
	ref       imageRef
	config    imageConfig
	component string
	version   string
	from      string
	// binary is the unit name of the program, at its path in the image.
	binary, at string
	// base, if set, is the unit name of a layer as a tar file.
	base string
}

// imageFormat is part of the key of images, and goes up when the way they are packed changes.
const imageFormat = "2"

func (b *builder) packUnit(i imageUnit) unit {
	return unit{
		name: "images/" + archiveName(i.ref.ref), verb: "packing image", subject: i.ref.ref,
		key: func(context.Context) (string, error) {
			parts := []string{"image", imageFormat, i.ref.ref, i.at, i.config.arch, i.config.user, strings.Join(i.config.entrypoint, " "), b.done[i.binary].SHA256}
			if i.base != "" {
				parts = append(parts, b.done[i.base].SHA256)
			}
			return strings.Join(parts, "|"), nil
		},
		make: func(ctx context.Context, dest string, _ func(string)) (File, error) {
			var layers []*layer
			if i.base != "" {
				l, err := layerFromFile(b.file(i.base))
				if err != nil {
					return File{}, err
				}
				layers = append(layers, l)
			}
			l, err := newLayer([]entry{{name: i.at, mode: 0o755, src: b.file(i.binary)}})
			if err != nil {
				return File{}, err
			}
			img, err := newImage(i.config, asLayers(append(layers, l))...)
			if err != nil {
				return File{}, err
			}
			f := File{Kind: KindImage, Component: i.component, Version: i.version, Ref: i.ref.ref, Role: i.ref.role, From: i.from, Recipe: b.done[i.binary].Recipe}
			return f, writeImage(ctx, dest, i.ref.ref, img)
		},
	}
}

// sortComponents puts components in order of name; of two versions the one in use stays first.
func sortComponents(cs []Component) []Component {
	slices.SortStableFunc(cs, func(a, b Component) int { return cmp.Compare(a.Name, b.Name) })
	return cs
}
