package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/controlplane"
	"github.com/belayops/belay/internal/event"
)

// RevisionBump is how far a restore moves the revision forward, so that it
// passes every revision that a client may have seen after the snapshot was
// taken. With the old revisions marked compacted, watchers start anew instead
// of missing changes. A billion is hours of writes that no etcd can do.
// Source: https://etcd.io/docs/v3.6/op-guide/recovery/#restoring-with-revision-bump
const RevisionBump = 1_000_000_000

// RestoreReport is what the restored level saw.
type RestoreReport struct {
	// Etcd and APIServer are the programs that ran.
	Etcd      string `json:"etcd"`
	APIServer string `json:"apiserver"`
	// Revision is the restored one, at which everything was listed.
	Revision int64 `json:"revision"`
	// Objects were listed, of each resource as many as Resources says.
	Objects   int            `json:"objects"`
	Resources map[string]int `json:"resources"`
	// Compared is how many resources of the object part show the snapshot's very
	// revision; their objects are those that were listed, by name, UID and resourceVersion.
	Compared int `json:"compared"`
	// Unserved counts the keys under prefixes that no served resource reads; the cluster itself did not serve them either.
	Unserved map[string]int `json:"unserved,omitempty"`
	// Remote are API groups of aggregated servers, whose objects are not in this etcd.
	Remote []string `json:"remote,omitempty"`
	// Encryption says that the backup's EncryptionConfiguration was used.
	Encryption bool `json:"encryption,omitempty"`
	// StartedIn is the time until the apiserver was ready, ListedIn that of the lists, in nanoseconds.
	StartedIn time.Duration `json:"startedIn"`
	ListedIn  time.Duration `json:"listedIn"`
}

// RestoreData makes an etcd data directory of a snapshot for the single
// member that package controlplane runs. The revision is bumped by
// RevisionBump and everything before it marked compacted.
func RestoreData(file, dataDir string) error {
	return restoreMember(file, dataDir, controlplane.MemberName, controlplane.DefaultPeerURL,
		controlplane.MemberName+"="+controlplane.DefaultPeerURL, "belay-restore")
}

func restoreMember(file, dataDir, name, peerURL, initialCluster, token string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &DamagedError{file, fmt.Sprint("the database library gave up: ", r)}
		}
	}()
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: name, OutputDataDir: dataDir,
		PeerURLs: []string{peerURL}, InitialCluster: initialCluster, InitialClusterToken: token,
		RevisionBump: RevisionBump, MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("restore %s into %s: %w", file, dataDir, err)
	}
	return nil
}

// restored runs an etcd from the snapshot and the cluster's apiserver over it, and lists every object.
func (v *verification) restored(ctx context.Context) (err error) {
	if v.o.Binaries == nil {
		return errors.New("level restored needs the cluster's own etcd and kube-apiserver, and none were given")
	}
	bin, err := v.o.Binaries(v.m.Version)
	if err != nil {
		return err
	}
	if v.plain == "" {
		return errors.New("the snapshot was not opened")
	}
	tmp, err := v.temp()
	if err != nil {
		return err
	}
	if err := checkFree(tmp, v.m.Etcd.Size, "--temp-dir"); err != nil {
		return err
	}
	settings, err := v.apiserverSettings()
	if err != nil {
		return err
	}
	if settings.limit != nil {
		v.problem(Restored, "", "%s; %s", settings.limit.Reason, settings.limit.Remedy)
		return nil
	}
	r := &RestoreReport{Revision: v.m.Etcd.Revision + RevisionBump, Resources: map[string]int{}, Encryption: len(settings.encryption) > 0}
	v.r.Restore = r
	start := time.Now()
	dataDir := filepath.Join(tmp, "etcd", "data")
	if err := RestoreData(v.plain, dataDir); err != nil {
		if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
			v.problem(Restored, v.m.Etcd.File, "%s", damaged.Problem)
			return nil
		}
		return err
	}
	pki, err := controlplane.NewPKI(filepath.Join(tmp, "pki"))
	if err != nil {
		return err
	}
	exited := (*controlplane.ExitedError)(nil)
	etcd, err := controlplane.StartEtcd(ctx, controlplane.EtcdOptions{Binary: bin.Etcd, Dir: filepath.Join(tmp, "etcd"), DataDir: dataDir, PKI: pki})
	if errors.As(err, &exited) {
		v.problem(Restored, v.m.Etcd.File, "etcd does not start from it: %v", exited)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Stop(context.WithoutCancel(ctx))) }()
	api, err := controlplane.StartAPIServer(ctx, controlplane.APIServerOptions{
		Binary: bin.APIServer, Dir: filepath.Join(tmp, "apiserver"), PKI: pki, Etcd: etcd,
		EncryptionConfig: settings.encryption, ServiceCIDR: settings.serviceCIDR, Args: settings.args,
	})
	if errors.As(err, &exited) {
		v.problem(Restored, v.m.Etcd.File, "kube-apiserver %s does not start over it: %v", v.m.Version, exited)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Stop(context.WithoutCancel(ctx))) }()
	r.StartedIn = time.Since(start)
	start = time.Now()
	err = v.listAll(ctx, api.RESTConfig(), settings.root, r)
	r.ListedIn = time.Since(start)
	return err
}

