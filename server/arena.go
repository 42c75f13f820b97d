package server

import (
	"github.com/shivad/shivad/containers/arena"
	"github.com/shivad/shivad/shiva/tensor"
)

// makePool makes the memory for payloads. Large ones lie in an arena, if that is on: as large as
// all of them, since it costs addresses until it is used. Without shared memory on this system they
// are ordinary memory.
func (s *Server) makePool() {
	payloads := int64(s.cfg.Limits.PayloadBytes)
	if !s.cfg.Containers.Arena {
		s.pool = tensor.NewPool(payloads)
		return
	}
	s.arena = arena.New(payloads,
		func(err error) { s.log.Warn("containers get all tensors as bytes", "reason", err) },
		func(segment *arena.Segment) {
			if l := s.containers.Listener(); l != nil {
				l.RetireSegment(segment)
			}
		})
	s.pool = tensor.NewPoolFrom(s.arena, payloads)
}

// sharedBytes is the size of the arena, in use and idle.
func (s *Server) sharedBytes() int64 {
	if s.arena == nil {
		return 0
	}
	return s.arena.Resident()
}
