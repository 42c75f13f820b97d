package operate

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// The examples of RFC 7396, appendix A.
func TestMergePatch(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":9007199254740993}`, `{"b":0.1}`, `{"a":9007199254740993,"b":0.1}`},
	} {
		var target, patch any
		if err := errors.Join(jsonscan.Unmarshal([]byte(c[0]), &target),
			jsonscan.Unmarshal([]byte(c[1]), &patch)); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(merge(target, patch)); err != nil || string(got) != c[2] {
			t.Errorf("%s with %s: got %s, expected %s (%v)", c[0], c[1], got, c[2], err)
		}
	}
}

func TestParseApp(t *testing.T) {
	for _, c := range []struct {
		text   string
		faults []string // parts of them, in order
		whole  bool
	}{
		{`{"name":"a","models":["m"],"policy":null,"params":{},"slo":"1s","default":{}}`, nil, true},
		{`{"name":"a","modles":["m"],"slow":1}`, []string{"modles: unknown", "slow: unknown"}, true},
		{`{"name":1,"models":{},"x":1}`, []string{"models: expected a list", "name: expected a string, got 1", "x: unknown"}, false},
		{`null`, []string{"expected an application"}, false},
		{`{"name":`, []string{"the text ends"}, false},
		{`{"name":"a","models":["m"],"models":["n"]}`, []string{`"models" at byte 27 is a duplicate name`}, false},
	} {
		_, faults, whole := parseApp([]byte(c.text))
		if len(faults) != len(c.faults) || whole != c.whole {
			t.Errorf("%s: %q, %t", c.text, faults, whole)
			continue
		}
		for i := range faults {
			if !strings.Contains(faults[i], c.faults[i]) {
				t.Errorf("%s: got %q, expected %q", c.text, faults[i], c.faults[i])
			}
		}
	}
}

// No request that a page could send without a preflight changes anything, even one without a body.
func TestChangesAreSentAsJSON(t *testing.T) {
	h := Handler(sources(admin.Serving))
	for _, r := range sources(admin.Serving).routes() {
		for method := range r.methods {
			if method == "GET" || method == "DELETE" {
				continue
			}
			for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"} {
				q := httptest.NewRequest(method, strings.NewReplacer("{", "", "}", "").Replace(r.path),
					strings.NewReader("{}"))
				q.Header.Set("Content-Type", kind)
				w := httptest.NewRecorder()
				if h.ServeHTTP(w, q); w.Code != http.StatusUnsupportedMediaType {
					t.Errorf("%s %s as %q: %d %s", method, r.path, kind, w.Code, w.Body)
				}
			}
		}
	}
}

func TestBodiesAreBounded(t *testing.T) {
	q := httptest.NewRequest("POST", "/v1/apps", strings.NewReader(strings.Repeat(" ", maxBody+1)))
	q.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if Handler(sources(admin.Serving)).ServeHTTP(w, q); w.Code != http.StatusRequestEntityTooLarge ||
		!strings.Contains(w.Body.String(), "16777216") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
