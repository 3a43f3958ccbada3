package apicheck

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/belayops/belay/apicheck/lifecycle"
)

func testJudge(t testing.TB, from, to int) *judge {
	t.Helper()
	db, err := lifecycle.Default()
	if err != nil {
		t.Fatal(err)
	}
	return &judge{db: db, from: minor(from), to: minor(to), names: &harmlessNames{}}
}

// agree holds the promise of the fast path: what it passes over, the parser reads without error, finding or gap.
func agree(t *testing.T, j *judge, text []byte) (passed bool) {
	t.Helper()
	if !utf8.Valid(text) {
		return false // refused before it comes so far
	}
	split(text, func(p part) bool {
		c := j.collector()
		if !c.fast(p.text) {
			return true
		}
		passed = true
		if _, err := parseYAML(p.text); err != nil {
			t.Errorf("the fast path passes over what the parser refuses: %v\n%q", err, p.text)
		}
		full := j.collector()
		full.part(origin{what: "x", confidence: High}, p)
		if len(full.findings) > 0 || len(full.unreadable) > 0 {
			t.Errorf("the fast path passes over %v %v\n%q", full.findings, full.unreadable, p.text)
		}
		return true
	})
	return passed
}

func TestFastPathPassesOverWhatIsCommon(t *testing.T) {
	j := testJudge(t, 36, 37)
	for name, text := range map[string]string{
		"deployment":   manifest(0),
		"configmap":    manifest(1),
		"service":      manifest(2),
		"role":         manifest(3),
		"hpa":          manifest(4),
		"crd":          manifest(5),
		"CRLF":         strings.ReplaceAll(manifest(0), "\n", "\r\n"),
		"unicode":      "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n    a: \"größer — ja\"\n    # ✓\n",
		"indentless":   "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: a\n    args:\n    - -x\n    - --y=z\n  - name: b\n  volumes:\n  - name: c\n",
		"nested lists": "apiVersion: v1\nkind: Pod\nx:\n- - a\n  - b\n-\n  c: d\n- {a: b, c: [d, \"e\"]}\n",
		"long text":    "apiVersion: v1\nkind: Pod\nx:\n  description: a text that goes\n    on here\n    and here. (End)\n  y: z\n",
	} {
		text := []byte(text)
		if !agree(t, j, text) {
			t.Errorf("%s: left to the parser", name)
		}
	}
}

// What the fast path must not take for granted.
func TestFastPathLeavesToTheParser(t *testing.T) {
	j := testJudge(t, 24, 25)
	for _, text := range []string{
		"apiVersion: v1\nkind: Pod\n Bar\n", "apiVersion: v1\nkind: Pod\n  Bar\n", "apiVersion: v1\nkind: Pod\na: b\n  c: d\n", "apiVersion: v1\nkind: Pod\na:\n    b: c\n  d: e\n",
		"apiVersion: v1\nkind: Pod\na: |\n  x\n y\n", "apiVersion: v1\nkind: Pod\na: |\n     \n  x\n", "apiVersion: v1\nkind: Pod\n\ta: b\n", "apiVersion: v1\nkind: Pod\na: \"x\n",
		"apiVersion: v1\nkind: Pod\na: \"\\u0061\"\n", "apiVersion: v1\nkind: Pod\na: &x b\n", "apiVersion: v1\nkind: Pod\na: *x\n", "apiVersion: v1\nkind: Pod\n<<: {kind: x}\n",
		"apiVersion: v1\nkind: Pod\nkind: Pod\n", "apiVersion: batch/v1beta1\nkind: CronJob\n", "apiVersion: v1\nkind: List\nitems: []\n", "kind: !!str Pod\napiVersion: v1\n",
		"apiVersion: v1\nkind: Pod\n- a\n", "- apiVersion: v1\n  kind: Pod\n", "apiVersion: v1\nkind: Pod\na: [b\n", "apiVersion: v1\nkind: Pod\na: x\u0085y\n", "apiVersion: v1\nkind: Pod\na: x\u2028b: c\n",
		"apiVersion: v1\nkind: Pod\nmetadata:\n  ownerReferences:\n  - apiVersion: batch/v1beta1\n    kind: CronJob\n",
		"apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    apiVersion: batch/v1beta1\n    kind: CronJob\n", "apiVersion: v1\nkind: Secret\ndata: {}\n",
		"\"apiVersion\": v1\n'kind': \"List\"\n", "apiVersion: v1\nkind: Pod\na: b\rc: d\n", "? apiVersion\n: v1\n", "%YAML 1.1\n---\napiVersion: v1\nkind: Pod\n", "apiVersion: v1\nkind: Pod\n]\n",
	} {
		c := j.collector()
		if c.fast([]byte(text)) {
			t.Errorf("passed over: %q", text)
		}
	}
}

