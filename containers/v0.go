package containers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pierrec/lz4/v4"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// v0 is the protocol of Clipper's first design ("RPC Format Specification" of its design
// document; amplab/clipper-v0): plain TCP, where the server connects to the container. One batch
// is in flight at a time, and there are no ids. Numbers are little-endian:
//
//	S->C  code u8 | rows N u32 | ...
//	      1 int32, 2 float64, 3 uint8   elements of each row u32 | the rows
//	      4 int32, 5 float64, 6 uint8   size of what follows u32 | N x (elements u32 | the row)
//	      7 texts                       size of what follows u32 | N x size u32 | LZ4: texts, "\n"
//	C->S  float64 for each row
//	S->C  0 | 0 u32                     goodbye
//	C->S  1234 u32
//
// Rows of one length are sent as 1 to 3, since some containers knew no other codes. Clipper's LZ4
// frames had linked blocks, ours have independent ones; every decoder reads both.
type v0 struct {
	dtype  tensor.DType
	out    bytes.Buffer // the request
	writer *lz4.Writer  // of texts; nil until there are some
}

// v0Codes are the codes for rows of one length; add 3 for rows of any length.
var v0Codes = map[tensor.DType]byte{tensor.Int32: 1, tensor.Float64: 2, tensor.Uint8: 3, tensor.Bytes: 7}

// Input returns the input dtype of a container of RPC v0, by its word in the configuration file.
func Input(word string) (tensor.DType, error) {
	words := []string{"bytes", "ints", "doubles", "strings"}
	i := slices.Index(words, word)
	if i < 0 {
		return 0, fmt.Errorf("expected one of %s, got %q", strings.Join(words, ", "), word)
	}
	return [...]tensor.DType{tensor.Uint8, tensor.Int32, tensor.Float64, tensor.Bytes}[i], nil
}

const (
	v0AnyLength = 3
	// v0Keep is the largest buffer that is reused for the next request.
	v0Keep = 1 << 20
)

var (
	v0Goodbye = []byte{0, 0, 0, 0, 0}
	v0Bye     = []byte{0xd2, 0x04, 0, 0} // 1234
)

// request returns the message for a batch. It is valid until the next call.
func (c *v0) request(b *scheduler.Batch) ([]byte, error) {
	if c.out.Cap() > v0Keep {
		c.out, c.writer = bytes.Buffer{}, nil
	}
	c.out.Reset()
	code := v0Codes[c.dtype]
	if c.dtype == tensor.Bytes {
		c.head(code, b.Rows)
		return c.texts(b)
	}
	width := c.dtype.Size()
	elements, same, total := -1, true, 0
	for i := range b.Parts {
		p := &b.Parts[i]
		n := len(p.Inputs[0].Data) / p.Rows / width
		same = same && (elements < 0 || n == elements)
		elements = n
		total += len(p.Inputs[0].Data) + 4*p.Rows
	}
	if total > math.MaxUint32 {
		return nil, fmt.Errorf("a batch of %d bytes cannot be sent to a container of RPC v0, limit %d",
			total, uint32(math.MaxUint32))
	}
	if same && elements > 0 {
		c.head(code, b.Rows)
		c.word(elements)
		for i := range b.Parts {
			c.out.Write(b.Parts[i].Inputs[0].Data)
		}
		return c.out.Bytes(), nil
	}
	c.head(code+v0AnyLength, b.Rows)
	c.word(total)
	for i := range b.Parts {
		p := &b.Parts[i]
		rest := p.Inputs[0].Data
		for range p.Rows {
			var row []byte
			row, rest = nextRow(c.dtype, rest, p)
			c.word(len(row) / width)
			c.out.Write(row)
		}
	}
	return c.out.Bytes(), nil
}

func (c *v0) texts(b *scheduler.Batch) ([]byte, error) {
	at := c.out.Len()
	c.word(0) // the size, set below
	rows := func(do func(row []byte)) {
		for i := range b.Parts {
			p := &b.Parts[i]
			rest := p.Inputs[0].Data
			for range p.Rows {
				var row []byte
				row, rest = nextRow(c.dtype, rest, p)
				do(row)
			}
		}
	}
	rows(func(row []byte) { c.word(len(row)) })
	if c.writer == nil {
		c.writer = lz4.NewWriter(nil)
		if err := c.writer.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(true),
			lz4.ConcurrencyOption(1)); err != nil {
			return nil, err
		}
	}
	c.writer.Reset(&c.out)
	var failed error
	write := func(row []byte) {
		if _, err := c.writer.Write(row); err != nil && failed == nil {
			failed = err
		}
	}
	rows(write)
	write([]byte{'\n'})
	if err := c.writer.Close(); err != nil && failed == nil {
		failed = err
	}
	if failed != nil {
		return nil, fmt.Errorf("compressing texts: %w", failed)
	}
	out := c.out.Bytes()
	size := len(out) - at - 4
	if size > math.MaxUint32 {
		return nil, fmt.Errorf("a batch of %d bytes cannot be sent to a container of RPC v0, limit %d",
			size, uint32(math.MaxUint32))
	}
	binary.LittleEndian.PutUint32(out[at:], uint32(size))
	return out, nil
}

func (c *v0) head(code byte, rows int) {
	c.out.WriteByte(code)
	c.word(rows)
}

func (c *v0) word(n int) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], uint32(n))
	c.out.Write(b[:])
}
