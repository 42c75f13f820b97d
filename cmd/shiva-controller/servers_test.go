package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// status serves text as the status of a server, and counts the requests.
func status(t *testing.T, code int, text string) (address string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != "/v1/status" {
			t.Errorf("%s is asked", r.URL.Path)
		}
		w.WriteHeader(code)
		w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), asked
}

func TestNeeded(t *testing.T) {
	address, asked := status(t, http.StatusOK, `{"models": [
		{"name": "a", "version": "1", "load": 1.2, "needed": 2},
		{"name": "a", "version": "2", "load": 0.3, "needed": 1},
		{"name": "b", "version": "1", "load": 2.0000000001},
		{"name": "idle", "version": "1", "load": 0},
		{"name": "application", "version": ""}]}`)
	s := newServers(time.Hour)
	for of, want := range map[id]int32{{"a", ""}: 2, {"a", "1"}: 2, {"a", "2"}: 1, {"b", ""}: 2, {"idle", ""}: 0, {"unknown", ""}: 1, {"a", "3"}: 1} {
		if n, complete, err := s.needed(t.Context(), address, of.model, of.version); n != want || !complete || err != nil {
			t.Errorf("%v needs %d (%v, %v), want %d", of, n, complete, err, want)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times for seven models", n)
	}
}

// Loads are summed before they are rounded up.
func TestNeededOfSeveralServers(t *testing.T) {
	one := `{"models": [{"name": "a", "version": "1", "load": 1.3}]}`
	address, _ := status(t, http.StatusOK, one)
	_, port, _ := net.SplitHostPort(address)
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(second, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(one)) })) // ends with the listener
	defer second.Close()
	s := newServers(0)
	s.lookup = func(context.Context, string) ([]string, error) {
		return []string{"127.0.0.1", "127.0.0.2", "127.0.0.1"}, nil
	}
	if n, complete, err := s.needed(t.Context(), "shivad:"+port, "a", ""); n != 3 || !complete {
		t.Errorf("1.3 and 1.3 need %d (%v, %v), want 3", n, complete, err)
	}
	second.Close()
	s.client.CloseIdleConnections()
	if n, complete, err := s.needed(t.Context(), "shivad:"+port, "a", ""); n != 2 || complete || err == nil {
		t.Errorf("with one server away: %d, %v, %v", n, complete, err)
	}
}

// A name is looked up for each question: new servers count, and removed ones do not. A name that
// resolves to nothing is an error, after which nothing is scaled.
func TestNameThatChanges(t *testing.T) {
	load := func(n float64) string {
		return fmt.Sprintf(`{"models": [{"name": "a", "version": "1", "load": %g}]}`, n)
	}
	first, _ := status(t, http.StatusOK, load(1))
	_, port, _ := net.SplitHostPort(first)
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	go http.Serve(second, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(load(3))) })) // ends with the listener
	defer second.Close()
	s := newServers(0)
	for _, step := range []struct {
		hosts []string
		want  int32
		words string
	}{
		{[]string{"127.0.0.1"}, 1, ""}, {[]string{"127.0.0.1", "127.0.0.2"}, 4, ""}, {[]string{"127.0.0.2"}, 3, ""},
		{nil, 0, "the name shivad has no address"}, {[]string{"127.0.0.1"}, 1, ""},
	} {
		s.lookup = func(context.Context, string) ([]string, error) { return step.hosts, nil }
		n, complete, err := s.needed(t.Context(), "shivad:"+port, "a", "")
		if n != step.want || complete != (step.words == "") || err != nil && !strings.Contains(err.Error(), step.words) || err == nil && step.words != "" {
			t.Errorf("of %v: %d, %v, %v", step.hosts, n, complete, err)
		}
	}
}

func TestServersThatDoNotAnswer(t *testing.T) {
	away, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away.Close()
	refused, _ := status(t, http.StatusForbidden, `{"error": "the right admin:read is missing"}`)
	strange, _ := status(t, http.StatusOK, `<html>`)
	old, _ := status(t, http.StatusOK, `{"models": [{"name": "a", "version": "1"}]}`)
	for address, want := range map[string]string{
		away.Addr().String(): "connection refused",
		refused:              "403 Forbidden: the right admin:read is missing",
		strange:              "invalid character",
		old:                  "does not report the load of a/1",
		"nowhere":            `expected host:port, got "nowhere"`,
		"no.such.invalid:1":  "no.such.invalid",
	} {
		n, complete, err := newServers(0).needed(t.Context(), address, "a", "")
		if n != 0 || complete || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v, %v; want %q", address, n, complete, err, want)
		}
	}
}

// The token is read again for each question, as it may have been replaced.
func TestToken(t *testing.T) {
	shown := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown <- r.Header.Get("Authorization")
		w.Write([]byte(`{}`))
	}))
	defer s.Close()
	t.Setenv("SHIVA_TOKEN", "secret")
	if _, _, err := newServers(0).needed(t.Context(), s.Listener.Addr().String(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if got := <-shown; got != "Bearer secret" {
		t.Errorf("%q is shown", got)
	}
	t.Setenv("SHIVA_TOKEN", "")
	t.Setenv("SHIVA_TOKEN_FILE", "/nowhere")
	if _, _, err := newServers(0).needed(t.Context(), s.Listener.Addr().String(), "a", ""); err == nil {
		t.Error("a file without a token is no error")
	}
}
