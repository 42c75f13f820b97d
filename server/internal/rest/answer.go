package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
)

// A refusal is an error with an HTTP status that the table of conditions (fault.Row) lacks.
type refusal struct {
	status int
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

var errBug = fmt.Errorf("%w; see the server's log", fault.ErrInternal)

// errorBody is the body of every error. For a superseded frame it has the parameter "by": the "seq"
// or "id" of the newer frame.
func errorBody(err error) []byte {
	var body struct {
		Error      string                     `json:"error"`
		Parameters map[string]json.RawMessage `json:"parameters,omitempty"`
	}
	body.Error = fault.PredictText(err)
	if by := fault.By(err); by != "" {
		body.Parameters = map[string]json.RawMessage{"by": json.RawMessage(by)}
	}
	b, _ := json.Marshal(body) // By is JSON
	return append(b, '\n')
}

// fail answers with an error, or breaks off an answer that has begun.
func (c *call) fail(err error) {
	if c.begun {
		panic(http.ErrAbortHandler)
	}
	status := fault.Of(err).HTTP
	if own, ok := errors.AsType[*refusal](err); ok {
		status = own.status
	}
	if status == http.StatusUnauthorized {
		c.w.Header().Set("WWW-Authenticate", access.Challenge)
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		c.w.Header().Set("Retry-After", retryAfter(err))
	}
	c.respond(status, errorBody(err))
}

// countRefusal counts a request that could not be understood, and returns its error.
func (c *call) countRefusal(err error, arrived time.Time) error {
	c.door.predict.Refused(err, arrived)
	return err
}

// retryAfter is the time after which a new attempt makes sense, in whole seconds.
func retryAfter(err error) string {
	return strconv.FormatInt(int64((max(fault.Again(err), 1)+time.Second-1)/time.Second), 10)
}

// A client that is still sending when it is refused, such as http.client, reads the answer only
// afterwards, and would lose it if the connection were reset. So the rest of a body within its
// limits is read before the answer, and the connection is kept. If the body is larger, the answer
// is sent first; what still arrives is read and thrown away for as long as it may take to arrive,
// and then the connection is closed.

// discard reads the rest of a request's body, within the time and size allowed for one, and reports
// whether it has reached the end. A client that waits for 100 Continue does not get it, and is not
// expected to send its body.
func (c *call) discard() bool {
	limit := c.settings.Limits.MessageBytes
	switch {
	case c.r.Body == http.NoBody || c.in != nil && c.in.err == io.EOF:
		return true
	case c.in == nil && c.r.Header.Get("Expect") != "":
		c.conn.refuseBody()
		return false
	case c.r.ContentLength > limit:
		return false
	}
	in := c.arriving()
	defer in.done()
	c.waste(limit - in.clock.Bytes + 1)
	return in.err == io.EOF
}

// readOn reads what still arrives of a body after its request has been answered: all of it if its
// size was announced, else until the client has been silent for a second. A body whose client was
// over its quota is not read further.
func (c *call) readOn() {
	in := c.arriving()
	if in.err != nil || !c.charged || c.r.Header.Get("Expect") != "" && in.clock.Bytes == 0 {
		return
	}
	_ = http.NewResponseController(c.w).Flush()
	if in.silence = time.Second; c.r.ContentLength > 0 {
		in.silence = 0
	}
	c.waste(math.MaxInt64)
	in.done()
}

// waste reads at most n bytes of the body and throws them away. Those that were not announced are
// charged as they arrive.
func (c *call) waste(n int64) {
	in := c.arriving()
	piece := make([]byte, min(n, slack))
	for read := 0; n > 0; n -= int64(read) {
		before := max(in.clock.Bytes, c.announced())
		var err error
		read, err = in.Read(piece[:min(n, int64(len(piece)))])
		c.use.Waste(in.clock.Bytes-before, time.Now())
		if err != nil {
			return
		}
	}
}

// write answers with a value as JSON.
func (c *call) write(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%w: the answer is not JSON: %w", fault.ErrInternal, err)
	}
	c.respond(status, append(body, '\n'))
	return nil
}

// answer answers with a value as JSON, unless there is an error.
func (c *call) answer(v any, err error) error {
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, v)
}

// begin sends the head of an answer. While the server drains, the head says Connection: close, so
// that the client sends its next request to another server instead of being refused here.
func (c *call) begin(status int) {
	if c.door.predict.Draining() {
		c.w.Header().Set("Connection", "close")
	}
	if !c.discard() {
		c.w.Header().Set("Connection", "close")
		c.conn.unread.Store(true)
	}
	c.begun = true
	c.use.Answered()
	c.w.WriteHeader(status)
}

func (c *call) respond(status int, body []byte) {
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.begin(status)
	_, _ = c.w.Write(body) // an error means that the client has disconnected
	if c.conn.unread.Load() {
		c.readOn()
	}
}
