package apicheck

import (
	"bufio"
	"io"
	"strings"

	"github.com/belayops/belay/apicheck/lifecycle"
)

// deprecatedRequests reads the gauge apiserver_requested_deprecated_apis from a metrics text, a line at a time.
func (c *collector) deprecatedRequests(r io.Reader) (n int, err error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), 4<<20)
	for sc.Scan() {
		rest, ok := strings.CutPrefix(sc.Text(), "apiserver_requested_deprecated_apis{")
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(rest, "}")
		if !ok || strings.TrimSpace(value) == "0" {
			continue
		}
		l := map[string]string{}
		for _, pair := range strings.Split(labels, ",") {
			if k, v, ok := strings.Cut(pair, "="); ok {
				l[k] = strings.Trim(v, `"`)
			}
		}
		n++
		for _, k := range c.db.ByResource(l["group"], l["resource"]) {
			if k.Version != l["version"] {
				continue
			}
			j := c.requested(k.GVK())
			if harmless(j) || l["subresource"] != "" && k.Class == lifecycle.Virtual {
				continue
			}
			c.found(use{gvk: k.GVK(), source: Source{Type: SourceMetric}, confidence: Low, cap: Info,
				note: "requested since the apiserver started; clients that list everything do that too"}, j)
		}
	}
	return n, sc.Err()
}
