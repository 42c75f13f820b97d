package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/unfinished"
)

// A Transport is grpc-go's side of a call. Its methods are those of a type internal to grpc-go.
type Transport interface {
	ReadMessageHeader(header []byte) error // all of header, or io.EOF where no message begins
	Read(n int) (mem.BufferSlice, error)   // n bytes, which the caller frees
	RecvCompress() string                  // grpc-encoding
	WriteStatus(*status.Status) error      // ends the call, and a Read that waits
}

// A Stream gives the messages of a call. Receive belongs to one goroutine; any goroutine may call
// End.
type Stream struct {
	transport Transport
	status    func(error) *status.Status
}

// Of returns the stream of a call, given the context of the call's handler. status maps errors to
// the wire. Of fails with a version of grpc-go whose type lacks a method.
func Of(ctx context.Context, status func(error) *status.Status) (*Stream, error) {
	if t, ok := grpc.ServerTransportStreamFromContext(ctx).(Transport); ok {
		return New(t, status), nil
	}
	return nil, fmt.Errorf("wire: grpc-go %s does not let messages be read in pieces", grpc.Version)
}

// New returns the stream over a transport.
func New(t Transport, status func(error) *status.Status) *Stream { return &Stream{t, status} }

// EndMessage ends the call for want of memory, see [unfinished.Reader].
func (s *Stream) EndMessage(why error) { s.End(why) }

// End ends the call, and a Receive that waits, with an error.
func (s *Stream) End(err error) { _ = s.transport.WriteStatus(s.status(err)) }

// Bounds are what a message may take.
type Bounds struct {
	Bytes   int    // of the message, as it arrives and unpacked
	Setting string // the name of the setting behind Bytes
	Margin  int    // bytes of a message beyond those that the setting is about

	Text    int           // bytes of strings, see [Message.Charge]
	Timeout time.Duration // until the message is complete, see [setting.Allowance]; 0: none
	Memory  *gate.Memory
	// Sender is for whom the message counts while it arrives; Receive sets Whole and Reader.
	Sender unfinished.Sender

	// Admit is called with the size of the message, before any of it is read, and More with the
	// additional bytes that it has unpacked to. Their errors become the message's. Both may be nil.
	Admit, More func(bytes int64) error
}

func (b *Bounds) exceeded(n int64) error {
	return fault.TooLarge("the message has %d bytes; %s is %d", n, b.Setting, b.Bytes)
}

// ErrNoMessage is in an error of Receive when the call ended between two messages.
var ErrNoMessage = errors.New("between two messages")

// Receive waits for a message and calls read, within the bounds in effect when the message begins.
// It returns io.EOF after the client's last message.
//
// After an error in a message its rest is still to come, and the call can only end. With resume the
// rest is skipped, and resumed reports whether the next message can be received.
func (s *Stream) Receive(bounds func() Bounds, resume bool, read func(*Message)) (resumed bool, err error) {
	var header [5]byte
	if err := s.transport.ReadMessageHeader(header[:]); err != nil {
		if err == io.EOF {
			return false, err
		}
		return false, fmt.Errorf("%w (%w)", Lost(err), ErrNoMessage)
	}
	b := bounds()
	size := int64(binary.BigEndian.Uint32(header[1:]))
	if size > int64(b.Bytes+b.Margin) {
		return false, b.exceeded(size)
	}
	if b.Timeout > 0 {
		allowed := setting.Allowance(b.Timeout, size)
		errLate := fmt.Errorf("%w: the message was not complete after %v (grpc.message_timeout, and 1 s for each 16 KiB)",
			scheduler.ErrDeadlineExceeded, allowed)
		var late atomic.Bool
		timer := time.AfterFunc(allowed, func() {
			late.Store(true)
			s.End(errLate)
		})
		defer func() {
			if timer.Stop(); err != nil && late.Load() {
				resumed, err = false, errLate
			}
		}()
	}
	in := &pieces{transport: s.transport, left: int(size)}
	defer in.free()
	b.Sender.Whole, b.Sender.Reader = size, s
	b.Memory.Room.Begin(&in.half, b.Sender)
	defer func() {
		if why := in.half.Ended(); why != nil {
			resumed, err = false, why
		}
		in.half.Finish()
	}()
	m := &Message{source: in, end: int(size), bounds: b, share: b.Memory.Plain(&in.half), text: b.Text}
	if b.Admit != nil {
		m.Fail(b.Admit(size))
	}
	switch {
	case m.err != nil, header[0] == 0:
	case header[0] == 1:
		u, err := unpack(s.transport.RecvCompress(), in, &m.bounds)
		if err != nil {
			return false, err
		}
		defer u.share.Close()
		m.source, m.share = u, u.share
		m.end, m.open = b.Bytes+b.Margin, true
	default:
		return false, fault.Malformed("a message with flags %#x, expected 0 or 1", header[0])
	}
	if m.err == nil {
		read(m)
	}
	if m.err == nil && b.More != nil {
		m.Fail(b.More(int64(m.pos) - size))
	}
	if m.err == nil || !resume {
		return m.err == nil, m.err
	}
	for {
		if _, err := in.next(); err != nil {
			return err == io.EOF, m.err
		}
	}
}

// Lost maps an error of the transport to one of the table; nil stays nil.
func Lost(err error) error {
	switch err {
	case nil:
		return nil
	case io.EOF, io.ErrUnexpectedEOF:
		return fault.Malformed("the message ends before its announced length")
	}
	return fmt.Errorf("%w: %w", scheduler.ErrCanceled, err)
}

// Bytes are taken from the transport a quarter of the rest at a time, within these bounds: enough
// to take the memory for a tensor of up to 7 MiB at once (see [tensor.Stage]), and at most a
// megabyte of memory that the pool does not count.
const (
	minPiece = 16 << 10
	maxPiece = 1 << 20
)

// pieces gives the bytes of a message as they lie in the transport's frames.
type pieces struct {
	transport Transport
	left      int             // bytes not read yet
	arrived   int64           // bytes read
	frames    mem.BufferSlice // read; the first may be the one that next returned last
	given     bool            // next returned frames[0] last
	hand      int             // bytes in frames that next has not returned
	err       error
	half      unfinished.Message
	held      int // bytes of half for frames
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
		// grpc-go holds what arrives until all n bytes are there.
		if p.err = p.half.Add(int64(n - p.held)); p.err != nil {
			return nil, p.err
		}
		p.held = n
		if p.frames, p.err = p.transport.Read(n); p.err != nil {
			p.err = Lost(p.err)
			return nil, p.err
		}
		p.left -= n
		p.arrived += int64(n)
		p.half.Arrived(p.arrived)
		p.hand = n
	}
	data := p.frames[0].ReadOnlyData()
	p.given = true
	p.hand -= len(data)
	return data, nil
}

func (p *pieces) buffered() int { return p.hand }

func (p *pieces) free() {
	p.frames.Free()
	p.frames = nil
}
