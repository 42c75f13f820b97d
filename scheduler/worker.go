package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva/tensor"
)

// A Worker carries batches to one replica of a model. Containers' sessions are workers; [Func]
// makes one of a function that computes a model.
//
// Send must not block. After nil the worker owns the batch and must call [Batch.Complete] or
// [Batch.Fail] on it exactly once, from any goroutine, possibly before Send returns. After an
// error it must not touch the batch again: the replica is removed, as by [Replica.Remove].
//
// Send is called with no lock held, from whichever goroutine submitted a request or answered a
// batch, and by several at once.
type Worker interface {
	Send(b *Batch) error
}

// WorkerFunc adapts a function that takes batches to a Worker. For a model in Go see [Func].
type WorkerFunc func(b *Batch) error

// Send calls f.
func (f WorkerFunc) Send(b *Batch) error { return f(b) }

// Batching is a replica's declaration of the first dimension of its tensors.
type Batching uint8

const (
	// BatchingUnsaid: the shapes decide. Either all lead with -1, which counts rows, or none
	// does.
	BatchingUnsaid Batching = iota
	// BatchingRows: the first dimension of every tensor is -1 and counts the rows of a batch.
	BatchingRows
	// BatchingNone: each request is one execution. Shapes are as declared, with -1 anywhere, and
	// a dimension may be 0.
	BatchingNone
)

// A Spec is a replica's declaration of its model.
type Spec struct {
	// A model may have no inputs. Its requests differ in nothing but their parameters.
	Inputs, Outputs []tensor.Spec
	Batching        Batching
	MaxBatch        int    // largest batch in rows; 0: not declared
	Platform        string // free text: onnxruntime, pytorch
	Parameters      []byte // JSON object, free
	User            bool   // it receives the user of each request, as "user" among the parameters
	Metadata        bool   // it receives the metadata of each request

	// MixedRows marks a worker that sends each row by itself. So rows of different shapes share
	// batches, and the configuration may declare that each request is one row, whose shapes then
	// lack the first dimension.
	MixedRows bool
	Adapter   Adapter // nil: clients use the declaration itself
}

// An Adapter converts between the declaration of a replica and the form of its clients' requests
// and answers. The scheduler does not use it. Its methods are called from any goroutine.
type Adapter interface {
	// Inputs converts a request to the declared inputs: its tensors or, if not nil, the texts of
	// its metadata in JSON. batch: the first dimension of its tensors counts rows. The caller
	// owns a reference to each input; new memory is taken from pool.
	Inputs(s *Spec, tensors []tensor.Tensor, texts []byte, batch bool, pool *tensor.Pool) ([]tensor.Tensor, error)

	// Numbers converts an output to a tensor of numbers; it returns false if the output has none.
	// one: the request was one row, without the dimension that counts rows.
	Numbers(output tensor.Tensor, one bool) (tensor.Tensor, bool)

	// AppendMembers appends an output as members of a JSON object, each with a comma after it.
	AppendMembers(b []byte, output tensor.Tensor, one bool) ([]byte, error)

	// Text converts a value of an application's default output, in JSON, to an output of the model.
	Text(value []byte) string
}

// Batched reports whether the model takes more than one row at once. A model that is not batched
// gets one request of one row per batch. In the scheduler its tensors have a leading dimension of
// 1, which the container does not see.
func (s Spec) Batched() bool {
	if s.Batching != BatchingUnsaid {
		return s.Batching == BatchingRows
	}
	return s.leading() == len(s.Inputs)+len(s.Outputs)
}

// leading counts the inputs and outputs that have -1 for their first dimension.
func (s Spec) leading() (n int) {
	for _, io := range [][]tensor.Spec{s.Inputs, s.Outputs} {
		for _, t := range io {
			if len(t.Shape) > 0 && t.Shape[0] == -1 {
				n++
			}
		}
	}
	return n
}

// resolve applies the configuration where the replica did not declare its batching.
func (s *Spec) resolve(batched *bool) error {
	if batched == nil || *batched || s.Batching == BatchingNone {
		return nil
	}
	if s.Batching == BatchingRows {
		return errors.New("the replica declares batched = true, the server's configuration sets batched = false")
	}
	if s.MixedRows {
		s.Inputs, s.Outputs = withoutRows(s.Inputs), withoutRows(s.Outputs)
	}
	s.Batching = BatchingNone
	return nil
}

// withoutRows returns specs without their first dimension.
func withoutRows(specs []tensor.Spec) []tensor.Spec {
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Shape = specs[i].Shape[1:]
	}
	return specs
}

