package scheduler

import (
	"time"
)

// Replicas whose container several servers share.
//
// Such a container has rounds: when it can execute a batch it asks the servers in which rows wait,
// and executes what they send, together. So the replica has no free slot until it is granted one
// ([Replica.Grant]), and its batch is made then, not before. A server that has rows says so, once
// ([ReplicaOptions.Offer]), and a grant that it has no rows for it gives back.
//
// All servers of a round send at the same time, and none knows the others' rows. What each is told
// is how many wait there. Rows come to servers at random, so those elsewhere have such
// deadlines as those here: where a third of all waits here, an execution of n rows has n/3 of ours,
// and the window of rows here that is best for three times as many rows is the part of the window
// that is best for all. Hence the sizes of a plan are rows of this server, and its times those of
// the whole execution (plan.whole). The profile of the replica is by the rows of the execution,
// too, of which the answer tells.
//
// No state is absorbing: an offer that is not answered is repeated (repeatOffer), which also ends a
// grant that was lost; and a container that grants nothing for as long as one that answers nothing
// is reported as silent.

// A Turn is what a shared replica's container is told with a batch. All of it is zero in a batch of
// a replica that is not shared.
type Turn struct {
	Grant uint64 // the grant that the batch uses; 0: none
	Best  int    // rows of the execution that would be best as seen from here
	Left  int    // rows that still wait here
}

// An Offer tells a shared replica's container what waits here for it.
type Offer struct {
	Grant uint64        // a grant that is given back, as no row is to be sent; 0: none
	Rows  int           // rows that wait; 0 if a grant is given back
	Due   time.Duration // until the most urgent deadline; 0: there is none
	Age   time.Duration // of the oldest of the rows
}

// sharing is the part of a replica that is about being shared. Guarded by the model's mutex.
type sharing struct {
	on      bool
	granted bool   // a batch may be sent now: within Grant only
	grant   uint64 // the number of that
	told    bool   // the container knows that rows wait, and has not granted them
	offered int64  // when it was told last
	repeats int64  // how often it was told again
	paused  int64  // until then it is told of no rows
	share          // of the latest grant
	target  int    // rows of its execution, as the others expect; 0: unknown
}

const (
	repeatOffer = int64(time.Second) // an offer without a grant is made again
	// maxElsewhere bounds what a container may say, before anything is computed with it.
	maxElsewhere = 1 << 20
	offerPause   = int64(time.Millisecond) // between a grant that is given back and the next offer
)

// Share says whether the container is shared: if it is, batches are only sent when granted. It is
// called by the worker, from any goroutine but not from within Send.
func (r *Replica) Share(on bool) {
	fx, now := r.m.begin()
	if r.sharing.on != on {
		r.sharing = sharing{on: on}
		r.m.core.dispatch(now, fx)
	}
	r.m.end(fx, now)
}

// Grant gives a shared replica a free slot: rows that wait are sent at once, and otherwise the
// grant is given back by an [Offer]. id names it. here and elsewhere are the rows that wait in
// this server and in the others that have been granted the same execution, as the container last
// heard; target is how many rows all of them expect that to have, 0 if that is unknown. It is
// called by the worker, from any goroutine but not from within Send.
func (r *Replica) Grant(id uint64, here, elsewhere, target int) {
	fx, now := r.m.begin()
	c, s := &r.m.core, &r.sharing
	s.granted, s.grant = s.on, id
	s.told, s.repeats = false, 0
	s.share = share{min(max(1, here), maxElsewhere), min(max(0, elsewhere), maxElsewhere)}
	s.target = min(max(0, target), maxElsewhere)
	c.dispatch(now, fx)
	if s.granted || !s.on { // nothing was sent
		s.granted = false
		s.paused = now + offerPause
		c.wakeAt(s.paused)
		fx.offers = append(fx.offers, replicaOffer{r, Offer{Grant: id}})
	}
	r.m.end(fx, now)
}

// replicaOffer is an offer to be made.
type replicaOffer struct {
	replica *Replica
	Offer
}

// take uses the grant of a replica for a batch for which an execution of best rows is best, after
// which left rows wait, of which the container is told so.
func (r *Replica) take(best, left int, now int64) Turn {
	s := &r.sharing
	if !s.on || !s.granted {
		return Turn{}
	}
	t := Turn{Grant: s.grant, Best: best, Left: left}
	s.granted = false
	if left > 0 {
		s.told, s.offered = true, now
	}
	return t
}

// offer tells the containers of shared replicas of the rows that wait, if they do not know.
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
		case !s.told || now >= s.offered+repeatOffer:
			if s.told {
				s.repeats++
			}
			s.told, s.offered = true, now
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

// ungranted reports whether a replica has had no grant, and answered nothing, for so long that its
// container is taken to be dead.
func (r *Replica) ungranted(now int64, limit time.Duration) bool {
	s, most := &r.sharing, silentTimeouts*int64(limit)
	return s.on && s.repeats*repeatOffer >= most && now-r.free >= most
}

// A share is the part of the rows of an execution that are this server's: mine of those waiting
// here, of mine and others. Without others it is all.
type share struct{ mine, others int }

// whole is how many rows an execution is expected to have of which n are this server's.
func (s share) whole(n int) int {
	if s.others == 0 {
		return n
	}
	return n + (n*s.others+s.mine-1)/s.mine
}

// own is how many of at most n rows of an execution are this server's, at least one. Those of all
// servers add up to no more.
func (s share) own(n int) int {
	if s.others == 0 {
		return n
	}
	return max(1, n*s.mine/(s.mine+s.others))
}

// near is own, rounded to the nearest number.
func (s share) near(n int) int { return s.own(n + (s.mine+s.others)/max(1, 2*s.mine)) }

// part is this server's share of a time.
func (s share) part(ns int64) int64 {
	if s.others == 0 {
		return ns
	}
	return int64(float64(ns) * float64(s.mine) / float64(s.mine+s.others))
}

// The times of batches that have n rows of this server.

func (p *plan) typical(n int) float64 { return p.prof.typical(p.whole(n)) }
func (p *plan) planned(n int) int64   { return p.prof.planned(p.whole(n)) }
func (p *plan) unstalled(n int) int64 { return p.prof.unstalled(p.whole(n)) }
