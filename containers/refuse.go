package containers

import (
	"fmt"

	"github.com/shivad/shivad/containers/zmtp"
)

// Containers that may not serve their model: not at all, or no longer.

// refuse tells the container why it cannot register, if its generation has a message for it, and
// waits for it to hang up.
func (s *session) refuse(reason error) error {
	if !s.say(func(o *zmtp.Outgoing) bool { return s.codec.refused(o, reason.Error()) }) {
		return fmt.Errorf("refused: %w", reason)
	}
	s.note(fmt.Errorf("refused: %w", reason))
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

// replaced dismisses the container, which has not answered for a while: its model has other shapes
// now. It may register again, and serves when the one that replaced it has left.
func (s *session) replaced(reason error) {
	s.retire(goodbye{reason: reason.Error(), reconnect: true})
}
