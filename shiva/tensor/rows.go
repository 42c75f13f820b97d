package tensor

import "fmt"

// RowSlice is the view of rows lo to hi, not including hi. It shares t's memory and takes no reference;
// its Shape is its own.
//
// Of a Bytes tensor the rows before lo have to be walked over; to cut one into many consecutive pieces
// use [Tensor.Cut].
func (t Tensor) RowSlice(lo, hi int) (Tensor, error) {
	if lo < 0 || hi < lo || hi > t.Rows() {
		return Tensor{}, fmt.Errorf("tensor: rows %d to %d asked of a tensor of shape %s", lo, hi, t.Shape)
	}
	if lo > 0 {
		_, rest, err := t.Cut(lo)
		if err != nil {
			return Tensor{}, err
		}
		t = rest
	}
	head, _, err := t.Cut(hi - lo)
	return head, err
}

// Cut gives the first n rows and the rest as views, as [Tensor.RowSlice] does; cutting on from the rest
// goes through a tensor in one pass.
func (t Tensor) Cut(n int) (head, rest Tensor, err error) {
	rows := t.Rows()
	if n < 0 || n > rows || len(t.Shape) == 0 {
		return Tensor{}, Tensor{}, fmt.Errorf("tensor: first %d rows asked of a tensor of shape %s", n, t.Shape)
	}
	at, err := t.rowOffset(n)
	if err != nil {
		return Tensor{}, Tensor{}, err
	}
	head, rest = t, t
	// Both shapes in one allocation.
	rank := len(t.Shape)
	dims := make(Shape, 2*rank)
	head.Shape, rest.Shape = dims[:rank:rank], dims[rank:]
	copy(head.Shape, t.Shape)
	copy(rest.Shape, t.Shape)
	head.Shape[0], rest.Shape[0] = n, rows-n
	head.Data, rest.Data = t.Data[:at:at], t.Data[at:]
	return head, rest, nil
}

// rowOffset is where row n begins in Data.
func (t Tensor) rowOffset(n int) (int, error) {
	perRow, ok := t.Shape[1:].Elements()
	if !ok {
		return 0, fmt.Errorf("tensor: shape %s has a negative dimension or too many elements", t.Shape)
	}
	if t.DType == Bytes {
		rest, err := skipElems(t.Data, n*perRow)
		return len(t.Data) - len(rest), err
	}
	at := n * perRow * t.DType.Size()
	if at > len(t.Data) {
		return 0, fmt.Errorf("tensor: row %d of %s %s begins at byte %d, there are %d", n, t.DType, t.Shape, at, len(t.Data))
	}
	return at, nil
}

// Concat joins tensors along their first dimension, in memory of the pool that the result owns. They must
// agree in dtype and in all other dimensions. The result has the first one's name.
func Concat(parts []Tensor, pool *Pool) (Tensor, error) {
	if len(parts) == 0 {
		return Tensor{}, fmt.Errorf("tensor: nothing to concatenate")
	}
	first := parts[0]
	rows, size := 0, 0
	for i, p := range parts {
		if err := p.Check(); err != nil {
			return Tensor{}, fmt.Errorf("tensor: part %d to concatenate: %w", i, err)
		}
		if len(p.Shape) == 0 || p.DType != first.DType || !p.Shape[1:].Equal(first.Shape[1:]) {
			return Tensor{}, fmt.Errorf("tensor: part %d is %s %s, which does not continue %s %s", i, p.DType, p.Shape, first.DType, first.Shape)
		}
		rows += p.Shape[0]
		size += len(p.Data)
	}
	buf, err := pool.Get(size)
	if err != nil {
		return Tensor{}, err
	}
	at := 0
	for _, p := range parts {
		at += copy(buf.Bytes()[at:], p.Data)
	}
	shape := append(Shape{rows}, first.Shape[1:]...)
	return Tensor{Name: first.Name, DType: first.DType, Shape: shape, Data: buf.Bytes(), Buf: buf}, nil
}
