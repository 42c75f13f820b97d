package containers

import (
	"errors"
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// Containers that may not serve their model, not at all or no longer, or not connect.

// refuse tells the container why it cannot register, if its generation has a message for it, and
// waits for it to hang up.
func (s *session) refuse(reason error) error {
	if !s.say(func(o *zmtp.Outgoing) bool { return s.codec.refused(o, reason.Error()) }) {
		return fmt.Errorf("refused: %w", reason)
	}
	s.setReason(fmt.Errorf("refused: %w", reason))
	if _, err := s.step(evRefused); err != nil {
		return err
	}
	s.mu.Lock()
	s.hold = false
	s.retimeLocked(0)
	s.mu.Unlock()
	s.conn.CloseWrite()
	return nil
}

// reject refuses the container for what it says, and reports that.
func (s *session) reject(reason error) error {
	s.reportRefusal(reason)
	return s.refuse(reason)
}

func (s *session) reportRefusal(reason error) {
	if f := s.listener.cfg.Refused; f != nil && !errors.Is(reason, scheduler.ErrDraining) {
		f(s.raw, s.snapshot(), reason)
	}
}

// replaced dismisses the container, which has not answered for a while: its model has other shapes
// now. It may register again, and serves when the one that replaced it has left.
func (s *session) replaced(reason error) {
	s.retire(goodbye{reason: reason.Error(), reconnect: true})
}

// mostParting is how many displaced connections may be told at a time why they end, for which they
// stay up to two seconds, beyond containers.sessions. Further ones just end, so that a flood ends
// as fast as it arrives.
const mostParting = 32

// displace ends a session that has not registered, to make room for others. If tell is true the
// peer is told why, in ZMTP, as its generation is not known yet: in its handshake by the goroutine
// that makes it, which a deadline wakes, and after that in place of a message.
func (s *session) displace(reason error, tell bool) {
	s.mu.Lock()
	conn, now := s.conn, time.Now()
	tell = tell && s.machine.phase == fresh && s.end == nil
	switch {
	case tell && conn == nil:
		s.end, s.unwanted = reason, reason
		_ = s.raw.SetDeadline(now) // of a socket that is open; a closed one needs none
	case tell:
		s.machine.leave(now)
		s.info.Reason = errorText(reason)
		s.retimeLocked(0)
	}
	s.mu.Unlock()
	switch {
	case !tell:
		s.kill(reason)
	case conn != nil:
		conn.Refuse(reason)
	}
}

// whyUnwanted is [zmtp.Config.Unwanted].
func (s *session) whyUnwanted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unwanted
}

// turnAway tells a peer that has just connected why it cannot stay, without waiting for it.
func (s *session) turnAway(reason error) {
	if s.encrypted {
		return // it expects TLS
	}
	// A new socket has room for it.
	_ = s.raw.SetWriteDeadline(time.Now().Add(time.Millisecond))
	_, _ = s.raw.Write(zmtp.Refusal(reason))
}