// hostile mixes pieces of YAML, good and bad, into texts that are nearly right.
func hostile(r *rand.Rand) []byte {
	pieces := []string{"apiVersion: v1\n", "apiVersion: batch/v1beta1\n", "apiVersion: apps/v1\n", "kind: Pod\n", "kind: CronJob\n", "kind: List\n", "kind: Deployment\n", "metadata:\n", "  name: a\n", "  labels:\n    a: b\n",
		"spec:\n", "  containers:\n", "  - name: x\n", "    image: y\n", "- a\n", "- b: c\n", "  d: e\n", "items:\n", "a: |\n", "  text\n", "   more\n", "b: >-\n", "c: \"x\"\n", "d: 'y''z'\n", "e: [a, b]\n", "f: {a: b}\n",
		"g: {apiVersion: batch/v1beta1, kind: CronJob}\n", "---\n", "...\n", "# comment\n", "\n", "  \n", "\t\n", " x\n", "h: i #j\n", "k: l: m\n", "n: - o\n", "- - p\n", "-\n", "q:\n", "r: \n", "s: \"\\n\"\n", "t: &u v\n", "w: *u\n", "<<: *u\n",
		"x: !!str y\n", "z: {{ .Values.a }}\n", "{{- if .Values.b }}\n", "aa: \"bb\n", "cc: %dd\n", "ee: @ff\n", "? gg\n", ": hh\n", "ii: |2\n", "jj: |+\n", "      deep\n", "kk:\r\n", "ll: mm\r\n", "nn\n", "oo: pp: \n", "qq: http://rr\n", "ss: \u00e9\n", "tt: \u2028\n", "uu: \u0085\n",
		"  - vv\n", "   ww: xx\n", "ownerReferences:\n", "- apiVersion: batch/v1beta1\n  kind: CronJob\n", "data:\n", "  y.yaml: |\n    apiVersion: batch/v1beta1\n    kind: CronJob\n", "kind: ConfigMap\n", "--- \n", "---x\n", "- \n", "zz: ''\n", "\"apiVersion\": \"v1\"\n", "'kind': Pod\n",
		"  volumes:\n  - glusterfs: {}\n", "spec: {volumes: [{'flocker': {}}]}\n", "  nodeSelector:\n    beta.kubernetes.io/arch: a\n", "spec: {nodeSelector: {\"beta.kubernetes.io/os\": a}}\n",
		"  annotations: {seccomp.security.alpha.kubernetes.io/pod: x}\n", "  annotations:\n    container.seccomp.security.alpha.kubernetes.io/y: x\n", "  - topologyKey: beta.kubernetes.io/arch\n", "topologySpreadConstraints:\n"}
	var b bytes.Buffer
	for range 1 + r.IntN(14) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	out := b.Bytes()
	if r.IntN(3) == 0 && len(out) > 0 { // and a byte wrong
		const odd = " \t\n\r:-#'\"[]{},&*!|>%@`\\x\x00\x80"
		out[r.IntN(len(out))] = odd[r.IntN(len(odd))]
	}
	return out
}

func TestFastPathAgreesOverHostileTexts(t *testing.T) {
	n := 30000
	if testing.Short() {
		n = 3000
	}
	j := testJudge(t, 24, 25)
	r := rand.New(rand.NewPCG(1, 2))
	passed := 0
	for range n {
		if agree(t, j, hostile(r)) {
			passed++
		}
		if t.Failed() {
			return
		}
	}
	if passed < n/20 {
		t.Errorf("only %d of %d texts tried the fast path: the test proves little", passed, n)
	}
}

