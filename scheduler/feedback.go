package scheduler

import (
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback is what became known of an answer of a model's, for replicas that want to learn from
// it. It and all that it refers to is the garbage collector's, and nobody changes it: it may be
// kept, and sent to several at once.
type Feedback struct {
	Application string
	User        string          // "": nobody in particular
	Rows        int             // of the request
	Inputs      []tensor.Tensor // in the order declared, as in a batch's part
	Outputs     []tensor.Tensor // what the model had said, in the order declared; nil if that is not known

	// What became known is one of these.
	Truth []tensor.Tensor // what would have been right, as it came
	Label []byte          // the same as JSON; nil: none
	Loss  *float64        // how bad the answer was, 0 to 1
}

// TakesFeedback reports whether any live replica wants it.
func (m *Model) TakesFeedback() bool { return len(m.learners()) > 0 }

// Feedback is told to all live replicas that want it: those that learned alone would differ
// from the others. It does not block. What one of them does with it, and whether it comes there
// at all, changes nothing here.
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
