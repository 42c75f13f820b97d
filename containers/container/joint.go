package container

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler/rounds"
	"github.com/shivad/shivad/shiva/tensor"
)

// A joint is a batch of the rows of several batches, which come from several servers and are
// executed in one call. Their answers are parts of its outputs, so it stays until all of them have
// been sent.
type joint struct {
	batch *Batch
	parts atomic.Int32
}

// release gives up one part.
func (j *joint) release() {
	if j.parts.Add(-1) == 0 {
		j.batch.reset()
	}
}

// join computes batches in one call and writes their answers. It also returns those that it has not
// written, which have to be computed alone: a single one, those that cannot be read, or all if the
// call fails, since one of them may be to blame.
func (s *server) join(e *rounds.Execution[*Batch]) (ready, alone []*Batch) {
	now := time.Now()
	var parts []*Batch
	var queued []time.Duration
	for i := range e.Batches {
		b := e.Batches[i].Body
		if len(e.Batches) == 1 || b.message.Refused != nil || b.read(now) != nil {
			alone = append(alone, b)
			continue
		}
		parts, queued = append(parts, b), append(queued, e.Queued(i))
	}
	if len(parts) < 2 {
		return nil, append(alone, parts...)
	}
	j := &joint{batch: &Batch{model: s.model, pool: s.pool}}
	j.parts.Store(int32(len(parts)) + 1)
	defer j.release()
	outputs, err := []tensor.Tensor(nil), j.batch.gather(parts)
	if err == nil {
		outputs, err = s.model.serve(s.hard, j.batch, s.model.Log)
	}
	if err == nil {
		err = j.batch.check(outputs)
	}
	var shares [][]tensor.Tensor
	if err == nil {
		shares, err = j.batch.divide(outputs, parts)
	}
	if err != nil {
		j.parts.Add(-int32(len(parts)))
		return nil, append(alone, parts...)
	}
	row := 0
	for i, b := range parts {
		for _, f := range j.batch.failed {
			if f.Row >= row && f.Row < row+b.Rows {
				f.Row -= row
				b.failed = append(b.failed, f)
			}
		}
		row += b.Rows
		b.joint, b.queued = j, queued[i]
		b.write(shares[i], nil)
	}
	return parts, alone
}

// gather makes b the rows of all parts, which agree in everything but their number.
func (b *Batch) gather(parts []*Batch) error {
	first := parts[0]
	b.ID = first.ID
	some := struct{ requests, parameters, metadata, priority, traces, states bool }{}
	for _, p := range parts {
		b.Rows += p.Rows
		if !p.Deadline.IsZero() && (b.Deadline.IsZero() || p.Deadline.Before(b.Deadline)) {
			b.Deadline = p.Deadline
		}
		some.requests = some.requests || p.Requests != nil
		some.parameters = some.parameters || len(p.header.Parameters) > 0
		some.metadata = some.metadata || len(p.header.Metadata) > 0
		some.priority = some.priority || len(p.header.Priority) > 0
		some.traces = some.traces || len(p.header.Traces) > 0
		some.states = some.states || len(p.header.States) > 0
	}
	h := &b.header
	for _, p := range parts {
		n := p.Len()
		if some.requests {
			b.Requests = append(b.Requests, orDefault(p.Requests, n, 1)...)
		}
		if some.parameters {
			h.Parameters = append(h.Parameters, orDefault(p.header.Parameters, n, nil)...)
		}
		if some.metadata {
			h.Metadata = append(h.Metadata, orDefault(p.header.Metadata, n, nil)...)
		}
		if some.priority {
			h.Priority = append(h.Priority, orDefault(p.header.Priority, n, 0)...)
		}
		if some.traces {
			h.Traces = append(h.Traces, orDefault(p.header.Traces, n, nil)...)
		}
		if some.states {
			h.States = append(h.States, orDefault(p.header.States, n, nil)...)
		}
	}
	whole := make([]tensor.Tensor, len(parts))
	b.gatherCuts(parts)
	for i := range first.Inputs {
		if !first.present[i] {
			b.Inputs, b.present = append(b.Inputs, first.Inputs[i]), append(b.present, false)
			continue
		}
		for k, p := range parts {
			whole[k] = p.Inputs[i]
		}
		t, err := tensor.Concat(whole, b.pool)
		if err != nil {
			return err
		}
		if t.Buf != nil {
			b.buffers = append(b.buffers, t.Buf)
		}
		b.Inputs, b.present = append(b.Inputs, t), append(b.present, true)
	}
	return nil
}

// orDefault returns the list, or n times value if it is empty.
func orDefault[T any](list []T, n int, value T) []T {
	if len(list) > 0 {
		return list
	}
	return slices.Repeat([]T{value}, n)
}

// divide cuts outputs into those of the parts.
func (b *Batch) divide(outputs []tensor.Tensor, parts []*Batch) (shares [][]tensor.Tensor, err error) {
	shares = make([][]tensor.Tensor, len(parts))
	for i := range b.model.Outputs {
		rest, row := outputs[i], 0
		counts := b.counts(i, outputs)
		for k, p := range parts {
			n := p.Rows
			if counts != nil {
				n = 0
				for _, c := range counts[row : row+p.Rows] {
					n += c
				}
			}
			row += p.Rows
			var head tensor.Tensor
			if head, rest, err = rest.Cut(n); err != nil {
				return nil, err
			}
			shares[k] = append(shares[k], head)
		}
	}
	return shares, nil
}

// counts returns how many values of output i belong to each row; nil: one each.
func (b *Batch) counts(i int, outputs []tensor.Tensor) []int {
	by := slices.IndexFunc(b.model.Outputs, func(s tensor.Spec) bool { return s.Name == b.model.Outputs[i].Ragged })
	if b.model.Outputs[i].Ragged == "" || by < 0 {
		return nil
	}
	counts := make([]int, b.Rows)
	if values, err := tensor.Values[int32](outputs[by]); err == nil {
		for row, n := range values {
			counts[row] = int(n)
		}
	} else if values, err := tensor.Values[int64](outputs[by]); err == nil {
		for row, n := range values {
			counts[row] = int(n)
		}
	}
	return counts
}

// answer sends the answer that a batch has written. It is recycled once that is sent.
func (n *session) answer(b *Batch) {
	n.sent.Store(true)
	if err := n.conn.Send(&b.out); err != nil {
		n.recycle(b)
		if errors.Is(err, zmtp.ErrQueueFull) {
			n.conn.Abort(fmt.Errorf("the server does not read: %w", err))
		}
	}
}