func FuzzFastPath(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		f.Add(hostile(r))
	}
	for i := range 6 {
		f.Add([]byte(manifest(i)))
	}
	j := testJudge(f, 24, 25)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) < 1<<16 && !bytes.Contains(text, []byte{0}) {
			agree(t, j, text)
		}
	})
}

// FuzzText holds that no text makes the reader fail, and that line numbers stay within it.
func FuzzText(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		f.Add(hostile(r))
	}
	f.Add([]byte(listOfTwo))
	f.Add([]byte(nested(50, "{}")))
	f.Add([]byte("&a {apiVersion: v1, kind: List, items: [*a]}\n"))
	f.Add([]byte("{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{\"kind\":\"CronJob\",\"apiVersion\":\"batch/v1beta1\"}]}"))
	j := testJudge(f, 24, 25)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		c := j.collector()
		c.text(origin{what: "x", source: Source{Type: SourceFile, File: "x"}, confidence: High}, text)
		total := bytes.Count(text, []byte("\n")) + 1
		for _, f := range c.findings {
			if f.Source.Line < 0 || f.Source.Line > total+1 {
				t.Errorf("line %d of %d", f.Source.Line, total)
			}
			if f.Message == "" || f.APIVersion == "" {
				t.Errorf("finding without message or API: %+v", f)
			}
		}
	})
}

func FuzzUnwrap(f *testing.F) {
	f.Add([]byte("{}"))
	f.Add([]byte("e30="))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Add([]byte("ZTMwPQ=="))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := unwrap(data)
		if err == nil && (len(out) == 0 || out[0] != '{') {
			t.Errorf("unwrapped to %q", out)
		}
		_, _ = parseRelease(data)
	})
}

// manifest gives one of several typical manifests of some 4 kB.
func manifest(i int) string {
	switch i % 6 {
	case 0:
		var b strings.Builder
		fmt.Fprintf(&b, "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web-%d\n  namespace: shop\n  labels:\n    app.kubernetes.io/name: web\n    app.kubernetes.io/part-of: \"shop\"\nspec:\n  replicas: 3\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: web\n  template:\n    metadata:\n      labels: {app.kubernetes.io/name: web}\n    spec:\n      containers:\n", i)
		for k := range 6 {
			fmt.Fprintf(&b, "      - name: c%d\n        image: registry.example.com/shop/web:1.%d.0 # pinned\n        args: [\"--listen\", \":8080\", --verbose]\n        command:\n        - /bin/sh\n        - -c\n        - |\n          set -e\n          exec /web --config=/etc/web/config.yaml\n        env:\n        - name: LOG_LEVEL\n          value: \"info\"\n        - name: POD\n          valueFrom:\n            fieldRef:\n              fieldPath: metadata.name\n        resources:\n          requests:\n            cpu: 100m\n            memory: 128Mi\n          limits: {cpu: \"1\", memory: 512Mi}\n", k, i)
		}
		return b.String()
	case 1:
		var b strings.Builder
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-%d\n  namespace: shop\ndata:\n  app.properties: |-\n", i)
		for k := range 80 {
			fmt.Fprintf(&b, "    feature.flag.number%d=enabled # a note: with a colon\n", k)
		}
		return b.String()
	case 2:
		var b strings.Builder
		for k := range 12 {
			fmt.Fprintf(&b, "---\n# service %d\napiVersion: v1\nkind: Service\nmetadata:\n  name: web-%d-%d\n  annotations:\n    example.com/note: 'it''s a note'\nspec:\n  type: ClusterIP\n  selector:\n    app: web\n  ports:\n    - name: http\n      port: 80\n      targetPort: 8080\n", k, i, k)
		}
		return b.String()
	case 3:
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: reader\nrules:\n" + strings.Repeat("- apiGroups: [\"\"]\n  resources: [\"pods\", \"services\"]\n  verbs: [\"get\", \"list\", \"watch\"]\n- apiGroups:\n  - apps\n  resources:\n  - deployments\n  verbs:\n  - get\n", 20)
	case 4:
		return "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata:\n  name: web\nspec:\n  scaleTargetRef:\n    apiVersion: apps/v1\n    kind: Deployment\n    name: web\n  minReplicas: 1\n  maxReplicas: 10\n  metrics:\n" + strings.Repeat("  - type: Resource\n    resource:\n      name: cpu\n      target:\n        type: Utilization\n        averageUtilization: 50\n", 25)
	default:
		var b strings.Builder
		b.WriteString("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: foos.example.com\nspec:\n  group: example.com\n  names:\n    kind: Foo\n    plural: foos\n  scope: Namespaced\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema:\n      openAPIV3Schema:\n        type: object\n        properties:\n")
		for k := range 30 {
			fmt.Fprintf(&b, "          field%d:\n            description: Field %d is one of the fields of a Foo, and says\n              what the controller makes of it (see the documentation).\n            type: string\n", k, k)
		}
		return b.String()
	}
}

