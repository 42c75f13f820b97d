package apps

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A camera sends frames of one stream to an application, on virtual time.
type camera struct {
	*house
	t      *testing.T
	began  time.Time
	params gate.Request // of each frame

	unnumbered bool // the frames have no number

	mu      sync.Mutex
	answers []string // in the order in which they left
}

// A shot is a call of a camera, which closes it.
type shot struct {
	gate.Call
	of  *camera
	seq int
}

func (s *shot) Complete(c *gate.Call) {
	text := fmt.Sprintf("%d after %v: ", s.seq, time.Since(s.of.began).Round(time.Millisecond))
	if c.Err != nil {
		text += fault.Text(c.Err)
		if len(c.Outputs) > 0 || c.Choice.Default {
			text += " and outputs"
		}
	} else {
		values, err := tensor.Values[int64](c.Outputs[0])
		if err != nil {
			s.of.t.Error(err)
		}
		f := c.Frame
		text += fmt.Sprintf("%d, skipped %d, age %v", values[0], f.Skipped, f.Age.Round(time.Millisecond))
		if f.Seq != int64(s.seq) {
			text += fmt.Sprintf(", frame %d", f.Seq)
		}
	}
	s.of.mu.Lock()
	s.of.answers = append(s.of.answers, text)
	s.of.mu.Unlock()
	if c.Choice != nil && c.Choice.Application == "slowly read" {
		time.Sleep(time.Second)
	}
}

// send sends a frame to one model of the application, or to those that its policy asks.
func (c *camera) send(app string, seq int, model string) *shot {
	c.t.Helper()
	s := &shot{of: c, seq: seq}
	p := c.params
	p.Arrived, p.Client, p.Stream, p.Seq = time.Now(), "10.0.0.1", "cam", uint64(seq)+1
	if c.unnumbered {
		p.Seq = 0
	}
	if model != "" {
		p.Candidates = []string{model}
	}
	p.Model, p.Inputs = app, []tensor.Tensor{row()}
	if err := c.Open(&s.Call, &p); err != nil {
		c.t.Fatal(err)
	}
	s.Owner = s
	c.Submit(&s.Call)
	c.t.Cleanup(s.Close)
	return s
}

// expect compares the answers that have left, and checks that nothing remains of the stream.
func (c *camera) expect(want ...string) {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := strings.Join(c.answers, "\n"); got != strings.Join(want, "\n") {
		c.t.Errorf("got\n%s\nexpected\n%s", got, strings.Join(want, "\n"))
	}
	if n := c.reg.order.Streams(); n > 0 {
		c.t.Errorf("%d streams are left", n)
	}
	c.answers = nil
}

// onCamera runs a test with an application of which one model takes a second and the other 10 ms.
func onCamera(t *testing.T, test func(t *testing.T, c *camera)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.model("slow", "1", 1, time.Second)
		h.model("fast", "1", 2, 10*time.Millisecond)
		h.app(Definition{Name: "app", Models: []string{"slow", "fast"}, Policy: "epsilon-greedy"})
		test(t, &camera{house: h, t: t, began: time.Now()})
		synctest.Wait() // the calls are complete before they are closed
	})
}

// TestOrderOverModels: a policy sends one frame to a slow model and the next to a fast one.
func TestOrderOverModels(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.send("app", 0, "slow")
		c.send("app", 1, "fast")
		time.Sleep(100 * time.Millisecond)
		c.params.User = "another client"
		c.send("app", 7, "fast")
		c.params.User = ""
		time.Sleep(100 * time.Millisecond)
		c.send("app", 2, "fast")
		time.Sleep(2 * time.Second)
		c.expect("7 after 110ms: 2, skipped 0, age 10ms",
			"0 after 1s: 1, skipped 0, age 1s", "1 after 1s: 2, skipped 0, age 1s", "2 after 1s: 2, skipped 0, age 800ms")
	})
}

