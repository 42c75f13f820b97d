package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/containers/subset"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/rounds"
)

// As in package containers/container.
const (
	lookPeriod     = time.Second
	resolvePeriod  = 20 * time.Second
	awayAfter      = 10 * time.Second
	tryTime        = 10 * time.Second
	connectTimeout = 10 * time.Second
	firstBackoff   = 100 * time.Millisecond
	maxBackoff     = 5 * time.Second
)

// ways is the number of messages to connect and register.
const ways = 5

// A container executes batches, and has links to the servers that it has chosen.
type container struct {
	*world
	number int
	state  condition
	choice *subset.Choice
	chosen []string
	tried  time.Duration // since when a server is being tried
	links  map[string]*link

	table    *rounds.Table[work]
	sessions map[*rounds.Seat[work]]*session
	order    []*session // the same, in the order in which they joined
	wake     scheduler.Timer
	life     int // index into the tally's lives
}

// A link leads to one server, with a session or while it makes one.
type link struct {
	server   *server
	session  *session // nil: none yet
	since    time.Duration
	failures int
	ended    bool
}

// contain begins a container.
func (w *world) contain() {
	n := len(w.containers)
	c := &container{world: w, number: n, links: map[string]*link{}, sessions: map[*rounds.Seat[work]]*session{}}
	c.choice = subset.New(fmt.Sprint("container ", w.Seed, n), w.subset())
	c.table = rounds.New(1, maxBatch, func(a, b work) bool { return len(c.sessions) > 1 })
	w.containers = append(w.containers, c)
	w.tally.came(c)
	listed := []string(nil)
	var resolve, look func()
	resolve = func() {
		if c.state != up {
			return
		}
		if len(w.addresses) != len(listed) || !slices.Equal(w.addresses, listed) {
			listed = w.addresses
			c.choice.List(listed, w.clock.Now())
			c.look()
		}
		w.clock.AfterFunc(w.chance(resolvePeriod), resolve)
	}
	look = func() {
		if c.state == up {
			c.look()
			w.clock.AfterFunc(lookPeriod, look)
		}
	}
	resolve()
	w.clock.AfterFunc(w.chance(lookPeriod), look)
}

// look updates the choice of servers, and the links to match it.
func (c *container) look() {
	now := c.clock.since()
	if tried := c.choice.Trying(); tried == "" {
		c.choice.Try(c.chosen, c.clock.Now())
		c.tried = now
	} else if c.sessionsOf(tried) > 0 || now-c.tried > tryTime {
		c.choice.Judge(c.chosen, c.sessionsOf, c.clock.Now())
	}
	c.chosen = c.choice.Chosen(func(a string) bool {
		l := c.links[a]
		return l != nil && l.session == nil && now-l.since > awayAfter
	})
	for _, n := range slices.Clone(c.order) {
		if l := n.link; !slices.Contains(c.chosen, l.server.address) && !l.ended {
			l.ended = true
			n.part()
		}
	}
	for a, l := range c.links {
		if !slices.Contains(c.chosen, a) {
			l.ended = true
			delete(c.links, a)
		}
	}
	for _, a := range c.chosen {
		if c.links[a] == nil {
			l := &link{server: c.byAddress[a], since: now}
			c.links[a] = l
			c.connect(l, 0)
		}
	}
}

// sessionsOf returns the number of sessions of a server; 0: unknown.
func (c *container) sessionsOf(address string) int {
	if l := c.links[address]; l != nil && l.session != nil {
		return len(l.server.sessions)
	}
	return 0
}

// connect tries to register with a server, after a pause.
func (c *container) connect(l *link, after time.Duration) {
	c.clock.AfterFunc(after, func() {
		if l.ended || c.state != up {
			return
		}
		c.tally.attempts++
		wait := c.way()
		if l.server.state == vanished {
			wait = connectTimeout
		}
		c.clock.AfterFunc(wait, func() {
			switch {
			case l.ended || c.state != up:
			case l.server.state != up:
				c.again(l)
			default:
				c.clock.AfterFunc((ways-1)*c.way(), func() {
					if l.ended || c.state != up {
						return
					}
					if l.server.state != up {
						c.again(l)
						return
					}
					l.server.register(c, l)
				})
			}
		})
	})
}

// again retries to connect after a pause, which grows.
func (c *container) again(l *link) {
	wait := min(firstBackoff<<min(l.failures, 10), maxBackoff)
	l.failures++
	c.connect(l, c.chance(wait))
}

// join adds a session to the rounds.
func (c *container) join(n *session) {
	n.link.failures = 0
	n.seat = c.table.Join(true)
	c.sessions[n.seat] = n
	c.order = append(c.order, n)
	c.tell()
}

// leave removes a session that has ended. Its offers and batches are dropped.
func (c *container) leave(n *session) {
	c.table.Leave(n.seat)
	c.table.Drop(n.seat)
	delete(c.sessions, n.seat)
	c.order = slices.DeleteFunc(c.order, func(o *session) bool { return o == n })
	if c.state != up {
		return
	}
	if l := n.link; !l.ended {
		l.session, l.since = nil, c.clock.since()
		c.again(l)
	}
	c.tell()
	c.run()
}

// tell tells servers whether they share the container, if that has changed.
func (c *container) tell() {
	shared := len(c.order) > 1
	for _, n := range c.order {
		if n.each != shared {
			n.share(shared)
		}
	}
}

// run sends grants and starts executions until the table has no more of either.
func (c *container) run() {
	for {
		granted, e, wake := c.table.Next(c.clock.since())
		for _, g := range granted {
			n := c.sessions[g.Seat]
			m := n.message(grants)
			m.id, m.rows, m.left, m.best = g.ID, g.Here, g.Elsewhere, g.Target
			n.carry(&n.from, m)
		}
		if e != nil {
			c.execute(e)
		}
		if len(granted) == 0 && e == nil {
			if wake > 0 {
				c.wakeAt(wake)
			}
			return
		}
	}
}

func (c *container) wakeAt(at time.Duration) {
	if c.wake == nil {
		c.wake = c.clock.AfterFunc(at-c.clock.since(), func() {
			if c.state <= draining {
				c.run()
			}
		})
		return
	}
	c.wake.Reset(at - c.clock.since())
}

// execute takes the time of an execution, and answers its batches.
func (c *container) execute(e *rounds.Execution[work]) {
	c.tally.execution(c.world, e.Rows)
	took := float64(c.A+c.B*time.Duration(e.Rows)) * max(0.2, 1+c.Noise*c.rng.NormFloat64())
	c.clock.AfterFunc(time.Duration(took), func() {
		if c.state > draining {
			return
		}
		c.table.Done(e, c.clock.since())
		c.run()
		for i, b := range e.Batches {
			if n := b.Body.session; n.open {
				m := n.message(results)
				m.id, m.rows, m.after, m.batch = b.Grant, e.Rows, e.Queued(i), b.Body.Batch
				n.carry(&n.from, m)
			}
		}
	})
}

// end ends the process, or its machine. Another container begins.
func (c *container) end(as condition) {
	if c.state != up {
		return
	}
	c.state = as
	c.tally.went(c)
	after, again := c.way(), restart
	if as == vanished {
		after, again = silence, newPod
	}
	for _, n := range c.order {
		n.open = false
		c.clock.AfterFunc(after, func() { n.forget(n) })
	}
	c.clock.AfterFunc(again, c.contain)
}
