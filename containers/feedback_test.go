package containers_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// learner returns a peer that has registered by v4 and reads only in Receive.
func (r *rig) learner(t *testing.T, feedback bool) *containertest.Peer {
	t.Helper()
	before := 0
	if m, ok := r.sched.Model(echoID); ok {
		before = m.Replicas()
	}
	p := r.peer(t)
	m := echo(nil)
	m.Feedback = feedback
	if err := p.Send([]byte("hello"), containertest.Hello(m)); err != nil {
		t.Fatal(err)
	}
	if f, err := p.Receive(); err != nil || string(f[0]) != "welcome" {
		t.Fatalf("hello was answered with %q, %v", f, err)
	}
	r.wait(t, echoID, before+1)
	return p
}

func lesson(values ...float32) *scheduler.Feedback {
	x := floats(values...)
	y := x
	y.Name = "y"
	truth, _ := tensor.FromSlice(tensor.Shape{1}, []int8{7})
	truth.Name = "right"
	return &scheduler.Feedback{Application: "app", User: `an"na`, Rows: len(values) / 4,
		Inputs: []tensor.Tensor{x}, Outputs: []tensor.Tensor{y}, Truth: []tensor.Tensor{truth},
		Label: []byte(`{"y":[1]}`), Loss: new(0.25)}
}

// next receives the next message that is not a heartbeat.
func next(t *testing.T, p *containertest.Peer) [][]byte {
	t.Helper()
	for {
		f, err := p.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if string(f[0]) != "heartbeat" {
			return f
		}
	}
}

// TestFeedbackReachesThoseThatAsk: every replica that requests feedback gets all of it; other
// replicas, of any generation, get none.
func TestFeedbackReachesThoseThatAsk(t *testing.T) {
	r := newRig(t, containers.Config{})
	silent := r.learner(t, false)
	m, _ := r.sched.Model(echoID)
	if m.TakesFeedback() {
		t.Error("nobody has asked")
	}
	m.Feedback(lesson(1, 2, 3, 4))
	learners := []*containertest.Peer{r.learner(t, true), r.learner(t, true)}
	budgettest.Until(t, "them to be known", m.TakesFeedback)
	budgettest.Until(t, "both to be told", func() bool {
		told := 0
		for _, i := range r.Sessions() {
			if i.Registered.IsZero() {
				return false
			}
			told += int(i.Feedback)
		}
		if told == 0 {
			m.Feedback(lesson(1, 2, 3, 4))
		}
		return told == 2
	})
	const head = `{"application":"app","user":"an\"na","rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,4]}],` +
		`"outputs":[{"name":"y","datatype":"FP32","shape":[1,4]}],"truth":[{"name":"right","datatype":"INT8","shape":[1]}],"label":{"y":[1]},"loss":0.25}`
	row := floats(1, 2, 3, 4).Data
	for _, p := range learners {
		f := next(t, p)
		if len(f) != 5 || string(f[0]) != "feedback" || string(f[1]) != head || !bytes.Equal(f[2], row) ||
			!bytes.Equal(f[3], row) || !bytes.Equal(f[4], []byte{7}) {
			t.Errorf("told %q", f)
		}
	}
	if err := silent.Send([]byte("draining")); err != nil {
		t.Fatal(err)
	}
	if f := next(t, silent); string(f[0]) != "goodbye" {
		t.Errorf("one that did not ask got %q", f)
	}
}

// TestFeedbackIsBounded: unread feedback neither ends the session of a container nor fills the
// queue that batches share.
func TestFeedbackIsBounded(t *testing.T) {
	r := newRig(t, containers.Config{})
	p := r.learner(t, true)
	m, _ := r.sched.Model(echoID)
	large := make([]float32, 1<<18)
	const told = 1000
	for range told {
		m.Feedback(lesson(large...))
	}
	asked := make(chan error, 1)
	go func() { asked <- r.echoes(echoID) }() // ends with the answer below
	budgettest.Until(t, "a batch to go out, behind what was told", func() bool {
		i := r.Sessions()[0]
		return i.InFlight == 1 && i.Feedback+i.FeedbackDropped == told
	})
	i := r.Sessions()[0]
	if i.Feedback == 0 || i.FeedbackDropped == 0 {
		t.Errorf("%d sent, %d dropped of %d", i.Feedback, i.FeedbackDropped, told)
	}
	for range i.Feedback {
		if f := next(t, p); string(f[0]) != "feedback" {
			t.Errorf("got %q", f[0])
		}
	}
	f := next(t, p)
	if string(f[0]) != "batch" {
		t.Fatalf("got %q", f[0])
	}
	if err := p.Send([]byte("result"), f[1], []byte(`{"outputs":[{"name":"y","datatype":"FP32","shape":[1,4]}]}`),
		f[3]); err != nil {
		t.Error(err)
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
	budgettest.Until(t, "room", func() bool {
		m.Feedback(lesson(1, 2, 3, 4))
		return r.Sessions()[0].Feedback > i.Feedback
	})
	if state := r.Sessions()[0].State; state != "serving" {
		t.Error(fmt.Sprint("the session is ", state))
	}
}
