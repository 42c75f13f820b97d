package latest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A rig is a store on virtual time, with one name.
type rig struct {
	*testing.T
	pool  *tensor.Pool
	store *Store
	name  *Name
}

// run runs f on virtual time. Afterwards nothing may be kept.
func run(t *testing.T, s Settings, f func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		g := &rig{T: t, pool: tensor.NewPool(1 << 20)}
		g.store = New(g.pool, 1<<20)
		g.name = g.store.Name("cells", s)
		f(g)
		synctest.Wait()
		g.store.Close(scheduler.ErrDraining)
		synctest.Wait()
		if bytes, streams := g.kept(); bytes != 0 || streams != 0 || g.pool.InUse() != 0 {
			t.Errorf("after Close: %d bytes of %d streams, the pool has %d bytes in use", bytes, streams,
				g.pool.InUse())
		}
		if len(g.name.groups)+len(g.name.sources)+g.name.waiting > 0 {
			t.Errorf("after Close: %d groups, %d streams, %d polls", len(g.name.groups), len(g.name.sources),
				g.name.waiting)
		}
	})
}

// kept returns how many bytes the answers count, and how many streams have one.
func (g *rig) kept() (bytes int64, streams int) {
	u := g.store.Usage()
	return u.Bytes, u.Streams
}

// camera is a stream of identity "line", with frames of one value.
func camera(stream string) Source {
	return Source{Identity: "line", Client: "10.0.0.4", Stream: stream}
}

// put puts the answer to a frame that arrived now; seq below 0: it has no number.
func (g *rig) put(src Source, seq int64, change ...func(*Frame)) {
	f := Frame{Seq: seq, Arrived: time.Now(), Captured: time.Now(), Version: "1"}
	for _, c := range change {
		c(&f)
	}
	buf, err := g.pool.Get(8)
	if err != nil {
		g.Fatal(err)
	}
	binary.NativeEndian.PutUint64(buf.Bytes(), uint64(seq))
	if g.name.Wanted(time.Now()) {
		g.name.Put(src, f, []tensor.Tensor{{DType: tensor.Int64, Shape: tensor.Shape{1}, Data: buf.Bytes(), Buf: buf}})
	}
	buf.Release()
	g.name.Serve()
}

func version(v string) func(*Frame) { return func(f *Frame) { f.Version = v } }
func captured(d time.Duration) func(*Frame) {
	return func(f *Frame) { f.Captured = time.Now().Add(-d) }
}
func arrived(before time.Time) func(*Frame) { return func(f *Frame) { f.Arrived = before } }

// A reply is a poll that tells when it has its answer.
type reply struct {
	Poll
	done chan struct{}
	at   time.Time
}

func (r *reply) Complete(*Poll) { r.at = time.Now(); close(r.done) }

// question is one of identity "line" with a deadline.
func question(stream string, change ...func(*Question)) Question {
	q := Question{Stream: stream, Identity: "line", Client: "10.0.0.9", After: -1, Asked: time.Now(),
		Deadline: time.Now().Add(30 * time.Second)}
	for _, c := range change {
		c(&q)
	}
	return q
}

func wait(q *Question)                      { q.Wait = true }
func after(seq int64) func(*Question)       { return func(q *Question) { q.After = seq } }
func young(d time.Duration) func(*Question) { return func(q *Question) { q.MaxAge = d } }
func of(identity string) func(*Question)    { return func(q *Question) { q.Identity = identity } }

func (g *rig) ask(q Question) *reply {
	r := &reply{Poll: Poll{Question: q}, done: make(chan struct{})}
	r.Owner = r
	g.name.Ask(&r.Poll)
	return r
}

// waits fails unless r waits.
func (g *rig) waits(r *reply) {
	g.Helper()
	synctest.Wait()
	select {
	case <-r.done:
		g.Fatalf("expected a poll that waits, got %v %v", r.Answer, r.Err)
	default:
	}
}

