package latest

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// What a poll means is decided anew when the right of all to a name's answers comes and goes.
func TestSharedWhileWaiting(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		g.put(camera("a"), 1)
		first, later := g.ask(question("a", wait, of("guest"))), g.ask(question("", wait, after(9), of("guest")))
		g.put(camera("a"), 2)
		g.waits(first)
		g.store.Name("cells", Settings{Always: true, Shared: true})
		g.put(camera("a"), 3)
		g.got(first, 3, nil)
		g.waits(later)
		g.store.Name("cells", always)
		g.put(camera("a"), 10)
		g.waits(later)
		g.put(Source{Identity: "guest", Stream: "b"}, 10)
		g.got(later, 10, nil)
		g.store.Name("cells", Settings{Always: true, Shared: true})
		later = g.ask(question("a", wait, of("guest")))
		g.store.Name("cells", always)
		g.put(Source{Identity: "guest", Client: "x", Stream: "a"}, 7)
		g.got(later, 7, nil)
		// It is told at once that there are two to choose from.
		g.put(Source{Identity: "guest", Client: "y", Stream: "a"}, 7)
		g.store.Name("cells", Settings{Always: true, Shared: true})
		later = g.ask(question("a", wait, of("guest"), func(q *Question) { q.Client = "10.0.0.4" }))
		g.waits(later)
		g.store.Name("cells", always)
		g.got(later, 0, scheduler.ErrInvalidInput, `"a" of x, "a" of y`)
	})
}

// A poll whose stream is gone waits for the others that it may mean, as if it were asked then.
func TestStreamIsGone(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		far := func(q *Question) { q.Deadline = time.Now().Add(time.Hour) }
		other, third := camera("a"), camera("a")
		other.Client, third.Client = "10.0.0.5", "10.0.0.6"
		mine := func(q *Question) { q.Client = "10.0.0.4" }
		g.put(camera("a"), 1)
		poll, choose := g.ask(question("a", wait, after(5), mine, far)), g.ask(question("a", wait, after(5), mine, far))
		time.Sleep(silent / 2)
		g.put(other, 5)
		time.Sleep(silent/2 + time.Second) // the poll's own is gone
		g.waits(poll)
		g.put(other, 6)
		g.got(poll, 6, nil)
		g.got(choose, 6, nil)
		g.put(camera("a"), 1)
		choose = g.ask(question("a", wait, after(9), mine, far))
		time.Sleep(silent / 2)
		g.put(other, 7)
		g.put(third, 7)
		time.Sleep(silent/2 + time.Second)
		g.got(choose, 0, scheduler.ErrInvalidInput, "10.0.0.5", "10.0.0.6")
	})
}

// Whoever has the most gives when there is too much: many streams of a stranger do not make the
// server forget the only one of another.
func TestWhoGives(t *testing.T) {
	t.Parallel()
	stranger := func(i int) (Source, string) { return Source{Identity: "guest", Stream: fmt.Sprint(i)}, "10.6.6.6" }
	for name, c := range map[string]struct {
		ours   Source
		theirs func(i int) (src Source, machine string)
	}{
		"identities":  {camera("a"), stranger},
		"no identity": {Source{Client: "10.0.0.4", Stream: "a"}, stranger},
		"identity and machine": {camera("a"), func(i int) (Source, string) {
			return Source{Stream: fmt.Sprint(i)}, "10.0.0.4"
		}},
		"machines": {Source{Client: "10.0.0.4", Stream: "a"}, func(i int) (Source, string) {
			return Source{Client: "10.6.6.6", Stream: fmt.Sprint(i)}, "10.6.6.6"
		}},
		"users of a machine": {Source{User: "north", Stream: "a"}, func(i int) (Source, string) {
			return Source{User: fmt.Sprint(i), Stream: "a"}, "10.6.6.6"
		}},
		"names of users": {camera("a"), func(i int) (Source, string) {
			return Source{Identity: "guest", User: fmt.Sprint(i), Stream: "a"}, "10.0.0.4"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, always, func(g *rig) {
				g.store.Resize(256 << 10)
				g.put(c.ours, 7, func(f *Frame) { f.Machine = "10.0.0.4" })
				many := 1_000
				if name == "identities" {
					many = 10_000
				}
				for i := range many {
					src, machine := c.theirs(i)
					g.put(src, 1, func(f *Frame) { f.Machine = machine })
				}
				ask := func(src Source, seq int64, want error) {
					user := func(q *Question) { q.User = src.User }
					g.got(g.ask(question(src.Stream, of(src.Identity), user)), seq, want)
				}
				ask(c.ours, 7, nil)
				newest, _ := c.theirs(many - 1)
				oldest, _ := c.theirs(0)
				ask(newest, 1, nil)
				ask(oldest, 0, scheduler.ErrNotFound)
				if u := g.store.Usage(); u.Bytes > 256<<10 || u.Streams < 50 || u.Evicted != uint64(many+1-u.Streams) {
					t.Errorf("%+v", u)
				}
			})
		})
	}
}

