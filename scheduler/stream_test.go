package scheduler_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

var framesFlag = flag.Int("frames", 0, "how many frames TestNewestFrame sends; 0: a few")

// cameras are streams of frames on virtual time. A row of a frame is its stream and its number.
type cameras struct {
	t      *testing.T
	sched  *scheduler.Scheduler
	clock  *schedtest.Clock
	model  *scheduler.Model
	sent   []int // frames of each camera
	done   []int // of these, answered
	shown  []int // of these, executed
	shows  []time.Time
	worst  []time.Duration // longest time between two answers of a camera
	last   []int           // number of the frame last answered
	ages   []time.Duration
	within time.Duration
	rows   []int // of each frame of a camera
	width  []int // of each row of it
	crowd  bool  // ordinary requests overload the model: frames may be refused
	faulty bool  // containers fail, hang and leave: frames may get such errors
	seen   func(camera, frame int)
}

var frameSpec = []tensor.Spec{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{-1, -1}}}

func newCameras(t *testing.T, n int, cfg scheduler.ModelConfig, workers ...*schedtest.Worker) *cameras {
	c := &cameras{t: t, within: time.Second}
	for range n {
		c.more()
	}
	c.sched, c.clock = newVirtual(t, scheduler.Config{Default: cfg})
	for _, w := range workers {
		c.model = c.add(w).Model()
	}
	return c
}

// add registers a replica.
func (c *cameras) add(w *schedtest.Worker) *scheduler.Replica {
	w.Clock = c.clock
	w.Seen = func(b *scheduler.Batch) {
		streams := make(map[uint32]bool)
		for _, p := range b.Parts {
			x, err := tensor.Values[uint32](p.Inputs[0])
			if err != nil {
				c.t.Fatal(err)
			}
			if int(x[0]) >= len(c.sent) {
				continue // from no camera
			}
			if streams[x[0]] && c.seen != nil {
				c.t.Errorf("a batch has two frames of camera %d", x[0])
			}
			streams[x[0]] = true
			c.shown[x[0]]++
			if c.seen != nil {
				c.seen(int(x[0]), int(x[1]))
			}
		}
	}
	return addTo(c.t, c.sched, benchID, scheduler.Spec{Inputs: frameSpec, Outputs: frameSpec}, w)
}

func (c *cameras) more() {
	c.sent, c.done, c.shown, c.last = append(c.sent, 0), append(c.done, 0), append(c.shown, 0), append(c.last, -1)
	c.shows, c.worst = append(c.shows, time.Time{}), append(c.worst, 0)
	c.rows, c.width = append(c.rows, 1), append(c.width, 2)
}

// frame sends the next frame of a camera.
func (c *cameras) frame(camera int, keep setting.Keep) {
	r := c.request(c.rows[camera], c.width[camera], uint32(camera), uint32(c.sent[camera]))
	r.Source = uint64(camera) + 1
	r.Frame = &scheduler.Frame{Stream: fmt.Sprint("camera ", camera), Keep: keep, Seq: int64(c.sent[camera])}
	c.sent[camera]++
	c.sched.Submit(r)
}

// request returns a request whose rows are all the same: numbers, and zeros up to a width.
func (c *cameras) request(rows, width int, row ...uint32) *scheduler.Request {
	row = append(row, make([]uint32, width-len(row))...)
	in, err := tensor.FromSlice(tensor.Shape{rows, width}, slices.Repeat(row, rows))
	if err != nil {
		c.t.Fatal(err)
	}
	return &scheduler.Request{Model: c.model, Inputs: []tensor.Tensor{in}, Rows: rows, Owner: c,
		Deadline: c.clock.Now().Add(c.within)}
}

// Complete counts an answer.
func (c *cameras) Complete(r *scheduler.Request) {
	if r.Frame == nil {
		return
	}
	x, _ := tensor.Values[uint32](r.Inputs[0])
	camera, frame := int(x[0]), int(x[1])
	c.done[camera]++
	if r.Err != nil {
		fault := errors.Is(r.Err, scheduler.ErrContainerFailed) || errors.Is(r.Err, scheduler.ErrContainerLost) ||
			errors.Is(r.Err, scheduler.ErrUnavailable)
		if !errors.Is(r.Err, scheduler.ErrSuperseded) && !(c.crowd && errors.Is(r.Err, scheduler.ErrOverloaded)) &&
			!errors.Is(r.Err, scheduler.ErrDeadlineExceeded) && !(c.faulty && fault) {
			c.t.Errorf("frame %d of camera %d: %v", frame, camera, r.Err)
		}
		return
	}
	if frame <= c.last[camera] {
		c.t.Errorf("camera %d: the answer of frame %d comes after that of frame %d", camera, frame, c.last[camera])
	}
	c.last[camera] = frame
	now := c.clock.Now()
	if !c.shows[camera].IsZero() {
		c.worst[camera] = max(c.worst[camera], now.Sub(c.shows[camera]))
	}
	c.shows[camera] = now
	c.ages = append(c.ages, now.Sub(r.Deadline.Add(-c.within)))
}