// TestOrderOfErrors: errors leave at once, and the frame that superseded another counts it, no
// matter which model answers.
func TestOrderOfErrors(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.params.Keep = setting.KeepLatest
		c.send("app", 0, "slow")
		c.send("app", 1, "fast")
		c.send("app", 2, "fast")
		c.send("app", 3, "fast")
		c.send("app", 4, "slow")
		c.send("app", 5, "slow")
		time.Sleep(3 * time.Second)
		c.expect("2 after 0s: superseded by frame 3 of its stream", "4 after 0s: superseded by frame 5 of its stream",
			"0 after 20ms: superseded by frame 3 of its stream", "1 after 20ms: 2, skipped 1, age 20ms",
			"3 after 20ms: 2, skipped 1, age 20ms", "5 after 2s: 1, skipped 1, age 2s")

		// The last call of a line passes its count on when it leaves with an error.
		c.began = time.Now()
		c.send("app", 0, "slow")
		c.send("app", 1, "slow")
		c.params.Timeout = 100 * time.Millisecond
		c.send("app", 2, "slow")
		c.params.Timeout = 0
		time.Sleep(500 * time.Millisecond)
		c.send("app", 3, "fast")
		time.Sleep(time.Second)
		c.expect("1 after 0s: superseded by frame 2 of its stream", "2 after 100ms: deadline exceeded: it passed while the request waited in the queue",
			"0 after 1s: 1, skipped 0, age 1s", "3 after 1s: 2, skipped 1, age 500ms")
	})
}

// TestOrderOfKeep: when more answers wait for older frames than frames may wait, the older frames
// are superseded, no matter what sets the limit, and whether a model executes them or has them in
// its queue.
func TestOrderOfKeep(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		frames := func(app string) {
			c.began = time.Now()
			c.send(app, 0, "slow")
			c.send(app, 1, "slow")
			time.Sleep(100 * time.Millisecond)
			for seq := range 4 {
				c.send(app, 2+seq, "fast")
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(2 * time.Second)
		}
		two := []string{"0 after 310ms: superseded by frame 4 of its stream", "1 after 310ms: superseded by frame 4 of its stream",
			"2 after 310ms: 2, skipped 2, age 210ms", "3 after 310ms: 2, skipped 0, age 110ms",
			"4 after 310ms: 2, skipped 0, age 10ms", "5 after 410ms: 2, skipped 0, age 10ms"}

		c.params.Keep = 2
		frames("app")
		c.expect(two...)

		c.params.Keep = 0
		c.app(Definition{Name: "two", Models: []string{"slow", "fast"}, Policy: "epsilon-greedy", Keep: 2})
		frames("two")
		c.expect(two...)

		// The settings of the models, which this house does not apply to their queues.
		options := c.options
		c.options = func(name string) gate.ModelOptions {
			o := options(name)
			o.Keep = setting.KeepLatest
			return o
		}
		c.Changed()
		frames("app")
		c.expect("0 after 210ms: superseded by frame 3 of its stream", "1 after 210ms: superseded by frame 3 of its stream",
			"2 after 210ms: 2, skipped 2, age 110ms", "3 after 210ms: 2, skipped 0, age 10ms",
			"4 after 310ms: 2, skipped 0, age 10ms", "5 after 410ms: 2, skipped 0, age 10ms")

		c.params.Keep = setting.KeepAll // a request overrides everything else
		frames("app")
		c.expect("0 after 1s: 1, skipped 0, age 1s", "1 after 2s: 1, skipped 0, age 2s",
			"2 after 2s: 2, skipped 0, age 1.9s", "3 after 2s: 2, skipped 0, age 1.8s",
			"4 after 2s: 2, skipped 0, age 1.7s", "5 after 2s: 2, skipped 0, age 1.6s")
	})
}

// TestOrderSupersedes: a frame that some models of an ensemble have answered, and a frame whose
// application has a default, are superseded like any other. The error names the newer frame, and
// there is nothing to judge.
func TestOrderSupersedes(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.app(Definition{Name: "both", Models: []string{"slow", "fast"}, Policy: "ensemble",
			Default: json.RawMessage(`{"label": -1}`), Keep: setting.KeepLatest})
		c.unnumbered = true
		for seq, model := range []string{"", "fast", "fast"} {
			c.params.ID = fmt.Appendf(nil, "%d", seq)
			c.send("both", seq, model)
			time.Sleep(50 * time.Millisecond)
		}
		c.expect("0 after 110ms: superseded by frame 2 of its stream",
			"1 after 110ms: 2, skipped 1, age 60ms, frame -1", "2 after 110ms: 2, skipped 0, age 10ms, frame -1")
		for id, known := range []bool{false, true, true} {
			if got := c.reg.Predictions.Find("both", "", fmt.Sprint(id), time.Now()) != nil; got != known {
				t.Errorf("predictions for frame %d: %v", id, got)
			}
		}
		time.Sleep(time.Second) // the slow model has answered
		c.expect()
	})
}