// got requires that r was answered with a frame, or refused.
func (g *rig) got(r *reply, seq int64, want error, text ...string) {
	g.Helper()
	synctest.Wait()
	select {
	case <-r.done:
	default:
		g.Fatal("the poll still waits")
	}
	if want != nil {
		if !errors.Is(r.Err, want) {
			g.Errorf("expected %v, got %v", want, r.Err)
		}
		for _, s := range text {
			if !strings.Contains(fmt.Sprint(r.Err), s) {
				g.Errorf("the error does not tell %q: %v", s, r.Err)
			}
		}
		return
	}
	if r.Err != nil {
		g.Errorf("expected frame %d, got %v", seq, r.Err)
		return
	}
	if r.Answer.Seq != seq {
		g.Errorf("expected frame %d, got %d", seq, r.Answer.Seq)
	}
	r.Release()
}

var always = Settings{Always: true}

func TestNewest(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		g.got(g.ask(question("a")), 0, scheduler.ErrUnavailable, `"a"`, "latest = true")
		time.Sleep(2 * time.Minute)
		g.got(g.ask(question("a")), 0, scheduler.ErrNotFound, `no stream "a"`)
		g.put(camera("a"), 7)
		g.got(g.ask(question("b")), 0, scheduler.ErrNotFound, `"a" of 10.0.0.4`)
		g.got(g.ask(question("")), 7, nil)
		g.put(camera("a"), 8)
		g.put(camera("b"), 3)
		g.got(g.ask(question("a")), 8, nil)
		g.got(g.ask(question("")), 0, scheduler.ErrInvalidInput, `"a" of 10.0.0.4, "b"`)
		time.Sleep(40 * time.Millisecond)
		g.got(g.ask(question("a", young(40*time.Millisecond))), 8, nil)
		g.got(g.ask(question("a", young(39*time.Millisecond))), 0, scheduler.ErrUnavailable, "40ms old")
		g.got(g.ask(question("a", after(7))), 8, nil)
		g.got(g.ask(question("a", after(8))), 0, scheduler.ErrUnavailable, "the newest is 8")
	})
}

// What waits is woken by the first answer that satisfies it, and by no other.
func TestWaiting(t *testing.T) {
	t.Parallel()
	run(t, Settings{}, func(g *rig) {
		early := g.ask(question("a", wait)) // before anybody knows the stream
		only := g.ask(question("", wait))
		third := g.ask(question("a", wait, after(2)))
		g.put(camera("b"), 1) // "" may mean it
		g.waits(early)
		g.got(only, 1, nil)
		g.put(camera("a"), 1)
		g.got(early, 1, nil)
		now := g.ask(question("a", wait))
		g.put(camera("a"), 2, arrived(time.Now().Add(-time.Millisecond))) // on its way at the time of the question
		g.waits(third)
		g.waits(now)
		fresh := g.ask(question("a", wait, young(time.Millisecond)))
		g.got(fresh, 2, nil) // young enough
		time.Sleep(time.Second)
		fresh = g.ask(question("a", wait, young(time.Millisecond)))
		g.put(camera("a"), 3, captured(2*time.Millisecond))
		g.got(third, 3, nil)
		g.got(now, 3, nil)
		g.waits(fresh)
		g.put(camera("a"), 4)
		g.got(fresh, 4, nil)
	})
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	run(t, Settings{}, func(g *rig) {
		began := time.Now()
		none := g.ask(question("a", wait))
		g.put(camera("b"), 1)
		late := g.ask(question("b", wait, after(5)))
		time.Sleep(30 * time.Second)
		g.got(none, 0, scheduler.ErrNotFound, `no stream "a"`, `"b"`)
		g.got(late, 0, scheduler.ErrDeadlineExceeded, "after 5", "frame 1, 30s old")
		if took := none.at.Sub(began); took != 30*time.Second {
			t.Errorf("expected the answer at the deadline, got it after %s", took)
		}
		left := g.ask(question("b", wait))
		left.Cancel(scheduler.ErrCanceled)
		g.got(left, 0, scheduler.ErrCanceled)
		left.Cancel(scheduler.ErrCanceled) // the second time it does nothing
	})
}

