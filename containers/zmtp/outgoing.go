package zmtp

// An Outgoing is one multipart message to be sent, or several in a row: small pieces copied
// together into memory of its own, and large ones referenced where they are. It is built with
// Frame, Begin and Add, handed to Conn.Send, and may be built anew after Reset once it has been
// written. Its zero value is ready, and it keeps its memory, so that a session sends without
// allocating.
//
// Referenced memory must not change until the message has been written (Conn.Written, or Done) or
// the connection's Close has returned.
type Outgoing struct {
	// Done, if set, is called once: after the message has been written, or with the connection's
	// error after the message was given up. It is called without locks, from Send or from the
	// writing goroutine; it must not block and may build and send the same Outgoing again.
	Done func(error)

	scratch  []byte
	segments []segment
	mark     int // start of the scratch bytes that are in no segment yet
	frames   int
	last     int // where the last frame's flags are in scratch
	size     int // bytes on the wire

	// Guarded by the sender's mutex, from Send until written.
	next    int // segment to write next
	offset  int // bytes of it that are written
	written bool
}

// A segment is a stretch of the message: bytes of ours at scratch[lo:hi], or foreign ones.
type segment struct {
	lo, hi  int
	foreign []byte
}

// copyLimit is the size up to which bytes are copied into the message instead of being
// referenced. An entry in the kernel's vector costs about as much as copying 1 KiB.
const copyLimit = 1 << 10

// Reset empties the message, which must not be queued or being written.
func (o *Outgoing) Reset() {
	clear(o.segments)
	*o = Outgoing{Done: o.Done, scratch: o.scratch[:0], segments: o.segments[:0]}
}

// Frame adds a frame with these bytes.
func (o *Outgoing) Frame(b []byte) {
	o.Begin(len(b))
	o.Add(b)
}

// FrameString adds a frame with a copy of s.
func (o *Outgoing) FrameString(s string) {
	o.Begin(len(s))
	o.scratch = append(o.scratch, s...)
}

// Begin starts a frame of size bytes, all of which must be added before the next frame.
func (o *Outgoing) Begin(size int) {
	o.more()
	var h [maxHeader]byte
	n := putHeader(&h, 0, size)
	o.last = len(o.scratch)
	o.scratch = append(o.scratch, h[maxHeader-n:]...)
	o.size += n + size
}

// Add adds bytes to the frame begun last. Small ones are copied, large ones are referenced.
func (o *Outgoing) Add(b []byte) {
	if len(b) <= copyLimit {
		o.Copy(b)
		return
	}
	o.cut()
	o.segments = append(o.segments, segment{foreign: b})
}

// Copy adds a copy of bytes to the frame begun last. (It does not keep b, which may therefore be on
// the caller's stack.)
func (o *Outgoing) Copy(b []byte) { o.scratch = append(o.scratch, b...) }

// Open starts a frame whose size is not known yet and returns memory to append its bytes to.
// Give the result to Seal before doing anything else with the message.
func (o *Outgoing) Open() []byte {
	o.more()
	o.last = len(o.scratch)
	return append(o.scratch, make([]byte, maxHeader)...)
}

// Seal ends the frame that Open started; b is what Open returned with the frame's bytes appended.
func (o *Outgoing) Seal(b []byte) {
	body := b[o.last+maxHeader:]
	var h [maxHeader]byte
	n := putHeader(&h, 0, len(body))
	copy(b[o.last:], h[maxHeader-n:])
	if n < maxHeader { // a short frame moves up to its short header
		copy(b[o.last+n:], body)
	}
	o.scratch = b[:o.last+n+len(body)]
	o.size += n + len(body)
}

// End ends a message. The next frame begins another one, which is written, or given up, together
// with it.
func (o *Outgoing) End() { o.frames = 0 }

// more sets the flag on the frame before the one that begins.
func (o *Outgoing) more() {
	if o.frames > 0 {
		o.scratch[o.last] |= flagMore
	}
	o.frames++
}

// cut closes the stretch of scratch bytes before something else follows.
func (o *Outgoing) cut() {
	if len(o.scratch) > o.mark {
		o.segments = append(o.segments, segment{lo: o.mark, hi: len(o.scratch)})
		o.mark = len(o.scratch)
	}
}

// command makes the message a ZMTP command with up to two pieces of body.
func (o *Outgoing) command(name string, body []byte) {
	o.Reset()
	o.Begin(1 + len(name) + len(body))
	o.scratch[o.last] |= flagCommand
	o.scratch = append(o.scratch, byte(len(name)))
	o.scratch = append(o.scratch, name...)
	o.scratch = append(o.scratch, body...)
}

// bytes returns a segment's bytes.
func (o *Outgoing) bytes(s segment) []byte {
	if s.foreign != nil {
		return s.foreign
	}
	return o.scratch[s.lo:s.hi]
}

// Size returns the bytes of the message on the wire, frame headers included.
func (o *Outgoing) Size() int { return o.size }
