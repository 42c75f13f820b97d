package containers

import (
	"strings"
	"testing"
	"time"
)

// at is a time in seconds of the test's clock.
func at(s float64) time.Time { return time.Unix(1_000_000, 0).Add(time.Duration(s * 1e9)) }

// A moment is an event of a machine and its expected effect.
type moment struct {
	at   float64
	do   string // an event, or "tick", or "byte"
	want action
	next float64 // of a tick
	err  string
}

var eventNames = map[string]event{
	"heartbeat": evHeartbeat, "hello": evHello, "result": evResult, "draining": evDraining,
	"send": evSend, "answered": evAnswered, "said": evMessage, "pause": evPause, "retire": evRetire,
	"drained": evDrained, "refused": evRefused,
}

// The clocks of containers with a heartbeat of a second. The deaf ones answer no PING.
var (
	v4Clocks, v4Deaf = machineClocks(new(v4), true), machineClocks(new(v4), false)
	v4Pauses         = func() clocks { c := v4Clocks; c.pauses = true; return c }()
	v3Clocks         = machineClocks(new(v3), true)
	v1Clocks, v1Deaf = machineClocks(new(v1), true), machineClocks(new(v1), false)
)

func machineClocks(d codec, pings bool) clocks {
	c := d.clocks(time.Second)
	c.register, c.pings = 10*time.Second, pings
	return c
}

