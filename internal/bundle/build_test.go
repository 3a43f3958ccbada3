package bundle

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belayops/belay/internal/atomicfile"
	"github.com/belayops/belay/internal/event"
)

func TestBuildMakesEachFileOnce(t *testing.T) {
	root := t.TempDir()
	src := newFakeSource()
	var rec event.Recorder
	b, err := Build(t.Context(), Options{Version: testVersion, Root: root, Sink: &rec, source: src})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	for name, n := range src.count() {
		if n != 1 {
			t.Errorf("%s was made %d times", name, n)
		}
	}
	if _, err := os.Stat(b.Dir() + partialSuffix); err == nil {
		t.Error("the partial directory is still there")
	}
	var started []event.Event
	for _, e := range rec.Events() {
		if e.Type == event.StepStarted {
			started = append(started, e)
		}
	}
	if len(started) != 6 || started[1].Index != 2 || started[1].Total != 6 || !strings.Contains(started[1].Msg, "4 left") {
		t.Errorf("progress: %+v", started)
	}

	// Another build finds it and makes nothing.
	again, err := Build(t.Context(), Options{Version: testVersion, Root: root, source: src})
	if err != nil || again.Digest() != b.Digest() || src.count()["bin/kubelet"] != 1 {
		t.Errorf("again: %v, made %v", err, src.count())
	}
	if _, err := Build(t.Context(), Options{Version: testVersion, Root: root, Source: SourceRelease, source: src}); err == nil || !strings.Contains(err.Error(), b.Dir()) {
		t.Errorf("from another source: %v", err)
	}
}

func TestBuildGivesTheSameBytes(t *testing.T) {
	if a, b := builtBundle(t), builtBundle(t); a.Digest() != b.Digest() {
		t.Errorf("%s and %s", a.Digest(), b.Digest())
	}
}

