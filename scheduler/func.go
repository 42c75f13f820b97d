package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/shivad/shivad/shiva/tensor"
)

// Func makes a worker of a function that computes a model, for programs whose models are Go code.
//
// f gets the rows of a batch and returns its outputs, or an error that fails the batch, as by
// [Batch.Fail]. Inputs are in the order of the declaration, each with the rows of the whole batch
// as its first dimension; an optional input that was not sent has no shape. If the rows are
// regions, the input of pictures has each picture of the batch once; see [Batch.Pictures]. They are
// copies, which f may change, keep and return. Outputs are in the order of the declaration, with as
// many rows; the references to them pass to the batch.
//
// f runs on a goroutine of its own, for one batch at a time: a program adds a replica for each that
// is to run at once. A panic fails its batch, and is logged with its stack; runtime.Goexit fails
// it, too. ctx has no deadline, since those of a batch's rows differ; [BatchOf] returns the batch.
func Func(f func(ctx context.Context, inputs []tensor.Tensor) (outputs []tensor.Tensor, err error)) Worker {
	return &function{compute: f, running: make(chan struct{}, 1)}
}

// BatchOf returns the batch for which [Func] has called a function with ctx, which may read it
// until it returns: the deadline, and the rows and parameters of each request.
func BatchOf(ctx context.Context) *Batch { return ctx.Value(batchKey{}).(*Batch) }

type batchKey struct{}

type function struct {
	compute func(context.Context, []tensor.Tensor) ([]tensor.Tensor, error)
	running chan struct{} // full while a batch is computed
}

// errExited remains if compute ends its goroutine, as t.FailNow does.
var errExited = errors.New("the function called runtime.Goexit")

// Send implements Worker.
func (f *function) Send(b *Batch) error {
	go func() { // ends with compute
		outputs, err := []tensor.Tensor(nil), errExited
		defer func() {
			if err != nil {
				b.Fail(err)
			} else {
				_ = b.Complete(outputs, nil) // an error has failed the batch
			}
		}()
		outputs, err = f.call(b)
	}()
	return nil
}

func (f *function) call(b *Batch) (outputs []tensor.Tensor, err error) {
	f.running <- struct{}{}
	defer func() { <-f.running }()
	defer func() {
		if r := recover(); r != nil {
			b.model.sched.log.Error("panic in a model's function; its batch fails",
				"model", b.model.id, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	inputs, err := b.join()
	if err != nil {
		return nil, err
	}
	return f.compute(context.WithValue(context.Background(), batchKey{}, b), inputs)
}

// join copies the inputs of all parts together.
func (b *Batch) join() ([]tensor.Tensor, error) {
	inputs := make([]tensor.Tensor, len(b.Parts[0].Inputs))
	parts := make([]tensor.Tensor, 0, len(b.Parts))
	for i, first := range b.Parts[0].Inputs {
		if len(first.Shape) == 0 {
			inputs[i] = first
			continue
		}
		parts = parts[:0]
		for t := range b.Pieces(i) {
			parts = append(parts, *t)
		}
		t, err := tensor.Concat(parts, nil)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", first.Name, err)
		}
		t.Buf = nil // the garbage collector's
		inputs[i] = t
	}
	return inputs, nil
}
