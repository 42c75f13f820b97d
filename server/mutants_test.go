package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/jsontest"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Nearly valid requests to the admin door: whatever an operator's program sends, the door answers
// in time, with one of its own answers. Package rest has the same for the Predict Protocol, and the
// reasons.
func TestMutants(t *testing.T) {
	t.Parallel()
	o := newOperators(t)
	n := 0
	jsontest.Drive(t, 3_000, &o.tally, func(c jsontest.Choices) {
		o.run(t, c)
		if n++; n%50 == 0 {
			o.clear(t)
		}
	})
	t.Log("frames were answered", o.frames.String())
	budgettest.Until(t, "the streams to fall silent", func() bool {
		m, _ := o.s.Scheduler().Model(scheduler.ModelID{Name: "slow", Version: "1"})
		for _, s := range m.Streams(1000) {
			if s.Waiting > 0 {
				return false
			}
		}
		return m.Stats().Requests == 0
	})
}

// FuzzOperators is TestMutants with inputs that coverage chooses.
func FuzzOperators(f *testing.F) {
	o := newOperators(f)
	jsontest.Fuzz(f, len(o.samples), nil, func(t *testing.T, c jsontest.Choices) {
		o.run(t, c)
		o.clear(t)
	})
}

// operators send mutated samples to the admin door of a server, without its sockets.
type operators struct {
	s       *Server
	samples []operation
	app     []byte // the application that there always is
	tally   jsontest.Tally
	frames  jsontest.Tally
}

// An operation is a valid request.
type operation struct {
	method, path string
	body         *jsontest.Value
}

func newOperators(t testing.TB) *operators {
	o := &operators{s: start(t, nil)}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	slowly := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		time.AfterFunc(200*time.Microsecond, func() {
			if err := echo(b); err != nil {
				b.Fail(err)
			}
		})
		return nil
	})
	if _, err := o.s.Scheduler().AddReplica(scheduler.ModelID{Name: "slow", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, slowly, scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	const app = `{"name":"app","models":["echo","echo/1","slow"],"policy":"exp3","params":{"gamma":0.1,"loss":"absolute"},"slo":"50ms","keep":"latest","default":{"x":[1,2]}}`
	o.app = []byte(app)
	o.clear(t)
	budgettest.Until(t, "the application takes feedback", func() bool {
		status, _ := o.send("POST", "/v1/apps/app/feedback", []byte(`{"user":"u","input":[1,2],"losses":{"echo/1":0.5}}`))
		return status == 200
	})
	// The export has an application with learned state.
	_, state := o.send("GET", "/v1/export", nil)
	for _, s := range []struct{ method, path, body string }{
		{"POST", "/v1/apps", app},
		{"PUT", "/v1/apps/app", app},
		{"PATCH", "/v1/apps/app", `{"keep":2}`},
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
		{"PATCH", "/v1/models/echo", `{"keep":"latest"}`},
		{"PATCH", "/v1/models/slow", `{"keep":"all","max_batch":"1"}`},
		{"PATCH", "/v1/models/slow", `{"keep":"2"}`},
		{"GET", "/v1/models/slow/streams?limit=2", ""},
		{"POST", "/v1/apps/app/feedback", `{"user":"u","input":[1,2],"reward":1,"stream":"a","seq":3,"captured_at":1700000000000,"keep":"latest"}`},
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
	operate.Handler(o.s.sources()).ServeHTTP(w, r)
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
		path = strings.NewReplacer("/app", "/"+jsontest.One(&c, []string{"echo", "a", "none", "%2F"}), "limit=2",
			"limit=-1", "true", "yes").Replace(path)
	}
	what := func() string { return fmt.Sprintf("%s %s %.4000q", method, path, body) }
	defer jsontest.Within(what)()
	if c.N(4) == 3 {
		defer o.ask(t, &c)()
	}
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

// ask sends frames of a few streams to the slow model, and to the application if it exists, while a
// request may change their keep. wait returns when each has its answer.
func (o *operators) ask(t *testing.T, c *jsontest.Choices) (wait func()) {
	frames := make([]*jsontest.Frame, 2+c.N(6))
	answers := make([]func(), len(frames)) // each checks one
	var all sync.WaitGroup
	for i := range frames {
		f := jsontest.ChooseFrame(c)
		frames[i] = f
		q := &Request{Name: jsontest.One(c, []string{"slow", "slow", "app"}), Timeout: 3 * time.Second, NoCache: true}
		for _, k := range f.Keys {
			q.Parameters = jsonscan.AppendMember(q.Parameters, []byte(k.Name), []byte(k.Text))
		}
		if f.ID != "" {
			q.ID = f.ID[1 : len(f.ID)-1]
		}
		if q.Parameters != nil {
			q.Parameters = append(q.Parameters, '}')
		}
		q.Inputs = []tensor.Tensor{{DType: tensor.Int32, Shape: tensor.Shape{1, 2}, Data: make([]byte, 8)}}
		all.Go(func() {
			a, err := o.s.Infer(t.Context(), q)
			answers[i] = func() { o.judgeFrame(t, q, f, frames, a, err) }
		})
	}
	return func() {
		all.Wait()
		for _, judge := range answers {
			judge()
		}
	}
}

// judgeFrame checks the answer to a frame: an invalid one is refused, a valid one gets its number
// back, and a superseded one is told by which frame.
func (o *operators) judgeFrame(t *testing.T, q *Request, f *jsontest.Frame, frames []*jsontest.Frame, a *Response,
	err error) {
	switch {
	case err == nil:
		o.frames.Good("answered")
		defer a.Release()
		seq := ""
		if a.Frame != nil && a.Frame.Seq >= 0 {
			seq = strconv.FormatInt(a.Frame.Seq, 10)
		}
		if f.Stray && a.Frame == nil {
			return
		}
		if !f.Right || a.Frame == nil || seq != f.Value("seq") {
			t.Errorf("%s, frame %v, is answered %+v", q.Name, f, a)
		}
	case errors.Is(err, scheduler.ErrInvalidInput):
		o.frames.Refused("refused")
		if f.Right {
			t.Errorf("%s, frame %v, a right one: %v", q.Name, f, err)
		}
	case errors.Is(err, scheduler.ErrSuperseded):
		o.frames.Other("superseded")
		if !f.By(fault.By(err), frames) {
			t.Errorf("%s, frame %v of %v: %v", q.Name, f, frames, err)
		}
	case errors.Is(err, scheduler.ErrNotFound), errors.Is(err, scheduler.ErrDeadlineExceeded),
		errors.Is(err, scheduler.ErrUnavailable),
		errors.Is(err, scheduler.ErrOverloaded), errors.Is(err, scheduler.ErrTooLarge),
		errors.Is(err, scheduler.ErrCanceled):
		o.frames.Other("not executed")
	default:
		t.Errorf("%s, frame %v: %v", q.Name, f, err)
	}
}

// clear removes everything that requests have created, and creates the application of the samples.
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
