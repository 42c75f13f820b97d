package tcp

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A crowd is clients of one loop that ask for the newest answer of a stream.
type crowd struct {
	t     *testing.T
	loop  *loop
	woken int // how often the loop was
	peers []*memory
	wrote []int // the clients in the order of what was written to them

	takes time.Duration // an execution; 0: it is over before the frame's turn ends
}

// An audible transport tells whom it writes to.
type audible struct {
	*memory
	crowd *crowd
	i     int
}

func (a *audible) Write(vecs [][]byte) (int, error) {
	a.crowd.wrote = append(a.crowd.wrote, a.i)
	return a.memory.Write(vecs)
}

func newCrowd(t *testing.T, n int) *crowd {
	pool := tensor.NewPool(1 << 30)
	c := &crowd{t: t}
	s, m := newSessionOf(t, floats("x"), func(b *scheduler.Batch) error {
		buf, err := pool.Get(16)
		if err != nil {
			return err
		}
		answer := func() {
			b.Complete(
				[]tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{1, 4}, Data: buf.Bytes(), Buf: buf}}, nil)
		}
		if c.takes > 0 {
			time.AfterFunc(c.takes, answer)
		} else {
			answer()
		}
		return nil
	}, pool)
	c.loop, c.peers = s.loop, []*memory{m}
	c.loop.wake = func() { c.woken++ }
	s.transport = &audible{m, c, 0}
	t.Cleanup(func() { // the answers are not kept for longer than their streams
		s.loop.spares.Release()
		if n := pool.InUse(); n != 0 {
			t.Errorf("%d bytes of the pool are in use", n)
		}
	})
	s.loop.begin()
	for i := range n {
		m := new(memory)
		m.s = s.loop.newSession(uint64(2+i), &audible{m, c, 1 + i})
		c.peers = append(c.peers, m)
	}
	s.loop.end()
	return c
}

// say has a client send a message.
func (c *crowd) say(i int, m *shiva.Message) {
	c.t.Helper()
	b, err := shiva.AppendMessage(nil, m)
	if err != nil {
		c.t.Fatal(err)
	}
	c.peers[i].s.take(b)
}

// show answers a frame of the stream, and those who wait for it.
func (c *crowd) show(seq int) {
	c.say(0, message("m", fmt.Sprintf(`{"stream":"cam","seq":%d}`, seq), 1, 2, 3, 4))
	c.turns()
}

// turns takes turns for as long as the loop is woken.
func (c *crowd) turns() {
	synctest.Wait()
	for before := -1; before < c.woken; {
		before = c.woken
		c.loop.turn()
		synctest.Wait()
	}
}

func (c *crowd) ask(i int, metadata string) {
	c.say(i, &shiva.Message{Namespace: "m/latest", Metadata: []byte(metadata)})
}

// answer returns the metadata of what a client was sent, and forgets it.
func (c *crowd) answer(i int) (metadata string) {
	c.t.Helper()
	m := c.peers[i]
	_, answer, err := shiva.NewDecoder(shiva.DecoderConfig{}).Push(m.out)
	if err != nil || answer == nil {
		c.t.Fatalf("client %d got %d bytes, which are no message: %v", i, len(m.out), err)
	}
	m.out = nil
	return string(answer.Metadata)
}

// TestWaitingPollersCostLittle: a thousand who wait for the newest answer of a stream take at most
// two megabytes, in all they have besides their connections. Their answers need the work of a few.
func TestWaitingPollersCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, budget = 1000, 2 << 20
		c := newCrowd(t, n)
		used := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC() // what pools hold
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc + m.StackInuse)
		}
		before := used()
		for round := range 3 {
			for i := 1; i <= n; i++ {
				c.ask(i, fmt.Sprintf(`{"id":"poller-%d","stream":"cam","wait":true,"after":%d,"timeout_ms":60000,"mine":7}`, i, round))
			}
			if took := used() - before; took > budget && !budgettest.Race {
				t.Errorf("round %d: %d who wait take %d bytes, %d each; expected at most %d", round, n, took, took/n,
					budget)
			} else {
				t.Logf("round %d: %d bytes each", round, took/n)
			}
			c.show(round + 1)
			if got := c.answer(0); !strings.Contains(got, fmt.Sprintf(`"seq":%d`, round+1)) {
				t.Errorf("the camera got %s", got)
			}
			for i := 1; i <= n; i++ {
				got := c.answer(i)
				for _, want := range []string{fmt.Sprintf(`"id":"poller-%d"`, i), fmt.Sprintf(`"seq":%d,`, round+1),
					`"mine":7`, `"model_name":"m"`} {
					if !strings.Contains(got, want) {
						t.Fatalf("client %d got %s, expected %s", i, got, want)
					}
				}
			}
			if free := len(c.loop.works.free); free > 2*few {
				t.Errorf("round %d: the work of %d calls is left", round, free)
			}
		}
		c.ask(1, `{"stream":"cam"}`) // without waiting
		if got := c.answer(1); !strings.Contains(got, `"seq":3,`) {
			t.Errorf("client 1 got %s", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
	})
}

