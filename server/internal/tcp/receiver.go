package tcp

import (
	"github.com/shivad/shivad/server/internal/unfinished"
	"github.com/shivad/shivad/shiva"
)

// A receiver decodes the bytes of one session at a time, and accounts for the memory of a message
// that is half-received. Sessions borrow one of their loop while they read or are inside a message,
// so that idle connections hold none.
type receiver struct {
	*shiva.Decoder
	half    unfinished.Message
	session *session // the borrower
}

// takeReceiver lends the loop's receiver to a session that reads, or makes one if a session with a
// half-received message has it.
func (l *loop) takeReceiver(s *session) *receiver {
	r := l.receiver
	if l.receiver = nil; r == nil {
		r = new(receiver)
		// session.decode sets the limits.
		r.Decoder = shiva.NewDecoder(shiva.DecoderConfig{Pool: l.door.pool, Spares: &l.spares, Grant: r.grant})
	}
	r.session = s
	return r
}

// giveReceiver takes a receiver back. One is enough.
func (l *loop) giveReceiver(r *receiver) {
	r.half.Finish()
	r.session = nil
	l.receiver = r
}

// grant asks for the memory of the current message, see [shiva.DecoderConfig].
func (r *receiver) grant(held, whole int64) error {
	if !r.half.Begun() {
		s := r.session
		who := s.loop.door.identities.Who(s.credentials)
		from := unfinished.Sender{Stranger: who.Enter() != nil, InFlight: true, Reader: s}
		if s.conn != nil {
			from.Payers = who.Payers(s.conn.Account())
		}
		s.loop.door.room.Begin(&r.half, from)
	}
	err := r.half.Take(held, whole)
	if err != nil {
		r.half.Finish()
	}
	return err
}

// account accounts for a message that is half-received at the end of a turn.
func (r *receiver) account() {
	held := r.Held()
	if held == 0 { // the message is being discarded
		r.half.Finish()
		return
	}
	r.half.Arrived(r.session.clock.Bytes)
	if err := r.grant(held, r.Announced()); err != nil {
		r.Refuse(err)
	}
}

// EndMessage has the loop end the session's half-received message, see [unfinished.Reader].
func (s *session) EndMessage(error) { s.loop.postReport(s, mustEnd) }

// endMessage releases the memory of a half-received message that has been ended. The rest of the
// message is discarded as it arrives, and its error is answered in its place.
func (s *session) endMessage() {
	if r := s.receiver; r != nil {
		if err := r.half.Ended(); err != nil {
			r.Refuse(err)
			r.half.Finish()
		}
	}
}
