package shiva

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/tensor"
)

// MessageSize is the number of bytes of m on the wire. It fails, as the encoders do, when m
// cannot be sent: more than 255 tensors, a namespace that is not UTF-8 or longer than 255
// bytes, a dtype that the protocol has no code for, a shape that does not fit it or does not
// agree with the data. Whether Metadata is a JSON object is not checked; see [ValidObject].
func MessageSize(m *Message) (int, error) {
	total, _, err := measure(m)
	return total, err
}

// measure returns the size of m, and how many of its bytes the vectored form does not copy.
func measure(m *Message) (total, referenced int, err error) {
	if len(m.Tensors) > maxTensors {
		return 0, 0, fmt.Errorf("shiva: the message has %d tensors, at most %d can be sent", len(m.Tensors), maxTensors)
	}
	if len(m.Namespace) > maxNamespaceBytes {
		return 0, 0, fmt.Errorf("shiva: the namespace has %d bytes, at most %d can be sent", len(m.Namespace),
			maxNamespaceBytes)
	}
	if !utf8.ValidString(m.Namespace) {
		return 0, 0, fmt.Errorf("shiva: namespace %q is not UTF-8", m.Namespace)
	}
	if len(m.Metadata) > maxMetadataBytes {
		return 0, 0, fmt.Errorf("shiva: the metadata has %d bytes, at most %d can be sent", len(m.Metadata),
			maxMetadataBytes)
	}
	total = headerBytes + len(m.Metadata) + len(m.Namespace)
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if err := checkSendable(t); err != nil {
			return 0, 0, fmt.Errorf("shiva: tensor %d (%q): %w", i, t.Name, err)
		}
		total += tensorHeaderBytes + dimBytes*len(t.Shape) + len(t.Data)
		if byReference(t) {
			referenced += len(t.Data)
		}
	}
	return total, referenced, nil
}

func checkSendable(t *tensor.Tensor) error {
	if !t.DType.OnWire() {
		return fmt.Errorf("dtype %s has no code on the wire", t.DType)
	}
	if len(t.Shape) > maxRank {
		return fmt.Errorf("the rank is %d, at most %d can be sent", len(t.Shape), maxRank)
	}
	for _, d := range t.Shape {
		if d > maxDim {
			return fmt.Errorf("dimension %d of shape %s is too large, at most %d can be sent", d, t.Shape, maxDim)
		}
	}
	return t.Check()
}

// AppendMessage appends m in its wire form. It may grow dst and does not keep it; if it fails, for
// the reasons of [MessageSize], dst is unchanged.
func AppendMessage(dst []byte, m *Message) ([]byte, error) {
	total, _, err := measure(m)
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, total)
	dst = messageHeader(m).append(dst)
	for i := range m.Tensors {
		t := &m.Tensors[i]
		dst = appendTensorHeader(dst, t)
		dst = appendElements(dst, t)
	}
	dst = append(dst, m.Metadata...)
	return append(dst, m.Namespace...), nil
}

// A Vec is a run of bytes to send. With a Width above 1 they are elements in host order: units of
// that many bytes, which the writer must swap, with [tensor.SwapCopy], one block at a time.
// Swapping a large tensor whole beforehand would take its memory a second time, and pass it through
// the caches once more.
type Vec struct {
	Data  []byte
	Width int
}

// AppendVectored appends m to vecs without copying large tensors: vecs refer to them, and
// everything else is appended to scratch, which the other vecs are slices of. Several messages may
// be gathered in the same scratch and vecs; bytes that continue the last vec extend it.
//
// The caller must not change m's tensors and scratch until the vecs are written. On failure, as for
// [AppendMessage], scratch and vecs are returned unchanged.
func AppendVectored(scratch []byte, vecs []Vec, m *Message) ([]byte, []Vec, error) {
	total, referenced, err := measure(m)
	if err != nil {
		return scratch, vecs, err
	}
	// After this, scratch does not move under the vecs.
	scratch = slices.Grow(scratch, total-referenced)
	start := len(scratch)
	scratch = messageHeader(m).append(scratch)
	for i := range m.Tensors {
		t := &m.Tensors[i]
		scratch = appendTensorHeader(scratch, t)
		if !byReference(t) {
			scratch = appendElements(scratch, t)
			continue
		}
		vecs = appendVec(vecs, scratch, start)
		vecs = append(vecs, Vec{t.Data, swapWidth(t.DType)})
		start = len(scratch)
	}
	scratch = append(scratch, m.Metadata...)
	scratch = append(scratch, m.Namespace...)
	return scratch, appendVec(vecs, scratch, start), nil
}

const (
	// The size from which a tensor gets a vector of its own: below it, copying is cheaper than the
	// kernel's work for one more vector.
	minReferenceBytes = 2 << 10
	// The same for a tensor that has to be swapped, and so copied in any case.
	minSwapReferenceBytes = 64 << 10
)

// byReference reports whether the vectored form refers to t's bytes instead of copying them.
func byReference(t *tensor.Tensor) bool {
	if swapWidth(t.DType) == 1 {
		return len(t.Data) >= minReferenceBytes
	}
	// See appendElements for LongDouble.
	return len(t.Data) >= minSwapReferenceBytes && t.DType != tensor.LongDouble
}

// appendVec adds scratch[start:] to vecs, extending the last vec if it ends at start.
func appendVec(vecs []Vec, scratch []byte, start int) []Vec {
	if n := len(vecs); n > 0 && extend(&vecs[n-1].Data, scratch, start) || start == len(scratch) {
		return vecs
	}
	return append(vecs, Vec{scratch[start:], 1})
}

// extend extends last to the end of scratch, if last is a slice of scratch that ends at start, and
// reports whether it did.
func extend(last *[]byte, scratch []byte, start int) bool {
	v := *last
	// Slices of scratch, and only they, share the end of its memory.
	if cap(v) == 0 || cap(scratch) == 0 || &v[:cap(v)][cap(v)-1] != &scratch[:cap(scratch)][cap(scratch)-1] ||
		cap(v)-len(v) != cap(scratch)-start {
		return false
	}
	*last = v[:len(v)+len(scratch)-start]
	return true
}

func messageHeader(m *Message) header {
	return header{metadataBytes: int32(len(m.Metadata)), tensors: uint8(len(m.Tensors)),
		namespaceBytes: uint8(len(m.Namespace))}
}

func appendTensorHeader(dst []byte, t *tensor.Tensor) []byte {
	dst = append(dst, byte(len(t.Shape)), byte(t.DType))
	for _, d := range t.Shape {
		dst = binary.BigEndian.AppendUint32(dst, uint32(d))
	}
	return dst
}

// appendElements appends the elements of t, for which dst has room, in the wire's byte order.
func appendElements(dst []byte, t *tensor.Tensor) []byte {
	start := len(dst)
	dst = dst[:start+len(t.Data)]
	tensor.SwapCopy(dst[start:], t.Data, swapWidth(t.DType))
	if t.DType == tensor.LongDouble {
		// The padding is arbitrary memory of the sender, and comes first on the wire.
		for i := start; i < len(dst); i += tensor.LongDouble.Size() {
			clear(dst[i : i+longDoublePadding])
		}
	}
	return dst
}

// longDoublePadding is how many of a long double's 16 bytes have no meaning.
const longDoublePadding = 6
