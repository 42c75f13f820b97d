package containers

import (
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// Containers that have sessions with only some of their servers. They are told how many sessions of
// their model this server has, and leave a server that has many for one that has fewer; package
// subset says how.

// mostSubsets bounds the models whose Subset is remembered after their last session.
const mostSubsets = 1024

// A Subset counts the servers with which a container has sessions, and all that its name resolves
// to.
type Subset struct {
	Size    int `json:"size"`
	Servers int `json:"servers"`
}

// Subset returns the subset of the container of a model that registered last; false: that container
// has sessions with all servers that it knows, or there was none.
func (l *Listener) Subset(id scheduler.ModelID) (Subset, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.subsets[id]
	return s, ok
}

// countLocked counts a session of a model that begins or ends.
func (l *Listener) countLocked(id scheduler.ModelID, by int) {
	if l.replicas[id] += by; l.replicas[id] == 0 {
		delete(l.replicas, id)
	}
}

// recordSubsetLocked records the subset that the container of a new session declared.
func (l *Listener) recordSubsetLocked(i *SessionInfo) {
	if i.Subset.Size == 0 {
		delete(l.subsets, i.Model)
		return
	}
	if len(l.subsets) >= mostSubsets {
		clear(l.subsets)
	}
	l.subsets[i.Model] = i.Subset
}

// replicasOf returns how many sessions a model has.
func (l *Listener) replicasOf(id scheduler.ModelID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replicas[id]
}

// recount tells a container that chooses among servers how many sessions its model has, if that has
// changed since it was last told.
func (s *session) recount() {
	s.mu.Lock()
	tell := s.info.Subset.Size > 0 && s.machine.phase == serving
	model := s.info.Model
	s.mu.Unlock()
	if !tell || s.conn.Waiting() {
		return
	}
	n := s.listener.replicasOf(model)
	s.mu.Lock()
	tell, s.reportedSessions = n != s.reportedSessions, n
	s.mu.Unlock()
	if tell {
		s.say(func(o *zmtp.Outgoing) bool { return say(o, wire.Heartbeat, wire.CountMessage{Replicas: n}) })
	}
}
