package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/jsontest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// Requests to the admin door that are nearly right: whatever an operator's program sends, the
// answer is one of the door's, in time. The same for the door of the Predict Protocol, and why,
// is in server/rest.
func TestMutants(t *testing.T) {
	o := newOperators(t)
	n := 0
	jsontest.Drive(t, 3_000, &o.tally, func(c jsontest.Choices) {
		o.run(t, c)
		if n++; n%50 == 0 {
			o.clear(t)
		}
	})
}

// FuzzMutants: likewise, by coverage.
func FuzzMutants(f *testing.F) {
	o := newOperators(f)
	jsontest.Fuzz(f, len(o.samples), nil, func(t *testing.T, c jsontest.Choices) {
		o.run(t, c)
		o.clear(t)
	})
}

// operators send what they make of samples to the admin door of a server, without its sockets.
type operators struct {
	s       *Server
	samples []operation
	app     []byte // the application that there always is
	tally   jsontest.Tally
}

// An operation is a right request.
type operation struct {
	method, path string
	body         *jsontest.Value
}

func newOperators(t testing.TB) *operators {
	o := &operators{s: start(t, nil)}
	const app = `{"name":"app","models":["echo","echo/1"],"policy":"exp3","params":{"gamma":0.1,"loss":"absolute"},"slo":"50ms","default":{"x":[1,2]}}`
	o.app = []byte(app)
	o.clear(t)
	budgettest.Until(t, "the application takes feedback", func() bool {
		status, _ := o.send("POST", "/v1/apps/app/feedback", []byte(`{"user":"u","input":[1,2],"losses":{"echo/1":0.5}}`))
		return status == 200
	})
	_, state := o.send("GET", "/v1/export", nil) // of a server that has an application which has learned
	for _, s := range []struct{ method, path, body string }{
		{"POST", "/v1/apps", app},
		{"PUT", "/v1/apps/app", app},
		{"PATCH", "/v1/apps/app", `{"slo":"10ms","params":{"gamma":0.2},"default":null}`},
		{"PATCH", "/v1/apps/app", `{"policy":"split","params":{"gamma":null,"loss":null,"weights":{"echo":0.9,"echo/1":0.1}}}`},
		{"PATCH", "/v1/apps/app", `{"policy":"epsilon-greedy","params":{"gamma":null,"weights":null,"epsilon":0.1}}`},
		{"POST", "/v1/apps/app/links", `{"model":"echo/*"}`},
		{"DELETE", "/v1/apps/app/links?model=echo", ""},
		{"POST", "/v1/apps/app/feedback", `{"id":"q","user":"u","input":[1,2],"label":[1,2]}`},
		{"POST", "/v1/apps/app/feedback", `{"user":"u","input":[1,2],"losses":{"echo/1":0.5}}`},
		{"POST", "/v1/apps/app/feedback", `{"user":"u","input":[1,2],"reward":1}`},
		{"DELETE", "/v1/apps/app/policy", ""},
		{"PATCH", "/v1/models/echo", `{"objective":"50ms","max_batch":"8","shed":"false","strategy":"aimd","cache":"1MiB","queue_rows":null}`},
		{"PUT", "/v1/models/echo/default_version", `{"version":"1"}`},
		{"DELETE", "/v1/models/echo/cache", ""},
		{"POST", "/v1/import?dry_run=true", string(state)},
		{"POST", "/v1/import", string(state)},
		{"POST", "/v1/containers/none/stop", ""},
		{"GET", "/v1/apps/app/policy?user=u&limit=2", ""},
		{"GET", "/v1/models/echo/explain", ""},
	} {
		op := operation{method: s.method, path: s.path}
		if s.body != "" {
			op.body = jsontest.Parse(t, s.body)
		}
		o.samples = append(o.samples, op)
	}
	return o
}

func (o *operators) send(method, path string, body []byte) (status int, answer []byte) {
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	admin.Handler(o.s.sources()).ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

// run makes a request, sends it, and checks the answer.
func (o *operators) run(t *testing.T, c jsontest.Choices) {
	s := jsontest.One(&c, o.samples)
	method, path := s.method, s.path
	var body []byte
	if s.body != nil {
		v := s.body.Clone()
		for range c.N(6) {
			v.Mutate(&c)
		}
		body = v.Append(nil)
	}
	if c.N(16) == 15 {
		body = jsontest.Spoil(&c, body)
	}
	if c.N(16) == 15 {
		method = jsontest.One(&c, []string{"GET", "POST", "PUT", "PATCH", "DELETE"})
	}
	if c.N(16) == 15 {
		path = strings.NewReplacer("/app", "/"+jsontest.One(&c, []string{"echo", "a", "none", "%2F"}), "limit=2", "limit=-1", "true", "yes").Replace(path)
	}
	what := func() string { return fmt.Sprintf("%s %s %.4000q", method, path, body) }
	defer jsontest.Within(what)()
	status, answer := o.send(method, path, body)
	switch status {
	case 200, 201:
		o.tally.Good(status)
	case 400:
		o.tally.Refused(status)
	case 404, 405, 409, 413, 415, 429, 503, 504:
		o.tally.Other(status)
	default:
		t.Fatalf("%s\nanswered %d %s", what(), status, answer)
	}
	if !json.Valid(answer) || status >= 400 && !strings.HasPrefix(string(answer), `{"error":`) {
		t.Fatalf("%s\nanswered %d, which is no JSON or no error: %.500q", what(), status, answer)
	}
}

// clear takes away what requests have made, and makes the application that samples are about.
func (o *operators) clear(t testing.TB) {
	var list admin.AppList
	if _, body := o.send("GET", "/v1/apps", nil); json.Unmarshal(body, &list) != nil {
		t.Fatalf("applications: %s", body)
	}
	for _, a := range list.Apps {
		if status, body := o.send("DELETE", "/v1/apps/"+url.PathEscape(a.Name), nil); status != 200 {
			t.Fatalf("delete application %q: %d %s", a.Name, status, body)
		}
	}
	if status, body := o.send("POST", "/v1/apps", o.app); status != 201 {
		t.Fatalf("application: %d %s", status, body)
	}
}
