package grpc

import (
	"context"
	"sync"
	"time"

	intap "google.golang.org/grpc/tap"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/quota"
)

// refuseEarly is grpc-go's InTapHandle: it refuses a call by its headers, if the one that was
// refused last on the connection exceeded a rate of which nothing is left. The goroutine that reads
// the connection does that at once. Otherwise grpc-go would hand the call to another goroutine,
// which receives its message first: a client at ten times its quota had ten such goroutines begin
// at a time, and other clients waited for a processor.
func (d *Door) refuseEarly(ctx context.Context, info *intap.Info) (_ context.Context, err error) {
	defer d.recovered(&err)
	c := connOf(ctx)
	end := c.calls.latest()
	if end == nil || info.FullMethodName != pb.GRPCInferenceService_ModelInfer_FullMethodName {
		return ctx, nil
	}
	now := time.Now()
	refused := c.Again(func() quota.Payers {
		who := d.who(ctx)
		if who.Enter() != nil {
			return quota.Payers{} // the handler says so
		}
		return who.Payers(c.Account())
	}, now)
	if refused == nil {
		return ctx, nil
	}
	end()
	d.Refused(refused, now)
	c.cancels.ended(now, false, false)
	return ctx, d.refusals.of(refused)
}

// refusals are the statuses of calls that are refused early. They repeat, by the millisecond in
// which to try again, and to make one takes a fourth of what it takes to refuse a call.
type refusals struct {
	mu   sync.Mutex
	made map[quota.Error]error
}

const mostRefusals = 256 // statuses that are kept

// of is the status of an error.
func (r *refusals) of(e *quota.Error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := e.Words()
	s := r.made[words]
	if s == nil {
		if len(r.made) >= mostRefusals || r.made == nil {
			r.made = make(map[quota.Error]error)
		}
		s = statusOf(&words).Err()
		r.made[words] = s
	}
	return s
}

// A callsContext is what grpc-go makes the contexts of a connection's calls from. It never ends.
//
// grpc-go ends the context of each call but of those that InTapHandle refuses. The timer of such a
// context would keep it until the deadline that the client has named, which may be in years. So
// this one learns how they are ended: a parent that has a method AfterFunc is handed that by
// package context. The goroutine that reads the connection makes them, and no other uses this.
type callsContext struct {
	context.Context
	end    func() // ends the context of the latest call; nil: it has been taken
	ending bool
}

// latest returns what ends the context of the call that has just begun, once.
func (c *callsContext) latest() (end func()) {
	cancel := c.end
	if c.end = nil; cancel == nil {
		return nil
	}
	return func() {
		c.ending = true
		cancel()
		c.ending = false
	}
}

// never is a Done that package context does not take for a context without an end.
var never = make(chan struct{})

func (*callsContext) Done() <-chan struct{} { return never }

// Err is what a call's context ends with when this one ends it.
func (c *callsContext) Err() error {
	if c.ending {
		return context.Canceled
	}
	return nil
}

// AfterFunc is called by package context for each context that is made from this one.
func (c *callsContext) AfterFunc(end func()) (stop func() bool) {
	c.end = end
	return forgotten
}

func forgotten() bool { return true }
