package shiva_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A streamRig is a rig with a stream.
type streamRig struct {
	*rig
	stream *shiva.Stream
}

func withStream(t *testing.T, h shivatest.Handler, cfg shiva.StreamConfig, f func(r *streamRig), opts ...shiva.Option) {
	t.Helper()
	withRig(t, h, func(r *rig) {
		r.Helper()
		cfg.Model, cfg.Name = "m", "cam"
		s, err := r.client.Stream(r.Context(), cfg)
		if err != nil {
			r.Fatal(err)
		}
		f(&streamRig{r, s})
		if err := s.Close(); err != nil {
			r.Error(err)
		}
	}, opts...)
}

// push sends a frame of size bytes.
func (r *streamRig) push(size int) int64 {
	r.Helper()
	seq, err := r.stream.Push(r.Context(), sized(size))
	if err != nil {
		r.Fatal(err)
	}
	return seq
}

func sized(n int) shiva.Frame {
	x, err := tensor.FromSlice(tensor.Shape{n}, make([]uint8, n))
	if err != nil {
		panic(err)
	}
	return shiva.Frame{Tensors: []tensor.Tensor{x}}
}

// An outcome is an answer without the fields that differ from run to run.
type outcome struct {
	seq     int64
	skipped int
	err     error
}

// rest finishes the stream and takes the remaining answers.
func (r *streamRig) rest() (all []outcome) {
	r.Helper()
	r.stream.Finish()
	for a, err := range r.stream.Answers(r.Context()) {
		all = append(all, outcome{a.Seq, a.Skipped, err})
		if err == nil {
			a.Release()
		}
	}
	return all
}

func (r *streamRig) wantRest(want ...outcome) {
	r.Helper()
	if got := r.rest(); !reflect.DeepEqual(got, want) {
		r.Errorf("answers %+v, want %+v", got, want)
	}
}

func (r *streamRig) wantCounts(superseded, dropped int) {
	r.Helper()
	if got, want := r.stream.Counts(), (shiva.StreamCounts{Superseded: superseded, Dropped: dropped}); got != want {
		r.Errorf("counts %+v, want %+v", got, want)
	}
}

// frameOf returns the fields of a frame's metadata.
func frameOf(m *shiva.Message) (f struct {
	Stream     string `json:"stream"`
	Seq        int64  `json:"seq"`
	CapturedAt int64  `json:"captured_at"`
	Keep       any    `json:"keep"`
}) {
	if err := json.Unmarshal(m.Metadata, &f); err != nil {
		panic(err)
	}
	return f
}

// answerFrame answers like a server that has superseded skipped frames before this one.
func answerFrame(c *shivatest.Conn, m *shiva.Message, skipped int) {
	_ = c.Send(&shiva.Message{Namespace: m.Namespace, Tensors: m.Tensors,
		Metadata: fmt.Appendf(nil, `{"seq":%d,"age_ms":1.5,"skipped":%d}`, frameOf(m).Seq, skipped)})
}

func executed(c *shivatest.Conn, m *shiva.Message) { answerFrame(c, m, 0) }

func TestStreamAnswers(t *testing.T) {
	third := func(c *shivatest.Conn, m *shiva.Message) {
		if seq := frameOf(m).Seq; seq%3 != 2 {
			_ = c.Send(
				shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Superseded, By: fmt.Sprint(seq + 1), Code: 409}))
			return
		}
		answerFrame(c, m, 2)
	}
	withStream(t, third, shiva.StreamConfig{Keep: shiva.KeepAll}, func(r *streamRig) {
		for n := range int64(9) {
			f := sized(int(n))
			f.CapturedAt = time.Now().Add(-time.Second)
			if seq, err := r.stream.Push(r.Context(), f); seq != n || err != nil {
				r.Fatalf("frame %d: %d, %v", n, seq, err)
			}
		}
		r.stream.Finish()
		var seqs []int64
		for a, err := range r.stream.Answers(r.Context()) {
			if err != nil {
				r.Fatal(err)
			}
			if a.Skipped != 2 || a.Age != time.Second || int64(len(a.Tensors[0].Data)) != a.Seq {
				r.Errorf("frame %d: skipped %d, age %v, %d bytes", a.Seq, a.Skipped, a.Age, len(a.Tensors[0].Data))
			}
			seqs = append(seqs, a.Seq)
			a.Release()
		}
		if want := []int64{2, 5, 8}; !slices.Equal(seqs, want) {
			r.Errorf("answers of %v, want %v", seqs, want)
		}
		r.wantCounts(6, 0)
	}, shiva.WithInFlight(4)) // superseded frames make room
}

