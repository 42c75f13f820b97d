package server

import (
	"log/slog"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

// newPool makes the memory for payloads. With containers.arena, large payloads lie in an arena,
// which takes at most half of the memory: its idle memory counts, and idle memory between buffers
// in use may be in pieces too small for another buffer. The other half is ordinary memory, as is
// everything on a system without shared memory. retire gets the segments to be unmapped.
func newPool(c config.Config, log *slog.Logger) (*tensor.Pool, *containers.Arena) {
	payloads := int64(c.Limits.PayloadBytes)
	if !c.Containers.Arena {
		return tensor.NewPool(payloads), nil
	}
	a := containers.NewArena(payloads/2, func(err error) {
		log.Warn("shared memory is unavailable: containers receive all tensors over their connections", "reason", err)
	})
	return tensor.NewPoolFrom(a, payloads), a
}

// WatchShared registers f to be called each time that SharedBytes may have changed noticeably, for
// code that limits the memory of the process. Any goroutine may call WatchShared, and may call f.
func (s *Server) WatchShared(f func()) {
	s.arena.Watch(f)
	s.regions.Watch(f)
}

// SharedBytes returns the size of the memory for payloads outside the heap: that which containers
// share, in use and idle, and that which outputs have taken in files of clients.
func (s *Server) SharedBytes() int64 { return s.arena.Shared() + s.regions.Made() }
