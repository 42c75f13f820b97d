package tcp

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Shared memory over Shiva: regions are registered through the Predict Protocol's paths. A request
// lists its tensors in shared memory in its metadata under shiva.MemoryKey, and so does an answer.
//
// A client that knows the sizes of outputs gives each of them a place. Other clients give an area,
// which takes large outputs in order as far as there is room.
//
// The regions are held from the time when the request is read until its answer has been written. A
// copy takes a millisecond per few megabytes, so the loop makes no copies: inputs are read before
// the call is opened, while its place in the line waits, and outputs are written before the call is
// complete.

// A placement is the metadata of a tensor in shared memory.
type placement struct {
	Name string `json:"name"`
	// Datatype is the Predict Protocol's. A place for an output has none.
	Datatype string `json:"datatype,omitempty"`
	Shape    []int  `json:"shape,omitempty"` // of an input or an answer
	parameter.Place
	Index int `json:"index,omitempty"` // in an answer: among all its tensors, placed or not

	held regions.Hold
}

// sharedTensors is the part of a request and its answer that is in shared memory.
type sharedTensors struct {
	Inputs  []placement `json:"inputs,omitempty"`
	Outputs []placement `json:"outputs,omitempty"`
	Area    *placement  `json:"area,omitempty"` // for other outputs; it has no name itself

	fetched []tensor.Tensor // the inputs
	err     error           // of fetching them
}

// hold resolves the names of the regions. After an error some may be held.
func (m *sharedTensors) hold(g *regions.Registry, client regions.Client) (err error) {
	for i := range m.Inputs {
		p := &m.Inputs[i]
		if p.held, err = g.HoldInput(client, p.Name, p.Place); err != nil {
			return err
		}
	}
	for i := range m.Outputs {
		p := &m.Outputs[i]
		if p.held, err = g.HoldOutput(client, p.Name, p.Place); err != nil {
			return err
		}
	}
	if m.Area != nil {
		m.Area.held, err = g.HoldOutput(client, "", m.Area.Place)
	}
	return err
}

// release releases the regions; m may be nil.
func (m *sharedTensors) release() {
	if m == nil {
		return
	}
	for _, list := range [][]placement{m.Inputs, m.Outputs} {
		for i := range list {
			list[i].held.Release()
		}
	}
	if m.Area != nil {
		m.Area.held.Release()
	}
}

func (p *placement) valid() bool { return p.Region != "" && p.Offset >= 0 && p.Size >= 0 }

// parseMemory reads the metadata about shared memory.
func parseMemory(value []byte, limits *shiva.Limits) (*sharedTensors, error) {
	m := new(sharedTensors)
	if err := json.Unmarshal(value, m); err != nil || value[0] != '{' {
		return nil, unexpected(shiva.MemoryKey, `an object with "inputs" and "outputs", lists of objects with name, region, offset, byte_size and, of inputs, datatype and shape`, value)
	}
	for what, list := range map[string][]placement{"inputs": m.Inputs, "outputs": m.Outputs} {
		if len(list) > limits.Tensors {
			return nil, fault.TooLarge("metadata key %q has %d %s, the limit (limits.tensors) is %d", shiva.MemoryKey,
				len(list), what, limits.Tensors)
		}
		for i := range list {
			p := &list[i]
			if p.Name == "" || !p.valid() {
				return nil, fault.Invalid("metadata key %q: %s[%d]: expected a name, a region, and an offset and byte_size of 0 or more, got %q, %q, %d and %d",
					shiva.MemoryKey, what, i, p.Name, p.Region, p.Offset, p.Size)
			}
		}
	}
	if p := m.Area; p != nil && !p.valid() {
		return nil, fault.Invalid("metadata key %q: area: expected a region, and an offset and byte_size of 0 or more, got %q, %d and %d",
			shiva.MemoryKey, p.Region, p.Offset, p.Size)
	}
	for _, p := range m.Inputs {
		d, ok := tensor.FromV2(p.Datatype)
		if !ok {
			return nil, fault.Invalid("input %q: %q is not a datatype", p.Name, p.Datatype)
		}
		if len(p.Shape) > limits.Rank || slices.ContainsFunc(p.Shape, func(n int) bool { return n < 0 }) {
			return nil, fault.Invalid("input %q: shape %v: expected at most %d dimensions (limits.rank) of 0 or more",
				p.Name, p.Shape, limits.Rank)
		}
		m.fetched = append(m.fetched, tensor.Tensor{Name: p.Name, DType: d, Shape: append(tensor.Shape{}, p.Shape...)})
	}
	return m, nil
}

var errBridge = fault.Invalid("metadata key %q is not supported in a request in bridge form", shiva.MemoryKey)

