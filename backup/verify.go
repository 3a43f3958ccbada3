package backup

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/kubeversion"
)

// VerifyOptions say how far to go and what may be needed for it.
type VerifyOptions struct {
	// Level is how far to go; zero means Opened.
	Level Level
	// Identities decrypt; needed above HashVerified for an encrypted backup.
	Identities []age.Identity
	// Binaries gives the programs of a Kubernetes version; needed for Restored.
	Binaries func(kubeversion.V) (Binaries, error)
	// TempDir is where decrypted and restored data lies meanwhile (0700, removed at the end); empty means os.TempDir.
	TempDir string
	// Tool is belay's version, for the record of what was verified.
	Tool string
	Sink event.Sink
}

// Binaries are the paths of the programs that a restore runs.
type Binaries struct{ Etcd, APIServer string }

// ReportSchema names the format of a Report.
const ReportSchema = "belay.dev/backup-report/v1"

// Report says what was verified and what is wrong.
type Report struct {
	Schema  string `json:"schema"`
	Dir     string `json:"dir"`
	Cluster string `json:"cluster,omitempty"`
	Lineage string `json:"lineage,omitempty"`
	// Asked is the level that was to be reached, Level the one that was.
	Asked Level `json:"asked"`
	Level Level `json:"level"`
	// Complete repeats the backup's own verdict.
	Complete bool      `json:"complete"`
	Problems []Problem `json:"problems,omitempty"`
	// Limits say why no verification here can go further than some level, whatever was asked.
	Limits []Limit `json:"limits,omitempty"`
	// Files and Bytes were read.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Took is the time that each level took, in nanoseconds.
	Took map[string]time.Duration `json:"took"`
	// Encrypted counts the keys that an apiserver encrypted, by provider and key as in "aescbc:key1".
	Encrypted map[string]int `json:"encrypted,omitempty"`
	// Restore is what the restored level saw.
	Restore *RestoreReport `json:"restore,omitempty"`
	// NotRecorded says why the result could not be recorded in the backup.
	NotRecorded string `json:"notRecorded,omitempty"`
}

// Limit is a bound on what can be proved of a backup by itself.
type Limit struct {
	// Level is the highest that can be reached.
	Level Level `json:"level"`
	// Reason says why, Remedy what would prove more.
	Reason string `json:"reason"`
	Remedy string `json:"remedy"`
}

// Problem is one thing that is wrong with a backup.
type Problem struct {
	// Level is the one that cannot be reached because of it.
	Level Level `json:"level"`
	// File is the path in the backup, where the problem is one file's.
	File    string `json:"file,omitempty"`
	Problem string `json:"problem"`
}

// OK says whether the level that was asked for was reached.
func (r *Report) OK() bool { return r.Level >= r.Asked && len(r.Problems) == 0 }

