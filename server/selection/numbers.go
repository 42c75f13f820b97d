package selection

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/shivad/shivad/shiva/tensor"
)

// load appends the elements of t as float64. It fails for dtypes that are not real numbers, and for
// a number that float64 cannot represent exactly.
func load(dst []float64, t tensor.Tensor) ([]float64, error) {
	ne := binary.NativeEndian
	switch t.DType {
	case tensor.Float32:
		for i := 0; i+4 <= len(t.Data); i += 4 {
			dst = append(dst, float64(math.Float32frombits(ne.Uint32(t.Data[i:]))))
		}
		return dst, nil
	case tensor.Float64:
		for i := 0; i+8 <= len(t.Data); i += 8 {
			dst = append(dst, math.Float64frombits(ne.Uint64(t.Data[i:])))
		}
		return dst, nil
	default:
		wide, err := tensor.Cast(t, tensor.Float64, nil)
		if err != nil {
			return nil, err
		}
		return load(dst, wide)
	}
}

// store makes a tensor like t from these values, each rounded to the nearest number of t's float
// dtype.
func store(t tensor.Tensor, values []float64) tensor.Tensor {
	data := make([]byte, 0, len(values)*t.DType.Size())
	for _, v := range values {
		data, _ = t.DType.AppendFloat(data, v)
	}
	return tensor.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: data}
}

// finite reports whether no value is NaN or infinite.
func finite(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// countRows returns the size of t's first dimension; a tensor without dimensions is one row.
func countRows(t tensor.Tensor) int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Rows()
}

// rows are the bytes of a tensor cut into n pieces of equally many elements.
type rows struct {
	data []byte
	n    int
	ends []int // of each piece, for elements of variable size; nil for pieces of equal size
}

// rowsOf cuts t, which has been checked and whose elements n divides.
func rowsOf(t tensor.Tensor, n int) rows {
	r := rows{data: t.Data, n: n}
	if t.DType != tensor.Bytes {
		return r
	}
	elems, _ := tensor.BytesElems(t) // checked
	each, end := len(elems)/n, 0
	r.ends = make([]int, n)
	for i := range n {
		for _, e := range elems[i*each : (i+1)*each] {
			end += 4 + len(e) // with the length before it
		}
		r.ends[i] = end
	}
	return r
}

// at returns piece i.
func (r rows) at(i int) []byte {
	if r.ends == nil {
		size := len(r.data) / r.n
		return r.data[i*size : (i+1)*size]
	}
	start := 0
	if i > 0 {
		start = r.ends[i-1]
	}
	return r.data[start:r.ends[i]]
}