// check validates the declaration.
func (s Spec) check() error {
	if s.MaxBatch < 0 {
		return fmt.Errorf("maximum batch %d is negative", s.MaxBatch)
	}
	if len(s.Inputs)+len(s.Outputs) == 0 {
		return errors.New("it declares neither inputs nor outputs")
	}
	for _, io := range [][]tensor.Spec{s.Inputs, s.Outputs} {
		for _, t := range io {
			if !t.DType.Valid() {
				return fmt.Errorf("tensor %q has an unknown dtype %s", t.Name, t.DType)
			}
			for _, d := range t.Shape {
				if d < -1 {
					return fmt.Errorf("tensor %q has shape %s: expected each dimension to be -1 (any size) or a size",
						t.Name, t.Shape)
				}
			}
		}
	}
	if err := s.checkBatching(); err != nil {
		return err
	}
	return s.checkKinds()
}

// checkBatching reports whether the shapes agree with the declared batching.
func (s Spec) checkBatching() error {
	all, leading := len(s.Inputs)+len(s.Outputs), s.leading()
	const ways = "declare batched = false if each request is executed on its own and has exactly these shapes, " +
		"or give every tensor a first dimension of -1, for the rows of a batch"
	switch {
	case leading == all || s.Batching == BatchingNone:
		return nil
	case s.Batching == BatchingRows:
		return fmt.Errorf("it declares batched = true, but %d of its %d inputs and outputs have -1 as first dimension (%s); %s",
			leading, all, s, ways)
	case leading > 0:
		return fmt.Errorf("%d of its %d inputs and outputs have -1 as first dimension (%s), which could mean two things: %s",
			leading, all, s, ways)
	}
	return nil
}

// checkKinds validates optional inputs, ragged outputs, labels, formats and images.
func (s Spec) checkKinds() error {
	for _, t := range s.Inputs {
		if t.Optional && t.Regions == "" && s.Batched() {
			return fmt.Errorf("input %q is optional, which needs batched = false: rows with and without it cannot share a batch",
				t.Name)
		}
		if t.Ragged != "" {
			return fmt.Errorf("input %q is ragged, which only outputs can be", t.Name)
		}
		if len(t.Labels) > 0 {
			return fmt.Errorf("input %q has labels, which only outputs can have", t.Name)
		}
		if row := s.row(t); t.Format != "" && len(row) != 3 {
			return fmt.Errorf("input %q has format %s and shape %s: expected 3 dimensions beside that of rows, got %d",
				t.Name, t.Format, t.Shape, len(row))
		}
		if t.Image != nil {
			if err := t.Image.Check(t.DType, s.row(t), t.Format); err != nil {
				return fmt.Errorf("input %q: image: %w", t.Name, err)
			}
		}
		if err := s.checkRegions(t); err != nil {
			return err
		}
	}
	for _, t := range s.Outputs {
		if t.Optional {
			return fmt.Errorf("output %q is optional, which only inputs can be", t.Name)
		}
		if t.Format != "" {
			return fmt.Errorf("output %q has format %s, which only inputs can have", t.Name, t.Format)
		}
		if t.Image != nil {
			return fmt.Errorf("output %q is an image, which only inputs can be", t.Name)
		}
		if len(t.Labels) > 0 && !t.DType.Ordered() {
			return fmt.Errorf("output %q has labels, which need a datatype that can be ranked; it is %s",
				t.Name, t.DType.V2())
		}
		if t.Ragged == "" {
			continue
		}
		if !s.Batched() {
			return fmt.Errorf("output %q is ragged, but the model is not batched; declare the output without ragged, its size may vary",
				t.Name)
		}
		if slices.Contains(t.Shape[1:], -1) {
			return fmt.Errorf("output %q is ragged and has shape %s: all dimensions but the first must be fixed",
				t.Name, t.Shape)
		}
		if n := slices.IndexFunc(s.Outputs, func(o tensor.Spec) bool { return o.Name == t.Ragged }); n < 0 ||
			!counts(s.Outputs[n]) {
			return fmt.Errorf("output %q is ragged with counts in %q, which must be another output: INT32 or INT64 of shape [-1]",
				t.Name, t.Ragged)
		}
	}
	return nil
}

// row is the declared shape of one row of an input.
func (s Spec) row(t tensor.Spec) tensor.Shape {
	if s.Batched() && len(t.Shape) > 0 {
		return t.Shape[1:]
	}
	return t.Shape
}

// counts reports whether an output can be the counts of a ragged one.
func counts(t tensor.Spec) bool {
	return (t.DType == tensor.Int32 || t.DType == tensor.Int64) && t.Ragged == "" && t.Shape.Equal(tensor.Shape{-1})
}