// film lets cameras send a frame every 1/fps seconds, a fraction of that apart, for a length of
// time.
func (c *cameras) film(fps int, length time.Duration, keep setting.Keep, others func()) {
	start := c.clock.Now()
	interval := time.Second / time.Duration(fps)
	for i := 0; ; i++ {
		at := start.Add(interval * time.Duration(i) / time.Duration(len(c.sent)))
		if at.Sub(start) >= length {
			break
		}
		c.clock.Advance(at.Sub(c.clock.Now()))
		c.frame(i%len(c.sent), keep)
		if others != nil {
			others()
		}
	}
	c.clock.Advance(2 * c.within)
}

// TestNewestFrame: of a stream that keeps one frame, a batch executes the newest frame at the time
// when the batch was closed, no frame is executed twice, and each frame has one answer; whatever
// the number of streams, replicas and batches in flight, and however fast frames arrive. Where
// containers fail, hang and leave, a frame may be executed again, but still only the newest.
func TestNewestFrame(t *testing.T) {
	frames, most := *framesFlag, 20_000 // in a round
	if frames == 0 {
		frames = 50_000
		if !budgettest.Whole() {
			frames, most = frames/5, most/5
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := 0; frames > 0; round++ {
		n := 1 + rng.IntN(20)
		faulty := round%2 == 1
		worker := func() *schedtest.Worker {
			fixed, row := time.Duration(rng.IntN(20_000))*time.Microsecond,
				time.Duration(rng.IntN(5_000))*time.Microsecond
			w := &schedtest.Worker{Exec: func(rows int) time.Duration {
				return fixed + time.Duration(rows)*row + time.Duration(rng.IntN(1_000))*time.Microsecond
			}}
			if faulty {
				w.Hangs = func(*scheduler.Batch) bool { return rng.IntN(500) == 0 }
				w.Model = func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
					if rng.IntN(20) == 0 {
						return nil, nil, errors.New("broken")
					}
					return schedtest.Echo(b)
				}
			}
			return w
		}
		c := newCameras(t, n,
			scheduler.ModelConfig{MaxBatch: []int{1, 4, 32}[rng.IntN(3)], Slots: 1 + rng.IntN(3),
				ExecTimeout: 200 * time.Millisecond}, worker())
		c.faulty = faulty
		mortal := worker()
		replica := c.add(mortal)
		for range rng.IntN(2) {
			c.add(worker())
		}
		executed := make([]int, n)
		for i := range executed {
			executed[i] = -1
		}
		c.seen = func(camera, frame int) {
			if newest := c.sent[camera] - 1; frame != newest {
				t.Errorf("frame %d of camera %d is executed, the newest was %d", frame, camera, newest)
			}
			if frame < executed[camera] || frame == executed[camera] && !faulty {
				t.Errorf("frame %d of camera %d is executed after frame %d", frame, camera, executed[camera])
			}
			executed[camera] = frame
		}
		interval := 1 + rng.IntN(10_000)
		for range min(frames, most) {
			c.clock.Advance(time.Duration(rng.IntN(interval)) * time.Microsecond)
			c.frame(rng.IntN(n), 1)
			frames--
			if faulty && rng.IntN(200) == 0 {
				mortal.Drop()
				replica.Remove(errors.New("connection closed"))
				mortal = worker()
				replica = c.add(mortal)
			}
		}
		c.clock.Advance(2 * c.within)
		if !slices.Equal(c.sent, c.done) {
			t.Errorf("of %v frames %v have an answer", c.sent, c.done)
		}
		if err := c.model.Check(); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}

// TestStreamOrderAcrossGoroutines: answers that several replicas give at once leave in the order of
// their stream, even if the owner of one answer is slow.
func TestStreamOrderAcrossGoroutines(t *testing.T) {
	sched, err := scheduler.New(scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 2, Slots: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	var model *scheduler.Model
	for range 3 {
		model = addTo(t, sched, benchID, rowsSpec, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			go func() {
				outputs, _, err := schedtest.Echo(b)
				if err != nil {
					b.Fail(err)
					return
				}
				b.Complete(outputs, nil)
			}()
			return nil
		})).Model()
	}
	const frames = 5000
	var next atomic.Int64
	var all sync.WaitGroup
	for i := range frames {
		all.Add(1)
		sched.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
			Frame: &scheduler.Frame{Stream: "cam", Seq: int64(i)}, Owner: ownerFunc(func(r *scheduler.Request) {
				defer all.Done()
				if r.Err != nil {
					t.Error(r.Err)
				}
				if i%8 == 0 {
					runtime.Gosched()
				}
				if n := next.Add(1) - 1; n != int64(i) {
					t.Errorf("frame %d is answered as number %d", i, n)
				}
				for _, out := range r.Outputs {
					out.Release()
				}
			})})
	}
	all.Wait()
	if err := model.Check(); err != nil {
		t.Error(err)
	}
}

