package shiva

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Limits bound what a Decoder accepts. They are compared with the sizes that a message announces,
// before memory is taken for it. Zero means the default.
type Limits struct {
	MessageBytes  int64 // a whole message; 256 MiB
	MetadataBytes int   // 1 MiB
	Tensors       int   // in a message; 255, the most that the protocol can express
	Rank          int   // of a tensor; 64, numpy's limit since 2.0; the protocol can express 255
	JSONDepth     int   // of nesting in metadata; 128
}

const (
	defaultMessageBytes  = 256 << 20
	defaultMetadataBytes = 1 << 20
	defaultRank          = 64
	defaultJSONDepth     = 128
	defaultResyncBytes   = 1 << 20
)

func (l *Limits) setDefaults() {
	if l.MessageBytes <= 0 {
		l.MessageBytes = defaultMessageBytes
	}
	if l.MetadataBytes <= 0 {
		l.MetadataBytes = defaultMetadataBytes
	}
	if l.Tensors <= 0 {
		l.Tensors = maxTensors
	}
	if l.Rank <= 0 {
		l.Rank = defaultRank
	}
	if l.JSONDepth <= 0 {
		l.JSONDepth = defaultJSONDepth
	}
}

// A DecoderConfig configures a Decoder. The zero value is usable.
type DecoderConfig struct {
	Limits Limits
	Pool   *tensor.Pool // where messages' memory comes from; nil: the garbage collector, no limit

	// Resync makes framing faults survivable, for noisy byte channels: after one, the decoder drops
	// bytes until a valid header, at most ResyncBytes (0 means 1 MiB), and continues there. Keep is
	// then true for such errors.
	Resync      bool
	ResyncBytes int
	// Grant, if not nil, is asked before the current message takes more than 64 KiB of memory, and
	// each time that it takes more: with the bytes that it would hold then, and those that it has
	// announced so far. An error refuses the memory, as the pool's does.
	Grant func(held, whole int64) error

	// Spares, if not nil, supplies the memory of small messages. It is shared by the decoders of
	// one goroutine.
	Spares *Spares
}

// A Decoder takes the bytes of a stream, in pieces of any size, and returns messages. It keeps none
// of the slices that it is passed: tensor elements are copied directly to their final place, and
// swapped into host order on the way.
//
// Memory is taken as bytes arrive, not as they are announced: at any time at most about eight times
// the bytes received of the current message, plus 16 KiB. With a Pool, small messages need no
// allocation once a few have been decoded.
//
// A Decoder is for one stream and one goroutine at a time. It has no clock, no lock and no
// goroutine.
type Decoder struct {
	cfg DecoderConfig

	state  decodeState
	failed *DecodeError // a framing fault: every later Push returns it
	fault  *DecodeError // returned at the end of the current message, which is consumed until then
	m      *Message     // the current message; nil before its first tensor and while discarded
	head   header
	pos    int64 // bytes consumed of the current message
	total  int64 // bytes announced of it so far
	held   int64 // bytes of buffers of it

	// A field of fixed size that arrives in pieces.
	part  [headerBytes]byte
	nPart int

	// Searching for a header after a fault, see Resync.
	lost    bool
	skipped int

	// The current tensor.
	index    int // which one
	dtype    tensor.DType
	rank     int
	dimsLeft int
	bytes    uint64 // product of the element size and the non-zero dimensions so far
	empty    bool   // a dimension is zero

	// The current body: a tensor's data, or metadata.
	body  []byte // its memory so far, one stage towards need; nil while discarding
	need  int
	have  int            // bytes received
	width int            // bytes of its unit
	stage *tensor.Buffer // owns body, unless it is in the arena

	// Small bodies of a message share one buffer.
	arena     *tensor.Buffer
	arenaFree []byte

	namespace []byte // of the current message, if it arrives in pieces
	names     [4]string
	nextName  int
}

type decodeState uint8

const (
	inHeader decodeState = iota
	inTensorHeader
	inDims
	inData
	inMetadata
	inNamespace
)

const (
	// Bodies up to this size share a buffer.
	maxArenaItem = 1 << 10
	arenaBytes   = 2 << 10
	arenaAlign   = 16 // of any element

	// A message holds this much without asking for Grant.
	freeBytes = 64 << 10
)

// NewDecoder makes a Decoder for one stream.
func NewDecoder(cfg DecoderConfig) *Decoder {
	d := &Decoder{cfg: cfg}
	d.SetLimits(cfg.Limits, cfg.Resync, cfg.ResyncBytes)
	return d
}

