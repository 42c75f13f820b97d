package tensor_test

import (
	"fmt"

	"github.com/shivad/shivad/shiva/tensor"
)

// A tensor of Go values, and back to the values. Neither direction copies.
func ExampleFromSlice() {
	image, err := tensor.FromSlice(tensor.Shape{2, 3}, []uint8{1, 2, 3, 4, 5, 6})
	if err != nil {
		fmt.Println(err)
		return
	}
	values, err := tensor.Values[uint8](image)
	fmt.Println(image.DType, image.Shape, values, err)
	_, err = tensor.Values[float32](image)
	fmt.Println(err)
	// Output:
	// uint8 [2, 3] [1 2 3 4 5 6] <nil>
	// tensor: expected a tensor of float32, got uint8
}

// Memory of a pool is counted, and goes back when its last reference is released.
func ExamplePool() {
	pool := tensor.NewPool(1 << 20)
	data, err := pool.Get(4 * 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	t := tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{4}, Data: data.Bytes(), Buf: data}
	t.Retain() // for another reader
	t.Release()
	fmt.Println("in use:", pool.InUse() > 0)
	t.Release()
	fmt.Println("in use:", pool.InUse() > 0)
	if _, err = pool.Get(2 << 20); err != nil {
		fmt.Println("refused:", pool.Refused())
	}
	// Output:
	// in use: true
	// in use: false
	// refused: 1
}

// Rows are cut out without a copy, and joined with one.
func ExampleConcat() {
	rows, err := tensor.FromSlice(tensor.Shape{3, 2}, []int64{1, 2, 3, 4, 5, 6})
	if err != nil {
		fmt.Println(err)
		return
	}
	last, err := rows.RowSlice(2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	joined, err := tensor.Concat([]tensor.Tensor{last, rows}, tensor.NewPool(1<<20))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer joined.Release()
	values, err := tensor.Values[int64](joined)
	fmt.Println(joined.Shape, values, err)
	// Output: [4, 2] [5 6 1 2 3 4 5 6] <nil>
}
