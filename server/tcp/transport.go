package tcp

// A transport carries the bytes of one session. Its methods are called in turns of the session's
// loop, and none of them blocks. What happens on the wire it tells by loop.input, loop.postRoom,
// session.hangUp and session.closed.
type transport interface {
	Read(p []byte) int                // what has arrived beyond the bytes of input; 0: nothing
	Write(vecs [][]byte) (int, error) // what there is room for; postRoom follows when that was not all
	Unacknowledged() int              // bytes that Write took and that the peer does not have
	Acknowledge()                     // tells the peer now what has arrived, not with the next answer
	CloseWrite()                      // ends our direction
	Close()                           // ends both; session.closed follows, now or later
	Peer() string
}