// SetLimits replaces the limits of the [DecoderConfig]. It may be called only between two messages,
// when InMessage is false, and applies to those that follow. A search for a header that is under
// way continues even if Resync is now off.
func (d *Decoder) SetLimits(l Limits, resync bool, resyncBytes int) {
	l.setDefaults()
	if resyncBytes <= 0 {
		resyncBytes = defaultResyncBytes
	}
	d.cfg.Limits, d.cfg.Resync, d.cfg.ResyncBytes = l, resync, resyncBytes
}

// Push takes bytes of the stream and returns how many it has consumed: all of them, unless it
// returns a message or an error. Then call it again with the rest.
//
// A Message belongs to the caller, which must release it. An error is a [*DecodeError]: if its Keep
// is true, Push may continue with the next message; if not, the stream is unusable, and every
// further Push returns the same error.
func (d *Decoder) Push(p []byte) (n int, m *Message, err error) {
	if d.failed != nil {
		return 0, nil, d.failed
	}
	in := p
	for {
		var fault *DecodeError
		switch d.state {
		case inHeader:
			b := d.field(&in, headerBytes)
			if b == nil {
				return len(p), nil, nil
			}
			fault = d.header(b)
		case inTensorHeader:
			b := d.field(&in, tensorHeaderBytes)
			if b == nil {
				return len(p), nil, nil
			}
			fault = d.tensorHeader(b[0], b[1])
		case inDims:
			b := d.field(&in, dimBytes)
			if b == nil {
				return len(p), nil, nil
			}
			fault = d.dim(int32(binary.BigEndian.Uint32(b)))
		case inData:
			if !d.fill(&in) {
				return len(p), nil, nil
			}
			d.endTensor()
		case inMetadata:
			if !d.fill(&in) {
				return len(p), nil, nil
			}
			d.endMetadata()
		case inNamespace:
			name := d.takeNamespace(&in)
			if name == nil {
				return len(p), nil, nil
			}
			m, err = d.end(name)
			return len(p) - len(in), m, err
		}
		if fault != nil {
			return len(p) - len(in), nil, d.fail(fault)
		}
	}
}

// Buffered reports whether the Decoder holds bytes of the stream: it is inside a message, or
// searching for a header. If not, it can be used for another stream.
func (d *Decoder) Buffered() bool { return d.InMessage() || d.lost }

// InMessage reports whether a message has begun and is not complete. During a search for a header,
// a message begins with a whole header.
func (d *Decoder) InMessage() bool { return d.state != inHeader || d.nPart > 0 && !d.lost }

// BodyLeft returns how many bytes of the current body, a tensor's data or the metadata, are
// missing; 0 outside a body.
func (d *Decoder) BodyLeft() int {
	if d.failed != nil || d.state != inData && d.state != inMetadata {
		return 0
	}
	return d.need - d.have
}

// Direct returns the memory for the next bytes of the stream, so that a large body can be read from
// a socket without a copy; nil unless the stream is inside a body that needs no swap. Report how
// much of it was filled with [Decoder.Advance]; call no other method in between.
func (d *Decoder) Direct() []byte {
	if d.BodyLeft() == 0 || d.fault != nil || d.width != 1 {
		return nil
	}
	if d.have == len(d.body) && !d.grow(1) {
		return nil
	}
	return d.body[d.have:]
}

// Growing reports whether the current body still lacks part of its memory.
func (d *Decoder) Growing() bool { return d.BodyLeft() > 0 && d.fault == nil && len(d.body) < d.need }

// Arrived tells the Decoder that n more bytes than were pushed have arrived and can be read. A body
// then takes memory for them in one step, which saves copies: each step copies the bytes so far.
func (d *Decoder) Arrived(n int) {
	if d.Growing() && d.have+n > len(d.body) {
		d.grow(n)
	}
}

// Advance tells the Decoder that the first n bytes of the memory from Direct now hold the next n
// bytes of the stream. If they complete the message, the next Push returns it, even a Push of no
// bytes.
func (d *Decoder) Advance(n int) {
	d.have += n
	d.pos += int64(n)
}

// Held returns how many bytes of memory the current message holds, and Announced how many its
// sender has announced so far.
func (d *Decoder) Held() int64 {
	if d.m == nil {
		return 0
	}
	const dimension, description = 8, 96
	return d.held + dimension*int64(cap(d.m.dims)) + description*int64(cap(d.m.Tensors))
}

