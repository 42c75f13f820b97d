package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// recordBytes is the plaintext of a record of TLS, at most.
const recordBytes = 16 << 10

// An encrypted medium is TLS on a pollable. crypto/tls is written for connections that wait; that
// it may be read without waiting is by its rule that a read which fails with a temporary error, as
// EAGAIN is, may be repeated. It has no such rule for writing, so what it writes always succeeds:
// what the socket does not take of a record waits in the cipher. The bytes of that record count as
// taken only when the socket has all of it. So a session knows of each answer whether it has left,
// and one that stands still holds one record.
type encrypted struct {
	tls    *tls.Conn
	cipher *ciphertext
	ahead  int // bytes of what the next write begins with whose record is in the cipher
}

func (e *encrypted) TryRead(p []byte) (n int, err error) {
	for n < len(p) && err == nil { // a record at a time
		var more int
		more, err = e.tls.Read(p[n:])
		n += more
	}
	switch {
	case n > 0: // an error that lasts comes again
		return n, nil
	// With close_notify, or without.
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, nil
	}
	return 0, err
}

func (e *encrypted) TryWrite(vecs [][]byte) (n int, err error) {
	var block *[64 << 10]byte
	for left := size(vecs); ; {
		if full, err := e.cipher.flush(); err != nil || full {
			return n, err
		}
		n += e.ahead
		left -= e.ahead
		for skip := e.ahead; skip > 0; {
			k := min(skip, len(vecs[0]))
			skip -= k
			if vecs[0] = vecs[0][k:]; len(vecs[0]) == 0 {
				vecs = vecs[1:]
			}
		}
		if e.ahead = 0; left == 0 {
			return n, nil
		}
		for len(vecs[0]) == 0 {
			vecs = vecs[1:]
		}
		record := vecs[0][:min(len(vecs[0]), recordBytes)]
		if len(record) < min(left, recordBytes) { // several parts make one record
			if block == nil {
				block = buffers.Get().(*[64 << 10]byte)
				defer buffers.Put(block)
			}
			record = block[:0]
			for _, v := range vecs {
				record = append(record, v[:min(len(v), recordBytes-len(record))]...)
			}
		}
		e.ahead = len(record)
		if _, err := e.tls.Write(record); err != nil {
			return n, err
		}
	}
}

func (e *encrypted) CloseWrite() error {
	_ = e.tls.CloseWrite()
	_, _ = e.cipher.flush()
	return e.cipher.below.CloseWrite()
}

// A ciphertext is the pollable as TLS sees it: reading it does not wait, and writing it always
// succeeds.
type ciphertext struct {
	net.Conn // for all else
	below    pollable

	mu      sync.Mutex // TLS itself writes when it reads, as to change keys
	pending []byte     // that the socket has not taken
}

func (c *ciphertext) Read(p []byte) (int, error) {
	n, err := c.below.TryRead(p)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *ciphertext) Write(p []byte) (int, error) {
	const most = 4 * recordBytes // a record, and what TLS writes by itself
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	if len(c.pending) == 0 {
		var err error
		if n, err = c.below.TryWrite([][]byte{p}); err != nil {
			return n, err
		}
	}
	if len(c.pending)+len(p)-n > most {
		return n, fmt.Errorf("tcp: the client has TLS write without reading what it writes: %d bytes wait", len(c.pending))
	}
	c.pending = append(c.pending, p[n:]...)
	return len(p), nil
}

// flush writes what is pending. It reports whether the socket is full.
func (c *ciphertext) flush() (full bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return false, nil
	}
	n, err := c.below.TryWrite([][]byte{c.pending})
	if c.pending = c.pending[n:]; len(c.pending) == 0 {
		c.pending = nil
	}
	return len(c.pending) > 0, err
}
