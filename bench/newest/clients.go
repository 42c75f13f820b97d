package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A wire is a connection with messages in both directions, one at a time.
type wire struct {
	net.Conn
	decoder *shiva.Decoder
	buf     []byte
	rest    []byte // of buf, not decoded yet
	sent    []byte // the last message
	got     int    // the bytes of the last answer
}

func dial(ctx context.Context, addr string) (*wire, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: c, decoder: shiva.NewDecoder(shiva.DecoderConfig{}), buf: make([]byte, 16<<10)}, nil
}

func (w *wire) send(m *shiva.Message) error {
	b, err := shiva.AppendMessage(nil, m)
	if err == nil {
		_, err = w.Write(b)
	}
	w.sent, w.got = b, 0
	return err
}

// receive returns the metadata of the next answer, and when it arrived.
func (w *wire) receive() (seq int64, at time.Time, err error) {
	for {
		for len(w.rest) > 0 {
			n, m, err := w.decoder.Push(w.rest)
			w.rest = w.rest[n:]
			if err == nil && m != nil {
				if fault := shiva.ParseError(m); fault != nil {
					err = fault
				} else if _, err = fmt.Sscanf(string(m.Metadata), `{"seq":%d`, &seq); err != nil {
					err = fmt.Errorf("an answer without its seq: %s", m.Metadata)
				}
				m.Release()
				return seq, at, err
			}
			if err != nil {
				return 0, at, err
			}
		}
		n, err := w.Read(w.buf)
		if err != nil {
			return 0, at, err
		}
		at, w.rest = time.Now(), w.buf[:n]
		w.got += n
	}
}

// A camera sends frames of a stream, and waits for the answer to each.
type camera struct {
	*wire
	seq   int64 // of its last frame
	table tensor.Tensor
}

func dialCamera(ctx context.Context, addr string) (*camera, error) {
	w, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	x, err := tensor.FromSlice(tensor.Shape{1, 20, 26}, make([]float32, 20*26))
	return &camera{wire: w, table: x}, err
}

func (c *camera) frame() error {
	c.seq++
	metadata := fmt.Appendf(nil, `{"stream":"cam","seq":%d}`, c.seq)
	err := c.send(&shiva.Message{Namespace: "cells", Metadata: metadata, Tensors: []tensor.Tensor{c.table}})
	if err != nil {
		return err
	}
	_, _, err = c.receive()
	return err
}

// A poller asks for the newest answer of the camera again and again.
type poller struct {
	*wire
	arrived  []arrival // of a turn
	backward int
	shown    chan struct{} // in a plain turn: the camera has its answer
}

type arrival struct {
	seq int64
	at  time.Time
}

func dialPoller(ctx context.Context, addr string) (*poller, error) {
	w, err := dial(ctx, addr)
	return &poller{wire: w}, err
}

// ask asks for the first answer after a frame.
func (p *poller) ask(after int64) error {
	return p.send(&shiva.Message{Namespace: "cells/latest", Metadata: fmt.Appendf(nil, `{"stream":"cam","wait":true,"after":%d}`, after)})
}

// look asks for an answer each time that the camera has one.
func (p *poller) look() error {
	for range p.shown {
		if err := p.send(&shiva.Message{Namespace: "cells/latest", Metadata: []byte(`{"stream":"cam"}`)}); err != nil {
			return err
		}
		seq, at, err := p.receive()
		if err != nil {
			return err
		}
		p.arrived = append(p.arrived, arrival{seq, at})
	}
	return nil
}

// follow takes answers and asks for the next, until the one to a frame.
func (p *poller) follow(last int64) error {
	for {
		seq, at, err := p.receive()
		if err != nil {
			return err
		}
		if n := len(p.arrived); n > 0 && seq <= p.arrived[n-1].seq {
			p.backward++
		}
		p.arrived = append(p.arrived, arrival{seq, at})
		if seq == last {
			return nil
		}
		if err := p.ask(seq); err != nil {
			return err
		}
	}
}
