package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/jsontest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// Requests that are nearly right, for every path of the door: TestMutants in a short form, "make
// mutants" a million of them, and FuzzMutants guided by coverage.
//
// The targets that change bytes, of bodies and of data, are not enough. Data that was null spun a
// core for ever, and neither target found it: the one for data only starts from arrays, and the one
// for bodies, whose shapes have two elements, does not make a shape of a hundred and data that is
// no array at once. Even then it would have passed: see budgettest.Within.

// A sample is a valid request.
type sample struct {
	method, path string
	json         *jsontest.Value // nil: no body
	binary       bool            // the header says where the JSON ends
	following    string          // bytes after it
}

// mutants sends mutants of samples to a door.
type mutants struct {
	*rig
	samples []sample
	cameras []sample // those of the samples for the slow model
	tally   jsontest.Tally
	conn    net.Conn // kept alive; nil: none yet
	in      *bufio.Reader
}

func newMutants(t testing.TB) *mutants {
	m := &mutants{rig: newRig(t, func(c *Config) { c.MessageTimeout = time.Minute })}
	one := func(name string, d tensor.DType, shape ...int) {
		m.Model(name, spec(tensor.Spec{Name: "input0", DType: d, Shape: shape}), scheduler.WorkerFunc(m.Echo))
	}
	one("floats", tensor.Float32, -1, 4)
	one("free", tensor.Uint8, -1, -1)
	one("texts", tensor.Bytes, -1, -1)
	one("vectors", tensor.Int64, -1)
	one("unbatched", tensor.Int32, 2, 2)
	m.Model("every", spec(every...), scheduler.WorkerFunc(m.Echo))
	m.Model("sum", scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 3}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float64, Shape: tensor.Shape{-1}}},
	}, scheduler.WorkerFunc(sum))
	m.Model("camera", spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}),
		scheduler.WorkerFunc(m.Slowly))
	m.Applications(apps.Definition{Name: "app", Models: []string{"sum"}, Policy: "exp3"},
		apps.Definition{Name: "cameras", Models: []string{"camera"}, Policy: "exp3"})

	add := func(method, path, body, following string) {
		s := sample{method: method, path: path, binary: strings.Contains(body, "binary_data_size"),
			following: following}
		if body != "" {
			s.json = jsontest.Parse(t, body)
		}
		m.samples = append(m.samples, s)
	}
	var all []string
	for _, s := range every {
		all = append(all,
			fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":[1,2],"data":[[%s]]}`, s.Name, s.DType.V2(),
				everyJSON[s.DType]))
	}
	infer := func(model, inputs, more, following string) {
		add("POST", "/v2/models/"+model+"/infer", `{"inputs":[`+inputs+`]`+more+`}`, following)
	}
	infer("floats", `{"name":"input0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4.5]}`, ``, "")
	infer("floats", `{"data":[[1,2e0,3,4.5],[0,-0.5,1e-3,7]],"shape":[2,4],"datatype":"FP32","name":"input0"}`,
		`,"id":"7","parameters":{"priority":1,"timeout":9000000,"timing":true,"other":{"x":1},"user":"u"},"outputs":[{"name":"output0","parameters":{"classification":2}}]`,
		"")
	for _, route := range []string{"camera", "camera/versions/1", "cameras"} {
		infer(route, `{"name":"input0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4.5]}`, ``, "")
	}
	m.cameras = m.samples[len(m.samples)-3:]
	infer("every", strings.Join(all, ","), `,"outputs":[{"name":"output_FP32"},{"name":"output_BYTES","parameters":{"binary_data":true}},{"name":"output_BOOL"}]`,
		"")
	infer("every", strings.Join(all, ","), ``, "")
	infer("floats", `{"name":"input0","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}`,
		`,"parameters":{"binary_data_output":true}`, memory([]float32{1, 2, 3, 4}))
	infer("texts", `{"name":"input0","datatype":"BYTES","shape":[1,2],"parameters":{"binary_data_size":10}}`, ``, "\x02\x00\x00\x00ab\x00\x00\x00\x00")
	infer("texts", `{"name":"input0","datatype":"BYTES","shape":[2,1],"data":["\u00e9","b"]}`, ``, "")
	infer("free", `{"name":"input0","datatype":"UINT8","shape":[2,3],"data":[[1,2,3],[4,5,6]]}`,
		`,"outputs":[{"name":"output0"}]`, "")
	infer("vectors", `{"name":"input0","datatype":"INT64","shape":[3],"data":[1,-2,9007199254740993]}`, ``, "")
	infer("unbatched", `{"name":"input0","datatype":"INT32","shape":[2,2],"data":[1,2,3,4]}`, ``, "")
	infer("app", `{"name":"x","datatype":"FP64","shape":[1,3],"data":[1,2,3]}`,
		`,"id":"q1","parameters":{"user":"u","candidate_models":["sum","sum/1"],"cache":false,"salt":"s"}`, "")
	add("POST", "/sum/predict", `{"uid":"u","input":[1,2,3]}`, "")
	add("POST", "/sum/predict", `{"input_batch":[[1,2,3],[4,5,6]]}`, "")
	add("POST", "/app/predict", `{"uid":7,"input":[1,2,3]}`, "")
	add("POST", "/free/predict", `{"input":"AQID"}`, "")
	add("POST", "/texts/predict", `{"input":["a","[1]"]}`, "")
	add("POST", "/app/update", `{"uid":"u","input":[1,2,3],"label":6}`, "")
	add("POST", "/app/update", `{"user":"u","input":[1,2,3],"loss":0.5}`, "")
	add("POST", "/app/update", `{"user":"u","input":[1,2,3],"losses":{"sum/1":0.5}}`, "")
	add("POST", "/v2/repository/index", `{"ready":true}`, "")
	add("POST", "/v2/repository/models/managed/load", `{"parameters":{}}`, "")
	add("POST", "/v2/repository/models/managed/unload", `{"parameters":{"unload_dependents":true}}`, "")
	for _, path := range []string{"/v2", "/v2/models", "/v2/models/floats", "/v2/models/stats", "/v2/models/every/config"} {
		add("GET", path, "", "")
	}
	return m
}

