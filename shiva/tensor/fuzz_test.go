package tensor

import (
	"bytes"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// FuzzBytes reads any bytes as a Bytes tensor of any number of elements: they are refused, or split
// into elements that join to the same bytes; and rows begin where elements do.
func FuzzBytes(f *testing.F) {
	x, _ := FromStrings(Shape{3}, []string{"a", "", "bcd"})
	f.Add(x.Data, 3)
	f.Add(x.Data, 2)
	f.Add(x.Data[:9], 3)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1}, 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		budgettest.Input(t)
		x, err := New(Bytes, Shape{n}, data)
		if err != nil {
			return
		}
		elems, err := BytesElems(x)
		if err != nil || len(elems) != n {
			t.Fatalf("%d elements of %d, %v", len(elems), n, err)
		}
		var again []byte
		for _, e := range elems {
			again = AppendElem(again, e)
		}
		if !bytes.Equal(again, data) {
			t.Fatalf("%x comes back as %x", data, again)
		}
		for i := range min(n, 50) {
			row, err := x.RowSlice(i, i+1)
			if err != nil || !bytes.Equal(row.Data[lenBytes:], elems[i]) {
				t.Fatalf("row %d is %x, %v; want %x", i, row.Data, err, elems[i])
			}
		}
	})
}
