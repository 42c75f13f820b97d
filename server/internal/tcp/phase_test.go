package tcp

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A life is a session whose events are those of the tables below.
type life struct {
	t *testing.T
	*session
	transport *memory
	batches   []*scheduler.Batch // not answered
}

func newLife(t *testing.T) *life {
	l := &life{t: t}
	l.session, l.transport = newSession(t, func(b *scheduler.Batch) error {
		l.batches = append(l.batches, b)
		return nil
	}, nil)
	l.transport.later = true
	return l
}

// asks has the client send a request.
func (l *life) asks(metadata string) {
	ask, err := shiva.AppendMessage(nil, message("m", metadata, 1, 2, 3, 4))
	if err != nil {
		l.t.Fatal(err)
	}
	l.take(ask)
}

// babbles has the client send something else, for which the server refuses to read on.
func (l *life) babbles() { l.take([]byte("GET / HTTP/1.1")) }

// answers has the model answer the oldest batch.
func (l *life) answers() {
	b := l.batches[0]
	l.batches = l.batches[1:]
	b.Fail(errNot)
	l.loop.turn()
}

// turn takes a turn with an event.
func (l *life) turn(event func()) {
	l.loop.begin()
	event()
	l.loop.end()
}

// sessionLives are the events of sessions by what happens, with the phases that each leads through.
var sessionLives = map[string]struct {
	before func(l *life) // leads to the first phase
	event  func(l *life)
	path   []sessionPhase
}{
	"what arrives is no message": {
		func(l *life) { l.asks("{}") }, (*life).babbles, []sessionPhase{reading, leaving},
	},
	"and no answer is due": {
		func(*life) {}, (*life).babbles, []sessionPhase{reading, leaving, lingering},
	},
	"the client ends its direction": {
		func(l *life) { l.asks("{}") }, func(l *life) { l.turn(l.hangUp) }, []sessionPhase{reading, leaving, hungUp},
	},
	"and after that the last answer leaves": {
		func(l *life) { l.asks("{}"); l.turn(l.hangUp) }, (*life).answers, []sessionPhase{hungUp, ending},
	},
	"the client ends its direction after a refusal": {
		func(l *life) { l.asks("{}"); l.babbles() }, func(l *life) {
			l.turn(l.hangUp)
		}, []sessionPhase{leaving, hungUp},
	},
	"the server shuts down": {
		func(*life) {}, func(l *life) { l.loop.leave(true) }, []sessionPhase{reading, leaving, lingering},
	},
	"the server shuts down again": {
		func(l *life) { l.loop.leave(true) }, func(l *life) { l.loop.leave(true) }, []sessionPhase{lingering},
	},
	"the server shuts down when the session has ended": {
		func(l *life) { later(l.session, 2*time.Minute) }, func(l *life) { l.loop.leave(true) }, []sessionPhase{ending},
	},
	"the last answer leaves": {
		func(l *life) { l.asks("{}"); l.babbles() }, (*life).answers, []sessionPhase{leaving, lingering},
	},
	"the client is idle": {
		func(*life) {}, func(l *life) { later(l.session, 2*time.Minute) }, []sessionPhase{reading, ending},
	},
	"an answer cannot be written": {
		func(l *life) { l.asks("{}"); l.babbles(); l.transport.broken = os.ErrInvalid }, (*life).answers,
		[]sessionPhase{leaving, ending},
	},
	"the client has been quiet": {
		(*life).babbles, func(l *life) { later(l.session, 2*time.Second) }, []sessionPhase{lingering, ending},
	},
	"the transport ends": {func(*life) {}, endOfTransport, []sessionPhase{reading, gone}},
	"the transport ends before the answer": {func(l *life) { l.asks("{}"); l.babbles() }, endOfTransport,
		[]sessionPhase{leaving, gone}},
	"the transport ends after the peer's end": {func(l *life) { l.asks("{}"); l.turn(l.hangUp) }, endOfTransport,
		[]sessionPhase{hungUp, gone}},
	"the transport ends after the server's end": {(*life).babbles, endOfTransport, []sessionPhase{lingering, gone}},
	"the transport ends, as the server asked it to": {func(l *life) { l.turn(l.close) }, endOfTransport,
		[]sessionPhase{ending, gone}},
}

