package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// answers finds the ends of Shiva messages in the bytes of one connection by headers and lengths
// alone, and skips bodies. That costs a few nanoseconds where decoding a message costs a hundred,
// and still detects a stream that is out of step. Package shiva draws the layout.
//
// In each step it skips bytes, then collects some in head, then interprets those. The zero value
// is before a message.
type answers struct {
	stage stage
	skip  int // bytes to skip before head
	need  int // bytes wanted in head
	have  int
	head  [2 + 4*maxRank]byte

	tensors   int // tensors without a header so far
	metadata  int // bytes
	namespace int // bytes; it is the last part of a message
	fault     bool
}

type stage uint8

const (
	atStart stage = iota
	atHeader
	atTensor
	atShape
	atNamespace
	atEnd
)

const (
	headerSize = 12
	maxRank    = 64
	// Namespaces that begin with this mark are reserved; only "!error" among them answers
	// inference.
	reservedMark = '!'
)

// widths are the bytes per element of Shiva's dtype codes; 0 for none.
var widths = [18]int{2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 8, 16, 8, 8, 16, 0, 1}

var errOutOfStep = errors.New("load: answers are out of step")

// next consumes bytes of p, at most up to the end of one message; done reports that it reached
// the end. a.fault then reports, until the next call, whether the message was an "!error".
func (a *answers) next(p []byte) (n int, done bool, err error) {
	for {
		k := min(a.skip, len(p)-n)
		n += k
		if a.skip -= k; a.skip > 0 {
			return n, false, nil
		}
		k = copy(a.head[a.have:a.need], p[n:])
		n += k
		if a.have += k; a.have < a.need {
			return n, false, nil
		}
		if a.stage == atEnd {
			a.stage = atStart
			return n, true, nil
		}
		if err := a.step(); err != nil {
			return n, false, err
		}
	}
}

func (a *answers) step() error {
	switch a.stage {
	case atStart:
		a.fault = false
		a.expect(atHeader, headerSize)
	case atHeader:
		h := a.head[:headerSize]
		a.metadata, a.tensors, a.namespace = int(int32(binary.BigEndian.Uint32(h[4:]))), int(h[8]), int(h[9])
		crc := byte(6 + 66 + 11 + 1 + a.metadata + a.tensors + a.namespace)
		if h[0] != 6 || h[1] != 66 || h[2] != 11 || h[3] != 1 || a.metadata < 0 || h[10] != crc || h[11] != 2*crc {
			return fmt.Errorf("%w: expected a Shiva header, got % x", errOutOfStep, h)
		}
		a.afterTensor()
	case atTensor:
		rank, code := int(a.head[0]), int(a.head[1])
		if rank > maxRank || code >= len(widths) || widths[code] == 0 {
			return fmt.Errorf("%w: expected a tensor header, got rank %d and dtype code %d", errOutOfStep, rank, code)
		}
		a.stage = atShape
		a.need += 4 * rank
	case atShape:
		size := widths[a.head[1]]
		for i := 2; i < a.need; i += 4 {
			d := int(int32(binary.BigEndian.Uint32(a.head[i:])))
			if d < 0 || d > 0 && size > math.MaxInt/d {
				return fmt.Errorf("%w: a tensor with dimension %d", errOutOfStep, d)
			}
			size *= d
		}
		a.skip = size
		a.tensors--
		a.afterTensor()
	case atNamespace:
		if a.namespace > 0 {
			a.fault = a.head[0] == reservedMark
			a.skip = a.namespace - 1
		}
		a.expect(atEnd, 0)
	}
	return nil
}

// afterTensor expects the next tensor, or the metadata after the last one.
func (a *answers) afterTensor() {
	if a.tensors > 0 {
		a.expect(atTensor, 2)
		return
	}
	a.skip += a.metadata
	a.expect(atNamespace, min(a.namespace, 1))
}

func (a *answers) expect(s stage, bytes int) { a.stage, a.need, a.have = s, bytes, 0 }
