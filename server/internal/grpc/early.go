package grpc

import (
	"context"
	"path"
	"sync"
	"time"

	intap "google.golang.org/grpc/tap"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
)

// refuseEarly is grpc-go's InTapHandle. It refuses a call by its headers if its client is nobody or
// if the call last refused on the connection exceeded a rate that is still used up. The goroutine
// that reads the connection does so at once. Otherwise grpc-go would hand the call to another
// goroutine, which first receives its message: a client at ten times its quota started ten such
// goroutines at a time, and other clients waited for a processor.
func (d *Door) refuseEarly(ctx context.Context, info *intap.Info) (_ context.Context, err error) {
	defer d.recovered(&err)
	c := connOf(ctx)
	end, now := c.calls.latest(), time.Now()
	if due, ok := ctx.Deadline(); ok && due.Sub(now) < shortest {
		c.cancels.ended(now, expired, false)
	}
	service, method := path.Split(info.FullMethodName)
	if end == nil || service != protocol || publicCalls[method] {
		return ctx, nil
	}
	who, infers := d.who(ctx), info.FullMethodName == pb.GRPCInferenceService_ModelInfer_FullMethodName
	if err := who.Enter(); err != nil {
		end()
		if infers {
			d.Refused(err, now)
		}
		if does := changingCalls[method]; does != [2]string{} {
			d.As(nil).Refused(sourceOf(ctx, who), does[0], does[1], "", err)
		}
		return ctx, statusOf(err).Err()
	}
	if !infers {
		return ctx, nil
	}
	refused := c.Again(func() access.Payers { return who.Payers(c.Account()) }, now)
	if refused == nil {
		return ctx, nil
	}
	end()
	d.Refused(refused, now)
	c.cancels.ended(now, answered, false)
	return ctx, d.refusals.status(refused)
}

// shortest is the time below which a call counts as late when it arrives: grpc-go ends many of them
// before they reach a handler. An answer pays for that several times.
const shortest = time.Millisecond

// protocol is the service of the Predict Protocol, as it begins the full names of its methods. The
// other services decide themselves what they show to whom.
const protocol = "/inference.GRPCInferenceService/"

// refusals caches the statuses of calls that are refused early. Statuses with the same time of
// retry, in milliseconds, are equal, and making one takes a fourth of the time of refusing a call.
type refusals struct {
	mu       sync.Mutex
	statuses map[access.QuotaError]error
}

const mostRefusals = 256 // cached statuses

// status returns the status of an error.
func (r *refusals) status(e *access.QuotaError) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := e.Words()
	s := r.statuses[words]
	if s == nil {
		if len(r.statuses) >= mostRefusals || r.statuses == nil {
			r.statuses = make(map[access.QuotaError]error)
		}
		s = statusOf(&words).Err()
		r.statuses[words] = s
	}
	return s
}

// A callsContext is the parent of the contexts of a connection's calls. It never ends.
//
// grpc-go ends the context of each call except those that InTapHandle refuses. The timer of such a
// context would keep it in memory until the deadline that the client has named, perhaps for years.
// So the parent learns how to end them: package context passes that function to a parent with a
// method AfterFunc. Only the goroutine that reads the connection makes and ends these contexts.
type callsContext struct {
	context.Context
	end    func() // ends the context of the latest call; nil: it has been taken
	ending bool
}

// latest returns, only once, the function that ends the context of the call that has just begun.
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

// neverClosed is not nil: of a parent whose Done is nil, package context would not call AfterFunc.
var neverClosed = make(chan struct{})

func (*callsContext) Done() <-chan struct{} { return neverClosed }

// Err is the error of a call's context that was ended by the function of latest.
func (c *callsContext) Err() error {
	if c.ending {
		return context.Canceled
	}
	return nil
}

// AfterFunc is called by package context for each context that is derived from this one.
func (c *callsContext) AfterFunc(end func()) (stop func() bool) {
	c.end = end
	return alwaysStopped
}

func alwaysStopped() bool { return true }