func endOfTransport(l *life) { l.turn(l.closed) }

// TestSessionPhases: every step of a session has an event that takes it, and no event takes
// another.
func TestSessionPhases(t *testing.T) {
	var taken [sessionPhases][]sessionPhase
	for name, tt := range sessionLives {
		for i, p := range tt.path[1:] {
			taken[tt.path[i]] = append(taken[tt.path[i]], p)
		}
		bubble(t, name, func(t *testing.T) {
			l := newLife(t)
			tt.before(l)
			if first := tt.path[0]; l.phase != first {
				t.Fatalf("it begins %v, expected %v", l.phase, first)
			}
			if tt.event(l); l.phase != tt.path[len(tt.path)-1] {
				t.Errorf("it is %v, expected %v", l.phase, tt.path)
			}
		})
	}
	compareSteps(t, sessionSteps[:], taken[:])
	impossible(t, sessionSteps[:], func(from, to sessionPhase) { (&session{phase: from}).enter(to) })
}

// callLives are the events of the last call in a session's line, with the phases that each leads
// through.
var callLives = map[string]struct {
	before func(l *life)
	event  func(l *life)
	path   []callPhase
}{
	"a request for no model": {func(l *life) { l.asks("{}") }, func(l *life) {
		ask, _ := shiva.AppendMessage(nil, message("none", "{}", 1))
		l.take(ask)
	}, []callPhase{free, opening, answered}},
	"a request": {func(*life) {}, func(l *life) { l.asks("{}") }, []callPhase{free, opening, inFlight}},
	"a request without room for its answer": {
		(*life).fills, func(l *life) { l.asks("{}") }, []callPhase{free, opening, held},
	},
	"there is room": {
		func(l *life) { l.fills(); l.asks("{}") }, (*life).answers, []callPhase{held, inFlight},
	},
	"the client is over its limit on another connection": {
		func(l *life) { l.fills(); l.asks("{}") },
		func(l *life) { l.turn(func() { c := l.tail; l.unhold(c); c.err = errNot; l.finish(c) }) },
		[]callPhase{held, answered},
	},
	"the client is gone while it waits": {
		func(l *life) { l.fills(); l.asks("{}") }, endOfTransport, []callPhase{held, free},
	},
	"inputs in shared memory": {
		(*life).shares, func(l *life) { l.turn(func() { l.sends("m"); l.expect(fetching) }); l.waitFor(inFlight) },
		[]callPhase{free, opening, fetching, held, inFlight},
	},
	"inputs in shared memory for no model": {
		func(l *life) { l.shares(); l.asks("{}") }, func(l *life) {
			l.turn(func() { l.sends("none") })
			l.waitFor(answered)
		},
		[]callPhase{free, opening, fetching, held, answered},
	},
	"its answer has come, and others are in its way": {
		func(l *life) {
			l.transport.full = true
			l.asks("{}")
			l.answers()
			l.asks("{}")
		}, (*life).answers, []callPhase{inFlight, answered},
	},
	"its answer has left": {
		func(l *life) { l.transport.full = true; l.asks("{}"); l.answers(); l.asks("{}"); l.answers() },
		func(l *life) { l.transport.full = false; roomFor(l.session) }, []callPhase{answered, free},
	},
	"the client is gone before it is submitted": {
		func(*life) {}, func(l *life) { l.turn(func() { l.sends("m"); l.expect(inFlight); l.closed() }) },
		[]callPhase{free, opening, inFlight, free},
	},
	"the server panics": {
		func(*life) {}, func(l *life) { l.turn(func() { l.appendCall(nil); l.closed() }) },
		[]callPhase{free, opening, free},
	},
}

