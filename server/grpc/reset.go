package grpc

import (
	"encoding/binary"
	"net"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
)

// When a call's deadline passes, grpc-go resets its stream with the code CANCEL, by a timer of its own that overtakes about half of the
// statuses that our calls end with. A client whose clock is a little behind, or is read a little late, reports that reset as
// CANCELLED. Each side of a call is to find its deadline passed by itself, so the reset tells nobody anything: withoutCancel
// leaves it out, and the client reads our status or its own clock, which both say DEADLINE_EXCEEDED. To send the status some
// milliseconds early was not enough on a busy machine. grpc-go resets streams with CANCEL for no other reason.
type withoutCancel struct {
	credentials.TransportCredentials
}

// ServerHandshake gives a connection that leaves the resets out. It is done here, above what encrypts.
func (w withoutCancel) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return &uncanceled{Conn: conn}, info, nil
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

// An uncanceled connection follows the frames of HTTP/2 that it is given to write. Only one goroutine writes, as grpc-go's do.
type uncanceled struct {
	net.Conn
	left int    // bytes of a frame that are still to come
	held []byte // the beginning of a frame, too short to tell what it is
}

func (u *uncanceled) Write(b []byte) (int, error) {
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
		}
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
	return err
}