// TestStreamMetadata checks a frame's metadata on the wire.
func TestStreamMetadata(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	for _, tt := range []struct {
		cfg   shiva.StreamConfig
		frame shiva.Frame
		want  string
	}{
		{shiva.StreamConfig{}, shiva.Frame{}, `{"stream":"cam","keep":"latest","seq":0,"captured_at":1700000000123}`},
		{shiva.StreamConfig{Keep: 1}, shiva.Frame{Seq: 17, Metadata: []byte(`{}`)}, `{"stream":"cam","keep":"latest","seq":17,"captured_at":1700000000123}`},
		{shiva.StreamConfig{Keep: 3}, shiva.Frame{Metadata: []byte(` {"id": 1, "timeout_ms": 5}`)}, `{"stream":"cam","keep":3,"seq":0,"captured_at":1700000000123,"id": 1, "timeout_ms": 5}`},
		{shiva.StreamConfig{Keep: shiva.KeepAll, Timeout: 3 * time.Second}, shiva.Frame{}, `{"stream":"cam","keep":"all","timeout_ms":3000.000,"seq":0,"captured_at":1700000000123}`},
	} {
		withStream(t, shivatest.Echo, tt.cfg, func(r *streamRig) {
			tt.frame.CapturedAt = at
			if _, err := r.stream.Push(r.Context(), tt.frame); err != nil {
				r.Fatal(err)
			}
			r.stream.Finish()
			for a, err := range r.stream.Answers(r.Context()) {
				if err != nil || string(a.Metadata) != tt.want {
					r.Errorf("%s, %v, want %s", a.Metadata, err, tt.want)
				}
				a.Release()
			}
		})
	}
}

// TestStreamRefusals: Push and Stream refuse invalid arguments, and the stream is not affected.
func TestStreamRefusals(t *testing.T) {
	withStream(t, executed, shiva.StreamConfig{Timeout: time.Second}, func(r *streamRig) {
		for _, key := range []string{"stream", "seq", "captured_at", "keep", "timeout_ms"} {
			_, err := r.stream.Push(r.Context(), shiva.Frame{Metadata: fmt.Appendf(nil, `{"a":1,%q:2}`, key)})
			if err == nil || !strings.Contains(err.Error(), `"`+key+`"`) {
				r.Errorf("metadata with %s: %v", key, err)
			}
		}
		bad := sized(3)
		bad.Tensors[0].Shape = tensor.Shape{4}
		if _, err := r.stream.Push(r.Context(), bad); err == nil {
			r.Error("a tensor whose shape does not fit its data was sent")
		}
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		_, err := r.stream.Push(ctx, shiva.Frame{})
		wantCallError(r.T, err, false, context.Canceled)
		if seq := r.push(1); seq != 0 {
			r.Errorf("the first frame that was sent has number %d", seq)
		}
		r.wantRest(outcome{})
		for name, cfg := range map[string]shiva.StreamConfig{
			"a name": {Model: "m"}, "keep": {Name: "c", Keep: -2}, "1024": {Name: "c", Keep: 1025},
			"timeout": {Name: "c", Timeout: -1},
		} {
			if s, err := r.client.Stream(r.Context(), cfg); s != nil || err == nil ||
				!strings.Contains(err.Error(), name) {
				r.Errorf("%+v: %v", cfg, err)
			}
		}
		r.client.Close()
		_, err = r.client.Stream(r.Context(), shiva.StreamConfig{Name: "c"})
		wantCallError(r.T, err, false, shiva.ErrClosed)
	})
}

