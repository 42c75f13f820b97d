package scheduler_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run TestRandom with this seed only")
	seedsFlag = flag.Int("seeds", 0, "how many seeds TestRandom runs; 0: thirty, or a part of them")
)

// TestRandom does everything at random, on virtual time: submits of all sizes and shapes,
// cancels, expiries, failures of rows and batches, replicas that stall, break, leave and
// register, new configurations. After every step Check must pass; in the end every request must
// have been answered exactly once, with its own rows, and every buffer released.
func TestRandom(t *testing.T) {
	if *seedFlag != 0 {
		newChaos(t, *seedFlag).run()
		return
	}
	n := *seedsFlag
	if n == 0 {
		n = budgettest.Rounds(30)
	}
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) { newChaos(t, uint64(seed+1)).run() })
	}
}

type chaos struct {
	t       *testing.T
	rng     *rand.Rand
	clock   *schedtest.Clock
	pool    *tensor.Pool
	sched   *scheduler.Scheduler
	id      scheduler.ModelID
	spec    scheduler.Spec
	workers []*chaosWorker
	open    map[*scheduler.Request]*chaosOwner
	spare   []*scheduler.Request // answered requests, to be used again
	next    uint32               // payload of the next row
	answers map[scheduler.Outcome]int
	depth   int
	streams bool             // most requests are frames of streams
	latest  map[string]int64 // number of the frame of each stream that was answered last
	keeps   map[string]int   // how many frames of a stream may wait
}

type chaosWorker struct {
	*schedtest.Worker
	rep *scheduler.Replica
}

type chaosOwner struct {
	c        *chaos
	first    uint32
	deadline time.Time
	canceled bool
	answers  int
}

