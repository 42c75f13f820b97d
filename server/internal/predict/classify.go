package predict

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// classify makes a Bytes tensor of shape [rows, k] from numbers of shape [rows, ...]: for each row
// its k highest values in descending order, or all if there are fewer. Each element is
// "value:index:label", with the index into the row, or "value:index" if labels has no text for it.
// Among equal values the lower index comes first; NaN comes last.
//
// Source: Triton, classification extension.
func classify(t tensor.Tensor, k int, labels []string) (tensor.Tensor, error) {
	rows := t.Rows()
	wide, err := tensor.Cast(t, tensor.Float64, nil)
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("%w: classification: %w", scheduler.ErrInvalidInput, err)
	}
	defer wide.Release() // it may be t itself
	values, err := tensor.Values[float64](wide)
	if err != nil {
		return tensor.Tensor{}, err
	}
	each := len(values) / max(rows, 1)
	k = min(k, each)
	bits := 64
	switch t.DType {
	case tensor.Float32, tensor.Float16, tensor.BFloat16:
		bits = 32 // enough digits to distinguish float32 values
	}
	order := make([]int, each)
	classes := make([]string, 0, rows*k)
	for r := range rows {
		row := values[r*each:][:each]
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(row[b], row[a]) })
		for _, i := range order[:k] {
			class := strconv.FormatFloat(row[i], 'f', -1, bits) + ":" + strconv.Itoa(i)
			if i < len(labels) && labels[i] != "" {
				class += ":" + labels[i]
			}
			classes = append(classes, class)
		}
	}
	return tensor.FromStrings(tensor.Shape{rows, k}, classes)
}