// A frame is compared with the polls that it may concern, and with no others.
func TestOthersAreNotAsked(t *testing.T) {
	t.Parallel()
	run(t, always, func(g *rig) {
		g.put(camera("a"), 1)
		var far, near []*reply
		for i := range 1000 {
			far = append(far, g.ask(question("a", wait, after(int64(1000+i)))))
			if i%100 == 0 {
				near = append(near, g.ask(question("a", wait, after(1))))
			}
		}
		src := g.name.sources[camera("a")]
		compared := 0
		served := served{source: src, answer: &Answer{Frame: Frame{Seq: 2}}}
		list := src.waiters.appendFrom(0, nil, func(p *Poll) bool { compared++; return served.concerns(p) })
		if len(list) != len(near) || compared > 3*len(near)+1 {
			t.Errorf("%d of %d polls are concerned, %d were compared; expected %d", len(list), len(src.waiters),
				compared, len(near))
		}
		g.put(camera("a"), 2)
		for _, r := range near {
			g.got(r, 2, nil)
		}
		g.put(camera("a"), 2) // the client has begun again
		for _, r := range far {
			g.got(r, 2, nil)
		}
	})
}

// BenchmarkQuestion asks for the only stream of an identity, of those of a stranger, without its
// name.
func BenchmarkQuestion(b *testing.B) {
	for _, others := range []int{1, 1_000, 10_000} {
		b.Run(fmt.Sprint(others, " streams of others"), func(b *testing.B) {
			s := New(nil, 1<<30)
			n := s.Name("cells", always)
			n.Put(camera("a"), Frame{Seq: 1, Captured: time.Now()}, nil)
			for i := range others {
				n.Put(Source{Identity: "guest", Stream: fmt.Sprint(i)}, Frame{Seq: 1, Captured: time.Now()}, nil)
			}
			p := Poll{Question: Question{Identity: "line", After: -1}, Owner: nobody{}}
			for b.Loop() {
				n.Ask(&p)
				if p.Err != nil {
					b.Fatal(p.Err)
				}
			}
		})
	}
}

// BenchmarkPut puts frames of a stream for which polls wait that have its numbers wrong.
func BenchmarkPut(b *testing.B) {
	for _, polls := range []int{1, 1_000, 10_000} {
		b.Run(fmt.Sprint(polls, " polls for later frames"), func(b *testing.B) {
			s := New(nil, 1<<30)
			n := s.Name("cells", always)
			now := time.Now()
			for range polls {
				n.Ask(&Poll{Question: Question{Identity: "line", Stream: "a", After: 1 << 60, Wait: true, Asked: now,
					Deadline: now.Add(time.Hour)}, Owner: nobody{}})
			}
			src, outputs := camera("a"), []tensor.Tensor{}
			seq := int64(1)
			for n.Put(src, Frame{Seq: seq}, outputs) { // until all know their stream
				seq++
				n.Serve()
				runtime.Gosched()
			}
			for b.Loop() {
				seq++
				if n.Put(src, Frame{Seq: seq}, outputs) {
					b.Fatal("somebody waits for it")
				}
			}
			s.Close(scheduler.ErrDraining)
		})
	}
}

type nobody struct{}

func (nobody) Complete(*Poll) {}