// Raggeds returns, for every output, the index of the output with the number of its values for each
// row, or -1; nil if no output is ragged. [Scheduler.AddReplica] must have accepted the spec.
func (s Spec) Raggeds() []int {
	var by []int
	for i, t := range s.Outputs {
		if t.Ragged == "" {
			continue
		}
		if by == nil {
			by = slices.Repeat([]int{-1}, len(s.Outputs))
		}
		by[i] = slices.IndexFunc(s.Outputs, func(o tensor.Spec) bool { return o.Name == t.Ragged })
	}
	return by
}

// Regions returns, for every input, the index of the input with regions of its pictures, or -1; nil
// if no input has regions. [Scheduler.AddReplica] must have accepted the spec.
func (s Spec) Regions() []int {
	var by []int
	for i, t := range s.Inputs {
		if t.Regions == "" {
			continue
		}
		of := slices.IndexFunc(s.Inputs, func(o tensor.Spec) bool { return o.Name == t.Regions })
		if by == nil {
			by = slices.Repeat([]int{-1}, len(s.Inputs))
		}
		by[of] = i
	}
	return by
}

// checkRegions validates the declaration of an input of regions, or of an input of pictures that
// has some.
func (s Spec) checkRegions(t tensor.Spec) error {
	has := func(fits func(tensor.Spec) bool) bool { return slices.ContainsFunc(s.Inputs, fits) }
	if t.Image != nil && t.Image.Regions {
		regions := tensor.RegionsOf(t.Name)
		switch height, width := tensor.Sides(s.row(t), t.Format); {
		case !s.Batched():
			return fmt.Errorf("input %q takes regions, which are rows: that needs batched = true", t.Name)
		case t.Image.Resize == tensor.ResizeNone && (height != -1 || width != -1):
			return fmt.Errorf("input %q takes regions of any size, but has no resize and the shape %s: "+
				"expected a resize, or -1 for height and width", t.Name, t.Shape)
		case !has(func(o tensor.Spec) bool { return o.Regions == t.Name && o.String() == regions.String() }):
			return fmt.Errorf("input %q takes regions, but no input is declared as %s", t.Name, regions)
		}
	}
	pictured := func(o tensor.Spec) bool { return o.Name == t.Regions && o.Image != nil && o.Image.Regions }
	if t.Regions != "" && !has(pictured) {
		return fmt.Errorf("input %q has regions of %q, which must be another input, of pictures with regions",
			t.Name, t.Regions)
	}
	return nil
}

// sameContract reports whether clients see the same model. Platform, maximum batch and parameters
// may differ between replicas: one may have a GPU and another none.
func (s Spec) sameContract(o Spec) bool {
	return s.MixedRows == o.MixedRows && s.Batched() == o.Batched() && sameSpecs(s.Inputs, o.Inputs) &&
		sameSpecs(s.Outputs, o.Outputs)
}

func sameSpecs(a, b []tensor.Spec) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].DType != b[i].DType || !a[i].Shape.Equal(b[i].Shape) ||
			a[i].Optional != b[i].Optional || a[i].Regions != b[i].Regions ||
			a[i].Ragged != b[i].Ragged || a[i].Format != b[i].Format ||
			!sameImage(a[i].Image, b[i].Image) || !slices.Equal(a[i].Labels, b[i].Labels) {
			return false
		}
	}
	return true
}

func sameImage(a, b *tensor.Image) bool { return a == b || a != nil && b != nil && *a == *b }

// differingLabel describes the first difference between the labels of two declarations with the
// same String.
func (s Spec) differingLabel(o Spec) string {
	for i, t := range s.Outputs {
		for k, label := range t.Labels {
			if other := o.Outputs[i].Labels[k]; other != label {
				return fmt.Sprintf("label %d of output %q is %q in this declaration and %q in that of the live replicas",
					k, t.Name, other, label)
			}
		}
	}
	return ""
}

// String returns the contract in words: inputs image uint8 [-1, 8, 8]; outputs label int64 [-1].
func (s Spec) String() string {
	var b strings.Builder
	list := func(word string, ts []tensor.Spec) {
		b.WriteString(word)
		for i, t := range ts {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(" " + t.String())
		}
	}
	list("inputs", s.Inputs)
	list("; outputs", s.Outputs)
	if s.MixedRows {
		b.WriteString("; rows of any shape")
	}
	if s.Batching == BatchingNone {
		b.WriteString("; not batched")
	}
	return b.String()
}
