package gate

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
)

// A Frame holds what the answer to a frame of a stream carries besides its outputs. It lives until
// the call is closed.
type Frame struct {
	Seq     int64         // the client's number for the frame; negative: none
	Age     time.Duration // at the time of the answer, since captured_at or else since it arrived
	Skipped int           // frames superseded since the last executed one

	// Captured is when the frame was taken, in the newest answer of a stream; else zero.
	Captured time.Time

	arrived time.Time
	place   scheduler.Frame

	identity, user, machine string // who sends it; may refer to reused memory
}

// An OwnStream is a connection's own stream, which no other connection can name. A request that
// names no stream is a frame of it. The door calls End when the connection is closed, and uses the
// stream from one goroutine at a time.
type OwnStream struct {
	Name       string // for display: the client's address
	Connection uint64 // never 0

	models []*scheduler.Model // existing models that were sent a frame of it
}

// noteModel records that a model is sent a frame.
func (s *OwnStream) noteModel(sched *scheduler.Scheduler, m *scheduler.Model) {
	if slices.Contains(s.models, m) {
		return
	}
	s.models = slices.DeleteFunc(s.models, func(m *scheduler.Model) bool {
		there, _ := sched.Model(m.ID())
		return there != m
	})
	s.models = append(s.models, m)
}

// End forgets the stream. s may be nil.
func (s *OwnStream) End() {
	if s != nil {
		for _, m := range s.models {
			m.EndStream(s.Name, s.Connection)
		}
	}
}

// Framed reports whether the request is a frame of a stream.
func (r *Request) Framed() bool { return r.Stream != "" || r.Own != nil }

// A Stream identifies a stream among those of all clients.
type Stream struct {
	Client     string // the sender; may refer to reused memory
	Name       string // may refer to reused memory
	Connection uint64 // 0: any connection of the client may send frames of it
}

// Stream identifies the stream that the frame belongs to.
func (f *Frame) Stream() Stream { return Stream{f.place.Client, f.place.Stream, f.place.Connection} }

// Enter makes the request a frame if its client or the setting of its door says so. Without a
// stream the keys of frames are a client's own.
func (c *Call) Enter(r *Request) error {
	if !r.Framed() {
		return nil
	}
	if c.Rows == 0 { // the frame would be answered at once, before older ones
		return fault.Invalid("expected at least one row in a frame of a stream, got none")
	}
	f := &c.frame
	*f = Frame{Seq: int64(r.Seq) - 1, arrived: r.Arrived, identity: r.Who.Name(), user: r.User, machine: r.Client}
	f.place = scheduler.Frame{Client: r.streamer(), Stream: r.Stream, Seq: f.Seq, Keep: r.Keep, Captured: r.CapturedAt,
		Undated: r.Undated}
	if f.place.Captured.IsZero() {
		f.place.Captured = r.Arrived
	}
	if r.Stream == "" {
		f.place.Stream, f.place.Connection = r.Own.Name, r.Own.Connection
	}
	if f.Seq < 0 && len(r.ID) <= longestBy {
		f.place.ID = string(r.ID)
	}
	c.Frame, c.request.Frame = f, &f.place
	return nil
}

// streamer is the owner of a frame's stream: the user that the request names, on any machine, or
// else the machine that sends it. Frames that an application sends to its models are kept separate
// from frames that clients send to these models directly.
func (r *Request) streamer() string {
	who := r.Client
	if r.User != "" {
		who = "user " + r.User
	}
	if r.Asker != nil {
		who = string(r.Asker.Target.kind()) + " " + r.Asker.Target.ID.Name + ", " + who
	}
	return who
}

// ClientOf returns the machine behind a peer's address, "host:port"; it distinguishes the streams
// of clients. Only the first half of an IPv6 address counts: a machine can choose the rest. For a
// process on this machine, "uid=1000,pid=4711", it is the user.
func ClientOf(peer string) string {
	if strings.HasPrefix(peer, "uid=") {
		user, _, _ := strings.Cut(peer, ",")
		return user
	}
	addr, err := netip.ParseAddrPort(peer)
	if err != nil {
		return peer
	}
	switch ip := addr.Addr().Unmap().WithZone(""); {
	case ip.IsLoopback() && ip.Is6():
		return "127.0.0.1" // "localhost" may resolve to either
	case ip.Is6():
		half, _ := ip.Prefix(64)
		return half.String()
	default:
		return ip.String()
	}
}

// longestBy bounds the id, in bytes, that tells a superseded frame which frame is newer, to keep
// errors small.
const longestBy = 256

// Keep returns how many frames of the stream may wait, according to the frame or else the settings
// of its model; 0: any number.
func (c *Call) Keep() int { return max(0, int(cmp.Or(c.frame.place.Keep, c.Target.Keep))) }

// Supersedes returns the error of an older frame of the stream that this one supersedes.
func (f *Frame) Supersedes() error {
	return &scheduler.SupersededError{Seq: f.Seq, ID: strings.Clone(f.place.ID)}
}

// MarkSent records that the answer leaves later than the model made it, and how many superseded
// frames its client knows of.
func (f *Frame) MarkSent(skipped int) {
	f.Age, f.Skipped = max(0, time.Since(f.place.Captured)), skipped
}

// answered sets the age of the frame. The clock of a camera may be ahead of the server's.
func (f *Frame) answered(c *Call) {
	f.Age, f.Skipped = max(0, time.Since(f.place.Captured)), f.place.Skipped
	c.Target.Metrics.Framed(f.place.Reordered)
	if c.Err == nil {
		c.Target.Metrics.ObserveAge(f.Age)
	}
}
