package containertest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/internal/adapter"
	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Model is a Container's registration and script.
type Model struct {
	Name, Version   string
	Inputs, Outputs []tensor.Spec
	Batched         *bool // as in hello; nil: absent
	MaxBatch, Slots int
	Concurrency     int // as declared; the delays of replies overlap in any case
	Platform        string
	Instance        string
	Parameters      json.RawMessage
	Feedback        bool // it requests feedback, and ignores it
	Waits           bool // it says that it knows how to wait for its place
	// Size and number of servers of its subset; 0: it has sessions with all.
	Subset, Servers int
	Token           string
	// Answer returns the reply to a batch. It is called by one goroutine. nil echoes the inputs.
	Answer func(b *Batch) Reply
	// Grant returns the grant for rows that wait in the server, for a container that says that
	// other servers share it. The goroutine of Answer calls it. nil: the container does not say so,
	// and batches need no grant.
	Grant func(rows int) Grant
}

// Pictures tells of which pictures the rows of a batch are regions.
type Pictures struct {
	Of  []int // for each row, the index of its picture
	IDs []int
}

// A Grant is a grant to one of several servers that share the container.
type Grant struct {
	Delay     time.Duration // before the grant
	Elsewhere int           // rows that wait in other servers, as it says
	Target    int           // rows of its execution, as it says; 0: not said
	Silent    bool          // it grants nothing
	Alone     bool          // it says that it has no other server, and later that it has one
}

// A Batch is a batch that the container received. The test may retain it.
type Batch struct {
	N        int // counts from 1
	ID       uint64
	Rows     int
	Inputs   []tensor.Tensor
	Requests []int // rows of each request; nil: one each
	// Pictures has, by the name of an input whose rows are regions, the pictures that it has.
	Pictures   map[string]Pictures
	Parameters []string
	Metadata   []string
	Priority   []int
	Timeout    time.Duration // 0: none
	Header     string        // the JSON as it arrived
}

// A Reply is the scripted answer to a batch.
type Reply struct {
	// Before the answer; heartbeats continue meanwhile.
	Delay   time.Duration
	Outputs []tensor.Tensor // in the order and with the names of the declaration
	Rows    map[int]string  // errors of rows, by row
	Error   string          // error of the whole batch
	ID      uint64          // id in the answer; 0: that of the batch
	Twice   bool            // answer it twice
	// Rows of several servers that were executed in one call; 0: not said.
	Together int
	Frames   [][]byte // send these frames instead
	Silent   bool     // never answer
	Die      bool     // end the connection, as Kill does
}

// A Container is a connected container that serves its model until it is closed.
type Container struct {
	*Peer
	model Model
	beat  time.Duration

	wg sync.WaitGroup

	grants     uint64              // used by the reader only
	openGrants map[uint64]struct{} // neither used nor given back; used by the reader only

	mu      sync.Mutex
	timer   *time.Timer
	delayed map[*time.Timer]struct{}
	muted   bool
	closed  bool
	batches []*Batch
	goodbye *Goodbye
	err     error
	done    chan struct{}
}

// Goodbye is the server's goodbye message.
type Goodbye struct {
	Reason    string
	Reconnect bool
}

// A RefusedError is the server's refusal of a registration.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "containertest: refused: " + e.Reason }

// Join connects to a listener in memory.
func Join(l interface{ Add(net.Conn) error }, m Model) (*Container, error) {
	mine, theirs := Pipe()
	if err := l.Add(theirs); err != nil {
		mine.Close()
		return nil, err
	}
	return Start(mine, m)
}

// Dial connects to an address such as "tcp://127.0.0.1:7000" or "ipc://path".
func Dial(ctx context.Context, addr string, m Model) (*Container, error) {
	network, address := "tcp", strings.TrimPrefix(addr, "tcp://")
	if path, ok := strings.CutPrefix(addr, "ipc://"); ok {
		network, address = "unix", path
	}
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return Start(raw, m)
}

// Start registers over a connection and starts to serve. The error is a *RefusedError if the
// server refuses.
func Start(raw net.Conn, m Model) (*Container, error) {
	p, err := NewPeer(raw)
	if err != nil {
		return nil, err
	}
	c := &Container{Peer: p, model: m, done: make(chan struct{}), openGrants: make(map[uint64]struct{}),
		delayed: make(map[*time.Timer]struct{})}
	if err := c.register(); err != nil {
		p.Close()
		return nil, err
	}
	c.mu.Lock()
	c.timer = time.AfterFunc(c.beat, c.tick)
	c.mu.Unlock()
	c.wg.Go(c.serve) // ends with the connection; joined by Close
	return c, nil
}