// TestStreamNumbers: frame numbers continue from a given one, and may go back.
func TestStreamNumbers(t *testing.T) {
	withStream(t, executed, shiva.StreamConfig{Keep: 9}, func(r *streamRig) {
		var got []int64
		for _, n := range []int64{0, 0, 7, 0, 3, 0} {
			seq, err := r.stream.Push(r.Context(), shiva.Frame{Seq: n})
			if err != nil {
				r.Fatal(err)
			}
			got = append(got, seq)
		}
		if want := []int64{0, 1, 7, 8, 3, 4}; !slices.Equal(got, want) {
			r.Errorf("numbers %v, want %v", got, want)
		}
	})
}

// TestStreamSupersedesUnsent: while the connection takes no more, a new frame supersedes the oldest
// waiting one, whose memory is given back at once; the next answer counts superseded frames.
func TestStreamSupersedesUnsent(t *testing.T) {
	const size = 130_000 // more than a connection holds
	for keep := 1; keep <= 3; keep++ {
		var gate chan struct{}
		withStream(t, func(c *shivatest.Conn, m *shiva.Message) {
			<-gate
			executed(c, m)
		}, shiva.StreamConfig{Keep: keep}, func(r *streamRig) {
			gate = make(chan struct{}) // made in this bubble
			for range 2 {              // the server has the first, the second is being written
				r.push(size)
				synctest.Wait()
			}
			for range 20 {
				r.push(size)
			}
			if n, most := r.pool.InUse(), int64(128<<10)*int64(keep+1); n > most {
				r.Errorf("keep %d: frames that wait hold %d bytes, want at most %d", keep, n, most)
			}
			r.wantCounts(20-keep, 0)
			next, stop := r.answers()
			defer stop()
			for n := range keep + 2 {
				want := outcome{seq: int64(n)}
				if n >= 2 {
					want.seq += int64(20 - keep)
				}
				if n == 2 {
					want.skipped = 20 - keep
				}
				gate <- struct{}{}
				if got := next(); got != want {
					r.Errorf("keep %d: answer %+v, want %+v", keep, got, want)
				}
			}
			r.wantCounts(20-keep, 0)
		})
	}
}

// TestStreamInFlight: no more frames than the option allows are unanswered, and the newest waits
// for a slot.
func TestStreamInFlight(t *testing.T) {
	var held []func()
	hold := func(c *shivatest.Conn, m *shiva.Message) {
		m = shivatest.Clone(m)
		held = append(held, func() { executed(c, m) })
	}
	withStream(t, hold, shiva.StreamConfig{}, func(r *streamRig) {
		for range 10 {
			r.push(1)
			synctest.Wait()
		}
		if len(held) != 2 {
			r.Fatalf("%d frames were sent, want 2", len(held))
		}
		next, stop := r.answers()
		defer stop()
		for i, want := range []outcome{{seq: 0}, {seq: 1}, {seq: 9, skipped: 7}} {
			held[i]()
			if got := next(); got != want {
				r.Errorf("answer %+v, want %+v", got, want)
			}
			synctest.Wait()
		}
	}, shiva.WithInFlight(2))
}

// answers returns a function that takes answers one by one.
func (r *streamRig) answers() (next func() outcome, stop func()) {
	ctx, cancel := context.WithCancel(r.Context())
	out := make(chan outcome)
	var wg sync.WaitGroup
	wg.Go(func() {
		for a, err := range r.stream.Answers(ctx) {
			if err == nil {
				a.Release()
			}
			select {
			case out <- outcome{a.Seq, a.Skipped, err}:
			case <-ctx.Done():
			}
		}
	})
	return func() outcome { return <-out }, func() { cancel(); wg.Wait() }
}

