package server

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A sharing is the memory that a client shares with the server: a file of inputs and one of
// outputs, each a region. Now and then the client truncates one, or unregisters it.
type sharing struct {
	client *client // registers them, from another address than the client that sends requests
	dir    string
	name   string

	mu     sync.Mutex
	inputs []byte          // of all requests, whether they are in the file or not
	cut    map[string]bool // truncated files
}

// sides are the sides of a request, each with a file.
var sides = []string{"in", "out"}

// Each request has a slot in a file.
const slotBytes, slots = 64, 64

// share makes the shared memory of a client.
func (s *scene) share(c *client, i int) *sharing {
	r := draw(s.plan.seed, c.name+" memory")
	m := &sharing{dir: s.memory, name: c.name, inputs: make([]byte, slots*slotBytes), cut: make(map[string]bool)}
	m.client = &client{scene: s, name: c.name + "'s memory", door: "rest", from: fmt.Sprintf("10.5.0.%d:5000", i+1),
		rand: r, faults: r, identity: c.identity, token: c.token}
	for _, side := range sides {
		if err := os.WriteFile(m.path(side), m.inputs, 0o600); err != nil {
			s.t.Fatal(err)
		}
		s.history.note("region "+m.region(side), false, s.history.began, s.history.began)
		s.history.note("file "+m.region(side), true, s.history.began, s.history.began)
	}
	return m
}

func (m *sharing) region(side string) string { return m.name + "-" + side }
func (m *sharing) path(side string) string   { return filepath.Join(m.dir, m.region(side)) }

// run registers both files, and disturbs them until done is closed.
func (m *sharing) run(done <-chan struct{}) {
	r, web := m.client.rand, m.client.web()
	defer m.client.close()
	for _, side := range sides {
		m.register(web, side, true)
	}
	for {
		timer := time.NewTimer(time.Duration(r.IntN(300)) * time.Millisecond)
		select {
		case <-done:
			timer.Stop()
			return
		case <-timer.C:
		}
		side, long := sides[r.IntN(2)], time.Duration(r.IntN(60))*time.Millisecond
		if r.IntN(2) == 0 {
			m.truncate(side)
			time.Sleep(long)
			m.restore(side)
		} else {
			m.register(web, side, false)
			time.Sleep(long)
			m.register(web, side, true)
		}
	}
}

// register registers or unregisters a region.
func (m *sharing) register(web *http.Client, side string, on bool) {
	o := &order{method: "POST", path: "/v2/systemsharedmemory/region/" + m.region(side) + "/unregister", body: "{}",
		rights: []string{"infer"}, switches: "region " + m.region(side), quiet: !on}
	if on {
		o.path = "/v2/systemsharedmemory/region/" + m.region(side) + "/register"
		o.body = fmt.Sprintf(`{"key":"/%s","byte_size":%d}`, m.region(side), slots*slotBytes)
		// A region that is still registered cannot be registered again, and an order that a reload
		// prevents may be repeated.
		o.on, o.also = true, []int{http.StatusBadRequest, http.StatusServiceUnavailable}
	}
	m.client.order(web, o)
}

// truncate truncates a file.
func (m *sharing) truncate(side string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[side] = true
	m.client.scene.history.note("file "+m.region(side), false, time.Now(), time.Now())
	if err := os.Truncate(m.path(side), 0); err != nil {
		panic(err)
	}
}

// restore restores it. Inputs are written together with the length, so that no request reads
// others.
func (m *sharing) restore(side string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[side] = false
	err := os.Truncate(m.path(side), slots*slotBytes)
	if side == "in" {
		err = os.WriteFile(m.path(side), m.inputs, 0o600)
	}
	if err != nil {
		panic(err)
	}
	m.client.scene.history.note("file "+m.region(side), true, time.Now(), time.Now())
}

// write writes the inputs of a request.
func (m *sharing) write(q *question) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var values []byte
	for _, v := range q.inputs() {
		values = binary.LittleEndian.AppendUint32(values, uint32(v))
	}
	copy(m.inputs[q.slot*slotBytes:], values)
	if m.cut["in"] {
		return
	}
	f, err := os.OpenFile(m.path("in"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(values, int64(q.slot*slotBytes))
		f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// read returns the output of a request.
func (m *sharing) read(q *question) (values []int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, err := os.ReadFile(m.path("out"))
	if err != nil {
		panic(err)
	}
	for i := range 2 * q.rows {
		if at := q.slot*slotBytes + 4*i; at+4 <= len(text) {
			values = append(values, int32(binary.LittleEndian.Uint32(text[at:])))
		}
	}
	return values
}

// borrow puts a request's inputs, its outputs, or both into shared memory.
func (c *client) borrow(q *question) {
	n := c.deals.IntN(6)
	if c.shares == nil || n > 2 || q.bad || q.model == "old" || q.about != nil || c.slots == slots {
		return
	}
	q.shared = map[string]bool{"in": n != 1, "out": n != 0}
	q.slot = c.slots
	c.slots++
}

// placed returns the place of a side of a request.
func (q *question) placed(side string) (region string, offset, size int) {
	size = slotBytes
	if side == "in" {
		size = 8 * q.rows
	}
	return q.client.shares.region(side), q.slot * slotBytes, size
}

// places returns the parameters of a tensor in shared memory, over HTTP and gRPC.
func (q *question) places(side string) map[string]any {
	region, offset, size := q.placed(side)
	return map[string]any{"shared_memory_region": region, "shared_memory_offset": int64(offset),
		"shared_memory_byte_size": int64(size)}
}

// onShiva returns the member of metadata that lists the tensors in shared memory.
func (q *question) onShiva() map[string]any {
	list := make(map[string]any)
	for _, side := range sides {
		if !q.shared[side] {
			continue
		}
		region, offset, size := q.placed(side)
		one := map[string]any{"name": "x", "region": region, "offset": offset, "byte_size": size}
		if side == "in" {
			one["datatype"], one["shape"] = "INT32", []int{q.rows, 2}
		}
		list[side+"puts"] = []any{one}
	}
	return list
}

// forgotten returns a fault if a request was refused although its regions were registered and
// complete; "": the refusal may be right.
func (s *scene) forgotten(q *question, a answer) string {
	for side, is := range q.shared {
		if !is {
			continue
		}
		region := q.client.shares.region(side)
		switch {
		case !strings.Contains(a.text, "'"+region+"'"):
		case a.kind == "NotFound" && (s.troubles.rights || s.history.toggle("region "+region).mayBeOff(q.begun, a.at)):
			return ""
		case a.kind == "InvalidInput" && s.history.toggle("file "+region).mayBeOff(q.begun, a.at):
			return ""
		}
	}
	return "what it needs of shared memory is there"
}

// unshared returns why a request with tensors in shared memory cannot have succeeded; "": it can.
func (s *scene) unshared(q *question, a answer) string {
	for side, is := range q.shared {
		region := q.client.shares.region(side)
		switch {
		case !is:
		case s.history.toggle("region "+region).off(q.begun, a.at):
			return region + " was not registered"
		case s.history.toggle("file "+region).off(q.begun, a.at):
			return region + " was cut off"
		}
	}
	return ""
}
