package operate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/unixsocket"
)

func model(name, version string, ready, isDefault bool) admin.Model {
	m := admin.Model{Name: name, Version: version, Ready: ready, Default: isDefault,
		Inputs: []admin.Tensor{{Name: "image", Datatype: "UINT8", Shape: []int{-1, 8, 8}}}, Outputs: []admin.Tensor{}}
	if ready {
		m.Replicas = 1
	}
	return m
}

// fake is a server that has only what these tests need.
type fake struct {
	models func() []admin.Model
	ready  func() admin.Readiness
	status func() admin.Status
	config func() any
}

func (f *fake) Models() []admin.Model              { return f.models() }
func (f *fake) Names() []string                    { return nil }
func (f *fake) Ready() admin.Readiness             { return f.ready() }
func (f *fake) Status() admin.Status               { return f.status() }
func (f *fake) Config() any                        { return f.config() }
func (f *fake) Reload() (admin.Reloaded, error)    { return admin.Reloaded{}, nil }
func (f *fake) Explain(string) []admin.Explanation { return nil }
func (f *fake) Batches() []admin.Batches           { return nil }
func (f *fake) Insights(string) []admin.Insight    { return nil }

func (f *fake) Streams(string, int) []admin.VersionStreams { return nil }

func (f *fake) Set(context.Context, string, map[string]*string) (before, after map[string]any, err error) {
	return nil, nil, nil
}

func (f *fake) clearCache(model string) (entries, bytes int64, err error) {
	if model != "b c" {
		return 0, 0, errors.New("it has just gone")
	}
	return 3, 4096, nil
}

func sources(state string) Sources { return newFake(state).sources() }

func newFake(state string) *fake {
	models := func() []admin.Model {
		list := []admin.Model{model("a", "2", false, false), model("a", "1", true, true),
			model("b c", "x/y", true, true), model("gone", "1", true, true)}
		list[2].Cache = &admin.Cache{Limit: 8192, Entries: 3, Bytes: 4096, Hits: 9}
		list[3].Cache = &admin.Cache{Limit: 8192}
		return list
	}
	ready := func() admin.Readiness { return judge(state, []string{"a"}, models()) }
	return &fake{
		models: models,
		ready:  ready,
		status: func() admin.Status { return admin.Status{Version: "1.2.3", Readiness: ready()} },
		config: func() any { return map[string]string{"a": "b"} },
	}
}

func (f *fake) sources() Sources {
	return Sources{
		Version: "1.2.3",
		Access:  func() Access { return Access{Hosts: []string{"example.com"}, Profiling: true, ImportBytes: 1 << 20} },
		Report:  f, Settings: f, ClearCache: f.clearCache,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "up 1\n") }),
	}
}

