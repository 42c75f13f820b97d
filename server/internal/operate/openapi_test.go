package operate_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/admin/admintest"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/operate"
)

// description is the part of an OpenAPI document that the test reads.
type description struct {
	OpenAPI    string
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }
}

type operation struct {
	OperationID string
	RequestBody *struct {
		Content map[string]struct{ Schema schema }
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema schema }
	}
}

type schema map[string]any

// fits returns what a schema does not allow in a decoded JSON value. It knows the keywords that the
// document uses, and fails on others.
func (d *description) fits(at string, s schema, v any) (faults []string) {
	add := func(format string, args ...any) { faults = append(faults, at+": "+fmt.Sprintf(format, args...)) }
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		arg := s[keyword]
		object, isObject := v.(map[string]any)
		list, isList := v.([]any)
		number, isNumber := v.(float64)
		switch keyword {
		case "description":
		case "$ref":
			name := strings.TrimPrefix(arg.(string), "#/components/schemas/")
			target, ok := d.Components.Schemas[name]
			if !ok {
				add("no schema %s", arg)
			}
			faults = append(faults, d.fits(at, target, v)...)
		case "type":
			kinds, several := arg.([]any)
			if !several {
				kinds = []any{arg}
			}
			is := map[any]bool{"null": v == nil, "object": isObject, "array": isList, "number": isNumber,
				"integer": isNumber && number == float64(int64(number))}
			_, is["string"] = v.(string)
			_, is["boolean"] = v.(bool)
			if !slices.ContainsFunc(kinds, func(k any) bool { return is[k] }) {
				add("expected %v, got %v", arg, v)
			}
		case "enum":
			if !slices.Contains(arg.([]any), v) {
				add("expected one of %v, got %v", arg, v)
			}
		case "anyOf":
			if !slices.ContainsFunc(arg.([]any), func(one any) bool {
				return d.fits(at, one.(map[string]any), v) == nil
			}) {
				add("%v is none of %v", v, arg)
			}
		case "required":
			for _, name := range arg.([]any) {
				if _, ok := object[name.(string)]; isObject && !ok {
					add("%v is missing", name)
				}
			}
		case "properties":
			for name, sub := range arg.(map[string]any) {
				if value, ok := object[name]; ok {
					faults = append(faults, d.fits(at+"."+name, sub.(map[string]any), value)...)
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(map[string]any)
			for name, value := range object {
				if _, ok := known[name]; ok {
					continue
				}
				if sub, ok := arg.(map[string]any); ok {
					faults = append(faults, d.fits(at+"."+name, sub, value)...)
				} else if arg == false {
					add("%s is not described", name)
				}
			}
		case "items":
			for i, value := range list {
				faults = append(faults, d.fits(fmt.Sprintf("%s[%d]", at, i), arg.(map[string]any), value)...)
			}
		case "minItems", "maxItems", "minProperties", "minimum", "maximum":
			size := number
			switch {
			case isList:
				size = float64(len(list))
			case isObject:
				size = float64(len(object))
			}
			if limit := arg.(float64); strings.HasPrefix(keyword, "min") && size < limit ||
				strings.HasPrefix(keyword, "max") && size > limit {
				add("%s is %v, got %v", keyword, arg, size)
			}
		default:
			add("this test does not know the keyword %s", keyword)
		}
	}
	return faults
}

func door() http.Handler {
	models := []admin.Model{{Name: "digits", Version: "1", Default: true, Ready: true,
		Inputs: []admin.Tensor{{Name: "image", Datatype: "UINT8", Shape: []int{-1}}}, Outputs: []admin.Tensor{},
		Cache: &admin.Cache{Limit: 1 << 20, Entries: 1}}}
	s := admintest.New(models, admin.Status{
		Readiness: admin.Readiness{Ready: true, State: admin.Serving, Degraded: "a"},
		State:     admin.State{At: "redis://h/0", Error: "b"}, Doors: []admin.Door{{Name: "tcp"}},
		Clients: []admin.Client{{Name: "identity \"cam\"",
			Quotas: []admin.Quota{{Quota: "connections", Limit: 2, Used: 1, Refused: 1, Since: 1}}}},
		Sessions: []admin.Session{{Model: "digits", Version: "1", RPC: "v4", Instance: "a", LastFailure: "b",
			Reason: "c", Arena: "inputs", Readable: 1, Outputs: 1, Replaced: 1, ReplacedFor: 1, Feedback: 1,
			FeedbackDropped: 1}},
		Warnings: []string{"look"}, Routes: []admin.Route{{Name: "robot", To: "digits/latest", Hides: "a model of this name"}},
		Models: []admin.Health{{Name: "digits", Version: "1",
			Durations: []admin.DurationClass{{Above: 0.005, UpTo: 0.01, Requests: 1}}}},
		Streams: []admin.Seen{{Model: "digits", Name: "cam", Askers: []string{"robot"}, Waiting: 1},
			{Model: "digits", Name: "a", Known: true, Age: new(1.5), Askers: []string{}}},
		Processes: []admin.Process{{Name: "digits", PID: 1, State: "running", LastExit: "exit status 1", Log: []string{"line"}}},
	}).Sources()
	s.Trail = access.NewTrail(slog.New(slog.DiscardHandler))
	s.Trail.Add(access.Entry{Source: access.Source{Identity: "a", Address: "b", Door: "rest"}, Action: "load",
		What: "model", Name: "c", Before: "1", After: "2", Refused: true, Error: "d"})
	return operate.Handler(s)
}

func ask(t *testing.T, h http.Handler, method, path, body string) (*httptest.ResponseRecorder, any) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var v any
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
	}
	return w, v
}

