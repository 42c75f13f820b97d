package containers

import (
	"errors"
	"fmt"
	"time"
)

// A machine is what a session knows about its life: pure, without a clock, lock or socket.
// Events and the time go in, actions come out, and next says when to tick again.
//
//	          hello            draining, retire          last answer
//	fresh ------------> serving ------------> draining ------------> leaving --> ended
//	  |                    |                      |                     |
//	  +--------------------+--- fault, silence, or the socket's end ---+
type machine struct {
	clocks clocks
	phase  phase

	started time.Time
	message time.Time // the last message arrived
	sent    time.Time // the last message went
	pinged  time.Time // the last PING went
	leaving time.Time // goodbye or refused was said
	out     int       // batches sent and not answered
}

// clocks are the times of a generation.
type clocks struct {
	register  time.Duration // from connecting to being registered
	heartbeat time.Duration
	dead      time.Duration // silence after which the container is dead
	idle      time.Duration // without a message from a container that has no batch but answers PINGs, after which it is dead; at least dead
	beats     bool          // the server beats too, instead of answering beats only
	pings     bool          // the peer answers ZMTP's PING
	first     bool          // a hello must come before anything else
	mute      bool          // the container does not beat: only its answers to PING show that it lives
}

type phase uint8

const (
	fresh phase = iota
	serving
	draining
	leaving
	ended
)

func (p phase) String() string {
	return [...]string{"connecting", "serving", "draining", "leaving", "ended"}[p]
}

// An event is something that happens to a session.
type event uint8

const (
	evNone      event = iota // nothing
	evHeartbeat              // a heartbeat arrived
	evHello                  // a registration arrived
	evResult                 // an answer arrived
	evDraining               // the container wants no more
	evSend                   // a batch is going out
	evAnswered               // a result was matched with its batch
	evSaid                   // another message went out
	evRetire                 // the server wants to part
	evDrained                // the last batch has been answered
	evRefused                // the registration was turned down, and the container told
)

// An action is what the shell must do, possibly several at once.
type action uint8

const (
	actBeat     action = 1 << iota // send a heartbeat, or the answer to one
	actPing                        // send a PING
	actRegister                    // try to register
	actDeliver                     // complete the batch
	actDrain                       // stop the replica's batches
	actGoodbye                     // say goodbye and half-close
	actRepeat                      // say goodbye with reconnect: the container must register first
)

var (
	errNotRegistered = errors.New("not registered")
	errSecondHello   = errors.New("registered twice on one connection")
	errEnded         = errors.New("containers: session has ended")
	errLingered      = fmt.Errorf("told goodbye and still here after %v", lingerTime)
)

// step takes an event. An error is the reason why the session must end.
func (m *machine) step(e event, now time.Time) (action, error) {
	switch e {
	case evSend:
		m.out++
		m.sent = now
		return 0, nil
	case evAnswered:
		m.out--
		return 0, nil
	case evSaid:
		m.sent = now
		return 0, nil
	case evRetire:
		return m.drain(), nil
	case evDrained:
		if m.phase >= leaving {
			return 0, nil
		}
		m.leave(now)
		return actGoodbye, nil
	case evRefused:
		m.leave(now)
		return 0, nil
	}

	// What is left are messages from the container.
	m.message = now
	if m.phase == leaving {
		return 0, nil // it has been told; what it still says changes nothing
	}
	switch {
	case e == evHello && m.phase == fresh:
		m.phase = serving
		return actRegister, nil
	case e == evHello && m.clocks.first:
		return 0, errSecondHello
	case e == evHeartbeat && !m.clocks.beats:
		return actBeat, nil
	case m.phase == fresh && m.clocks.first:
		// A ZeroMQ socket reconnects by itself and goes on where it was, which a restarted
		// server knows nothing of.
		m.leave(now)
		return actRepeat, nil
	case e == evResult && m.phase != fresh:
		return actDeliver, nil
	case e == evDraining && m.phase == serving:
		return m.drain(), nil
	}
	return 0, nil
}

func (m *machine) drain() action {
	if m.phase != serving {
		return 0
	}
	m.phase = draining
	return actDrain
}

func (m *machine) leave(now time.Time) {
	m.phase, m.leaving = leaving, now
}

// tick looks at the clock. lastByte is when the peer's last bytes arrived, whatever they were.
//
// There are two signs of life. Any byte shows that the process runs and can be reached; PINGs,
// which ZeroMQ's own thread answers, ask for some, so silence is death soon. Messages show that
// the container itself runs. It may be unable to send any, as a model that computes, or one that
// is being loaded beside it, can hold Python's interpreter lock for many seconds: nothing is
// asked of one that has a batch, which is the execution timeout's matter, and of an idle one no
// more than a message in a long while. A peer that does not know PING has messages only: while it
// has no batch they must come as soon as bytes would have to. Containers of v1 say nothing of
// themselves, so for them it is always as if they had one.
func (m *machine) tick(now, lastByte time.Time) (do action, next time.Time, err error) {
	switch m.phase {
	case ended:
		return 0, time.Time{}, nil
	case fresh:
		next = m.started.Add(m.clocks.register)
		if !now.Before(next) {
			return 0, time.Time{}, fmt.Errorf("%w within %v", errNotRegistered, m.clocks.register)
		}
		return 0, next, nil
	case leaving:
		next = m.leaving.Add(lingerTime)
		if !now.Before(next) {
			return 0, time.Time{}, errLingered
		}
		return 0, next, nil
	}
	c := m.clocks
	next = now.Add(c.heartbeat)    // at least, so that a batch that goes out meanwhile is looked after
	at := func(t time.Time) bool { // something due at t: now, or wake for it
		if !now.Before(t) {
			return true
		}
		if t.Before(next) {
			next = t
		}
		return false
	}
	free := m.out > 0 || c.mute // to say nothing
	idle := c.dead
	if c.pings {
		heard := later(m.message, lastByte)
		if at(heard.Add(c.dead)) {
			return 0, time.Time{}, fmt.Errorf("silent for %v", now.Sub(heard).Round(time.Millisecond))
		}
		idle = max(idle, c.idle)
		if free || idle > c.dead {
			// An idle container is about to beat: PING waits a little for it.
			wait := c.heartbeat
			if !free {
				wait += c.heartbeat / 2
			}
			if at(later(heard, m.pinged).Add(wait)) {
				m.pinged = now
				do |= actPing
			}
		}
	}
	if !free && at(m.message.Add(idle)) {
		return 0, time.Time{}, fmt.Errorf("no message for %v", now.Sub(m.message).Round(time.Millisecond))
	}
	if c.beats && at(m.sent.Add(c.heartbeat)) {
		do |= actBeat
	}
	return do, next, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// slowest is the rate in bytes per second at which a message has to arrive, as at the doors.
const slowest = 16 << 10

// crawls looks at a message that is under way, with that many bytes since then. Whatever silence
// is allowed to a container that computes: while it sends it does not wait for that, and what
// has come of the message holds memory.
func (m *machine) crawls(now, since time.Time, bytes int64) error {
	if since.IsZero() || m.phase != serving && m.phase != draining {
		return nil // those who have not registered, or are to go, have little time anyway
	}
	if took := now.Sub(since); took > m.clocks.dead+time.Duration(bytes/slowest)*time.Second {
		return fmt.Errorf("its message does not arrive: %d bytes in %v", bytes, took.Round(time.Millisecond))
	}
	return nil
}
