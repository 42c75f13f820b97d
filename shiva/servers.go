package shiva

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"time"
)

// Which servers a [Client] has connections to, and which of them gets a request.

const (
	lookupPeriod = 20 * time.Second
	lookupSoon   = time.Second // while a server cannot be reached
)

// open makes the client's first connections.
func (c *Client) open(ctx context.Context, list []address) error {
	var failed AttemptsError
	for _, a := range list {
		s := newSource(a, c.opts.lookup)
		c.sources = append(c.sources, s)
		if err := c.lookUp(ctx, s); err != nil {
			failed.note(a.text, err)
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
			c.alone = l
		}
	default:
		if err := c.connectAny(ctx, found, &failed); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(c.sources, func(s *source) bool { return s.host != "" }) {
		c.looks.Store(c.nextLookup(len(failed.Attempts) > 0).UnixNano())
	}
	return nil
}

// connectAny waits until one of several servers has answered, or none will.
func (c *Client) connectAny(ctx context.Context, found []address, failed *AttemptsError) error {
	c.relist(found)
	for {
		down := 0
		for _, l := range *c.links.Load() {
			if l.up.Load() {
				return nil
			}
			if err := l.down(); err != nil {
				failed.note(l.at.Load().text, err)
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

// relist makes a link for each server to be used that has none, which begins to connect, and
// retires the links of servers that are no longer used: they end when everything sent on them has
// been answered.
func (c *Client) relist(found []address) {
	if len(found) > c.opts.servers {
		// Rendezvous: each address has a rank of its own, whatever others there are.
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
		l.among, l.changed = true, func() { signal(c.changed) }
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

// list makes links the ones that are used.
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

// follow looks names up again if it is time. It is called by requests, so that an unused client
// costs nothing.
func (c *Client) follow() {
	due := c.looks.Load()
	if due == 0 || time.Now().UnixNano() < due {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The next one is set when this one is over.
	if c.closed || !c.looks.CompareAndSwap(due, time.Now().Add(c.opts.dialTimeout+lookupPeriod).UnixNano()) {
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
	c.looks.Store(c.nextLookup(failed).UnixNano())
}

// nextLookup returns when names are looked up next.
func (c *Client) nextLookup(soon bool) time.Time {
	for _, l := range *c.links.Load() {
		soon = soon || l.down() != nil
	}
	if soon {
		return time.Now().Add(lookupSoon)
	}
	return time.Now().Add(lookupPeriod)
}

// pick chooses a server for a request among those to which it was not sent: of two random ones that
// take requests, the one where fewer wait. nil: none is left.
func (c *Client) pick(tried []*link) *link {
	var a, b *link
	n := 0
	for _, l := range *c.links.Load() {
		if l.among && !l.up.Load() || slices.Contains(tried, l) {
			continue
		}
		// The first two, and then each further one replaces one of them with a fair probability.
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

// lead connects the link of a stream, to a server that the client's requests may go to.
func (c *Client) lead(ctx context.Context, l *link) error {
	if c.ctx.Err() != nil {
		return &CallError{Addr: c.name, Err: ErrClosed}
	}
	links := *c.links.Load()
	if first := links[0]; !first.among {
		l.at.Store(first.at.Load())
	} else {
		l.choose = c.order
	}
	return l.start(ctx)
}

// order returns where the link of a stream may connect, best first: where it was, unless that
// server shuts down or has fallen silent; where a request would go; wherever there is a connection;
// and then the rest.
func (c *Client) order(of *link) (list []address) {
	c.follow()
	links := slices.Clone(*c.links.Load())
	rand.Shuffle(len(links), func(i, j int) { links[i], links[j] = links[j], links[i] })
	first, at := c.pick(nil), of.at.Load()
	of.mu.Lock()
	left := of.left
	of.mu.Unlock()
	rank := func(l *link) int {
		switch a := l.at.Load(); {
		case a.text == left:
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

// Shared returns why the client shares no memory with its servers, or why tensors large enough for
// it were sent although it does: they are larger than all of it, and the error has both sizes. nil:
// all is well. With several servers it returns the first reason.
func (c *Client) Shared() error {
	var faults []error
	for _, l := range *c.links.Load() {
		faults = append(faults, l.Shared())
	}
	return cmp.Or(slices.DeleteFunc(faults, func(err error) bool { return err == nil })...)
}
