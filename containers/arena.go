package containers

import "github.com/shivad/shivad/containers/internal/arena"

// An Arena is memory for large payloads that containers on this machine map, so that tensors in it
// need not be sent. It is the memory of a [tensor.Pool] made by [tensor.NewPoolFrom], and the Arena
// of a [Config].
type Arena = arena.Arena

// A Segment is a part of an Arena, which containers map as a whole.
type Segment = arena.Segment

// ArenaUsage is how much memory an Arena takes.
type ArenaUsage = arena.Usage

// NewArena makes an arena of size bytes, which is also the size of a segment. It takes memory when
// the first buffer is made. broken is called with the reason when the system has no shared memory:
// all tensors travel over connections then. It is called without locks, by any goroutine that takes
// memory. Pass [Listener.RetireSegment] to the arena's OnRetire.
func NewArena(size int64, broken func(error)) *Arena { return arena.New(size, broken) }