// TestAnswersOfAStreamTakeNoStack: while one answer leaves, the next one arrives and waits for it,
// and so on: a stream that never pauses does not pile up calls.
func TestAnswersOfAStreamTakeNoStack(t *testing.T) {
	const frames = scheduler.MaxSlots
	sched, err := scheduler.New(scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 1, Slots: frames}})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	var batches []*scheduler.Batch
	worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		batches = append(batches, b)
		return nil
	})
	rep, err := sched.AddReplica(benchID, rowsSpec, worker,
		scheduler.ReplicaOptions{Slots: frames, Concurrency: frames})
	if err != nil {
		t.Fatal(err)
	}
	answer := func(i int) {
		outputs, _, err := schedtest.Echo(batches[i])
		if err != nil {
			t.Fatal(err)
		}
		batches[i].Complete(outputs, nil)
	}
	var depths []int
	owner := ownerFunc(func(r *scheduler.Request) {
		depths = append(depths, runtime.Callers(0, make([]uintptr, 10_000)))
		if len(depths) < frames {
			answer(len(depths))
		}
	})
	for range frames {
		sched.Submit(&scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1,
			Frame: &scheduler.Frame{Stream: "cam"}, Owner: owner})
	}
	if len(batches) != frames {
		t.Fatalf("%d of %d frames were sent", len(batches), frames)
	}
	answer(0)
	if len(depths) != frames || depths[frames-1] > depths[0]+5 {
		t.Errorf("%d answers left, of which the calls are as deep as %v", len(depths), depths)
	}
}

// TestStreamsOfManyShapes: the bucket of a shape is known as long as a row waits in it, even when
// its only row is superseded.
func TestStreamsOfManyShapes(t *testing.T) {
	sched, err := scheduler.New(scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{-1, -1}}},
		Outputs: []tensor.Spec{{Name: "x", DType: tensor.Uint32, Shape: tensor.Shape{-1, -1}}},
	}
	model := addTo(t, sched, benchID, spec, &schedtest.Worker{}).Model()
	for i := range 400 {
		in, err := tensor.FromSlice(tensor.Shape{1, 1 + i%100}, make([]uint32, 1+i%100))
		if err != nil {
			t.Fatal(err)
		}
		sched.Submit(&scheduler.Request{
			Model: model, Inputs: []tensor.Tensor{in}, Rows: 1, Owner: ownerFunc(func(*scheduler.Request) {}),
			Frame: &scheduler.Frame{Stream: fmt.Sprint("camera ", i%100), Keep: 1},
		})
		if err := model.Check(); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
	}
}

