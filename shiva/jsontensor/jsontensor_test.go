package jsontensor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// What each text is as each dtype: written as JSON again; "" where it is refused.
func TestRead(t *testing.T) {
	type all map[tensor.DType]string
	same := func(text string, of ...tensor.DType) all {
		a := all{}
		for _, d := range of {
			a[d] = text
		}
		return a
	}
	signed := []tensor.DType{tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64}
	unsigned := []tensor.DType{tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64}
	floats := []tensor.DType{tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64}
	numbers := append(append(append([]tensor.DType{}, signed...), unsigned...), floats...)
	with := func(a all, more all) all {
		for d, text := range more {
			a[d] = text
		}
		return a
	}
	for text, want := range map[string]all{
		`3`:      same("3", numbers...),
		` 3.0`:   same("3", numbers...),
		`300e-2`: same("3", numbers...),
		`0.3e1`:  same("3", numbers...),
		`1`:      with(same("1", numbers...), all{tensor.Bool: "true"}),
		`0`:      with(same("0", numbers...), all{tensor.Bool: "false"}),
		`true`:   {tensor.Bool: "true"},
		`false`:  {tensor.Bool: "false"},
		`-1`:     same("-1", append(signed, floats...)...),
		`-0`: with(with(same("0", append(signed, unsigned...)...), same("-0.0", floats...)),
			all{tensor.Bool: "false"}),
		`300`: with(same("300", tensor.Int16, tensor.Int32, tensor.Int64, tensor.Uint16, tensor.Uint32,
			tensor.Uint64, tensor.Float16, tensor.Float32, tensor.Float64), all{tensor.BFloat16: "300"}),
		`1.5`: same("1.5", floats...),
		`0.1`: {tensor.Float16: "0.099975586", tensor.BFloat16: "0.100097656", tensor.Float32: "0.1",
			tensor.Float64: "0.1"},
		`1e300`: {tensor.Float64: "1e+300"},
		`1e999`: {},
		`65520`: with(same("65520", tensor.Int32, tensor.Int64, tensor.Uint16, tensor.Uint32, tensor.Uint64,
			tensor.Float32, tensor.Float64), all{tensor.BFloat16: "65536"}),
		`16777217`: with(same("16777217", tensor.Int32, tensor.Int64, tensor.Uint32, tensor.Uint64,
			tensor.Float64), all{tensor.BFloat16: "16777216", tensor.Float32: "16777216"}),
		`"a"`:            {tensor.Bytes: `"a"`},
		`null`:           {},
		`{}`:             {},
		`NaN`:            {},
		`Infinity`:       {},
		`01`:             {},
		`1 2`:            {},
		``:               {},
		`{"b64":"/w=="}`: {tensor.Bytes: `"\xff"`},
		// A midpoint of two float32, and more than it by less than a float64 has: rounded through a
		// float64 it would become 1.
		`1.00000005960464477539062500000000001`: {tensor.Float16: "1", tensor.BFloat16: "1",
			tensor.Float32: "1.0000001", tensor.Float64: "1.0000000596046448"},
		`9007199254740993`: {tensor.Int64: "9007199254740993", tensor.Uint64: "9007199254740993",
			tensor.BFloat16: "9007199000000000", tensor.Float32: "9007199000000000", tensor.Float64: "9007199254740992"},
		`9007199254740993.0`: {tensor.Int64: "9007199254740993", tensor.Uint64: "9007199254740993",
			tensor.BFloat16: "9007199000000000", tensor.Float32: "9007199000000000", tensor.Float64: "9007199254740992"},
		`18446744073709551615`: {tensor.Uint64: "18446744073709551615", tensor.BFloat16: "18446744000000000000",
			tensor.Float32: "18446744000000000000", tensor.Float64: "18446744073709552000"},
		`-9223372036854775808`: {tensor.Int64: "-9223372036854775808", tensor.BFloat16: "-9223372000000000000",
			tensor.Float32: "-9223372000000000000", tensor.Float64: "-9223372036854776000"},
		`18446744073709551616`: {tensor.BFloat16: "18446744000000000000", tensor.Float32: "18446744000000000000",
			tensor.Float64: "18446744073709552000"},
		`0.00000000000000000001e22`: same("100", numbers...),
		`12345678901234567890123e-21`: {tensor.Float16: "12.34375", tensor.BFloat16: "12.375",
			tensor.Float32: "12.345679", tensor.Float64: "12.345678901234567"},
	} {
		for d := range forms {
			got, err := Read([]byte(text), d, nil)
			answer := ""
			switch {
			case err != nil:
			case len(got.Shape) != 0:
				answer = fmt.Sprint(got.Shape)
			case d == tensor.Bytes:
				answer = fmt.Sprintf("%q", got.Data[4:])
			default:
				answer = string(Writer(d)(nil, got.Data))
			}
			if answer != want[d] {
				t.Errorf("%s as %s is %s (%v), want %q", text, d, answer, err, want[d])
			}
		}
	}
}

// Lists become dimensions.
func TestReadLists(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`[]`, "[0]"}, {`[[],[]]`, "[2, 0]"}, {` [1, 2 ] `, "[2]"}, {`[[1],[2],[3]]`, "[3, 1]"}, {`[[[1,2],[3,4]]]`, "[1, 2, 2]"},
		{`[1,[2]]`, "not alike"}, {`[[1],2]`, "not alike"}, {`[[1],[2,3]]`, "not alike"}, {`[[1,2],[3]]`, "not alike"},
		{`[[],[1]]`, "not alike"}, {`[[1],[]]`, "not alike"},
		{`[[1,2],[3,"a"]]`, `expected a whole number from -2147483648 to 2147483647 (INT32), got "a"`},
		{`[1,{"a":[2]}]`, `got {"a":[2]}`},
		{`[1`, "the text ends"}, {`[1,]`, "expected a value"}, {`[1] 2`, "expected the end"},
		{strings.Repeat("[", 70) + strings.Repeat("]", 70), "nested too deeply"},
		// A short text whose first lists claim a large shape takes no memory.
		{"[" + strings.Repeat("0,", 1<<17) + "0]", "[131073]"},
		{"[[" + strings.Repeat("0,", 1<<17) + "0]" + strings.Repeat(",0", 1<<17) + "]", "not alike"},
	} {
		got, err := Read([]byte(c.text), tensor.Int32, nil)
		answer := got.Shape.String()
		if err != nil {
			answer = err.Error()
		}
		if !strings.Contains(answer, c.want) || err == nil && answer != c.want {
			t.Errorf("%.40s: %s, want %s", c.text, answer, c.want)
		}
	}
	if _, err := Read([]byte("[1,2]"), tensor.Complex64, nil); err == nil {
		t.Error("a complex tensor of real numbers")
	}
}

// The pool is charged for what is returned, and for nothing else.
func TestReadFromPool(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	for _, text := range []string{`[1,2,3]`, `["a"]`, `[1,"a"]`, `[[1],2]`} {
		for _, d := range []tensor.DType{tensor.Float32, tensor.Bytes} {
			if got, err := Read([]byte(text), d, pool); err == nil {
				got.Release()
			}
			if n := pool.InUse(); n != 0 {
				t.Fatalf("%s as %s leaves %d bytes in use", text, d, n)
			}
		}
	}
}
