package rest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestHealth(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	gone := r.Model("gone", spec(tensor.Spec{Name: "input0", DType: tensor.Int8, Shape: tensor.Shape{-1}}),
		scheduler.WorkerFunc(r.Echo))
	gone.Remove(nil)
	for _, c := range []struct {
		path   string
		status int
		body   string
	}{
		{"/v2/health/live", 200, `{"live":true}`},
		{"/v2/health/ready", 200, `{"ready":true}`},
		{"/v2/models/m/ready", 200, `{"name":"m","ready":true}`},
		{"/v2/models/m/versions/1/ready", 200, `{"name":"m","ready":true}`},
		{"/v2/models/gone/ready", 503, `{"name":"gone","ready":false,"error":"no live replica: no container of it is connected"}`},
		{"/v2/models/m/versions/2/ready", 404, `{"error":"Request for unknown model: 'm': not found: model \"m\" has no version \"2\"; it has \"1\""}`},
		{"/v2/models/n/ready", 404, `{"error":"Request for unknown model: 'n': not found: no model, application or pipeline \"n\"; registered: gone, m"}`},
	} {
		if a := r.ask("GET", c.path, ""); a.status != c.status || strings.TrimSpace(string(a.body)) != c.body {
			t.Errorf("%s: %v, want %d %s", c.path, a, c.status, c.body)
		}
	}
	r.Unready = "no reason"
	if a := r.ask("GET", "/v2/health/ready", ""); a.status != 503 || strings.TrimSpace(string(a.body)) != `{"ready":false,"error":"no reason"}` {
		t.Errorf("not ready: %v", a)
	}
	if a := r.ask("HEAD", "/v2/health/live", ""); a.status != 200 || len(a.body) != 0 ||
		a.header.Get("Content-Length") == "" {
		t.Errorf("HEAD: %v", a)
	}
}

func TestMetadata(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	r.floats("ä b")
	server := `{"name":"shivad","version":"test","extensions":["classification","model_configuration","model_repository","parameters","schedule_policy","statistics","binary_tensor_data"]}`
	model := `{"name":"m","versions":["1"],"platform":"test","inputs":[{"name":"input0","datatype":"FP32","shape":[-1,4]}],"outputs":[{"name":"output0","datatype":"FP32","shape":[-1,4]}],"properties":{"colour":"blue"}}`
	for path, want := range map[string]string{
		"/v2":                      server,
		"/v2/":                     server,
		"/v2/models/m":             model,
		"/v2/models/m/":            model,
		"/v2/models/m/versions/1":  model,
		"/v2/models/%6d":           model,
		"/v2/models/%C3%A4%20b":    strings.Replace(model, `"m"`, `"ä b"`, 1),
		"/v2/models/m?pretty=true": model,
	} {
		if a := r.ask("GET", path, ""); a.status != 200 || strings.TrimSpace(string(a.body)) != want {
			t.Errorf("%s: %v, want %s", path, a, want)
		}
	}
	if c := r.ask("GET", "/v2/models/m/config", "").json(t); c["max_batch_size"].(float64) != 128 || c["name"] != "m" {
		t.Errorf("config: %v", c)
	}
	r.ask("POST", "/v2/models/m/infer", `{"inputs":[{"name":"input0","shape":[2,4],"datatype":"FP32","data":[1,2,3,4,5,6,7,8]}]}`)
	for path, want := range map[string]int{"/v2/models/stats": 2, "/v2/models/m/stats": 1, "/v2/models/m/versions/1/stats": 1} {
		if list := r.ask("GET", path, "").json(t)["model_stats"].([]any); len(list) != want {
			t.Errorf("%s: %v", path, list)
		}
	}
	stats := r.ask("GET", "/v2/models/m/stats", "").json(t)["model_stats"].([]any)[0].(map[string]any)
	if n := stats["inference_stats"].(map[string]any)["success"].(map[string]any)["count"]; n != 1.0 {
		t.Errorf("stats: %v", stats)
	}
	r.refused(r.ask("GET", "/v2/models/x/stats", ""), 404, `"x"`)
	r.refused(r.ask("GET", "/v2/models/x/config", ""), 404, `"x"`)
	r.refused(r.ask("GET", "/v2/models/x", ""), 404, `"x"`)
	// An escaped slash does not separate steps.
	r.refused(r.ask("GET", "/v2/models/m%2Fversions%2F1", ""), 404, `"m/versions/1"`)
}

// Models and applications are listed, and an unknown name is refused in this protocol's words.
func TestModels(t *testing.T) {
	r := newRig(t, nil)
	list := func() string { return strings.TrimSpace(string(r.ask("GET", "/v2/models", "").body)) }
	if got := list(); got != `{"models":[]}` {
		t.Errorf("without models: %s", got)
	}
	want := []string{}
	for i := range 12 {
		r.floats(fmt.Sprintf("m%02d", i))
		want = append(want, fmt.Sprintf("m%02d", i))
	}
	r.Applications(apps.Definition{Name: "app", Models: []string{"m00"}})
	if got := list(); got != `{"models":["app","`+strings.Join(want, `","`)+`"]}` {
		t.Errorf("got %s", got)
	}
	for _, q := range []struct{ method, path, body string }{
		{"POST", "/v2/models/quite-another/infer", fp32(1, "")}, {"GET", "/v2/models/quite-another", ""},
		{"GET", "/v2/models/quite-another/versions/1/stats", ""},
		{"POST", "/quite-another/predict", `{"input":[1]}`}, {"POST", "/quite-another/update", `{"id":"x","label":1}`},
	} {
		a := r.ask(q.method, q.path, q.body)
		r.refused(a, 404, `no model, application or pipeline "quite-another"; the repository index lists all of them`)
		if strings.ContainsAny(string(a.body), "!") {
			t.Errorf("%s: %v", q.path, a)
		}
	}
}

