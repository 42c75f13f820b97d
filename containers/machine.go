package containers

import (
	"errors"
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// A machine is the state machine of a session: pure, without a clock, lock or socket. Events and
// times go in, actions come out, and tick returns when it must be called again.
//
//	          hello            draining, retire          last answer
//	fresh ------------> serving ------------> draining ------------> leaving --> ended
//	  |                    |                      |                     |
//	  +--------------------+--- fault, silence, or the socket's end ---+
//
// A container whose version is served with another declaration is waiting instead of serving, and
// leaves when there is a place for it.
type machine struct {
	clocks clocks
	phase  phase

	started time.Time
	message time.Time // of the last message received
	sent    time.Time // of the last message sent
	pinged  time.Time // of the last PING sent
	pause   time.Time // until then the container may be silent, as it announced
	leaving time.Time // of goodbye or refused
	out     int       // batches sent and not answered
}

// clocks are the times and rules of liveness of a generation.
type clocks struct {
	register  time.Duration // from connecting to being registered
	heartbeat time.Duration
	dead      time.Duration // silence after which the container is dead
	// Limit without a message, for an idle container that answers PINGs; at least dead.
	idle  time.Duration
	beats bool // the server sends heartbeats, too, instead of only answering them
	pings bool // the peer answers ZMTP's PING
	first bool // a hello must come before anything else
	// pauses: the container may be alive and yet answer no PING for a while, since an interpreter
	// lock that another of its threads holds keeps it from the socket.
	pauses bool
	mute   bool // the container sends no heartbeats: only PONGs show that it is alive
}

// silence returns when a container that was last heard at the given time is dead. One that pauses
// has, while it computes, the time of an idle one without messages: until then the execution
// timeout covers its batch, and the kernel reports whether its machine is reachable. The same holds
// between hello and its first heartbeat, and between a heartbeat that announces a pause and the
// next one. At other times nothing in the SDK holds the lock, and threads of the model's author
// have twice the usual time.
func (m *machine) silence(heard time.Time) time.Time {
	c := &m.clocks
	switch {
	case !c.pauses:
		return heard.Add(c.dead)
	case m.out > 0:
		return heard.Add(max(c.dead, c.idle))
	}
	return later(heard.Add(2*c.dead), m.pause)
}

type phase uint8

const (
	fresh   phase = iota
	waiting       // for the place of its version, without a replica
	serving
	draining
	leaving
	ended
)

func (p phase) String() string {
	return [...]string{"connecting", "waiting", "serving", "draining", "leaving", "ended"}[p]
}

// An event is something that happens to a session.
type event uint8

const (
	evNone      event = iota // nothing
	evHeartbeat              // a heartbeat arrived
	evPause                  // a heartbeat arrived that announces a pause
	evHello                  // a registration arrived
	evResult                 // an answer arrived
	evDraining               // the container wants no more batches
	evArena                  // it answers an offer of shared memory
	evGrant                  // it grants a batch, or says whether it grants them
	evSend                   // a batch is going out
	evAnswered               // a result was matched with its batch
	evMessage                // another message was sent
	evRetire                 // the server dismisses the container
	evDrained                // the last batch has been answered
	evRefused                // the registration was refused, and the container told
	evWaits                  // the container was told to wait for its place
)

// An action is what the shell must do, possibly several at once.
type action uint16

const (
	actBeat     action = 1 << iota // send a heartbeat, or the answer to one
	actPing                        // send a PING
	actRegister                    // try to register
	actDeliver                     // complete the batch
	actDrain                       // stop the replica's batches
	actGoodbye                     // say goodbye and half-close
	actArena                       // take note of an answer to an offer
	actGrant                       // pass a grant to the scheduler
	actRepeat                      // say goodbye with reconnect: the container must register first
)

var (
	errNotRegistered = errors.New("not registered")
	errSecondHello   = errors.New("registered twice on one connection")
	errEnded         = errors.New("containers: session has ended")
	errLingered      = fmt.Errorf("still connected %v after goodbye", lingerTime)
)

// step handles an event. An error is the reason why the session must end.
func (m *machine) step(e event, now time.Time) (action, error) {
	switch e {
	case evSend:
		m.out++
		m.sent = now
		return 0, nil
	case evAnswered:
		m.out--
		return 0, nil
	case evMessage:
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
	case evWaits:
		m.phase = waiting
		return 0, nil
	}

	// The remaining events are messages from the container.
	m.message = now
	switch e {
	case evHello, evPause:
		m.pause = now.Add(m.clocks.idle)
	case evHeartbeat:
		m.pause = time.Time{}
	}
	if m.phase == leaving {
		return 0, nil // it was told to leave: its messages no longer matter
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
		// A ZeroMQ socket reconnects by itself and continues where it was, unknown to a restarted
		// server.
		m.leave(now)
		return actRepeat, nil
	case e == evResult && m.phase != fresh:
		return actDeliver, nil
	case e == evDraining && m.phase != fresh:
		return m.drain(), nil
	case e == evArena:
		return actArena, nil
	case e == evGrant:
		return actGrant, nil
	}
	return 0, nil
}

func (m *machine) drain() action {
	if m.phase != serving && m.phase != waiting {
		return 0
	}
	m.phase = draining
	return actDrain
}

func (m *machine) leave(now time.Time) {
	m.phase, m.leaving = leaving, now
}

// tick checks the times. lastByte is when the peer's last bytes of any kind arrived.
//
// There are two signs of life. Any byte shows that the process runs and is reachable; PINGs, which
// ZeroMQ's own thread answers, provoke some, so silence soon means death. Messages show that the
// container itself runs. It may be unable to send any: a model that computes, or another one that
// is being loaded in its process, can hold Python's interpreter lock for many seconds. So no
// messages are required of a container that has a batch, which the execution timeout covers, and
// few of an idle one. A peer that does not know PING has messages only: while it is idle, messages
// must arrive as often as bytes must from others. Containers of v1 send nothing by themselves, so
// they are treated as if they always had a batch.
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
	next = now.Add(c.heartbeat)    // at the latest, so that a batch sent meanwhile is supervised
	at := func(t time.Time) bool { // reports whether t has come, else wakes at t
		if !now.Before(t) {
			return true
		}
		if t.Before(next) {
			next = t
		}
		return false
	}
	free := m.out > 0 || c.mute // it need not send messages
	idle := c.dead
	if c.pings {
		heard := later(m.message, lastByte)
		if at(m.silence(heard)) {
			return 0, time.Time{}, fmt.Errorf("silent for %v", now.Sub(heard).Round(time.Millisecond))
		}
		idle = max(idle, c.idle)
		if free || idle > c.dead {
			// An idle container is about to send a heartbeat: PING waits a little for it.
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

// checkRate checks the rate of a message of which the given bytes have arrived since it began. A
// container that computes may be silent, but a partial message holds memory.
func (m *machine) checkRate(now, since time.Time, bytes int64) error {
	if since.IsZero() || m.phase == fresh || m.phase >= leaving {
		return nil // other states have short timeouts of their own
	}
	limit := m.clocks.dead
	if m.clocks.pauses {
		limit = max(limit, m.clocks.idle)
	}
	if took := now.Sub(since); took > setting.Allowance(limit, bytes) {
		return fmt.Errorf("its message is too slow: %d bytes in %v", bytes, took.Round(time.Millisecond))
	}
	return nil
}
