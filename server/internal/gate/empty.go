package gate

import (
	"slices"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// answerEmpty completes the requests that have no rows, and returns the others; the slice's elements are moved. The
// rows of a batched model have nothing to do with each other, so to none of them the answer is none, which needs no
// container; old ones die of an empty batch. A size that only an execution could tell is 0.
func answerEmpty(requests []*scheduler.Request) []*scheduler.Request {
	n := 0
	for i, r := range requests {
		if r.Rows == 0 && r.Model != nil {
			for _, output := range r.Model.Spec().Outputs {
				shape := slices.Clone(output.Shape)
				for k := range shape {
					shape[k] = max(shape[k], 0)
				}
				r.Outputs = append(r.Outputs, tensor.Tensor{Name: output.Name, DType: output.DType, Shape: shape})
			}
			r.Owner.Complete(r)
			continue
		}
		if n < i {
			requests[n] = r
		}
		n++
	}
	return requests[:n]
}
