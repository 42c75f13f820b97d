package shiva

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// One connection of a [link]: its writer and its reader.

const (
	// Limits of what the writer gathers for one write: messages of up to copyBytes are copied into
	// one block, and larger ones stay where they are.
	writeBlockBytes = 64 << 10
	copyBytes       = 8 << 10
	maxWriteVecs    = 64

	readBlockBytes = 64 << 10
	// How long the reader goes on after the writer has failed.
	finalReadTime = time.Second

	// From this much room in a body, reading directly into it is faster than through the block.
	minDirectBytes = 16 << 10
)

// serve sends and receives on conn until it fails. It returns why, and how many answers arrived.
func (c *link) serve(conn net.Conn) (answers int, err error) {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var writeErr error
	wg.Go(func() {
		if writeErr = c.write(conn, stop); writeErr != nil {
			// A server that closes the connection has often sent the reason, which may still be
			// unread.
			_ = conn.SetReadDeadline(time.Now().Add(finalReadTime))
		}
	})
	answers, err = c.read(conn)
	close(stop)
	conn.Close() // wakes the writer
	wg.Wait()
	if writeErr != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = writeErr
	}
	return answers, err
}

// write sends the requests in the ring, all that wait at once, then sleeps until there are more. It
// returns when stop is closed or conn fails.
func (c *link) write(conn net.Conn, stop <-chan struct{}) error {
	w := connWriter{block: make([]byte, 0, writeBlockBytes)}
	defer w.release()
	for {
		select {
		case <-stop: // waiting requests go out on the next connection
			return nil
		default:
		}
		for c.gather(&w) {
			if err := w.flush(conn); err != nil {
				return err
			}
		}
		select {
		case <-c.wake:
		case <-stop:
			return nil
		}
	}
}

// gather moves requests from the ring to w until w is full, and reports whether w has any.
func (c *link) gather(w *connWriter) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !w.full() && !c.ending && c.ring.sent < c.opts.inFlight {
		c.dropStale()
		k := c.ring.nextUnsent()
		if k == nil {
			break
		}
		w.add(k.request)
		k.request, k.token = nil, c.connToken
		if c.ring.sent == 1 {
			c.expectAnswerLocked()
		}
	}
	return len(w.vecs) > 0
}

// A connWriter gathers the requests of one write.
type connWriter struct {
	block []byte // small messages, copied; never moves
	held  []*tensor.Buffer
	vecs  net.Buffers
	out   net.Buffers // the rest of vecs during a write
}

func (w *connWriter) full() bool {
	return len(w.vecs) >= maxWriteVecs || len(w.block)+copyBytes > cap(w.block)
}

func (w *connWriter) add(b *tensor.Buffer) {
	p := b.Bytes()
	if len(p) > copyBytes {
		w.vecs = append(w.vecs, p)
		w.held = append(w.held, b)
		return
	}
	start := len(w.block)
	w.block = append(w.block, p...)
	if n := len(w.vecs); n == 0 || !extend(&w.vecs[n-1], w.block, start) {
		w.vecs = append(w.vecs, w.block[start:])
	}
	b.Release()
}

func (w *connWriter) flush(conn net.Conn) error {
	w.out = w.vecs
	_, err := w.out.WriteTo(conn)
	w.release()
	return err
}

func (w *connWriter) release() {
	for i, b := range w.held {
		b.Release()
		w.held[i] = nil
	}
	clear(w.vecs)
	w.held, w.vecs, w.block = w.held[:0], w.vecs[:0], w.block[:0]
}

// read delivers answers until conn fails or its framing is lost.
func (c *link) read(conn net.Conn) (answers int, err error) {
	d := NewDecoder(DecoderConfig{Limits: c.opts.limits, Pool: c.opts.pool})
	defer d.Close()
	block := make([]byte, readBlockBytes)
	for {
		p := d.Direct()
		direct := len(p) >= minDirectBytes
		if !direct {
			p = block
		}
		n, err := conn.Read(p)
		p = p[:n]
		if direct {
			d.Advance(n)
			p = nil
		}
		for {
			used, m, fault := d.Push(p)
			p = p[used:]
			if m == nil && fault == nil {
				break
			}
			if e, ok := fault.(*DecodeError); ok && !e.Keep() {
				return answers, fault
			}
			if !c.deliver(m, fault) {
				return answers, unsolicited(m, fault)
			}
			answers++
		}
		if err != nil {
			if truncated := d.Close(); truncated != nil && err == io.EOF {
				err = truncated
			}
			return answers, err
		}
	}
}

// unsolicited returns the error of an answer that no call waits for: a server sends one with its
// reason before it closes the connection.
func unsolicited(m *Message, err error) error {
	if m == nil {
		return err
	}
	defer m.Release()
	if e := ParseError(m); e != nil {
		return e
	}
	return fmt.Errorf("shiva: received a message of namespace %q that answers no request", m.Namespace)
}
