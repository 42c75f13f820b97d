package tcp

import (
	"fmt"
	"runtime/debug"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// A panic is a bug of the server. It ends one connection.

// rescue, deferred, ends the session after a panic, which would otherwise end the process.
func (s *session) rescue() {
	if r := recover(); r != nil {
		rethrow(r)
		s.loop.door.log.Error("panic while serving a connection; closing it",
			"peer", s.transport.Peer(), "panic", r, "stack", string(debug.Stack()))
		if !s.outbound.own { // answers being encoded are lost
			s.outbound = outbound{}
			s.loop.out, s.loop.vecs = nil, nil
		}
		s.close()
	}
}

// rethrow lets a violation of an invariant, which the strict build raises, end the process.
func rethrow(panicked any) {
	if v, is := panicked.(tensor.Violation); is {
		panic(v)
	}
}

// attempt takes a step of a call and turns a panic into an error. The panic is a bug of the server;
// it ends this connection and no other.
func (s *session) attempt(c *call, step func(*call) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			rethrow(r)
			s.loop.door.log.Error("panic while opening a request", "peer", s.transport.Peer(), "panic", r, "stack",
				string(debug.Stack()))
			s.leaveFor(metrics.ClosedError)
			err = fmt.Errorf("%w: %v", fault.ErrInternal, r)
		}
	}()
	return step(c)
}
