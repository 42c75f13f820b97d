package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/scheduler/setting"
)

// Statistics of streams show operators how many frames arrive and are answered, and how old the
// frames are.
func TestStreamStats(t *testing.T) {
	c := newCameras(t, 2, scheduler.ModelConfig{MaxBatch: 1, Slots: 1, Keep: setting.KeepLatest},
		&schedtest.Worker{Exec: schedtest.Linear(100*time.Millisecond, 0)})
	c.film(30, 50*time.Second, 0, nil)
	list, s := c.model.Streams(10), c.model.Stats()
	if len(list) != 2 || int(s.Frames) != c.sent[0]+c.sent[1] || s.FramesAnswered < 490 || s.FramesAnswered > 510 ||
		s.FramesAnswered+s.Outcomes[scheduler.OutcomeSuperseded] != s.Frames {
		t.Fatalf("%d streams, %d frames, %d answered, outcomes %v", len(list), s.Frames, s.FramesAnswered, s.Outcomes)
	}
	oldest := time.Duration(0)
	for _, one := range list {
		second := one.Span.Seconds()
		frames, answered := float64(one.Frames)/second, float64(one.Answered)/second
		if one.Span > time.Minute || frames < 28 || frames > 31 || answered < 4.5 || answered > 5.5 ||
			one.Keep != setting.KeepLatest ||
			one.Age < 100*time.Millisecond || one.Age > 250*time.Millisecond || one.Late != 0 ||
			one.Frames-one.Answered-one.Superseded > 2 {
			t.Errorf("%+v", one)
		}
		oldest = max(oldest, one.Age)
	}
	if got := c.model.OldestFrame(); got != oldest || list[0].Age != oldest {
		t.Errorf("the oldest frame is %v old, of the streams %v", got, oldest)
	}
	if n := len(c.model.Streams(1)); n != 1 {
		t.Errorf("%d streams where one was wanted", n)
	}
	c.clock.Advance(50 * time.Second)
	if one := c.model.Streams(1)[0]; one.Silent < 50*time.Second {
		t.Errorf("after a silence: %+v", one)
	}
	c.clock.Advance(15 * time.Second)
	if list := c.model.Streams(10); len(list) != 0 || c.model.OldestFrame() != 0 {
		t.Errorf("streams that are forgotten: %+v", list)
	}
}

// Ages count from Captured; a clock that is ahead, or of another century, does no harm.
func TestAgeSinceCapture(t *testing.T) {
	for _, tt := range []struct {
		captured  time.Duration // relative to now; 0: not set
		late, age time.Duration
	}{
		{0, 0, 100 * time.Millisecond},
		{-300 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond},
		{time.Hour, 0, 100 * time.Millisecond},
		{-1 << 62, 1<<61 - 1, 1<<61 - 1}, // at least
	} {
		t.Run(fmt.Sprint(tt.captured), func(t *testing.T) {
			c := newCameras(t, 1, scheduler.ModelConfig{},
				&schedtest.Worker{Exec: schedtest.Linear(100*time.Millisecond, 0)})
			r := c.request(1, 2, 0, 0)
			if r.Frame = (&scheduler.Frame{Stream: "cam"}); tt.captured != 0 {
				r.Frame.Captured = c.clock.Now().Add(tt.captured)
			}
			c.sent[0]++
			c.sched.Submit(r)
			c.clock.Advance(time.Second)
			one := c.model.Streams(1)[0]
			if exact := tt.late < time.Hour; one.Late < tt.late || one.Age < tt.age ||
				exact && (one.Late > tt.late || one.Age > tt.age) {
				t.Errorf("late %v and %v old, expected %v and %v", one.Late, one.Age, tt.late, tt.age)
			}
			if want := time.Second - min(tt.captured, 0); tt.late < time.Hour && one.Newest != want {
				t.Errorf("the newest answer is %v old, expected %v", one.Newest, want)
			}
		})
	}
}

// A stream that gets no answer is listed first.
func TestStreamWithoutAnswers(t *testing.T) {
	w := &schedtest.Worker{Exec: schedtest.Linear(100*time.Millisecond, 0)}
	c := newCameras(t, 3, scheduler.ModelConfig{MaxBatch: 1, Slots: 1}, w)
	c.film(30, 2*time.Second, setting.KeepLatest, nil)
	w.Pause()
	c.more()
	for camera := range 4 {
		c.frame(camera, setting.KeepLatest)
	}
	if one := c.model.Streams(1)[0]; one.Name != "camera 3" || one.Answered != 0 || one.Waiting != 1 ||
		one.Frames != 1 || one.Newest >= 0 {
		t.Errorf("%+v", one)
	}
	w.Resume()
	c.clock.Advance(time.Second)
}

// BenchmarkStreamStats measures how long a model's lock is held, and the sorting outside it, for a
// look at its streams, which are as many as may be silent.
func BenchmarkStreamStats(b *testing.B) {
	sched, err := scheduler.New(scheduler.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer sched.Close()
	model := addTo(b, sched, benchID, rowsSpec, &schedtest.Worker{}).Model()
	for i := range 1024 {
		sched.Submit(&scheduler.Request{
			Model: model, Inputs: rowOf(b, 1), Rows: 1, Owner: ownerFunc(func(*scheduler.Request) {}),
			Frame: &scheduler.Frame{Stream: fmt.Sprint("cam-", i)},
		})
	}
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if len(model.Streams(100)) != 100 {
				b.Fatal("streams are missing")
			}
		}
	})
	b.Run("oldest", func(b *testing.B) {
		for b.Loop() {
			model.OldestFrame()
		}
	})
}
