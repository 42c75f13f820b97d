package tcp

import (
	"time"

	"github.com/shivad/shivad/server/internal/access"
)

// A client over a rate is read slowly: after requests that were refused (listen.Conn.Pause), and
// while more of its bytes are read than its quotas admit (access.Payers.Read).

// pace has the transport wait before the next read, if it must, after that many bytes were read.
func (s *session) pace(read int) {
	if s.conn == nil {
		return
	}
	pause := s.conn.Pause(1)
	if net := int64(read) - s.loop.admitted; net != 0 || s.halfReceived() {
		pause = max(pause, s.debt(net))
	}
	s.delay(pause)
}

// paceOn has the transport wait again if it must, after it has waited.
func (s *session) paceOn() {
	if s.phase != gone {
		s.delay(s.debt(0))
	}
}

// debt returns how long the client must not be read, after that many bytes that were not admitted.
//
// The first message of a connection says who the client is. Its beginning does not wait: the quota
// of an address is for strangers, and every client is one until then.
func (s *session) debt(bytes int64) time.Duration {
	const beginning = 64 << 10
	half, unfinished := s.halfReceived(), int64(0)
	if half && s.receiver.Held() > 0 { // otherwise the message is being discarded
		unfinished = s.clock.Bytes
	}
	pause := s.payers(s.credentials).Read(bytes, unfinished, s.loop.now)
	if half && !s.identified && !s.faulty && s.clock.Bytes <= beginning {
		return 0
	}
	return pause
}

// repay returns what the first message of a connection has cost the client's address before the
// message said who the client is. The client itself has paid nothing for those bytes, and does so
// now unless the message is admitted.
func (s *session) repay(stranger *access.Credentials) {
	if earlier := s.loop.earlier; s.conn != nil && earlier > 0 {
		s.loop.admitted -= earlier
		s.payers(stranger).Read(-earlier, 0, s.loop.now)
	}
}

// payers are the accounts that pay for what a client with these credentials sends.
func (s *session) payers(shown *access.Credentials) access.Payers {
	return s.loop.door.identities.Who(shown).Payers(s.conn.Account())
}

// delay stops reading for a while, during which the clocks of the client stand still.
func (s *session) delay(pause time.Duration) {
	if pause == 0 {
		return
	}
	s.transport.Rest(pause)
	s.lastInput = s.lastInput.Add(pause)
	if !s.clock.Began.IsZero() {
		s.clock.Began = s.clock.Began.Add(pause)
	}
}