// listAll lists every resource at the restored revision and compares the counts with the snapshot's.
func (v *verification) listAll(ctx context.Context, cfg *rest.Config, root string, r *RestoreReport) error {
	client, err := newAPIClient(cfg)
	if err != nil {
		return err
	}
	defer client.http.CloseIdleConnections()
	if info, err := client.disc.ServerVersion(); err == nil {
		r.APIServer = info.GitVersion
	}
	r.Etcd = v.m.Etcd.Version
	cat, err := client.settledCatalogue(ctx)
	if err != nil {
		return err
	}
	r.Remote = slices.Sorted(maps.Keys(cat.remote))
	for gv, reason := range cat.failed {
		if group, _, _ := strings.Cut(gv, "/"); !cat.remote[group] {
			v.problem(Restored, v.m.Etcd.File, "API group %s cannot be served over it: %s", gv, reason)
		}
	}
	var mu sync.Mutex
	listed := map[string]int{} // by storage prefix
	rv := strconv.FormatInt(r.Revision, 10)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	done := 0
	for _, res := range cat.resources {
		g.Go(func() error {
			n := 0
			ids := newIdentityDigest()
			_, err := client.list(gctx, res.path(), rv, func(raw json.RawMessage) error {
				n++
				return ids.add(raw)
			})
			mu.Lock()
			defer mu.Unlock()
			done++
			if done%20 == 0 || done == len(cat.resources) {
				v.sink.Emit(event.Event{Time: time.Now(), Type: event.StepProgress, Run: "verify", Step: Restored.String(), Msg: fmt.Sprintf("%d of %d resources listed", done, len(cat.resources))})
			}
			if gctx.Err() != nil {
				return gctx.Err()
			}
			if err != nil {
				v.problem(Restored, v.m.Etcd.File, "%s cannot be listed: %v", res.id(), err)
				return nil
			}
			if p := v.m.resource(res.group, res.name); p != nil && p.ResourceVersion == strconv.FormatInt(v.m.Etcd.Revision, 10) {
				r.Compared++
				if p.Count != n || p.Identities != ids.sum() {
					v.problem(Restored, p.File, "%s: the %d objects of the object part are not the %d that the restored apiserver lists", res.id(), p.Count, n)
				}
			}
			prefix := res.storagePrefix(root)
			want := v.m.Etcd.Counts[prefix]
			listed[prefix] = n
			if n > 0 {
				r.Resources[res.id()] = n
			}
			if n != want {
				v.problem(Restored, v.m.Etcd.File, "%s: %d objects listed, %d keys in the snapshot under %s", res.id(), n, want, prefix)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, n := range listed {
		r.Objects += n
	}
	for prefix, n := range v.m.Etcd.Counts {
		if _, ok := listed[prefix]; ok || prefix == OtherKeys || slices.Contains(notObjects, strings.Trim(strings.TrimPrefix(prefix, root), "/")) {
			continue
		}
		if r.Unserved == nil {
			r.Unserved = map[string]int{}
		}
		r.Unserved[prefix] = n
	}
	slices.SortFunc(v.r.Problems, func(a, b Problem) int { return strings.Compare(a.Problem, b.Problem) })
	if len(listed) == 0 {
		v.problem(Restored, v.m.Etcd.File, "the apiserver serves no resource over it")
	}
	return nil
}

// settledCatalogue waits until every custom resource is served: an apiserver
// is ready before it has installed them all.
func (c *apiClient) settledCatalogue(ctx context.Context) (*catalogue, error) {
	var cat *catalogue
	err := condition.Wait(ctx, condition.Condition{Name: "all custom resources to be served", Check: func(ctx context.Context) error {
		var err error
		if cat, err = c.catalogue(ctx); err != nil {
			return err
		}
		missing, err := c.unservedCustom(ctx, cat)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return condition.NotYetf("not served yet: %s", strings.Join(missing, ", "))
		}
		return nil
	}}, condition.Options{Timeout: time.Minute, Interval: 200 * time.Millisecond})
	if err != nil && cat != nil && ctx.Err() == nil {
		// What is not served shows as keys that nothing lists.
		return cat, nil
	}
	return cat, err
}

// unservedCustom names the established custom resources that the catalogue lacks.
func (c *apiClient) unservedCustom(ctx context.Context, cat *catalogue) ([]string, error) {
	served := map[string]bool{}
	for _, r := range cat.resources {
		served[r.id()] = true
	}
	var missing []string
	_, err := c.list(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", func(raw json.RawMessage) error {
		var crd struct {
			Metadata struct {
				Name string `json:"name"` // plural.group
			} `json:"metadata"`
			Status struct {
				Conditions []struct{ Type, Status string } `json:"conditions"`
			} `json:"status"`
		}
		if err := json.Unmarshal(raw, &crd); err != nil {
			return err
		}
		for _, cond := range crd.Status.Conditions {
			if cond.Type == "Established" && cond.Status == "True" && !served[crd.Metadata.Name] {
				missing = append(missing, crd.Metadata.Name)
			}
		}
		return nil
	})
	return missing, err
}

// apiserverSettings is what an apiserver needs to know to read this cluster's data.
type apiserverSettings struct {
	root        string
	serviceCIDR string
	encryption  []byte
	args        []string
	// limit says why the data cannot be read here.
	limit *Limit
}

// flagsThatMatter decide what an apiserver serves and how it reads what is stored.
var flagsThatMatter = []string{"runtime-config", "feature-gates", "emulated-version", "emulation-forward-compatible"}

// apiserverSettings takes the settings from the backup's copy of the apiserver's manifest.
func (v *verification) apiserverSettings() (apiserverSettings, error) {
	s := apiserverSettings{root: "/registry"}
	for i := range v.m.Files {
		f := &v.m.Files[i]
		node, ok := manifestOf(f, "kube-apiserver")
		if !ok {
			continue
		}
		manifest, err := v.read(f)
		if err != nil {
			return s, err
		}
		flag := func(name string) (string, string) {
			value, hostFile, ferr := apiserverFlag(manifest, name)
			err = errors.Join(err, ferr)
			return value, hostFile
		}
		for _, name := range flagsThatMatter {
			if value, _ := flag(name); value != "" {
				s.args = append(s.args, "--"+name+"="+value)
			}
		}
		if value, _ := flag("etcd-prefix"); value != "" {
			s.root = "/" + strings.Trim(value, "/")
			s.args = append(s.args, "--etcd-prefix="+value)
		}
		s.serviceCIDR, _ = flag("service-cluster-ip-range")
		named, hostFile := flag("encryption-provider-config")
		if err != nil {
			return s, fmt.Errorf("read %s: %w", f.Path, err)
		}
		if named == "" {
			return s, nil
		}
		conf := v.m.sourceFile(node, hostFile)
		if conf == nil {
			s.limit = &Limit{
				Level: Opened, Reason: fmt.Sprintf("the cluster encrypts what it stores, and its EncryptionConfiguration (%s on %s) is not in the backup", named, node),
				Remedy: "take a backup for which that file can be read",
			}
			return s, nil
		}
		if s.encryption, err = v.read(conf); err != nil {
			return s, err
		}
		if kms := kmsProviders(s.encryption); len(kms) > 0 {
			s.limit = &Limit{
				Level: Opened, Reason: fmt.Sprintf("the cluster encrypts what it stores with a key management service (%s), so that only an apiserver that reaches it can read the snapshot", strings.Join(kms, ", ")),
				Remedy: "to prove more, restore it with --etcd --onto on machines where the service's plugin runs, apart from the cluster's network, and list its objects there",
			}
		}
		return s, nil
	}
	return s, nil
}

// manifestOf says of which node a file is the static pod manifest of a component.
func manifestOf(f *File, component string) (node string, ok bool) {
	if f.Source != manifestDir+"/"+component+".yaml" {
		return "", false
	}
	parts := strings.SplitN(f.Path, "/", 3)
	return parts[1], len(parts) == 3
}

// sourceFile gives the entry of a node's file, or nil.
func (m *Manifest) sourceFile(node, path string) *File {
	want := nodePath(node, path)
	for i := range m.Files {
		if f := &m.Files[i]; f.Path == want || f.Path == want+ageSuffix {
			return f
		}
	}
	return nil
}

// read gives a small file of the backup in the clear.
func (v *verification) read(f *File) ([]byte, error) {
	r, err := v.m.open(v.dir, f, v.o.Identities)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxNodeFile))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Path, err)
	}
	return b, nil
}

// kmsProviders names the KMS providers of an EncryptionConfiguration.
func kmsProviders(config []byte) []string {
	var out []string
	for k := range encryptionKeys(config) { // of a configuration that is none, none: the apiserver will say what is wrong with it
		if name, ok := strings.CutPrefix(k, "kms:"); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// FindBinaries gives the programs in a directory such as a bundle's bin.
func FindBinaries(dir string) (Binaries, error) {
	b := Binaries{Etcd: filepath.Join(dir, "etcd"), APIServer: filepath.Join(dir, "kube-apiserver")}
	for _, p := range []string{b.Etcd, b.APIServer} {
		if _, err := os.Stat(p); err != nil {
			return Binaries{}, fmt.Errorf("find the programs to restore with: %w", err)
		}
	}
	return b, nil
}
