package containers

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// Messages of containers that several servers share and that grant batches: see scheduler/rounds.

// mostMillis bounds, in milliseconds, how long a container may say that something took.
const mostMillis = 3_600_000

// grantLimit is the longest grant message, in bytes.
const grantLimit = 256

// readGrant parses a grant message.
func readGrant(f []zmtp.Frame) (m wire.GrantMessage, err error) {
	if len(f) != 2 || len(f[1].Data) > grantLimit {
		return m, fmt.Errorf("grant of %d frames, expected grant | JSON of at most %d bytes", len(f), grantLimit)
	}
	if err := json.Unmarshal(f[1].Data, &m); err != nil {
		return m, fmt.Errorf("grant is not the JSON expected: %w", err)
	}
	if m.Each == nil && m.Grant == 0 || min(m.Here, m.Elsewhere, m.Target) < 0 {
		return m, fmt.Errorf("grant is %.64q, expected the key each, or grant of at least 1 with here, elsewhere and target of at least 0",
			f[1].Data)
	}
	return m, nil
}

// handleGrant passes a grant to the scheduler.
func (s *session) handleGrant(m wire.GrantMessage) {
	s.mu.Lock()
	replica := s.replica
	s.mu.Unlock()
	if replica == nil {
		return // the registration was refused
	}
	if m.Each != nil {
		replica.Share(*m.Each)
		s.mu.Lock()
		s.info.Shared = *m.Each
		s.mu.Unlock()
		return
	}
	replica.Grant(m.Grant, m.Here, m.Elsewhere, m.Target)
}

// offer tells the container how many rows wait for it. It implements
// scheduler.ReplicaOptions.Offer.
func (s *session) offer(o scheduler.Offer) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.dead {
		return
	}
	s.say(func(out *zmtp.Outgoing) bool { return say(out, wire.Offer, offerMessage(o)) })
}

func offerMessage(o scheduler.Offer) wire.OfferMessage {
	return wire.OfferMessage{Pass: o.Grant, Rows: o.Rows, DueMS: millis(o.Due), AgeMS: millis(o.Age)}
}

// millis is a time in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
