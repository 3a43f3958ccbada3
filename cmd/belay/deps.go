package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/belayops/belay/internal/event"
	"github.com/belayops/belay/internal/host"
	"github.com/belayops/belay/internal/inventory"
	"github.com/belayops/belay/internal/render"
)

// deps is what commands share. Everything that costs something is made on
// first use, so that --help and completion need no cluster.
type deps struct {
	in       io.Reader
	out, err io.Writer
	now      func() time.Time

	interrupts *interrupts
	// root is the command tree, which knows what flags a command takes.
	root *cobra.Command

	// Global flags.
	kubeconfig    string
	kubeContext   string
	clusterName   string
	inventoryFile string
	progress      string

	progressSink *render.Progress
	hostsOnce    *inventory.Hosts
	closers      []func() error
}

func newDeps(in io.Reader, out, err io.Writer) *deps {
	return &deps{in: in, out: out, err: err, now: time.Now}
}

// addClusterFlags gives a command the flags that say which cluster it works on.
func (d *deps) addClusterFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG, then ~/.kube/config)")
	f.StringVar(&d.kubeContext, "context", "", "context of the kubeconfig")
	f.StringVar(&d.clusterName, "cluster", "", "a cluster that belay brought up: its kubeconfig and inventory are used")
	f.StringVar(&d.inventoryFile, "inventory", "", "inventory file: the cluster's machines and how to reach them over SSH")
	cmd.MarkFlagsMutuallyExclusive("cluster", "kubeconfig")
	cmd.MarkFlagsMutuallyExclusive("cluster", "inventory")
	_ = cmd.RegisterFlagCompletionFunc("cluster", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		entries, err := os.ReadDir(filepath.Join(d.home(), "clusters"))
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// next gives a command to run next the flags by which this invocation chose its cluster, so that it can be pasted as it is.
// Commands joined by && get them each; what is not a command of belay, or takes no such flags, stays as it is.
func (d *deps) next(command string) string {
	var flags string
	for _, f := range []struct{ name, value string }{
		{"kubeconfig", d.kubeconfig}, {"context", d.kubeContext}, {"cluster", d.clusterName}, {"inventory", d.inventoryFile},
	} {
		if f.value != "" {
			flags += " --" + f.name + " " + host.Quote(f.value)
		}
	}
	if flags == "" || d.root == nil {
		return command
	}
	parts := strings.Split(command, " && ")
	for i, part := range parts {
		words := strings.Fields(part)
		if len(words) < 2 || words[0] != "belay" || slices.ContainsFunc(words, func(w string) bool {
			return w == "--cluster" || w == "--state" || w == "--inventory" || w == "--kubeconfig"
		}) {
			continue
		}
		if cmd, _, err := d.root.Find(words[1:]); err == nil && cmd.Flags().Lookup("cluster") != nil && cmd.Flags().Lookup("kubeconfig") != nil {
			parts[i] = part + flags
		}
	}
	return strings.Join(parts, " && ")
}

// sayNext names the command to run next on stderr.
func (d *deps) sayNext(format string, args ...any) {
	fmt.Fprintf(d.err, "next:  %s\n", d.next(fmt.Sprintf(format, args...)))
}

// home is where belay keeps clusters, runs and backups: $BELAY_HOME, or
// belay in the user's data directory ($XDG_DATA_HOME, ~/.local/share).
func (d *deps) home() string {
	if h := os.Getenv("BELAY_HOME"); h != "" {
		return h
	}
	if h := os.Getenv("XDG_DATA_HOME"); h != "" {
		return filepath.Join(h, "belay")
	}
	h, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(string(filepath.Separator), "var", "lib", "belay")
	}
	return filepath.Join(h, ".local", "share", "belay")
}

// clusterDir is where a cluster that belay brought up keeps its files.
func (d *deps) clusterDir(name string) string { return filepath.Join(d.home(), "clusters", name) }

// cacheDir holds bundles and root file systems: $BELAY_CACHE, or belay in the user's cache directory.
func (d *deps) cacheDir() (string, error) {
	if c := os.Getenv("BELAY_CACHE"); c != "" {
		return c, nil
	}
	c, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w; set BELAY_CACHE", err)
	}
	return filepath.Join(c, "belay"), nil
}

// kubeconfigPath is the kubeconfig file in force, "" for client-go's own choice.
func (d *deps) kubeconfigPath() (string, error) {
	if d.clusterName == "" {
		return d.kubeconfig, nil
	}
	path := filepath.Join(d.clusterDir(d.clusterName), "kubeconfig")
	if _, err := os.Stat(path); err != nil {
		return "", &codedError{err: fmt.Errorf("cluster %s: %w", d.clusterName, err), code: exitError, next: "belay cluster list"}
	}
	return path, nil
}

// restConfig gives access to the cluster's API.
func (d *deps) restConfig() (*rest.Config, error) {
	path, err := d.kubeconfigPath()
	if err != nil {
		return nil, err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: d.kubeContext}).ClientConfig()
	if err != nil {
		if clientcmd.IsEmptyConfig(err) {
			return nil, usagef("no cluster: give --kubeconfig FILE, --cluster NAME, or set KUBECONFIG")
		}
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.UserAgent = "belay/" + buildVersion().Version
	// belay bounds its own load; client-go's default of 5 requests a second makes scans take minutes.
	cfg.QPS, cfg.Burst = 100, 200
	return cfg, nil
}

// hosts gives access to the cluster's machines, or nil when none was named.
func (d *deps) hosts() (*inventory.Hosts, error) {
	if d.hostsOnce != nil {
		return d.hostsOnce, nil
	}
	path := d.inventoryFile
	if path == "" && d.clusterName != "" {
		path = filepath.Join(d.clusterDir(d.clusterName), "inventory.yaml")
	}
	if path == "" {
		return nil, nil
	}
	inv, err := inventory.Load(path)
	if err != nil {
		return nil, err
	}
	d.hostsOnce = inv.Open()
	d.closers = append(d.closers, d.hostsOnce.Close)
	return d.hostsOnce, nil
}

// sink gives the progress display on stderr, as --progress asks.
func (d *deps) sink() event.Sink {
	if d.progressSink == nil {
		d.progressSink = render.NewProgress(d.err, render.ProgressMode(d.progress))
		d.closers = append(d.closers, d.progressSink.Close)
	}
	return d.progressSink
}

func (d *deps) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	return errors.Join(errs...)
}
