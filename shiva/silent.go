package shiva

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// How the client detects that one of several servers has fallen silent: the connection stays open,
// and no answer comes, as from a host without power or a process that hangs. A slow model looks the
// same, since answers on a connection keep their order, so the client sends a liveness check on
// another connection. If that gets no answer either, the requests go to other servers if they may
// run twice, and a stream continues with its next frames at another server. TCP alone would notice
// after a quarter of an hour.

const (
	silence      = 2 * time.Second // time without an answer that triggers a check
	checkTimeout = 2 * time.Second // for the check: to connect, and to get an answer
)

// expectAnswerLocked starts the wait for answers: it is called when a request is sent while none
// waits.
func (c *link) expectAnswerLocked() {
	c.lastAnswer = time.Now()
	if (c.oneOfSeveral && c.opts.repeatable || c.choose != nil) && c.checkTimer == nil {
		c.checks.Add(1)
		c.checkTimer = time.AfterFunc(silence, c.check)
	}
}

// check runs periodically while a request waits for its answer.
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
	if c.checkTimer = nil; c.ring.sent > 0 && !c.closed {
		c.checks.Add(1)
		c.checkTimer = time.AfterFunc(wait, c.check)
	}
}

// silent reports whether the current connection, which it returns, has had no answer for too long.
// If an answer came recently, it sets wait to the time left.
func (c *link) silent(wait *time.Duration) (net.Conn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := time.Until(c.lastAnswer.Add(silence)); left > 0 {
		*wait = left
		return nil, false
	}
	return c.conn, c.conn != nil && c.ring.sent > 0 && !c.closed
}

// alive checks the server on another connection. Any answer will do.
func (c *link) alive() error {
	ctx, cancel := context.WithTimeout(c.ctx, checkTimeout)
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

// giveUp closes a silent connection, unless an answer has come meanwhile.
func (c *link) giveUp(conn net.Conn, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != conn || c.closed || time.Since(c.lastAnswer) < silence {
		return
	}
	c.giveUpReason = fmt.Errorf("shiva: %s has answered nothing for %v, nor on another connection: %w",
		c.at.Load().text, time.Since(c.lastAnswer).Round(time.Millisecond), why)
	if c.choose != nil {
		c.avoidAddr = c.at.Load().text
	}
	conn.Close()
}

// cause returns why a connection has ended: the reason of giveUp, if it closed the connection, else
// err.
func (c *link) cause(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.giveUpReason != nil {
		err, c.giveUpReason = c.giveUpReason, nil
	}
	return err
}

// endChecks returns when no check runs. None will start, since nothing is sent any more.
func (c *link) endChecks() {
	c.mu.Lock()
	if c.checkTimer != nil && c.checkTimer.Stop() {
		c.checkTimer = nil
		c.checks.Done()
	}
	c.mu.Unlock()
	c.checks.Wait()
}