// TestStreamKeepAll: Push waits for room, which a taken answer makes; its context, Finish and Close
// end the wait.
func TestStreamKeepAll(t *testing.T) {
	withStream(t, executed, shiva.StreamConfig{Keep: shiva.KeepAll}, func(r *streamRig) {
		for range 4 {
			r.push(10)
		}
		synctest.Wait() // all are answered, and no answer is taken
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err := r.stream.Push(ctx, sized(10))
		wantCallError(r.T, err, false, context.DeadlineExceeded)
		next, stop := r.answers()
		if got := next(); got != (outcome{}) {
			r.Errorf("answer %+v", got)
		}
		for n := int64(4); n < 50; n++ {
			if seq := r.push(10); seq != n {
				r.Errorf("frame %d has number %d", n, seq)
			}
			if got := next(); got != (outcome{seq: n - 3}) {
				r.Errorf("answer %+v after frame %d", got, n)
			}
		}
		stop()
		r.wantCounts(0, 0)
	}, shiva.WithInFlight(4))
	for want, end := range map[error]func(*shiva.Stream){
		shiva.ErrFinished: (*shiva.Stream).Finish,
		shiva.ErrClosed:   func(s *shiva.Stream) { s.Close() },
	} {
		withStream(t, executed, shiva.StreamConfig{Keep: shiva.KeepAll}, func(r *streamRig) {
			errs := make(chan error)
			go func() {
				var err error
				for err == nil {
					_, err = r.stream.Push(context.Background(), sized(10))
				}
				errs <- err
			}()
			synctest.Wait()
			end(r.stream)
			if err := <-errs; !errors.Is(err, want) && !errors.Is(err, shiva.ErrFinished) {
				r.Errorf("Push: %v, want %v", err, want)
			}
			if _, err := r.stream.Push(r.Context(), shiva.Frame{}); !errors.Is(err, want) {
				r.Errorf("Push afterwards: %v, want %v", err, want)
			}
		}, shiva.WithInFlight(4))
	}
}

// TestStreamDropsOldAnswers: the newest untaken answers are kept, and the memory of the others is
// returned.
func TestStreamDropsOldAnswers(t *testing.T) {
	withStream(t, executed, shiva.StreamConfig{Keep: 2}, func(r *streamRig) {
		for range 20 {
			r.push(10_000)
			synctest.Wait()
		}
		if n := r.pool.InUse(); n > 50_000 {
			r.Errorf("answers that wait hold %d bytes", n)
		}
		r.wantCounts(0, 18)
		r.wantRest(outcome{seq: 18}, outcome{seq: 19})
	})
}

// TestStreamErrors: an error ends only its frame, and the stream continues.
func TestStreamErrors(t *testing.T) {
	fails := func(c *shivatest.Conn, m *shiva.Message) {
		switch frameOf(m).Seq {
		case 0:
			_ = c.Send(shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Unavailable, Code: 503}))
		case 1:
			bad := shivatest.Clone(m)
			bad.Metadata = []byte(`{`)
			_ = c.Send(bad)
		default:
			executed(c, m)
		}
	}
	withStream(t, fails, shiva.StreamConfig{Keep: 3}, func(r *streamRig) {
		for range 3 {
			r.push(1)
		}
		all := r.rest()
		if len(all) != 3 {
			r.Fatalf("answers %+v", all)
		}
		if e, ok := errors.AsType[*shiva.RemoteError](all[0].err); !ok || e.Type != shiva.Unavailable {
			r.Errorf("frame 0: %v", all[0].err)
		}
		if e, ok := errors.AsType[*shiva.DecodeError](all[1].err); !ok || e.Kind != shiva.KindInvalidJSON {
			r.Errorf("frame 1: %v", all[1].err)
		}
		if all[2] != (outcome{seq: 2}) {
			r.Errorf("frame 2: %+v", all[2])
		}
	})
}

