package grpc

import (
	"bytes"
	"encoding/binary"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

const (
	frameHead  = 9             // length, type, flags, stream
	resetBytes = frameHead + 4 // and a code
	typeOffset = 3             // of the type in the head
)

// frames tells the frames of HTTP/2 apart in bytes that come in pieces.
type frames struct {
	left int    // bytes of a frame, or of the greeting, that are still to come
	held []byte // the beginning of a frame, too short to tell what it is
}

// resume returns b with what was held before it.
func (f *frames) resume(b []byte) []byte {
	if len(f.held) > 0 {
		b = append(f.held, b...)
		f.held = nil
	}
	return b
}

// next returns how many bytes of b are of one frame, and whether it begins there: with the whole
// head and, of a reset, the code. It holds b and returns 0 if that is too short.
func (f *frames) next(b []byte) (n int, begins bool) {
	if f.left == 0 {
		if len(b) < frameHead || isReset(b) && len(b) < resetBytes {
			f.held = bytes.Clone(b)
			return 0, false
		}
		f.left, begins = frameHead+int(binary.BigEndian.Uint32(b)>>8), true
	}
	n = min(f.left, len(b))
	f.left -= n
	return n, begins
}

func typeOf(frame []byte) http2.FrameType { return http2.FrameType(frame[typeOffset]) }

func isReset(frame []byte) bool { return typeOf(frame) == http2.FrameRSTStream }

// isChore reports whether a frame belongs to no call in particular, or goes on with headers: a
// client needs few of them, and can have the server busy with nothing else. Updates of windows are
// not among them, which a client sends as it reads answers.
func isChore(frame []byte) bool {
	switch typeOf(frame) {
	case http2.FrameData, http2.FrameHeaders, http2.FrameRSTStream, http2.FrameWindowUpdate:
		return false
	}
	return true
}

// isCalm reports whether a frame tells the peer to stop flooding.
func isCalm(frame []byte) bool {
	return typeOf(frame) == http2.FrameGoAway && len(frame) >= frameHead+8 &&
		http2.ErrCode(binary.BigEndian.Uint32(frame[frameHead+4:])) == http2.ErrCodeEnhanceYourCalm
}

// count counts the resets of streams, and the chores, that begin in b.
func (f *frames) count(b []byte) (resets, chores int) {
	for b = f.resume(b); len(b) > 0; {
		n, begins := f.next(b)
		switch {
		case n == 0:
			return resets, chores
		case begins && isReset(b):
			resets++
		case begins && isChore(b):
			chores++
		}
		b = b[n:]
	}
	return resets, chores
}

// An uncanceled connection drops some of the frames that are written to it.
//
// When a call's deadline passes, grpc-go resets its stream with the code CANCEL. Its timer
// overtakes about half of the statuses that our calls end with, and a client whose clock is a
// little behind, or is read a little late, reports that reset as CANCELLED. The reset carries no
// information, since each side of a call watches the deadline itself: it is dropped, and the client
// reads our status or its own clock, both of which mean DEADLINE_EXCEEDED. Sending the status some
// milliseconds early was not enough on a busy machine. grpc-go resets streams with CANCEL for no
// other reason.
type uncanceled struct {
	net.Conn
	moved atomic.Int64 // when the network last took something of an answer, in Unix nanoseconds

	mu sync.Mutex // grpc-go has one goroutine that writes, and goAway comes from another
	frames
	calm  atomic.Bool // the client was told to stop flooding
	data  bool        // the frame has data
	moves bool        // some of it is in what is being written
	last  bool        // nothing is written any more
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
	b = u.resume(b)
	from, at := 0, 0 // b[from:at] is to be written
	for at < len(b) {
		frame := b[at:]
		n, begins := u.next(frame)
		if n == 0 {
			b = b[:at]
			break
		}
		if begins {
			u.data = typeOf(frame) == http2.FrameData
			if isCalm(frame) {
				u.calm.Store(true)
			}
		}
		if begins && isReset(frame) && http2.ErrCode(binary.BigEndian.Uint32(frame[frameHead:])) == http2.ErrCodeCancel {
			if err := u.write(b[from:at]); err != nil {
				return 0, err
			}
			from = at + n
		}
		u.moves = u.moves || u.data
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
	if u.moves {
		u.moved.Store(time.Now().UnixNano())
		u.moves = false
	}
	return err
}
