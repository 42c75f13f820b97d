package grpc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// An outbox has a connection's answers that have not left yet, and the requests that wait for room
// for their answers (see [gate.Outbox]).
//
// grpc-go releases the memory of a message when its bytes have left or its call has ended, but not
// when the connection ends first: data that then waits for the client's window stays referenced.
// The garbage collector frees grpc-go's own buffers, but the pool would never get its buffers back.
// So end releases the rest. It is called when grpc-go reports the end of a connection, after the
// end of its writer.
type outbox struct {
	mu    sync.Mutex
	box   gate.Outbox
	line  []*waiter // requests that wait for room, oldest first
	held  map[*holding]struct{}
	since time.Time // when held last changed; set while held is not empty
	shut  bool      // the connection is closed: no request is admitted
}

// A waiter is a request in the line for room.
type waiter struct {
	call  *gate.Call
	room  int
	err   error         // why there will be no room
	taken chan struct{} // closed when there is room, or an error
}

// setLimit changes how many bytes of answers may wait to leave.
func (o *outbox) setLimit(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.box.SetLimit(bytes)
	o.admitLocked()
}

// Admit waits until there is room for the answer to a call, the client gives up, or the call's
// deadline passes.
func (o *outbox) Admit(ctx context.Context, call *gate.Call) (room int, err error) {
	o.mu.Lock()
	if len(o.line) == 0 && !o.shut {
		if room, ok, err := o.box.Admit(call); ok || err != nil {
			o.mu.Unlock()
			return room, err
		}
	}
	p := &waiter{call: call, taken: make(chan struct{})}
	o.line = append(o.line, p)
	limit := o.box.Limit
	o.mu.Unlock()
	late := time.NewTimer(time.Until(call.Deadline))
	defer late.Stop()
	select {
	case <-p.taken:
		return p.room, p.err
	case <-ctx.Done():
		err = scheduler.ErrCanceled
	case <-late.C:
		err = fmt.Errorf("%w: earlier answers wait for this client to read them; the limit of a connection (%s) is %d",
			scheduler.ErrDeadlineExceeded, o.box.Setting, limit)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.line, p); i >= 0 {
		o.line = slices.Delete(o.line, i, i+1)
		o.admitLocked() // the next request in the line may need less
		return 0, err
	}
	return p.room, p.err // admitted at the same moment
}

// Submitted implements [predict.Outbox].
func (o *outbox) Submitted() {}

// admitLocked admits the requests in the line whose answers have room by now.
func (o *outbox) admitLocked() {
	for len(o.line) > 0 && !o.shut {
		p := o.line[0]
		var ok bool
		if p.room, ok, p.err = o.box.Admit(p.call); !ok && p.err == nil {
			return
		}
		o.line[0] = nil
		o.line = o.line[1:]
		close(p.taken)
	}
}

// Put exchanges the room of a request for its answer or error. It fails if the answer is larger
// than its room and does not fit.
func (o *outbox) Put(call *gate.Call, room int) (size int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.admitLocked()
	return o.box.Put(call, room)
}

// Take records that an answer has left.
func (o *outbox) Take(size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.box.Take(size)
	o.admitLocked()
}

// A departure is an answer that is being sent. It has left when no part of it is referenced.
type departure struct {
	outbox *outbox
	size   int          // of the answer, as the outbox counts it
	use    access.Use   // of the request, once it has its answer
	parts  atomic.Int32 // its holdings, and the reply itself
}

func (o *outbox) depart(size int) *departure {
	d := &departure{outbox: o, size: size}
	d.parts.Store(1)
	return d
}

func (d *departure) done() {
	if d.parts.Add(-1) == 0 {
		d.use.End() // before Take admits other requests
		d.outbox.Take(d.size)
	}
}

// A holding is memory of an answer that is being sent. It is the pool to which grpc-go returns the
// bytes.
type holding struct {
	departure *departure
	buf       *tensor.Buffer // owns data; nil: the garbage collector does
	data      []byte
}

// minPart is the capacity that data must have for grpc-go to return it.
const minPart = 1<<10 + 1

// hold makes a buffer for the transport from a part of an answer, which buf owns; nil: the garbage
// collector owns it.
func (d *departure) hold(data []byte, buf *tensor.Buffer) mem.Buffer {
	o, h := d.outbox, &holding{departure: d, buf: buf, data: data}
	d.parts.Add(1)
	buf.Retain()
	o.mu.Lock()
	if len(o.held) == 0 {
		if o.held == nil {
			o.held = make(map[*holding]struct{})
		}
		o.since = time.Now()
	}
	o.held[h] = struct{}{}
	o.mu.Unlock()
	return mem.NewBuffer(&h.data, h)
}

// Get completes the interface: grpc-go takes no buffer from a message's pool.
func (h *holding) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put is called when grpc-go no longer needs the data.
func (h *holding) Put(*[]byte) {
	o := h.departure.outbox
	o.mu.Lock()
	_, held := o.held[h]
	delete(o.held, h)
	o.since = time.Now()
	o.mu.Unlock()
	if held { // otherwise end has released it
		h.buf.Release()
		h.departure.done()
	}
}

// idleSince returns since when grpc-go has returned no data; zero if nothing is held.
func (o *outbox) idleSince() (since time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.held) > 0 {
		since = o.since
	}
	return since
}

// stand records that the client has stopped reading.
func (o *outbox) stand() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.box.Stand()
}

// close admits no more requests. When a connection closes, its answers free their room, and the
// requests in the line would be executed without a client. Their contexts end soon.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut = true
}

// end releases what is still held. A handler that is still sending has a reference of its own.
func (o *outbox) end() {
	o.mu.Lock()
	held := o.held
	o.held = nil
	o.mu.Unlock()
	for h := range held {
		h.buf.Release()
		h.departure.done()
	}
}
