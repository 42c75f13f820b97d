package grpc

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/server/internal/gate"
)

// A source gives the bytes of one message, piece by piece.
type source interface {
	// next returns at least one byte more, good until it is called again. io.EOF is the end of
	// a message whose size was not known before.
	next() ([]byte, error)
	// atHand is how many bytes more have arrived.
	atHand() int
}

// A scanner reads protocol buffers from a source. After its first error it gives zeros, and
// more says that there is no more: so the error needs to be looked at once, at the end.
type scanner struct {
	source source
	buf    []byte // of the current piece, what is not read yet
	pos    int    // bytes read
	end    int    // where the message ends, or the field that is being read
	open   bool   // the message may end before end: its size is not known, only its
	limit  limit
	depth  int // fields that are being read
	err    error

	settings *Settings // as the message found them
}

// fail makes err the error, unless there is one.
func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = err
		s.buf = nil
	}
}

func (s *scanner) malformed(format string, args ...any) {
	s.fail(fmt.Errorf("%w: at byte %d: %s", gate.ErrProtocol, s.pos, fmt.Sprintf(format, args...)))
}

// more reports whether the message, or the field that is being read, goes on, and has its next
// byte at hand.
func (s *scanner) more() bool {
	if s.err != nil || s.pos >= s.end {
		return false
	}
	if len(s.buf) > 0 {
		return true
	}
	piece, err := s.source.next()
	switch {
	case err == io.EOF && s.open && s.depth == 0:
		s.end = s.pos
		return false
	case err == io.EOF:
		s.malformed("the message ends in the middle of a field")
		return false
	case err != nil:
		s.fail(err)
		return false
	}
	s.buf = piece
	return true
}

// need is more where the field cannot be complete without another byte.
func (s *scanner) need() bool {
	s.depth++
	ok := s.more()
	s.depth--
	if !ok && s.err == nil {
		s.malformed("a field ends in the middle of a value")
	}
	return ok
}

// piece is what is at hand of the next n bytes, one at least; nil after an error.
func (s *scanner) piece(n int) []byte {
	if !s.need() {
		return nil
	}
	p := s.buf[:min(n, len(s.buf), s.end-s.pos)]
	s.buf = s.buf[len(p):]
	s.pos += len(p)
	return p
}

// arrived is how many bytes can be read without waiting.
func (s *scanner) arrived() int { return min(len(s.buf)+s.source.atHand(), s.end-s.pos) }

func (s *scanner) varint() uint64 {
	if s.err != nil {
		return 0
	}
	if v, n := protowire.ConsumeVarint(s.buf[:min(len(s.buf), s.end-s.pos)]); n > 0 {
		s.buf = s.buf[n:]
		s.pos += n
		return v
	}
	// It goes on in the next piece, or is none.
	var v uint64
	for shift := 0; ; shift += 7 {
		p := s.piece(1)
		if p == nil {
			return 0
		}
		if shift == 63 && p[0] > 1 {
			s.malformed("a number of more than 64 bits")
			return 0
		}
		v |= uint64(p[0]&0x7f) << shift
		if p[0] < 0x80 {
			return v
		}
	}
}

// tag reads a field's number and wire type.
func (s *scanner) tag() (protowire.Number, protowire.Type) {
	v := s.varint()
	num, typ := v>>3, protowire.Type(v&7)
	if s.err == nil && (num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber)) {
		s.malformed("field number %d", num)
	}
	if s.err != nil {
		return 0, 0
	}
	return protowire.Number(num), typ
}

// length reads that of a field, which fits into what it is part of.
func (s *scanner) length() int {
	n := s.varint()
	if s.err != nil {
		return 0
	}
	if left := s.end - s.pos; n > uint64(left) {
		if s.open && s.depth == 0 && n <= math.MaxInt32 {
			s.fail(s.limit.exceeded(int64(s.pos) + int64(n)))
			return 0
		}
		s.malformed("a field of %d bytes where %d are left", n, left)
		return 0
	}
	return int(n)
}

// packed reads n bytes of values: it calls value for each, which reads all of it.
func (s *scanner) packed(n int, value func()) {
	outer := s.end
	s.end = s.pos + n
	s.depth++
	for s.more() {
		value()
	}
	s.depth--
	s.end = outer
}

// inside reads a field of fields: it calls field for each, which reads all of it.
func (s *scanner) inside(field func(protowire.Number, protowire.Type)) {
	s.packed(s.length(), func() {
		if num, typ := s.tag(); s.err == nil {
			field(num, typ)
		}
	})
}

// fixed64 reads 8 bytes, little-endian.
func (s *scanner) fixed64() uint64 {
	var b [8]byte
	s.read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// read fills dst.
func (s *scanner) read(dst []byte) {
	for len(dst) > 0 {
		p := s.piece(len(dst))
		if p == nil {
			return
		}
		dst = dst[copy(dst, p):]
	}
}

// text reads a string of at most room bytes, which it takes from room.
func (s *scanner) text(room *int, tooLong func(n int) error) string {
	n := s.length()
	if s.err != nil {
		return ""
	}
	if n > *room {
		s.fail(tooLong(n))
		return ""
	}
	*room -= n
	b := make([]byte, n)
	s.read(b)
	if s.err == nil && !utf8.Valid(b) {
		s.malformed("a string that is not UTF-8")
	}
	if s.err != nil {
		return ""
	}
	return string(b)
}

// skip passes over the value of a field that means nothing here.
func (s *scanner) skip(num protowire.Number, typ protowire.Type) {
	// Groups, which are obsolete, may lie in each other.
	var groups []protowire.Number
	for {
		switch typ {
		case protowire.VarintType:
			s.varint()
		case protowire.Fixed32Type:
			s.pass(4)
		case protowire.Fixed64Type:
			s.pass(8)
		case protowire.BytesType:
			s.pass(s.length())
		case protowire.StartGroupType:
			if len(groups) == protowire.DefaultRecursionLimit {
				s.malformed("groups nested more than %d deep", len(groups))
			}
			groups = append(groups, num)
		case protowire.EndGroupType:
			if len(groups) == 0 || groups[len(groups)-1] != num {
				s.malformed("the end of a group %d that has not begun", num)
				return
			}
			groups = groups[:len(groups)-1]
		default:
			s.malformed("field %d has wire type %d", num, typ)
		}
		if s.err != nil || len(groups) == 0 {
			return
		}
		s.depth++
		num, typ = s.tag()
		s.depth--
	}
}

func (s *scanner) pass(n int) {
	for n > 0 {
		p := s.piece(n)
		if p == nil {
			return
		}
		n -= len(p)
	}
}