// A client that begins again to number its frames has newer ones, whatever their numbers.
func TestNumbersBeginAgain(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		g.put(camera("a"), 5000)
		waiting := g.ask(question("a", wait, after(5000)))
		time.Sleep(3 * time.Second)
		g.put(camera("a"), 0)
		g.got(waiting, 0, nil)
		g.got(g.ask(question("a", wait, after(4990))), 0, nil) // a number from before
		time.Sleep(time.Second)
		g.put(camera("a"), 1)
		g.got(g.ask(question("a", after(0))), 1, nil)
		time.Sleep(time.Minute)
		g.put(camera("a"), 2)
		trigger := g.ask(question("a", wait, after(16))) // now it is a number that is to come
		g.waits(trigger)
		for seq := range int64(15) {
			g.put(camera("a"), 3+seq)
		}
		g.got(trigger, 17, nil)

		// The same number again and again.
		for range 3 {
			constant := g.ask(question("c", wait, after(9)))
			g.put(camera("c"), 9)
			if _, first := g.kept(); first > 1 {
				g.put(camera("c"), 9)
			}
			g.got(constant, 9, nil)
		}

		// Without numbers they go on where an earlier server ended.
		g.put(camera("d"), -1)
		first := time.Now().UnixMilli()
		g.got(g.ask(question("d")), first, nil)
		g.put(camera("d"), -1)
		g.got(g.ask(question("d", after(first))), first+1, nil)
	})
}

// An older frame that arrives late, on another connection, does not replace a newer one; but
// nothing that a client sends keeps its frames out for longer than a second.
func TestOrder(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		g.put(camera("a"), 5)
		g.put(camera("a"), 4, captured(time.Millisecond))
		g.got(g.ask(question("a")), 5, nil)
		for range 21 { // its clock was set back by an hour, and it has begun again
			time.Sleep(50 * time.Millisecond)
			g.put(camera("a"), 1, captured(time.Hour))
		}
		g.got(g.ask(question("a")), 1, nil)

		// Two versions are sent the same frames.
		newest := g.ask(question("b", wait, after(1)))
		slow := g.ask(question("b", wait, after(0), func(q *Question) { q.Version = "2" }))
		g.put(camera("b"), 1)
		g.put(camera("b"), 1, version("2"))
		g.waits(newest)
		g.got(slow, 1, nil)
		g.put(camera("b"), 2)
		g.got(newest, 2, nil)
		g.got(g.ask(question("b")), 2, nil)
		g.got(g.ask(question("b", func(q *Question) { q.Version = "2" })), 1, nil)
		g.put(camera("b"), 3, version("2"))
		g.got(g.ask(question("b")), 3, nil)
		time.Sleep(2 * time.Second) // both begin again
		g.put(camera("b"), 0, version("2"))
		g.got(g.ask(question("b")), 0, nil)
	})
}

func TestWhoMayAsk(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		foreign := g.ask(question("a", wait, of("guest")))
		g.put(camera("a"), 1)
		g.waits(foreign)
		time.Sleep(time.Minute)
		g.got(foreign, 0, scheduler.ErrNotFound)
		if strings.Contains(foreign.Err.Error(), "10.0.0.4") {
			t.Errorf("the error lists another identity's stream: %v", foreign.Err)
		}
		g.put(camera("a"), 2)
		g.got(g.ask(question("a", of("guest"), func(q *Question) { q.Any = true })), 2, nil)
		g.store.Name("cells", Settings{Always: true, Shared: true})
		g.got(g.ask(question("a", of("guest"))), 2, nil)
	})
}

// Streams of one name and different clients are told apart by machine or user.
func TestSameName(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		other := camera("a")
		other.Client = "10.0.0.5"
		user := Source{Identity: "line", User: "north", Stream: "a"}
		alone := g.ask(question("a", wait))
		g.put(camera("a"), 1)
		g.got(alone, 1, nil)
		ours := g.ask(question("a", wait, after(9), func(q *Question) { q.Client = "10.0.0.5" }))
		theirs := g.ask(question("a", wait, after(9)))
		g.put(other, 2)
		g.waits(ours)
		g.got(theirs, 0, scheduler.ErrInvalidInput, `"a" of 10.0.0.4, "a" of 10.0.0.5`, "user")
		g.put(user, 3)
		g.put(camera("a"), 11)
		g.waits(ours)
		g.put(other, 12)
		g.got(ours, 12, nil)
		g.got(g.ask(question("a")), 0, scheduler.ErrInvalidInput, "north")
		g.got(g.ask(question("a", func(q *Question) { q.User = "north" })), 3, nil)
		g.got(g.ask(question("a", func(q *Question) { q.Client = "10.0.0.4" })), 11, nil)
	})
}

