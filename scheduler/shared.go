package scheduler

import (
	"time"
)

// Replicas whose containers are shared by several servers.
//
// Such a container has rounds: when it can execute a batch, it asks the servers in which rows wait
// for batches, and executes these together. So the replica has no free slot until it is granted one
// ([Replica.Grant]), and its batch is made then, not before. A server with waiting rows offers
// them, once ([ReplicaOptions.Offer]), and gives back a grant for which it has no rows left.
//
// All servers of a round send at the same time, and none knows the others' rows, only their number.
// Rows reach the servers at random, so rows elsewhere have deadlines like those here. If a third of
// all rows waits here, an execution of n rows has n/3 from here, and the best window of rows here
// is this server's part of the best window of all rows. So the sizes in a plan are rows of this
// server, and its times are those of the whole execution (plan.whole). The replica's profile, too,
// goes by the rows of whole executions, which answers report.
//
// Rows of clients that ask again on each answer are offered together (gatherOffer).
//
// No state is absorbing. An offer without an answer is repeated (repeatOffer), which also ends a
// grant that was lost. A container that grants nothing is reported as silent after the same time as
// one that answers nothing. Stale measurements count for nothing (profile.dropStale).

// A Grant is the information for the container of a shared replica that accompanies a batch. It is
// zero in batches of other replicas.
type Grant struct {
	ID   uint64 // of the grant that the batch uses; 0: none
	Best int    // rows of the execution that would be best for this server
	Left int    // rows that still wait here
}

// An Offer tells the container of a shared replica which rows wait for it here.
type Offer struct {
	Grant uint64        // a grant given back, since no row is to be sent; 0: none
	Rows  int           // rows that wait; if a grant is given back, rows about to be offered again
	Due   time.Duration // until the most urgent deadline; 0: no deadline
	Age   time.Duration // of the oldest of the rows
}

// sharing is the state of a shared replica. It is guarded by the model's mutex.
type sharing struct {
	on        bool
	granted   bool   // a batch may be sent now; true only within Grant
	grant     uint64 // the grant's id
	announced bool   // the container knows that rows wait, and has not granted them
	offered   int64  // time of the latest offer
	repeats   int64  // consecutive repetitions of the offer
	paused    int64  // until this time nothing is offered
	gathered  bool   // the latest offer waited for callers
	again     int    // rows that have started over at the latest grant, and will be offered again
	share            // of the latest grant
	target    int    // rows of its execution that all servers expect; 0: unknown
}

const (
	repeatOffer = int64(time.Second) // an offer without a grant is repeated after this time
	// maxElsewhere bounds the numbers that a container sends, before they are used.
	maxElsewhere = 1 << 20
	offerPause   = int64(time.Millisecond) // from returning a grant to the next offer
)

// Share sets whether the container is shared: then batches are only sent when granted. The worker
// calls it, from any goroutine but not from within Send.
func (r *Replica) Share(on bool) {
	fx, now := r.m.begin()
	if r.sharing.on != on {
		r.sharing, r.profile.shared = sharing{on: on}, on
		r.m.core.dispatch(now, fx)
	}
	r.m.end(fx, now)
}

// Grant gives a shared replica a free slot. It sends waiting rows at once, or gives the grant back
// with an [Offer]. id names the grant. here and elsewhere are the rows that wait in this server and
// in the others that were granted the same execution, as the container last heard; target is how
// many rows all of these servers expect the execution to have, 0 if that is unknown. The worker
// calls it, from any goroutine but not from within Send.
func (r *Replica) Grant(id uint64, here, elsewhere, target int) {
	fx, now := r.m.begin()
	c, s := &r.m.core, &r.sharing
	s.granted, s.grant = s.on, id
	s.announced, s.repeats, s.again = false, 0, 0
	s.share = share{min(max(1, here), maxElsewhere), min(max(0, elsewhere), maxElsewhere)}
	s.target = min(max(0, target), maxElsewhere)
	c.dispatch(now, fx)
	if s.granted || !s.on { // nothing was sent
		s.granted = false
		if c.rows > 0 { // else what comes is new, and offered at once
			s.paused = now + offerPause
			c.wakeAt(s.paused)
		}
		fx.offers = append(fx.offers, replicaOffer{r, Offer{Grant: id, Rows: s.again}})
	}
	r.m.end(fx, now)
}

// replicaOffer is an offer to be made.
type replicaOffer struct {
	replica *Replica
	Offer
}

// take uses a replica's grant for a batch. The result tells the container that an execution of best
// rows would be best, and that left rows still wait.
func (r *Replica) take(best, left int, now int64) Grant {
	s := &r.sharing
	if !s.on || !s.granted {
		return Grant{}
	}
	t := Grant{ID: s.grant, Best: best, Left: left}
	s.granted = false
	if left > 0 {
		s.announced, s.offered = true, now
	}
	return t
}

// offer offers the waiting rows to the containers of shared replicas that do not know of them.
func (c *core) offer(now int64, fx *effects) {
	for _, r := range c.replicas {
		s := &r.sharing
		if !s.on || r.state != replicaLive {
			continue
		}
		switch {
		case c.rows == 0:
			s.repeats = 0
		case now < s.paused:
			c.wakeAt(s.paused)
		case !s.announced || now >= s.offered+repeatOffer:
			if s.announced {
				s.repeats++
			} else if until := c.gatherOffer(r, now, fx); until > now {
				c.wakeAt(until)
				continue
			} else if s.gathered = c.gathering.replica == r; s.gathered {
				c.gathered(now)
			}
			s.announced, s.offered = true, now
			o := Offer{Rows: c.rows}
			first, due := now, int64(never)
			for _, b := range c.buckets.ordered {
				_, q := b.top()
				first, due = min(first, q.head().since), min(due, q.head().req.deadline)
			}
			o.Age = time.Duration(now - first)
			if due != never {
				o.Due = time.Duration(max(1, due-now))
			}
			fx.offers = append(fx.offers, replicaOffer{r, o})
			fallthrough
		default:
			c.wakeAt(s.offered + repeatOffer)
		}
	}
}

// ungranted reports whether a replica has had neither a grant nor an answer for so long that its
// container counts as dead.
func (r *Replica) ungranted(now int64, limit time.Duration) bool {
	s, most := &r.sharing, silentTimeouts*int64(limit)
	return s.on && s.repeats*repeatOffer >= most && now-r.free >= most
}

// A share is this server's part of the rows of an execution: local of local+remote. Without
// remote rows, the share is the whole.
type share struct{ local, remote int }

// whole returns how many rows an execution is expected to have if n of them are this server's.
func (s share) whole(n int) int {
	if s.remote == 0 {
		return n
	}
	return n + (n*s.remote+s.local-1)/s.local
}

// own returns how many of at most n rows of an execution are this server's, at least one. The sum
// over all servers is at most n.
func (s share) own(n int) int {
	if s.remote == 0 {
		return n
	}
	return max(1, n*s.local/(s.local+s.remote))
}

// near is own, but rounded to nearest instead of down.
func (s share) near(n int) int { return s.own(n + (s.local+s.remote)/max(1, 2*s.local)) }

// part returns this server's share of a time.
func (s share) part(ns int64) int64 {
	if s.remote == 0 {
		return ns
	}
	return int64(float64(ns) * float64(s.local) / float64(s.local+s.remote))
}

// Times of executions with n rows of this server.

func (p *plan) typical(n int) float64 { return p.prof.typical(p.whole(n)) }
func (p *plan) planned(n int) int64   { return p.prof.planned(p.whole(n)) }
func (p *plan) unstalled(n int) int64 { return p.prof.unstalled(p.whole(n)) }
