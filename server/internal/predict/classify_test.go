package predict

import (
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// Classes are sorted by values of their own type: a float64 does not distinguish all of INT64's.
func TestClassify(t *testing.T) {
	for _, c := range []struct {
		dtype tensor.DType
		text  string
		order string // of the indexes, by row
	}{
		{tensor.Float32, `[[0.1, 0.7, 0.2], [3, 2, 1]]`, "1 2 0 0 1 2"},
		{tensor.Float32, `[[1, 2, 2]]`, "1 2 0"},
		{tensor.BFloat16, `[[-1, 1]]`, "1 0"},
		{tensor.Int64, `[[9007199254740992, 9007199254740993, -9223372036854775808]]`, "1 0 2"},
		{tensor.Int64, `[[9007199254740993, 9007199254740992, 9223372036854775807]]`, "2 0 1"},
		{tensor.Uint64, `[[18446744073709551614, 18446744073709551615]]`, "1 0"},
		{tensor.Int8, `[[-128, 127, 0]]`, "1 2 0"},
		{tensor.Bool, `[[false, true]]`, "1 0"},
	} {
		x, err := jsontensor.Read([]byte(c.text), c.dtype, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := classify(x, 10, []string{"a"})
		if err != nil {
			t.Errorf("%s %s: %v", c.dtype, c.text, err)
			continue
		}
		texts, err := tensor.Strings(got)
		if err != nil || !slices.Equal(got.Shape, x.Shape) {
			t.Fatalf("%s %v", got.Shape, err)
		}
		var order []string
		for _, text := range texts {
			part := strings.Split(text, ":")
			order = append(order, part[1])
			if wide := c.dtype == tensor.Int64 || c.dtype == tensor.Uint64; wide && !strings.Contains(c.text, part[0]) {
				t.Errorf("%s %s: the value %s is none of these", c.dtype, c.text, part[0])
			}
			if labelled := len(part) == 3; labelled != (part[1] == "0") {
				t.Errorf("%s", text)
			}
		}
		if strings.Join(order, " ") != c.order {
			t.Errorf("%s %s: order %v, want %s", c.dtype, c.text, order, c.order)
		}
	}
}
