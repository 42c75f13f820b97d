package rest

import (
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/regions"
)

// sharer is the client whose regions a request may name.
func (c *call) sharer() regions.Client {
	return regions.Client{Address: c.conn.client, Who: c.who, Source: c.source()}
}

// fetch reads the inputs in shared memory. Their memory is taken after the body has been read, so
// that a slow body does not hold it. Pages of other origins may use no region: they could not read
// an answer, but all clients share the memory of a region.
func (q *request) fetch(b *body) error {
	placed := slices.ContainsFunc(q.inputs, func(in input) bool { return in.place.Region != "" }) ||
		slices.ContainsFunc(q.Outputs, func(out gate.Output) bool { return out.Place.Region != "" })
	if !placed {
		return nil
	}
	if err := q.call.byProgram(); err != nil {
		return err
	}
	memory := q.call.settings.Memory.Plain(nil) // even of a compressed request: regions are not
	left := b.limit - b.got
	for i := range q.inputs {
		in := &q.inputs[i]
		if in.place.Region == "" {
			continue
		}
		// Charge no more than Fetch accepts.
		if err := q.call.use.More(min(in.place.Size, left), time.Now()); err != nil {
			return err
		}
		if err := q.call.door.predict.Regions().
			Fetch(q.call.sharer(), &in.Tensor, in.place, left, memory.Get); err != nil {
			return err
		}
		left -= in.place.Size
	}
	return nil
}

// notOffered turns the error of a server without shared memory into that of an unknown path.
func notOffered(err error) error {
	if regions.IsOff(err) {
		return &refusal{status: http.StatusNotFound, err: err}
	}
	return err
}

// regionStatus lists all regions of shared memory, or one.
func (c *call) regionStatus() error {
	list, err := c.door.predict.Regions().Status(c.sharer(), c.model)
	return c.answer(list, notOffered(err))
}

// registerRegion registers part of a file as a region of shared memory.
func (c *call) registerRegion() error {
	if err := c.byProgram(); err != nil {
		return err
	}
	r := regions.Region{Name: c.model}
	err := c.object(func(t *text, name []byte) {
		what := func() string { return "region " + r.Name }
		switch string(name) {
		case "key":
			r.Key = t.str(what, `"key"`)
		case "offset":
			r.Offset = int64(t.whole(what, `"offset"`, math.MaxInt64))
		case "byte_size":
			r.Size = int64(t.whole(what, `"byte_size"`, math.MaxInt64))
		default:
			t.Raw()
		}
	})
	if err == nil {
		err = c.door.predict.Regions().Register(c.sharer(), r)
	}
	return c.answer(struct{}{}, notOffered(err))
}

// unregisterRegion unregisters a region of shared memory or, without a name, all of the client's.
func (c *call) unregisterRegion() error {
	if err := c.byProgram(); err != nil {
		return err
	}
	return c.answer(struct{}{}, notOffered(c.door.predict.Regions().Unregister(c.sharer(), c.model)))
}

// cudaStatus lists the regions of CUDA shared memory: none can be registered. Clients ask, and
// unregister all, before they use anything.
func (c *call) cudaStatus() error { return c.answer([]struct{}{}, nil) }

// unregisterCuda unregisters nothing.
func (c *call) unregisterCuda() error {
	return c.answer(struct{}{}, c.object(func(t *text, _ []byte) { t.Raw() }))
}
