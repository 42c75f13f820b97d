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
	resetBytes = frameHead + 4 // plus the error code
	typeOffset = 3             // of the type within the head
)

// frames finds the frames of HTTP/2 in bytes that arrive in pieces.
type frames struct {
	left int    // bytes of a frame, or of the client's preface, that are still to come
	held []byte // the beginning of a frame, too short to tell its type
}

// resume returns b with the held bytes before it.
func (f *frames) resume(b []byte) []byte {
	if len(f.held) > 0 {
		b = append(f.held, b...)
		f.held = nil
	}
	return b
}

// next returns how many bytes of b belong to one frame, and whether the frame begins there: with
// its whole head and, for a reset, the code. If b is too short for that, it is held, and n is 0.
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

// isChore reports whether a frame belongs to no call in particular, or continues headers: a client
// needs few such frames, and could keep the server busy with nothing else. Window updates are no
// chores, as a client sends them while it reads answers.
func isChore(frame []byte) bool {
	switch typeOf(frame) {
	case http2.FrameData, http2.FrameHeaders, http2.FrameRSTStream, http2.FrameWindowUpdate:
		return false
	}
	return true
}

// isCalm reports whether a frame is a GOAWAY that tells the peer to stop flooding.
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

// An cancelFilter is a connection that drops some of the frames that are written to it.
//
// When a call's deadline passes, grpc-go resets its stream with the code CANCEL. Its timer
// overtakes about half of the statuses with which the door ends such calls, and a client whose
// clock is a little behind, or is read a little late, reports that reset as CANCELLED. The reset
// carries no information, since each side of a call watches the deadline itself. So it is dropped,
// and the client reads the status or its own clock, both of which mean DEADLINE_EXCEEDED. Sending
// the status some milliseconds early was not enough on a busy machine. grpc-go resets streams with
// CANCEL for no other reason.
type cancelFilter struct {
	net.Conn
	moved atomic.Int64 // when the network last took part of an answer, in Unix nanoseconds

	mu sync.Mutex // grpc-go writes on one goroutine, and goAway on another
	frames
	calm  atomic.Bool // the client was told to stop flooding
	data  bool        // the current frame is a data frame
	moves bool        // the bytes to write include some of one
	last  bool        // nothing more may be written
}

// goAway sends a GOAWAY, if the socket takes it at once, and ends writing.
func (u *cancelFilter) goAway() {
	const soon = 10 * time.Millisecond // a socket with room takes it at once
	if !u.mu.TryLock() {
		return // another goroutine is writing: the socket is full
	}
	defer u.mu.Unlock()
	if u.last = true; u.left > 0 || len(u.held) > 0 {
		return
	}
	_ = u.SetWriteDeadline(time.Now().Add(soon))
	_ = http2.NewFramer(u.Conn, nil).WriteGoAway(math.MaxInt32, http2.ErrCodeEnhanceYourCalm, nil)
}

func (u *cancelFilter) Write(b []byte) (int, error) {
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

func (u *cancelFilter) write(b []byte) error {
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
