package cache

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// The table of entries catches our panics and logs them. Here nothing may be logged.
func TestMain(m *testing.M) {
	var log strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	code := m.Run()
	if log.Len() > 0 {
		os.Stderr.WriteString("something was logged:\n" + log.String())
		code = 1
	}
	os.Exit(code)
}

// A rig is a cache in front of a real scheduler, whose one worker adds 1 to each element. The
// worker answers when told to, unless it has an Exec.
type rig struct {
	*testing.T
	pool    *tensor.Pool
	sched   *scheduler.Scheduler
	model   *scheduler.Model
	worker  schedtest.Worker
	cache   *Cache
	version *Version
	counts  *metrics.Cache
}

func newRig(t *testing.T, cfg Config, change func(*rig, *scheduler.ModelConfig)) *rig {
	g := &rig{T: t, pool: tensor.NewPool(64 << 20)}
	g.worker.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
		// 4 KiB more than needed, as other outputs of the batch would take.
		buf, err := g.pool.Get(4096 + 4*2*b.Rows)
		if err != nil {
			return nil, nil, err
		}
		data := buf.Bytes()[:0]
		for _, p := range b.Parts {
			for _, v := range values(p.Inputs[0]) {
				data = append(data, bytesOf(v+1)...)
			}
		}
		return []tensor.Tensor{{DType: tensor.Int32, Shape: tensor.Shape{b.Rows, 2}, Data: data, Buf: buf}}, nil, nil
	}
	var policy scheduler.ModelConfig
	if change != nil {
		change(g, &policy)
	}
	var err error
	if g.sched, err = scheduler.New(scheduler.Config{Default: policy, Pool: g.pool}); err != nil {
		t.Fatal(err)
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	rep, err := g.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, scheduler.Spec{Inputs: x, Outputs: x},
		&g.worker, scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.model = rep.Model()
	if cfg.Bytes == 0 {
		cfg.Bytes = 1 << 20
	}
	cfg.Pool, cfg.Submit = g.pool, g.sched.Submit
	g.cache = New(cfg)
	g.counts = metrics.New("").Model("m", "1").Cache()
	g.version = g.cache.Version(g.counts)
	return g
}

// end closes everything, and checks that all memory is returned.
func (g *rig) end() {
	g.Helper()
	g.cache.Close()
	g.sched.Close()
	for g.worker.Answer() == nil {
	}
	if u := g.cache.Usage(); u.Entries != 0 || u.Bytes != 0 {
		g.Errorf("a closed cache holds %+v", u)
	}
	if c := g.counts.Counts(); c.Entries != 0 || c.Bytes != 0 {
		g.Errorf("the metrics of a closed cache say %+v", c)
	}
	// A worker releases its batch a moment after the answer.
	budgettest.Until(g, "all memory to come back", func() bool { return g.pool.InUse() == 0 })
	if n := len(g.cache.flights); n != 0 {
		g.Errorf("%d flights are left", n)
	}
	if n := len(g.cache.waiting.calls); n != 0 {
		g.Errorf("%d followers are left", n)
	}
}

// A question is a request as a door holds it.
type question struct {
	scheduler.Request
	call    Call
	rig     *rig
	answers atomic.Int32
	done    chan struct{}
}

func (q *question) Complete(*scheduler.Request) {
	if q.answers.Add(1) == 1 {
		close(q.done)
	}
}

// question makes a request for the row (v, -v), in memory of the pool.
func (g *rig) question(v int32) *question {
	buf, err := g.pool.Get(8)
	if err != nil {
		g.Fatal(err)
	}
	copy(buf.Bytes(), bytesOf(v))
	copy(buf.Bytes()[4:], bytesOf(-v))
	q := &question{rig: g, done: make(chan struct{})}
	q.Request = scheduler.Request{
		Model: g.model, Rows: 1, Owner: q,
		Inputs: []tensor.Tensor{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{1, 2}, Data: buf.Bytes(),
			Buf: buf}},
		Deadline: time.Now().Add(time.Minute),
	}
	q.call.Version = g.version
	return q
}

// ask sends the request as the gate would.
func (q *question) ask() *question {
	if !q.call.Find(&q.Request, time.Now()) {
		q.rig.sched.Submit(&q.Request)
	}
	return q
}

func (q *question) cancel() {
	if !q.call.Cancel() {
		q.rig.sched.Cancel(&q.Request)
	}
}

func (g *rig) ask(v int32) *question { return g.question(v).ask() }

func (q *question) answered() bool { return q.answers.Load() > 0 }

// close waits for the answer, releases all memory and returns the answer.
func (q *question) close() (row []int32, err error) {
	q.rig.Helper()
	<-q.done
	if n := q.answers.Load(); n != 1 {
		q.rig.Errorf("%d answers to one request", n)
	}
	if q.Owner != scheduler.Completer(q) {
		q.rig.Error("the owner was not put back")
	}
	if (q.Err == nil) != (len(q.Outputs) == 1) {
		q.rig.Errorf("%d outputs and the error %v", len(q.Outputs), q.Err)
	}
	for _, t := range q.Outputs {
		if !t.Shape.Equal(tensor.Shape{1, 2}) {
			q.rig.Errorf("the answer has shape %s", t.Shape)
		}
		row = append(row, values(t)...)
		t.Release()
	}
	q.Inputs[0].Release()
	return row, q.Err
}

// want closes q, whose answer must be the one for v.
func (q *question) want(v int32) {
	q.rig.Helper()
	if row, err := q.close(); err != nil || !slices.Equal(row, []int32{v + 1, -v + 1}) {
		q.rig.Errorf("asked %d: answer %v, error %v", v, row, err)
	}
}

// executed returns how many rows the worker got.
func (g *rig) executed() int {
	_, rows := g.worker.Sent()
	return rows
}

// answer makes the worker answer its oldest batch.
func (g *rig) answer() {
	g.Helper()
	if err := g.worker.Answer(); err != nil {
		g.Fatal(err)
	}
}

func values(t tensor.Tensor) []int32 {
	v, err := tensor.Values[int32](t)
	if err != nil {
		panic(err)
	}
	return v
}

func bytesOf(v int32) []byte {
	return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
}
