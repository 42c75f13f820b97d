package server

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
)

const jsonType = "application/json"

// requestAdmin sends a request to the admin door of a server, and returns the status and the text
// of the answer.
func requestAdmin(t *testing.T, s *Server, method, path, contentType, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addrs().Admin.String()+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

// operator is a user of a server's admin door.
type operator struct {
	t *testing.T
	s *Server
}

// do sends a body, "" for none, and returns the status and the answer without its white space.
func (o operator) do(method, path, body string) (int, string) {
	o.t.Helper()
	status, text := requestAdmin(o.t, o.s, method, path, jsonType, body)
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		o.t.Fatalf("%s %s: not JSON: %s", method, path, text)
	}
	return status, b.String()
}

// expect checks that the answer has these parts.
func (o operator) expect(method, path, body string, status int, parts ...string) string {
	o.t.Helper()
	got, answer := o.do(method, path, body)
	if got != status {
		o.t.Errorf("%s %s %s: expected %d, got %d %s", method, path, body, status, got, answer)
	}
	for _, p := range parts {
		if !strings.Contains(answer, p) {
			o.t.Errorf("%s %s %s: expected %s, got %s", method, path, body, p, answer)
		}
	}
	return answer
}

// logged holds the log of a server.
type logged = doortest.Log

func TestApplicationsAreManaged(t *testing.T) {
	var log logged
	o := operator{t, startLogging(t, slog.New(slog.NewTextHandler(&log, nil)), nil)}
	o.expect("GET", "/v1/apps", "", 200, `{"apps":[]}`)
	o.expect("POST", "/v1/apps", `{"name":"app","models":["echo"],"policy":"exp4","params":{"eta":0.3},"slo":"50ms","default":{"x":[0,0]}}`,
		201, `"slo":"50ms"`, `"eta":0.3`)
	o.expect("GET", "/v1/apps/app", "", 200, `{"name":"app","models":["echo"],"policy":"exp4","params":{"eta":0.3},"slo":"50ms","default":{"x":[0,0]}}`)
	o.expect("POST", "/v1/apps", `{"name":"app","models":["echo"]}`, 409, `exists already`)
	// All errors are reported at once, of form and of content.
	o.expect("POST", "/v1/apps", `{"name":"a/b","models":[],"polcy":1,"policy":"exp5","slo":"soon"}`, 400,
		`polcy: unknown`, `a/b`, `models: none`, `exp5`, `soon`)
	o.expect("POST", "/v1/apps", `{"name":7,"models":"echo","slo":1}`, 400, `name: expected a string, got 7`,
		`models: expected a list`, `slo: expected`)
	o.expect("POST", "/v1/apps", `{"name":"echo","models":["other"]}`, 400, `there is a model of that name`)
	o.expect("POST", "/v1/apps", `[]`, 400, `expected an application`)
	o.expect("PATCH", "/v1/apps/app", `{"slo":null,"params":{"eta":null,"share":0.1}}`, 200, `"params":{"share":0.1}`)
	o.expect("PATCH", "/v1/apps/app", `{"name":"other"}`, 400, `cannot be renamed`)
	o.expect("PATCH", "/v1/apps/app", `{"slo":"-1s","params":{"eta":100}}`, 400, `-1s`, `eta`)
	o.expect("PATCH", "/v1/apps/ap", `{"slo":"1s"}`, 404, `nearest: \"app\"`)
	o.expect("PUT", "/v1/apps/app", `{"models":["echo/1"]}`, 200, `{"name":"app","models":["echo/1"],"policy":"single"}`)
	o.expect("PUT", "/v1/apps/new", `{"models":["echo"]}`, 201, `"name":"new"`)
	o.expect("PUT", "/v1/apps/new", `{"name":"other","models":["echo"]}`, 400, `\"new\"`, `\"other\"`)
	o.expect("POST", "/v1/apps/app/links", `{"model":"later/*"}`, 200, `"models":["echo/1","later/*"]`)
	o.expect("POST", "/v1/apps/app/links", `{"model":"later/*"}`, 409, `already`)
	o.expect("POST", "/v1/apps/app/links", `{"model":"a/b/c"}`, 400, `version \"b/c\"`)
	o.expect("DELETE", "/v1/apps/app/links?model=echo%2F1", ``, 200, `"models":["later/*"]`)
	o.expect("DELETE", "/v1/apps/app/links?model=later/*", ``, 400, `models: none`)
	o.expect("DELETE", "/v1/apps/app/links?model=x", ``, 404, `later/*`)
	o.expect("DELETE", "/v1/apps/new", ``, 200, `"name":"new"`)
	o.expect("DELETE", "/v1/apps/new", ``, 404, `no application`)
	o.expect("GET", "/v1/policies", ``, 200, `{"name":"exp4","parameters":[{"name":"eta",`, `"name":"weights","wants":"for each`)
	o.expect("POST", "/v1/import?dry_run=true", `{"format":1,"applications":[{"name":"dry","models":["echo"]}]}`, 200, `"name":"dry"`)
	o.expect("POST", "/v1/import", `{"format":1,"applications":[{"name":"wet","models":["echo"]}]}`, 200, `"name":"wet"`)
	if strings.Contains(log.String(), "dry") || !strings.Contains(log.String(), `what=state name="" after="{\"changes\":1,\"first\":[{\"what\":\"application\",\"name\":\"wet\"}]}"`) {
		t.Errorf("what an import did, and not what one would do, belongs in the log:\n%s", log.String())
	}
	for _, want := range []string{
		`before="{\"name\":\"app\",\"models\":[\"echo/1\"],\"policy\":\"single\"}" after="{\"name\":\"app\",\"models\":[\"echo/1\",\"later/*\"],`,
		`from=127.0.0.1:`, `door=admin action=create what=application name=app after="{\"name\":\"app\",\"models\":[\"echo\"],\"policy\":\"exp4\"`,
		`before="{\"name\":\"new\",`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
}

// TestFeedbackOverHTTP: feedback with its input teaches the policy, once for each id; what was
// learned is shown and forgotten.
func TestFeedbackOverHTTP(t *testing.T) {
	o := operator{t, start(t, nil)}
	o.expect("PUT", "/v1/apps/app", `{"models":["echo"],"policy":"exp4"}`, 201)
	o.expect("POST", "/v1/apps/app/feedback", `{"user":"u","input":[[1,2]],"label":[[1,2]],"id":7}`, 200, `{"application":"app","learned":true,"rounds":1}`)
	o.expect("POST", "/v1/apps/app/feedback", `{"user":"u","input":{"x":[[1,2]]},"loss":1,"id":7}`, 200, `"learned":false,"rounds":1`)
	o.expect("POST", "/v1/apps/app/feedback", `{"user":"v","input":[1,2],"loss":0.5}`, 200, `"rounds":1`)
	o.expect("POST", "/v1/apps/app/feedback", `{"user":"u","id":8,"loss":1}`, 404, `this server knows no request`)
	o.expect("POST", "/v1/apps/app/feedback", `{"input":[["a",2]],"loss":1}`, 400, `input \"x\"`)
	o.expect("POST", "/v1/apps/app/feedback", `{"input":{"y":1},"loss":1}`, 400, `\"x\" is missing`)
	o.expect("POST", "/v1/apps/app/feedback", `{"input":[[1,2]]}`, 400, `expected one of`)
	o.expect("POST", "/v1/apps/echo/feedback", `{"id":1,"loss":1}`, 404, `only applications take feedback`)
	o.expect("POST", "/v1/apps/nobody/feedback", `{"id":1,"loss":1}`, 404)
	o.expect("GET", "/v1/apps/app/policy", ``, 200, `"policy":"exp4"`,
		`"user":"u","rounds":1,"models":[{"model":"echo/1","share":1,"loss":0,"count":1}]`, `"user":"v"`, `"eta":`)
	if got := o.expect("GET", "/v1/apps/app/policy?user=v", ``, 200, `"user":"v"`); strings.Contains(got, `"user":"u"`) {
		t.Errorf("the other user is shown as well: %s", got)
	}
	o.expect("GET", "/v1/apps/app/policy?limit=1", ``, 200, `"more":true`)
	o.expect("GET", "/v1/apps/app/policy?limit=0", ``, 400)
	o.expect("DELETE", "/v1/apps/app/policy", ``, 200, `"users":[]`)
	o.expect("GET", "/v1/apps/nobody/policy", ``, 404)
}

// TestStateSurvives: with a file, applications, learned state and settings survive a restart; and a
// document brings them to another server.
func TestStateSurvives(t *testing.T) {
	at := filepath.Join(t.TempDir(), "state.db")
	durable := func(c *config.Config) { c.State.At = at }
	first := operator{t, start(t, durable)}
	first.expect("PUT", "/v1/apps/app", `{"models":["echo"],"policy":"exp4","slo":"2s"}`, 201)
	first.expect("POST", "/v1/apps/app/feedback", `{"user":"u","input":[[1,2]],"loss":0.25}`, 200)
	first.expect("PATCH", "/v1/models/echo", `{"objective":"20ms","max_batch":"32"}`, 200)
	first.expect("PATCH", "/v1/models/echo", `{"max_batch":null}`, 200, `"objective":"20ms"`, `"max_batch":128`)
	first.expect("PUT", "/v1/models/echo/default_version", `{"version":"1"}`, 200, `"default_version":"1"`)
	first.expect("PUT", "/v1/models/echo/default_version", `{"version":"9"}`, 400, `\"9\"`)
	document := first.expect("GET", "/v1/export", ``, 200,
		`"settings":{"echo":{"default_version":"1","objective":"20ms"}}`, `"user":"u"`)
	stop(t, first.s)

	second := operator{t, start(t, durable)}
	budgettest.Until(t, "the application after a restart", func() bool {
		_, got := second.do("GET", "/v1/export", "")
		return got == document
	})
	second.expect("GET", "/v1/models/echo", "", 200, `"objective":"20ms"`, `"default_version":"1"`)

	other := operator{t, start(t, nil)}
	if got := other.expect("POST", "/v1/import?dry_run=true", document, 200, `"dry_run":true`); strings.Count(got, `"what":`) != 3 {
		t.Errorf("expected three changes, got %s", got)
	}
	other.expect("GET", "/v1/apps", "", 200, `{"apps":[]}`)
	other.expect("POST", "/v1/import", document, 200, `"dry_run":false`, `"what":"model","name":"echo"`)
	if got := other.expect("GET", "/v1/export", "", 200); got != document {
		t.Errorf("imported\n%s\nexported\n%s", document, got)
	}
	other.expect("GET", "/v1/models/echo", "", 200, `"objective":"20ms"`)
	other.expect("POST", "/v1/import", document, 200, `"changes":[]`)
	other.expect("POST", "/v1/apps/app/feedback", `{"user":"u","input":[[1,2]],"loss":0.25}`, 200)
	other.expect("POST", "/v1/import?dry_run=true", document, 200, `"loses":"what exp4 learned from 2 feedbacks (1 in the document)"`)
	other.expect("POST", "/v1/import", document, 409,
		`nothing was imported, because the import would discard what policies have learned: app/u: what exp4 learned from 2 feedbacks`,
		`discard=true`)
	other.expect("GET", "/v1/apps/app/policy", "", 200, `"rounds":2`)
	other.expect("POST", "/v1/import?discard=true", document, 200, `"name":"app/u"`)
	other.expect("GET", "/v1/apps/app/policy", "", 200, `"rounds":1`)
	other.expect("POST", "/v1/import", `{"format":1,"settings":{"gone":{"objective":"20ms"}}}`, 200, `"name":"gone"`)
	other.expect("PATCH", "/v1/models/gone", `{"objective":"30ms"}`, 404)
	other.expect("PATCH", "/v1/models/gone", `{"objective":null}`, 200, `{"name":"gone","default_version":"","versions":[]}`)
	other.expect("PATCH", "/v1/models/gone", `{"objective":null}`, 404, `no settings of it`)
	other.expect("POST", "/v1/import",
		strings.NewReplacer(`"exp4"`, `"exp5"`, `"20ms"`, `"-20ms"`, `"user":"u"`, `"usr":"u"`).Replace(document), 400,
		`exp5`, `-20ms`, `usr`)
	other.expect("POST", "/v1/import", `{"format":2}`, 400, `expected 1, got 2`)
	other.expect("POST", "/v1/import?dry_run=yes", document, 400)
}

// TestSettingsAgainstTheFile: settings in the store that the file now contradicts are ignored, with
// both values in the log.
func TestSettingsAgainstTheFile(t *testing.T) {
	at := filepath.Join(t.TempDir(), "state.db")
	first := operator{t, start(t, func(c *config.Config) { c.State.At = at })}
	first.expect("PATCH", "/v1/models/echo", `{"max_batch":"1000"}`, 200)
	stop(t, first.s)

	var log logged
	s := startLogging(t, slog.New(slog.NewTextHandler(&log, nil)), func(c *config.Config) {
		c.State.At, c.Defaults.QueueRows = at, 500
	})
	o := operator{t, s}
	o.expect("PATCH", "/v1/models/nobody", `{"max_batch":null}`, 404, `nobody`)
	if got := s.settings.Now().Model("echo").MaxBatch; got != 0 {
		t.Errorf("max_batch is %d, expected the file's", got)
	}
	for _, want := range []string{"1000", "500", "settings/echo"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
}

// TestTwoServers: a change at one server takes effect at the other.
func TestTwoServers(t *testing.T) {
	t.Parallel() // it waits
	redis := statetest.NewRedis(t)
	shared := func(c *config.Config) { c.State.At, c.State.Required = redis.Target(), false }
	one, two := operator{t, start(t, shared)}, operator{t, start(t, shared)}
	one.expect("PUT", "/v1/apps/app", `{"models":["echo"],"policy":"exp4"}`, 201)
	// The store knows it a moment before its route does.
	budgettest.Until(t, "the application at the other", func() bool {
		status, _ := two.do("POST", "/v1/apps/app/feedback", `{"user":"u","input":[[1,2]],"loss":0.25}`)
		return status == 200
	})
	two.expect("PATCH", "/v1/models/echo", `{"objective":"20ms"}`, 200)
	budgettest.Until(t, "what the other has learned and set", func() bool {
		_, learned := one.do("GET", "/v1/apps/app/policy", "")
		_, model := one.do("GET", "/v1/models/echo", "")
		return strings.Contains(learned, `"loss":0.25`) && strings.Contains(model, `"objective":"20ms"`)
	})
	two.expect("PATCH", "/v1/models/echo", `{"objective":null}`, 200)
	two.expect("DELETE", "/v1/apps/app", "", 200)
	budgettest.Until(t, "the end of both", func() bool {
		_, apps := one.do("GET", "/v1/apps", "")
		return apps == `{"apps":[]}` && one.s.settings.Now().Model("echo").Objective == 100*time.Millisecond
	})

	redis.Kill()
	budgettest.Until(t, "the refusal of a change", func() bool {
		status, answer := one.do("PUT", "/v1/apps/app", `{"models":["echo"]}`)
		return status == 503 && strings.Contains(answer, "unavailable")
	})
	one.expect("GET", "/v1/apps", "", 200)
	// A server that has not reached the store yet does not know the names, and does not answer that
	// a name does not exist.
	late := operator{t, start(t, shared)}
	late.expect("GET", "/v1/apps", "", 503)
	late.expect("GET", "/v1/export", "", 503)
	late.expect("GET", "/v1/models/echo", "", 200)
}

// TestContainersAreOperated: processes are stopped and started by the name of their [[container]].
func TestContainersAreOperated(t *testing.T) {
	o := operator{t, start(t, func(c *config.Config) {
		c.Supervised = []config.Container{
			{Name: "sleeper", Model: "slept", Command: []string{"sleep", "1000"},
				Process: config.Process{Replicas: config.Fixed(1), StopTimeout: time.Second}},
			{Name: "far", Address: "tcp://127.0.0.1:1", RPC: "v0", Model: "far", Version: "1", Input: "ints",
				Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}},
		}
	})}
	list := func() (out admin.Containers) {
		_, text := o.do("GET", "/v1/containers", "")
		if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Containers) != 2 {
			t.Fatalf("%s: %v", text, err)
		}
		return out
	}
	budgettest.Until(t, "the process", func() bool {
		c := list().Containers[0]
		return c.State == "LOADING" && c.Processes[0].State == "running"
	})
	o.expect("POST", "/v1/containers/sleeper/stop", "", 200, `"state":"UNAVAILABLE"`, `"reason":"unloaded"`)
	if c := list().Containers[0]; c.Processes[0].State != "unloaded" {
		t.Errorf("after stop: %+v", c)
	}
	o.expect("POST", "/v1/containers/far/stop", "", 400, "this server dials container")
	o.expect("POST", "/v1/containers/none/start", "", 404, `\"sleeper\", \"far\"`)
	o.expect("GET", "/v1/containers/sleeper/start", "", 405)
}