// A mutant is a request made of a sample.
type mutant struct {
	method, path string
	header       http.Header
	body         []byte
	right        bool            // it is the sample, or an equivalent of it
	frame        *jsontest.Frame // the frame of a stream that it is; nil: none, or unknown
	json         bool            // its body is JSON alone
	cut          int             // bytes of the body before the client disconnects; -1: it stays
	chunked      bool
}

func (q *mutant) String() string {
	return fmt.Sprintf("%s %s %v %d bytes: %.4000q", q.method, q.path, q.header, len(q.body), q.body)
}

// make makes a request.
func (m *mutants) make(c *jsontest.Choices, samples []sample) *mutant {
	s := jsontest.One(c, samples)
	q := &mutant{method: s.method, path: s.path, header: http.Header{}, right: true, json: !s.binary, cut: -1}
	change := func() *jsontest.Choices {
		q.right, q.frame = false, nil
		return c
	}
	if s.json != nil {
		v := s.json.Clone()
		for range c.N(6) {
			v.Mutate(change())
		}
		if strings.HasSuffix(q.path, "/infer") && (len(samples) == len(m.cameras) || c.N(8) == 7) {
			if f := jsontest.ChooseFrame(c); v.SetParameters(f) {
				q.frame, q.right = f, q.right && f.Right
			}
		}
		q.body = v.Append(nil)
	}
	if c.N(8) == 7 {
		q.body = jsontest.Spoil(change(), q.body)
	}
	length := -1
	if s.binary {
		length = len(q.body)
	}
	q.body = append(q.body, s.following...)
	switch c.N(20) {
	case 15:
		length = jsontest.One(change(), []int{0, 0, 1, length - 1, length + 1, len(q.body), len(q.body) + 1, 1 << 40})
	case 16:
		q.body = q.body[:change().N(min(len(q.body), 1<<16-1)+1)]
	case 17:
		q.body = append(q.body, "xyz"[:change().N(4)]...)
	case 18:
		paths := jsontest.One(change(), routes).path
		q.path = strings.NewReplacer("{model}",
			jsontest.One(c, []string{"floats", "free", "app", "none", "%2F", "sum", "texts", "managed"}), "{version}",
			jsontest.One(c, []string{"1", "2"})).Replace(paths)
	case 19:
		q.method = jsontest.One(change(), []string{"GET", "POST", "HEAD", "PUT", "OPTIONS"})
	}
	if length >= 0 {
		q.header.Set(headLength, strconv.Itoa(length))
		q.json = false
	}
	switch coding := []string{"", "gzip", "deflate"}[max(0, c.N(32)-29)]; {
	case coding == "":
	case c.N(8) == 7:
		change()
		q.header.Set("Content-Encoding", coding)
	default:
		q.header.Set("Content-Encoding", coding)
		q.body = []byte(packed(m.T, coding, string(q.body)))
	}
	return q
}

