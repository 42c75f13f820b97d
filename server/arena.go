package server

import (
	"github.com/shivad/shivad/containers/arena"
	"github.com/shivad/shivad/shiva/tensor"
)

// makePool makes the memory for payloads. Large ones lie in an arena, if that is on, of half of
// them at most: what is idle in it counts, and between buffers that are in use it may be in pieces
// that serve no large one. The other half is ordinary memory, as is all without shared memory on
// this system.
func (s *Server) makePool() {
	payloads := int64(s.cfg.Limits.PayloadBytes)
	if !s.cfg.Containers.Arena {
		s.pool = tensor.NewPool(payloads)
		return
	}
	s.arena = arena.New(payloads/2,
		func(err error) { s.log.Warn("containers get all tensors as bytes", "reason", err) },
		func(segment *arena.Segment) {
			if l := s.containers.Listener(); l != nil {
				l.RetireSegment(segment)
			}
		})
	s.pool = tensor.NewPoolFrom(s.arena, payloads)
}

// WatchShared has f called each time that the shared memory of containers has grown or shrunk
// noticeably, for what limits the memory of the process. Any goroutine may call it, and may call f.
func (s *Server) WatchShared(f func()) {
	if s.arena != nil {
		s.arena.Watch(f)
	}
}

// SharedBytes is the memory for payloads that is no part of the heap, in use and idle.
func (s *Server) SharedBytes() int64 {
	if s.arena == nil {
		return 0
	}
	return s.arena.Shared()
}

// arenaUsage is what the arena takes; nothing without one.
func (s *Server) arenaUsage() (u arena.Usage) {
	if s.arena != nil {
		u = s.arena.Usage()
	}
	return u
}
