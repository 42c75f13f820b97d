package apps

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// The bounds of what is kept for feedback.
const (
	// Lifetime is how long after its prediction feedback may arrive.
	Lifetime = 10 * time.Minute

	maxPredictions     = 65536
	maxPredictionBytes = 64 << 20
	maxInputBytes      = 64 << 20
)

// Predictions holds what models predicted for requests that have an id, until their feedback
// arrives. The zero value is ready.
type Predictions struct {
	mu    sync.Mutex
	byID  map[predictionKey]*list.Element
	queue list.List // of *Prediction, oldest first: those of byID and no other
	bytes int

	// Inputs are bounded separately, so that models that want them take no room from the policies.
	withInputs list.List // of each *Prediction with inputs, oldest first
	inputBytes int
}

type predictionKey struct{ app, user, id string }

// A Prediction is what models predicted for one request. It is immutable, except that its inputs
// may be dropped.
type Prediction struct {
	key   predictionKey
	made  time.Time
	bytes int

	Predictions []selection.Prediction

	inputs     atomic.Pointer[[]Inputs]
	inputBytes int
	element    *list.Element // in Predictions.asked; nil: no inputs
}

// Inputs returns the inputs of the models that want feedback; nil if there are none, or they were
// dropped to make room.
func (n *Prediction) Inputs() []Inputs {
	if in := n.inputs.Load(); in != nil {
		return *in
	}
	return nil
}

// Inputs are the inputs of one model, in the order that it declares, as copies that do not change.
type Inputs struct {
	Model   selection.Model
	Rows    int
	Tensors []tensor.Tensor
}

// Keep stores predictions for a request that arrived at made, and adds them to those already stored
// for it: shadows predict before or after the other models. It copies outputs, and keeps inputs
// without a copy. A reused id names the newer request, whichever is stored first. Predictions
// larger than the bound for all are not stored.
func (p *Predictions) Keep(app, user, id string, made time.Time, predictions []selection.Prediction, inputs []Inputs) {
	const each = 700 // bytes that an entry takes besides its outputs
	n := &Prediction{key: predictionKey{app, user, id}, made: made, bytes: each + len(id) + len(user)}
	for _, s := range predictions {
		n.bytes += 128
		for _, t := range s.Outputs {
			n.bytes += len(t.Data) + 128
		}
	}
	for _, in := range inputs {
		n.inputBytes += 128 // a model may have none
		for _, t := range in.Tensors {
			n.inputBytes += len(t.Data) + 128
		}
	}
	fits := n.bytes <= maxPredictionBytes
	if fits {
		n.Predictions = clonePredictions(predictions)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = make(map[predictionKey]*list.Element)
	}
	if at := p.byID[n.key]; at != nil {
		old := at.Value.(*Prediction)
		if old.made.After(made) {
			return // a shadow of an earlier request
		}
		if old.made.Equal(made) {
			n.Predictions, n.bytes = append(n.Predictions, old.Predictions...), n.bytes+old.bytes
			inputs, n.inputBytes = append(inputs, old.Inputs()...), n.inputBytes+old.inputBytes
			fits = fits && n.bytes <= maxPredictionBytes
		}
		p.dropLocked(at)
	}
	if !fits {
		return
	}
	p.byID[n.key] = p.queue.PushBack(n)
	p.bytes += n.bytes
	if n.inputBytes > 0 && n.inputBytes <= maxInputBytes {
		list := inputs // &inputs would be an allocation for every caller
		n.inputs.Store(&list)
		n.element = p.withInputs.PushBack(n)
		p.inputBytes += n.inputBytes
		for p.inputBytes > maxInputBytes {
			p.withInputs.Front().Value.(*Prediction).forgetLocked(p)
		}
	}
	for at := p.queue.Front(); at != nil; at = p.queue.Front() {
		if made.Sub(at.Value.(*Prediction).made) < Lifetime && len(p.byID) <= maxPredictions &&
			p.bytes <= maxPredictionBytes {
			break
		}
		p.dropLocked(at)
	}
}

// clonePredictions copies predictions and their outputs.
func clonePredictions(predictions []selection.Prediction) []selection.Prediction {
	copies := make([]selection.Prediction, len(predictions))
	for i, s := range predictions {
		copies[i] = selection.Prediction{Ask: s.Ask}
		if s.Outputs == nil {
			continue
		}
		copies[i].Outputs = Copied(s.Outputs)
	}
	return copies
}

// Copied returns copies of tensors in new memory.
func Copied(tensors []tensor.Tensor) []tensor.Tensor {
	copies := make([]tensor.Tensor, len(tensors))
	for i, t := range tensors {
		copies[i] = tensor.Tensor{Name: t.Name, DType: t.DType, Shape: append(tensor.Shape{}, t.Shape...),
			Data: append([]byte{}, t.Data...)}
	}
	return copies
}

func (p *Predictions) dropLocked(at *list.Element) {
	n := p.queue.Remove(at).(*Prediction)
	delete(p.byID, n.key)
	p.bytes -= n.bytes
	n.forgetLocked(p)
}

// forgetLocked drops the inputs of a prediction in p.
func (n *Prediction) forgetLocked(p *Predictions) {
	if n.element != nil {
		p.withInputs.Remove(n.element)
		p.inputBytes -= n.inputBytes
		n.element = nil
		n.inputs.Store(nil)
	}
}

// Find returns the predictions for the request with that id; nil if there are none, or no longer.
func (p *Predictions) Find(app, user, id string, now time.Time) *Prediction {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.byID[predictionKey{app, user, id}]
	if at == nil {
		return nil
	}
	n := at.Value.(*Prediction)
	if now.Sub(n.made) >= Lifetime {
		return nil
	}
	return n
}

// forget drops the predictions of a deleted application.
func (p *Predictions) forget(app string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, at := range p.byID {
		if k.app == app {
			p.dropLocked(at)
		}
	}
}