// TestStreamReconnects: frames that were sent on a lost connection fail, waiting ones are sent on
// the next; while the server is down, frames fail with the reason and Push does not wait.
func TestStreamReconnects(t *testing.T) {
	silent := func(c *shivatest.Conn, m *shiva.Message) {
		if frameOf(m).Seq > 0 {
			executed(c, m)
		}
	}
	withStream(t, silent, shiva.StreamConfig{}, func(r *streamRig) {
		next, stop := r.answers()
		defer stop()
		r.push(1)
		synctest.Wait()
		r.push(1) // waits for the slot of the first
		r.net.Cut()
		lost := next()
		wantCallError(r.T, lost.err, true, syscall.ECONNRESET)
		if got := next(); got != (outcome{seq: 1}) {
			r.Errorf("answer %+v, want that of the frame that was not sent", got)
		}
		r.server.Close()
		synctest.Wait()
		start := time.Now()
		for seq := r.push(1); seq < 300; seq = r.push(1) {
			time.Sleep(33 * time.Millisecond)
		}
		if d := time.Since(start); d != 298*33*time.Millisecond {
			r.Errorf("frames were pushed for %v", d)
		}
		failed := next()
		if wantCallError(r.T, failed.err, false, syscall.ECONNREFUSED); failed.seq != 2 {
			r.Errorf("frame %d failed first, want 2", failed.seq)
		}
		r.listen(executed)
		for range 200 {
			r.push(1)
			time.Sleep(33 * time.Millisecond)
		}
		got := next()
		for got.err != nil {
			got = next()
		}
		if got.seq <= 300 {
			r.Errorf("the first answer of the server that came back is %+v", got)
		}
		if n := r.stream.Counts().Superseded; n < 298-25 {
			r.Errorf("%d frames were superseded while the server was away for 10 s, want all but one or two a second", n)
		}
	}, shiva.WithInFlight(1), shiva.WithBackoff(time.Second, time.Second))
}

// TestStreamTimeout: a frame that the server does not answer fails a second after its deadline,
// sent or not. Its late answer is dropped.
func TestStreamTimeout(t *testing.T) {
	slow := func(c *shivatest.Conn, m *shiva.Message) {
		if frameOf(m).Seq == 0 {
			time.Sleep(10 * time.Second)
		}
		executed(c, m)
	}
	withStream(t, slow, shiva.StreamConfig{Timeout: time.Second}, func(r *streamRig) {
		start := time.Now()
		next, stop := r.answers()
		defer stop()
		want := func(seq int64, sent bool, after time.Duration) {
			r.Helper()
			got := next()
			wantCallError(r.T, got.err, sent, context.DeadlineExceeded)
			if d := time.Since(start); got.seq != seq || d != after {
				r.Errorf("frame %d failed after %v, want %d after %v", got.seq, d, seq, after)
			}
		}
		r.push(1)
		time.Sleep(500 * time.Millisecond)
		r.push(1)
		synctest.Wait()
		want(0, true, 2*time.Second)
		want(1, false, 2500*time.Millisecond)
		time.Sleep(6 * time.Second)
		r.push(1) // at 8.5 s
		if got := next(); got != (outcome{seq: 2}) || time.Since(start) != 10*time.Second {
			r.Errorf("after %v: %+v", time.Since(start), got)
		}
	}, shiva.WithInFlight(1))
	withStream(t, slow, shiva.StreamConfig{Timeout: time.Second, Keep: shiva.KeepAll}, func(r *streamRig) {
		start := time.Now()
		next, stop := r.answers()
		defer stop()
		r.push(1)
		next()
		r.push(1) // when the late answer has freed its slot
		if d := time.Since(start); d != 10*time.Second {
			r.Errorf("there was room after %v, want 10 s", d)
		}
	}, shiva.WithInFlight(1))
}

// TestStreamEnds: loops end after Finish when no frame is left, at Close at once, and with their
// context; several may run.
func TestStreamEnds(t *testing.T) {
	silent := func(*shivatest.Conn, *shiva.Message) {}
	for name, end := range map[string]func(*streamRig){
		"Close": func(r *streamRig) { r.stream.Close() },
		"Finish, answer": func(r *streamRig) {
			r.stream.Finish()
			synctest.Wait()
			r.answer(shiva.RemoteError{Type: shiva.Internal})
		},
		"Finish, none": func(r *streamRig) {
			r.stream.Finish()
			synctest.Wait()
			r.answer(shiva.RemoteError{Type: shiva.Superseded})
		},
		"answer, Finish": func(r *streamRig) {
			r.answer(shiva.RemoteError{Type: shiva.Superseded})
			synctest.Wait()
			r.stream.Finish()
		},
		"Finish and lost": func(r *streamRig) { r.stream.Finish(); r.net.Cut() },
	} {
		withStream(t, silent, shiva.StreamConfig{}, func(r *streamRig) {
			r.push(1)
			var wg sync.WaitGroup
			var answers atomic.Int32
			for range 3 {
				wg.Go(func() {
					for range r.stream.Answers(r.Context()) {
						answers.Add(1)
					}
				})
			}
			ctx, cancel := context.WithCancel(r.Context())
			wg.Go(func() {
				for range r.stream.Answers(ctx) {
					answers.Add(1)
				}
			})
			synctest.Wait()
			cancel()
			synctest.Wait()
			end(r)
			wg.Wait()
			want := map[string]int32{"Finish, answer": 1, "Finish and lost": 1}[name]
			if n := answers.Load(); n != want {
				r.Errorf("%s: %d answers, want %d", name, n, want)
			}
		})
	}
}

