package tcp

// A transport carries the bytes of one session. Its methods are called in turns of the session's
// loop, and none of them blocks. It reports what happens on the wire by loop.input,
// loop.postRoom, session.hangUp and session.closed.
type transport interface {
	Read(p []byte) int                // what has arrived beyond the bytes of input; 0: nothing
	Unread() int                      // bytes for Read that have arrived, as far as is known
	Write(vecs [][]byte) (int, error) // what there is room for; postRoom follows for the rest
	Unacknowledged() int              // bytes that Write took and that the peer does not have
	Acknowledge()                     // confirms what has arrived, before the next answer
	CloseWrite()                      // ends our direction
	Close()                           // ends both; session.closed follows, now or later
	Peer() string
}
