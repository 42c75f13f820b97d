package kubernetes

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A proxy stands between an apiserver and the controllers of a test. It counts their polls, and can
// delay the events that they watch.
type proxy struct {
	url   string
	polls atomic.Int64 // that the apiserver has answered

	mu   sync.Mutex
	held map[string]chan struct{} // by resource; closed when its events pass again
}

func newProxy(t *testing.T, s *apiserver) *proxy {
	t.Helper()
	to, err := url.Parse(s.url())
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{held: map[string]chan struct{}{}}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:      transport,
		ModifyResponse: p.see,
		ErrorLog:       log.New(io.Discard, "", 0), // controllers are killed while they ask
	})
	server.EnableHTTP2 = true
	server.StartTLS()
	p.url = server.URL
	t.Cleanup(func() {
		server.Close()
		transport.CloseIdleConnections()
	})
	return p
}

// see counts an answer, or makes events wait while they are held.
func (p *proxy) see(answer *http.Response) error {
	request := answer.Request
	resource := request.URL.Path[strings.LastIndexByte(request.URL.Path, '/')+1:]
	switch {
	case request.URL.Query().Has("watch"):
		answer.Body = &events{ReadCloser: answer.Body, pass: func() { p.pass(request.Context(), resource) }}
	case strings.HasSuffix(request.URL.Path, "/deployments/digits"), strings.HasSuffix(request.URL.Path, "/models/digits"):
		// Each poll applies the Deployment, or first asks whether the Model exists.
		p.polls.Add(1)
	}
	return nil
}

// hold makes the events of resources wait until release, or the end of the test.
func (p *proxy) hold(resources ...string) (release func()) {
	until := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range resources {
		p.held[of] = until
	}
	return sync.OnceFunc(func() { close(until) })
}

func (p *proxy) pass(ctx context.Context, resource string) {
	p.mu.Lock()
	until := p.held[resource]
	p.mu.Unlock()
	if until == nil {
		return
	}
	select {
	case <-until:
	case <-ctx.Done():
	}
}

// events is the answer to a watch; each piece that has arrived waits for pass.
type events struct {
	io.ReadCloser
	pass func()
}

func (e *events) Read(b []byte) (int, error) {
	n, err := e.ReadCloser.Read(b)
	e.pass()
	return n, err
}
