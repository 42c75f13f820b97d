package scheduler

import (
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback is a client's report on an answer of a model, for replicas that learn from it. It is
// immutable and in garbage-collected memory, tensors included, so a replica may retain it, and
// several replicas may be sent the same one.
type Feedback struct {
	Application string
	User        string          // "": none
	Rows        int             // of the request
	Inputs      []tensor.Tensor // in the order of the declaration, as in a Part
	Outputs     []tensor.Tensor // the model's answer, in the order of the declaration; nil: unknown

	// Exactly one of these is set.
	Truth []tensor.Tensor // the right answer, with the client's names, dtypes and shapes
	Label []byte          // the same as JSON; nil: none
	Loss  *float64        // how bad the answer was, 0 to 1
}

// TakesFeedback reports whether any live replica wants it.
func (m *Model) TakesFeedback() bool { return len(m.learners()) > 0 }

// Feedback passes f to all live replicas that want it; a replica that learned alone would differ
// from the others. It does not block, and delivery is not guaranteed.
func (m *Model) Feedback(f *Feedback) {
	for _, tell := range m.learners() {
		tell(f)
	}
}

func (m *Model) learners() (tell []func(*Feedback)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.core.replicas {
		if r.state == replicaLive && r.options.Feedback != nil {
			tell = append(tell, r.options.Feedback)
		}
	}
	return tell
}
