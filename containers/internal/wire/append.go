package wire

import (
	"iter"
	"math"
	"strconv"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// AppendTensor appends the description of a tensor. first is its first dimension, omitted if it
// is negative, and rest the others.
func AppendTensor(b []byte, name string, d tensor.DType, first int, rest tensor.Shape) []byte {
	b = append(b, `{"name":`...)
	b = jsonscan.AppendString(b, name)
	b = append(b, `,"datatype":"`...)
	b = append(b, d.V2()...)
	b = append(b, `","shape":[`...)
	if first >= 0 {
		b = strconv.AppendInt(b, int64(first), 10)
	}
	for i, n := range rest {
		if i > 0 || first >= 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, `]}`...)
}

// AppendAt adds the places of its pieces in shared memory to the description of a tensor, which is
// at the end of b.
func AppendAt(b []byte, pieces []Piece) []byte {
	b = append(b[:len(b)-1], `,"at":`...)
	for i, p := range pieces {
		if i == 0 {
			b = append(b, '[')
		} else {
			b = append(b, ',')
		}
		b = append(strconv.AppendInt(b, p.Segment, 10), ',')
		b = append(strconv.AppendInt(b, p.Offset, 10), ',')
		b = strconv.AppendInt(b, p.Size, 10)
	}
	return append(b, `]}`...)
}

// A Piece is a range of bytes in a segment of shared memory.
type Piece struct{ Segment, Offset, Size int64 }

// AppendPictures appends the pictures of an input: for each row the index of its picture, and the
// number of each picture.
func AppendPictures(b []byte, input string, of iter.Seq2[int, int], ids []uint64) []byte {
	b = append(jsonscan.AppendString(b, input), `:{"of":[`...)
	for picture, rows := range of {
		for range rows {
			b = append(strconv.AppendInt(b, int64(picture), 10), ',')
		}
	}
	b = append(b[:len(b)-1], `],"ids":[`...)
	for _, id := range ids {
		b = append(strconv.AppendUint(b, id, 10), ',')
	}
	return append(b[:len(b)-1], `]}`...)
}

// AppendMillis appends a time in milliseconds with up to three decimals.
func AppendMillis(b []byte, micros int64) []byte {
	return strconv.AppendFloat(b, math.Round(float64(micros))/1000, 'f', -1, 64)
}

// AppendGrantUse appends the members of a batch that a container granted, with a comma before each.
func AppendGrantUse(b []byte, t GrantUse) []byte {
	b = strconv.AppendUint(append(b, `,"grant":`...), t.Grant, 10)
	b = strconv.AppendInt(append(b, `,"best":`...), int64(t.Best), 10)
	if t.Left > 0 {
		b = strconv.AppendInt(append(b, `,"left":`...), int64(t.Left), 10)
	}
	return b
}

// AppendTogether appends the members of a result that was executed with rows of other servers.
func AppendTogether(b []byte, rows int, queuedMicros int64) []byte {
	b = strconv.AppendInt(append(b, `,"together":`...), int64(rows), 10)
	if queuedMicros > 0 {
		b = AppendMillis(append(b, `,"queued_ms":`...), queuedMicros)
	}
	return b
}

// AppendRowErrors appends the "errors" member of a result, with the comma before it.
func AppendRowErrors(b []byte, list []RowError) []byte {
	b = append(b, `,"errors":`...)
	for i, e := range list {
		if i == 0 {
			b = append(b, '[')
		} else {
			b = append(b, ',')
		}
		b = append(b, `{"row":`...)
		b = strconv.AppendInt(b, int64(e.Row), 10)
		b = append(b, `,"message":`...)
		b = jsonscan.AppendString(b, e.Message)
		if e.Invalid {
			b = append(b, `,"invalid":true`...)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}
