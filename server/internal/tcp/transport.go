package tcp

import "time"

// A transport carries the bytes of one session. Its methods are called in turns of the session's
// loop, and none of them blocks. It reports events on the wire through loop.input, loop.postReport,
// session.hangUp and session.closed.
type transport interface {
	Read(p []byte) int                // bytes that arrived after those of loop.input; 0: none
	Unread() int                      // bytes ready for Read, as far as known
	Write(vecs [][]byte) (int, error) // as much as there is room for; postReport reports more
	Unacknowledged() int              // bytes that Write took and the peer has not confirmed
	Acknowledge()                     // confirms received bytes without waiting for an answer
	Rest(d time.Duration)             // delays the next loop.input
	CloseWrite()                      // ends the server's direction
	Close()                           // ends both directions; session.closed follows, now or later
	Peer() string
}
