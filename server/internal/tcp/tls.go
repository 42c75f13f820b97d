package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// recordBytes is the most plaintext in a TLS record, batchBytes in the records of one write.
const (
	recordBytes = 16 << 10
	batchBytes  = 4 * recordBytes
)

// An encrypted medium is TLS on a pollable. crypto/tls is made for connections that block. Reading
// without blocking relies on its rule that a read which failed with a temporary error, such as
// EAGAIN, may be repeated. It has no such rule for writing, so writes of TLS always succeed: the
// part of a batch of records that the socket does not take waits in cipher. The bytes of the batch
// count as taken only when the socket has all of it. So a session knows whether each answer has
// left, and a session whose client does not read holds one batch.
type encrypted struct {
	tls            *tls.Conn
	cipher         *ciphertext
	encryptedBytes int // bytes at the start of the next write whose records are already in cipher
}

func (e *encrypted) TryRead(p []byte) (n int, err error) {
	for n < len(p) && err == nil { // one record at a time
		var more int
		more, err = e.tls.Read(p[n:])
		n += more
	}
	switch {
	case n > 0: // a lasting error comes again
		return n, nil
	// With close_notify or without.
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil
	}
	return 0, err
}

func (e *encrypted) Unread() int { return e.cipher.pollable.Unread() + len(e.cipher.unread) }

func (e *encrypted) TryWrite(vecs [][]byte) (n int, err error) {
	e.cipher.gather(true)
	defer e.cipher.gather(false)
	block := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(block)
	vecs = skip(vecs, e.encryptedBytes)
	for left := size(vecs); ; {
		if full, err := e.cipher.flush(); err != nil || full {
			return n, err
		}
		n += e.encryptedBytes
		if e.encryptedBytes = 0; left == 0 {
			return n, nil
		}
		for left > 0 && e.encryptedBytes < batchBytes {
			record := first(vecs, min(left, recordBytes), block[:0])
			vecs = skip(vecs, len(record))
			left -= len(record)
			e.encryptedBytes += len(record)
			if _, err := e.tls.Write(record); err != nil {
				return n, err
			}
		}
	}
}

// first returns the first n bytes of vecs: in place if they are one piece, otherwise copied to
// block.
func first(vecs [][]byte, n int, block []byte) []byte {
	if len(vecs[0]) >= n {
		return vecs[0][:n]
	}
	for _, v := range vecs {
		block = append(block, v[:min(len(v), n-len(block))]...)
	}
	return block
}

// skip removes the first n bytes of vecs, and empty slices after them.
func skip(vecs [][]byte, n int) [][]byte {
	for len(vecs) > 0 && n >= len(vecs[0]) {
		n -= len(vecs[0])
		vecs = vecs[1:]
	}
	if n > 0 {
		vecs[0] = vecs[0][n:]
	}
	return vecs
}

func (e *encrypted) CloseWrite() error {
	_ = e.tls.CloseWrite()
	_, _ = e.cipher.flush()
	return e.cipher.pollable.CloseWrite()
}

// A ciphertext is the pollable as TLS sees it: reads do not block, and writes always succeed.
type ciphertext struct {
	net.Conn // for all other methods
	pollable pollable

	// TLS reads a record in two pieces. Everything that has arrived is read at once, and consumed
	// before the reading goroutine waits for more.
	block  *[64 << 10]byte // nil: nothing was read ahead
	unread []byte          // the part of block that TLS has not read

	mu        sync.Mutex // TLS also writes while it reads, to change keys
	gathering bool       // records wait for further ones
	batch     *[batchBytes + 4<<10]byte
	pending   []byte // not taken by the socket yet; usually within batch
}

func (c *ciphertext) Read(p []byte) (int, error) {
	if len(c.unread) == 0 {
		if c.block == nil {
			c.block = buffers.Get().(*[64 << 10]byte)
		}
		n, err := c.pollable.TryRead(c.block[:])
		if n <= 0 {
			buffers.Put(c.block)
			c.block, c.unread = nil, nil // an empty slice, too, would keep the block
			if err == nil {
				err = io.EOF
			}
			return 0, err
		}
		c.unread = c.block[:n]
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// batches are buffers for a batch of records with their overhead.
var batches = sync.Pool{New: func() any { return new([batchBytes + 4<<10]byte) }}

func (c *ciphertext) Write(p []byte) (int, error) {
	const most = 2 * batchBytes // a batch, and records that TLS writes by itself
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	if len(c.pending) == 0 && !c.gathering {
		var err error
		if n, err = c.pollable.TryWrite([][]byte{p}); err != nil || n == len(p) {
			return n, err
		}
	}
	if len(c.pending)+len(p)-n > most {
		return n, fmt.Errorf("tcp: the client makes TLS send records without reading them: %d bytes are unsent",
			len(c.pending))
	}
	if c.batch == nil {
		c.batch = batches.Get().(*[batchBytes + 4<<10]byte)
		c.pending = c.batch[:0]
	}
	c.pending = append(c.pending, p[n:]...)
	return len(p), nil
}

// gather starts or stops gathering: records that are written wait for flush.
func (c *ciphertext) gather(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gathering = on
}

// flush writes the pending records. It reports whether the socket is full.
func (c *ciphertext) flush() (full bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return false, nil
	}
	n, err := c.pollable.TryWrite([][]byte{c.pending})
	if c.pending = c.pending[n:]; len(c.pending) == 0 {
		batches.Put(c.batch)
		c.batch, c.pending = nil, nil
	}
	return len(c.pending) > 0, err
}
