package main

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// decoderLimits admit some messages that announce a false length, and refuse others.
var decoderLimits = shiva.Limits{MessageBytes: 1 << 30, MetadataBytes: 1 << 24, Tensors: 250, Rank: 40, JSONDepth: 20}

// shivaStreams are decoded as in a server: by one decoder, which gets them in pieces.
type shivaStreams struct {
	*mutator
	decoder *shiva.Decoder
	pool    *tensor.Pool
	buf     []byte
}

func newShivaStreams(seed uint64) (streams, error) {
	m, err := newMutator(seed, 1.0/3)
	pool := tensor.NewPool(0)
	return &shivaStreams{mutator: m, pool: pool, decoder: shiva.NewDecoder(shiva.DecoderConfig{Limits: decoderLimits, Pool: pool})}, err
}

// maxStream is the largest number of messages in a stream. A message that announces more bytes than
// it has swallows those behind it.
const maxStream = 6

func (s *shivaStreams) one() (got stream, err error) {
	s.buf = s.buf[:0]
	got.frames = 1 + s.rng.IntN(maxStream)
	for range got.frames {
		s.buf = s.next(s.buf)
	}
	got.bytes = len(s.buf)
	defer s.decoder.Reset()
	from, at := 0, 0 // the start of the current message; the number of bytes pushed
	for at < len(s.buf) {
		piece := s.buf[at:min(len(s.buf), at+1+s.rng.IntN(600))]
		n, m, err := s.decoder.Push(piece)
		at += n
		held := s.pool.InUse()
		if m != nil {
			for _, x := range m.Tensors {
				held -= int64(len(x.Data))
			}
		}
		if most := int64(at)*11 + perStream; held > most {
			return got, fmt.Errorf("%d bytes held for %d that have come, expected %d at most: %x", held, at, most, s.buf)
		}
		switch fault, ok := errors.AsType[*shiva.DecodeError](err); {
		case m != nil:
			got.messages++
			size, err := shiva.MessageSize(m)
			// The decoder replaces NaN in metadata by null, which is longer.
			if err != nil || size != at-from && !bytes.Contains(m.Metadata, []byte("null")) {
				return got, fmt.Errorf("a message of %d bytes, decoded from %d, %v: %x", size, at-from, err, s.buf)
			}
			m.Release()
			from = at
		case err == nil:
		case !ok:
			return got, fmt.Errorf("an error without a name, %v: %x", err, s.buf)
		default:
			got.faults++
			if from = at; !fault.Keep() {
				return got, nil
			}
		}
	}
	return got, nil
}
