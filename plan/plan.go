package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/belayops/belay/cluster"
	"github.com/belayops/belay/internal/kubeversion"
)

// Schema names the format of a plan file. The number after v grows with every
// change that an older belay would misread or could not carry out: v2 brought the
// preflight gate, pods named one by one for deletion, and patches of manifests.
const Schema = "belay.dev/plan/v2"

const schemaPrefix = "belay.dev/plan/v"

// Plan is what will be done, in order. Behaviour of the executor comes from
// its steps alone, never from flags given at the time.
type Plan struct {
	Schema string `json:"schema"`
	// Digest is "sha256:" and the sum of the canonical encoding with this field empty.
	Digest string `json:"digest"`
	// Tool is the version of belay that made it.
	Tool string `json:"tool,omitempty"`
	// Lineage is the UID of namespace kube-system: the plan is for that cluster alone.
	Lineage string        `json:"lineage"`
	Cluster string        `json:"cluster,omitempty"`
	From    kubeversion.V `json:"from"`
	To      kubeversion.V `json:"to"`
	// Basis is what the plan relies on; BasisDigest its digest.
	Basis       cluster.Projection `json:"basis"`
	BasisDigest string             `json:"basisDigest"`
	Hops        []Hop              `json:"hops"`
	Bundles     []BundleRef        `json:"bundles"`
	Steps       []Step             `json:"steps"`
	// Waivers are the findings that somebody decided to go on past, as "id@subject".
	Waivers []string `json:"waivers,omitempty"`
	// Findings are what was known and did not block: warnings, remarks, and what was waived.
	Findings []Finding `json:"findings,omitempty"`
}

// Hop is one minor step (or one patch step) of the control plane.
type Hop struct {
	From kubeversion.V `json:"from"`
	To   kubeversion.V `json:"to"`
	// Workers says whether workers' kubelets make this hop; without it they stay where they are, within the allowed skew.
	Workers bool   `json:"workers"`
	Why     string `json:"why,omitempty"`
}

// BundleRef pins a bundle by its digest.
type BundleRef struct {
	Version  kubeversion.V `json:"version"`
	Digest   string        `json:"digest"`
	Official bool          `json:"official"`
}

// Kind says what a step does.
type Kind string

// The kinds of step.
const (
	// PreflightGate runs preflight's checks once more, with the waivers of the plan, right before the first change. It changes nothing.
	PreflightGate Kind = "preflight-gate"
	// BackupGate asks for a verified backup of this cluster: at the beginning, and once more right before the first change. It changes nothing.
	BackupGate Kind = "backup-gate"
	// Stage copies a bundle's binaries and images to nodes. Nothing runs from there yet.
	Stage Kind = "stage"
	// EtcdPatch takes one etcd member to a newer patch of its minor, to meet the floor of the next one.
	EtcdPatch Kind = "etcd-patch"
	// KubeadmApply is `kubeadm upgrade apply` on the first control plane node.
	KubeadmApply Kind = "kubeadm-apply"
	// KubeadmNode is `kubeadm upgrade node` on a further control plane node: its static pods.
	KubeadmNode Kind = "kubeadm-node"
	// ControlPlaneGate asks every apiserver, directly, for the new version.
	ControlPlaneGate Kind = "control-plane-gate"
	// Cordon and Uncordon take a node out of scheduling and back, marked with the run's id.
	Cordon   Kind = "cordon"
	Uncordon Kind = "uncordon"
	// Drain evicts a node's pods within their disruption budgets.
	Drain Kind = "drain"
	// KubeletConfig is `kubeadm upgrade node` on a worker: the kubelet's configuration.
	KubeletConfig Kind = "kubelet-config"
	// Kubelet replaces a node's kubelet and kubectl and proves that the new one runs.
	Kubelet Kind = "kubelet"
	// Canary proves the way from the API to a running container on one node.
	Canary Kind = "canary"
	// NodeGate compares nodes and workloads with the baseline.
	NodeGate Kind = "node-gate"
	// Verify proves the whole cluster at the target.
	Verify Kind = "verify"
)

// Step is the smallest unit that is journaled.
type Step struct {
	// ID is stable: "kubelet@1.37.2/w1".
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	Node string `json:"node,omitempty"`
	// Hop is the index of the hop that the step belongs to.
	Hop    int    `json:"hop"`
	Params Params `json:"params,omitzero"`
	// Preconditions are looked at, live, right before the step begins.
	Preconditions []Precondition `json:"preconditions,omitempty"`
	// Reversible says that the step can be undone by belay or by hand without restoring a backup.
	Reversible bool `json:"reversible"`
	// PointOfNoReturn says what cannot be taken back once the step begins; empty otherwise.
	PointOfNoReturn string `json:"pointOfNoReturn,omitempty"`
	// Until is the step at whose end the effect of this one is no longer needed. A resumed run looks again at done
	// steps whose effect must still hold. Empty: for ever; Once: never.
	Until string `json:"until,omitempty"`
}

