package grpc

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/shiva/budgettest"
)

// Chores are counted wherever the bytes are cut: PINGs, settings, priorities, continuations and
// unknown frames, but nothing that a client sends for calls and their answers.
func TestChoresAreCounted(t *testing.T) {
	var sent bytes.Buffer
	w := http2.NewFramer(&sent, nil)
	w.AllowIllegalWrites = true
	for _, err := range []error{
		w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}), w.WriteSettingsAck(),
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("half")}),
		w.WriteContinuation(1, true, []byte("the rest")),
		w.WriteData(1, true, make([]byte, 30)), w.WriteWindowUpdate(1, 30),
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
		resets, chores := f.count(all[:cut])
		moreResets, moreChores := f.count(all[cut:])
		if resets+moreResets != 1 || chores+moreChores != 8 {
			t.Errorf("cut at %d: %d resets and %d chores, expected 1 and 8", cut, resets+moreResets, chores+moreChores)
		}
	}
}

// A connection is read at a limited pace once its chores have used up its account, to which answers
// add: a client that sends a PING with each answer never waits.
func TestChoresArePaid(t *testing.T) {
	var k cancels
	k.begin(false)
	now := k.at
	for range 100_000 {
		k.chores(now, 1)
		k.ended(now, false, false)
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
	var host intake.Host
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
	budgettest.Until(t, "its next connection to begin without credit", func() bool { return r.door.banned(host, time.Now()) })
}
