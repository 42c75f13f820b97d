package main

import (
	"testing"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
)

// answers is a film of answers, 100 ms apart.
func answers(cameras int, shown ...load.FrameAnswer) *film {
	for i := range shown {
		shown[i].At = time.Duration(i+1) * 100 * time.Millisecond
	}
	return &film{cameras: cameras, length: time.Second, shown: shown, result: &load.Result{}}
}

func TestDisorder(t *testing.T) {
	for name, c := range map[string]struct {
		film                 *film
		backward, miscounted int
	}{
		"in order": {answers(2, load.FrameAnswer{Seq: 0}, load.FrameAnswer{Stream: 1, Seq: 1, Skipped: 1},
			load.FrameAnswer{Seq: 1, Fault: shiva.Superseded}, load.FrameAnswer{Seq: 2, Skipped: 1}), 0, 0},
		"twice":          {answers(1, load.FrameAnswer{Seq: 0}, load.FrameAnswer{Seq: 0}), 1, 1},
		"backward":       {answers(1, load.FrameAnswer{Seq: 1, Skipped: 1}, load.FrameAnswer{Seq: 0}), 1, 1},
		"uncounted skip": {answers(1, load.FrameAnswer{Seq: 0}, load.FrameAnswer{Seq: 2}), 0, 1},
	} {
		if backward, miscounted := c.film.disorder(); backward != c.backward || miscounted != c.miscounted {
			t.Errorf("%s: %d backward, %d miscounted, want %d and %d", name, backward, miscounted, c.backward,
				c.miscounted)
		}
	}
}

func TestFilm(t *testing.T) {
	f := answers(2, load.FrameAnswer{Seq: 0, Age: 3}, load.FrameAnswer{Seq: 1, Fault: shiva.Superseded},
		load.FrameAnswer{Stream: 1, Age: 1}, load.FrameAnswer{Seq: 2, Fault: shiva.DeadlineExceeded},
		load.FrameAnswer{Seq: 3, Age: 2}, load.FrameAnswer{Seq: 4, Age: 9})
	some := f.executed(100*time.Millisecond, 600*time.Millisecond)
	if len(some) != 3 || age(some, 0.5) != 2 || age(some, 0.99) != 3 || age(nil, 0.5) != 0 {
		t.Errorf("%d executed, ages %v and %v", len(some), age(some, 0.5), age(some, 0.99))
	}
	if least, most := shares(some, 2); least != 1.0/3 || most != 2.0/3 {
		t.Errorf("shares %v to %v", least, most)
	}
	if f.faults(shiva.Superseded) != 1 || f.first() != 100*time.Millisecond || answers(1).first() != forever {
		t.Errorf("%d other faults, first after %v", f.faults(shiva.Superseded), f.first())
	}
	// 60 frames were due, without the last of each camera, and six answers arrived.
	if f.result.Lost = 3; f.unanswered() != 3+60-2-6 {
		t.Errorf("%d unanswered", f.unanswered())
	}
	looks := []look{{at: 1, waiting: 1, all: 4}, {at: 2, waiting: 3, all: 3}, {at: 3, waiting: 9, all: 9}}
	if l := most(looks, 0, 3); l.waiting != 3 || l.all != 4 {
		t.Errorf("most is %+v", l)
	}
}
