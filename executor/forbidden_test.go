package executor

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestRetryForbidden(t *testing.T) {
	var calls atomic.Int32
	var refuse atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if calls.Add(1) <= refuse.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write(b)
	}))
	defer srv.Close()
	client := &http.Client{Transport: &retryForbidden{next: http.DefaultTransport, limit: 200 * time.Millisecond, pause: time.Millisecond}}
	post := func() (int, string) {
		t.Helper()
		calls.Store(0)
		resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("pod"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	refuse.Store(3)
	if code, body := post(); code != 200 || body != "pod" || calls.Load() != 4 {
		t.Errorf("a young apiserver: %d %q after %d calls; want the body sent again until it is taken", code, body, calls.Load())
	}
	refuse.Store(1 << 30)
	if code, _ := post(); code != http.StatusForbidden || calls.Load() < 2 {
		t.Errorf("no rights: %d after %d calls; want 403 in the end", code, calls.Load())
	}
}
