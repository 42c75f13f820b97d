package operate

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
)

// A page whose own name resolves to this address, and a page of another origin, get nothing from
// any path; programs, the door's own pages and those of listed names do.
func TestStrangersPages(t *testing.T) {
	s := sources(admin.Serving)
	s.Access = func() Access { return Access{Hosts: []string{"ops.example"}, Profiling: true} }
	h := Handler(s)
	for _, c := range []struct {
		name   string
		method string
		host   string
		header []string // key, value, ...
		status int
	}{
		{"a program", "GET", "127.0.0.1:8002", nil, 200},
		{"a program by a listed name", "GET", "ops.example:8002", nil, 200},
		{"no host", "GET", "", nil, 200},
		{"a rebound name", "GET", "evil.example:8002", nil, 403},
		{"a rebound name, same origin", "POST", "evil.example:8002",
			[]string{"Origin", "http://evil.example:8002", "Sec-Fetch-Site", "same-origin"}, 403},
		{"an address as a name", "GET", "127.0.0.1.evil.example", nil, 403},
		{"another origin", "GET", "127.0.0.1:8002", []string{"Origin", "http://evil.example"}, 403},
		{"an image", "GET", "127.0.0.1:8002",
			[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, 403},
		{"a frame", "GET", "127.0.0.1:8002",
			[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"a link that is followed", "GET", "127.0.0.1:8002",
			[]string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"a form", "POST", "127.0.0.1:8002",
			[]string{"Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"another port of the same host", "GET", "127.0.0.1:8002",
			[]string{"Origin", "http://127.0.0.1:3000", "Sec-Fetch-Site", "same-site"}, 403},
		{"an own page", "GET", "127.0.0.1:8002", []string{"Origin", "http://127.0.0.1:8002", "Sec-Fetch-Site", "same-origin"}, 200},
		{"a page of a listed name", "GET", "127.0.0.1:8002",
			[]string{"Origin", "https://ops.example", "Sec-Fetch-Site", "cross-site"}, 200},
	} {
		paths := []string{"/livez", "/metrics", "/v1/models", "/debug/pprof/cmdline", "/", "/page/main.js"}
		if c.status == 403 {
			paths = append(paths, "/v1/watch", "/v1/models/a/try")
		}
		for _, path := range paths {
			r := httptest.NewRequest(c.method, path, nil)
			r.Host = c.host
			for i := 0; i < len(c.header); i += 2 {
				r.Header.Set(c.header[i], c.header[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if want := c.status; w.Code != want {
				t.Errorf("%s: %s %s is answered %d, expected %d: %s", c.name, c.method, path, w.Code, want, w.Body)
			}
			if w.Code == 403 && !strings.Contains(w.Body.String(), "admin.hosts") {
				t.Errorf("%s: the answer does not name the setting: %s", c.name, w.Body)
			}
		}
	}

	s.Access = func() Access { return Access{Hosts: []string{"*"}} }
	r := httptest.NewRequest("GET", "/livez", nil)
	r.Host = "any.example"
	w := httptest.NewRecorder()
	Handler(s).ServeHTTP(w, r)
	if w.Code != 200 {
		t.Errorf("by any name: %d %s", w.Code, w.Body)
	}
	r.Header.Set("Origin", "http://evil.example")
	w = httptest.NewRecorder()
	Handler(s).ServeHTTP(w, r)
	if w.Code != 403 {
		t.Errorf("a page of another origin: %d %s", w.Code, w.Body)
	}
}

// Profiles are available where they are on, and never show the command line, which may contain a
// password.
func TestProfiling(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = []string{"shivad", "--state", "redis://:hunter2@redis:6379/0"}
	s := sources(admin.Serving)
	for _, on := range []bool{false, true} {
		s.Access = func() Access { return Access{Hosts: []string{"example.com"}, Profiling: on} }
		want := http.StatusNotFound
		if on {
			want = http.StatusOK
		}
		for _, path := range []string{"", "cmdline", "goroutine?debug=2", "symbol", "heap"} {
			w := httptest.NewRecorder()
			Handler(s).ServeHTTP(w, httptest.NewRequest("GET", "/debug/pprof/"+path, nil))
			if w.Code != want || !on && !strings.Contains(w.Body.String(), "admin.profiling") {
				t.Errorf("profiling %v: %q is answered %d: %.200s", on, path, w.Code, w.Body)
			}
			if strings.Contains(w.Body.String(), "hunter2") {
				t.Errorf("%q shows a password", path)
			}
		}
	}
}
