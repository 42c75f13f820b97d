package tensor

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/x448/float16"
)

// numeric are the dtypes that can be cast to each other.
var numeric = []DType{Float16, BFloat16, Float32, Float64, Uint8, Int8, Uint16, Int16, Uint32, Int32, Uint64, Int64,
	Bool}

// interesting are numbers around all limits. They are given as text, so that they are exact.
var interesting = func() (list []*big.Float) {
	add := func(f *big.Float) { list = append(list, f, new(big.Float).Neg(f)) }
	for _, e := range []int{0, 1, 2, 7, 8, 10, 11, 15, 16, 23, 24, 25, 31, 32, 52, 53, 54, 62, 63, 64, 65, 127, 128,
		1023} {
		p := new(big.Float).SetPrec(2000).SetMantExp(big.NewFloat(1), e)
		for _, d := range []float64{-1, -0.5, 0, 0.5, 1} {
			add(new(big.Float).SetPrec(2000).Add(p, big.NewFloat(d)))
		}
		add(new(big.Float).SetMantExp(big.NewFloat(1.5), -e))
	}
	add(big.NewFloat(0))
	add(big.NewFloat(65504)) // the largest float16
	add(big.NewFloat(65520))
	add(big.NewFloat(math.MaxFloat32))
	add(big.NewFloat(math.MaxFloat64))
	add(big.NewFloat(math.SmallestNonzeroFloat32))
	add(big.NewFloat(math.SmallestNonzeroFloat64))
	return list
}()

// put returns the one-element tensor of f, and whether d has that number, computed with arbitrary
// precision.
func put(d DType, f *big.Float) (Tensor, bool) {
	one := func(t Tensor, err error) Tensor {
		if err != nil {
			panic(err)
		}
		return t
	}
	integer := func(signed bool, size int) (int64, uint64, bool) {
		i, acc := f.Int(nil)
		ok := acc == big.Exact
		if signed {
			limit := new(big.Int).Lsh(big.NewInt(1), uint(size-1))
			ok = ok && i.Cmp(limit) < 0 && i.Cmp(new(big.Int).Neg(limit)) >= 0
		} else {
			ok = ok && i.Sign() >= 0 && i.BitLen() <= size
		}
		if !ok {
			return 0, 0, false
		}
		return i.Int64(), i.Uint64(), true
	}
	s := Shape{1}
	switch d {
	case Float16, BFloat16, Float32:
		v, acc := f.Float32()
		if acc != big.Exact {
			return Tensor{}, false
		}
		switch d {
		case Float16:
			h := float16.Fromfloat32(v)
			return one(FromSlice(s, []float16.Float16{h})), h.Float32() == v
		case BFloat16:
			b := math.Float32bits(v)
			return one(New(BFloat16, s, one(FromSlice(s, []uint16{uint16(b >> 16)})).Data)), b&0xffff == 0
		}
		return one(FromSlice(s, []float32{v})), true
	case Float64:
		v, acc := f.Float64()
		return one(FromSlice(s, []float64{v})), acc == big.Exact
	case Bool:
		i, _, ok := integer(true, 64)
		return one(FromSlice(s, []bool{i == 1})), ok && (i == 0 || i == 1)
	case Uint8, Uint16, Uint32, Uint64:
		_, u, ok := integer(false, 8*d.Size())
		switch d {
		case Uint8:
			return one(FromSlice(s, []uint8{uint8(u)})), ok
		case Uint16:
			return one(FromSlice(s, []uint16{uint16(u)})), ok
		case Uint32:
			return one(FromSlice(s, []uint32{uint32(u)})), ok
		}
		return one(FromSlice(s, []uint64{u})), ok
	}
	i, _, ok := integer(true, 8*d.Size())
	switch d {
	case Int8:
		return one(FromSlice(s, []int8{int8(i)})), ok
	case Int16:
		return one(FromSlice(s, []int16{int16(i)})), ok
	case Int32:
		return one(FromSlice(s, []int32{int32(i)})), ok
	}
	return one(FromSlice(s, []int64{i})), ok
}

// TestCast casts every interesting number from every dtype that has it to every other. The result
// is the same number, or an error exactly if the target does not have it.
func TestCast(t *testing.T) {
	pool := NewPool(0)
	tried := 0
	for _, from := range numeric {
		for _, f := range interesting {
			x, ok := put(from, f)
			if !ok {
				continue
			}
			for _, to := range numeric {
				want, has := put(to, f)
				got, err := Cast(x, to, pool)
				tried++
				if (err == nil) != has {
					t.Errorf("%s %s to %s: %v; it has that number: %t", from, f.Text('g', 40), to, err, has)
					continue
				}
				if err != nil {
					wantError(t, err, "element 0", from.String(), to.String())
					continue
				}
				// -0 is equal to 0 but not the same bytes.
				if string(got.Data) != string(want.Data) && f.Sign() != 0 || got.DType != to ||
					!got.Shape.Equal(x.Shape) {
					t.Errorf("%s %s to %s: %s %x, want %x", from, f.Text('g', 40), to, got.Shape, got.Data, want.Data)
				}
				got.Release()
			}
		}
	}
	if tried < 10_000 {
		t.Errorf("only %d casts", tried)
	}
	if pool.InUse() != 0 {
		t.Errorf("%d bytes in use", pool.InUse())
	}
}

