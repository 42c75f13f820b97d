package grpc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/internal/wire"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/intake"
)

// A limit is the largest message of a kind, and how its setting is called.
type limit struct {
	bytes   int // of the setting
	margin  int // for what is in a message beside what the setting is about
	setting string
}

func (l limit) exceeded(n int64) error {
	return fmt.Errorf("%w: the message has %d bytes, above %s, %d", scheduler.ErrTooLarge, n, l.setting, l.bytes)
}

// receive reads one message, of which read gets the scanner. It returns io.EOF if there is
// none. The door's settings are those of when it begins, and limitOf gives its limit by them.
//
// A message that has begun must be complete after MessageTimeout and a second more for each 16 KiB.
//
// After an error in a message the rest of it is still to come, and the call can only end; but
// with resume it is passed over, and resumed tells whether the next message can be received.
func (d *Door) receive(w wire.Stream, limitOf func(*Settings) limit, resume bool, read func(*scanner)) (resumed bool, err error) {
	var header [5]byte
	if err := w.ReadMessageHeader(header[:]); err != nil {
		if err == io.EOF {
			return false, err
		}
		return false, fmt.Errorf("%w (%w)", lost(err), errNothing)
	}
	settings := d.settings.Load()
	l := limitOf(settings)
	size := int64(binary.BigEndian.Uint32(header[1:]))
	if size > int64(l.bytes+l.margin) {
		return false, l.exceeded(size)
	}
	if settings.MessageTimeout > 0 {
		allowed := intake.Allowance(settings.MessageTimeout, size)
		var late atomic.Bool
		timer := time.AfterFunc(allowed, func() {
			late.Store(true)
			_ = w.WriteStatus(statusOf(errLate(allowed)))
		})
		defer func() {
			if timer.Stop(); err != nil && late.Load() {
				resumed, err = false, errLate(allowed)
			}
		}()
	}
	in := &pieces{wire: w, left: int(size)}
	defer in.free()
	s := &scanner{source: in, end: int(size), limit: l, settings: settings}
	switch header[0] {
	case 0:
	case 1:
		u, err := unpack(w.RecvCompress(), in, l, &settings.Memory)
		if err != nil {
			return false, err
		}
		defer u.free()
		s.source = u
		s.end, s.open = l.bytes+l.margin, true
	default:
		return false, fmt.Errorf("%w: a message with flags %#x, expected 0 or 1", gate.ErrProtocol, header[0])
	}
	read(s)
	if s.err == nil || !resume {
		return s.err == nil, s.err
	}
	for {
		if _, err := in.next(); err != nil {
			return err == io.EOF, s.err
		}
	}
}

// errNothing marks the end of a call of which nothing more was asked.
var errNothing = errors.New("between two messages")

// lost is the error of the transport as one of the table's.
func lost(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: the message ends before its announced length", gate.ErrProtocol)
	}
	return fmt.Errorf("%w: %w", scheduler.ErrCanceled, err)
}

func errLate(allowed time.Duration) error {
	return fmt.Errorf("%w: the message was not complete after %v (grpc.message_timeout, and a second for each 16 KiB)", scheduler.ErrDeadlineExceeded, allowed)
}

// Bytes are taken from the transport a quarter of what is left at a time, within these bounds:
// enough for the memory of a tensor of up to 7 MiB to be taken at once (see store), and no more
// than a megabyte in memory that nobody counts.
const (
	minPiece = 16 << 10
	maxPiece = 1 << 20
)

// pieces are the bytes of a message as they lie in the transport's frames.
type pieces struct {
	wire   wire.Stream
	left   int             // bytes not asked for yet
	came   int64           // bytes that were asked for and came
	frames mem.BufferSlice // what came and was not given yet; the first is what was given last
	given  bool            // frames[0] was given
	hand   int             // bytes in frames that were not given
	err    error
}

func (p *pieces) next() ([]byte, error) {
	if p.given {
		p.frames[0].Free()
		p.frames = p.frames[1:]
		p.given = false
	}
	for len(p.frames) == 0 {
		if p.err != nil {
			return nil, p.err
		}
		if p.left == 0 {
			return nil, io.EOF
		}
		n := min(p.left, max(minPiece, min(p.left/4, maxPiece)))
		if p.frames, p.err = p.wire.Read(n); p.err != nil {
			p.err = lost(p.err)
			return nil, p.err
		}
		p.left -= n
		p.came += int64(n)
		p.hand = n
	}
	data := p.frames[0].ReadOnlyData()
	p.given = true
	p.hand -= len(data)
	return data, nil
}

func (p *pieces) atHand() int { return p.hand }

func (p *pieces) free() {
	p.frames.Free()
	p.frames = nil
}
