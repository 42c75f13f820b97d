package shiva

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// How a [link] connects: to which server, and the exchange before the first request.

// dial makes a connection.
func (c *link) dial(ctx context.Context) (net.Conn, *sharedMemory, error) {
	if c.choose == nil {
		return c.dialTo(ctx, *c.at.Load())
	}
	var failed AttemptsError
	for _, a := range c.choose(c) {
		conn, shared, err := c.dialTo(ctx, a)
		if err == nil {
			c.at.Store(&a)
			return conn, shared, nil
		}
		if failed.add(a.text, err); ctx.Err() != nil {
			break
		}
	}
	return nil, nil, failed.err()
}

// dialTo makes a connection to a server. If the server does not know the token, dialTo reads the
// token again: it may just have been replaced.
func (c *link) dialTo(ctx context.Context, a address) (net.Conn, *sharedMemory, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.dialTimeout)
	defer cancel()
	for {
		token := c.opts.token.Token()
		conn, shared, err := c.dialAs(ctx, a, token)
		if e, ok := errors.AsType[*RemoteError](err); ok && e.Type == Unauthenticated && token != c.opts.token.Token() {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("shiva: connecting to %s: %w", a.text, err)
		}
		c.mu.Lock()
		c.connToken = token
		c.mu.Unlock()
		return conn, shared, nil
	}
}

func (c *link) dialAs(ctx context.Context, a address, token string) (net.Conn, *sharedMemory, error) {
	conn, err := c.reach(ctx, a, token)
	if err != nil {
		return nil, nil, err
	}
	shared, err := c.share(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	return conn, shared, nil
}

// reach makes a connection on which the server has accepted the token and, if there are other
// servers, has answered.
func (c *link) reach(ctx context.Context, a address, token string) (net.Conn, error) {
	conn, err := c.opts.dial(ctx, a.network, a.target)
	if err == nil && a.name != "" {
		conn, err = handshake(ctx, conn, a.name, c.opts.tls)
	}
	if err != nil {
		return nil, err
	}
	if err = introduce(ctx, conn, token); err == nil && (c.oneOfSeveral || c.choose != nil) {
		err = checkLive(ctx, conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// checkLive checks that the server at the other end of a new connection answers. Without it,
// requests would wait for a server that accepts connections and does nothing, although there are
// others. Any answer will do, except one that sends clients elsewhere.
func checkLive(ctx context.Context, conn net.Conn) error {
	answer, err := exchange(ctx, conn, &Message{Namespace: LiveNamespace})
	if err != nil {
		return fmt.Errorf("the server accepts connections but does not answer %s: %w", LiveNamespace, err)
	}
	defer answer.Release()
	if e := ParseError(answer); e != nil && e.Retryable {
		return e
	}
	return nil
}

// introduce shows the client's token to the server at the other end of a new connection, in its
// first message, as the protocol requires. It returns an error if the server does not know the
// token. Older servers have no tokens, and do not know this route.
func introduce(ctx context.Context, conn net.Conn, token string) error {
	if token == "" {
		return nil
	}
	answer, err := exchange(ctx, conn,
		&Message{Namespace: WhoAmINamespace,
			Metadata: append(jsonscan.AppendMember(nil, TokenKey, jsonscan.AppendString(nil, token)), '}')})
	if err != nil {
		return err
	}
	defer answer.Release()
	if e := ParseError(answer); e != nil && e.Type == Unauthenticated {
		return e
	}
	return nil
}

// exchange sends a message on a connection that nothing else uses, and reads its answer.
func exchange(ctx context.Context, conn net.Conn, m *Message) (answer *Message, err error) {
	late := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !late() && err == nil {
			answer.Release()
			answer, err = nil, ctx.Err()
		}
	}()
	request, err := AppendMessage(nil, m)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	d := NewDecoder(DecoderConfig{})
	defer d.Close()
	for block := make([]byte, 4<<10); ; {
		n, err := conn.Read(block)
		if err != nil {
			return nil, err
		}
		if _, answer, err := d.Push(block[:n]); answer != nil || err != nil {
			return answer, err
		}
	}
}
