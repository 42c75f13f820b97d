package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
)

// A source gives the bytes of one message, piece by piece.
type source interface {
	// next returns at least one byte more, good until it is called again. io.EOF is the end of
	// a message whose size was not known before.
	next() ([]byte, error)
	// inHand is how many bytes more have arrived.
	inHand() int
}

// A Message is a protocol buffer that is read while it arrives. [Message.Fields] goes through its
// fields; the value of the current one is read by a method for its kind of value. A method that
// meets another wire type than its own reads nothing, and whatever of a value nobody reads is
// passed over, as the encoding asks for fields that are not known.
//
// After the first error there are no more fields and values are zero, so callers need not look
// for one: Receive returns it.
type Message struct {
	source source
	bounds Bounds
	share  gate.Share
	text   int // bytes that are left for strings

	buf  []byte // of the current piece, what is not read yet
	pos  int    // bytes read
	end  int    // where the message ends, or the value that is being read
	open bool   // the message may end before end: its size is not known, only its bound
	deep int    // values that are being read, each in the one before
	err  error

	field field
}

// A field is where the reader is.
type field struct {
	num  protowire.Number // 0: in none
	typ  protowire.Type
	read bool // its value has begun to be read
	end  int  // likewise: where it ends
}

// Fail makes err the message's error, unless it has one.
func (m *Message) Fail(err error) {
	if m.err == nil {
		m.err = err
		m.buf = nil
	}
}

// Malformed fails because the bytes up to here are not what the encoding allows.
func (m *Message) Malformed(format string, args ...any) {
	m.Fail(fmt.Errorf("%w: at byte %d: %s", gate.ErrProtocol, m.pos, fmt.Sprintf(format, args...)))
}

// Fields calls each for every field of the message or, inside of a field, of the message that is
// its value. Fields may come in any order and more than once.
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

// inside has the next n bytes read as a value.
func (m *Message) inside(n int, read func()) {
	outer := m.end
	m.end = m.pos + n
	m.deep++
	read()
	m.deep--
	m.end = outer
}

// value notes that the current value is read, and has n bytes more.
func (m *Message) value(n int) { m.field.read, m.field.end = true, m.pos+n }

// IsDelimited reports whether the current value has its length before it.
func (m *Message) IsDelimited() bool { return m.field.typ == protowire.BytesType }

// Delimited begins to read a value that has its length before it, which is n: a string, bytes, a
// message or packed numbers.
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

// Fixed begins to read the numbers of a repeated field of width bytes each, 4 or 8, packed or a
// single one: n bytes, little-endian.
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

// Charge takes n bytes of what the message may have of strings, and reports whether there were as
// many left.
func (m *Message) Charge(n int) bool {
	if m.text -= n; m.text < 0 {
		m.Fail(fmt.Errorf("%w: names, id and parameters have %d bytes and more, above limits.metadata_bytes, %d",
			scheduler.ErrTooLarge, m.bounds.Text-m.text, m.bounds.Text))
	}
	return m.err == nil
}

// All reads what is left of the message.
func (m *Message) All() (b []byte) {
	for m.more() {
		b = append(b, m.piece(m.end-m.pos)...)
	}
	return b
}

// more reports whether the message, or the value that is being read, goes on, and has its next
// byte in hand.
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

// piece is what is in hand of the next n bytes, one at least; nil after an error.
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

// arrived is how many bytes can be read without waiting.
func (m *Message) arrived() int { return min(len(m.buf)+m.source.inHand(), m.end-m.pos) }

func (m *Message) varint() uint64 {
	if m.err != nil {
		return 0
	}
	if v, n := protowire.ConsumeVarint(m.buf[:min(len(m.buf), m.end-m.pos)]); n > 0 {
		m.buf = m.buf[n:]
		m.pos += n
		return v
	}
	// It goes on in the next piece, or is none.
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

// length reads that of a value, which fits into what it is part of.
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

// skip passes over what is not read of the current value.
func (m *Message) skip() {
	if m.field.read {
		m.pass(m.field.end - m.pos)
		return
	}
	num, typ := m.field.num, m.field.typ
	var groups []protowire.Number // which are obsolete, and may lie in each other
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
