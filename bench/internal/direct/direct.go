// Package direct drives a container in place of the server, and does nothing else: with batches
// that were made beforehand, from one goroutine, without queues, a scheduler or clients. Its rate
// is the most that a server can get out of the container.
package direct

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// inFlight is the number of batches in the container: one that it executes, and the next. A server
// sends as many by default.
const inFlight = 2

// checkEvery is the number of results of which one is compared with its batch, byte by byte.
const checkEvery = 100

// The heartbeat is so long that both sides may be silent between two calls of Drive.
const welcome = `{"protocol":4,"server":"direct","heartbeat_ms":3600000,"dead_after_ms":10800000,` +
	`"max_message_bytes":268435456,"batched":true}`

// A Container is the session with a container that has one input, x, and answers with it. It
// belongs to one goroutine.
type Container struct {
	conn *zmtp.Conn
	out  [inFlight]zmtp.Outgoing
	in   zmtp.Message
}

// Take waits for a container to connect and registers it, whatever model it declares. The listener
// is closed if ctx ends first.
func Take(ctx context.Context, l net.Listener) (*Container, error) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	raw, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	c := &Container{}
	if c.conn, err = zmtp.Server(raw, zmtp.Config{Pool: tensor.NewPool(0)}); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { c.conn.Abort(context.Cause(ctx)) })()
	if err = c.receive("hello"); err == nil {
		c.in.Release()
		o := &c.out[0]
		o.FrameString("welcome")
		o.FrameString(welcome)
		err = c.conn.Send(o)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the session.
func (c *Container) Close() error { return c.conn.Close() }

// Drive keeps sending the same batch, as soon as there is room for another, and returns the rate of
// results in rows per second, over length after the warm-up.
func (c *Container) Drive(ctx context.Context, x tensor.Tensor,
	warmup, length time.Duration) (rate float64, err error) {
	defer context.AfterFunc(ctx, func() { c.conn.Abort(context.Cause(ctx)) })()
	header := fmt.Appendf(nil, `{"rows":%d,"inputs":[{"name":"x","datatype":"%s","shape":%v}]}`, x.Rows(), x.DType.V2(),
		x.Shape)
	begin := time.Now().Add(warmup)
	end := begin.Add(length)
	for i := range c.out {
		if err := c.send(i, header, x.Data); err != nil {
			return 0, err
		}
	}
	results, counted := 0, 0
	for under := inFlight; under > 0; results++ {
		i, err := c.result(x.Data, results%checkEvery == 0)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		if now.After(begin) && now.Before(end) {
			counted++
		}
		if now.After(end) {
			under--
		} else if err := c.send(i, header, x.Data); err != nil {
			return 0, err
		}
	}
	return float64(counted*x.Rows()) / length.Seconds(), nil
}

// send sends a batch whose id is its place.
func (c *Container) send(i int, header, data []byte) error {
	o := &c.out[i]
	o.Reset()
	o.FrameString("batch")
	o.Frame(binary.LittleEndian.AppendUint64(nil, uint64(i)))
	o.Frame(header)
	o.Frame(data)
	return c.conn.Send(o)
}

// result waits for a result and returns the place of its batch, which is then free.
func (c *Container) result(data []byte, check bool) (int, error) {
	if err := c.receive("result"); err != nil {
		return 0, err
	}
	defer c.in.Release()
	f := c.in.Frames
	if len(f) != 4 || len(f[1].Data) != 8 || len(f[3].Data) != len(data) {
		return 0, fmt.Errorf("direct: a result of %d frames, expected result | id | JSON | %d bytes: %s", len(f),
			len(data), f[min(2, len(f)-1)].Data)
	}
	id := binary.LittleEndian.Uint64(f[1].Data)
	if id >= inFlight || !c.conn.Written(&c.out[id]) {
		return 0, fmt.Errorf("direct: a result of batch %d, which is not with the container", id)
	}
	if check && !bytes.Equal(f[3].Data, data) {
		return 0, errors.New("direct: a result whose bytes are not those of its batch")
	}
	return int(id), nil
}

// receive waits for a message of a kind. It skips heartbeats.
func (c *Container) receive(kind string) error {
	for {
		if err := c.conn.Receive(&c.in); err != nil {
			return fmt.Errorf("direct: waiting for %s: %w", kind, err)
		}
		switch got := string(c.in.Frames[0].Data); got {
		case kind:
			return nil
		case "heartbeat":
			c.in.Release()
		default:
			c.in.Release()
			return fmt.Errorf("direct: %.32q, expected %s", got, kind)
		}
	}
}
