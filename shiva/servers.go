package shiva

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"
)

// Which servers a [Client] connects to, and which of them gets a request.

const (
	lookupPeriod = 20 * time.Second
	lookupSoon   = time.Second // while a server is unreachable
)

// open makes the client's first connections.
func (c *Client) open(ctx context.Context, list []address) error {
	var failed AttemptsError
	for _, a := range list {
		s := newSource(a, c.opts.lookup)
		c.sources = append(c.sources, s)
		if err := c.lookUp(ctx, s); err != nil {
			failed.add(a.text, err)
		}
	}
	found := c.found()
	switch {
	case len(found) == 0:
		return failed.err()
	case len(list) == 1 && len(found) == 1:
		l := newLink(c.opts, 0)
		l.at.Store(&found[0])
		if err := l.start(ctx); err != nil {
			return err
		}
		if c.list([]*link{l}); c.sources[0].host == "" && !c.opts.repeatable {
			c.onlyLink = l
		}
	default:
		if err := c.connectAny(ctx, found, &failed); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(c.sources, func(s *source) bool { return s.host != "" }) {
		c.lookupDue.Store(c.nextLookup(len(failed.Attempts) > 0).UnixNano())
	}
	return nil
}

// connectAny waits until one of several servers has answered, or all have failed.
func (c *Client) connectAny(ctx context.Context, found []address, failed *AttemptsError) error {
	c.relist(found)
	for {
		down := 0
		for _, l := range *c.links.Load() {
			if l.up.Load() {
				return nil
			}
			if err := l.down(); err != nil {
				failed.add(l.at.Load().text, err)
				down++
			}
		}
		if down == len(*c.links.Load()) {
			return failed.err()
		}
		select {
		case <-c.changed:
		case <-ctx.Done():
			return failed.with(c.name, ctx.Err())
		}
	}
}

// found returns the servers that the sources stand for, each once.
func (c *Client) found() (all []address) {
	for _, s := range c.sources {
		for _, a := range s.found {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// relist makes a link, which starts to connect, for each server to use that has none, and retires
// the links of servers no longer used: they end when all requests sent on them are answered.
func (c *Client) relist(found []address) {
	if len(found) > c.opts.servers {
		// Rendezvous hashing: the rank of an address does not depend on the other addresses.
		rank := func(a address) uint64 { return maphash.String(c.seed, a.text) }
		slices.SortFunc(found, func(a, b address) int { return cmp.Compare(rank(a), rank(b)) })
		found = found[:c.opts.servers]
	}
	var before, now []*link
	if p := c.links.Load(); p != nil {
		before = *p
	}
	for _, a := range found {
		if i := slices.IndexFunc(before, func(l *link) bool { return *l.at.Load() == a }); i >= 0 {
			now = append(now, before[i])
			continue
		}
		l := newLink(c.opts, 0)
		l.at.Store(&a)
		l.oneOfSeveral, l.changed = true, func() { signal(c.changed) }
		go l.run(nil, nil) // until Close, which waits for it, or until it is retired
		now = append(now, l)
	}
	c.list(now)
	for _, l := range before {
		if !slices.Contains(now, l) {
			l.retire()
		}
	}
}

// list makes links the ones in use.
func (c *Client) list(links []*link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, (*link).over)
	for _, l := range links {
		if !slices.Contains(c.all, l) {
			c.all = append(c.all, l)
		}
	}
	c.links.Store(&links)
}

// over reports whether the link has ended.
func (c *link) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// lookUpIfDue looks names up again when a lookup is due. Requests call it, so that an unused client
// costs nothing.
func (c *Client) lookUpIfDue() {
	due := c.lookupDue.Load()
	if due == 0 || time.Now().UnixNano() < due {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// lookAgain sets the time of the next lookup; until then this bound keeps others from starting.
	if c.closed || !c.lookupDue.CompareAndSwap(due, time.Now().Add(c.opts.dialTimeout+lookupPeriod).UnixNano()) {
		return
	}
	c.lookups.Go(c.lookAgain) // until Close, which waits for it
}

func (c *Client) lookUp(ctx context.Context, s *source) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.dialTimeout)
	defer cancel()
	return s.lookUp(ctx, c.opts.lookup)
}

// lookAgain looks names up. Only one lookup runs at a time.
func (c *Client) lookAgain() {
	failed := false
	for _, s := range c.sources {
		failed = c.lookUp(c.ctx, s) != nil || failed
	}
	if c.ctx.Err() == nil {
		c.relist(c.found())
	}
	c.lookupDue.Store(c.nextLookup(failed).UnixNano())
}

// nextLookup returns the time of the next lookup of names.
func (c *Client) nextLookup(soon bool) time.Time {
	for _, l := range *c.links.Load() {
		soon = soon || l.down() != nil
	}
	if soon {
		return time.Now().Add(lookupSoon)
	}
	return time.Now().Add(lookupPeriod)
}

// pick chooses a server that the request was not sent to: of two random ones that take requests,
// the one with fewer requests waiting. nil: none is left.
func (c *Client) pick(tried []*link) *link {
	var a, b *link
	n := 0
	for _, l := range *c.links.Load() {
		if l.oneOfSeveral && !l.up.Load() || slices.Contains(tried, l) {
			continue
		}
		// Reservoir sampling: keep the first two, then each further link replaces one of them with
		// fair probability.
		switch n++; n {
		case 1:
			a = l
		case 2:
			b = l
		default:
			switch rand.IntN(n) {
			case 0:
				a = l
			case 1:
				b = l
			}
		}
	}
	if b == nil {
		return a
	}
	switch d := a.waiting() - b.waiting(); {
	case d > 0, d == 0 && rand.IntN(2) == 0:
		return b
	}
	return a
}

// connectStream connects the link of a stream to one of the client's servers.
func (c *Client) connectStream(ctx context.Context, l *link) error {
	if c.ctx.Err() != nil {
		return &CallError{Addr: c.name, Err: ErrClosed}
	}
	links := *c.links.Load()
	if first := links[0]; !first.oneOfSeveral {
		l.at.Store(first.at.Load())
	} else {
		l.choose = c.order
	}
	return l.start(ctx)
}

// order returns where the link of a stream may connect, best first: its last server, unless that is
// shutting down or has fallen silent; the server that a request would go to; servers with a
// connection; then the rest.
func (c *Client) order(of *link) (list []address) {
	c.lookUpIfDue()
	links := slices.Clone(*c.links.Load())
	rand.Shuffle(len(links), func(i, j int) { links[i], links[j] = links[j], links[i] })
	first, at := c.pick(nil), of.at.Load()
	of.mu.Lock()
	avoid := of.avoidAddr
	of.mu.Unlock()
	rank := func(l *link) int {
		switch a := l.at.Load(); {
		case a.text == avoid:
			return 4
		case at != nil && *a == *at:
			return 0
		case l == first:
			return 1
		case l.up.Load():
			return 2
		}
		return 3
	}
	slices.SortStableFunc(links, func(a, b *link) int { return rank(a) - rank(b) })
	for _, l := range links {
		list = append(list, *l.at.Load())
	}
	return list
}

// Shared returns why the client shares no memory with its servers, or, if it does, why large
// tensors were sent nevertheless: they are larger than all of the memory, and the error has both
// sizes. nil: no fault. With several servers it returns the first fault.
func (c *Client) Shared() error {
	var faults []error
	for _, l := range *c.links.Load() {
		faults = append(faults, l.Shared())
	}
	return cmp.Or(slices.DeleteFunc(faults, func(err error) bool { return err == nil })...)
}