func TestBuildGoesOnAfterAFailure(t *testing.T) {
	root := t.TempDir()
	src := newFakeSource()
	full := errors.New("no space left on device")
	src.fail = map[string]error{"bin/etcd": full}
	o := Options{Version: testVersion, Root: root, source: src}
	var rec event.Recorder
	o.Sink = &rec
	if _, err := Build(t.Context(), o); !errors.Is(err, full) || !strings.Contains(err.Error(), "bin/etcd") {
		t.Fatalf("got %v", err)
	}
	events := rec.Events()
	if last := events[len(events)-1]; last.Type != event.RunFinished || last.Err == "" {
		t.Errorf("last event %+v", last)
	}
	if _, err := Find(root, testVersion, ""); err == nil {
		t.Fatal("a partial bundle was found")
	}
	partial := filepath.Join(root, dirName(testVersion, hostArch())+partialSuffix)
	// A file that was damaged since is made again, one whose input changed too, and what nobody lists goes.
	writeFile(t, filepath.Join(partial, "bin/kubelet"), "kubelex")
	writeFile(t, filepath.Join(partial, "bin/stale"), "from an older belay")
	src.fail = nil
	b, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got := src.count(); got["bin/kubeadm"] != 1 || got["bin/kubelet"] != 2 || got["bin/etcd"] != 1 {
		t.Errorf("made %v", got)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestBuildMakesAgainWhatHasOtherInput(t *testing.T) {
	root := t.TempDir()
	src := newFakeSource()
	src.fail = map[string]error{"bin/cni/bridge": errors.New("stop")}
	o := Options{Version: testVersion, Root: root, source: src}
	if _, err := Build(t.Context(), o); err == nil {
		t.Fatal("no error")
	}
	src.fail = nil
	src.content["bin/etcd"] = "a newer etcd"
	b, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got := src.count(); got["bin/etcd"] != 2 || got["bin/kubelet"] != 1 {
		t.Errorf("made %v", got)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestBuildGoesOnAfterAKill(t *testing.T) {
	root := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childRoot+"="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "reached "+childStop+"\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	src := newFakeSource()
	b, err := Build(t.Context(), Options{Version: testVersion, Root: root, source: src})
	if err != nil {
		t.Fatal(err)
	}
	if got := src.count(); got["bin/kubelet"] != 0 || got["bin/etcd"] != 1 {
		t.Errorf("made %v: want only what the killed build had not finished", got)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// A kill between the manifest and the rename leaves a directory that is complete but for its name.
func TestBuildGoesOnBeforeTheRename(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		b := builtBundle(t)
		if err := os.Rename(b.Dir(), b.Dir()+partialSuffix); err != nil {
			t.Fatal(err)
		}
		if damaged {
			writeFile(t, filepath.Join(b.Dir()+partialSuffix, "bin/etcd"), "etcX")
		}
		src := newFakeSource()
		again, err := Build(t.Context(), Options{Version: testVersion, Root: filepath.Dir(b.Dir()), source: src})
		if err != nil {
			t.Fatal(err)
		}
		if again.Digest() != b.Digest() || (len(src.count()) > 0) != damaged {
			t.Errorf("damaged %v: made %v", damaged, src.count())
		}
		if err := again.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}

func TestConcurrentBuildsMakeEachFileOnce(t *testing.T) {
	root := t.TempDir()
	src := newFakeSource()
	inside, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	src.before = func(context.Context, string) {
		once.Do(func() { close(inside); <-release })
	}
	waiting := make(chan struct{})
	var waits sync.Once
	sink := event.Func(func(e event.Event) {
		if e.Type == event.Note && strings.Contains(e.Msg, "waiting") {
			waits.Do(func() { close(waiting) })
		}
	})
	errs := make(chan error, 2)
	build := func() {
		_, err := Build(t.Context(), Options{Version: testVersion, Root: root, Sink: sink, source: src})
		errs <- err
	}
	go build()
	<-inside
	go build()
	select {
	case <-waiting:
	case <-time.After(10 * time.Second):
		t.Error("the second build did not say that it waits")
	}
	close(release)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for name, n := range src.count() {
		if n != 1 {
			t.Errorf("%s was made %d times", name, n)
		}
	}
}

func TestBuildMakesLanesSideBySide(t *testing.T) {
	src := newFakeSource()
	src.lanes = map[string]string{"bin/kubelet": "a", "bin/etcd": "b", "bin/cni/bridge": "b"}
	var mu sync.Mutex
	var begun []string
	both := make(chan struct{})
	src.before = func(ctx context.Context, unit string) {
		mu.Lock()
		begun = append(begun, unit)
		if len(begun) == 3 { // kubeadm, and the first of each lane
			close(both)
		}
		mu.Unlock()
		if src.lanes[unit] != "" {
			select {
			case <-both:
			case <-time.After(20 * time.Second):
				t.Errorf("%s waited for the other lane, and it did not begin", unit)
			}
		}
	}
	b, err := Build(t.Context(), Options{Version: testVersion, Root: t.TempDir(), source: src})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if len(begun) != 6 || begun[4] != "work/pause" || begun[5] != "images/pause-3.10.2.tar" {
		t.Errorf("made in order %v: what has no lane comes after the lanes", begun)
	}

	// What fails in one lane ends the other, and is what is told.
	src = newFakeSource()
	src.lanes = map[string]string{"bin/kubelet": "a", "bin/etcd": "b"}
	src.fail = map[string]error{"bin/etcd": errors.New("no space left")}
	src.before = func(ctx context.Context, unit string) {
		if unit == "bin/kubelet" {
			<-ctx.Done()
		}
	}
	root := t.TempDir()
	if _, err := Build(t.Context(), Options{Version: testVersion, Root: root, source: src}); err == nil || !strings.Contains(err.Error(), "building bin/etcd: no space left") {
		t.Errorf("got %v", err)
	}
	src.fail, src.before = nil, nil
	if _, err := Build(t.Context(), Options{Version: testVersion, Root: root, source: src}); err != nil {
		t.Error(err)
	}
}

func TestBuildEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	src := newFakeSource()
	src.before = func(_ context.Context, unit string) {
		if unit == "bin/etcd" {
			cancel()
		}
	}
	if _, err := Build(ctx, Options{Version: testVersion, Root: root, source: src}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if src.count()["bin/cni/bridge"] != 0 {
		t.Error("it went on")
	}
}

// A bundle that an earlier belay built gets this one's sample, and keeps every other file as it is.
func TestBuildRenewsTheSample(t *testing.T) {
	s := newFakeSource()
	s.content["images/sample-0.9.tar"] = "old"
	s.order = append(s.order, "images/sample-0.9.tar")
	root := t.TempDir()
	o := Options{Root: root, Version: testVersion, source: s}
	first, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	fail := errors.New("no go command")
	o.sample = func(_ context.Context, _ *builder) ([]unit, Component, error) {
		return []unit{{name: "images/sample-new.tar", verb: "packing", subject: "sample", key: func(context.Context) (string, error) { return "k", nil },
			make: func(_ context.Context, dest string, _ func(string)) (File, error) {
				made++
				return File{Kind: KindImage, Component: "sample", Version: sampleVersion, From: "a test", Ref: sampleRef(), Role: RoleSample}, os.WriteFile(dest, []byte("new"), 0o644)
			}}}, Component{"sample", sampleVersion}, fail
	}
	// Without Go it stays as it is, and is a bundle all the same.
	if b, err := Build(t.Context(), o); err != nil || b.Digest() != first.Digest() {
		t.Fatalf("without go: %v", err)
	}
	fail = nil
	data, err := os.ReadFile(filepath.Join(first.Dir(), manifestName))
	if err != nil {
		t.Fatal(err)
	}
	if !first.Is(first.Digest()) || !first.Is(digestOf(data)) || first.Is(digestOf(nil)) {
		t.Error("a bundle does not know itself")
	}
	kept, err := os.Stat(filepath.Join(first.Dir(), "bin", "kubelet"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Verify(t.Context(), nil); err != nil {
			t.Error(err)
		}
		// A plan that was begun with the bundle goes on with it.
		if b.Digest() != first.Digest() || !b.Is(first.Digest()) {
			t.Errorf("digest %s was %s", b.Digest(), first.Digest())
		}
		if sampleFile(b).Ref != sampleRef() || len(b.manifest.Files) != len(first.manifest.Files) {
			t.Errorf("files %+v", b.manifest.Files)
		}
	}
	if made != 1 || s.made["bin/kubelet"] != 1 {
		t.Errorf("the sample was made %d times, the kubelet %d times", made, s.made["bin/kubelet"])
	}
	if now, err := os.Stat(filepath.Join(first.Dir(), "bin", "kubelet")); err != nil || !os.SameFile(kept, now) {
		t.Errorf("the kubelet is another file: %v", err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 2 { // and the lock
		t.Errorf("left: %v, %v", entries, err)
	}
	if _, err := os.Stat(filepath.Join(first.Dir(), "images", "sample-0.9.tar")); err == nil {
		t.Error("the old sample is still there")
	}
}

// A power cut at any moment leaves the old bundle or the new one whole: names are flushed before what relies on them.
func TestBuildFlushesNames(t *testing.T) {
	s := newFakeSource()
	s.content["images/sample-0.9.tar"] = "old"
	s.order = append(s.order, "images/sample-0.9.tar")
	root := t.TempDir()
	o := Options{Root: root, Version: testVersion, source: s}
	final := filepath.Join(root, dirName(testVersion, hostArch()))
	old := filepath.Join(root, "."+filepath.Base(final)+".old")
	var synced []string
	o.syncDir = func(dir string) error {
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		synced = append(synced, strings.Replace(rel, filepath.Base(final)+partialSuffix, "new", 1))
		if _, err := os.Stat(filepath.Join(dir, manifestName)); err == nil {
			t.Errorf("%s was flushed after the manifest was there", rel)
		}
		return atomicfile.SyncDir(dir)
	}
	want := []string{"new/bin", "new/bin/cni", "new/images", "new", "."}
	if _, err := Build(t.Context(), o); err != nil || !slices.Equal(synced, want) {
		t.Errorf("flushed %q, want %q: %v", synced, want, err)
	}
	o.sample = func(_ context.Context, _ *builder) ([]unit, Component, error) {
		return []unit{{name: "images/sample-new.tar", verb: "packing", subject: "sample", key: func(context.Context) (string, error) { return "k", nil },
			make: func(_ context.Context, dest string, _ func(string)) (File, error) {
				return File{Kind: KindImage, Component: "sample", Version: sampleVersion, From: "a test", Ref: sampleRef(), Role: RoleSample}, os.WriteFile(dest, []byte("new"), 0o644)
			}}}, Component{"sample", sampleVersion}, nil
	}
	record := o.syncDir
	there := false
	o.syncDir = func(dir string) error {
		if dir == root {
			_, err := os.Stat(old)
			there = err == nil
		}
		return record(dir)
	}
	synced = nil
	if _, err := Build(t.Context(), o); err != nil || !slices.Equal(synced, want) || !there {
		t.Errorf("flushed %q, want %q, the old one was there: %v, %v", synced, want, there, err)
	}
}

func TestBuildRefusesWhatIsInItsPlace(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, dirName(testVersion, hostArch()))
	writeFile(t, filepath.Join(dir, "bin", "kubeadm"), "x")
	if _, err := Build(t.Context(), Options{Version: testVersion, Root: root, source: newFakeSource()}); err == nil || !strings.Contains(err.Error(), "remove the directory") {
		t.Errorf("got %v", err)
	}
}

func TestBuildSaysWhatKubeadmSaid(t *testing.T) {
	src := newFakeSource()
	src.content["bin/kubeadm"] = "#!/bin/sh\necho this version of kubeadm only supports 1.36 >&2\nexit 3\n"
	if _, err := Build(t.Context(), Options{Version: testVersion, Root: t.TempDir(), source: src}); err == nil || !strings.Contains(err.Error(), "only supports 1.36") {
		t.Errorf("got %v", err)
	}
}
