package declare

import (
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

func TestModel(t *testing.T) {
	name, x, err := Model("image:uint8:8, 8,3")
	if err != nil || name != "image" || x.Name != "x" || x.DType != tensor.Uint8 ||
		!x.Shape.Equal(tensor.Shape{-1, 8, 8, 3}) {
		t.Errorf("got %q %v, error %v", name, x, err)
	}
	if _, x, err = Model("scalar:FP64:"); err != nil || !x.Shape.Equal(tensor.Shape{-1}) {
		t.Errorf("scalar: got %v, error %v", x, err)
	}
	for _, bad := range []string{"", "m", "m:FP32", ":FP32:1", "m:FP31:1", "m:BYTES:1", "m:FP32:-1", "m:FP32:1,,2", "m:FP32:1:2"} {
		if _, _, err := Model(bad); err == nil {
			t.Errorf("%q is no declaration, and no error", bad)
		}
	}
}