// TestStreamsOfClients: a stream's name belongs to its client. A model knows a bounded number of
// streams of a client: for one more, the client's oldest silent stream is forgotten, and the new
// one is refused if none is silent. Other clients are not affected.
func TestStreamsOfClients(t *testing.T) {
	sched, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{MaxBatch: 1, Slots: 1, Streams: 3}})
	spec := scheduler.Spec{Inputs: frameSpec, Outputs: frameSpec}
	worker := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)}
	model := addTo(t, sched, benchID, spec, worker).Model()
	var answered []string
	skipped := make(map[string]int)
	send := func(client, stream string) {
		t.Helper()
		in, err := tensor.FromSlice(tensor.Shape{1, 2}, []uint32{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		name := client + "/" + stream
		sched.Submit(&scheduler.Request{Model: model, Inputs: []tensor.Tensor{in}, Rows: 1,
			Frame: &scheduler.Frame{Client: client, Stream: stream, Keep: 1, Seq: -1},
			Owner: ownerFunc(func(r *scheduler.Request) {
				switch {
				case errors.Is(r.Err, scheduler.ErrOverloaded):
					name += ": " + r.Err.Error()
				case errors.Is(r.Err, scheduler.ErrSuperseded):
					name += " superseded"
				case r.Err != nil:
					t.Error(r.Err)
				default:
					skipped[name] = r.Frame.Skipped
				}
				answered = append(answered, name)
			})})
		if err := model.Check(); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		clock.Advance(100 * time.Millisecond)
		if err := model.Check(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(answered, want) {
			t.Errorf("got %q, expected %q", answered, want)
		}
		answered = nil
	}
	worker.Pause()
	send("a", "busy") // is executing
	send("a", "cam-3")
	send("b", "cam-3")
	send("b", "cam-3")
	expect("b/cam-3 superseded")
	send("a", "third")
	send("a", "fourth")
	send("b", "second")
	expect("a/fourth: scheduler: overloaded: the limit streams_per_client is 3, this request would need 4")
	worker.Resume()
	expect("a/busy", "a/cam-3", "b/cam-3", "a/third", "b/second")
	if skipped["b/cam-3"] != 1 || skipped["a/cam-3"] != 0 {
		t.Errorf("skipped: %v", skipped)
	}
	// All are silent: the oldest of a's is forgotten, and none of b's.
	before := model.Stats().Streams
	send("a", "fourth")
	send("a", "fifth")
	expect("a/fourth", "a/fifth")
	if now := model.Stats().Streams; before != 5 || now != 5 {
		t.Errorf("%d streams are known, then %d", before, now)
	}
	clock.Advance(2 * time.Minute)
	if n := model.Stats().Streams; n != 0 {
		t.Errorf("%d streams are known that have been silent for two minutes", n)
	}
}

// TestManyStreams: an endless number of streams, all of one client or each of its own, are
// forgotten as new ones arrive.
func TestManyStreams(t *testing.T) {
	budgettest.OneGoroutine(t)
	for _, clients := range []bool{false, true} {
		most := 1024
		if clients {
			most = 17 << 10
		}
		frames := 50_000
		if !budgettest.Whole() {
			frames = most + 1000
		}
		model, next := newStreams(t)
		for range frames {
			next(clients)
		}
		if n := model.Stats().Streams; n > most {
			t.Errorf("clients: %v: %d streams are known", clients, n)
		}
		if err := model.Check(); err != nil {
			t.Error(err)
		}
	}
}

// newStreams returns a function that sends a frame of a new stream, of a new client or the same
// one.
func newStreams(t testing.TB) (*scheduler.Model, func(clients bool)) {
	sched, err := scheduler.New(scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sched.Close)
	worker := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		outputs, _, err := schedtest.Echo(b)
		if err == nil {
			b.Complete(outputs, nil)
		}
		return err
	})
	model := addTo(t, sched, benchID, rowsSpec, worker).Model()
	in := rowOf(t, 1)
	owner := ownerFunc(func(r *scheduler.Request) {
		for _, out := range r.Outputs {
			out.Release()
		}
	})
	n := 0
	return model, func(clients bool) {
		n++
		f := &scheduler.Frame{Stream: fmt.Sprintf("%0256d", n), Keep: 1}
		if clients {
			f.Client = fmt.Sprint("client ", n)
		}
		sched.Submit(&scheduler.Request{Model: model, Inputs: in, Rows: 1, Owner: owner, Frame: f})
	}
}

// BenchmarkNewStreams measures the cost of a frame of a new stream, with the longest name that
// doors take, and the memory of the streams after a million.
func BenchmarkNewStreams(b *testing.B) {
	for _, clients := range []bool{false, true} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) {
			heap := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			model, next := newStreams(b)
			before := heap()
			for range 1_000_000 {
				next(clients)
			}
			after := heap()
			b.ReportAllocs()
			for b.Loop() {
				next(clients)
			}
			b.ReportMetric(float64(int64(after-before))/(1<<20), "MiB/million-streams")
			runtime.KeepAlive(model)
		})
	}
}
