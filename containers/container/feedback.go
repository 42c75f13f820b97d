package container

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback is a client's feedback to an application about an answer that the model contributed
// to. Its memory is valid until Model.Feedback returns.
type Feedback struct {
	// Application received the feedback, and User gave it; "" if unknown.
	Application, User string
	// Rows is the number of rows of the request; 1 if the model is not batched.
	Rows int
	// Inputs are those of the request, in the order of the declaration; an absent optional one
	// has no Shape, as in a Batch. Outputs are this model's answer, in the order of the
	// declaration; nil if it is unknown.
	Inputs, Outputs []tensor.Tensor

	// Exactly one of these is set.

	Truth []tensor.Tensor // the right answer, as the client sent it
	// The same as JSON: a value, a list, or an object of them by output; nil: none.
	Label []byte
	Loss  *float64 // how bad the answer was, from 0 to 1
}

// A lesson is feedback that a session's reader has passed on, in the memory into which it was
// received.
type lesson struct {
	of *session
	b  *Batch
}

// maxLessons is the number of lessons that may wait for Model.Feedback; more are dropped.
const maxLessons = 64

// learn calls Model.Feedback for all sessions, one lesson at a time, until hard ends. It leaves
// waiting lessons to the garbage collector.
func (s *server) learn(hard context.Context) {
	for {
		select {
		case <-hard.Done():
			return
		case l := <-s.lessons:
			if err := s.model.learn(hard, l.b); err != nil {
				s.model.Log.Error("container: Feedback failed; the server is not told",
					"model", s.model.Name, "err", err)
			}
			l.of.recycle(l.b)
		}
	}
}

// queueFeedback passes feedback on to learn. It returns false if there is no room.
func (n *session) queueFeedback(b *Batch) bool {
	select {
	case n.server.lessons <- lesson{n, b}:
		return true
	default:
		return false
	}
}

// learn calls Feedback with the message in b. A panic becomes an error.
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

// feedback parses the message in b: feedback | JSON | a frame for each input, output and truth.
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
	var tensors [3][]tensor.Tensor
	for i, heads := range [][]wire.TensorHeader{h.Inputs, h.Outputs, h.Truth} {
		for _, head := range heads {
			t := tensor.Tensor{Name: string(head.Name), DType: head.DType, Shape: head.Shape, Data: frames[0].Data}
			if err := t.Check(); err != nil {
				return nil, fmt.Errorf("feedback: tensor %q: %w", t.Name, err)
			}
			tensors[i], frames = append(tensors[i], t), frames[1:]
		}
	}
	var err error
	if f.Inputs, err = declared(tensors[0], m.inputs()); err == nil && tensors[1] != nil {
		f.Outputs, err = declared(tensors[1], m.Outputs)
	}
	f.Truth = tensors[2]
	return f, err
}

// declared puts tensors into the order of their specs.
func declared(tensors []tensor.Tensor, specs []tensor.Spec) ([]tensor.Tensor, error) {
	list := make([]tensor.Tensor, len(specs))
	at := 0
	for i, spec := range specs {
		list[i].Name = spec.Name
		switch {
		case at < len(tensors) && tensors[at].Name == spec.Name && spec.Takes(tensors[at].DType):
			list[i] = tensors[at]
			at++
		case !spec.Optional:
			return nil, fmt.Errorf("feedback lacks %s %q", spec.DType, spec.Name)
		}
	}
	if at < len(tensors) {
		return nil, fmt.Errorf("feedback has a tensor %.64q, which is not declared or out of order", tensors[at].Name)
	}
	return list, nil
}