func TestPaths(t *testing.T) {
	h := Handler(sources(admin.Serving))
	for _, c := range []struct {
		method, path string
		status       int
		body         string // part of it
	}{
		{"GET", "/", 200, `"paths": [`},
		{"GET", "/livez", 200, `"live": true`},
		{"HEAD", "/livez", 200, ``},
		{"GET", "/readyz", 200, `"ready": true`},
		{"GET", "/metrics", 200, "up 1\n"},
		{"GET", "/v1/models", 200, `"version": "x/y"`},
		{"GET", "/v1/models/a", 200, `"default_version": "1"`},
		{"GET", "/v1/models/a/versions/2", 200, `"version": "2"`},
		{"GET", "/v1/models/b%20c/versions/x%2Fy", 200, `"name": "b c"`},
		{"GET", "/v1/status", 200, `"version": "1.2.3"`},
		{"GET", "/v1/config", 200, `"a": "b"`},
		{"GET", "/debug/pprof/", 200, "goroutine"},
		{"GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"GET", "/debug/pprof/cmdline", 200, ""},

		{"GET", "/v1/models/zzz", 404, `{"error":"no model \"zzz\"; /v1/models lists them"}`},
		{"GET", "/v1/models/aa", 404, `{"error":"no model \"aa\"; nearest: \"a\""}`},
		{"GET", "/v1/models/aa/streams", 404, `{"error":"no model \"aa\"; nearest: \"a\""}`},
		{"GET", "/v1/models/zzz/explain", 404, `{"error":"no model, application or pipeline \"zzz\"; /v1/status lists them"}`},
		{"GET", "/v1/models/a/versions/9", 404, `{"error":"no version \"9\" of a model \"a\"; /v1/models lists them"}`},
		{"GET", "/v1/models/", 404, `{"error":"no such path: /v1/models/; GET / lists`},
		{"GET", "//v1/models", 404, `{"error":"no such path: //v1/models`},
		{"GET", "/v1/../v1/models", 404, `{"error":"no such path`},
		{"GET", "/nope", 404, `{"error":"no such path: /nope`},
		{"GET", "/v1/models/b%20c/cache", 200, `"hits": 9`},
		{"DELETE", "/v1/models/b%20c/cache", 200, `"entries": 3`},
		{"GET", "/v1/models/a/cache", 404, `model \"a\" has no cache; set its size with the setting cache`},
		{"DELETE", "/v1/models/a/cache", 404, `model \"a\" has no cache`},
		{"DELETE", "/v1/models/gone/cache", 404, `it has just gone`},
		{"GET", "/v1/models/zzz/cache", 404, `no model \"zzz\"`},
		{"POST", "/nope", 404, `{"error":"no such path: /nope`},
		{"POST", "/v1/models", 405, `{"error":"/v1/models takes GET, HEAD, not POST"}`},
		{"DELETE", "/readyz", 405, `{"error":"/readyz takes GET, HEAD, not DELETE"}`},
		{"POST", "/debug/pprof/profile", 405, `{"error":`},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) {
				t.Errorf("%d %s\nwant %d with %s", w.Code, w.Body, c.status, c.body)
			}
			if c.status >= 400 || strings.HasPrefix(c.path, "/v1") {
				if got := w.Header().Get("Content-Type"); got != "application/json" || !json.Valid(w.Body.Bytes()) {
					t.Errorf("not JSON: %s %s", got, w.Body)
				}
			}
			if c.status == 405 && w.Header().Get("Allow") != "GET, HEAD" {
				t.Error("405 without Allow")
			}
		})
	}
}

func TestEmptyListsAreLists(t *testing.T) {
	f := newFake(admin.Serving)
	f.models = func() []admin.Model { return nil }
	w := httptest.NewRecorder()
	Handler(f.sources()).ServeHTTP(w, httptest.NewRequest("GET", "/v1/models", nil))
	if got := strings.Join(strings.Fields(w.Body.String()), ""); got != `{"models":[]}` {
		t.Errorf("got %s", got)
	}
}

func TestNotReady(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(sources(admin.Draining)).ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	var r admin.Readiness
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != 503 || r.Ready || r.Reason != "the server is shutting down" {
		t.Errorf("%d %s %v", w.Code, w.Body, err)
	}
}

func TestJudge(t *testing.T) {
	models := []admin.Model{model("a", "1", true, true), model("a", "2", false, false), model("b", "1", false, true)}
	for _, c := range []struct {
		state    string
		required []string
		want     admin.Readiness
	}{
		{admin.Serving, nil, admin.Readiness{Ready: true, State: admin.Serving}},
		{admin.Serving, []string{"a", "a/1"}, admin.Readiness{Ready: true, State: admin.Serving}},
		{admin.Serving, []string{"a/2", "b", "c"},
			admin.Readiness{State: admin.Serving, Reason: "no live replica of a/2, b, c", Missing: []string{"a/2", "b", "c"}}},
		{admin.Starting, []string{"b"},
			admin.Readiness{State: admin.Starting, Reason: "the server is not serving yet", Missing: []string{"b"}}},
		{admin.Draining, nil, admin.Readiness{State: admin.Draining, Reason: "the server is shutting down"}},
	} {
		if got := judge(c.state, c.required, models); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %v: got %+v, want %+v", c.state, c.required, got, c.want)
		}
	}
}

