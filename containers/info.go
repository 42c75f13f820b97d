package containers

import (
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/shivad/shivad/scheduler"
)

// SessionInfo is what is known of one container's connection, for status pages. Texts that came
// from the container are bounded and printable.
type SessionInfo struct {
	Number     uint64            `json:"number"`          // counts connections from 1
	State      string            `json:"state"`           // connecting, serving, failing (every batch), hung (it does not answer), draining, leaving
	Generation string            `json:"rpc,omitempty"`   // v1, v1b, v2, v2a, v3, v4; empty until its first message
	Model      scheduler.ModelID `json:"model"`           // zero until it has registered
	Remote     string            `json:"remote"`          // its address
	Label      string            `json:"label,omitempty"` // what it calls itself
	Since      time.Time         `json:"since"`           // connected
	Registered time.Time         `json:"registered"`      // zero until it has
	LastSeen   time.Time         `json:"last_seen"`       // its last message
	InFlight   int               `json:"in_flight"`       // batches out
	Oldest     time.Duration     `json:"oldest"`          // since the one of them was sent that has not been answered for longest
	Slots      int               `json:"slots"`           // most batches out; 0 until it has registered
	AtOnce     int               `json:"at_once"`         // batches that it executes at once; likewise
	Batches    uint64            `json:"batches"`         // sent
	Rows       uint64            `json:"rows"`            // in them
	Failures   uint64            `json:"failures"`        // batches that it failed, or answered with nonsense
	Strays     uint64            `json:"strays"`          // answers to batches that were not out

	Feedback        uint64 `json:"feedback,omitempty"`         // sent to a container that asks for it
	FeedbackDropped uint64 `json:"feedback_dropped,omitempty"` // not sent, as what came before had not been taken

	LastFailure string `json:"last_failure,omitempty"`
	Reason      string `json:"reason,omitempty"` // why it is ending
}

// snapshot copies the session's information.
func (s *session) snapshot() SessionInfo {
	s.mu.Lock()
	i, replica := s.info, s.replica
	i.State = s.machine.phase.String()
	i.InFlight = len(s.calls)
	s.mu.Unlock()
	if replica != nil {
		i.serves(replica)
	}
	return i
}

// serves adds what the scheduler knows of a container.
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
		i.LastFailure = bounded(stats.LastError)
	}
}

// maxReason bounds a reason in status and log.
const maxReason = 512

// bounded is an error's text for status and log, where nothing in it may be obeyed by a terminal.
func bounded(err error) string {
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

// log writes a line about the session, unless there are too many such lines.
func (s *session) log(level slog.Level, text string, args ...any) {
	i := s.snapshot()
	all := []any{"session", i.Number, "remote", i.Remote}
	if i.Model != (scheduler.ModelID{}) {
		all = append(all, "model", i.Model.String())
	}
	if i.Generation != "" {
		all = append(all, "rpc", i.Generation)
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
