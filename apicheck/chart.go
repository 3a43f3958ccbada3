package apicheck

import "context"

// ChartOptions says how charts are rendered.
type ChartOptions struct {
	// ValueFiles and Set are the -f and --set of helm; Namespace and Release what the chart sees as its own.
	ValueFiles []string
	Set        []string
	Namespace  string
	Release    string
}

func (c *collector) chart(_ context.Context, _ Options, name string) {
	c.unread(name, 0, "charts are not rendered yet")
}
