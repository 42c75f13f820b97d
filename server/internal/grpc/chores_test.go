package grpc

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/budgettest"
)

// Chores are counted wherever the bytes are cut: PINGs, each setting, priorities, continuations,
// window updates, data without bytes, and unknown frames.
func TestChoresAreCounted(t *testing.T) {
	var sent bytes.Buffer
	w := http2.NewFramer(&sent, nil)
	w.AllowIllegalWrites = true
	for _, err := range []error{
		w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}), w.WriteSettingsAck(),
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("half")}),
		w.WriteContinuation(1, true, []byte("the rest")),
		w.WriteData(1, false, make([]byte, smallData)), w.WriteData(1, false, nil), w.WriteData(1, true, nil),
		w.WriteWindowUpdate(1, 30),
		w.WritePing(false, [8]byte{}), w.WritePing(true, [8]byte{}),
		w.WritePriority(1, http2.PriorityParam{}), w.WriteRawFrame(0xfa, 0, 0, nil),
		w.WriteRSTStream(1, http2.ErrCodeCancel), w.WriteGoAway(0, http2.ErrCodeNo, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all := sent.Bytes()
	for cut := range all {
		var f frames
		a, b := f.inspect(all[:cut]), f.inspect(all[cut:])
		if a.resets+b.resets != 1 || a.chores+b.chores != 11 || a.wrong || b.wrong {
			t.Errorf("cut at %d: %v and %v, expected 1 reset and 11 chores", cut, a, b)
		}
	}
}

// The frames of answers pay for the window updates of a client that reads them, one for the call
// and one for the connection with each frame, however late it sends them.
func TestReadersSendUpdates(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.sized("m", 4)
		c := r.caller()
		const calls = 200
		for i := range uint32(calls) {
			c.call(2*i+1, "ModelInfer", time.Minute, floats("m", 4), true)
		}
		if answers := c.ends(time.Second)["0"]; answers != calls {
			t.Fatalf("%d answers to %d calls", answers, calls)
		}
		for i := range uint32(calls) {
			c.must(c.framer.WriteWindowUpdate(2*i+1, 10))
			c.must(c.framer.WriteWindowUpdate(0, 10))
		}
		c.ends(0) // they have been read
		r.credits(func(k *cancels) {
			if k.credit < cancelCredit {
				t.Errorf("a client that has read %d answers has a credit of %.2f, expected %d", calls, k.credit,
					cancelCredit)
			}
		})
	})
}

// A connection is read at a limited pace once its chores have used up its account, to which answers
// add: a client that sends a PING with each answer never waits.
func TestChoresArePaid(t *testing.T) {
	var k cancels
	k.begin(false)
	now := k.at
	for range 100_000 {
		k.chores(now, 1)
		k.ended(now, answered, false)
	}
	if wait, low := k.debt(now); wait > 0 || low {
		t.Errorf("who measures the link with each answer waits for %v, low: %t", wait, low)
	}
	k.chores(now, choresPaid*(cancelCredit+cancelRate))
	if wait, low := k.debt(now); wait.Round(time.Millisecond) != time.Second || !low {
		t.Errorf("after a flood a connection waits for %v, low: %t, expected 1s", wait, low)
	}
}

// A host that was told to calm down, for too many PINGs, reconnects to a connection without credit.
func TestPingFlood(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.MinPing = time.Hour })
	c := r.caller()
	var host listen.Host
	budgettest.Until(t, "the connection", func() (there bool) {
		r.eachConn(func(c *conn) { host, there = c.Host(), true })
		return there
	})
	if r.door.banned(host, time.Now()) {
		t.Fatal("banned before it has done anything")
	}
	for range 10 {
		c.must(c.framer.WritePing(false, [8]byte{}))
	}
	for {
		if _, err := c.framer.ReadFrame(); err != nil {
			break
		}
	}
	budgettest.Until(t, "its next connection to begin without credit", func() bool {
		return r.door.banned(host, time.Now())
	})
}
