package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A host runs a container again and again: each life ends as the seed decides.
type host struct {
	scene          *scene
	name           string
	from           string // its address
	model, version string
	own            bool            // a process of the server, which needs no right
	over           context.Context // ends when it should end
	old            string          // the generation that it speaks; "": the newest
	encrypted      bool
	rand           *rand.Rand // for its lives
	// script is the random source for its answers, which another goroutine gives.
	script *rand.Rand

	mu     sync.Mutex
	stalls bool // its connection stalls, or has stalled
}

// newHosts makes the hosts of a scene.
func (s *scene) newHosts() (list []*host) {
	for _, model := range []string{"a", "b", "old", "d"} {
		replicas := s.plan.hosts[model]
		if model == "a" && s.troubles.versions {
			replicas = max(replicas, 2) // one of each
		}
		if model == "old" && s.plan.old == "v0" {
			replicas = min(replicas, 1) // the server calls only one
		}
		for i := range replicas {
			name := fmt.Sprintf("%s%d", model, i)
			h := &host{scene: s, name: name, model: model, version: "1", over: s.over, rand: draw(s.plan.seed, name),
				script: draw(s.plan.seed, name+" answers")}
			if model == "old" {
				h.old = s.plan.old
			} else {
				h.encrypted = s.troubles.tls && h.rand.IntN(2) == 0
			}
			if model == "a" && s.troubles.versions {
				h.version = fmt.Sprint(1 + i%2)
			}
			list = append(list, h)
		}
	}
	return list
}

// pairs are the tensors of the models of scenes: the number of a request, and that of a row in it.
var pairs = []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}

// sign returns the number that a version of a model adds to its answers, which shows which version
// answered.
func sign(model, version string) int32 { return int32(model[0])<<20 + int32(version[0])<<12 }

// made returns the values of an answer to values. A container of an old generation has one per row.
func made(model, version string, values []int32) (sum []int32) {
	for i := 0; i+1 < len(values); i += 2 {
		if model == "old" {
			sum = append(sum, 1<<20+values[i]<<4+values[i+1])
		} else {
			sum = append(sum, values[i]+sign(model, version), values[i+1])
		}
	}
	return sum
}

// run runs lives until the scene calms down, and then one more until the end.
func (h *host) run() {
	s := h.scene
	for life := 1; ; life++ {
		calm := s.calm.Err() != nil || !s.troubles.containers
		if !h.live(fmt.Sprintf("%s.%d", h.name, life), calm) {
			return
		}
	}
}

// A life is a container that serves.
type life interface {
	Gone() <-chan struct{}
	Err() error
	Mute(bool)
	Drain() error
	Kill()
	Close() error
}

// live runs one life. It reports whether another should follow.
func (h *host) live(name string, calm bool) bool {
	s := h.scene
	near, err := h.connect(calm)
	if err != nil {
		if h.old == "v0" { // the server has not dialed until now
			return h.over.Err() == nil
		}
		if !s.stopped() && h.over.Err() == nil {
			s.history.fault("container %s cannot connect: %v", name, err)
		}
		return false
	}
	var calmed <-chan struct{}
	if !calm {
		calmed = s.calm.Done()
		if h.rand.IntN(4) == 0 { // maybe while it registers
			near.CutAfter(h.rand.IntN(3000), h.rand.IntN(3000))
		}
	}
	stop := context.AfterFunc(h.over, func() { near.Close() })
	c, err := h.begin(near, name, calm)
	stop()
	if err != nil {
		near.Close()
		if calm && !s.stopped() && h.over.Err() == nil {
			s.history.fault("container %s could not register: %v", name, err)
		}
		return h.pause()
	}
	defer c.Close()
	defer s.history.part(h.model)
	if h.old == "" { // an old one is not told
		s.history.registered(h.model, h.version)
	}
	if h.own {
		defer s.history.serve()()
	}
	if !calm {
		h.end(c, near)
	}
	select {
	case <-c.Gone():
		if calm && !s.stopped() && h.over.Err() == nil {
			s.history.fault("container %s was parted from without a reason: %v", name, c.Err())
		}
		return h.pause()
	case <-h.over.Done():
	case <-calmed:
	}
	c.Kill()
	return h.over.Err() == nil
}

// connect connects to the server, or waits for it to do so.
func (h *host) connect(calm bool) (*shivatest.Link, error) {
	s := h.scene
	ctx := h.over
	if !calm {
		ctx = s.calm
	}
	if h.old == "v0" {
		return s.callOld(ctx)
	}
	addr := containersAddrs[h.old]
	if h.encrypted {
		addr = containersAddrs["tls"]
	}
	if addr == "" { // v1 and v3 are recognised at the usual address
		addr = containersAddrs[""]
	}
	return s.net.DialFrom(h.over, h.from, addr)
}

