package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestStatsNameTheSick: statistics show a replica that fails every batch and one that hangs, with
// their last errors and the ages of waiting rows and batches; both recover with their next
// answer.
func TestStatsNameTheSick(t *testing.T) {
	clock := schedtest.NewClock()
	sched, err := scheduler.New(scheduler.Config{Clock: clock,
		Default: scheduler.ModelConfig{ExecTimeout: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer sched.Close()
	in, err := tensor.FromSlice(tensor.Shape{1, 4}, []uint8{1, 2, 3, 4})
	if err != nil {
		t.Fatal(err)
	}
	model := func(name string) (*schedtest.Worker, *scheduler.Replica) {
		w := &schedtest.Worker{Clock: clock}
		rep, err := sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"},
			scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, w,
			scheduler.ReplicaOptions{Label: name + "-1", Concurrency: 1, Slots: 1})
		if err != nil {
			t.Fatal(err)
		}
		return w, rep
	}
	submit := func(rep *scheduler.Replica, deadline time.Duration) {
		sched.Submit(&scheduler.Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: 1,
			Deadline: clock.Now().Add(deadline), Owner: anotherRequest(func() {})})
	}

	bad, badReplica := model("bad")
	for range 3 {
		submit(badReplica, time.Minute)
		if err := bad.Fail(errors.New("no kernel image")); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(2 * time.Second)
	s := badReplica.Model().Stats()
	r := s.Replicas[0]
	if s.Live != 1 || s.Failing != 1 || r.State != scheduler.ReplicaFailing || r.Failed != 3 ||
		r.LastFailed != 2*time.Second ||
		r.LastError == nil || !strings.Contains(r.LastError.Error(), "no kernel image") {
		t.Errorf("live %d, failing %d, replica %+v", s.Live, s.Failing, r)
	}
	submit(badReplica, time.Minute)
	if err := bad.Answer(); err != nil {
		t.Fatal(err)
	}
	if s := badReplica.Model().Stats(); s.Failing != 0 || s.Replicas[0].State != scheduler.ReplicaLive {
		t.Errorf("after an answer: failing %d, %+v", s.Failing, s.Replicas[0])
	}

	hung, hungReplica := model("hung")
	submit(hungReplica, time.Minute)
	clock.Advance(100 * time.Millisecond)
	submit(hungReplica, 30*time.Second) // the head of the queue, but not the row that waits longest
	clock.Advance(100 * time.Millisecond)
	submit(hungReplica, 5*time.Second)
	clock.Advance(300 * time.Millisecond)
	if s := hungReplica.Model().Stats(); s.OldestWait != 400*time.Millisecond || s.OldestBatch != 500*time.Millisecond {
		t.Errorf("the oldest row waits for %v and the oldest batch for %v, want 400ms and 500ms", s.OldestWait,
			s.OldestBatch)
	}
	clock.Advance(600 * time.Millisecond)
	s = hungReplica.Model().Stats()
	r = s.Replicas[0]
	if r.State != scheduler.ReplicaSuspect || r.OldestBatch != 1100*time.Millisecond || r.LastError == nil ||
		!strings.Contains(r.LastError.Error(), "execution_timeout") {
		t.Errorf("after the execution timeout: %+v", r)
	}
	for hung.Answer() == nil {
	}
	if s := hungReplica.Model().Stats(); s.Replicas[0].State != scheduler.ReplicaLive || s.OldestBatch != 0 {
		t.Errorf("after an answer: %+v", s.Replicas[0])
	}
}