// run makes a request, sends it, and checks the answer.
func (m *mutants) run(c jsontest.Choices) {
	if c.N(32) == 31 {
		m.burst(&c)
		return
	}
	q := m.make(&c, m.samples)
	defer jsontest.Within(q.String)()
	var a answer
	if c.N(8) == 7 && q.method != "HEAD" {
		q.chunked = c.N(2) == 1
		if c.N(8) == 7 {
			q.cut = c.N(min(len(q.body), 1<<16-1) + 1)
		}
		a = m.overSocket(q)
	} else {
		a = m.inProcess(context.Background(), q)
	}
	if a.status != 0 {
		m.judge(q, a)
	}
	budgettest.Until(m.T, "the memory of "+q.path+" to come back", m.Idle)
}

// burst sends requests to the slow model at once, most of them frames of a few streams; one client
// in eight disconnects soon. Afterwards no stream has a frame without an answer.
func (m *mutants) burst(c *jsontest.Choices) {
	burst := make([]*mutant, 2+c.N(10))
	answers := make([]answer, len(burst))
	var frames []*jsontest.Frame
	for i := range burst {
		burst[i] = m.make(c, m.cameras)
		if f := burst[i].frame; f != nil || bytes.Contains(burst[i].body, []byte("stream")) {
			frames = append(frames, f)
		}
	}
	defer jsontest.Within(func() string { return fmt.Sprint(burst) })()
	var all sync.WaitGroup
	for i, q := range burst {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if gone := c.N(8) == 7; gone {
			q.cut = 0
			time.AfterFunc(time.Duration(c.N(256))*time.Microsecond, cancel)
		}
		all.Go(func() { answers[i] = m.inProcess(ctx, q) })
	}
	all.Wait()
	for i, q := range burst {
		if q.cut < 0 {
			m.judge(q, answers[i])
			m.judgeFrame(q, answers[i], frames)
		}
	}
	m.Silent("camera")
}

// judgeFrame checks the answer to a frame: an invalid frame is refused, a valid one gets its number
// back, and a superseded one names a newer frame of its burst.
func (m *mutants) judgeFrame(q *mutant, a answer, frames []*jsontest.Frame) {
	if q.frame == nil || q.header.Get("Content-Encoding") != "" || a.header.Get(headLength) != "" {
		return
	}
	var answered struct {
		Parameters struct{ Seq, Skipped, By json.RawMessage }
	}
	if err := json.Unmarshal(a.body, &answered); err != nil {
		m.T.Fatalf("%v\nafter %v, answered %v", err, q, a)
	}
	p := answered.Parameters
	switch {
	case a.status == 200 && !q.frame.Stray &&
		(!q.frame.Right || string(p.Seq) != q.frame.Value("seq") || p.Skipped == nil),
		a.status == 409 && !q.frame.By(string(p.By), frames):
		m.T.Fatalf("of %v\nframe %v is answered %v", frames, q, a)
	}
}

func (m *mutants) inProcess(ctx context.Context, q *mutant) answer {
	r := httptest.NewRequestWithContext(ctx, q.method, q.path, bytes.NewReader(q.body))
	r.Header = q.header
	w := httptest.NewRecorder()
	m.door.ServeHTTP(w, connected(r, m.door))
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}

// overSocket sends it on a connection that other requests use before and after; status 0: there was
// no answer to wait for.
func (m *mutants) overSocket(q *mutant) answer {
	if m.conn == nil {
		m.conn = m.raw("")
		m.in = bufio.NewReader(m.conn)
	}
	_ = m.conn.SetDeadline(time.Now().Add(5 * time.Second))
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\n", q.method, q.path)
	_ = q.header.Write(&b)
	body := q.body
	if q.chunked && len(body) > 0 {
		body = fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
	} else {
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
	}
	gone := q.cut >= 0 && q.cut < len(body)
	if gone {
		body = body[:q.cut]
	}
	b.Write(body)
	if _, err := m.conn.Write(b.Bytes()); err != nil {
		m.T.Fatalf("%v\nafter %v", err, q)
	}
	if gone {
		m.conn.Close()
		m.conn = nil
		return answer{}
	}
	resp, err := http.ReadResponse(m.in, &http.Request{Method: q.method})
	if err != nil {
		m.T.Fatalf("%v\nafter %v", err, q)
	}
	defer resp.Body.Close()
	var all bytes.Buffer
	if _, err := all.ReadFrom(resp.Body); err != nil {
		m.T.Fatalf("%v\nafter %v", err, q)
	}
	if resp.Close {
		m.conn.Close()
		m.conn = nil
	}
	return answer{resp.StatusCode, resp.Header, all.Bytes()}
}