// Verify proves the backup in dir up to a level. What is wrong with the backup
// is in the report; the error is for a verification that could not be carried out.
// A level that is reached is recorded in the backup, and so is a problem that
// was found: what was recorded before counts no longer then.
func Verify(ctx context.Context, dir string, o VerifyOptions) (*Report, error) {
	if o.Level == None {
		o.Level = Opened
	}
	v := &verification{o: o, sink: event.Or(o.Sink), dir: dir, r: &Report{Schema: ReportSchema, Dir: dir, Asked: o.Level, Took: map[string]time.Duration{}}}
	m, err := ReadManifest(dir)
	switch damaged := (*DamagedError)(nil); {
	case errors.As(err, &damaged):
		v.problem(Copied, manifestName, "%s", damaged.Problem)
		return v.r, nil
	case err != nil:
		return nil, err
	}
	v.m = m
	v.r.Cluster, v.r.Lineage, v.r.Complete = m.Cluster, m.Lineage, m.Complete()
	before, err := readRecord(dir, m)
	if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
		v.problem(Copied, verifiedName, "%s", damaged.Problem)
	} else if err != nil {
		return nil, err
	}
	began := time.Now()
	v.sink.Emit(event.Event{Time: began, Type: event.RunStarted, Run: "verify", Total: int(o.Level), Msg: fmt.Sprintf("verify backup %s of cluster %s up to level %s", filepath.Base(dir), m.Cluster, o.Level)})
	for _, step := range []struct {
		level Level
		msg   string
		run   func(context.Context) error
	}{
		{Copied, "every file is there with its size", v.copied},
		{HashVerified, "every file has its digest, the snapshot also etcd's own", v.hashes},
		{Opened, "the snapshot's database is sound and holds what it held", v.opened},
		{Restored, "start etcd and kube-apiserver over it and list every object", v.restored},
	} {
		if step.level > o.Level {
			break
		}
		start := time.Now()
		e := event.Event{Time: start, Type: event.StepStarted, Run: "verify", Step: step.level.String(), Msg: step.level.String() + ": " + step.msg, Index: int(step.level), Total: int(o.Level)}
		v.sink.Emit(e)
		n := len(v.r.Problems)
		err := step.run(ctx)
		v.r.Took[step.level.String()] = time.Since(start)
		e.Time, e.Elapsed = time.Now(), time.Since(start)
		if err != nil {
			e.Type, e.Err = event.StepFailed, err.Error()
			v.sink.Emit(e)
			return v.r, errors.Join(fmt.Errorf("verify %s: %w", dir, err), v.cleanUp())
		}
		if len(v.r.Problems) > n {
			e.Type, e.Err = event.StepFailed, v.r.Problems[n].Problem
			v.sink.Emit(e)
			break
		}
		e.Type = event.StepDone
		if step.level == Opened && v.uncounted {
			// Not reached, and nothing is wrong: level restored lists every object, which proves more.
			e.Msg += ", which could not be compared with the live member"
			v.sink.Emit(e)
			continue
		}
		v.sink.Emit(e)
		v.r.Level = step.level
	}
	v.sink.Emit(event.Event{Time: time.Now(), Type: event.RunFinished, Run: "verify", Elapsed: time.Since(began), Msg: fmt.Sprintf("backup %s is verified to level %s", filepath.Base(dir), v.r.Level)})
	if err := v.cleanUp(); err != nil {
		return v.r, err
	}
	if rec := v.record(before); rec != nil {
		// A backup on a medium that cannot be written is as good as it is.
		if err := writeRecord(dir, *rec); err != nil {
			v.r.NotRecorded = err.Error()
		}
	}
	return v.r, nil
}

// record is what is to be remembered of this verification, nil when it shows
// nothing that is not recorded already.
func (v *verification) record(before *record) *record {
	rec := &record{Manifest: v.m.Digest, Level: v.r.Level, At: time.Now().UTC().Truncate(time.Second), Tool: v.o.Tool}
	if !v.r.OK() {
		if slices.ContainsFunc(v.r.Problems, func(p Problem) bool { return p.File == verifiedName }) || len(v.r.Problems) == 0 {
			return nil // the record is somebody else's, or damaged: it is left for a person to look at
		}
		p := v.r.Problems[0]
		rec.Problem = strings.TrimPrefix(p.File+": "+p.Problem, ": ")
		if before != nil && before.Problem == rec.Problem && before.Level == rec.Level {
			return nil
		}
		return rec
	}
	switch {
	case before != nil && before.Problem != "":
		// What failed then is only known to be good once it was tried again.
		if v.r.Level <= before.Level {
			return nil
		}
		return rec
	case v.r.Level <= v.m.Level, before != nil && v.r.Level <= before.Level:
		return nil
	}
	return rec
}

// verification is a Verify under way.
type verification struct {
	o    VerifyOptions
	sink event.Sink
	dir  string
	m    *Manifest
	r    *Report
	// tmp holds restored data, private the decrypted snapshot, plain is the path of the snapshot in the clear.
	tmp     *tempDir
	private *os.File
	plain   string
	// uncounted says that the snapshot's keys were never compared with the live member's.
	uncounted bool
}

func (v *verification) problem(l Level, file, format string, args ...any) {
	v.r.Problems = append(v.r.Problems, Problem{Level: l, File: file, Problem: fmt.Sprintf(format, args...)})
}

func (v *verification) cleanUp() error {
	var errs []error
	if v.private != nil {
		errs = append(errs, releasePrivate(v.private))
	}
	if v.tmp != nil {
		errs = append(errs, v.tmp.remove())
	}
	v.private, v.tmp, v.plain = nil, nil, ""
	return errors.Join(errs...)
}

