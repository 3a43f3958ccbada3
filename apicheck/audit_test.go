package apicheck

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belayops/belay/apicheck/lifecycle"
)

func auditLine(group, version, resource, user, stage string) string {
	return fmt.Sprintf(`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"4d2c8c42-1f2f-4f5e-9f0e-6f3f0d1f2a3b","stage":%q,"requestURI":"/apis/%s/%s/namespaces/shop/%s?limit=500","verb":"list","user":{"username":%q,"groups":["system:authenticated"]},"sourceIPs":["10.0.0.1"],"userAgent":"shopctl/1.0 (linux/amd64)","objectRef":{"resource":%q,"namespace":"shop","name":"x","apiGroup":%q,"apiVersion":%q},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.678901Z","annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"RBAC: allowed by \"a\""}}`+"\n",
		stage, group, version, resource, user, resource, group, version)
}

func scanAudit(t *testing.T, text []byte) Report {
	t.Helper()
	name := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Scan(t.Context(), Options{From: minor(24), To: minor(25), AuditLogs: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAuditLog(t *testing.T) {
	old := auditLine("policy", "v1beta1", "poddisruptionbudgets", "alice", "ResponseComplete")
	log := auditLine("apps", "v1", "deployments", "alice", "ResponseComplete") +
		auditLine("policy", "v1beta1", "poddisruptionbudgets", "alice", "RequestReceived") + old + old +
		auditLine("policy", "v1beta1", "poddisruptionbudgets", "system:serviceaccount:kube-system:generic-garbage-collector", "ResponseComplete") +
		`{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","requestURI":"/healthz","verb":"get","user":{"username":"x"}}` + "\n"
	r := scanAudit(t, []byte(log))
	if len(r.Findings) != 2 || r.Verdict != Findings {
		t.Fatalf("%s: %v", r.Verdict, seen(r))
	}
	f := r.Findings[0]
	if f.Severity != Warning || f.Source.User != "alice" || f.Source.Requests != 2 || f.Source.Agent != "shopctl/1.0 (linux/amd64)" || f.Source.Line != 2 || f.Source.Time == nil || f.Kind != "PodDisruptionBudget" {
		t.Errorf("finding %+v", f)
	}
	if g := r.Findings[1]; g.Severity != Info {
		t.Errorf("the garbage collector's lists are %s, want info", g.Severity)
	}
	if len(r.Coverage.Read) != 1 || r.Coverage.Read[0].Count != 6 {
		t.Errorf("read %v", r.Coverage.Read)
	}
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	if _, err := w.Write([]byte(log)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if z := scanAudit(t, gz.Bytes()); len(z.Findings) != 2 {
		t.Errorf("compressed: %v", seen(z))
	}
	if z := scanAudit(t, gz.Bytes()[:gz.Len()-10]); z.Verdict != Unknown {
		t.Errorf("cut off: %s", z.Verdict)
	}
}

// Nothing keeps a review, and the client that asks for one fails all the same.
func TestAuditLogOfVirtualKinds(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	log := auditLine("authentication.k8s.io", "v1beta1", "selfsubjectreviews", "alice", "ResponseComplete") +
		auditLine("authentication.k8s.io", "v1", "selfsubjectreviews", "bob", "ResponseComplete")
	if err := os.WriteFile(name, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Scan(t.Context(), Options{From: minor(32), To: minor(33), AuditLogs: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 1 || r.Findings[0].Source.User != "alice" || r.Findings[0].Verdict != lifecycle.Removed || r.Findings[0].Hop != minor(33) {
		t.Errorf("%v", seen(r))
	}
}

func TestAuditLogThatIsOdd(t *testing.T) {
	old := strings.TrimSuffix(auditLine("policy", "v1beta1", "poddisruptionbudgets", "alice", "ResponseComplete"), "\n")
	for name, c := range map[string]struct {
		text    string
		found   int
		verdict Outcome
	}{
		"cut line":          {old + "\n" + old[:200] + "\n" + old + "\n", 1, Unknown},
		"not JSON":          {"I1201 12:00:00 log\n", 0, Unknown},
		"other JSON":        {"{\"kind\":\"Pod\"}\n", 0, Unknown},
		"empty lines, CRLF": {"\n" + old + "\r\n\r\n", 1, Findings},
		"list of events":    {`{"kind":"EventList","items":[` + old + `,` + old + `]}`, 1, Findings},
		"escaped look-alike in the request": {strings.Replace(auditLine("apps", "v1", "deployments", "bob", "ResponseComplete"), `"verb":"list"`,
			`"verb":"create","requestObject":{"objectRef":{"apiGroup":"policy","apiVersion":"v1beta1","resource":"poddisruptionbudgets"},"x":"\"objectRef\":{"}`, 1), 0, Clean},
		"other order of keys": {`{"objectRef":{"apiVersion":"v1beta1","apiGroup":"policy","resource":"poddisruptionbudgets"},"kind":"Event","user":{"username":"c"}}`, 1, Findings},
		"escaped reference":   {`{"kind":"Event","objectRef":{"apiVersion":"v1beta\u0031","apiGroup":"policy","resource":"poddisruptionbudgets"},"user":{"username":"c"}}`, 1, Findings},
		"spaces":              {`{ "kind" : "Event", "objectRef" : { "apiVersion" : "v1beta1", "apiGroup" : "policy", "resource" : "poddisruptionbudgets" } }`, 1, Findings},
	} {
		t.Run(name, func(t *testing.T) {
			r := scanAudit(t, []byte(c.text))
			if len(r.Findings) != c.found || r.Verdict != c.verdict {
				t.Errorf("%d findings, verdict %s; want %d, %s: %v", len(r.Findings), r.Verdict, c.found, c.verdict, seen(r))
			}
		})
	}
	r := scanAudit(t, []byte(strings.Repeat("x\n", 1000)))
	if n := len(r.Coverage.Unreadable); n != maxAuditGaps+1 {
		t.Errorf("%d gaps listed for a thousand broken lines", n)
	}
}

// FuzzAuditRef holds the quick walk against encoding/json: where it gives an answer, it is the right one.
func FuzzAuditRef(f *testing.F) {
	f.Add([]byte(auditLine("policy", "v1beta1", "poddisruptionbudgets", "alice", "ResponseComplete")))
	f.Add([]byte(`{"objectRef":{"resource":"a"},"kind":"Event"}`))
	f.Add([]byte(`{"a":"\\\"","objectRef":null}`))
	f.Add([]byte(`{"a":[{"objectRef":{}}],"kind":"x"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		ref, kind, ok := auditRef(text)
		var m map[string]json.RawMessage
		if !ok || json.Unmarshal(text, &m) != nil {
			return // what only looks like JSON may get any answer: it is passed over or parsed
		}
		for key := range m { // the walk does not unescape keys
			if strings.ContainsAny(key, "\\\"") || !bytes.Contains(text, []byte(`"`+key+`"`)) {
				return
			}
		}
		if bytes.Count(text, []byte(`"objectRef"`)) <= 1 && string(ref) != string(m["objectRef"]) {
			t.Errorf("objectRef %q, encoding/json says %q", ref, m["objectRef"])
		}
		if bytes.Count(text, []byte(`"kind"`)) <= 1 && string(kind) != string(m["kind"]) {
			t.Errorf("kind %q, encoding/json says %q", kind, m["kind"])
		}
	})
}

func BenchmarkAuditLog(b *testing.B) {
	var log bytes.Buffer
	for i := range 60000 {
		group, version, resource := "apps", "v1", "deployments"
		if i%1000 == 0 {
			group, version, resource = "policy", "v1beta1", "poddisruptionbudgets"
		}
		log.WriteString(auditLine(group, version, resource, fmt.Sprintf("user%d", i%5), "ResponseComplete"))
	}
	name := filepath.Join(b.TempDir(), "audit.log")
	if err := os.WriteFile(name, log.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(log.Len()))
	defer reportCPU(b)()
	for b.Loop() {
		r, err := Scan(b.Context(), Options{From: minor(24), To: minor(25), AuditLogs: []string{name}})
		if err != nil || len(r.Findings) != 1 && len(r.Findings) != 5 {
			b.Fatalf("%d findings: %v", len(r.Findings), err)
		}
	}
}
