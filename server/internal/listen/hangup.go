package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/shivad/shivad/shiva/backoff"
)

// While a handler runs, net/http reads a byte ahead to notice that the client hangs up, and takes
// the end of the client's direction for that. But a client that has no more requests and waits for
// its answers, as nc does, ends it, too, and the same segment comes from one that has exited. A
// client that has closed answers any data with a reset. So the first bytes of the answer, which are
// the same for all, are sent ahead, one at a time: once such a byte has been answered with a reset,
// the next cannot be sent, and the requests of a client that is gone are cancelled.

// ahead are bytes with which all answers begin, and the pauses before each is sent. Answers that
// are complete soon are written whole.
var ahead = [...]struct {
	after time.Duration
	byte  byte
}{{100 * time.Millisecond, 'H'}, {100 * time.Millisecond, 'T'}, {400 * time.Millisecond, 'T'},
	{1600 * time.Millisecond, 'P'}, {6400 * time.Millisecond, '/'}}

// readAhead is how many bytes net/http reads ahead. All its other reads are into larger buffers.
const readAhead = 1

// An HTTPConn is a connection as net/http uses it, whose client may end its direction and still
// gets its answers.
type HTTPConn struct {
	net.Conn

	mu    sync.Mutex // held while the answer is written
	begun bool       // bytes of the answer to the current request have been written
	sent  int        // bytes of ahead that the answer must leave out

	over    sync.Mutex
	stopped bool          // net/http no longer reads ahead
	ended   chan struct{} // closed when it stops; nil: nobody waits for that
}

// NextRequest is called between two requests: when net/http calls the connection idle.
func (h *HTTPConn) NextRequest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = false
}

func (h *HTTPConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if err == io.EOF && len(p) == readAhead {
		return n, h.waitForAnswer()
	}
	return n, err
}

// waitForAnswer is called when the client has ended its direction while a handler runs. It returns
// when the handler has ended, with the error that net/http expects then, or with another one as
// soon as it is known that the client has closed the connection.
func (h *HTTPConn) waitForAnswer() error {
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
		if !backoff.Wait(next.after, ended) {
			return os.ErrDeadlineExceeded
		}
		if h.probe(next.byte) != nil {
			return io.EOF
		}
	}
	<-ended
	return os.ErrDeadlineExceeded
}

// probe sends a byte of the answer ahead, unless the answer has begun to leave.
func (h *HTTPConn) probe(b byte) error {
	if !h.mu.TryLock() {
		return nil
	}
	defer h.mu.Unlock()
	if h.begun {
		return nil
	}
	n, err := h.Conn.Write([]byte{b})
	h.sent += n
	return err
}

// Write leaves out what was sent ahead.
func (h *HTTPConn) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = true
	out := min(h.sent, len(p))
	h.sent -= out
	n, err := h.Conn.Write(p[out:])
	return out + n, err
}

// SetReadDeadline is called by net/http, with a time in the past when it stops reading ahead.
func (h *HTTPConn) SetReadDeadline(t time.Time) error {
	h.stop(!t.IsZero() && t.Before(time.Now()))
	return h.Conn.SetReadDeadline(t)
}

// Close ends the wait for an answer, too.
func (h *HTTPConn) Close() error {
	h.stop(true)
	return h.Conn.Close()
}

// CloseWrite closes the writing side.
func (h *HTTPConn) CloseWrite() error {
	if c, ok := h.Conn.(halfCloser); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (h *HTTPConn) stop(stopped bool) {
	h.over.Lock()
	defer h.over.Unlock()
	h.stopped = stopped
	if stopped && h.ended != nil {
		close(h.ended)
		h.ended = nil
	}
}
