package pipelines

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// openings returns those of the request's inputs whose pictures one stage decodes before another
// one needs them, by index; nil for the others.
func (p *Plan) openings(inputs int) []*scheduler.Opening {
	list := make([]*scheduler.Opening, inputs)
	for input := range list {
		readers, later := 0, false
		for i := range p.stages {
			if s := &p.stages[i]; s.looksAt(input) >= 0 {
				readers, later = readers+1, later || !s.first
			}
		}
		if readers > 1 && later {
			list[input] = scheduler.NewOpening()
		}
	}
	return list
}

// looksAt returns the feed by which a stage gets the pictures of an input of the request; -1: none.
func (s *step) looksAt(input int) int {
	for i := range s.feeds {
		fed := &s.feeds[i]
		if fed.from == request && fed.output == input && s.target.Spec.Inputs[fed.input].Image != nil {
			return i
		}
	}
	return -1
}

// opens has the asker say what containers hand on of the picture in a file that row k of a stage is
// about. A run has one Opened for each such file, until no stage is left that reads the request.
func (r *run) opens(i, k int) {
	r.asker.Opened = nil
	s := &r.p.plan.stages[i]
	for input, opening := range r.p.openings {
		at := s.looksAt(input)
		if opening == nil || at < 0 || r.call.Inputs[input].DType != tensor.Bytes {
			continue
		}
		key := pictureKey{request, input, r.above(s.scope, k, request)}
		o := r.opened[key]
		if o == nil {
			if r.opened == nil {
				r.opened = make(map[pictureKey]*scheduler.Opened)
			}
			o = opening.Picture()
			r.opened[key] = o
		}
		r.asker.Opened, r.asker.OpenedAt = o, s.feeds[at].input
		return
	}
}

// closeOpened gives the pictures back that were handed on.
func (r *run) closeOpened() {
	for _, o := range r.opened {
		o.Release()
	}
	clear(r.opened)
}