// Memory comes back a minute after the stream, and a minute after the last question.
func TestGone(t *testing.T) {
	t.Parallel()
	run(t, Settings{}, func(g *rig) {
		kept := func(want int) {
			t.Helper()
			synctest.Wait()
			if bytes, streams := g.kept(); streams != want || (bytes == 0) != (want == 0) ||
				(g.pool.InUse() == 0) != (want == 0) {
				t.Errorf("after %s: expected %d streams, got %d with %d bytes, %d of the pool",
					time.Now().Format("04:05"), want, streams, bytes, g.pool.InUse())
			}
		}
		g.put(camera("a"), 1) // nobody asks
		kept(0)
		g.ask(question("a"))
		g.put(camera("a"), 2)
		time.Sleep(59 * time.Second)
		g.put(camera("b"), 1)
		kept(2)
		time.Sleep(2 * time.Second) // nobody has asked for a minute
		kept(0)
		g.put(camera("a"), 3)
		kept(0)

		long := g.ask(question("c", wait, func(q *Question) { q.Deadline = time.Now().Add(time.Hour) }))
		g.put(camera("a"), 4)
		time.Sleep(59 * time.Second)
		g.name.Seen(camera("a")) // an error: the stream goes on
		g.name.Seen(camera("x"))
		time.Sleep(59 * time.Second)
		kept(1)
		time.Sleep(2 * time.Second)
		kept(0)
		g.put(camera("c"), 5)
		g.got(long, 5, nil)
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		for i := range 100 {
			g.put(camera(fmt.Sprint(i)), int64(i))
		}
		all, _ := g.kept()
		g.store.Resize(all / 2)
		if bytes, streams := g.kept(); bytes > all/2 || streams < 45 || streams > 50 {
			t.Errorf("half of the memory: %d bytes of %d streams", bytes, streams)
		}
		g.got(g.ask(question("99")), 99, nil)
		time.Sleep(silent / 2)
		g.got(g.ask(question("0", wait, func(q *Question) { q.Deadline = time.Now() })), 0, scheduler.ErrNotFound, "limits.latest_bytes")
		// One that is larger than the limit: only those who wait have it.
		g.store.Resize(100)
		waiting := g.ask(question("big", wait))
		g.put(camera("big"), 3)
		g.got(waiting, 3, nil)
		if bytes, _ := g.kept(); bytes > 100 {
			t.Errorf("the limit is 100, kept are %d bytes", bytes)
		}
	})
}

// Outputs that hold up more memory than they have are copied: of the rest of their batch, or of
// somebody who lends it. Others are kept by reference.
func TestCopies(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		batch, _ := g.pool.Get(64 << 10)
		own, _ := g.pool.Get(64 << 10)
		lent := tensor.Lend(make([]byte, 64<<10), lender{})
		for i, c := range []struct {
			buf  *tensor.Buffer
			size int
			copy bool
		}{{batch, 100, true}, {own, 64 << 10, false}, {lent, 64 << 10, true}} {
			src := camera(fmt.Sprint(i))
			data := c.buf.Bytes()[:c.size]
			data[0] = byte(i + 1)
			g.name.Put(src, Frame{Seq: 1, Captured: time.Now()},
				[]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{c.size}, Data: data, Buf: c.buf}})
			a := g.name.sources[src].newest("")
			if got := a.Outputs[0].Buf != c.buf; got != c.copy || a.Outputs[0].Data[0] != byte(i+1) {
				t.Errorf("%d: copied: %v, expected %v", i, got, c.copy)
			}
			if a.bytes < int64(c.size) {
				t.Errorf("%d: it counts %d bytes, and has %d", i, a.bytes, c.size)
			}
			c.buf.Release()
		}
		// Without memory for a copy: not kept, and the question says so.
		hold := g.pool.Budget() - g.pool.InUse() - 1000
		if err := g.pool.Reserve(hold); err != nil {
			t.Fatal(err)
		}
		lent = tensor.Lend(make([]byte, 64<<10), lender{})
		waiting := g.ask(question("full", wait))
		g.name.Put(camera("full"), Frame{Seq: 4, Arrived: time.Now(), Captured: time.Now()},
			[]tensor.Tensor{{DType: tensor.Uint8, Shape: tensor.Shape{64 << 10}, Data: lent.Bytes(), Buf: lent}})
		lent.Release()
		g.name.Serve()
		g.got(waiting, 4, nil)
		g.got(g.ask(question("full")), 0, scheduler.ErrUnavailable, "is not kept", "memory budget")
		g.pool.Unreserve(hold)
	})
}

