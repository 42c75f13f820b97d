package grpc

import (
	"encoding/binary"
	"math"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
)

// When a call's deadline passes, grpc-go resets its stream with the code CANCEL. Its timer
// overtakes about half of the statuses that our calls end with, and a client whose clock is a
// little behind, or is read a little late, reports that reset as CANCELLED. The reset carries no
// information, since each side of a call watches the deadline itself: withoutCancel drops it, and
// the client reads our status or its own clock, both of which mean DEADLINE_EXCEEDED. Sending the
// status some milliseconds early was not enough on a busy machine. grpc-go resets streams with
// CANCEL for no other reason.
type withoutCancel struct {
	credentials.TransportCredentials
}

// ServerHandshake returns a connection that drops the resets. It is done here, above encryption.
func (w withoutCancel) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	u := &uncanceled{Conn: conn, socket: raw.(*socket), in: inbound{left: len(http2.ClientPreface)}}
	u.socket.frames.Store(u)
	return u, info, nil
}

func (w withoutCancel) Clone() credentials.TransportCredentials {
	return withoutCancel{w.TransportCredentials.Clone()}
}

const (
	frameHead  = 9             // length, type, flags, stream
	resetBytes = frameHead + 4 // and a code
	typeOffset = 3             // of the type in the head
	lengthMask = 1<<24 - 1     // of the length in the head's first bytes
)

// An uncanceled connection parses the frames of HTTP/2 that are written to it.
type uncanceled struct {
	net.Conn
	socket *socket // which learns when answers move; nil in tests

	mu    sync.Mutex // grpc-go has one goroutine that writes, and goAway comes from another
	left  int        // bytes of a frame that are still to come
	held  []byte     // the beginning of a frame, too short to tell what it is
	data  bool       // the frame has data
	moves bool       // some of it is in what is being written
	last  bool       // nothing is written any more

	in inbound
}

// Read counts the resets among the frames that it reads, and reads no faster than the connection's
// account of cancellations allows.
func (u *uncanceled) Read(b []byte) (int, error) {
	if u.socket != nil {
		if c := u.socket.conn.Load(); c != nil {
			b = b[:c.pause(len(b))]
		}
	}
	n, err := u.Conn.Read(b)
	if resets := u.in.resets(b[:n]); resets > 0 && u.socket != nil {
		if c := u.socket.conn.Load(); c != nil {
			now := time.Now()
			for range resets {
				if c.cancels.reset(now) {
					c.door.sendAway(c, now)
				}
			}
		}
	}
	return n, err
}

// inbound parses the frames that a client sends.
type inbound struct {
	left int // bytes of a frame, or of the greeting, that are still to come
	head [frameHead]byte
	have int // bytes of the next head
}

// resets counts those that begin in b.
func (f *inbound) resets(b []byte) (n int) {
	for len(b) > 0 {
		if skip := min(f.left, len(b)); skip > 0 {
			f.left -= skip
			b = b[skip:]
			continue
		}
		took := copy(f.head[f.have:], b)
		f.have += took
		if b = b[took:]; f.have < frameHead {
			return n
		}
		f.have = 0
		f.left = int(binary.BigEndian.Uint32(f.head[:]) >> 8)
		if http2.FrameType(f.head[typeOffset]) == http2.FrameRSTStream {
			n++
		}
	}
	return n
}

// goAway sends a GOAWAY, if the socket takes it at once, and ends the writing.
func (u *uncanceled) goAway() {
	const soon = 10 * time.Millisecond // an empty socket takes it at once
	if !u.mu.TryLock() {
		return // the socket is full
	}
	defer u.mu.Unlock()
	if u.last = true; u.left > 0 || len(u.held) > 0 {
		return
	}
	_ = u.SetWriteDeadline(time.Now().Add(soon))
	_ = http2.NewFramer(u.Conn, nil).WriteGoAway(math.MaxInt32, http2.ErrCodeEnhanceYourCalm, nil)
}

func (u *uncanceled) Write(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last {
		return 0, net.ErrClosed
	}
	size := len(b)
	if len(u.held) > 0 {
		b = append(u.held, b...)
		u.held = nil
	}
	from, at := 0, 0 // b[from:at] is to be written
	for at < len(b) {
		if u.left == 0 {
			frame := b[at:]
			reset := len(frame) > typeOffset && http2.FrameType(frame[typeOffset]) == http2.FrameRSTStream
			if len(frame) < frameHead || reset && len(frame) < resetBytes {
				u.held = append([]byte(nil), frame...)
				b = b[:at]
				break
			}
			if reset && http2.ErrCode(binary.BigEndian.Uint32(frame[frameHead:])) == http2.ErrCodeCancel {
				if err := u.write(b[from:at]); err != nil {
					return 0, err
				}
				at += resetBytes
				from = at
				continue
			}
			u.left = frameHead + int(binary.BigEndian.Uint32(frame)>>8&lengthMask)
			u.data = http2.FrameType(frame[typeOffset]) == http2.FrameData
		}
		u.moves = u.moves || u.data
		n := min(u.left, len(b)-at)
		u.left -= n
		at += n
	}
	if err := u.write(b[from:]); err != nil {
		return 0, err
	}
	return size, nil
}

func (u *uncanceled) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := u.Conn.Write(b)
	if u.moves && u.socket != nil {
		u.socket.moved.Store(time.Now().UnixNano())
		u.moves = false
	}
	return err
}