func describedBy(t *testing.T, h http.Handler) *description {
	t.Helper()
	w, _ := ask(t, h, "GET", "/v1/openapi.json", "")
	var d description
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || d.OpenAPI != "3.1.0" {
		t.Fatalf("openapi %q: %v", d.OpenAPI, err)
	}
	return &d
}

// Every path and method of the door is described, and nothing else.
func TestEveryOperationIsDescribed(t *testing.T) {
	h := door()
	d := describedBy(t, h)
	_, root := ask(t, h, "GET", "/", "")
	var has, described []string
	for _, p := range root.(map[string]any)["paths"].([]any) {
		path := p.(string)
		if path == "/debug/pprof/" {
			continue
		}
		w, _ := ask(t, h, "BREW", strings.NewReplacer("{", "", "}", "").Replace(path), "")
		for _, method := range strings.Split(w.Header().Get("Allow"), ", ") {
			if method != http.MethodHead {
				has = append(has, path+" "+strings.ToLower(method))
			}
		}
	}
	ids := map[string]string{}
	for path, methods := range d.Paths {
		for method, op := range methods {
			described = append(described, path+" "+method)
			if ids[op.OperationID] != "" || op.OperationID == "" {
				t.Errorf("%s %s: the operation's id %q is also that of %s", method, path, op.OperationID,
					ids[op.OperationID])
			}
			ids[op.OperationID] = path
		}
	}
	slices.Sort(has)
	slices.Sort(described)
	if !slices.Equal(has, described) {
		t.Errorf("the door has\n%q\nand describes\n%q", has, described)
	}
}

