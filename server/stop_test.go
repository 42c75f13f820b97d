package server

import (
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestStubbornProcess: a process that must be killed takes no time away from the other containers,
// which still get their goodbye.
func TestStubbornProcess(t *testing.T) {
	t.Parallel() // it waits
	var log logged
	s := startLogging(t, slog.New(slog.NewTextHandler(&log, nil)), func(c *config.Config) {
		c.Supervised = []config.Container{called(t),
			{Name: "stubborn", Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 5500 * time.Millisecond},
				Command: []string{"/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"}}}
	})
	budgettest.Until(t, "both to be there", func() bool {
		p := s.processes.List()
		return calledState(s) == "serving" && len(p) == 1 && len(p[0].LastLines) == 1
	})
	last := version(t, s, "2")
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	<-last.Gone()
	if strings.Contains(log.String(), "cut off") {
		t.Error("containers were cut off")
	}
}

// TestStopWhileParting: a called container that executes its last batch when the server stops may
// finish it.
func TestStopWhileParting(t *testing.T) {
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	asked, answer, goodbyes := make(chan struct{}), make(chan struct{}), make(chan []byte, 1)
	go func() { // ends with the connection
		c, err := ear.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		request := make([]byte, 4096)
		if _, err := c.Read(request); err != nil {
			return
		}
		close(asked)
		<-answer
		_, _ = c.Write(make([]byte, 8))
		goodbye := make([]byte, 5)
		_, _ = io.ReadFull(c, goodbye)
		_, _ = c.Write([]byte{0xd2, 4, 0, 0})
		more, _ := io.ReadAll(c)
		goodbyes <- append(goodbye, more...)
	}()
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"rolled": {Policy: c.Defaults, RetireAfter: time.Millisecond}}
		c.Supervised = []config.Container{{Name: "called", Address: "tcp://" + ear.Addr().String(), RPC: "v0",
			Model: "rolled", Version: "1",
			Input: "ints", Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
	})
	budgettest.Until(t, "version 1", func() bool { return serves(s, "rolled", "1") })
	client, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got := make(chan error, 1)
	go func() {
		x, _ := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
		m, err := client.Do(t.Context(), &shiva.Message{Namespace: "rolled/1", Tensors: []tensor.Tensor{x}})
		if err == nil {
			m.Release()
		}
		got <- err
	}()
	<-asked
	version(t, s, "2")
	budgettest.Until(t, "version 1 to be told to go", func() bool { return !serves(s, "rolled", "1") })
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context()) }()
	select {
	case err := <-got:
		t.Errorf("the request was answered before its container did: %v", err)
		got <- nil
	case <-time.After(100 * time.Millisecond):
	}
	close(answer)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if words := <-goodbyes; len(words) != 5 {
		t.Errorf("goodbye was % x", words)
	}
}

// A clean stop logs no error: nothing writes to a closed connection, and closing one is not a
// fault.
func TestStopLogsNoError(t *testing.T) {
	var log logged
	at := filepath.Join(t.TempDir(), "state.db")
	s := startLogging(t, slog.New(slog.NewTextHandler(&log, nil)), func(c *config.Config) { c.State.At = at })
	o := operator{t, s}
	o.expect("PUT", "/v1/apps/app", `{"models":["echo"],"policy":"exp4","slo":"2s"}`, 201)
	o.expect("POST", "/v1/apps/app/feedback", `{"user":"u","input":[[1,2]],"loss":0.25}`, 200)
	stop(t, s)
	if text := log.String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("the log has an error:\n%s", text)
	}
}
