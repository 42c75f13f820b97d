package load

import (
	"errors"
	"fmt"
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
	}
	return nil
}
