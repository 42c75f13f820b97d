package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// MaxStreams is the largest number of streams of a run.
const MaxStreams = 10_000

// Streams turns the requests of a run into frames of streams, as cameras send them: each has its
// number (seq) and the time at which it was due (captured_at). With Config.Rate they are spaced
// evenly, and the streams take turns.
type Streams struct {
	// Stamps has the places in each of Config.Frames whose values differ from frame to frame
	// ([Request.Encode]).
	Stamps []Stamp
	// Count is the number of streams. Stream i has the connections with numbers i, i + Count and so
	// on, so Config.Conns is a multiple of it. 0: each connection is a stream.
	Count int
	// Each, if set, is called with the answer to each frame, in the order of the answers, by the
	// thread of the connection's loop. It requires Shiva, and one connection for each stream.
	Each func(FrameAnswer)
}

// A FrameAnswer is the answer to a frame.
type FrameAnswer struct {
	Stream int   // its number
	Seq    int64 // of the frame, from 0
	// Times of capture and of the answer's arrival, since the beginning of the run.
	Due, At time.Duration
	Age     time.Duration // when the answer left, according to the server
	Skipped int           // frames superseded since the one that was executed before it
	Fault   string        // the type of the error; empty: the frame was executed
}

// FramesOf counts frames of a stream.
type FramesOf struct{ Answered, Superseded, Failed int64 }

// count is the number of streams.
func (c *Config) count() int {
	if c.Streams == nil {
		return 0
	}
	return c.Streams.Count
}

// streams fills in the defaults of a run of streams, or returns an error about options that exclude
// each other.
func (c *Config) streams() error {
	s := *c.Streams // a copy: the caller's does not change
	if s.Count == 0 {
		s.Count = max(c.Conns, 1)
	}
	c.Streams, c.Conns, c.Loops, c.Even = &s, max(c.Conns, s.Count), 1, true
	switch {
	case s.Count < 0 || s.Count > MaxStreams || c.Conns%s.Count != 0:
		return fmt.Errorf("load: %d streams on %d connections: expected at most %d, and a multiple of connections",
			s.Count, c.Conns, MaxStreams)
	case len(s.Stamps) != len(c.Frames):
		return fmt.Errorf("load: %d stamps for %d frames", len(s.Stamps), len(c.Frames))
	case c.Gather:
		return errors.New("load: the frames of streams are not gathered")
	case s.Each != nil && (c.Wire != Shiva || c.Conns != s.Count):
		return errors.New("load: inspecting frames needs the Shiva wire and one connection for each stream")
	}
	return nil
}

// A streamWire is Shiva with frames of a stream for requests, and decodes their answers for Each.
type streamWire struct {
	shivaWire
	Each     func(FrameAnswer)
	answered int64       // the number of the next answer's frame: a connection answers in order
	shown    FrameAnswer // the last answer
}

// read collects each answer, since the frame's metadata is at the end.
func (w *streamWire) read(p []byte, gather bool) (a answer, n int, err error) {
	if a, n, err = w.shivaWire.read(p, true); err != nil || !a.done {
		return a, n, err
	}
	if !gather {
		a.whole = nil
	}
	end := len(w.body) - w.namespace
	var head struct {
		Type    string  `json:"type"`
		Seq     *int64  `json:"seq"`
		AgeMS   float64 `json:"age_ms"`
		Skipped int     `json:"skipped"`
	}
	if err := json.Unmarshal(w.body[end-w.metadata:end], &head); err != nil {
		return a, n, fmt.Errorf("load: the metadata of an answer: %w", err)
	}
	w.shown = FrameAnswer{Stream: w.shown.Stream, Seq: w.answered, Age: time.Duration(head.AgeMS * 1e6),
		Skipped: head.Skipped}
	w.answered++
	switch {
	case a.fault:
		w.shown.Fault = head.Type
	case head.Seq == nil:
		return a, n, errors.New("load: the answer to a frame has no seq: the server knows no streams")
	case *head.Seq != w.shown.Seq:
		return a, n, fmt.Errorf("%w: frame %d of stream %d was answered as %d", errOutOfStep, w.shown.Seq,
			w.shown.Stream, *head.Seq)
	}
	return a, n, nil
}

// show passes the last answer to Each.
func (w *streamWire) show(due, now time.Duration) {
	w.shown.Due, w.shown.At = due, now
	w.Each(w.shown)
}