func newChaos(t *testing.T, seed uint64) *chaos {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := &chaos{
		t: t, rng: rng, clock: schedtest.NewClock(), pool: tensor.NewPool(0),
		id: scheduler.ModelID{Name: "m", Version: "1"},
		spec: scheduler.Spec{
			Inputs: []tensor.Spec{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{-1, -1}},
				{Name: "s", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
			Outputs: []tensor.Spec{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{-1, -1}},
				{Name: "s", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
			MaxBatch: []int{0, 1, 7, 32}[rng.IntN(4)],
		},
		open:    make(map[*scheduler.Request]*chaosOwner),
		answers: make(map[scheduler.Outcome]int),
		streams: seed%2 == 0, latest: make(map[string]int64), keeps: make(map[string]int),
	}
	sched, err := scheduler.New(scheduler.Config{
		Clock: c.clock, Pool: c.pool, Default: c.config(),
		Hooks: scheduler.Hooks{Answered: func(_ *scheduler.Request, o scheduler.Outcome) { c.answers[o]++ }},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.sched = sched
	return c
}

func (c *chaos) config() scheduler.ModelConfig {
	strategy := scheduler.Strategies()[c.rng.IntN(4)]
	yes := c.rng.IntN(2) == 0
	cfg := scheduler.ModelConfig{
		Strategy: strategy, Objective: 20 * time.Millisecond, ExecTimeout: 60 * time.Millisecond,
		QueueRows: []int{0, 200}[c.rng.IntN(2)], QueueBytes: []int64{0, 3000}[c.rng.IntN(2)],
		Delay: []time.Duration{0, time.Millisecond}[c.rng.IntN(2)], Slots: c.rng.IntN(4),
		BatchBytes: []int64{0, 500}[c.rng.IntN(2)],
	}
	cfg.Retry = &yes
	if strategy != "deadline" {
		shed := c.rng.IntN(3) > 0
		cfg.Shed = &shed
	}
	cfg.Pad = strategy == "static" && c.rng.IntN(2) == 0
	return cfg
}

func (c *chaos) run() {
	c.addWorker()
	for range 1500 {
		c.step()
		if m, ok := c.sched.Model(c.id); ok {
			if err := m.Check(); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	c.settle()
}

func (c *chaos) step() {
	switch c.rng.IntN(40) {
	case 0:
		if len(c.workers) < 4 {
			c.addWorker()
		}
	case 1:
		if w := c.worker(); w != nil && c.rng.IntN(2) == 0 {
			w.Drop()
			c.remove(w, errors.New("connection closed"))
		}
	case 2:
		if w := c.worker(); w != nil {
			w.Pause()
		}
	case 3, 4:
		for _, w := range c.workers {
			w.Resume()
		}
	case 5:
		if w := c.worker(); w != nil && c.rng.IntN(4) == 0 {
			w.Break(errors.New("broken pipe"))
		}
	case 6:
		if w := c.worker(); w != nil && c.rng.IntN(3) == 0 {
			w.rep.Drain(func() { c.remove(w, errors.New("drained")) })
		}
	case 7:
		if c.rng.IntN(4) == 0 {
			if err := c.sched.Configure("m", c.config()); err != nil {
				c.t.Fatal(err)
			}
		}
	case 8, 9, 10:
		for r, o := range c.open { // any one
			o.canceled = true
			c.sched.Cancel(r)
			break
		}
	case 11, 12, 13, 14, 15:
		c.clock.Advance(time.Duration(c.rng.IntN(8_000_000)))
	case 16, 17, 18, 19, 20, 21, 22, 23:
		c.clock.Step()
	case 24:
		if m, ok := c.sched.Model(c.id); ok && c.streams {
			camera := c.rng.IntN(4)
			m.EndStream(cameraName(camera), connectionOf(camera))
		}
	case 25:
		if w := c.worker(); w != nil {
			if c.rng.IntN(2) == 0 {
				w.rep.Share(c.rng.IntN(2) == 0)
			}
			c.grant(w)
		}
	default:
		burst := make([]*scheduler.Request, 1+c.rng.IntN(8))
		for i := range burst {
			burst[i] = c.request()
		}
		c.sched.Submit(burst...)
	}
}

func cameraName(camera int) string { return fmt.Sprint("camera ", camera) }

// connectionOf returns 0 for two of the cameras, and a number of its own for each of the other two.
func connectionOf(camera int) uint64 { return uint64(max(0, camera-1)) }

func (c *chaos) worker() *chaosWorker {
	if len(c.workers) == 0 {
		return nil
	}
	return c.workers[c.rng.IntN(len(c.workers))]
}

func (c *chaos) addWorker() {
	w := &chaosWorker{}
	slow := time.Duration(1+c.rng.IntN(3)) * time.Millisecond
	w.Worker = &schedtest.Worker{
		Clock: c.clock, Model: c.model,
		Exec: func(rows int) time.Duration {
			if c.rng.IntN(50) == 0 {
				return 80 * time.Millisecond
			}
			return slow + time.Duration(rows*c.rng.IntN(200_000))
		},
	}
	w.Concurrency = 1 + c.rng.IntN(3)
	rep, err := c.sched.AddReplica(c.id, c.spec, w, scheduler.ReplicaOptions{
		Slots: c.rng.IntN(4), Concurrency: c.rng.IntN(4), Serial: c.rng.IntN(4) == 0,
		Offer: func(o scheduler.Offer) { // as a shared container does, unless it forgets the offer
			if o.Grant == 0 && c.rng.IntN(20) > 0 {
				c.clock.AfterFunc(time.Duration(c.rng.IntN(10_000_000)), func() { c.grant(w) })
			}
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	w.rep = rep
	rep.Share(c.rng.IntN(3) == 0)
	c.workers = append(c.workers, w)
}

// grant grants a batch, wanted or not.
func (c *chaos) grant(w *chaosWorker) {
	w.rep.Grant(c.rng.Uint64()|1, c.rng.IntN(20), c.rng.IntN(60)-5, c.rng.IntN(20)-2)
}

func (c *chaos) remove(w *chaosWorker, reason error) {
	for i := range c.workers {
		if c.workers[i] == w {
			c.workers = append(c.workers[:i], c.workers[i+1:]...)
			break
		}
	}
	w.rep.Remove(reason)
}

// model echoes, or fails in one of several ways.
func (c *chaos) model(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
	n := 0
	for _, p := range b.Parts {
		n += p.Rows
		for _, in := range p.Inputs {
			if in.Rows() != p.Rows {
				c.t.Errorf("a part of %d rows has an input of shape %s", p.Rows, in.Shape)
			}
			if err := in.Check(); err != nil {
				c.t.Error(err)
			}
		}
	}
	if n != b.Rows {
		c.t.Errorf("a batch of %d rows has parts of %d", b.Rows, n)
	}
	if c.rng.IntN(2) == 0 {
		b.Executed(c.rng.IntN(100)-5, time.Duration(c.rng.IntN(20_000_000)-1_000_000))
	}
	switch c.rng.IntN(40) {
	case 0:
		return nil, nil, errors.New("model raised")
	case 1:
		return nil, nil, nil
	case 2:
		outputs, _, err := schedtest.Echo(b)
		return outputs, []scheduler.RowError{{Row: c.rng.IntN(b.Rows), Message: "bad row"}}, err
	}
	return schedtest.Echo(b)
}

// request makes a request whose rows have unique numbers.
func (c *chaos) request() *scheduler.Request {
	rows := 1
	if c.rng.IntN(6) == 0 {
		rows = 1 + c.rng.IntN(60)
	}
	if c.rng.IntN(200) == 0 {
		rows = 300
	}
	width := 1 + c.rng.IntN(2)
	buf, err := c.pool.Get(rows * width * 4)
	if err != nil {
		c.t.Fatal(err)
	}
	o := &chaosOwner{c: c, first: c.next}
	texts := make([]string, rows)
	for i := range rows {
		for j := range width {
			binary.NativeEndian.PutUint32(buf.Bytes()[(i*width+j)*4:], c.next)
		}
		texts[i] = fmt.Sprint(c.next)
		c.next++
	}
	s, err := tensor.FromStrings(tensor.Shape{rows}, texts)
	if err != nil {
		c.t.Fatal(err)
	}
	r := new(scheduler.Request)
	if n := len(c.spare); n > 0 && c.rng.IntN(2) == 0 {
		r, c.spare = c.spare[n-1], c.spare[:n-1]
		r.Model, r.Deadline = nil, time.Time{}
	}
	r.Rows, r.Priority, r.Source, r.Owner = rows, c.rng.IntN(3), c.rng.Uint64N(4), o
	r.Inputs = []tensor.Tensor{{DType: tensor.Uint32, Shape: tensor.Shape{rows, width}, Data: buf.Bytes(), Buf: buf}, s}
	if m, ok := c.sched.Model(c.id); ok {
		r.Model = m
	}
	if c.rng.IntN(10) > 0 {
		r.Deadline = c.clock.Now().Add(time.Duration(c.rng.IntN(100_000_000)) - time.Millisecond)
	}
	o.deadline = r.Deadline
	if r.Parts = nil; c.rng.IntN(4) == 0 { // it is all of its client's request, or more is never answered
		r.Parts = new(scheduler.Parts)
		r.Parts.Add(1 + c.rng.IntN(2))
	}
	r.Frame = nil
	if c.streams && c.depth == 0 && c.rng.IntN(8) > 0 {
		camera := c.rng.IntN(4)
		name := cameraName(camera)
		if _, ok := c.keeps[name]; !ok || c.rng.IntN(20) == 0 {
			c.keeps[name] = c.rng.IntN(4)
		}
		r.Frame = &scheduler.Frame{Stream: name, Keep: setting.Keep(c.keeps[name]), Seq: int64(o.first),
			Connection: connectionOf(camera)}
	}
	c.open[r] = o
	return r
}

func (o *chaosOwner) Complete(r *scheduler.Request) {
	c := o.c
	delete(c.open, r)
	if r.Parts != nil && c.rng.IntN(4) > 0 {
		c.sched.Told(r)
	}
	if o.answers++; o.answers > 1 {
		c.t.Errorf("request %d is answered %d times", o.first, o.answers)
	}
	late := c.clock.Now().Sub(o.deadline)
	if !o.deadline.IsZero() && late > time.Millisecond && !errors.Is(r.Err, scheduler.ErrDeadlineExceeded) {
		c.t.Errorf("request %d is answered %v after its deadline: %v", o.first, late, r.Err)
	}
	switch {
	case o.canceled && !errors.Is(r.Err, scheduler.ErrCanceled):
		c.t.Errorf("request %d was canceled and is answered %v", o.first, r.Err)
	case r.Err != nil && len(r.Outputs) != 0:
		c.t.Errorf("request %d has %d outputs and an error", o.first, len(r.Outputs))
	case r.Err == nil:
		o.compare(r)
	}
	if f := r.Frame; f != nil && r.Err == nil {
		if last, ok := c.latest[f.Stream]; ok && f.Seq < last {
			c.t.Errorf("frame %d of a stream is answered after frame %d", f.Seq, last)
		}
		c.latest[f.Stream] = f.Seq
	}
	for _, t := range r.Outputs {
		t.Release()
	}
	for i := range r.Inputs {
		r.Inputs[i].Release()
	}
	clear(r.Inputs) // the scheduler must not read them any more
	c.spare = append(c.spare, r)
	if c.depth < 3 && c.rng.IntN(20) == 0 && r.Err == nil {
		c.depth++
		c.sched.Submit(c.request()) // from a callback
		c.depth--
	}
}

func (o *chaosOwner) compare(r *scheduler.Request) {
	if len(r.Outputs) != 2 {
		o.c.t.Fatalf("request %d has %d outputs", o.first, len(r.Outputs))
	}
	x, err := tensor.Values[uint32](r.Outputs[0])
	if err != nil || len(x) != r.Rows*r.Inputs[0].Shape[1] {
		o.c.t.Fatalf("request %d of %d rows has output %s: %v", o.first, r.Rows, r.Outputs[0].Shape, err)
	}
	width := r.Inputs[0].Shape[1]
	s, err := tensor.Strings(r.Outputs[1])
	if err != nil || len(s) != r.Rows {
		o.c.t.Fatalf("request %d of %d rows has %d texts: %v", o.first, r.Rows, len(s), err)
	}
	for i := range r.Rows {
		if want := o.first + uint32(i); x[i*width] != want || s[i] != fmt.Sprint(want) {
			o.c.t.Fatalf("row %d of request %d has the answer of %d and %s", i, o.first, x[i*width], s[i])
		}
	}
}

// settle lets every request end.
func (c *chaos) settle() {
	for _, w := range c.workers {
		w.Resume()
	}
	c.clock.Advance(300 * time.Millisecond)
	if c.rng.IntN(2) == 0 {
		c.sched.Close()
	}
	for len(c.workers) > 0 {
		w := c.workers[0]
		w.Drop()
		c.remove(w, errors.New("test is over"))
	}
	c.sched.Close()
	for range 1000 {
		if !c.clock.Step() {
			break
		}
	}
	if len(c.open) > 0 {
		c.t.Errorf("%d requests were never answered", len(c.open))
	}
	if n := c.clock.Timers(); n > 0 {
		c.t.Errorf("%d timers are left", n)
	}
	if n := c.pool.InUse(); n > 0 {
		c.t.Errorf("%d bytes were never released: %v", n, tensor.Outstanding(c.pool))
	}
	c.t.Log(c.answers)
}
