package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
)

// A number holds the parts of a JSON number: ±digits·10^exp.
type number struct {
	digits   uint64 // all of them, unless cut
	exp      int
	end      int  // offset after it
	ok       bool // it is a number; else end is the offset of the unexpected byte
	negative bool // it has a minus sign
	whole    bool // it has neither fraction nor exponent
	cut      bool // it has more digits than fit
}

// maxDigits is how many decimal digits always fit 64 bits.
const maxDigits = 19

// scanNumber reads the number at b[i:].
func scanNumber(b []byte, i int) (n number) {
	if i < len(b) && b[i] == '-' {
		n.negative = true
		i++
	}
	start := i
	if i < len(b) && b[i] == '0' {
		i++ // stands alone
	} else {
		for i < len(b) && b[i]-'0' <= 9 {
			n.digits = 10*n.digits + uint64(b[i]-'0')
			i++
		}
		if n.end = i; i == start {
			return n
		}
	}
	count := i - start
	n.whole = true
	if i < len(b) && b[i] == '.' {
		n.whole = false
		i++
		point := i
		i, n.digits = run(b, i, n.digits)
		if n.end = i; i == point {
			return n
		}
		n.exp = point - i
		count += i - point
	}
	if count > maxDigits {
		n.cut = significant(b[start:i]) > maxDigits
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		n.whole = false
		i++
		minus := false
		if i < len(b) && (b[i] == '-' || b[i] == '+') {
			minus = b[i] == '-'
			i++
		}
		from, e := i, 0
		for ; i < len(b) && b[i]-'0' <= 9; i++ {
			if e < 1<<20 { // far beyond any float
				e = 10*e + int(b[i]-'0')
			}
		}
		if n.end = i; i == from {
			return n
		}
		if minus {
			e = -e
		}
		n.exp += e
	}
	n.end, n.ok = i, true
	return n
}

// run reads decimal digits and appends them to v, which may overflow. It takes eight at a time, the
// last ones too: the number of digits varies, and a branch on it would be mispredicted more often
// than not.
func run(b []byte, i int, v uint64) (int, uint64) {
	for len(b)-i >= 8 {
		x := binary.LittleEndian.Uint64(b[i:]) ^ 0x3030303030303030 // digits become their values
		// The upper bit of each byte that is not a digit; a carry out of a byte affects only those
		// after it.
		others := (x + 0x7676767676767676 | x) & 0x8080808080808080
		if others == 0 {
			v = 100_000_000*v + parseEight(x)
			i += 8
			continue
		}
		n := bits.TrailingZeros64(others) / 8
		return i + n, shifts[n]*v + parseEight(x<<(64-8*n)) // left-padded with zeros
	}
	for i < len(b) {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		v = 10*v + uint64(d)
		i++
	}
	return i, v
}

// parseEight returns the number that eight digits make, the first in the lowest byte: it joins
// neighbours to pairs, pairs to fours and fours to eight, with one multiplication each.
func parseEight(x uint64) uint64 {
	x = x * (10<<8 | 1) >> 8 & 0x00ff00ff00ff00ff
	x = x * (100<<16 | 1) >> 16 & 0x0000ffff0000ffff
	return x * (10000<<32 | 1) >> 32
}

// shifts holds the powers of ten that make room for 0 to 7 digits.
var shifts = [8]uint64{1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000}

// significant counts the digits of a number without exponent, from the first non-zero one.
func significant(b []byte) int {
	n := 0
	for _, c := range b {
		if c != '.' && (n > 0 || c != '0') {
			n++
		}
	}
	return n
}

// powers holds 10^-maxPower to 10^maxPower, each as the nearest float64. 10^0 to 10^exact are
// exact.
var powers = func() (p [2*maxPower + 1]float64) {
	for i := range p {
		p[i], _ = strconv.ParseFloat("1e"+strconv.Itoa(i-maxPower), 64)
	}
	return p
}()

const (
	maxPower = 60
	exact    = 22
)

// nearest returns the float32 nearest to digits·10^exp, and false if a few steps cannot determine
// it.
//
// The number is computed as a float64 d, in which the digits, the power of ten and the product are
// rounded once each: d is off by less than three units in its last place. The midpoint between two
// float32 is a float64 too: if d is further than that from every midpoint, the float32 nearest to d
// is nearest to the number. This fails for one number in fifty million.
func nearest(digits uint64, exp int) (float32, bool) {
	const (
		half   = 1 << 28 // of a float32's last place, in units of a float64's
		margin = 4
	)
	at := uint(exp + maxPower)
	if at >= uint(len(powers)) {
		return 0, false
	}
	d := float64(digits) * powers[at]
	low := math.Float64bits(d) & (1<<29 - 1)
	return float32(d), low-(half-margin) > 2*margin && d >= 0x1p-126 && d < 0x1p127 || digits == 0
}

// float32 returns the float32 nearest to the number, which is b[i:n.end]; ties go to even, as in
// strconv.ParseFloat. It returns false for a number beyond the largest float32.
func (n number) float32(b []byte, i int) (float32, bool) {
	if !n.cut {
		if f, ok := nearest(n.digits, n.exp); ok {
			if n.negative {
				f = -f
			}
			return f, true
		}
	}
	f, err := strconv.ParseFloat(view(b[i:n.end]), 32)
	return float32(f), err == nil
}

// float64 is float32 for float64. One operation on exact operands rounds correctly (Clinger, 1990).
func (n number) float64(b []byte, i int) (float64, bool) {
	if !n.cut && n.digits <= 1<<53 && uint(n.exp+exact) <= 2*exact {
		d := float64(n.digits)
		if n.exp < 0 {
			d /= powers[maxPower-n.exp]
		} else {
			d *= powers[maxPower+n.exp]
		}
		if n.negative {
			d = -d
		}
		return d, true
	}
	f, err := strconv.ParseFloat(view(b[i:n.end]), 64)
	return f, err == nil
}

// magnitude returns a whole number without its sign, however it is written (3, 3.0, 3e0), and false
// if it has a fraction or does not fit.
func (n number) magnitude(b []byte, i int) (uint64, bool) {
	if !n.cut && n.whole {
		return n.digits, true
	}
	const longest = 20 // digits of a uint64
	text := b[i:n.end]
	if e := bytes.IndexAny(text, "eE"); e >= 0 {
		text = text[:e]
	}
	digits := make([]byte, 0, longest+1)
	zeros := 0 // after the digits
	for _, c := range text {
		switch {
		case c == '0':
			zeros++
		case c-'0' <= 9:
			for ; zeros > 0 && len(digits) > 0 && len(digits) < longest; zeros-- {
				digits = append(digits, '0')
			}
			if len(digits) == longest {
				return 0, false
			}
			digits, zeros = append(digits, c), 0
		}
	}
	if len(digits) == 0 {
		return 0, true
	}
	if zeros += n.exp; zeros < 0 || len(digits)+zeros > longest {
		return 0, false
	}
	v, err := strconv.ParseUint(string(append(digits, "00000000000000000000"[:zeros]...)), 10, 64)
	return v, err == nil
}

// fits reports whether an integer fits a type of width bits.
func fits(magnitude uint64, neg, signed bool, width int) bool {
	switch {
	case !signed:
		return (!neg || magnitude == 0) && bits.Len64(magnitude) <= width
	case neg:
		return magnitude <= 1<<(width-1)
	}
	return bits.Len64(magnitude) < width
}