// TestCastSpecial: only floats have NaN and infinity.
func TestCastSpecial(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		x, _ := FromSlice(nil, []float64{v})
		for _, to := range numeric {
			got, err := Cast(x, to, nil)
			switch to {
			case Float16, BFloat16, Float32, Float64:
				if err != nil {
					t.Errorf("%v to %s: %v", v, to, err)
					continue
				}
				back, err := Cast(got, Float64, nil)
				if err != nil {
					t.Errorf("%v in %s back: %v", v, to, err)
					continue
				}
				if b, _ := Values[float64](back); b[0] != v && !(math.IsNaN(v) && math.IsNaN(b[0])) {
					t.Errorf("%v in %s is %v", v, to, b[0])
				}
			default:
				wantError(t, err, fmt.Sprint(v))
			}
		}
	}
	// A NaN whose payload is in the half that bfloat16 drops.
	x, _ := FromSlice(nil, []float32{math.Float32frombits(0x7f800001)})
	got, err := Cast(x, BFloat16, nil)
	if err != nil || got.Data[0] == 0x80 && got.Data[1] == 0x7f {
		t.Errorf("NaN became %x, %v", got.Data, err)
	}
}

// TestCastMany: more elements than a block, unaligned, with the one that does not fit at any
// position.
func TestCastMany(t *testing.T) {
	pool := NewPool(0)
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, castBlock - 1, castBlock, castBlock + 1, 3*castBlock + 17} {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(rnd.IntN(2049) - 1024)
		}
		aligned, _ := FromSlice(Shape{n}, values)
		x := aligned
		x.Data = append([]byte{0}, aligned.Data...)[1:]
		for _, to := range []DType{Int16, Float64, Float16} {
			got, err := Cast(x, to, pool)
			if err != nil {
				t.Fatal(err)
			}
			back, err := Cast(got, Float32, pool)
			if err != nil || string(back.Data) != string(aligned.Data) {
				t.Errorf("%d elements to %s and back: %v", n, to, err)
			}
			got.Release()
			back.Release()
		}
		if n == 0 {
			continue
		}
		bad := rnd.IntN(n)
		values[bad] = 1e9
		for _, to := range []DType{Int16, Float16, Bool} {
			if to == Bool {
				for i := range values {
					values[i] = float32(i & 1)
				}
				values[bad] = 2
			}
			_, err := Cast(aligned, to, pool)
			wantError(t, err, fmt.Sprintf("element %d ", bad), "float32", to.String())
		}
	}
	if pool.InUse() != 0 {
		t.Errorf("%d bytes in use", pool.InUse())
	}
}

func TestCastComplex(t *testing.T) {
	x, _ := FromSlice(Shape{2}, []complex128{1 + 2i, 0.5 - 3i})
	half, err := Cast(x, Complex64, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := Values[complex64](half); v[0] != 1+2i || v[1] != 0.5-3i || !half.Shape.Equal(Shape{2}) {
		t.Errorf("%v of shape %s", v, half.Shape)
	}
	if back, err := Cast(half, Complex128, nil); err != nil || string(back.Data) != string(x.Data) {
		t.Errorf("back: %x, %v", back.Data, err)
	}
	x, _ = FromSlice(Shape{2}, []complex128{1, 0.1i})
	_, err = Cast(x, Complex64, nil)
	wantError(t, err, "element 1", "0.1i", "complex64")
}

func TestCastRefuses(t *testing.T) {
	x, _ := FromSlice(Shape{2}, []float32{1, 2})
	for _, to := range []DType{Complex64, LongDouble, Bytes, DType(2), DType(200)} {
		_, err := Cast(x, to, nil)
		wantError(t, err, "float32", to.String())
	}
	words, _ := FromStrings(Shape{1}, []string{"1"})
	_, err := Cast(words, Float32, nil)
	wantError(t, err, "bytes", "float32")
	x.Data = x.Data[:7]
	_, err = Cast(x, Float32, nil)
	wantError(t, err, "got 7")
}

// TestCastToItself shares the memory.
func TestCastToItself(t *testing.T) {
	pool := NewPool(0)
	buf := mustGet(t, pool, 8)
	x := Tensor{DType: Float32, Shape: Shape{2}, Data: buf.Bytes(), Buf: buf}
	y, err := Cast(x, Float32, pool)
	if err != nil || &y.Data[0] != &x.Data[0] {
		t.Fatal("copied", err)
	}
	x.Release()
	if pool.InUse() == 0 {
		t.Error("the cast holds no reference")
	}
	y.Release()
	if pool.InUse() != 0 {
		t.Error("not released")
	}
}

func BenchmarkCast(b *testing.B) {
	const n = 1 << 16
	for _, pair := range [][2]DType{{Uint8, Float32}, {Float32, Uint8}, {Float64, Float32}, {Int64, Int32},
		{Float16, Float32}} {
		b.Run(fmt.Sprintf("from=%s/to=%s", pair[0], pair[1]), func(b *testing.B) {
			x := Tensor{DType: pair[0], Shape: Shape{n}, Data: make([]byte, n*pair[0].Size())}
			pool := NewPool(0)
			b.SetBytes(n * int64(pair[1].Size()))
			for b.Loop() {
				y, err := Cast(x, pair[1], pool)
				if err != nil {
					b.Fatal(err)
				}
				y.Release()
			}
		})
	}
}
