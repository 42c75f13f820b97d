package scheduler

// Preparation.
//
// Some containers prepare the inputs of a batch, decode its pictures above all, while they execute
// the batch before, and say how long that took (see [Batch.Prepared]). What takes them a large part
// of an execution is for nothing if the next batch arrives only when the replica is idle: so it is
// sent that much earlier, although rows that come meanwhile could have joined it.

// preparing is how long a container prepares inputs. It delays nothing, but what is sent is planned
// with it; each answer corrects it.
type preparing struct{ row float64 } // ns, mean of the latest batches

const (
	preparingFade = 1.0 / 8
	// Of the execution: preparation that takes less is no reason to send a batch that could grow.
	leastPreparing = 1.0 / 32
	// The share of callers that have asked again when one group of all is here.
	mostBack = 0.9
	// Of one row's time, how long an answer counts: groups in turn are back when others have been
	// executed, and that is about as long.
	turnHorizon = 1.5
	// Of the time between requests of others: they do not come in a wait that is shorter. A camera
	// beside groups in turn had every fourth frame superseded, as the next batch had just left.
	rarely = 0.25
)

// learn adds a batch whose inputs took ns; 0: the container did not say.
func (p *preparing) learn(rows int, ns int64) {
	mean := float64(ns) / float64(rows)
	if p.row == 0 {
		p.row = mean
	}
	p.row += preparingFade * (mean - p.row)
}

// of is the time for some rows, in ns; 0 if the container says nothing.
func (p *preparing) of(rows int) int64 { return int64(p.row * float64(rows)) }

// waits reports whether the next batch of a busy replica, a window that could grow, should wait for
// the answer to the one in flight. Rows that join it gain the time of a batch; the others lose one
// dispatch overhead, and the time of their preparation where that matters.
func (c *core) waits(rep *Replica, w *window, p *plan) bool {
	return rep.busy() && w.rows < w.room && !rep.fast() && !rep.sharing.on && !c.overlaps(rep, w, p)
}

// overlaps reports whether the preparation of a window is worth more than what may join it until
// the answer: rows of callers that execute now, or that are about to ask.
func (c *core) overlaps(rep *Replica, w *window, p *plan) bool {
	if !rep.prepares(w.rows, p) { // the usual case, at each arrival: it must cost nothing
		return false
	}
	if c.sources.due > 0 && c.cameApart(rep, w.rows, p) {
		return false
	}
	return c.inTurn(rep, w.rows, min(rep.callersExecuting(), w.room-w.rows), p)
}

// cameApart reports whether some rows are a part of a group that should meet again: whether three
// groups in turn, of which they are one, take longer than one of two groups until it has been
// executed again. If preparation and the way back take long, a replica has time for three.
func (c *core) cameApart(rep *Replica, rows int, p *plan) bool {
	all, half := c.half()
	if rows >= half {
		return false
	}
	turns := p.mean(float64(rows)) + p.mean(float64(half-rows)) + p.mean(float64(all-half))
	return turns > float64(c.sources.delays.within(mostBack)+rep.preparing.of(half))+p.mean(float64(half))
}

// prepares reports whether the preparation of some rows is no trifle beside their execution.
func (r *Replica) prepares(rows int, p *plan) bool {
	return r.preparing.row > 0 && float64(r.preparing.of(rows)) >= leastPreparing*p.mean(float64(rows))
}

// complete reports whether a busy replica that prepares batches may have the next one at once, and
// not only after a wait, as nobody is about to ask meanwhile: all rows that wait are of callers, it
// executes all other rows of callers, and others hardly ask.
func (c *core) complete(rep *Replica, wait int64) bool {
	cs := &c.sources
	return rep.preparing.row > 0 && cs.queued > 0 && cs.queued == c.rows && cs.due+cs.away == 0 &&
		cs.out-cs.queued == rep.callersExecuting() && float64(wait) <= rarely*float64(cs.sinceOthers())
}

// halved leaves half of the callers' rows to the batch that is prepared while the replica executes
// this one, if that pays. Otherwise callers that have met once would all be prepared first and
// executed then, for ever, and unequal groups stay so. Rows of one source stay together: it may ask
// again when it has all.
func (c *core) halved(rep *Replica, q *queue, w *window, p *plan) {
	all, half := c.half()
	if w.bestTime > 0 || !rep.prepares(half, p) {
		return
	}
	half = max(half, q.together(w.at, half))
	most := half + c.rows - min(c.rows, c.sources.queued)
	if w.room > most && half < all && c.inTurn(rep, half, all-half, p) {
		w.rows, w.room, w.why = min(w.rows, most), most, CloseTogether
	}
}

// half is how many rows of callers a replica has in turn, and half of them.
func (c *core) half() (all, half int) {
	all, _ = c.level()
	all = min(all, c.sources.inPlay())
	return all, (all + 1) / 2
}

// inTurn reports whether two groups of rows in turn, each prepared while the other executes, are
// answered as soon as one group of all. In turn they take both executions. Together they take one
// larger execution, and the time in which the replica has nothing to do: the preparation of all,
// and the way of nearly all to the callers and back. It is known of the groups that there are; that
// of all is longer if they share something on it, such as the models of other stages.
func (c *core) inTurn(rep *Replica, rows, others int, p *plan) bool {
	all := rows + others
	turns := p.mean(float64(rows)) + p.mean(float64(others))
	way := float64(c.sources.delays.within(mostBack))
	return others == 0 || turns <= way+float64(rep.preparing.of(all))+p.mean(float64(all))
}

// together counts the rows from a place on of at least n rows, with all that follow from the source
// of the last one; fewer if there are no more.
func (q *queue) together(at cursor, n int) (rows int) {
	for last := (*source)(nil); !q.end(at); at = q.next(at) {
		it := q.item(at)
		if rows >= n && it.req.source != last {
			break
		}
		rows, last = rows+it.rows(), it.req.source
	}
	return rows
}
