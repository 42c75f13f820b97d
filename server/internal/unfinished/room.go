package unfinished

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	// strangersBytes is what the messages of all strangers together may hold, and strangersPart
	// which part of a small budget.
	strangersBytes = 64 << 20
	strangersPart  = 8
	// sparePart of the budget is where the pool counts as full: messages that have been ended still
	// hold their memory for a moment.
	sparePart = 16
)

// A Room is the memory that unfinished messages may hold. A nil Room has room for everything.
type Room struct {
	// Log receives which messages end for want of room, once a second at most; nil: no log. Set it
	// before the first message.
	Log *slog.Logger

	pool *tensor.Pool

	mu               sync.Mutex
	known, strangers part
	spare            []*party // without messages
	watching         bool     // a watch is due
	refusedByPool    uint64   // at the last watch
	stats            Stats
	logged           time.Time
	unlogged         int
}

// A part of the room has a limit of its own.
type part struct {
	limit   int64 // 0: none
	held    int64 // by the messages of parties
	ending  int64 // by messages that were ended and have not released their memory yet
	parties ranking[*party]
	of      map[any]*party // by the account that pays
}

// A party is a payer with its unfinished messages.
type party struct {
	payer    any // key in part.of
	name     string
	part     *part
	place    int
	held     int64
	messages ranking[*Message]
}

func (p *party) weight() int64 { return p.held }
func (p *party) at() *int      { return &p.place }

// Stats are the figures of a room.
type Stats struct {
	Held      int64 // bytes of all unfinished messages that have memory of note
	Strangers int64 // of these, of strangers
	// Messages that ended because their payer held most, because they were slow while room was
	// short, and that were refused for want of room.
	Most, Slow, Refused uint64
}

// NewRoom makes the room of a pool.
func NewRoom(pool *tensor.Pool) *Room {
	r := &Room{pool: pool}
	budget := pool.Budget()
	r.strangers = part{limit: strangersBytes, of: make(map[any]*party)}
	r.known.of = make(map[any]*party)
	if budget > 0 {
		r.strangers.limit = min(strangersBytes, budget/strangersPart)
		r.known.limit = budget - budget/4 - r.strangers.limit
	}
	return r
}

// Stats returns the room's figures.
func (r *Room) Stats() Stats {
	if r == nil {
		return Stats{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Strangers = r.strangers.held + r.strangers.ending
	s.Held = r.known.held + r.known.ending + s.Strangers
	return s
}

// enter adds m to its payer's messages.
func (r *Room) enter(m *Message) {
	kind := &r.known
	if m.sender.Stranger {
		kind = &r.strangers
	}
	account := m.sender.payer()
	p := kind.of[account]
	if p == nil {
		if n := len(r.spare); n > 0 {
			p, r.spare = r.spare[n-1], r.spare[:n-1]
		} else {
			p = new(party)
		}
		p.payer, p.name, p.part = account, account.Payer(), kind
		kind.of[account] = p
		kind.parties.add(p)
	}
	m.party = p
	p.messages.add(m)
}

// resize sets what m holds.
func (r *Room) resize(m *Message, held int64) {
	p, more := m.party, held-m.held
	m.held = held
	p.held += more
	p.part.held += more
	p.messages.moved(m)
	p.part.parties.moved(p)
}

// remove takes m, which holds nothing, from its payer's messages.
func (r *Room) remove(m *Message) {
	const mostSpare = 256
	p := m.party
	m.party = nil
	if p.messages.remove(m); len(p.messages) > 0 {
		return
	}
	p.part.parties.remove(p)
	delete(p.part.of, p.payer)
	if p.payer = nil; len(r.spare) < mostSpare {
		r.spare = append(r.spare, p)
	}
}

// overLimit reports whether the part has no room for more bytes.
func (r *Room) overLimit(p *part, more int64) bool { return p.limit > 0 && p.held+more > p.limit }

// poolFull reports whether the pool has no room for more bytes, apart from its spare part and from
// what ended messages are about to release.
func (r *Room) poolFull(more int64) bool {
	budget := r.pool.Budget()
	return budget > 0 && r.pool.InUse()-r.known.ending-r.strangers.ending+more > budget-budget/sparePart
}

// makeRoom ends messages until there is room for m to hold more bytes, and whole in the end. It
// returns the ended messages, and an error if m itself has to end. For a pool that is full, perhaps
// of complete requests, it ends no more than m needs.
func (r *Room) makeRoom(m *Message, more, whole int64) (ended []*Message, err error) {
	mine, freed := m.party, int64(0)
	for r.overLimit(mine.part, more) || freed < more && r.poolFull(more) {
		v := r.victim(mine, mine.held+max(whole-m.held, more))
		if v == nil {
			if p := mine.part; p.held > m.held && r.overLimit(p, more) {
				return ended, r.refusal(m)
			}
			return ended, nil // the pool decides
		}
		freed += v.held
		r.end(v, errMost(v))
		r.stats.Most++
		ended = append(ended, v)
	}
	return ended, nil
}

// victim returns the message that ends for one of mine, whose payer will hold that much; nil: none.
// Those of strangers end first.
func (r *Room) victim(mine *party, will int64) *Message {
	if mine.part == &r.known && r.strangers.held > 0 && r.poolFull(0) {
		return r.strangers.parties[0].messages[0]
	}
	if top := mine.part.parties[0]; top != mine && top.held > will {
		return top.messages[0]
	}
	return nil
}

// end ends a message: its owner releases what it holds.
func (r *Room) end(v *Message, why error) {
	p := v.party.part
	v.ended, v.ending = why, v.held
	p.ending += v.held
	v.gone = p
	name := v.party.name
	r.resize(v, 0)
	r.remove(v)
	r.log(name, v.ending, why)
}

// An ending is a message that was ended, and whose reader has to be told, without the mutex.
type ending struct {
	reader Reader
	why    error
}

func tell(list []ending) {
	for _, one := range list {
		one.reader.EndMessage(one.why)
	}
}

// log writes why a message ends, once a second at most.
func (r *Room) log(payer string, bytes int64, why error) {
	now := time.Now()
	if r.Log == nil || now.Sub(r.logged) < time.Second {
		r.unlogged++
		return
	}
	r.Log.Warn("a message that was still arriving ends: memory for payloads is short", "payer", payer, "bytes", bytes,
		"error", why, "others since the last line", r.unlogged)
	r.logged, r.unlogged = now, 0
}

// refusal is the error of a message for which there is no room.
func (r *Room) refusal(m *Message) error {
	r.stats.Refused++
	if m.sender.Stranger {
		return fmt.Errorf("%w: clients that have not shown who they are share %v for messages that are still arriving, which is used up: show the token first, in a small message such as !whoami, and then send this one",
			scheduler.ErrOverloaded, setting.Bytes(m.party.part.limit))
	}
	return fmt.Errorf("%w: messages that are still arriving may hold %v of limits.payload_bytes, which is used up: send this message again later",
		scheduler.ErrOverloaded, setting.Bytes(m.party.part.limit))
}

// errMost is the error of a message that makes room for others.
func errMost(m *Message) error {
	advice := "send the message again later"
	if m.sender.Stranger {
		advice = "show the token first, in a small message such as !whoami, and then send this one"
	}
	return fmt.Errorf("%w: memory for messages that are still arriving is short, and %s held most of it, %v: %s",
		scheduler.ErrOverloaded, m.party.name, setting.Bytes(m.party.held), advice)
}
