package scheduler

import (
	"fmt"
	"slices"
	"time"
)

// Batches that are not answered within the execution timeout, and their replicas.
//
// The batch is given up: its requests are tried again or answered. It still takes a slot, and one
// of the batches that the container executes at once, until it is answered after all or the replica
// is removed. It has no other effect; otherwise one request that hangs would hang its model. A
// batch of one request is not tried again, since the next container would hang as well.
//
// If the replica has answered nothing since that batch began, it is suspect, and gets only probes:
// one small batch at a time while it has slots, since only an answer can show that it works. Any
// answer makes it live again. If it stays silent for several execution timeouts, it is reported
// through ReplicaOptions.Silent, which ends it.

const (
	// Execution timeouts without an answer after which a suspect replica is reported.
	silentTimeouts = 3
	probeLook      = 16 // rows examined for a probe
	probePatience  = 4  // times its planned time: after that a probe is given up as well
)

// room is how many more batches the replica may have. A live replica without a batch in flight may
// always have one, however many it has not answered: its slots may have been reduced since.
func (r *Replica) room() int {
	n := r.slots - len(r.inflight) - len(r.overdue)
	if n <= 0 && len(r.inflight) == 0 && r.state == replicaLive {
		return 1
	}
	return n
}

// blockedLanes counts the batches given up that still occupy the container.
func (r *Replica) blockedLanes() (n int) {
	for _, b := range r.overdue {
		if b.began != notStarted {
			n++
		}
	}
	return n
}

// lanes is how many batches the replica can execute at once besides those given up, at least one.
func (r *Replica) lanes() int { return max(1, r.concurrency-r.blockedLanes()) }

// expireReplica gives up the batches of a replica that have taken too long, and sets the wake-up
// for the next one.
func (c *core) expireReplica(rep *Replica, now int64, fx *effects) {
	for i := 0; i < len(rep.inflight); {
		b := rep.inflight[i]
		if b.began == notStarted || b.overdue(int64(c.cfg.ExecTimeout)) > now {
			i++
			continue
		}
		c.giveUpOverdue(rep, b, now, fx)
		i = 0
	}
	c.wakeAt(rep.timeout(c.cfg.ExecTimeout))
	if !rep.reported && rep.ungranted(now, c.cfg.ExecTimeout) {
		rep.reported = true
		fx.silent = append(fx.silent, rep)
	}
	if rep.state != replicaSuspect || rep.reported {
		return
	}
	if at := rep.silentSince() + silentTimeouts*int64(c.cfg.ExecTimeout); at > now {
		c.wakeAt(at)
	} else {
		rep.reported = true
		fx.silent = append(fx.silent, rep)
	}
}

// overdue is when b, which the container has started, exceeds its limit.
func (b *Batch) overdue(limit int64) int64 {
	if b.probe > 0 {
		limit = min(limit, b.probe)
	}
	return b.began + limit
}

// giveUpOverdue gives a batch up.
func (c *core) giveUpOverdue(rep *Replica, b *Batch, now int64, fx *effects) {
	silent := rep.free <= b.began
	if b.probe > 0 {
		rep.probeAt = now + int64(c.cfg.ExecTimeout)
	} else {
		c.stats.suspected++
	}
	lost := []*Batch{b}
	rep.markOverdue(b)
	if rep.executing() == 0 { // batches queued in the container wait behind it
		lost = append(lost, rep.inflight...)
		for _, b := range rep.inflight {
			rep.overdue = append(rep.overdue, b)
			b.state = batchOrphan
		}
		rep.inflight = rep.inflight[:0]
	}
	if silent && rep.state == replicaLive {
		rep.state = replicaSuspect
		rep.probeAt, rep.reported = now, false
		c.live--
		fx.changed = true
		c.measure()
	}
	why := fmt.Errorf("%w: no answer within execution_timeout, %v", ErrContainerLost, c.cfg.ExecTimeout)
	if b.probe > 0 {
		why = fmt.Errorf("%w: it has not answered others within execution_timeout, %v, nor this one within %v",
			ErrContainerLost,
			c.cfg.ExecTimeout, time.Duration(now-b.began).Round(time.Millisecond))
	}
	rep.blame(why, now)
	if b.probe == 0 {
		c.lose(rep, lost[:1], loss{alone: true, hung: true, why: why}, now, fx)
	}
	for _, b := range lost {
		c.giveUp(b, why, now, fx)
	}
	c.finishDrain(rep, fx)
}

