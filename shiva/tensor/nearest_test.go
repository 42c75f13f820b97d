package tensor

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/x448/float16"
)

// shorts are the finite values of a 16-bit float that are not negative, in order, with its bits as
// their index, and the power of two after them.
func shorts(value func(bits uint16) float32, infinity uint16) []float64 {
	list := make([]float64, infinity)
	for bits := range infinity {
		list[bits] = float64(value(bits))
	}
	return append(list, 2*list[infinity-1]-list[infinity-2])
}

var (
	halves  = shorts(func(b uint16) float32 { return float16.Frombits(b).Float32() }, 0x7c00)
	bfloats = shorts(func(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }, 0x7f80)
)

// nearestOf returns the bits of the value that is nearest to f, and false if it is the infinity.
func nearestOf(values []float64, f *big.Float) (uint16, bool) {
	size := new(big.Float).Abs(f)
	compare := func(v float64, f *big.Float) int { return big.NewFloat(v).Cmp(f) }
	at, exact := slices.BinarySearchFunc(values, size, compare)
	if !exact && at < len(values) && at > 0 {
		low, high := big.NewFloat(values[at-1]), big.NewFloat(values[at])
		middle := new(big.Float).SetPrec(2000).Add(low, high)
		if c := size.Cmp(middle.Quo(middle, big.NewFloat(2))); c < 0 || c == 0 && at%2 == 1 {
			at--
		}
	}
	bits := uint16(at)
	if f.Signbit() {
		bits |= 1 << 15
	}
	return bits, at < len(values)-1
}

// CastNearest gives the value that exact arithmetic finds, for every pair of types, of every
// interesting number and of those around the midpoints between two short floats, where a second
// rounding would show.
func TestCastNearest(t *testing.T) {
	numbers := slices.Clone(interesting)
	for _, values := range [][]float64{halves, bfloats} {
		for i := 0; i+1 < len(values); i += 97 {
			middle := (values[i] + values[i+1]) / 2
			for _, f := range []float64{middle, math.Nextafter(middle, 0), math.Nextafter(middle, math.Inf(1)),
				-math.Nextafter(middle, math.Inf(1))} {
				numbers = append(numbers, big.NewFloat(f))
			}
		}
	}
	for _, n := range []int64{1<<60 + 1<<52 + 1, 1<<60 + 1<<52, 1<<60 + 1<<52 - 1, 3<<60 + 1<<53 + 1} {
		numbers = append(numbers, new(big.Float).SetInt64(n))
	}
	tried := 0
	for _, from := range numeric {
		for _, f := range numbers {
			x, ok := put(from, f)
			if !ok {
				continue
			}
			for _, to := range numeric {
				if to == from {
					continue
				}
				want, has := put(to, f)
				data := want.Data
				switch to {
				case Bool:
					data, has = []byte{1}, true
					if f.Sign() == 0 {
						data[0] = 0
					}
				case Float16, BFloat16:
					var bits uint16
					bits, has = nearestOf(map[DType][]float64{Float16: halves, BFloat16: bfloats}[to], f)
					data = binary.NativeEndian.AppendUint16(nil, bits)
				case Float32:
					v, _ := f.Float32()
					data, has = binary.NativeEndian.AppendUint32(nil, math.Float32bits(v)), !math.IsInf(float64(v), 0)
				case Float64:
					v, _ := f.Float64()
					data, has = binary.NativeEndian.AppendUint64(nil, math.Float64bits(v)), !math.IsInf(v, 0)
				}
				got, err := CastNearest(x, to, nil)
				tried++
				if (err == nil) != has || err == nil && string(got.Data) != string(data) && f.Sign() != 0 {
					t.Errorf("%s %s to %s: %x, %v, want %x, %v", from, f.Text('g', 40), to, got.Data, err, data, has)
				}
				if _, refused := Cast(x, to, nil); refused != nil && err == nil && !Rounds(from, to) {
					t.Errorf("%s %s to %s is rounded, though Rounds denies it", from, f.Text('g', 40), to)
				}
			}
		}
	}
	if tried < 50_000 {
		t.Errorf("only %d casts", tried)
	}
}

