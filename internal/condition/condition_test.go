package condition

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitUntilMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var reasons []string
		err := Wait(t.Context(), Condition{Name: "three seconds", Check: func(context.Context) error {
			if time.Since(start) < 3*time.Second {
				return NotYetf("only %s", time.Since(start).Round(2*time.Second))
			}
			return nil
		}}, Options{OnChange: func(r string) { reasons = append(reasons, r) }})
		if err != nil || time.Since(start) != 3*time.Second {
			t.Fatalf("err %v after %s", err, time.Since(start))
		}
		if len(reasons) != 2 {
			t.Errorf("reasons %q: each should be told once", reasons)
		}
	})
}

func TestTimeoutSaysWhatWasSeenLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := NotYetf("node w1 is NotReady")
		err := Wait(t.Context(), Condition{Name: "node w1 to be Ready", Check: func(context.Context) error { return seen }}, Options{Timeout: 5 * time.Second})
		var timeout *TimeoutError
		if !errors.As(err, &timeout) || !errors.Is(err, ErrNotYet) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if !strings.Contains(err.Error(), "node w1 to be Ready; last seen: node w1 is NotReady") {
			t.Errorf("got %q", err)
		}
	})
}

func TestACheckCutShortDoesNotHideTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		err := Wait(t.Context(), Condition{Name: "x", Check: func(ctx context.Context) error {
			if n++; n == 1 {
				return NotYetf("quorum is lost")
			}
			<-ctx.Done()
			return ctx.Err()
		}}, Options{Timeout: 10 * time.Second})
		if !strings.Contains(err.Error(), "quorum is lost") {
			t.Errorf("got %q", err)
		}
	})
}

func TestAttemptIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		err := Wait(t.Context(), Condition{Name: "x", Check: func(ctx context.Context) error {
			if n++; n == 2 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}, Options{Attempt: 2 * time.Second, Timeout: time.Minute})
		if err != nil || n != 2 {
			t.Errorf("err %v after %d attempts", err, n)
		}
	})
}

func TestFinalEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, cause := time.Now(), errors.New("forbidden")
		err := Wait(t.Context(), Condition{Name: "x", Check: func(context.Context) error { return Final(cause) }}, Options{Timeout: time.Hour})
		if !errors.Is(err, cause) || time.Since(start) != 0 {
			t.Errorf("err %v after %s", err, time.Since(start))
		}
		if Final(nil) != nil {
			t.Error("Final(nil) is an error")
		}
	})
}

func TestStableAsksForSuccessiveSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []bool{true, false, true, true, true}
		n := 0
		err := Wait(t.Context(), Condition{Name: "x", Check: func(context.Context) error {
			ok := results[n]
			n++
			if !ok {
				return ErrNotYet
			}
			return nil
		}}, Options{Stable: 3})
		if err != nil || n != len(results) {
			t.Errorf("err %v after %d looks; want %d", err, n, len(results))
		}
	})
}

func TestAllReportsEach(t *testing.T) {
	bad := func(name string) Condition {
		return Condition{Name: name, Check: func(context.Context) error { return ErrNotYet }}
	}
	good := Condition{Name: "c", Check: func(context.Context) error { return nil }}
	err := All("all", bad("a"), bad("b"), good).Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "a: ") || !strings.Contains(err.Error(), "b: ") || strings.Contains(err.Error(), "c: ") {
		t.Errorf("got %v", err)
	}
}