type lender struct{}

func (lender) Put([]byte) {}

// Names that are gone answer those who wait, and keep nothing.
func TestNameIsGone(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		g.put(camera("a"), 1)
		waiting := g.ask(question("a", wait))
		g.store.Keep(func(string) bool { return false }, func(name string) error {
			return fmt.Errorf("%w: no model %q", scheduler.ErrNotFound, name)
		})
		g.got(waiting, 0, scheduler.ErrNotFound, `no model "cells"`)
		g.got(g.ask(question("a", wait)), 0, scheduler.ErrNotFound, `no model "cells"`)
		g.put(camera("a"), 2)
		if bytes, streams := g.kept(); bytes+int64(streams) != 0 {
			t.Errorf("%d bytes of %d streams are left", bytes, streams)
		}
		again := g.store.Name("cells", always)
		g.name = again
		waiting = g.ask(question("a", wait))
		g.put(camera("a"), 3)
		g.got(waiting, 3, nil)
		waiting = g.ask(question("a", wait))
		g.store.Close(scheduler.ErrDraining)
		g.got(waiting, 0, scheduler.ErrDraining)
		g.got(g.ask(question("a")), 0, scheduler.ErrDraining)
	})
}

// Cameras, pollers that give up, reloads and models that come and go, on virtual time: each poll
// has one answer, what a poller sees of a stream never goes back, nobody sees an older frame than
// the newest one put before the question, and all memory comes back.
func TestChurn(t *testing.T) {
	t.Parallel()
	streams := 20 + budgettest.Rounds(300)
	run(t, Settings{}, func(g *rig) {
		g.store.Resize(512 << 10)
		end := time.Now().Add(20 * time.Second)
		answers, lost := make(chan int, 2*streams), make(chan string, 2*streams)
		for i := range streams {
			src, random := camera(fmt.Sprint(i)), rand.New(rand.NewPCG(1, uint64(i)))
			go func() { // the camera
				for seq := int64(0); time.Now().Before(end); seq++ {
					time.Sleep(time.Duration(20+random.IntN(60)) * time.Millisecond)
					g.put(src, seq)
				}
				answers <- 0
			}()
			go func() { // its poller
				random, seen, n := rand.New(rand.NewPCG(2, uint64(i))), int64(-1), 0
				for time.Now().Before(end) {
					r := g.ask(question(src.Stream, wait, after(seen), func(q *Question) {
						q.Deadline = time.Now().Add(time.Second)
					}))
					if random.IntN(10) == 0 {
						time.Sleep(10 * time.Millisecond)
						r.Cancel(scheduler.ErrCanceled)
					}
					<-r.done
					switch {
					case r.Err != nil && !errors.Is(r.Err, scheduler.ErrCanceled) && time.Now().Before(end):
						lost <- fmt.Sprintf("stream %d after %d: %v", i, seen, r.Err)
					case r.Err == nil && r.Answer.Seq <= seen:
						lost <- fmt.Sprintf("stream %d goes back from %d to %d", i, seen, r.Answer.Seq)
					case r.Err == nil:
						if got := binary.NativeEndian.Uint64(r.Answer.Outputs[0].Data); got != uint64(r.Answer.Seq) {
							lost <- fmt.Sprintf("stream %d: frame %d has the outputs of %d", i, r.Answer.Seq, got)
						}
						seen, n = r.Answer.Seq, n+1
						r.Release()
					}
				}
				answers <- n
			}()
		}
		sum := 0
		for range 2 * streams {
			sum += <-answers
		}
		close(lost)
		for text := range lost {
			t.Error(text)
		}
		if sum < streams*200 {
			t.Errorf("%d answers", sum)
		}
		time.Sleep(2 * time.Minute)
		if bytes, left := g.kept(); bytes != 0 || left != 0 || g.pool.InUse() != 0 {
			t.Errorf("%d bytes of %d streams are kept, %d of the pool", bytes, left, g.pool.InUse())
		}
	})
}