// judge checks an answer: it is one of the table, in its form; a valid request gets what it
// requested, and an answered one was JSON and is echoed.
func (m *mutants) judge(q *mutant, a answer) {
	fail := func(format string, args ...any) {
		m.T.Fatalf("%s\n%v\nanswered %.2000s", fmt.Sprintf(format, args...), q, a)
	}
	switch a.status {
	case 200:
		m.tally.Good(a.status)
	case 400, 413:
		m.tally.Refused(a.status)
	case 404, 405, 415, 429, 504:
		m.tally.Other(a.status)
	case 409:
		if !bytes.Contains(a.body, []byte("superseded")) {
			fail("a conflict")
		}
		m.tally.Other(a.status)
		q.right = false
	case 503:
		if !bytes.Contains(a.body, []byte("has an answer yet")) {
			fail("an unavailable model")
		}
		m.tally.Other(a.status)
	default:
		fail("status %d", a.status)
	}
	if q.right && a.status != 200 {
		fail("a right request is refused")
	}
	head := a.body
	if n := a.header.Get(headLength); n != "" {
		size, err := strconv.Atoi(n)
		if err != nil || size > len(head) {
			fail("a head of %q bytes", n)
		}
		head = head[:size]
	}
	if q.method == "HEAD" && len(head) == 0 {
		return
	}
	if !json.Valid(head) || a.status != 200 && !strings.HasPrefix(string(head), `{"error":`) {
		fail("the answer is not as it should be")
	}
	if a.status != 200 || q.header.Get("Content-Encoding") != "" || !q.json || q.method != "POST" {
		return
	}
	if len(bytes.TrimSpace(q.body)) > 0 && !json.Valid(q.body) {
		fail("accepted, and no JSON")
	}
	if strings.HasSuffix(q.path, "/infer") && !strings.Contains(q.path, "/app/") {
		if err := echoes(q.body, head); err != nil {
			fail("%v", err)
		}
	}
}

// echoes compares the data of a request with the data of an echoing model's answer.
func echoes(request, reply []byte) error {
	type message struct {
		Inputs, Outputs []struct {
			Name     string
			Datatype string
			Data     any
		}
	}
	read := func(b []byte) (v message, err error) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		err = d.Decode(&v)
		return v, err
	}
	sent, err := read(request)
	if err != nil {
		// Members whose names differ from the expected ones only in case are out of scope here.
		return nil
	}
	answered, err := read(reply)
	if err != nil {
		return err
	}
	for _, in := range sent.Inputs {
		for _, out := range answered.Outputs {
			if out.Name != strings.Replace(in.Name, "input", "output", 1) || out.Datatype != in.Datatype ||
				in.Data == nil || out.Data == nil {
				continue
			}
			want, got := flatten(nil, in.Data), flatten(nil, out.Data)
			if len(want) != len(got) {
				return fmt.Errorf("input %q has %d elements, and its echo %d", in.Name, len(want), len(got))
			}
			for i := range want {
				if !alike(want[i], got[i]) {
					return fmt.Errorf("element %d of input %q is %v, and its echo %v", i, in.Name, want[i], got[i])
				}
			}
		}
	}
	return nil
}

func flatten(list []any, v any) []any {
	if array, ok := v.([]any); ok {
		for _, e := range array {
			list = flatten(list, e)
		}
		return list
	}
	return append(list, v)
}

// alike reports whether two elements are equal, to the precision of the smallest float type.
func alike(a, b any) bool {
	x, isNumber := a.(json.Number)
	y, both := b.(json.Number)
	if !isNumber || !both {
		return a == b
	}
	f, _ := x.Float64()
	g, _ := y.Float64()
	return math.Abs(f-g) <= 0.01*math.Abs(f)+1e-6
}

func TestMutants(t *testing.T) {
	m := newMutants(t)
	jsontest.Drive(t, 30_000, &m.tally, m.run)
}

// FuzzMutants: the fuzzer's bytes choose the requests, guided by coverage.
func FuzzMutants(f *testing.F) {
	m := newMutants(f)
	jsontest.Fuzz(f, len(m.samples), nil, func(t *testing.T, c jsontest.Choices) {
		run := *m
		held := *m.rig
		held.Rig = m.For(t)
		run.rig = &held // its own connection ends with t
		run.run(c)
	})
}