// Requests and answers are as described, and each operation is tried.
func TestAnswersAreAsDescribed(t *testing.T) {
	h := door()
	d := describedBy(t, h)
	tried := map[string]bool{}
	for _, c := range []struct {
		method, path, request, body string
		status                      int
	}{
		{"get", "/livez", "", "", 200},
		{"get", "/readyz", "", "", 200},
		{"get", "/metrics", "", "", 200},
		{"get", "/v1/whoami", "", "", 200},
		{"get", "/v1/models/{name}/streams", "/v1/models/digits/streams?limit=1", "", 200},
		{"get", "/v1/models/{name}/streams", "/v1/models/digits/streams?limit=0", "", 400},
		{"get", "/v1/models/{name}/streams", "/v1/models/nobody/streams", "", 404},
		{"post", "/v1/apps", "", `{"name":"app","models":["digits"],"policy":"exp4","params":{"eta":1},"slo":"50ms","keep":"latest","default":{"label":-1}}`, 201},
		{"post", "/v1/apps", "", `{"name":"app","models":["digits"],"policy":"exp4"}`, 409},
		{"post", "/v1/apps", "", `{"name":"least","models":["digits"]}`, 201},
		{"get", "/v1/apps", "", "", 200},
		{"get", "/v1/apps/{name}", "/v1/apps/app", "", 200},
		{"get", "/v1/apps/{name}", "/v1/apps/no", "", 404},
		{"put", "/v1/apps/{name}", "/v1/apps/new", `{"models":["digits"]}`, 201},
		{"put", "/v1/apps/{name}", "/v1/apps/new", `{"models":["digits"],"slo":"1s","keep":3}`, 200},
		{"patch", "/v1/apps/{name}", "/v1/apps/app", `{"slo":null,"keep":null,"models":["digits","other"]}`, 200},
		{"post", "/v1/apps/{name}/links", "/v1/apps/app/links", `{"model":"third"}`, 200},
		{"delete", "/v1/apps/{name}/links", "/v1/apps/app/links?model=third", "", 200},
		{"post", "/v1/apps/{name}/feedback", "/v1/apps/app/feedback", `{"user":"u","loss":0.5,"id":1}`, 200},
		{"get", "/v1/apps/{name}/policy", "/v1/apps/app/policy", "", 200},
		{"post", "/v1/pipelines", "", `{"name":"plates","inputs":["image"],"outputs":{"t":"read.text"},"slo":"1s","keep":"latest","stages":[{"name":"find","model":"digits","inputs":{"image":"image"}},{"name":"read","model":"digits/1","inputs":{"image":"image"},"each":"find.boxes","boxes":"parts","keep":{"classes":["plate"],"score":0.5,"most":3,"smallest":0.1},"margin":0.1,"required":true,"timeout":"50ms"}]}`, 201},
		{"post", "/v1/pipelines", "", `{"name":"plates","stages":[{"name":"find","model":"digits"}]}`, 409},
		{"post", "/v1/pipelines", "/v1/pipelines?dry_run=true", `{"name":"trial","stages":[{"name":"find","model":"nobody"}]}`, 200},
		{"post", "/v1/pipelines", "/v1/pipelines?dry_run=perhaps", `{"name":"trial","stages":[{"name":"find","model":"nobody"}]}`, 400},
		{"get", "/v1/pipelines", "", "", 200},
		{"get", "/v1/pipelines/{name}", "/v1/pipelines/plates", "", 200},
		{"get", "/v1/pipelines/{name}", "/v1/pipelines/no", "", 404},
		{"get", "/v1/pipelines/{name}/drawing", "/v1/pipelines/plates/drawing", "", 200},
		{"put", "/v1/pipelines/{name}", "/v1/pipelines/other", `{"stages":[{"name":"find","model":"digits"}]}`, 201},
		{"put", "/v1/pipelines/{name}", "/v1/pipelines/other", `{"stages":[{"name":"seek","model":"digits"}]}`, 200},
		{"patch", "/v1/pipelines/{name}", "/v1/pipelines/other", `{"slo":"2s","outputs":null}`, 200},
		{"delete", "/v1/pipelines/{name}", "/v1/pipelines/other", "", 200},
		{"get", "/v1/policies", "", "", 200},
		{"get", "/v1/models", "", "", 200},
		{"get", "/v1/models/{name}", "/v1/models/digits", "", 200},
		{"patch", "/v1/models/{name}", "/v1/models/digits", `{"objective":"20ms","delay":null}`, 200},
		{"patch", "/v1/models/{name}", "/v1/models/no", `{"objective":"20ms"}`, 404},
		{"put", "/v1/models/{name}/default_version", "/v1/models/digits/default_version", `{"version":"1"}`, 200},
		{"put", "/v1/models/{name}/default_version", "/v1/models/digits/default_version", `{"version":"2"}`, 400},
		{"get", "/v1/models/{name}/cache", "/v1/models/digits/cache", "", 200},
		{"get", "/v1/models/{name}/cache", "/v1/models/no/cache", "", 404},
		{"delete", "/v1/models/{name}/cache", "/v1/models/digits/cache", "", 200},
		{"get", "/v1/models/{name}/explain", "/v1/models/digits/explain", "", 200},
		{"get", "/v1/models/{name}/latest", "/v1/models/digits/latest?limit=3", "", 200},
		{"get", "/v1/models/{name}/latest", "/v1/models/digits/latest?limit=0", "", 400},
		{"get", "/v1/models/{name}/latest", "/v1/models/no/latest", "", 404},
		{"get", "/v1/models/{name}/versions", "/v1/models/digits/versions", "", 200},
		{"get", "/v1/models/{name}/versions/{version}", "/v1/models/digits/versions/1", "", 200},
		{"get", "/v1/audit", "/v1/audit?limit=5", "", 200},
		{"get", "/v1/audit", "/v1/audit?limit=0", "", 400},
		{"get", "/v1/logs", "/v1/logs?limit=5&level=warn&after=1", "", 200},
		{"get", "/v1/logs", "/v1/logs?limit=0", "", 400},
		{"get", "/v1/logs", "/v1/logs?level=loud", "", 400},
		{"get", "/v1/logs", "/v1/logs?after=now", "", 400},
		{"get", "/v1/watch", "/v1/watch?since=soon", "", 400},
		{"post", "/v1/models/{name}/unload", "/v1/models/digits/unload", "", 200},
		{"post", "/v1/models/{name}/load", "/v1/models/digits/load", "", 200},
		{"post", "/v1/models/{name}/load", "/v1/models/no/load", "", 404},
		{"post", "/v1/models/{name}/try", "/v1/models/digits/try", `{"input":[[1]]}`, 200},
		{"post", "/v1/models/{name}/try", "/v1/models/no/try", `{"version":"1","input":{"b64":"AA=="}}`, 404},
		{"get", "/v1/history/{name}", "/v1/history/digits", "", 200},
		{"get", "/v1/history/{name}", "/v1/history/no", "", 404},
		{"get", "/v1/containers", "", "", 200},
		{"post", "/v1/containers/{name}/stop", "/v1/containers/digits/stop", "", 200},
		{"post", "/v1/containers/{name}/start", "/v1/containers/digits/start", "", 200},
		{"post", "/v1/containers/{name}/start", "/v1/containers/no/start", "", 404},
		{"post", "/v1/containers/{name}/restart", "/v1/containers/digits/restart", "", 200},
		{"post", "/v1/containers/{name}/restart", "/v1/containers/no/restart", "", 404},
		{"get", "/v1/export", "", "", 200},
		{"post", "/v1/import", "/v1/import?dry_run=true", `{"format":1,"applications":[{"name":"app","models":["m"],"policy":""}],"policies":[],"pipelines":[{"name":"p","inputs":[],"stages":[{"name":"find","model":"digits"}]}],"settings":{"digits":{"delay":"1ms"}}}`, 200},
		{"get", "/v1/status", "", "", 200},
		{"get", "/v1/config", "", "", 200},
		{"post", "/v1/config/reload", "", "", 200},
		{"get", "/v1/openapi.json", "", "", 200},
		{"delete", "/v1/apps/{name}/policy", "/v1/apps/app/policy", "", 200},
		{"delete", "/v1/apps/{name}", "/v1/apps/app", "", 200},
	} {
		if c.request == "" {
			c.request = c.path
		}
		op, ok := d.Paths[c.path][c.method]
		if !ok {
			t.Errorf("%s %s is not described", c.method, c.request)
			continue
		}
		tried[c.path+" "+c.method] = true
		op.tried(t, h, d, trial{c.method, c.request, c.body, c.status})
	}
	eventsAreAsDescribed(t, h, d)
	tried["/v1/watch get"] = true
	everyPathIsTried(t, d, tried)
}