// Announced: see Held.
func (d *Decoder) Announced() int64 { return d.total }

// Refuse releases the memory of the current message and discards its rest as it arrives. At its end
// Push returns an error of kind [KindOverBudget] with err. Outside a message, and in one that is
// discarded already, it does nothing.
func (d *Decoder) Refuse(err error) {
	if d.InMessage() && d.fault == nil && d.failed == nil {
		d.overBudget(err)
	}
}

// Close tells the Decoder that the stream has ended, and releases a partial message. It returns nil
// between two messages, and an error of kind truncated inside one. The Decoder is then unusable
// until Reset.
func (d *Decoder) Close() error {
	if d.failed != nil {
		return d.failed
	}
	cut := d.InMessage()
	e := &DecodeError{Kind: KindTruncated, Field: d.fieldName(), Offset: d.pos,
		Detail: fmt.Sprintf("the stream ended inside a message, after %d bytes of it", d.pos)}
	d.drop()
	d.failed = e
	if !cut {
		return nil
	}
	return e
}

// Reset makes the Decoder ready for another stream, however the previous one ended; a partial
// message is released. A Decoder keeps little memory, so a few can be lent to whichever connections
// are reading.
func (d *Decoder) Reset() {
	d.drop()
	d.failed, d.lost, d.skipped = nil, false, 0
}

// field returns the next size bytes of the stream in one piece, valid until the next call, or nil
// until all have arrived.
func (d *Decoder) field(in *[]byte, size int) []byte {
	if d.nPart == 0 && len(*in) >= size {
		b := (*in)[:size]
		*in = (*in)[size:]
		d.pos += int64(size)
		return b
	}
	n := copy(d.part[d.nPart:size], *in)
	*in = (*in)[n:]
	d.nPart += n
	d.pos += int64(n)
	if d.nPart < size {
		return nil
	}
	d.nPart = 0
	return d.part[:size]
}

func (d *Decoder) header(b []byte) *DecodeError {
	h, ok := parseHeader(b)
	if !ok {
		return d.noHeader(b, h, nil)
	}
	if e := d.checkHeader(h); e != nil {
		return d.noHeader(b, h, e)
	}
	d.lost = false
	d.head = h
	d.index = 0
	d.nextPart()
	return nil
}

// checkHeader compares a header with the limits.
func (d *Decoder) checkHeader(h header) *DecodeError {
	l := &d.cfg.Limits
	d.total = headerBytes + int64(h.metadataBytes) + int64(h.namespaceBytes)
	switch {
	case int(h.metadataBytes) > l.MetadataBytes:
		return tooLarge("metadata size", 4, int64(l.MetadataBytes), int64(h.metadataBytes))
	case int(h.tensors) > l.Tensors:
		return tooLarge("number of tensors", 8, int64(l.Tensors), int64(h.tensors))
	case d.total > l.MessageBytes:
		return tooLarge("message size", 0, l.MessageBytes, d.total)
	}
	return nil
}

func tooLarge(field string, offset, limit, got int64) *DecodeError {
	return &DecodeError{Kind: KindTooLarge, Field: field, Offset: offset, Limit: limit, Got: got,
		Detail: fmt.Sprintf("the limit is %d, got %d", limit, got)}
}

// noHeader handles 12 bytes that are not an acceptable header: they exceed a limit (e), or are
// malformed (e is nil). With Resync, it keeps the bytes from where a header may begin. A search
// reports only the fault that started it, and its failure.
func (d *Decoder) noHeader(b []byte, h header, e *DecodeError) *DecodeError {
	inVain := d.lost && d.skipped >= d.cfg.ResyncBytes
	switch {
	case d.lost && !inVain:
		e = nil
	case e == nil:
		e = headerError(b, h)
	}
	switch {
	case inVain:
		e.Detail += fmt.Sprintf(", and no header in %d bytes after the fault", d.skipped)
		return e
	case d.lost:
	case !d.cfg.Resync:
		return e
	default:
		e.keep = true
		d.lost, d.skipped = true, 0
	}
	from := 1
	for from < headerBytes && !beginsMagic(b[from:]) {
		from++
	}
	d.skipped += from
	d.nPart = copy(d.part[:], b[from:])
	d.pos = int64(d.nPart)
	return e
}

// beginsMagic reports whether b may be the beginning of a header.
func beginsMagic(b []byte) bool {
	n := min(len(b), len(magic))
	return string(b[:n]) == string(magic[:n])
}

