package grpc

import (
	"context"
	"fmt"
)

// sequences hold back requests of one ModelStreamInfer. Those of one sequence of a model are
// executed one after the other, in the order in which they came: the next one when the one
// before has its answer, whatever that is. A model that adds up a sequence would add in any
// order otherwise, as each request has a goroutine, and even a batch has no order that a model
// must keep. Requests of different sequences, and those that name none, run side by side.
//
// A request that waits here is not answered at its deadline but after the one before it, which
// is when its answer could leave anyway.
//
// It belongs to the goroutine that receives.
type sequences map[string]chan struct{} // of a sequence's last request: closed when that has its answer

// A turn is a request's place in its sequences.
type turn struct {
	before []chan struct{} // the requests that come first
	done   chan struct{}   // closed when this one has its answer; nil if it is in no sequence
}

// take gives a request its turn. places bounds how many can be without an answer.
func (s sequences) take(r *request, places int) (t turn) {
	for _, key := range r.sequences() {
		if t.done == nil {
			t.done = make(chan struct{})
		}
		if last := s[key]; last != nil {
			t.before = append(t.before, last)
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

// wait returns when the request may be asked, or ctx has ended.
func (t turn) wait(ctx context.Context) {
	for _, before := range t.before {
		select {
		case <-before:
		case <-ctx.Done():
			return
		}
	}
}

func (t turn) end() {
	if t.done != nil {
		close(t.done)
	}
}

// sequences names those that a request belongs to. As for Triton, a sequence_id of 0 or "" is none.
func (r *request) sequences() (keys []string) {
	if r.values.InOrder {
		keys = append(keys, "")
	}
	switch id := r.parameters["sequence_id"].(type) {
	case string:
		if id != "" {
			keys = append(keys, r.model+"\x00"+id)
		}
	case int64, uint64:
		if n, ok := natural(id); !ok || n != 0 {
			keys = append(keys, fmt.Sprintf("%s\x01%d", r.model, id))
		}
	}
	return keys
}
