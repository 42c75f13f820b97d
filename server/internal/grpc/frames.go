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
	frameHead  = 9 // length, type, flags, stream
	wordBytes  = 4 // the whole payload of a reset, its code, and of a window update, its increment
	typeOffset = 3 // of the type within the head
	flagOffset = 4
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
// its whole head and, for a reset or a window update, its word. If b is too short for that, it is
// held, and n is 0.
func (f *frames) next(b []byte) (n int, begins bool) {
	if f.left == 0 {
		if len(b) < frameHead || hasWord(b) && len(b) < frameHead+wordBytes {
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

// hasWord reports whether a frame's payload is one word.
func hasWord(frame []byte) bool { return isReset(frame) || typeOf(frame) == http2.FrameWindowUpdate }

// wordOf returns the word of a reset or a window update.
func wordOf(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[frameHead:]) }

func codeOf(reset []byte) http2.ErrCode { return http2.ErrCode(wordOf(reset)) }

// smallData is the size below which data costs more than its bytes do. Data frames of clients are
// larger, except the last one of a message.
const smallData = 64

// choresOf returns how many chores a frame is. Frames are chores that belong to no call, continue
// headers, or bring a call hardly any data. A client needs few of them, and could keep the server
// busy with nothing else. Each setting is one, because it may concern all calls.
func choresOf(frame []byte) int {
	size := int(binary.BigEndian.Uint32(frame) >> 8)
	switch typeOf(frame) {
	case http2.FrameHeaders, http2.FrameRSTStream:
		return 0
	case http2.FrameData:
		if size >= smallData || http2.Flags(frame[flagOffset]).Has(http2.FlagDataEndStream) {
			return 0
		}
	case http2.FrameSettings:
		const settingBytes = 6
		return 1 + size/settingBytes
	}
	return 1
}

// isWrong reports whether a frame is one that only a broken or hostile client sends and for which
// grpc-go would end a call alone, as a client that cancels does: a window update of 0. (An update
// beyond the largest window, the other such frame, ends nothing in grpc-go and changes only what
// the client itself is sent.)
func isWrong(frame []byte) bool {
	const reserved = 1 << 31
	return typeOf(frame) == http2.FrameWindowUpdate && wordOf(frame)&^reserved == 0
}

// isCalm reports whether a frame is a GOAWAY that tells the peer to stop flooding.
func isCalm(frame []byte) bool {
	return typeOf(frame) == http2.FrameGoAway && len(frame) >= frameHead+8 &&
		http2.ErrCode(binary.BigEndian.Uint32(frame[frameHead+4:])) == http2.ErrCodeEnhanceYourCalm
}

// An inspection is what the frames that begin in some bytes are.
type inspection struct {
	resets, chores int
	wrong          bool // see isWrong; nothing after that frame has been looked at
}

// inspect looks at the frames that begin in b.
func (f *frames) inspect(b []byte) (seen inspection) {
	for b = f.resume(b); len(b) > 0; {
		n, begins := f.next(b)
		switch {
		case n == 0:
			return seen
		case !begins:
		case isWrong(b):
			seen.wrong = true
			return seen
		case isReset(b):
			seen.resets++
		default:
			seen.chores += choresOf(b)
		}
		b = b[n:]
	}
	return seen
}

// A cancelFilter is a connection that drops some of the frames that are written to it.
//
// When a call's deadline passes, grpc-go resets its stream with the code CANCEL. Its timer
// overtakes about half of the statuses with which the door ends such calls, and a client whose
// clock is a little behind, or is read a little late, reports that reset as CANCELLED. The reset
// carries no information, since each side of a call watches the deadline itself. So it is dropped,
// and the client reads the status or its own clock, both of which mean DEADLINE_EXCEEDED. Sending
// the status some milliseconds early was not enough on a busy machine. grpc-go resets streams with
// CANCEL for no other reason.
//
// It also counts the resets for which the client is to blame: a call that they end was begun for
// nothing, as if the client had cancelled it.
type cancelFilter struct {
	net.Conn
	moved atomic.Int64 // when the network last took part of an answer, in Unix nanoseconds
	// Since the connection's reader last looked:
	provoked atomic.Int32 // resets for which the client is to blame
	sent     atomic.Int32 // data frames
	wrong    atomic.Bool  // one of those resets answers what only a broken or hostile client does

	mu sync.Mutex // grpc-go writes on one goroutine, and goAway on another
	frames
	calm  atomic.Bool // the client was told to stop flooding
	data  bool        // the current frame is a data frame
	moves bool        // the bytes to write include some of one
	last  bool        // nothing more may be written
}

// goAway sends a GOAWAY, if the socket takes it at once, and ends writing.
func (u *cancelFilter) goAway(code http2.ErrCode) {
	const soon = 10 * time.Millisecond // a socket with room takes it at once
	// The reader may be here while the write goes on that told it to be, see begin. A write that
	// waits for room ends by the deadline.
	_ = u.SetWriteDeadline(time.Now().Add(soon))
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last = true; u.left > 0 || len(u.held) > 0 {
		return
	}
	_ = http2.NewFramer(u.Conn, nil).WriteGoAway(math.MaxInt32, code, nil)
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
			u.begin(frame)
		}
		if begins && isReset(frame) && codeOf(frame) == http2.ErrCodeCancel {
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

// begin notes a frame that is to be written.
func (u *cancelFilter) begin(frame []byte) {
	u.data = typeOf(frame) == http2.FrameData
	switch {
	case u.data:
		u.sent.Add(1)
	case isCalm(frame):
		u.calm.Store(true)
	case isReset(frame):
		switch codeOf(frame) {
		case http2.ErrCodeNo, http2.ErrCodeCancel: // answered before its end; its deadline
		case http2.ErrCodeStreamClosed, http2.ErrCodeFlowControl:
			u.wrong.Store(true)
			_ = u.SetReadDeadline(time.Unix(1, 0)) // the reader may be waiting
		default:
			u.provoked.Add(1)
		}
	}
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
