package wire

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// A PictureHeader says of which pictures of an input the rows of a batch are regions.
type PictureHeader struct {
	Input []byte // its name; shares the header's memory
	Of    []int  // for each row, the index of its picture
	IDs   []int  // of each picture
}

// pictures reads the member "pictures".
func (s *scanner) pictures(list []PictureHeader) []PictureHeader {
	for name := range s.Members {
		if len(list) == MaxTensors {
			s.Fail(fmt.Errorf("pictures of more than %d inputs", MaxTensors))
		}
		p := PictureHeader{Input: bytes.Clone(name)} // the scanner may reuse it
		for key := range s.Members {
			switch string(key) {
			case "of":
				p.Of = s.integers(p.Of[:0], math.MaxInt)
			case "ids":
				p.IDs = s.integers(p.IDs[:0], math.MaxInt)
			default:
				s.Raw()
			}
		}
		list = append(list, p)
	}
	return list
}

// check returns an error unless every row is of a picture, and every picture has a row, in order.
func (p *PictureHeader) check(rows int) error {
	if len(p.Of) != rows {
		return fmt.Errorf("%d rows are of pictures, in a batch of %d", len(p.Of), rows)
	}
	pictures := 0
	for row, of := range p.Of {
		if of < 0 || of > pictures {
			return fmt.Errorf("row %d is of picture %d, expected 0 to %d", row, of, pictures)
		}
		if of == pictures {
			pictures++
		}
	}
	if pictures != len(p.IDs) {
		return fmt.Errorf("%d pictures have %d ids", pictures, len(p.IDs))
	}
	return nil
}

// An Opened is about one picture of a batch.
type Opened struct {
	Picture int // its index in the first dimension of its input
	// Step is how many of its pixels, along each side, one of those that were decoded stands for;
	// where these are asked for, or were looked at, it is the largest that will do.
	Step  int
	At    [3]int // segment, offset and size; zero: they have no place
	Bytes int    // of those of a result that found no place
}

// An OpenedHeader is about pictures of one input.
type OpenedHeader struct {
	Input []byte // its name
	List  []Opened
}

// AppendOpened appends a member about pictures, with a comma before it.
func AppendOpened(b []byte, member string, inputs []OpenedHeader) []byte {
	b = append(append(append(b, `,"`...), member...), `":{`...)
	for i, h := range inputs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsonscan.AppendString(b, string(h.Input)), `:[`...)
		for k, o := range h.List {
			if k > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(append(b, `{"picture":`...), int64(o.Picture), 10)
			b = strconv.AppendInt(append(b, `,"step":`...), int64(o.Step), 10)
			if o.At[2] > 0 {
				b = fmt.Appendf(b, `,"at":[%d,%d,%d]`, o.At[0], o.At[1], o.At[2])
			}
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// opened reads a member about pictures of a batch of rows.
func (s *scanner) opened(list []OpenedHeader, rows int) []OpenedHeader {
	n := 0
	for name := range s.Members {
		if len(list) == MaxTensors {
			s.Fail(fmt.Errorf("opened pictures of more than %d inputs", MaxTensors))
		}
		h := OpenedHeader{Input: bytes.Clone(name)} // the scanner may reuse it
		for range s.Elements {
			if n++; n > rows {
				s.Fail(fmt.Errorf("more opened pictures than the %d rows of the batch", rows))
			}
			h.List = append(h.List, s.openedPicture())
		}
		list = append(list, h)
	}
	return list
}

func (s *scanner) openedPicture() (o Opened) {
	for key := range s.Members {
		switch string(key) {
		case "picture":
			o.Picture = s.Int()
		case "step":
			o.Step = s.Int()
		case "at":
			if n := len(s.integers(o.At[:0], len(o.At))); n != len(o.At) {
				s.Fail(fmt.Errorf("an opened picture is at %d numbers, expected %d", n, len(o.At)))
			}
		case "bytes":
			o.Bytes = s.Int()
		default:
			s.Raw()
		}
	}
	return o
}
