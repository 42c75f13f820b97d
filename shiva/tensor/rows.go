package tensor

import "fmt"

// RowSlice returns a view of rows lo to hi, excluding hi. The view shares t's memory and takes no
// reference; its Shape is its own.
//
// In a Bytes tensor RowSlice has to scan the rows before hi; to cut one into many consecutive
// pieces use [Tensor.Cut].
func (t Tensor) RowSlice(lo, hi int) (Tensor, error) {
	if len(t.Shape) == 0 || lo < 0 || hi < lo || hi > t.Shape[0] {
		return Tensor{}, fmt.Errorf("tensor: expected rows within those of shape %[3]s, got %[1]d to %[2]d", lo, hi,
			t.Shape)
	}
	from, err := t.rowOffset(0, lo)
	if err != nil {
		return Tensor{}, err
	}
	to, err := t.rowOffset(from, hi-lo)
	if err != nil {
		return Tensor{}, err
	}
	t.Data = t.Data[from:to:to]
	t.Shape = append(Shape(nil), t.Shape...)
	t.Shape[0] = hi - lo
	return t, nil
}

// Cut returns the first n rows and the rest as views, as [Tensor.RowSlice] does. Cutting each rest
// again scans a Bytes tensor only once.
func (t Tensor) Cut(n int) (head, rest Tensor, err error) {
	if len(t.Shape) == 0 || n < 0 || n > t.Shape[0] {
		return Tensor{}, Tensor{}, fmt.Errorf("tensor: expected a number of rows up to that of shape %[2]s, got %[1]d",
			n, t.Shape)
	}
	at, err := t.rowOffset(0, n)
	if err != nil {
		return Tensor{}, Tensor{}, err
	}
	head, rest = t, t
	// Both shapes in one allocation.
	rank := len(t.Shape)
	dims := append(append(make(Shape, 0, 2*rank), t.Shape...), t.Shape...)
	head.Shape, rest.Shape = dims[:rank:rank], dims[rank:]
	head.Shape[0], rest.Shape[0] = n, t.Shape[0]-n
	head.Data, rest.Data = t.Data[:at:at], t.Data[at:]
	return head, rest, nil
}

// rowOffset returns the end, in Data, of the n rows that begin at from.
func (t Tensor) rowOffset(from, n int) (int, error) {
	perRow, ok := t.Shape[1:].Elements()
	if !ok {
		return 0, fmt.Errorf("tensor: shape %s has a negative dimension or too many elements", t.Shape)
	}
	if t.DType == Bytes {
		rest, err := skipElems(t.Data[from:], n*perRow)
		return len(t.Data) - len(rest), err
	}
	to := from + n*perRow*t.DType.Size()
	if to > len(t.Data) {
		return 0, fmt.Errorf("tensor: %s %s has %d bytes of data, its first rows alone take %d", t.DType, t.Shape,
			len(t.Data), to)
	}
	return to, nil
}

// Concat joins tensors along their first dimension, in memory of the pool, whose one reference is
// the caller's. They must agree in dtype and in all other dimensions. The result has the name of
// the first tensor.
func Concat(parts []Tensor, pool *Pool) (Tensor, error) {
	if len(parts) == 0 {
		return Tensor{}, fmt.Errorf("tensor: nothing to concatenate")
	}
	first := parts[0]
	rows, size := 0, 0
	for i, p := range parts {
		if err := p.Check(); err != nil {
			return Tensor{}, fmt.Errorf("part %d to concatenate: %w", i, err)
		}
		if len(p.Shape) == 0 || p.DType != first.DType || !p.Shape[1:].Equal(first.Shape[1:]) {
			return Tensor{}, fmt.Errorf("tensor: part %d is %s %s, which does not continue %s %s", i, p.DType, p.Shape,
				first.DType, first.Shape)
		}
		rows += p.Shape[0]
		size += len(p.Data)
	}
	buf, err := pool.Get(size)
	if err != nil {
		return Tensor{}, err
	}
	data := buf.Bytes()[:0]
	for _, p := range parts {
		data = append(data, p.Data...)
	}
	shape := append(Shape{rows}, first.Shape[1:]...)
	return Tensor{Name: first.Name, DType: first.DType, Shape: shape, Data: data, Buf: buf}, nil
}