// answer answers the frame on the stream's connection with an error.
func (r *streamRig) answer(e shiva.RemoteError) {
	r.Helper()
	conns := r.server.Conns()
	if err := conns[len(conns)-1].Send(shiva.ErrorMessage(&e)); err != nil {
		r.Error(err)
	}
}

// TestStreamStorm: with concurrent pushers, loops and broken connections, on real sockets, each
// frame is answered, superseded or dropped; answers have the order of the frames, and all memory is
// returned. The message of a failure has its seed.
func TestStreamStorm(t *testing.T) {
	for _, keep := range []int{1, 3, shiva.KeepAll} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			t.Parallel()
			storm(t, keep, rand.Uint64())
		})
	}
}

func storm(t *testing.T, keep int, seed uint64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	server := shivatest.Serve(l, func(c *shivatest.Conn, m *shiva.Message) {
		switch k := n.Add(1); {
		case k%151 == 0:
			c.Close()
		case k%83 == 0:
			_ = c.CloseWrite()
		case k%5 == 0:
			_ = c.Send(shiva.ErrorMessage(&shiva.RemoteError{Type: shiva.Superseded}))
		default:
			executed(c, m)
		}
	})
	defer server.Close()
	pool := tensor.NewPool(0)
	client, err := shiva.Dial(t.Context(), server.Addr(), shiva.WithPool(pool), shiva.WithInFlight(8),
		shiva.WithBackoff(time.Millisecond, time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.Stream(t.Context(), shiva.StreamConfig{Model: "m", Name: "cam", Keep: keep, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	const pushers = 3
	each := max(150, budgettest.Rounds(700))
	var pushed, answered, failed atomic.Int64
	var pushing, taking sync.WaitGroup
	for g := range pushers {
		pushing.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			// On a busy machine nearly all frames are superseded before they reach the server.
			for k := 0; k < each || answered.Load() == 0 || failed.Load() == 0; k++ {
				pushed.Add(1)
				if _, err := s.Push(t.Context(), sized(rnd.IntN(1<<uint(4+rnd.IntN(14))))); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				time.Sleep(time.Duration(rnd.IntN(400)) * time.Microsecond)
			}
		})
	}
	skipped, last := 0, int64(-1)
	taking.Go(func() {
		for a, err := range s.Answers(t.Context()) {
			if a.Seq <= last {
				t.Errorf("seed %d: the answer of frame %d after that of %d", seed, a.Seq, last)
			}
			last = a.Seq
			if err != nil {
				if _, ok := errors.AsType[*shiva.CallError](err); !ok {
					t.Errorf("seed %d: error of type %T: %v", seed, err, err)
				}
				failed.Add(1)
				continue
			}
			answered.Add(1)
			skipped += a.Skipped
			a.Release()
		}
	})
	pushing.Wait()
	s.Finish()
	taking.Wait()
	counts := s.Counts()
	if all := int(answered.Load()+failed.Load()) + counts.Superseded + counts.Dropped; all != int(pushed.Load()) {
		t.Errorf("seed %d: %d answered, %d failed, %+v: %d of %d frames", seed, answered.Load(), failed.Load(), counts,
			all, pushed.Load())
	}
	if keep == shiva.KeepAll && counts.Dropped > 0 || keep != shiva.KeepAll && skipped > counts.Superseded {
		t.Errorf("seed %d: %d answered, %d failed, %d skipped, %+v", seed, answered.Load(), failed.Load(), skipped,
			counts)
	}
	s.Close()
	client.Close()
	checkLeaks(t, pool)
}
