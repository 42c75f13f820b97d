package rest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// An arrival is a request's body as it arrives on the socket, limited by message_timeout.
type arrival struct {
	call  *call
	clock listen.Clock
	due   int64 // bytes after which the deadline is extended
	// silence ends a body of which nothing has arrived for so long; 0: only its deadline does.
	silence time.Duration
	err     error // how it ended; io.EOF: complete
	slot    gate.Slot
	half    unfinished.Message
	over    atomic.Bool // nothing more is read
}

// slack is how many bytes are read under one deadline.
const slack = 64 << 10

// arriving returns the request's body. One goroutine at a time reads it, and calls done.
func (c *call) arriving() *arrival {
	if c.in == nil {
		c.in = &arrival{call: c, clock: listen.Clock{Began: time.Now()}}
		if c.r.Body == http.NoBody {
			c.in.err = io.EOF
		} else {
			c.settings.Memory.Room.Begin(&c.in.half, unfinished.Sender{
				Payers: c.who.Payers(c.conn.Account()), Stranger: c.who.Enter() != nil, Whole: c.announced(),
				Reader: c.in,
			})
		}
	}
	return c.in
}

// EndMessage wakes a Read that waits for the client, see [unfinished.Reader].
func (a *arrival) EndMessage(error) {
	c := a.call.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !a.over.Load() {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}

func (a *arrival) Read(p []byte) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	if err := a.half.Ended(); err != nil {
		a.err = err
		a.done()
		return 0, err
	}
	if a.clock.Bytes >= a.due || a.silence > 0 {
		due := a.clock.Due(a.call.settings.MessageTimeout)
		if quiet := time.Now().Add(a.silence); a.silence > 0 && (due.IsZero() || quiet.Before(due)) {
			due = quiet
		}
		a.call.conn.expect(due)
		a.due = a.clock.Bytes + slack
	}
	if a.slot.Give() { // a request that waits for its client keeps no slot
		defer a.slot.Take()
	}
	n, err := a.call.r.Body.Read(p)
	a.clock.Bytes += int64(n)
	a.half.Arrived(a.clock.Bytes)
	if err != nil {
		if a.err = a.half.Ended(); a.err == nil {
			a.err = a.condition(err)
		}
		a.done()
	}
	return n, a.err
}

// condition maps the error that a body ended with to one of gate's conditions.
func (a *arrival) condition(err error) error {
	switch {
	case err == io.EOF:
		return err
	case errors.Is(err, os.ErrDeadlineExceeded) && a.call.door.draining.Load():
		return gate.ErrDraining
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.call.conn.Because(metrics.ClosedMessageTimeout)
		return &refusal{http.StatusRequestTimeout, a.clock.Error("rest", time.Now(), a.call.settings.MessageTimeout)}
	case errors.Is(err, io.ErrUnexpectedEOF) || isNet(err):
		return fmt.Errorf("%w: the client hung up after %s of the body", scheduler.ErrCanceled,
			plural.Of(a.clock.Bytes, "byte"))
	}
	return fault.Malformed("the body: %v", err)
}

// isNet reports whether err is an error of the socket, not of its data.
func isNet(err error) bool {
	var e interface{ Timeout() bool }
	return errors.As(err, &e)
}

// done ends the reading of the body and its deadline. See conn.arrived.
func (a *arrival) done() {
	a.over.Store(true)
	a.half.Finish()
	a.due = a.clock.Bytes
	a.call.conn.arrived(a.err == io.EOF)
}

// A body is a request's body, uncompressed. limits.message_bytes bounds it both compressed and
// uncompressed.
type body struct {
	arrival *arrival
	reader  io.Reader // arrival, or its unpacker
	length  int64     // its size, if announced; -1: unknown
	got     int64
	limit   int64

	charged int64     // bytes charged to its client's quotas
	name    string    // the name of the setting behind limit
	pack    *unpacker // nil: the body is not compressed
	share   gate.Share
	// buf is being filled. close releases it, however the reading ends, unless whole has handed it
	// over.
	buf *tensor.Buffer
}

// open begins to read the request's body; close ends it.
func (c *call) open() (*body, error) {
	limit := c.settings.Limits.MessageBytes
	if n := c.r.ContentLength; n > limit {
		return nil, fault.TooLarge("the body has %d bytes, limits.message_bytes is %d", n, limit)
	}
	b := &body{arrival: c.arriving(), length: c.r.ContentLength, limit: limit, charged: c.announced(), name: "limits.message_bytes",
		share: c.settings.Memory.Plain(&c.in.half)}
	b.reader = b.arrival
	if coding := c.r.Header["Content-Encoding"]; len(coding) > 0 {
		if err := b.unpack(c, coding); err != nil {
			b.close()
			return nil, err
		}
	}
	return b, nil
}

func (b *body) close() {
	if b.buf != nil {
		b.buf.Release()
		b.buf = nil
	}
	b.arrival.done()
	if b.pack != nil {
		b.pack.free()
		b.pack, b.reader = nil, nil
		b.share.Close()
	}
}

