package grpc

import (
	"context"
	"fmt"

	"github.com/shivad/shivad/server/internal/parameter"
)

// sequences order the requests of one ModelStreamInfer. Requests of one sequence of a model are
// executed one after the other, in the order of their arrival: each starts when the one before it
// has its answer, even an error. Otherwise a model that sums up a sequence would sum in any order,
// since each request has a goroutine and a batch has no order. Requests of different sequences, and
// those that name none, run concurrently.
//
// A request that waits here is not answered at its deadline but after the request before it, since
// its answer could not leave sooner.
//
// Only the goroutine that receives uses it.
type sequences map[string]chan struct{} // of the last request: closed when it has its answer

// A position is a request's place in its sequences.
type position struct {
	predecessors []chan struct{} // the requests that come first
	done         chan struct{}   // closed when this one has its answer; nil if it is in no sequence
}

// take returns the turn of a request. At most places requests are unanswered at a time.
func (s sequences) take(r *request, places int) (t position) {
	for _, key := range r.sequences() {
		if t.done == nil {
			t.done = make(chan struct{})
		}
		if last := s[key]; last != nil {
			t.predecessors = append(t.predecessors, last)
		}
		s[key] = t.done
	}
	if len(s) > 4*places { // at most two for each place are still open
		for key, last := range s {
			select {
			case <-last:
				delete(s, key)
			default:
			}
		}
	}
	return t
}

// wait returns when the request may be executed, or ctx has ended.
func (t position) wait(ctx context.Context) {
	for _, before := range t.predecessors {
		select {
		case <-before:
		case <-ctx.Done():
			return
		}
	}
}

func (t position) end() {
	if t.done != nil {
		close(t.done)
	}
}

// sequences returns the keys of the sequences that a request belongs to. As in Triton, a
// sequence_id of 0 or "" names no sequence.
func (r *request) sequences() (keys []string) {
	if r.Values.InOrder {
		keys = append(keys, "")
	}
	switch id := r.parameters["sequence_id"].(type) {
	case string:
		if id != "" {
			keys = append(keys, r.Model+"\x00"+id)
		}
	case int64, uint64:
		if n, ok := parameter.Typed(id).Whole(); !ok || n != 0 {
			keys = append(keys, fmt.Sprintf("%s\x01%d", r.Model, id))
		}
	}
	return keys
}