// TestFramesBeforePollers: answers to frames leave before those to a hundred who wait for one of
// them, and input is read in between.
func TestFramesBeforePollers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, camera, other, third = 100, 0, 101, 102
		c := newCrowd(t, third)
		for i := 1; i <= n; i++ {
			c.ask(i, `{"stream":"cam","wait":true}`)
		}
		frame := message("m", `{"stream":"cam"}`, 1, 2, 3, 4)
		over := c.loop.door.Gather()
		c.takes = time.Millisecond // so that nothing is answered within the turn of the frame
		c.say(camera, frame)
		time.Sleep(c.takes)
		synctest.Wait() // its answer and all others are in the mailbox
		none := tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{0, 4}}
		empty := &shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{none}} // answered at once
		c.say(other, empty)
		if len(c.wrote) < 2 || !slices.Equal(c.wrote[:2], []int{camera, other}) {
			t.Errorf("written to %v, expected the cameras %d and %d first", c.wrote, camera, other)
		}
		if answered := len(c.wrote) - 2; answered > n/2 || c.woken != 1 {
			t.Errorf("%d of %d were told in one turn, and the loop woken %d times, expected once", answered, n, c.woken)
		}
		c.say(third, empty)
		c.loop.turn()
		if at := slices.Index(c.wrote, third); at < 0 || at > n/2+2 {
			t.Errorf("the frame that came in between was answered as number %d of %d", at, len(c.wrote))
		}
		over()
		c.turns()
		if len(c.wrote) != n+3 {
			t.Errorf("written to %d clients, expected %d", len(c.wrote), n+3)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
	})
}

// TestFrameThenPollers: those who wait for a frame are told when its own client has been.
func TestFrameThenPollers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1)
		c.takes = time.Millisecond
		c.ask(1, `{"stream":"cam","wait":true}`)
		var told atomic.Int64
		c.loop.wake = func() { // while its client is told, everything happens that can
			synctest.Wait()
			c.loop.mu.Lock()
			told.CompareAndSwap(0, int64(len(c.loop.mails)))
			c.loop.mu.Unlock()
		}
		c.say(0, message("m", `{"stream":"cam"}`, 1, 2, 3, 4))
		time.Sleep(2 * c.takes)
		if n := told.Load(); n != 1 {
			t.Errorf("%d clients were told at first, expected that of the frame only", n)
		}
		c.turns()
		if got := c.answer(1); !strings.Contains(got, `"skipped":0`) {
			t.Errorf("the client that waits got %s", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
	})
}

// TestGoneWhileItWaits: a question that waits ends with its connection, even if the loop has not
// submitted yet what it has read, and if the client has ended its direction before.
func TestGoneWhileItWaits(t *testing.T) {
	b, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "m/latest",
		Metadata: []byte(`{"stream":"cam","wait":true,"timeout_ms":3600000}`)})
	if err != nil {
		t.Fatal(err)
	}
	for _, submitted := range []bool{false, true} {
		for _, halfClosed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c := newCrowd(t, 1)
				c.loop.begin()
				s := c.peers[1].s
				s.traffic(b)
				if submitted {
					c.loop.end()
					c.loop.begin()
				}
				if halfClosed {
					s.hangUp()
				}
				s.closed()
				c.loop.end()
				c.turns()
				if free := len(c.loop.calls.free); free != 1 {
					t.Errorf("submitted %v, half closed %v: %d calls are free of 1", submitted, halfClosed, free)
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
			})
		}
	}
}

// TestParkedCallsEnd: whichever way a wait ends, its call is free again, and its place in the line.
func TestParkedCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 3)
		wait := `{"stream":"cam","wait":true,"timeout_ms":1000,"id":1}`
		c.ask(1, wait) // its time runs out
		c.ask(2, wait) // its client leaves
		c.ask(3, wait) // behind it in the line waits another
		c.say(3, message("m", `{"id":"behind"}`, 1, 2, 3, 4))
		c.loop.begin()
		c.peers[2].s.closed()
		c.loop.end()
		c.loop.turn()
		if free := len(c.loop.calls.free); free != 1 {
			t.Errorf("%d calls are free after one client has left", free)
		}
		if len(c.peers[3].out) > 0 {
			t.Errorf("an answer overtook the one before it: %s", c.answer(3))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		c.loop.turn()
		for _, i := range []int{1, 3} {
			if got := c.answer(i); !strings.Contains(got, shiva.NotFound) || !strings.Contains(got, `"id":1`) {
				t.Errorf("client %d got %s", i, got)
			}
		}
		if free, works := len(c.loop.calls.free), len(c.loop.works.free); free != 4 || works == 0 {
			t.Errorf("%d calls are free of 4, and %d works", free, works)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
	})
}
