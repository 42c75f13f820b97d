package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// rig is a door on a real socket, and a client of it.
type rig struct {
	*doortest.Rig
	door   *Door
	repo   *doortest.Repository
	client *http.Client
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	budgettest.Goroutines(t)
	r := &rig{Rig: doortest.New(t, tensor.NewPool(1<<30)), repo: &doortest.Repository{Names: []string{"managed"}}}
	cfg := Config{
		Entrance: r.Entrance("rest"),
		Predict:  r.Predict(r.repo),
		Settings: Settings{
			Settings: listen.Settings{Connections: 100,
				Bounds: listen.Bounds{MessageTimeout: 10 * time.Second, StallTimeout: 10 * time.Second}},
			HeaderTimeout: 10 * time.Second,
			Limits: gate.Limits{MessageBytes: 16 << 20, MetadataBytes: 64 << 10, Tensors: 16, Rank: 8,
				JSONDepth: 32}, Memory: gate.Memory{Pool: r.Pool},
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if r.door, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
	r.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	r.Serves(r.shutdown)
	return r
}

func (r *rig) shutdown(ctx context.Context) error {
	r.client.CloseIdleConnections()
	return r.door.Shutdown(ctx)
}

// connected makes a request that did not come over a socket look like one of a connection.
func connected(q *http.Request, d *Door) *http.Request {
	end, _ := net.Pipe()
	c := &conn{Conn: &listen.Conn{Conn: end}, door: d}
	return q.WithContext(context.WithValue(q.Context(), connKey{}, c))
}

func spec(tensors ...tensor.Spec) scheduler.Spec {
	outputs := make([]tensor.Spec, len(tensors))
	for i, t := range tensors {
		outputs[i] = t
		outputs[i].Name = strings.Replace(t.Name, "input", "output", 1)
	}
	return scheduler.Spec{Inputs: tensors, Outputs: outputs, Platform: "test", Parameters: []byte(`{"colour":"blue"}`)}
}

// fours is a specification of rows of four floats.
func fours() scheduler.Spec {
	return spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}})
}

// floats adds a model that echoes rows of four floats.
func (r *rig) floats(name string) { r.Model(name, fours(), scheduler.WorkerFunc(r.Echo)) }

// held adds a model whose batches wait for the test.
func (r *rig) held(name string) *schedtest.Worker { return r.Held(name, fours()) }

// An answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// json returns the body as a value, and fails the test if it is not JSON.
func (a answer) json(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%d: not a JSON object: %q", a.status, a.body)
	}
	return v
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// ask sends a request; headers are "Name: value".
func (r *rig) ask(method, path, body string, headers ...string) answer {
	r.T.Helper()
	a, err := r.try(method, path, strings.NewReader(body), headers...)
	if err != nil {
		r.T.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (r *rig) try(method, path string, body io.Reader, headers ...string) (answer, error) {
	if s, ok := body.(*strings.Reader); ok && s.Len() == 0 {
		body = nil
	}
	q, err := http.NewRequest(method, "http://"+r.door.Addrs()[0].String()+path, body)
	if err != nil {
		return answer{}, err
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		q.Header.Set(name, value)
	}
	resp, err := r.client.Do(q)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if resp.Header.Get("Content-Type") == "application/json" {
		all = bytes.TrimSuffix(all, []byte("\n"))
	}
	if resp.Close { // net/http removes the header
		resp.Header.Set("Connection", "close")
	}
	return answer{resp.StatusCode, resp.Header, all}, err
}

// refused checks that an answer is an error of that status whose text contains all words.
func (r *rig) refused(a answer, status int, words ...string) {
	r.T.Helper()
	text, _ := a.json(r.T)["error"].(string)
	if a.status != status || text == "" || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		r.T.Errorf("got %v, want an error of status %d", a, status)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			r.T.Errorf("got %d %q, want %q in it", a.status, text, w)
		}
	}
	if again := a.header.Get("Retry-After"); (again != "") != (status == 429 || status == 503) {
		r.T.Errorf("%v: Retry-After %q", a, again)
	}
}

// raw opens a connection and writes the text as it is.
func (r *rig) raw(text string) net.Conn {
	r.T.Helper()
	c, err := net.Dial("tcp", r.door.Addrs()[0].String())
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		r.T.Fatal(err)
	}
	return c
}

// answerOn reads an answer from a raw connection.
func (r *rig) answerOn(c net.Conn) answer {
	r.T.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		r.T.Fatal(err)
	}
	if resp.Close { // net/http removes the header
		resp.Header.Set("Connection", "close")
	}
	return answer{resp.StatusCode, resp.Header, all}
}