// Operators see who waits for what, the worst first, without asking for it themselves.
func TestStates(t *testing.T) {
	t.Parallel()
	run(t, Settings{}, func(g *rig) {
		shown := func(most int) (list []string) {
			for _, s := range g.store.States(most) {
				text := fmt.Sprintf("%s %s of %s: %d %v", s.Name, s.Stream, s.Client, s.Waiting, s.Askers)
				if s.Kept {
					text += fmt.Sprintf(", frame %d is %v old", s.Seq, time.Since(s.Captured))
				}
				list = append(list, text)
			}
			return list
		}
		g.got(g.ask(question("b")), 0, scheduler.ErrUnavailable, "yet")
		g.put(camera("old"), 1)
		time.Sleep(time.Second)
		g.put(camera("new"), 1)
		polls := []*reply{
			g.ask(question("new", wait)), g.ask(question("new", wait, of("line"))),
			g.ask(question("none", wait, of("plc"))), g.ask(question("none", wait, of("robot"))),
		}
		want := []string{
			"cells none of : 2 [plc robot]", "cells new of 10.0.0.4: 2 [line], frame 1 is 0s old", "cells old of 10.0.0.4: 0 [], frame 1 is 1s old",
		}
		for most := range 4 {
			if got := shown(most); !slices.Equal(got, want[:most]) {
				t.Errorf("the first %d are %q, expected %q", most, got, want[:most])
			}
		}
		if u := g.store.Usage(); u.Waiting != 4 || u.Streams != 2 || u.Answered != 0 || u.Failed != 1 ||
			u.Limit != 1<<20 || u.Bytes == 0 {
			t.Errorf("%+v", u)
		}
		time.Sleep(30 * time.Second) // the polls' time
		for _, p := range polls {
			<-p.done
			p.Release()
		}
		if u := g.store.Usage(); u.Waiting != 0 || u.Failed != 5 {
			t.Errorf("without questions: %+v", u)
		}
		for range 29 {
			time.Sleep(time.Second)
			shown(9) // does not make the server keep them
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := shown(9); len(got) > 0 {
			t.Errorf("a minute after the streams: %q", got)
		}
	})
}

// Operators get the newest answers of the streams that they may see, in the order of their names.
func TestAnswers(t *testing.T) {
	t.Parallel()
	run(t, Settings{}, func(g *rig) {
		if list, all := g.name.Answers(Question{Any: true}, 9); len(list)+all > 0 {
			t.Errorf("%d of %d before any frame", len(list), all)
		}
		for i, stream := range []string{"c", "a", "b"} {
			g.put(camera(stream), int64(i))
		}
		g.put(Source{Identity: "other", Stream: "d"}, 7)
		for _, c := range []struct {
			q    Question
			most int
			want string
		}{
			{Question{Any: true}, 9, "[a b c d] of 4"}, {Question{Any: true}, 2, "[a b] of 4"},
			{Question{Identity: "line"}, 9, "[a b c] of 3"}, {Question{Identity: "other"}, 9, "[d] of 1"},
			{Question{}, 9, "[] of 0"},
		} {
			list, all := g.name.Answers(c.q, c.most)
			names := []string{}
			for _, a := range list {
				names = append(names, a.Source.Stream)
			}
			if got := fmt.Sprintf("%v of %d", names, all); got != c.want {
				t.Errorf("%+v: %s, expected %s", c.q, got, c.want)
			}
			Release(list)
		}
	})
}