// A trial is a request, and the status that it is to be answered with.
type trial struct {
	method, request, body string
	status                int
}

// tried sends a request, and compares it and its answer with the operation's description.
func (op operation) tried(t *testing.T, h http.Handler, d *description, c trial) {
	t.Helper()
	what := c.method + " " + c.request
	if c.body != "" {
		var sent any
		if err := json.Unmarshal([]byte(c.body), &sent); err != nil {
			t.Fatal(err)
		}
		for _, f := range d.fits("sent", op.RequestBody.Content["application/json"].Schema, sent) {
			t.Errorf("%s: %s", what, f)
		}
	}
	w, v := ask(t, h, strings.ToUpper(c.method), c.request, c.body)
	answer, ok := op.Responses[fmt.Sprint(w.Code)]
	if w.Code != c.status || !ok {
		t.Errorf("%s: expected %d, got %d %s; described: %t", what, c.status, w.Code, w.Body, ok)
		return
	}
	if content, ok := answer.Content["application/json"]; ok {
		for _, f := range d.fits("answer", content.Schema, v) {
			t.Errorf("%s: %s", what, f)
		}
	} else if v != nil {
		t.Errorf("%s answers JSON, which is not described", what)
	}
}

// eventsAreAsDescribed reads the first events of a watch, one for each part.
func eventsAreAsDescribed(t *testing.T, h http.Handler, d *description) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	answer, err := http.Get(server.URL + "/v1/watch?model=digits&since=0")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatal(answer.Status, kind)
	}
	events, _ := d.Components.Schemas["Watch"]["properties"].(map[string]any)
	told := map[string]bool{"end": true} // this event comes last
	for lines := bufio.NewScanner(answer.Body); len(told) < len(events) && lines.Scan(); {
		name, ok := strings.CutPrefix(lines.Text(), "event: ")
		if !ok {
			continue
		}
		lines.Scan()
		var v any
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &v); err != nil {
			t.Fatalf("%s: %v in %.100s", name, err, lines.Text())
		}
		described, ok := events[name].(map[string]any)
		if !ok {
			t.Errorf("the event %s is not described", name)
		}
		for _, f := range d.fits(name, described, v) {
			t.Error(f)
		}
		told[name] = true
	}
	if len(told) < len(events) {
		t.Errorf("described are %v, there were %v", slices.Sorted(maps.Keys(events)), slices.Sorted(maps.Keys(told)))
	}
}

