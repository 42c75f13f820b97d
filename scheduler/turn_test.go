package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// TestStreamsTakeTurns: four cameras of 30 frames a second on a model that executes ten a second,
// which takes a multiple of the frame interval. By deadlines one camera would always be first.
func TestStreamsTakeTurns(t *testing.T) {
	for _, within := range []time.Duration{150 * time.Millisecond, time.Second, 10 * time.Second} {
		t.Run(within.String(), func(t *testing.T) {
			c := newCameras(t, 4, scheduler.ModelConfig{MaxBatch: 1, Slots: 1},
				&schedtest.Worker{Exec: schedtest.Linear(100*time.Millisecond, 0)})
			c.within = within
			c.film(30, time.Minute, 1, nil)
			total := 0
			for _, n := range c.shown {
				total += n
			}
			for camera, n := range c.shown {
				if share := float64(n) / float64(total); share < 0.22 || share > 0.28 {
					t.Errorf("camera %d has %.2f of the %d executions", camera, share, total)
				}
				if c.worst[camera] > 550*time.Millisecond {
					t.Errorf("camera %d stood still for %v", camera, c.worst[camera])
				}
			}
			slices.Sort(c.ages)
			if p50, p99 := c.ages[len(c.ages)/2], c.ages[len(c.ages)*99/100]; p50 > 140*time.Millisecond ||
				p99 > 170*time.Millisecond || total < 590 {
				t.Errorf("%d frames were executed, their ages are %v in the median, %v at the 99th percentile", total,
					p50, p99)
			}
		})
	}
}

// TestNewStream: a stream that begins while others keep the model busy is soon served, and a client
// that names a new stream for each frame does not keep the others from their turn.
func TestNewStream(t *testing.T) {
	c := newCameras(t, 4, scheduler.ModelConfig{MaxBatch: 1, Slots: 1},
		&schedtest.Worker{Exec: schedtest.Linear(100*time.Millisecond, 0)})
	c.film(30, 30*time.Second, 1, nil)
	c.more()
	began := c.clock.Now()
	var first time.Duration
	c.seen = func(camera, _ int) {
		if camera == 4 && first == 0 {
			first = c.clock.Now().Add(100 * time.Millisecond).Sub(began)
		}
	}
	c.film(30, 2*time.Second, 1, nil)
	if first == 0 || first > 550*time.Millisecond {
		t.Errorf("the fifth camera has its first answer after %v", first)
	}
	number := uint32(1000)
	c.crowd = true
	clear(c.worst)
	clear(c.shows)
	c.film(30, 20*time.Second, 1, func() {
		number++
		r := c.request(1, 2, number, 0)
		r.Frame = &scheduler.Frame{Stream: fmt.Sprint("another ", number), Keep: 1}
		r.Source = 100 + uint64(number%4)
		r.Owner = ownerFunc(func(*scheduler.Request) {})
		c.sched.Submit(r)
	})
	for camera, gap := range c.worst {
		if gap == 0 || gap > 3*time.Second {
			t.Errorf("beside streams of one frame camera %d stood still for %v", camera, gap)
		}
	}
}

// TestStreamBesideQueue: a stream is served alongside more ordinary requests than the model can
// execute, although each of its frames is newer than all of them.
func TestStreamBesideQueue(t *testing.T) {
	for _, strategy := range scheduler.Strategies() {
		t.Run(strategy, func(t *testing.T) {
			c := newCameras(t, 1, scheduler.ModelConfig{Strategy: strategy, MaxBatch: 8, Slots: 1},
				&schedtest.Worker{Exec: schedtest.Linear(10*time.Millisecond, 5*time.Millisecond)})
			c.crowd = true
			c.film(30, 30*time.Second, 1, func() {
				for range 10 { // 300 a second, of which 160 can be done
					c.sched.Submit(c.request(1, 2, 1000, 0))
				}
			})
			if c.worst[0] == 0 || c.worst[0] > 2*c.within {
				t.Errorf("the stream stood still for %v; %d of its %d frames were executed", c.worst[0], c.shown[0],
					c.sent[0])
			}
		})
	}
}

// A scene has cameras that send 30 frames a second, more than a model can execute, perhaps
// alongside ordinary requests.
type scene struct {
	fixed, row  time.Duration // times of an execution
	batch       int           // the most rows of an execution
	rows, width []int         // of the frames of each camera
}