// TestPictureWithoutJSON: the shape of a file does not follow from the pixels that it becomes, and
// the error says which JSON gives it.
func TestPictureWithoutJSON(t *testing.T) {
	r := newRig(t, nil)
	for name, shape := range map[string]tensor.Shape{"any": {-1, -1, -1, 3}, "fixed": {-1, 2, 2, 3}} {
		s := fours()
		s.Inputs = []tensor.Spec{{Name: "image", DType: tensor.Uint8, Shape: shape, Format: tensor.FormatNHWC,
			Image: &tensor.Image{Channels: tensor.ChannelsRGB}}}
		r.Model(name, s, scheduler.WorkerFunc(r.Echo))
		a := r.ask("POST", "/v2/models/"+name+"/infer", "\x89PNG\r", headLength+": 0")
		r.refused(a, 400, `{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,5],"parameters":{"binary_data_size":5}}]}`)
	}
}

func TestRepository(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	index := func(body string) string {
		a := r.ask("POST", "/v2/repository/index", body)
		if a.status != 200 {
			t.Errorf("index %s: %v", body, a)
		}
		return strings.TrimSpace(string(a.body))
	}
	m := `{"name":"m","version":"1","state":"READY","reason":""}`
	all := `[` + m + `,{"name":"managed","state":"UNAVAILABLE","reason":"unloaded"}]`
	for body, want := range map[string]string{"": all, "{}": all, `{"ready":false}`: all, `{"ready":null}`: all,
		`{"ready":true, "more": [1]}`: `[` + m + `]`} {
		if got := index(body); got != want {
			t.Errorf("index %s: %s, want %s", body, got, want)
		}
	}
	// As one stock client asks: no body, and no length of it.
	c := r.raw("POST /v2/repository/index HTTP/1.1\r\nhost: x\r\n\r\n")
	if a := r.answerOn(c); a.status != 200 || strings.TrimSpace(string(a.body)) != all {
		t.Errorf("index without a length: %v", a)
	}
	for _, body := range []string{"", "{}", `{"parameters":{}}`, `{"parameters":null}`, `{"parameters":{"config":null}}`} {
		if a := r.ask("POST", "/v2/repository/models/managed/load", body); a.status != 200 ||
			strings.TrimSpace(string(a.body)) != "{}" {
			t.Errorf("load %s: %v", body, a)
		}
	}
	if got := index(""); !strings.Contains(got, `{"name":"managed","state":"READY","reason":""}`) {
		t.Errorf("after load: %s", got)
	}
	if a := r.ask("POST", "/v2/repository/models/managed/unload",
		`{"parameters":{"unload_dependents":true}}`); a.status != 200 {
		t.Errorf("unload: %v", a)
	}
	if got := index(""); got != all {
		t.Errorf("after unload: %s", got)
	}
	if a := r.ask("POST", "/v2/repository/models/m/load", ""); a.status != 200 {
		t.Errorf("load of what is there: %v", a)
	}
	for _, c := range []struct {
		path, body string
		status     int
		words      []string
	}{
		{"models/managed/load", `{"parameters":{"config":"{}"}}`, 400, []string{`"config"`, "[model.managed]"}},
		{"models/managed/unload", `{"parameters":{"now":true}}`, 400, []string{`"now"`, "unload_dependents"}},
		{"models/managed/unload", `{"parameters":{"unload_dependents":1}}`, 400, []string{"true or false, got 1"}},
		{"models/m/unload", ``, 400, []string{"connect by themselves"}},
		{"models/x/load", ``, 404, []string{`"x"`}},
		{"index", `{"ready":"yes"}`, 400, []string{`"ready": expected true or false, got "yes"`}},
		{"index", `[]`, 400, []string{"an object"}},
		{"index", `{} {}`, 400, []string{"the end of the text"}},
		{"index", `{"ready":true,"ready":true}`, 400, []string{"duplicate name"}},
		{"index", `{"a":"` + strings.Repeat("x", 64<<10) + `"}`, 413, []string{"65544", "limits.metadata_bytes is 65536"}},
	} {
		r.refused(r.ask("POST", "/v2/repository/"+c.path, c.body), c.status, c.words...)
	}
}

// The limit on such a body also holds for one without an announced length.
func TestRepositoryBodyOfUnknownLength(t *testing.T) {
	r := newRig(t, nil)
	a, err := r.try("POST", "/v2/repository/index",
		io.MultiReader(strings.NewReader(`{"a":"`), strings.NewReader(strings.Repeat("x", 70<<10)), strings.NewReader(`"}`)))
	if err != nil {
		t.Fatal(err)
	}
	r.refused(a, 413, "limits.metadata_bytes is 65536")
}