// Infinities and NaN stay what they are; as bool, or as an integer, they are refused.
func TestCastNearestSpecial(t *testing.T) {
	for _, f := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		x, err := FromSlice(Shape{1}, []float64{f})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []DType{Float16, BFloat16, Float32} {
			short, err := CastNearest(x, to, nil)
			if err != nil {
				t.Errorf("%v to %s: %v", f, to, err)
				continue
			}
			if back, err := Cast(short, Float64, nil); err != nil || !slices.Equal(back.Data, x.Data) && f == f {
				t.Errorf("%v to %s: %x, %v", f, to, short.Data, err)
			}
		}
		if _, err := CastNearest(x, Int32, nil); err == nil {
			t.Errorf("%v is an integer", f)
		}
		if _, err := CastNearest(x, Bool, nil); (err == nil) != (f == f) {
			t.Errorf("%v as bool: %v", f, err)
		}
	}
	x, err := FromSlice(Shape{2}, []float64{1, 1e300})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CastNearest(x, Float32, nil); err == nil || !strings.Contains(err.Error(), "element 1 is the float64 1e+300, which is out of the range of float32") {
		t.Errorf("%v", err)
	}
	if _, err := CastNearest(x, Bytes, nil); err == nil {
		t.Error("numbers are bytes")
	}
}

// One element is converted as tensors are, for each float: from a float64 to the nearest value,
// with the same numbers beyond the largest one, and back without a change.
func TestFloats(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for d := range DTypes() {
		if !d.IsFloat() {
			if d.Largest() != 0 {
				t.Errorf("%s has a largest value and is no float", d)
			}
			continue
		}
		_, exp := math.Frexp(d.Largest())
		values := []float64{0, math.Copysign(0, -1), 1, d.Largest(), -d.Largest(), math.Inf(1), math.Inf(-1),
			math.NaN(),
			math.MaxFloat64, math.SmallestNonzeroFloat64, d.Largest() * (1 + 0x1p-30)}
		for range 5000 {
			values = append(values, math.Ldexp(random.Float64()*2-1, random.IntN(2*exp+40)-exp-38))
			// Halfway between two values, and next to that.
			tie := math.Ldexp(float64(2*random.IntN(1<<floats[d].digits)+1), random.IntN(20)-10)
			values = append(values, tie, math.Nextafter(tie, 0), math.Nextafter(tie, math.Inf(1)))
		}
		for _, f := range values {
			one, err := FromSlice(Shape{1}, []float64{f})
			if err != nil {
				t.Fatal(err)
			}
			want, err := CastNearest(one, d, nil)
			got, ok := d.AppendFloat(nil, f)
			if ok != (err == nil) {
				t.Fatalf("%g as %s fits: %t; cast: %v", f, d, ok, err)
			}
			if ok && f == f && !bytes.Equal(got, want.Data) {
				t.Fatalf("%g as %s is %x, cast %x", f, d, got, want.Data)
			}
			back := d.Float(got)
			if again, _ := d.AppendFloat(nil, back); !bytes.Equal(again, got) || (f != f) != (back != back) ||
				!ok != (math.IsInf(back, 0) && !math.IsInf(f, 0)) {
				t.Fatalf("%g as %s is %x, which is %g and goes back to %x", f, d, got, back, again)
			}
		}
	}
}

// Short floats are the nearest ones: each is itself, and so are numbers within half a step of it.
func TestShortFloatsAreNearest(t *testing.T) {
	for d := range DTypes() {
		if !d.IsFloat() || d.Size() != 2 {
			continue
		}
		value := func(bits uint64) float64 { return d.Float(binary.NativeEndian.AppendUint16(nil, uint16(bits))) }
		for bits := range uint64(1 << 16) {
			f := value(bits)
			if math.IsNaN(f) || math.IsInf(f, 0) {
				continue
			}
			if got, ok := d.FloatBits(f); !ok || got != bits {
				t.Fatalf("%s %#04x is %v, made from that %#04x %v", d, bits, f, got, ok)
			}
			up := value(bits + 1)
			if math.Abs(f) == d.Largest() {
				continue
			}
			mid := (f + up) / 2
			for _, c := range []struct {
				f    float64
				want uint64
			}{{mid, bits + bits&1}, {mid + (f-up)*1e-9, bits}, {mid - (f-up)*1e-9, bits + 1}} {
				if got, _ := d.FloatBits(c.f); got != c.want {
					t.Fatalf("%s of %v is %#04x, want %#04x", d, c.f, got, c.want)
				}
			}
		}
	}
}