// fills sends a request whose answer leaves no room for another one's.
func (l *life) fills() {
	next := l.loop.door.Settings()
	next.OutboundBytes = 16
	l.loop.door.Configure(next)
	l.asks("{}")
}

// shares registers a file, which sends refers to.
func (l *life) shares() {
	next := l.loop.door.Settings()
	next.Limits = shiva.Limits{MessageBytes: 1 << 20, MetadataBytes: 1 << 10, Tensors: 16, Rank: 8, JSONDepth: 32}
	l.loop.door.Configure(next)
	dir := l.t.TempDir()
	l.loop.door.regions.Configure(regions.Settings{Directory: dir, RegionBytes: 1 << 20, Regions: 8})
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 16), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := l.loop.door.regions.Register(regions.Client{},
		regions.Region{Name: "r", Key: "/file", Size: 16}); err != nil {
		l.t.Fatal(err)
	}
}

// sends sends a request within a turn, with an input in shared memory if there is any.
func (l *life) sends(route string) {
	m := message(route, "{}", 1, 2, 3, 4)
	if list, _ := l.loop.door.regions.Status(regions.Client{}, ""); len(list) > 0 {
		m = &shiva.Message{Namespace: route,
			Metadata: fmt.Appendf(nil, `{%q:{"inputs":[%s]}}`, shiva.MemoryKey, input(0))}
	}
	ask, err := shiva.AppendMessage(nil, m)
	if err != nil {
		l.t.Fatal(err)
	}
	l.traffic(ask)
}

// expect checks the phase of the last call in the line.
func (l *life) expect(p callPhase) {
	if l.tail.phase != p {
		l.t.Errorf("in this turn it is %v, expected %v", l.tail.phase, p)
	}
}

// waitFor takes turns until the last call in the line has the phase.
func (l *life) waitFor(p callPhase) {
	budgettest.Until(l.t, "the inputs to be read", func() bool {
		l.loop.turn()
		return l.tail.phase == p
	})
}

// TestCallPhases: every step of a call has an event that takes it, and no event takes another.
func TestCallPhases(t *testing.T) {
	var taken [callPhases][]callPhase
	for name, tt := range callLives {
		for i, p := range tt.path[1:] {
			taken[tt.path[i]] = append(taken[tt.path[i]], p)
		}
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			tt.before(l)
			c := l.tail
			first, last := tt.path[0], tt.path[len(tt.path)-1]
			if first == free {
				c = new(call)
				l.loop.calls.give(c)
			}
			if c.phase != first {
				t.Fatalf("it begins %v, expected %v", c.phase, first)
			}
			if tt.event(l); c.phase != last {
				t.Errorf("it is %v, expected %v", c.phase, tt.path)
			}
			if l.phase != gone {
				endOfTransport(l)
			}
			for len(l.batches) > 0 {
				l.answers()
			}
		})
	}
	compareSteps(t, callSteps[:], taken[:])
	impossible(t, callSteps[:], func(from, to callPhase) { (&call{phase: from}).enter(to) })
}

// compareSteps compares a table with the steps that were taken.
func compareSteps[P interface {
	~uint8
	fmt.Stringer
}](t *testing.T, table, taken [][]P) {
	for from := range table {
		slices.Sort(taken[from])
		want := slices.Sorted(slices.Values(table[from]))
		if got := slices.Compact(taken[from]); !slices.Equal(got, want) {
			t.Errorf("from %v the table leads to %v, and the events to %v", P(from), want, got)
		}
	}
}

// impossible tries every step that a table lacks. Only the strict build refuses them.
func impossible[P ~uint8](t *testing.T, table [][]P, enter func(from, to P)) {
	for from := range table {
		for to := range table {
			refused := func() (refused bool) {
				defer func() { _, refused = recover().(tensor.Violation) }()
				enter(P(from), P(to))
				return false
			}()
			if want := tensor.Invariants && !slices.Contains(table[from], P(to)); refused != want {
				t.Errorf("from %d to %d: refused %v, expected %v", from, to, refused, want)
			}
		}
	}
}
