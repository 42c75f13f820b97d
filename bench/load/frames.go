package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Tensors makes n tensors of random bits.
func Tensors(n int, d tensor.DType, shape tensor.Shape) ([]tensor.Tensor, error) {
	elements, ok := shape.Elements()
	if !ok || d.Size() == 0 {
		return nil, fmt.Errorf("load: cannot make a tensor of %s %s", d, shape)
	}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	xs := make([]tensor.Tensor, n)
	for i := range xs {
		data := make([]byte, 0, elements*d.Size()+8)
		for len(data) < elements*d.Size() {
			data = binary.LittleEndian.AppendUint64(data, r.Uint64())
		}
		x, err := tensor.New(d, shape, data[:elements*d.Size()])
		if err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
		xs[i] = x
	}
	return xs, nil
}

// Frames makes n requests of one tensor for a route, each with different contents, so that an
// answer on the wrong connection is detected. Elements are random bits.
func Frames(n int, namespace string, d tensor.DType, shape tensor.Shape) ([][]byte, error) {
	xs, err := Tensors(n, d, shape)
	if err != nil {
		return nil, err
	}
	frames := make([][]byte, n)
	for i, x := range xs {
		if frames[i], err = shivaFrame(namespace, x); err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
	}
	return frames, nil
}

// SameTensors is a Check for models that echo their input: namespace and tensors must equal the
// request's bit by bit; metadata may differ.
func SameTensors(request, answer []byte) error {
	q, err := decode(request)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	defer q.Release()
	a, err := decode(answer)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	defer a.Release()
	if a.Namespace != q.Namespace || len(a.Tensors) != len(q.Tensors) {
		return fmt.Errorf("expected namespace %q and %d tensors, got %q and %d", q.Namespace, len(q.Tensors),
			a.Namespace, len(a.Tensors))
	}
	for i, t := range q.Tensors {
		got := a.Tensors[i]
		if got.DType != t.DType || !got.Shape.Equal(t.Shape) {
			return fmt.Errorf("tensor %d: expected %s %s, got %s %s", i, t.DType, t.Shape, got.DType, got.Shape)
		}
		if !bytes.Equal(got.Data, t.Data) {
			return fmt.Errorf("tensor %d: its data differs from what was sent", i)
		}
	}
	return nil
}

func decode(frame []byte) (*shiva.Message, error) {
	d := shiva.NewDecoder(shiva.DecoderConfig{})
	n, m, err := d.Push(frame)
	switch {
	case err != nil:
		return nil, err
	case m == nil || n != len(frame):
		return nil, errors.New("not one whole message")
	}
	return m, nil
}
