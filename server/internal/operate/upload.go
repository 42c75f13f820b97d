package operate

import (
	"io"
	"net/http"
	"time"

	"github.com/shivad/shivad/server/internal/access"
)

// A client that is still sending when it is refused reads the answer only afterwards, and would
// lose it if the connection were reset. So what a handler has left of a body is read: before the
// answer up to keepBytes, which keeps the connection, and the rest after the answer, as long as it
// arrives within wasteTime. What is thrown away is charged to its client, so that questions about
// health, and refusals, carry nothing for free; if the client is over its quota nothing more is
// read.

const (
	keepBytes = 256 << 10
	wasteTime = 10 * time.Second
)

// An upload is the body of a request and the writer of its answer.
type upload struct {
	http.ResponseWriter
	io.ReadCloser // the body

	sources *Sources
	request *http.Request
	use     access.Use
	account *access.Account // of the client's address; nil: not charged
	got     int64           // bytes of the body
	paid    int64           // of these, and of those to come
	begun   bool            // the answer
	ended   bool            // the body has been read, or must not be
}

// Unwrap is for http.ResponseController.
func (u *upload) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.got += int64(n)
	u.ended = u.ended || err != nil
	return n, err
}

func (u *upload) WriteHeader(status int) {
	if status >= http.StatusOK && !u.begun {
		u.begun = true
		if u.discard(keepBytes); !u.ended {
			u.Header().Set("Connection", "close")
		}
	}
	u.ResponseWriter.WriteHeader(status)
}

func (u *upload) Write(p []byte) (int, error) {
	if !u.begun {
		u.WriteHeader(http.StatusOK)
	}
	return u.ResponseWriter.Write(p)
}

// finish reads what is left after the answer.
func (u *upload) finish() {
	if !u.ended && http.NewResponseController(u.ResponseWriter).Flush() == nil {
		u.discard(1 << 62)
	}
	if u.account != nil {
		u.use.End()
		u.sources.Addresses.Leave(u.conn().host.String())
	}
}

// conn is the client's connection; nil in tests without one.
func (u *upload) conn() *boundedConn {
	k, _ := u.request.Context().Value(connKey{}).(*boundedConn)
	return k
}

// discard reads at most n bytes and throws them away.
func (u *upload) discard(n int64) {
	control := http.NewResponseController(u.ResponseWriter)
	switch {
	case u.ended:
		return
	case u.got == 0 && u.request.Header.Get("Expect") != "": // it waits for leave to send
		u.ended = true
		u.Header().Set("Connection", "close")
		return
	case u.charge() != nil:
		u.ended = true
		_ = control.SetReadDeadline(time.Unix(1, 0)) // net/http must not read on either
		return
	}
	_ = control.SetReadDeadline(time.Now().Add(wasteTime))
	_, err := io.Copy(io.Discard, io.LimitReader(u, n))
	if u.ended = u.ended || err != nil; u.ended {
		_ = control.SetReadDeadline(time.Time{})
	}
	if more := u.got - u.paid; more > 0 && u.account != nil {
		u.use.Waste(more, time.Now())
		u.paid = u.got
	}
}

// charge charges what is left of the body, as far as its size was announced.
func (u *upload) charge() error {
	k := u.conn()
	if k == nil || u.sources.Addresses == nil || u.account != nil {
		return nil
	}
	left := max(0, u.request.ContentLength-u.got)
	u.paid = u.got + left
	u.account = k.host.Enter(u.sources.Addresses)
	return u.use.Begin(u.sources.who(u.request).Payers(u.account), left, time.Now())
}