// nextPart continues after a header or a tensor.
func (d *Decoder) nextPart() {
	if d.index < int(d.head.tensors) {
		d.state = inTensorHeader
		return
	}
	d.state = inMetadata
	d.begin(int(d.head.metadataBytes), 1)
}

func (d *Decoder) tensorHeader(rank, code byte) *DecodeError {
	dtype, ok := tensor.FromWire(code)
	if !ok {
		e := d.tensorFault(KindUnknownDType, "dtype", 1) // the second byte of two
		e.Got = int64(code)
		e.Detail = fmt.Sprintf("code %d is not a dtype", code)
		return e
	}
	if int(rank) > d.cfg.Limits.Rank {
		return tooLarge(fmt.Sprintf("tensor %d rank", d.index), d.pos-tensorHeaderBytes, int64(d.cfg.Limits.Rank),
			int64(rank))
	}
	d.dtype, d.rank, d.dimsLeft = dtype, int(rank), int(rank)
	d.bytes, d.empty = uint64(dtype.Size()), false
	d.total += tensorHeaderBytes + dimBytes*int64(rank)
	if rank == 0 {
		return d.beginTensor()
	}
	d.state = inDims
	return nil
}

// dim takes one dimension. Sizes are multiplied as they arrive, so that an overflow is found before
// the decoder misplaces bytes; zeros are left out of the product, see tensor.Shape.Elements.
func (d *Decoder) dim(v int32) *DecodeError {
	if v < 0 {
		e := d.tensorFault(KindNegativeDim, fmt.Sprintf("dimension %d", d.rank-d.dimsLeft), dimBytes)
		e.Got = int64(v)
		e.Detail = fmt.Sprintf("got %d", v)
		return e
	}
	if v == 0 {
		d.empty = true
	} else {
		hi, lo := bits.Mul64(d.bytes, uint64(v))
		if hi != 0 || lo > math.MaxInt {
			e := d.tensorFault(KindSizeOverflow, fmt.Sprintf("dimension %d", d.rank-d.dimsLeft), dimBytes)
			e.Limit, e.Got = math.MaxInt, int64(v)
			e.Detail = fmt.Sprintf("%d bytes times %d do not fit an int", d.bytes, v)
			return e
		}
		d.bytes = lo
	}
	if d.fault == nil {
		m := d.message()
		m.dims = append(m.dims, int(v))
	}
	if d.dimsLeft--; d.dimsLeft > 0 {
		return nil
	}
	return d.beginTensor()
}

// beginTensor continues with the data of a tensor whose header is complete.
func (d *Decoder) beginTensor() *DecodeError {
	size := int(d.bytes)
	if d.empty {
		size = 0
	}
	if limit := d.cfg.Limits.MessageBytes; int64(size) > limit-d.total {
		e := d.tensorFault(KindTooLarge, "size", 0)
		d.total += min(int64(size), math.MaxInt64-d.total)
		e.Limit, e.Got = limit, d.total
		e.Detail = fmt.Sprintf("the limit for a message is %d bytes, with this tensor's %d it has %d", limit, size,
			e.Got)
		return e
	}
	d.total += int64(size)
	d.state = inData
	d.begin(size, swapWidth(d.dtype))
	return nil
}

// tensorFault makes an error about the last field read of the current tensor, which began back
// bytes ago.
func (d *Decoder) tensorFault(kind Kind, field string, back int64) *DecodeError {
	return &DecodeError{Kind: kind, Field: fmt.Sprintf("tensor %d %s", d.index, field), Offset: d.pos - back}
}

func (d *Decoder) endTensor() {
	if d.fault == nil {
		m := d.message()
		shape := m.dims[len(m.dims)-d.rank : len(m.dims) : len(m.dims)]
		t := tensor.Tensor{DType: d.dtype, Shape: shape, Data: d.body}
		if t.Buf = d.stage; t.Buf == nil && d.need > 0 {
			t.Buf = d.arena
		}
		m.Tensors = append(m.Tensors, t)
	}
	d.index++
	d.nextPart()
}

