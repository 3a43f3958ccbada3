package apicheck

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// An apiserver that goes away during a scan is waited for once, not by every reader on its own, and all that was left is named.
func TestOutage(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	var records []string
	for i := range 20 {
		rel := fmt.Sprintf("r%02d", i)
		records = append(records, helmRecord("Secret", "sh.helm.release.v1."+rel+".v1", rel, "deployed", 1, "!"))
	}
	var kinds []string
	for i := range 40 {
		kinds = append(kinds, fmt.Sprintf("things%02d Thing%02d", i, i))
	}
	for _, c := range []struct {
		name string
		// last is how the path of the request ends at which it goes.
		last    string
		die     func(http.ResponseWriter, *http.Request)
		unread  int
		unasked string
	}{
		{"connections break off, at a list", "/things08", abort, 24, "things39.example.com"},
		{"nothing is answered, at a list", "/things08", hang, 24, "things39.example.com"},
		{"connections break off, at a release", "/sh.helm.release.v1.r03.v1", abort, 17, "release r19 revision 1 in namespace n"},
		{"nothing is answered, at a release", "/sh.helm.release.v1.r03.v1", hang, 17, "release r19 revision 1 in namespace n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var dead atomic.Bool
			f := &fakeAPI{t: t, version: "v1.36.0", resources: map[string][]string{"v1": {"secrets Secret"}, "example.com/v1": kinds}, objects: map[string][]string{"secrets": records}}
			f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, c.last) {
					dead.Store(true)
				}
				if dead.Load() {
					c.die(w, r)
					return true
				}
				return noMetric(w, r)
			}
			began := time.Now()
			r := f.scan(0, 37) // with a patience of 2 seconds
			if took := time.Since(began); took > 12*time.Second {
				t.Errorf("took %s", took)
			}
			named := 0
			for _, u := range r.Coverage.Unreadable {
				if strings.Contains(u.Why, "not asked any more") {
					named++
				}
				if u.What == c.unasked {
					c.unasked = ""
				}
			}
			if c.unasked != "" || r.Verdict != Unknown || len(r.Coverage.Unreadable) < c.unread || named < c.unread/2 {
				t.Errorf("verdict %s, %d not asked of %d unread, want %d and %s: %v", r.Verdict, named, len(r.Coverage.Unreadable), c.unread, c.unasked, seen(r))
			}
		})
	}
}

// A list that is too long for every attempt is no outage: what comes after it is asked for.
func TestSlowListIsNoOutage(t *testing.T) {
	f := &fakeAPI{t: t, version: "v1.36.0", resources: map[string][]string{"example.com/v1": {"as A", "bs B", "cs C", "ds D", "es E", "fs F"}}}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if p := r.URL.Path; strings.HasSuffix(p, "s") && strings.Contains(p, "example.com") && !strings.HasSuffix(p, "/fs") && !strings.HasSuffix(p, "/es") {
			<-r.Context().Done()
			return true
		}
		return noMetric(w, r)
	}
	r := f.scan(0, 37)
	expect(t, r, Unknown, "unread as.example.com: timed out", "unread bs.example.com: timed out", "unread cs.example.com: timed out", "unread ds.example.com: timed out")
}

// A cluster that answers everything with an error is not asked for a minute for each kind.
func TestErrorsForEver(t *testing.T) {
	t.Parallel()
	var kinds []string
	for i := range 24 {
		kinds = append(kinds, fmt.Sprintf("things%02d Thing%02d", i, i))
	}
	f := &fakeAPI{t: t, version: "v1.36.0", resources: map[string][]string{"example.com/v1": kinds}}
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/things") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return noMetric(w, r)
	}
	began := time.Now()
	r, err := Scan(t.Context(), Options{To: minor(37), RESTConfig: f.start(), Patience: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 14*time.Second || len(r.Coverage.Unreadable) != 24 || r.Verdict != Unknown {
		t.Errorf("%s, %s, %v", r.Verdict, took, seen(r))
	}
}
