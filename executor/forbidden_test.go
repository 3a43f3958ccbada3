package executor

import (
	"context"
	"errors"
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
	rt := &retryForbidden{next: http.DefaultTransport, limit: 200 * time.Millisecond, pause: time.Millisecond}
	client := &http.Client{Transport: rt}
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
	refuse.Store(1)
	if code, _ := post(); code != http.StatusForbidden || calls.Load() != 1 {
		t.Errorf("nothing was ever taken from this user: %d after %d calls; want the refusal at once", code, calls.Load())
	}
	refuse.Store(0)
	if code, _ := post(); code != 200 {
		t.Fatalf("code %d", code)
	}
	refuse.Store(3)
	if code, body := post(); code != 200 || body != "pod" || calls.Load() != 4 {
		t.Errorf("a young apiserver: %d %q after %d calls; want the body sent again until it is taken", code, body, calls.Load())
	}
	refuse.Store(1 << 30)
	if code, _ := post(); code != http.StatusForbidden || calls.Load() < 2 {
		t.Errorf("no rights: %d after %d calls; want 403 in the end", code, calls.Load())
	}

	// A deadline that passes meanwhile is no refusal.
	rt.limit = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := client.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the deadline: %v, %v", resp, err)
	}
}