// machineLives are the events of sessions, with the machine's reaction to each.
var machineLives = []struct {
	name   string
	clocks clocks
	play   []moment
}{
	{"v4: beats, and dies of silence", v4Clocks, []moment{
		{at: 0, do: "tick", next: 10},
		{at: 1, do: "hello", want: actRegister},
		{at: 1, do: "said"},
		{at: 1, do: "tick", next: 2},
		{at: 2, do: "tick", want: actBeat, next: 2.5},
		{at: 2, do: "said"},
		{at: 2.5, do: "heartbeat"},
		{at: 3, do: "tick", want: actBeat, next: 4},
		{at: 3, do: "said"},
		{at: 4, do: "tick", want: actPing | actBeat, next: 5},
		{at: 4, do: "said"},
		{at: 5, do: "tick", want: actBeat, next: 5.5},
		{at: 5, do: "said"},
		{at: 5.5, do: "tick", err: "silent for 3s"},
	}},
	{"v4: idle and beating, is not sent a PING", v4Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 0.5, do: "said"},
		{at: 1.1, do: "heartbeat"},
		{at: 1.4, do: "tick", next: 1.5},
		{at: 2.2, do: "heartbeat"},
		{at: 2.5, do: "tick", want: actBeat, next: 3.5},
	}},
	{"v4: another model of the process holds the interpreter, and PONGs count", v4Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 1.5, do: "tick", want: actPing | actBeat, next: 2.5},
		{at: 1.6, do: "byte"},
		{at: 4, do: "tick", want: actPing | actBeat, next: 4.6},
		{at: 4.1, do: "byte"},
		{at: 6, do: "tick", want: actPing | actBeat, next: 7},
		{at: 6, do: "said"},
		{at: 6.1, do: "byte"},
		{at: 6.5, do: "tick", next: 7},
		{at: 9.1, do: "tick", err: "silent for 3s"},
	}},
	{"v4: says nothing for good, though its library answers", v4Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 10, do: "heartbeat"},
		{at: 39, do: "byte"},
		{at: 39.5, do: "tick", want: actBeat, next: 40},
		{at: 39.9, do: "byte"},
		{at: 40, do: "tick", want: actBeat, err: "no message for 30s"},
	}},
	{"v4: idle without PING must say something", v4Deaf, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 2, do: "byte"}, // part of a message that never ends
		{at: 3, do: "tick", err: "no message for 3s"},
	}},
	{"v4: computes without beating, and its PONGs count", v4Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 0, do: "send"},
		{at: 1, do: "tick", want: actPing | actBeat, next: 2},
		{at: 1, do: "said"},
		{at: 1.1, do: "byte"},
		{at: 2, do: "tick", want: actBeat, next: 2.1},
		{at: 2, do: "said"},
		{at: 2.1, do: "tick", want: actPing, next: 3},
		{at: 2.2, do: "byte"},
		{at: 9, do: "tick", err: "silent for 6.8s"},
	}},
	{"v4: a hung process is silent on every level", v4Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 0.5, do: "send"},
		{at: 2.9, do: "tick", want: actPing | actBeat, next: 3},
		{at: 3, do: "tick", want: actBeat, err: "silent for 3s"},
	}},
	{"v4: may pause while it loads, and while it computes", v4Pauses, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 29, do: "tick", want: actPing | actBeat, next: 30},
		{at: 29.5, do: "send"},
		{at: 29.9, do: "byte"},
		{at: 59, do: "tick", want: actPing | actBeat, next: 59.9},
		{at: 60, do: "tick", want: actBeat, err: "silent for 30.1s"},
	}},
	{"v4: may pause, and has no batch", v4Pauses, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 1, do: "heartbeat"},
		{at: 5, do: "tick", want: actPing | actBeat, next: 6},
		{at: 5.5, do: "byte"},
		{at: 6, do: "send"},
		{at: 20, do: "tick", want: actPing | actBeat, next: 21},
		{at: 21, do: "result", want: actDeliver},
		{at: 21, do: "answered"},
		{at: 26.9, do: "tick", want: actPing | actBeat, next: 27},
		{at: 27, do: "tick", err: "silent for 6s"},
	}},
	{"v4: announces a pause", v4Pauses, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 1, do: "heartbeat"},
		{at: 2, do: "pause"},
		{at: 3, do: "result", want: actDeliver},
		{at: 31.9, do: "tick", want: actPing | actBeat, next: 32},
		{at: 31.9, do: "pause"},
		{at: 40, do: "heartbeat"},
		{at: 45.9, do: "tick", want: actPing | actBeat, next: 46},
		{at: 46, do: "tick", err: "silent for 6s"},
	}},
	{"v4: announces a pause and comes back too late", v4Pauses, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 2, do: "pause"},
		{at: 32, do: "tick", err: "silent for 30s"},
	}},
	{"v4: announces a pause and has not said in hello that it pauses", v4Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 2, do: "pause"},
		{at: 5, do: "tick", err: "silent for 3s"},
	}},
	{"v4: announces a pause before hello", v4Pauses, []moment{
		{at: 1, do: "pause", want: actRepeat},
	}},
	{"v4: a peer without PING is left to the execution timeout", v4Deaf, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 0, do: "send"},
		{at: 60, do: "tick", want: actBeat, next: 61},
		{at: 60, do: "result", want: actDeliver},
		{at: 60, do: "answered"},
		{at: 63, do: "tick", err: "no message for 3s"},
	}},
	{"v4: never registers", v4Clocks, []moment{
		{at: 9.9, do: "tick", next: 10},
		{at: 10, do: "tick", err: "not registered within 10s"},
	}},
	{"v4: must register first", v4Clocks, []moment{
		{at: 1, do: "result", want: actRepeat},
		{at: 1, do: "hello"},
		{at: 2.9, do: "tick", next: 3},
		{at: 3, do: "tick", err: "still connected"},
	}},
	{"v4: registers twice", v4Clocks, []moment{
		{at: 1, do: "hello", want: actRegister},
		{at: 2, do: "hello", err: "twice"},
	}},
	{"v4: refused", v4Clocks, []moment{
		{at: 1, do: "hello", want: actRegister},
		{at: 1, do: "refused"},
		{at: 2, do: "hello"},
		{at: 2, do: "result"},
		{at: 3, do: "tick", err: "still connected"},
	}},
	{"v4: drains", v4Clocks, []moment{
		{at: 1, do: "hello", want: actRegister},
		{at: 1, do: "send"},
		{at: 2, do: "draining", want: actDrain},
		{at: 2, do: "draining"},
		{at: 2, do: "retire"},
		{at: 3, do: "result", want: actDeliver},
		{at: 3, do: "answered"},
		{at: 3, do: "drained", want: actGoodbye},
		{at: 3, do: "drained"},
		{at: 4, do: "heartbeat"},
		{at: 5, do: "tick", err: "still connected"},
	}},
	{"v1: says nothing, and its PONGs count", v1Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 1, do: "tick", next: 5},
		{at: 5, do: "tick", want: actPing, next: 10},
		{at: 5.1, do: "byte"},
		{at: 20, do: "tick", want: actPing, next: 25},
		{at: 35, do: "tick", want: actPing, next: 35.1},
		{at: 35.1, do: "tick", err: "silent for 30s"},
	}},
	{"v1: without PING there is only its connection", v1Deaf, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 500, do: "tick", next: 505},
		{at: 600, do: "retire", want: actDrain},
		{at: 600, do: "drained", want: actGoodbye},
	}},
	{"v3: every beat is answered, also before registration", v3Clocks, []moment{
		{at: 0, do: "heartbeat", want: actBeat},
		{at: 0, do: "result"}, // from an earlier session of its socket
		{at: 1, do: "hello", want: actRegister},
		{at: 2, do: "hello"}, // it was asked to register twice
		{at: 5, do: "heartbeat", want: actBeat},
		{at: 5, do: "tick", next: 10},
		{at: 34.9, do: "tick", next: 35},
		{at: 35, do: "tick", err: "silent for 30s"},
	}},
	{"v3: no beat while it computes", v3Clocks, []moment{
		{at: 0, do: "hello", want: actRegister},
		{at: 1, do: "send"},
		{at: 5, do: "tick", want: actPing, next: 10},
		{at: 5.1, do: "byte"},
		{at: 34, do: "tick", want: actPing, next: 35.1},
		{at: 34.5, do: "byte"},
		{at: 60, do: "tick", want: actPing, next: 64.5},
		{at: 64.5, do: "tick", err: "silent for 30s"},
	}},
}

// TestMachine plays the lives of sessions.
func TestMachine(t *testing.T) {
	for _, tt := range machineLives {
		t.Run(tt.name, func(t *testing.T) {
			m := machine{clocks: tt.clocks, started: at(0)}
			lastByte := at(0)
			for i, p := range tt.play {
				var do action
				var err error
				var next time.Time
				switch p.do {
				case "byte":
					lastByte = at(p.at)
				case "tick":
					do, next, err = m.tick(at(p.at), lastByte)
				default:
					e, ok := eventNames[p.do]
					if !ok {
						t.Fatalf("no event %q", p.do)
					}
					do, err = m.step(e, at(p.at))
				}
				if p.err != "" {
					if err == nil || !strings.Contains(err.Error(), p.err) {
						t.Errorf("%d, %s: error %v, expected %q", i, p.do, err, p.err)
					}
					continue
				}
				if err != nil || do != p.want {
					t.Errorf("%d, %s at %v: action %b, %v, expected %b", i, p.do, p.at, do, err, p.want)
				}
				if p.next != 0 && !next.Equal(at(p.next)) {
					t.Errorf("%d, %s at %v: next at %v, expected %v", i, p.do, p.at, next.Sub(at(0)), p.next)
				}
			}
		})
	}
}