func TestBugsAreAnswered(t *testing.T) {
	f := newFake(admin.Serving)
	f.status = func() admin.Status { panic("oh") }
	f.config = func() any { return func() {} } // not JSON
	h := Handler(f.sources())
	for _, path := range []string{"/v1/status", "/v1/config"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if want := `{"error":"internal error; see the server's log"}` + "\n"; w.Code != 500 || w.Body.String() != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func listenOn(t *testing.T, h http.Handler) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", unixsocket.Access{}, nil, nil, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Shutdown answers requests in progress, and does not wait beyond its context.
func TestShutdown(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := listenOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		io.WriteString(w, "done")
	}))
	body := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + s.Addr().String())
		if err != nil {
			body <- err.Error()
			return
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		body <- string(b)
	}()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.Background()) }()
	close(leave)
	if got := <-body; got != "done" {
		t.Errorf("the request in hand got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	select {
	case err := <-s.Failed():
		t.Errorf("a shutdown is no failure: %v", err)
	default:
	}
	if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
		t.Error("still listening")
	}
}

func TestShutdownIsCutOff(t *testing.T) {
	entered := make(chan struct{})
	s := listenOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}))
	go http.Get("http://" + s.Addr().String())
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); err == nil {
		t.Error("a request was left, and Shutdown says nothing")
	}
}

func TestListenFails(t *testing.T) {
	s := listenOn(t, http.NotFoundHandler())
	if _, err := Listen(s.Addr().String(), unixsocket.Access{}, nil, nil, http.NotFoundHandler(), nil); err == nil ||
		!strings.HasPrefix(err.Error(), "admin: listen: ") {
		t.Errorf("listening twice: %v", err)
	}
}

func TestFailed(t *testing.T) {
	s := listenOn(t, http.NotFoundHandler())
	s.listener.(*boundedListener).Listener.Close() // as the kernel might
	if err := <-s.Failed(); err == nil {
		t.Error("no error")
	}
}

// A client that holds connections open keeps no other client out, whatever it has sent: idle
// connections give way, those of the largest crowd first, and requests in progress are finished.
func TestLivezUnderSiege(t *testing.T) {
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	admin := Handler(sources(admin.Serving))
	s := listenOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- struct{}{}
			<-leave
		}
		admin.ServeHTTP(w, r)
	}))
	dial := func(from string) net.Conn {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	head := func(c net.Conn) error {
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err := bufio.NewReader(c).ReadString('\n')
		return err
	}
	ask := func(c net.Conn) error {
		fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		return head(c)
	}
	slow, friend := dial("127.0.0.1"), dial("127.0.0.3")
	fmt.Fprintf(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
	<-entered
	if err := ask(friend); err != nil {
		t.Fatal(err)
	}
	for i := range 10 * maxConnections {
		switch c := dial("127.0.0.2"); i % 3 {
		case 0: // sends nothing
		case 1:
			fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHo") // never sends the rest
		case 2:
			fmt.Fprint(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") // kept alive
		}
	}
	if err := ask(dial("127.0.0.1")); err != nil {
		t.Errorf("/livez under siege: %v", err)
	}
	if err := ask(friend); err != nil {
		t.Errorf("an idle connection from elsewhere gave way to the crowd: %v", err)
	}
	close(leave)
	if err := head(slow); err != nil {
		t.Errorf("a request in hand was cut off: %v", err)
	}
	b := s.listener.(*boundedListener)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.held) > maxConnections {
		t.Errorf("%d connections are held, above %d", len(b.held), maxConnections)
	}
}

// A failed accept, as without a free descriptor, does no harm.
func TestFailedAccept(t *testing.T) {
	b := &boundedListener{Listener: brokenListener{}, held: make(map[*boundedConn]struct{})}
	for range 3 {
		if _, err := b.Accept(); err == nil {
			t.Fatal("no error")
		}
	}
	if len(b.held) != 0 {
		t.Errorf("%d connections are held", len(b.held))
	}
}

type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, errors.New("too many open files") }