// fetchInputs begins to read the request's inputs in shared memory. waits reports that the call
// waits for them.
func (s *session) fetchInputs(c *call) (waits bool, err error) {
	q := &c.question
	if c.shared, err = parseMemory(q.shared, &s.loop.settings.Limits); err != nil {
		return false, err
	}
	switch named := len(c.message.Tensors) == 0 || q.names != nil; {
	case q.Bridge && len(c.shared.Inputs)+len(c.shared.Outputs) == 0:
		c.shared = nil // a bridge's outputs do not go to the area
		return false, nil
	case q.Bridge:
		return false, errBridge
	case len(c.shared.Inputs) > 0 && !named:
		return false, fault.Invalid("with inputs in shared memory, the tensors of the message need names: expected metadata key \"__tensors__\"")
	}
	if err := c.shared.hold(s.loop.door.regions, regions.Client{Address: s.address(), Who: q.Who}); err != nil {
		return false, err
	}
	if len(c.shared.Inputs) == 0 {
		return false, nil
	}
	left := s.loop.settings.Limits.MessageBytes
	for i := range c.message.Tensors {
		left -= int64(len(c.message.Tensors[i].Data))
	}
	var moved int64
	for i := range c.shared.Inputs {
		moved += min(c.shared.Inputs[i].Size, left) // fetch refuses a larger one
	}
	if err := c.use.More(moved, s.loop.now); err != nil {
		return false, err
	}
	c.enter(fetching)
	s.loop.door.copies.Go(func() { c.fetch(left) })
	return true, nil
}

// address returns the client's address, in the form of gate.ClientOf.
func (s *session) address() string {
	if s.client == "" {
		s.client = gate.ClientOf(s.transport.Peer())
	}
	return s.client
}

// fetch reads the inputs, and posts the call.
func (c *call) fetch(left int64) {
	d, m := c.session.loop.door, c.shared
	pool := gate.Memory{Pool: d.pool}
	for i := range m.Inputs {
		if m.err = m.Inputs[i].held.Fetch(&m.fetched[i], left, pool.Plain(nil).Get); m.err != nil {
			break
		}
		left -= m.Inputs[i].Size
	}
	c.session.loop.post(c)
}

// resumeFetched continues with a call whose inputs have been read, or could not be.
func (s *session) resumeFetched(c *call) {
	c.enter(held)
	c.gate.Own(c.shared.fetched...)
	if s.phase == gone && !s.abandoned() {
		s.loop.freeCall(c)
		return
	}
	if c.err = c.shared.err; c.err == nil {
		c.err = s.attempt(c, s.route)
	}
	switch {
	case c.err == nil && s.phase == gone:
		s.execute(c)
	case c.err == nil:
		s.submitHeld()
	case s.phase == gone:
		s.finish(c)
	default:
		s.unhold(c)
		s.finish(c)
	}
}

