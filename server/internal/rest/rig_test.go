package rest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva/leaktest"
	"github.com/shivad/shivad/shiva/tensor"
)

// rig is a door on a real socket with a scheduler behind it, and models whose workers the test
// controls.
type rig struct {
	t       testing.TB
	sched   *scheduler.Scheduler
	gate    *gate.Gate
	door    *Door
	pool    *tensor.Pool
	metrics *metrics.Metrics
	repo    *repository
	regions *regions.Registry
	log     *lockedBuffer
	client  *http.Client
	ready   bool
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	leaktest.Goroutines(t)
	r := &rig{t: t, pool: tensor.NewPool(1 << 30), metrics: metrics.New("test"), repo: &repository{}, regions: regions.New(regions.Settings{}, nil), log: new(lockedBuffer), ready: true}
	r.gate = gate.New(gate.Config{
		Pool:    r.pool,
		Options: func(string) gate.ModelOptions { return gate.ModelOptions{Deadline: 30 * time.Second} },
		Metrics: r.metrics,
		Ready:   func() (bool, string) { return r.ready, "no reason" },
	})
	var err error
	if r.sched, err = scheduler.New(scheduler.Config{Pool: r.pool, Hooks: scheduler.Hooks{ModelChanged: r.gate.ModelChanged}}); err != nil {
		t.Fatal(err)
	}
	r.gate.Attach(r.sched)
	cfg := Config{
		Entrance: intake.Entrance{Addrs: []string{"127.0.0.1:0"}, Metrics: r.metrics.Door("rest"), Log: slog.New(slog.NewTextHandler(r.log, nil))},
		Predict: predict.New(predict.Config{Regions: r.regions, Gate: r.gate, Repository: r.repo, Version: "test",
			Reach: func() string { return config.RepositoryAll }, Changed: func(by, what, name, detail string) {},
			Settings: func(string) config.Model { return config.Default().Model("") }}),
		Settings: Settings{
			Connections: intake.Settings{Total: 100}, HeaderTimeout: 10 * time.Second, MessageTimeout: 10 * time.Second, StallTimeout: 10 * time.Second,
			Limits: gate.Limits{MessageBytes: 16 << 20, MetadataBytes: 64 << 10, Tensors: 16, Rank: 8, JSONDepth: 32}, Memory: gate.Memory{Pool: r.pool},
		},
	}
	if change != nil {
		change(&cfg)
	}
	if r.door, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
	r.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(func() {
		r.stop()
		if n := r.pool.InUse(); n != 0 {
			t.Errorf("%d bytes of the pool are still out\n%s", n, strings.Join(tensor.Outstanding(r.pool), "\n"))
		}
	})
	return r
}

// stop drains as the server does.
func (r *rig) stop() {
	if r.door == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.gate.Drain()
	_ = r.sched.Drain(ctx)
	r.sched.Close()
	r.client.CloseIdleConnections()
	if err := r.door.Shutdown(ctx); err != nil {
		r.t.Errorf("shutdown: %v", err)
	}
	r.door = nil
}

// connected makes a request that did not come over a socket look like one of a connection.
func connected(q *http.Request, d *Door) *http.Request {
	end, _ := net.Pipe()
	c := &conn{Conn: &intake.Conn{Conn: end}, door: d}
	return q.WithContext(context.WithValue(q.Context(), connKey{}, c))
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// repository is a repository that loads any model.
type repository struct {
	mu     sync.Mutex
	loaded map[string]bool
}

func (r *repository) Models() []string { return []string{"managed"} }
func (r *repository) State(model string) predict.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded[model] {
		return predict.Condition{State: predict.Ready}
	}
	return predict.Condition{State: predict.Unavailable, Reason: "unloaded"}
}
func (r *repository) Load(_ context.Context, model string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded = map[string]bool{model: true}
	return nil
}
func (r *repository) Unload(model string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded = nil
	return nil
}

// echo answers with the inputs, in memory of the pool, before Send returns.
func (r *rig) echo(b *scheduler.Batch) error {
	outputs := make([]tensor.Tensor, len(b.Parts[0].Inputs))
	for i := range outputs {
		parts := make([]tensor.Tensor, len(b.Parts))
		for j := range b.Parts {
			parts[j] = b.Parts[j].Inputs[i]
		}
		out, err := tensor.Concat(parts, r.pool)
		if err != nil {
			for _, o := range outputs {
				o.Release()
			}
			b.Fail(err)
			return nil
		}
		outputs[i] = out
	}
	b.Complete(outputs, nil)
	return nil
}

func spec(tensors ...tensor.Spec) scheduler.Spec {
	outputs := make([]tensor.Spec, len(tensors))
	for i, t := range tensors {
		outputs[i] = t
		outputs[i].Name = strings.Replace(t.Name, "input", "output", 1)
	}
	return scheduler.Spec{Inputs: tensors, Outputs: outputs, Platform: "test", Parameters: []byte(`{"colour":"blue"}`)}
}

func (r *rig) model(name string, spec scheduler.Spec, w scheduler.Worker) *scheduler.Replica {
	r.t.Helper()
	rep, err := r.sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, w, scheduler.ReplicaOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return rep
}

// floats is a model that echoes rows of four floats.
func (r *rig) floats(name string) {
	r.model(name, spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}), scheduler.WorkerFunc(r.echo))
}

// held is a model whose batches wait for the test.
func (r *rig) held(name string) *schedtest.Worker {
	w := &schedtest.Worker{}
	r.model(name, spec(tensor.Spec{Name: "input0", DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}), w)
	return w
}

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
	r.t.Helper()
	a, err := r.try(method, path, strings.NewReader(body), headers...)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
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
	r.t.Helper()
	text, _ := a.json(r.t)["error"].(string)
	if a.status != status || text == "" || !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		r.t.Errorf("got %v, want an error of status %d", a, status)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			r.t.Errorf("got %d %q, want %q in it", a.status, text, w)
		}
	}
	if again := a.header.Get("Retry-After"); (again != "") != (status == 429 || status == 503) {
		r.t.Errorf("%v: Retry-After %q", a, again)
	}
}

// raw opens a connection and writes the text as it is.
func (r *rig) raw(text string) net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.door.Addrs()[0].String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// answerOn reads an answer from a raw connection.
func (r *rig) answerOn(c net.Conn) answer {
	r.t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.Close { // net/http removes the header
		resp.Header.Set("Connection", "close")
	}
	return answer{resp.StatusCode, resp.Header, all}
}
