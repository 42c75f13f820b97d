package unfinished

import (
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/access"
)

// A Message is the memory of one message that is arriving. The zero Message has not begun; Begin
// makes it ready for the next message. Methods of a Message that has not begun do nothing.
type Message struct {
	room    *Room // nil: not begun
	sender  Sender
	arrival access.Arrival
	arrived atomic.Int64 // bytes

	// Guarded by the room's mutex.
	party  *party // nil: it holds nothing, or was ended
	place  int
	began  time.Time
	held   int64
	ended  error // why; nil: it was not
	ending int64 // bytes held when it was ended
	gone   *part // the part that it was in then
}

func (m *Message) weight() int64 { return m.held }
func (m *Message) at() *int      { return &m.place }

// A Sender is where a message comes from.
type Sender struct {
	Payers access.Payers
	// Stranger: the client has to show who it is, and has not.
	Stranger bool
	// InFlight: what the message holds counts in the payers' quota of bytes in flight. A door that
	// charges the announced size of a request leaves it out.
	InFlight bool
	// Whole is the size of the message, for Add; 0: not announced.
	Whole int64
	// Reader is told that the message was ended.
	Reader Reader
}

// payer is the account that the message counts for.
func (s *Sender) payer() *access.Account {
	if s.Payers[0] != nil {
		return s.Payers[0]
	}
	return s.Payers[1]
}

// A Reader reads messages.
type Reader interface {
	// EndMessage asks for the memory of a message to be released, and says why. It must return at
	// once. It may be called from any goroutine, even when the message has finished meanwhile:
	// [Message.Ended] tells the goroutine that reads.
	EndMessage(why error)
}

// Begin begins a message. It must finish.
func (r *Room) Begin(m *Message, s Sender) {
	if r != nil {
		m.room, m.sender = r, s
		m.arrived.Store(0)
	}
}

// Begun reports whether the message has begun, and not finished.
func (m *Message) Begun() bool { return m.room != nil }

// Arrived records how many bytes of the message have arrived, by which its patience grows.
func (m *Message) Arrived(bytes int64) {
	if m.room != nil {
		m.arrived.Store(bytes)
	}
}

// Take sets the memory of the message to held bytes, and says how many it will be as far as its
// sender has announced. An error refuses the message: its memory must be released, and Finish
// called.
func (m *Message) Take(held, whole int64) error {
	r := m.room
	if r == nil {
		return nil
	}
	if m.sender.InFlight {
		if err := m.arrival.Hold(m.sender.Payers, held); err != nil {
			return err
		}
	}
	r.mu.Lock()
	ended, err := r.take(m, held, whole)
	r.mu.Unlock()
	tell(ended)
	return err
}

// Add is Take for more bytes than the message holds. A nil Message takes nothing.
func (m *Message) Add(more int64) error {
	if m == nil || m.room == nil {
		return nil
	}
	m.room.mu.Lock()
	held := m.held
	m.room.mu.Unlock()
	return m.Take(held+more, max(m.sender.Whole, held+more))
}

// take is Take with the room's mutex held.
func (r *Room) take(m *Message, held, whole int64) (ended []ending, err error) {
	if m.ended != nil || held == m.held || held == 0 && m.party == nil {
		return nil, m.ended
	}
	if m.party == nil {
		m.began = time.Now()
		r.enter(m)
	}
	if more := held - m.held; more > 0 {
		var victims []*Message
		if victims, err = r.makeRoom(m, more, whole); err != nil {
			held = m.held
		}
		for _, v := range victims {
			ended = append(ended, ending{v.sender.Reader, v.ended})
		}
	}
	r.resize(m, held)
	r.watch()
	return ended, err
}

// Ended returns why the room has ended the message; nil: it has not.
func (m *Message) Ended() error {
	if m.room == nil {
		return nil
	}
	m.room.mu.Lock()
	defer m.room.mu.Unlock()
	return m.ended
}

// Finish ends the message: it is complete, or its memory is released.
func (m *Message) Finish() {
	r := m.room
	if r == nil {
		return
	}
	m.arrival.End()
	r.mu.Lock()
	switch {
	case m.gone != nil:
		m.gone.ending -= m.ending
	case m.party != nil:
		r.resize(m, 0)
		r.remove(m)
	}
	m.held, m.ended, m.ending, m.gone = 0, nil, 0, nil
	r.mu.Unlock()
	m.room, m.sender = nil, Sender{}
}