// TestOrderEndsWithTheDeadline: an answer waits for older ones no longer than its own deadline, and
// then holds up no later answer.
func TestOrderEndsWithTheDeadline(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.send("app", 0, "slow")
		c.params.Timeout = 300 * time.Millisecond
		c.send("app", 1, "fast")
		c.params.Timeout = 0
		c.send("app", 2, "fast")
		time.Sleep(2 * time.Second)
		c.expect("1 after 300ms: deadline exceeded: it passed while the answer waited for that of an older frame of its stream",
			"0 after 1s: 1, skipped 0, age 1s", "2 after 1s: 2, skipped 0, age 1s")
	})
}

// TestOrderWithoutAClient: a call that is canceled while it waits, or before, leaves at once.
func TestOrderWithoutAClient(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.send("app", 0, "slow")
		held := c.send("app", 1, "fast")
		c.send("app", 2, "fast")
		time.Sleep(100 * time.Millisecond)
		c.Cancel(&held.Call)
		time.Sleep(2 * time.Second)
		c.expect("1 after 100ms: canceled: the caller gave up", "0 after 1s: 1, skipped 0, age 1s", "2 after 1s: 2, skipped 0, age 1s")

		// A canceled call does not count as a waiting answer.
		c.began, c.params.Keep = time.Now(), setting.KeepLatest
		c.send("app", 0, "slow")
		held = c.send("app", 1, "fast")
		time.Sleep(100 * time.Millisecond)
		c.Cancel(&held.Call)
		c.send("app", 2, "fast")
		time.Sleep(2 * time.Second)
		c.expect("1 after 100ms: canceled: the caller gave up", "0 after 1s: 1, skipped 0, age 1s", "2 after 1s: 2, skipped 0, age 900ms")
		c.params.Keep = 0

		c.began = time.Now()
		slow := c.send("app", 0, "slow")
		held = c.send("app", 1, "fast")
		held.Fanout.(*fanout).waiter.Load().Cancel() // before the model's call, which then is complete
		time.Sleep(100 * time.Millisecond)
		c.send("app", 2, "fast")
		time.Sleep(100 * time.Millisecond)
		c.Cancel(&slow.Call)
		c.expect("1 after 10ms: canceled: the caller gave up", "0 after 200ms: canceled: the caller gave up", "2 after 200ms: 2, skipped 0, age 100ms")
		time.Sleep(2 * time.Second)
	})
}

// TestOrderOverChanges: a stream goes on when its application is changed, deleted and made again,
// and when it has no model any more and answers with its default.
func TestOrderOverChanges(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.send("app", 0, "slow")
		c.app(Definition{Name: "app", Models: []string{"fast"}})
		c.send("app", 1, "")
		if err := c.reg.Delete(t.Context(), "app"); err != nil {
			t.Fatal(err)
		}
		c.app(Definition{Name: "app", Models: []string{"gone"}, Default: json.RawMessage(`{"label": -1}`), SLO: "300ms"})
		c.send("app", 2, "")
		c.params.Timeout = time.Minute
		c.send("app", 3, "")
		c.params.Timeout = 0
		time.Sleep(2 * time.Second)
		c.expect("2 after 300ms: deadline exceeded: it passed while the answer waited for that of an older frame of its stream",
			"0 after 1s: 1, skipped 0, age 1s", "1 after 1s: 2, skipped 0, age 1s", "3 after 1s: -1, skipped 0, age 1s")

		// Default outputs wait, too, for as many frames as the application says.
		c.app(Definition{Name: "app", Models: []string{"slow"}})
		c.began = time.Now()
		c.send("app", 0, "")
		c.app(Definition{Name: "app", Models: []string{"gone"}, Default: json.RawMessage(`{"label": -1}`),
			Keep: setting.KeepLatest})
		c.send("app", 1, "")
		time.Sleep(100 * time.Millisecond)
		c.send("app", 2, "")
		c.expect("0 after 100ms: superseded by frame 2 of its stream", "1 after 100ms: -1, skipped 1, age 100ms", "2 after 100ms: -1, skipped 0, age 0s")
		time.Sleep(time.Second)
		call := new(gate.Call)
		if err := c.Open(call,
			&gate.Request{Model: "app", Inputs: []tensor.Tensor{row()}, Values: parameter.Values{Seq: 1}}); err !=
			nil || call.Frame != nil {
			t.Errorf("a number without a stream: %+v, %v", call.Frame, err)
		}
		call.Close()
	})
}