// Hello returns the JSON of a registration.
func Hello(m Model) []byte {
	var subset *wire.SubsetMessage
	if m.Subset > 0 {
		subset = &wire.SubsetMessage{Size: m.Subset, Servers: m.Servers}
	}
	text, err := json.Marshal(wire.HelloMessage{
		Protocol: wire.Version, Model: m.Name, Version: m.Version, Platform: m.Platform,
		Inputs: wire.Declare(m.Inputs), Outputs: wire.Declare(m.Outputs),
		Batched: m.Batched, MaxBatch: m.MaxBatch, Concurrency: m.Concurrency, Slots: m.Slots, Parameters: m.Parameters,
		Instance: m.Instance,
		Feedback: m.Feedback, Waits: m.Waits, Grants: m.Grant != nil, Subset: subset, Token: m.Token,
	})
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

func (c *Container) register() error {
	if err := c.Send([]byte(wire.Hello), Hello(c.model)); err != nil {
		return err
	}
	f, err := c.Receive()
	if err != nil {
		return err
	}
	switch {
	case string(f[0]) == wire.Welcome && len(f) == 2:
		var w wire.WelcomeMessage
		if err := json.Unmarshal(f[1], &w); err != nil {
			return err
		}
		c.beat = time.Duration(w.HeartbeatMS) * time.Millisecond
		if c.model.Grant != nil {
			return c.each(true)
		}
		return nil
	case string(f[0]) == wire.Refused && len(f) == 2:
		var r wire.RefusedMessage
		if err := json.Unmarshal(f[1], &r); err != nil {
			return err
		}
		return &RefusedError{r.Error}
	}
	return fmt.Errorf("containertest: hello was answered with %q", f)
}

func (c *Container) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.timer.Reset(c.beat)
	if !c.muted {
		_ = c.Send([]byte(wire.Heartbeat)) // the reader reports a failure
	}
}

func (c *Container) serve() {
	defer close(c.done)
	for {
		f, err := c.Receive()
		if err == nil {
			switch string(f[0]) {
			case wire.Batch:
				err = c.handleBatch(f)
			case wire.Offer:
				var o wire.OfferMessage
				if err = json.Unmarshal(f[1], &o); err == nil && o.Pass > 0 {
					err = c.closeGrant(o.Pass)
				} else if err == nil {
					err = c.offered(o.Rows)
				}
			case wire.Goodbye:
				var g wire.GoodbyeMessage
				err = json.Unmarshal(f[1], &g)
				c.mu.Lock()
				c.goodbye = &Goodbye{g.Reason, g.Reconnect}
				c.mu.Unlock()
				c.conn.CloseWrite()
			}
		}
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			c.conn.Abort(err)
			return
		}
	}
}

// handleBatch answers a batch according to the script.
func (c *Container) handleBatch(f [][]byte) error {
	var h wire.BatchHeader
	if len(f) < 3 || len(f[1]) != wire.IDSize {
		return fmt.Errorf("containertest: batch of %d frames", len(f))
	}
	if err := h.Parse(f[2]); err != nil {
		return err
	}
	if len(h.Inputs) != len(f)-3 {
		return fmt.Errorf("containertest: %d inputs in %d frames", len(h.Inputs), len(f)-3)
	}
	b := &Batch{
		ID: binary.LittleEndian.Uint64(f[1]), Rows: h.Rows, Priority: h.Priority, Header: string(f[2]),
		Timeout: time.Duration(h.Timeout * float64(time.Millisecond)),
	}
	if len(h.Requests) > 0 {
		b.Requests = h.Requests
	}
	for _, p := range h.Parameters {
		b.Parameters = append(b.Parameters, string(p))
	}
	for _, p := range h.Pictures {
		if b.Pictures == nil {
			b.Pictures = make(map[string]Pictures)
		}
		b.Pictures[string(p.Input)] = Pictures{p.Of, p.IDs}
	}
	for _, m := range h.Metadata {
		b.Metadata = append(b.Metadata, string(m))
	}
	for i, in := range h.Inputs {
		t := tensor.Tensor{Name: string(in.Name), DType: in.DType, Shape: in.Shape, Data: f[3+i]}
		if err := t.Check(); err != nil {
			return err
		}
		b.Inputs = append(b.Inputs, t)
	}
	if h.Grant > 0 {
		if err := c.closeGrant(h.Grant); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.batches = append(c.batches, b)
	b.N = len(c.batches)
	muted := c.muted
	c.mu.Unlock()
	if muted {
		return nil
	}
	r := Reply{Outputs: b.Inputs}
	if c.model.Answer != nil {
		r = c.model.Answer(b)
	}
	if h.Left > 0 {
		if err := c.offered(h.Left); err != nil {
			return err
		}
	}
	return c.later(r.Delay, func() error { return c.reply(b, r) })
}

// later calls f after a while, unless the container is closed before.
func (c *Container) later(d time.Duration, f func() error) error {
	if d <= 0 {
		return f()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		c.mu.Lock()
		_, wanted := c.delayed[t]
		delete(c.delayed, t)
		c.mu.Unlock()
		if wanted {
			_ = f() // the reader reports a failure
		}
	})
	c.delayed[t] = struct{}{}
	return nil
}

