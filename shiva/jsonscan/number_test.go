package jsonscan

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// Floats are the nearest to their texts, bit by bit as strconv parses them: random ones in several
// notations, and those around the midpoints between two floats, where a double rounding would show.
func TestFloatsAreNearest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	check := func(s string) {
		t.Helper()
		want, err := strconv.ParseFloat(s, 32)
		n := scanNumber([]byte(s), 0)
		got, ok := n.float32([]byte(s), 0)
		if n.end != len(s) || ok != (err == nil) || ok && math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Fatalf("%s: float32 %v %v, want %v %v", s, got, ok, want, err)
		}
		var one [1]float32
		end, done := floats([]byte(s+"]"), 0, one[:])
		if loop := done == 1 && end == len(s)+1; loop != (err == nil) ||
			loop && math.Float32bits(one[0]) != math.Float32bits(float32(want)) {
			t.Fatalf("%s: in the loop %v %v, want %v %v", s, one[0], loop, want, err)
		}
		want, err = strconv.ParseFloat(s, 64)
		wide, ok := n.float64([]byte(s), 0)
		if ok != (err == nil) || ok && math.Float64bits(wide) != math.Float64bits(want) {
			t.Fatalf("%s: float64 %v %v, want %v %v", s, wide, ok, want, err)
		}
	}
	for _, s := range strings.Fields("0 -0 0.0 0e5 -0e-999999999 1e-46 7e-46 1.4e-45 1.1754942e-38 1.17549435e-38 3.4028235e38 3.4028236e38 1e39 9007199254740993 16777217 " +
		"1.00000005960464477539062500000000000000000000001 1.000000059604644775390625 0.00000000000000000000000000000000000000000000000001 123456789012345678901234567890e-30") {
		check(s)
	}
	for range 30_000 {
		// Only exponents below 1: the notations mirror the others.
		f := math.Float32frombits(random.Uint32() &^ (1 << 30))
		if f != f {
			continue
		}
		check(strconv.FormatFloat(float64(f), 'g', -1, 32))
		check(strconv.FormatFloat(float64(f), 'f', -1, 64))
		check(strconv.FormatFloat(float64(f)*1e20, 'e', random.IntN(20), 64))
		// The midpoint to the next float, exactly, and a little to either side.
		mid := (float64(f) + float64(math.Nextafter32(f, 2))) / 2
		for _, m := range []float64{mid, math.Nextafter(mid, 2), math.Nextafter(mid, -2)} {
			check(strconv.FormatFloat(m, 'g', 17+random.IntN(3), 64))
		}
	}
}
