package scheduler

import (
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// handedOn gives pixels of a step to a picture if they are wanted, and has others look at them; it
// returns whether they were.
func handedOn(t *testing.T, pool *tensor.Pool, g *Opening, step int, look func(o *Opened)) bool {
	t.Helper()
	o := g.Picture()
	wanted := o.Wanted()
	if step <= wanted {
		buf, err := pool.Get(64)
		if err != nil {
			t.Fatal(err)
		}
		o.Give(Pixels{Data: buf.Bytes(), Buf: buf, Step: step, Channels: tensor.ChannelsRGB})
		if _, given := o.Pixels(); !given {
			t.Error("the pixels were not handed on")
		}
		if look != nil {
			look(o)
		}
	}
	o.Release()
	return step <= wanted
}

// TestOpening: pictures are handed on that others look at, and as fine as they need them; what was
// learned is corrected when it is no longer so.
func TestOpening(t *testing.T) {
	enough := func(step int) func(*Opened) { return func(o *Opened) { o.Looked(step) } }
	for _, tt := range []struct {
		name   string
		before func(o *Opened)
		few    bool // of the pictures that follow are handed on
	}{
		{"that will do", enough(2), false},
		{"finer than needed", enough(4), false},
		{"too coarse", enough(1), true},
		{"not to be used", enough(0), true},
		{"never looked at", nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pool, g := tensor.NewPool(1<<10), NewOpening()
			for range 3 * tryAny {
				handedOn(t, pool, g, 2, tt.before)
			}
			count := func(look func(*Opened)) (n int) {
				for range 10 * tryAny {
					if handedOn(t, pool, g, 2, look) {
						n++
					}
				}
				return n
			}
			if n := count(tt.before); tt.few && n != 10 || !tt.few && n != 10*tryAny {
				t.Errorf("%d of %d pictures are handed on", n, 10*tryAny)
			}
			// From now on others can use them.
			count(enough(2))
			if n := count(enough(2)); n != 10*tryAny {
				t.Errorf("%d of %d pictures are handed on when they are of use again", n, 10*tryAny)
			}
			if n := pool.InUse(); n != 0 {
				t.Errorf("%d bytes are not back", n)
			}
		})
	}
}

// TestOpenedOnce: the first pixels count, and all memory is given back.
func TestOpenedOnce(t *testing.T) {
	pool := tensor.NewPool(1 << 10)
	give := func(o *Opened, step int) {
		buf, err := pool.Get(64)
		if err != nil {
			t.Fatal(err)
		}
		o.Give(Pixels{Data: buf.Bytes(), Buf: buf, Step: step})
	}
	o := NewOpening().Picture()
	o.Retain()
	give(o, 2)
	give(o, 4)
	o.Release()
	if p, given := o.Pixels(); !given || p.Step != 2 {
		t.Errorf("pixels with step %d, %v", p.Step, given)
	}
	if step := o.Wanted(); step != 0 {
		t.Errorf("pixels of step %d are wanted, of a picture that was opened", step)
	}
	if pool.InUse() == 0 {
		t.Error("its pixels were given back while there was a reference")
	}
	o.Release()
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes are not back", n)
	}
}
