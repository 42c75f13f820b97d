package apps

import (
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
	byID  map[predictionKey]*Prediction
	queue []*Prediction // oldest first; those taken meanwhile are still in it
	bytes int
}

type predictionKey struct{ app, user, id string }

// A Prediction is what was said to one request. It does not change once it is kept.
type Prediction struct {
	key   predictionKey
	made  time.Time
	bytes int

	Models []selection.Model // the candidates of that time
	Said   []selection.Prediction
}

// Keep remembers what was said. The outputs are copied. An id that is used again names the newer request.
func (p *Predictions) Keep(app, user, id string, now time.Time, models []selection.Model, said []selection.Prediction) {
	n := &Prediction{key: predictionKey{app, user, id}, made: now, Models: models, bytes: 512 + len(id) + len(user)}
	n.Said = make([]selection.Prediction, len(said))
	for i, s := range said {
		n.Said[i] = selection.Prediction{Ask: s.Ask}
		if s.Outputs == nil {
			continue
		}
		copies := make([]tensor.Tensor, len(s.Outputs))
		for k, t := range s.Outputs {
			copies[k] = tensor.Tensor{Name: t.Name, DType: t.DType, Shape: append(tensor.Shape{}, t.Shape...), Data: append([]byte{}, t.Data...)}
			n.bytes += len(t.Data) + 128
		}
		n.Said[i].Outputs = copies
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = make(map[predictionKey]*Prediction)
	}
	if old := p.byID[n.key]; old != nil {
		p.dropLocked(old)
	}
	p.byID[n.key] = n
	p.queue = append(p.queue, n)
	p.bytes += n.bytes
	for len(p.queue) > 0 {
		oldest := p.queue[0]
		kept := p.byID[oldest.key] == oldest
		if kept && now.Sub(oldest.made) < Lifetime && len(p.byID) <= maxPredictions && p.bytes <= maxPredictionBytes {
			break
		}
		if kept {
			p.dropLocked(oldest)
		}
		p.queue[0] = nil
		p.queue = p.queue[1:]
	}
}

func (p *Predictions) dropLocked(n *Prediction) {
	delete(p.byID, n.key)
	p.bytes -= n.bytes
}

// Find gives what was said to the request of that id; nil if nothing is known of it, or no more.
func (p *Predictions) Find(app, user, id string, now time.Time) *Prediction {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.byID[predictionKey{app, user, id}]
	if n == nil || now.Sub(n.made) >= Lifetime {
		return nil
	}
	return n
}

func (p *Predictions) forget(app string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, n := range p.byID {
		if k.app == app {
			p.dropLocked(n)
		}
	}
}
