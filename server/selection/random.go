package selection

import "math"

// A random is a stream of numbers that follows from its seed alone, with every Go release, so that
// a decision that was recorded with its random number can be reproduced.
//
// It is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014), which passes through all 2^64 numbers and mixes well enough that neighbouring
// seeds give unrelated streams.
type random uint64

func (r *random) uint64() uint64 {
	*r += 0x9e3779b97f4a7c15
	return mix(uint64(*r))
}

// mix is SplitMix64's finaliser: each bit of its argument changes half of the result's.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit converts 64 random bits to a number in [0, 1).
func unit(bits uint64) float64 { return float64(bits>>11) / (1 << 53) }

// float returns a number uniform in [0, 1).
func (r *random) float() float64 { return unit(r.uint64()) }

// normal draws from the standard normal distribution, by the polar method (Marsaglia and Bray, "A
// Convenient Method for Generating Normal Variables", SIAM Review 6(3), 1964).
func (r *random) normal() float64 {
	for {
		x, y := 2*r.float()-1, 2*r.float()-1
		if s := x*x + y*y; s > 0 && s < 1 {
			return x * math.Sqrt(-2*math.Log(s)/s)
		}
	}
}

// gamma draws from the gamma distribution of that shape, at least 1, and scale 1 (Marsaglia and
// Tsang, "A Simple Method for Generating Gamma Variables", ACM TOMS 26(3), 2000).
func (r *random) gamma(shape float64) float64 {
	d := shape - 1./3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.normal()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		u := 1 - r.float() // in (0, 1]
		if math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// beta draws from the beta distribution of these parameters, both at least 1.
func (r *random) beta(a, b float64) float64 {
	x := r.gamma(a)
	return x / (x + r.gamma(b))
}

// draw returns an index, each with its probability, given u uniform in [0, 1).
func draw(probabilities []float64, u float64) int {
	last := 0
	for i, p := range probabilities {
		if p == 0 {
			continue
		}
		if u < p {
			return i
		}
		u -= p
		last = i // rounding may leave a rest of u after the last one
	}
	return last
}