// Once in Step.Until marks a step whose success is an event, not a lasting state.
const Once = "once"

// Params are what a step needs to know. Which of them are set depends on the kind.
type Params struct {
	// Version is the Kubernetes version that the step takes its subject to; the bundle of that version is used.
	Version kubeversion.V `json:"version,omitzero"`
	// Nodes are those of a Stage step.
	Nodes []string `json:"nodes,omitempty"`
	// Image, EtcdFrom and EtcdVersion are for etcd: the image to set, the version before and after ("3.7.0").
	Image       string        `json:"image,omitempty"`
	EtcdFrom    kubeversion.V `json:"etcdFrom,omitzero"`
	EtcdVersion kubeversion.V `json:"etcdVersion,omitzero"`
	// IgnorePreflightErrors are kubeadm's preflight checks that do not hold for these machines.
	IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
	// PatchesDir is a directory on every machine with patches that kubeadm puts onto the manifests and the kubelet's configuration
	// that it writes (kubeadm --patches).
	PatchesDir string `json:"patchesDir,omitempty"`
	// DeleteEmptyDir lets a drain evict pods with emptyDir volumes, whose data is then gone. BarePods are the pods without a
	// controller, "namespace/name", that somebody accepted to lose: a drain deletes these and no others.
	DeleteEmptyDir bool     `json:"deleteEmptyDir,omitempty"`
	BarePods       []string `json:"barePods,omitempty"`
	// TimeoutSeconds bounds a drain.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// Accept are the waivers, "id@subject", with which PreflightGate runs the checks.
	Accept []string `json:"accept,omitempty"`
	// BackupLevel and BackupMaxAgeSeconds are for BackupGate.
	BackupLevel         string `json:"backupLevel,omitempty"`
	BackupMaxAgeSeconds int    `json:"backupMaxAgeSeconds,omitempty"`
	// CanaryImage is what the canary pod runs.
	CanaryImage string `json:"canaryImage,omitempty"`
}

// IsZero says whether nothing is set.
func (p Params) IsZero() bool {
	b, err := json.Marshal(p)
	return err == nil && string(b) == "{}"
}

// PreconditionKind says what must hold before a step begins.
type PreconditionKind string

// The preconditions. The executor refuses a step with one that it does not know.
const (
	// APIServersAtLeast: every apiserver, asked directly, runs Version or newer.
	APIServersAtLeast PreconditionKind = "apiservers-at-least"
	// APIServersWithinOneMinor: no apiserver is more than one minor from Version, and none is newer.
	APIServersWithinOneMinor PreconditionKind = "apiservers-within-one-minor"
	// KubeadmConfigIs: ConfigMap kubeadm-config names Version.
	KubeadmConfigIs PreconditionKind = "kubeadm-config-is"
	// EtcdHealthy: every etcd member answers a read that needs quorum, so that restarting one leaves the others.
	EtcdHealthy PreconditionKind = "etcd-healthy"
	// EtcdAtLeast: every etcd member says that it runs Version or newer.
	EtcdAtLeast PreconditionKind = "etcd-at-least"
	// NodeCordoned: the node takes no new pods.
	NodeCordoned PreconditionKind = "node-cordoned"
	// NodeReady: the node is Ready.
	NodeReady PreconditionKind = "node-ready"
)

// Precondition is one thing that must hold before a step begins.
type Precondition struct {
	Kind    PreconditionKind `json:"kind"`
	Node    string           `json:"node,omitempty"`
	Version kubeversion.V    `json:"version,omitzero"`
}

// Severity says what a finding does to a plan.
type Severity string

// The severities: Block stands in the way unless it is waived, Warn needs attention, Info is a remark.
const (
	Block Severity = "block"
	Warn  Severity = "warn"
	Info  Severity = "info"
)

// Finding is something that was noticed while planning.
type Finding struct {
	ID       string   `json:"id"`
	Subject  string   `json:"subject"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy,omitempty"`
	// Waivable says whether --accept=id@subject can go past it; Waived that somebody did.
	Waivable bool `json:"waivable,omitempty"`
	Waived   bool `json:"waived,omitempty"`
}

// Waiver is the name under which the finding is waived.
func (f Finding) Waiver() string { return f.ID + "@" + f.Subject }

// Blocks says whether the finding stands in the way.
func (f Finding) Blocks() bool { return f.Severity == Block && !f.Waived }

// Blocked says whether any finding stands in the way.
func Blocked(fs []Finding) bool {
	for _, f := range fs {
		if f.Blocks() {
			return true
		}
	}
	return false
}

// BundleInfo is what planning needs to know of one version's bundle.
type BundleInfo struct {
	Version  kubeversion.V
	Digest   string
	Official bool
	// Etcd is the etcd that the version's kubeadm deploys.
	Etcd kubeversion.V
	// EtcdStep is an etcd of the minor before, and its image, for clusters below the floor; zero without one.
	EtcdStep      kubeversion.V
	EtcdStepImage string
	// CanaryImage is an image of the bundle that stays running without arguments (pause).
	CanaryImage string
	// Components are versions by name: containerd, runc, cni-plugins.
	Components map[string]string
}