// Read reads uncompressed bytes, up to the limit. Its errors other than io.EOF can be shown to the
// client.
func (b *body) Read(p []byte) (int, error) {
	// One byte more than the limit tells whether the body goes on.
	p = p[:min(int64(len(p)), b.limit-b.got+1)]
	n, err := b.read(p)
	b.got += int64(n)
	if more := b.got - b.charged; more > 0 {
		if err := b.arrival.call.use.More(more, time.Now()); err != nil {
			return 0, err
		}
		b.charged = b.got
	}
	switch {
	case b.got > b.limit || b.arrival.clock.Bytes > b.limit:
		return 0, fault.TooLarge("the body has more than %d bytes, %d so far, %d before unpacking; %s is %d", b.limit,
			b.got, b.arrival.clock.Bytes, b.name, b.limit)
	case err == nil || err == io.EOF:
		return n, err
	case b.arrival.err != nil && b.arrival.err != io.EOF:
		return n, b.arrival.err
	}
	return n, fault.Malformed("the body does not match its Content-Encoding: %v", err)
}

// read reads, with a slot if the body is compressed.
func (b *body) read(p []byte) (int, error) {
	if b.pack != nil {
		b.arrival.slot.Take()
		defer b.arrival.slot.Give()
	}
	return b.reader.Read(p)
}

// firstStage is the minimum memory for a body before any of its bytes have arrived. It saves bodies
// of the usual sizes a stage: the door does not know how much the socket already holds.
const firstStage = 32 << 10

// fill reads n bytes, or as many as there are, into buf: memory of the pool that grows by factor as
// bytes arrive, see [tensor.Stage].
func (b *body) fill(n, factor int) (have int, err error) {
	for {
		size := tensor.Stage(min(max(have+1, firstStage), n), n, factor)
		buf, err := b.share.Grow(b.buf, have, size)
		if err != nil {
			return have, err
		}
		b.buf = buf
		more, err := io.ReadFull(b, buf.Bytes()[have:])
		have += more
		switch {
		case have == n || err == io.EOF || err == io.ErrUnexpectedEOF:
			return have, nil
		case err != nil:
			return have, err
		}
	}
}

// take reads the next n bytes. If the body ends first, the error is a *shortBody.
func (b *body) take(n int) (*tensor.Buffer, error) {
	switch have, err := b.fill(n, b.share.StageFactor()); {
	case err != nil:
		return nil, err
	case have < n:
		return nil, &shortBody{have}
	}
	return b.whole(), nil
}

// A shortBody is the error of a body that ends early.
type shortBody struct{ have int }

func (e *shortBody) Error() string {
	return fmt.Sprintf("the body ended after %s", plural.Of(e.have, "byte"))
}

// whole hands buf over to the caller.
func (b *body) whole() *tensor.Buffer {
	buf := b.buf
	b.buf = nil
	return buf
}

// all reads the body to its end. The text lives as long as the buffer.
func (b *body) all() (buf *tensor.Buffer, text []byte, err error) {
	most, factor := int(b.length), b.share.StageFactor()
	// The size is unknown: read up to one byte more than the limit, as in Read.
	if most < 0 {
		most, factor = int(b.limit)+1, 2
	}
	have, err := b.fill(most, factor)
	if err == nil {
		err = b.end()
	}
	if err != nil {
		return nil, nil, err
	}
	buf = b.whole()
	return buf, buf.Bytes()[:have], nil
}

// end checks that the body ends here.
func (b *body) end() error {
	var one [1]byte
	switch n, err := io.ReadFull(b, one[:]); {
	case n > 0:
		return fault.Invalid("the body has more than the %d bytes that its JSON and the inputs' binary_data_size add up to", b.got-1)
	case err != io.EOF:
		return err
	}
	if b.pack != nil {
		return b.pack.end(b)
	}
	return nil
}

// read reads the body of a request other than inference, of at most limit bytes; name is that of
// the limit. The text lives until use returns.
func (c *call) read(limit int64, name string, use func(*text) error) error {
	b, err := c.open()
	if err != nil {
		return err
	}
	defer b.close()
	if b.limit > limit {
		b.limit, b.name = limit, name
	}
	if b.length > b.limit {
		return fault.TooLarge("the body has %d bytes, %s is %d", b.length, b.name, b.limit)
	}
	buf, all, err := b.all()
	if err != nil {
		return err
	}
	defer buf.Release()
	return use(newText(all, c.settings.Limits.JSONDepth, 0))
}

// object reads a body that is empty or a JSON object of at most limits.metadata_bytes.
func (c *call) object(member func(t *text, name []byte)) error {
	return c.read(int64(c.settings.Limits.MetadataBytes), "limits.metadata_bytes", func(t *text) error {
		if t.Peek(); t.At == len(t.Text) {
			return nil
		}
		for name := range t.members {
			member(t, name)
		}
		return t.end()
	})
}
