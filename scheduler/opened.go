package scheduler

import (
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/shiva/tensor"
)

// A picture that several models are asked about is decoded by each of their containers, which takes
// longer than most else that they do with it. So the first container hands on what it has decoded,
// and the others get that beside the file. See "Opened pictures" in containers/DESIGN.md.

// Pixels are what a container has decoded of a picture: upright, without gaps, 8 bits for each
// channel.
type Pixels struct {
	Data []byte
	Buf  *tensor.Buffer // of Data
	// Step is how many pixels of the picture, along each side, one of these stands for: the smaller
	// sizes of a JPEG take less time.
	Step     int
	Channels string // in their order, as tensor.Image has them
}

// anyStep is the largest step that a decoder has.
const anyStep = 8

const (
	// tryAny is how many pictures are handed on only if it seems worth it, until one is in any
	// case: what is believed of later models would never be corrected otherwise.
	tryAny = 32
	// To decode a picture takes several times as long as to hand it on: it is worth it if others
	// look at one in four.
	leastLooks = 1.0 / 4
	looksFade  = 1.0 / 16
)

// An Opening is a use of pictures, such as an input of a pipeline, and what it has learned: how
// fine those must be that are handed on, and how many of them others look at. Any goroutine may use
// it.
type Opening struct {
	mu     sync.Mutex
	step   int // the largest that is of use; 0: none is
	looks  float64
	opened uint64
}

// NewOpening returns an Opening that has learned nothing.
func NewOpening() *Opening { return &Opening{step: anyStep, looks: 1} }

// Picture returns the Opened of another picture, with a reference.
func (g *Opening) Picture() *Opened {
	o := &Opened{of: g}
	o.refs.Store(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.opened++; {
	case g.opened%tryAny == 0:
		o.wanted = anyStep
	case g.looks >= leastLooks:
		o.wanted = g.step
	}
	return o
}

// An Opened is one picture that several requests are about (see [Rare]), and what was decoded of
// it. It is counted by references; batches have their own. Any goroutine may use it.
type Opened struct {
	of     *Opening
	wanted int
	refs   atomic.Int32

	mu     sync.Mutex
	given  bool
	looked bool
	pixels Pixels
}

// Wanted is the largest step of pixels that a container should hand on; 0: it should hand none on.
func (o *Opened) Wanted() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.given {
		return 0
	}
	return o.wanted
}

// Give hands pixels on, and takes over the reference to them. The first ones count.
func (o *Opened) Give(p Pixels) {
	o.mu.Lock()
	first := !o.given
	if first {
		o.given, o.pixels = true, p
	}
	o.mu.Unlock()
	if !first {
		p.Buf.Release()
	}
}

// Pixels returns what was handed on, which is valid as long as the caller's reference to o.
func (o *Opened) Pixels() (p Pixels, given bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pixels, o.given
}

// Looked says that a container got the pixels, and that those with a step of at most this would
// have done; 0: it cannot use any.
func (o *Opened) Looked(step int) {
	o.mu.Lock()
	o.looked = true
	o.mu.Unlock()
	o.of.mu.Lock()
	o.of.step = step
	o.of.mu.Unlock()
}

// Retain adds a reference.
func (o *Opened) Retain() { o.refs.Add(1) }

// Release gives a reference back; with the last one the pixels go back to where they came from.
func (o *Opened) Release() {
	left := o.refs.Add(-1)
	if tensor.Invariants && left < 0 {
		panic(tensor.Violation("scheduler: an opened picture was released more often than it was retained"))
	}
	if left > 0 || !o.given {
		return
	}
	o.pixels.Buf.Release()
	looked := 0.0
	if o.looked {
		looked = 1
	}
	o.of.mu.Lock()
	o.of.looks += looksFade * (looked - o.of.looks)
	o.of.mu.Unlock()
}
