package scheduler_test

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// The stream of a connection is distinct from other streams of its name, and is forgotten when the
// connection is closed and its last frame is answered. A stream that any connection may name lasts
// a minute.
func TestConnectionStreamEnds(t *testing.T) {
	c := newCameras(t, 3, scheduler.ModelConfig{MaxBatch: 1, Slots: 1},
		&schedtest.Worker{Exec: schedtest.Linear(100*time.Millisecond, 0)})
	send := func(camera int, connection uint64) {
		r := c.request(1, 2, uint32(camera), uint32(c.sent[camera]))
		r.Frame = &scheduler.Frame{Stream: "10.0.0.7:5001", Connection: connection, Keep: 1, Seq: -1}
		c.sent[camera]++
		c.sched.Submit(r)
	}
	expect := func(when string, streams int) {
		t.Helper()
		if n := c.model.Stats().Streams; n != streams {
			t.Errorf("%s: expected %d streams, got %d", when, streams, n)
		}
		if err := c.model.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for camera := range 3 { // the first frame executes, the newest waits
		for range 3 {
			send(camera, uint64(camera))
		}
	}
	expect("three sources of one name", 3)
	c.model.EndStream("10.0.0.7:5001", 1)
	expect("a frame of an ended stream waits", 3)
	c.model.EndStream("10.0.0.7:5001", 7)
	c.model.EndStream("another", 2)
	expect("streams that are not there have ended", 3)
	c.clock.Advance(time.Second)
	expect("all frames are answered", 2)
	c.model.EndStream("10.0.0.7:5001", 2)
	expect("a silent stream has ended", 1)
	c.clock.Advance(time.Minute + time.Second)
	expect("a minute later", 0)
	for camera, want := range []int{2, 1, 1} {
		if c.shown[camera] != want || c.done[camera] != 3 {
			t.Errorf("of source %d %d frames were executed and %d answered, expected %d and 3", camera, c.shown[camera],
				c.done[camera], want)
		}
	}
	send(1, 1)
	expect("its number is used again", 1)
	c.clock.Advance(time.Second)
	expect("its number is used again, and answered", 1)
}
