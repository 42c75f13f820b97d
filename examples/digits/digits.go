// Package digits is the network of this example in plain Go: 8x8 grey images of handwritten
// digits in, a score for each digit out. It is a 64-64-10 perceptron with ReLU; train.py makes
// its weights.
package digits

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"fmt"
)

// Side is the height and width of an image in pixels, Pixels their number.
const (
	Side    = 8
	Pixels  = Side * Side
	Hidden  = 64
	Classes = 10
)

//go:embed weights.f32
var weights []byte

// Network holds the weights in the order of weights.f32, little-endian float32 without a
// header. It does not change after Load: any number of goroutines may use it.
type Network struct {
	W1 [Pixels][Hidden]float32
	B1 [Hidden]float32
	W2 [Hidden][Classes]float32
	B2 [Classes]float32
}

// Load returns the network with the weights embedded in the program.
func Load() (*Network, error) {
	n := new(Network)
	if size := binary.Size(n); len(weights) != size {
		return nil, fmt.Errorf("digits: weights.f32 has %d bytes, %d expected", len(weights), size)
	}
	if err := binary.Read(bytes.NewReader(weights), binary.LittleEndian, n); err != nil {
		return nil, fmt.Errorf("digits: reading weights.f32: %w", err)
	}
	return n, nil
}

// Infer writes a score for each digit to scores, about +1 for the right one and -1 for the others,
// and returns the digit with the best score. image has Pixels bytes, row by row, 0 for paper and
// 255 for ink; scores has length Classes.
func (n *Network) Infer(image []byte, scores []float32) (digit int) {
	hidden := n.B1
	for i, pixel := range image[:Pixels] {
		if pixel == 0 { // half of all pixels are paper
			continue
		}
		x := float32(pixel) / 255
		for j, w := range &n.W1[i] {
			hidden[j] += x * w
		}
	}
	scores = scores[:Classes]
	copy(scores, n.B2[:])
	for i, h := range hidden {
		if h <= 0 {
			continue
		}
		for j, w := range &n.W2[i] {
			scores[j] += h * w
		}
	}
	for j, score := range scores {
		if score > scores[digit] {
			digit = j
		}
	}
	return digit
}