// Goal is where to go, and with what.
type Goal struct {
	To kubeversion.V
	// Bundles are those at hand. Of each minor on the way the newest is taken, of the target's minor To itself.
	Bundles []BundleInfo
	// Tool is recorded in the plan.
	Tool string
	// IgnorePreflightErrors is recorded in the steps that run kubeadm.
	IgnorePreflightErrors []string
	// PatchesDir is recorded in the steps that have kubeadm write manifests or a kubelet's configuration.
	PatchesDir string
	// Disposable says that an unofficial bundle is fit for this cluster.
	Disposable bool
}

// Policy is what the operator may choose.
type Policy struct {
	// Accept are waivers, "id@subject".
	Accept []string
	// Preflight is what preflight's checks found on the same state, as findings: those that block are held against Accept
	// as Build's own are.
	Preflight []Finding
	// PreflightGate asks for a first step that runs the checks once more when the plan is applied.
	PreflightGate bool
	// DrainTimeout bounds each drain; 0 means 10 minutes.
	DrainTimeout time.Duration
	// KeepEmptyDir refuses to evict pods with emptyDir volumes.
	KeepEmptyDir bool
	// BackupLevel is the level that the backup gate asks for; BackupMaxAge how old it may be. Empty and 0 mean "restored" and 24 hours.
	BackupLevel  string
	BackupMaxAge time.Duration
}

// WaiveBackup is the waiver that leaves the backup gate out.
const WaiveBackup = "no-backup"

// Encode gives the canonical bytes of a plan, with its digest set.
func (p *Plan) Encode() ([]byte, error) {
	q := *p
	d, err := q.sum()
	if err != nil {
		return nil, err
	}
	q.Digest = d
	return q.bytes()
}

func (p *Plan) bytes() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(p); err != nil {
		return nil, fmt.Errorf("encode plan: %w", err)
	}
	return b.Bytes(), nil
}

func (p *Plan) sum() (string, error) {
	q := *p
	q.Digest = ""
	b, err := q.bytes()
	if err != nil {
		return "", err
	}
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:]), nil
}

// FormatError is a plan that a newer or an older belay made.
type FormatError struct{ Schema string }

func (e *FormatError) Error() string {
	return fmt.Sprintf("the plan has format %s; this belay reads %s: make the plan again with this belay, or use the one that made it", e.Schema, Schema)
}

// TamperedError is a plan whose digest does not fit its content.
type TamperedError struct{ Says, Is string }

func (e *TamperedError) Error() string {
	return fmt.Sprintf("the plan was changed after it was made: its digest says %s, its content has %s; make it again with: belay plan",
		cluster.ShortDigest(e.Says), cluster.ShortDigest(e.Is))
}

// Next is the command to run.
func (e *TamperedError) Next() string { return "belay plan --to VERSION -o plan.json" }

// Decode reads a plan file: strictly, and only if its digest fits.
func Decode(data []byte) (*Plan, error) {
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) && syntax.Offset >= int64(len(data)) {
			return nil, errors.New("the file ends in the middle of the plan: it was not written whole, or was cut")
		}
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if head.Schema != Schema {
		if strings.HasPrefix(head.Schema, schemaPrefix) {
			return nil, &FormatError{Schema: head.Schema}
		}
		return nil, fmt.Errorf("read plan: schema is %q, want %q: this is not a plan file", head.Schema, Schema)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p Plan
	if err := dec.Decode(&p); err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read plan: more data after the plan")
	}
	is, err := p.sum()
	if err != nil {
		return nil, err
	}
	if is != p.Digest {
		return nil, &TamperedError{Says: p.Digest, Is: is}
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("read plan: %w", err)
	}
	return &p, nil
}

// check finds what no plan of this package has.
func (p *Plan) check() error {
	var errs []error
	if p.Lineage == "" || p.To.IsZero() {
		errs = append(errs, errors.New("lineage or target version is missing"))
	}
	if d := p.Basis.Digest(); d != p.BasisDigest {
		errs = append(errs, fmt.Errorf("the basis has digest %s, not %s", cluster.ShortDigest(d), cluster.ShortDigest(p.BasisDigest)))
	}
	seen := map[string]bool{}
	for i, s := range p.Steps {
		if s.ID == "" || s.Kind == "" || seen[s.ID] {
			errs = append(errs, fmt.Errorf("steps[%d]: id %q is empty or used twice, or there is no kind", i, s.ID))
		}
		seen[s.ID] = true
	}
	return errors.Join(errs...)
}

// Step gives the step of that id, or nil.
func (p *Plan) Step(id string) *Step {
	for i := range p.Steps {
		if p.Steps[i].ID == id {
			return &p.Steps[i]
		}
	}
	return nil
}
