package shiva

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// How the client notices that one of several servers has fallen silent: the connection stays, and
// no answer comes, as from a host without power or from a process that hangs. A model may also take
// its time, and answers on a connection keep their order, so the client asks on another connection
// whether the server lives. If there is no answer either, the server's requests go to others, where
// they may run twice, and a stream continues at another server with its next frames. TCP alone
// would notice after a quarter of an hour.

const (
	silence   = 2 * time.Second // without an answer, after which a server is asked
	proofTime = 2 * time.Second // for the other connection, and the answer on it
)

// heedLocked is called when the first request is sent, while none waits, for whose answer the link
// then waits.
func (c *link) heedLocked() {
	c.heard = time.Now()
	if (c.among && c.opts.repeatable || c.choose != nil) && c.doubts == nil {
		c.checks.Add(1)
		c.doubts = time.AfterFunc(silence, c.check)
	}
}

// check is called from time to time while a request waits for its answer.
func (c *link) check() {
	defer c.checks.Done()
	wait := silence
	if conn, silent := c.silent(&wait); silent {
		if err := c.alive(); err != nil {
			c.giveUp(conn, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doubts = nil; c.ring.sent > 0 && !c.closed {
		c.checks.Add(1)
		c.doubts = time.AfterFunc(wait, c.check)
	}
}

// silent reports whether no answer has come for too long, on the present connection. Otherwise wait
// becomes how long that may still take.
func (c *link) silent(wait *time.Duration) (net.Conn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := time.Until(c.heard.Add(silence)); left > 0 {
		*wait = left
		return nil, false
	}
	return c.conn, c.conn != nil && c.ring.sent > 0 && !c.closed
}

// alive asks the server on another connection. Any answer will do.
func (c *link) alive() error {
	ctx, cancel := context.WithTimeout(c.ctx, proofTime)
	defer cancel()
	conn, err := c.reach(ctx, *c.at.Load(), c.opts.token.Token())
	if err == nil {
		conn.Close()
	}
	if _, answered := errors.AsType[*RemoteError](err); answered {
		return nil
	}
	return err
}

// giveUp ends a connection, unless an answer has come meanwhile.
func (c *link) giveUp(conn net.Conn, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != conn || c.closed || time.Since(c.heard) < silence {
		return
	}
	c.gone = fmt.Errorf("shiva: %s has answered nothing for %v, nor on another connection: %w", c.at.Load().text, time.Since(c.heard).Round(time.Millisecond), why)
	if c.choose != nil {
		c.left = c.at.Load().text
	}
	conn.Close()
}

// cause returns why a connection has ended: what was found out about its server, if anything.
func (c *link) cause(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		err, c.gone = c.gone, nil
	}
	return err
}

// endChecks returns when no check runs, and none will begin, as nothing is sent any more.
func (c *link) endChecks() {
	c.mu.Lock()
	if c.doubts != nil && c.doubts.Stop() {
		c.doubts = nil
		c.checks.Done()
	}
	c.mu.Unlock()
	c.checks.Wait()
}
