package rest

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/metrics"
)

// While a handler runs, net/http reads a byte ahead to notice that the client hangs up, and takes
// the end of the client's direction for that. But a client that has no more requests and waits for
// its answers, as nc does, ends it, too, and the same segment comes from one that has exited. A
// client that has closed answers any data with a reset. So the first bytes of the answer, which are
// the same for all, are sent ahead, one at a time: once such a byte has been answered with a reset,
// the next cannot be sent, and the requests of a client that is gone leave the queue.

// ahead are bytes with which all answers begin, and the pauses before each is sent. Answers that
// are complete soon are written whole.
var ahead = [...]struct {
	after time.Duration
	byte  byte
}{{100 * time.Millisecond, 'H'}, {100 * time.Millisecond, 'T'}, {400 * time.Millisecond, 'T'}, {1600 * time.Millisecond, 'P'}, {6400 * time.Millisecond, '/'}}

// A hangup finds out whether a client that has ended its direction still reads.
type hangup struct {
	mu    sync.Mutex // held while the answer is written
	begun bool       // bytes of the answer to the current request have been written
	sent  int        // bytes of ahead that the answer must leave out

	over    sync.Mutex
	stopped bool          // net/http no longer reads ahead
	ended   chan struct{} // closed when it stops; nil: nobody waits for that
}

// readAhead is how many bytes net/http reads ahead. All its other reads are into larger buffers.
const readAhead = 1

// next is called between two requests.
func (h *hangup) next() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = false
}

// waitForAnswer is called when the client has ended its direction while a handler runs. It returns
// when the handler has ended, with the error that net/http expects then, or with another one as
// soon as it is known that the client has closed the connection.
func (c *conn) waitForAnswer() error {
	h := &c.hangup
	ended := make(chan struct{})
	h.over.Lock()
	if h.stopped {
		h.over.Unlock()
		return os.ErrDeadlineExceeded
	}
	h.ended = ended
	h.over.Unlock()
	defer func() {
		h.over.Lock()
		h.ended = nil
		h.over.Unlock()
	}()
	for _, next := range ahead {
		if !wake.After(next.after, ended) {
			return os.ErrDeadlineExceeded
		}
		if err := c.probe(next.byte); err != nil {
			c.Because(metrics.ClosedByClient)
			return io.EOF
		}
	}
	<-ended
	return os.ErrDeadlineExceeded
}

// probe sends a byte of the answer ahead, unless the answer has begun to leave.
func (c *conn) probe(b byte) error {
	h := &c.hangup
	if !h.mu.TryLock() {
		return nil
	}
	defer h.mu.Unlock()
	if h.begun {
		return nil
	}
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.door.settings.Load().StallTimeout))
	n, err := c.Conn.Write([]byte{b})
	h.sent += n
	return err
}

// SetReadDeadline is called by net/http, with a time in the past when it stops reading ahead.
func (c *conn) SetReadDeadline(t time.Time) error {
	h := &c.hangup
	h.over.Lock()
	h.stopped = !t.IsZero() && t.Before(time.Now())
	if h.stopped && h.ended != nil {
		close(h.ended)
		h.ended = nil
	}
	h.over.Unlock()
	return c.Conn.SetReadDeadline(t)
}