// tree writes n manifests of typical content, every hundredth with something to find, and gives their size.
func tree(t testing.TB, dir string, n int) (size int64) {
	t.Helper()
	for i := range n {
		sub := filepath.Join(dir, fmt.Sprintf("d%02d", i%50))
		if i < 50 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		text := manifest(i)
		switch i % 100 {
		case 7:
			text += "---\napiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: old}\n"
		case 53:
			text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: policy/v1beta1\n  kind: PodDisruptionBudget\n---\n" + text
		}
		size += int64(len(text))
		if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("m%05d.yaml", i)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return size
}

func TestFastPathAgreesOverTrees(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, 600)
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 600 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("hostile%03d.yaml", i)), hostile(r), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{From: minor(24), To: minor(25), Files: []string{dir}}
	fast, err := Scan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.FullParse, o.Workers = true, 1
	full, err := Scan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := asJSON(t, fast), asJSON(t, full); a != b {
		t.Error("the reports of fast path and full parse differ")
	}
	if len(fast.Findings) < 12 || len(fast.Coverage.Unreadable) < 100 {
		t.Errorf("%d findings, %d gaps: the tree is too tame", len(fast.Findings), len(fast.Coverage.Unreadable))
	}
}

// reportCPU reports processor time too: on a busy machine it is what can be compared.
func reportCPU(b *testing.B) func() {
	used := func() float64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
	}
	start := used()
	return func() { b.ReportMetric((used()-start)/float64(b.N), "cpu-ms/op") }
}

// BenchmarkManifests holds the scanner against the way most scanners work: every document decoded by sigs.k8s.io/yaml,
// in one goroutine. 10,000 files, about 40 MB.
func BenchmarkManifests(b *testing.B) {
	dir := b.TempDir()
	size := tree(b, dir, 10000)
	b.Run("sigs", func(b *testing.B) {
		b.SetBytes(size)
		defer reportCPU(b)()
		for b.Loop() {
			n := 0
			err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				text, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				var derr error
				split(text, func(p part) bool {
					var v map[string]any
					derr = sigsyaml.Unmarshal(p.text, &v)
					if v["kind"] != nil {
						n++
					}
					return derr == nil
				})
				return derr
			})
			if err != nil || n < 10000 {
				b.Fatalf("%d objects: %v", n, err)
			}
		}
	})
	b.Run("belay", func(b *testing.B) {
		b.SetBytes(size)
		debug.FreeOSMemory() // what other benchmarks used is not this one's
		defer reportCPU(b)()
		for b.Loop() {
			r, err := Scan(b.Context(), Options{From: minor(24), To: minor(25), Files: []string{dir}})
			if err != nil || len(r.Findings) != 200 || r.Verdict != Findings {
				b.Fatalf("%d findings, verdict %s: %v", len(r.Findings), r.Verdict, err)
			}
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.Sys-m.HeapReleased)/1e6, "MB")
		b.ReportMetric(10000*float64(b.N)/b.Elapsed().Seconds(), "files/s")
	})
}
