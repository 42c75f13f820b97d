package apps

import (
	"container/list"
	"sync"
	"time"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// The bounds of what is remembered for feedback.
const (
	// Lifetime is how long feedback may come after its prediction.
	Lifetime = 10 * time.Minute

	maxPredictions     = 65536
	maxPredictionBytes = 64 << 20
)

// Predictions are what models said to requests that have an id, until their feedback comes. The zero value is ready.
type Predictions struct {
	mu    sync.Mutex
	byID  map[predictionKey]*list.Element
	queue list.List // of *Prediction, oldest first: those of byID and no other
	bytes int
}

type predictionKey struct{ app, user, id string }

// A Prediction is what was said to one request. It does not change once it is kept.
type Prediction struct {
	key   predictionKey
	made  time.Time
	bytes int

	Said []selection.Prediction
}

// Keep remembers what was said to a request that came at made. The outputs are copied. An id that is used again names the newer request,
// whichever is kept first. What is larger than all that may be kept is not.
func (p *Predictions) Keep(app, user, id string, made time.Time, said []selection.Prediction) {
	const each = 700 // bytes that are taken for whatever was said
	n := &Prediction{key: predictionKey{app, user, id}, made: made, bytes: each + len(id) + len(user)}
	for _, s := range said {
		n.bytes += 128
		for _, t := range s.Outputs {
			n.bytes += len(t.Data) + 128
		}
	}
	fits := n.bytes <= maxPredictionBytes
	if fits {
		n.Said = copied(said)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = make(map[predictionKey]*list.Element)
	}
	if old := p.byID[n.key]; old != nil {
		if old.Value.(*Prediction).made.After(made) {
			return // what shadows said to an earlier request
		}
		p.dropLocked(old)
	}
	if !fits {
		return
	}
	p.byID[n.key] = p.queue.PushBack(n)
	p.bytes += n.bytes
	for at := p.queue.Front(); at != nil; at = p.queue.Front() {
		if made.Sub(at.Value.(*Prediction).made) < Lifetime && len(p.byID) <= maxPredictions && p.bytes <= maxPredictionBytes {
			break
		}
		p.dropLocked(at)
	}
}

// copied is what was said in memory of its own.
func copied(said []selection.Prediction) []selection.Prediction {
	copies := make([]selection.Prediction, len(said))
	for i, s := range said {
		copies[i] = selection.Prediction{Ask: s.Ask}
		if s.Outputs == nil {
			continue
		}
		outputs := make([]tensor.Tensor, len(s.Outputs))
		for k, t := range s.Outputs {
			outputs[k] = tensor.Tensor{Name: t.Name, DType: t.DType, Shape: append(tensor.Shape{}, t.Shape...), Data: append([]byte{}, t.Data...)}
		}
		copies[i].Outputs = outputs
	}
	return copies
}

func (p *Predictions) dropLocked(at *list.Element) {
	n := p.queue.Remove(at).(*Prediction)
	delete(p.byID, n.key)
	p.bytes -= n.bytes
}

// Find gives what was said to the request of that id; nil if nothing is known of it, or no more.
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

// forget drops what was said for an application that is no more.
func (p *Predictions) forget(app string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, at := range p.byID {
		if k.app == app {
			p.dropLocked(at)
		}
	}
}
