package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
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

// asking returns servers that may be asked; the first is for Models that name none.
func asking(t *testing.T, fresh time.Duration, addresses ...string) *servers {
	t.Helper()
	s, err := newServers(addresses[0], addresses[1:], nil, fresh)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNeeded(t *testing.T) {
	address, asked := status(t, http.StatusOK, `{"models": [
		{"name": "a", "version": "1", "load": 1.2, "needed": 2},
		{"name": "a", "version": "2", "load": 0.3, "needed": 1},
		{"name": "b", "version": "1", "load": 2.0000000001},
		{"name": "idle", "version": "1", "load": 0},
		{"name": "application", "version": ""}]}`)
	s := asking(t, time.Hour, address)
	for of, want := range map[id]int32{{"a", ""}: 2, {"a", "1"}: 2, {"a", "2"}: 1, {"b", ""}: 2, {"idle", ""}: 0,
		{"unknown", ""}: 1, {"a", "3"}: 1} {
		if n, complete, err := s.needed(t.Context(), address, of.model, of.version); n != want || !complete ||
			err != nil {
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
	s := asking(t, 0, "shivad:"+port)
	s.lookup = func(context.Context, string) ([]string, error) {
		return []string{"127.0.0.1", "127.0.0.2", "127.0.0.1"}, nil
	}
	if n, complete, err := s.needed(t.Context(), "shivad:"+port, "a", ""); n != 3 || !complete {
		t.Errorf("1.3 and 1.3 need %d (%v, %v), want 3", n, complete, err)
	}
	second.Close()
	s.doors["shivad:"+port].client.CloseIdleConnections()
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
	s := asking(t, 0, "shivad:"+port)
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
		if n != step.want || complete != (step.words == "") ||
			err != nil && !strings.Contains(err.Error(), step.words) || err == nil && step.words != "" {
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
		refused:              "403 Forbidden: expected a token with the right admin:read",
		strange:              "does not answer as a shivad does",
		old:                  "does not report the load of its models",
		"no.such.invalid:1":  "no.such.invalid",
	} {
		n, complete, err := asking(t, 0, address).needed(t.Context(), address, "a", "")
		if n != 0 || complete || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v, %v; want %q", address, n, complete, err, want)
		}
		if strings.Contains(err.Error(), "html") || strings.Contains(err.Error(), "missing") {
			t.Errorf("%s: a status repeats what a server wrote: %v", address, err)
		}
	}
	for address, want := range map[string]string{
		"nowhere": `got "nowhere"`, ":8002": `got ":8002"`, "tls://shivad": `got "tls://shivad"`,
		"http://shivad:8002": "got", "a:1": "twice",
	} {
		if s, err := newServers("a:1", []string{address}, nil, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is taken: %v, %v; want %q", address, s, err, want)
		}
	}
}

// A Model's author chooses among the addresses of the command line. No other is even looked up.
func TestOnlyAllowedServersAreAsked(t *testing.T) {
	own, _ := status(t, http.StatusOK, `{"models": [{"name": "a", "version": "1", "load": 2.5}]}`)
	other, _ := status(t, http.StatusOK, `{"models": [{"name": "a", "version": "1", "load": 4}]}`)
	foreign, asked := status(t, http.StatusOK, `{"models": [{"name": "a", "version": "1", "load": 9}]}`)
	t.Setenv("SHIVA_TOKEN", "secret")
	s := asking(t, 0, own, other)
	for address, want := range map[string]int32{"": 3, own: 3, other: 4} {
		if n, complete, err := s.needed(t.Context(), address, "a", ""); n != want || !complete {
			t.Errorf("%q: %d, %v, %v, want %d", address, n, complete, err, want)
		}
	}
	s.lookup = func(_ context.Context, host string) ([]string, error) {
		t.Errorf("%s is looked up", host)
		return nil, nil
	}
	for _, address := range []string{foreign, "tls://" + own, "attacker.example:80"} {
		if n, complete, err := s.needed(t.Context(), address, "a", ""); n != 0 || complete ||
			!errors.Is(err, errNotAllowed) {
			t.Errorf("%q: %d, %v, %v", address, n, complete, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("a server that nobody has allowed was asked %d times", n)
	}
	if _, _, err := asking(t, 0, "", other).needed(t.Context(), "", "a", ""); !errors.Is(err, errNotAllowed) {
		t.Errorf("without an address: %v", err)
	}
}

// A redirect would take the token elsewhere.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere, asked := status(t, http.StatusOK, `{}`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+elsewhere+"/v1/status", http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	address := s.Listener.Addr().String()
	if _, complete, err := asking(t, 0, address).needed(t.Context(), address, "a", ""); complete || err == nil ||
		!strings.Contains(err.Error(), "307") {
		t.Errorf("%v, %v", complete, err)
	}
	if asked.Load() != 0 {
		t.Error("the redirect was followed")
	}
}

// Servers of one host have one certificate, for the host's name, and each is asked by its address.
func TestTLS(t *testing.T) {
	shown := make(chan string, 2)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown <- r.Header.Get("Authorization")
		w.Write([]byte(`{"models": [{"name": "a", "version": "1", "load": 1.5}]}`))
	}))
	defer s.Close()
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	t.Setenv("SHIVA_TOKEN", "secret")
	for _, c := range []struct {
		address string
		roots   *x509.CertPool
		words   string
	}{
		{"tls://example.com:" + port, roots, ""}, // the name in the certificate
		{"tls://shivad:" + port, roots, "not shivad"},
		{"tls://example.com:" + port, nil, "unknown authority"},
		{"example.com:" + port, roots, "not sent to example.com:" + port + " without TLS"},
	} {
		a, err := newServers(c.address, nil, c.roots, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.lookup = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
		n, complete, err := a.needed(t.Context(), "", "a", "")
		if c.words == "" {
			if n != 2 || !complete || err != nil || <-shown != "Bearer secret" {
				t.Errorf("%s: %d, %v, %v", c.address, n, complete, err)
			}
		} else if complete || err == nil || !strings.Contains(err.Error(), c.words) || len(shown) > 0 {
			t.Errorf("%s: %v, %v, and %d tokens shown; want %q", c.address, complete, err, len(shown), c.words)
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
	if _, _, err := asking(t, 0, s.Listener.Addr().String()).needed(t.Context(), "", "a", ""); err != nil {
		t.Fatal(err)
	}
	if got := <-shown; got != "Bearer secret" {
		t.Errorf("%q is shown", got)
	}
	t.Setenv("SHIVA_TOKEN", "")
	t.Setenv("SHIVA_TOKEN_FILE", "/nowhere")
	if _, _, err := asking(t, 0, s.Listener.Addr().String()).needed(t.Context(), "", "a", ""); err == nil {
		t.Error("a file without a token is no error")
	}
}