// checkOutputs checks that the model has the outputs, before it is executed in vain.
func (c *call) checkOutputs() error {
	if c.gate.Bridge && len(c.shared.Outputs) > 0 {
		return errBridge
	}
	for i := range c.shared.Outputs {
		if _, err := c.output(c.shared.Outputs[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// output returns the index of an output of the model.
func (c *call) output(name string) (int, error) {
	specs := c.gate.Target.Spec.Outputs
	i := slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == name })
	if i < 0 && len(specs) == 0 {
		return 0, fmt.Errorf("%w: the outputs of %q are not known until a container has registered",
			scheduler.ErrUnavailable, c.gate.Target.ID.Name)
	}
	if i < 0 {
		return 0, fault.Invalid("metadata key %q: no output %q; model %q has %d other outputs", shiva.MemoryKey, name,
			c.gate.Target.ID.Name, len(specs))
	}
	return i, nil
}

// isPlaced reports whether output i goes to shared memory.
func (c *call) isPlaced(i int) bool {
	if c.shared == nil {
		return false
	}
	name := c.gate.Target.Spec.Outputs[i].Name
	return slices.ContainsFunc(c.shared.Outputs, func(p placement) bool { return p.Name == name })
}

// hasSharedOutputs reports whether any output goes to shared memory.
func (c *call) hasSharedOutputs() bool {
	m := c.shared
	return m != nil && c.gate.Err == nil &&
		(len(m.Outputs) > 0 || m.Area != nil && slices.ContainsFunc(c.gate.Outputs, worthPutting))
}

// put writes the outputs that go to shared memory, and posts the call.
func (c *call) put() {
	if c.gate.Err = c.putNamed(); c.gate.Err == nil {
		c.fillArea()
	}
	c.session.loop.post(c)
}

// putNamed writes the outputs that have places.
func (c *call) putNamed() error {
	for i := range c.shared.Outputs {
		p := &c.shared.Outputs[i]
		at, err := c.output(p.Name)
		if err == nil {
			err = c.putOutput(p, at, p.held)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putOutput writes an output to a place that is held, and records it in p.
func (c *call) putOutput(p *placement, at int, held regions.Hold) error {
	t := c.gate.Outputs[at]
	t.Name = p.Name
	place, err := held.Put(&t)
	if err != nil {
		return err
	}
	p.Datatype, p.Shape, p.Place = t.DType.V2(), c.gate.ClientShape(at), place
	for _, before := range c.gate.Outputs[:at] {
		if before.DType != tensor.Bytes {
			p.Index++
		}
	}
	return nil
}

const (
	areaWorth   = 64 << 10 // smallest output that goes to the area, in bytes
	areaAligned = 64       // outputs begin at multiples of it, relative to the area
)

// worthPutting reports whether an output goes to the area if there is room. Texts do not, nor does
// bfloat16, which the message carries as float32.
func worthPutting(t tensor.Tensor) bool { return len(t.Data) >= areaWorth && t.DType.OnWire() }

// fillArea writes large outputs to the area, one after another. Outputs without room stay in the
// message, as do those that cannot be written, and those that a bridge or an adapter turns into
// text.
func (c *call) fillArea() {
	area := c.shared.Area
	if area == nil || c.gate.Bridge || c.gate.Target.Spec.Adapter != nil {
		return
	}
	var at int64 // in the area
	for i, t := range c.gate.Outputs {
		if !worthPutting(t) || int64(len(t.Data)) > area.Size-at || c.isPlaced(i) {
			continue
		}
		p := placement{Name: c.gate.Target.Spec.Outputs[i].Name}
		if c.putOutput(&p, i, area.held.From(at)) == nil {
			c.shared.Outputs = append(c.shared.Outputs, p)
			at += (p.Size + areaAligned - 1) / areaAligned * areaAligned
		}
	}
}

// appendPlaces appends the member that lists the outputs in shared memory.
func (c *call) appendPlaces(b []byte) []byte {
	text, err := json.Marshal(sharedTensors{Outputs: c.shared.Outputs})
	if err != nil {
		panic(err) // texts and numbers cannot fail
	}
	b = append(b, `"`+shiva.MemoryKey+`":`...)
	return append(append(b, text...), ',')
}

// regionPath begins the Predict Protocol's paths about shared memory.
const regionPath = "v2/systemsharedmemory/"

// region answers m if it is about regions; otherwise ok is false.
func (s *session) region(who *access.Identity, m *shiva.Message) (answer []byte, ok bool, err error) {
	path, ok := strings.CutPrefix(m.Namespace, regionPath)
	if !ok {
		return nil, false, nil
	}
	steps := strings.Split(path, "/")
	name, action := "", steps[len(steps)-1]
	if len(steps) == 3 && steps[0] == "region" {
		name = steps[1]
	} else if len(steps) != 1 {
		action = ""
	}
	g, client := s.loop.door.regions,
		regions.Client{Address: s.address(), Who: who,
			Source: access.Source{Identity: who.Name(), Address: s.transport.Peer(), Door: "tcp"}}
	var value any
	switch {
	case action == "status":
		var list []regions.Region
		list, err = g.Status(client, name)
		value = map[string]any{"regions": list}
	case action == "register" && name != "":
		var r regions.Region
		var connected bool
		if r, connected, err = parseRegion(name, m.Metadata); err == nil && connected {
			err, s.regions = g.RegisterFor(client, r, s), true
		} else if err == nil {
			err = g.Register(client, r)
		}
		value = r
	case action == "unregister":
		err = g.Unregister(client, name)
		value = map[string]any{"unregistered": name}
	default:
		return nil, false, nil // no model has such a route either
	}
	if regions.IsOff(err) {
		err = fmt.Errorf("%w: %s", scheduler.ErrNotFound, regions.Off)
	}
	if err != nil {
		return nil, true, err
	}
	answer, err = json.Marshal(value)
	return answer, true, err
}

// parseRegion reads the region to register, and whether it ends with the connection.
func parseRegion(name string, metadata []byte) (r regions.Region, connected bool, err error) {
	r.Name = name
	for key, value := range jsonscan.Members(metadata) {
		switch string(key) {
		case "key":
			text, ok := jsonscan.Unquote(value)
			if r.Key = text; !ok {
				return r, false, unexpected("key", "the name of a file, as shm_open takes it", value)
			}
		case "connection":
			if connected = string(value) == "true"; !connected && string(value) != "false" {
				return r, false, unexpected("connection", "true or false", value)
			}
		case "offset", "byte_size":
			n, ok := parameter.JSON(value).Whole()
			if !ok || n > math.MaxInt64 {
				return r, false, unexpected(string(key), "a whole number of bytes, 0 or more", value)
			}
			if string(key) == "offset" {
				r.Offset = int64(n)
			} else {
				r.Size = int64(n)
			}
		}
	}
	return r, connected, nil
}
