package load

import (
	"fmt"
	"io"
)

// Wire is a protocol that servers of tensors speak.
type Wire uint8

// Answers of Shiva and HTTP are in the order of the requests; those of gRPC have stream numbers.
const (
	Shiva Wire = iota
	HTTP
	GRPC
)

// A wire is the protocol of one connection: when the next request may be sent, and where answers
// end.
type wire interface {
	// ready is called before a request is written, with its bytes, which it may modify. It
	// returns bytes to be written before it; ok is false if flow control forbids the request
	// until more has been read.
	ready(frame []byte) (ahead []byte, ok bool)
	// read consumes bytes of p, at most up to the end of one answer. With gather, it collects the
	// next answer that begins.
	read(p []byte, gather bool) (a answer, n int, err error)
	// failure is the text of the last answer, which was an error; empty if unknown.
	failure() string
}

// An answer is the result of a wire's read.
type answer struct {
	done       bool // it is complete; the other fields are set only then
	place      int  // of its request among those in flight, 0 for the oldest
	fault      bool
	superseded bool   // the fault is that a newer frame of the stream is there
	whole      []byte // all of it, if it was collected; valid until the next read
}

// A greeter is a wire with an exchange before the first request.
type greeter interface {
	greet(nc io.ReadWriter) error
}

// newWire makes a connection's wire, and the bytes of its request.
func newWire(w Wire, frame []byte) (wire, []byte, error) {
	switch w {
	case Shiva:
		return &shivaWire{}, frame, nil
	case HTTP:
		return &httpWire{}, frame, nil
	case GRPC:
		g := newGRPCWire(frame)
		return g, g.frame, nil
	default:
		return nil, nil, fmt.Errorf("load: there is no wire %d", w)
	}
}

// A shivaWire collects what answers skips.
type shivaWire struct {
	answers
	keeping bool
	kept    []byte
	last    []byte // the last answer, if it arrived in one piece
}

func (s *shivaWire) ready([]byte) ([]byte, bool) { return nil, true }

func (s *shivaWire) read(p []byte, gather bool) (a answer, n int, err error) {
	begins := s.stage == atStart
	if begins && gather {
		s.keeping, s.kept = true, s.kept[:0]
	}
	n, a.done, err = s.next(p)
	if s.keeping {
		s.kept = append(s.kept, p[:n]...)
	}
	if !a.done {
		return a, n, err
	}
	if s.last = nil; begins {
		s.last = p[:n]
	}
	a.fault = s.fault
	if s.keeping && !a.fault {
		a.whole = s.kept
	}
	s.keeping = false
	return a, n, err
}

// failure is the metadata of an "!error", which has no tensors before it.
func (s *shivaWire) failure() string {
	if s.last == nil || s.last[8] != 0 {
		return ""
	}
	return string(s.last[headerSize : headerSize+s.metadata])
}