// each tells the server whether batches need a grant.
func (c *Container) each(on bool) error { return c.tell(wire.GrantMessage{Each: &on}) }

// offered answers an offer of rows according to the script.
func (c *Container) offered(rows int) error {
	c.mu.Lock()
	muted := c.muted
	c.mu.Unlock()
	if muted || c.model.Grant == nil {
		return nil
	}
	g := c.model.Grant(rows)
	switch {
	case g.Silent:
		return nil
	case g.Alone:
		if err := c.each(false); err != nil {
			return err
		}
		return c.later(g.Delay, func() error { return c.each(true) })
	}
	c.grants++
	c.openGrants[c.grants] = struct{}{}
	m := wire.GrantMessage{Grant: c.grants, Here: rows, Elsewhere: g.Elsewhere, Target: g.Target}
	return c.later(g.Delay, func() error { return c.tell(m) })
}

// closeGrant closes a grant that a batch uses, or that is given back.
func (c *Container) closeGrant(grant uint64) error {
	if _, is := c.openGrants[grant]; !is {
		return fmt.Errorf("containertest: the server used or returned grant %d of %d, which is not open",
			grant, c.grants)
	}
	delete(c.openGrants, grant)
	return nil
}

func (c *Container) tell(m wire.GrantMessage) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return c.Send([]byte(wire.Grant), text)
}

var errScript = errors.New("containertest: the script ends the connection")

func (c *Container) reply(b *Batch, r Reply) error {
	switch {
	case r.Die:
		if t, ok := c.raw.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		c.conn.Abort(errScript)
		return errScript
	case r.Silent:
		return nil
	case r.Frames != nil:
		return c.Send(r.Frames...)
	}
	frames := Result(b.ID, c.model.Outputs, r)
	if r.Twice {
		if err := c.Send(frames...); err != nil {
			return err
		}
	}
	return c.Send(frames...)
}

// Result returns the frames of an answer to a batch.
func Result(id uint64, outputs []tensor.Spec, r Reply) [][]byte {
	if r.ID != 0 {
		id = r.ID
	}
	frames := [][]byte{[]byte(wire.Result), binary.LittleEndian.AppendUint64(nil, id)}
	if r.Error != "" {
		return append(frames, append(jsonscan.AppendString([]byte(`{"error":`), r.Error), '}'))
	}
	h := []byte(`{"outputs":[`)
	for i, t := range r.Outputs {
		if i > 0 {
			h = append(h, ',')
		}
		name := t.Name
		if i < len(outputs) {
			name = outputs[i].Name
		}
		h = wire.AppendTensor(h, name, t.DType, -1, t.Shape)
	}
	h = append(h, ']')
	if r.Together > 0 {
		h = wire.AppendTogether(h, r.Together, 0)
	}
	if len(r.Rows) > 0 {
		var list []wire.RowError
		for row, text := range r.Rows {
			list = append(list, wire.RowError{Row: row, Message: []byte(text)})
		}
		h = wire.AppendRowErrors(h, list)
	}
	frames = append(frames, append(h, '}'))
	for _, t := range r.Outputs {
		frames = append(frames, t.Data)
	}
	return frames
}

// Batches returns the batches received so far.
func (c *Container) Batches() []*Batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Batch(nil), c.batches...)
}

// Mute(true) makes the container hang: it sends neither heartbeats nor answers until Mute(false).
// Batches that arrive meanwhile are never answered. (ZeroMQ's PINGs are answered, as by a process
// whose model hangs.)
func (c *Container) Mute(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.muted = on
}

// Drain tells the server to send no more batches.
func (c *Container) Drain() error { return c.Send([]byte(wire.Draining)) }

// Gone is closed when the connection has ended.
func (c *Container) Gone() <-chan struct{} { return c.done }

// Goodbye returns the server's goodbye, or nil.
func (c *Container) Goodbye() *Goodbye {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.goodbye
}

// Err returns how the connection ended; nil while it is open.
func (c *Container) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Kill ends the connection at once, as the death of the process would.
func (c *Container) Kill() {
	c.Peer.Kill()
	c.Close()
}

// Close ends the connection and waits for the container's goroutines.
func (c *Container) Close() error {
	c.mu.Lock()
	c.closed = true
	c.timer.Stop()
	for t := range c.delayed {
		t.Stop()
		delete(c.delayed, t)
	}
	c.mu.Unlock()
	err := c.Peer.Close()
	c.wg.Wait()
	return err
}

// OldSpec returns the declaration that containers of generations before RPC v4 get: rows of one
// dtype, and one element of another dtype for each.
func OldSpec(input, output tensor.DType) scheduler.Spec { return adapter.Spec(input, output) }