// TestNoneOvertakes: an answer does not leave before Complete of the one before it has returned.
func TestNoneOvertakes(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.model("other", "1", 3, 10*time.Millisecond)
		c.app(Definition{Name: "slowly read", Models: []string{"other", "fast"}, Policy: "epsilon-greedy"})
		c.send("slowly read", 0, "fast")
		time.Sleep(100 * time.Millisecond)
		c.send("slowly read", 1, "other")
		time.Sleep(10 * time.Second)
		c.expect("0 after 10ms: 2, skipped 0, age 10ms", "1 after 1.01s: 3, skipped 0, age 910ms")
	})
}

// TestOrderOfSome: an ensemble answers at its deadline with the predictions that it has, in order
// like any other answer.
func TestOrderOfSome(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.app(Definition{Name: "both", Models: []string{"slow", "fast"}, Policy: "ensemble"})
		c.send("both", 0, "slow")
		c.params.Timeout = 200 * time.Millisecond
		c.send("both", 1, "")
		time.Sleep(50 * time.Millisecond)
		c.params.Timeout = 2 * time.Second
		c.send("both", 2, "fast")
		time.Sleep(2 * time.Second)
		c.expect("1 after 200ms: deadline exceeded: it passed while the answer waited for that of an older frame of its stream",
			"0 after 1s: 1, skipped 0, age 1s", "2 after 1s: 2, skipped 0, age 950ms")
	})
}

// TestSupersededTeachesNobody: a frame that no model saw has nothing to judge.
func TestSupersededTeachesNobody(t *testing.T) {
	onCamera(t, func(t *testing.T, c *camera) {
		c.app(Definition{Name: "watched", Models: []string{"slow", "fast"}, Policy: "shadow",
			Params: map[string]any{"model": "slow"}})
		c.params.Keep = setting.KeepLatest
		for app, model := range map[string]string{"app": "slow", "watched": ""} {
			for i := range 3 {
				c.params.ID = fmt.Appendf(nil, "%d", i)
				c.send(app, i, model)
			}
			time.Sleep(5 * time.Second)
			for id, known := range []bool{true, false, true} {
				if got := c.reg.Predictions.Find(app, "", fmt.Sprint(id), time.Now()) != nil; got != known {
					t.Errorf("%s: predictions for frame %d: %v", app, id, got)
				}
			}
		}
		c.params.ID = nil
	})
}

// TestOrderInAHurry: whatever ends the calls, and however many at a time, outputs leave in order
// and nothing remains.
func TestOrderInAHurry(t *testing.T) {
	h := newHouse(t)
	h.model("slow", "1", 1, 2*time.Millisecond)
	h.model("fast", "1", 2, 100*time.Microsecond)
	h.app(Definition{Name: "app", Models: []string{"slow", "fast"}, Policy: "epsilon-greedy"})
	c := &camera{house: h, t: t, began: time.Now()}
	const frames = 1000
	var shots []*shot
	for i := range frames {
		c.params.Timeout = time.Second
		if i%7 == 0 {
			c.params.Timeout = 3 * time.Millisecond
		}
		c.params.Keep = setting.Keep(1 + i%3)
		shots = append(shots, c.send("app", i, []string{"slow", "fast", ""}[i%3]))
		if i%5 == 0 {
			go c.Cancel(&shots[i-i%4].Call)
		}
		if i%2 == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	budgettest.Until(t, "all answers", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.answers) == frames
	})
	last, shown := -1, 0
	for _, a := range c.answers {
		var seq int
		if _, err := fmt.Sscan(a, &seq); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(a, "skipped") {
			if shown++; seq < last {
				t.Errorf("%s: it left after frame %d", a, last)
			}
			last = seq
		}
	}
	if shown == 0 || shown == frames {
		t.Errorf("%d of %d frames had outputs", shown, frames)
	}
	budgettest.Until(t, "the stream to be forgotten", func() bool {
		return c.reg.order.Streams() == 0
	})
}
