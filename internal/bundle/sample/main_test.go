package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestServeLeavesWithoutDroppingRequests(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var log bytes.Buffer // read after the end
	go func() { ended <- serve(ctx, l, 500*time.Millisecond, &log) }()

	var body bytes.Buffer
	if err := get(t.Context(), url+"/", &body); err != nil || !strings.Contains(body.String(), "sample dev") {
		t.Fatalf("got %q, %v", body.String(), err)
	}
	if err := get(t.Context(), url+"/readyz", &body); err != nil {
		t.Error(err)
	}
	if err := get(t.Context(), url+"/elsewhere", &body); err == nil {
		t.Error("a page that is not there is not an error")
	}
	stop()
	deadline := time.Now().Add(400 * time.Millisecond)
	for {
		resp, err := http.Get(url + "/readyz")
		if err != nil {
			t.Fatalf("it stopped at once: %v", err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it stays ready while it leaves")
		}
	}
	if err := get(t.Context(), url+"/", &body); err != nil {
		t.Errorf("it does not serve while it leaves: %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"listens on " + l.Addr().String(), "GET / from 127.0.0.1:", "asked to end"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if _, err := http.Get(url + "/"); err == nil {
		t.Error("it serves on after the end")
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		out  string
		ok   bool
	}{
		{[]string{"version"}, "dev\n", true},
		{[]string{"lookup", "localhost"}, "1", true},
		{[]string{"lookup", "no-such-host.invalid"}, "", false},
		{[]string{"sleep", "0"}, "", true},
		{[]string{"sleep", "x"}, "", false},
		{[]string{"get"}, "", false},
		{[]string{"dance"}, "", false},
	} {
		var out bytes.Buffer
		err := run(t.Context(), c.args, &out)
		if (err == nil) != c.ok || !strings.Contains(out.String(), c.out) {
			t.Errorf("%v: %q, %v", c.args, out.String(), err)
		}
	}
}
