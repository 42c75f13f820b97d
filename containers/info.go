package containers

import (
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/shivad/shivad/scheduler"
)

// SessionInfo describes one container's connection, for status pages. Texts sent by the container
// are bounded and printable.
type SessionInfo struct {
	Number uint64 `json:"number"` // counts connections from 1
	// Connecting, waiting (for the place of its version), serving, failing (every batch), hung (no
	// answer), draining, leaving.
	State string `json:"state"`
	// RPC is the protocol that the container speaks, as a word for operators: v0, v1, v1b, v2, v2a,
	// v3, v4; empty until its first message.
	RPC        string            `json:"rpc,omitempty"`
	Model      scheduler.ModelID `json:"model"`           // zero until it has registered
	Remote     string            `json:"remote"`          // its address
	Label      string            `json:"label,omitempty"` // its own name for itself
	Party      Party             `json:"-"`               // as [Config].Allow returned it
	Since      time.Time         `json:"since"`           // connected
	Registered time.Time         `json:"registered"`      // zero until it has
	// Again reports whether its process was registered before, with a server at the same address.
	// Containers before RPC v4, and older SDKs, do not say: nil.
	Again    *bool         `json:"-"`
	LastSeen time.Time     `json:"last_seen"` // time of its last message
	InFlight int           `json:"in_flight"` // batches in flight
	Oldest   time.Duration `json:"oldest"`    // age of the oldest batch in flight
	// Most batches in flight; 0 until it has registered.
	Slots int `json:"slots"`
	// Batches that it executes at once; 0 until it has registered.
	AtOnce  int    `json:"at_once"`
	Batches uint64 `json:"batches"` // sent
	Rows    uint64 `json:"rows"`    // in them
	// Failed batches, invalid answers included.
	Failures uint64 `json:"failures"`
	Strays   uint64 `json:"strays"` // answers to batches not in flight

	// Shared reports that several servers have sessions with the container, which grants each
	// batch.
	Shared bool `json:"shared,omitempty"`

	// Subset is the number of servers with which the container has sessions; zero: all that it
	// knows.
	Subset Subset `json:"subset,omitzero"`

	// Arena names the tensors that go by shared memory: "inputs", "outputs" or "inputs, outputs".
	Arena string `json:"arena,omitempty"`
	// Readable is the size of the inputs that it may be reading there, Outputs the size of its
	// segments for outputs.
	Readable int64 `json:"readable_bytes,omitempty"`
	Outputs  int64 `json:"output_bytes,omitempty"`
	// Replaced is the memory of replaced segments that it has not unmapped yet, and ReplacedFor the
	// time since the first of them was replaced. Other containers may keep the same inputs.
	Replaced    int64         `json:"replaced_bytes,omitempty"`
	ReplacedFor time.Duration `json:"replaced_for,omitempty"`

	Feedback uint64 `json:"feedback,omitempty"` // messages sent
	// Messages dropped because earlier feedback was unread.
	FeedbackDropped uint64 `json:"feedback_dropped,omitempty"`

	// Waiting says what keeps it, or kept it, from registering at once; "": nothing.
	Waiting     string `json:"waiting,omitempty"`
	LastFailure string `json:"last_failure,omitempty"`
	Reason      string `json:"reason,omitempty"` // why it is ending
}

// snapshot copies the session's information.
func (s *session) snapshot() SessionInfo {
	s.mu.Lock()
	i, replica := s.info, s.replica
	i.State = s.machine.phase.String()
	i.InFlight = len(s.calls)
	if s.sharing != nil {
		s.sharing.describe(&i, s.calls)
	}
	s.mu.Unlock()
	if replica != nil {
		i.serves(replica)
	}
	return i
}

// serves adds the scheduler's statistics of a replica.
func (i *SessionInfo) serves(r *scheduler.Replica) {
	stats := r.Stats()
	i.AtOnce, i.Slots, i.Oldest = stats.Concurrency, stats.Slots, stats.OldestBatch
	if i.State != serving.String() {
		return
	}
	switch stats.State {
	case scheduler.ReplicaFailing:
		i.State = "failing"
	case scheduler.ReplicaSuspect:
		i.State = "hung"
		i.LastFailure = errorText(stats.LastError)
	}
}

// maxReason bounds a reason in status and log.
const maxReason = 512

// errorText is an error's text for status and log, without anything that a terminal would
// interpret.
func errorText(err error) string {
	text := err.Error()
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason-3], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// log writes a line about the session, unless the throttle drops it.
func (s *session) log(level slog.Level, text string, args ...any) {
	i := s.snapshot()
	all := []any{"session", i.Number, "remote", i.Remote}
	if i.Model != (scheduler.ModelID{}) {
		all = append(all, "model", i.Model.String())
	}
	if i.RPC != "" {
		all = append(all, "rpc", i.RPC)
	}
	if i.Label != "" {
		all = append(all, "label", i.Label)
	}
	if i.Registered.IsZero() {
		s.listener.unknowns.write(strangers, level, text, append(all, args...)...)
	} else {
		s.listener.models.write(i.Model.String(), level, text, append(all, args...)...)
	}
}
