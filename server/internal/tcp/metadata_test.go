package tcp

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
)

func TestParseMetadata(t *testing.T) {
	var q question
	err := q.parse([]byte(`{"id": [1], "timeout_ms": 12.5, "priority": 0, "version": 3, "inputs": ["a", "b"], "__texts__": {"t": "x"}, "batch": true,`+
		` "timing": true, "__tensors__": ["x"], "parameters": {"k": 1.0}, "q\"": 1, "other": {"deep": []}, "user": "u", "camera": "c"}`),
		parameters)
	if err != nil {
		t.Fatal(err)
	}
	if string(q.ID) != "[1]" || q.Timeout != 12500*time.Microsecond || q.Level() != 0 || q.Version != "3" ||
		string(q.Legacy) != `["a", "b"]` || string(q.Texts) != `{"t": "x"}` || q.Bridge || !q.Batch || !q.Timing ||
		string(q.names) != `["x"]` || q.User != "u" {
		t.Errorf("%+v", q)
	}
	if want := `{"k":1.0,"q\"":1,"other":{"deep": []},"camera":"c"}`; string(q.Parameters) != want {
		t.Errorf("forwarded: expected %s, got %s", want, q.Parameters)
	}
	if err := q.parse(nil, parameters); err != nil || q.Parameters != nil || q.ID != nil ||
		q.Level() != parameter.DefaultPriority-1 {
		t.Errorf("what the last question said is still there: %+v (%v)", q, err)
	}
	if err := q.parse([]byte(`{"version":"a\"b","timeout_ms":1e300}`), parameters); err != nil ||
		q.Version != `a"b` || q.Timeout != 24*time.Hour {
		t.Errorf("%+v (%v)", q, err)
	}
}

// null is as good as absent, and a number is as good as a text.
func TestParseMetadataAsMeant(t *testing.T) {
	var q question
	if err := q.parse([]byte(`{"version":null,"parameters":null,"inputs":null,"__texts__":null,"__tensors__":null,"token":null,`+
		`"timeout_ms":null,"priority":null,"user":null,"stream":null,"seq":null,"keep":null,"timing":null,"cache":null,"batch":null,"other":null}`),
		parameters); err != nil ||
		q.Version != "" || q.Legacy != nil || q.Texts != nil || q.names != nil || q.token != nil || q.Timeout != 0 ||
		q.Seq != 0 || string(q.Parameters) != `{"other":null}` {
		t.Errorf("%+v (%v)", q, err)
	}
	if err := q.parse([]byte(`{"stream":7,"user":5,"salt":1.5,"version":2}`), parameters); err != nil ||
		q.Stream != "7" || q.User != "5" || q.Salt != "1.5" || q.Version != "2" {
		t.Errorf("%+v (%v)", q, err)
	}
}

// A nesting limit above the default applies to all later stages, too.
func TestParseDeepMetadata(t *testing.T) {
	var q question
	deep := strings.Repeat("[", 9999) + strings.Repeat("]", 9999)
	if err := q.parse([]byte(`{"deep":`+deep+`,"id":1}`), parameters); err != nil || string(q.ID) != "1" ||
		string(q.Parameters) != `{"deep":`+deep+`}` {
		t.Errorf("id %s, %d bytes are forwarded (%v)", q.ID, len(q.Parameters), err)
	}
}

func TestParseMetadataRefuses(t *testing.T) {
	for text, says := range map[string]string{
		`{"timeout_ms":0}`:             "timeout_ms",
		`{"timeout_ms":"5"}`:           "timeout_ms",
		`{"priority":-1}`:              "priority",
		`{"priority":"1"}`:             "priority",
		`{"priority":1.0}`:             "priority",
		`{"batch":1}`:                  "batch",
		`{"timing":"true"}`:            "timing",
		`{"version":{}}`:               "version",
		`{"__texts__":["a"]}`:          "__texts__",
		`{"parameters":[]}`:            "parameters",
		`{"id":1,"parameters":"text"}`: "parameters",
	} {
		var q question
		if err := q.parse([]byte(text), parameters); !errors.Is(err, scheduler.ErrInvalidInput) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: expected ErrInvalidInput that says %s, got %v", text, says, err)
		}
	}
}

// For any metadata object: no panic, and the forwarded parameters are an object with the unknown
// keys.
func FuzzParseMetadata(f *testing.F) {
	f.Add([]byte(`{"id": "x", "timeout_ms": 5, "priority": 3, "a": [1, {"b": null}], "parameters": {"c": "\u00e9"}}`))
	f.Add([]byte(`{"inputs": ["a"], "version": "1", "batch": true, "__tensors__": []}`))
	f.Add([]byte(`{"parameters": {}, "a": {}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		budgettest.Input(t)
		if shiva.ValidObject(b) != nil {
			return // the decoder passes only objects
		}
		var q question
		if q.parse(b, parameters) != nil {
			return
		}
		if q.Parameters != nil && !json.Valid(q.Parameters) {
			t.Errorf("%s is forwarded as %s, which is not JSON", b, q.Parameters)
		}
		if q.Timeout < 0 || q.Level() < 0 || q.Level() > 9 {
			t.Errorf("%s: %+v", b, q)
		}
	})
}