// markOverdue moves a batch from those in flight to those given up.
func (r *Replica) markOverdue(b *Batch) {
	i := slices.Index(r.inflight, b)
	r.inflight = slices.Delete(r.inflight, i, i+1)
	r.overdue = append(r.overdue, b)
	b.state = batchOrphan
}

// revive makes a suspect replica that has answered live again.
func (c *core) revive(rep *Replica, fx *effects) {
	if rep.state == replicaSuspect {
		rep.state = replicaLive
		c.live++
		fx.changed = true
		c.measure()
	}
}

// silentSince is the time since which a suspect replica has owed an answer and given none.
func (r *Replica) silentSince() int64 {
	since := int64(never)
	for _, b := range r.overdue {
		if b.began != notStarted {
			since = min(since, b.began)
		}
	}
	return max(since, r.free)
}

// hopeful reports whether waiting rows may still be answered: by a live replica, by a suspect one
// that is being probed or would be with the next row, by one that is being started for them, or by
// the successor of a lost one.
func (c *core) hopeful(now int64) bool {
	return c.live > 0 || c.awaited != "" || now < c.returns || slices.ContainsFunc(c.replicas, func(r *Replica) bool {
		return r.state == replicaSuspect && (len(r.inflight) > 0 || r.probes(now))
	})
}

// probes reports whether the replica should be sent a probe.
func (r *Replica) probes(now int64) bool {
	return r.state == replicaSuspect && len(r.inflight) == 0 && r.room() > 0 && now >= r.probeAt
}

// probeOf returns the item to probe with: the one with most time left, as it may have to be tried
// again elsewhere. An item that was tried again before is not risked while there is a live replica.
func (c *core) probeOf(q *queue) *item {
	at := q.back(probeLook)
	var best *item
	for ; !q.end(at); at = q.next(at) {
		if it := q.item(at); it.record == (record{}) || c.live == 0 {
			best = it
		}
	}
	return best
}

// probe sends a small batch to each suspect replica that may have one.
func (c *core) probe(now int64, fx *effects) {
	for _, rep := range c.replicas {
		if !rep.probes(now) {
			if rep.state == replicaSuspect && len(rep.inflight) == 0 && rep.room() > 0 {
				c.wakeAt(rep.probeAt)
			}
			continue
		}
		for len(c.buckets.ordered) == 0 {
			i := slices.IndexFunc(c.retries, func(r *retry) bool { return !r.apart() })
			if i < 0 {
				return
			}
			r := c.retries[i]
			c.retries = slices.Delete(c.retries, i, i+1)
			c.unretry(r, now)
		}
		bk := c.buckets.ordered[0]
		_, q := bk.top()
		it := c.probeOf(q)
		if it == nil {
			continue
		}
		start := now + rep.overhead.value(rep.profile.typical(1)) + rep.preparing.of(1)
		p := rep.plan(c, start, bk.rowBytes)
		b := newBatch(c.model, rep)
		c.alone(b, it, min(it.rows(), max(1, rep.strategy.limit(p))), now)
		b.reason = CloseRetry
		b.limit = b.Rows
		b.probe = int64(c.cfg.ExecTimeout)
		if planned := rep.profile.planned(b.Rows); planned > 0 {
			b.probe = max(probePatience*planned, int64(c.cfg.Objective))
		}
		c.send(rep, b, start, now, fx)
	}
}