// begin registers.
func (h *host) begin(near *shivatest.Link, name string, calm bool) (life, error) {
	s := h.scene
	if h.old != "" {
		return h.beginOld(near, name, calm)
	}
	var conn net.Conn = near
	if h.encrypted {
		config := s.pki.config()
		config.Certificates = nil
		conn = tls.Client(near, config)
	}
	token := ""
	if s.troubles.identities && !h.own {
		token = tokenOf("worker")
	}
	outputs := pairs
	if h.model == "d" {
		outputs = detections
	}
	m := containertest.Model{
		Name: h.model, Version: h.version, Inputs: pairs, Outputs: outputs, MaxBatch: 8,
		Concurrency: 1 + h.rand.IntN(2), Token: token,
		Feedback: s.troubles.learning,
		Answer:   func(b *containertest.Batch) containertest.Reply { return h.answer(name, b, calm) },
	}
	if s.troubles.shared {
		m.Grant = func(rows int) containertest.Grant { return h.grant(rows, calm) }
	}
	return containertest.Start(conn, m)
}

// grant returns the grant of a shared container to this server.
func (h *host) grant(rows int, calm bool) (g containertest.Grant) {
	n := h.script.IntN(100) / h.scene.plan.harm
	g = containertest.Grant{Delay: time.Duration(h.script.Int64N(int64(20 * time.Millisecond))),
		Elsewhere: h.script.IntN(3) * rows, Target: h.script.IntN(2 * mostRows)}
	g.Silent, g.Alone = !calm && n < 2, !calm && n == 2
	return g
}

// end makes a life end by itself, after some time.
func (h *host) end(c life, conn *shivatest.Link) {
	after := time.Duration(h.rand.IntN(2000)) * time.Millisecond
	how := h.rand.IntN(5)
	timer := time.AfterFunc(after, func() {
		switch how {
		case 0:
			go c.Kill()
		case 1:
			c.Mute(true) // until the server drops it
		case 2:
			_ = c.Drain()
			time.AfterFunc(time.Second, func() { go c.Kill() })
		case 3:
			h.mu.Lock()
			h.stalls = true
			h.mu.Unlock()
			conn.Stall(true, true)
			time.AfterFunc(500*time.Millisecond, func() { conn.Stall(false, false) })
		}
	})
	go func() {
		<-c.Gone()
		timer.Stop()
	}()
}

// pause waits for the time between two lives.
func (h *host) pause() bool {
	timer := time.NewTimer(time.Duration(10+h.rand.IntN(300)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.over.Done():
		return false
	}
	return !h.scene.stopped()
}

// mostRows is the largest batch that a container has declared.
const mostRows = 8

// answer returns a container's reply to a batch.
func (h *host) answer(name string, b *containertest.Batch, calm bool) containertest.Reply {
	s := h.scene
	values, err := tensor.Values[int32](b.Inputs[0])
	if err != nil || len(values) != 2*b.Rows || b.Rows > mostRows && h.old == "" {
		s.history.fault("%s was sent a batch of %d rows with %d values, %v", name, b.Rows, len(values), err)
		return containertest.Reply{Error: "odd batch"}
	}
	h.mu.Lock()
	late := h.stalls || s.troubles.freezes
	h.mu.Unlock()
	s.history.registered(h.model, h.version)
	runs := s.history.ran(name, h.model, values, late)
	if s.troubles.identities && !late && h.old == "" && !h.own && !s.mayServe(h) {
		s.history.fault("%s was sent a batch, and may not serve %s/%s", name, h.model, h.version)
	}
	r := containertest.Reply{Delay: time.Duration(h.script.Int64N(int64(s.plan.slowest)))}
	if !calm && slices.ContainsFunc(values, poisonous) {
		r.Die = true
		return r
	}
	if !calm {
		switch n := h.script.IntN(100) / s.plan.harm; {
		case n < 3 && h.old == "": // old generations cannot report errors
			s.history.fate(runs, fateFailed, 0)
			r.Error = "the seed says so"
			return r
		case n < 5:
			r.Silent = true
			return r
		case n < 8:
			r.Die = true
			return r
		case n < 9:
			s.history.fate(runs, fateStray, 0)
			r.Frames = [][]byte{[]byte("rubbish")}
			return r
		case n < 11:
			r.Twice = true
		}
	}
	out, err := h.outputs(b.Rows, values)
	if err != nil {
		panic(err)
	}
	if s.troubles.shared && h.old == "" {
		r.Together = b.Rows + h.script.IntN(mostRows)
	}
	s.history.fate(runs, fateAnswered, r.Delay)
	r.Outputs = []tensor.Tensor{out}
	return r
}

// poisonous reports whether a value ends every container that executes it.
func poisonous(v int32) bool { return v%61 == 7 }

// outputs returns its model's outputs for the values of some rows.
func (h *host) outputs(rows int, values []int32) (tensor.Tensor, error) {
	if h.model == "d" {
		return tensor.FromSlice(tensor.Shape{rows, 1, 6}, detected(values))
	}
	sum := made(h.model, h.version, values)
	return tensor.FromSlice(tensor.Shape{rows, len(sum) / rows}, sum)
}

// mayServe reports whether the containers' identity may have the right to serve a version now.
func (s *scene) mayServe(h *host) bool {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	now := time.Now()
	return slices.ContainsFunc(s.history.declared("worker", now, now), func(i *config.Identity) bool {
		return i != nil && slices.ContainsFunc(i.May, func(right string) bool {
			return grants(right, "serve", h.model+"/"+h.version)
		})
	})
}
