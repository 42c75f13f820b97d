//go:build e2e

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"
)

// What `make run` does, on other ports: all images are classified, then it serves until it is
// told to stop.
func TestE2ERun(t *testing.T) {
	t.Chdir("../../..")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := &watched{stop: cancel, at: "Serving until"}
	if err := run(ctx, options{tcp: free(t), rest: free(t), grpc: free(t), containers: free(t), admin: free(t)}, out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"19 of 20 right (95 %)", "images/19.png    1         1", "infer digits", "status\n", "stopping"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("expected %q in\n%s", want, out.String())
		}
	}
}

// watched cancels when it has been told what it waits for.
type watched struct {
	bytes.Buffer
	stop func()
	at   string
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.at) {
		w.stop()
	}
	return n, err
}

// free is an address that nobody listens on, of a port that the kernel gives to nobody for an
// outgoing connection, or for port 0: other tests run at the same time.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprint("127.0.0.1:", 10000+rand.N(20000)) // Linux takes those from 32768 on
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
	t.Fatal("no port is free")
	return ""
}