func (v *verification) temp() (string, error) {
	if v.tmp == nil {
		var err error
		if v.tmp, err = newTempDir(v.o.TempDir); err != nil {
			return "", err
		}
	}
	return v.tmp.path, nil
}

// copied checks that exactly the files of the manifest are there, with their sizes.
func (v *verification) copied(context.Context) error {
	listed := map[string]int64{}
	for _, f := range v.m.Files {
		listed[f.Path] = f.Size
	}
	err := filepath.WalkDir(v.dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(v.dir, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if e.IsDir() || name == manifestName || name == verifiedName || recordLeftover(name) {
			return nil
		}
		size, ok := listed[name]
		if !ok {
			v.problem(Copied, name, "is not in the manifest")
			return nil
		}
		delete(listed, name)
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case !info.Mode().IsRegular():
			v.problem(Copied, name, "is no regular file")
		case info.Size() != size:
			v.problem(Copied, name, "has %d bytes, not %d", info.Size(), size)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, f := range v.m.Files {
		if _, ok := listed[f.Path]; ok {
			v.problem(Copied, f.Path, "is missing")
		}
	}
	return nil
}

// recordLeftover says of a file whether it is a record of a verification that
// was killed while it wrote it.
func recordLeftover(name string) bool { return strings.HasPrefix(name, "."+verifiedName+".part-") }

// hashes compares every file's digest, and the snapshot's own.
func (v *verification) hashes(ctx context.Context) error {
	problems := make([]error, len(v.m.Files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i := range v.m.Files {
		f := &v.m.Files[i]
		v.r.Files++
		v.r.Bytes += f.Size
		g.Go(func() error {
			err := checkFile(gctx, v.dir, f)
			if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
				problems[i] = damaged
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, p := range problems {
		if damaged := (*DamagedError)(nil); errors.As(p, &damaged) {
			v.problem(HashVerified, v.m.Files[i].Path, "%s", damaged.Problem)
		}
	}
	if e := v.m.Etcd; e != nil {
		f := v.m.File(e.File)
		switch {
		case f == nil:
			v.problem(HashVerified, e.File, "is the etcd snapshot and not in the manifest's list of files")
		case !f.Encrypted && f.SHA256 != e.SHA256:
			v.problem(HashVerified, e.File, "the manifest gives the snapshot two digests")
		case !f.Encrypted && len(problems) > 0 && problems[slices.IndexFunc(v.m.Files, func(x File) bool { return x.Path == e.File })] == nil:
			return v.checkTrailer(ctx, filepath.Join(v.dir, filepath.FromSlash(e.File)))
		}
	}
	return nil
}

// checkTrailer compares the digest that etcd appended with the content.
func (v *verification) checkTrailer(ctx context.Context, p string) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	t := newTrailerWriter(io.Discard)
	if _, err := io.Copy(t, &ctxReader{ctx, f}); err != nil {
		return fmt.Errorf("read %s: %w", p, err)
	}
	if err := t.check(); err != nil {
		v.problem(HashVerified, v.m.Etcd.File, "%v", err)
	}
	return nil
}

// opened opens what has a format of its own: the snapshot's database, the
// objects, the releases and the mount map.
func (v *verification) opened(ctx context.Context) error {
	if err := v.openLines(ctx); err != nil {
		return err
	}
	e := v.m.Etcd
	if e == nil {
		v.problem(Opened, "", "the backup holds no etcd snapshot: %s", v.partDetail("etcd"))
		return nil
	}
	plain, err := v.snapshotFile(ctx)
	if err != nil || plain == "" {
		return err
	}
	c, err := ReadContents(ctx, plain)
	if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
		v.problem(Opened, e.File, "%s", damaged.Problem)
		return nil
	}
	if err != nil {
		return err
	}
	v.r.Encrypted = c.Encrypted
	if c.Revision != e.Revision || c.Hash != e.Hash || c.TotalKeys != e.TotalKeys {
		v.problem(Opened, e.File, "holds revision %d, %d keys, hash %d; the manifest says revision %d, %d keys, hash %d", c.Revision, c.TotalKeys, c.Hash, e.Revision, e.TotalKeys, e.Hash)
	}
	if c.Lineage != "" && c.Lineage != v.m.Lineage {
		v.problem(Opened, e.File, "belongs to another cluster: its kube-system has UID %s, the manifest says %s", c.Lineage, v.m.Lineage)
	}
	for _, d := range countDifferences(e.Counts, c.Counts) {
		v.problem(Opened, e.File, "%s", d)
	}
	if e.LiveCounts != liveEqual {
		v.uncounted = true
		v.r.Limits = append(v.r.Limits, Limit{
			Level: HashVerified, Reason: "how many keys the live member had at the snapshot's revision was never known (" + e.LiveCounts + "), so that level opened is not reached",
			Remedy: "prove more than that level does with --level restored, or take another backup",
		})
	}
	// Said at this level already: who asks for no more should know that there is no more.
	settings, err := v.apiserverSettings()
	if settings.limit != nil {
		v.r.Limits = append(v.r.Limits, *settings.limit)
	}
	return err
}

// openLines decodes every object that is kept, and compares objects with what
// was counted when they were written.
func (v *verification) openLines(ctx context.Context) error {
	src := &backupSource{v.dir, v.m, v.o.Identities}
	// What cannot be read at all is no word on the content; everything else is:
	// it does not decrypt, decompress or decode to what was written.
	damaged := func(file string, err error) error {
		if d := (*DamagedError)(nil); errors.As(err, &d) {
			v.problem(Opened, file, "%s", d.Problem)
			return nil
		}
		if err == nil || ctx.Err() != nil || errors.As(err, new(*fs.PathError)) || errors.As(err, new(*KeyError)) {
			return err
		}
		v.problem(Opened, file, "%v", err)
		return nil
	}
	for i := range v.m.Resources {
		p := &v.m.Resources[i]
		if p.File == "" {
			continue
		}
		n := 0
		ids := newIdentityDigest()
		err := src.each(ctx, p.id(), "", func(line []byte) error {
			n++
			if err := ids.add(line); err != nil {
				return &DamagedError{p.File, fmt.Sprintf("line %d: %v", n, err)}
			}
			return nil
		})
		if err := damaged(p.File, err); err != nil {
			return err
		}
		if err == nil && (n != p.Count || ids.sum() != p.Identities) {
			v.problem(Opened, p.File, "holds %d objects that are not the %d which the manifest counts", n, p.Count)
		}
	}
	for i := range v.m.Files {
		f := &v.m.Files[i]
		if !strings.HasPrefix(f.Path, "releases/") {
			continue
		}
		r, err := v.m.open(v.dir, f, v.o.Identities)
		if err != nil {
			return err
		}
		n := 0
		err = readLines(&ctxReader{ctx, r}, func(line []byte) error {
			if n++; !json.Valid(line) {
				return &DamagedError{f.Path, fmt.Sprintf("line %d is no JSON", n)}
			}
			return nil
		})
		if err := errors.Join(damaged(f.Path, err), r.Close()); err != nil {
			return err
		}
	}
	_, err := src.mounts(ctx)
	return damaged(mountsName, err)
}

func countDifferences(want, got map[string]int) []string {
	var out []string
	for p, n := range want {
		if got[p] != n {
			out = append(out, fmt.Sprintf("holds %d keys under %s, not %d", got[p], p, n))
		}
	}
	for p, n := range got {
		if _, ok := want[p]; !ok {
			out = append(out, fmt.Sprintf("holds %d keys under %s that the manifest does not know", n, p))
		}
	}
	slices.Sort(out)
	return out
}

func (v *verification) partDetail(name string) string {
	if p := v.m.Part(name); p != nil {
		return strings.TrimSuffix(p.Status+": "+p.Detail, ": ")
	}
	return "the manifest does not say why"
}

// snapshotFile gives the snapshot in the clear, decrypting it when it is not; "" after a problem.
func (v *verification) snapshotFile(ctx context.Context) (string, error) {
	if v.plain != "" {
		return v.plain, nil
	}
	e := v.m.Etcd
	f := v.m.File(e.File)
	p := filepath.Join(v.dir, filepath.FromSlash(e.File))
	if !f.Encrypted {
		v.plain = p
		return p, nil
	}
	r, err := v.m.open(v.dir, f, v.o.Identities)
	if err != nil {
		return "", err
	}
	defer r.Close()
	dir := cmp.Or(v.o.TempDir, os.TempDir())
	if err := checkFree(dir, e.Size, "--temp-dir"); err != nil {
		return "", err
	}
	out, plain, err := privateFile(dir)
	if err != nil {
		return "", err
	}
	v.private = out
	t := newTrailerWriter(out)
	if _, err := io.CopyBuffer(struct{ io.Writer }{t}, &ctxReader{ctx, r}, make([]byte, 1<<20)); err != nil {
		return "", fmt.Errorf("decrypt %s: %w", p, err)
	}
	sum, err := t.sum()
	if err != nil {
		return "", err
	}
	if sum != e.SHA256 {
		v.problem(HashVerified, e.File, "decrypts to other content than was encrypted: digest %s, not %s", sum, e.SHA256)
		return "", nil
	}
	if err := t.check(); err != nil {
		v.problem(HashVerified, e.File, "%v", err)
		return "", nil
	}
	v.plain = plain
	return plain, nil
}

// checkFile compares a file with its entry; a difference is a *DamagedError.
func checkFile(ctx context.Context, dir string, f *File) error {
	p := filepath.Join(dir, filepath.FromSlash(f.Path))
	r, err := os.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		return &DamagedError{p, "is missing"}
	}
	if err != nil {
		return err
	}
	defer r.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, &ctxReader{ctx, r}, make([]byte, 1<<20))
	if err != nil {
		return fmt.Errorf("read %s: %w", p, err)
	}
	if n != f.Size {
		return &DamagedError{p, fmt.Sprintf("has %d bytes, not %d", n, f.Size)}
	}
	if sum := hex.EncodeToString(h.Sum(nil)); sum != f.SHA256 {
		return &DamagedError{p, fmt.Sprintf("its digest is %s, not %s", sum, f.SHA256)}
	}
	return nil
}

// ctxReader ends a copy when ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// KeyError is an encrypted backup that the given identities or passphrase do not open.
type KeyError struct {
	Path       string
	Recipients string
	Err        error
}

func (e *KeyError) Error() string {
	how := "give the identity file of one of these with -i"
	if e.Recipients == PassphraseRecipient {
		how = "give the file with the passphrase with --passphrase-file"
	}
	return fmt.Sprintf("decrypt %s: %v; it is encrypted for %s: %s", e.Path, e.Err, e.Recipients, how)
}

// Unwrap gives the reason.
func (e *KeyError) Unwrap() error { return e.Err }

// open opens a file of the backup in dir, decrypting it when needed.
func (m *Manifest) open(dir string, f *File, ids []age.Identity) (io.ReadCloser, error) {
	if f.Encrypted && m.Encryption != nil && m.Encryption.KeyFile != "" && f.Path != m.Encryption.KeyFile {
		key, err := m.key(dir, ids)
		if err != nil {
			return nil, err
		}
		ids = []age.Identity{key}
	}
	p := filepath.Join(dir, filepath.FromSlash(f.Path))
	r, err := os.Open(p)
	if err != nil {
		return nil, err
	}
	if !f.Encrypted {
		return r, nil
	}
	recipients := "nobody that the manifest names"
	if m.Encryption != nil {
		recipients = strings.Join(m.Encryption.Recipients, ", ")
	}
	if len(ids) == 0 {
		return nil, errors.Join(&KeyError{Path: p, Recipients: recipients, Err: errors.New("no identity or passphrase was given")}, r.Close())
	}
	plain, err := age.Decrypt(bufio.NewReaderSize(r, 1<<20), ids...)
	if none := (*age.NoIdentityMatchError)(nil); errors.As(err, &none) {
		err = errors.New("what was given does not open it")
		if recipients == PassphraseRecipient {
			err = errors.New("the passphrase is wrong")
		}
	}
	if err != nil {
		return nil, errors.Join(&KeyError{Path: p, Recipients: recipients, Err: err}, r.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, r}, nil
}
