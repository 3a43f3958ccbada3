package bundle

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/belayops/belay/internal/event"
)

// childRoot, in the environment, makes the test program build a bundle there and
// stop for good at unit childStop: the parent then kills it.
const (
	childRoot = "BUNDLE_TEST_CHILD_ROOT"
	childStop = "bin/etcd"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(childRoot); root != "" {
		src := newFakeSource()
		src.before = func(ctx context.Context, unit string) {
			if unit == childStop {
				fmt.Println("reached", unit)
				<-ctx.Done()
			}
		}
		_, err := Build(context.Background(), Options{Version: testVersion, Root: root, Sink: event.Discard, source: src})
		fmt.Println("ended", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