// everyPathIsTried compares the described paths with the tried ones, as "path method".
func everyPathIsTried(t *testing.T, d *description, tried map[string]bool) {
	t.Helper()
	for path, methods := range d.Paths {
		for method := range methods {
			if !tried[path+" "+method] {
				t.Errorf("%s %s is not tried here", method, path)
			}
		}
	}
}

// The Go types and their schemas have the same members.
func TestTypesAreAsDescribed(t *testing.T) {
	d := describedBy(t, door())
	for _, v := range []any{
		admin.Readiness{}, admin.App{}, admin.AppList{}, admin.LearnedModel{}, admin.LearnedUser{}, admin.Learned{},
		admin.Parameter{}, admin.Policy{},
		admin.PolicyList{}, admin.Tensor{}, admin.Model{}, admin.ModelList{}, admin.ModelVersions{},
		admin.Explanation{}, admin.Explanations{},
		admin.Process{}, admin.Session{}, admin.Container{}, admin.Containers{}, admin.PolicyState{}, admin.Document{},
		admin.Change{},
		admin.Imported{}, admin.Usage{}, admin.State{}, admin.Status{}, admin.Cache{}, admin.ModelCache{},
		admin.Cleared{},
		admin.BatchList{}, admin.Batches{}, admin.InsightList{}, admin.Insight{}, admin.Batch{}, admin.Replica{},
		admin.Measured{}, admin.Fitted{},
		admin.WatchedAppList{}, admin.Tried{}, admin.TriedOutput{}, admin.NewestList{}, admin.NewestAnswer{},
		admin.History{}, admin.Event{}, admin.Audit{}, access.Entry{}, admin.Logs{}, admin.Reloaded{}, admin.Setting{},
	} {
		typ := reflect.TypeOf(v)
		s, ok := d.Components.Schemas[typ.Name()]
		if !ok {
			t.Errorf("%s is not described", typ.Name())
			continue
		}
		var has, must []string
		for _, f := range reflect.VisibleFields(typ) {
			if f.Anonymous { // its fields are listed as well
				continue
			}
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			has = append(has, name)
			if options == "" {
				must = append(must, name)
			}
		}
		slices.Sort(has)
		slices.Sort(must)
		if described := slices.Sorted(maps.Keys(s["properties"].(map[string]any))); !slices.Equal(has, described) {
			t.Errorf("%s has %v, described are %v", typ.Name(), has, described)
		}
		if required := fmt.Sprint(s["required"]); required != fmt.Sprint(must) {
			t.Errorf("%s always has %v, described are %v", typ.Name(), must, required)
		}
	}
}
