package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/belayops/belay/internal/event"
)

// objectWorkers is how many resources are listed at a time.
const objectWorkers = 4

// maxRestarts bounds how often a list begins anew because its continue token expired.
const maxRestarts = 5

// objectPath is where the objects of a resource lie in a backup.
func objectPath(group, name string) string {
	if group == "" {
		group = "core"
	}
	return "objects/" + group + "/" + name + ".jsonl.zst"
}

// aliases are resources that show the same objects as another: they are
// stored once, and need to be read once.
var aliases = map[string]string{"events": "events.events.k8s.io"}

// objects writes every object of every resource. With an etcd part, every list
// is asked for at the snapshot's revision, so that both show one instant.
func (c *creation) objects(ctx context.Context) error {
	api, err := newAPIClient(c.o.REST)
	if err != nil {
		return err
	}
	defer api.http.CloseIdleConnections()
	cat, err := api.catalogue(ctx)
	if err != nil {
		if fatal(ctx, err) {
			return err
		}
		for _, name := range []string{"objects", "volumes"} {
			c.add(Part{Name: name, Status: PartIncomplete, Missing: []string{err.Error()}})
		}
		return nil
	}
	part := Part{Name: "objects", Status: PartComplete}
	for gv, reason := range cat.failed {
		if group, _, _ := strings.Cut(gv, "/"); !cat.remote[group] {
			part.Status = PartIncomplete
			part.Missing = append(part.Missing, "API group "+gv+": "+reason)
		}
	}
	at := ""
	if c.m.Etcd != nil {
		at = strconv.FormatInt(c.m.Etcd.Revision, 10)
	}
	served := map[string]bool{}
	for _, r := range cat.resources {
		served[r.id()] = true
	}
	mounts := newMountCollector()
	var mu sync.Mutex
	total, done := 0, 0
	var notes []string
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(objectWorkers)
	for _, r := range cat.resources {
		if alias := aliases[r.id()]; alias != "" && served[alias] {
			continue
		}
		g.Go(func() error {
			secret := secretKind(r.group, r.name)
			out, err := c.objectStream(gctx, api, r, at, secret && !c.d.encrypts(true), mounts)
			mu.Lock()
			defer mu.Unlock()
			if done++; done%20 == 0 {
				c.sink.Emit(event.Event{Time: time.Now(), Type: event.StepProgress, Run: "backup", Step: "objects", Msg: fmt.Sprintf("objects of %d of %d resources are written", done, len(cat.resources))})
			}
			switch {
			case err != nil && fatal(gctx, err):
				return err
			case err != nil:
				why := err.Error()
				switch {
				case apierrors.IsForbidden(err):
					why = "forbidden"
				case apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err):
					// It went away after it was discovered.
					why = "no longer served"
				}
				mounts.reset(r)
				part.Status = PartIncomplete
				part.Missing = append(part.Missing, r.id()+": "+why)
				return nil
			}
			if secret && out.File == "" && out.Count > 0 {
				if c.m.Etcd == nil {
					// Nothing of this backup holds them.
					part.Status = PartIncomplete
					part.Missing = append(part.Missing, fmt.Sprintf("%s: %d left out, as nothing is encrypted (give --recipient or --passphrase-file)", r.id(), out.Count))
				} else {
					notes = append(notes, fmt.Sprintf("%d Secrets left out, as nothing is encrypted; the snapshot has them", out.Count))
				}
			}
			total += out.Count
			c.m.Resources = append(c.m.Resources, out)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	slices.SortFunc(c.m.Resources, func(a, b ResourcePart) int {
		return strings.Compare(a.Group+"/"+a.Resource, b.Group+"/"+b.Resource)
	})
	slices.Sort(part.Missing)
	part.Detail = strings.Join(append([]string{fmt.Sprintf("%d objects of %d resources", total, len(c.m.Resources))}, notes...), "; ")
	if len(cat.remote) > 0 {
		part.Detail += "; groups of aggregated servers are theirs to back up: " + strings.Join(sortedKeys(cat.remote), ", ")
	}
	c.add(part)
	return c.mounts(mounts)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// objectStream writes the objects of one resource, or only counts them.
func (c *creation) objectStream(ctx context.Context, api *apiClient, r resource, at string, countOnly bool, mounts *mountCollector) (ResourcePart, error) {
	out := ResourcePart{Group: r.group, Resource: r.name, Version: r.version, Versions: r.versions, Kind: r.kind}
	for {
		mounts.reset(r)
		err := c.objectStreamOnce(ctx, api, r, at, countOnly, mounts, &out)
		switch {
		case err == nil || fatal(ctx, err) || out.Restarts == maxRestarts:
			return out, err
		case apierrors.IsResourceExpired(err):
			// The revision, or the continue token, is older than the apiserver's
			// compaction. What was read belongs to that revision only, so it is
			// thrown away, and the list begins anew at the present.
			at = ""
		case errors.As(err, new(*CutError)):
			// Some objects were seen already; the whole list is read anew.
		default:
			return out, err
		}
		out.Restarts++
	}
}

func (c *creation) objectStreamOnce(ctx context.Context, api *apiClient, r resource, at string, countOnly bool, mounts *mountCollector, out *ResourcePart) (err error) {
	out.Count, out.File = 0, ""
	ids := newIdentityDigest()
	defer func() { out.Identities = ids.sum() }()
	if countOnly {
		out.ResourceVersion, err = api.list(ctx, r.path(), at, func(raw json.RawMessage) error {
			out.Count++
			return ids.add(raw)
		})
		return err
	}
	w, err := c.d.create(objectPath(r.group, r.name), mayHoldSecrets(r.group, r.name))
	if err != nil {
		return local(err)
	}
	defer func() { err = errors.Join(err, local(w.Abort())) }()
	z, err := newCompressor(w)
	if err != nil {
		return local(err)
	}
	lw := &lineWriter{w: z}
	if !r.custom {
		// Within lists, built-in objects come without their type.
		lw.head = []byte(`{"apiVersion":"` + r.apiVersion() + `","kind":"` + r.kind + `",`)
	}
	out.ResourceVersion, err = api.list(ctx, r.path(), at, func(raw json.RawMessage) error {
		out.Count++
		if err := errors.Join(ids.add(raw), mounts.see(r, raw)); err != nil {
			return err
		}
		return local(lw.write(raw))
	})
	if err = errors.Join(err, local(z.Close())); err != nil {
		return err
	}
	if out.Count == 0 {
		return nil // the deferred Abort removes the file
	}
	out.File = w.entry.Path
	return local(w.Close())
}

// newCompressor makes a compressor whose memory is bounded at a few MiB.
func newCompressor(w io.Writer) (*zstd.Encoder, error) {
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
}

// lineWriter writes objects as JSON lines.
type lineWriter struct {
	w    io.Writer
	head []byte
	buf  []byte
}

func (l *lineWriter) write(raw json.RawMessage) error {
	l.buf = l.buf[:0]
	if len(l.head) > 0 && len(raw) > 2 && raw[0] == '{' && !hasKind(raw) {
		l.buf = append(l.buf, l.head...)
		l.buf = append(l.buf, raw[1:]...)
	} else {
		l.buf = append(l.buf, raw...)
	}
	// An apiserver encodes an object in one line; a proxy may not.
	for i, b := range l.buf {
		if b == '\n' || b == '\r' {
			l.buf[i] = ' '
		}
	}
	l.buf = append(l.buf, '\n')
	_, err := l.w.Write(l.buf)
	return err
}

// hasKind says whether an object starts with its type.
func hasKind(raw json.RawMessage) bool {
	s := string(raw[:min(len(raw), 32)])
	return strings.HasPrefix(s, `{"kind":`) || strings.HasPrefix(s, `{"apiVersion":`)
}

// identity is what tells one object, at one state, from all others.
type identity struct {
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// identify reads an object's identity. An apiserver writes metadata first, or
// after the type, so that most of the object is never looked at.
func identify(raw []byte) (identity, error) {
	var id identity
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := expect(d, json.Delim('{')); err != nil {
		return id, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return id, err
		}
		if key == "metadata" {
			if err := d.Decode(&id); err != nil {
				return id, err
			}
			break
		}
		var skip json.RawMessage
		if err := d.Decode(&skip); err != nil {
			return id, err
		}
	}
	if id.Name == "" || id.UID == "" {
		return id, errors.New("an object without name or UID")
	}
	return id, nil
}

// identityDigest is a digest over the identities of objects in order.
type identityDigest struct{ h hash.Hash }

func newIdentityDigest() *identityDigest { return &identityDigest{sha256.New()} }

func (d *identityDigest) add(raw []byte) error {
	id, err := identify(raw)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(d.h, "%s\x00%s\x00%s\x00%s\n", id.Namespace, id.Name, id.UID, id.ResourceVersion)
	return err
}

func (d *identityDigest) sum() string { return "sha256:" + hex.EncodeToString(d.h.Sum(nil)) }
