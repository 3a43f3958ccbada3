// Command sample is a small workload for demonstrations and tests of upgrades:
// an HTTP server that leaves without dropping a request, and the few tools that
// one wants in "kubectl exec" when an image has no shell.
//
//	sample [serve]     GET / answers host name and version; /healthz, /readyz;
//	                   a line in the log for its start, its end and each GET /
//	sample get URL     prints the body of a URL; exit 1 unless the status is 2xx
//	sample lookup NAME prints the addresses of a DNS name
//	sample sleep [SECONDS]
//	sample version
//
// Package bundle embeds this file and builds it into the sample image.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// version is set by the linker.
var version = "dev"

// lameDuck is how long the server answers after SIGTERM while it says that it
// is not ready: endpoints are removed everywhere only some seconds later.
const lameDuck = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sample:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	cmd := "serve"
	if len(args) > 0 {
		cmd = args[0]
		args = args[1:]
	}
	switch {
	case cmd == "serve" && len(args) == 0:
		l, err := net.Listen("tcp", ":8080")
		if err != nil {
			return err
		}
		return serve(ctx, l, lameDuck, out)
	case cmd == "get" && len(args) == 1:
		return get(ctx, args[0], out)
	case cmd == "lookup" && len(args) == 1:
		return lookup(ctx, args[0], out)
	case cmd == "sleep" && len(args) <= 1:
		return sleep(ctx, args)
	case cmd == "version" && len(args) == 0:
		_, err := fmt.Fprintln(out, version)
		return err
	}
	return errors.New("usage: sample [serve | get URL | lookup NAME | sleep [SECONDS] | version]")
}

func serve(ctx context.Context, l net.Listener, linger time.Duration, out io.Writer) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	logger := log.New(out, "", log.LstdFlags|log.LUTC)
	logger.Printf("%s sample %s listens on %s", host, version, l.Addr())
	var leaving atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		logger.Printf("GET / from %s", r.RemoteAddr)
		fmt.Fprintf(w, "%s sample %s\n", host, version)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if leaving.Load() {
			http.Error(w, "leaving", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	leaving.Store(true)
	logger.Printf("asked to end: answering for %s more", linger)
	select {
	case err := <-failed:
		return err
	case <-time.After(linger):
	}
	drain, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return srv.Shutdown(drain)
}

func get(ctx context.Context, url string, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if _, err := io.Copy(out, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("get %s: %s", url, resp.Status)
	}
	return nil
}

func lookup(ctx context.Context, name string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if _, err := fmt.Fprintln(out, a); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, args []string) error {
	if len(args) == 0 {
		<-ctx.Done()
		return nil
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("sleep: %w", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(n) * time.Second):
	}
	return nil
}
