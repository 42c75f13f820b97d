package predict

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/tensor"
)

// classify makes a Bytes tensor of shape [rows, k] from numbers of shape [rows, ...]: for each row
// its k highest values in descending order, or all if there are fewer. Each element is
// "value:index:label", with the index into the row, or "value:index" if labels has no text for it.
// Among equal values the lower index comes first; NaN comes last. Numbers are written as Triton's
// %f and %d write them, so that they compare as texts.
//
// Source: Triton, classification extension.
func classify(t tensor.Tensor, k int, labels []string) (tensor.Tensor, error) {
	switch t.DType.Kind() {
	case tensor.KindInt:
		return rank(t, tensor.Int64, k, labels, func(b []byte, v int64) []byte { return strconv.AppendInt(b, v, 10) })
	case tensor.KindBool, tensor.KindUint:
		return rank(t, tensor.Uint64, k, labels, func(b []byte, v uint64) []byte {
			return strconv.AppendUint(b, v, 10)
		})
	}
	return rank(t, tensor.Float64, k, labels, func(b []byte, v float64) []byte {
		return strconv.AppendFloat(b, v, 'f', 6, 64)
	})
}

// rank is classify for numbers that the dtype as, whose elements are T, holds exactly.
func rank[T int64 | uint64 | float64](t tensor.Tensor, as tensor.DType, k int, labels []string,
	text func(b []byte, v T) []byte) (tensor.Tensor, error) {
	rows := t.Rows()
	wide, err := tensor.Cast(t, as, nil)
	if err != nil {
		return tensor.Tensor{}, fault.Invalid("classification: %w", err)
	}
	defer wide.Release() // it may be t itself
	values, err := tensor.Values[T](wide)
	if err != nil {
		return tensor.Tensor{}, err
	}
	each := len(values) / max(rows, 1)
	k = min(k, each)
	order := make([]int, each)
	classes := make([]string, 0, rows*k)
	for r := range rows {
		row := values[r*each:][:each]
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(row[b], row[a]) })
		for _, i := range order[:k] {
			class := string(text(nil, row[i])) + ":" + strconv.Itoa(i)
			if i < len(labels) && labels[i] != "" {
				class += ":" + labels[i]
			}
			classes = append(classes, class)
		}
	}
	return tensor.FromStrings(tensor.Shape{rows, k}, classes)
}
