package zmtp

import (
	"fmt"
	"io"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

// A Frame is one part of a message. Data lives as long as the message, or as long as a
// reference to Buf, which owns it, is held. Buf may be shared with other frames; a nil Buf
// means that Data is empty.
type Frame struct {
	Data []byte
	Buf  *tensor.Buffer
}

// A Message is one received multipart message. Its zero value is ready for Receive, and it can be
// reused: its tables are not allocated anew for the next message.
type Message struct {
	Frames []Frame
	Began  time.Time // when the first of its bytes were read
	// Refused is the error of the pool, or of Grant, when there was no memory for some frames.
	// Those have nil Data; the message has been read to its end, and the connection continues.
	// Frames of up to 1 KiB are refused by Grant only.
	Refused error

	owned []*tensor.Buffer // one reference each
	arena *tensor.Buffer   // where small frames go; one of owned
	used  int              // bytes used of arena
	held  int64            // bytes of owned
}

// Release releases the message's memory. Frames whose Buf was retained live on.
func (m *Message) Release() {
	for i, b := range m.owned {
		b.Release()
		m.owned[i] = nil
	}
	clear(m.Frames)
	*m = Message{Frames: m.Frames[:0], owned: m.owned[:0]}
}

const (
	// Frames up to smallFrame bytes share arenas of arenaSize: kinds, ids, headers and short
	// tensors cost no buffer each, and one that is retained holds no more than an arena.
	smallFrame = 1 << 10
	arenaSize  = 4 << 10
)

// alloc returns a frame of at most smallFrame bytes that lives with the message.
func (m *Message) alloc(pool *tensor.Pool, n int) Frame {
	if n == 0 {
		return Frame{}
	}
	if m.arena == nil || m.used+n > arenaSize {
		b, err := pool.Get(arenaSize)
		if err != nil {
			// Never refused: a heartbeat without memory would end the session, and a busy server
			// would lose its containers. One arena for each message needs no budget.
			b, _ = (*tensor.Pool)(nil).Get(arenaSize)
		}
		m.owned = append(m.owned, b)
		m.arena, m.used = b, 0
		m.held += arenaSize
	}
	lo := m.used
	m.used += (n + 7) &^ 7 // the next frame may be read as 8-byte numbers
	return Frame{Data: m.arena.Bytes()[lo : lo+n : lo+n], Buf: m.arena}
}

// Receive waits for the next message and puts it into m, whose former contents must have been
// released. Meanwhile it answers PINGs; of several in one read, only the last. It returns io.EOF
// when the peer closed between two messages. On any error m is empty and the connection has ended:
// Receive returns the same error again, and only Close is left to call.
func (c *Conn) Receive(m *Message) error {
	if c.inErr == nil {
		c.inErr = c.receive(m)
		c.begun.Store(0)
		if c.inErr != nil {
			c.inErr = c.out.reason(c.inErr)
		}
	}
	if c.inErr != nil {
		m.Release()
	}
	return c.inErr
}

func (c *Conn) receive(m *Message) error {
	var total uint64
	for {
		h, err := c.header(len(m.Frames) > 0)
		if err != nil {
			return err
		}
		if h.command() {
			if len(m.Frames) > 0 {
				return protocolError("command inside a message")
			}
			if err := c.command(h.size); err != nil {
				return err
			}
			continue
		}
		if len(m.Frames) == 0 {
			c.arrived.Store(int64(c.hi - c.lo))
			// Not the bytes' arrival: they may have waited for the caller.
			m.Began = time.Now()
			c.begun.Store(int64(max(1, m.Began.Sub(c.start))))
		}
		// Both sums are checked before memory is taken, and neither can overflow: size is checked
		// alone first.
		if limit := uint64(c.limits.MessageBytes); h.size > limit || total+h.size > limit {
			return fmt.Errorf("%w: frame %d of %d bytes after %d, limit %d for a message",
				ErrTooLarge, len(m.Frames), h.size, total, limit)
		}
		if len(m.Frames) >= c.limits.Frames {
			return fmt.Errorf("%w: more than %d frames", ErrTooLarge, c.limits.Frames)
		}
		total += h.size
		f, err := c.body(m, int(h.size), int64(total))
		if err != nil {
			return unexpected(err)
		}
		m.Frames = append(m.Frames, f)
		if !h.more() {
			return nil
		}
	}
}

// header reads the next frame header.
func (c *Conn) header(inside bool) (header, error) {
	for {
		h, n, err := parseHeader(c.in[c.lo:c.hi])
		if err != nil {
			return header{}, err
		}
		if n > 0 {
			c.lo += n
			return h, nil
		}
		clean := !inside && c.lo == c.hi
		if err := c.fill(); err != nil {
			if !clean {
				err = unexpected(err)
			}
			return header{}, err
		}
	}
}

// unexpected turns io.EOF within a message into its error; other errors stay.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fill adds the bytes of one read to the read buffer.
func (c *Conn) fill() error {
	if c.lo == c.hi {
		c.lo, c.hi = 0, 0
	} else if c.hi == len(c.in) {
		c.hi = copy(c.in, c.in[c.lo:c.hi])
		c.lo = 0
	}
	n, err := c.read(c.in[c.hi:])
	c.hi += n
	return err
}

// body reads a frame's n bytes into memory of m, which grows as they arrive if they are many. whole
// is what the frames of m have announced so far. When memory is refused it sets m.Refused and drops
// the bytes.
func (c *Conn) body(m *Message, n int, whole int64) (Frame, error) {
	if n <= smallFrame && c.grant == nil {
		f := m.alloc(c.pool, n)
		return f, c.readFull(f.Data)
	}
	if m.Refused != nil {
		return Frame{}, c.discard(n)
	}
	if n <= smallFrame {
		if m.Refused = c.grant(m.held+arenaSize, whole); m.Refused != nil {
			return Frame{}, c.discard(n)
		}
		f := m.alloc(c.pool, n)
		return f, c.readFull(f.Data)
	}
	var b *tensor.Buffer
	held := m.held // without this frame
	for have := 0; have < n; {
		size := tensor.Stage(min(have+max(c.hi-c.lo, 1), n), n, tensor.StageFactor)
		larger, err := c.grown(b, have, size, held, whole)
		if err != nil {
			b.Release()
			m.Refused, m.held = err, held
			return Frame{}, c.discard(n - have)
		}
		b, m.held = larger, held+int64(size)
		if err := c.readFull(b.Bytes()[have:]); err != nil {
			b.Release()
			return Frame{}, err
		}
		have = size
	}
	m.owned = append(m.owned, b)
	return Frame{Data: b.Bytes(), Buf: b}, nil
}

// grown is Pool.Grow, if Grant agrees that the message holds size bytes more than held.
func (c *Conn) grown(b *tensor.Buffer, have, size int, held, whole int64) (*tensor.Buffer, error) {
	if c.grant != nil {
		if err := c.grant(held+int64(size), whole); err != nil {
			return nil, err
		}
	}
	return c.pool.Grow(b, have, size)
}

// readFull fills p, first from the read buffer and then from the socket.
func (c *Conn) readFull(p []byte) error {
	n := copy(p, c.in[c.lo:c.hi])
	c.lo += n
	for p = p[n:]; len(p) > 0; {
		// A short rest goes through the read buffer: the same system call also reads the bytes
		// after it.
		if len(p) < len(c.in)/4 {
			if err := c.fill(); err != nil {
				return err
			}
			n = copy(p, c.in[c.lo:c.hi])
			c.lo += n
		} else {
			var err error
			if n, err = c.read(p); err != nil {
				return err
			}
		}
		p = p[n:]
	}
	return nil
}

// discard reads n bytes and drops them.
func (c *Conn) discard(n int) error {
	for {
		have := min(n, c.hi-c.lo)
		c.lo += have
		if n -= have; n == 0 {
			return nil
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// command reads and executes a command frame of the given size.
func (c *Conn) command(size uint64) error {
	if size > maxCommandBytes {
		return fmt.Errorf("%w: command of %d bytes, limit %d", ErrTooLarge, size, maxCommandBytes)
	}
	for c.hi-c.lo < int(size) { // the read buffer is much larger than any command
		if err := c.fill(); err != nil {
			return unexpected(err)
		}
	}
	body := c.in[c.lo : c.lo+int(size)]
	c.lo += int(size)
	name, rest, err := splitCommand(body)
	if err != nil {
		return err
	}
	switch string(name) {
	case "PING": // time to live (2), context (0..16)
		if len(rest) < 2 || len(rest) > 2+maxPingContext {
			return protocolError("PING with a body of %d bytes", len(rest))
		}
		c.pinged, c.context = true, append(c.context[:0], rest[2:]...)
	case "ERROR":
		return peerError(rest)
	}
	// The arrival of a PONG is all that counts. Other commands are for other socket types.
	return nil
}
