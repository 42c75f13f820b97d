package regions

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
)

// A Hold is a place in a region that a request uses. The name is resolved once, when the request is
// accepted: afterwards the name may be unregistered, and belong to another client's region, while
// the request still reads and writes its own. The zero Hold holds nothing.
type Hold struct {
	registry *Registry
	file     *file
	place    parameter.Place
}

// An unusable is the error of memory that a request names. The request has not been executed, and
// may succeed with its tensors in the message.
type unusable struct{ error }

func (e unusable) Unwrap() error { return e.error }

// IsUnusable reports whether err is the refusal of the memory that a request names, before the
// request is executed: shared memory is off or not for this client, or the region is unknown, too
// small, read-only or lost.
func IsUnusable(err error) bool {
	_, ok := errors.AsType[unusable](err)
	return ok
}

// HoldInput holds the place of an input, whose name is for errors. The caller releases it.
func (g *Registry) HoldInput(client Client, name string, p parameter.Place) (Hold, error) {
	h, err := g.hold(client, p)
	return h, naming("input", name, err)
}

// HoldOutput holds the place of an output, which the server can write, so that no model is asked in
// vain. With an empty name the error does not mention the output. The caller releases the hold.
func (g *Registry) HoldOutput(client Client, name string, p parameter.Place) (Hold, error) {
	h, err := g.hold(client, p)
	if err == nil && h.file.readOnly {
		err = unusable{
			fmt.Errorf("%w: shared memory region '%s' takes no outputs: the server's user, %d, or the user who registered it may not write '%s'",
				fault.ErrPermissionDenied, p.Region, os.Geteuid(), h.file.Key)}
		h.Release()
		h = Hold{}
	}
	return h, naming("output", name, err)
}

// hold holds a place for a client, which may ask some model.
func (g *Registry) hold(client Client, p parameter.Place) (Hold, error) {
	if err := client.Who.CheckAny(access.Infer); err != nil {
		return Hold{}, err
	}
	h, err := g.find(client, p)
	if err != nil {
		err = unusable{err}
	}
	return h, err
}

// find finds the client's region of a place, which must lie within it.
func (g *Registry) find(client Client, p parameter.Place) (Hold, error) {
	if err := g.reaches(client); err != nil {
		return Hold{}, err
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	f := g.regions[client.id(p.Region)]
	switch {
	case f == nil:
		return Hold{}, fmt.Errorf("%w: Unable to find shared memory region: '%s': it is not registered, or no longer",
			scheduler.ErrNotFound, p.Region)
	case p.Offset > f.Size || p.Offset == f.Size && p.Size > 0:
		return Hold{}, fault.Invalid("Invalid offset for shared memory region: '%s': %d, where the region has %d bytes",
			p.Region, p.Offset, f.Size)
	case p.Size > f.Size-p.Offset:
		return Hold{}, fault.Invalid("Invalid offset + byte size for shared memory region: '%s': %d + %d, where the region has %d bytes",
			p.Region, p.Offset, p.Size, f.Size)
	}
	f.uses.Add(1)
	f.used.Store(time.Now().UnixNano())
	return Hold{g, f, p}, nil
}

// Release ends the use of the region. Call it once, after the last copy.
func (h Hold) Release() {
	if h.file != nil {
		h.registry.release(h.file)
	}
}

// From is the rest of the place from an offset within it on. It ends with h: do not release it.
func (h Hold) From(offset int64) Hold {
	h.place.Offset += offset
	h.place.Size -= offset
	return h
}