func (s scene) time(rows int) time.Duration { return s.fixed + time.Duration(rows)*s.row }

// film returns the cameras after a minute, and how many of the crowd's requests were executed.
func (s scene) film(t *testing.T, length, within time.Duration, crowd int) (c *cameras, executed int) {
	c = newCameras(t, len(s.rows), scheduler.ModelConfig{MaxBatch: s.batch, Slots: 1},
		&schedtest.Worker{Exec: schedtest.Linear(s.fixed, s.row)})
	c.within, c.rows, c.width, c.crowd = within, s.rows, s.width, true
	count := ownerFunc(func(r *scheduler.Request) {
		if r.Err == nil {
			executed++
		}
	})
	c.film(30, length, 1, func() {
		for range crowd {
			r := c.request(1, 2, 1000, 0)
			r.Owner = count
			c.sched.Submit(r)
		}
	})
	return c, executed
}

// TestNoStreamStarves: whatever the deadlines, sizes and shapes of the frames, each stream whose
// frames could be answered in time in a batch of their own has its turn, and so has a crowd of
// ordinary requests alongside. With deadlines of one and a half times a batch, all places that
// frames inherit are too early for the next batch when it is made.
func TestNoStreamStarves(t *testing.T) {
	const ms = time.Millisecond
	scenes := map[string]scene{
		"one larger":     {fixed: 100 * ms, batch: 2, rows: []int{2, 1, 1, 1}, width: []int{2, 2, 2, 2}},
		"one of a shape": {fixed: 100 * ms, batch: 2, rows: []int{1, 1, 1, 1}, width: []int{3, 2, 2, 2}},
		"no batches":     {fixed: 100 * ms, batch: 1, rows: []int{1, 1, 1, 1}, width: []int{2, 2, 2, 2}},
		"sizes and shapes": {fixed: 60 * ms, row: 10 * ms, batch: 8, rows: []int{1, 1, 1, 1, 4, 8},
			width: []int{2, 2, 2, 2, 2, 3}},
	}
	const interval = time.Second / 30
	length, deadlines, crowds := time.Minute, []time.Duration{90 * ms, 150 * ms, 180 * ms, 300 * ms, time.Second},
		[]int{0, 1, 10}
	if !budgettest.Whole() {
		length, deadlines, crowds = 20*time.Second, []time.Duration{150 * ms, time.Second}, crowds[:2]
	}
	for name, s := range scenes {
		for _, within := range deadlines {
			for _, crowd := range crowds {
				t.Run(fmt.Sprintf("%s/%v/crowd %d", name, within, crowd), func(t *testing.T) {
					c, executed := s.film(t, length, within, crowd)
					patience := time.Duration(len(c.sent)+1)*s.time(s.batch) + interval
					if crowd > 0 {
						patience = max(30*s.time(s.batch), 8*within)
					}
					for camera, rows := range s.rows {
						if within < s.time(rows)+interval {
							// Whether its newest frame is in time depends on its phase.
							continue
						}
						if gap := c.worst[camera]; gap == 0 || gap > patience {
							t.Errorf("camera %d stood still for %v of %v; %v executions, %d of the crowd", camera, gap,
								patience, c.shown, executed)
						}
					}
					if min := int(length / 5 / s.time(s.batch)); crowd > 0 && within > s.time(1) && executed < min {
						t.Errorf("of the crowd %d requests were executed, %d would be a fifth of the batches; %v of the cameras",
							executed, min, c.shown)
					}
				})
			}
		}
	}
}

// TestLateStreamsStepBack: streams whose frames can never be in time, and which therefore wait
// longest, do not keep other streams from their turn, however many there are.
func TestLateStreamsStepBack(t *testing.T) {
	s := scene{fixed: 60 * time.Millisecond, row: 10 * time.Millisecond, batch: 8, rows: make([]int, 44),
		width: make([]int, 44)}
	for i := range s.rows {
		s.rows[i], s.width[i] = 8, 2
		if i >= 40 {
			s.rows[i], s.width[i] = 1, 3+i%2
		}
	}
	length := time.Minute
	if !budgettest.Whole() {
		length /= 4
	}
	c, _ := s.film(t, length, 110*time.Millisecond, 0)
	for camera := 40; camera < 44; camera++ {
		if c.worst[camera] == 0 || c.worst[camera] > time.Second {
			t.Errorf("camera %d stood still for %v; %v executions", camera, c.worst[camera], c.shown)
		}
	}
}
