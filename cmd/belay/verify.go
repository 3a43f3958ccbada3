package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/belayops/belay/executor"
	"github.com/belayops/belay/executor/verify"
	"github.com/belayops/belay/internal/condition"
	"github.com/belayops/belay/internal/kubeversion"
	"github.com/belayops/belay/internal/render"
)

func newVerifyCmd(d *deps) *cobra.Command {
	var to, baseline, image string
	var urls []string
	var timeout time.Duration
	var noCanary bool
	var format render.Format
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove that a cluster is where it should be",
		Long: `Prove that every node is Ready with the target's kubelet, that every apiserver and
static pod runs the target, that workloads are as they were before the upgrade, that
endpoints answer, that a pod can be started on every node, and that every node gets a
connection to the Services of the API and of the cluster's DNS.

Workloads are compared with a baseline: the state that the newest run on this cluster
began with, or the state file given with --baseline. What was broken before is not
held against the cluster.`,
		Example: `  belay verify --cluster demo
  belay verify --to 1.37.2 --inventory hosts.yaml --http http://shop.example.org/
  belay verify --kubeconfig admin.conf --baseline before.json -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			for _, u := range urls {
				if p, err := url.Parse(u); err != nil || p.Scheme != "http" && p.Scheme != "https" {
					return usagef("--http %q: want http://... or https://...", u)
				}
			}
			cfg, err := d.restConfig()
			if err != nil {
				return err
			}
			cfg.Timeout = 30 * time.Second
			client, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				return fmt.Errorf("kubeconfig: %w", err)
			}
			target, err := verifyTarget(client, to)
			if err != nil {
				return err
			}
			ns, err := client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("read namespace kube-system: %w", err)
			}
			nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return fmt.Errorf("list nodes: %w", err)
			}
			r := verify.Report{Schema: verify.ReportSchema, Target: target.String()}
			cs := []condition.Condition{verify.NodesAt(client, target), verify.StaticPodsAt(client, "", target)}

			hosts, err := d.hosts()
			if err != nil {
				return err
			}
			if hosts != nil {
				ask := executor.DialAPIServer(cfg, hosts)
				for _, n := range nodes.Items {
					cs = append(cs, executor.KubeletProcess(hosts, n.Name, target))
					if _, control := n.Labels["node-role.kubernetes.io/control-plane"]; control {
						cs = append(cs, condition.Condition{Name: fmt.Sprintf("the apiserver of %s to be %s", n.Name, target), Check: func(ctx context.Context) error {
							v, err := ask(ctx, n.Name)
							if err == nil && v.Compare(target) != 0 {
								err = condition.NotYetf("it is %s", v)
							}
							return err
						}})
					}
				}
			}
			before, from, err := d.baselineFor(baseline, string(ns.UID))
			if err != nil {
				return err
			}
			r.Baseline = from
			if before != nil {
				cs = append(cs, verify.NoRegression(client, before))
			}
			for _, u := range urls {
				cs = append(cs, verify.HTTP(u))
			}
			if !noCanary {
				reach, err := verify.Routes(ctx, client)
				if err != nil {
					return err
				}
				for _, n := range nodes.Items {
					img := image
					if img == "" {
						img = pauseImage(n.Status.Images)
					}
					k := verify.Canary{Node: n.Name, Image: img, Run: "verify", Reach: reach, Timeout: timeout}
					cs = append(cs, condition.Condition{Name: k.Proves(), Check: func(ctx context.Context) error {
						if img == "" {
							return condition.Final(fmt.Errorf("node %s has no pause image: give --canary-image", n.Name))
						}
						return condition.Final(verify.RunCanary(ctx, client, k))
					}})
				}
			}
			if r.Checks, err = verify.Run(ctx, cs, timeout, d.sink()); err != nil {
				return err
			}
			if err := render.Value(d.out, format, r, func(w io.Writer) error { return printVerify(w, &r, hosts != nil) }); err != nil {
				return err
			}
			if !r.OK() {
				return &silentError{code: exitBlocked}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "version that every part should run (default: what the API answers)")
	f.StringVar(&baseline, "baseline", "", "state file to compare workloads with (default: the newest run on this cluster)")
	f.StringArrayVar(&urls, "http", nil, "a URL that must answer with a status below 400 (repeatable)")
	f.DurationVar(&timeout, "timeout", 3*time.Minute, "how long to wait for what is not met at once")
	f.BoolVar(&noCanary, "no-canary", false, "start no pods")
	f.StringVar(&image, "canary-image", "", "image of the canary pods (default: the pause image on each node)")
	render.AddFormatFlag(f, &format, render.Table, render.JSON, render.YAML)
	d.addClusterFlags(cmd)
	return cmd
}

func verifyTarget(client kubernetes.Interface, to string) (kubeversion.V, error) {
	if to != "" {
		v, err := kubeversion.Parse(to)
		if err != nil {
			return v, &usageError{err}
		}
		return v, nil
	}
	info, err := client.Discovery().ServerVersion()
	if err != nil {
		return kubeversion.V{}, fmt.Errorf("ask the API for its version: %w", err)
	}
	return kubeversion.Parse(info.GitVersion)
}

// pauseImage is an image on a node that runs without arguments and does nothing: the one of pod sandboxes.
func pauseImage(images []corev1.ContainerImage) string {
	for _, i := range images {
		for _, name := range i.Names {
			if strings.Contains(name, "/pause:") {
				return name
			}
		}
	}
	return ""
}

func printVerify(w io.Writer, r *verify.Report, machines bool) error {
	var rows [][]string
	for _, c := range r.Checks {
		mark := "ok"
		if !c.OK {
			mark = "FAIL"
		}
		rows = append(rows, []string{mark, c.Name, c.Detail})
	}
	if err := render.Rows(w, []string{"", "CHECK", "SEEN"}, rows); err != nil {
		return err
	}
	if !machines {
		fmt.Fprintln(w, "not checked: apiservers and kubelets on their machines (no inventory)")
	}
	if r.Baseline == "" {
		fmt.Fprintln(w, "not checked: workloads as before (no baseline: give --baseline state.json)")
	} else {
		fmt.Fprintf(w, "workloads were compared with %s\n", r.Baseline)
	}
	return nil
}