// The router answers any request with JSON.
func TestRouter(t *testing.T) {
	r := newRig(t, nil)
	r.floats("m")
	for _, path := range []string{"/", "//", "/v2//", "/v1", "/v2/models//", "/v2/models//infer", "/v2/models/m/",
		"/v2/models/m/infer/x", "/v2/../v2", "/v2/models/m/versions", "/v2/logging",
		"/v2/a/b/c/d/e/f/g/h/i/j/k/l"} {
		if path == "/v2/models/m/" {
			continue // that path exists
		}
		a := r.answerOn(r.raw("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
		r.refused(a, 404, "no such path", "/v2/docs/openapi.json")
	}
	for _, c := range []struct{ method, path, allow string }{
		{"POST", "/v2", "GET, HEAD"},
		{"DELETE", "/v2/models/m", "GET, HEAD"},
		{"GET", "/v2/models/m/infer", "POST"},
		{"PUT", "/v2/repository/index", "POST"},
		{"OPTIONS", "/v2/health/live", "GET, HEAD"},
	} {
		a := r.ask(c.method, c.path, "")
		r.refused(a, 405, c.path, c.method)
		if got := a.header.Get("Allow"); got != c.allow {
			t.Errorf("%s %s: Allow %q, want %q", c.method, c.path, got, c.allow)
		}
	}
	a := r.answerOn(r.raw("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"))
	r.refused(a, 404)
}

// net/http's own answer to a malformed head is text, and ends the connection.
func TestErrorsOfTheHead(t *testing.T) {
	r := newRig(t, nil)
	const first = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
	cases := []struct {
		text   string
		status int
		words  string
	}{
		{"rubbish\r\n\r\n", 400, "Bad Request"},
		{"GET /v2/models/%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400, "Bad Request"},
		{"GET /v2 HTTP/1.1\r\n\r\n", 400, "missing required Host header"},
		{"GET /v2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: zip\r\n\r\n", 501, "Unsupported transfer encoding"},
		{"GET /v2 HTTP/9.1\r\nHost: x\r\n\r\n", 505, "unsupported protocol version"},
		{"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400, "Bad Request"},
		{"POST /v2 HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\nContent-Length: 5\r\n\r\nabcde", 417, ""},
		{"GET /v2 HTTP/1.1\r\nHost: x\r\nBig: " + strings.Repeat("x", headerBytes+8<<10) + "\r\n\r\n", 431, "Request Header Fields Too Large"},
	}
	for _, c := range cases {
		// As the first request of a connection, and after one that was answered.
		k := r.raw(first)
		if a := r.answerOn(k); a.status != 200 {
			t.Errorf("before %.40q: %v", c.text, a)
		}
		if _, err := io.WriteString(k, c.text); err != nil {
			t.Fatal(err)
		}
		for _, a := range []answer{r.answerOn(k), r.answerOn(r.raw(c.text))} {
			if a.status != c.status || a.header.Get("Connection") != "close" ||
				!strings.Contains(string(a.body), c.words) || len(a.body) > 200 {
				t.Errorf("%.40q: %v, expected %d with %q, and Connection: close", c.text, a, c.status, c.words)
			}
			if kind := a.header.Get("Content-Type"); c.words != "" && !strings.HasPrefix(kind, "text/plain") {
				t.Errorf("%.40q: Content-Type %q", c.text, kind)
			}
		}
	}
	want := fmt.Sprintf("shivad_connections_closed_total{door=\"rest\",reason=\"protocol\"} %d\n", 2*len(cases))
	budgettest.Until(t, want, func() bool {
		w := httptest.NewRecorder()
		r.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return strings.Contains(w.Body.String(), want)
	})
}

// A panic costs its request a 500, and no other request anything.
func TestPanic(t *testing.T) {
	found, _, _ := find("/v2/health/live")
	live := found.serve
	t.Cleanup(func() { found.serve = live }) // runs after the rig's cleanup
	var bug atomic.Int32
	found.serve = func(c *call) error {
		switch bug.Load() {
		case 1:
			panic("boom")
		case 2:
			c.begun = true
			c.w.Header().Set("Content-Length", "100")
			c.w.WriteHeader(http.StatusOK)
			panic("boom")
		}
		return live(c)
	}
	r := newRig(t, nil)
	bug.Store(1)
	r.refused(r.ask("GET", "/v2/health/live", ""), 500, "internal error; see the server's log")
	if !strings.Contains(r.Log.String(), "boom") {
		t.Errorf("the log has no word of it:\n%s", r.Log)
	}
	bug.Store(2)
	if a, err := r.try("GET", "/v2/health/live", strings.NewReader("")); err == nil {
		t.Errorf("an answer that broke off is taken for whole: %v", a)
	}
	bug.Store(0)
	if a := r.ask("GET", "/v2/health/live", ""); a.status != 200 {
		t.Errorf("afterwards: %v", a)
	}
}
