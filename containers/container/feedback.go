package container

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback is what an application was told of an answer that the model had a part in. Its
// memory is the model's only until Model.Feedback returns.
type Feedback struct {
	// Application is what was told, and User by whom; "" is nobody in particular.
	Application, User string
	// Rows is how many rows the request had; 1 if the model is not batched.
	Rows int
	// Inputs are what was asked, in the order declared; an optional one that was left out has
	// no Shape, as in a Batch. Outputs are what this model had said, in the order declared; nil
	// if that is not known.
	Inputs, Outputs []tensor.Tensor

	// What became known is one of these.

	Truth []tensor.Tensor // what would have been right, as the client sent it
	Label []byte          // the same as JSON: a value, a list, or an object of them by output; nil: none
	Loss  *float64        // how bad the answer was, from 0 to 1
}

// A lesson is feedback on its way from a session's reader, in the memory that it was received into.
type lesson struct {
	of *session
	b  *Batch
}

// maxLessons is how many may wait for Model.Feedback; more are dropped.
const maxLessons = 64

// learn calls Model.Feedback for all sessions, one at a time, until hard ends. What waits then
// is the garbage collector's.
func (s *server) learn(hard context.Context) {
	for {
		select {
		case <-hard.Done():
			return
		case l := <-s.lessons:
			if err := s.model.learn(hard, l.b); err != nil {
				s.model.Log.Error("container: Feedback failed; nobody else knows", "model", s.model.Name, "err", err)
			}
			l.of.recycle(l.b)
		}
	}
}

// teach hands feedback on. It is false when there is no room.
func (n *session) teach(b *Batch) bool {
	select {
	case n.server.lessons <- lesson{n, b}:
		return true
	default:
		return false
	}
}

// learn calls Feedback with the message in b. A panic is an error.
func (m *Model) learn(ctx context.Context, b *Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			m.Log.Error("container: Feedback panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	f, err := m.feedback(b)
	if err != nil {
		return err
	}
	return m.Feedback(ctx, f)
}

// feedback reads the message in b: feedback | JSON | a frame for each input, output and truth.
func (m *Model) feedback(b *Batch) (*Feedback, error) {
	if b.message.Refused != nil {
		return nil, b.message.Refused
	}
	frames := b.message.Frames
	if len(frames) < 2 {
		return nil, errors.New("feedback of 1 frame, expected feedback | JSON | tensors")
	}
	var h wire.FeedbackHeader
	if err := h.Parse(frames[1].Data); err != nil {
		return nil, err
	}
	frames = frames[2:]
	if n := len(h.Inputs) + len(h.Outputs) + len(h.Truth); n != len(frames) {
		return nil, fmt.Errorf("feedback describes %d tensors in %d frames", n, len(frames))
	}
	f := &Feedback{Application: string(h.Application), User: string(h.User), Rows: h.Rows, Label: h.Label}
	if h.Lost {
		f.Loss = &h.Loss
	}
	var came [3][]tensor.Tensor
	for i, heads := range [][]wire.TensorHeader{h.Inputs, h.Outputs, h.Truth} {
		for _, head := range heads {
			t := tensor.Tensor{Name: string(head.Name), DType: head.DType, Shape: head.Shape, Data: frames[0].Data}
			if err := t.Check(); err != nil {
				return nil, fmt.Errorf("feedback: tensor %q: %w", t.Name, err)
			}
			came[i], frames = append(came[i], t), frames[1:]
		}
	}
	var err error
	if f.Inputs, err = declared(came[0], m.Inputs); err == nil && came[1] != nil {
		f.Outputs, err = declared(came[1], m.Outputs)
	}
	f.Truth = came[2]
	return f, err
}

// declared puts tensors into the places of their specs.
func declared(came []tensor.Tensor, specs []tensor.Spec) ([]tensor.Tensor, error) {
	list := make([]tensor.Tensor, len(specs))
	at := 0
	for i, spec := range specs {
		list[i].Name = spec.Name
		switch {
		case at < len(came) && came[at].Name == spec.Name && came[at].DType == spec.DType:
			list[i] = came[at]
			at++
		case !spec.Optional:
			return nil, fmt.Errorf("feedback is without %s %q", spec.DType, spec.Name)
		}
	}
	if at < len(came) {
		return nil, fmt.Errorf("feedback has a tensor %.64q, which is not declared, or not in its place", came[at].Name)
	}
	return list, nil
}
