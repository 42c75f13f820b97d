package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// oldGenerations are the generations of Clipper's containers. Each has its own code here: package
// containers describes the messages by generation.
var oldGenerations = []string{"v0", "v1", "v1b", "v2", "v2a", "v3"}

// oldFrames has the frame numbers of a batch's parts. Without a header with the number of rows,
// each row is a frame.
var oldFrames = map[string]struct{ id, header, inputs int }{
	"v1": {1, 3, 4}, "v1b": {1, 4, 6}, "v2": {2, 5, 7}, "v2a": {2, 5, 7}, "v3": {3, 0, 7},
}

// An oldContainer is a container of an old generation: it answers one batch after the other.
type oldContainer struct {
	generation string
	raw        net.Conn
	peer       *containertest.Peer // over ZeroMQ; nil for v0
	answer     func(*containertest.Batch) containertest.Reply
	beat       *time.Timer
	gone       chan struct{}

	mu    sync.Mutex
	muted bool
	err   error
}

// callOld waits for the server to call a container of v0.
func (s *scene) callOld(ctx context.Context) (*shivatest.Link, error) {
	l, err := s.net.Listen(containersAddrs["v0"])
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	return c.(*shivatest.Link), nil
}

// beginOld registers as its generation does.
func (h *host) beginOld(near *shivatest.Link, name string, calm bool) (life, error) {
	c := &oldContainer{generation: h.old, raw: near, gone: make(chan struct{}),
		answer: func(b *containertest.Batch) containertest.Reply { return h.answer(name, b, calm) }}
	if h.old == "v0" {
		go c.run(c.serveV0)
		return c, nil
	}
	var err error
	if c.peer, err = containertest.NewPeer(near); err != nil {
		return nil, err
	}
	who := [][]byte{[]byte("old"), []byte("1"), []byte("1")} // name, version, and integers
	switch h.old {
	case "v1", "v1b":
		err = c.peer.Send(append([][]byte{nil}, who...)...)
	case "v2", "v2a":
		err = c.peer.Send(append([][]byte{nil, word(0)}, who...)...)
	case "v3":
		err = c.peer.Send(append(append([][]byte{nil, word(0)}, who...), word(3))...)
	}
	if err != nil {
		return nil, err
	}
	if h.old != "v1" && h.old != "v1b" {
		c.mu.Lock() // tick reads it
		c.beat = time.AfterFunc(5*time.Second, c.tick)
		c.mu.Unlock()
	}
	go c.run(c.serve)
	return c, nil
}

func word(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
func long(n int) []byte    { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

func (c *oldContainer) run(serve func() error) {
	err := serve()
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	c.hangUp()
	close(c.gone)
}

func (c *oldContainer) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.beat.Reset(5 * time.Second)
	if !c.muted {
		_ = c.peer.Send(nil, word(2)) // serve reports a failure
	}
}

// serve reads batches over ZeroMQ.
func (c *oldContainer) serve() error {
	for {
		f, err := c.peer.Receive()
		if err != nil {
			return err
		}
		at := oldFrames[c.generation]
		if len(f) <= at.inputs { // an answer to a heartbeat
			continue
		}
		b := &containertest.Batch{Rows: len(f) - at.inputs}
		if at.header > 0 {
			b.Rows = int(binary.LittleEndian.Uint32(f[at.header][4:]))
		}
		id, data := at.id, slices.Concat(f[at.inputs:]...)
		if err := c.take(b, data, func(values []int32) error {
			return c.peer.Send(c.result(f[id], values)...)
		}); err != nil {
			return err
		}
	}
}

// result returns the answer to a batch: a float or a text for each row.
func (c *oldContainer) result(id []byte, values []int32) [][]byte {
	var floats []byte
	texts := make([][]byte, len(values))
	for i, v := range values {
		floats = binary.LittleEndian.AppendUint32(floats, math.Float32bits(float32(v)))
		texts[i] = fmt.Append(nil, v)
	}
	switch c.generation {
	case "v1", "v1b":
		return [][]byte{nil, id, floats}
	case "v2a":
		return [][]byte{nil, word(1), id, floats}
	case "v2":
		table := word(uint32(len(texts)))
		for _, t := range texts {
			table = append(table, word(uint32(len(t)))...)
		}
		return [][]byte{nil, word(1), id, append(table, slices.Concat(texts...)...)}
	}
	header := long(len(texts))
	for _, t := range texts {
		header = append(header, long(len(t))...)
	}
	return append([][]byte{nil, word(1), id, long(len(header)), header}, texts...)
}

// serveV0 reads batches over a bare connection: rows of one length, since all have two values.
func (c *oldContainer) serveV0() error {
	head := make([]byte, 9) // code, rows, and the values of each
	for {
		if _, err := io.ReadFull(c.raw, head[:5]); err != nil {
			return err
		}
		if head[0] == 0 {
			_, _ = c.raw.Write(word(1234))
			return errors.New("goodbye")
		}
		if _, err := io.ReadFull(c.raw, head[5:]); err != nil {
			return err
		}
		b := &containertest.Batch{Rows: int(binary.LittleEndian.Uint32(head[1:]))}
		data := make([]byte, 4*b.Rows*int(binary.LittleEndian.Uint32(head[5:])))
		if _, err := io.ReadFull(c.raw, data); err != nil {
			return err
		}
		if err := c.take(b, data, func(values []int32) error {
			var doubles []byte
			for _, v := range values {
				doubles = binary.LittleEndian.AppendUint64(doubles, math.Float64bits(float64(v)))
			}
			_, err := c.raw.Write(doubles)
			return err
		}); err != nil {
			return err
		}
	}
}

// take answers a batch as the script decides.
func (c *oldContainer) take(b *containertest.Batch, data []byte, send func([]int32) error) error {
	if c.mute() {
		return nil
	}
	b.Inputs = []tensor.Tensor{{DType: tensor.Int32, Shape: tensor.Shape{b.Rows, len(data) / 4 / max(b.Rows, 1)},
		Data: data}}
	r := c.answer(b)
	time.Sleep(r.Delay)
	switch {
	case c.mute(), r.Silent:
		return nil
	case r.Frames != nil && c.peer != nil:
		return c.peer.Send(r.Frames...)
	case r.Die || r.Outputs == nil:
		return errors.New("the seed says so")
	}
	values, err := tensor.Values[int32](r.Outputs[0])
	if err != nil {
		return err
	}
	if err := send(values); err != nil || !r.Twice {
		return err
	}
	return send(values)
}

func (c *oldContainer) mute() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.muted
}

func (c *oldContainer) Mute(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = on
}

// Drain does nothing: these generations have no message for it.
func (c *oldContainer) Drain() error { return nil }

func (c *oldContainer) Gone() <-chan struct{} { return c.gone }

func (c *oldContainer) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *oldContainer) Kill() { c.Close() }

// Close ends the connection, and waits for the container's goroutine.
func (c *oldContainer) Close() error {
	c.hangUp()
	<-c.gone
	return nil
}

func (c *oldContainer) hangUp() {
	if c.beat != nil {
		c.beat.Stop()
	}
	if c.peer != nil {
		c.peer.Close()
		return
	}
	c.raw.Close()
}
