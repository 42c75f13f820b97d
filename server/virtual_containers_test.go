package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A host runs a container, again and again: each life ends as the seed says.
type host struct {
	scene *scene
	name  string
	model string
	rand  *rand.Rand // of its lives
	// script is of its answers, which another goroutine gives.
	script *rand.Rand

	mu     sync.Mutex
	stalls bool // its connection does, or did
}

// pairs are the tensors of the models of scenes: the number of a question, and that of a row in it.
var pairs = []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}

// sign is what a model adds to the numbers of its answers, so that one tells which model gave it.
func sign(model string) int32 { return int32(model[0]) << 20 }

// run lives until the scene calms down, and then once more until the end.
func (h *host) run() {
	s := h.scene
	for life := 1; ; life++ {
		calm := s.calm.Err() != nil || !s.troubles.containers
		if !h.live(fmt.Sprintf("%s.%d", h.name, life), calm) {
			return
		}
	}
}

// live is one life. It reports whether there is to be another.
func (h *host) live(name string, calm bool) bool {
	s := h.scene
	near, far := s.net.Pair(fmt.Sprintf("10.1.0.%d:4000", len(name)), "10.0.0.1:7000")
	if err := s.server.containers.Listener().Add(far); err != nil {
		near.Close()
		if s.stopped() {
			return false
		}
		s.history.fault("container %s was refused: %v", name, err)
		return false
	}
	ends := s.over.Done()
	if !calm {
		ends = s.calm.Done()
		if h.rand.IntN(4) == 0 { // maybe while it registers
			near.CutAfter(h.rand.IntN(3000), h.rand.IntN(3000))
		}
	}
	token := ""
	if s.troubles.identities {
		token = tokenOf("worker")
	}
	c, err := containertest.Start(near, containertest.Model{
		Name: h.model, Version: "1", Inputs: pairs, Outputs: pairs, MaxBatch: 8, Concurrency: 1 + h.rand.IntN(2), Token: token,
		Answer: func(b *containertest.Batch) containertest.Reply { return h.answer(name, b, calm) },
	})
	if err != nil {
		if calm && !s.stopped() {
			s.history.fault("container %s could not register: %v", name, err)
		}
		return h.pause()
	}
	defer c.Close()
	s.history.registered(h.model)
	if !calm {
		h.end(c, near)
	}
	select {
	case <-c.Gone():
		if calm && !s.stopped() {
			s.history.fault("container %s was parted from without a reason: %v", name, c.Err())
		}
		return h.pause()
	case <-ends:
		if s.over.Err() != nil {
			return false
		}
	}
	c.Kill()
	return true
}

// end has a life end by itself, after some time.
func (h *host) end(c *containertest.Container, conn interface{ Stall(sent, received bool) }) {
	after := time.Duration(h.rand.IntN(2000)) * time.Millisecond
	how := h.rand.IntN(5)
	timer := time.AfterFunc(after, func() {
		switch how {
		case 0:
			go c.Kill()
		case 1:
			c.Mute(true) // until the server gives it up
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

// pause is the time between two lives.
func (h *host) pause() bool {
	timer := time.NewTimer(time.Duration(10+h.rand.IntN(300)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.scene.over.Done():
		return false
	}
	return !h.scene.stopped()
}

// answer is what a container makes of a batch.
func (h *host) answer(name string, b *containertest.Batch, calm bool) containertest.Reply {
	s := h.scene
	values, err := tensor.Values[int32](b.Inputs[0])
	if err != nil || len(values) != 2*b.Rows || b.Rows > 8 {
		s.history.fault("%s was sent a batch of %d rows with %d values, %v", name, b.Rows, len(values), err)
		return containertest.Reply{Error: "odd batch"}
	}
	h.mu.Lock()
	stalls := h.stalls
	h.mu.Unlock()
	runs := s.history.ran(name, h.model, values, stalls)
	r := containertest.Reply{Delay: time.Duration(h.script.Int64N(int64(s.plan.slowest)))}
	if !calm {
		switch n := h.script.IntN(100) / s.plan.harm; {
		case n < 3:
			s.history.fate(runs, fateFailed)
			r.Error = "the seed says so"
			return r
		case n < 5:
			r.Silent = true
			return r
		case n < 8:
			r.Die = true
			return r
		case n < 9:
			s.history.fate(runs, fateStray)
			r.Frames = [][]byte{[]byte("rubbish")}
			return r
		case n < 11:
			r.Twice = true
		}
	}
	sum := make([]int32, len(values))
	for i, v := range values {
		sum[i] = v
		if i%2 == 0 {
			sum[i] += sign(h.model)
		}
	}
	out, err := tensor.FromSlice(tensor.Shape{b.Rows, 2}, sum)
	if err != nil {
		panic(err)
	}
	s.history.fate(runs, fateAnswered)
	r.Outputs = []tensor.Tensor{out}
	return r
}
