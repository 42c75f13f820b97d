package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
)

// StreamStats is a snapshot of a stream. Counts and ages are those of the last Span, which is a
// minute or so, or less for a new stream.
type StreamStats struct {
	Name       string
	Client     string       // who sends it: see Frame; "" for that of a connection
	Connection uint64       // not 0: the stream is that of a connection
	Keep       setting.Keep // of its newest frame
	Waiting    int          // frames without an answer, waiting or executing
	Span       time.Duration
	Frames     int           // accepted
	Answered   int           // with outputs
	Superseded int           // frames
	Undated    int           // accepted frames whose time of capture cannot be right
	Age        time.Duration // worst age of a frame when its outputs were delivered
	// Worst time between the capture of an accepted frame and its arrival.
	Late   time.Duration
	Silent time.Duration // since its newest frame
	// Newest is how long ago the newest frame that was answered with outputs was captured; below 0:
	// none was.
	Newest time.Duration
}

// Streams returns the streams of the model, at most the given number: first those that wait for
// answers and get none, then those with the oldest frames.
func (m *Model) Streams(most int) []StreamStats {
	now := m.sched.now()
	m.mu.Lock()
	m.core.streams.forget(now)
	all := make([]StreamStats, 0, len(m.core.streams.byKey))
	for _, s := range m.core.streams.byKey {
		all = append(all, s.stats(now))
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b StreamStats) int {
		return cmp.Or(rank(b)-rank(a), cmp.Compare(b.Age, a.Age), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Connection, b.Connection))
	})
	return slices.Clone(all[:min(most, len(all))])
}

// OldestFrame returns the worst age of a frame when its outputs were delivered, in the last minute
// or so; 0: no frame was answered with outputs.
func (m *Model) OldestFrame() time.Duration {
	now := m.sched.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.core.streams.forget(now)
	age := int64(0)
	for _, s := range m.core.streams.byKey {
		age = max(age, s.recent[0].age, s.recent[1].age)
	}
	return time.Duration(age)
}

func rank(s StreamStats) int {
	if s.Answered == 0 && s.Waiting > 0 {
		return 1
	}
	return 0
}

func (s *stream) stats(now int64) StreamStats {
	a, b := &s.recent[0], &s.recent[1]
	t := StreamStats{
		Name: s.key.name, Connection: s.key.connection, Keep: setting.Keep(s.Keep),
		Span: time.Duration(now - b.since), Silent: time.Duration(now - s.active),
		Frames: a.frames + b.frames, Answered: a.answered + b.answered, Superseded: a.superseded + b.superseded,
		Undated: a.undated + b.undated,
		Age:     time.Duration(max(a.age, b.age)), Late: time.Duration(max(a.late, b.late)),
	}
	if s.client != nil {
		t.Client = s.client.name
	}
	if t.Newest = -1; s.shown != never {
		t.Newest = time.Duration(max(0, now-s.shown))
	}
	if t.Keep == 0 {
		t.Keep = setting.KeepAll
	}
	for f := s.Oldest.Request(); f != nil; f = f.node.Newer.Request() {
		t.Waiting++
	}
	return t
}

// streamCounts are the counts of a stream in a span of time.
type streamCounts struct {
	since                                 int64
	frames, answered, superseded, undated int
	age, late                             int64 // the worst
}

// streamRecent has the counts of a stream for the current span and for the one before. So the
// memory of a stream is bounded, and an event costs a comparison.
type streamRecent [2]streamCounts

const streamSpan = int64(30 * time.Second)

// begin begins the first span.
func (r *streamRecent) begin(now int64) { r[0].since, r[1].since = now, now }

// now returns the current span, which it begins if the last one is over.
func (r *streamRecent) now(now int64) *streamCounts {
	if now-r[0].since >= streamSpan {
		r[1], r[0] = r[0], streamCounts{since: now}
	}
	return &r[0]
}

// accepted records a frame that has arrived.
func (s *stream) accepted(f *Frame, now int64) {
	f.captured = min(f.captured, now) // the clock of a camera may be ahead of ours
	n := s.recent.now(now)
	n.frames++
	n.late = max(n.late, now-f.captured)
	if f.Undated {
		n.undated++
	}
}

// answered records that one of the answers being delivered has been delivered.
func (s *stream) answered(now int64) {
	n := s.recent.now(now)
	n.answered++
	n.age = max(n.age, now-s.captured)
	if s.shown == never || s.captured > s.shown {
		s.shown = s.captured
	}
}