func (d *Decoder) endMetadata() {
	d.state = inNamespace
	if d.fault != nil {
		return
	}
	kind, at, words := checkMetadata(d.body, d.cfg.Limits.JSONDepth, jsonscan.NonFinite)
	if kind != "" {
		d.fault = metadataError(kind, at, d.body)
		d.fault.Offset += d.pos - int64(len(d.body))
		return
	}
	if words > 0 {
		b, err := d.cfg.Pool.Get(len(d.body) + words) // NaN grows by one byte, the others shrink
		if err != nil {
			d.overBudget(err)
			return
		}
		d.own(b)
		d.body = jsonscan.AppendFinite(b.Bytes()[:0], d.body)
	}
	d.message().Metadata = d.body
}

// takeNamespace returns the namespace once all of it has arrived, and nil before.
func (d *Decoder) takeNamespace(in *[]byte) []byte {
	need := int(d.head.namespaceBytes) - len(d.namespace)
	n := min(need, len(*in))
	piece := (*in)[:n:n]
	*in = (*in)[n:]
	d.pos += int64(n)
	if len(d.namespace) == 0 && n == need {
		if piece == nil {
			piece = []byte{}
		}
		return piece
	}
	d.namespace = append(d.namespace, piece...)
	if n < need {
		return nil
	}
	return d.namespace
}

// end finishes the current message.
func (d *Decoder) end(name []byte) (*Message, error) {
	if !utf8.Valid(name) && d.fault == nil {
		d.fault = &DecodeError{Kind: KindInvalidUTF8Namespace, Field: "namespace", Offset: d.pos - int64(len(name)),
			Detail: fmt.Sprintf("got %q", name), keep: true}
	}
	if d.fault != nil {
		e := d.fault
		if utf8.Valid(name) {
			e.Namespace = string(name)
		}
		if kind, _, words := checkMetadata(d.body, d.cfg.Limits.JSONDepth, jsonscan.NonFinite); kind == "" {
			if words > 0 {
				d.body = jsonscan.AppendFinite(nil, d.body)
			}
			e.ID, e.Token = string(jsonscan.Field(d.body, "id")), string(jsonscan.Field(d.body, TokenKey))
		}
		d.drop()
		return nil, e
	}
	m := d.message()
	m.Namespace = d.intern(name)
	d.m = nil
	d.drop()
	return m, nil
}

// intern returns name as a string; the last few names are remembered.
func (d *Decoder) intern(name []byte) string {
	if len(name) == 0 {
		return ""
	}
	for _, s := range d.names {
		if s == string(name) {
			return s
		}
	}
	s := string(name)
	d.names[d.nextName] = s
	d.nextName = (d.nextName + 1) % len(d.names)
	return s
}

// message returns the current message, which it makes on first use: a message that has not begun to
// arrive costs nothing.
func (d *Decoder) message() *Message {
	if d.m == nil {
		if d.m = d.cfg.Spares.take(); d.m != nil {
			d.arena = d.m.bufs[0]
			d.arenaFree = d.arena.Bytes()
			d.held += int64(len(d.arenaFree))
		} else {
			d.m = newMessage()
		}
	}
	return d.m
}

// own adds a buffer to the current message.
func (d *Decoder) own(b *tensor.Buffer) {
	d.message().own(b)
	d.held += int64(len(b.Bytes()))
}

// fail reports a framing fault. noHeader has already handled a fault at a header, if Resync
// permits.
func (d *Decoder) fail(e *DecodeError) *DecodeError {
	switch {
	case e.keep:
	case d.cfg.Resync && d.state != inHeader:
		d.drop()
		d.lost, d.skipped = true, 0
		e.keep = true
	default:
		if e.Kind == KindTooLarge {
			e.Rest = max(d.total-d.pos, 0)
		}
		d.drop()
		d.failed = e
	}
	return e
}

// drop discards the current message, and continues with the header of the next one.
func (d *Decoder) drop() {
	if d.m != nil {
		d.m.Release()
		d.m = nil
	}
	d.state, d.fault = inHeader, nil
	d.pos, d.nPart, d.held = 0, 0, 0
	d.body, d.stage = nil, nil
	d.arena, d.arenaFree = nil, nil
	d.namespace = d.namespace[:0]
}

// fieldName names the part of a message that the stream is in.
func (d *Decoder) fieldName() string {
	switch d.state {
	case inTensorHeader:
		return fmt.Sprintf("tensor %d header", d.index)
	case inDims:
		return fmt.Sprintf("tensor %d dimension %d", d.index, d.rank-d.dimsLeft)
	case inData:
		return fmt.Sprintf("tensor %d data", d.index)
	case inMetadata:
		return "metadata"
	case inNamespace:
		return "namespace"
	default:
		return "header"
	}
}
