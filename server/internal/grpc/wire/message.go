package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
)

// A source gives the bytes of one message, piece by piece.
type source interface {
	// next returns at least one more byte, valid until the next call. io.EOF is the end of a
	// message whose size was not known before.
	next() ([]byte, error)
	// buffered returns how many more bytes have arrived.
	buffered() int
}

// A Message is a protocol buffer that is read while it arrives. [Message.Fields] goes through its
// fields; for each kind of value there is a method that reads the current field's. A method that
// meets a wire type other than its own reads nothing, and unread parts of a value are skipped, as
// the encoding demands for unknown fields.
//
// After the first error there are no more fields and values are zero, so callers need not check for
// one: Receive returns it.
type Message struct {
	source source
	bounds Bounds
	share  gate.Share
	text   int // bytes that are left for strings

	buf  []byte // unread bytes of the current piece
	pos  int    // bytes read
	end  int    // the end of the message, or of the value that is being read
	open bool   // the message may end before end: its size is not known, only its bound
	deep int    // depth of the value that is being read; 0: none
	err  error

	field field
}

// A field is the current field.
type field struct {
	num  protowire.Number // 0: in none
	typ  protowire.Type
	read bool // its value has begun to be read
	end  int  // where its value ends; valid if read
}

// Fail makes err the message's error, unless it has one.
func (m *Message) Fail(err error) {
	if m.err == nil {
		m.err = err
		m.buf = nil
	}
}

// Malformed fails because the bytes up to here violate the encoding.
func (m *Message) Malformed(format string, args ...any) {
	m.Fail(fault.Malformed("at byte %d: %s", m.pos, fmt.Sprintf(format, args...)))
}

// Fields calls each for every field of the message or, within a field, of the message that is the
// field's value. Fields may come in any order and more than once.
func (m *Message) Fields(each func(number int)) {
	if m.field.num == 0 {
		m.fields(each)
		return
	}
	if n, ok := m.Delimited(); ok {
		outer := m.field
		m.inside(n, func() { m.fields(each) })
		m.field = outer
	}
}

func (m *Message) fields(each func(number int)) {
	for m.more() {
		m.field = field{}
		m.field.num, m.field.typ = m.tag()
		if m.err != nil {
			return
		}
		each(int(m.field.num))
		m.skip()
	}
}

// inside calls read to read the next n bytes as a value.
func (m *Message) inside(n int, read func()) {
	outer := m.end
	m.end = m.pos + n
	m.deep++
	read()
	m.deep--
	m.end = outer
}

// value records that the current value is being read, and has n more bytes.
func (m *Message) value(n int) { m.field.read, m.field.end = true, m.pos+n }

// IsDelimited reports whether the current value is preceded by its length.
func (m *Message) IsDelimited() bool { return m.field.typ == protowire.BytesType }

// Delimited begins to read a value that is preceded by its length, n: a string, bytes, a message or
// packed numbers.
func (m *Message) Delimited() (n int, ok bool) {
	if !m.IsDelimited() {
		return 0, false
	}
	n = m.length()
	m.value(n)
	return n, m.err == nil
}

// Varint reads a number of variable length.
func (m *Message) Varint() (v uint64, ok bool) {
	if m.field.typ != protowire.VarintType {
		return 0, false
	}
	v = m.varint()
	m.value(0)
	return v, m.err == nil
}

// Varints reads the numbers of a repeated field, packed or a single one.
func (m *Message) Varints(each func(v uint64)) {
	if v, ok := m.Varint(); ok {
		each(v)
	} else if n, ok := m.Delimited(); ok {
		m.inside(n, func() {
			for m.more() {
				if v := m.varint(); m.err == nil {
					each(v)
				}
			}
		})
	}
}

// Fixed begins to read the numbers of a repeated field, packed or a single one, of width bytes
// each, 4 or 8: n bytes in all, little-endian.
func (m *Message) Fixed(width int) (n int) {
	if m.field.typ == protowire.Fixed32Type && width == 4 || m.field.typ == protowire.Fixed64Type && width == 8 {
		m.value(width)
		return width
	}
	n, _ = m.Delimited()
	if n%width != 0 {
		m.Malformed("%d bytes in field %d, expected a multiple of %d", n, m.field.num, width)
	}
	return n
}

// Double reads a floating-point number of 8 bytes.
func (m *Message) Double() (v float64, ok bool) {
	if m.field.typ != protowire.Fixed64Type {
		return 0, false
	}
	var b [8]byte
	m.value(len(b))
	m.read(b[:])
	return math.Float64frombits(binary.LittleEndian.Uint64(b[:])), m.err == nil
}

// String reads a string into s, and reports whether there was one.
func (m *Message) String(s *string) bool {
	n, ok := m.Delimited()
	if !ok || !m.Charge(n) {
		return false
	}
	b := make([]byte, n)
	m.read(b)
	if m.err == nil && !utf8.Valid(b) {
		m.Malformed("a string that is not UTF-8")
	}
	if m.err != nil {
		return false
	}
	*s = string(b)
	return true
}

// Charge takes n bytes from the message's limit on strings, and reports whether the limit allows
// them.
func (m *Message) Charge(n int) bool {
	if m.text -= n; m.text < 0 {
		m.Fail(fault.TooLarge("names, id and parameters have at least %d bytes; limits.metadata_bytes is %d",
			m.bounds.Text-m.text, m.bounds.Text))
	}
	return m.err == nil
}

// All reads the rest of the message.
func (m *Message) All() (b []byte) {
	for m.more() {
		p := m.piece(m.end - m.pos)
		if err := m.share.Hold(len(p)); err != nil {
			m.Fail(err)
			return nil
		}
		b = append(b, p...)
	}
	return b
}

// more reports whether the message, or the value that is being read, goes on. If so, its next byte
// is in hand.
func (m *Message) more() bool {
	if m.err != nil || m.pos >= m.end {
		return false
	}
	if len(m.buf) > 0 {
		return true
	}
	piece, err := m.source.next()
	switch {
	case err == io.EOF && m.open && m.deep == 0:
		m.end = m.pos
		return false
	case err == io.EOF:
		m.Malformed("the message ends in the middle of a field")
		return false
	case err != nil:
		m.Fail(err)
		return false
	}
	m.buf = piece
	return true
}

// piece returns those of the next n bytes that are in hand, at least one; nil after an error.
func (m *Message) piece(n int) []byte {
	m.deep++
	ok := m.more()
	m.deep--
	if !ok {
		m.Malformed("a field ends in the middle of a value")
		return nil
	}
	p := m.buf[:min(n, len(m.buf), m.end-m.pos)]
	m.buf = m.buf[len(p):]
	m.pos += len(p)
	return p
}

// arrived returns how many bytes can be read without waiting.
func (m *Message) arrived() int { return min(len(m.buf)+m.source.buffered(), m.end-m.pos) }

func (m *Message) varint() uint64 {
	if m.err != nil {
		return 0
	}
	if v, n := protowire.ConsumeVarint(m.buf[:min(len(m.buf), m.end-m.pos)]); n > 0 {
		m.buf = m.buf[n:]
		m.pos += n
		return v
	}
	// The number continues in the next piece, or is malformed.
	var b [binary.MaxVarintLen64]byte
	n := 0
	for n == 0 || b[n-1] >= 0x80 && n < len(b) {
		if n += copy(b[n:], m.piece(1)); m.err != nil {
			return 0
		}
	}
	v, n := protowire.ConsumeVarint(b[:n])
	if n < 0 {
		m.Malformed("a number of more than 64 bits")
		return 0
	}
	return v
}

// tag reads a field's number and wire type.
func (m *Message) tag() (protowire.Number, protowire.Type) {
	num, typ := protowire.DecodeTag(m.varint())
	if m.err == nil && !num.IsValid() {
		m.Malformed("a field number that is not valid")
	}
	return num, typ
}

// length reads the length of a value, which must fit into the enclosing value.
func (m *Message) length() int {
	n := m.varint()
	left := m.end - m.pos
	switch {
	case m.err != nil || n <= uint64(left):
	case m.open && m.deep == 0 && n <= math.MaxInt32:
		m.Fail(m.bounds.exceeded(int64(m.pos) + int64(n)))
	default:
		m.Malformed("a field of %d bytes where %d are left", n, left)
	}
	if m.err != nil {
		return 0
	}
	return int(n)
}

// read fills dst.
func (m *Message) read(dst []byte) {
	for len(dst) > 0 {
		p := m.piece(len(dst))
		if p == nil {
			return
		}
		dst = dst[copy(dst, p):]
	}
}

// skip skips the rest of the current value.
func (m *Message) skip() {
	if m.field.read {
		m.pass(m.field.end - m.pos)
		return
	}
	num, typ := m.field.num, m.field.typ
	var groups []protowire.Number // obsolete, but they may be nested
	for {
		switch typ {
		case protowire.VarintType:
			m.varint()
		case protowire.Fixed32Type:
			m.pass(4)
		case protowire.Fixed64Type:
			m.pass(8)
		case protowire.BytesType:
			m.pass(m.length())
		case protowire.StartGroupType:
			if len(groups) == protowire.DefaultRecursionLimit {
				m.Malformed("groups nested more than %d deep", len(groups))
			}
			groups = append(groups, num)
		case protowire.EndGroupType:
			if len(groups) == 0 || groups[len(groups)-1] != num {
				m.Malformed("the end of a group %d that has not begun", num)
				return
			}
			groups = groups[:len(groups)-1]
		default:
			m.Malformed("field %d has wire type %d", num, typ)
		}
		if m.err != nil || len(groups) == 0 {
			return
		}
		num, typ = m.tag()
	}
}

func (m *Message) pass(n int) {
	for n > 0 && m.err == nil {
		n -= len(m.piece(n))
	}
}
